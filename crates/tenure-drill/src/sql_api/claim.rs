//! Claims from plain sessions: what they require, and what they promise.

use postgres::Client;

use super::{Case, as_each, enqueue, sql_cases};
use crate::sessions::{Lab, fault};

pub(super) const CASES: &[Case] = sql_cases! {
    "claim":
    a_claim_is_on_disk_before_it_is_answered_whatever_the_session_says,
    a_claim_with_its_settlements_is_refused_in_a_transaction_that_has_written_something,
    a_claim_that_names_no_queue_is_refused,
    a_claim_beside_a_due_job_that_is_locked_tells_its_caller_to_come_back_at_once,
};

const CLAIM: &str = "SELECT count(*) FROM tenure.claim_many('ann', '{default}', NULL, 9, 60000)";

/// Both functions that claim. The second is called without settlements.
const FORMS: [&str; 2] = [
    "tenure.claim_many('ann', '{default}', NULL, 9, 60000",
    "tenure.settle_and_claim('{}', '{}', '{}', '{}', '{}', '{}', 'ann', '{default}', NULL, 9, 60000",
];

fn claimed(session: &mut Client, form: &str, more: &str) -> Result<i64, postgres::Error> {
    let sql = format!("SELECT count(*) FROM {form}{more}) WHERE what = 'claimed'");
    session.query_one(&sql, &[]).map(|row| row.get(0))
}

/// G3: otherwise the server could issue the same token again after a crash.
fn a_claim_is_on_disk_before_it_is_answered_whatever_the_session_says() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        for (level, then) in [("off", "on"), ("local", "local"), ("remote_write", "remote_write")] {
            session
                .batch_execute(&format!("SET synchronous_commit = {level}; BEGIN; {CLAIM}"))
                .unwrap();
            let setting: String = session.query_one("SHOW synchronous_commit", &[]).unwrap().get(0);
            assert_eq!(setting, then, "{level}");
            session.batch_execute("ROLLBACK").unwrap();
        }
    });
}

/// If such a transaction were rolled back, the tokens would be issued again. A claim is accepted as
/// the first write of its transaction, or with `p_in_transaction`.
fn a_claim_with_its_settlements_is_refused_in_a_transaction_that_has_written_something() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        lab.run_clock();
        for form in FORMS {
            enqueue(&mut session, "work");
            session
                .batch_execute("BEGIN; INSERT INTO public.effects VALUES (1, 1, 'mine')")
                .unwrap();
            let refusal = fault(claimed(&mut session, form, ""));
            assert_eq!((refusal.code().code(), refusal.column()), ("TN003", Some("transaction")));
            session
                .batch_execute("ROLLBACK; BEGIN; INSERT INTO public.effects VALUES (1, 1, 'mine')")
                .unwrap();
            assert_eq!(claimed(&mut session, form, ", p_in_transaction => true").unwrap(), 1);
            session.batch_execute("ROLLBACK; BEGIN").unwrap();
            assert_eq!(claimed(&mut session, form, "").unwrap(), 1, "the first in its transaction");
            session.batch_execute("ROLLBACK").unwrap();
            assert_eq!(claimed(&mut session, form, "").unwrap(), 1);
        }
        // What the call itself settles does not count as an earlier write.
        let both = "SELECT string_agg(c.verdict || c.what, ' ') FROM tenure.jobs j, tenure.settle_and_claim(ARRAY[j.id], ARRAY[j.token],
            '{complete}', '{0}', '{NULL}', '{NULL}', 'ann', '{default}', NULL, 1, 1000) c WHERE j.id = $1";
        let first = lab.number("SELECT min(id) FROM tenure.jobs WHERE state = 2");
        let mut owner = lab.session();
        let answer: String = owner.query_one(both, &[&first]).unwrap().get(0);
        assert_eq!(answer, "settledsettled");
    });
}

fn a_claim_that_names_no_queue_is_refused() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        enqueue(&mut session, "work");
        for queues in ["'{}'", "NULL"] {
            let sql = format!("SELECT tenure.claim_many('ann', {queues}, NULL, 1, 1000)");
            let refusal = fault(session.query(&sql, &[]));
            assert_eq!(
                (refusal.code().code(), refusal.column()),
                ("TN003", Some("queues")),
                "{queues}"
            );
        }
        let other = "SELECT count(*) FROM tenure.claim_many('ann', '{NULL}', NULL, 1, 1000) WHERE what = 'claimed'";
        assert_eq!(session.query_one(other, &[]).unwrap().get::<_, i64>(0), 0);
    });
}

/// The claim does not wait for the lock. It answers 0 ms, since the transaction that locks the job
/// may end at any time.
fn a_claim_beside_a_due_job_that_is_locked_tells_its_caller_to_come_back_at_once() {
    let mut lab = Lab::new();
    let (mut other, mut session) = (lab.session(), lab.session());
    session
        .batch_execute("SELECT tenure.enqueue('work', delay => '1 s'); SELECT tenure.enqueue('work', delay => '9 s')")
        .unwrap();
    lab.advance(1_000);
    let due = "SELECT due_ms FROM tenure.claim_many('ann', '{default}', NULL, 1, 1000) WHERE what = 'next'";
    other.batch_execute("BEGIN; SELECT tenure.cancel_many('{1}')").unwrap();
    assert_eq!(session.query_one(due, &[]).unwrap().get::<_, Option<i64>>(0), Some(0));
    other.batch_execute("COMMIT").unwrap();
    assert_eq!(session.query_one(due, &[]).unwrap().get::<_, Option<i64>>(0), Some(8_000));
}
