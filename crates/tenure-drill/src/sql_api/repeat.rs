//! Calls that are repeated because an answer was lost, and the timeline entry that a refusal
//! leaves.

use super::{Case, Lease, as_each, claim_many, effects, running, sql_cases, state, take_over};
use crate::sessions::{Lab, fault};

pub(super) const CASES: &[Case] = sql_cases! {
    "repeat":
    a_settlement_that_was_heard_is_told_so_when_it_is_repeated,
    a_transaction_that_is_repeated_after_its_commit_does_not_write_twice,
    a_write_that_comes_after_the_settlement_is_not_there_twice_either,
    a_settlement_may_be_repeated_within_its_own_transaction_whatever_that_has_written,
    a_settlement_that_was_rolled_back_to_a_savepoint_is_made_again,
    a_settlement_that_a_younger_transaction_made_is_told_as_done_before,
    a_refusal_that_was_caught_can_be_left_in_the_timeline_once,
    what_is_not_stale_leaves_no_refusal,
    a_refusal_after_the_end_of_ones_own_attempt_can_be_left_too,
    a_settlement_is_told_from_those_of_other_jobs_and_of_earlier_attempts,
};

/// Every verb that ends an attempt, its other arguments, and the state that follows.
const ENDS: [(&str, &str, &str); 6] = [
    ("complete", ", '1'", "succeeded"),
    ("fail", ", 'no', '1 s'", "queued"),
    ("snooze", ", '1 s'", "queued"),
    ("release", "", "queued"),
    ("bury", ", 'never'", "dead"),
    ("park", ", 'later'", "parked"),
];

/// G7: a repeated call changes nothing, and its answer says that it was done before.
fn a_settlement_that_was_heard_is_told_so_when_it_is_repeated() {
    for (verb, more, became) in ENDS {
        as_each(|lab, who| {
            let mut session = who.session(lab);
            let lease = running(&mut session);
            let settle = lease.call_with(verb, more);
            session.batch_execute(&settle).unwrap();
            for again in [settle.clone(), format!("BEGIN; {settle}; {settle}; COMMIT")] {
                let done = fault(session.batch_execute(&again));
                assert_eq!(done.code().code(), "TN004", "{verb}");
                assert!(done.message().contains(" was done before: token 1 "), "{done:?}");
                assert!(done.detail().unwrap().contains(became), "{done:?}");
                assert!(done.hint().unwrap().contains("it went through"), "{done:?}");
                session.batch_execute("ROLLBACK").unwrap();
            }
            assert_eq!(state(lab, lease.job), became, "{verb}");
        });
    }
}

/// G2: a client that did not receive the answer to its COMMIT sends the whole transaction again. If
/// the repeated completion were accepted, the client's own writes would exist twice.
fn a_transaction_that_is_repeated_after_its_commit_does_not_write_twice() {
    for (verb, more) in [("complete", ""), ("fail", ", 'no'"), ("bury", ", 'never'")] {
        as_each(|lab, who| {
            let mut session = who.session(lab);
            let lease = running(&mut session);
            let whole =
                format!("BEGIN; {}; {}; COMMIT", lease.effect(), lease.call_with(verb, more));
            session.batch_execute(&whole).unwrap();
            assert_eq!(fault(session.batch_execute(&whole)).code().code(), "TN004", "{verb}");
            session.batch_execute("ROLLBACK").unwrap();
            assert_eq!(effects(lab), 1, "{verb}");

            // A fence or a hold in front is the first to refuse.
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

/// G2: the same where the settlement comes before the write, and where both are one statement; at
/// each isolation level.
fn a_write_that_comes_after_the_settlement_is_not_there_twice_either() {
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        for (verb, more, _) in ENDS {
            as_each(|lab, who| {
                let mut session = who.session(lab);
                let lease = running(&mut session);
                let settle = lease.call_with(verb, more);
                let whole =
                    format!("BEGIN ISOLATION LEVEL {level}; {settle}; {}; COMMIT", lease.effect());
                session.batch_execute(&whole).unwrap();
                let again = fault(session.batch_execute(&whole));
                assert_eq!(again.code().code(), "TN004", "{level}: {verb}");
                session.batch_execute("ROLLBACK").unwrap();
                let one = format!("WITH mine AS ({} RETURNING 1) {settle}", lease.effect());
                assert_eq!(fault(session.batch_execute(&one)).code().code(), "TN004", "{verb}");
                assert_eq!(effects(lab), 1, "{level}: {verb}");
            });
        }
    }
}

fn a_settlement_may_be_repeated_within_its_own_transaction_whatever_that_has_written() {
    for (verb, more, became) in ENDS {
        for level in ["READ COMMITTED", "REPEATABLE READ"] {
            as_each(|lab, who| {
                let mut session = who.session(lab);
                let lease = running(&mut session);
                let (settle, write) = (lease.call_with(verb, more), lease.effect());
                // The settlement is repeated inside its savepoint, after that was released, and
                // inside another one.
                let whole = format!(
                    "BEGIN ISOLATION LEVEL {level}; {write}; SAVEPOINT a; {write}; SAVEPOINT b; {settle}; {settle};
                     RELEASE b; {settle}; RELEASE a; {settle}; SAVEPOINT c; {settle}; {write}; {settle}; COMMIT"
                );
                session.batch_execute(&whole).unwrap_or_else(|error| panic!("{verb}: {error}"));
                assert_eq!((effects(lab), state(lab, lease.job)), (3, became.into()), "{verb}");
            });
        }
    }
}

/// A settlement that was rolled back did not happen: the next call is the first.
fn a_settlement_that_was_rolled_back_to_a_savepoint_is_made_again() {
    for (verb, more, became) in ENDS {
        as_each(|lab, who| {
            let mut session = who.session(lab);
            let lease = running(&mut session);
            let (settle, write) = (lease.call_with(verb, more), lease.effect());
            let whole = format!(
                "BEGIN; {write}; SAVEPOINT a; {settle}; ROLLBACK TO a; {settle}; {settle}; COMMIT"
            );
            session.batch_execute(&whole).unwrap_or_else(|error| panic!("{verb}: {error}"));
            assert_eq!(state(lab, lease.job), became, "{verb}");
            let again = fault(session.batch_execute(&format!("BEGIN; SAVEPOINT a; {settle}")));
            assert_eq!(again.code().code(), "TN004", "{verb}");
        });
    }
}

/// A settlement that a younger transaction of another session made does not belong to this
/// transaction.
fn a_settlement_that_a_younger_transaction_made_is_told_as_done_before() {
    as_each(|lab, who| {
        let (mut old, mut young) = (who.session(lab), who.session(lab));
        let lease = running(&mut old);
        old.batch_execute(&format!("BEGIN; {}", lease.effect())).unwrap();
        young
            .batch_execute(&format!("BEGIN; SAVEPOINT a; {}; COMMIT", lease.call("complete")))
            .unwrap();
        let again = fault(old.batch_execute(&lease.call("complete")));
        assert_eq!(again.code().code(), "TN004");
        old.batch_execute("ROLLBACK").unwrap();
        assert_eq!(effects(lab), 0);
    });
}

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
        // A fence, a hold and a commit are steps towards a completion, and so share its timeline
        // entry.
        for verb in ["fence", "hold", "commit"] {
            session.query_one(&slow.call_with("refused", &format!(", '{verb}'")), &[]).unwrap();
        }
        assert_eq!(lab.number(lines), 1);
        session.query_one(&slow.call_with("refused", ", 'renew'"), &[]).unwrap();
        assert_eq!(lab.number(lines), 2);
    });
}

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

/// The other settlements have the same token number or the same job, and an earlier transaction
/// made them.
fn a_settlement_is_told_from_those_of_other_jobs_and_of_earlier_attempts() {
    for (verb, more, became) in ENDS.into_iter().filter(|(verb, ..)| *verb != "release") {
        as_each(|lab, who| {
            let mut session = who.session(lab);
            let earlier = running(&mut session);
            session.batch_execute(&earlier.call_with(verb, more)).unwrap();
            let other = running(&mut session);
            assert_eq!(other.token, earlier.token, "tokens are numbers of one job");
            let mut settle_twice = |lab: &mut Lab, lease: Lease| {
                let settle = lease.call_with(verb, more);
                session
                    .batch_execute(&format!("BEGIN; {settle}; {settle}; COMMIT"))
                    .unwrap_or_else(|error| panic!("{verb} of {lease:?}: {error}"));
                assert_eq!(state(lab, lease.job), became, "{verb}");
            };
            settle_twice(lab, other);
            if became == "queued" {
                lab.advance(1_000);
                for lease in claim_many(lab.owner(), 9, 300) {
                    settle_twice(lab, lease);
                }
            }
        });
    }
}

fn a_refusal_after_the_end_of_ones_own_attempt_can_be_left_too() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let lease = running(&mut session);
        session.batch_execute(&lease.call_with("bury", ", 'never'")).unwrap();
        let left = session.query_one(&lease.call_with("refused", ", 'complete'"), &[]).unwrap();
        assert!(left.get::<_, bool>(0));
        let line = "SELECT verb || ' ' || note FROM tenure.event WHERE refused";
        assert_eq!(lab.text(line), "complete already_settled: the job's token is 1");
    });
}
