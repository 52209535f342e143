//! Workers that are gone, and breaks in time.

use std::time::Duration;

use tenure::State;
use tenure::drill::Dump;
use tenure::engine::lease::{Fence, Token};
use tenure::engine::lifecycle::{CRASH_MEMORY, Outcome, Verb};
use tenure::engine::store::{
    Claim, GUARD_GAP, GUARD_GAP_LIMIT, Guarded, Registration, Renewed, STALLED_GAP, WORKER_MEMORY,
};

use super::{LEASE, World, ask, complete, job, name, promises, queries, retry, secs, worker};

fn known(who: &str) -> Registration {
    Registration::new(worker(who), vec![name("default")])
}

/// The worker's process ends, and its lock with it.
fn dies(w: &mut World, who: &str) {
    w.surroundings(|state| state.held.retain(|held| *held != worker(who)));
}

/// The worker's process ends, and its death is noticed.
fn dies_and_is_noticed(w: &mut World, who: &str) -> Vec<(i64, String, State)> {
    dies(w, who);
    assert!(vanished(w).is_empty(), "one look is not enough");
    w.pass(GUARD_GAP);
    vanished(w)
}

/// The server restarts: no lock survives that.
fn restarts(w: &mut World) {
    w.surroundings(|state: &mut Dump| {
        state.started_at = state.now;
        state.held.clear();
    });
}

fn vanished(w: &mut World) -> Vec<(i64, String, State)> {
    let lapses = w.store.vanished(1_000).unwrap();
    lapses.iter().map(|lapse| (lapse.about.job.0, lapse.worker.to_string(), lapse.became)).collect()
}

/// A worker that holds one job, with a long lease.
fn busy(w: &mut World, who: &str) -> tenure::Fence {
    assert_eq!(w.store.register(&known(who)).unwrap(), Guarded::ByLock);
    w.put_one();
    let long = Claim { lease: secs(600), ..ask(who, 1) };
    w.claim(&long).attempts.remove(0).lease.fence()
}

promises! { "guard":
    "G5" the_jobs_of_a_process_that_died_are_taken_back_whatever_their_lease(w) {
        let fence = busy(w, "ann");
        assert!(vanished(w).is_empty());
        assert_eq!(dies_and_is_noticed(w, "ann"), [(fence.job.0, "ann".to_owned(), State::Queued)]);
        assert_eq!(w.verbs(fence.job), [Verb::Vanish]);
        let line = w.timeline(fence.job).remove(0);
        assert_eq!((line.token, line.worker, line.became), (fence.token, Some(worker("ann")), State::Queued));
        assert_eq!(line.note.as_deref(), Some("its worker vanished"));
        let again = w.take("bob");
        assert!(again.lease.token() > fence.token && again.crashes == 1);
        assert!(matches!(w.settle(fence, complete()), tenure::engine::store::Settled::Stale(_)));
    }

    "I8" two_looks_that_are_too_close_tell_nothing(w) {
        let fence = busy(w, "ann");
        dies(w, "ann");
        for _ in 0..3 {
            assert!(vanished(w).is_empty());
        }
        w.pass(GUARD_GAP - Duration::from_millis(1));
        assert!(vanished(w).is_empty());
        assert_eq!(w.state(fence.job), State::Running);
    }

    "G5" an_installation_says_for_how_long_a_lock_must_have_been_free(w) {
        let gap = secs(5);
        assert_eq!(w.dump().guard_gap, GUARD_GAP);
        assert_eq!(w.store.set_guard_gap(gap).unwrap(), GUARD_GAP);
        assert_eq!(w.dump().guard_gap, gap);
        let fence = busy(w, "ann");
        dies(w, "ann");
        assert!(vanished(w).is_empty());
        w.pass(gap - Duration::from_millis(1));
        assert!(vanished(w).is_empty(), "a connection that was cut for less costs nothing");
        assert_eq!(w.state(fence.job), State::Running);
        w.pass(Duration::from_millis(1));
        assert_eq!(vanished(w), [(fence.job.0, "ann".to_owned(), State::Queued)]);
        assert_eq!(w.store.set_guard_gap(GUARD_GAP).unwrap(), gap);
        busy(w, "bob");
        assert_eq!(dies_and_is_noticed(w, "bob").len(), 1);
    }

    "G5" after_a_stall_the_longer_of_both_gaps_holds(w) {
        for (gap, holds) in [(secs(1), STALLED_GAP), (secs(8), secs(8))] {
            w.store.set_guard_gap(gap).unwrap();
            let fence = busy(w, "ann");
            dies(w, "ann");
            w.surroundings(|state| state.broke = state.now);
            assert!(vanished(w).is_empty());
            w.pass(holds - Duration::from_millis(1));
            assert!(vanished(w).is_empty(), "{gap:?}");
            w.pass(Duration::from_millis(1));
            assert_eq!(vanished(w), [(fence.job.0, "ann".to_owned(), State::Queued)], "{gap:?}");
            let again = w.take("bob").lease.fence();
            w.settle(again, complete());
        }
    }

    "G5" a_guard_gap_that_makes_no_sense_is_refused_and_nothing_changes(w) {
        let (little, much) = (GUARD_GAP - Duration::from_millis(1), GUARD_GAP_LIMIT + Duration::from_millis(1));
        for gap in [Duration::ZERO, little, much] {
            let refusal = w.store.set_guard_gap(gap).unwrap_err();
            assert!(refusal.is_invalid() && refusal.to_string().contains("300 ms to 60 s"), "{refusal}");
        }
        assert_eq!(w.dump().guard_gap, GUARD_GAP);
        w.store.set_guard_gap(GUARD_GAP_LIMIT).unwrap();
    }

    "I8" a_lock_that_was_seen_held_in_between_begins_anew(w) {
        let fence = busy(w, "ann");
        dies(w, "ann");
        vanished(w);
        w.surroundings(|state| state.held.push(worker("ann")));
        vanished(w);
        dies(w, "ann");
        w.pass(GUARD_GAP);
        assert!(vanished(w).is_empty(), "free for the first time again");
        assert_eq!(w.state(fence.job), State::Running);
    }

    "I8" a_lock_that_was_taken_again_in_between_begins_anew(w) {
        let fence = busy(w, "ann");
        dies(w, "ann");
        vanished(w);
        w.store.register(&known("ann")).unwrap();
        dies(w, "ann");
        w.pass(GUARD_GAP);
        assert!(vanished(w).is_empty());
        assert_eq!(w.state(fence.job), State::Running);
        let record = w.dump().workers.remove(0);
        assert_eq!((record.takings, record.free_since), (2, Some(w.now())));
    }

    "I8" a_lock_that_was_freed_by_a_restart_of_the_server_tells_nothing(w) {
        let fence = busy(w, "ann");
        restarts(w);
        for _ in 0..3 {
            assert!(vanished(w).is_empty());
            w.pass(GUARD_GAP);
        }
        assert_eq!(w.state(fence.job), State::Running);
        // Once the lock is taken again after the restart, it counts again.
        w.store.register(&known("ann")).unwrap();
        assert_eq!(dies_and_is_noticed(w, "ann").len(), 1);
    }

    "I8" of_a_worker_that_never_took_a_lock_only_the_lease_tells(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        for _ in 0..3 {
            assert!(vanished(w).is_empty());
            w.pass(GUARD_GAP);
        }
        assert_eq!(w.state(fence.job), State::Running);
    }

    "I8" a_living_worker_loses_nothing(w) {
        let fence = busy(w, "ann");
        busy(w, "bob");
        assert_eq!(dies_and_is_noticed(w, "bob").len(), 1);
        assert_eq!(w.state(fence.job), State::Running);
        assert!(matches!(w.store.renew(&[fence], LEASE).unwrap()[0], Renewed::Extended(_)));
    }

    "G5" a_worker_that_retires_is_forgotten(w) {
        w.store.register(&known("ann")).unwrap();
        w.store.register(&known("bob")).unwrap();
        w.store.retire(&worker("ann")).unwrap();
        w.store.retire(&worker("ann")).unwrap();
        let state = w.dump();
        let left: Vec<_> = state.workers.iter().map(|known| &known.worker).collect();
        assert_eq!((left, state.held.len()), (vec![&worker("bob")], 1));
        w.store.retire(&worker("bob")).unwrap();
        let state = w.dump();
        assert!(state.workers.is_empty() && state.held.is_empty());
    }

    "G5" many_jobs_of_a_dead_worker_are_taken_back_in_parts_and_then_it_is_forgotten(w) {
        w.store.register(&known("ann")).unwrap();
        for _ in 0..5 {
            w.put_one();
        }
        assert_eq!(w.claim(&ask("ann", 5)).attempts.len(), 5);
        dies(w, "ann");
        w.store.vanished(2).unwrap();
        w.pass(GUARD_GAP);
        let taken = |w: &mut World| w.store.vanished(2).unwrap().iter().map(|lapse| lapse.about.job.0).collect::<Vec<_>>();
        assert_eq!(taken(w), [1, 2]);
        assert_eq!(w.dump().workers.len(), 1);
        assert_eq!(taken(w), [3, 4]);
        assert_eq!(taken(w), [5]);
        assert!(w.dump().workers.is_empty());
        assert!(w.store.vanished(usize::MAX).unwrap_err().is_invalid());
    }

    "G4" a_job_that_kills_its_processes_is_buried(w) {
        w.put(job("work").max_crashes(std::num::NonZeroU16::new(2).unwrap()));
        for who in ["ann", "bob"] {
            w.store.register(&known(who)).unwrap();
            let fence = w.take(who).lease.fence();
            let became = if who == "ann" { State::Queued } else { State::Dead };
            assert_eq!(dies_and_is_noticed(w, who), [(fence.job.0, who.to_owned(), became)]);
        }
    }

    "I5" a_crash_is_taken_back_when_its_worker_shows_its_token_again(w) {
        let fence = busy(w, "ann");
        dies_and_is_noticed(w, "ann");
        assert_eq!(w.record(fence.job).crashes, 1);
        assert!(matches!(w.store.renew(&[fence], LEASE).unwrap()[0], Renewed::Stale(_)));
        assert_eq!(w.record(fence.job).crashes, 0);
        assert!(matches!(w.settle(fence, complete()), tenure::engine::store::Settled::Stale(_)));
        assert_eq!(w.record(fence.job).crashes, 0, "once");
        assert_eq!(w.verbs(fence.job), [Verb::Vanish, Verb::Return]);
        assert_eq!(w.refusals(fence.job), [Verb::Renew, Verb::Complete]);
        assert_eq!(w.take("bob").crashes, 0, "it is no suspect");
    }

    "I5" a_crash_is_taken_back_also_from_a_job_that_somebody_runs(w) {
        let fence = busy(w, "ann");
        dies_and_is_noticed(w, "ann");
        let second = w.take("bob").lease.fence();
        w.settle(fence, complete());
        let record = w.record(fence.job);
        assert_eq!((record.crashes, record.token, record.state), (0, second.token, State::Running));
        assert!(matches!(w.settle(second, complete()), tenure::engine::store::Settled::Applied(_)));
    }

    "I5" a_crash_from_before_a_requeue_takes_nothing_back_from_what_was_counted_since(w) {
        let fence = busy(w, "ann");
        dies_and_is_noticed(w, "ann");
        w.store.cancel(&[fence.job]).unwrap();
        w.store.requeue(&[tenure::engine::store::AsSeen::any(fence.job)]).unwrap();
        w.take("bob");
        w.pass(LEASE);
        w.sweep();
        assert_eq!(w.record(fence.job).crashes, 1);
        w.settle(fence, complete());
        assert_eq!(w.record(fence.job).crashes, 1, "it was another one's");
    }

    "I5" a_lease_that_ran_out_is_a_crash_whoever_comes_back(w) {
        w.put_one();
        let (first, _) = w.taken_over();
        w.settle(first.lease.fence(), complete());
        assert_eq!(w.record(first.lease.job()).crashes, 1);
    }

    "I4" a_crash_of_a_job_that_has_ended_is_not_taken_back(w) {
        let fence = busy(w, "ann");
        dies_and_is_noticed(w, "ann");
        let second = w.take("bob").lease.fence();
        w.settle(second, complete());
        let before = w.record(fence.job);
        w.settle(fence, complete());
        assert_eq!(w.record(fence.job), before);
        assert_eq!(w.verbs(fence.job), [Verb::Vanish]);
    }

    "G5" a_worker_that_was_lost_with_a_restart_is_forgotten_in_time(w) {
        w.store.register(&known("ann")).unwrap();
        restarts(w);
        w.store.register(&known("bob")).unwrap();
        w.pass(WORKER_MEMORY - secs(1));
        w.store.prune(0).unwrap();
        assert_eq!(w.dump().workers.len(), 2);
        w.pass(secs(1));
        w.store.prune(0).unwrap();
        let left: Vec<_> = w.dump().workers.iter().map(|record| record.worker.to_string()).collect();
        assert_eq!(left, ["bob"], "who can be looked at stays");
    }

    "I6" a_lease_from_before_a_restart_gets_its_whole_length_again(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(LEASE - secs(1));
        restarts(w);
        w.pass(LEASE - secs(1));
        assert!(w.store.overdue(10, Duration::ZERO).unwrap().is_empty());
        assert_eq!(w.lapse(&[fence]), [None]);
        assert!(w.claim(&ask("bob", 1)).lapsed.is_empty());
        assert_eq!(w.state(fence.job), State::Running);
        w.pass(secs(1));
        assert_eq!(w.store.overdue(10, Duration::ZERO).unwrap(), [fence]);
        assert_eq!(w.claim(&ask("bob", 1)).lapsed.len(), 1);
    }

    "I6" a_lease_that_was_over_before_the_restart_gets_it_too(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(LEASE * 3);
        restarts(w);
        assert!(w.store.overdue(10, Duration::ZERO).unwrap().is_empty(), "nobody could renew it");
        assert!(matches!(w.store.renew(&[fence], LEASE).unwrap()[0], Renewed::Extended(_)));
    }

    "I6" a_lease_that_was_granted_or_renewed_since_the_restart_is_as_any_other(w) {
        w.put_one();
        w.put_one();
        let first = w.take("ann").lease.fence();
        w.pass(secs(1));
        restarts(w);
        let second = w.take("bob").lease.fence();
        assert!(matches!(w.store.renew(&[first], secs(5)).unwrap()[0], Renewed::Extended(_)));
        w.pass(LEASE);
        let over: std::collections::BTreeSet<_> =
            w.store.overdue(10, Duration::ZERO).unwrap().into_iter().collect();
        assert_eq!(over, [first, second].into_iter().collect());
    }

    "I6" no_restart_lets_a_job_run_beyond_its_maximal_runtime(w) {
        w.put(job("work").max_runtime(secs(40)));
        let fence = w.take("ann").lease.fence();
        w.pass(secs(29));
        restarts(w);
        w.pass(secs(10));
        assert!(w.store.overdue(10, Duration::ZERO).unwrap().is_empty());
        w.pass(secs(1));
        assert_eq!(w.store.overdue(10, Duration::ZERO).unwrap(), [fence]);
    }

    "I11" a_restart_in_the_future_pardons_nobody(w) {
        // The machine's clock was wrong when the server started, and was set back.
        w.surroundings(|state| state.started_at = state.now + secs(3_600));
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(LEASE);
        assert_eq!(w.store.overdue(10, Duration::ZERO).unwrap(), [fence]);
        assert_eq!(w.lapse(&[fence]), [Some(State::Queued)]);
    }

    "I6" whoever_comes_late_to_look_may_leave_others_a_grace(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(LEASE + secs(4));
        assert!(w.store.overdue(10, secs(5)).unwrap().is_empty());
        assert_eq!(w.store.overdue(10, secs(4)).unwrap(), [fence]);
        let patient = Claim { grace: secs(5), ..ask("bob", 1) };
        assert!(w.claim(&patient).lapsed.is_empty());
        w.pass(secs(1));
        assert_eq!(w.claim(&patient).lapsed.len(), 1);
        assert!(w.store.overdue(10, Duration::MAX).unwrap().is_empty());
    }

    "I5" what_is_refused_or_given_back_an_hour_later_forgets_no_crash(w) {
        let fence = busy(w, "ann");
        dies_and_is_noticed(w, "ann");
        w.pass(CRASH_MEMORY);
        let never_issued = Fence { token: Token(77), ..fence };
        assert!(matches!(w.settle(never_issued, retry(secs(0))), tenure::engine::store::Settled::Stale(_)));
        let second = w.take("bob").lease.fence();
        w.settle(second, Outcome::Release);
        assert_eq!(w.record(fence.job).crashes, 1);
        w.settle(fence, complete());
        assert_eq!(w.record(fence.job).crashes, 0, "so it can be taken back");
    }

    "I5" how_old_a_crash_is_is_counted_from_the_attempt_that_had_it(w) {
        let other = busy(w, "eve");
        let fence = busy(w, "ann");
        dies_and_is_noticed(w, "ann");
        w.pass(CRASH_MEMORY / 2);
        dies_and_is_noticed(w, "eve");
        w.store.cancel(&[other.job]).unwrap();
        // One hour after the first crash and half an hour after the second.
        w.store.register(&known("bob")).unwrap();
        let second = w.take("bob").lease.fence();
        assert_eq!(second.job, fence.job);
        dies_and_is_noticed(w, "bob");
        w.pass(CRASH_MEMORY / 2);
        let third = w.take("cid").lease.fence();
        w.settle(third, Outcome::Snooze { after: secs(0) });
        assert_eq!(w.record(fence.job).crashes, 2, "the last one is too young");
        w.settle(fence, complete());
        assert_eq!(w.record(fence.job).crashes, 2, "the first may have been forgotten");
        w.settle(second, complete());
        assert_eq!(w.record(fence.job).crashes, 1, "the second has not");
    }

    "G5" a_worker_that_has_no_lock_is_forgotten_in_time(w) {
        w.store.register(&known("ann")).unwrap();
        w.surroundings(|state| {
            state.workers[0].guarded = false;
            state.held.clear();
        });
        w.pass(WORKER_MEMORY - secs(1));
        w.store.prune(0).unwrap();
        assert_eq!(w.dump().workers.len(), 1);
        w.pass(secs(1));
        w.store.prune(0).unwrap();
        assert!(w.dump().workers.is_empty(), "nothing tells whether it lives");
    }

    "G5" a_worker_that_takes_its_lock_later_is_guarded_from_then_on(w) {
        w.store.register(&known("ann")).unwrap();
        w.surroundings(|state| {
            state.workers[0].guarded = false;
            state.held.clear();
        });
        let fence = busy(w, "ann");
        assert_eq!(dies_and_is_noticed(w, "ann"), [(fence.job.0, "ann".to_owned(), State::Queued)]);
    }

    "G5" the_jobs_of_several_dead_workers_are_taken_back_worker_by_worker(w) {
        let of_bob = busy(w, "bob");
        w.pass(secs(1));
        let of_ann = busy(w, "ann");
        dies(w, "ann");
        dies(w, "bob");
        assert!(vanished(w).is_empty(), "one look is not enough");
        w.pass(GUARD_GAP);
        let both = [(of_ann.job.0, "ann".to_owned(), State::Queued), (of_bob.job.0, "bob".to_owned(), State::Queued)];
        assert_eq!(vanished(w), both);
    }

    "G5" ten_seconds_after_a_stall_the_usual_gap_holds_again(w) {
        let fence = busy(w, "ann");
        dies(w, "ann");
        w.surroundings(|state| state.broke = state.now);
        w.pass(secs(10) - GUARD_GAP);
        assert!(vanished(w).is_empty(), "one look is not enough");
        w.pass(GUARD_GAP - Duration::from_millis(1));
        assert!(vanished(w).is_empty());
        w.pass(Duration::from_millis(1));
        assert_eq!(vanished(w), [(fence.job.0, "ann".to_owned(), State::Queued)]);
    }
}

queries! { "guard":
    "G5" workers_are_seen_with_what_they_handle_and_whether_they_live(w) {
        w.store.register(&Registration { kinds: Some(vec![name("mail"), name("sum")]), ..known("bob") }).unwrap();
        w.pass(secs(1));
        w.store.register(&known("ann")).unwrap();
        dies(w, "bob");
        let seen = w.look().workers().unwrap();
        let ids: Vec<_> = seen.iter().map(|view| (view.worker.as_str(), view.is_alive)).collect();
        assert_eq!(ids, [("ann", Some(true)), ("bob", Some(false))]);
        assert_eq!(seen[0].since.since(seen[1].since), secs(1));
        assert_eq!((&seen[0].kinds, &seen[0].queues), (&None, &vec![name("default")]));
        assert_eq!(seen[1].kinds, Some(vec![name("mail"), name("sum")]));
    }

    "G5" a_worker_that_makes_itself_known_again_is_seen_with_what_it_handles_now(w) {
        w.store.register(&known("ann")).unwrap();
        let (queues, kinds) = (vec![name("mail"), name("slow")], Some(vec![name("sum")]));
        let again = Registration { queues: queues.clone(), kinds: kinds.clone(), ..known("ann") };
        w.store.register(&again).unwrap();
        let seen = w.look().workers().unwrap();
        assert_eq!(seen.len(), 1);
        assert_eq!((&seen[0].queues, &seen[0].kinds), (&queues, &kinds));
    }

    "G5" the_guard_gap_that_was_set_is_seen(w) {
        assert_eq!(w.look().guard_gap().unwrap(), GUARD_GAP);
        w.store.set_guard_gap(secs(5)).unwrap();
        assert_eq!(w.look().guard_gap().unwrap(), secs(5));
    }
}
