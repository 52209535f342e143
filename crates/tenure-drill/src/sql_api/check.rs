//! Each rule of `tenure.check` finds the damage that violates it. No verb can do such damage, so
//! the cases do it by hand.

use tenure::engine::clock::Clock;
use tenure::engine::store::postgres::{Postgres, PostgresOptions};

use super::{Case, claim, enqueue, running, sql_cases};
use crate::damage::{DAMAGES, Seen, fill, look_through};
use crate::engines::START;
use crate::sessions::Lab;

pub(super) const CASES: &[Case] = sql_cases! {
    "check":
    each_damage_is_found_by_its_rule,
    every_damage_is_found_in_the_window_of_its_job_and_in_no_other,
    what_is_left_of_a_job_is_found_in_the_window_where_the_job_would_be,
};

/// What is wrong, as `job rule`, in order.
const WRONG: &str = "SELECT coalesce(string_agg(job || ' ' || rule, ', ' ORDER BY job, rule), '')
    FROM tenure.check(NULL, 1000) WHERE rule IS NOT NULL";

/// Job 1 has succeeded with an effect and a step, 2 is running, 3 and 4 are queued, the latter with
/// large args.
fn furnish() -> Lab {
    let mut lab = Lab::new();
    let mut session = lab.session();
    let done = running(&mut session);
    for (verb, more) in [
        ("effect_commit", ", 'charge', '1' FROM tenure.effect_open(1, 1, 'charge') o"),
        ("step_put", ", 'total', '3'"),
        ("complete", ""),
    ] {
        let call = match more.split_once(" FROM ") {
            Some((args, from)) => format!("{} FROM {from}", done.call_with(verb, args)),
            None => done.call_with(verb, more),
        };
        session.batch_execute(&call).unwrap();
    }
    enqueue(&mut session, "work");
    claim(&mut session, 300);
    session
        .batch_execute(
            "SELECT tenure.enqueue('work', key => 'k');
             SELECT tenure.enqueue('work', json_build_object('a', repeat('x', 3000)))",
        )
        .unwrap();
    assert_eq!(lab.text(WRONG), "");
    lab
}

fn each_damage_is_found_by_its_rule() {
    let mut lab = furnish();
    for (damage, found) in [
        ("INSERT INTO tenure.done SELECT 2, run_at, token, enqueued_at, started_at, finished_at, max_runtime, parent, attempt,
              max_attempts, crashes, max_crashes, priority, 5, queue, tenant, kind, args FROM tenure.done", "2 i9"),
        ("DELETE FROM tenure.payloads", "4 i9"),
        ("INSERT INTO tenure.payloads VALUES (77, '1')", "77 i9"),
        ("DELETE FROM tenure.done", "1 i9, 1 i9"),
        ("INSERT INTO tenure.timeline (job_id, at, token, attempt, became, refused, verb) VALUES (78, 0, 1, 1, 0, false, 'retry')", "78 i9"),
        ("UPDATE tenure.done SET worker = NULL", "1 i3"),
        ("INSERT INTO tenure.timeline (job_id, at, token, attempt, became, refused, verb) VALUES (1, 0, 1, 1, 0, false, 'retry')", "1 i3"),
        ("INSERT INTO tenure.timeline (job_id, at, token, attempt, became, refused, verb) VALUES (1, 0, 1, 1, 0, true, 'retry')", ""),
        ("UPDATE tenure.clock SET at = at + 60300", "2 i11"),
        ("UPDATE tenure.clock SET at = at + 60299", ""),
        ("UPDATE tenure.clock SET at = at + 60300, started_at = at + 60000", ""),
        ("UPDATE tenure.ledger SET state = 0, result = NULL", "1 ledger"),
        ("UPDATE tenure.ledger SET token = 2", "1 ledger"),
        ("UPDATE tenure.steps SET token = 2", "1 ledger"),
        ("UPDATE tenure.keys SET job_id = 0", "3 keys"),
        ("UPDATE tenure.jobs SET lane = lane + 1 WHERE id = 3", "3 lane"),
        ("UPDATE tenure.jobs SET lane = lane | (1::bigint << 61) WHERE id = 3", "3 lane"),
        ("UPDATE tenure.jobs SET token = 1::bigint << 40 WHERE id = 2", "2 epoch"),
        ("UPDATE tenure.jobs SET id = 5 + (1::bigint << 40) WHERE id = 3", "1099511627781 epoch, 1099511627781 keys"),
    ] {
        lab.owner().batch_execute(&format!("BEGIN; {damage}")).unwrap();
        assert_eq!(lab.text(WRONG), found, "{damage}");
        lab.owner().batch_execute("ROLLBACK").unwrap();
    }
}

fn what_is_left_of_a_job_is_found_in_the_window_where_the_job_would_be() {
    let mut lab = furnish();
    lab.owner().batch_execute("DELETE FROM tenure.jobs WHERE id = 4").unwrap();
    let window = |lab: &mut Lab, from: i64| {
        lab.text(&format!(
            "SELECT string_agg(coalesce(job || ' ' || rule, looked || ' ' || coalesce(next::text, 'end')), ', ' ORDER BY job)
               FROM tenure.check({from}, 2)"
        ))
    };
    assert_eq!(window(&mut lab, 0), "2 3");
    assert_eq!(window(&mut lab, 3), "4 i9, 1 end");
}

fn every_damage_is_found_in_the_window_of_its_job_and_in_no_other() {
    let mut lab = Lab::new();
    let clock = Clock::manual(START);
    let mut store =
        Postgres::with_test_clock(&lab.address(), &PostgresOptions::default(), clock).unwrap();
    fill(&mut store);
    look_through(None, |from, size| window(&mut lab, from, size));
    for damage in DAMAGES {
        let sql = damage.sql.replace("tenure_", "tenure.");
        lab.owner().batch_execute(&format!("BEGIN; {sql}")).unwrap();
        look_through(Some(damage), |from, size| window(&mut lab, from, size));
        lab.owner().batch_execute("ROLLBACK").unwrap();
    }
}

fn window(lab: &mut Lab, from: Option<i64>, size: usize) -> Seen {
    let ask = "SELECT job, rule, what, next FROM tenure.check($1, $2)";
    let size = i32::try_from(size).unwrap();
    let rows = lab.owner().query(ask, &[&from, &size]).unwrap();
    let (wrong, last): (Vec<_>, Vec<_>) =
        rows.iter().partition(|row| row.get::<_, Option<String>>(1).is_some());
    let wrong = wrong.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    (wrong, last[0].get(3))
}
