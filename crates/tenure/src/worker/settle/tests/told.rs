//! What the settler reports about the end of an attempt, and to which callers.

use super::*;
use crate::telemetry::Event;

#[test]
fn whatever_ends_an_attempt_is_reported_with_its_identity_and_how_long_it_ran() {
    let told: Arc<Mutex<Vec<Event>>> = Arc::default();
    let seen = Arc::clone(&told);
    let plan = Plan {
        observer: Observer::new(move |event| seen.lock().unwrap().push(event.clone())),
        ..Plan::new(WorkerId::check("ann").unwrap())
    };
    let (ran_ms, after, after_ms) = (7, Duration::from_secs(1), 1_000);
    let [error, reason] = ["no", "never"].map(String::from);
    let retry = || Outcome::Retry { after, error: error.clone() };
    let bury = || Outcome::Bury { reason: reason.clone() };
    let park = || Outcome::Park { reason: reason.clone() };
    let dead = |reason: &String| Fact::JobDead { reason: reason.clone(), ran_ms: Some(ran_ms) };
    let again = Fact::RetryScheduled { after_ms, error: error.clone(), ran_ms };
    let cases = [
        (Outcome::Complete { result: None }, State::Succeeded, Fact::JobSucceeded { ran_ms }),
        (retry(), State::Queued, again),
        (retry(), State::Dead, dead(&error)),
        (Outcome::Snooze { after }, State::Queued, Fact::JobSnoozed { after_ms, ran_ms }),
        (Outcome::Release, State::Queued, Fact::JobReleased { ran_ms }),
        (park(), State::Parked, Fact::JobParked { reason: reason.clone(), ran_ms }),
        (bury(), State::Dead, dead(&reason)),
    ];
    for (outcome, state, fact) in cases {
        let ended = ended(1);
        let waiting = plan.waiters.wait_for(ended.about.job);
        tell(&plan, &Desk::new(1), &ended, &outcome, state);
        let expected = Event::of_job(&plan.worker, &ended.about, fact);
        assert_eq!(*told.lock().unwrap(), [expected]);
        told.lock().unwrap().clear();
        assert_eq!(waiting.is_woken(), state.has_ended(), "{outcome:?}");
    }
}

#[test]
fn a_caller_that_waits_is_woken_however_its_job_ended_and_whatever_listens() {
    let waits = |meanwhile: fn(&mut Bench, Fence)| {
        let mut bench = Bench::new();
        let silent = Plan::new(WorkerId::check("ann").unwrap());
        bench.plan = Arc::new(silent);
        let fence = bench.take("ann");
        let plan = Arc::clone(&bench.plan);
        let other = plan.waiters.wait_for(JobId(fence.job.0 + 1));
        let waiting = plan.waiters.wait_for(fence.job);
        meanwhile(&mut bench, fence);
        bench.settle(fence, settle(Outcome::Complete { result: None }));
        assert!(!other.is_woken());
        waiting.is_woken()
    };
    assert!(waits(|_, _| ()), "it succeeded");
    assert!(waits(|bench, fence| drop(bench.store.cancel(&[fence.job]).unwrap())), "cancelled");
    let taken_over = |bench: &mut Bench, _: Fence| {
        bench.clock.advance(LEASE);
        bench.take("bob");
    };
    assert!(!waits(taken_over), "it runs elsewhere");
    let ended_elsewhere = |bench: &mut Bench, _: Fence| {
        bench.clock.advance(LEASE);
        let theirs = bench.take("bob");
        bench.complete(theirs);
    };
    assert!(waits(ended_elsewhere));
}
