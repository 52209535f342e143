//! Stalls of the store. The store notices them by a gap in its workers' pulse: the time of their
//! last beat.

use std::time::Duration;

use tenure::Fence;
use tenure::engine::job::{JobId, State};
use tenure::engine::lifecycle::Verb;
use tenure::engine::store::{
    Beat, Claim, GUARD_GAP, Guarded, PULSE, Registration, STALL, STALLED_GAP,
};

use super::{LEASE, World, ask, complete, job, name, promises, secs, worker};

/// A job that Ann holds, in a store whose pulse has begun.
fn held(w: &mut World) -> Fence {
    w.put_one();
    let fence = w.take("ann").lease.fence();
    assert!(w.store.beat().unwrap().leads);
    fence
}

/// Time passes while workers reach the store.
fn pass_beating(w: &mut World, length: Duration) {
    let end = w.now() + length;
    while w.now() + PULSE < end {
        w.pass(PULSE);
        w.store.beat().unwrap();
    }
    w.pass(end.since(w.now()));
    w.store.beat().unwrap();
}

fn overdue(w: &mut World) -> Vec<Fence> {
    w.store.overdue(10, Duration::ZERO).unwrap()
}

promises! { "pulse":
    "G5" while_workers_reach_the_store_a_lease_that_is_over_is_lapsed(w) {
        let fence = held(w);
        pass_beating(w, LEASE);
        assert_eq!(overdue(w), [fence]);
        assert_eq!(w.take("bob").lease.job(), fence.job);
    }

    "I8" a_stall_of_ten_leases_takes_no_job_from_its_holder(w) {
        let fence = held(w);
        w.pass(LEASE * 10);
        assert!(overdue(w).is_empty());
        assert_eq!(w.lapse(&[fence]), [None]);
        assert!(w.claim(&ask("bob", 1)).attempts.is_empty());
        assert!(matches!(w.settle(fence, complete()), tenure::engine::store::Settled::Applied(State::Succeeded)));
    }

    "I8" the_first_claim_after_a_stall_lapses_nothing_though_no_worker_has_noticed_it_yet(w) {
        let fence = held(w);
        w.pass(LEASE * 10);
        let claimed = w.claim(&ask("bob", 1));
        assert!(claimed.lapsed.is_empty() && claimed.attempts.is_empty());
        assert_eq!(w.record(fence.job).token, fence.token);
    }

    "G5" after_a_stall_a_lease_is_over_when_it_has_had_its_length_again(w) {
        let fence = held(w);
        w.pass(LEASE * 10);
        w.store.beat().unwrap();
        pass_beating(w, LEASE - Duration::from_millis(1));
        assert!(overdue(w).is_empty());
        pass_beating(w, Duration::from_millis(1));
        assert_eq!(overdue(w), [fence]);
    }

    "G5" a_lease_is_pardoned_by_one_stall_only(w) {
        let fence = held(w);
        w.pass(LEASE * 10);
        w.store.beat().unwrap();
        assert!(overdue(w).is_empty());
        w.pass(LEASE * 10);
        assert_eq!(overdue(w), [fence]);
        assert_eq!(w.take("bob").lease.job(), fence.job);
    }

    "G5" a_store_without_a_steady_worker_recovers_a_job_within_two_leases_and_a_poll(w) {
        let fence = held(w);
        let lost = w.now() + LEASE;
        let poll = secs(10);
        let mut polls = 0;
        let taken = loop {
            w.pass(poll);
            polls += 1;
            assert!(polls < 60, "the job is never taken back");
            if let Some(attempt) = w.claim(&ask("bob", 1)).attempts.pop() {
                break attempt;
            }
        };
        assert_eq!(taken.lease.job(), fence.job);
        assert!(w.now().since(lost) <= LEASE + poll, "{:?} after the lease", w.now().since(lost));
    }

    "G5" a_store_in_which_no_worker_ever_spoke_knows_of_no_stall(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(LEASE * 10);
        assert_eq!(overdue(w), [fence]);
    }

    "G5" the_silence_of_an_idle_store_is_no_stall(w) {
        let fence = held(w);
        w.settle(fence, complete());
        w.pass(LEASE * 100);
        assert!(!w.store.beat().unwrap().leads);
        w.put_one();
        let fence = w.take("ann").lease.fence();
        pass_beating(w, LEASE);
        assert_eq!(overdue(w), [fence]);
        assert_eq!(w.dump().broke.as_millis(), 0);
    }

    "G5" max_runtime_ends_as_always_whatever_the_store_did(w) {
        w.put(job("work").max_runtime(secs(5)));
        let fence = w.take("ann").lease.fence();
        w.store.beat().unwrap();
        w.pass(LEASE * 10);
        assert_eq!(overdue(w), [fence]);
    }

    "I8" a_gap_that_is_shorter_than_a_stall_pardons_nothing(w) {
        w.put_one();
        let brief = Claim { lease: secs(1), ..ask("ann", 1) };
        let fence = w.claim(&brief).attempts.remove(0).lease.fence();
        w.store.beat().unwrap();
        w.pass(STALL);
        assert_eq!(overdue(w), [fence]);
    }

    "G5" the_pulse_advances_only_while_leases_are_out(w) {
        assert_eq!(w.store.beat().unwrap(), Beat { leads: false, leases_are_out: false, workers: 0, wakes: true });
        w.put(job("work").delay(secs(5)));
        w.pass(secs(5));
        assert!(!w.store.beat().unwrap().leads, "a job has become due, and its claim makes it ready");
        assert!(w.dump().jobs[0].waiting);
        w.claim(&ask("ann", 1));
        assert!(w.store.beat().unwrap().leads);
        w.pass(PULSE);
        assert!(w.store.beat().unwrap().leads);
    }

    "G5" one_caller_leads_in_each_beat_of_the_pulse(w) {
        held(w);
        assert_eq!(w.store.beat().unwrap(), Beat { leads: false, leases_are_out: true, workers: 0, wakes: true });
        w.pass(PULSE - Duration::from_millis(1));
        assert!(!w.store.beat().unwrap().leads);
        w.pass(Duration::from_millis(1));
        assert!(w.store.beat().unwrap().leads);
    }

    "I8" a_claim_that_sees_no_lease_over_uses_up_no_pardon(w) {
        let fence = held(w);
        w.pass(LEASE / 3);
        assert!(w.claim(&ask("bob", 1)).attempts.is_empty());
        w.pass(LEASE - LEASE / 3);
        w.store.beat().unwrap();
        pass_beating(w, LEASE / 2);
        assert!(overdue(w).is_empty(), "its whole length from the end of the stall on");
        pass_beating(w, LEASE / 2);
        assert_eq!(overdue(w), [fence]);
    }

    "G5" after_a_stall_a_lock_must_have_been_free_for_longer(w) {
        let known = Registration::new(worker("ann"), vec![name("default")]);
        assert_eq!(w.store.register(&known).unwrap(), Guarded::ByLock);
        let fence = held(w);
        w.surroundings(|state| {
            state.held.clear();
            state.broke = state.now;
        });
        assert!(w.store.vanished(10).unwrap().is_empty());
        w.pass(GUARD_GAP);
        assert!(w.store.vanished(10).unwrap().is_empty());
        w.pass(STALLED_GAP - GUARD_GAP);
        assert_eq!(w.store.vanished(10).unwrap()[0].about.fence(), fence);
    }

    "G4" a_worker_that_is_back_within_a_lease_has_not_crashed_if_its_job_still_waits(w) {
        let fence = held(w);
        pass_beating(w, LEASE);
        w.sweep();
        assert_eq!(w.record(fence.job).crashes, 1);
        w.pass(LEASE);
        assert!(matches!(w.settle(fence, complete()), tenure::engine::store::Settled::Stale(_)));
        let back = w.record(fence.job);
        assert_eq!((back.state, back.crashes, back.attempt), (State::Queued, 0, 1));
        assert_eq!(w.verbs(fence.job), [Verb::Lapse, Verb::Return]);
        assert!(matches!(w.settle(fence, complete()), tenure::engine::store::Settled::Stale(_)));
        assert_eq!(w.verbs(fence.job), [Verb::Lapse, Verb::Return], "once");
    }

    "G4" a_worker_that_is_back_later_has_crashed(w) {
        let fence = held(w);
        pass_beating(w, LEASE);
        w.sweep();
        w.pass(LEASE + Duration::from_millis(1));
        w.settle(fence, complete());
        assert_eq!(w.record(fence.job).crashes, 1);
    }

    "G4" a_worker_that_is_back_after_another_has_begun_its_job_has_crashed(w) {
        let fence = held(w);
        pass_beating(w, LEASE);
        let second = w.take("bob").lease.fence();
        assert_eq!(second.job, fence.job);
        w.settle(fence, complete());
        assert_eq!(w.record(fence.job).crashes, 1);
        w.settle(second, tenure::engine::lifecycle::Outcome::Release);
        w.settle(fence, complete());
        assert_eq!(w.record(fence.job).crashes, 1, "nor after that one gave it back");
    }

    "G4" a_worker_that_ran_for_longer_than_allowed_has_crashed(w) {
        let id: JobId = w.put(job("work").max_runtime(secs(5)));
        let fence = w.take("ann").lease.fence();
        w.pass(secs(5));
        w.sweep();
        w.settle(fence, complete());
        assert_eq!(w.record(id).crashes, 1);
    }
}
