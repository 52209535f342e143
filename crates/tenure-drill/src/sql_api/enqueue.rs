//! How a job gets in by SQL: every parameter, its default, and what is refused.

use super::{Case, as_each, claim, sql_cases};
use crate::sessions::{Lab, fault};

pub(super) const CASES: &[Case] = sql_cases! {
    "enqueue":
    a_job_of_which_only_the_kind_is_said_has_the_defaults,
    every_parameter_can_be_given_by_name_and_is_kept,
    jsonb_needs_a_cast_and_an_untyped_literal_does_not,
    a_job_is_due_when_it_says_and_not_before,
    the_same_request_under_a_key_gets_the_same_job_and_another_one_is_a_conflict,
    what_makes_no_sense_is_refused_with_its_field_and_a_hint,
    args_that_cannot_be_kept_are_refused_by_their_size_depth_and_characters,
    limits_may_be_reached,
    what_is_no_request_has_no_fingerprint,
    the_set_form_takes_and_refuses_the_args_that_the_single_form_does,
};

fn a_job_of_which_only_the_kind_is_said_has_the_defaults() {
    as_each(|lab, who| {
        let job: i64 =
            who.session(lab).query_one("SELECT tenure.enqueue('work')", &[]).unwrap().get(0);
        let row = lab.text(&format!(
            "SELECT concat_ws('|', state, queue, tenant, kind, args, priority, attempt, max_attempts, crashes, max_crashes, token,
             run_at = tenure.now(), enqueued_at = tenure.now(), num_nonnulls(worker, key, trace, tags, parent))
             FROM tenure.job WHERE id = {job}"
        ));
        assert_eq!(row, "queued|default||work|{}|0|0|6|0|5|0|t|t|0");
    });
}

fn every_parameter_can_be_given_by_name_and_is_kept() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        session
            .batch_execute(
                r#"SELECT tenure.enqueue(kind => 'work', args => '{"a": [1, 2.50]}', queue => 'mail', tenant => 'acme', key => 'k 1',
                priority => -7, delay => '1 min 500 ms', max_attempts => 2, max_crashes => 4, max_runtime => '90 s',
                retry => '{"list":{"ms":[100,200]}}', key_window => '1 h', trace => '00-abc-def-01', tags => '{red,blue}',
                parent => 77)"#,
            )
            .unwrap();
        let row = lab.text(
            "SELECT concat_ws('|', state, queue, tenant, kind, args, priority, max_attempts, max_crashes, key, trace, tags, parent,
             run_at - tenure.now()) FROM tenure.job",
        );
        assert_eq!(
            row,
            r#"queued|mail|acme|work|{"a": [1, 2.50]}|-7|2|4|k 1|00-abc-def-01|{red,blue}|77|00:01:00.5"#
        );
        let inner = "SELECT concat_ws('|', max_runtime, retry, (SELECT expires_at - c.at FROM tenure.keys, tenure.clock c))
                     FROM tenure.jobs";
        assert_eq!(lab.text(inner), r#"90000|{"list":{"ms":[100,200]}}|3600000"#);
    });
}

/// A second `enqueue`, for `jsonb`, would make the untyped literal ambiguous.
fn jsonb_needs_a_cast_and_an_untyped_literal_does_not() {
    let mut lab = Lab::new();
    for args in ["'{\"a\": 1}'", "'{\"a\": 1}'::json", "jsonb_build_object('a', 1)::json"] {
        let ask = format!("SELECT tenure.enqueue('work', {args})");
        lab.owner().batch_execute(&ask).unwrap();
    }
    assert_eq!(lab.number("SELECT count(*) FROM tenure.job WHERE args ->> 'a' = '1'"), 3);
    let ask = "SELECT tenure.enqueue('work', jsonb_build_object('a', 1))";
    let refusal = fault(lab.owner().batch_execute(ask));
    assert_eq!(refusal.code().code(), "42883", "{refusal}");
    assert!(refusal.hint().unwrap().contains("explicit type casts"), "{refusal}");
}

fn a_job_is_due_when_it_says_and_not_before() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let due = "SELECT tenure.enqueue('work', run_at => tenure.now() + interval '2 s')";
        session.batch_execute(due).unwrap();
        lab.advance(1_999);
        assert!(super::claim_many(&mut session, 1, 300).is_empty());
        lab.advance(1);
        claim(&mut session, 300);
        // A time in the past means due at once, and first in order.
        session.batch_execute("SELECT tenure.enqueue('late', run_at => '4713-01-01 BC')").unwrap();
        claim(&mut session, 300);
        let never = "SELECT tenure.enqueue('never', delay => '170000000 years')";
        session.batch_execute(never).unwrap();
        let shown = lab.text("SELECT run_at::timestamptz AT TIME ZONE 'UTC' || '' FROM tenure.job WHERE kind = 'never'");
        assert_eq!(shown, "9999-12-30 22:00:00", "time ends there");
    });
}

fn the_same_request_under_a_key_gets_the_same_job_and_another_one_is_a_conflict() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let mut ask = |sql: &str| session.query_one(sql, &[]).map(|row| row.get::<_, i64>(0));
        let job = ask(r#"SELECT tenure.enqueue('work', '{"a":1,"b":2}', key => 'k')"#).unwrap();
        let again =
            r#"SELECT tenure.enqueue('work', '{ "b": 2, "a": 1 }', key => 'k', priority => 5)"#;
        assert_eq!(ask(again).unwrap(), job, "spelling does not matter");
        for other in ["'work', '{}', key => 'k'", r#"'play', '{"a":1,"b":2}', key => 'k'"#] {
            let conflict = fault(ask(&format!("SELECT tenure.enqueue({other})")));
            assert_eq!(conflict.code().code(), "TN002");
            assert_eq!(
                conflict.message(),
                format!("key 'k' belongs to job {job}, which was another request")
            );
            assert!(conflict.hint().unwrap().contains("another key"), "{conflict:?}");
        }
        let elsewhere =
            ask("SELECT tenure.enqueue('work', '{}', key => 'k', tenant => 'acme')").unwrap();
        assert_ne!(elsewhere, job, "keys are a tenant's own");
        lab.advance(24 * 60 * 60 * 1_000);
        assert_ne!(
            ask("SELECT tenure.enqueue('work', '{}', key => 'k')").unwrap(),
            job,
            "forgotten after a day"
        );
        assert_eq!(lab.number("SELECT count(*) FROM tenure.job"), 3);
    });
}

/// The field that the error must name, and arguments after the kind that are refused.
const REFUSED: [(&str, &str); 49] = [
    ("queue", "queue => ''"),
    ("queue", "queue => 'Mail'"),
    ("queue", "queue => E'mail\\n'"),
    ("queue", "queue => '-mail'"),
    ("queue", "queue => 'a b'"),
    ("queue", "queue => repeat('a', 64)"),
    ("queue", "queue => 'é'"),
    ("tenant", "tenant => 'Acme'"),
    ("tenant", "tenant => ' '"),
    ("priority", "priority => 32768"),
    ("priority", "priority => -32769"),
    ("priority", "priority => NULL"),
    ("delay", "delay => '-1 ms'"),
    ("delay", "delay => '1 s', run_at => now()"),
    ("run_at", "run_at => 'infinity'"),
    ("run_at", "run_at => '-infinity'"),
    ("max_attempts", "max_attempts => 0"),
    ("max_attempts", "max_attempts => -1"),
    ("max_attempts", "max_attempts => 65536"),
    ("max_crashes", "max_crashes => 0"),
    ("max_crashes", "max_crashes => 65536"),
    ("max_runtime", "max_runtime => '0 s'"),
    ("max_runtime", "max_runtime => '-1 s'"),
    ("retry", "retry => 'null'"),
    ("retry", "retry => '{}'"),
    ("retry", "retry => '\"fixed\"'"),
    ("retry", r#"retry => '{"fixed":{}}'"#),
    ("retry", r#"retry => '{"fixed":{"ms":-1}}'"#),
    ("retry", r#"retry => '{"fixed":{"ms":1.5}}'"#),
    ("retry", r#"retry => '{"fixed":{"ms":"1"}}'"#),
    ("retry", r#"retry => '{"fixed":{"ms":18446744073709551616}}'"#),
    ("retry", r#"retry => '{"list":{"ms":[]}}'"#),
    ("retry", r#"retry => '{"list":{"ms":[1,null]}}'"#),
    (
        "retry",
        r#"retry => json_build_object('list', json_build_object('ms', array_fill(1, ARRAY[65])))"#,
    ),
    ("retry", r#"retry => '{"exponential":{"base_ms":1}}'"#),
    ("retry", r#"retry => '{"fixed":{"ms":1},"list":{"ms":[1]}}'"#),
    ("retry", r#"retry => '{"linear":{"ms":1}}'"#),
    ("key", "key => ''"),
    ("key", "key => repeat('k', 256)"),
    ("key", "key => repeat('é', 128)"),
    ("key", "key => E'a\\tb'"),
    ("key", "key => E'a\\u007f'"),
    ("key", "key => E'a\\u0085'"),
    ("key_window", "key => 'k', key_window => '-1 s'"),
    ("trace", "trace => 'é'"),
    ("trace", "trace => repeat('x', 513)"),
    ("tags", "tags => array_fill('a'::text, ARRAY[17])"),
    ("tag", "tags => '{ok,Not}'"),
    ("tag", "tags => '{\"two words\"}'"),
];

fn refusal(lab: &Lab, call: &str) -> postgres::error::DbError {
    let sql = format!("SELECT tenure.enqueue({call})");
    let answer = lab.session_as("enqueuer").batch_execute(&sql);
    assert!(answer.is_err(), "accepted: {call}");
    fault(answer)
}

fn what_makes_no_sense_is_refused_with_its_field_and_a_hint() {
    let mut lab = Lab::new();
    for (field, arguments) in REFUSED {
        let refusal = refusal(&lab, &format!("'work', {arguments}"));
        assert_eq!(refusal.code().code(), "TN003", "{arguments}: {refusal}");
        assert_eq!(refusal.column(), Some(field), "{arguments}: {refusal}");
        assert!(refusal.message().starts_with(&format!("{field}: ")), "{arguments}: {refusal}");
        assert!(refusal.hint().is_some_and(|hint| hint.ends_with('.')), "{arguments}: {refusal}");
    }
    for kind in ["''", "NULL", "'A'", "repeat('a', 64)", "'a''; DROP TABLE x'"] {
        let refusal = refusal(&lab, kind);
        assert_eq!((refusal.code().code(), refusal.column()), ("TN003", Some("kind")), "{kind}");
    }
    assert_eq!(lab.number("SELECT count(*) FROM tenure.job"), 0, "nothing was stored");
}

fn args_that_cannot_be_kept_are_refused_by_their_size_depth_and_characters() {
    let lab = Lab::new();
    let text = |n: usize| format!("('\"' || repeat('x', {}) || '\"')::json", n - 2);
    let deep = |n: usize| format!("(repeat('[', {n}) || repeat(']', {n}))::json");
    for (args, why) in [
        ("NULL".to_owned(), "NULL is not JSON"),
        (text(262_145), "262145 bytes are above the limit of 262144 bytes"),
        (deep(128), "nested more than 127 deep"),
        (r#"'"\u0000"'"#.into(), "cannot be stored as JSON"),
        (r#"'{"\u0000":1}'"#.into(), "cannot be stored as JSON"),
        (r#"'"\ud800"'"#.into(), "cannot be stored as JSON"),
        (r#"'"\udc00\ud800"'"#.into(), "cannot be stored as JSON"),
    ] {
        let refusal = refusal(&lab, &format!("'work', {args}"));
        assert_eq!((refusal.code().code(), refusal.column()), ("TN003", Some("args")), "{refusal}");
        assert!(refusal.message().contains(why), "{refusal}");
        assert!(refusal.hint().is_some());
    }
    let mut session = lab.session_as("enqueuer");
    // As deep as allowed, with a scalar at the bottom. It has more brackets than that, but only the
    // depth counts.
    let wide = format!("'[{}1{},[],{{}}]'", "[".repeat(126), "]".repeat(126));
    for args in [text(262_144), deep(127), wide, "'null'".into(), "'7'".into()] {
        session.batch_execute(&format!("SELECT tenure.enqueue('work', {args})")).unwrap();
    }
}

fn limits_may_be_reached() {
    let mut lab = Lab::new();
    let mut session = lab.session_as("enqueuer");
    for arguments in [
        "queue => repeat('a', 63)",
        "tenant => ''",
        "priority => 32767",
        "priority => -32768",
        "delay => '0 s'",
        "max_attempts => 65535",
        "max_crashes => 1",
        "max_runtime => '1 ms'",
        r#"retry => '{"fixed":{"ms":18446744073709551615}}'"#,
        "key => repeat('k', 255)",
        "key => 'é ü', key_window => '0 s'",
        "trace => ''",
        "trace => repeat('x', 512)",
        "tags => '{}'",
        "tags => array_fill('a'::text, ARRAY[16])",
        "queue => NULL, tenant => NULL, key => NULL, delay => NULL, run_at => NULL, max_attempts => NULL,
         max_crashes => NULL, max_runtime => NULL, retry => NULL, key_window => NULL, trace => NULL, tags => NULL, parent => NULL",
    ] {
        let sql = format!("SELECT tenure.enqueue('work', {arguments})");
        session.batch_execute(&sql).unwrap_or_else(|error| panic!("{arguments}: {error:?}"));
    }
    assert_eq!(lab.number("SELECT count(*) FROM tenure.job"), 16);
}

/// Args that the library cannot read back would block the worker that claims the job, so every way
/// to enqueue refuses them.
fn the_set_form_takes_and_refuses_the_args_that_the_single_form_does() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    let deep_objects = format!("{}1{}", r#"{"a":"#.repeat(128), "}".repeat(128));
    let flat = format!("[{}1]", "[],".repeat(500));
    let texts = [
        (r#"{"a":"\u0000"}"#.to_owned(), false),
        (r#"{"\u0000":1}"#.to_owned(), false),
        (r#"["\ud800"]"#.to_owned(), false),
        (r#"["\udc00\ud800"]"#.to_owned(), false),
        (r#"["\ud83d\ude00", "\\u0000", "\u00e9"]"#.to_owned(), true),
        (nested(128), false),
        (nested(3_000), false),
        (nested(127), true),
        (deep_objects, false),
        (flat, true),
        (format!("\"{}\"", "x".repeat(262_142)), true),
        (format!("\"{}\"", "x".repeat(262_143)), false),
        (format!("\"{}\"", "ä".repeat(131_072)), false),
        ("{}".to_owned(), true),
    ];
    as_each(|lab, who| {
        let mut session = who.session(lab);
        for (text, is_taken) in &texts {
            let start = &text[..text.floor_char_boundary(40)];
            let single = session.query("SELECT tenure.enqueue('work', $1::text::json)", &[text]);
            assert_eq!(single.is_ok(), *is_taken, "the single form: {start}");
            // One bad element among many: if it is refused, nothing of the batch is stored.
            let before = lab.number("SELECT count(*) FROM tenure.job");
            let many = session.query(
                "SELECT tenure.enqueue_many(array_fill('work'::text, '{9}'),
                     array_fill('{\"a\":[1]}'::json, '{8}') || $1::text::json)",
                &[text],
            );
            assert_eq!(many.is_ok(), *is_taken, "the set form: {start}");
            let stored = lab.number("SELECT count(*) FROM tenure.job") - before;
            assert_eq!(stored, if *is_taken { 9 } else { 0 }, "{start}");
            if !is_taken {
                let refusal = fault(many);
                assert_eq!((refusal.code().code(), refusal.column()), ("TN003", Some("args")));
            }
        }
        // A caller with larger args raises the limit.
        let large = format!("\"{}\"", "x".repeat(1_000_000));
        let ask = "SELECT tenure.enqueue_many('{work}', ARRAY[$1::text::json], p_args_limit => $2)";
        session.query(ask, &[&large, &1_000_002]).unwrap();
        for limit in [1_000_001, 0, -1, 16_777_217] {
            assert_eq!(fault(session.query(ask, &[&large, &limit])).code().code(), "TN003");
        }
    });
}

fn what_is_no_request_has_no_fingerprint() {
    let lab = Lab::new();
    let mut session = lab.session_as("enqueuer");
    for request in ["'work', NULL", "NULL, '{}'", "NULL, NULL"] {
        let ask = format!("SELECT tenure.fingerprint({request})");
        let answer: Option<Vec<u8>> = session.query_one(&ask, &[]).unwrap().get(0);
        assert_eq!(answer, None, "{request}");
    }
}
