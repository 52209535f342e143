//! Effects whose outcome is decided later, and writes that come late: each changes what it names
//! and nothing else.

use tenure::engine::ledger::{Act, Answer, EffectRecord, Entry, Resolution, Standing, effect_name};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::{Resolved, Settled};
use tenure::{Fence, State};

use super::ledger::{acts, commit, committed, fail, in_doubt, parked_in_doubt, remember, resolve};
use super::{LEASE, World, ask, json, promises, retry, secs};

/// This worker claims everything that is due.
fn take_all(w: &mut World, who: &str) -> Vec<Fence> {
    w.claim(&ask(who, 9)).attempts.iter().map(|attempt| attempt.lease.fence()).collect()
}

/// Two jobs, each with two effects that an earlier attempt left open, held by the next attempts.
fn two_in_doubt(w: &mut World) -> [Fence; 2] {
    w.put_one();
    w.put_one();
    for fence in take_all(w, "ann") {
        for effect in ["charge", "mail"] {
            assert_eq!(w.open(fence, effect), Answer::Opened);
        }
    }
    w.pass(LEASE);
    take_all(w, "bob").try_into().unwrap()
}

/// The effects that this act changes.
fn changed_by(w: &mut World, fence: Fence, effect: &str, act: Act) -> Vec<EffectRecord> {
    w.pass(secs(1));
    let before = w.dump().ledger;
    assert_eq!(w.act(fence, effect, act), Answer::Recorded);
    w.dump().ledger.into_iter().filter(|effect| !before.contains(effect)).collect()
}

promises! { "ledger":
    "G8" an_effect_that_its_holder_resolves_leaves_all_others_as_they_are(w) {
        let [one, other] = two_in_doubt(w);
        let happened = changed_by(w, one, "charge", Act::Resolve(committed("1")));
        assert_eq!(happened.len(), 1, "{happened:?}");
        assert_eq!((happened[0].job, happened[0].name.as_str(), happened[0].token), (one.job, "charge", one.token));
        assert_eq!((happened[0].standing, happened[0].ended_at), (Standing::Committed, Some(w.now())));
        let again = changed_by(w, other, "mail", Act::Resolve(Resolution::Resend));
        assert_eq!(again.len(), 1, "{again:?}");
        assert_eq!((again[0].job, again[0].name.as_str(), again[0].token), (other.job, "mail", other.token));
        assert_eq!((again[0].standing, again[0].opened_at), (Standing::Open, w.now()));
    }

    "G8" an_attempt_that_goes_on_with_a_persons_word_leaves_all_other_effects_as_they_are(w) {
        for fence in two_in_doubt(w) {
            w.settle(fence, Outcome::Park { reason: "two doubts".into() });
            for effect in ["charge", "mail"] {
                resolve(w, fence.job, effect, &committed("1"));
            }
        }
        let third = take_all(w, "cid")[0];
        let used = changed_by(w, third, "charge", Act::Resolve(committed("1")));
        assert_eq!(used.len(), 1, "{used:?}");
        assert_eq!((used[0].job, used[0].name.as_str(), used[0].token), (third.job, "charge", third.token));
        assert_eq!(used[0].ended_at, Some(w.now()), "from now on it cannot be corrected");
    }

    "G8" an_attempt_goes_on_with_a_persons_word_only_by_saying_so(w) {
        let (_, second) = parked_in_doubt(w);
        resolve(w, second.job, "charge", &committed("1"));
        let third = w.take("cid").lease.fence();
        let before = w.dump().ledger;
        for act in [commit("1"), fail(), Act::Resolve(Resolution::Resend)] {
            assert_eq!(w.act(third, "charge", act), Answer::NotAllowed(Some(Standing::Committed)));
        }
        assert_eq!(w.dump().ledger, before, "the person may still say something else");
        assert_eq!(w.open(third, "charge"), Answer::Decided(json("1")));
    }

    "G8" what_an_attempt_has_committed_is_not_resolved_by_another_with_the_same_result(w) {
        w.put_one();
        let first = w.take("ann").lease.fence();
        w.open(first, "charge");
        w.act(first, "charge", commit("41"));
        w.settle(first, retry(secs(0)));
        let second = w.take("bob").lease.fence();
        let before = w.dump().ledger;
        w.pass(secs(1));
        let answer = w.act(second, "charge", Act::Resolve(committed("41")));
        assert_eq!(answer, Answer::NotAllowed(Some(Standing::Committed)));
        assert_eq!(w.dump().ledger, before);
    }

    "G8" what_is_in_doubt_is_neither_committed_nor_failed_by_another_attempt(w) {
        let (_, second) = in_doubt(w);
        let before = w.dump().ledger;
        for act in [commit("1"), fail()] {
            assert_eq!(w.act(second, "charge", act), Answer::NotAllowed(Some(Standing::Open)));
        }
        assert_eq!(w.dump().ledger, before, "it is still in doubt");
    }

    "G7" a_permission_to_send_again_that_is_repeated_keeps_the_time_of_the_first(w) {
        let (_, second) = in_doubt(w);
        w.act(second, "charge", Act::Resolve(Resolution::Resend));
        let before = w.dump().ledger;
        w.pass(secs(1));
        assert_eq!(w.act(second, "charge", Act::Resolve(Resolution::Resend)), Answer::Recorded);
        assert_eq!(w.dump().ledger, before);
    }

    "G8" an_effect_that_happened_after_all_keeps_no_word_of_its_failure(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.open(fence, "charge");
        w.act(fence, "charge", fail());
        w.act(fence, "charge", commit("1"));
        let effect = w.dump().ledger.remove(0);
        assert_eq!((effect.standing, effect.note), (Standing::Committed, None));
    }

    "G8" a_parked_job_goes_on_though_another_job_has_a_doubt(w) {
        let (_, one) = parked_in_doubt(w);
        let (_, other) = parked_in_doubt(w);
        assert_eq!(resolve(w, one.job, "charge", &committed("1")), Resolved::Applied(State::Queued));
        assert_eq!(w.state(other.job), State::Parked);
    }

    "I7" an_attempt_that_has_given_its_job_back_writes_nothing_more(w) {
        let later = secs(99);
        for outcome in [retry(later), Outcome::Snooze { after: later }, Outcome::Park { reason: "ask Ann".into() }] {
            w.put_one();
            let fence = w.take("ann").lease.fence();
            w.open(fence, "charge");
            assert!(matches!(w.settle(fence, outcome), Settled::Applied(_)));
            let before = w.dump();
            for act in acts() {
                let answer = w.act(fence, "charge", act);
                assert!(matches!(answer, Answer::Stale(_)), "{answer:?}");
            }
            let after = w.dump();
            assert_eq!((after.ledger, after.steps), (before.ledger, before.steps));
        }
    }

    "I7" a_late_word_about_a_step_counts_only_if_its_attempt_has_remembered_this_step_of_this_job(w) {
        w.put_one();
        w.put_one();
        let firsts = take_all(w, "ann");
        assert_eq!(firsts[0].token, firsts[1].token, "tokens are numbers of one job");
        w.act(firsts[0], "load", remember("1"));
        w.open(firsts[0], "charge");
        w.act(firsts[0], "charge", commit("2"));
        w.pass(LEASE);
        let seconds = take_all(w, "bob");
        w.act(seconds[0], "save", remember("3"));
        assert_eq!(w.act(firsts[0], "load", remember("9")), Answer::Remembered(json("1")));
        for (late, name, act) in [
            (firsts[0], "load", Act::Recall),
            (firsts[0], "charge", remember("2")),
            (firsts[0], "save", remember("3")),
            (firsts[1], "load", remember("1")),
        ] {
            let answer = w.act(late, name, act.clone());
            assert!(matches!(answer, Answer::Stale(_)), "{act:?} of {name}: {answer:?}");
        }
        assert_eq!(w.dump().steps.len(), 2);
    }

    "I10" what_the_holder_says_first_in_a_batch_is_heard_before_a_late_word_about_the_same_job(w) {
        w.put_one();
        let first = w.take("ann").lease.fence();
        w.open(first, "charge");
        w.act(first, "charge", fail());
        w.pass(LEASE);
        let second = w.take("bob").lease.fence();
        let entry = |fence, act| Entry { fence, name: effect_name("charge").unwrap(), act };
        let answers = w.store.ledger(&[entry(second, Act::Open), entry(first, fail())]).unwrap();
        assert_eq!(answers[0], Answer::Opened);
        assert!(matches!(answers[1], Answer::Stale(_)), "the effect is another attempt's by then: {answers:?}");
    }
}
