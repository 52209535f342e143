//! Enqueueing in batches (`enqueue_many`): what it refuses, what it announces, and which job gets a
//! key.

use std::thread;
use std::time::Duration;

use postgres::Client;
use postgres::fallible_iterator::FallibleIterator;

use super::locks::pid;
use super::{Case, as_each, sql_cases};
use crate::sessions::{Lab, fault};

pub(super) const CASES: &[Case] = sql_cases! {
    "enqueue":
    a_job_is_on_disk_before_it_is_acknowledged_whatever_the_session_says,
    a_batch_that_makes_no_sense_is_refused_with_its_field,
    what_the_set_form_leaves_out_has_its_default,
    only_queues_with_a_job_that_is_due_are_announced,
    a_key_that_somebody_else_is_about_to_get_is_theirs_and_the_rest_of_the_batch_is_created,
    of_many_equal_keys_in_a_batch_the_first_wins,
};

fn a_job_is_on_disk_before_it_is_acknowledged_whatever_the_session_says() {
    let lab = Lab::new();
    let mut session = lab.session_as("enqueuer");
    for (level, then) in [("off", "on"), ("local", "local"), ("remote_write", "remote_write")] {
        let enqueue = "SELECT tenure.enqueue_many('{work}', ARRAY['1']::json[])";
        session
            .batch_execute(&format!("SET synchronous_commit = {level}; BEGIN; {enqueue}"))
            .unwrap();
        let setting: String = session.query_one("SHOW synchronous_commit", &[]).unwrap().get(0);
        assert_eq!(setting, then, "{level}");
        session.batch_execute("ROLLBACK").unwrap();
    }
}

/// A batch of two, of which the first is valid.
fn two(more: &str) -> String {
    format!("SELECT tenure.enqueue_many('{{work,work}}', ARRAY['1', '1']::json[], {more})")
}

fn a_batch_that_makes_no_sense_is_refused_with_its_field() {
    let mut lab = Lab::new();
    let mut session = lab.session_as("enqueuer");
    let print = "tenure.fingerprint('work', '1')";
    let fingerprints = |second: &str| {
        format!("p_keys => '{{NULL,k}}', p_fingerprints => ARRAY[NULL, {second}]::bytea[]")
    };
    let options = |second: &str| format!("p_options => ARRAY[NULL, '{second}']::json[]");
    let retries = |second: &str| options(&format!("{{\"retry\":{second}}}"));
    let extras = |second: &str| format!("p_extras => ARRAY['{{}}', {second}]::json[]");
    let long = |tags: usize| vec!["\"a\""; tags].join(",");
    for (field, more) in [
        ("queue", "p_queues => '{mail,Mail}'".to_owned()),
        ("tenant", "p_tenants => '{acme,Acme}'".into()),
        ("options", options("5")),
        ("options", options("{\"priority\":\"high\"}")),
        ("options", options("{\"priority\":32768}")),
        ("options", options("{\"run_at\":1e30}")),
        ("max_attempts", options("{\"max_attempts\":0}")),
        ("max_attempts", options("{\"max_attempts\":65536}")),
        ("max_crashes", options("{\"max_crashes\":0}")),
        ("max_crashes", options("{\"max_crashes\":65536}")),
        ("max_runtime", options("{\"max_runtime_ms\":0}")),
        ("key_window", format!("{}, {}", options("{\"key_window_ms\":-1}"), fingerprints(print))),
        ("fingerprint", fingerprints("NULL")),
        ("fingerprint", fingerprints("'\\x00'")),
        ("fingerprint", "p_keys => '{NULL,k}'".into()),
        ("key", format!("p_keys => ARRAY['k', ''], p_fingerprints => ARRAY[{print}, {print}]")),
        ("key", format!("p_keys => ARRAY['k', E'\\n'], p_fingerprints => ARRAY[{print}, {print}]")),
        ("extras", extras("'[]'")),
        ("extras", extras("'5'")),
        ("extras", extras("'{\"trace\":\"\\u0000\"}'")),
        ("extras", extras("concat('{\"more\":\"', repeat('x', 4086), '\"}')")),
        ("trace", extras("'{\"trace\":\"\\n\"}'")),
        ("trace", extras("'{\"trace\":5}'")),
        ("trace", extras("concat('{\"trace\":\"', repeat('x', 513), '\"}')")),
        ("tags", extras(&format!("'{{\"tags\":[{}]}}'", long(17)))),
        ("tags", extras("'{\"tags\":[]}'")),
        ("tags", extras("'{\"tags\":\"a\"}'")),
        ("tag", extras("'{\"tags\":[\"a\",\"a B\"]}'")),
        ("tag", extras("'{\"tags\":[null]}'")),
        ("retry", retries("{\"fixed\":5}")),
        ("retry", retries("{\"fixed\":{\"ms\":1,\"x\":2}}")),
        ("retry", retries("{\"list\":{\"ms\":[1],\"x\":2}}")),
        ("retry", retries("{\"list\":{\"ms\":5}}")),
        ("retry", retries("{\"list\":{}}")),
        ("retry", retries("{\"list\":{\"ms\":[]}}")),
        ("retry", retries("{\"exponential\":{\"base_ms\":1,\"cap_ms\":2,\"x\":3}}")),
        ("retry", retries("{\"exponential\":{\"base_ms\":1,\"ms\":2}}")),
        ("retry", retries("{\"fixed\":{\"ms\":99999999999999999999}}")),
        ("retry", retries("[]")),
        ("retry", retries("{}")),
        ("args_limit", "p_args_limit => 0".into()),
        ("args_limit", "p_args_limit => 16777217".into()),
        ("batch", "p_options => ARRAY[NULL]::json[]".into()),
        ("batch", "p_extras => ARRAY[NULL]::json[]".into()),
    ] {
        let refusal = fault(session.query(&two(&more), &[]));
        assert_eq!(
            (refusal.code().code(), refusal.column()),
            ("TN003", Some(field)),
            "{more}: {refusal}"
        );
    }
    let args = "SELECT tenure.enqueue_many('{work,work}', ARRAY['1', NULL]::json[])";
    assert_eq!(fault(session.query(args, &[])).column(), Some("args"));
    assert_eq!(lab.number("SELECT count(*) FROM tenure.job"), 0, "nothing was stored");
}

/// An option that the batch leaves out has its default in every position, also where other elements
/// give a value. Values at the limits are accepted.
fn what_the_set_form_leaves_out_has_its_default() {
    let mut lab = Lab::new();
    let mut session = lab.session_as("enqueuer");
    for more in [
        "p_queues => '{NULL,mail}', p_tenants => ARRAY[NULL, '']",
        "p_options => ARRAY[NULL, '{\"max_attempts\":65535,\"max_crashes\":65535,\"max_runtime_ms\":1}']::json[]",
        "p_keys => '{NULL,NULL}', p_options => ARRAY[NULL, '{}']::json[], p_fingerprints => ARRAY[NULL, '\\x00'::bytea]",
        "p_keys => '{NULL,k}', p_fingerprints => ARRAY[NULL, sha256('')], p_options => ARRAY[NULL, '{\"key_window_ms\":0}']::json[]",
        "p_extras => ARRAY[NULL, concat('{\"trace\":\"', repeat('x', 512), '\",\"tags\":[\"a\"', repeat(',\"a\"', 15), ']}')]::json[]",
        "p_extras => ARRAY['{\"tags\":[\"a\"]}', concat('{\"more\":\"', repeat('x', 4085), '\"}')]::json[]",
        "p_options => ARRAY[NULL, '{\"retry\":{\"list\":{\"ms\":[18446744073709551615,0]}}}']::json[]",
        "p_options => ARRAY['{\"retry\":{\"exponential\":{\"base_ms\":1,\"cap_ms\":2}}}', '{\"retry\":{\"fixed\":{\"ms\":1}}}']::json[]",
        "p_options => ARRAY['{\"delay_ms\":0,\"unknown\":1}', '{\"run_at\":5,\"priority\":7,\"parent\":1}']::json[]",
        "p_args_limit => 1",
        "p_args_limit => 16777216",
        "p_args_limit => NULL",
    ] {
        session.query(&two(more), &[]).unwrap_or_else(|error| panic!("{more}: {error:?}"));
    }
    assert_eq!(lab.number("SELECT count(*) FROM tenure.job"), 24);
    let plain = "SELECT count(*) FROM tenure.jobs WHERE queue = 'default' AND tenant = '' AND max_attempts = 6 AND max_crashes = 5
        AND key IS NULL AND retry IS NULL AND max_runtime IS NULL AND priority = 0 AND run_at = enqueued_at AND state = 0";
    assert_eq!(lab.number(plain), 17);
}

/// The notifications that a session has received so far. The session notifies itself last, so that
/// all earlier notifications have arrived.
fn heard(listener: &mut Client) -> Vec<String> {
    listener.batch_execute("LISTEN the_end; NOTIFY the_end").unwrap();
    let mut all = Vec::new();
    let mut notices = listener.notifications();
    let mut notices = notices.timeout_iter(Duration::from_secs(30));
    while let Some(notice) = notices.next().unwrap() {
        if notice.channel() == "the_end" {
            return all;
        }
        all.push(notice.payload().to_owned());
    }
    panic!("the session does not hear itself")
}

fn only_queues_with_a_job_that_is_due_are_announced() {
    let lab = Lab::new();
    let (mut listener, mut session) = (lab.session(), lab.session_as("enqueuer"));
    listener.batch_execute("LISTEN tenure").unwrap();
    let enqueue = |queues: &str, delays: [i64; 2]| {
        let [first, second] = delays.map(|delay| format!("'{{\"delay_ms\":{delay}}}'"));
        format!(
            "SELECT tenure.enqueue_many('{{work,work}}', ARRAY['1', '1']::json[], p_queues => '{queues}',
                 p_options => ARRAY[{first}, {second}]::json[])"
        )
    };
    session.batch_execute(&enqueue("{later,later}", [1, 1000])).unwrap();
    assert!(heard(&mut listener).is_empty());
    session.batch_execute(&enqueue("{later,now}", [1, 0])).unwrap();
    assert_eq!(heard(&mut listener), ["now"]);
    session.batch_execute(&enqueue("{both,both}", [1000, 0])).unwrap();
    assert_eq!(heard(&mut listener), ["both"]);
}

/// I12: the second batch takes its keys in their order: `a`, then `m`, for which it waits, then
/// `z`. It gets the other session's job for `m`, and creates its own jobs for `a` and `z`.
fn a_key_that_somebody_else_is_about_to_get_is_theirs_and_the_rest_of_the_batch_is_created() {
    as_each(|lab, who| {
        let (mut first, mut second) = (who.session(lab), who.session(lab));
        let ask = |keys: &str, n: usize| {
            format!(
                "SELECT string_agg(verdict || ' ' || job, ', ' ORDER BY n) FROM tenure.enqueue_many(array_fill('a'::text, ARRAY[{n}]),
                 array_fill('1'::json, ARRAY[{n}]), p_keys => '{keys}',
                 p_fingerprints => array_fill(tenure.fingerprint('a', '1'), ARRAY[{n}]))"
            )
        };
        let answer = |session: &mut Client, sql: &str| {
            session.query_one(sql, &[]).unwrap().get::<_, String>(0)
        };
        first.batch_execute("BEGIN").unwrap();
        assert_eq!(answer(&mut first, &ask("{m}", 1)), "created 1");
        let waits = pid(&mut second);
        let batch = ask("{z,m,a,NULL}", 4);
        let asked = thread::spawn(move || (answer(&mut second, &batch), second));
        lab.wait_until_blocked(waits);
        first.batch_execute("COMMIT").unwrap();
        let (told, mut second) = asked.join().unwrap();
        let (created, rest) = told.split_once(", existing 1, created ").unwrap();
        let [z, a, plain] =
            [&created[8..], rest.split(',').next().unwrap(), rest.rsplit(' ').next().unwrap()];
        assert_eq!(told, format!("created {z}, existing 1, created {a}, created {plain}"));
        assert_eq!(lab.number("SELECT count(*) FROM tenure.job"), 4);
        assert_eq!(
            answer(&mut second, &ask("{a,m,z}", 3)),
            format!("existing {a}, existing 1, existing {z}")
        );
        assert_eq!(lab.number("SELECT count(*) FROM tenure.keys"), 3);
    });
}

/// The 900 elements share 30 keys. The first element of each key wins, in whatever order the server
/// processes them.
fn of_many_equal_keys_in_a_batch_the_first_wins() {
    let mut lab = Lab::new();
    let mut session = lab.session_as("enqueuer");
    let sql = "SELECT n, verdict, job FROM tenure.enqueue_many(array_fill('a'::text, ARRAY[900]), array_fill('1'::json, ARRAY[900]),
         p_keys => ARRAY(SELECT 'k' || (7 * n) % 30 FROM generate_series(1, 900) n),
         p_fingerprints => ARRAY(SELECT CASE WHEN n <= 30 THEN sha256('1') ELSE sha256('2') END FROM generate_series(1, 900) n))
         ORDER BY n";
    let rows = session.query(sql, &[]).unwrap();
    let answers: Vec<(String, i64)> = rows.iter().map(|row| (row.get(1), row.get(2))).collect();
    for (n, (verdict, job)) in answers.iter().enumerate() {
        let first = &answers[n % 30];
        assert_eq!(
            (verdict.as_str(), *job),
            (if n < 30 { "created" } else { "conflict" }, first.1),
            "{n}"
        );
    }
    assert!(answers[..30].is_sorted_by_key(|answer| answer.1), "ids are in the order of the batch");
    assert_eq!(lab.number("SELECT count(*) FROM tenure.job"), 30);
}
