//! What the store still has of a job after its end, and that other jobs lose nothing by it.

use std::time::Duration;

use tenure::engine::job::{JobId, NewJob, State};
use tenure::engine::lease::{Fence, Token};
use tenure::engine::ledger::Act;
use tenure::engine::lifecycle::{Outcome, Verb};
use tenure::engine::store::{Claim, QueueChange, Settled, Settlement};

use super::{World, ask, complete, json, name, promises, retry};

const NO_HISTORY: QueueChange =
    QueueChange { pause: None, keep: Some(Duration::ZERO), keep_dead: None };

/// A running job in its second attempt that has everything a job can have: large args, a timeline
/// line, an effect and a step.
fn rich(w: &mut World, queue: &str) -> Fence {
    let args = json(&format!("\"{}\"", "x".repeat(5_000)));
    let id = w.put(NewJob::new(name("work"), args).queue(name(queue)));
    let only = Claim { queues: vec![name(queue)], ..ask("ann", 1) };
    let take = |w: &mut World| w.claim(&only).attempts.remove(0).lease.fence();
    let fence = take(w);
    w.settle(fence, retry(Duration::ZERO));
    let fence = take(w);
    assert_eq!(fence.job, id);
    w.open(fence, "pay");
    w.act(fence, "pay", Act::Commit { result: json("1") });
    w.act(fence, "load", Act::Remember { result: json("2") });
    fence
}

/// How many timeline lines, effects and steps the store has of a job.
fn traces(w: &mut World, id: JobId) -> (usize, usize, usize) {
    let dump = w.dump();
    (
        dump.timeline.iter().filter(|line| line.job == id).count(),
        dump.ledger.iter().filter(|effect| effect.job == id).count(),
        dump.steps.iter().filter(|step| step.job == id).count(),
    )
}

/// Two batches that complete all these attempts: once each, and twice each, which takes another
/// code path.
fn batches(fences: &[Fence]) -> [Vec<Settlement>; 2] {
    let once: Vec<_> = fences.iter().map(|fence| Settlement::new(*fence, complete())).collect();
    [once.clone(), [once.clone(), once].concat()]
}

promises! { "settle":
    "I9" with_history_off_a_success_takes_its_own_traces_with_it_and_no_others(w) {
        w.store.configure(&name("default"), &NO_HISTORY).unwrap();
        for at in 0..2 {
            let (mine, beside, kept) = (rich(w, "default"), rich(w, "default"), rich(w, "kept"));
            let batch = batches(&[mine, kept]);
            let answers = w.store.settle(&batch[at]).unwrap();
            assert_eq!(answers[..2], [Settled::Applied(State::Succeeded); 2]);
            assert!(!w.is_there(mine.job));
            assert_eq!(traces(w, mine.job), (0, 0, 0));
            for other in [beside, kept] {
                assert_eq!(w.record(other.job).args.as_str().len(), 5_002);
                assert_eq!(traces(w, other.job), (1, 1, 1));
            }
            assert_eq!((w.state(beside.job), w.state(kept.job)), (State::Running, State::Succeeded));
            w.store.settle(&batches(&[beside])[0]).unwrap();
        }
    }

    "G8" with_history_off_a_success_is_kept_for_its_own_open_effect_and_for_no_other(w) {
        w.store.configure(&name("default"), &NO_HISTORY).unwrap();
        for at in 0..2 {
            for _ in 0..4 {
                w.put_one();
            }
            let taken = w.claim(&ask("ann", 4)).attempts;
            let fences: Vec<_> = taken.iter().map(|attempt| attempt.lease.fence()).collect();
            let [open, done, none, beside] = fences[..] else { panic!("{fences:?}") };
            for fence in [open, done, beside] {
                w.open(fence, "pay");
            }
            w.act(done, "pay", Act::Commit { result: json("1") });
            let answers = w.store.settle(&batches(&[open, done, none])[at]).unwrap();
            assert_eq!(answers[..3], [Settled::Applied(State::Succeeded); 3]);
            assert_eq!(w.state(open.job), State::Succeeded, "its effect is in doubt");
            assert_eq!(traces(w, open.job), (0, 1, 0));
            for gone in [done, none] {
                assert!(!w.is_there(gone.job));
                assert_eq!(traces(w, gone.job), (0, 0, 0));
            }
            assert_eq!(w.state(beside.job), State::Running);
            w.settle(beside, Outcome::Bury { reason: "no".into() });
        }
    }

    "G7" settling_an_unknown_job_beside_others_answers_gone(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.ended(complete());
        for outcome in super::outcomes() {
            assert_eq!(w.settle(Fence { job: JobId(404), token: fence.token }, outcome), Settled::NotFound);
        }
        assert!(w.dump().timeline.is_empty());
    }

    "I3" of_two_ends_of_one_attempt_in_a_batch_the_first_is_heard(w) {
        let a_day = QueueChange { keep: Some(Duration::from_secs(86_400)), ..QueueChange::default() };
        w.store.configure(&name("default"), &a_day).unwrap();
        for [first, second] in [[complete(), retry(Duration::ZERO)], [retry(Duration::ZERO), complete()]] {
            let other = w.put_one();
            let beside = w.take("ann").lease.fence();
            assert_eq!(beside.job, other);
            w.put_one();
            let fence = w.take("ann").lease.fence();
            let batch = [
                Settlement::new(fence, first.clone()),
                Settlement::new(beside, complete()),
                Settlement::new(fence, second),
            ];
            let answers = w.store.settle(&batch).unwrap();
            assert!(matches!(answers[..], [Settled::Applied(_), Settled::Applied(State::Succeeded), Settled::Stale(_)]), "{answers:?}");
            let then = if first == complete() { State::Succeeded } else { State::Queued };
            assert_eq!(w.state(fence.job), then);
            w.store.cancel(&[fence.job]).unwrap();
        }
    }

    "G7" a_refusal_drops_no_line_of_its_verb(w) {
        let id = w.put_one();
        let snooze = || Outcome::Snooze { after: Duration::ZERO };
        for _ in 0..25 {
            let fence = w.take("ann").lease.fence();
            assert_eq!(w.settle(fence, snooze()), Settled::Applied(State::Queued));
        }
        assert!(matches!(w.settle(Fence { job: id, token: Token(999) }, snooze()), Settled::Stale(_)));
        assert_eq!((w.verbs(id), w.refusals(id)), (vec![Verb::Snooze; 20], vec![Verb::Snooze]));
        let refused = w.timeline(id).into_iter().find(|line| line.refused).unwrap();
        assert_eq!(refused.earlier, 0);
    }
}
