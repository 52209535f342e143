//! What operators do to jobs and queues.

use std::time::Duration;

use tenure::engine::job::{JobId, NewJob, State};
use tenure::engine::lifecycle::{Outcome, Verb};
use tenure::engine::store::{AsSeen, Changed, Pause, Pruned, QueueChange, Settled};

use super::{World, ask, complete, job, json, key, name, promises, retry, secs};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn bury() -> Outcome {
    Outcome::Bury { reason: "hopeless".into() }
}

fn park() -> Outcome {
    Outcome::Park { reason: "ask Ann".into() }
}

fn requeue(w: &mut World, job: JobId) -> Changed {
    w.store.requeue(&[AsSeen::any(job)]).unwrap()[0]
}

fn keep(length: Duration) -> QueueChange {
    QueueChange { keep: Some(length), ..QueueChange::default() }
}

promises! { "operate":
    "I4" a_queued_job_is_cancelled_at_once(w) {
        for id in [w.put_one(), w.put(job("work").delay(secs(99)))] {
            assert_eq!(w.store.cancel(&[id]).unwrap(), [Changed::Applied]);
            let ended = w.record(id);
            assert_eq!((ended.state, ended.finished_at), (State::Cancelled, Some(w.now())));
            assert_eq!(w.verbs(id), [Verb::Cancel]);
        }
        assert!(w.claim_ids(&ask("ann", 10)).is_empty());
    }

    "I7" cancelling_a_running_job_raises_its_token(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        assert_eq!(w.store.cancel(&[id]).unwrap(), [Changed::Applied]);
        assert!(w.record(id).token > fence.token);
        assert!(matches!(w.settle(fence, retry(secs(1))), Settled::Stale(stale) if stale.state == State::Cancelled));
    }

    "I4" a_parked_job_can_be_cancelled(w) {
        let id = w.ended(park());
        assert_eq!(w.store.cancel(&[id]).unwrap(), [Changed::Applied]);
        assert_eq!(w.state(id), State::Cancelled);
    }

    "I4" what_has_ended_cannot_be_cancelled(w) {
        let (succeeded, dead) = (w.ended(complete()), w.ended(bury()));
        let answers = w.store.cancel(&[succeeded, dead, JobId(404)]).unwrap();
        assert_eq!(answers, [Changed::Refused(State::Succeeded), Changed::Refused(State::Dead), Changed::NotFound]);
    }

    "G7" cancelling_twice_is_cancelling_once(w) {
        let id = w.put_one();
        w.store.cancel(&[id]).unwrap();
        let before = w.dump();
        assert_eq!(w.store.cancel(&[id, id]).unwrap(), [Changed::Applied, Changed::Applied]);
        assert_eq!(w.dump(), before);
    }

    "I4" a_dead_job_is_queued_again_with_its_counts_reset(w) {
        let id = w.suspect("work");
        let fence = w.take("ann").lease.fence();
        w.settle(fence, bury());
        w.pass(secs(9));
        assert_eq!(requeue(w, id), Changed::Applied);
        let queued = w.record(id);
        assert_eq!((queued.state, queued.attempt, queued.crashes), (State::Queued, 0, 0));
        assert_eq!((queued.run_at, queued.reason, queued.finished_at), (w.now(), None, None));
        assert!(queued.token > fence.token);
        assert_eq!(w.take("bob").attempt, 1);
    }

    "I4" a_cancelled_job_is_queued_again(w) {
        let id = w.put(NewJob::new(name("work"), json(&format!("\"{}\"", "x".repeat(3_000)))).priority(3));
        w.store.cancel(&[id]).unwrap();
        assert_eq!(requeue(w, id), Changed::Applied);
        let attempt = w.take("ann");
        assert_eq!((attempt.lease.job(), attempt.args.as_str().len()), (id, 3_002));
    }

    "I7" a_zombie_from_before_a_requeue_is_refused(w) {
        let id = w.put_one();
        let zombie = w.take("ann").lease.fence();
        w.store.cancel(&[id]).unwrap();
        requeue(w, id);
        assert!(matches!(w.settle(zombie, complete()), Settled::Stale(_)));
        let fence = w.take("bob").lease.fence();
        assert!(matches!(w.settle(zombie, complete()), Settled::Stale(_)));
        assert_eq!(w.settle(fence, complete()), Settled::Applied(State::Succeeded));
    }

    "I4" only_dead_and_cancelled_jobs_are_requeued(w) {
        let (queued, succeeded) = (w.put(job("work").delay(secs(99))), w.ended(complete()));
        assert_eq!(requeue(w, queued), Changed::Refused(State::Queued));
        assert_eq!(requeue(w, succeeded), Changed::Refused(State::Succeeded));
        assert_eq!(requeue(w, JobId(404)), Changed::NotFound);
    }

    "G7" a_requeue_with_its_token_can_be_repeated(w) {
        let id = w.ended(bury());
        let request = AsSeen::at(id, w.record(id).token);
        assert_eq!(w.store.requeue(&[request]).unwrap(), [Changed::Applied]);
        let fence = w.take("ann").lease.fence();
        w.settle(fence, bury());
        let before = w.dump();
        assert_eq!(w.store.requeue(&[request]).unwrap(), [Changed::Applied]);
        assert_eq!(w.dump(), before);
        let wrong = AsSeen::at(id, fence.token.next(0));
        assert_eq!(w.store.requeue(&[wrong]).unwrap(), [Changed::Refused(State::Dead)]);
    }

    "I11" a_parked_job_is_queued_again_when_it_is_resumed(w) {
        let id = w.ended(park());
        w.pass(secs(60));
        assert_eq!(w.store.resume(&[id]).unwrap(), [Changed::Applied]);
        let queued = w.record(id);
        assert_eq!((queued.state, queued.run_at, queued.reason), (State::Queued, w.now(), None));
        assert_eq!(w.verbs(id), [Verb::Park, Verb::Resume]);
        assert_eq!(w.claim_ids(&ask("bob", 1)), [id]);
    }

    "G7" resuming_twice_is_resuming_once(w) {
        let id = w.ended(park());
        w.store.resume(&[id]).unwrap();
        let before = w.dump();
        assert_eq!(w.store.resume(&[id]).unwrap(), [Changed::Applied]);
        assert_eq!(w.dump(), before);
        w.store.cancel(&[id]).unwrap();
        assert_eq!(w.store.resume(&[id]).unwrap(), [Changed::Refused(State::Cancelled)]);
    }

    "I4" only_parked_jobs_are_resumed(w) {
        let (queued, dead) = (w.put(job("work").delay(secs(99))), w.ended(bury()));
        let answers = w.store.resume(&[queued, dead, JobId(404)]).unwrap();
        assert_eq!(answers, [Changed::Refused(State::Queued), Changed::Refused(State::Dead), Changed::NotFound]);
    }

    "I9" purging_deletes_an_ended_job_and_all_that_is_known_of_it(w) {
        let id = w.ended(bury());
        assert_eq!(w.store.purge(&[AsSeen::any(id)]).unwrap(), [Changed::Applied]);
        assert!(!w.is_there(id));
        assert!(w.dump().timeline.is_empty());
        assert_eq!(w.store.purge(&[AsSeen::any(id)]).unwrap(), [Changed::NotFound]);
    }

    "I9" what_is_owed_cannot_be_purged(w) {
        let (queued, parked) = (w.put(job("work").delay(secs(99))), w.ended(park()));
        let answers = w.store.purge(&[queued, parked].map(AsSeen::any)).unwrap();
        assert_eq!(answers, [Changed::Refused(State::Queued), Changed::Refused(State::Parked)]);
    }

    "I9" a_purge_leaves_alone_what_has_happened_since_the_job_was_seen(w) {
        let id = w.ended(bury());
        let seen = AsSeen::at(id, w.record(id).token);
        requeue(w, id);
        let fence = w.take("ann").lease.fence();
        w.settle(fence, complete());
        assert_eq!(w.store.purge(&[seen]).unwrap(), [Changed::Refused(State::Succeeded)]);
        assert_eq!(w.store.purge(&[AsSeen::at(id, fence.token)]).unwrap(), [Changed::Applied]);
    }

    "I9" a_purged_id_is_never_used_again(w) {
        let id = w.ended(complete());
        w.store.purge(&[AsSeen::any(id)]).unwrap();
        assert!(w.put_one() > id);
    }

    "G1" what_is_set_for_a_queue_stays_until_it_is_set_otherwise(w) {
        let pause = QueueChange { pause: Some(Pause::Pause), ..QueueChange::default() };
        let paused = w.store.configure(&name("q"), &pause).unwrap();
        let since = Some(w.now());
        assert_eq!((paused.paused_at, paused.keep_ms), (since, 7 * 86_400_000));
        w.pass(secs(5));
        let both = QueueChange { pause: Some(Pause::Pause), keep: Some(secs(60)), keep_dead: Some(DAY) };
        let set = w.store.configure(&name("q"), &both).unwrap();
        assert_eq!((set.paused_at, set.keep_ms, set.keep_dead_ms), (since, 60_000, 86_400_000));
        assert_eq!(w.dump().queues, [set]);
    }

    "G1" succeeded_jobs_are_kept_a_week_and_dead_and_cancelled_ones_a_month(w) {
        let succeeded = w.ended(complete());
        let dead = w.ended(bury());
        let cancelled = w.put_one();
        w.store.cancel(&[cancelled]).unwrap();
        let kept = |w: &mut World| w.dump().jobs.iter().map(|job| job.id).collect::<Vec<_>>();
        w.pass(7 * DAY - Duration::from_millis(1));
        assert_eq!(w.store.prune(100).unwrap().jobs, 0);
        w.pass(Duration::from_millis(1));
        assert_eq!(w.store.prune(100).unwrap().jobs, 1);
        assert_eq!(kept(w), [dead, cancelled]);
        assert!(!w.is_there(succeeded));
        w.pass(23 * DAY);
        assert_eq!(w.store.prune(100).unwrap().jobs, 2);
        assert!(kept(w).is_empty() && w.dump().timeline.is_empty());
    }

    "G1" a_shorter_time_of_keeping_holds_for_what_has_ended_already(w) {
        w.ended(complete());
        let other = w.put(job("work").queue(name("other")));
        let claim = tenure::engine::store::Claim { queues: vec![name("other")], ..ask("ann", 1) };
        let fence = w.claim(&claim).attempts[0].lease.fence();
        w.settle(fence, complete());
        w.store.configure(&name("default"), &keep(secs(60))).unwrap();
        w.pass(secs(60));
        assert_eq!(w.store.prune(100).unwrap().jobs, 1);
        assert_eq!(w.state(other), State::Succeeded);
    }

    "I9" pruning_goes_in_bounded_steps_and_never_touches_what_is_owed(w) {
        for n in 0..25 {
            w.ended(if n % 2 == 0 { complete() } else { bury() });
        }
        let owed = w.put_one();
        w.pass(31 * DAY);
        let steps: Vec<_> = (0..4).map(|_| w.store.prune(10).unwrap().jobs).collect();
        assert_eq!(steps, [10, 10, 5, 0]);
        assert_eq!(w.state(owed), State::Queued);
        assert!(w.store.prune(1_001).unwrap_err().is_invalid());
    }

    "I12" expired_keys_are_pruned_and_others_are_not(w) {
        for n in 0..5 {
            w.put(job("work").key(key(&format!("k{n}"))));
        }
        w.put(job("work").key(key("long").window(2 * DAY)));
        w.pass(DAY);
        assert_eq!(w.store.prune(3).unwrap(), Pruned { jobs: 0, keys: 3 });
        assert_eq!(w.store.prune(3).unwrap(), Pruned { jobs: 0, keys: 2 });
        assert_eq!(w.dump().keys.len(), 1);
    }

    "G6" operations_on_too_many_jobs_at_once_are_refused(w) {
        let ids = vec![JobId(1); 1_001];
        assert!(w.store.cancel(&ids).unwrap_err().is_invalid());
        assert!(w.store.resume(&ids).unwrap_err().is_invalid());
        let requests = vec![AsSeen::any(JobId(1)); 1_001];
        assert!(w.store.requeue(&requests).unwrap_err().is_invalid());
        assert!(w.store.purge(&requests).unwrap_err().is_invalid());
    }

    "I4" a_requeued_job_is_still_all_that_was_asked_for(w) {
        let (parent, asked) = (w.put_one(), job("work").trace("00-abc").unwrap().tags(vec![name("a")]).unwrap());
        let asked = asked.key(key("k")).priority(3).max_runtime(secs(9)).retry(tenure::RetryPolicy::Fixed { ms: 250 });
        let fence = w.take("ann").lease.fence();
        w.store.settle(&[tenure::engine::store::Settlement { fence, outcome: complete(), then: vec![asked] }]).unwrap();
        let before = w.record(JobId(parent.0 + 1));
        assert_eq!((before.parent, before.extras.tags.len()), (Some(parent), 1));
        w.store.cancel(&[before.id]).unwrap();
        requeue(w, before.id);
        let after = w.record(before.id);
        assert_eq!(tenure::engine::job::JobRecord { token: before.token, ..after }, before);
    }

    "I9" queues_whose_numbers_collide_are_pruned_each_by_its_own_time(w) {
        let (long, short) = (name("q670"), name("q927"));
        w.store.configure(&short, &keep(secs(60))).unwrap();
        for queue in [&long, &short] {
            w.put(job("work").queue(queue.clone()));
            let claim = tenure::engine::store::Claim { queues: vec![queue.clone()], ..ask("ann", 1) };
            let fence = w.claim(&claim).attempts[0].lease.fence();
            w.settle(fence, complete());
            w.pass(secs(1));
        }
        w.pass(secs(3_600));
        assert_eq!(w.store.prune(100).unwrap().jobs, 1);
        assert_eq!(w.dump().jobs[0].queue, long);
    }

    "I9" of_the_jobs_that_need_not_be_kept_the_oldest_are_deleted_first(w) {
        let first = w.ended(complete());
        w.pass(secs(1));
        let second = w.ended(complete());
        w.pass(secs(1));
        let third = w.ended(complete());
        w.pass(8 * DAY);
        for (gone, left) in [(first, vec![second, third]), (second, vec![third])] {
            assert_eq!(w.store.prune(1).unwrap().jobs, 1);
            assert!(!w.is_there(gone));
            assert!(left.iter().all(|id| w.is_there(*id)));
        }
    }

    "I9" what_is_done_to_one_job_leaves_others_of_its_state_as_they_are(w) {
        let [dead, parked, succeeded] = [bury(), park(), complete()].map(|end| [w.ended(end.clone()), w.ended(end)]);
        let queued = [w.put_one(), w.put_one()];
        let others = [dead[1], parked[1], succeeded[1], queued[1]];
        let before = others.map(|id| w.record(id));
        assert_eq!(requeue(w, dead[0]), Changed::Applied);
        assert_eq!(w.store.resume(&[parked[0]]).unwrap(), [Changed::Applied]);
        assert_eq!(w.store.purge(&[AsSeen::any(succeeded[0])]).unwrap(), [Changed::Applied]);
        assert_eq!(w.store.cancel(&[queued[0]]).unwrap(), [Changed::Applied]);
        for (id, before) in others.into_iter().zip(before) {
            assert_eq!(w.find(id), Some(before));
        }
    }

    "I9" what_ended_first_is_deleted_first_and_of_what_ended_at_once_the_lower_id(w) {
        let ids = [w.put_one(), w.put_one(), w.put_one()];
        let fences: Vec<_> = w.claim(&ask("ann", 3)).attempts.iter().map(|attempt| attempt.lease.fence()).collect();
        w.settle(fences[2], complete());
        w.pass(secs(1));
        w.settle(fences[1], complete());
        w.settle(fences[0], complete());
        w.pass(8 * DAY);
        for left in [vec![ids[0], ids[1]], vec![ids[1]]] {
            assert_eq!(w.store.prune(1).unwrap().jobs, 1);
            assert_eq!(w.dump().jobs.iter().map(|job| job.id).collect::<Vec<_>>(), left);
        }
    }

    "I12" a_key_that_has_expired_takes_no_key_of_another_tenant_along(w) {
        let keyed = |of: &str, window| job("work").tenant(super::tenant(of)).key(key("k").window(window));
        w.put(keyed("a", DAY));
        let kept = w.put(keyed("b", 3 * DAY));
        w.pass(2 * DAY);
        assert_eq!(w.store.prune(100).unwrap().keys, 1);
        assert_eq!(w.store.enqueue(&[keyed("b", DAY)]).unwrap(), [tenure::engine::store::Enqueued::Existing(kept)]);
    }

    "I12" the_key_that_expired_first_is_forgotten_first(w) {
        for (text, window) in [("late", 2 * DAY), ("early", DAY)] {
            w.put(job("work").key(key(text).window(window)));
        }
        w.pass(3 * DAY);
        assert_eq!(w.store.prune(1).unwrap().keys, 1);
        let left: Vec<_> = w.dump().keys.iter().map(|kept| kept.key.clone()).collect();
        assert_eq!(left, ["late"]);
    }
}
