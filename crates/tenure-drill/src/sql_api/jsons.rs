//! JSON on both sides: SQL accepts what the library accepts, and both write it in the same
//! canonical form.
//!
//! There is one difference, in numbers that floating point cannot hold. The library refuses numbers
//! above 1.8e308 and accepts those that are too small for anything but zero; PostgreSQL has its own
//! limits, about 1e131071 and 1e-16383. A number that both accept has the same canonical form on
//! both sides.
use postgres::Client;
use tenure::engine::clock::Chance;
use tenure::engine::job::{Fingerprint, Json, Key, Name, NewJob};
use tenure::engine::store::postgres::{Postgres, PostgresOptions};
use tenure::engine::store::{Enqueued, Work};

use super::{Case, claim_many, enqueue, running, sql_cases};
use crate::sessions::{Lab, fault};

pub(super) const CASES: &[Case] = sql_cases! {
    "jsons":
    the_canonical_form_in_sql_is_the_librarys,
    four_thousand_texts_are_taken_and_spelled_alike_on_both_sides,
    numbers_beyond_floating_point_are_measured_differently_and_spelled_alike,
    a_key_that_sql_took_answers_the_library_with_the_same_job,
    what_an_attempt_came_to_has_the_limits_of_args,
    a_result_of_a_single_form_has_at_most_256_kib,
};

const LIMIT: usize = 262_144;

/// A temporary function: the canonical form and the fingerprint, or NULL if SQL refuses the text.
const JUDGE: &str = "CREATE FUNCTION pg_temp.judge(value text) RETURNS text LANGUAGE plpgsql AS $$
    DECLARE parsed json;
    BEGIN
        parsed := value::json;
        PERFORM tenure.check_json('args', parsed, 262144);
        RETURN encode(tenure.fingerprint('work', parsed), 'hex') || ' ' || tenure.canonical(parsed);
    EXCEPTION WHEN SQLSTATE '22P02' OR SQLSTATE 'TN003' THEN
        RETURN NULL;
    END $$";

fn judge() -> (Lab, Client) {
    let lab = Lab::new();
    let mut session = lab.session();
    session.batch_execute(JUDGE).unwrap();
    (lab, session)
}

/// What SQL makes of each text: its canonical form and fingerprint, or none.
fn by_sql(session: &mut Client, texts: &[String]) -> Vec<Option<String>> {
    let ask = "SELECT pg_temp.judge(t) FROM unnest($1::text[]) WITH ORDINALITY u(t, n) ORDER BY n";
    session.query(ask, &[&texts]).unwrap().iter().map(|row| row.get(0)).collect()
}

/// What the library makes of a text: its canonical form and fingerprint, or none.
fn by_library(text: &str) -> Option<String> {
    let json = Json::check("args", text, LIMIT).ok()?;
    let Fingerprint(bytes) = Fingerprint::of("work", &json);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("{hex} {}", json.canonical()))
}

/// Compares SQL and the library on all texts; returns how many were accepted.
fn compare(texts: &[String]) -> usize {
    let (_lab, mut session) = judge();
    let mut accepted = 0;
    for texts in texts.chunks(500) {
        for (text, sql) in texts.iter().zip(by_sql(&mut session, texts)) {
            assert_eq!(sql, by_library(text), "{text:?}");
            accepted += usize::from(sql.is_some());
        }
    }
    accepted
}

fn the_canonical_form_in_sql_is_the_librarys() {
    let nested = |open: &str, close: &str, n: usize| open.repeat(n) + "1" + &close.repeat(n);
    let mut texts: Vec<String> = [
        "null",
        " true ",
        "\t\r\nfalse\n",
        "0",
        "-0",
        "-0.0",
        "1.0",
        "1.50",
        "1E5",
        "1e+05",
        "123456789012345678901234567890",
        "0.1000",
        "1e308",
        "1e-320",
        "[]",
        " [ ] ",
        "{}",
        " { } ",
        "[[],{},[{}]]",
        r#""""#,
        r#"" ""#,
        r#""a\/b""#,
        r#""\u0041""#,
        r#""\u00e9""#,
        "\"é\"",
        r#""\ud83d\ude00""#,
        r#""\uD83D\uDE00""#,
        "\"😀\"",
        r#""\u2028\u2029""#,
        "\"\u{2028}\"",
        r#""\u007f""#,
        "\"\u{7f}\"",
        r#""\u0001\u001f\u0008\u0009\u000a\u000c\u000d""#,
        r#""\b\t\n\f\r\"\\""#,
        r#""\u0022\u005c""#,
        r#""\uffff\ufffe\ufeff""#,
        r#"{"b":1,"a":2}"#,
        r#"{"a":1,"a":2}"#,
        r#"{"a":{"x":1},"\u0061":[2]}"#,
        r#"{"":1," ":2}"#,
        r#"{"é":1,"z":2,"Z":3,"😀":4,"\uffff":5}"#,
        r#"{"a":1,"B":2,"b":3,"A":4,"_":5,"10":6,"9":7}"#,
        r#"{"a\u0301":1,"á":2}"#,
        r#"{ "k" : [ 1 , { "z" : null , "y" : "x" } ] }"#,
        r#"{"a\"b":1,"a\\b":2,"a\nb":3}"#,
        // Texts that are not JSON, or cannot be stored.
        "",
        " ",
        "nul",
        "True",
        "NaN",
        "Infinity",
        "01",
        "-",
        "+1",
        "1.",
        ".5",
        "1e",
        "0x1",
        "'a'",
        "[1,]",
        "[,1]",
        "{\"a\"}",
        "{\"a\":}",
        "{a:1}",
        "{\"a\":1,}",
        "[1 2]",
        "{} {}",
        "[",
        "]",
        "\"",
        "\"\\x\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\n\"",
        "\"\u{1f}\"",
        r#""\u0000""#,
        r#"{"\u0000":1}"#,
        r#"{"a":1,"a":"\u0000"}"#,
        r#""\ud800""#,
        r#""\udc00""#,
        r#""\ud800\ud800""#,
        r#""\ud800x""#,
        r#""\ud800\u0041""#,
        r#""\udc00\ud800""#,
        r#"{"\ud800":1}"#,
        r#"{"a":"\ud800","a":1}"#,
        "\u{feff}1",
        "\u{a0}1",
        "1\u{c}",
        "\u{b}1",
        "[1]//",
        "/**/1",
    ]
    .map(str::to_owned)
    .to_vec();
    for depth in [1, 2, 126, 127, 128, 129, 500] {
        texts.push(nested("[", "]", depth));
        texts.push(nested(r#"{"a":"#, "}", depth));
        texts.push(nested(r#" [ { "a" : "#, " } ] ", depth / 2));
        // Brackets inside strings do not count as depth.
        texts.push(format!("\"{}\"", "[{".repeat(depth)));
    }
    // At the limit, and one byte above it.
    texts.push(format!("\"{}\"", "x".repeat(LIMIT - 2)));
    texts.push(format!("\"{}\"", "x".repeat(LIMIT - 1)));
    texts.push(format!("\"{}é\"", "x".repeat(LIMIT - 4)));
    texts.push(format!("\"{}é\"", "x".repeat(LIMIT - 3)));
    assert_eq!(compare(&texts), 66);
}

/// Random JSON texts, some of them with a mistake.
fn four_thousand_texts_are_taken_and_spelled_alike_on_both_sides() {
    let mut chance = Chance::seeded(2028);
    let texts: Vec<String> = (0..4_000)
        .map(|n| {
            let mut text = String::new();
            write_value(&mut text, &mut chance, n % 7);
            if n % 4 == 3 { spoil(&text, &mut chance) } else { text }
        })
        .collect();
    let accepted = compare(&texts);
    assert!((2_000..3_900).contains(&accepted), "both kinds must be among them: {accepted}");
}

fn write_value(out: &mut String, chance: &mut Chance, depth: u64) {
    write_space(out, chance);
    match chance.below(if depth == 0 { 4 } else { 10 }) {
        0 => out.push_str(["null", "true", "false"][chance.below(3) as usize]),
        1 => write_number(out, chance),
        2 | 3 => write_string(out, chance),
        4..=6 => {
            out.push('[');
            for at in 0..chance.below(4) {
                if at > 0 {
                    out.push(',');
                }
                write_value(out, chance, depth - 1);
            }
            write_space(out, chance);
            out.push(']');
        }
        _ => {
            out.push('{');
            for at in 0..chance.below(5) {
                if at > 0 {
                    out.push(',');
                }
                write_space(out, chance);
                // Few names, so that some occur twice, in one spelling or another.
                match chance.below(3) {
                    0 => out.push_str(
                        ["\"a\"", r#""\u0061""#, "\"b\"", "\"\"", "\"é\""]
                            [chance.below(5) as usize],
                    ),
                    _ => write_string(out, chance),
                }
                write_space(out, chance);
                out.push(':');
                write_value(out, chance, depth - 1);
            }
            write_space(out, chance);
            out.push('}');
        }
    }
    write_space(out, chance);
}

fn write_space(out: &mut String, chance: &mut Chance) {
    if chance.below(3) == 0 {
        for _ in 0..chance.below(3) {
            out.push([' ', '\t', '\n', '\r'][chance.below(4) as usize]);
        }
    }
}

fn write_number(out: &mut String, chance: &mut Chance) {
    if chance.below(3) == 0 {
        out.push('-');
    }
    match chance.below(3) {
        0 => out.push('0'),
        _ => {
            out.push_str(&(1 + chance.bits() % 10u64.pow(1 + chance.below(18) as u32)).to_string());
        }
    }
    if chance.below(2) == 0 {
        out.push_str(&format!(".{}", chance.below(10_000)));
    }
    if chance.below(3) == 0 {
        // Small, because `spoil` may double a digit: the number must stay in the range in which
        // both sides agree.
        let sign = ["", "+", "-"][chance.below(3) as usize];
        let e = ["e", "E"][chance.below(2) as usize];
        out.push_str(&format!("{e}{sign}{}", chance.below(25)));
    }
}

fn write_string(out: &mut String, chance: &mut Chance) {
    out.push('"');
    for _ in 0..chance.below(6) {
        match chance.below(9) {
            0 => out.push_str(
                ["\\\"", "\\\\", "\\/", "\\b", "\\f", "\\n", "\\r", "\\t"]
                    [chance.below(8) as usize],
            ),
            // Any UTF-16 unit, from NUL to unpaired surrogates: some of them cannot be stored.
            1 => out.push_str(&format!("\\u{:04x}", chance.below(0x1_0000))),
            2 => out.push_str(&format!("\\u{:04X}", chance.below(0x80))),
            3 => {
                let (high, low) = (0xd800 + chance.below(0x400), 0xdc00 + chance.below(0x400));
                out.push_str(&format!("\\u{high:04x}\\u{low:04X}"));
            }
            4 => out.push(
                ['\u{7f}', '\u{80}', '\u{2028}', '\u{2029}', '\u{feff}', '\u{ffff}']
                    [chance.below(6) as usize],
            ),
            5 => {
                out.push(['é', 'ß', '😀', '漢', '\u{301}', '\u{10ffff}'][chance.below(6) as usize]);
            }
            _ => match char::from(b' ' + chance.below(95) as u8) {
                special @ ('"' | '\\') => out.extend(['\\', special]),
                plain => out.push(plain),
            },
        }
    }
    out.push('"');
}

/// Deletes, doubles or replaces a random character.
fn spoil(text: &str, chance: &mut Chance) -> String {
    let mut characters: Vec<char> = text.chars().collect();
    let at = chance.below(characters.len() as u64) as usize;
    match chance.below(3) {
        0 => drop(characters.remove(at)),
        1 => characters.insert(at, characters[at]),
        _ => {
            characters[at] = ['"', '\\', ',', ':', '[', '}', '0', 'u', '\u{1}', 'é', '.', '-']
                [chance.below(12) as usize];
        }
    }
    characters.into_iter().collect()
}

/// The only difference: numbers beyond floating point.
fn numbers_beyond_floating_point_are_measured_differently_and_spelled_alike() {
    let (_lab, mut session) = judge();
    let texts = ["1e308", "1e400", "1e200000", "1e-400", "1e-99999"].map(str::to_owned);
    let sql: Vec<bool> = by_sql(&mut session, &texts).iter().map(Option::is_some).collect();
    let library: Vec<bool> = texts.iter().map(|text| by_library(text).is_some()).collect();
    assert_eq!(sql, [true, true, false, true, false]);
    assert_eq!(library, [true, false, false, true, true]);
    assert_eq!(by_sql(&mut session, &texts)[3], by_library(&texts[3]));
}

/// I12, across languages: the same request has the same fingerprint, whichever client sends it and
/// however it is spelled.
fn a_key_that_sql_took_answers_the_library_with_the_same_job() {
    let lab = Lab::new();
    let mut session = lab.session();
    let mut store = Postgres::open(&lab.address(), &PostgresOptions::default()).unwrap();
    for (n, (sql, library)) in [
        (r#"{"to": "a@b.c", "n": 1.0}"#, r#"{"n":1.0,"to":"a@b.c"}"#),
        (r#"{"x":"\u00e9\/", "x":"é"}"#, "{ \"x\" : \"\\u00E9\" }"),
        (" [ ] ", "[]"),
        ("\"\u{7f}\u{2028}\"", r#""\u007F\u2028""#),
        (r#"{"b":{"d":1,"c":"\ud83d\ude00"},"a":null}"#, r#"{"a":null,"b":{"c":"😀","d":1}}"#),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("key-{n}");
        let ask = format!("SELECT tenure.enqueue('work', $1::text::json, key => '{key}')");
        let job: i64 = session.query_one(&ask, &[&sql]).unwrap().get(0);
        let new = |args: &str| {
            let args = Json::check("args", args, LIMIT).unwrap();
            NewJob::new(Name::check("kind", "work").unwrap(), args)
                .key(Key::check(key.clone()).unwrap())
        };
        let answers = store.enqueue(&[new(library), new(r#"{"other":1}"#)]).unwrap();
        assert!(
            matches!(answers[0], Enqueued::Existing(id) if id.0 == job),
            "{library}: {answers:?}"
        );
        assert!(matches!(answers[1], Enqueued::Conflict(id) if id.0 == job), "{answers:?}");
        // And vice versa.
        let back: i64 = session.query_one(&ask, &[&library]).unwrap().get(0);
        assert_eq!(back, job);
    }
}

/// The functions that take a batch have the same limits: what one worker writes, others must be
/// able to read.
fn what_an_attempt_came_to_has_the_limits_of_args() {
    let mut lab = Lab::new();
    let mut session = lab.session_as("worker");
    enqueue(&mut lab.session(), "work");
    let lease = claim_many(&mut session, 1, 60_000).remove(0);
    let (job, token) = (lease.job, lease.token);
    let settle = "SELECT verdict FROM tenure.settle_many(ARRAY[$1::bigint], ARRAY[$2::bigint], '{complete}', '{NULL}', '{NULL}', ARRAY[$3::text::json])";
    let ledger = "SELECT verdict FROM tenure.ledger_many(ARRAY[$1::bigint], ARRAY[$2::bigint], '{step_put}', '{load}', ARRAY[$3::text::json], '{NULL}')";
    let deep = format!("{}{}", "[".repeat(128), "]".repeat(128));
    let large = format!("\"{}\"", "x".repeat(16 << 20));
    for bad in [r#""a\u0000""#, r#""\ud800""#, &deep, &large] {
        for call in [settle, ledger] {
            let refusal = fault(session.query(call, &[&job, &token, &bad]));
            assert_eq!(refusal.code().code(), "TN003", "{refusal}");
            assert_eq!(refusal.column(), Some("result"));
        }
    }
    let good = r#"{"a":"\u00e9 [[[["}"#;
    let verdict = |row: postgres::Row| row.get::<_, String>(0);
    assert_eq!(verdict(session.query_one(ledger, &[&job, &token, &good]).unwrap()), "remembered");
    let bury = "SELECT verdict FROM tenure.settle_many(ARRAY[$1::bigint], ARRAY[$2::bigint], '{bury}', '{NULL}', ARRAY[repeat('x', 100000)], '{NULL}')";
    assert_eq!(verdict(session.query_one(bury, &[&job, &token]).unwrap()), "settled");
    assert_eq!(lab.number("SELECT max(octet_length(reason))::bigint FROM tenure.done"), 8_192);
}

fn a_result_of_a_single_form_has_at_most_256_kib() {
    let lab = Lab::new();
    let mut session = lab.session_as("worker");
    let lease = running(&mut session);
    session.batch_execute(&lease.call_with("effect_open", ", 'charge'")).unwrap();
    let long = |bytes: usize| format!("concat('\"', repeat('x', {}), '\"')::json", bytes - 2);
    for (verb, name) in
        [("step_put", ", 'load'"), ("effect_commit", ", 'charge'"), ("complete", "")]
    {
        let call = |bytes| lease.call_with(verb, &format!("{name}, {}", long(bytes)));
        let refusal = fault(session.batch_execute(&call(LIMIT + 1)));
        assert_eq!((refusal.code().code(), refusal.column()), ("TN003", Some("result")), "{verb}");
        session.batch_execute(&call(LIMIT)).unwrap_or_else(|error| panic!("{verb}: {error:?}"));
    }
}
