//! Calls that are repeated because an answer was lost, and the trace that a refusal leaves.

use tenure_drill::sessions::fault;

use crate::{as_each, effects, running, state, take_over};

/// G7: alone in its transaction, a repeated call changes nothing and is answered with yes.
#[test]
fn a_settlement_that_was_heard_may_be_repeated() {
    for (verb, more, became) in [
        ("complete", ", '1'", "succeeded"),
        ("fail", ", 'no', '1 s'", "queued"),
        ("snooze", ", '1 s'", "queued"),
        ("release", "", "queued"),
        ("bury", ", 'never'", "dead"),
        ("park", ", 'later'", "parked"),
    ] {
        as_each(|lab, who| {
            let mut session = who.session(lab);
            let lease = running(&mut session);
            let settle = lease.call_with(verb, more);
            session.batch_execute(&settle).unwrap();
            session.batch_execute(&settle).unwrap_or_else(|error| panic!("{verb}: {error}"));
            session.batch_execute(&format!("BEGIN; {settle}; {settle}; COMMIT")).unwrap();
            assert_eq!(state(lab, lease.job), became, "{verb}");
        });
    }
}

/// G2: a user who did not hear of their COMMIT sends the whole transaction again. Had the repeated
/// completion been answered with yes, what they write would be there twice.
#[test]
fn a_transaction_that_is_repeated_after_its_commit_does_not_write_twice() {
    for (verb, more) in [("complete", ""), ("fail", ", 'no'"), ("bury", ", 'never'")] {
        as_each(|lab, who| {
            let mut session = who.session(lab);
            let lease = running(&mut session);
            let whole =
                format!("BEGIN; {}; {}; COMMIT", lease.effect(), lease.call_with(verb, more));
            session.batch_execute(&whole).unwrap();
            let refusal = fault(session.batch_execute(&whole));
            assert_eq!(refusal.code().code(), "TN001", "{verb}");
            assert!(refusal.detail().unwrap().starts_with("already_settled: "), "{refusal:?}");
            assert!(refusal.hint().unwrap().contains("it went through"), "{refusal:?}");
            session.batch_execute("ROLLBACK").unwrap();
            assert_eq!(effects(lab), 1, "{verb}");

            // With a fence or a hold in front it does not matter what comes first.
            for guard in ["fence", "hold"] {
                let whole = format!(
                    "BEGIN; {}; {}; {}; COMMIT",
                    lease.call(guard),
                    lease.call_with(verb, more),
                    lease.effect()
                );
                assert_eq!(fault(session.batch_execute(&whole)).code().code(), "TN001");
                session.batch_execute("ROLLBACK").unwrap();
            }
            assert_eq!(effects(lab), 1, "{verb}");
        });
    }
}

#[test]
fn a_settlement_may_be_repeated_within_its_own_transaction_whatever_that_has_written() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let lease = running(&mut session);
        let complete = lease.call("complete");
        session
            .batch_execute(&format!("BEGIN; {}; {complete}; {complete}; COMMIT", lease.effect()))
            .unwrap();
        assert_eq!((effects(lab), state(lab, lease.job)), (1, "succeeded".into()));
    });
}

#[test]
fn a_refusal_that_was_caught_can_be_left_in_the_timeline_once() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let slow = running(&mut session);
        take_over(lab, &mut session);
        fault(session.batch_execute(&slow.call("complete")));
        let lines = "SELECT count(*) FROM tenure.event WHERE refused";
        assert_eq!(lab.number(lines), 0, "the refusal rolled its own line back");
        for _ in 0..2 {
            let row = session.query_one(&slow.call_with("refused", ", 'complete'"), &[]).unwrap();
            assert!(row.get::<_, bool>(0));
        }
        assert_eq!(lab.number(lines), 1);
        let line =
            lab.text("SELECT verb || ' ' || token || ' ' || note FROM tenure.event WHERE refused");
        assert_eq!(line, "complete 1 token_mismatch: the job's token is 3");
        // A fence, a hold and a commit are steps towards a completion, and so the same line.
        for verb in ["fence", "hold", "commit"] {
            session.query_one(&slow.call_with("refused", &format!(", '{verb}'")), &[]).unwrap();
        }
        assert_eq!(lab.number(lines), 1);
        session.query_one(&slow.call_with("refused", ", 'renew'"), &[]).unwrap();
        assert_eq!(lab.number(lines), 2);
    });
}

#[test]
fn what_is_not_stale_leaves_no_refusal() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let lease = running(&mut session);
        for call in [
            lease.call_with("refused", ", 'complete'"),
            "SELECT tenure.refused(77, 1, 'complete')".into(),
            "SELECT tenure.refused(NULL, 1, 'complete')".into(),
            "SELECT tenure.refused(1, NULL, 'complete')".into(),
        ] {
            assert!(!session.query_one(&call, &[]).unwrap().get::<_, bool>(0), "{call}");
        }
        assert_eq!(lab.number("SELECT count(*) FROM tenure.event"), 0);
        for verb in ["'lapse'", "'cancel'", "'requeue'", "'nonsense'", "''", "NULL"] {
            let refusal =
                fault(session.batch_execute(&lease.call_with("refused", &format!(", {verb}"))));
            assert_eq!(refusal.code().code(), "TN003", "{verb}");
        }
    });
}
