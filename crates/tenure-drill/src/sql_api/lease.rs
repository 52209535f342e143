//! The race for a lease between two sessions.

use super::{
    Case, Lease, as_each, claim, claim_many, effects, enqueue, running, sql_cases, state, take_over,
};
use crate::sessions::{Lab, fault};

pub(super) const CASES: &[Case] = sql_cases! {
    "lease":
    a_worker_that_lost_its_lease_cannot_complete_and_its_writes_go_with_it,
    a_refusal_tells_a_person_what_happened_and_what_to_do,
    every_end_of_an_attempt_is_refused_to_an_old_token,
    a_late_worker_whose_job_nobody_took_may_still_complete,
    a_lease_is_over_by_the_servers_own_clock,
    a_renewed_lease_is_not_taken_over,
    a_claim_takes_a_share_from_each_tenant_and_the_most_urgent_of_each,
    a_claim_serves_the_queues_and_kinds_it_names_and_answers_what_a_worker_needs,
    a_paused_queue_gives_out_nothing_until_it_is_resumed,
    a_claim_in_a_transaction_that_has_written_something_is_refused_with_what_to_do,
    a_claim_of_no_number_of_jobs_is_refused,
    a_renewal_of_a_busy_job_tells_until_when_its_own_lease_holds,
    a_failed_job_waits_for_as_long_as_its_own_policy_says,
};

/// G2: a worker that stalled wakes up after another has taken its job, and tries to complete it.
fn a_worker_that_lost_its_lease_cannot_complete_and_its_writes_go_with_it() {
    as_each(|lab, who| {
        let (mut first, mut second) = (who.session(lab), who.session(lab));
        let slow = running(&mut first);
        first.batch_execute(&format!("BEGIN; {}", slow.effect())).unwrap();
        let quick = take_over(lab, &mut second);
        assert!(quick.token > slow.token, "{quick:?} after {slow:?}");

        let refusal = fault(first.batch_execute(&slow.call("complete")));
        assert_eq!(refusal.code().code(), "TN001");
        first.batch_execute("COMMIT").unwrap();
        assert_eq!(effects(lab), 0, "the transaction was rolled back");

        let both = format!("BEGIN; {}; {}; COMMIT", quick.effect(), quick.call("complete"));
        second.batch_execute(&both).unwrap();
        assert_eq!((effects(lab), state(lab, slow.job)), (1, "succeeded".into()));
        let winner = lab.number("SELECT token FROM public.effects");
        assert_eq!(winner, quick.token);
    });
}

fn a_refusal_tells_a_person_what_happened_and_what_to_do() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let slow = running(&mut session);
        let quick = take_over(lab, &mut session);
        let refusal = fault(session.batch_execute(&slow.call("complete")));
        assert_eq!(refusal.message(), "complete refused: token 1 is not the right to job 1");
        let detail = refusal.detail().unwrap();
        assert_eq!(
            detail,
            format!("token_mismatch: the job's token is {}, and it is running.", quick.token)
        );
        let hint = refusal.hint().unwrap();
        assert!(
            hint.contains("Stop working on it")
                && hint.contains("tenure.refused(1, 1, 'complete')"),
            "{hint}"
        );

        session.batch_execute(&quick.call_with("snooze", ", '1 s'")).unwrap();
        let refusal = fault(session.batch_execute(&quick.call("complete")));
        assert_eq!(
            refusal.detail().unwrap(),
            "already_settled: the attempt has ended, and the job is queued."
        );
        let refusal = fault(session.batch_execute("SELECT tenure.complete(77, 1)"));
        assert_eq!(refusal.detail().unwrap(), "There is no such job, or no longer.");
    });
}

fn every_end_of_an_attempt_is_refused_to_an_old_token() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let slow = running(&mut session);
        let quick = take_over(lab, &mut session);
        for (verb, more) in [
            ("complete", ", '{}'"),
            ("fail", ", 'no'"),
            ("fail", ", 'no', '1 s'"),
            ("snooze", ", '1 s'"),
            ("release", ""),
            ("bury", ", 'never'"),
            ("park", ", 'later'"),
            ("renew", ""),
            ("progress", ", 0.4, 'late'"),
            ("fence", ""),
            ("hold", ""),
        ] {
            let refusal = fault(session.batch_execute(&slow.call_with(verb, more)));
            assert_eq!(refusal.code().code(), "TN001", "{verb}");
            let said = if verb == "fail" { "retry" } else { verb };
            assert!(
                refusal.message().starts_with(&format!("{said} refused: ")),
                "{}",
                refusal.message()
            );
        }
        assert_eq!(state(lab, slow.job), "running");
        session.batch_execute(&quick.call("complete")).unwrap();
    });
}

/// The token decides, not the time.
fn a_late_worker_whose_job_nobody_took_may_still_complete() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let lease = running(&mut session);
        lab.advance(3_600_000);
        session.batch_execute(&lease.call("complete")).unwrap();
        assert_eq!(state(lab, lease.job), "succeeded");
    });
}

/// The same race on the server's real clock, which the test cannot move.
fn a_lease_is_over_by_the_servers_own_clock() {
    as_each(|lab, who| {
        lab.run_clock();
        let (mut first, mut second) = (who.session(lab), who.session(lab));
        enqueue(&mut first, "work");
        let slow = claim(&mut first, 50);
        // A transaction that stays open does not stop the clock for other sessions.
        first.batch_execute(&format!("BEGIN; {}", slow.effect())).unwrap();
        lab.wait_until("SELECT tenure.now() >= max(lease_until) FROM tenure.job");
        let quick = claim(&mut second, 60_000);
        assert!(quick.token > slow.token);
        assert_eq!(fault(first.batch_execute(&slow.call("complete"))).code().code(), "TN001");
    });
}

fn a_renewed_lease_is_not_taken_over() {
    as_each(|lab, who| {
        let (mut first, mut second) = (who.session(lab), who.session(lab));
        let lease = running(&mut first);
        lab.advance(200);
        first.batch_execute(&lease.call_with("renew", ", '300 ms'")).unwrap();
        lab.advance(200);
        assert_eq!(claim_many(&mut second, 1, 300), []);
        lab.advance(100);
        assert_eq!(claim_many(&mut second, 1, 300).len(), 1, "then it is over");
    });
}

/// G9, and the order within a tenant.
fn a_claim_takes_a_share_from_each_tenant_and_the_most_urgent_of_each() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let mut put = |tenant: &str, priority: i32, kind: &str| {
            let sql = "SELECT tenure.enqueue($1, tenant => $2, priority => $3)";
            session.query_one(sql, &[&kind, &tenant, &priority]).unwrap();
        };
        for n in 0..20 {
            put("burst", 0, &format!("burst.{n:02}"));
        }
        put("burst", -1, "urgent");
        put("small", 5, "small.late");
        put("small", 0, "small.first");
        let ask = "SELECT tenant, kind FROM tenure.claim('ann', n => $1)";
        let mut take = |n: i32| {
            let rows = session.query(ask, &[&n]).unwrap();
            rows.iter().map(|row| (row.get(0), row.get(1))).collect::<Vec<(String, String)>>()
        };
        let mut first = take(2);
        first.sort();
        assert_eq!(
            first,
            [("burst".into(), "urgent".into()), ("small".into(), "small.first".into())]
        );
        let rest = take(9);
        let of = |tenant: &str| {
            let kinds = rest.iter().filter(|(whose, _)| whose == tenant);
            kinds.map(|(_, kind)| kind.clone()).collect::<Vec<_>>()
        };
        assert_eq!(of("small"), ["small.late"]);
        assert_eq!(of("burst"), (0..8).map(|n| format!("burst.{n:02}")).collect::<Vec<_>>());
    });
}

fn a_claim_serves_the_queues_and_kinds_it_names_and_answers_what_a_worker_needs() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        for (kind, queue) in [("a", "mail"), ("b", "mail"), ("a", "default")] {
            let sql = "SELECT tenure.enqueue($1, '{\"n\": 1}', queue => $2, tenant => 'acme')";
            session.query_one(sql, &[&kind, &queue]).unwrap();
        }
        let row = session
            .query_one(
                "SELECT id, token, kind, queue, tenant, args::text, attempt, lease_until = tenure.now() + interval '7 s'
                   FROM tenure.claim(worker => 'ann', queues => '{mail}', n => 10, lease => '7 s', kinds => '{b,c}')",
                &[],
            )
            .unwrap();
        let got = Lease { job: row.get(0), token: row.get(1) };
        assert_eq!(got, Lease { job: 2, token: 1 });
        assert_eq!(
            [row.get::<_, &str>(2), row.get(3), row.get(4), row.get(5)],
            ["b", "mail", "acme", "{\"n\": 1}"]
        );
        assert_eq!((row.get::<_, i32>(6), row.get::<_, bool>(7)), (1, true));
    });
}

fn a_paused_queue_gives_out_nothing_until_it_is_resumed() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        enqueue(&mut session, "work");
        lab.number("SELECT 1::bigint FROM tenure.configure('default', p_pause => true)");
        assert_eq!(claim_many(&mut session, 1, 300), []);
        lab.number("SELECT 1::bigint FROM tenure.configure('default', p_pause => false)");
        assert_eq!(claim_many(&mut session, 1, 300).len(), 1);
    });
}

/// I2: the token of a claim that is rolled back is issued again, so a claim is refused in a
/// transaction that has written something else.
fn a_claim_in_a_transaction_that_has_written_something_is_refused_with_what_to_do() {
    as_each(|lab, who| {
        // With a test clock nothing would be refused (`tenure.check_alone`): the explorer makes its
        // calls in transactions that it always rolls back.
        lab.run_clock();
        let mut session = who.session(lab);
        enqueue(&mut session, "work");
        enqueue(&mut session, "work");
        let settlement = "'{1}', '{1}', '{complete}', '{0}', '{NULL}', '{NULL}'";
        let claims = [
            "SELECT tenure.claim('ann')".to_owned(),
            "SELECT tenure.claim_many('ann', '{default}', NULL, 1, 1000)".to_owned(),
            format!(
                "SELECT tenure.settle_and_claim({settlement}, 'ann', '{{default}}', NULL, 1, 1000)"
            ),
        ];
        for claim in &claims {
            for written in [
                "INSERT INTO public.effects VALUES (1, 1, 'mine')",
                "SELECT tenure.enqueue('work')",
                "SAVEPOINT a; SELECT tenure.enqueue('work'); RELEASE a",
                "SELECT tenure.claim('bob')",
            ] {
                let refusal = fault(session.batch_execute(&format!("BEGIN; {written}; {claim}")));
                assert_eq!(refusal.code().code(), "TN003", "{written}; {claim}");
                assert_eq!(refusal.column(), Some("transaction"));
                assert!(refusal.hint().unwrap().contains("autocommit"), "{refusal:?}");
                session.batch_execute("ROLLBACK").unwrap();
            }
            // A claim that is the first write of its transaction is accepted, also after a read.
            session
                .batch_execute(&format!(
                    "BEGIN; SELECT count(*) FROM public.effects; {claim}; ROLLBACK"
                ))
                .unwrap();
        }
        let knowing = claims[1].replace("1000)", "1000, p_in_transaction => true)");
        session
            .batch_execute(&format!("BEGIN; SELECT tenure.enqueue('work'); {knowing}; ROLLBACK"))
            .unwrap();
        session.batch_execute(&claims[0]).unwrap();
        session.batch_execute(&claims[2]).unwrap();
        let tokens = "SELECT string_agg(id || ':' || token || ' ' || state, ', ' ORDER BY id) FROM tenure.job WHERE token > 0";
        assert_eq!(lab.text(tokens), "1:1 succeeded, 2:1 running");
    });
}

fn a_claim_of_no_number_of_jobs_is_refused() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        enqueue(&mut session, "work");
        for n in ["NULL", "-1"] {
            let refusal =
                fault(session.batch_execute(&format!("SELECT tenure.claim('ann', n => {n})")));
            assert_eq!((refusal.code().code(), refusal.column()), ("TN003", Some("n")), "{n}");
        }
        assert_eq!(claim_many(&mut session, 0, 300), []);
        assert_eq!(claim_many(&mut session, 1, 300).len(), 1);
    });
}

fn a_renewal_of_a_busy_job_tells_until_when_its_own_lease_holds() {
    let lab = Lab::new();
    let (mut user, mut other) = (lab.session(), lab.session());
    enqueue(&mut user, "short");
    claim(&mut user, 300);
    enqueue(&mut user, "long");
    let long = claim(&mut user, 60_000);
    user.batch_execute(&format!("BEGIN; {}", long.call("hold"))).unwrap();
    let ask = format!(
        "{} = (SELECT lease_until FROM tenure.job WHERE id = {})",
        long.call("renew"),
        long.job
    );
    assert!(other.query_one(&ask, &[]).unwrap().get::<_, bool>(0));
}

fn a_failed_job_waits_for_as_long_as_its_own_policy_says() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        for ms in [5_000, 9_000] {
            let job =
                format!("SELECT tenure.enqueue('work', retry => '{{\"fixed\":{{\"ms\":{ms}}}}}')");
            session.batch_execute(&job).unwrap();
        }
        let leases = claim_many(&mut session, 2, 300);
        assert_eq!(leases[0].token, leases[1].token, "tokens are numbers of one job");
        for (lease, ms) in leases.into_iter().zip([5_000, 9_000]).rev() {
            session.batch_execute(&lease.call_with("fail", ", 'no'")).unwrap();
            let wait =
                "SELECT (extract(epoch FROM run_at - tenure.now()) * 1000)::bigint FROM tenure.job";
            assert_eq!(lab.number(&format!("{wait} WHERE id = {}", lease.job)), ms);
        }
    });
}
