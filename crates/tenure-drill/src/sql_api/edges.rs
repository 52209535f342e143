//! Values from the edge of their types. Whatever function is called with whatever arguments, the
//! answer is a result or a refusal that says what to do; never an internal error.

use postgres::Client;
use tenure::engine::clock::Chance;

use super::{Case, sql_cases};
use crate::sessions::{Lab, code};

pub(super) const CASES: &[Case] = sql_cases! {
    "edges":
    no_value_makes_a_single_form_fail_but_by_a_refusal,
    no_value_makes_a_set_form_fail_but_by_a_refusal,
    the_views_can_always_be_read,
    a_sessions_own_settings_do_not_disturb_the_functions,
    a_timeline_is_told_in_its_order_however_it_is_read,
    the_overview_is_whole_and_in_order_however_it_is_read,
    a_job_that_is_ready_is_counted_once_though_the_clock_was_set_back,
    what_a_worker_holds_is_what_it_runs,
};

/// Every function that docs/sql-api.md describes.
const SINGLE: [&str; 25] = [
    "enqueue",
    "claim",
    "renew",
    "progress",
    "complete",
    "fail",
    "snooze",
    "release",
    "bury",
    "park",
    "fence",
    "hold",
    "refused",
    "cancel",
    "requeue",
    "resume",
    "fingerprint",
    "now",
    "effect_open",
    "effect_commit",
    "effect_fail",
    "effect_settle",
    "effect_resolve",
    "step_get",
    "step_put",
];

/// Other functions, which workers and tools call. Most take a batch.
const MANY: [&str; 34] = [
    "enqueue_many",
    "claim_many",
    "settle_and_claim",
    "settle_many",
    "renew_many",
    "progress_many",
    "lapse_many",
    "hold_many",
    "cancel_many",
    "requeue_many",
    "resume_many",
    "purge_many",
    "configure",
    "prune",
    "held",
    "look_at",
    "timeline_of",
    "page",
    "leases",
    "overdue",
    "ledger_many",
    "resolve_effect",
    "effects_page",
    "register",
    "retire",
    "vanished",
    "check",
    "guard",
    "is_guarding",
    "raise_epoch",
    "set_guard_gap",
    "guard_gap",
    "identity",
    "known_workers",
];

struct Parameter {
    name: String,
    kind: String,
}

/// The parameters of a function, as the catalogue has them.
fn parameters(lab: &mut Lab, function: &str) -> Vec<Parameter> {
    let sql = "SELECT a.name::text, a.type::regtype::text FROM pg_proc p
               CROSS JOIN unnest(p.proargnames, p.proargtypes::oid[]) WITH ORDINALITY a(name, type, n)
               WHERE p.pronamespace = 'tenure'::regnamespace AND p.proname = $1 AND a.n <= p.pronargs ORDER BY a.n";
    let rows = lab.owner().query(sql, &[&function]).unwrap();
    rows.iter().map(|row| Parameter { name: row.get(0), kind: row.get(1) }).collect()
}

/// Values of a type, as SQL literals; the first is an ordinary one.
fn values(name: &str, kind: &str, version: i64) -> Vec<&'static str> {
    let mut values = values_of(kind, version);
    // For these parameters the ordinary value is NULL.
    if matches!(name, "p_options" | "p_extras" | "p_keys" | "retry" | "delay" | "if_token") {
        values.rotate_left(1);
    }
    values
}

fn values_of(kind: &str, version: i64) -> Vec<&'static str> {
    let infinite = version >= 170_000;
    match kind {
        "bigint" => vec!["1", "NULL", "0", "-1", "9223372036854775807", "-9223372036854775808"],
        "integer" => vec!["1", "NULL", "0", "-1", "1001", "2147483647", "-2147483648"],
        "double precision" => {
            vec!["0.4", "NULL", "-1", "7", "'NaN'", "'infinity'", "'-infinity'", "1e-320", "1e308"]
        }
        "smallint" => vec!["1", "NULL", "0", "-1", "32767", "-32768"],
        "boolean" => vec!["true", "NULL", "false"],
        "text" => vec![
            "'complete'",
            "NULL",
            "''",
            "E'\\n'",
            "repeat('x', 9999)",
            "U&'\\2028'",
            "'it''s'",
            "'a:b|c 9'",
            "'\\'",
            "E'\\x01'",
        ],
        "text[]" => vec![
            "'{default}'",
            "NULL",
            "'{}'",
            "'{NULL}'",
            "'{\"\"}'",
            "'{complete,retry}'",
            "'{{a,b},{c,d}}'",
            "'[0:1]={a,b}'",
            "array_fill('a'::text, ARRAY[1001])",
        ],
        "interval" if infinite => vec![
            "'1 s'",
            "NULL",
            "'0'",
            "'-1 s'",
            "'1 us'",
            "'178000000 years'",
            "'-178000000 years'",
            "'infinity'",
            "'-infinity'",
        ],
        "interval" => {
            vec![
                "'1 s'",
                "NULL",
                "'0'",
                "'-1 s'",
                "'1 us'",
                "'178000000 years'",
                "'-178000000 years'",
            ]
        }
        "timestamp with time zone" => {
            vec![
                "NULL",
                "'infinity'",
                "'-infinity'",
                "'epoch'",
                "'294276-12-31'",
                "'4713-01-01 BC'",
            ]
        }
        "json" => vec![
            "'{}'",
            "NULL",
            "'null'",
            "'[]'",
            "'1e400'",
            "'1e-99999'",
            r#"'"\u0000"'"#,
            r#"'"\udead"'"#,
            "(repeat('[', 3000) || repeat(']', 3000))::json",
            r#"'{"fixed":{"ms":7}}'"#,
            r#"'{"list":{"ms":[]}}'"#,
            r#"'{"exponential":null}'"#,
        ],
        "json[]" => vec!["ARRAY['{}']::json[]", "NULL", "'{}'", "'{NULL}'", "ARRAY['[]', '1']"],
        "bigint[]" => vec![
            "'{1}'",
            "NULL",
            "'{}'",
            "'{NULL}'",
            "'{9223372036854775807}'",
            "'{-9223372036854775808}'",
            "'{1,1}'",
            "'[0:0]={1}'",
            "array_fill(1::bigint, ARRAY[1001])",
        ],
        "integer[]" => vec!["NULL", "'{1}'", "'{}'", "'{NULL}'", "'{2147483647}'", "'{-1}'"],
        "smallint[]" => vec!["NULL", "'{1}'", "'{NULL}'", "'{-32768}'", "'{32767}'"],
        "bytea[]" => vec!["NULL", "'{NULL}'", "'{\"\"}'", "ARRAY[sha256('')]"],
        other => panic!("no values for the type {other}"),
    }
}

/// Makes a call, rolls it back, and returns how it was refused.
fn try_call(session: &mut Client, sql: &str) -> Option<(String, String)> {
    let outcome = session.batch_execute(&format!("BEGIN; {sql}; SET CONSTRAINTS ALL IMMEDIATE"));
    session.batch_execute("ROLLBACK").unwrap();
    outcome.err().map(|error| (code(&error), format!("{error:?}")))
}

/// Calls a function with each value of each parameter, with NULL for every parameter, and with
/// random combinations.
fn try_all(lab: &mut Lab, session: &mut Client, function: &str, chance: &mut Chance) {
    let version = lab.number("SELECT current_setting('server_version_num')::bigint");
    let parameters = parameters(lab, function);
    let choices: Vec<Vec<&str>> =
        parameters.iter().map(|p| values(&p.name, &p.kind, version)).collect();
    let mut calls: Vec<Vec<usize>> = vec![vec![0; parameters.len()]];
    for (at, values) in choices.iter().enumerate() {
        for value in 1..values.len() {
            let mut call = vec![0; parameters.len()];
            call[at] = value;
            calls.push(call);
        }
    }
    let null = |values: &Vec<&str>| values.iter().position(|value| *value == "NULL").unwrap_or(0);
    calls.push(choices.iter().map(null).collect());
    for _ in 0..40 {
        calls.push(
            choices.iter().map(|values| chance.below(values.len() as u64) as usize).collect(),
        );
    }
    for call in calls {
        let argument = |(at, value): (usize, &usize)| {
            let Parameter { name, kind } = &parameters[at];
            format!("{name} => ({})::{kind}", choices[at][*value])
        };
        let arguments: Vec<String> = call.iter().enumerate().map(argument).collect();
        let sql = format!("SELECT tenure.{function}({})", arguments.join(", "));
        if let Some((code, error)) = try_call(session, &sql) {
            assert!(
                matches!(code.as_str(), "TN001" | "TN002" | "TN003" | "TN004"),
                "{sql}\n{error}"
            );
        }
    }
}

/// Jobs 1 to 4: running under token 1, queued, succeeded, and due since before the calendar began.
fn furnish(lab: &mut Lab) {
    lab.owner()
        .batch_execute(
            "SELECT tenure.enqueue('work', key => 'complete'); SELECT * FROM tenure.claim('complete');
             SELECT tenure.enqueue('work', delay => '1 h'); SELECT tenure.enqueue('work');
             SELECT tenure.complete(id, token) FROM tenure.claim('ann');
             SELECT * FROM tenure.enqueue_many('{work}', ARRAY['1']::json[], p_options => ARRAY['{\"run_at\":-9223372036854775808}']::json[])",
        )
        .unwrap();
}

fn no_value_makes_a_single_form_fail_but_by_a_refusal() {
    let mut lab = Lab::new();
    furnish(&mut lab);
    let mut session = lab.session();
    let mut chance = Chance::seeded(8);
    for function in SINGLE {
        try_all(&mut lab, &mut session, function, &mut chance);
    }
}

fn no_value_makes_a_set_form_fail_but_by_a_refusal() {
    let mut lab = Lab::new();
    furnish(&mut lab);
    let mut session = lab.session();
    let mut chance = Chance::seeded(9);
    for function in MANY {
        try_all(&mut lab, &mut session, function, &mut chance);
    }
}

/// One job with a time outside the calendar must not make the view unreadable for every reader.
fn the_views_can_always_be_read() {
    let mut lab = Lab::new();
    furnish(&mut lab);
    let mut session = lab.session_as("reader");
    for view in ["job", "event", "stats"] {
        session.query(&format!("SELECT v::text FROM tenure.{view} v"), &[]).unwrap();
    }
}

/// A session's own settings change no answer.
fn a_sessions_own_settings_do_not_disturb_the_functions() {
    let mut lab = Lab::new();
    let mut session = lab.session_as("worker");
    session
        .batch_execute(
            "SET standard_conforming_strings = off; SET escape_string_warning = off; SET DateStyle = 'SQL, DMY';
             SET IntervalStyle = 'iso_8601'; SET TimeZone = 'Australia/Lord_Howe'; SET bytea_output = 'escape';
             SET array_nulls = off; SET transform_null_equals = on; SET extra_float_digits = -15;
             SET plan_cache_mode = force_custom_plan; SET search_path = ''; SET enable_indexscan = off; SET row_security = off",
        )
        .unwrap();
    session
        .batch_execute(
            "SELECT tenure.enqueue('work', '{\"a\":1}', key => 'k', tags => '{a,b}');
             SELECT tenure.enqueue('work', '{\"a\":1}', key => 'k');
             SELECT * FROM tenure.claim('ann'); SELECT tenure.renew(1, 1);
             SELECT tenure.progress(1, 1, 0.4, 'half'); SELECT tenure.fail(1, 1, 'no', '0 s');
             SELECT * FROM tenure.claim('ann'); SELECT tenure.fence(1, 2); SELECT tenure.complete(1, 2)",
        )
        .unwrap();
    let fingerprint = "SELECT encode(tenure.fingerprint('work', '{\"a\":1}'), 'hex')";
    let there: String = session.query_one(fingerprint, &[]).unwrap().get(0);
    assert_eq!(there, lab.text(fingerprint));
    assert_eq!(lab.text("SELECT string_agg(state, ' ') FROM tenure.job"), "succeeded");
}

/// The refusal of an old token comes last in the timeline, after all that happened before it,
/// whichever plan the query uses.
fn a_timeline_is_told_in_its_order_however_it_is_read() {
    let mut lab = Lab::new();
    let mut session = lab.session();
    let first = super::running(&mut session);
    session.batch_execute(&first.call_with("fail", ", 'no', '0 s'")).unwrap();
    super::claim(&mut session, 300);
    super::take_over(&mut lab, &mut session);
    session.batch_execute(&first.call_with("refused", ", 'renew'")).unwrap();
    for settings in
        ["SET enable_seqscan = off", "SET enable_bitmapscan = off", "SET enable_indexscan = off"]
    {
        session.batch_execute(settings).unwrap();
        let told = "SELECT string_agg(verb, ' ') FROM tenure.timeline_of(1)";
        let told: String = session.query_one(told, &[]).unwrap().get(0);
        assert_eq!(told, "retry lapse renew", "{settings}");
    }
}

/// The row of a completed job still names its worker, but the worker does not hold that job.
fn what_a_worker_holds_is_what_it_runs() {
    let lab = Lab::new();
    let mut session = lab.session_as("worker");
    let ended = super::running(&mut session);
    session.batch_execute(&ended.call("complete")).unwrap();
    let lease = super::running(&mut session);
    let held = session.query("SELECT id FROM tenure.held('ann')", &[]).unwrap();
    assert_eq!(held.iter().map(|row| row.get(0)).collect::<Vec<i64>>(), [lease.job]);
}

/// `overview` finds the queues that have ended jobs one after the other, and groups the counts. The
/// settings below force other plans, and the answer must be the same.
fn the_overview_is_whole_and_in_order_however_it_is_read() {
    let mut lab = Lab::new();
    let mut session = lab.session();
    for queue in ["e", "a", "d", "b", "c"] {
        for call in [
            format!("SELECT tenure.enqueue('work', queue => '{queue}')"),
            format!("SELECT tenure.complete(id, token) FROM tenure.claim('ann', '{{{queue}}}')"),
        ] {
            session.batch_execute(&call).unwrap();
        }
    }
    for settings in [
        "SET enable_sort = off",
        "SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off",
        "SET enable_sort = on; SET enable_hashagg = off",
    ] {
        session.batch_execute(settings).unwrap();
        let seen = "SELECT string_agg(queue || succeeded_last_minute, ' ') FROM tenure.overview()";
        let seen: String = session.query_one(seen, &[]).unwrap().get(0);
        assert_eq!(seen, "a1 b1 c1 d1 e1", "{settings}");
    }
    assert_eq!(lab.number("SELECT count(*) FROM tenure.stats"), 5);
}

fn a_job_that_is_ready_is_counted_once_though_the_clock_was_set_back() {
    let mut lab = Lab::new();
    lab.owner().batch_execute("SELECT tenure.enqueue('work')").unwrap();
    lab.advance(-5_000);
    let seen = "SELECT concat_ws(' ', ready, waiting, oldest_wait_ms) FROM tenure.overview()";
    assert_eq!(lab.text(seen), "1 0 0");
}
