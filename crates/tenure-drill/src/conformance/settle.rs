//! How attempts end.

use std::num::NonZeroU16;
use std::time::Duration;

use tenure::engine::job::{ERROR_LIMIT, JobId, JobRecord, Json, NewJob, RetryPolicy, State};
use tenure::engine::lease::{Fence, Reason, Stale, Token};
use tenure::engine::lifecycle::{Outcome, Verb};
use tenure::engine::store::{Enqueued, QueueChange, Settled, Settlement};

use super::{
    LEASE, World, ask, complete, job, json, key, name, outcomes, promises, retry, secs, worker,
};

const NO_HISTORY: QueueChange =
    QueueChange { pause: None, keep: Some(Duration::ZERO), keep_dead: None };

fn settlement(fence: Fence, then: Vec<NewJob>) -> Settlement {
    Settlement { fence, outcome: complete(), then }
}

fn complete_with_seven() -> Outcome {
    Outcome::Complete { result: Some(json("7")) }
}

fn taken(w: &mut World) -> (JobId, Fence) {
    let id = w.put_one();
    (id, w.take("ann").lease.fence())
}

promises! { "settle":
    "I3" a_completed_job_has_succeeded_with_its_result_and_its_times(w) {
        let id = w.put_one();
        w.pass(secs(1));
        let lease = w.take("ann").lease;
        w.pass(secs(2));
        let result = Some(json(r#"{"sum": 42}"#));
        assert_eq!(w.settle(lease.fence(), Outcome::Complete { result: result.clone() }), Settled::Applied(State::Succeeded));
        let done = w.record(id);
        assert_eq!((done.state, done.result, done.token), (State::Succeeded, result, lease.token()));
        assert_eq!((done.started_at, done.finished_at), (Some(w.now() - secs(2)), Some(w.now())));
        assert_eq!((done.worker, done.lease_until), (Some(worker("ann")), None));
    }

    "G1" a_job_that_simply_succeeds_writes_no_timeline(w) {
        let id = w.ended(complete());
        assert!(w.timeline(id).is_empty());
    }

    "G2" a_late_completion_is_heard_if_nobody_took_the_job(w) {
        let (id, fence) = taken(w);
        w.pass(LEASE * 3);
        assert_eq!(w.settle(fence, complete()), Settled::Applied(State::Succeeded));
        assert_eq!(w.state(id), State::Succeeded);
    }

    "I7" a_worker_that_lost_its_lease_cannot_settle_in_any_way(w) {
        let id = w.put_one();
        let (first, second) = w.taken_over();
        let before = w.record(id);
        let (shown, current) = (first.lease.fence(), second.lease.token());
        let stale = Stale { shown, current, state: State::Running, reason: Reason::TokenMismatch };
        for outcome in outcomes() {
            assert_eq!(w.settle(shown, outcome), Settled::Stale(stale));
        }
        assert_eq!(w.record(id), before);
        assert_eq!(w.settle(second.lease.fence(), complete()), Settled::Applied(State::Succeeded));
    }

    "I4" a_worker_that_lost_its_lease_cannot_undo_what_its_successor_did(w) {
        let id = w.put_one();
        let (first, second) = w.taken_over();
        w.settle(second.lease.fence(), Outcome::Complete { result: Some(json("1")) });
        let before = w.record(id);
        for outcome in outcomes() {
            let answer = w.settle(first.lease.fence(), outcome);
            assert!(matches!(answer, Settled::Stale(stale) if stale.state == State::Succeeded), "{answer:?}");
        }
        assert_eq!(w.record(id), before);
    }

    "I7" a_worker_that_lost_its_lease_cannot_settle_before_its_successor_came(w) {
        let (id, fence) = taken(w);
        w.pass(LEASE);
        assert_eq!(w.sweep(), 1);
        assert!(matches!(w.settle(fence, complete()), Settled::Stale(stale) if stale.state == State::Queued));
        assert_eq!(w.state(id), State::Queued);
    }

    "G2" every_refusal_is_visible_once_per_verb(w) {
        let id = w.put_one();
        let (first, _) = w.taken_over();
        for outcome in outcomes().into_iter().chain(outcomes()) {
            w.settle(first.lease.fence(), outcome);
        }
        let refused = [Verb::Complete, Verb::Retry, Verb::Snooze, Verb::Release, Verb::Bury, Verb::Park];
        assert_eq!(w.refusals(id), refused);
        let line = w.timeline(id).into_iter().find(|line| line.refused).unwrap();
        assert_eq!((line.event(), line.token), ("stale_write_blocked", first.lease.token()));
        assert_eq!(line.note.as_deref(), Some("token_mismatch: the job's token is 3"));
    }

    "G2" a_refusal_names_the_attempt_and_the_worker_that_had_the_token(w) {
        let id = w.put_one();
        let (first, second) = w.taken_over();
        w.settle(first.lease.fence(), complete());
        let line = w.timeline(id).pop().unwrap();
        assert_eq!((line.verb, line.refused, line.token), (Verb::Complete, true, first.lease.token()));
        assert_eq!((line.attempt, line.worker), (1, Some(worker("ann"))), "though the job is in its second attempt");

        // For an attempt that completed its job, the number and the worker are read from the job.
        assert_eq!(w.settle(second.lease.fence(), complete()), Settled::Applied(State::Succeeded));
        w.settle(second.lease.fence(), Outcome::Release);
        let line = w.timeline(id).pop().unwrap();
        assert_eq!((line.verb, line.refused, line.token), (Verb::Release, true, second.lease.token()));
        assert_eq!((line.attempt, line.worker), (2, Some(worker("bob"))));

        // A token that was never issued belongs to no attempt.
        w.settle(Fence { job: id, token: Token(77) }, complete());
        let line = w.timeline(id).pop().unwrap();
        assert_eq!((line.token, line.refused, line.attempt, line.worker), (Token(77), true, 0, None));
    }

    "G7" a_repeated_settlement_is_heard_again_and_changes_nothing(w) {
        for outcome in outcomes() {
            let id = w.put_one();
            let fence = w.take("ann").lease.fence();
            let first = w.settle(fence, outcome.clone());
            let after = w.dump();
            w.pass(secs(5));
            assert_eq!(w.settle(fence, outcome.clone()), first, "{outcome:?}");
            w.clock.set(after.now);
            assert_eq!(w.dump(), after, "{outcome:?}");
            w.store.cancel(&[id]).unwrap();
        }
    }

    "G7" a_settlement_is_heard_again_even_when_the_job_has_moved_on(w) {
        let (id, fence) = taken(w);
        w.settle(fence, retry(Duration::ZERO));
        let next = w.take("bob");
        assert_eq!(w.settle(fence, retry(Duration::ZERO)), Settled::Applied(State::Queued));
        w.settle(next.lease.fence(), Outcome::Bury { reason: "no".into() });
        w.store.requeue(&[tenure::engine::store::AsSeen::any(id)]).unwrap();
        let buried = w.settle(next.lease.fence(), Outcome::Bury { reason: "no".into() });
        assert_eq!(buried, Settled::Applied(State::Dead));
        assert_eq!(w.state(id), State::Queued);
    }

    "I3" an_attempt_that_was_settled_cannot_be_settled_otherwise(w) {
        let (id, fence) = taken(w);
        w.settle(fence, retry(secs(1)));
        let answer = w.settle(fence, complete());
        assert!(matches!(answer, Settled::Stale(stale) if stale.reason == Reason::AlreadySettled), "{answer:?}");
        assert_eq!((w.state(id), w.refusals(id)), (State::Queued, vec![Verb::Complete]));
        let (id, fence) = (w.put_one(), w.take("bob").lease.fence());
        w.settle(fence, complete());
        assert!(matches!(w.settle(fence, retry(secs(1))), Settled::Stale(_)));
        assert_eq!(w.state(id), State::Succeeded);
    }

    "G7" settling_an_unknown_job_answers_gone(w) {
        let nobody = Fence { job: JobId(404), token: Token(1) };
        assert_eq!(w.settle(nobody, complete()), Settled::NotFound);
        assert!(w.dump().timeline.is_empty());
    }

    "I7" a_token_that_was_never_issued_settles_nothing(w) {
        let (id, fence) = taken(w);
        for token in [0, -1, fence.token.0 + 1, i64::MAX, i64::MIN] {
            let guess = Fence { job: id, token: Token(token) };
            assert!(matches!(w.settle(guess, complete()), Settled::Stale(_)), "{token}");
        }
        assert_eq!(w.state(id), State::Running);
    }

    "I7" a_job_that_was_never_claimed_cannot_be_settled(w) {
        let id = w.put_one();
        assert!(matches!(w.settle(Fence { job: id, token: Token::NONE }, complete()), Settled::Stale(_)));
        assert_eq!(w.state(id), State::Queued);
    }

    "I7" the_holder_of_a_cancelled_job_cannot_complete_it(w) {
        let (id, fence) = taken(w);
        w.store.cancel(&[id]).unwrap();
        assert!(matches!(w.settle(fence, complete()), Settled::Stale(stale) if stale.state == State::Cancelled));
        assert_eq!(w.state(id), State::Cancelled);
    }

    "G4" a_retry_waits_and_keeps_its_error(w) {
        let (id, fence) = taken(w);
        assert_eq!(w.settle(fence, retry(secs(7))), Settled::Applied(State::Queued));
        let queued = w.record(id);
        assert_eq!((queued.waiting, queued.run_at, queued.attempt), (true, w.now() + secs(7), 1));
        assert_eq!((queued.worker, queued.lease_until), (None, None));
        let line = w.timeline(id).remove(0);
        assert_eq!((line.verb, line.note.as_deref(), line.attempt), (Verb::Retry, Some("it failed"), 1));
        assert_eq!((line.worker, line.from, line.became), (Some(worker("ann")), Some(w.now()), State::Queued));
        w.pass(secs(7));
        assert_eq!(w.take("bob").attempt, 2);
    }

    "G4" a_retry_of_the_last_attempt_buries_the_job_with_its_error(w) {
        let id = w.put(job("work").max_attempts(NonZeroU16::new(2).unwrap()));
        let first = w.take("ann").lease.fence();
        assert_eq!(w.settle(first, retry(Duration::ZERO)), Settled::Applied(State::Queued));
        let last = w.take("ann").lease.fence();
        assert_eq!(w.settle(last, retry(Duration::ZERO)), Settled::Applied(State::Dead));
        let dead = w.record(id);
        assert_eq!((dead.state, dead.reason.as_deref()), (State::Dead, Some("it failed")));
        assert_eq!(w.settle(last, retry(Duration::ZERO)), Settled::Applied(State::Dead));
        assert!(w.claim_ids(&ask("ann", 1)).is_empty());
    }

    "I5" snoozing_releasing_and_parking_give_the_attempt_back(w) {
        let id = w.put(job("work").max_attempts(NonZeroU16::new(1).unwrap()));
        for outcome in [Outcome::Snooze { after: Duration::ZERO }, Outcome::Release, Outcome::Park { reason: "x".into() }] {
            let attempt = w.take("ann");
            assert_eq!(attempt.attempt, 1);
            w.settle(attempt.lease.fence(), outcome);
            assert_eq!(w.record(id).attempt, 0);
        }
        w.store.resume(&[id]).unwrap();
        assert_eq!(w.take("ann").attempt, 1);
    }

    "G4" a_snoozed_job_waits(w) {
        let (id, fence) = taken(w);
        assert_eq!(w.settle(fence, Outcome::Snooze { after: secs(9) }), Settled::Applied(State::Queued));
        let queued = w.record(id);
        assert_eq!((queued.waiting, queued.run_at), (true, w.now() + secs(9)));
    }

    "I7" a_released_job_is_due_at_once_in_its_old_place_under_a_new_token(w) {
        let (id, fence) = taken(w);
        w.pass(secs(3));
        let younger = w.put_one();
        assert_eq!(w.settle(fence, Outcome::Release), Settled::Applied(State::Queued));
        assert!(w.record(id).token > fence.token);
        assert_eq!(w.claim_ids(&ask("bob", 2)), [id, younger]);
    }

    "I4" a_buried_job_is_dead_with_its_reason(w) {
        let id = w.ended(Outcome::Bury { reason: "hopeless".into() });
        let dead = w.record(id);
        assert_eq!((dead.state, dead.reason.as_deref()), (State::Dead, Some("hopeless")));
        assert_eq!(w.verbs(id), [Verb::Bury]);
    }

    "I11" a_parked_job_waits_for_a_person_and_holds_no_slot(w) {
        let id = w.ended(Outcome::Park { reason: "ask Ann".into() });
        w.pass(secs(1_000_000));
        assert!(w.claim(&ask("bob", 1)).attempts.is_empty());
        let parked = w.record(id);
        assert_eq!((parked.state, parked.reason.as_deref()), (State::Parked, Some("ask Ann")));
        assert_eq!(parked.lease_until, None);
    }

    "G2" each_settlement_of_a_batch_is_answered_by_itself(w) {
        w.put_one();
        let (first, second) = w.taken_over();
        let (_, third) = (w.put_one(), w.take("cid"));
        let batch: Vec<_> = [&first, &third, &second].map(|attempt| settlement(attempt.lease.fence(), vec![])).into();
        let answers = w.store.settle(&batch).unwrap();
        assert!(matches!(answers[..], [Settled::Stale(_), Settled::Applied(_), Settled::Applied(_)]), "{answers:?}");
    }

    "G7" the_same_settlement_twice_in_a_batch_is_heard_once(w) {
        let (id, fence) = taken(w);
        let batch = vec![Settlement::new(fence, retry(secs(1))); 2];
        assert_eq!(w.store.settle(&batch).unwrap(), [Settled::Applied(State::Queued); 2]);
        assert_eq!(w.verbs(id), [Verb::Retry]);
    }

    "G1" a_result_above_the_limit_is_refused_and_the_attempt_goes_on(w) {
        let (id, fence) = taken(w);
        let large = Json::check("result", format!("\"{}\"", "x".repeat(256 * 1024)), usize::MAX).unwrap();
        let outcome = Outcome::Complete { result: Some(large) };
        assert!(w.store.settle(&[Settlement::new(fence, outcome)]).unwrap_err().is_invalid());
        assert!(w.store.settle(&vec![settlement(fence, vec![]); 1_001]).unwrap_err().is_invalid());
        assert_eq!(w.state(id), State::Running);
    }

    "G1" an_error_text_of_any_size_and_content_can_be_settled(w) {
        let (id, fence) = taken(w);
        let error = format!("\0\u{1b}[31m{}", "é".repeat(ERROR_LIMIT));
        assert_eq!(w.settle(fence, Outcome::Bury { reason: error }), Settled::Applied(State::Dead));
        let reason = w.record(id).reason.unwrap();
        assert!(reason.len() <= ERROR_LIMIT && !reason.contains('\0'));
    }

    "I10" a_settlement_and_its_follow_ups_happen_together(w) {
        let (id, fence) = taken(w);
        let then = vec![job("next").delay(secs(5)), job("after").key(key("k"))];
        assert_eq!(w.store.settle(&[settlement(fence, then)]).unwrap(), [Settled::Applied(State::Succeeded)]);
        let jobs = w.dump().jobs;
        let followed: Vec<_> = jobs[1..].iter().map(|job| (job.kind.as_str(), job.parent)).collect();
        assert_eq!(followed, [("next", Some(id)), ("after", Some(id))]);
    }

    "I1" a_refused_settlement_enqueues_nothing_and_a_repeated_one_nothing_more(w) {
        w.put_one();
        let (first, second) = w.taken_over();
        let late = settlement(first.lease.fence(), vec![job("next")]);
        let heard = settlement(second.lease.fence(), vec![job("next")]);
        w.store.settle(&[late]).unwrap();
        assert_eq!(w.dump().jobs.len(), 1);
        w.store.settle(std::slice::from_ref(&heard)).unwrap();
        w.store.settle(&[heard]).unwrap();
        assert_eq!(w.dump().jobs.len(), 2);
    }

    "I1" of_two_settlements_of_a_job_in_one_batch_only_the_first_ones_follow_ups_are_enqueued(w) {
        let (_, fence) = taken(w);
        let (other, beside) = taken(w);
        let then = |kind| vec![job(kind)];
        let batch = [
            settlement(fence, then("first")),
            settlement(fence, then("second")),
            settlement(beside, then("beside")),
        ];
        let done = Settled::Applied(State::Succeeded);
        assert_eq!(w.store.settle(&batch).unwrap(), [done, done, done]);
        let jobs = w.dump().jobs;
        let followed: Vec<_> = jobs[2..].iter().map(|job| (job.kind.as_str(), job.parent)).collect();
        assert_eq!(followed, [("first", Some(fence.job)), ("beside", Some(other))]);
    }

    "I12" a_follow_up_whose_key_is_taken_by_another_request_is_visible(w) {
        let owner = w.put(job("other").key(key("k")).delay(secs(99)));
        let (id, fence) = taken(w);
        w.store.settle(&[settlement(fence, vec![job("next").key(key("k"))])]).unwrap();
        assert_eq!(w.dump().jobs.len(), 2);
        let line = w.timeline(id).remove(0);
        let note = format!("next not enqueued: job {owner} has its key for another request");
        assert_eq!(line.event(), "follow_refused");
        assert_eq!((line.verb, line.refused, line.note), (Verb::Follow, true, Some(note)));
    }

    "G7" with_history_off_a_success_is_deleted_at_once_and_a_repeat_answers_gone(w) {
        w.store.configure(&name("default"), &NO_HISTORY).unwrap();
        let id = w.put(NewJob::new(name("work"), json(&format!("\"{}\"", "x".repeat(5_000)))));
        let fence = w.take("ann").lease.fence();
        w.settle(fence, retry(Duration::ZERO));
        let fence = w.take("ann").lease.fence();
        assert_eq!(w.settle(fence, complete()), Settled::Applied(State::Succeeded));
        assert!(!w.is_there(id));
        assert_eq!(w.settle(fence, complete()), Settled::NotFound);
        let dump = w.dump();
        assert!(dump.jobs.is_empty() && dump.timeline.is_empty());
    }

    "I9" with_history_off_a_conflict_of_a_follow_up_leaves_nothing_behind(w) {
        w.store.configure(&name("default"), &NO_HISTORY).unwrap();
        w.put(job("other").key(key("k")).delay(secs(99)));
        let (_, fence) = taken(w);
        w.store.settle(&[settlement(fence, vec![job("next").key(key("k"))])]).unwrap();
        let dump = w.dump();
        assert_eq!((dump.jobs.len(), dump.timeline.len()), (1, 0));
    }

    "G1" with_history_off_a_dead_job_is_still_kept(w) {
        w.store.configure(&name("default"), &NO_HISTORY).unwrap();
        let id = w.ended(Outcome::Bury { reason: "no".into() });
        assert_eq!(w.state(id), State::Dead);
    }

    "I10" settling_and_claiming_in_one_call_does_both(w) {
        let (id, fence) = taken(w);
        let next = w.put_one();
        let (settled, claimed) = w.store.settle_and_claim(&[settlement(fence, vec![])], &ask("ann", 1)).unwrap();
        assert_eq!(settled, [Settled::Applied(State::Succeeded)]);
        assert_eq!(claimed.attempts[0].lease.job(), next);
        assert_eq!(w.state(id), State::Succeeded);
    }

    "I10" a_job_retried_at_once_can_be_claimed_in_the_same_call(w) {
        let (id, fence) = taken(w);
        let retried = Settlement::new(fence, retry(Duration::ZERO));
        let (_, claimed) = w.store.settle_and_claim(&[retried], &ask("ann", 1)).unwrap();
        assert_eq!((claimed.attempts[0].lease.job(), claimed.attempts[0].attempt), (id, 2));
    }

    "I12" every_follow_up_in_conflict_is_named(w) {
        w.put(job("other").key(key("k")).delay(secs(99)));
        let (id, fence) = taken(w);
        let then = vec![job("next").key(key("k")), job("last").key(key("k"))];
        w.store.settle(&[settlement(fence, then)]).unwrap();
        let note = w.timeline(id).remove(0).note.unwrap();
        assert!(note.contains("next not enqueued") && note.contains("last not enqueued"), "{note}");
    }

    "I12" a_follow_up_of_an_existing_request_is_not_enqueued_twice(w) {
        let owner = w.put(job("next").key(key("k")).delay(secs(99)));
        let (id, fence) = taken(w);
        w.store.settle(&[settlement(fence, vec![job("next").key(key("k"))])]).unwrap();
        assert_eq!(w.dump().jobs.len(), 2);
        assert!(w.timeline(id).is_empty());
        assert_eq!(w.store.enqueue(&[job("next").key(key("k"))]).unwrap(), [Enqueued::Existing(owner)]);
    }

    "G6" follow_ups_of_all_settlements_together_are_limited(w) {
        let (_, fence) = taken(w);
        let half = || settlement(fence, vec![job("next"); 501]);
        assert!(w.store.settle(&[half(), half()]).unwrap_err().is_invalid());
    }

    "I4" however_a_job_ends_it_is_still_all_that_was_asked_for(w) {
        type End = fn(&mut World, Fence);
        let ends: [(State, End); 5] = [
            (State::Succeeded, |w, fence| assert_eq!(w.settle(fence, complete_with_seven()), Settled::Applied(State::Succeeded))),
            // Twice in one batch, which takes another code path than once.
            (State::Succeeded, |w, fence| {
                let batch = vec![Settlement::new(fence, complete_with_seven()); 2];
                assert_eq!(w.store.settle(&batch).unwrap(), [Settled::Applied(State::Succeeded); 2]);
            }),
            (State::Dead, |w, fence| assert_eq!(w.settle(fence, Outcome::Bury { reason: "no".into() }), Settled::Applied(State::Dead))),
            (State::Cancelled, |w, fence| assert_eq!(w.store.cancel(&[fence.job]).unwrap().len(), 1)),
            (State::Dead, |w, _| {
                w.pass(LEASE);
                w.sweep();
            }),
        ];
        for (state, end) in ends {
            let asked = job("mail").tenant(super::tenant("acme")).priority(4).max_runtime(secs(20)).trace("00-abc").unwrap();
            let asked = asked.retry(RetryPolicy::Fixed { ms: 250 }).tags(vec![name("a")]).unwrap();
            let asked = asked.max_attempts(NonZeroU16::new(9).unwrap()).max_crashes(NonZeroU16::new(2).unwrap());
            let (parent, fence) = taken(w);
            w.store.settle(&[settlement(fence, vec![asked.key(key(&format!("k{parent}")))])]).unwrap();
            w.pass(secs(1));
            w.take("doomed");
            w.pass(LEASE);
            let fence = w.take("ann").lease.fence();
            let before = w.record(fence.job);
            assert_eq!((before.parent, before.crashes, before.attempt), (Some(parent), 1, 2));
            w.pass(secs(1));
            end(w, fence);
            let after = w.record(fence.job);
            assert_eq!((after.state, after.finished_at), (state, Some(w.now())));
            assert_eq!(after.result, (state == State::Succeeded).then(|| json("7")));
            // Apart from what an end changes, everything is the same.
            let JobRecord { state, token, crashes, crashed_at, is_suspect, leased_at, lease_ms, lease_until, request, .. } = before.clone();
            let same = JobRecord { state, token, crashes, crashed_at, is_suspect, leased_at, lease_ms, lease_until, request, finished_at: None, result: None, reason: None, ..after };
            assert_eq!(same, before);
        }
    }

    "I1" a_repeated_settlement_of_any_kind_enqueues_its_follow_ups_once(w) {
        for outcome in outcomes() {
            let (id, fence) = taken(w);
            let settlement = Settlement { fence, outcome, then: vec![job("next").delay(secs(999))] };
            let before = w.dump().jobs.len();
            w.store.settle(std::slice::from_ref(&settlement)).unwrap();
            w.store.settle(std::slice::from_ref(&settlement)).unwrap();
            assert_eq!(w.dump().jobs.len(), before + 1, "{settlement:?}");
            w.store.cancel(&[id]).unwrap();
        }
    }

    "I9" with_history_off_a_success_leaves_nothing_behind_however_it_is_sent(w) {
        w.store.configure(&name("default"), &NO_HISTORY).unwrap();
        let (_, fence) = taken(w);
        w.settle(fence, retry(Duration::ZERO));
        let fence = w.take("ann").lease.fence();
        let answers = w.store.settle(&vec![settlement(fence, vec![]); 2]).unwrap();
        assert_eq!(answers, [Settled::Applied(State::Succeeded), Settled::NotFound]);
        let dump = w.dump();
        assert!(dump.jobs.is_empty() && dump.timeline.is_empty());
    }

    "G1" a_queue_that_forgets_its_dead_still_keeps_what_succeeded(w) {
        let change = QueueChange { keep_dead: Some(Duration::ZERO), ..QueueChange::default() };
        w.store.configure(&name("default"), &change).unwrap();
        let id = w.ended(complete());
        assert_eq!(w.state(id), State::Succeeded);
    }

    "G2" a_follow_up_that_was_refused_is_noted_while_its_job_still_runs(w) {
        w.put(job("other").key(key("k")).delay(secs(99)));
        let (id, fence) = taken(w);
        w.store.settle(&[settlement(fence, vec![job("next").key(key("k"))])]).unwrap();
        let line = w.timeline(id).remove(0);
        assert_eq!((line.verb, line.refused, line.became), (Verb::Follow, true, State::Running));
        assert_eq!((line.token, line.worker), (fence.token, Some(worker("ann"))));
    }

    "G7" a_job_that_snoozes_for_ever_keeps_its_last_lines_and_counts_the_rest(w) {
        let id = w.put_one();
        let snooze = Outcome::Snooze { after: Duration::ZERO };
        let mut fences = Vec::new();
        for _ in 0..200 {
            let fence = w.take("ann").lease.fence();
            assert_eq!(w.settle(fence, snooze.clone()), Settled::Applied(State::Queued));
            fences.push(fence);
        }
        let lines = w.timeline(id);
        let tokens: Vec<_> = lines.iter().map(|line| line.token).collect();
        let last: Vec<_> = fences[180..].iter().map(|fence| fence.token).collect();
        assert_eq!(tokens, last, "the twenty last");
        assert_eq!(lines.last().map(|line| line.earlier), Some(180));
        for fence in &fences[180..] {
            assert_eq!(w.settle(*fence, snooze.clone()), Settled::Applied(State::Queued), "heard before");
        }
        assert_eq!(w.timeline(id), lines);
        assert!(matches!(w.settle(fences[179], snooze), Settled::Stale(_)), "nobody repeats that any more");
    }

    "G7" lines_of_other_verbs_and_refusals_stay_beside_many_of_one(w) {
        let (id, first) = taken(w);
        w.settle(first, retry(Duration::ZERO));
        for _ in 0..50 {
            let fence = w.take("ann").lease.fence();
            w.settle(fence, Outcome::Snooze { after: Duration::ZERO });
            assert!(matches!(w.settle(fence, complete()), Settled::Stale(_)));
        }
        let lines = w.timeline(id);
        let of = |verb, refused| lines.iter().filter(|line| line.verb == verb && line.refused == refused).count();
        assert_eq!(of(Verb::Retry, false), 1);
        assert_eq!(of(Verb::Snooze, false), 20);
        assert_eq!(of(Verb::Complete, true), 50, "each refusal is evidence");
        assert_eq!(w.settle(first, retry(Duration::ZERO)), Settled::Applied(State::Queued), "it was heard");
    }

    "G7" many_lines_of_one_job_leave_those_of_another_alone(w) {
        let (few, many) = (w.put_one(), w.put_one());
        let snooze_all = |w: &mut World| {
            for attempt in w.claim(&ask("ann", 2)).attempts {
                w.settle(attempt.lease.fence(), Outcome::Snooze { after: Duration::ZERO });
            }
        };
        (0..5).for_each(|_| snooze_all(w));
        w.store.cancel(&[few]).unwrap();
        (0..30).for_each(|_| snooze_all(w));
        assert_eq!(w.verbs(few), [vec![Verb::Snooze; 5], vec![Verb::Cancel]].concat());
        assert_eq!(w.timeline(many).last().map(|line| line.earlier), Some(15));

        // Dropped lines are counted for each job separately.
        let third = w.put_one();
        w.store.cancel(&[many]).unwrap();
        (0..21).for_each(|_| snooze_all(w));
        assert_eq!(w.timeline(third).last().map(|line| line.earlier), Some(1));
    }

    "G7" lines_are_kept_and_counted_for_each_verb_by_itself(w) {
        let id = w.put(job("work").max_attempts(std::num::NonZeroU16::new(100).unwrap()));
        let snooze = || Outcome::Snooze { after: Duration::ZERO };
        // One refusal of the same verb is older than all other lines, and others are newer.
        w.settle(Fence { job: id, token: Token(0) }, snooze());
        for token in 1_000..1_020 {
            w.settle(Fence { job: id, token: Token(token) }, snooze());
        }
        let mut end_all = |outcome: Outcome, times| {
            for _ in 0..times {
                let fence = w.take("ann").lease.fence();
                assert_eq!(w.settle(fence, outcome.clone()), Settled::Applied(State::Queued));
            }
            let lines = w.timeline(id);
            let of = |verb, refused| {
                let lines = lines.iter().filter(|line| line.verb == verb && line.refused == refused);
                (lines.clone().count(), lines.map(|line| line.earlier).max().unwrap_or(0))
            };
            (of(Verb::Snooze, false), of(Verb::Retry, false), of(Verb::Snooze, true))
        };
        assert_eq!(end_all(snooze(), 15), ((15, 0), (0, 0), (21, 0)));
        assert_eq!(end_all(retry(Duration::ZERO), 15), ((15, 0), (15, 0), (21, 0)));
        assert_eq!(end_all(snooze(), 20), ((20, 15), (15, 0), (21, 0)));
        assert_eq!(end_all(retry(Duration::ZERO), 6), ((20, 15), (20, 1), (21, 0)));
    }
}
