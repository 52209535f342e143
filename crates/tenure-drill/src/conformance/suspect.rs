//! Jobs that may have crashed their worker: how soon they run again, beside which other jobs, and
//! when they are buried.

use std::num::NonZeroU16;
use std::time::Duration;

use tenure::engine::job::{JobId, NewJob, State};
use tenure::engine::lifecycle::{CRASH_MEMORY, Outcome};
use tenure::engine::store::{AsSeen, Claim, GUARD_GAP, Registration, SUSPICION, Settled};

use super::{LEASE, World, ask, complete, job, name, promises, retry, secs, worker};

const MOMENT: Duration = Duration::from_millis(1);

fn limited(kind: &str, max_crashes: u16) -> NewJob {
    job(kind).max_crashes(NonZeroU16::new(max_crashes).unwrap()).max_attempts(NonZeroU16::MAX)
}

/// The job runs when it is due, alone in its worker, and its lease runs out.
fn crash(w: &mut World, id: JobId) -> State {
    let job = w.record(id);
    w.pass(job.run_at.since(w.now()));
    let only = Claim { kinds: Some(vec![job.kind]), ..ask("doomed", 1) };
    assert_eq!(w.claim_ids(&only), [id]);
    w.pass(LEASE);
    assert_eq!(w.sweep(), 1);
    w.state(id)
}

/// This many jobs, each of its own kind, that have each crashed this often. All are due.
fn crashed(w: &mut World, jobs: usize, max_crashes: u16, crashes: u16) -> Vec<JobId> {
    let ids: Vec<_> = (0..jobs).map(|n| w.put(limited(&format!("k{n}"), max_crashes))).collect();
    for id in &ids {
        for _ in 0..crashes {
            assert_eq!(crash(w, *id), State::Queued);
        }
    }
    w.pass(secs(60));
    ids
}

/// Claims each of these jobs and settles it with this outcome. Then a minute passes, so that all
/// are due again.
fn attempt_all(w: &mut World, ids: &[JobId], outcome: &Outcome) {
    for id in ids {
        let only = Claim { kinds: Some(vec![w.record(*id).kind]), ..ask("alone", 1) };
        let fence = w.claim(&only).attempts.remove(0).lease.fence();
        assert!(matches!(w.settle(fence, outcome.clone()), Settled::Applied(_)));
        w.store.resume(&[*id]).unwrap();
    }
    w.pass(secs(60));
}

/// The outcomes with which a handler returns without ending its job.
fn returns() -> [Outcome; 3] {
    let park = Outcome::Park { reason: "ask Ann".into() };
    [retry(secs(1)), Outcome::Snooze { after: secs(1) }, park]
}

/// A worker with this many slots takes what it can. If one of its jobs is poison, all of them
/// crash; else all succeed. A new worker starts until all jobs have ended.
fn work(w: &mut World, slots: usize, poison: &[JobId], all: &[JobId]) {
    for run in 0..200 {
        if all.iter().all(|id| w.state(*id).has_ended()) {
            return;
        }
        let who = format!("worker-{run}");
        let attempts = w.claim(&ask(&who, slots)).attempts;
        if attempts.iter().any(|attempt| poison.contains(&attempt.lease.job())) {
            w.pass(LEASE);
            w.sweep();
        } else {
            for attempt in attempts {
                w.settle(attempt.lease.fence(), complete());
            }
            w.pass(secs(1));
        }
    }
    panic!("jobs are owed for ever");
}

promises! { "suspect":
    "G5" all_jobs_of_a_lost_worker_are_taken_again_by_one_claim(w) {
        let known = Registration::new(worker("ann"), vec![name("default")]);
        w.store.register(&known).unwrap();
        w.store.enqueue(&vec![job("work"); 200]).unwrap();
        let lost = w.claim_ids(&ask("ann", 200));
        w.surroundings(|state| state.held.clear());
        w.store.vanished(1_000).unwrap();
        w.pass(GUARD_GAP);
        assert_eq!(w.store.vanished(1_000).unwrap().len(), 200);
        assert_eq!(w.claim_ids(&ask("bob", 200)), lost);
    }

    "G4" a_first_crash_makes_no_suspect_and_a_second_does(w) {
        let ids = crashed(w, 3, 5, 1);
        assert!(ids.iter().all(|id| !w.record(*id).is_suspect));
        assert_eq!(w.claim_ids(&ask("ann", 10)), ids);
        w.pass(LEASE);
        w.sweep();
        w.pass(secs(1));
        assert!(ids.iter().all(|id| w.record(*id).is_suspect));
        assert_eq!(w.claim_ids(&ask("ann", 10)), ids[..1]);
        assert_eq!(w.claim_ids(&ask("bob", 10)), ids[1..2]);
    }

    "G4" with_one_crash_to_lose_a_job_is_buried_by_it(w) {
        let id = w.put(limited("work", 1));
        assert_eq!(crash(w, id), State::Dead);
        assert_eq!((w.record(id).crashes, w.record(id).is_suspect), (1, false));
    }

    "G4" with_few_crashes_to_lose_a_job_is_a_suspect_after_the_first(w) {
        for few in [2, 3] {
            let kind = format!("few-{few}");
            let ids = [w.put(limited(&kind, few)), w.put(limited(&kind, few))];
            let only = |who| Claim { kinds: Some(vec![name(&kind)]), ..ask(who, 10) };
            assert_eq!(w.claim_ids(&only("doomed")), ids);
            w.pass(LEASE);
            w.sweep();
            assert_eq!(w.claim_ids(&only("ann")), ids[..1], "{few}");
            let (first, second) = (w.record(ids[0]), w.record(ids[1]));
            assert!(first.is_suspect && second.is_suspect, "{few}");
        }
    }

    "G4" a_job_with_many_crashes_to_lose_is_a_suspect_as_soon_as_any(w) {
        assert_eq!(crashed(w, 2, 50, 2).len(), 2);
        assert_eq!(w.claim(&ask("ann", 10)).attempts.len(), 1);
    }

    "G4" a_suspect_whose_handler_comes_back_is_none_any_more(w) {
        for outcome in returns() {
            let ids = crashed(w, 3, 5, 2);
            attempt_all(w, &ids, &outcome);
            assert!(ids.iter().all(|id| !w.record(*id).is_suspect), "{outcome:?}");
            assert!(ids.iter().all(|id| w.record(*id).crashes == 2), "and its crashes count on");
            assert_eq!(w.claim_ids(&ask("ann", 10)).len(), 3, "{outcome:?}");
            w.store.cancel(&ids).unwrap();
        }
    }

    "G4" a_suspect_that_is_given_back_by_its_worker_is_still_one(w) {
        let ids = crashed(w, 2, 5, 2);
        attempt_all(w, &ids, &Outcome::Release);
        assert!(ids.iter().all(|id| w.record(*id).is_suspect));
        assert_eq!(w.claim_ids(&ask("ann", 10)), ids[..1]);
    }

    "G4" after_its_handler_came_back_the_next_crash_makes_it_a_suspect_again(w) {
        let id = crashed(w, 1, 5, 2)[0];
        attempt_all(w, &[id], &Outcome::Snooze { after: secs(1) });
        crash(w, id);
        assert_eq!((w.record(id).crashes, w.record(id).is_suspect), (3, true));
    }

    "G4" crashes_count_until_a_handler_comes_back_an_hour_after_the_last(w) {
        for outcome in returns() {
            for (age, left) in [(CRASH_MEMORY - MOMENT, 3), (CRASH_MEMORY, 0)] {
                let id = w.put(limited("work", 5));
                for _ in 0..3 {
                    crash(w, id);
                }
                let since = w.now();
                assert_eq!(w.record(id).crashed_at, Some(since));
                w.pass(age - MOMENT);
                let fence = w.take("ann").lease.fence();
                w.pass(MOMENT);
                w.settle(fence, outcome.clone());
                let job = w.record(id);
                assert_eq!((job.crashes, job.is_suspect), (left, false), "{outcome:?} after {age:?}");
                assert_eq!(job.crashed_at, (left > 0).then_some(since));
                w.store.cancel(&[id]).unwrap();
            }
        }
    }

    "G4" time_alone_and_a_release_forget_no_crash(w) {
        let id = crashed(w, 1, 5, 2)[0];
        w.pass(CRASH_MEMORY * 2);
        attempt_all(w, &[id], &Outcome::Release);
        assert_eq!((w.record(id).crashes, w.record(id).is_suspect), (2, true));
    }

    "G4" a_job_that_snoozes_and_kills_in_turns_is_buried(w) {
        let id = w.put(limited("work", 5));
        let mut kills = 0;
        loop {
            let due = w.record(id).run_at;
            w.pass(due.since(w.now()));
            let fence = w.take("ann").lease.fence();
            w.settle(fence, Outcome::Snooze { after: secs(300) });
            kills += 1;
            if crash(w, id) == State::Dead {
                break;
            }
        }
        assert_eq!(kills, 5);
    }

    "G4" a_job_that_lives_long_outlives_any_number_of_lost_machines(w) {
        let id = w.put(limited("work", 5));
        for _ in 0..20 {
            assert_eq!(crash(w, id), State::Queued);
            w.pass(CRASH_MEMORY);
            let fence = w.take("ann").lease.fence();
            w.settle(fence, Outcome::Snooze { after: secs(1) });
        }
        assert_eq!(w.record(id).crashes, 0);
    }

    "G4" a_suspect_that_the_next_crash_would_bury_shares_its_worker_with_no_other(w) {
        let last = crashed(w, 1, 3, 2)[0];
        let other = w.put(limited("other", 5));
        assert_eq!([crash(w, other), crash(w, other)], [State::Queued; 2]);
        w.pass(secs(60));
        let long = |who, kind: &str| Claim { kinds: Some(vec![name(kind)]), lease: secs(9_000), ..ask(who, 10) };
        // Neither beside the other, however long they have run.
        assert_eq!(w.claim_ids(&long("ann", "k0")), [last]);
        w.pass(SUSPICION * 10);
        assert!(w.claim_ids(&long("ann", "other")).is_empty());
        assert_eq!(w.claim_ids(&long("bob", "other")), [other]);
        w.store.cancel(&[last]).unwrap();
        let last = w.put(limited("k1", 2));
        crash(w, last);
        w.pass(SUSPICION * 10);
        assert!(w.claim_ids(&long("bob", "k1")).is_empty());
        let third = w.put(limited("third", 5));
        assert_eq!([crash(w, third), crash(w, third)], [State::Queued; 2]);
        w.pass(secs(60));
        assert_eq!(w.claim_ids(&long("bob", "third")), [third], "those with more to lose may meet then");
        assert_eq!(w.claim_ids(&long("ann", "k1")), [last]);
    }

    "G4" a_claim_that_asks_for_no_suspects_takes_none_and_passes_by_them(w) {
        let suspect = crashed(w, 1, 5, 2)[0];
        let clean = w.put(limited("k0", 5));
        let second = Claim { suspects: false, ..ask("ann", 10) };
        assert_eq!(w.claim_ids(&second), [clean], "it is younger, and in the same group");
        assert!(w.claim_ids(&second).is_empty());
        assert_eq!(w.claim_ids(&ask("ann", 10)), [suspect]);
    }

    "G4" a_claim_that_asks_for_no_suspects_takes_none_that_it_took_back_itself(w) {
        let suspect = crashed(w, 1, 5, 1)[0];
        assert_eq!(w.claim_ids(&ask("doomed", 1)), [suspect]);
        w.pass(LEASE);
        let second = Claim { suspects: false, ..ask("ann", 10) };
        let claimed = w.claim(&second);
        assert_eq!((claimed.lapsed.len(), claimed.attempts.len()), (1, 0));
        w.pass(secs(60));
        assert!(w.claim_ids(&second).is_empty());
        assert_eq!(w.claim_ids(&ask("ann", 10)), [suspect]);
    }

    "G4" a_requeue_ends_the_suspicion(w) {
        let ids = crashed(w, 3, 5, 2);
        w.store.cancel(&ids).unwrap();
        let seen: Vec<_> = ids.iter().map(|id| AsSeen::any(*id)).collect();
        w.store.requeue(&seen).unwrap();
        let job = w.record(ids[0]);
        assert_eq!((job.crashes, job.crashed_at, job.is_suspect), (0, None, false));
        assert_eq!(w.claim_ids(&ask("ann", 10)).len(), 3);
    }

    "I5" a_crash_that_was_none_makes_no_suspect(w) {
        let known = Registration::new(worker("ann"), vec![name("default")]);
        let id = crashed(w, 1, 5, 1)[0];
        w.store.register(&known).unwrap();
        let fence = w.take("ann").lease.fence();
        w.surroundings(|state| state.held.clear());
        w.store.vanished(10).unwrap();
        w.pass(GUARD_GAP);
        w.store.vanished(10).unwrap();
        assert_eq!((w.record(id).crashes, w.record(id).is_suspect), (2, true));
        w.settle(fence, complete());
        assert_eq!((w.record(id).crashes, w.record(id).is_suspect), (1, false));
        assert!(w.record(id).crashed_at.is_some(), "the first one was");
    }

    "I5" a_crash_that_is_forgotten_already_is_not_taken_back_from_those_that_came_later(w) {
        let known = Registration::new(worker("ann"), vec![name("default")]);
        let id = w.put(limited("work", 5));
        w.store.register(&known).unwrap();
        let fence = w.take("ann").lease.fence();
        w.surroundings(|state| state.held.clear());
        w.store.vanished(10).unwrap();
        w.pass(GUARD_GAP);
        assert_eq!(w.store.vanished(10).unwrap().len(), 1);
        w.pass(CRASH_MEMORY);
        attempt_all(w, &[id], &Outcome::Snooze { after: secs(1) });
        assert_eq!(w.record(id).crashes, 0);
        crash(w, id);
        w.settle(fence, complete());
        assert_eq!(w.record(id).crashes, 1, "it was another one's");
    }

    "G4" one_poison_job_among_fifteen_is_buried_and_all_others_succeed(w) {
        for slots in [1, 4, 16, 200] {
            let all: Vec<_> = (0..15).map(|_| w.put_one()).collect();
            work(w, slots, &all[7..8], &all);
            for id in &all {
                let expected = if *id == all[7] { State::Dead } else { State::Succeeded };
                assert_eq!(w.state(*id), expected, "{slots} slots");
            }
        }
    }

    "G4" two_poison_jobs_among_sixteen_are_buried_and_all_others_succeed(w) {
        for slots in [1, 4, 9, 16, 200] {
            let all: Vec<_> = (0..16).map(|_| w.put_one()).collect();
            let poison = [all[3], all[12]];
            work(w, slots, &poison, &all);
            for id in &all {
                let expected = if poison.contains(id) { State::Dead } else { State::Succeeded };
                assert_eq!(w.state(*id), expected, "{slots} slots");
            }
        }
    }

    "G4" a_job_beside_all_crashes_of_two_poison_jobs_that_come_one_after_the_other_succeeds(w) {
        let id = w.put_one();
        let first = w.put_one();
        // The first poison job crashes this job twice. From then on both are suspects, and do not
        // run beside each other again.
        for _ in 0..2 {
            assert_eq!(w.claim_ids(&ask("doomed", 16)), [id, first]);
            w.pass(LEASE);
            w.sweep();
        }
        // The second poison job, which is no suspect yet, crashes this job twice more.
        let second = w.put(job("late"));
        for crashes in [3, 4] {
            w.pass(secs(60));
            let late = Claim { kinds: Some(vec![name("late")]), ..ask("doomed", 16) };
            assert_eq!(w.claim_ids(&late), [second]);
            let claimed = w.claim_ids(&ask("doomed", 16));
            assert_eq!(claimed.len(), 1);
            if claimed != [id] {
                // The claim took the other suspect, the first poison job. The worse case is this
                // job beside the second poison job.
                w.store.cancel(&claimed).unwrap();
                assert_eq!(w.claim_ids(&ask("doomed", 16)), [id]);
            }
            w.pass(LEASE);
            w.sweep();
            assert_eq!((w.record(id).crashes, w.state(id)), (crashes, State::Queued));
        }
        work(w, 16, &[first, second], &[id, second]);
        assert_eq!((w.state(id), w.state(second)), (State::Succeeded, State::Dead));
    }
}
