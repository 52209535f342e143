//! The purpose of each role, run as that role: the programs of the README and of docs/worker.md,
//! and the commands that docs/operations.md lists. Also what happens to a worker that lacks a
//! right.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use shell::{Ran, Shell};
use tenure::engine::clock::monotonic;
use tenure::engine::job::{JobId, State};
use tenure::engine::telemetry::{Exit, Fact};
use tenure::postgres::{self, tokio_postgres};
use tenure::{Context, Error, Fault, Job, JobError, Tenure, Worker};
use tokio::runtime::Runtime;

/// Longer than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A database with the roles that Tenure creates, and a member of one of them that may log in.
struct Member {
    shell: Shell,
    role: String,
    runtime: Runtime,
}

impl Member {
    fn of(role: &str) -> Member {
        let shell = Shell::before_migrating();
        shell.ok(&["migrate", "up", "--roles"]);
        shell.database().execute(
            "DROP SCHEMA IF EXISTS shop CASCADE; CREATE SCHEMA shop; CREATE TABLE shop.orders (id bigint, note text);
             GRANT USAGE ON SCHEMA shop TO PUBLIC; GRANT SELECT, INSERT ON shop.orders TO PUBLIC",
        );
        let name = shell.database().role(&format!("as_{role}"));
        shell.database().execute(&format!("GRANT tenure_{role} TO {name}"));
        Member { shell, role: name, runtime: Runtime::new().unwrap() }
    }

    fn url(&self) -> String {
        self.shell.database().url_as(&self.role)
    }

    /// Runs a command as this role.
    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.shell.command(args);
        Ran::of(command.env("TENURE_DB", self.url()).output().unwrap())
    }

    #[track_caller]
    fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
        ran.stdout
    }

    /// Runs a program with a timeout.
    fn block_on<T>(&self, program: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, program).await.unwrap() })
    }

    /// Grants this role the rights of a worker directly, except for one of them.
    fn revoke(&self, function: &str) {
        let database = self.shell.database();
        // `tenure_worker` itself keeps its rights: roles belong to the whole server, and other
        // tests use it.
        database.execute(&format!("REVOKE tenure_worker FROM {}", self.role));
        let grants = self.shell.json(&["migrate", "up"])["grants"].as_str().unwrap().to_owned();
        let name = database.value("current_database()");
        for other in ["enqueuer", "reader"] {
            database.role(other);
        }
        let grants = grants
            .replace("tenure_worker", &self.role)
            .replace("tenure_enqueuer", &format!("{name}_enqueuer"))
            .replace("tenure_reader", &format!("{name}_reader"));
        database.execute(&grants);
        database
            .execute(&format!("REVOKE EXECUTE ON FUNCTION tenure.{function} FROM {}", self.role));
    }

    fn state(&self, job: JobId) -> State {
        self.shell.store().job(job).unwrap().unwrap().job.state
    }
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
struct Greet {
    name: String,
}

impl Job for Greet {
    const KIND: &'static str = "greet";
    type Output = String;
}

/// The address that the handlers connect to.
struct Url(String);

async fn connect(cx: &Context) -> Result<tokio_postgres::Client, Fault> {
    let Url(url) = cx.state();
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Everything that the guide shows of a handler: steps, an effect, progress, the fence, more jobs.
async fn greet(job: Greet, cx: Context) -> Result<String, Fault> {
    let greeting = cx.step("write", || async { Ok(format!("Hello, {}!", job.name)) }).await?;
    let sent: String = cx.effect("send", |fx| async move { Ok(fx.key()) }).resend().await?;
    cx.progress(0.5, "sent").await?;
    cx.assert_held().await?;
    cx.tenure().enqueue(Ship { order: 7 }).key("ship-7").await?;
    assert!(sent.ends_with("/send"), "{sent}");
    Ok(greeting)
}

/// A transaction of the handler's own: write, fence or hold, complete, commit.
async fn ship(job: Ship, cx: Context) -> Result<i64, Fault> {
    let mut client = connect(&cx).await?;
    let write = "INSERT INTO shop.orders VALUES ($1, 'shipped')";
    let tx = client.transaction().await?;
    tx.execute(write, &[&job.order]).await?;
    postgres::fence(&tx, &cx).await?;
    tx.commit().await?;
    let tx = client.transaction().await?;
    postgres::hold(&tx, &cx).await?;
    tx.execute(write, &[&job.order]).await?;
    let next = cx.tenure().enqueue(Greet { name: "Bob".into() }).delay(Duration::from_secs(3_600));
    postgres::enqueue(&tx, next).await?;
    postgres::complete(&tx, &cx, &job.order).await?;
    tx.commit().await?;
    Ok(job.order)
}

fn worker(tenure: &Tenure, url: &str) -> Worker {
    Worker::new(tenure).handle(greet).handle(ship).state(Url(url.to_owned()))
}

#[test]
fn a_worker_does_all_that_the_guide_shows_and_goes_on_claiming() {
    let member = Member::of("worker");
    let url = member.url();
    let told: Arc<Mutex<Vec<&'static str>>> = Arc::default();
    let names = Arc::clone(&told);
    member.block_on(async {
        let tenure = Tenure::open(&url).await.unwrap();
        let worker = worker(&tenure, &url).observe(move |event| {
            names.lock().unwrap().push(event.fact.name());
        });
        let running = worker.start().await.unwrap();
        // One after the other: after a job that its handler completed, the next one must be claimed
        // too.
        for order in 1..=3 {
            assert_eq!(tenure.enqueue(Ship { order }).await.unwrap().wait().await.unwrap(), order);
        }
        let ann = tenure.enqueue(Greet { name: "Ann".into() }).key("greet-ann").await.unwrap();
        assert_eq!(ann.wait().await.unwrap(), "Hello, Ann!");
        assert_eq!(ann.state().await.unwrap(), Some(State::Succeeded));
        assert_eq!(running.shut_down().await, Exit::Shutdown);
        // And until nothing is due, as the README does it.
        tenure.enqueue(Ship { order: 4 }).await.unwrap();
        assert_eq!(self::worker(&tenure, &url).drain().run().await.unwrap(), Exit::Drained);
    });
    let told = told.lock().unwrap();
    assert!(!told.iter().any(|name| name.starts_with("store_")), "{told:?}");
}

#[test]
fn a_worker_runs_the_commands_that_are_a_workers() {
    let member = Member::of("worker");
    let id = member.ok(&["enqueue", "hello", r#"{"name":"Ann"}"#]);
    member.ok(&["worker", "--drain", "--", "cat"]);
    assert_eq!(member.ok(&["jobs", "wait", id.trim()]).trim(), r#"{"name":"Ann"}"#);
    let found = member.ok(&["doctor"]);
    assert!(found.contains("has all of worker"), "{found}");
    assert!(member.ok(&["doctor", "--check"]).contains("nothing is wrong"));
    // The refusal of a reader's right names the statement that grants it.
    let shown = member.run(&["jobs", "show", id.trim()]);
    let grant = format!("GRANT \"tenure_reader\" TO \"{}\"", member.role);
    shown.refused(3, &grant);
    member.run(&["jobs", "cancel", id.trim()]).refused(3, "who owns the schema");
}

#[test]
fn an_enqueuer_opens_the_store_enqueues_and_waits_and_may_do_no_more() {
    let member = Member::of("enqueuer");
    let owner = member.shell.database().url();
    member.block_on(async {
        let tenure = Tenure::open(&member.url()).await.unwrap();
        let handle = tenure.enqueue(Ship { order: 1 }).key("ship-1").await.unwrap();
        let many = (2..=4).map(|order| tenure.enqueue(Ship { order }));
        let many = tenure.enqueue_many(many).await.unwrap();
        assert_eq!(handle.state().await.unwrap(), Some(State::Queued));
        let mut client = {
            let (client, connection) =
                tokio_postgres::connect(&member.url(), tokio_postgres::NoTls).await.unwrap();
            tokio::spawn(connection);
            client
        };
        let tx = client.transaction().await.unwrap();
        tx.execute("INSERT INTO shop.orders VALUES (5, 'placed')", &[]).await.unwrap();
        postgres::enqueue(&tx, tenure.enqueue(Ship { order: 5 })).await.unwrap();
        tx.commit().await.unwrap();
        let theirs = Tenure::open(&owner).await.unwrap();
        let worker = worker(&theirs, &owner).queues(["default"]);
        assert_eq!(worker.drain().run().await.unwrap(), Exit::Drained);
        assert_eq!(handle.wait().await.unwrap(), 1);
        for (handle, order) in many.iter().zip(2..) {
            assert_eq!(handle.wait().await.unwrap(), order);
        }
        // Only a reader may see the whole job, and only the owner may cancel it.
        assert!(tenure.job(handle.id()).await.unwrap_err().is_forbidden());
        assert!(handle.cancel().await.unwrap_err().is_forbidden());
        let missing = tenure.find::<Ship>(JobId(404)).wait().await.unwrap_err();
        assert!(matches!(missing, JobError::NotFound { .. }), "{missing}");
        let error = self::worker(&tenure, &owner).run().await.unwrap_err();
        assert!(error.is_forbidden(), "{error}");
        assert!(error.to_string().contains("GRANT \"tenure_worker\" TO"), "{error}");
    });
    let id = member.ok(&["enqueue", "hello"]);
    member.shell.ok(&["worker", "--drain", "--", "true"]);
    assert_eq!(member.ok(&["jobs", "wait", id.trim()]).trim(), "null");
    let found = member.ok(&["doctor"]);
    assert!(found.contains("has all of enqueuer"), "{found}");
}

#[test]
fn a_reader_looks_with_every_command_that_looks() {
    let member = Member::of("reader");
    let id = member.shell.ok(&["enqueue", "hello", "7"]);
    for args in [
        &["stats"][..],
        &["jobs", "list"],
        &["jobs", "show", id.trim()],
        &["dead", "list"],
        &["effects", "list"],
        &["queues", "list"],
        &["doctor", "--check"],
    ] {
        member.ok(args);
    }
    member.shell.ok(&["worker", "--drain", "--", "cat"]);
    assert_eq!(member.ok(&["jobs", "wait", id.trim()]).trim(), "7");
    let found = member.ok(&["doctor"]);
    assert!(found.contains("has all of reader"), "{found}");
    member.run(&["enqueue", "hello"]).refused(3, "GRANT \"tenure_enqueuer\" TO");
}

/// Runs a worker that may not call this function, until it ends with an error. It gets a job that
/// its handler completes, and one that keeps running. Returns also the events, and the id of the
/// job that keeps running.
fn worker_without(function: &str) -> (Member, Error, Vec<(String, String)>, JobId) {
    let member = Member::of("worker");
    let url = member.url();
    let told: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
    let facts = Arc::clone(&told);
    member.revoke(function);
    let (error, long) = member.block_on(async {
        let tenure = Tenure::open(&url).await.unwrap();
        let long = tenure.enqueue_kind("long", &()).await.unwrap().id();
        let worker =
            worker(&tenure, &url).handle_any(|_, _| std::future::pending()).observe(move |event| {
                let text = match &event.fact {
                    Fact::StoreForbidden { error } | Fact::StoreLost { error } => error.clone(),
                    _ => String::new(),
                };
                facts.lock().unwrap().push((event.fact.name().to_owned(), text));
            });
        tenure.enqueue(Greet { name: "Ann".into() }).await.unwrap();
        tenure.enqueue(Ship { order: 1 }).await.unwrap();
        (worker.run().await.unwrap_err(), long)
    });
    let told = told.lock().unwrap().clone();
    (member, error, told, long)
}

#[test]
fn a_worker_that_lacks_a_right_says_what_mends_it_once_gives_back_its_jobs_and_ends_with_an_error()
{
    for function in ["current_many", "beat", "ledger_many"] {
        let (member, error, told, long) = worker_without(function);
        assert!(error.is_forbidden(), "{function}: {error}");
        let grant = format!("GRANT EXECUTE ON FUNCTION tenure.{function} TO \"{}\"", member.role);
        assert!(error.to_string().contains(&grant), "{function}: {error}");
        let of = |name: &str| told.iter().filter(|(told, _)| told == name).collect::<Vec<_>>();
        let forbidden = of("store_forbidden");
        assert_eq!(forbidden.len(), 1, "{function}: {told:?}");
        assert!(forbidden[0].1.contains(&grant), "{function}: {told:?}");
        assert!(of("store_lost").is_empty(), "{function}: {told:?}");
        assert_eq!(member.state(long), State::Queued, "{function}: what ran was given back");
        let jobs = member.shell.jobs();
        let released = jobs.iter().filter(|job| job.state == State::Queued);
        assert!(released.clone().all(|job| job.attempt == 0), "{function}: it cost no attempt");
        // `tenure doctor` reports the same to that role.
        let found = member.run(&["doctor"]);
        assert_eq!(found.code, 1, "{found:?}");
        assert!(found.stdout.contains(&format!("may not call {function}")), "{found:?}");
        assert!(found.stdout.contains(&grant), "{found:?}");
        // The suggested statement does repair it.
        member.shell.database().execute(&grant);
        assert_eq!(member.run(&["doctor"]).code, 0);
        member.ok(&["worker", "--kind", "long", "--drain", "--", "true"]);
        assert_eq!(member.state(long), State::Succeeded);
    }
}

#[test]
fn the_worker_command_that_lacks_a_right_gives_its_job_back_and_ends_soon_with_the_code_for_it() {
    let member = Member::of("worker");
    member.revoke("beat");
    member.ok(&["enqueue", "long"]);
    let begun = monotonic();
    let ran = member.run(&["worker", "--kind", "long", "--", "sleep", "100"]);
    let took = begun.elapsed();
    assert_eq!(ran.code, 3, "{ran:?}");
    let grant = format!("GRANT EXECUTE ON FUNCTION tenure.beat TO \"{}\"", member.role);
    assert!(ran.stderr.contains(&grant), "{ran:?}");
    let job = member.shell.jobs().pop().unwrap();
    assert_eq!((job.state, job.attempt), (State::Queued, 0), "{job:?}");
    assert!(took < Duration::from_secs(25), "it took {took:?}");
}
