//! The desk by itself: its moments are made up, and nothing waits.

use super::*;
use crate::job::{Json, Name, NewJob};
use crate::lease::WorkerId;
use crate::lifecycle::Verb;
use crate::store::sqlite::{Options, Sqlite};
use crate::store::{Claim, Cursor, Store};

const LEASE: Duration = Duration::from_secs(10);

fn at(millis: u64) -> Moment {
    Moment::after_start(Duration::from_millis(millis))
}

/// A desk that holds a job with this maximal runtime, since moment zero.
fn holding(max_runtime: Option<Duration>) -> (Desk, Arc<Hold>) {
    holding_at(Desk::new(2), max_runtime)
}

fn holding_at(desk: Desk, max_runtime: Option<Duration>) -> (Desk, Arc<Hold>) {
    let mut store = Sqlite::in_memory(&Options::default()).unwrap();
    let kind = Name::check("kind", "work").unwrap();
    let mut job = NewJob::new(kind, Json::check("args", "{}", 10).unwrap());
    if let Some(limit) = max_runtime {
        job = job.max_runtime(limit);
    }
    store.enqueue(&[job]).unwrap();
    let ask = Claim {
        worker: WorkerId::unique(),
        queues: vec![Name::default_queue()],
        kinds: None,
        n: 1,
        lease: LEASE,
        cursor: Cursor::default(),
        grace: Duration::ZERO,
        request: 0,
    };
    let attempt = store.claim(&ask).unwrap().attempts.remove(0);
    let hold = desk.hold(&attempt, at(0), LEASE).unwrap();
    assert!(desk.hold(&attempt, at(0), LEASE).is_none(), "what is known is not begun again");
    (desk, hold)
}

fn taken(desk: &Desk, now: Moment) -> Vec<Returned> {
    let mut ended = Vec::new();
    desk.take(&mut ended, now);
    ended.into_iter().map(|ended| ended.returned).collect()
}

fn done() -> Returned {
    Returned::Settle(Outcome::Complete { result: None })
}

#[test]
fn what_returned_is_taken_once_and_its_slot_is_free() {
    let (desk, hold) = holding(None);
    assert_eq!(desk.take(&mut Vec::new(), at(1)).free, 1);
    desk.returned(hold.fence, done(), at(5));
    assert_eq!(desk.take(&mut Vec::new(), at(5)).free, 2);
    assert_eq!(taken(&desk, at(5)), [], "and not twice");
}

#[test]
fn a_lease_is_trusted_to_nine_tenths_and_longer_with_each_renewal() {
    let (desk, hold) = holding(None);
    assert_eq!(hold.trust().until, at(9_000));
    let fences = desk.to_renew(at(3_000), at(3_000));
    assert_eq!(fences, [hold.fence]);
    desk.renewed(&fences, &fences, at(3_000), LEASE);
    assert_eq!(hold.trust().until, at(12_000));
    assert_eq!(desk.to_renew(at(2_999), at(4_000)), [], "it was granted later than that");
}

#[test]
fn a_settlement_waits_for_the_renewal_of_its_own_job_but_not_for_long() {
    let (desk, hold) = holding(None);
    let fences = desk.to_renew(at(3_000), at(3_000));
    desk.returned(hold.fence, done(), at(3_001));
    assert_eq!(taken(&desk, at(3_002)), [], "it would be settled before it is renewed");
    assert_eq!(desk.take(&mut Vec::new(), at(3_002)).held, 1, "so that nobody ends without it");
    desk.renewed(&fences, &fences, at(3_000), LEASE);
    assert_eq!(taken(&desk, at(3_003)), [done()]);

    let (desk, hold) = holding(None);
    desk.to_renew(at(3_000), at(3_000));
    desk.returned(hold.fence, done(), at(3_001));
    assert_eq!(taken(&desk, at(4_000)), [done()], "a renewal that hangs holds nobody up");
}

#[test]
fn what_the_store_has_not_heard_of_for_a_while_is_renewed_again() {
    let (desk, hold) = holding(None);
    desk.returned(hold.fence, done(), at(100));
    assert_eq!(desk.to_renew(at(1_000), at(1_000)), [], "it is being settled");
    assert_eq!(desk.to_renew(at(1_100), at(1_100)), [hold.fence], "or it should have been");
}

#[test]
fn a_job_that_its_handler_has_committed_is_over_though_the_handler_goes_on() {
    let (desk, hold) = holding(None);
    desk.committed(hold.fence, at(5));
    assert_eq!(taken(&desk, at(5)), [Returned::Committed]);
    desk.forget(hold.fence);
    assert!(!hold.is_stopped() && desk.to_renew(at(9_000), at(9_000)).is_empty());
    assert_eq!(desk.take(&mut Vec::new(), at(6)).free, 1, "and it keeps its slot");
}

#[test]
fn a_lease_is_not_trusted_for_longer_than_its_handler_may_run() {
    let (desk, hold) = holding(Some(Duration::from_secs(2)));
    assert_eq!(hold.trust().until, at(1_600));
    desk.renewed(&[hold.fence], &[hold.fence], at(1_000), LEASE);
    assert_eq!(hold.trust().until, at(1_600));
}

#[test]
fn a_job_that_is_lost_is_stopped_and_what_it_returns_is_dropped() {
    let (desk, hold) = holding(None);
    assert!(desk.lose(hold.fence, Cause::Cancelled));
    assert!(!desk.lose(hold.fence, Cause::Lost), "once is enough");
    assert_eq!(hold.trust().stopped, Some(Cause::Cancelled));
    desk.returned(hold.fence, done(), at(5));
    assert_eq!(taken(&desk, at(5)), []);
    assert_eq!(desk.take(&mut Vec::new(), at(5)).free, 2, "but its slot is free");
}

#[test]
fn a_job_that_runs_for_too_long_fails_at_once_and_keeps_its_slot_until_it_returns() {
    let (desk, hold) = holding(Some(Duration::from_secs(2)));
    assert_eq!(desk.revoke(at(1_599)), Some(at(1_600)), "a moment before the store takes it back");
    assert!(!hold.is_stopped());
    assert_eq!(desk.revoke(at(1_600)), None);
    assert_eq!(hold.trust().stopped, Some(Cause::TimedOut));
    let ended = taken(&desk, at(2_000));
    assert!(
        matches!(&ended[..], [Returned::Settle(Outcome::Retry { error, .. })]
            if error == "it was stopped after 1.6s, because its max_runtime of 2s was about to end"),
        "{ended:?}"
    );
    assert_eq!(desk.take(&mut Vec::new(), at(2_001)).free, 1, "its handler may still be there");
    desk.returned(hold.fence, done(), at(9_000));
    assert_eq!(taken(&desk, at(9_000)), [], "and is too late");
}

#[test]
fn in_the_last_stage_handlers_are_stopped_and_given_back_without_them_if_they_stay() {
    let (desk, hold) = holding(None);
    desk.advance(Stage::Finishing);
    assert_eq!(desk.revoke(at(1)), None, "what runs may finish");
    desk.advance(Stage::Releasing);
    desk.advance(Stage::Finishing);
    assert_eq!(desk.stage(), Stage::Releasing, "there is no way back");
    assert_eq!(desk.revoke(at(10)), Some(at(6_010)));
    assert_eq!(hold.trust().stopped, Some(Cause::Shutdown));
    assert_eq!(taken(&desk, at(11)), []);
    assert_eq!(desk.to_renew(at(11), at(11)), [], "and is on its way back");
    desk.revoke(at(6_010));
    assert_eq!(taken(&desk, at(6_010)), [Returned::Settle(Outcome::Release)]);
}

#[cfg(feature = "drill")]
#[test]
fn a_worker_that_stands_still_neither_renews_its_lease_nor_doubts_it() {
    let (desk, hold) = holding(None);
    assert_eq!(desk.to_renew(at(9_000), at(9_000)), [hold.fence]);
    assert_eq!(hold.trust().until, at(9_000));
    let (desk, hold) = holding_at(Desk::stalled(2), None);
    assert_eq!(desk.to_renew(at(9_000), at(9_000)), []);
    assert!(hold.trust().until > at(365 * 24 * 60 * 60 * 1_000));
}

#[test]
fn a_settlement_waits_until_what_came_of_its_effects_is_written() {
    let (desk, hold) = holding(None);
    let charge = Name::check("effect", "charge").unwrap();
    desk.outcome_known(hold.fence, &charge, Verb::EffectCommit);
    desk.advance(Stage::Releasing);
    desk.revoke(at(1));
    assert!(hold.is_stopped());
    desk.returned(hold.fence, Returned::Settle(Outcome::Release), at(5));
    assert_eq!(taken(&desk, at(5)), [], "to give the job back would end the right to write it");
    assert_eq!(desk.to_renew(at(5), at(6)), [hold.fence], "its lease is kept meanwhile");
    desk.renewed(&[hold.fence], &[hold.fence], at(5), LEASE);
    assert!(desk.outcome_answered(hold.fence, &charge).is_some());
    assert_eq!(taken(&desk, at(7)), [Returned::Settle(Outcome::Release)]);
}

#[test]
fn a_worker_that_stood_still_beyond_a_max_runtime_says_so() {
    let (desk, _) = holding(Some(Duration::from_secs(2)));
    desk.revoke(at(9_000));
    let ended = taken(&desk, at(9_000));
    assert!(
        matches!(&ended[..], [Returned::Settle(Outcome::Retry { error, .. })]
            if error == "it was stopped after 9s, because its max_runtime of 2s was over"),
        "{ended:?}"
    );
}
