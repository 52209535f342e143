//! Tokens after the database went back in time, and installations whose owner has no special
//! rights.
use tenure::engine::store::postgres::{
    Migrations, Postgres, PostgresOptions, Roles, ServerAddress,
};
use tenure::engine::store::{Look, Operate, Work};

use super::{Case, claim, enqueue, sql_cases};
use crate::servers;
use crate::sessions::Lab;

pub(super) const CASES: &[Case] = sql_cases! {
    "epoch":
    enqueueing_elsewhere_uses_the_next_epoch_and_writes_nothing,
    of_two_sessions_that_notice_it_at_once_one_writes_it_down,
    an_old_snapshot_does_not_fail_because_somebody_else_wrote_it_down,
    an_owner_without_any_special_right_has_epochs_and_guards,
    a_restored_dump_keeps_what_was_noted_where_it_comes_from,
    a_worker_that_has_seen_the_server_further_on_begins_an_epoch_by_its_beat,
};

const ELSEWHERE: &str = "UPDATE tenure.meta SET wal_timeline = wal_timeline + 1";
const FIRST: i64 = 1 << 40;

fn enqueueing_elsewhere_uses_the_next_epoch_and_writes_nothing() {
    let mut lab = Lab::new();
    let mut session = lab.session_as("enqueuer");
    assert_eq!(enqueue(&mut session, "work"), 1);
    for (column, words) in [
        ("wal_timeline", "the WAL timeline was "),
        ("system", "the server's system identifier was "),
        ("jobs_table", "the place of the jobs table was "),
    ] {
        lab.owner()
            .batch_execute(&format!("BEGIN; UPDATE tenure.meta SET {column} = {column} + 1"))
            .unwrap();
        let told = lab.text("SELECT reason FROM tenure.identity()");
        assert!(told.starts_with(words) && !told.contains(';'), "{told}");
        lab.owner().batch_execute("ROLLBACK").unwrap();
    }
    lab.owner().batch_execute(ELSEWHERE).unwrap();
    assert_eq!(enqueue(&mut session, "work"), FIRST + 2);
    assert_eq!(lab.number("SELECT epoch FROM tenure.meta"), 0);
    assert_eq!(lab.number("SELECT epoch FROM tenure.identity()"), 1);

    let mut worker = lab.session_as("worker");
    let tokens = "SELECT string_agg((token - (1::bigint << 40))::text, ' ') FROM tenure.claim('ann', n => 9)";
    assert_eq!(worker.query_one(tokens, &[]).unwrap().get::<_, String>(0), "1 1");
    assert_eq!(lab.number("SELECT epoch FROM tenure.meta"), 1);
    assert_eq!(lab.number("SELECT count(*) FROM tenure.identity() WHERE raised_to = 1"), 1);
    assert_eq!(enqueue(&mut session, "work"), FIRST + 3);
    assert_eq!(lab.number("SELECT epoch FROM tenure.raise_epoch('a backup was restored')"), 2);
}

/// The first session is in an open transaction; the second neither waits for it nor writes, and
/// uses the same epoch number.
fn of_two_sessions_that_notice_it_at_once_one_writes_it_down() {
    let mut lab = Lab::new();
    let (mut one, mut other) = (lab.session_as("worker"), lab.session_as("worker"));
    enqueue(&mut one, "work");
    enqueue(&mut one, "work");
    lab.owner().batch_execute(ELSEWHERE).unwrap();
    one.batch_execute("BEGIN").unwrap();
    let first = super::claim_many(&mut one, 1, 300);
    assert_eq!(first[0].token, FIRST + 1);
    other.batch_execute("SET statement_timeout = '5s'").unwrap();
    let second = super::claim_many(&mut other, 1, 300);
    assert_eq!(second[0].token, FIRST + 1, "nobody waits");
    assert_eq!(lab.number("SELECT count(*) FROM tenure.epochs"), 0);
    one.batch_execute("COMMIT").unwrap();
    assert_eq!(lab.number("SELECT count(*) FROM tenure.epochs WHERE epoch = 1"), 1);
    assert_eq!(lab.number("SELECT epoch FROM tenure.meta"), 1);
}

/// At REPEATABLE READ, another session may have recorded the epoch since the snapshot. The claim
/// succeeds nevertheless, and uses that epoch.
fn an_old_snapshot_does_not_fail_because_somebody_else_wrote_it_down() {
    let mut lab = Lab::new();
    let (mut one, mut other) = (lab.session(), lab.session());
    enqueue(&mut one, "work");
    enqueue(&mut one, "work");
    lab.owner().batch_execute(ELSEWHERE).unwrap();
    one.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT tenure.now()").unwrap();
    other.batch_execute("SELECT FROM tenure.lapse_many('{}', '{}')").unwrap();
    assert_eq!(lab.number("SELECT epoch FROM tenure.meta"), 1);
    let leases = super::claim_many(&mut one, 1, 300);
    assert_eq!(leases[0].token, FIRST + 1);
    one.batch_execute("COMMIT").unwrap();
    assert_eq!(lab.number("SELECT count(*) FROM tenure.epochs"), 1);
}

/// Neither the migration nor the functions may need more rights than the owner of a schema has.
fn an_owner_without_any_special_right_has_epochs_and_guards() {
    let mut lab = Lab::new();
    let (database, role, schema) = (lab.database().to_owned(), lab.member("plain"), "plain");
    lab.owner()
        .batch_execute(&format!(
            "DROP SCHEMA IF EXISTS {schema} CASCADE; DROP ROLE IF EXISTS \"{role}\"; CREATE ROLE \"{role}\" LOGIN;
             CREATE SCHEMA {schema} AUTHORIZATION \"{role}\""
        ))
        .unwrap();
    let address = servers::address(&database, schema);
    let (before, after) = address.split_once("//").unwrap();
    let after = after.split_once('@').map_or(after, |(_, rest)| rest);
    let address = ServerAddress::parse(&format!("{before}//{role}@{after}")).unwrap();
    Migrations::connect(&address).unwrap().up(Roles::Leave).unwrap();
    let mut store = Postgres::open(&address, &PostgresOptions::default()).unwrap();
    let identity = store.identity().unwrap();
    assert_eq!((identity.epoch, identity.raises.len()), (0, 0));
    lab.owner().batch_execute(&ELSEWHERE.replace("tenure.", "plain.")).unwrap();
    assert!(store.identity().unwrap().epoch > 0);
    assert!(store.raise_epoch("a test").unwrap() > 1);
    super::guard::register(&mut store, "ann");
    let seen = store.workers().unwrap();
    assert_eq!((seen.len(), seen[0].is_alive), (1, Some(true)));
    assert!(store.vanished(10).unwrap().is_empty());
    drop(store);
    lab.owner()
        .batch_execute(&format!("DROP SCHEMA {schema} CASCADE; DROP ROLE \"{role}\""))
        .unwrap();
}

fn a_restored_dump_keeps_what_was_noted_where_it_comes_from() {
    let mut lab = Lab::new();
    lab.owner().batch_execute(ELSEWHERE).unwrap();
    lab.owner().batch_execute("UPDATE tenure.meta SET functions = 'of another binary'").unwrap();
    Migrations::connect(&lab.address()).unwrap().up(Roles::Leave).unwrap();
    let mut session = lab.session();
    enqueue(&mut session, "work");
    assert_eq!(claim(&mut session, 300).token, FIRST + 1, "the difference outlives an upgrade");
}

/// With each beat a worker sends the furthest position in the server's write-ahead log that it has
/// seen. If the server is not that far, the database has gone back in time. The session has no more
/// rights than a worker needs.
fn a_worker_that_has_seen_the_server_further_on_begins_an_epoch_by_its_beat() {
    let mut lab = Lab::new();
    let mut worker = lab.session_as("worker");
    let seen: String = worker.query_one("SELECT seen FROM tenure.beat()", &[]).unwrap().get(0);
    let mut beat = |lab: &mut Lab, seen: Option<&str>| {
        worker.query("SELECT FROM tenure.beat($1)", &[&seen]).unwrap();
        lab.number("SELECT epoch FROM tenure.meta")
    };
    assert_eq!(beat(&mut lab, None), 0, "it has seen nothing yet");
    assert_eq!(beat(&mut lab, Some(&seen)), 0, "the server has gone on since");
    let (before, _) = seen.rsplit_once(' ').unwrap();
    let ahead = format!("{before} FFFFFFFF/FFFFFFFF");
    assert_eq!(beat(&mut lab, Some(&ahead)), 1);
    let reason = lab.text("SELECT reason FROM tenure.epochs");
    assert!(reason.starts_with("a worker has seen the write-ahead log at FFFFFFFF/"), "{reason}");
}
