//! The pace alone: its times are made up.

use std::sync::Arc;

use super::*;
use crate::job::{Json, NewJob};
use crate::lease::WorkerId;
use crate::store::sqlite::{Sqlite, StoreOptions};
use crate::store::{Claim, Work};

const MS: Duration = Duration::from_millis(1);

fn at(millis: u64) -> Moment {
    Moment::after_start(Duration::from_secs(1_000) + Duration::from_millis(millis))
}

fn work(kind: &str) -> NewJob {
    NewJob::new(Name::check("kind", kind).unwrap(), Json::check("args", "{}", 10).unwrap())
}

fn claimed(jobs: &[NewJob]) -> Vec<Attempt> {
    let mut store = Sqlite::in_memory(&StoreOptions::default()).unwrap();
    store.enqueue(jobs).unwrap();
    let ask = Claim::new(WorkerId::unique(), jobs.len(), Duration::from_secs(30));
    store.claim(&ask).unwrap().attempts
}

/// The end of this attempt, after its handler has run for `ran`.
fn end(attempt: &Attempt, returned: Returned, ran: Duration) -> Ended {
    Ended { about: Arc::new(attempt.about()), returned, ran, was_sent: false }
}

fn done(attempt: &Attempt, ran: Duration) -> Ended {
    end(attempt, Returned::Settle(Outcome::Complete { result: None }), ran)
}

/// The pace of a worker with four slots that claims 20 ms ahead and has learnt that the kind `work`
/// takes this long. Also returns an attempt of this kind.
fn knowing(ran: Duration) -> (Pace, Vec<Attempt>) {
    let mut pace = Pace::new(4);
    pace.claim_ahead(20 * MS);
    let attempts = claimed(&[work("work")]);
    end_some(&mut pace, &attempts[0], ran, 4);
    (pace, attempts)
}

fn end_some(pace: &mut Pace, attempt: &Attempt, ran: Duration, count: usize) {
    pace.ended(&vec![done(attempt, ran); count], at(0));
}

/// How many may wait after a claim of these attempts.
fn allowed(pace: &mut Pace, attempts: &[Attempt], now: Moment) -> usize {
    pace.claimed(attempts, now);
    pace.allowed()
}

#[test]
fn nothing_is_claimed_ahead_of_an_unknown_kind() {
    let (mut pace, known) = knowing(MS / 100);
    let mixed = [&known[..], &claimed(&[work("other")])[..]].concat();
    assert_eq!(allowed(&mut pace, &mixed, at(0)), 0);
    end_some(&mut pace, &known[0], MS / 100, 4);
    assert_eq!(allowed(&mut pace, &known, at(0)), 4);
}

#[test]
fn one_more_is_claimed_ahead_for_each_that_ends_up_to_what_the_slots_run_in_the_time() {
    let (mut pace, work) = knowing(MS);
    assert_eq!(allowed(&mut pace, &work, at(0)), 4);
    assert_eq!(allowed(&mut pace, &work, at(0)), 4, "none has ended since");
    end_some(&mut pace, &work[0], MS, 70);
    assert_eq!(allowed(&mut pace, &work, at(0)), 74);
    end_some(&mut pace, &work[0], MS, 7);
    assert_eq!(allowed(&mut pace, &work, at(0)), 80, "4 slots run 80 in 20 ms");
    let (mut pace, work) = knowing(Duration::ZERO);
    end_some(&mut pace, &work[0], Duration::ZERO, 3_000);
    assert_eq!(allowed(&mut pace, &work, at(0)), 2_000, "what two calls bring");
}

#[test]
fn little_or_nothing_is_claimed_ahead_of_a_slow_kind() {
    for (millis, expected) in [(20, 4), (40, 2), (80, 1), (81, 0)] {
        let (mut pace, work) = knowing(millis * MS);
        assert_eq!(allowed(&mut pace, &work, at(0)), expected, "{millis} ms");
    }
    let (mut pace, quick) = knowing(MS);
    let slow = claimed(&[work("slow")]);
    end_some(&mut pace, &slow[0], 80 * MS, 9);
    let mixed = [quick, slow].concat();
    assert_eq!(allowed(&mut pace, &mixed, at(0)), 1, "the slowest decides");
}

#[test]
fn a_kind_that_becomes_slow_is_soon_known_to_be_slow_but_not_by_one_outlier() {
    let (mut pace, work) = knowing(MS);
    end_some(&mut pace, &work[0], 9 * MS, 1);
    end_some(&mut pace, &work[0], 2 * MS, 99);
    assert_eq!(allowed(&mut pace, &work, at(0)), 40, "2 ms on average");
    end_some(&mut pace, &work[0], 1_000 * MS, 50);
    assert_eq!(allowed(&mut pace, &work, at(0)), 0);
}

#[test]
fn a_claim_that_brings_nothing_changes_nothing() {
    let (mut pace, work) = knowing(MS);
    assert_eq!(allowed(&mut pace, &work, at(0)), 4);
    end_some(&mut pace, &work[0], MS, 4);
    assert_eq!(allowed(&mut pace, &[], at(0)), 4);
}

#[test]
fn after_an_attempt_that_was_given_back_nothing_is_claimed_ahead_for_a_second() {
    let (mut pace, work) = knowing(MS);
    assert_eq!(allowed(&mut pace, &work, at(0)), 4);
    let release = Returned::Settle(Outcome::Release);
    pace.ended(&[end(&work[0], release, Duration::ZERO)], at(10));
    assert_eq!(pace.allowed(), 0);
    end_some(&mut pace, &work[0], MS, 4);
    assert_eq!(allowed(&mut pace, &work, at(1_009)), 0);
    end_some(&mut pace, &work[0], MS, 100);
    assert_eq!(allowed(&mut pace, &work, at(1_010)), 80, "it has learnt no speed from it");
}

#[test]
fn after_an_attempt_that_may_not_wait_nothing_is_claimed_ahead_for_a_second() {
    let (mut pace, quick) = knowing(MS);
    let last = claimed(&[work("work").max_attempts(std::num::NonZeroU16::MIN)]);
    assert_eq!(allowed(&mut pace, &quick, at(10)), 4);
    let mixed = [&quick[..], &last[..]].concat();
    assert_eq!(allowed(&mut pace, &mixed, at(10)), 0);
    end_some(&mut pace, &quick[0], MS, 4);
    assert_eq!(allowed(&mut pace, &quick, at(1_009)), 0);
    end_some(&mut pace, &quick[0], MS, 4);
    assert_eq!(allowed(&mut pace, &quick, at(1_010)), 4);
}

#[test]
fn only_so_many_kinds_are_remembered() {
    let (mut pace, work) = knowing(MS);
    let mut other = done(&work[0], MS);
    for n in 0..MOST_KINDS {
        let kind = Name::check("kind", format!("k{n}")).unwrap();
        other.about = Arc::new(crate::record::About { kind, ..(*other.about).clone() });
        pace.ended(std::slice::from_ref(&other), at(0));
    }
    assert_eq!(pace.took.len(), MOST_KINDS);
}
