//! A user's transaction at REPEATABLE READ or above. A renewal by the job's own holder may come
//! between the transaction's snapshot and its `hold` or `complete` (with `fence`: its COMMIT). Then
//! the transaction fails with a conflict (40001). That is not a refusal: it may run again.

use postgres::Client;

use super::{Case, Lease, as_each, effects, running, sql_cases, state, take_over};
use crate::sessions::{Lab, code, fault};

pub(super) const CASES: &[Case] = sql_cases! {
    "isolation":
    a_renewal_in_between_is_a_conflict_to_try_again_after_and_no_refusal,
    whoever_holds_or_completes_first_is_not_disturbed_by_renewals,
    a_takeover_is_a_conflict_if_it_came_after_the_snapshot_and_a_refusal_if_before,
};

const LEVELS: [&str; 2] = ["REPEATABLE READ", "SERIALIZABLE"];

/// Begins a transaction at this level and takes its snapshot.
fn begin(session: &mut Client, level: &str) {
    session
        .batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1 FROM public.effects"))
        .unwrap();
}

fn renew(lab: &mut Lab, lease: Lease) {
    lab.owner().batch_execute(&lease.call_with("renew", ", '5 s'")).unwrap();
}

fn a_renewal_in_between_is_a_conflict_to_try_again_after_and_no_refusal() {
    for level in LEVELS {
        as_each(|lab, who| {
            let mut session = who.session(lab);
            let lease = running(&mut session);
            for verb in ["complete", "hold"] {
                begin(&mut session, level);
                session.batch_execute(&lease.effect()).unwrap();
                renew(lab, lease);
                let refusal = fault(session.batch_execute(&lease.call(verb)));
                assert_eq!(refusal.code().code(), "40001", "{level} {verb}");
                session.batch_execute("ROLLBACK").unwrap();
            }
            // A fence detects the conflict at COMMIT.
            begin(&mut session, level);
            session.batch_execute(&format!("{}; {}", lease.effect(), lease.call("fence"))).unwrap();
            renew(lab, lease);
            assert_eq!(fault(session.batch_execute("COMMIT")).code().code(), "40001", "{level}");
            assert_eq!((effects(lab), state(lab, lease.job)), (0, "running".into()));
        });
    }
}

fn whoever_holds_or_completes_first_is_not_disturbed_by_renewals() {
    for level in LEVELS {
        for first in ["hold", "complete"] {
            as_each(|lab, who| {
                let mut session = who.session(lab);
                let lease = running(&mut session);
                let begin = format!("BEGIN ISOLATION LEVEL {level}; {}", lease.call(first));
                session.batch_execute(&begin).unwrap();
                // The renewal is answered with the current lease, and does not wait.
                renew(lab, lease);
                session
                    .batch_execute(&format!(
                        "{}; {}; COMMIT",
                        lease.effect(),
                        lease.call("complete")
                    ))
                    .unwrap_or_else(|error| panic!("{level} {first}: {}", code(&error)));
                assert_eq!((effects(lab), state(lab, lease.job)), (1, "succeeded".into()));
            });
        }
    }
}

/// A token that was stale before the snapshot is refused as stale. A takeover after the snapshot is
/// a conflict, which says nothing about the token.
fn a_takeover_is_a_conflict_if_it_came_after_the_snapshot_and_a_refusal_if_before() {
    for level in LEVELS {
        as_each(|lab, who| {
            let (mut first, mut second) = (who.session(lab), who.session(lab));
            let slow = running(&mut first);
            begin(&mut first, level);
            first.batch_execute(&slow.effect()).unwrap();
            take_over(lab, &mut second);
            let conflict = fault(first.batch_execute(&slow.call("complete")));
            assert_eq!(conflict.code().code(), "40001", "{level}");
            first.batch_execute("ROLLBACK").unwrap();
            // Retried, as 40001 demands, the call gets the true answer.
            begin(&mut first, level);
            first.batch_execute(&slow.effect()).unwrap();
            let refusal = fault(first.batch_execute(&slow.call("complete")));
            assert_eq!(refusal.code().code(), "TN001", "{level}");
            first.batch_execute("ROLLBACK").unwrap();
            assert_eq!(effects(lab), 0);
        });
    }
}
