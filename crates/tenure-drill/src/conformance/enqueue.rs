//! How jobs are enqueued.

use std::num::NonZeroU16;

use tenure::engine::job::{Fingerprint, NewJob, RetryPolicy, State};
use tenure::engine::store::Enqueued;
use tenure::{Timestamp, Token};

use super::{ask, complete, job, json, key, name, promises, secs, tenant};

promises! { "enqueue":
    "G1" a_job_that_was_acknowledged_is_there(w) {
        let id = w.put(NewJob::new(name("mail"), json(r#"{"to":"a@b.c"}"#)));
        let stored = w.record(id);
        assert_eq!((stored.id, stored.state, stored.kind.as_str()), (id, State::Queued, "mail"));
        assert_eq!(stored.args.as_str(), r#"{"to":"a@b.c"}"#);
    }

    "G1" a_job_without_options_has_the_documented_defaults(w) {
        let id = w.put_one();
        let stored = w.record(id);
        assert_eq!((stored.queue.as_str(), stored.tenant.as_str(), stored.priority), ("default", "", 0));
        assert_eq!((stored.attempt, stored.max_attempts, stored.crashes, stored.max_crashes), (0, 6, 0, 5));
        assert_eq!((stored.retry, stored.max_runtime_ms), (RetryPolicy::default(), None));
        assert_eq!((stored.token, stored.run_at, stored.enqueued_at), (Token::NONE, w.now(), w.now()));
        assert!(!stored.waiting && stored.key.is_none() && stored.extras.tags.is_empty());
    }

    "G1" every_option_is_kept_as_it_was_given(w) {
        let list = RetryPolicy::list(&[1_000, 2_000, 4_000, 8_000, 16_000]);
        let given = job("mail").queue(name("bulk")).tenant(tenant("acme")).priority(-7).delay(secs(5));
        let given = given.max_attempts(NonZeroU16::new(9).unwrap()).max_crashes(NonZeroU16::new(2).unwrap());
        let given = given.retry(list.clone()).max_runtime(secs(90)).key(key("k 1"));
        let given = given.trace("00-abc-def-01").unwrap().tags(vec![name("a"), name("b.c")]).unwrap();
        let id = w.put(given);
        let stored = w.record(id);
        assert_eq!((stored.queue.as_str(), stored.tenant.as_str(), stored.priority), ("bulk", "acme", -7));
        assert_eq!((stored.max_attempts, stored.max_crashes, stored.retry), (9, 2, list));
        assert_eq!((stored.max_runtime_ms, stored.key.as_deref()), (Some(90_000), Some("k 1")));
        assert_eq!((stored.extras.trace.as_deref(), stored.extras.tags), (Some("00-abc-def-01"), vec![name("a"), name("b.c")]));
        assert_eq!((stored.waiting, stored.run_at), (true, w.now() + secs(5)));
    }

    "G1" a_fixed_retry_policy_is_kept(w) {
        let id = w.put(job("work").retry(RetryPolicy::Fixed { ms: 250 }));
        assert_eq!(w.record(id).retry, RetryPolicy::Fixed { ms: 250 });
    }

    "I9" ids_rise_in_the_order_of_the_batch(w) {
        let batch = [job("a"), job("b"), job("c")];
        let first = w.store.enqueue(&batch).unwrap();
        let second = w.store.enqueue(&batch).unwrap();
        let ids: Vec<_> = first.iter().chain(&second).map(|answer| match answer {
            Enqueued::Created(id) => id.0,
            other => panic!("{other:?}"),
        }).collect();
        assert_eq!(ids, [1, 2, 3, 4, 5, 6]);
    }

    "G1" an_empty_batch_is_answered_with_nothing(w) {
        assert!(w.store.enqueue(&[]).unwrap().is_empty());
    }

    "G6" a_delay_is_counted_from_the_stores_clock(w) {
        let id = w.put(job("work").delay(secs(60)));
        w.pass(secs(59));
        assert!(w.claim(&ask("ann", 1)).attempts.is_empty());
        w.pass(secs(1));
        assert_eq!(w.claim_ids(&ask("ann", 1)), [id]);
    }

    "G1" a_time_in_the_past_means_at_once(w) {
        let id = w.put(job("work").at(w.now() - secs(3_600)));
        assert!(!w.record(id).waiting);
        assert_eq!(w.claim_ids(&ask("ann", 1)), [id]);
    }

    "G1" args_are_kept_byte_for_byte_whatever_their_size(w) {
        for size in [2, 2_047, 2_048, 2_049, 256 * 1024 - 2] {
            let text = format!("\"{}\"", "x".repeat(size));
            let id = w.put(NewJob::new(name("work"), json(&text)));
            assert_eq!(w.record(id).args.as_str(), text);
            let attempt = w.take("ann");
            assert_eq!(attempt.args.as_str(), text);
            w.settle(attempt.lease.fence(), complete());
            assert_eq!(w.record(id).args.as_str(), text);
        }
        let odd = " { \"b\" : 1.50 , \"a\" : \"\\u00e9 ☃ ' ;--\" } ";
        let id = w.put(NewJob::new(name("work"), json(odd)));
        assert_eq!(w.record(id).args.as_str(), odd);
    }

    "G1" args_above_the_limit_are_refused_and_nothing_is_stored(w) {
        let large = tenure::Json::check("args", format!("\"{}\"", "x".repeat(256 * 1024)), usize::MAX).unwrap();
        let refused = w.store.enqueue(&[job("work"), NewJob::new(name("work"), large)]).unwrap_err();
        let text = refused.to_string();
        assert!(refused.is_invalid() && text.contains("262146 bytes") && text.contains("262144"), "{text}");
        assert!(w.dump().jobs.is_empty());
    }

    "G1" a_list_of_retries_is_neither_empty_nor_endless(w) {
        let with = |n: usize| job("work").retry(RetryPolicy::List { ms: vec![1; n].into() });
        for n in [0, 65, 100_000] {
            assert!(w.store.enqueue(&[job("work"), with(n)]).unwrap_err().is_invalid(), "{n}");
        }
        assert!(w.dump().jobs.is_empty());
        w.put(with(64));
    }

    "G1" a_batch_above_the_limit_is_refused_and_nothing_is_stored(w) {
        let batch = vec![job("work"); 1_001];
        assert!(w.store.enqueue(&batch).unwrap_err().is_invalid());
        assert!(w.dump().jobs.is_empty());
        assert_eq!(w.store.enqueue(&batch[..1_000]).unwrap().len(), 1_000);
    }

    "I12" the_same_key_returns_the_first_job_and_says_so(w) {
        let id = w.put(job("work").key(key("k")));
        let before = w.dump();
        assert_eq!(w.store.enqueue(&[job("work").key(key("k"))]).unwrap(), [Enqueued::Existing(id)]);
        assert_eq!(w.dump(), before);
    }

    "I12" another_kind_or_other_args_under_a_key_are_a_conflict(w) {
        let id = w.put(job("work").key(key("k")));
        let other_args = NewJob::new(name("work"), json("[1]")).key(key("k"));
        let answers = w.store.enqueue(&[job("play").key(key("k")), other_args]).unwrap();
        assert_eq!(answers, [Enqueued::Conflict(id), Enqueued::Conflict(id)]);
        assert_eq!(w.dump().jobs.len(), 1);
    }

    "I12" the_spelling_of_args_does_not_make_another_request(w) {
        let spelled = |text| NewJob::new(name("work"), json(text)).key(key("k"));
        let id = w.put(spelled(r#"{"a":1,"b":[true]}"#));
        let again = spelled(" {\"b\" : [ true ], \"\\u0061\": 1}");
        assert_eq!(w.store.enqueue(&[again]).unwrap(), [Enqueued::Existing(id)]);
        assert_eq!(w.store.enqueue(&[spelled(r#"{"a":1.0,"b":[true]}"#)]).unwrap(), [Enqueued::Conflict(id)]);
    }

    "I12" a_given_fingerprint_is_compared_instead_of_the_args(w) {
        let with = |text, print| {
            let mut key = key("k");
            key.fingerprint = Some(Fingerprint([print; 32]));
            NewJob::new(name("work"), json(text)).key(key)
        };
        let id = w.put(with("1", 7));
        let answers = w.store.enqueue(&[with("2", 7), with("1", 8)]).unwrap();
        assert_eq!(answers, [Enqueued::Existing(id), Enqueued::Conflict(id)]);
    }

    "I15" the_same_key_of_another_tenant_is_another_key(w) {
        let first = w.put(job("work").key(key("k")).tenant(tenant("a")));
        let second = w.put(job("play").key(key("k")).tenant(tenant("b")));
        assert_ne!(first, second);
    }

    "I12" a_key_is_free_again_after_its_window(w) {
        let id = w.put(job("work").key(key("k").window(secs(10))));
        w.pass(secs(9));
        assert_eq!(w.store.enqueue(&[job("work").key(key("k"))]).unwrap(), [Enqueued::Existing(id)]);
        w.pass(secs(1));
        let anew = w.put(job("play").key(key("k")));
        assert_ne!(id, anew);
        assert_eq!(w.store.enqueue(&[job("play").key(key("k"))]).unwrap(), [Enqueued::Existing(anew)]);
    }

    "I12" a_key_is_remembered_for_a_day_by_default(w) {
        w.put(job("work").key(key("k")));
        w.pass(secs(24 * 60 * 60 - 1));
        assert!(matches!(w.store.enqueue(&[job("work").key(key("k"))]).unwrap()[..], [Enqueued::Existing(_)]));
        w.pass(secs(1));
        w.put(job("work").key(key("k")));
    }

    "I12" a_key_outlives_its_job(w) {
        let id = w.put(job("work").key(key("k")));
        let fence = w.take("ann").lease.fence();
        w.settle(fence, complete());
        w.store.purge(&[tenure::engine::store::AsSeen::any(id)]).unwrap();
        assert_eq!(w.store.enqueue(&[job("work").key(key("k"))]).unwrap(), [Enqueued::Existing(id)]);
    }

    "I12" equal_keys_within_a_batch_are_folded(w) {
        let batch = [job("a").key(key("k")), job("b"), job("a").key(key("k")), job("c").key(key("k"))];
        let answers = w.store.enqueue(&batch).unwrap();
        let Enqueued::Created(first) = answers[0] else { panic!("{answers:?}") };
        assert!(matches!(answers[1], Enqueued::Created(_)));
        assert_eq!(answers[2..], [Enqueued::Existing(first), Enqueued::Conflict(first)]);
        assert_eq!(w.dump().jobs.len(), 2);
    }

    "I10" a_job_far_in_the_future_never_overflows(w) {
        let id = w.put(job("work").delay(std::time::Duration::MAX));
        assert!(w.record(id).waiting);
        assert!(w.claim(&ask("ann", 1)).attempts.is_empty());
    }

    "I12" a_key_that_is_remembered_for_no_time_is_nobodys(w) {
        let brief = || job("work").key(key("k").window(std::time::Duration::ZERO));
        let lasting = || job("work").key(key("k"));
        let answers = w.store.enqueue(&[brief(), brief(), lasting(), lasting(), brief()]).unwrap();
        let [Enqueued::Created(_), Enqueued::Created(_), Enqueued::Created(third), rest @ ..] = &answers[..] else {
            panic!("{answers:?}")
        };
        assert_eq!(rest, [Enqueued::Existing(*third), Enqueued::Existing(*third)]);
        assert_eq!(w.store.enqueue(&[lasting()]).unwrap(), [Enqueued::Existing(*third)]);
    }

    "I12" what_a_batch_repeats_is_compared_with_the_job_that_has_the_key(w) {
        let id = w.put(job("work").key(key("k")));
        let batch = ["play", "play", "work"].map(|kind| job(kind).key(key("k")));
        let answers = w.store.enqueue(&batch).unwrap();
        assert_eq!(answers, [Enqueued::Conflict(id), Enqueued::Conflict(id), Enqueued::Existing(id)]);
    }

    "I12" a_batch_folds_only_what_has_a_key_and_only_within_a_tenant(w) {
        let of = |who: &str| job(who).tenant(tenant(who)).key(key("k"));
        let answers = w.store.enqueue(&[job("a"), of("a"), job("b"), of("b"), job("a")]).unwrap();
        assert!(answers.iter().all(|answer| matches!(answer, Enqueued::Created(_))), "{answers:?}");
    }

    "I10" whatever_is_due_after_the_end_of_time_is_due_then(w) {
        let far = std::time::Duration::MAX;
        for job in [job("work").delay(far), job("work").at(Timestamp::from_millis(i64::MAX))] {
            let id = w.put(job);
            assert_eq!(w.record(id).run_at, Timestamp::MAX);
        }
        let id = w.put(job("work").key(key("k").window(far)));
        let fence = w.take("ann").lease.fence();
        w.settle(fence, super::retry(far));
        assert_eq!(w.record(id).run_at, Timestamp::MAX);
        assert_eq!(w.dump().keys[0].expires_at, Timestamp::MAX);
    }

    "G1" a_retry_policy_may_use_every_number(w) {
        let most = u64::MAX;
        for policy in [
            RetryPolicy::Fixed { ms: most },
            RetryPolicy::List { ms: vec![0, most].into() },
            RetryPolicy::Exponential { base_ms: most, cap_ms: most },
        ] {
            let id = w.put(job("work").retry(policy.clone()));
            assert_eq!(w.record(id).retry, policy);
        }
    }
}
