//! Workers that the store considered gone and that call again: which crash the store then no longer
//! counts, and until when.

use std::num::NonZeroU16;
use std::time::Duration;

use tenure::engine::job::{JobId, State};
use tenure::engine::lease::{Fence, Token};
use tenure::engine::lifecycle::{CRASH_MEMORY, Outcome, Verb};
use tenure::engine::store::{Claim, GUARD_GAP, Registration, Settled};

use super::{LEASE, World, ask, complete, job, name, promises, retry, secs, worker};

fn put(w: &mut World, kind: &str) -> JobId {
    w.put(job(kind).max_crashes(NonZeroU16::new(9).unwrap()))
}

/// The worker registers and claims the jobs of these kinds, after a minute in which they become
/// due.
fn busy(w: &mut World, who: &str, kinds: &[&str]) -> Vec<Fence> {
    w.pass(secs(60));
    let known = Registration::new(worker(who), vec![name("default")]);
    w.store.register(&known).unwrap();
    let kinds = Some(kinds.iter().map(|kind| name(kind)).collect());
    let claim = Claim { kinds, lease: secs(6_000), ..ask(who, 10) };
    w.claim(&claim).attempts.iter().map(|attempt| attempt.lease.fence()).collect()
}

/// All workers' processes end, and their deaths are noticed.
fn vanish(w: &mut World) -> usize {
    w.surroundings(|state| state.held.clear());
    assert!(w.store.vanished(10).unwrap().is_empty());
    w.pass(GUARD_GAP);
    w.store.vanished(10).unwrap().len()
}

/// The worker shows its token again.
fn show(w: &mut World, fence: Fence) {
    assert!(matches!(w.settle(fence, complete()), Settled::Stale(_)));
}

/// The workers that came back, each with its attempt.
fn returned(w: &mut World, id: JobId) -> Vec<(String, u32)> {
    let lines = w.timeline(id).into_iter().filter(|line| line.verb == Verb::Return);
    lines.map(|line| (line.worker.unwrap().to_string(), u32::from(line.attempt))).collect()
}

promises! { "record":
    "I5" each_worker_that_comes_back_takes_one_crash_back_and_its_own(w) {
        let id = put(w, "work");
        let first = busy(w, "ann", &["work"])[0];
        assert_eq!(vanish(w), 1);
        let second = busy(w, "bob", &["work"])[0];
        assert_eq!(vanish(w), 1);
        assert_eq!((w.record(id).crashes, w.record(id).is_suspect), (2, true));
        for _ in 0..2 {
            show(w, first);
            let record = w.record(id);
            assert_eq!((record.crashes, record.is_suspect, record.crashed_at.is_some()), (1, false, true));
        }
        show(w, second);
        assert_eq!((w.record(id).crashes, w.record(id).crashed_at), (0, None));
        assert_eq!(returned(w, id), [("ann".to_owned(), 1), ("bob".to_owned(), 2)]);
    }

    "I5" a_worker_that_comes_back_takes_back_the_crash_of_the_job_that_it_shows(w) {
        let ids = [put(w, "a"), put(w, "b"), put(w, "c")];
        let mut fences = busy(w, "ann", &["a", "b"]);
        fences.extend(busy(w, "bob", &["c"]));
        assert_eq!(fences.iter().map(|fence| fence.job).collect::<Vec<_>>(), ids);
        assert_eq!(vanish(w), 3);
        // The handlers return soon after the crashes, so the crashes still count.
        for fence in busy(w, "cid", &["a", "b", "c"]) {
            w.settle(fence, retry(Duration::ZERO));
        }
        assert_eq!(ids.map(|id| w.record(id).crashes), [1, 1, 1]);
        for (at, left) in [(1, [1, 0, 1]), (1, [1, 0, 1]), (2, [1, 0, 0]), (0, [0, 0, 0])] {
            show(w, fences[at]);
            assert_eq!(ids.map(|id| w.record(id).crashes), left, "{at}");
        }
        let names = ids.map(|id| returned(w, id));
        assert_eq!(names.map(|lines| lines[0].0.clone()), ["ann", "ann", "bob"]);
    }

    "I5" an_hour_in_which_no_handler_came_back_forgets_no_crash(w) {
        let id = put(w, "work");
        let fence = busy(w, "ann", &["work"])[0];
        assert_eq!(vanish(w), 1);
        w.pass(CRASH_MEMORY);
        let second = busy(w, "bob", &["work"])[0];
        w.settle(second, Outcome::Release);
        assert_eq!(w.record(id).crashes, 1);
        show(w, fence);
        assert_eq!(w.record(id).crashes, 0);
    }

    "I5" only_the_worker_whose_lease_ran_out_takes_that_crash_back(w) {
        // Another job has timeline lines under higher tokens, and a crash of its own.
        let other = put(w, "other");
        for _ in 0..4 {
            let fence = busy(w, "cid", &["other"])[0];
            w.settle(fence, Outcome::Snooze { after: Duration::ZERO });
        }
        busy(w, "cid", &["other"]);
        assert_eq!(vanish(w), 1);
        let beside = w.record(other);
        assert_eq!(beside.crashes, 1);

        let id = put(w, "work");
        let only = |who| Claim { kinds: Some(vec![name("work")]), ..ask(who, 1) };
        let take = |w: &mut World, who| w.claim(&only(who)).attempts.remove(0).lease.fence();
        let first = take(w, "ann");
        w.settle(first, retry(Duration::ZERO));
        let fence = take(w, "bob");
        w.pass(LEASE);
        assert_eq!(w.sweep(), 1);
        assert_eq!((w.record(id).crashes, w.state(id)), (1, State::Queued));
        // An earlier token, and one that was never issued.
        show(w, first);
        show(w, Fence { job: id, token: Token(999) });
        assert_eq!(w.record(id).crashes, 1);
        show(w, fence);
        assert_eq!((w.record(id).crashes, w.record(id).crashed_at), (0, None));
        assert_eq!(returned(w, id), [("bob".to_owned(), 2)]);
        let line = w.timeline(id).into_iter().find(|line| line.verb == Verb::Return).unwrap();
        assert_eq!((line.became, line.token), (State::Queued, fence.token));
        assert_eq!(w.record(other), beside);
    }
}
