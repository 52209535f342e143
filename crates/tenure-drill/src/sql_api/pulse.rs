//! Stalls of the store, and transactions that are open meanwhile.

use postgres::Client;

use super::{Case, Lease, as_each, claim_many, enqueue, running, sql_cases, state};
use crate::sessions::Lab;

pub(super) const CASES: &[Case] = sql_cases! {
    "pulse":
    a_claim_left_open_after_a_stall_stops_neither_the_pulse_nor_a_lapse,
    at_repeatable_read_no_stall_is_noted,
    breaks_do_not_pile_up,
    callers_that_only_claim_recover_a_lost_job_within_two_leases_and_a_poll,
    transactions_left_open_after_a_beat_stop_neither_the_pulse_nor_a_lapse,
    without_leases_a_beat_writes_nothing,
};

const LEASE: i64 = 300;
const STALL: i64 = 100_000;

/// What a worker's sweeper says: whether it leads.
fn beat(session: &mut Client) -> bool {
    session.query_one("SELECT leads FROM tenure.beat()", &[]).unwrap().get(0)
}

/// Time passes in which a worker reaches the store.
fn pass_beating(lab: &mut Lab, worker: &mut Client, ms: i64) {
    for _ in 0..ms / 100 {
        lab.advance(100);
        beat(worker);
    }
}

fn lapse(session: &mut Client, lease: Lease) -> String {
    let ask = "SELECT verdict FROM tenure.lapse_many(ARRAY[$1::bigint], ARRAY[$2::bigint])";
    session.query_one(ask, &[&lease.job, &lease.token]).unwrap().get(0)
}

/// G5: a claim that notes a stall in a transaction which stays open is in nobody's way.
fn a_claim_left_open_after_a_stall_stops_neither_the_pulse_nor_a_lapse() {
    as_each(|lab, who| {
        let (mut worker, mut idle) = (who.session(lab), who.session(lab));
        let lease = running(&mut worker);
        assert!(beat(&mut worker));
        lab.advance(STALL);
        idle.batch_execute("BEGIN").unwrap();
        assert_eq!(claim_many(&mut idle, 1, LEASE), []);
        assert_eq!(lapse(&mut worker, lease), "no", "it has its length again");
        assert!(beat(&mut worker));
        pass_beating(lab, &mut worker, LEASE);
        assert_eq!(lapse(&mut worker, lease), "lapsed");
        assert_eq!(state(lab, lease.job), "queued");
        idle.batch_execute("ROLLBACK").unwrap();
    });
}

/// What a transaction sees at REPEATABLE READ may be older than the pulse: it must not tell others of a stall.
fn at_repeatable_read_no_stall_is_noted() {
    as_each(|lab, who| {
        let (mut worker, mut other) = (who.session(lab), who.session(lab));
        running(&mut worker);
        assert!(beat(&mut worker));
        lab.advance(STALL);
        other.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").unwrap();
        assert_eq!(claim_many(&mut other, 1, LEASE), [], "now counts as the end of the stall");
        other.batch_execute("COMMIT").unwrap();
        assert_eq!(lab.number("SELECT count(*) FROM tenure.breaks"), 0);
        assert_eq!(claim_many(&mut other, 1, LEASE), []);
        assert_eq!(lab.number("SELECT count(*) FROM tenure.breaks"), 1);
    });
}

/// However many stalls there were, two are remembered.
fn breaks_do_not_pile_up() {
    let mut lab = Lab::new();
    let mut worker = lab.session();
    for _ in 0..5 {
        enqueue(&mut worker, "work");
        assert_ne!(claim_many(&mut worker, 9, LEASE), [], "a lease is out");
        beat(&mut worker);
        lab.advance(STALL);
        assert!(beat(&mut worker));
        lab.advance(LEASE + STALL);
        claim_many(&mut worker, 9, LEASE);
        lab.advance(STALL);
    }
    let kept = lab.number("SELECT count(*) FROM tenure.breaks");
    assert!((1..=3).contains(&kept), "{kept}");
}

/// G5: workers that only call `tenure.claim` take a lost job back within two leases and a poll, though a worker that
/// beat was there once.
fn callers_that_only_claim_recover_a_lost_job_within_two_leases_and_a_poll() {
    const POLL: i64 = 100;
    as_each(|lab, who| {
        let (mut steady, mut other) = (who.session(lab), who.session(lab));
        let lost = running(&mut steady);
        assert!(beat(&mut steady));
        drop(steady);
        let mut waited = 0;
        let found = loop {
            lab.advance(POLL);
            waited += POLL;
            if let Some(lease) = claim_many(&mut other, 1, LEASE).pop() {
                break lease;
            }
            assert!(waited <= 2 * LEASE + POLL, "not taken back after {waited} ms");
        };
        assert_eq!(found.job, lost.job);
    });
}

/// G5: a beat in a transaction that stays open is in nobody's way, nor is one that only reads.
fn transactions_left_open_after_a_beat_stop_neither_the_pulse_nor_a_lapse() {
    as_each(|lab, who| {
        let (mut worker, mut idle) = (who.session(lab), who.session(lab));
        let mut reader = who.session(lab);
        let lease = running(&mut worker);
        assert!(beat(&mut worker));
        lab.advance(STALL);
        idle.batch_execute("BEGIN").unwrap();
        assert!(beat(&mut idle), "it notes the stall, and does not commit");
        reader.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").unwrap();
        pass_beating(lab, &mut worker, LEASE + 600);
        assert_eq!(lapse(&mut worker, lease), "lapsed");
        idle.batch_execute("ROLLBACK").unwrap();
        reader.batch_execute("ROLLBACK").unwrap();
    });
}

/// With no lease out and nothing due, a beat writes nothing.
fn without_leases_a_beat_writes_nothing() {
    let mut lab = Lab::new();
    let mut worker = lab.session();
    for _ in 0..3 {
        lab.advance(10_000);
        worker.batch_execute("BEGIN").unwrap();
        assert!(!beat(&mut worker));
        let ask = "SELECT pg_current_xact_id_if_assigned() IS NULL, (SELECT last_value FROM tenure.pulse)";
        let row = worker.query_one(ask, &[]).unwrap();
        assert_eq!((row.get::<_, bool>(0), row.get::<_, i64>(1)), (true, 0));
        worker.batch_execute("COMMIT").unwrap();
    }
}
