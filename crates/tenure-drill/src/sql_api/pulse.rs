//! The pulse, and transactions that are open meanwhile. The pulse is the time of the last beat of
//! any worker; if it is too old while leases are out, the store had stalled.

use postgres::Client;

use super::{Case, Lease, as_each, claim_many, running, sql_cases, state};
use crate::sessions::Lab;

pub(super) const CASES: &[Case] = sql_cases! {
    "pulse":
    a_claim_left_open_after_a_stall_stops_neither_the_pulse_nor_a_lapse,
    a_stall_is_noted_once_by_the_first_that_notices,
    callers_that_only_claim_recover_a_lost_job_within_two_leases_and_a_poll,
    transactions_left_open_after_a_beat_stop_neither_the_pulse_nor_a_lapse,
    without_leases_a_beat_writes_nothing,
    a_locked_job_is_busy_from_the_moment_at_which_its_pardon_ends,
};

const LEASE: i64 = 300;
const STALL: i64 = 100_000;

/// The beat of a worker's sweeper. Returns whether this worker leads: whether it looks for leases
/// that are over and for lost workers, for all.
fn beat(session: &mut Client) -> bool {
    session.query_one("SELECT leads FROM tenure.beat()", &[]).unwrap().get(0)
}

/// Lets time pass while a worker keeps beating.
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

/// G5: a claim that notes a stall in a transaction which stays open blocks no other session.
fn a_claim_left_open_after_a_stall_stops_neither_the_pulse_nor_a_lapse() {
    as_each(|lab, who| {
        let (mut worker, mut idle) = (who.session(lab), who.session(lab));
        let lease = running(&mut worker);
        assert!(beat(&mut worker));
        lab.advance(STALL);
        idle.batch_execute("BEGIN").unwrap();
        assert_eq!(claim_many(&mut idle, 1, LEASE), []);
        assert_eq!(lapse(&mut worker, lease), "left_alone", "it has its length again");
        assert!(beat(&mut worker));
        pass_beating(lab, &mut worker, LEASE);
        assert_eq!(lapse(&mut worker, lease), "taken_back");
        assert_eq!(state(lab, lease.job), "queued");
        idle.batch_execute("ROLLBACK").unwrap();
    });
}

/// Also at REPEATABLE READ, and also if the transaction that noticed the stall rolls back.
fn a_stall_is_noted_once_by_the_first_that_notices() {
    as_each(|lab, who| {
        let (mut worker, mut other) = (who.session(lab), who.session(lab));
        running(&mut worker);
        assert!(beat(&mut worker));
        lab.advance(STALL);
        other.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ").unwrap();
        assert_eq!(claim_many(&mut other, 1, LEASE), [], "now is the end of the stall");
        let noted = lab.number("SELECT last_value FROM tenure.broke");
        assert_eq!(noted, lab.number("SELECT at FROM tenure.clock"));
        other.batch_execute("ROLLBACK").unwrap();
        lab.advance(100);
        assert_eq!(claim_many(&mut other, 1, LEASE), []);
        assert_eq!(lab.number("SELECT last_value FROM tenure.broke"), noted);
        assert_eq!(lab.number("SELECT last_value FROM tenure.broke_before"), 0);
    });
}

/// G5: workers that only call `tenure.claim` take a lost job back within two leases and a poll,
/// even if a worker that beats was there once. This holds both if each poll is in time for the
/// pulse and if the polls are so far apart that each looks like the end of a stall.
fn callers_that_only_claim_recover_a_lost_job_within_two_leases_and_a_poll() {
    as_each(|lab, who| {
        for level in ["read committed", "repeatable read", "serializable"] {
            for (lease, poll, stalls) in [(300, 100, false), (10_000, 4_000, true)] {
                let (mut steady, mut other) = (who.session(lab), who.session(lab));
                let set = format!("SET default_transaction_isolation = '{level}'");
                other.batch_execute(&set).unwrap();
                steady.batch_execute("SELECT tenure.enqueue('work')").unwrap();
                let lost = claim_many(&mut steady, 1, lease).pop().unwrap();
                assert!(beat(&mut steady));
                drop(steady);
                let broke = "SELECT last_value FROM tenure.broke";
                let before = lab.number(broke);
                let mut waited = 0;
                let found = loop {
                    lab.advance(poll);
                    waited += poll;
                    if let Some(lease) = claim_many(&mut other, 1, lease).pop() {
                        break lease;
                    }
                    assert!(
                        waited <= 2 * lease + poll,
                        "{level}: not taken back after {waited} ms"
                    );
                };
                assert_eq!(found.job, lost.job, "{level}");
                assert_eq!(lab.number(broke) > before, stalls, "{level}: the end of a stall");
                other.batch_execute(&found.call("complete")).unwrap();
                lab.advance(1_000);
            }
        }
    });
}

/// G5: a beat in a transaction that stays open blocks no other session, nor does a transaction that
/// only reads.
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
        assert_eq!(lapse(&mut worker, lease), "taken_back");
        idle.batch_execute("ROLLBACK").unwrap();
        reader.batch_execute("ROLLBACK").unwrap();
    });
}

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

/// The pardon is the length that a lease gets again after a stall. Once it has ended, a lapse of
/// the locked job answers busy, so the sweeper tries again; before, there is nothing to take back.
fn a_locked_job_is_busy_from_the_moment_at_which_its_pardon_ends() {
    as_each(|lab, who| {
        let (mut holder, mut other) = (who.session(lab), who.session(lab));
        let lease = running(&mut holder);
        assert!(beat(&mut other));
        lab.advance(STALL);
        assert_eq!(claim_many(&mut other, 1, LEASE), [], "now is the end of the stall");
        holder.batch_execute(&format!("BEGIN; {}", lease.call("hold"))).unwrap();
        lab.advance(LEASE - 1);
        assert_eq!(lapse(&mut other, lease), "left_alone");
        lab.advance(1);
        assert_eq!(lapse(&mut other, lease), "busy");
        holder.batch_execute("ROLLBACK").unwrap();
        assert_eq!(lapse(&mut other, lease), "taken_back");
    });
}
