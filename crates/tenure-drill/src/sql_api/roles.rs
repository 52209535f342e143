//! What each role may do, and that no role may touch a table.

use std::collections::BTreeSet;

use postgres::Client;

use super::{Case, sql_cases};
use crate::sessions::{Lab, code};

pub(super) const CASES: &[Case] = sql_cases! {
    "roles":
    each_role_may_call_what_it_needs_and_nothing_else,
    no_role_may_read_or_write_any_table,
    the_views_are_for_readers_alone,
    what_operators_do_and_what_helpers_do_is_refused_to_every_role,
    a_callers_own_tables_and_operators_do_not_get_into_the_functions,
    every_function_that_runs_as_its_owner_has_a_fixed_search_path,
    roles_that_another_database_has_made_already_are_used,
};

const ROLES: [&str; 3] = ["worker", "enqueuer", "reader"];

/// Functions that every role may call.
const COMMON: [&str; 4] = ["history", "identity", "now", "outcome"];
const ENQUEUE: [&str; 3] = ["enqueue", "enqueue_many", "fingerprint"];
const WORK: [&str; 40] = [
    "beat",
    "bury",
    "check",
    "claim",
    "claim_many",
    "complete",
    "current_many",
    "effect_commit",
    "effect_fail",
    "effect_open",
    "effect_settle",
    "fail",
    "fence",
    "follow_refused",
    "guard",
    "guard_gap",
    "held",
    "hold",
    "hold_many",
    "is_guarding",
    "lapse_many",
    "ledger_many",
    "overdue",
    "park",
    "progress",
    "progress_many",
    "prune",
    "refused",
    "register",
    "release",
    "renew",
    "renew_many",
    "retire",
    "settle_and_claim",
    "settle_many",
    "snooze",
    "step_get",
    "step_put",
    "terms",
    "vanished",
];
const READ: [&str; 14] = [
    "at",
    "check",
    "effects_page",
    "guard_gap",
    "known_workers",
    "leases",
    "look_at",
    "overdue",
    "overview",
    "page",
    "queue_settings",
    "state_name",
    "terms",
    "timeline_of",
];

/// The functions of the schema that this member may execute.
fn executable(lab: &mut Lab, role: &str) -> BTreeSet<String> {
    let sql = "SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = 'tenure'::regnamespace
                AND has_function_privilege($1, p.oid, 'EXECUTE')";
    let member = lab.member(role);
    lab.owner().query(sql, &[&member]).unwrap().iter().map(|row| row.get(0)).collect()
}

fn set(lists: &[&[&str]]) -> BTreeSet<String> {
    lists.iter().flat_map(|list| list.iter()).map(|name| (*name).to_owned()).collect()
}

/// The helpers, such as `note` and `end_job`, are in no role's list: they would bypass the fence.
fn each_role_may_call_what_it_needs_and_nothing_else() {
    let mut lab = Lab::new();
    assert_eq!(executable(&mut lab, "worker"), set(&[&COMMON, &ENQUEUE, &WORK]));
    assert_eq!(executable(&mut lab, "enqueuer"), set(&[&COMMON, &ENQUEUE]));
    assert_eq!(executable(&mut lab, "reader"), set(&[&COMMON, &READ]));
    assert_eq!(executable(&mut lab, "nobody"), set(&[]));
}

fn refusal(session: &mut Client, sql: &str) -> Option<String> {
    session.batch_execute(sql).err().map(|error| code(&error))
}

fn no_role_may_read_or_write_any_table() {
    let mut lab = Lab::new();
    let names =
        "SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = 'tenure'::regnamespace
                  AND c.relkind IN ('r', 'p') ORDER BY 1";
    let tables: Vec<String> =
        lab.owner().query(names, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(
        tables.join(" "),
        "clock done epochs fences jobs keys ledger meta migrations payloads queues steps timeline workers"
    );
    for role in ROLES.into_iter().chain(["nobody"]) {
        let mut session = lab.session_as(role);
        for table in &tables {
            for sql in [
                format!("SELECT 1 FROM tenure.{table}"),
                format!("DELETE FROM tenure.{table}"),
                format!("INSERT INTO tenure.{table} DEFAULT VALUES"),
                format!("TRUNCATE tenure.{table}"),
            ] {
                assert_eq!(refusal(&mut session, &sql).as_deref(), Some("42501"), "{role}: {sql}");
            }
        }
        for sql in ["SELECT nextval('tenure.job_id')", "SELECT setval('tenure.pulse', 1)"] {
            assert_eq!(refusal(&mut session, sql).as_deref(), Some("42501"), "{role}: {sql}");
        }
    }
}

fn the_views_are_for_readers_alone() {
    let lab = Lab::new();
    let views =
        ["job", "event", "effect", "stats"].map(|view| format!("SELECT * FROM tenure.{view}"));
    for role in ROLES {
        let mut session = lab.session_as(role);
        for sql in &views {
            let expected = (role != "reader").then_some("42501");
            assert_eq!(refusal(&mut session, sql).as_deref(), expected, "{role}: {sql}");
        }
        // This view shows the content of the tables under other names.
        let sql = "SELECT * FROM tenure.record";
        assert_eq!(refusal(&mut session, sql).as_deref(), Some("42501"), "{role}: {sql}");
    }
}

fn what_operators_do_and_what_helpers_do_is_refused_to_every_role() {
    let lab = Lab::new();
    lab.session_as("enqueuer").batch_execute("SELECT tenure.enqueue('work')").unwrap();
    for role in ROLES.into_iter().chain(["nobody"]) {
        let mut session = lab.session_as(role);
        for call in [
            "cancel(1)",
            "requeue(1)",
            "resume(1)",
            "cancel_many('{1}')",
            "effect_resolve(1, 'charge', resend => true)",
            "resolve_effect(1, 'charge', NULL)",
            "raise_epoch('why not')",
            "set_guard_gap(5000)",
            "begin_epoch(7, 0, 'why not')",
            "take_crash_back(1, 1, 0)",
            "ledger_one(1, 1, 'effect_open', 'charge', NULL, NULL, 0)",
            "configure('default', true)",
            "purge_many('{1}', '{1}')",
            "note(1, 0, 'retry', false, 1, 1, NULL, NULL, 0::smallint, NULL)",
            "end_job(1, 4::smallint, 1, 0, 0, NULL, NULL)",
            "put_back(1, false, 0, 1, 0, 0, NULL, false, NULL, 0)",
            "settle_one(1, 1, 'complete', 0, NULL, NULL, 0, 0, '{}')",
            "lapse_one(1, 1, 0, 0, 0, 0, 0)",
            "prove_fences('{1}', '{1}')",
            "forget('{1}')",
            "shorten('note', 9)",
            "clock_ms()",
        ] {
            let sql = format!("SELECT tenure.{call}");
            assert_eq!(refusal(&mut session, &sql).as_deref(), Some("42501"), "{role}: {sql}");
        }
    }
}

/// The functions run with their owner's rights, so objects that a caller creates must not change
/// what they do.
fn a_callers_own_tables_and_operators_do_not_get_into_the_functions() {
    let lab = Lab::new();
    let mut session = lab.session_as("worker");
    session
        .batch_execute(
            "CREATE TEMP TABLE jobs (id bigint); CREATE TEMP TABLE unnest (id bigint);
             CREATE FUNCTION pg_temp.sha256(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT NULL::bytea';
             SET search_path = pg_temp, pg_catalog; SELECT tenure.enqueue('work', key => 'k')",
        )
        .unwrap();
    let row = session
        .query_one(
            "SELECT (SELECT tenure.complete(id, token) FROM tenure.claim('ann')) IS NOT NULL",
            &[],
        )
        .unwrap();
    assert!(row.get::<_, bool>(0));
}

/// A function that runs with its owner's rights (SECURITY DEFINER) must not use the caller's
/// search_path: it would run what the caller has put there.
fn every_function_that_runs_as_its_owner_has_a_fixed_search_path() {
    let mut lab = Lab::new();
    let loose = "SELECT coalesce(string_agg(p.proname, ' ' ORDER BY p.proname), '') FROM pg_proc p
                  WHERE p.pronamespace = 'tenure'::regnamespace AND p.prosecdef
                    AND NOT coalesce(p.proconfig @> ARRAY['search_path=pg_catalog, pg_temp'], false)";
    assert_eq!(lab.text(loose), "");
}

/// Several databases of one server share its roles, and may be migrated at the same time.
fn roles_that_another_database_has_made_already_are_used() {
    let (one, other) = (Lab::new(), Lab::new());
    assert_ne!(one.database(), other.database());
    for lab in [&one, &other] {
        lab.session_as("worker").batch_execute("SELECT tenure.enqueue('work')").unwrap();
    }
}
