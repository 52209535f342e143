//! The lock that ends with a worker's session, on the server's own clock.

use std::time::Duration;

use tenure::clock::monotonic;
use tenure::job::Name;
use tenure::lease::WorkerId;
use tenure::store::postgres::{Options, Postgres};
use tenure::store::{Guarded, Registration, Store};

use super::{Case, claim, enqueue, sql_cases};
use crate::sessions::Lab;

pub(super) const CASES: &[Case] = sql_cases! {
    "guard":
    a_session_that_was_ended_is_made_again_within_the_wait_and_takes_the_guard_first,
    a_lock_that_somebody_else_has_is_no_guard_until_it_is_free,
    a_dead_process_is_noticed_and_its_crash_is_taken_back_if_it_lives,
    a_job_that_an_open_transaction_has_locked_is_left_for_later,
};

pub(crate) fn register(store: &mut Postgres, worker: &str) {
    let worker = WorkerId::check(worker).unwrap();
    let known = Registration { worker, queues: vec![Name::default_queue()], kinds: None };
    assert_eq!(store.register(&known).unwrap(), Guarded::Yes);
}

fn open(lab: &Lab) -> Postgres {
    Postgres::open(&lab.address(), &Options::default()).unwrap()
}

/// The process id of the session that has a worker's lock.
const HOLDER: &str = "SELECT coalesce(max(l.pid), 0)::bigint FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.objsubid = 1
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
    let known = Registration { worker: ann, queues: vec![], kinds: Some(vec![]) };
    assert_eq!(store.register(&known).unwrap(), Guarded::No);
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
    assert_eq!((taken.len(), taken[0].fence.job.0), (1, lease.job));
    let lines = "SELECT string_agg(verb || ' ' || note, '; ' ORDER BY seq) FROM tenure.event";
    assert_eq!(lab.text(lines), "vanish its worker vanished");
    // It was not dead after all.
    session.batch_execute(&lease.call_with("refused", ", 'renew'")).unwrap();
    assert_eq!(lab.number("SELECT crashes::bigint FROM tenure.job"), 0);
    assert_eq!(lab.number("SELECT count(*) FROM tenure.check(NULL, 10) WHERE rule IS NOT NULL"), 0);
}

/// The lock of the job, not of the worker: an open transaction may be about to complete it.
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
