//! Commits wait for the disk, whatever the session's settings are, unless the installation is
//! configured otherwise.

use postgres::Client;

use super::{Case, as_each, enqueue, running, sql_cases};
use crate::sessions::{Lab, fault};

pub(super) const CASES: &[Case] = sql_cases! {
    "durable":
    a_call_that_promises_something_waits_for_the_disk_whatever_the_session_says,
    a_session_that_says_more_is_never_lowered_and_one_that_waits_for_this_disk_is_left,
    the_setting_is_the_transactions_own_and_outlasts_a_savepoint,
    an_installation_that_has_said_off_lets_sessions_decide,
    a_worker_may_not_say_how_durable_the_installation_is,
};

/// The value of `synchronous_commit` at the end of a transaction that makes this call.
fn setting_after(session: &mut Client, call: &str) -> String {
    session
        .batch_execute(&format!("BEGIN; {call}"))
        .unwrap_or_else(|error| panic!("{call}: {error}"));
    let setting = session.query_one("SHOW synchronous_commit", &[]).unwrap().get(0);
    session.batch_execute("ROLLBACK").unwrap();
    setting
}

/// Every call that promises something, on job 1, which runs under token 1, and job 2, which is
/// queued.
const PROMISES: [&str; 24] = [
    "SELECT tenure.enqueue('work')",
    "SELECT tenure.enqueue_many('{work}', ARRAY['{}'::json])",
    "SELECT tenure.claim('ann')",
    "SELECT tenure.claim_many('ann', '{default}', NULL, 1, 1000)",
    "SELECT tenure.settle_and_claim('{1}', '{1}', '{complete}', '{0}', '{NULL}', '{NULL}', 'ann', '{default}', NULL, 1, 1000)",
    "SELECT tenure.settle_many('{1}', '{1}', '{complete}', '{0}', '{NULL}', '{NULL}')",
    "SELECT tenure.complete(1, 1)",
    "SELECT tenure.fail(1, 1, 'no')",
    "SELECT tenure.snooze(1, 1, '1 s')",
    "SELECT tenure.release(1, 1)",
    "SELECT tenure.bury(1, 1, 'never')",
    "SELECT tenure.park(1, 1, 'later')",
    "SELECT tenure.effect_open(1, 1, 'pay')",
    "SELECT tenure.effect_open(1, 1, 'pay'); SELECT tenure.effect_commit(1, 1, 'pay', '1')",
    "SELECT tenure.step_put(1, 1, 'load', '1')",
    "SELECT tenure.resolve_effect(2, 'pay', '1')",
    "SELECT tenure.lapse_many('{1}', '{1}')",
    "SELECT tenure.cancel_many('{2}')",
    "SELECT tenure.requeue_many('{2}', '{NULL}')",
    "SELECT tenure.resume_many('{2}')",
    "SELECT tenure.purge_many('{2}', '{NULL}')",
    "SELECT tenure.configure('default', true)",
    "SELECT tenure.raise_epoch('a test')",
    "SELECT tenure.set_guard_gap(5000)",
];

const VANISHED: &str = "SELECT tenure.vanished(10)";

/// A worker that the next call of `vanished` finds gone.
fn lose_a_worker(session: &mut Client) {
    session
        .batch_execute(
            "SELECT tenure.register('ann', '{default}', NULL, true);
             UPDATE tenure.workers SET free_since = 0",
        )
        .unwrap();
}

fn lab() -> (Lab, Client) {
    let lab = Lab::new();
    let mut session = lab.session();
    running(&mut session);
    enqueue(&mut session, "work");
    session.batch_execute("SELECT tenure.set_durability('on')").unwrap();
    (lab, session)
}

/// G1, G3: what was answered is on disk.
fn a_call_that_promises_something_waits_for_the_disk_whatever_the_session_says() {
    let (_lab, mut session) = lab();
    session.batch_execute("SET synchronous_commit = off").unwrap();
    for call in PROMISES {
        assert_eq!(setting_after(&mut session, call), "on", "{call}");
    }
    // Reading promises nothing.
    for look in ["SELECT tenure.held('ann')", VANISHED] {
        assert_eq!(setting_after(&mut session, look), "off", "{look}");
    }
    // If `vanished` forgets a worker that is gone, that must be on disk, or a later call forgets it
    // again.
    lose_a_worker(&mut session);
    assert_eq!(setting_after(&mut session, VANISHED), "on");
    // So must a change of the installation's own setting.
    assert_eq!(setting_after(&mut session, "SELECT tenure.set_durability('off')"), "on");
}

fn a_session_that_says_more_is_never_lowered_and_one_that_waits_for_this_disk_is_left() {
    let (_lab, mut session) = lab();
    lose_a_worker(&mut session);
    for level in ["local", "remote_write", "on", "remote_apply"] {
        session.batch_execute(&format!("SET synchronous_commit = {level}")).unwrap();
        for call in PROMISES.into_iter().chain([VANISHED, "SELECT tenure.set_durability('off')"]) {
            assert_eq!(setting_after(&mut session, call), level, "{call}");
        }
    }
}

fn the_setting_is_the_transactions_own_and_outlasts_a_savepoint() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        session.batch_execute("SET synchronous_commit = off").unwrap();
        let call = "SAVEPOINT a; SELECT tenure.enqueue('work'); RELEASE a";
        assert_eq!(setting_after(&mut session, call), "on");
        session.batch_execute("SELECT tenure.enqueue('work')").unwrap();
        let after: String = session.query_one("SHOW synchronous_commit", &[]).unwrap().get(0);
        assert_eq!(after, "off");
    });
}

fn an_installation_that_has_said_off_lets_sessions_decide() {
    let (_lab, mut session) = lab();
    session
        .batch_execute("SET synchronous_commit = off; SELECT tenure.set_durability('off')")
        .unwrap();
    for call in PROMISES {
        assert_eq!(setting_after(&mut session, call), "off", "{call}");
    }
    let terms = "SELECT durability || ' ' || is_synced FROM tenure.terms()";
    assert_eq!(session.query_one(terms, &[]).unwrap().get::<_, String>(0), "off false");
    session.batch_execute("SELECT tenure.set_durability('on')").unwrap();
    assert_eq!(session.query_one(terms, &[]).unwrap().get::<_, String>(0), "on true");
    for nonsense in ["'maybe'", "''", "NULL", "'ON'"] {
        let refusal =
            fault(session.batch_execute(&format!("SELECT tenure.set_durability({nonsense})")));
        assert_eq!((refusal.code().code(), refusal.column()), ("TN003", Some("durability")));
    }
}

fn a_worker_may_not_say_how_durable_the_installation_is() {
    let (lab, _) = lab();
    let mut worker = lab.session_as("worker");
    let refusal = fault(worker.batch_execute("SELECT tenure.set_durability('off')"));
    assert_eq!(refusal.code().code(), "42501");
    worker.batch_execute("SELECT tenure.terms()").unwrap();
}
