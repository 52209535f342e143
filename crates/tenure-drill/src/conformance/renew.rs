//! How a holder keeps its lease.

use std::time::Duration;

use tenure::engine::job::{JobId, State};
use tenure::engine::lease::{Fence, Reason, Stale, Token};
use tenure::engine::ledger::{Act, Entry, effect_name};
use tenure::engine::lifecycle::Verb;
use tenure::engine::store::Renewed;

use super::{LEASE, ask, complete, job, json, promises, secs};

promises! { "renew":
    "G5" a_renewal_extends_the_lease_from_now(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(secs(20));
        let until = w.now() + LEASE;
        assert_eq!(w.store.renew(&[fence], LEASE).unwrap(), [Renewed::Extended(until)]);
        w.pass(LEASE - Duration::from_millis(1));
        assert!(w.claim_ids(&ask("bob", 1)).is_empty());
    }

    "G5" a_renewal_never_shortens_a_lease(w) {
        w.put_one();
        let lease = w.take("ann").lease;
        assert_eq!(w.store.renew(&[lease.fence()], secs(1)).unwrap(), [Renewed::Extended(lease.until())]);
    }

    "G4" a_renewal_never_goes_beyond_the_maximal_runtime(w) {
        w.put(job("work").max_runtime(secs(45)));
        let started = w.now();
        let fence = w.take("ann").lease.fence();
        w.pass(secs(29));
        assert_eq!(w.store.renew(&[fence], LEASE).unwrap(), [Renewed::Extended(started + secs(45))]);
        w.pass(secs(15));
        assert_eq!(w.store.renew(&[fence], LEASE).unwrap(), [Renewed::Extended(started + secs(45))]);
        w.pass(secs(1));
        assert_eq!(w.store.overdue(10, Duration::ZERO).unwrap(), [fence]);
    }

    "G2" a_renewal_changes_neither_token_nor_attempt(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.store.renew(&[fence], LEASE).unwrap();
        let running = w.record(id);
        assert_eq!((running.token, running.attempt, running.state), (fence.token, 1, State::Running));
    }

    "G2" a_late_renewal_is_heard_if_nobody_took_the_job(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(LEASE * 2);
        assert_eq!(w.store.renew(&[fence], LEASE).unwrap(), [Renewed::Extended(w.now() + LEASE)]);
        assert!(w.claim_ids(&ask("bob", 1)).is_empty());
    }

    "I7" a_worker_that_lost_its_lease_cannot_renew(w) {
        let id = w.put_one();
        let (first, second) = w.taken_over();
        let before = w.record(id);
        let (shown, current) = (first.lease.fence(), second.lease.token());
        let stale = Stale { shown, current, state: State::Running, reason: Reason::TokenMismatch };
        assert_eq!(w.store.renew(&[shown], LEASE * 10).unwrap(), [Renewed::Stale(stale)]);
        assert_eq!(w.record(id), before);
    }

    "G2" a_refused_renewal_is_visible_once(w) {
        let id = w.put_one();
        let (first, _) = w.taken_over();
        for _ in 0..3 {
            w.store.renew(&[first.lease.fence()], LEASE).unwrap();
        }
        assert_eq!(w.refusals(id), [Verb::Renew]);
    }

    "G2" refusals_of_one_call_stand_in_the_timeline_in_one_order_whatever_theirs_is_in_the_call(w) {
        let id = w.put_one();
        let fences = ["ann", "bob", "cid"].map(|who| {
            let fence = w.take(who).lease.fence();
            w.pass(LEASE);
            w.sweep();
            w.pass(secs(60));
            fence
        });
        w.store.renew(&[fences[2], fences[0], fences[1]], LEASE).unwrap();
        let entry = |fence, name, act| Entry { fence, name: effect_name(name).unwrap(), act };
        let entries = [
            entry(fences[1], "charge", Act::Open),
            entry(fences[0], "load", Act::Remember { result: json("1") }),
            entry(fences[0], "charge", Act::Open),
        ];
        w.store.ledger(&entries).unwrap();
        let lines = w.timeline(id).into_iter().filter(|line| line.refused);
        let refused: Vec<_> = lines.map(|line| (line.verb, line.token)).collect();
        let [first, second, third] = fences.map(|fence| fence.token);
        let renewals = [(Verb::Renew, first), (Verb::Renew, second), (Verb::Renew, third)];
        assert_eq!(refused[..3], renewals);
        let entries =
            [(Verb::EffectOpen, first), (Verb::StepPut, first), (Verb::EffectOpen, second)];
        assert_eq!(refused[3..], entries);
    }

    "I7" the_holder_of_a_cancelled_job_learns_it_at_its_next_renewal(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.store.cancel(&[id]).unwrap();
        let answer = w.store.renew(&[fence], LEASE).unwrap()[0];
        assert!(matches!(answer, Renewed::Stale(stale) if stale.state == State::Cancelled));
    }

    "I7" a_settled_attempt_cannot_be_renewed(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.settle(fence, super::retry(secs(1)));
        let answer = w.store.renew(&[fence], LEASE).unwrap()[0];
        assert!(matches!(answer, Renewed::Stale(stale) if stale.reason == Reason::AlreadySettled));
        assert_eq!(w.state(id), State::Queued);
    }

    "G7" renewing_an_unknown_job_answers_gone(w) {
        let nobody = Fence { job: JobId(404), token: Token(1) };
        assert_eq!(w.store.renew(&[nobody], LEASE).unwrap(), [Renewed::NotFound]);
    }

    "G2" each_renewal_of_a_batch_is_answered_by_itself(w) {
        w.put_one();
        let (first, second) = w.taken_over();
        w.put_one();
        let third = w.take("cid");
        w.settle(third.lease.fence(), complete());
        let fences = [first.lease.fence(), second.lease.fence(), third.lease.fence()];
        let answers = w.store.renew(&fences, LEASE).unwrap();
        assert!(matches!(answers[..], [Renewed::Stale(_), Renewed::Extended(_), Renewed::Stale(_)]), "{answers:?}");
    }

    "G6" a_renewal_that_makes_no_sense_is_refused(w) {
        let fence = Fence { job: JobId(1), token: Token(1) };
        assert!(w.store.renew(&vec![fence; 1_001], LEASE).unwrap_err().is_invalid());
        assert!(w.store.renew(&[fence], Duration::ZERO).unwrap_err().is_invalid());
        assert!(w.store.renew(&[], LEASE).unwrap().is_empty());
    }

    "G5" a_renewal_without_a_maximal_runtime_is_as_long_as_was_asked(w) {
        w.put_one();
        w.put(job("work").max_runtime(Duration::MAX));
        for who in ["ann", "bob"] {
            let fence = w.take(who).lease.fence();
            let hours = secs(23 * 3_600);
            assert_eq!(w.store.renew(&[fence], hours).unwrap(), [Renewed::Extended(w.now() + hours)]);
        }
    }

    "G7" the_same_lease_twice_in_a_renewal_is_held_twice(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(secs(1));
        let until = Renewed::Extended(w.now() + LEASE);
        assert_eq!(w.store.renew(&[fence, fence], LEASE).unwrap(), [until, until]);
        assert!(w.timeline(id).is_empty());
    }
}
