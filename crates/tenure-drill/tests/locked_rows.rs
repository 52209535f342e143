//! Rows that an open transaction has locked on PostgreSQL, while workers go on beside it.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::job::State;
use tenure::postgres::tokio_postgres::{self, Client, NoTls};
use tenure::telemetry::Exit;
use tenure::{Context, Tenure, Worker, postgres};
use tenure_drill::servers;
use tokio::runtime::Builder;
use tokio::sync::Semaphore;

/// A store of its own, and the address of its database for a driver of the user's own.
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

/// Its own settlement waits until the lock is gone. Those of others do not, though they were sent with it, and their leases are
/// kept meanwhile.
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
                        // By then the other one's settlement is waiting for its row.
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
        // Somebody who would take them over if their leases ran out.
        let second = worker().start().await.unwrap();
        go.add_permits(100);
        for handle in &others {
            handle.wait().await.unwrap();
        }
        assert_eq!(locked.state().await.unwrap(), Some(State::Running), "its row is locked");
        tx.rollback().await.unwrap();
        // Nobody could renew its lease, so that it may be done again. The others were done once.
        locked.wait().await.unwrap();
        assert_eq!(runs.load(Ordering::SeqCst), 5);
        assert_eq!(first.shut_down().await, Exit::Shutdown);
        assert_eq!(second.shut_down().await, Exit::Shutdown);
    });
}

/// While it holds the job nobody can renew its lease, and nobody can take it either.
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
