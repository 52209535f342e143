//! The guard: a lock that ends with a worker's session. Some cases run on the server's own clock.

use std::time::Duration;

use postgres::Client;
use tenure::engine::clock::monotonic;
use tenure::engine::store::postgres::{Postgres, PostgresOptions};
use tenure::engine::store::{Guarded, Look, Registration, Work};
use tenure::{Name, WorkerId};

use super::{Case, claim, claim_many, enqueue, sql_cases};
use crate::servers;
use crate::sessions::{Lab, fault};

pub(super) const CASES: &[Case] = sql_cases! {
    "guard":
    a_session_that_was_ended_is_made_again_within_the_wait_and_takes_the_guard_first,
    a_lock_that_somebody_else_has_is_no_guard_until_it_is_free,
    a_dead_process_is_noticed_and_its_crash_is_taken_back_if_it_lives,
    a_job_that_an_open_transaction_has_locked_is_left_for_later,
    a_worker_lives_by_its_own_lock_and_by_none_that_looks_like_it,
    a_lock_that_was_taken_twice_is_given_back_by_one_retirement,
    a_worker_whose_lock_was_seen_held_during_a_look_is_not_gone,
    a_guard_gap_outside_its_limits_is_refused,
    a_session_may_have_the_locks_of_several_workers,
    a_worker_that_has_made_itself_known_again_during_a_look_begins_anew,
    a_worker_that_would_handle_what_has_no_name_is_refused,
};

pub(crate) fn register(store: &mut Postgres, worker: &str) {
    let worker = WorkerId::check(worker).unwrap();
    let known = Registration::new(worker, vec![Name::default_queue()]);
    assert_eq!(store.register(&known).unwrap(), Guarded::ByLock);
}

fn open(lab: &Lab) -> Postgres {
    Postgres::open(&lab.address(), &PostgresOptions::default()).unwrap()
}

/// The process id of the session that holds a worker's lock.
const HOLDER: &str = "SELECT coalesce(max(l.pid), 0)::bigint FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.objsubid = 1
      AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
      AND (l.classid::bigint << 32) | l.objid::bigint = tenure.guard_key('ann')";

fn a_session_that_was_ended_is_made_again_within_the_wait_and_takes_the_guard_first() {
    let mut lab = Lab::new();
    lab.run_clock();
    let mut store = open(&lab);
    register(&mut store, "ann");
    let before = lab.number(HOLDER);
    assert_ne!(before, 0);
    let waiting = std::thread::spawn(move || {
        let started = monotonic();
        while monotonic() - started < Duration::from_secs(1) {
            store.wait(started + Duration::from_secs(1)).unwrap();
        }
        store
    });
    lab.number(&format!("SELECT pg_terminate_backend({before}, 10000)::int::bigint"));
    let other =
        format!("{HOLDER} AND l.pid <> {before}").replace("::bigint FROM", "::bigint > 0 FROM");
    lab.wait_until(&other);
    lab.wait_until("SELECT takings = 2 AND guarded AND free_since IS NULL FROM tenure.workers");
    let mut store = waiting.join().unwrap();
    assert_eq!(store.workers().unwrap()[0].is_alive, Some(true));
    store.retire(&WorkerId::check("ann").unwrap()).unwrap();
    assert_eq!((lab.number(HOLDER), store.workers().unwrap().len()), (0, 0));
}

fn a_lock_that_somebody_else_has_is_no_guard_until_it_is_free() {
    let mut lab = Lab::new();
    lab.run_clock();
    lab.owner().batch_execute("SELECT pg_advisory_lock(tenure.guard_key('ann'))").unwrap();
    let mut store = open(&lab);
    let ann = WorkerId::check("ann").unwrap();
    let known = Registration { kinds: Some(vec![]), ..Registration::new(ann, vec![]) };
    assert_eq!(store.register(&known).unwrap(), Guarded::ByLeaseAlone);
    assert_eq!(store.workers().unwrap()[0].is_alive, None, "only its leases decide");
    lab.owner().batch_execute("SELECT pg_advisory_unlock(tenure.guard_key('ann'))").unwrap();
    let deadline = monotonic() + Duration::from_secs(10);
    while store.workers().unwrap()[0].is_alive != Some(true) {
        assert!(monotonic() < deadline, "it is tried again");
    }
}

fn a_dead_process_is_noticed_and_its_crash_is_taken_back_if_it_lives() {
    let mut lab = Lab::new();
    lab.run_clock();
    let mut session = lab.session_as("worker");
    enqueue(&mut session, "work");
    let lease = claim(&mut session, 60_000);
    let mut store = open(&lab);
    register(&mut store, "ann");
    let mut looker = open(&lab);
    assert!(looker.vanished(10).unwrap().is_empty(), "it lives");
    drop(store);
    let died = monotonic();
    let mut taken = Vec::new();
    while taken.is_empty() {
        assert!(monotonic() - died < Duration::from_secs(10), "it is noticed");
        taken = looker.vanished(10).unwrap();
    }
    assert_eq!((taken.len(), taken[0].about.job.0), (1, lease.job));
    let lines = "SELECT string_agg(verb || ' ' || note, '; ' ORDER BY seq) FROM tenure.event";
    assert_eq!(lab.text(lines), "vanish its worker vanished");
    // The worker was not dead after all.
    session.batch_execute(&lease.call_with("refused", ", 'renew'")).unwrap();
    assert_eq!(lab.number("SELECT crashes::bigint FROM tenure.job"), 0);
    assert_eq!(lab.number("SELECT count(*) FROM tenure.check(NULL, 10) WHERE rule IS NOT NULL"), 0);
}

/// The lock is the row lock of the job, not the worker's guard: an open transaction may be about to
/// complete the job.
fn a_job_that_an_open_transaction_has_locked_is_left_for_later() {
    let mut lab = Lab::new();
    let (mut session, mut looker) = (lab.session(), lab.session());
    let lease = super::running(&mut session);
    looker.batch_execute("SELECT tenure.register('ann', '{default}', NULL, true)").unwrap();
    let mut look = |lab: &mut Lab| {
        lab.advance(400);
        looker.query("SELECT job FROM tenure.vanished(10)", &[]).unwrap().len()
    };
    session.batch_execute(&format!("BEGIN; {}", lease.call("hold"))).unwrap();
    assert_eq!([look(&mut lab), look(&mut lab)], [0, 0]);
    assert_eq!(lab.number("SELECT count(*) FROM tenure.workers"), 1, "it still has a job");
    session.batch_execute("ROLLBACK").unwrap();
    assert_eq!(look(&mut lab), 1);
    assert_eq!(lab.number("SELECT count(*) FROM tenure.workers"), 0);
}

/// These locks have the number of the worker's lock, and do not count: one of another kind, a
/// shared one, one in another database, and one that is not granted yet.
fn a_worker_lives_by_its_own_lock_and_by_none_that_looks_like_it() {
    let mut lab = Lab::new();
    lab.owner().batch_execute("SELECT tenure.register('ann', '{default}', NULL, true)").unwrap();
    let key = lab.number("SELECT tenure.guard_key('ann')");
    let lives = |lab: &mut Lab| lab.text("SELECT is_alive::text FROM tenure.known_workers()");
    for lock in [
        format!("pg_advisory_lock(({key}::bigint >> 32)::int, (({key}::bigint << 32) >> 32)::int)"),
        format!("pg_advisory_lock_shared({key})"),
    ] {
        let mut session = lab.session();
        session.batch_execute(&format!("SELECT {lock}")).unwrap();
        assert_eq!(lives(&mut lab), "false", "{lock}");
        let ours = session.query_one("SELECT tenure.is_guarding('ann')", &[]).unwrap();
        assert!(!ours.get::<_, bool>(0), "{lock}");
        session.batch_execute("SELECT pg_advisory_unlock_all()").unwrap();
    }
    let mut elsewhere = servers::connect("postgres");
    elsewhere.batch_execute(&format!("SELECT pg_advisory_lock({key})")).unwrap();
    assert_eq!(lives(&mut lab), "false", "it is another database's");

    let (mut shares, mut waits) = (lab.session(), lab.session());
    shares.batch_execute(&format!("SELECT pg_advisory_lock_shared({key})")).unwrap();
    let pid: i32 = waits.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    let waiting = std::thread::spawn(move || {
        waits.batch_execute(&format!("SELECT pg_advisory_lock({key})")).unwrap();
        waits
    });
    lab.wait_until_blocked(pid);
    assert_eq!(lives(&mut lab), "false", "it waits for its lock");
    shares.batch_execute("SELECT pg_advisory_unlock_all()").unwrap();
    let _holds = waiting.join().unwrap();
    assert_eq!(lives(&mut lab), "true");
}

fn a_lock_that_was_taken_twice_is_given_back_by_one_retirement() {
    let mut lab = Lab::new();
    let mut session = lab.session_as("worker");
    for _ in 0..2 {
        assert!(session.query_one("SELECT tenure.guard('ann')", &[]).unwrap().get::<_, bool>(0));
    }
    session.batch_execute("SELECT tenure.retire('ann')").unwrap();
    assert_eq!(lab.number(HOLDER), 0);
}

/// After the first call of `vanished` has read the locks and before it acts on them, the worker
/// takes its lock again and another call notes that. The lock on the table lets the first call read
/// and stops it before it writes.
fn a_worker_whose_lock_was_seen_held_during_a_look_is_not_gone() {
    let mut lab = Lab::new();
    let mut session = lab.session();
    enqueue(&mut session, "work");
    enqueue(&mut session, "work");
    let leases = claim_many(&mut session, 1, 60_000);
    session.batch_execute("SELECT FROM tenure.claim('bob', lease => '1 min')").unwrap();
    session
        .batch_execute(
            "SELECT tenure.register('ann', '{default}', NULL, true), tenure.register('bob', '{default}', NULL, true);
             SELECT tenure.vanished(10)",
        )
        .unwrap();
    lab.advance(300);
    let (mut second, mut ann) = (lab.session(), lab.session());
    second.batch_execute("BEGIN; LOCK TABLE tenure.workers IN EXCLUSIVE MODE").unwrap();
    let pid: i32 = session.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    let first = std::thread::spawn(move || {
        let rows = session.query("SELECT worker FROM tenure.vanished(10)", &[]).unwrap();
        rows.iter().map(|row| row.get(0)).collect::<Vec<String>>()
    });
    lab.wait_until_blocked(pid);
    ann.batch_execute("SELECT tenure.guard('ann')").unwrap();
    let seen = "UPDATE tenure.workers SET free_since = NULL WHERE worker = 'ann'; COMMIT";
    second.batch_execute(seen).unwrap();
    assert_eq!(first.join().unwrap(), ["bob"]);
    assert_eq!(super::state(&mut lab, leases[0].job), "running");
}

fn a_guard_gap_outside_its_limits_is_refused() {
    let mut lab = Lab::new();
    for gap in ["NULL", "299", "60001"] {
        let call = format!("SELECT tenure.set_guard_gap({gap})");
        let refusal = fault(lab.owner().batch_execute(&call));
        assert_eq!(
            (refusal.code().code(), refusal.column()),
            ("TN003", Some("guard_gap")),
            "{gap}"
        );
    }
    assert_eq!(lab.number("SELECT tenure.set_guard_gap(60000)"), 300);
    assert_eq!(lab.number("SELECT tenure.set_guard_gap(300)"), 60_000);
}

fn a_session_may_have_the_locks_of_several_workers() {
    let lab = Lab::new();
    let mut session = lab.session_as("worker");
    let ask = |session: &mut Client, call: &str| -> bool {
        session.query_one(&format!("SELECT {call}"), &[]).unwrap().get(0)
    };
    assert!(ask(&mut session, "tenure.guard('ann')"));
    assert!(!ask(&mut session, "tenure.is_guarding('bob')"));
    assert!(ask(&mut session, "tenure.guard('bob')"));
    for who in ["ann", "bob"] {
        assert!(ask(&mut session, &format!("tenure.is_guarding('{who}')")), "{who}");
    }
    session.batch_execute("SELECT tenure.retire('ann')").unwrap();
    assert!(!ask(&mut session, "tenure.is_guarding('ann')"));
    assert!(ask(&mut session, "tenure.is_guarding('bob')"), "it was not meant");
}

/// `vanished` has seen the worker's lock free, and is stopped before it writes that down. Meanwhile
/// the worker registers again, so `vanished` must not write it.
fn a_worker_that_has_made_itself_known_again_during_a_look_begins_anew() {
    let mut lab = Lab::new();
    let (mut looker, mut ann) = (lab.session(), lab.session());
    let known = "SELECT tenure.register('ann', '{default}', NULL, true)";
    ann.batch_execute(known).unwrap();
    ann.batch_execute("BEGIN; LOCK TABLE tenure.workers IN EXCLUSIVE MODE").unwrap();
    let pid: i32 = looker.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    let look = std::thread::spawn(move || looker.batch_execute("SELECT tenure.vanished(10)"));
    lab.wait_until_blocked(pid);
    ann.batch_execute(&format!("{known}; COMMIT")).unwrap();
    look.join().unwrap().unwrap();
    assert_eq!(lab.number("SELECT count(*) FROM tenure.workers WHERE free_since IS NULL"), 1);
}

fn a_worker_that_would_handle_what_has_no_name_is_refused() {
    let lab = Lab::new();
    let mut session = lab.session_as("worker");
    for (field, queues, kinds) in [("queue", "{A}", "NULL"), ("kind", "{a}", "'{A}'")] {
        let call = format!("SELECT tenure.register('ann', '{queues}', {kinds}, true)");
        let refusal = fault(session.batch_execute(&call));
        assert_eq!((refusal.code().code(), refusal.column()), ("TN003", Some(field)));
    }
    session.batch_execute("SELECT tenure.register('ann', '{a}', '{a}', true)").unwrap();
}
