//! How jobs are taken back from holders whose lease is over.

use std::num::NonZeroU16;
use std::time::Duration;

use tenure::engine::job::{JobId, NewJob, RetryPolicy, State};
use tenure::engine::lease::{Fence, Token};
use tenure::engine::lifecycle::Verb;
use tenure::engine::store::{Claim, Lapsed};

use super::{LEASE, World, ask, complete, job, name, promises, secs, tenant, worker};

fn crash(w: &mut World, who: &str) -> Option<State> {
    let fence = w.take(who).lease.fence();
    w.pass(LEASE);
    w.lapse(&[fence])[0]
}

/// A job with all the details that an answer about it can contain.
fn told_of() -> NewJob {
    let told = job("mail").queue(name("slow")).tenant(tenant("acme"));
    told.trace("00-abc-def-01").expect("a valid trace")
}

promises! { "lapse":
    "G5" whoever_takes_a_job_back_is_told_which_attempt_of_which_worker_it_was(w) {
        w.put(told_of());
        let from_slow = |who| Claim { queues: vec![name("slow")], ..ask(who, 1) };
        let first = w.claim(&from_slow("ann")).attempts.remove(0);
        assert_eq!((first.run_at, first.about().trace.as_deref()), (w.now(), Some("00-abc-def-01")));
        w.pass(LEASE);
        let Lapsed::TakenBack(lapse) = w.store.lapse(&[first.lease.fence()]).unwrap().remove(0) else { panic!("it was over") };
        assert_eq!((lapse.about, lapse.worker, lapse.became), (first.about(), worker("ann"), State::Queued));

        let second = w.claim(&from_slow("bob")).attempts.remove(0);
        assert_eq!(second.about().attempt, 2);
        w.pass(LEASE);
        let lapse = w.claim(&from_slow("eve")).lapsed.remove(0);
        assert_eq!((lapse.about, lapse.worker, lapse.became), (second.about(), worker("bob"), State::Queued));
    }

    "I8" a_lease_is_over_at_its_time_and_not_before(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(LEASE - Duration::from_millis(1));
        assert!(w.store.overdue(10, Duration::ZERO).unwrap().is_empty());
        assert_eq!(w.lapse(&[fence]), [None]);
        w.pass(Duration::from_millis(1));
        assert_eq!(w.store.overdue(10, Duration::ZERO).unwrap(), [fence]);
        assert_eq!(w.lapse(&[fence]), [Some(State::Queued)]);
    }

    "G5" a_lapsed_job_is_queued_under_a_new_token_with_its_crash_counted(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(LEASE);
        w.lapse(&[fence]);
        let queued = w.record(id);
        assert!(queued.token > fence.token);
        assert_eq!((queued.state, queued.crashes, queued.attempt, queued.worker), (State::Queued, 1, 1, None));
        let line = w.timeline(id).remove(0);
        assert_eq!((line.verb, line.worker, line.token), (Verb::Lapse, Some(worker("ann")), fence.token));
        assert_eq!((line.from, line.at), (Some(w.now() - LEASE), w.now()));
    }

    "G5" the_timeline_says_that_a_lease_was_over_and_not_that_a_worker_vanished(w) {
        let id = w.put(job("work").max_attempts(NonZeroU16::new(3).unwrap()));
        for _ in 0..3 {
            crash(w, "ann");
            w.pass(secs(10));
        }
        let notes: Vec<_> = w.timeline(id).into_iter().filter_map(|line| line.note).collect();
        let over = ["its lease was over", "its lease was over, after an earlier crash", "its lease was over during the last attempt"];
        assert_eq!(notes, over);
        assert_eq!(w.record(id).reason.as_deref(), Some(over[2]));
    }

    "G5" after_its_first_crash_a_job_is_due_at_once_in_its_old_place(w) {
        let id = w.put_one();
        w.take("ann");
        w.pass(LEASE);
        let younger = w.put_one();
        w.sweep();
        assert_eq!(w.claim_ids(&ask("bob", 2)), [id, younger]);
    }

    "G4" from_its_second_crash_on_a_job_backs_off_without_chance(w) {
        let patient = job("work").max_crashes(NonZeroU16::new(9).unwrap()).max_attempts(NonZeroU16::new(9).unwrap());
        let id = w.put(patient);
        let mut delays = Vec::new();
        for _ in 0..4 {
            assert_eq!(crash(w, "ann"), Some(State::Queued));
            let delay = w.record(id).run_at.since(w.now());
            delays.push(delay.as_secs());
            w.pass(delay);
        }
        assert_eq!(delays, [0, 1, 2, 4]);
    }

    "G4" the_backoff_after_crashes_follows_the_jobs_own_policy(w) {
        let list = RetryPolicy::list(&[5_000, 7_000]);
        let id = w.put(job("work").retry(list).max_crashes(NonZeroU16::new(9).unwrap()));
        crash(w, "ann");
        for expected in [5, 7, 7] {
            crash(w, "ann");
            assert_eq!(w.record(id).run_at, w.now() + secs(expected));
            w.pass(secs(expected));
        }
    }

    "G4" a_job_that_crashes_too_often_is_buried_with_the_evidence(w) {
        let id = w.put_one();
        for who in ["ann", "bob", "cid", "dan"] {
            assert_eq!(crash(w, who), Some(State::Queued));
            w.pass(secs(4));
        }
        assert_eq!(crash(w, "eve"), Some(State::Dead));
        let dead = w.record(id);
        assert_eq!((dead.state, dead.crashes, dead.worker), (State::Dead, 5, Some(worker("eve"))));
        assert!(dead.reason.unwrap().contains("crashed too often"));
        let workers: Vec<_> = w.timeline(id).into_iter().filter_map(|line| line.worker).collect();
        assert_eq!(workers, ["ann", "bob", "cid", "dan", "eve"].map(worker));
    }

    "I11" a_crash_in_the_last_attempt_buries_the_job(w) {
        let id = w.put(job("work").max_attempts(NonZeroU16::new(1).unwrap()));
        assert_eq!(crash(w, "ann"), Some(State::Dead));
        assert_eq!(w.record(id).crashes, 1);
        assert!(w.claim_ids(&ask("bob", 1)).is_empty());
    }

    "I8" a_lease_that_was_renewed_since_it_was_seen_is_not_lapsed(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(LEASE);
        let seen = w.store.overdue(10, Duration::ZERO).unwrap();
        w.store.renew(&[fence], LEASE).unwrap();
        assert_eq!(w.lapse(&seen), [None]);
        assert_eq!(w.record(id).token, fence.token);
    }

    "I8" a_job_that_was_settled_since_it_was_seen_is_not_lapsed(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(LEASE);
        let seen = w.store.overdue(10, Duration::ZERO).unwrap();
        w.settle(fence, complete());
        assert_eq!(w.lapse(&seen), [None]);
        assert_eq!(w.state(id), State::Succeeded);
    }

    "I8" a_lapse_hits_only_the_attempt_that_was_seen(w) {
        w.put_one();
        let (first, second) = w.taken_over();
        w.pass(LEASE);
        assert_eq!(w.lapse(&[first.lease.fence()]), [None]);
        assert_eq!(w.lapse(&[second.lease.fence()]), [Some(State::Queued)]);
    }

    "G7" a_repeated_lapse_changes_nothing_more(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(LEASE);
        assert_eq!(w.lapse(&[fence, fence]), [Some(State::Queued), None]);
        assert_eq!(w.record(id).crashes, 1);
    }

    "G4" a_job_beyond_its_maximal_runtime_is_taken_back_however_often_it_was_renewed(w) {
        w.put(job("work").max_runtime(secs(40)));
        let fence = w.take("ann").lease.fence();
        for _ in 0..4 {
            w.pass(secs(10));
            w.store.renew(&[fence], LEASE).unwrap();
        }
        assert_eq!(w.lapse(&[fence]), [Some(State::Queued)]);
    }

    "I11" the_longest_over_come_first_and_every_batch_makes_progress(w) {
        w.store.enqueue(&vec![job("work"); 30]).unwrap();
        for _ in 0..3 {
            w.claim(&ask("ann", 10));
            w.pass(secs(1));
        }
        w.pass(LEASE);
        let mut seen = Vec::new();
        loop {
            let batch = w.store.overdue(7, Duration::ZERO).unwrap();
            if batch.is_empty() {
                break;
            }
            assert!(w.lapse(&batch).iter().all(Option::is_some));
            seen.extend(batch.iter().map(|fence| fence.job.0));
        }
        assert_eq!(seen, (1..=30).collect::<Vec<_>>());
    }

    "I8" a_lapse_of_nothing_is_nothing(w) {
        let nobody = Fence { job: JobId(404), token: Token(1) };
        assert_eq!(w.lapse(&[nobody]), [None]);
        assert!(w.store.lapse(&vec![nobody; 1_001]).unwrap_err().is_invalid());
        assert!(w.store.overdue(usize::MAX, Duration::ZERO).unwrap_err().is_invalid());
    }

    "G5" a_job_is_taken_back_whatever_its_kind_and_queue(w) {
        let id = w.put(job("unheard.of").queue(super::name("far")));
        let far = tenure::engine::store::Claim { queues: vec![super::name("far")], ..ask("ann", 1) };
        assert_eq!(w.claim_ids(&far), [id]);
        w.pass(LEASE);
        assert_eq!(w.claim(&ask("bob", 1)).lapsed.len(), 1);
        assert_eq!(w.state(id), State::Queued);
    }

    "G4" the_backoff_after_crashes_ends_at_its_cap(w) {
        let many = || NonZeroU16::new(99).unwrap();
        let capped = RetryPolicy::Exponential { base_ms: 1_000, cap_ms: 1_500 };
        for (policy, expected) in [
            (RetryPolicy::default(), vec![0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000, 300_000]),
            (capped, vec![0, 1_000, 1_500, 1_500]),
            (RetryPolicy::Fixed { ms: u64::MAX }, vec![0, i64::MAX]),
        ] {
            let id = w.put(job("work").retry(policy).max_crashes(many()).max_attempts(many()));
            for delay in expected {
                assert_eq!(crash(w, "ann"), Some(State::Queued));
                let due = w.now() + Duration::from_millis(delay.unsigned_abs());
                // After the first crash the job keeps its place in the queue.
                assert!(delay == 0 || w.record(id).run_at == due, "{:?}, not {due}", w.record(id).run_at);
                w.pass(Duration::from_millis(delay.unsigned_abs().min(999_999)));
            }
            w.store.cancel(&[id]).unwrap();
        }
    }

    "I8" a_lapse_of_a_job_that_is_not_there_is_not_taken_for_one_of_another_job(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(LEASE);
        let nobody = Fence { job: JobId(404), token: fence.token };
        assert_eq!(w.lapse(&[nobody]), [None]);
        assert_eq!(w.state(id), State::Running);
    }
}
