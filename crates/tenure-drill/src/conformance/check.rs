//! The store's own check of its state.

use tenure::JobId;
use tenure::engine::inspect::Rule;
use tenure::engine::ledger::Act;
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::{AsSeen, PULSE};

use super::{LEASE, World, complete, job, json, key, outcomes, queries, secs};

fn wrong(w: &mut World) -> Vec<(i64, Rule)> {
    let checked = w.look().check(None, 1_000).unwrap();
    assert_eq!(checked.next, None);
    checked.wrong.iter().map(|wrong| (wrong.job.0, wrong.rule)).collect()
}

queries! { "check":
    "I9" whatever_happens_to_jobs_nothing_is_ever_wrong(w) {
        for (at, outcome) in outcomes().into_iter().enumerate() {
            w.put(job("work").key(key(&format!("k{at}"))));
            let fence = w.take("ann").lease.fence();
            w.open(fence, "charge");
            w.act(fence, "charge", Act::Commit { result: json("1") });
            w.act(fence, "load", Act::Remember { result: json("2") });
            w.settle(fence, outcome);
        }
        let large = tenure::Json::check("args", format!("\"{}\"", "x".repeat(3_000)), 9_000).unwrap();
        w.put(tenure::engine::job::NewJob::new(super::name("work"), large));
        let cancelled = w.put_one();
        w.store.cancel(&[cancelled]).unwrap();
        w.store.requeue(&[AsSeen::any(cancelled)]).unwrap();
        w.pass(LEASE);
        assert!(w.claim(&super::ask("bob", 9)).attempts.len() > 3);
        w.pass(LEASE);
        w.sweep();
        assert_eq!(wrong(w), []);
        let backup = w.dump();
        w.store.go_back(&backup).unwrap();
        w.put_one();
        w.claim(&super::ask("cid", 1));
        assert_eq!(wrong(w), []);
    }

    "I11" a_job_that_nobody_takes_back_is_found(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(LEASE + Rule::OVERDUE - secs(1));
        assert_eq!(wrong(w), []);
        w.pass(secs(1));
        assert_eq!(wrong(w), [(fence.job.0, Rule::I11)]);
        w.sweep();
        assert_eq!(wrong(w), []);
    }

    "I9" what_is_wrong_is_told_once_and_in_the_order_of_jobs(w) {
        let (stuck, done) = (w.put_one(), w.put_one());
        w.take("ann");
        let fence = w.take("bob").lease.fence();
        w.open(fence, "charge");
        w.settle(fence, complete());
        let other = w.put_one();
        w.take("cid");
        w.pass(LEASE + Rule::OVERDUE);
        let expected = [(stuck.0, Rule::I11), (done.0, Rule::Ledger), (other.0, Rule::I11)];
        assert_eq!(wrong(w), expected);
        let mut told = Vec::new();
        let mut from = None;
        for _ in 0..3 {
            let checked = w.look().check(from, 1).unwrap();
            told.extend(checked.wrong.iter().map(|wrong| (wrong.job.0, wrong.rule)));
            from = checked.next;
        }
        assert_eq!((from, told), (None, expected.to_vec()));
    }

    "I5" a_suspect_whose_handler_has_returned_may_stand_with_the_others(w) {
        w.put_one();
        for worker in ["ann", "bob"] {
            w.take(worker);
            w.pass(LEASE);
            w.sweep();
            assert_eq!(wrong(w), []);
            w.pass(secs(60));
        }
        let fence = w.take("cid").lease.fence();
        w.settle(fence, Outcome::Snooze { after: secs(0) });
        assert_eq!((w.record(fence.job).crashes, wrong(w)), (2, vec![]));
    }

    "G8" an_effect_that_a_success_left_open_is_found(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.open(fence, "charge");
        assert_eq!(wrong(w), []);
        w.settle(fence, complete());
        assert_eq!(wrong(w), [(fence.job.0, Rule::Ledger)]);
        let dead = w.ended(Outcome::Bury { reason: "hopeless".into() });
        assert!(!wrong(w).contains(&(dead.0, Rule::Ledger)));
    }

    "I9" all_jobs_are_looked_at_once_in_windows_of_any_size(w) {
        for at in 0..10 {
            w.put_one();
            if at % 3 == 0 {
                let fence = w.take("ann").lease.fence();
                w.settle(fence, complete());
            }
        }
        for size in [1, 3, 10, 11] {
            let mut from: Option<JobId> = None;
            let mut looked = Vec::new();
            loop {
                let checked = w.look().check(from, size).unwrap();
                looked.push(checked.looked);
                assert!(looked.len() <= 11, "the windows come to an end: {looked:?}");
                assert!(checked.wrong.is_empty());
                match checked.next {
                    Some(next) => from = Some(next),
                    None => break,
                }
            }
            assert_eq!(looked.iter().sum::<usize>(), 10, "in windows of {size}: {looked:?}");
            assert!(looked.iter().all(|jobs| *jobs <= size));
        }
        assert!(w.look().check(None, usize::MAX).unwrap_err().is_invalid());
    }

    "I11" a_check_tells_of_a_lease_that_is_long_over_also_where_no_worker_is_left(w) {
        w.put_one();
        let fence = w.take("ann").lease.fence();
        w.pass(PULSE);
        assert!(w.store.beat().unwrap().leads);
        w.pass(secs(3_600));
        let overdue = w.store.overdue(10, std::time::Duration::ZERO).unwrap();
        assert_eq!(overdue, [], "a worker that looks gives its holder time to come back");
        assert_eq!(wrong(w), [(fence.job.0, Rule::I11)]);
    }
}
