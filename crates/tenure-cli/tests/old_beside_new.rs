//! An old binary beside a store that a newer release writes to: it shows unknown verbs and policies
//! by their names, and ignores them.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shell::{Shell, on_both_engines};
use tenure::engine::job::{JobId, State};
use tenure::postgres::{complete, tokio_postgres};
use tenure::{Context, Exit, Fault, Job, Tenure, Worker};
use tokio::runtime::Runtime;

on_both_engines!(
    a_timeline_and_a_policy_of_a_newer_release_are_no_obstacle_to_a_worker_nor_to_those_who_look,
);

/// Longer than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs on a thread of its own, because this driver must not block in async code.
fn execute(shell: &Shell, sql: &str) {
    let (url, sql) = (shell.database().url(), sql.to_owned());
    let work = move || ::postgres::Client::connect(&url, ::postgres::NoTls)?.batch_execute(&sql);
    std::thread::spawn(work).join().unwrap().unwrap();
}

/// Writes what only a newer release would: an entry in a job's timeline, and a retry policy.
fn plant(shell: &Shell, job: JobId) {
    let line = |table: &str| {
        format!(
            "INSERT INTO {table} (job_id, at, verb, refused, token, attempt, became, note)
             VALUES ({job}, 1000, 'teleport', false, 0, 0, 0, 'to another shard')"
        )
    };
    let policy = |table: &str| {
        format!("UPDATE {table} SET retry = '{{\"moonphase\":{{\"days\":3}}}}' WHERE id = {job}")
    };
    match &shell.database {
        None => {
            let file = rusqlite::Connection::open(shell.path("tenure.db")).unwrap();
            file.execute(&line("tenure_timeline"), []).unwrap();
            file.execute(&policy("tenure_jobs"), []).unwrap();
        }
        Some(_) => {
            execute(shell, &line("tenure.timeline"));
            execute(shell, &policy("tenure.jobs"));
        }
    }
}

fn enqueue(shell: &Shell, kind: &str) -> JobId {
    JobId::parse(shell.ok(&["enqueue", kind, "7"]).trim()).unwrap()
}

fn a_timeline_and_a_policy_of_a_newer_release_are_no_obstacle_to_a_worker_nor_to_those_who_look(
    shell: &Shell,
) {
    let (job, other) = (enqueue(shell, "hello"), enqueue(shell, "hello"));
    plant(shell, job);
    let look = || {
        let shown = shell.ok(&["jobs", "show", &job.to_string()]);
        assert!(shown.contains("teleport") && shown.contains("to another shard"), "{shown}");
        let json = shell.json(&["jobs", "show", &job.to_string()]);
        assert_eq!(json["timeline"][0]["verb"], "teleport", "{json}");
        assert!(shell.ok(&["jobs", "list"]).contains("hello"));
        assert!(shell.ok(&["doctor", "--check"]).contains("nothing is wrong"));
    };
    look();
    shell.ok(&["worker", "--drain", "--", "cat"]);
    for job in [job, other] {
        assert_eq!(shell.store().outcome(job).unwrap().unwrap().state, State::Succeeded);
    }
    look();
    shell.ok(&["doctor"]);
}

#[derive(Serialize, Deserialize)]
struct Ship {
    order: i64,
}

impl Job for Ship {
    const KIND: &'static str = "ship";
    type Output = i64;
}

#[derive(Serialize, Deserialize)]
struct Plain;

impl Job for Plain {
    const KIND: &'static str = "plain";
    type Output = ();
}

struct Url(String);

async fn ship(job: Ship, cx: Context) -> Result<i64, Fault> {
    let Url(url) = cx.state();
    let (mut client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let tx = client.transaction().await?;
    complete(&tx, &cx, &job.order).await?;
    tx.commit().await?;
    Ok(job.order)
}

async fn plain(_: Plain, _: Context) -> Result<(), Fault> {
    Ok(())
}

fn block_on<T>(program: impl Future<Output = T>) -> T {
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async { tokio::time::timeout(PATIENCE, program).await.unwrap() })
}

/// A job that its handler completed itself is looked up afterwards, but its timeline is not.
#[test]
fn a_job_that_its_handler_completes_may_have_a_timeline_of_a_newer_release() {
    let shell = Shell::on_server();
    let url = shell.database().url();
    block_on(async {
        let tenure = Tenure::open(&url).await.unwrap();
        let handle = tenure.enqueue(Ship { order: 1 }).await.unwrap();
        plant(&shell, handle.id());
        let worker = Worker::new(&tenure).handle(ship).state(Url(url.clone()));
        assert_eq!(worker.drain().run().await.unwrap(), Exit::Drained);
        assert_eq!(handle.wait().await.unwrap(), 1);
    });
}

/// The lookup of jobs' states fails for a while. Everything else continues, and the failure is
/// reported once.
#[test]
fn a_look_up_that_fails_holds_up_no_other_settlement() {
    let shell = Shell::on_server();
    let url = shell.database().url();
    let told: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let names = Arc::clone(&told);
    let was_told = |name: &str| told.lock().unwrap().iter().filter(|told| **told == name).count();
    shell.database().execute(
        "ALTER FUNCTION tenure.current_many RENAME TO moved_away;
         CREATE FUNCTION tenure.current_many(bigint[]) RETURNS TABLE (n int, token bigint, state smallint)
         LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$",
    );
    block_on(async {
        let tenure = Tenure::open(&url).await.unwrap();
        let worker = Worker::new(&tenure).handle(ship).handle(plain).state(Url(url.clone()));
        let worker = worker.observe(move |event| names.lock().unwrap().push(event.fact.name()));
        let running = worker.start().await.unwrap();
        assert_eq!(tenure.enqueue(Ship { order: 1 }).await.unwrap().wait().await.unwrap(), 1);
        // The handler of the first job completed it in the store. The worker cannot confirm this,
        // because its lookup fails. Meanwhile it must still claim and settle the other jobs.
        let (mut settled, mut after_the_caution) = (0, 0);
        while after_the_caution < 20 {
            tenure.enqueue(Plain).await.unwrap().wait().await.unwrap();
            settled += 1;
            after_the_caution += was_told("store_caution").min(1);
        }
        assert_eq!((was_told("store_caution"), was_told("store_lost")), (1, 0));
        // A settlement is in the store a moment before its worker reports it.
        assert!(was_told("job_succeeded") <= settled);
        execute(
            &shell,
            "DROP FUNCTION tenure.current_many;
             ALTER FUNCTION tenure.moved_away RENAME TO current_many",
        );
        // Now the lookup succeeds, and the worker shuts down in order.
        assert_eq!(running.shut_down().await, Exit::Shutdown);
        assert_eq!(was_told("job_succeeded"), settled + 1);
    });
}
