//! Effects, which take place once per key, and remembered steps.

use tenure::engine::job::{JobId, JobRecord, State};
use tenure::engine::lease::{Fence, Token};
use tenure::engine::ledger::{
    Act, Answer, Doubt, EffectRecord, Entry, Resolution, Standing, effect_name,
};
use tenure::engine::lifecycle::{Outcome, Verb};
use tenure::engine::store::{AsSeen, QueueChange, Resolved, Settled, Settlement};

use super::{LEASE, World, ask, complete, json, name, promises, retry, secs};

pub(super) fn commit(result: &str) -> Act {
    Act::Commit { result: json(result) }
}

pub(super) fn fail() -> Act {
    Act::Fail { error: "the bank said no".into() }
}

pub(super) fn committed(result: &str) -> Resolution {
    Resolution::Committed { result: json(result) }
}

pub(super) fn remember(result: &str) -> Act {
    Act::Remember { result: json(result) }
}

/// One of each act.
pub(super) fn acts() -> [Act; 7] {
    [
        Act::Open,
        commit("1"),
        fail(),
        Act::Resolve(committed("2")),
        Act::Resolve(Resolution::Resend),
        Act::Recall,
        remember("3"),
    ]
}

/// A job whose first attempt opened an effect and died, and which a second attempt holds.
pub(super) fn in_doubt(w: &mut World) -> (Fence, Fence) {
    w.put_one();
    let first = w.take("ann").lease.fence();
    assert_eq!(w.open(first, "charge"), Answer::Opened);
    w.pass(LEASE);
    (first, w.take("bob").lease.fence())
}

/// Like `in_doubt`, then parked by the second attempt.
pub(super) fn parked_in_doubt(w: &mut World) -> (Fence, Fence) {
    let (first, second) = in_doubt(w);
    let park = Outcome::Park { reason: "effect charge is in doubt".into() };
    assert_eq!(w.settle(second, park), Settled::Applied(State::Parked));
    (first, second)
}

pub(super) fn resolve(w: &mut World, job: JobId, effect: &str, how: &Resolution) -> Resolved {
    w.store.resolve(job, &effect_name(effect).unwrap(), how).unwrap()
}

/// The effects whose outcome no attempt can know any more.
fn doubts(w: &mut World) -> Vec<String> {
    let state = w.dump();
    let is_held = |effect: &EffectRecord| {
        let holds = |job: &JobRecord| {
            (job.id, job.token, job.state) == (effect.job, effect.token, State::Running)
        };
        state.jobs.iter().any(holds)
    };
    let open = state.ledger.iter().filter(|effect| effect.standing == Standing::Open);
    let doubtful = open.filter(|effect| !is_held(effect));
    doubtful.map(|effect| format!("{}/{}", effect.job, effect.name)).collect()
}

promises! { "ledger":
    "G8" an_effect_is_opened_before_it_is_done_and_committed_after(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        assert_eq!(w.open(fence, "charge"), Answer::Opened);
        w.pass(secs(1));
        assert_eq!(w.act(fence, "charge", commit(r#"{"id":7}"#)), Answer::Recorded);
        let state = w.dump();
        let effect = &state.ledger[0];
        assert_eq!((effect.job, effect.standing, effect.token), (id, Standing::Committed, fence.token));
        assert_eq!(effect.ended_at.map(|end| end.since(effect.opened_at)), Some(secs(1)));
        assert_eq!(effect.result.as_ref().map(|result| result.as_str()), Some(r#"{"id":7}"#));
        assert!(w.timeline(id).is_empty(), "the happy path leaves no line");
    }

    "G7" opening_again_after_a_lost_reply_is_answered_alike(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        assert_eq!(w.open(fence, "charge"), Answer::Opened);
        let before = w.dump();
        w.pass(secs(1));
        assert_eq!(w.open(fence, "charge"), Answer::Opened);
        assert_eq!(w.dump().ledger, before.ledger);
    }

    "G8" an_intent_that_another_attempt_left_without_outcome_is_in_doubt(w) {
        let opened = w.now();
        let (first, second) = in_doubt(w);
        let doubt = Doubt { token: first.token, since: opened };
        assert_eq!(w.open(second, "charge"), Answer::InDoubt(doubt));
        assert_eq!(w.open(second, "charge"), Answer::InDoubt(doubt), "asking changes nothing");
    }

    "G8" a_committed_effect_answers_every_later_attempt_with_its_first_result(w) {
        w.put_one();
        let first = w.take("ann").lease.fence();
        w.open(first, "charge");
        w.act(first, "charge", commit("41"));
        assert_eq!(w.open(first, "charge"), Answer::Committed(json("41")));
        assert_eq!(w.settle(first, retry(secs(0))), Settled::Applied(State::Queued));
        let second = w.take("bob").lease.fence();
        assert_eq!(w.open(second, "charge"), Answer::Committed(json("41")));
        assert_eq!(w.act(second, "charge", commit("42")), Answer::NotAllowed(Some(Standing::Committed)));
        assert_eq!(w.open(second, "charge"), Answer::Committed(json("41")));
    }

    "G8" what_failed_may_be_opened_again_by_this_attempt_and_by_the_next(w) {
        w.put_one();
        let first = w.take("ann").lease.fence();
        w.open(first, "charge");
        assert_eq!(w.act(first, "charge", fail()), Answer::Recorded);
        assert_eq!(w.dump().ledger[0].note.as_deref(), Some("the bank said no"));
        assert_eq!(w.open(first, "charge"), Answer::Opened);
        assert_eq!(w.act(first, "charge", fail()), Answer::Recorded);
        w.settle(first, retry(secs(0)));
        let second = w.take("bob").lease.fence();
        assert_eq!(w.open(second, "charge"), Answer::Opened);
        assert_eq!((w.dump().ledger[0].token, &w.dump().ledger[0].note), (second.token, &None));
        assert_eq!(w.act(second, "charge", commit("1")), Answer::Recorded);
    }

    "G8" committed_is_final(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.open(fence, "charge");
        w.act(fence, "charge", commit("1"));
        let before = w.dump().ledger;
        let no = Answer::NotAllowed(Some(Standing::Committed));
        assert_eq!(w.act(fence, "charge", fail()), no);
        assert_eq!(w.act(fence, "charge", Act::Resolve(Resolution::Resend)), no);
        assert_eq!(w.dump().ledger, before);
    }

    "G8" the_holder_may_say_that_what_it_took_for_failed_has_happened(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.open(fence, "charge");
        w.act(fence, "charge", fail());
        assert_eq!(w.act(fence, "charge", commit("1")), Answer::Recorded);
        assert_eq!(w.open(fence, "charge"), Answer::Committed(json("1")));
    }

    "G8" what_nobody_opened_has_no_outcome(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        for act in [commit("1"), fail(), Act::Resolve(Resolution::Resend), Act::Resolve(committed("1"))] {
            assert_eq!(w.act(fence, "charge", act), Answer::NotAllowed(None));
        }
        assert!(w.dump().ledger.is_empty());
    }

    "I7" a_zombie_can_neither_open_nor_commit_nor_resolve_and_it_is_seen(w) {
        let (zombie, holder) = in_doubt(w);
        let before = w.dump();
        for act in acts() {
            match w.act(zombie, "charge", act.clone()) {
                Answer::Stale(stale) => assert_eq!((stale.shown, stale.current), (zombie, holder.token)),
                other => panic!("{act:?} was answered {other:?}"),
            }
        }
        let after = w.dump();
        assert_eq!((&after.ledger, &after.steps), (&before.ledger, &before.steps));
        let refused = w.refusals(zombie.job);
        let verbs: std::collections::BTreeSet<Verb> = acts().iter().map(Act::verb).collect();
        assert_eq!(refused.into_iter().collect::<std::collections::BTreeSet<_>>(), verbs);
    }

    "I7" whoever_has_settled_writes_nothing_more(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.open(fence, "charge");
        w.settle(fence, complete());
        for act in acts() {
            assert!(matches!(w.act(fence, "charge", act), Answer::Stale(_)));
        }
        assert_eq!(w.dump().ledger[0].standing, Standing::Open);
    }

    "G7" an_outcome_repeated_is_answered_alike_and_the_first_one_stays(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        for (effect, act, other) in [("a", commit("1"), commit("2")), ("b", fail(), fail())] {
            w.open(fence, effect);
            assert_eq!(w.act(fence, effect, act), Answer::Recorded);
            let before = w.dump().ledger;
            w.pass(secs(1));
            assert_eq!(w.act(fence, effect, other), Answer::Recorded);
            assert_eq!(w.dump().ledger, before);
        }
    }

    "G7" an_outcome_repeated_after_the_attempt_has_ended_is_told_as_it_was(w) {
        w.put_one();
        let first = w.take("ann").lease.fence();
        for (effect, act) in [("a", commit("1")), ("b", fail())] {
            w.open(first, effect);
            w.act(first, effect, act);
        }
        w.act(first, "load", remember("5"));
        w.pass(LEASE);
        w.take("bob");
        assert_eq!(w.act(first, "a", commit("1")), Answer::Recorded);
        assert_eq!(w.act(first, "b", fail()), Answer::Recorded);
        assert_eq!(w.act(first, "load", remember("6")), Answer::Remembered(json("5")));
        assert!(w.refusals(first.job).is_empty());
        // Repeating an outcome that was never written does not record it.
        assert!(matches!(w.act(first, "b", commit("1")), Answer::Stale(_)));
    }

    "G8" a_permission_is_not_repeated_to_an_attempt_that_has_ended(w) {
        let (_, second) = in_doubt(w);
        assert_eq!(w.act(second, "charge", Act::Resolve(Resolution::Resend)), Answer::Recorded);
        w.pass(LEASE);
        w.sweep();
        w.pass(secs(1));
        w.take("cid");
        assert!(matches!(w.open(second, "charge"), Answer::Stale(_)));
        let again = w.act(second, "charge", Act::Resolve(Resolution::Resend));
        assert!(matches!(again, Answer::Stale(_)), "or it would send it");
    }

    "G8" the_holder_may_send_a_doubtful_effect_again_as_its_own(w) {
        let (_, second) = in_doubt(w);
        w.pass(secs(1));
        assert_eq!(w.act(second, "charge", Act::Resolve(Resolution::Resend)), Answer::Recorded);
        let effect = w.dump().ledger.remove(0);
        assert_eq!((effect.standing, effect.token), (Standing::Open, second.token));
        assert_eq!(effect.opened_at, w.now());
        assert_eq!(w.act(second, "charge", Act::Resolve(Resolution::Resend)), Answer::Recorded);
        assert_eq!(w.open(second, "charge"), Answer::Opened);
        assert_eq!(w.act(second, "charge", commit("1")), Answer::Recorded);
    }

    "G8" the_holder_may_find_out_that_a_doubtful_effect_has_happened(w) {
        let (zombie, second) = in_doubt(w);
        let found_out = Act::Resolve(committed("7"));
        assert_eq!(w.act(second, "charge", found_out.clone()), Answer::Recorded);
        assert_eq!(w.act(second, "charge", found_out), Answer::Recorded);
        assert_eq!(w.open(second, "charge"), Answer::Committed(json("7")));
        assert!(matches!(w.act(zombie, "charge", commit("8")), Answer::Stale(_)));
        assert_eq!(w.open(second, "charge"), Answer::Committed(json("7")));
    }

    "G8" only_what_is_in_doubt_can_be_resolved(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.open(fence, "charge");
        let mine = w.act(fence, "charge", Act::Resolve(committed("1")));
        assert_eq!(mine, Answer::NotAllowed(Some(Standing::Open)), "its own effect is not in doubt");
        let second = in_doubt(w).1;
        w.act(second, "charge", Act::Resolve(Resolution::Resend));
        w.act(second, "charge", fail());
        for how in [committed("1"), Resolution::Resend] {
            let answer = w.act(second, "charge", Act::Resolve(how));
            assert_eq!(answer, Answer::NotAllowed(Some(Standing::Failed)));
        }
    }

    "G8" a_doubt_is_passed_on_from_attempt_to_attempt(w) {
        let (first, second) = in_doubt(w);
        w.settle(second, retry(secs(0)));
        let third = w.take("cid").lease.fence();
        assert!(matches!(w.open(third, "charge"), Answer::InDoubt(doubt) if doubt.token == first.token));
    }

    "I1" effects_are_told_apart_by_job_and_by_name(w) {
        let (one, other) = (w.put_one(), w.put_one());
        let fences: Vec<_> =
            w.claim(&super::ask("ann", 2)).attempts.iter().map(|attempt| attempt.lease.fence()).collect();
        for fence in &fences {
            for effect in ["charge", "mail"] {
                assert_eq!(w.open(*fence, effect), Answer::Opened);
            }
        }
        w.act(fences[0], "mail", commit("1"));
        let of = |w: &mut World, job: JobId| {
            let found = w.dump().ledger.into_iter().filter(|effect| effect.job == job);
            found.map(|effect| (effect.name.to_string(), effect.standing)).collect::<Vec<_>>()
        };
        let open = |name: &str| (name.to_owned(), Standing::Open);
        assert_eq!(of(w, one), [open("charge"), ("mail".into(), Standing::Committed)]);
        assert_eq!(of(w, other), [open("charge"), open("mail")]);
    }

    "G8" a_step_is_remembered_under_its_name_and_stays_as_it_was_first(w) {
        w.put_one();
        let first = w.take("ann").lease.fence();
        assert_eq!(w.act(first, "load", Act::Recall), Answer::Unknown);
        assert_eq!(w.act(first, "load", remember("[1]")), Answer::Remembered(json("[1]")));
        assert_eq!(w.act(first, "load", remember("[2]")), Answer::Remembered(json("[1]")));
        w.settle(first, retry(secs(0)));
        let second = w.take("bob").lease.fence();
        assert_eq!(w.act(second, "load", Act::Recall), Answer::Remembered(json("[1]")));
        assert_eq!(w.act(second, "save", Act::Recall), Answer::Unknown);
        assert_eq!(w.open(second, "load"), Answer::Opened, "effects have names of their own");
    }

    "I10" a_batch_is_heard_entry_by_entry_and_one_stale_one_spoils_nothing(w) {
        let (zombie, holder) = in_doubt(w);
        w.put_one();
        let other = w.take("cid").lease.fence();
        let entry = |fence, effect: &str, act| Entry { fence, name: effect_name(effect).unwrap(), act };
        let answers = w.store.ledger(&[
            entry(other, "mail", Act::Open),
            entry(zombie, "charge", commit("1")),
            entry(holder, "charge", Act::Resolve(Resolution::Resend)),
            entry(other, "mail", commit("2")),
            entry(holder, "charge", commit("3")),
            entry(other, "mail", Act::Open),
        ]);
        let answers = answers.unwrap();
        assert_eq!(answers[0], Answer::Opened);
        assert!(matches!(answers[1], Answer::Stale(_)));
        assert_eq!(answers[2..5], [Answer::Recorded, Answer::Recorded, Answer::Recorded]);
        assert_eq!(answers[5], Answer::Committed(json("2")));
        assert!(w.store.ledger(&[]).unwrap().is_empty());
    }

    "I10" a_job_that_is_not_there_has_no_ledger(w) {
        let nobody = Fence { job: JobId(404), token: Token(1) };
        for act in acts() {
            assert_eq!(w.act(nobody, "charge", act), Answer::NotFound);
        }
    }

    "I10" a_result_above_the_limit_is_refused_before_anything_is_written(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.open(fence, "charge");
        let limit = tenure::Limits::default().result;
        let text = format!("\"{}\"", "x".repeat(limit));
        let large = tenure::Json::check("result", text, usize::MAX).unwrap();
        for act in [Act::Commit { result: large.clone() }, Act::Remember { result: large.clone() }] {
            let entry = Entry { fence, name: effect_name("charge").unwrap(), act };
            assert!(w.store.ledger(&[entry]).unwrap_err().is_invalid());
        }
        let how = Resolution::Committed { result: large };
        assert!(w.store.resolve(fence.job, &name("charge"), &how).unwrap_err().is_invalid());
        let state = w.dump();
        assert_eq!((state.ledger[0].standing, state.steps.len()), (Standing::Open, 0));
    }

    "G8" what_took_effect_outlives_a_death_and_a_requeue(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.open(fence, "charge");
        w.act(fence, "charge", commit("1"));
        w.act(fence, "load", remember("2"));
        w.settle(fence, Outcome::Bury { reason: "hopeless".into() });
        w.store.requeue(&[AsSeen::any(id)]).unwrap();
        let again = w.take("bob").lease.fence();
        assert_eq!(w.open(again, "charge"), Answer::Committed(json("1")));
        assert_eq!(w.act(again, "load", Act::Recall), Answer::Remembered(json("2")));
    }

    "I9" a_job_that_is_deleted_takes_its_ledger_along(w) {
        for keep in [false, true] {
            if !keep {
                let at_once = QueueChange { keep: Some(secs(0)), ..QueueChange::default() };
                w.store.configure(&name("default"), &at_once).unwrap();
            } else {
                let a_day = QueueChange { keep: Some(secs(86_400)), ..QueueChange::default() };
                w.store.configure(&name("default"), &a_day).unwrap();
            }
            let id = w.put_one();
            let fence = w.take("ann").lease.fence();
            w.open(fence, "charge");
            w.act(fence, "load", remember("1"));
            if !keep {
                // Otherwise the effect is in doubt, and the job is kept. An operator may purge it
                // anyway.
                w.act(fence, "charge", commit("1"));
            }
            w.settle(fence, complete());
            if keep {
                w.store.purge(&[AsSeen::any(id)]).unwrap();
            }
            let state = w.dump();
            assert_eq!((state.jobs.len(), state.ledger.len(), state.steps.len()), (0, 0, 0));
        }
    }

    "G8" a_person_says_that_it_happened_and_the_job_goes_on_with_the_result(w) {
        let (zombie, second) = parked_in_doubt(w);
        let id = second.job;
        w.pass(secs(1));
        assert_eq!(resolve(w, id, "charge", &committed("9")), Resolved::Applied(State::Queued));
        let line = w.timeline(id).pop().unwrap();
        assert_eq!((line.verb, line.note.as_deref()), (Verb::Resume, Some("effect charge resolved: committed")));
        let third = w.take("cid").lease.fence();
        assert_eq!(w.open(third, "charge"), Answer::Decided(json("9")));
        assert_eq!(w.act(third, "charge", Act::Resolve(committed("9"))), Answer::Recorded);
        assert!(matches!(w.act(zombie, "charge", commit("1")), Answer::Stale(_)));
        assert!(matches!(w.act(second, "charge", Act::Resolve(committed("1"))), Answer::Stale(_)));
        assert_eq!(w.open(third, "charge"), Answer::Committed(json("9")));
    }

    "G8" a_person_lets_it_be_sent_again_and_the_next_attempt_opens_it(w) {
        let (_, second) = parked_in_doubt(w);
        assert_eq!(resolve(w, second.job, "charge", &Resolution::Resend), Resolved::Applied(State::Queued));
        assert_eq!(w.dump().ledger[0].standing, Standing::Resend);
        let third = w.take("cid").lease.fence();
        assert_eq!(w.open(third, "charge"), Answer::Opened);
        assert_eq!(w.act(third, "charge", commit("1")), Answer::Recorded);
    }

    "G7" a_persons_word_repeated_is_answered_alike(w) {
        let (_, second) = parked_in_doubt(w);
        assert_eq!(resolve(w, second.job, "charge", &committed("1")), Resolved::Applied(State::Queued));
        let before = w.dump();
        assert_eq!(resolve(w, second.job, "charge", &committed("1")), Resolved::Applied(State::Queued));
        assert_eq!(w.dump(), before);
        let third = w.take("cid").lease.fence();
        w.open(third, "charge");
        for _ in 0..2 {
            assert_eq!(w.act(third, "charge", Act::Resolve(committed("1"))), Answer::Recorded);
        }
        let used = w.dump();
        assert_eq!(resolve(w, third.job, "charge", &committed("1")), Resolved::Applied(State::Running));
        assert_eq!(w.dump(), used);
    }

    "G8" a_decision_can_be_corrected_until_an_attempt_goes_on_with_it(w) {
        let (_, second) = parked_in_doubt(w);
        let id = second.job;
        for how in [committed("1"), Resolution::Resend, committed("2")] {
            assert_eq!(resolve(w, id, "charge", &how), Resolved::Applied(State::Queued));
        }
        let third = w.take("cid").lease.fence();
        assert_eq!(w.open(third, "charge"), Answer::Decided(json("2")));
        assert_eq!(resolve(w, id, "charge", &committed("3")), Resolved::Running, "its holder has it now");
        let other = w.act(third, "charge", Act::Resolve(committed("3")));
        assert_eq!(other, Answer::NotAllowed(Some(Standing::Committed)), "nobody decided that");
        // The attempt cannot use the result, and parks the job.
        assert_eq!(w.settle(third, Outcome::Park { reason: "not a string".into() }), Settled::Applied(State::Parked));
        assert_eq!(resolve(w, id, "charge", &committed("4")), Resolved::Applied(State::Queued));
        let fourth = w.take("dan").lease.fence();
        assert_eq!(w.open(fourth, "charge"), Answer::Decided(json("4")));
        assert_eq!(w.act(fourth, "charge", Act::Resolve(committed("4"))), Answer::Recorded);
        assert_eq!(w.settle(fourth, Outcome::Park { reason: "something else".into() }), Settled::Applied(State::Parked));
        for how in [committed("5"), Resolution::Resend] {
            assert_eq!(resolve(w, id, "charge", &how), Resolved::NotInDoubt(Standing::Committed), "it was used");
        }
        let effect = &w.dump().ledger[0];
        assert_eq!((effect.result.clone(), effect.token), (Some(json("4")), fourth.token));
    }

    "G8" a_person_cannot_correct_what_an_attempt_has_written(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.open(fence, "charge");
        w.act(fence, "charge", commit("1"));
        w.settle(fence, retry(secs(0)));
        for how in [committed("1"), committed("2"), Resolution::Resend] {
            assert_eq!(resolve(w, id, "charge", &how), Resolved::NotInDoubt(Standing::Committed));
        }
    }

    "G8" a_person_does_not_decide_over_the_head_of_a_holder(w) {
        let (_, second) = in_doubt(w);
        let before = w.dump();
        assert_eq!(resolve(w, second.job, "charge", &committed("1")), Resolved::Running);
        assert_eq!(w.dump(), before);
    }

    "G8" a_person_is_told_what_cannot_be_resolved(w) {
        let (_, second) = parked_in_doubt(w);
        assert_eq!(resolve(w, second.job, "mail", &Resolution::Resend), Resolved::NoSuchEffect);
        assert_eq!(resolve(w, JobId(404), "charge", &Resolution::Resend), Resolved::NotFound);
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.open(fence, "charge");
        w.act(fence, "charge", fail());
        w.settle(fence, retry(secs(0)));
        assert_eq!(resolve(w, id, "charge", &Resolution::Resend), Resolved::NotInDoubt(Standing::Failed));
    }

    "G8" a_job_with_two_doubts_goes_on_when_both_are_resolved(w) {
        w.put_one();
        let first = w.take("ann").lease.fence();
        w.open(first, "charge");
        w.open(first, "mail");
        w.pass(LEASE);
        let second = w.take("bob").lease.fence();
        w.settle(second, Outcome::Park { reason: "two doubts".into() });
        let id = second.job;
        assert_eq!(resolve(w, id, "charge", &committed("1")), Resolved::Applied(State::Parked));
        assert_eq!(doubts(w), [format!("{id}/mail")]);
        assert_eq!(resolve(w, id, "mail", &Resolution::Resend), Resolved::Applied(State::Queued));
        assert!(doubts(w).is_empty());
    }

    "I4" a_dead_jobs_doubt_can_be_resolved_and_it_stays_dead(w) {
        let (_, second) = in_doubt(w);
        w.settle(second, Outcome::Bury { reason: "hopeless".into() });
        let id = second.job;
        assert_eq!(doubts(w), [format!("{id}/charge")]);
        assert_eq!(resolve(w, id, "charge", &committed("1")), Resolved::Applied(State::Dead));
        assert_eq!(w.state(id), State::Dead);
    }

    "G8" what_a_succeeded_job_left_open_can_be_said_to_have_happened_but_nobody_sends_it_again(w) {
        let id = w.put_one();
        let fence = w.take("ann").lease.fence();
        w.open(fence, "charge");
        w.settle(fence, complete());
        assert_eq!(resolve(w, id, "charge", &Resolution::Resend), Resolved::Succeeded);
        assert_eq!(w.dump().ledger[0].standing, Standing::Open);
        assert_eq!(resolve(w, id, "charge", &committed("1")), Resolved::Applied(State::Succeeded));
        assert!(doubts(w).is_empty());
    }

    "G8" a_queue_that_keeps_nothing_keeps_a_job_until_its_effects_are_decided(w) {
        w.store.configure(&name("default"), &QueueChange { keep: Some(secs(0)), ..QueueChange::default() }).unwrap();
        let (known, doubtful) = (w.put_one(), w.put_one());
        let fences: Vec<_> = w.claim(&ask("ann", 2)).attempts.iter().map(|attempt| attempt.lease.fence()).collect();
        for fence in &fences {
            w.open(*fence, "charge");
        }
        w.act(fences[0], "charge", commit("1"));
        let both = fences.iter().map(|fence| Settlement::new(*fence, complete())).collect::<Vec<_>>();
        assert_eq!(w.store.settle(&both).unwrap(), [Settled::Applied(State::Succeeded); 2]);
        assert!(!w.is_there(known));
        assert_eq!((w.state(doubtful), doubts(w)), (State::Succeeded, vec![format!("{doubtful}/charge")]));
        assert_eq!(w.store.settle(&both[1..]).unwrap(), [Settled::Applied(State::Succeeded)]);
        assert_eq!(w.store.prune(100).unwrap().jobs, 0);
        assert_eq!(resolve(w, doubtful, "charge", &committed("2")), Resolved::Applied(State::Succeeded));
        assert_eq!(w.store.prune(100).unwrap().jobs, 1);
        let state = w.dump();
        assert!(state.jobs.is_empty() && state.ledger.is_empty());
    }

    "G8" an_effect_in_doubt_keeps_its_job_however_old_it_is_and_holds_up_no_other(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.open(fence, "charge");
        w.settle(fence, Outcome::Bury { reason: "no".into() });
        let cancelled = in_doubt(w).0.job;
        w.store.cancel(&[cancelled]).unwrap();
        w.ended(Outcome::Bury { reason: "no".into() });
        w.pass(secs(400 * 86_400));
        // One at a time: a job that is kept does not use up the limit.
        assert_eq!(w.store.prune(1).unwrap().jobs, 1);
        assert_eq!(w.store.prune(1).unwrap().jobs, 0);
        assert_eq!(w.dump().jobs.len(), 2);
        assert_eq!(resolve(w, fence.job, "charge", &committed("1")), Resolved::Applied(State::Dead));
        assert_eq!(resolve(w, cancelled, "charge", &committed("1")), Resolved::Applied(State::Cancelled));
        assert_eq!(w.store.prune(100).unwrap().jobs, 2);
        assert!(w.dump().ledger.is_empty());
    }
}
