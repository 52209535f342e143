//! The desk alone: its times are made up, and nothing waits.

use std::pin::pin;
use std::sync::{Arc, mpsc};
use std::task::{Context, Waker};

use super::*;
use crate::clock::monotonic;
use crate::job::{BATCH_LIMIT, Json, Name, NewJob};
use crate::lease::WorkerId;
use crate::lifecycle::{Outcome, Verb};
use crate::store::sqlite::{Sqlite, StoreOptions};
use crate::store::{Attempt, Claim, Work};

const LEASE: Duration = Duration::from_secs(10);

fn at(millis: u64) -> Moment {
    Moment::after_start(Duration::from_millis(millis))
}

/// A desk that holds a job with this `max_runtime`, since time zero.
fn holding(max_runtime: Option<Duration>) -> (Desk, Arc<Hold>) {
    holding_at(Desk::new(2), max_runtime)
}

fn holding_at(desk: Desk, max_runtime: Option<Duration>) -> (Desk, Arc<Hold>) {
    let (desk, mut holds) = holding_some(desk, max_runtime, 1);
    (desk, holds.remove(0))
}

fn holding_some(desk: Desk, max_runtime: Option<Duration>, n: usize) -> (Desk, Vec<Arc<Hold>>) {
    let mut store = Sqlite::in_memory(&StoreOptions::default()).unwrap();
    let kind = Name::check("kind", "work").unwrap();
    let mut job = NewJob::new(kind, Json::check("args", "{}", 10).unwrap());
    if let Some(limit) = max_runtime {
        job = job.max_runtime(limit);
    }
    store.enqueue(&vec![job; n]).unwrap();
    let ask = Claim::new(WorkerId::unique(), n, LEASE);
    let attempts = store.claim(&ask).unwrap().attempts;
    let holds = attempts.iter().map(|attempt| desk.hold(attempt, at(0), LEASE).unwrap()).collect();
    let again = desk.hold(&attempts[0], at(0), LEASE);
    assert!(again.is_none(), "what is known is not begun again");
    (desk, holds)
}

fn taken(desk: &Desk, now: Moment) -> Vec<Returned> {
    let mut ended = Vec::new();
    desk.take(&mut ended, now);
    ended.into_iter().map(|ended| ended.returned).collect()
}

/// The fences of the leases that are to be renewed.
fn to_renew(desk: &Desk, before: Moment, now: Moment) -> Vec<Fence> {
    desk.to_renew(before, now).iter().map(|hold| hold.fence).collect()
}

/// Whether the dispatcher was poked since it last looked. It looks now.
fn is_poked(desk: &Desk) -> bool {
    let poked = desk.state().poked;
    desk.take(&mut Vec::new(), at(0));
    poked
}

/// So many attempts.
fn claimed(n: usize) -> Vec<Attempt> {
    let mut store = Sqlite::in_memory(&StoreOptions::default()).unwrap();
    let kind = Name::check("kind", "work").unwrap();
    let job = NewJob::new(kind, Json::check("args", "{}", 10).unwrap());
    store.enqueue(&vec![job; n]).unwrap();
    store.claim(&Claim::new(WorkerId::unique(), n, LEASE)).unwrap().attempts
}

/// A desk with one slot, and the fences of the attempt that occupies it and of one that waits.
fn waiting() -> (Desk, Fence, Fence) {
    let attempts = claimed(2);
    let desk = Desk::new(1);
    let fences = [attempts[0].lease.fence(), attempts[1].lease.fence()];
    for (place, attempt) in attempts.into_iter().enumerate() {
        let hold = desk.hold(&attempt, at(0), LEASE).unwrap();
        assert_eq!(desk.seat(attempt, hold, at(0)).is_some(), place == 0);
    }
    (desk, fences[0], fences[1])
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
    assert_eq!(to_renew(&desk, at(0), at(0)), [hold.fence], "it was granted at that very time");
    let fences = to_renew(&desk, at(3_000), at(3_000));
    assert_eq!(fences, [hold.fence]);
    desk.renewed(&fences, &fences, at(3_000), LEASE);
    assert_eq!(hold.trust().until, at(12_000));
    assert_eq!(to_renew(&desk, at(2_999), at(4_000)), [], "it was granted later than that");
}

#[test]
fn the_lease_that_was_granted_first_is_renewed_first() {
    let (desk, holds) = holding_some(Desk::new(3), None, 3);
    let [first, second, third] = [0, 1, 2].map(|at| holds[at].fence);
    desk.renewed(&[first], &[first], at(2_000), LEASE);
    desk.renewed(&[second], &[second], at(1_000), LEASE);
    assert_eq!(to_renew(&desk, at(3_000), at(3_000)), [third, second, first]);
}

#[test]
fn a_settlement_waits_for_the_renewal_of_its_own_job_but_not_for_long() {
    let (desk, hold) = holding(None);
    let fences = to_renew(&desk, at(3_000), at(3_000));
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
    assert_eq!(to_renew(&desk, at(1_000), at(1_000)), [], "it is being settled");
    assert_eq!(to_renew(&desk, at(1_100), at(1_100)), [hold.fence], "or it should have been");
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
    assert_eq!(to_renew(&desk, at(11), at(11)), [], "and is on its way back");
    desk.revoke(at(6_010));
    assert_eq!(taken(&desk, at(6_010)), [Returned::Settle(Outcome::Release)]);
}

#[cfg(feature = "drill")]
#[test]
fn a_worker_that_stands_still_neither_renews_its_lease_nor_doubts_it() {
    let (desk, hold) = holding(None);
    assert_eq!(to_renew(&desk, at(9_000), at(9_000)), [hold.fence]);
    assert_eq!(hold.trust().until, at(9_000));
    let (desk, hold) = holding_at(Desk::stalled(2), None);
    assert_eq!(to_renew(&desk, at(9_000), at(9_000)), []);
    assert!(desk.is_stalled(), "so that it does not take back the jobs of others, either");
    assert!(hold.trust().until > at(365 * 24 * 60 * 60 * 1_000));
}

#[test]
fn a_settlement_waits_until_what_came_of_its_effects_is_written() {
    let (desk, hold) = holding(None);
    let charge = Name::check("effect", "charge").unwrap();
    desk.outcome_known(&hold, &charge, Verb::EffectCommit);
    desk.advance(Stage::Releasing);
    desk.revoke(at(1));
    assert!(hold.is_stopped());
    desk.returned(hold.fence, Returned::Settle(Outcome::Release), at(5));
    assert_eq!(taken(&desk, at(5)), [], "to give the job back would end the right to write it");
    assert_eq!(to_renew(&desk, at(5), at(6)), [hold.fence], "its lease is kept meanwhile");
    desk.renewed(&[hold.fence], &[hold.fence], at(5), LEASE);
    assert!(desk.outcome_answered(hold.fence, &charge).is_some());
    assert_eq!(taken(&desk, at(7)), [Returned::Settle(Outcome::Release)]);
}

#[test]
fn a_job_that_is_stopped_after_its_max_runtime_says_whether_that_was_over() {
    for (now, end) in [(1_999, "about to end"), (2_000, "over"), (9_000, "over")] {
        let (desk, _) = holding(Some(Duration::from_secs(2)));
        desk.revoke(at(now));
        let ended = taken(&desk, at(now));
        let ran = Duration::from_millis(now);
        let expected =
            format!("it was stopped after {ran:?}, because its max_runtime of 2s was {end}");
        assert!(
            matches!(&ended[..], [Returned::Settle(Outcome::Retry { error, .. })]
                if *error == expected),
            "{ended:?}"
        );
    }
}

#[test]
fn a_settlement_waits_for_all_effects_of_its_own_job() {
    let (desk, hold) = holding(None);
    let [charge, mail] = ["charge", "mail"].map(|name| Name::check("effect", name).unwrap());
    desk.outcome_known(&hold, &charge, Verb::EffectCommit);
    desk.outcome_known(&hold, &mail, Verb::EffectCommit);
    desk.returned(hold.fence, done(), at(5));
    assert!(desk.outcome_answered(hold.fence, &charge).is_some());
    assert_eq!(taken(&desk, at(5)), [], "the other one is on its way");
    assert!(desk.outcome_answered(hold.fence, &mail).is_some());
    assert_eq!(taken(&desk, at(5)), [done()]);
}

#[test]
fn who_waits_for_the_outcomes_of_effects_is_woken_when_the_last_one_is_written() {
    let (desk, hold) = holding(None);
    let charge = Name::check("effect", "charge").unwrap();
    desk.outcome_known(&hold, &charge, Verb::EffectCommit);
    let mut answered = pin!(desk.outcomes_answered());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(answered.as_mut().poll(&mut cx).is_pending());
    assert!(desk.outcome_answered(hold.fence, &charge).is_some());
    assert!(answered.as_mut().poll(&mut cx).is_ready());
}

#[test]
fn a_renewal_holds_up_no_settlement_of_another_job() {
    let (desk, holds) = holding_some(Desk::new(2), None, 2);
    desk.renewed(&[], &[holds[0].fence], at(2_000), LEASE);
    assert_eq!(to_renew(&desk, at(1_000), at(3_000)), [holds[1].fence]);
    desk.returned(holds[0].fence, done(), at(3_001));
    assert_eq!(taken(&desk, at(3_001)), [done()]);
}

#[test]
fn no_more_ended_attempts_are_taken_than_one_call_accepts() {
    let (desk, holds) = holding_some(Desk::new(2), None, 2);
    for hold in &holds {
        desk.returned(hold.fence, done(), at(5));
    }
    let mut ended = Vec::new();
    desk.take(&mut ended, at(5));
    assert_eq!(ended.len(), 2);

    let (desk, holds) = holding_some(Desk::new(2), None, 2);
    for hold in &holds {
        desk.returned(hold.fence, done(), at(5));
    }
    let mut ended = vec![ended.remove(0); BATCH_LIMIT - 1];
    desk.take(&mut ended, at(5));
    assert_eq!(ended.len(), BATCH_LIMIT, "the other one is taken next time");
    assert_eq!(taken(&desk, at(5)), [done()]);
}

#[test]
fn the_dispatcher_finds_how_many_workers_share_the_store() {
    let desk = Desk::new(1);
    desk.set_company(7);
    assert_eq!(desk.take(&mut Vec::new(), at(0)).company, 7);
}

/// Each of these events is work for the dispatcher, so it must wake the dispatcher.
#[test]
fn the_dispatcher_is_poked_by_what_it_has_to_do_and_by_nothing_else() {
    let charge = Name::check("effect", "charge").unwrap();
    let (desk, holds) = holding_some(Desk::new(4), Some(Duration::from_secs(60)), 4);
    let fences: Vec<Fence> = holds.iter().map(|hold| hold.fence).collect();
    assert!(is_poked(&desk), "it has just started");
    assert!(!is_poked(&desk), "and knows by now");
    desk.poke();
    assert!(is_poked(&desk));
    desk.returned(fences[0], done(), at(5));
    assert!(is_poked(&desk));
    desk.committed(fences[1], at(5));
    assert!(is_poked(&desk));

    desk.to_renew(at(0), at(100));
    desk.outcome_known(&holds[2], &charge, Verb::EffectCommit);
    assert!(!is_poked(&desk));
    desk.outcome_answered(fences[2], &charge);
    assert!(is_poked(&desk), "its settlement may have waited for that");
    desk.renewed(&fences[2..], &fences[2..], at(100), LEASE);
    assert!(!is_poked(&desk), "nothing has ended meanwhile");
    desk.to_renew(at(100), at(5_000));
    desk.returned(fences[2], done(), at(5_001));
    assert!(is_poked(&desk) && taken(&desk, at(5_001)).is_empty());
    desk.renewed(&fences[2..], &fences[2..], at(5_000), LEASE);
    assert!(is_poked(&desk), "the settlement waited for this renewal");

    desk.revoke(at(59_000));
    assert!(!is_poked(&desk), "all may continue");
    desk.revoke(at(59_500));
    assert!(is_poked(&desk), "one has run for too long");
    desk.relieved(None);
    assert!(is_poked(&desk), "a job may be due by what the relief has settled");
    desk.advance(Stage::Finishing);
    assert!(is_poked(&desk));
}

#[test]
fn while_attempts_gather_the_dispatcher_is_poked_only_by_enough_of_them_or_by_the_last() {
    let (desk, holds) = holding_some(Desk::new(4), None, 4);
    desk.take(&mut Vec::new(), at(0));
    desk.gather(2);
    desk.returned(holds[0].fence, done(), at(1));
    assert!(!desk.state().poked);
    assert!(desk.take(&mut Vec::new(), at(1)).poked, "it has made room for another");
    desk.gather(2);
    desk.returned(holds[1].fence, done(), at(2));
    assert!(desk.returned_for_next(holds[2].fence, done(), at(2)).is_none());
    assert!(is_poked(&desk));
    desk.gather(2);
    desk.returned(holds[3].fence, done(), at(3));
    assert!(is_poked(&desk), "no other runs");
}

#[test]
fn a_handler_has_run_since_it_began_and_not_since_its_claim() {
    let (_, hold) = holding(None);
    assert_eq!(hold.ran(at(50)), Duration::from_millis(50));
    hold.begin(at(40));
    assert_eq!(hold.ran(at(50)), Duration::from_millis(10));
}

#[test]
fn an_attempt_that_waits_begins_in_the_slot_of_one_that_ends() {
    let (desk, running, waits) = waiting();
    assert!(desk.next().is_none(), "no slot is free");
    let begun = desk.returned_for_next(running, done(), at(1)).unwrap();
    assert_eq!(begun.1.fence, waits);
    assert!(desk.next().is_none());
}

#[test]
fn an_attempt_that_ended_while_it_waited_does_not_begin() {
    let (desk, running, waits) = waiting();
    desk.committed(waits, at(1));
    assert!(desk.returned_for_next(running, done(), at(1)).is_none());
}

#[test]
fn a_worker_that_ends_begins_no_attempt_that_waits_and_lets_none_wait() {
    let (desk, running, _) = waiting();
    desk.advance(Stage::Finishing);
    assert!(desk.returned_for_next(running, done(), at(1)).is_none());

    let attempts = claimed(2);
    let desk = Desk::new(1);
    desk.advance(Stage::Finishing);
    for attempt in attempts {
        let hold = desk.hold(&attempt, at(0), LEASE).unwrap();
        drop(desk.seat(attempt, hold, at(0)));
    }
    assert_eq!(
        taken(&desk, at(0)),
        [Returned::Settle(Outcome::Release)],
        "the second found no slot"
    );
}

/// If the process dies while an attempt waits, its job has one more crash.
#[test]
fn an_attempt_waits_only_if_a_crash_would_not_end_its_job() {
    let usual = claimed(1).remove(0);
    let with = |change: fn(&mut Attempt)| {
        let mut attempt = usual.clone();
        change(&mut attempt);
        may_wait(&attempt)
    };
    assert!(with(|_| ()));
    assert!(!with(|it| it.crashes = 1));
    assert!(!with(|it| it.max_crashes = 1) && with(|it| it.max_crashes = 2));
    assert!(!with(|it| it.max_attempts = 1) && with(|it| it.max_attempts = 2));
    assert!(
        !with(|it| it.max_runtime_ms = Some(999)) && with(|it| it.max_runtime_ms = Some(1_000))
    );
}

/// Lets a thread rest at a desk until it is woken, and returns whether it was.
fn wakes(rest: fn(&Desk, Duration), mut wake: impl FnMut(&Desk)) -> bool {
    let desk = Arc::new(Desk::new(1));
    desk.take(&mut Vec::new(), at(0));
    let (tell, woken) = mpsc::channel();
    let resting = Arc::clone(&desk);
    std::thread::spawn(move || {
        rest(&resting, Duration::from_secs(3_600));
        tell.send(()).unwrap();
    });
    let soon = woken.recv_timeout(Duration::from_millis(50));
    assert_eq!(soon, Err(mpsc::RecvTimeoutError::Timeout), "it rests while nothing happens");
    (0..1_000).any(|_| {
        wake(&desk);
        woken.recv_timeout(Duration::from_millis(10)).is_ok()
    })
}

#[test]
fn a_dispatcher_that_rests_is_woken_when_it_is_poked() {
    // Each poke is the first one since the dispatcher looked.
    assert!(wakes(Desk::rest, |desk| {
        desk.state().poked = false;
        desk.poke();
    }));
}

#[test]
fn a_dispatcher_that_was_poked_before_it_rests_does_not_rest() {
    let desk = Arc::new(Desk::new(1));
    desk.poke();
    let (tell, woken) = mpsc::channel();
    std::thread::spawn(move || {
        desk.rest(Duration::from_secs(3_600));
        tell.send(()).unwrap();
    });
    woken.recv_timeout(Duration::from_secs(10)).unwrap();
}

#[test]
fn the_other_threads_are_woken_when_the_stage_changes_and_not_by_a_poke() {
    // The thread may begin to rest only after the first change of the stage. So the test makes
    // several.
    let mut stages = [Stage::Finishing, Stage::Releasing].into_iter().cycle();
    assert!(wakes(Desk::rest_unless_staged, |desk| {
        desk.state().stage = Stage::Working;
        desk.advance(stages.next().unwrap());
    }));
    let desk = Desk::new(1);
    desk.poke();
    let (begun, length) = (monotonic(), Duration::from_millis(20));
    desk.rest_unless_staged(length);
    assert!(monotonic() - begun >= length);
}
