//! The stories of `tenure drill`, run by the real binary on both engines: what they show, what they
//! answer, and that they leave nothing behind.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod process;
mod shell;

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Command;

use process::Process;
use rustix::process::Signal;
use serde_json::{Value, json};
use shell::{Ran, Shell, on_both_engines};

on_both_engines!(
    in_a_race_the_worker_that_stalled_is_refused_and_the_effect_happens_once,
    several_races_are_summed_up,
    the_job_of_a_killed_worker_goes_on_elsewhere,
    a_key_that_is_submitted_twice_is_one_job,
    an_outage_loses_nothing_and_repeats_nothing,
    an_effect_that_was_cut_off_is_in_doubt_and_not_repeated,
    a_poison_job_is_buried_and_those_beside_it_succeed,
    a_story_that_is_interrupted_leaves_nothing_behind,
);

/// A story, with a temporary directory that only this test uses.
fn story(shell: &Shell, args: &[&str]) -> Command {
    std::fs::create_dir_all(temporary(shell)).unwrap();
    let mut command = shell.command(&[&["drill"], args].concat());
    command.env("TMPDIR", temporary(shell));
    command
}

fn temporary(shell: &Shell) -> PathBuf {
    shell.path("tmp")
}

/// Asserts that neither a file nor a schema is left, and that the existing store is unchanged.
#[track_caller]
fn leaves_nothing(shell: &Shell) {
    let files: Vec<_> = std::fs::read_dir(temporary(shell)).unwrap().map(Result::unwrap).collect();
    assert!(files.is_empty(), "{files:?}");
    if let Some(database) = &shell.database {
        let left = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'drill%'";
        assert_eq!(database.value(left), "0");
    }
    assert_eq!(shell.jobs(), []);
}

/// Runs a story that must end well, and returns its document.
#[track_caller]
fn played(shell: &Shell, args: &[&str]) -> Value {
    let ran = Ran::of(story(shell, &[args, &["--json"]].concat()).output().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
    leaves_nothing(shell);
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    let engine = if shell.database.is_some() { "postgres" } else { "sqlite" };
    assert_eq!((&told["story"], &told["engine"]), (&json!(args[0]), &json!(engine)));
    let verdict = told["verdict"].as_array().unwrap();
    assert!(verdict.len() >= 5 && verdict.iter().all(|claim| claim["held"] == true), "{told:#}");
    assert_eq!(told["held"], true);
    told
}

/// The events of this name, in order.
fn events<'a>(told: &'a Value, name: &str) -> Vec<&'a Value> {
    let trace = told["trace"].as_array().unwrap();
    trace.iter().filter(|event| event["event"] == name).collect()
}

fn in_a_race_the_worker_that_stalled_is_refused_and_the_effect_happens_once(shell: &Shell) {
    let told = played(shell, &["race"]);
    let of_interest = [
        "lease_acquired",
        "execution_started",
        "job_succeeded",
        "stale_write_blocked",
        "worker_exit",
    ];
    let trace = told["trace"].as_array().unwrap();
    let trace: Vec<&Value> = trace
        .iter()
        .filter(|event| of_interest.contains(&event["event"].as_str().unwrap_or_default()))
        .collect();
    let order: Vec<String> = trace
        .iter()
        .map(|event| format!("{} {}", event["who"], event["event"]).replace('"', ""))
        .collect();
    assert_eq!(
        order,
        [
            "A lease_acquired",
            "A execution_started",
            "B lease_acquired",
            "B execution_started",
            "B job_succeeded",
            "A stale_write_blocked",
            "A worker_exit",
            "B worker_exit",
        ]
    );
    let (a, b) = (&trace[0]["token"], &trace[2]["token"]);
    let number = |token: &Value| token.as_str().unwrap().parse::<i64>().unwrap();
    assert!(number(b) > number(a), "{a} {b}");
    let refused = trace[5];
    assert_eq!((&refused["stale_token"], &refused["current_token"]), (a, b));
    assert_eq!(refused["reason"], "token_mismatch");
    assert_eq!((&trace[6]["reason"], &trace[7]["reason"]), (&json!("stale"), &json!("drained")));
    let at = |event: &Value| event["ms"].as_u64().unwrap();
    assert!(at(trace[5]) - at(trace[1]) >= 2_500, "A stalls for two and a half seconds");
    assert_ne!(trace[0]["worker"], trace[2]["worker"], "they are two");
    let of_a = |lapse: &&Value| lapse["from"] == trace[0]["worker"];
    let lapse = events(&told, "lease_lapsed").into_iter().find(of_a).unwrap();
    assert_eq!(lapse["forced"], true, "A's renewals were switched off: {lapse}");
    assert_eq!(told["runs"], 1);
}

fn several_races_are_summed_up(shell: &Shell) {
    let told = played(shell, &["race", "--runs", "3"]);
    let figures = &told["figures"];
    for of in ["runs", "takeovers", "refusals", "ledger_entries"] {
        assert_eq!(figures[of], 3, "{of}: {figures}");
    }
    assert!(figures["slowest_ms"].as_u64() >= figures["fastest_ms"].as_u64(), "{figures}");
    assert_eq!(told["trace"], json!([]), "only what breaks is of interest");
}

fn the_job_of_a_killed_worker_goes_on_elsewhere(shell: &Shell) {
    // A generous limit, because other tests run at the same time. The long proof demands a second,
    // on a machine that does nothing else.
    let told = played(shell, &["crash", "--within", "30s"]);
    assert_eq!(events(&told, "job_succeeded").len(), 1);
    assert_eq!(events(&told, "holder_vanished")[0]["who"], "B");
}

fn a_key_that_is_submitted_twice_is_one_job(shell: &Shell) {
    let told = played(shell, &["duplicate"]);
    let created =
        events(&told, "submitted").into_iter().filter(|answer| answer["verdict"] == "created");
    assert_eq!((created.count(), events(&told, "submitted").len()), (3, 19));
}

fn an_outage_loses_nothing_and_repeats_nothing(shell: &Shell) {
    let told = played(shell, &["outage"]);
    assert!(!events(&told, "store_lost").is_empty());
    assert!(!events(&told, "store_back").is_empty());
}

fn an_effect_that_was_cut_off_is_in_doubt_and_not_repeated(shell: &Shell) {
    let told = played(shell, &["mid-apply"]);
    assert_eq!(events(&told, "effect_in_doubt").len(), 2);
    assert_eq!(events(&told, "job_parked").len(), 1);
    let shown = events(&told, "note").into_iter().any(|note| {
        note["text"].as_str().unwrap().starts_with("tenure effects resolve 1 charge --committed")
    });
    assert!(shown, "{told:#}");
}

fn a_poison_job_is_buried_and_those_beside_it_succeed(shell: &Shell) {
    let told = played(shell, &["poison"]);
    assert_eq!(events(&told, "job_dead").len(), 1);
    // The verdict counts successes in the store: a worker may be killed before it reports one.
    assert!(events(&told, "job_succeeded").len() <= 5);
}

fn a_story_that_is_interrupted_leaves_nothing_behind(shell: &Shell) {
    let mut child = story(shell, &["race"]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.contains("execution_started")).unwrap();
    Process::of(&child.id().to_string()).signal(Signal::INT);
    let rest: Vec<String> = lines.collect();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let failed = "  FAILED  the story is played to its end (interrupted)";
    assert!(rest.iter().any(|line| line == failed), "{rest:#?}");
    leaves_nothing(shell);
}

#[test]
fn a_story_for_people_is_a_title_a_trace_and_a_verdict_line_by_line() {
    let shell = Shell::new();
    let ran = Ran::of(story(&shell, &["duplicate"]).output().unwrap());
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(
        lines[0].starts_with("duplicate on SQLite: the same key is submitted twice"),
        "{ran:?}"
    );
    assert!(lines[2].contains(" s  A   submitted           job=1 verdict=created"), "{}", lines[2]);
    let verdict = lines.iter().position(|line| *line == "verdict").unwrap();
    assert_eq!(lines.len(), verdict + 6);
    assert!(lines[verdict + 1..].iter().all(|line| line.starts_with("  ok      ")), "{ran:?}");
}

#[test]
fn a_claim_that_does_not_hold_is_told_with_what_repeats_it_and_answers_no() {
    let shell = Shell::new();
    let ran = Ran::of(story(&shell, &["crash", "--within", "1ms"]).output().unwrap());
    assert_eq!(ran.code, 1, "{ran:?}");
    let failed = "  FAILED  B had the job within 0.001 s, under a lease of 10 min (";
    assert!(ran.stdout.lines().any(|line| line.starts_with(failed)), "{}", ran.stdout);
    assert_eq!(ran.stdout.lines().last(), Some("Repeat it with: tenure drill crash"));
    let told = Ran::of(story(&shell, &["crash", "--within", "1ms", "--json"]).output().unwrap());
    let told: Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!((&told["held"], &told["verdict"][0]["held"]), (&json!(false), &json!(false)));
    leaves_nothing(&shell);
}

#[test]
fn a_server_that_does_not_answer_is_said_so() {
    let shell = Shell::new();
    shell.run(&["drill", "race", "--db", "postgres://me@127.0.0.1:1/x"]).refused(3, "127.0.0.1:1");
}

/// A worker without its safeguards exists only in a drill.
#[test]
fn no_option_variable_or_word_takes_the_safeguards_from_a_worker() {
    let shell = Shell::new();
    for help in [&["--help"][..], &["worker", "--help"], &["drill", "--help"], &["dev", "--help"]] {
        let text = shell.ok(help);
        assert!(!text.contains("stalled") && !text.contains("__drill"), "{text}");
    }
    for option in ["--stalled", "--no-renew", "--care=stalled"] {
        shell.run(&["worker", option, "--", "true"]).refused(2, "unexpected argument");
    }
    let words = ["__drill", "work", "1000", "1", "1", "default", "stalled", "drain"];
    shell.run(&words).refused(2, "on the stores of stories alone");
    assert!(!shell.path("tenure.db").exists());
    let server = Shell::on_server();
    server.run(&words).refused(2, "on the stores of stories alone");
}
