//! The effects of jobs, as a user at a shell sees them and resolves those in doubt. Every claim
//! holds on both engines.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use serde_json::json;
use shell::{Shell, claim, ledger, on_both_engines};
use tenure::Fence;
use tenure::engine::job::{JobId, Json, State};
use tenure::engine::ledger::{Act, Answer, Resolution};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::{Settlement, Store};

on_both_engines!(
    effects_are_listed_with_where_they_stand,
    a_list_of_effects_can_be_narrowed_and_turned_page_by_page,
    people_and_programs_get_the_key_that_outside_systems_know,
    a_long_result_is_shortened_for_people_and_whole_for_programs,
    text_of_an_effect_cannot_command_the_terminal,
    a_job_is_shown_with_its_effects,
    an_effect_that_happened_is_not_done_again,
    an_effect_that_did_not_happen_is_sent_again,
    a_decision_can_be_repeated_and_corrected_until_an_attempt_goes_on_with_it,
    a_job_waits_until_nothing_is_in_doubt,
    a_decision_about_a_dead_job_says_how_to_go_on,
    what_is_not_in_doubt_cannot_be_decided,
    a_result_can_come_from_stdin,
);

fn json(text: &str) -> Json {
    Json::check("result", text, 100_000).unwrap()
}

fn park() -> Outcome {
    Outcome::Park { reason: "effect in doubt".into() }
}

/// Enqueues a job and claims it.
fn begin(shell: &Shell, store: &mut dyn Store) -> Fence {
    shell.ok(&["enqueue", "pay"]);
    claim(store, 1)[0].lease.fence()
}

fn settle(store: &mut dyn Store, fence: Fence, outcome: Outcome) {
    store.settle(&[Settlement::new(fence, outcome)]).unwrap();
}

/// A job that ended with this outcome after it had opened these effects, without recording how they
/// ended.
fn in_doubt(shell: &Shell, effects: &[&str], outcome: Outcome) -> JobId {
    let mut store = shell.store();
    let fence = begin(shell, &mut *store);
    for effect in effects {
        assert_eq!(ledger(&mut *store, fence, effect, Act::Open), Answer::Opened);
    }
    settle(&mut *store, fence, outcome);
    fence.job
}

/// The rows of a table, as words.
fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect()
}

fn effects_are_listed_with_where_they_stand(shell: &Shell) {
    assert!(shell.run(&["effects", "list"]).stderr.contains("no job has had an effect yet"));
    let mut store = shell.store();
    let fence = begin(shell, &mut *store);
    for effect in ["charge", "mail", "ship"] {
        ledger(&mut *store, fence, effect, Act::Open);
    }
    ledger(&mut *store, fence, "charge", Act::Commit { result: json("{\"receipt\":7}") });
    ledger(&mut *store, fence, "mail", Act::Fail { error: "mailbox full".into() });
    // While its holder is there, nothing is in doubt.
    let standing = |shell: &Shell| -> Vec<String> {
        let list = shell.json(&["effects", "list"]);
        let words = |effect: &serde_json::Value| {
            format!("{} {}", effect["standing"].as_str().unwrap(), effect["in_doubt"])
        };
        list.as_array().unwrap().iter().map(words).collect()
    };
    assert_eq!(standing(shell), ["committed false", "failed false", "open false"]);
    settle(&mut *store, fence, park());
    assert_eq!(standing(shell), ["committed false", "failed false", "open true"]);

    let ran = shell.run(&["effects", "list"]);
    let rows = rows(&ran.stdout);
    assert_eq!(rows[0][..6], ["1", "charge", "committed", "pay", "parked", "1"], "{ran:?}");
    assert_eq!(rows[0].last(), Some(&"{\"receipt\":7}"));
    assert!(ran.stdout.lines().nth(2).unwrap().ends_with("mailbox full"), "{ran:?}");
    assert_eq!(rows[2][..7], ["1", "ship", "in", "doubt", "pay", "parked", "1"], "{ran:?}");
    assert!(ran.stderr.contains("tenure effects resolve 1 ship --committed JSON"), "{ran:?}");
}

fn a_list_of_effects_can_be_narrowed_and_turned_page_by_page(shell: &Shell) {
    in_doubt(shell, &["a", "b"], park());
    in_doubt(shell, &["a"], park());
    let mut store = shell.store();
    let fence = begin(shell, &mut *store);
    ledger(&mut *store, fence, "c", Act::Open);
    let list = |args: &[&str]| -> Vec<String> {
        let list = shell.json(&[&["effects", "list"], args].concat());
        let words = |effect: &serde_json::Value| {
            format!("{}{}", effect["job"].as_str().unwrap(), effect["effect"].as_str().unwrap())
        };
        list.as_array().unwrap().iter().map(words).collect()
    };
    assert_eq!(list(&[]), ["3c", "2a", "1a", "1b"]);
    assert_eq!(list(&["--in-doubt"]), ["2a", "1a", "1b"]);
    assert_eq!(list(&["--job", "1"]), ["1a", "1b"]);
    assert_eq!(list(&["--job", "1", "--before", "1"]), [""; 0]);
    assert_eq!(list(&["--before", "3"]), ["2a", "1a", "1b"]);
    // A job's effects stay together, so that the next page leaves none out.
    assert_eq!(list(&["--limit", "3"]), ["3c", "2a"]);
    assert!(shell.run(&["effects", "list", "--limit", "3"]).stderr.contains("--before 2"));
    assert_eq!(list(&["--limit", "3", "--before", "2"]), ["1a", "1b"]);
    let cut = shell.run(&["effects", "list", "--job", "1", "--limit", "1"]);
    assert!(cut.stderr.contains("job 1 has more effects"), "{cut:?}");
    assert!(shell.run(&["effects", "list", "--job", "9"]).stderr.contains("no such effects"));
}

fn people_and_programs_get_the_key_that_outside_systems_know(shell: &Shell) {
    in_doubt(shell, &["charge"], park());
    let installation = shell.store().identity().unwrap().installation.simple().to_string();
    let effect = &shell.json(&["effects", "list"])[0];
    assert_eq!(effect["key"], json!(format!("{installation}/0/1/charge")));
    assert_eq!((&effect["token"], &effect["job_state"]), (&json!("1"), &json!("parked")));
    assert_eq!((&effect["kind"], &effect["ended_at"]), (&json!("pay"), &json!(null)));
    effect["opened_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    assert_eq!(shell.json(&["jobs", "show", "1"])["effects"][0], *effect);
    for command in [&["effects", "list"][..], &["jobs", "show", "1"]] {
        let text = shell.ok(command);
        assert!(text.contains(&format!("  {installation}/0/1/charge  ")), "{text}");
    }
}

fn a_long_result_is_shortened_for_people_and_whole_for_programs(shell: &Shell) {
    let mut store = shell.store();
    let fence = begin(shell, &mut *store);
    ledger(&mut *store, fence, "e", Act::Open);
    let long = "x".repeat(50_000);
    ledger(&mut *store, fence, "e", Act::Commit { result: json(&format!("\"{long}\"")) });
    let text = shell.ok(&["effects", "list"]);
    assert!(text.len() < 400 && text.contains('…'), "{text}");
    assert_eq!(shell.json(&["effects", "list"])[0]["result"], json!(long));
}

fn text_of_an_effect_cannot_command_the_terminal(shell: &Shell) {
    let mut store = shell.store();
    let fence = begin(shell, &mut *store);
    ledger(&mut *store, fence, "e", Act::Open);
    ledger(&mut *store, fence, "e", Act::Fail { error: "\x1b[2J\u{202e}one\ntwo".into() });
    for args in [&["effects", "list"][..], &["jobs", "show", "1"], &["effects", "list", "--json"]] {
        let ran = shell.run(args);
        let obeyed = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!ran.stdout.contains(obeyed), "{args:?}: {ran:?}");
    }
}

fn a_job_is_shown_with_its_effects(shell: &Shell) {
    shell.ok(&["enqueue", "plain"]);
    assert!(!shell.ok(&["jobs", "show", "1"]).contains("effects"));
    assert_eq!(shell.json(&["jobs", "show", "1"])["effects"], json!([]));
    shell.ok(&["jobs", "cancel", "1"]);
    in_doubt(shell, &["charge"], park());
    let text = shell.ok(&["jobs", "show", "2"]);
    let effects = &text[text.find("\neffects\n").unwrap()..];
    assert!(effects.contains("charge  in doubt"), "{text}");
}

// ── resolving ────────────────────────────────────────────────────────────────────────────────────

fn an_effect_that_happened_is_not_done_again(shell: &Shell) {
    in_doubt(shell, &["charge"], park());
    let said = shell.ok(&["effects", "resolve", "1", "charge", "--committed", "{\"receipt\": 7}"]);
    assert_eq!(
        said,
        "effect charge of job 1 counts as committed; job 1 is queued, and its next attempt goes on from there\n"
    );
    let mut store = shell.store();
    let fence = claim(&mut *store, 1)[0].lease.fence();
    let Answer::Decided(result) = ledger(&mut *store, fence, "charge", Act::Open) else {
        panic!("it must not be done again");
    };
    assert_eq!(result.canonical(), "{\"receipt\":7}");
    assert!(shell.ok(&["jobs", "show", "1"]).contains("effect charge resolved: committed"));
}

fn an_effect_that_did_not_happen_is_sent_again(shell: &Shell) {
    in_doubt(shell, &["charge"], park());
    let said = shell.ok(&["effects", "resolve", "1", "charge", "--resend"]);
    assert!(
        said.starts_with("effect charge of job 1 will be sent again; job 1 is queued"),
        "{said}"
    );
    assert_eq!(shell.json(&["effects", "list"])[0]["standing"], json!("resend"));
    let mut store = shell.store();
    let fence = claim(&mut *store, 1)[0].lease.fence();
    assert_eq!(ledger(&mut *store, fence, "charge", Act::Open), Answer::Opened);
}

fn a_decision_can_be_repeated_and_corrected_until_an_attempt_goes_on_with_it(shell: &Shell) {
    in_doubt(shell, &["charge"], park());
    let decide =
        |how: &[&str]| shell.run(&[&["effects", "resolve", "1", "charge", "--json"], how].concat());
    for _ in 0..2 {
        let ran = decide(&["--resend"]);
        let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        let yes = json!({"job": "1", "effect": "charge", "verdict": "applied", "detail": "queued"});
        assert_eq!((ran.code, answer), (0, yes));
    }
    for value in ["{\"receipt\":\"r-1\"}", "\"r-1\""] {
        assert_eq!(decide(&["--committed", value]).code, 0);
    }
    let mut store = shell.store();
    let fence = claim(&mut *store, 1)[0].lease.fence();
    let Answer::Decided(result) = ledger(&mut *store, fence, "charge", Act::Open) else {
        panic!("a person decided that it happened");
    };
    assert_eq!(result.as_str(), "\"r-1\"", "the last word counts");
    ledger(&mut *store, fence, "charge", Act::Resolve(Resolution::Committed { result }));
    settle(&mut *store, fence, park());
    assert_eq!(decide(&["--committed", "\"r-1\""]).code, 0, "that is what stands");
    let ran = decide(&["--committed", "\"r-2\""]);
    ran.refused(1, "effect charge of job 1 is not in doubt: it is committed, and that is final");
    ran.refused(1, "what stands is \"r-1\": a person decided it, and the attempt with token");
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        (&answer["verdict"], &answer["detail"]),
        (&json!("not_in_doubt"), &json!("committed"))
    );
    decide(&["--resend"]).refused(1, "what stands is \"r-1\"");
}

fn a_job_waits_until_nothing_is_in_doubt(shell: &Shell) {
    in_doubt(shell, &["charge", "ship"], park());
    let said = shell.ok(&["effects", "resolve", "1", "charge", "--committed", "null"]);
    assert!(said.contains("job 1 stays parked"), "{said}");
    assert_eq!(shell.jobs()[0].state, State::Parked);
    shell.ok(&["effects", "resolve", "1", "ship", "--resend"]);
    assert_eq!(shell.jobs()[0].state, State::Queued);
}

fn a_decision_about_a_dead_job_says_how_to_go_on(shell: &Shell) {
    in_doubt(shell, &["charge"], Outcome::Bury { reason: "no".into() });
    let said = shell.ok(&["effects", "resolve", "1", "charge", "--committed", "-1"]);
    assert!(said.contains("job 1 is dead; to let it go on: tenure jobs requeue 1"), "{said}");
}

fn what_is_not_in_doubt_cannot_be_decided(shell: &Shell) {
    let mut store = shell.store();
    let fence = begin(shell, &mut *store);
    ledger(&mut *store, fence, "charge", Act::Open);
    let resolve = |job: &str, effect: &str| {
        shell.run(&["effects", "resolve", job, effect, "--committed", "1"])
    };
    resolve("1", "charge").refused(1, "job 1 is running, so its holder decides");
    resolve("1", "charge").refused(1, "tenure jobs cancel 1");
    ledger(&mut *store, fence, "charge", Act::Commit { result: json("1") });
    resolve("1", "charge").refused(1, "not in doubt: it is committed, and that is final");
    resolve("1", "ship").refused(1, "job 1 has no effect ship");
    resolve("1", "ship").refused(1, "tenure effects list --job 1");
    resolve("9", "charge").refused(1, "there is no job 9");
    let gone = shell.run(&["effects", "resolve", "9", "charge", "--resend", "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&gone.stdout).unwrap();
    assert_eq!(answer, json!({"job": "9", "effect": "charge", "verdict": "not_found"}));
}

fn a_result_can_come_from_stdin(shell: &Shell) {
    in_doubt(shell, &["charge"], park());
    let args = ["effects", "resolve", "1", "charge", "--committed", "-"];
    shell.run_with(&args, &[b'1'; 300_000]).refused(2, "result is 300000 bytes, above the limit");
    shell.run_with(&args, b"\"\xff\"").refused(2, "result: the text is not UTF-8");
    assert_eq!(shell.run_with(&args, b"[1, 2]\n").code, 0);
    assert_eq!(shell.json(&["effects", "list"])[0]["result"], json!([1, 2]));
}
