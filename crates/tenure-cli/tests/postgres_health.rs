//! What the doctor examines on a server, through the library: with all rights, and as a role with
//! few rights.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use std::time::Duration;

use shell::Shell;
use tenure::engine::store::postgres::{Holder, Postgres, PostgresOptions, ServerAddress};

fn open(url: &str) -> (Postgres, ServerAddress) {
    let address = ServerAddress::parse(url).unwrap();
    (Postgres::open(&address, &PostgresOptions::default()).unwrap(), address)
}

#[test]
fn a_notification_arrives_at_another_connection() {
    let shell = Shell::on_server();
    let (mut store, address) = open(&shell.database().url());
    let took = store.notify(&address, Duration::from_secs(10)).unwrap();
    assert!(took.is_some_and(|took| took < Duration::from_secs(10)), "{took:?}");
}

#[test]
fn the_transaction_that_has_been_open_the_longest_is_found() {
    let shell = Shell::on_server();
    let (mut store, _) = open(&shell.database().url());
    assert_eq!(store.health().unwrap().oldest, None);
    let mut older = shell.database().connect();
    let pid: i32 = older.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    older.batch_execute("SET application_name = 'report'; BEGIN; SELECT 1").unwrap();
    let mut newer = shell.database().connect();
    newer.batch_execute("BEGIN; SELECT 1").unwrap();
    let oldest = store.health().unwrap().oldest.unwrap();
    let name = "tenure report".to_owned();
    let state = "idle in transaction".to_owned();
    assert_eq!(oldest.holder, Holder::Session { pid, name, state });
    assert!(oldest.age < Duration::from_secs(60), "{oldest:?}");
    older.batch_execute("ROLLBACK").unwrap();
    newer.batch_execute("ROLLBACK").unwrap();
    assert_eq!(store.health().unwrap().oldest, None);
}

#[test]
fn rows_are_counted_and_clocks_compared() {
    let shell = Shell::on_server();
    let (mut store, _) = open(&shell.database().url());
    let health = store.health().unwrap();
    assert!(health.jobs.is_some_and(|rows| rows.live == 0 && rows.dead == 0), "{health:?}");
    // The server is on this machine.
    assert!(health.ahead_ms.unsigned_abs() <= 1_000, "{health:?}");
    assert_eq!(health.hidden, 0);
}

#[test]
fn what_is_due_is_counted_by_queue_and_kind() {
    let shell = Shell::on_server();
    let (mut store, _) = open(&shell.database().url());
    assert_eq!(store.due().unwrap(), Some(vec![]));
    for args in [
        &["enqueue", "mail", "--tenant", "a", "--count", "2"][..],
        &["enqueue", "mail", "--tenant", "b"],
        &["enqueue", "mail", "--queue", "slow"],
        &["enqueue", "later", "--delay", "1h"],
        &["enqueue", "many", "--count", "150"],
        &["enqueue", "soon", "--delay", "1ms"],
    ] {
        shell.ok(args);
    }
    let mut counted = Vec::new();
    // The last job becomes due in a moment, and no worker makes it ready.
    while counted.len() < 4 {
        let due = store.due().unwrap().unwrap();
        counted = due
            .into_iter()
            .map(|due| (due.queue.to_string(), due.kind.to_string(), due.jobs))
            .collect();
    }
    let expected = [("default", "mail", 3), ("default", "many", 100), ("default", "soon", 1)];
    let line = |(queue, kind, jobs): (&str, &str, u64)| (queue.to_owned(), kind.to_owned(), jobs);
    let mut expected: Vec<_> = expected.into_iter().map(line).collect();
    expected.push(line(("slow", "mail", 1)));
    assert_eq!(counted, expected);
}

#[test]
fn a_role_that_may_not_look_at_the_jobs_is_told_so() {
    let shell = Shell::on_server();
    let database = shell.database();
    let role = database.role("looker");
    let grants = shell.json(&["migrate", "up"])["grants"].as_str().unwrap().to_owned();
    for line in ["worker", "enqueuer"] {
        database.role(line);
    }
    let name = database.value("current_database()");
    let grants = grants
        .replace("tenure_reader", &role)
        .replace("tenure_worker", &format!("{name}_worker"))
        .replace("tenure_enqueuer", &format!("{name}_enqueuer"));
    database.execute(&grants);
    let (mut store, _) = open(&database.url_as(&role));
    assert_eq!(store.due().unwrap(), None);
    let mut owner = database.connect();
    owner.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").unwrap();
    let health = store.health().unwrap();
    // Perhaps there is also an autovacuum running.
    assert!(health.hidden >= 1 && health.oldest.is_none(), "{health:?}");
}
