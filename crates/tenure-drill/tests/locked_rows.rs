//! Rows that an open transaction has locked on PostgreSQL, while workers continue beside it.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::postgres::tokio_postgres::{self, Client, NoTls, Transaction};
use tenure::{Context, Error, Exit, Fault, State, Tenure, Worker, postgres};
use tenure_drill::servers;
use tokio::runtime::Builder;
use tokio::sync::Semaphore;

/// A store of its own, and the address of its database for the user's own driver.
fn on_a_server<Fut: Future<Output = ()>>(schema: &str, test: impl FnOnce(Tenure, String) -> Fut) {
    let url = servers::unclocked(schema).unwrap();
    let plain = url.split_once("&schema=").unwrap().0.to_owned();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let tenure = Tenure::options().observe(|_| ()).open(&url).await.unwrap();
        let test = test(tenure, plain);
        tokio::time::timeout(Duration::from_secs(90), test).await.expect("it hangs");
    });
}

async fn connect(address: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(address, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The locked job's settlement waits until the lock is gone. Other jobs' settlements do not wait,
/// though they were sent with it, and their leases are renewed meanwhile.
#[test]
fn a_locked_job_keeps_nobody_else_from_being_settled() {
    on_a_server("locked", async |tenure, address| {
        let locked = tenure.enqueue_kind("locked", &()).await.unwrap();
        let others = (0..5).map(|_| tenure.enqueue_kind("free", &()));
        let others = tenure.enqueue_many(others).await.unwrap();
        let (runs, begun, go) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(Semaphore::new(0)),
            Arc::new(Semaphore::new(0)),
        );
        let handler = {
            let (runs, begun, go) = (Arc::clone(&runs), Arc::clone(&begun), Arc::clone(&go));
            move |_, cx: Context| {
                let (runs, begun, go) = (Arc::clone(&runs), Arc::clone(&begun), Arc::clone(&go));
                async move {
                    begun.add_permits(1);
                    drop(go.acquire().await);
                    if cx.kind().as_str() == "free" {
                        runs.fetch_add(1, Ordering::SeqCst);
                        // By then the locked job's settlement is waiting for its row.
                        tokio::time::sleep(Duration::from_millis(300)).await;
                    }
                    Ok(None)
                }
            }
        };
        let lease = Duration::from_secs(4);
        let worker =
            || Worker::new(&tenure).concurrency(6).lease(lease).handle_any(handler.clone());
        let first = worker().start().await.unwrap();
        drop(begun.acquire_many(6).await);
        let mut client = connect(&address).await;
        let tx = client.transaction().await.unwrap();
        let lock = "SELECT 1 FROM locked.jobs WHERE id = $1 FOR UPDATE";
        tx.query(lock, &[&locked.id().0]).await.unwrap();
        // A second worker, which would take the jobs over if their leases ended.
        let second = worker().start().await.unwrap();
        go.add_permits(100);
        for handle in &others {
            handle.wait().await.unwrap();
        }
        assert_eq!(locked.state().await.unwrap(), Some(State::Running), "its row is locked");
        tx.rollback().await.unwrap();
        // The locked job's lease could not be renewed, so it may run again. The others ran once.
        locked.wait().await.unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 5);
        assert_eq!(first.shut_down().await, Exit::Shutdown);
        assert_eq!(second.shut_down().await, Exit::Shutdown);
    });
}

/// While the handler holds the job, its lease can neither be renewed nor taken over.
#[test]
fn a_handler_that_holds_its_job_for_longer_than_its_lease_completes_it() {
    on_a_server("held", async |tenure, address| {
        let handle = tenure.enqueue_kind("work", &()).await.unwrap();
        let worker = Worker::new(&tenure).lease(Duration::from_secs(1)).handle_any(move |_, cx| {
            let address = address.clone();
            async move {
                let mut client = connect(&address).await;
                let tx = client.transaction().await?;
                postgres::hold(&tx, &cx).await?;
                tokio::time::sleep(Duration::from_secs(2)).await;
                postgres::complete(&tx, &cx, &"held").await?;
                tx.commit().await?;
                Ok(None)
            }
        });
        let running = worker.start().await.unwrap();
        assert_eq!(handle.wait().await.unwrap(), "held");
        assert_eq!(running.shut_down().await, Exit::Shutdown);
        let found = tenure.job(handle.id()).await.unwrap().unwrap();
        assert_eq!((found.job.attempt, found.timeline.len()), (1, 0), "{:?}", found.timeline);
    });
}

/// A transaction that has taken a key and stays open.
async fn taking<'a>(client: &'a mut Client, tenure: &Tenure, key: &str) -> Transaction<'a> {
    let tx = client.transaction().await.unwrap();
    postgres::enqueue(&tx, tenure.enqueue_kind("work", &()).key(key)).await.unwrap();
    tx
}

/// Waits until some session waits for a lock.
async fn until_blocked(client: &Client) {
    let count = "SELECT count(*) FROM pg_stat_activity \
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while client.query_one(count, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::task::yield_now().await;
    }
}

/// Half of the time that a call waits for a lock.
const SOON: Duration = Duration::from_secs(5);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, future).await.unwrap_or_else(|_| panic!("{what} had to wait"))
}

/// Requests for the held key wait. Other requests do not, whether they were sent together with
/// these or later.
#[test]
fn a_key_that_an_open_transaction_holds_keeps_no_other_enqueue_waiting() {
    on_a_server("contended", async |tenure, address| {
        let (mut holder, watcher) = (connect(&address).await, connect(&address).await);
        let tx = taking(&mut holder, &tenure, "K").await;
        let same = || tokio::spawn(tenure.enqueue_kind("work", &()).key("K").into_future());
        let same = [same(), same()];
        let others = |round: &'static str| {
            let other = |n: u8| {
                let job = tenure.enqueue_kind("other", &n).tenant("another");
                let job = if n.is_multiple_of(2) { job } else { job.key(format!("{round}{n}")) };
                tokio::spawn(job.into_future())
            };
            (0..29).map(other).collect::<Vec<_>>()
        };
        for round in ["sent with it", "later"] {
            soon(round, async {
                for other in others(round) {
                    assert!(other.await.unwrap().unwrap().is_new(), "{round}");
                }
            })
            .await;
            until_blocked(&watcher).await;
        }
        assert!(same.iter().all(|same| !same.is_finished()), "the key is not free");
        tx.commit().await.unwrap();
        soon("who asked for the key", async {
            for same in same {
                assert!(!same.await.unwrap().unwrap().is_new());
            }
        })
        .await;
    });
}

/// Two keys are held, and one of them becomes free: the request that waits for it is not delayed by
/// the other.
#[test]
fn a_key_that_becomes_free_is_not_kept_waiting_by_one_that_does_not() {
    on_a_server("freed", async |tenure, address| {
        let (mut first, mut second) = (connect(&address).await, connect(&address).await);
        let watcher = connect(&address).await;
        let stays = taking(&mut first, &tenure, "stays").await;
        let goes = taking(&mut second, &tenure, "goes").await;
        let ask = |key| tokio::spawn(tenure.enqueue_kind("work", &()).key(key).into_future());
        let waiting = ask("stays");
        until_blocked(&watcher).await;
        let freed = ask("goes");
        goes.rollback().await.unwrap();
        assert!(soon("the free one", freed).await.unwrap().unwrap().is_new());
        assert!(!waiting.is_finished());
        stays.rollback().await.unwrap();
        assert!(soon("the last one", waiting).await.unwrap().unwrap().is_new());
    });
}

#[test]
fn a_key_that_stays_taken_is_told_as_busy() {
    on_a_server("busy", async |tenure, address| {
        let mut holder = connect(&address).await;
        let tx = taking(&mut holder, &tenure, "K").await;
        let busy = tenure.enqueue_kind("work", &()).key("K").await.unwrap_err();
        assert!(matches!(busy, Error::Busy { .. }) && busy.is_transient(), "{busy}");
        tx.rollback().await.unwrap();
        assert!(tenure.enqueue_kind("work", &()).key("K").await.unwrap().is_new());
    });
}

#[test]
fn a_key_that_an_open_transaction_holds_keeps_no_step_waiting() {
    on_a_server("unrelated", async |tenure, address| {
        let (mut holder, watcher) = (connect(&address).await, connect(&address).await);
        let tx = taking(&mut holder, &tenure, "K").await;
        let ask = || tokio::spawn(tenure.enqueue_kind("work", &()).key("K").into_future());
        let asking = [ask(), ask()];
        until_blocked(&watcher).await;
        let step = |_, cx: Context| async move {
            for name in ["one", "two", "three"] {
                cx.step(name, || async { Ok(()) }).await?;
            }
            cx.progress(1.0, "done").await?;
            Ok(None)
        };
        let running = Worker::new(&tenure).handle_any(step).start().await.unwrap();
        let job = soon("an enqueue", tenure.enqueue_kind("other", &()).into_future());
        let job = job.await.unwrap();
        soon("a step", job.wait()).await.unwrap();
        assert!(asking.iter().all(|asking| !asking.is_finished()), "the key is not free");
        tx.commit().await.unwrap();
        assert_eq!(running.shut_down().await, Exit::Shutdown);
    });
}

/// The handler's own step waits for its own transaction, and nothing else does.
#[test]
fn a_handler_that_holds_its_job_keeps_no_step_of_another_waiting() {
    on_a_server("holding", async |tenure, address| {
        let watcher = connect(&address).await;
        let (held, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let handler = {
            let (held, go) = (Arc::clone(&held), Arc::clone(&go));
            move |_, cx: Context| {
                let (held, go) = (Arc::clone(&held), Arc::clone(&go));
                let address = address.clone();
                async move {
                    if cx.kind().as_str() == "holds" {
                        let mut client = connect(&address).await;
                        let tx = client.transaction().await?;
                        postgres::hold(&tx, &cx).await?;
                        held.add_permits(1);
                        let free = async {
                            drop(go.acquire().await);
                            tx.rollback().await.map_err(Fault::from)
                        };
                        let step = cx.step("own", || async { Ok(()) });
                        tokio::try_join!(step, free)?;
                    } else {
                        for name in ["one", "two", "three"] {
                            cx.step(name, || async { Ok(()) }).await?;
                        }
                    }
                    Ok(None)
                }
            }
        };
        let running =
            Worker::new(&tenure).concurrency(8).handle_any(handler).start().await.unwrap();
        let holding = tenure.enqueue_kind("holds", &()).await.unwrap();
        drop(held.acquire().await);
        until_blocked(&watcher).await;
        let others = (0..6).map(|_| tenure.enqueue_kind("free", &()));
        let others = soon("enqueues", tenure.enqueue_many(others)).await.unwrap();
        for other in &others {
            soon("another handler's step", other.wait()).await.unwrap();
        }
        assert_eq!(holding.state().await.unwrap(), Some(State::Running));
        go.add_permits(1);
        soon("its own step", holding.wait()).await.unwrap();
        assert_eq!(running.shut_down().await, Exit::Shutdown);
    });
}

/// What docs/operations.md says: one connection for each kind of call, opened at the first such
/// call.
#[test]
fn a_program_has_a_connection_for_each_sort_of_call_that_it_makes() {
    on_a_server("few", async |tenure, address| {
        let watcher = connect(&address).await;
        let count = async || {
            let count = "SELECT count(*) FROM pg_stat_activity \
                WHERE datname = current_database() AND application_name = 'tenure'";
            watcher.query_one(count, &[]).await.unwrap().get::<_, i64>(0)
        };
        let before = count().await - 1;
        let job = tenure.enqueue_kind("work", &()).await.unwrap();
        assert_eq!(count().await - before, 1, "the one that it was opened with");
        tenure.enqueue_kind("work", &()).key("K").await.unwrap();
        assert_eq!(count().await - before, 2, "keys");
        job.state().await.unwrap();
        assert_eq!(count().await - before, 3, "looking");
        job.cancel().await.unwrap();
        assert_eq!(count().await - before, 4, "anything else");
        for n in 0..20_u8 {
            tenure.enqueue_kind("work", &n).await.unwrap();
            tenure.enqueue_kind("work", &n).key(n.to_string()).await.unwrap();
            job.state().await.unwrap();
        }
        assert_eq!(count().await - before, 4, "no more for more of the same");
    });
}
