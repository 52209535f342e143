//! A fence in a user's own transaction: proved at COMMIT, without blocking renewals before that.

use super::{Case, as_each, claim_many, effects, enqueue, running, sql_cases, state, take_over};
use crate::sessions::fault;

pub(super) const CASES: &[Case] = sql_cases! {
    "fence":
    a_takeover_before_commit_makes_the_commit_of_a_fenced_transaction_fail,
    a_fenced_transaction_commits_while_the_job_is_held_and_the_job_runs_on,
    whatever_ends_the_attempt_in_the_same_transaction_proves_its_fences,
    the_set_form_proves_fences_too_but_only_by_what_it_settled,
    fences_on_two_jobs_are_each_checked,
    a_fence_that_was_rolled_back_to_a_savepoint_is_not_checked,
    a_fence_under_a_savepoint_that_was_kept_is_checked,
    a_completion_that_was_rolled_back_to_a_savepoint_leaves_the_fence_to_be_checked,
    a_cancellation_before_commit_makes_the_commit_of_a_fenced_transaction_fail,
    only_a_strict_fence_refuses_a_lease_that_is_over_and_that_nobody_took,
    renewals_go_through_while_a_fenced_transaction_is_open,
    constraints_that_are_made_immediate_check_at_once_and_hold_the_job,
    a_held_job_is_neither_taken_nor_settled_by_anybody_else_until_the_end_of_the_transaction,
    a_fence_and_a_hold_are_refused_at_once_unless_this_job_runs_under_this_token,
    a_job_that_was_given_back_before_commit_makes_the_commit_of_a_fenced_transaction_fail,
    a_completion_under_a_newer_token_proves_no_fence_of_an_older_one,
};

fn a_takeover_before_commit_makes_the_commit_of_a_fenced_transaction_fail() {
    as_each(|lab, who| {
        let (mut first, mut second) = (who.session(lab), who.session(lab));
        let slow = running(&mut first);
        first.batch_execute(&format!("BEGIN; {}; {}", slow.effect(), slow.call("fence"))).unwrap();
        let quick = take_over(lab, &mut second);
        let refusal = fault(first.batch_execute("COMMIT"));
        assert_eq!(refusal.code().code(), "TN001");
        assert_eq!(refusal.message(), "commit refused: token 1 is not the right to job 1");
        assert_eq!(effects(lab), 0, "nothing of it was committed");
        second.batch_execute(&quick.call("complete")).unwrap();
    });
}

fn a_fenced_transaction_commits_while_the_job_is_held_and_the_job_runs_on() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let lease = running(&mut session);
        let write = format!("BEGIN; {}; {}; COMMIT", lease.call("fence"), lease.effect());
        session.batch_execute(&write).unwrap();
        // The same attempt may fence again: a fence is not a completion.
        session.batch_execute(&write).unwrap();
        assert_eq!((effects(lab), state(lab, lease.job)), (2, "running".into()));
        assert_eq!(lab.number("SELECT count(*) FROM tenure.fences"), 0);
    });
}

fn whatever_ends_the_attempt_in_the_same_transaction_proves_its_fences() {
    for (verb, more, became) in [
        ("complete", "", "succeeded"),
        ("fail", ", 'no'", "queued"),
        ("snooze", ", '0 s'", "queued"),
        ("release", "", "queued"),
        ("bury", ", 'never'", "dead"),
        ("park", ", 'later'", "parked"),
    ] {
        as_each(|lab, who| {
            let mut session = who.session(lab);
            let lease = running(&mut session);
            let (fence, settle) = (lease.call("fence"), lease.call_with(verb, more));
            session
                .batch_execute(&format!(
                    "BEGIN; {fence}; {}; {fence}; {settle}; COMMIT",
                    lease.effect()
                ))
                .unwrap_or_else(|error| panic!("{verb}: {error}"));
            assert_eq!((effects(lab), state(lab, lease.job)), (1, became.into()), "{verb}");
        });
    }
}

fn the_set_form_proves_fences_too_but_only_by_what_it_settled() {
    as_each(|lab, who| {
        let (mut first, mut second) = (who.session(lab), who.session(lab));
        enqueue(&mut first, "one");
        enqueue(&mut first, "two");
        let leases = claim_many(&mut first, 2, 300);
        let settle = |verdict: &str| {
            format!(
                "DO $$ BEGIN ASSERT '{verdict}' = (SELECT string_agg(verdict, ' ' ORDER BY n) FROM tenure.settle_many(
                 ARRAY[{0}, {2}], ARRAY[{1}, {3}], '{{complete,bury}}', '{{0,0}}', '{{NULL,no}}', '{{NULL,NULL}}')); END $$",
                leases[0].job, leases[0].token, leases[1].job, leases[1].token
            )
        };
        let fences = format!("{}; {}", leases[0].call("fence"), leases[1].call("fence"));
        let write =
            |verdict| format!("BEGIN; {fences}; {}; {}", leases[0].effect(), settle(verdict));
        first.batch_execute(&format!("{}; ROLLBACK", write("settled settled"))).unwrap();

        // `settle_many` raises no error for a stale token: it returns the verdict `stale`. Even if
        // the caller ignores the verdict, the fences must make its COMMIT fail.
        first.batch_execute(&format!("BEGIN; {fences}; {}", leases[0].effect())).unwrap();
        lab.advance(300);
        assert_eq!(claim_many(&mut second, 2, 300).len(), 2, "both were taken back");
        first.batch_execute(&settle("stale stale")).unwrap();
        assert_eq!(fault(first.batch_execute("COMMIT")).code().code(), "TN001");
        assert_eq!(effects(lab), 0);
    });
}

fn fences_on_two_jobs_are_each_checked() {
    as_each(|lab, who| {
        let (mut first, mut second) = (who.session(lab), who.session(lab));
        enqueue(&mut first, "one");
        enqueue(&mut first, "two");
        let leases = claim_many(&mut first, 2, 300);
        let (one, two) = (leases[0], leases[1]);
        let fences = format!("BEGIN; {}; {}", one.call("fence"), two.call("fence"));
        first.batch_execute(&format!("{fences}; {}; COMMIT", one.effect())).unwrap();
        assert_eq!(effects(lab), 1);

        // The completion of one proves nothing about the other.
        first
            .batch_execute(&format!("{fences}; {}; {}", one.effect(), one.call("complete")))
            .unwrap();
        lab.advance(300);
        assert_eq!(claim_many(&mut second, 2, 300)[0].job, two.job, "the completed one is locked");
        let refusal = fault(first.batch_execute("COMMIT"));
        assert!(refusal.message().ends_with(&format!("job {}", two.job)), "{}", refusal.message());
        assert_eq!(effects(lab), 1);
        assert_eq!(state(lab, one.job), "running", "its completion went with the rest");
    });
}

fn a_fence_that_was_rolled_back_to_a_savepoint_is_not_checked() {
    as_each(|lab, who| {
        let (mut first, mut second) = (who.session(lab), who.session(lab));
        let slow = running(&mut first);
        first
            .batch_execute(&format!(
                "BEGIN; SAVEPOINT a; {}; ROLLBACK TO a; {}",
                slow.call("fence"),
                slow.effect()
            ))
            .unwrap();
        take_over(lab, &mut second);
        first.batch_execute("COMMIT").unwrap();
        assert_eq!(effects(lab), 1, "nobody asked for a proof");
    });
}

fn a_fence_under_a_savepoint_that_was_kept_is_checked() {
    as_each(|lab, who| {
        let (mut first, mut second) = (who.session(lab), who.session(lab));
        let slow = running(&mut first);
        first
            .batch_execute(&format!(
                "BEGIN; SAVEPOINT a; {}; RELEASE a; {}",
                slow.call("fence"),
                slow.effect()
            ))
            .unwrap();
        take_over(lab, &mut second);
        assert_eq!(fault(first.batch_execute("COMMIT")).code().code(), "TN001");
        assert_eq!(effects(lab), 0);
    });
}

/// A settlement that was rolled back has proved nothing.
fn a_completion_that_was_rolled_back_to_a_savepoint_leaves_the_fence_to_be_checked() {
    as_each(|lab, who| {
        let (mut first, mut second) = (who.session(lab), who.session(lab));
        let slow = running(&mut first);
        first
            .batch_execute(&format!(
                "BEGIN; {}; {}; SAVEPOINT a; {}; ROLLBACK TO a",
                slow.call("fence"),
                slow.effect(),
                slow.call("complete")
            ))
            .unwrap();
        take_over(lab, &mut second);
        assert_eq!(fault(first.batch_execute("COMMIT")).code().code(), "TN001");
        assert_eq!(effects(lab), 0);
    });
}

fn a_cancellation_before_commit_makes_the_commit_of_a_fenced_transaction_fail() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let lease = running(&mut session);
        session
            .batch_execute(&format!("BEGIN; {}; {}", lease.call("fence"), lease.effect()))
            .unwrap();
        assert_eq!(lab.text(&format!("SELECT tenure.cancel({})", lease.job)), "cancelled");
        let refusal = fault(session.batch_execute("COMMIT"));
        assert_eq!(refusal.code().code(), "TN001");
        assert!(refusal.detail().unwrap().ends_with("and it is cancelled."), "{refusal:?}");
        assert_eq!(effects(lab), 0);
    });
}

fn only_a_strict_fence_refuses_a_lease_that_is_over_and_that_nobody_took() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let lease = running(&mut session);
        session.batch_execute(&lease.call_with("fence", ", strict => true")).unwrap();
        lab.advance(300);
        let refusal = fault(session.batch_execute(&lease.call_with("fence", ", strict => true")));
        assert_eq!(refusal.code().code(), "TN001");
        assert!(refusal.detail().unwrap().starts_with("lease_expired: "), "{refusal:?}");
        assert!(refusal.hint().unwrap().contains("tenure.renew"), "{refusal:?}");
        let write = format!("BEGIN; {}; {}; COMMIT", lease.call("fence"), lease.effect());
        session.batch_execute(&write).unwrap();
        assert_eq!(effects(lab), 1);
    });
}

fn renewals_go_through_while_a_fenced_transaction_is_open() {
    as_each(|lab, who| {
        let (mut user, mut renewer) = (who.session(lab), who.session(lab));
        let lease = running(&mut user);
        user.batch_execute(&format!("BEGIN; {}; {}", lease.call("fence"), lease.effect())).unwrap();
        for _ in 0..5 {
            lab.advance(200);
            let ask =
                "SELECT verdict FROM tenure.renew_many(ARRAY[$1::bigint], ARRAY[$2::bigint], 300)";
            let row = renewer.query_one(ask, &[&lease.job, &lease.token]).unwrap();
            assert_eq!(row.get::<_, &str>(0), "extended", "not busy, and not stale");
        }
        user.batch_execute("COMMIT").unwrap();
        assert_eq!(effects(lab), 1, "after more than three leases");
    });
}

fn constraints_that_are_made_immediate_check_at_once_and_hold_the_job() {
    as_each(|lab, who| {
        let (mut first, mut second) = (who.session(lab), who.session(lab));
        let lease = running(&mut first);
        first
            .batch_execute(&format!(
                "BEGIN; {}; {}; SET CONSTRAINTS ALL IMMEDIATE; {}",
                lease.call("fence"),
                lease.effect(),
                lease.call("fence")
            ))
            .unwrap();
        lab.advance(300);
        assert_eq!(claim_many(&mut second, 1, 300), [], "it is locked until the COMMIT");
        first.batch_execute("COMMIT").unwrap();
        assert_eq!(effects(lab), 1);

        first
            .batch_execute(&format!("BEGIN; {}; {}", lease.call("fence"), lease.effect()))
            .unwrap();
        take_over(lab, &mut second);
        let refusal = fault(first.batch_execute("SET CONSTRAINTS ALL IMMEDIATE"));
        assert_eq!(refusal.code().code(), "TN001");
        first.batch_execute("ROLLBACK").unwrap();
    });
}

fn a_held_job_is_neither_taken_nor_settled_by_anybody_else_until_the_end_of_the_transaction() {
    as_each(|lab, who| {
        let (mut first, mut second) = (who.session(lab), who.session(lab));
        let lease = running(&mut first);
        first.batch_execute(&format!("BEGIN; {}", lease.call("hold"))).unwrap();
        lab.advance(300_000);
        assert_eq!(claim_many(&mut second, 1, 300), []);
        let settle = format!("{}; {}; COMMIT", lease.effect(), lease.call("complete"));
        first.batch_execute(&settle).unwrap();
        assert_eq!((effects(lab), state(lab, lease.job)), (1, "succeeded".into()));
    });
}

/// Another job runs under the same token number.
fn a_fence_and_a_hold_are_refused_at_once_unless_this_job_runs_under_this_token() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        enqueue(&mut session, "one");
        enqueue(&mut session, "two");
        let leases = claim_many(&mut session, 2, 300);
        let (one, two) = (leases[0], leases[1]);
        assert_eq!(one.token, two.token, "tokens are numbers of one job");
        session.batch_execute(&one.call_with("park", ", 'later'")).unwrap();
        for verb in ["fence", "hold"] {
            let refusal = fault(session.batch_execute(&one.call(verb)));
            let words = format!("{verb} refused: token 1 is not the right to job {}", one.job);
            assert_eq!((refusal.code().code(), refusal.message()), ("TN001", words.as_str()));
            let why = "already_settled: the attempt has ended, and the job is parked.";
            assert_eq!(refusal.detail(), Some(why));
            session.batch_execute(&two.call(verb)).unwrap();
        }
    });
}

fn a_job_that_was_given_back_before_commit_makes_the_commit_of_a_fenced_transaction_fail() {
    as_each(|lab, who| {
        let (mut first, mut second) = (who.session(lab), who.session(lab));
        enqueue(&mut first, "one");
        enqueue(&mut first, "two");
        let one = claim_many(&mut first, 2, 300)[0];
        first.batch_execute(&format!("BEGIN; {}; {}", one.effect(), one.call("fence"))).unwrap();
        second.batch_execute(&one.call_with("snooze", ", '1 s'")).unwrap();
        let refusal = fault(first.batch_execute("COMMIT"));
        let words = format!("commit refused: token 1 is not the right to job {}", one.job);
        assert_eq!((refusal.code().code(), refusal.message()), ("TN001", words.as_str()));
        assert_eq!(effects(lab), 0);
    });
}

fn a_completion_under_a_newer_token_proves_no_fence_of_an_older_one() {
    as_each(|lab, who| {
        let (mut first, mut second) = (who.session(lab), who.session(lab));
        let slow = running(&mut first);
        first.batch_execute(&format!("BEGIN; {}; {}", slow.effect(), slow.call("fence"))).unwrap();
        let quick = take_over(lab, &mut second);
        first.batch_execute(&quick.call("complete")).unwrap();
        let refusal = fault(first.batch_execute("COMMIT"));
        assert_eq!(refusal.message(), "commit refused: token 1 is not the right to job 1");
        assert_eq!((effects(lab), state(lab, slow.job)), (0, "running".into()));
    });
}
