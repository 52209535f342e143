//! How jobs are leased.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::time::Duration;

use tenure::Token;
use tenure::engine::job::{Name, RetryPolicy, State};
use tenure::engine::store::{
    Claim, Claimed, LAPSE_LIMIT, PASS_LIMIT, PROMOTE_LIMIT, Pause, QueueChange, SUSPICION,
};

use super::{
    LEASE, World, ask, complete, job, key, name, of_tenant, promises, retry, secs, tenant, worker,
};

fn waiting(w: &mut super::World) -> usize {
    w.dump().jobs.iter().filter(|job| job.waiting).count()
}

promises! { "claim":
    "G2" two_workers_never_hold_the_same_job(w) {
        let ids: BTreeSet<_> = (0..20).map(|_| w.put_one()).collect();
        let ann = w.claim_ids(&ask("ann", 12));
        let bob = w.claim_ids(&ask("bob", 12));
        assert_eq!((ann.len(), bob.len()), (12, 8));
        assert_eq!(ann.into_iter().chain(bob).collect::<BTreeSet<_>>(), ids);
    }

    "I2" every_claim_raises_the_token(w) {
        w.put_one();
        let mut last = Token::NONE;
        for _ in 0..4 {
            let attempt = w.take("ann");
            assert!(attempt.lease.token() > last);
            last = attempt.lease.token();
            w.settle(attempt.lease.fence(), retry(Duration::ZERO));
        }
    }

    "G1" a_claim_tells_all_that_a_worker_needs(w) {
        let id = w.put(job("mail").max_runtime(secs(5)));
        let attempt = w.take("ann");
        let running = w.record(id);
        assert_eq!((attempt.lease.job(), attempt.lease.token()), (id, running.token));
        assert_eq!((attempt.kind.as_str(), attempt.args.as_str(), attempt.attempt), ("mail", "{}", 1));
        assert_eq!((running.state, running.worker), (State::Running, Some(worker("ann"))));
        assert_eq!(attempt.started_at, w.now());
    }

    "G6" a_lease_runs_from_the_stores_clock(w) {
        w.put_one();
        assert_eq!(w.take("ann").lease.until(), w.now() + LEASE);
    }

    "I6" a_lease_never_outlasts_the_maximal_runtime(w) {
        w.put(job("work").max_runtime(secs(5)));
        assert_eq!(w.take("ann").lease.until(), w.now() + secs(5));
    }

    "G4" the_attempt_is_counted_at_claim(w) {
        let id = w.put_one();
        w.take("ann");
        assert_eq!(w.record(id).attempt, 1);
    }

    "I6" a_leased_job_is_nobody_elses_until_its_lease_is_over(w) {
        w.put_one();
        w.take("ann");
        w.pass(LEASE - Duration::from_millis(1));
        assert!(w.claim(&ask("bob", 1)).attempts.is_empty());
        w.pass(Duration::from_millis(1));
        w.take("bob");
    }

    "G5" a_claim_takes_back_what_is_over_without_anyone_sweeping(w) {
        let id = w.put_one();
        let lost = w.take("ann");
        w.pass(LEASE);
        let claimed = w.claim(&ask("bob", 1));
        assert_eq!((claimed.lapsed.len(), claimed.attempts.len()), (1, 1));
        assert_eq!((claimed.lapsed[0].about.fence(), &claimed.lapsed[0].worker), (lost.lease.fence(), &worker("ann")));
        assert_eq!((claimed.attempts[0].lease.job(), claimed.attempts[0].attempt), (id, 2));
    }

    "I11" a_claim_takes_back_a_bounded_number_and_the_next_one_goes_on(w) {
        w.store.enqueue(&vec![job("work"); 100]).unwrap();
        assert_eq!(w.claim_ids(&ask("ann", 100)).len(), 100);
        w.pass(LEASE);
        let lapsed: Vec<_> = (0..4).map(|_| w.claim(&ask("bob", 0)).lapsed.len()).collect();
        assert_eq!(lapsed, [LAPSE_LIMIT, LAPSE_LIMIT, LAPSE_LIMIT, 100 - 3 * LAPSE_LIMIT]);
    }

    "G1" a_claim_takes_no_more_than_it_asks_for(w) {
        w.store.enqueue(&vec![job("work"); 10]).unwrap();
        assert_eq!(w.claim_ids(&ask("ann", 0)).len(), 0);
        assert_eq!(w.claim_ids(&ask("ann", 3)).len(), 3);
        assert_eq!(w.claim_ids(&ask("ann", 100)).len(), 7);
    }

    "G1" only_the_queues_asked_for_are_served(w) {
        w.put(job("work").queue(name("other")));
        let mine = w.put(job("work").queue(name("mine")));
        let also = w.put(job("work").queue(name("also")));
        let claim = Claim { queues: vec![name("mine"), name("also")], ..ask("ann", 10) };
        let ids: BTreeSet<_> = w.claim_ids(&claim).into_iter().collect();
        assert_eq!(ids, [mine, also].into());
    }

    "G1" only_the_kinds_asked_for_are_served(w) {
        w.put(job("other"));
        let mine = w.put(job("mine"));
        let claim = Claim { kinds: Some(vec![name("mine"), name("absent")]), ..ask("ann", 10) };
        assert_eq!(w.claim_ids(&claim), [mine]);
        let nothing = Claim { kinds: Some(vec![]), ..ask("ann", 10) };
        assert!(w.claim_ids(&nothing).is_empty());
    }

    "G9" jobs_of_a_kind_that_nobody_asks_for_stand_in_nobodys_way(w) {
        w.store.enqueue(&vec![job("other").priority(-10); 500]).unwrap();
        let mine = w.put(job("mine"));
        let claim = Claim { kinds: Some(vec![name("mine")]), ..ask("ann", 1) };
        assert_eq!(w.claim_ids(&claim), [mine]);
    }

    "G9" lower_priority_numbers_run_first_then_the_older_job(w) {
        let late = w.put(job("work").priority(5));
        let third = w.put(job("work"));
        w.pass(secs(1));
        let fourth = w.put(job("work"));
        let second = w.put(job("play").at(w.now() - secs(60)));
        let first = w.put(job("play").priority(-1));
        assert_eq!(w.claim_ids(&ask("ann", 10)), [first, second, third, fourth, late]);
    }

    "G9" one_at_a_time_or_together_the_order_is_the_same(w) {
        let mut ids = Vec::new();
        for n in [3, 1, 2, 1, 3] {
            ids.push((n, w.put(job(if n == 1 { "one" } else { "more" }).priority(n))));
        }
        ids.sort();
        let one_by_one: Vec<_> = (0..5).map(|_| w.take("ann").lease.job()).collect();
        assert_eq!(one_by_one, ids.iter().map(|(_, id)| *id).collect::<Vec<_>>());
    }

    "G9" the_most_urgent_job_of_a_tenant_is_found_among_many_kinds(w) {
        let kinds = ["a", "b", "c", "d", "e", "f", "g", "h"];
        // Each kind has the most urgent job in turn, whatever the order of the lanes.
        for first in 0..kinds.len() {
            let ids: Vec<_> = kinds.iter().enumerate().map(|(at, kind)| {
                let priority = (at + kinds.len() - first) % kinds.len();
                (priority, w.put(job(kind).priority(priority as i16)))
            }).collect();
            let mut expected = ids.clone();
            expected.sort();
            let expected: Vec<_> = expected.into_iter().map(|(_, id)| id).collect();
            let (one, rest) = (w.claim_ids(&ask("ann", 1)), w.claim_ids(&ask("ann", 20)));
            assert_eq!([one, rest].concat(), expected, "{}", kinds[first]);
        }
    }

    "G1" a_job_is_not_leased_before_its_time(w) {
        let id = w.put(job("work").delay(secs(10)));
        assert!(w.claim_ids(&ask("ann", 1)).is_empty());
        w.pass(secs(10));
        assert_eq!(w.claim_ids(&ask("ann", 1)), [id]);
    }

    "I11" a_claim_promotes_a_bounded_number_and_the_next_one_goes_on(w) {
        let batch = vec![job("work").delay(secs(1)); 1_000];
        w.store.enqueue(&batch).unwrap();
        w.store.enqueue(&batch[..500]).unwrap();
        w.pass(secs(1));
        // A claim promotes ten times as many jobs as it asks for, but at least 100 and at most
        // 1,000.
        for (n, left) in [(0, 1_400), (10, 1_300), (11, 1_190), (200, 190), (1_000, 0)] {
            w.claim(&ask("ann", n));
            assert_eq!(waiting(w), left, "{n}");
        }
    }

    "I11" a_claim_promotes_from_the_queues_that_it_asks_for_in_equal_shares(w) {
        let (a, b, c) = (name("a"), name("b"), name("c"));
        for queue in [&a, &b, &c] {
            w.store.enqueue(&vec![job("work").queue(queue.clone()).delay(secs(1)); 60]).unwrap();
        }
        w.store.enqueue(&vec![job("work").queue(a.clone()).delay(secs(1)); 20]).unwrap();
        // Neither queue gets a share: the job of one is ready, and the job of the other is not due
        // yet.
        let (ready, later) = (name("ready"), name("later"));
        w.put(job("work").queue(ready.clone()));
        w.put(job("work").queue(later.clone()).delay(secs(3_600)));
        w.pass(secs(1));
        let of = |w: &mut super::World, queue: &Name| {
            w.dump().jobs.iter().filter(|job| job.waiting && job.queue == *queue).count()
        };
        let queues = vec![a.clone(), b.clone(), name("empty"), ready, later, a.clone()];
        let both = Claim { queues, ..ask("ann", 0) };
        w.claim(&both);
        assert_eq!((of(w, &a), of(w, &b), of(w, &c)), (30, 10, 60));
        w.store.configure(&a, &QueueChange { pause: Some(Pause::Pause), ..QueueChange::default() }).unwrap();
        w.claim(&both);
        assert_eq!((of(w, &a), of(w, &b), of(w, &c)), (30, 0, 60), "a paused queue has no share");
    }

    "G6" a_claim_tells_when_the_next_job_of_its_queues_is_due(w) {
        w.put(job("work").queue(name("other")).delay(secs(1)));
        w.put(job("work").delay(secs(40)));
        assert_eq!(w.claim(&ask("ann", 1)).next_due, Some(secs(40)));
        w.pass(secs(2));
        assert_eq!(w.claim(&ask("ann", 1)).next_due, Some(secs(38)));
        w.store.configure(&name("default"), &QueueChange { pause: Some(Pause::Pause), ..QueueChange::default() }).unwrap();
        assert_eq!(w.claim(&ask("ann", 1)).next_due, None, "what is paused will not be had then");
    }

    "G6" an_empty_claim_tells_when_the_next_job_is_due(w) {
        assert_eq!(w.claim(&ask("ann", 1)).next_due, None);
        w.put(job("work").delay(secs(90)));
        w.put(job("work").delay(secs(40)));
        assert_eq!(w.claim(&ask("ann", 1)).next_due, Some(secs(40)));
        w.put_one();
        assert_eq!(w.claim(&ask("ann", 1)).next_due, None);
    }

    "G6" a_claim_that_leaves_due_jobs_waiting_tells_that_the_next_is_due_now(w) {
        w.store.enqueue(&vec![job("work").delay(secs(1)); 150]).unwrap();
        w.pass(secs(2));
        let other = Claim { kinds: Some(vec![name("other")]), ..ask("ann", 1) };
        assert_eq!(w.claim(&other).next_due, Some(Duration::ZERO));
        assert_eq!(waiting(w), 50);
        assert_eq!(w.claim(&other).next_due, None);
    }

    "G1" a_paused_queue_is_passed_by_until_it_is_resumed(w) {
        let id = w.put_one();
        let set = |pause| QueueChange { pause: Some(pause), ..QueueChange::default() };
        w.store.configure(&name("default"), &set(Pause::Pause)).unwrap();
        assert!(w.claim_ids(&ask("ann", 1)).is_empty());
        w.store.configure(&name("default"), &set(Pause::Resume)).unwrap();
        assert_eq!(w.claim_ids(&ask("ann", 1)), [id]);
    }

    "G1" pausing_one_queue_leaves_the_others_alone(w) {
        w.put_one();
        let id = w.put(job("work").queue(name("other")));
        let pause = QueueChange { pause: Some(Pause::Pause), ..QueueChange::default() };
        w.store.configure(&name("default"), &pause).unwrap();
        let both = Claim { queues: vec![name("default"), name("other")], ..ask("ann", 10) };
        assert_eq!(w.claim_ids(&both), [id]);
    }

    "G9" a_tenants_burst_does_not_delay_another_tenants_job(w) {
        w.store.enqueue(&vec![of_tenant("loud").priority(-5); 1_000]).unwrap();
        w.pass(secs(60));
        let quiet = w.put(of_tenant("quiet").priority(5));
        assert!(w.claim_ids(&ask("ann", 2)).contains(&quiet));
    }

    "G9" tenants_share_a_claim_equally_and_leave_what_they_do_not_use(w) {
        w.store.enqueue(&vec![of_tenant("a"); 50]).unwrap();
        w.store.enqueue(&vec![of_tenant("b"); 50]).unwrap();
        w.store.enqueue(&vec![of_tenant("c"); 2]).unwrap();
        let claimed = w.claim(&ask("ann", 30)).attempts;
        let count = |who: &str| claimed.iter().filter(|attempt| attempt.tenant.as_str() == who).count();
        assert_eq!((count("a"), count("b"), count("c")), (14, 14, 2));
    }

    "G9" a_single_slot_serves_the_tenants_in_turn(w) {
        for who in ["a", "b", "c"] {
            w.store.enqueue(&vec![of_tenant(who); 3]).unwrap();
        }
        let mut claim = ask("ann", 1);
        let mut served = Vec::new();
        for _ in 0..9 {
            let claimed = w.claim(&claim);
            claim.cursor = claimed.cursor;
            served.push(claimed.attempts[0].tenant.as_str().to_owned());
        }
        for turn in served.chunks(3) {
            assert_eq!(turn.iter().map(String::as_str).collect::<BTreeSet<_>>(), ["a", "b", "c"].into(), "{served:?}");
        }
    }

    "G9" a_claim_reaches_more_tenants_than_it_serves_at_a_time(w) {
        let jobs: Vec<_> = (0..200).map(|n| of_tenant(&format!("t{n}"))).collect();
        w.store.enqueue(&jobs).unwrap();
        assert_eq!(w.claim_ids(&ask("ann", 150)).len(), 150);
        assert_eq!(w.claim_ids(&ask("ann", 150)).len(), 50);
    }

    "G9" a_claim_passes_a_bounded_number_of_lanes_by_and_the_next_goes_on_from_there(w) {
        let other = |n: usize| job("other").tenant(tenant(&format!("t{n}")));
        w.store.enqueue(&(0..PASS_LIMIT * 5 / 2).map(other).collect::<Vec<_>>()).unwrap();
        let mut claim = Claim { kinds: Some(vec![name("work")]), ..ask("ann", 1) };
        let mut round = |w: &mut World| {
            let mut claims = Vec::new();
            while claims.last().is_none_or(|last: &Claimed| last.cursor.is_midway()) {
                claims.push(w.claim(&claim));
                claim.cursor = claims.last().unwrap().cursor;
                assert!(claims.len() < 10, "it never comes around");
            }
            claims
        };
        // Wherever the round begins, it takes three claims: a hundred, a hundred, and the rest.
        for _ in 0..3 {
            assert_eq!(round(w).len(), 3);
        }
        for n in [0, 7, 120, 249] {
            let id = w.put(job("work").tenant(tenant(&format!("t{n}"))));
            let claims = round(w);
            assert!(claims.len() <= 3, "{claims:?}");
            assert_eq!(claims.last().unwrap().attempts[0].lease.job(), id);
        }
        assert_eq!(round(w).len(), 3);
    }

    "G9" lanes_of_kinds_that_are_asked_for_are_not_passed_by(w) {
        let jobs = (0..PASS_LIMIT + 50).map(|n| of_tenant(&format!("t{n}")));
        w.store.enqueue(&jobs.collect::<Vec<_>>()).unwrap();
        let claimed = w.claim(&ask("ann", PASS_LIMIT + 40));
        assert_eq!((claimed.attempts.len(), claimed.cursor.is_midway()), (PASS_LIMIT + 40, false));
    }

    "G7" after_a_claim_whose_answer_was_lost_held_tells_the_same(w) {
        w.put_one();
        w.put_one();
        let lost = w.claim(&ask("ann", 2)).attempts;
        let held = w.store.held(&worker("ann"), None).unwrap();
        assert_eq!(held, lost);
        assert!(w.store.held(&worker("bob"), None).unwrap().is_empty());
        w.settle(held[0].lease.fence(), complete());
        assert_eq!(w.store.held(&worker("ann"), None).unwrap(), lost[1..]);
    }

    "G7" each_claim_of_a_worker_is_answered_again_by_its_number(w) {
        for _ in 0..3 {
            w.put_one();
        }
        let lost = |request| Claim { request, ..ask("ann", 1) };
        let (first, second) = (w.claim(&lost(7)).attempts, w.claim(&lost(8)).attempts);
        w.claim(&Claim { request: 7, ..ask("bob", 1) });
        let held = |w: &mut super::World, request| w.store.held(&worker("ann"), Some(request)).unwrap();
        assert_eq!((held(w, 7), held(w, 8), held(w, 9)), (first.clone(), second.clone(), vec![]));
        assert_eq!(w.store.held(&worker("ann"), None).unwrap(), [first.clone(), second].concat());
        w.settle(first[0].lease.fence(), tenure::engine::lifecycle::Outcome::Release);
        assert_eq!(held(w, 7), [], "what was given back is not held");
        w.claim(&lost(9));
        assert_eq!((held(w, 7).len(), held(w, 9).len()), (0, 1));
    }

    "G4" a_worker_takes_one_suspect_at_a_time(w) {
        let suspects = [w.suspect("a"), w.suspect("b"), w.suspect("c")];
        let claimed = w.claim_ids(&ask("ann", 10));
        assert_eq!(claimed, suspects[..1]);
        assert!(w.claim_ids(&ask("ann", 10)).is_empty());
        assert_eq!(w.claim_ids(&ask("bob", 10)), suspects[1..2]);
    }

    "G4" a_suspect_does_not_hold_up_the_others(w) {
        let suspect = w.suspect("bad");
        let second = w.suspect("worse");
        let good = [w.put_one(), w.put_one()];
        let claimed = w.claim_ids(&ask("ann", 10));
        assert_eq!(claimed, [suspect, good[0], good[1]]);
        assert_eq!(w.claim_ids(&ask("bob", 10)), [second]);
    }

    "G4" a_suspect_has_no_priority_over_others_of_its_tenant(w) {
        w.suspect("bad");
        let urgent = w.put(job("work").priority(-1));
        assert_eq!(w.claim_ids(&ask("ann", 1)), [urgent]);
    }

    "G4" suspicion_ends_with_the_attempt_or_after_its_time(w) {
        let suspects = [w.suspect("a"), w.suspect("b"), w.suspect("c")];
        let first = w.take("ann");
        w.settle(first.lease.fence(), complete());
        let long = Claim { lease: SUSPICION * 2, ..ask("ann", 10) };
        assert_eq!(w.claim_ids(&long), [suspects[1]]);
        w.pass(SUSPICION - Duration::from_millis(1));
        assert!(w.claim_ids(&long).is_empty());
        w.pass(Duration::from_millis(1));
        assert_eq!(w.claim_ids(&long), [suspects[2]]);
    }

    "G6" a_claim_that_makes_no_sense_is_refused(w) {
        let id = w.put_one();
        for bad in [
            Claim { queues: vec![], ..ask("ann", 1) },
            Claim { n: 1_001, ..ask("ann", 1) },
            Claim { lease: Duration::ZERO, ..ask("ann", 1) },
            Claim { lease: Duration::MAX, ..ask("ann", 1) },
        ] {
            assert!(w.store.claim(&bad).unwrap_err().is_invalid(), "{bad:?}");
            assert!(w.store.settle_and_claim(&[], &bad).unwrap_err().is_invalid(), "{bad:?}");
        }
        assert_eq!(w.state(id), State::Queued);
    }

    "G9" of_too_many_that_are_due_the_oldest_are_promoted_first(w) {
        let oldest = w.put(job("work").delay(secs(1)));
        w.store.enqueue(&vec![job("work").delay(secs(2)); PROMOTE_LIMIT]).unwrap();
        w.pass(secs(2));
        assert_eq!(w.claim_ids(&ask("ann", 1)), [oldest]);
    }

    "G1" names_whose_numbers_collide_are_told_apart(w) {
        // Found by search: two queues that are equal in the first 20 bits of their SHA-256, and two
        // kinds that are equal in the first 15.
        let (queue, double) = (name("q670"), name("q927"));
        w.put(job("work").queue(double));
        let mine = w.put(job("work").queue(queue.clone()));
        assert_eq!(w.claim_ids(&Claim { queues: vec![queue], ..ask("ann", 10) }), [mine]);
        w.put(job("q315"));
        let mine = w.put(job("q99"));
        assert_eq!(w.claim_ids(&Claim { kinds: Some(vec![name("q99")]), ..ask("ann", 10) }), [mine]);
    }

    "I11" suspects_in_the_last_queue_of_all_are_found(w) {
        // Found by search: the first 20 bits of its SHA-256 are all ones, so its lanes come last.
        let last = name("q2765465");
        let in_last = |who| Claim { queues: vec![name("q2765465")], ..ask(who, 1) };
        let id = w.put(job("work").queue(last).max_crashes(NonZeroU16::new(2).unwrap()));
        assert_eq!(w.claim_ids(&in_last("ann")), [id]);
        w.pass(LEASE);
        assert_eq!(w.claim_ids(&in_last("bob")), [id]);
    }

    "I2" after_the_epoch_has_risen_every_new_token_is_above_all_of_the_epoch_before(w) {
        let ids: Vec<_> = (0..4).map(|_| w.put_one()).collect();
        let claimed = w.claim(&ask("ann", 3)).attempts;
        assert_eq!(w.store.raise_epoch("a test").unwrap(), 1);
        w.settle(claimed[0].lease.fence(), tenure::engine::lifecycle::Outcome::Release);
        w.store.cancel(&[ids[1]]).unwrap();
        w.pass(LEASE);
        w.lapse(&[claimed[2].lease.fence()]);
        for id in &ids[..3] {
            assert_eq!(w.record(*id).token, Token((1 << 40) + 1), "{id}");
        }
        let taken = w.claim(&ask("bob", 9)).attempts;
        assert_eq!(taken.iter().map(|attempt| attempt.lease.token().0 - (1 << 40)).max(), Some(2));
        assert_eq!(w.record(ids[3]).token, Token((1 << 40) + 1));
        w.store.requeue(&[tenure::engine::store::AsSeen::any(ids[1])]).unwrap();
        assert_eq!(w.record(ids[1]).token, Token((1 << 40) + 2));
    }

    "G5" a_crashed_job_is_found_again_whatever_the_number_of_its_queue(w) {
        // Found by search: this queue's number is the greatest that a queue can have, 20 bits of
        // ones.
        let last = Claim { queues: vec![name("q2765465")], ..ask("ann", 1) };
        let id = w.put(job("work").queue(name("q2765465")));
        assert_eq!(w.claim_ids(&last), [id]);
        w.pass(LEASE);
        assert_eq!(w.claim_ids(&last), [id]);
    }

    "G1" a_claim_and_held_tell_every_option_of_a_job(w) {
        let asked = job("mail").tenant(tenant("acme")).priority(4).max_runtime(secs(20)).key(key("k"));
        let asked = asked.trace("00-abc").unwrap().tags(vec![name("a"), name("b")]).unwrap();
        let asked = asked.retry(RetryPolicy::Fixed { ms: 250 }).max_attempts(NonZeroU16::new(9).unwrap());
        let enqueued = w.now();
        let id = w.put(asked.max_crashes(NonZeroU16::new(7).unwrap()));
        w.pass(secs(1));
        w.take("doomed");
        w.pass(LEASE);
        let told = w.take("ann");
        let record = w.record(id);
        assert_eq!(w.store.held(&worker("ann"), None).unwrap(), std::slice::from_ref(&told));
        assert_eq!((told.key.as_deref(), told.extras.trace.as_deref()), (Some("k"), Some("00-abc")));
        assert_eq!((told.extras.tags, told.retry), (vec![name("a"), name("b")], RetryPolicy::Fixed { ms: 250 }));
        assert_eq!((told.attempt, told.max_attempts, told.crashes, told.max_crashes), (2, 9, 1, 7));
        assert_eq!((told.max_runtime_ms, told.enqueued_at, told.started_at), (Some(20_000), enqueued, w.now()));
        assert_eq!((told.lease.until(), record.leased_at, record.lease_ms), (w.now() + secs(20), Some(w.now()), Some(30_000)));
    }
}
