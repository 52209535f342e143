//! What each command does in the normal case, as a user at a shell sees it. Every claim holds on
//! both engines.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use std::fs;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use serde_json::json;
use shell::{Ran, Shell, claim, claim_for, on_both_engines, settle_next};
use tenure::engine::job::{BATCH_LIMIT, JobId, Json, Limits, Progress, State};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::{Attempt, Report, Reported, Settled, Settlement, Store};

on_both_engines!(
    enqueue_prints_the_id_alone,
    every_option_of_enqueue_reaches_the_job,
    a_delay_counts_from_now,
    args_can_come_from_stdin,
    a_file_of_lines_is_a_job_for_each_line_that_is_not_blank,
    lines_can_come_from_a_pipe_in_any_number,
    many_copies_are_as_many_jobs_each_with_its_id,
    a_part_that_fails_tells_what_became_of_every_job,
    the_same_key_prints_the_same_id_and_says_that_the_job_existed,
    an_empty_store_says_what_to_do_first,
    stats_and_list_show_what_was_enqueued_in_aligned_columns,
    a_list_can_be_narrowed_and_turned_page_by_page,
    a_list_longer_than_a_page_of_the_store_is_whole,
    show_tells_the_facts_and_the_story_of_a_job,
    how_far_a_running_job_is_stands_in_the_list_and_among_the_facts,
    text_from_a_job_cannot_command_the_terminal,
    json_has_ids_and_tokens_as_strings_and_times_as_rfc_3339,
    every_command_answers_in_json,
    wait_blocks_until_another_process_has_completed_the_job,
    wait_for_a_job_without_a_result_prints_null,
    wait_for_a_job_that_ended_badly_says_why,
    wait_gives_up_when_its_time_is_over,
    wait_for_a_job_that_is_deleted_at_once_ends_too,
    a_cancelled_job_can_be_requeued,
    a_parked_job_can_be_resumed,
    a_running_job_can_be_cancelled_and_its_worker_is_refused,
    several_jobs_in_json_are_each_answered,
    dead_jobs_are_listed_with_their_reasons_requeued_and_purged,
    what_ended_otherwise_than_dead_is_safe_from_the_commands_for_dead_jobs,
    all_dead_jobs_that_a_filter_leaves_are_requeued_or_purged,
    a_paused_queue_is_shown_as_paused_until_it_is_resumed,
    a_paused_queue_is_seen_wherever_one_looks_for_its_jobs,
    a_setting_for_a_queue_without_jobs_is_pointed_out,
    the_time_of_keeping_is_set_and_what_is_not_named_stays,
);

fn bury(reason: &str) -> Outcome {
    Outcome::Bury { reason: reason.into() }
}

fn complete(result: &str) -> Outcome {
    let result = Json::check("result", result, Limits::default().result).unwrap();
    Outcome::Complete { result: Some(result) }
}

// ── enqueue ──────────────────────────────────────────────────────────────────────────────────────

fn enqueue_prints_the_id_alone(shell: &Shell) {
    let ran = shell.run(&["enqueue", "send_email", r#"{"to":"a@b.c"}"#]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "1\n"));
    let again = shell.run(&["enqueue", "send_email"]);
    assert_eq!((again.stdout.as_str(), again.stderr.as_str()), ("2\n", ""));
    assert_eq!(shell.jobs()[1].args.as_str(), r#"{"to":"a@b.c"}"#);
}

fn every_option_of_enqueue_reaches_the_job(shell: &Shell) {
    shell.ok(&[
        "enqueue",
        "k",
        "[1]",
        "--queue=q",
        "--tenant=t",
        "--key=key 7",
        "--priority=-3",
        "--at=2099-01-31T09:00:00+01:00",
        "--max-attempts=2",
        "--retry=list:1s,5s,1m",
        "--max-crashes=9",
        "--max-runtime=1h30m",
        "--tag=red",
        "--tag=blue",
    ]);
    let job = shell.json(&["jobs", "show", "1"]);
    for (field, value) in [
        ("id", json!("1")),
        ("state", json!("queued")),
        ("waiting", json!(true)),
        ("kind", json!("k")),
        ("args", json!([1])),
        ("queue", json!("q")),
        ("tenant", json!("t")),
        ("key", json!("key 7")),
        ("priority", json!(-3)),
        ("run_at", json!("2099-01-31T08:00:00.000Z")),
        ("max_attempts", json!(2)),
        ("retry", json!({"list": {"ms": [1_000, 5_000, 60_000]}})),
        ("max_crashes", json!(9)),
        ("max_runtime_ms", json!(5_400_000)),
        ("tags", json!(["red", "blue"])),
        ("token", json!("0")),
    ] {
        assert_eq!(job[field], value, "{field}");
    }
    let text = shell.ok(&["jobs", "show", "1"]);
    assert!(text.contains("retry         list:1s,5s,1m\n"), "{text}");
}

fn a_delay_counts_from_now(shell: &Shell) {
    shell.ok(&["enqueue", "k", "--delay", "2h"]);
    let job = &shell.jobs()[0];
    assert_eq!(job.run_at, job.enqueued_at + Duration::from_secs(7_200));
}

fn args_can_come_from_stdin(shell: &Shell) {
    let ran = shell.run_with(&["enqueue", "k", "-"], b"{\"from\":\"stdin\"}\n");
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "1\n"));
    assert_eq!(shell.jobs()[0].args.as_str(), r#"{"from":"stdin"}"#);
}

fn a_file_of_lines_is_a_job_for_each_line_that_is_not_blank(shell: &Shell) {
    fs::write(shell.path("lines"), "{\"n\":1}\n\n  \r\n{\"n\":2}\r\n\"three\"").unwrap();
    assert_eq!(shell.ok(&["enqueue", "k", "--file", "lines", "--queue", "q"]), "1\n2\n3\n");
    let args: Vec<_> = shell.jobs().iter().map(|job| job.args.to_string()).collect();
    assert_eq!(args, ["\"three\"", "{\"n\":2}", "{\"n\":1}"]);
    assert!(shell.jobs().iter().all(|job| job.queue.as_str() == "q"));
}

fn lines_can_come_from_a_pipe_in_any_number(shell: &Shell) {
    let lines: String = (1..=2_100).map(|n| format!("{n}\n")).collect();
    let ran = shell.run_with(&["enqueue", "k", "--file", "-", "--json"], lines.as_bytes());
    assert_eq!(ran.code, 0, "{ran:?}");
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(answer.as_array().unwrap().len(), 2_100);
    assert_eq!(answer[2_099], json!({"id": "2100", "verdict": "created"}));
    assert_eq!(shell.json(&["jobs", "show", "2100"])["args"], json!(2_100));
}

fn many_copies_are_as_many_jobs_each_with_its_id(shell: &Shell) {
    let ids = shell.ok(&["enqueue", "k", "--count", "2500"]);
    let expected: String = (1..=2_500).map(|id| format!("{id}\n")).collect();
    assert_eq!(ids, expected);
    assert_eq!(shell.json(&["stats"])["lines"][0]["ready"], json!(2_500));
}

/// The store accepts a thousand jobs and no more.
fn a_part_that_fails_tells_what_became_of_every_job(shell: &Shell) {
    shell.ok(&["stats"]);
    match &shell.database {
        None => rusqlite::Connection::open(shell.path("tenure.db"))
            .unwrap()
            .execute_batch(
                "CREATE TRIGGER full BEFORE INSERT ON tenure_jobs WHEN NEW.id > 1000 \
                 BEGIN SELECT RAISE(ABORT, 'no more'); END",
            )
            .unwrap(),
        Some(database) => database.execute(
            "CREATE OR REPLACE FUNCTION no_more() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no more'; END $$; \
             CREATE TRIGGER full_now BEFORE INSERT ON tenure.jobs FOR EACH ROW WHEN (NEW.id > 1000) \
             EXECUTE FUNCTION no_more()",
        ),
    }
    let ran = shell.run(&["enqueue", "k", "--count", "2500"]);
    ran.refused(3, "1000 jobs were stored, the next 1000 failed, and the last 500 were not sent: could not enqueue");
    assert_eq!(ran.stdout.lines().count(), 1_000);
    fs::write(shell.path("lines"), "1\n".repeat(1_200)).unwrap();
    let ran = shell.run(&["enqueue", "k", "--file", "lines", "--json"]);
    ran.refused(3, "0 jobs were stored, the next 1000 failed, and the last 200 were not sent: ");
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(answer.as_array().unwrap().len(), 1_200);
    assert_eq!(
        (&answer[999], &answer[1_000]),
        (&json!({"verdict": "failed"}), &json!({"verdict": "not_sent"}))
    );
    let ran = shell.run_with(&["enqueue", "k", "--file", "-"], "1\n".repeat(1_200).as_bytes());
    ran.refused(3, "0 jobs were stored, the next 1000 failed, and none after them was sent: ");
}

fn the_same_key_prints_the_same_id_and_says_that_the_job_existed(shell: &Shell) {
    assert_eq!(shell.ok(&["enqueue", "k", r#"{"a":1,"b":2}"#, "--key", "once"]), "1\n");
    let again = shell.run(&["enqueue", "k", r#"{ "b": 2, "a": 1 }"#, "--key", "once"]);
    assert_eq!((again.code, again.stdout.as_str()), (0, "1\n"));
    assert!(again.stderr.contains("job 1 has this key already"), "{again:?}");
    assert_eq!(shell.jobs().len(), 1);
}

// ── seeing ───────────────────────────────────────────────────────────────────────────────────────

fn an_empty_store_says_what_to_do_first(shell: &Shell) {
    let ran = shell.run(&["stats"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""));
    assert!(ran.stderr.contains("tenure enqueue hello"), "{ran:?}");
    assert_eq!(shell.json(&["stats"])["lines"], json!([]));
}

fn stats_and_list_show_what_was_enqueued_in_aligned_columns(shell: &Shell) {
    shell.ok(&["enqueue", "send_email", "--queue", "mail", "--tenant", "acme"]);
    shell.ok(&["enqueue", "report", "--delay", "1h"]);
    let stats = shell.ok(&["stats"]);
    let words = |text: &str, line: usize| -> Vec<String> {
        text.lines().nth(line).unwrap().split_whitespace().map(str::to_owned).collect()
    };
    assert_eq!(words(&stats, 1)[..6], ["default", "open", "-", "0", "1", "0"]);
    assert_eq!(words(&stats, 2)[..6], ["mail", "open", "acme", "1", "0", "0"]);
    let list = shell.ok(&["jobs", "list"]);
    assert_eq!(words(&list, 1)[..5], ["2", "queued", "report", "default", "-"]);
    assert_eq!(words(&list, 2)[..5], ["1", "queued", "send_email", "mail", "acme"]);
    let column = |line: &str| line.find("queued").or(line.find("STATE")).unwrap();
    let starts: Vec<usize> = list.lines().map(column).collect();
    assert!(starts.iter().all(|start| *start == starts[0]), "{list}");
}

fn a_list_can_be_narrowed_and_turned_page_by_page(shell: &Shell) {
    shell.ok(&["enqueue", "a", "--count", "3"]);
    shell.ok(&["enqueue", "b", "--queue=q", "--tenant=t", "--tag=red", "--key=key 7"]);
    let ids = |args: &[&str]| -> Vec<String> {
        let jobs = shell.json(&[&["jobs", "list"], args].concat());
        jobs.as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().into()).collect()
    };
    assert_eq!(ids(&["--kind", "b"]), ["4"]);
    assert_eq!(ids(&["--queue", "default"]), ["3", "2", "1"]);
    assert_eq!(ids(&["--tenant", ""]), ["3", "2", "1"]);
    assert_eq!(ids(&["--state", "dead"]), [""; 0]);
    assert_eq!(ids(&["--tag", "red"]), ["4"]);
    assert_eq!(ids(&["--tag", "blue"]), [""; 0]);
    assert_eq!(ids(&["--key", "key 7"]), ["4"]);
    assert_eq!(ids(&["--key", "key"]), [""; 0]);
    assert_eq!(ids(&["--limit", "2"]), ["4", "3"]);
    assert_eq!(ids(&["--limit", "2", "--before", "3"]), ["2", "1"]);
    let more = |args: &[&str]| shell.run(args).stderr.contains("--before");
    assert!(more(&["jobs", "list", "--limit", "3"]));
    assert!(!more(&["jobs", "list", "--limit", "4"]));
}

fn a_list_longer_than_a_page_of_the_store_is_whole(shell: &Shell) {
    shell.ok(&["enqueue", "k", "--count", "2500"]);
    let jobs = shell.json(&["jobs", "list", "--limit", "2300"]);
    let ids: Vec<&str> =
        jobs.as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
    let expected: Vec<String> = (201..=2_500).rev().map(|id: i64| id.to_string()).collect();
    assert_eq!(ids, expected);
}

fn show_tells_the_facts_and_the_story_of_a_job(shell: &Shell) {
    shell.ok(&["enqueue", "k", r#"{"doc":7}"#, "--max-attempts", "2"]);
    let retry = Outcome::Retry { after: Duration::ZERO, error: "connection refused".into() };
    settle_next(&mut *shell.store(), retry);
    settle_next(&mut *shell.store(), complete(r#"{"pages":3}"#));
    let text = shell.ok(&["jobs", "show", "1"]);
    for part in ["succeeded", "2 of 2", r#"{"doc":7}"#, r#"{"pages":3}"#, "Z)"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let story = &text[text.find("timeline").unwrap()..];
    let order = ["enqueue", "retry", "connection refused", "complete"];
    let places: Vec<usize> = order.iter().map(|word| story.find(word).unwrap()).collect();
    assert!(places.is_sorted(), "{story}");
    // People see a short form of a worker's id, programs the whole id.
    let worker = shell.json(&["jobs", "show", "1"])["worker"].as_str().unwrap().to_owned();
    let (short, rest) = worker.split_at(8);
    assert!(text.contains(&format!("worker        {short}\n")), "{text}");
    assert!(rest.len() == 24 && !text.contains(rest), "{text}");
}

fn how_far_a_running_job_is_stands_in_the_list_and_among_the_facts(shell: &Shell) {
    shell.ok(&["enqueue", "k", "--count", "3"]);
    let mut store = shell.store();
    let mut held = claim(&mut *store, 2);
    held.extend(claim_for(&mut *store, 1, Duration::from_millis(1)));
    let tell = |attempt: &Attempt, note| Report {
        fence: attempt.lease.fence(),
        progress: Progress::new(0.4, note),
    };
    let reports = [tell(&held[0], "embedding"), tell(&held[2], "waiting\x1b[2J")];
    assert_eq!(store.progress(&reports).unwrap(), [Reported::Noted; 2]);
    while store.overdue(1, Duration::ZERO).unwrap().is_empty() {
        std::thread::yield_now();
    }

    let list = shell.ok(&["jobs", "list"]);
    let notes: Vec<&str> = list.lines().skip(1).collect();
    assert!(notes[2].ends_with("40 % embedding"), "{list}");
    assert!(notes[1].contains("lease ends in"), "{list}");
    assert!(notes[0].contains("40 % waiting") && notes[0].ends_with("; lease is over"), "{list}");
    assert!(!list.contains('\x1b'), "{list}");
    let facts = |id: &str| shell.ok(&["jobs", "show", id]);
    assert!(facts("1").contains("\nprogress      40 % embedding\n"), "{}", facts("1"));
    assert!(!facts("2").contains("progress"), "{}", facts("2"));
    let told = json!({"permille": 400, "note": "embedding"});
    assert_eq!(shell.json(&["jobs", "show", "1"])["progress"], told);
    assert_eq!(shell.json(&["jobs", "list"])[1]["progress"], json!(null));
}

fn text_from_a_job_cannot_command_the_terminal(shell: &Shell) {
    let hostile = "\x1b[2J\x1b]0;owned\x07\u{9b}31m\u{202e}line one\nline two";
    let id = shell.settled(bury(hostile)).to_string();
    let args = "{\"a\":\"\u{9b}31m\u{202e}\"}";
    shell.ok(&["enqueue", "k", args]);
    for args in [
        &["jobs", "show", &id][..],
        &["jobs", "show", "2"],
        &["jobs", "list"],
        &["dead", "list"],
        &["jobs", "wait", &id],
        &["jobs", "show", &id, "--json"],
        &["jobs", "show", "2", "--json"],
    ] {
        let ran = shell.run(args);
        let obeyed = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!ran.stdout.contains(obeyed) && !ran.stderr.contains(obeyed), "{args:?}: {ran:?}");
    }
    assert!(shell.ok(&["dead", "list"]).contains("\\u{1b}[2J"));
    assert_eq!(shell.json(&["jobs", "show", &id])["reason"], json!(hostile));
    assert_eq!(shell.json(&["jobs", "show", "2"])["args"]["a"], json!("\u{9b}31m\u{202e}"));
}

fn json_has_ids_and_tokens_as_strings_and_times_as_rfc_3339(shell: &Shell) {
    let id = shell.settled(bury("no"));
    let job = shell.json(&["jobs", "show", &id.to_string()]);
    assert_eq!((&job["id"], &job["token"]), (&json!("1"), &json!("1")));
    let entry = &job["timeline"][0];
    assert_eq!((&entry["event"], &entry["token"]), (&json!("bury"), &json!("1")));
    for time in [&job["enqueued_at"], &job["finished_at"], &entry["at"], &entry["from"]] {
        time.as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    }
    shell.json(&["stats"])["at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    shell.json(&["migrate", "status"])[0]["at"]
        .as_str()
        .unwrap()
        .parse::<jiff::Timestamp>()
        .unwrap();
}

fn every_command_answers_in_json(shell: &Shell) {
    shell.settled(bury("no"));
    for args in [
        &["enqueue", "k"][..],
        &["enqueue", "k", "--count", "2"],
        &["stats"],
        &["jobs", "list"],
        &["jobs", "show", "1"],
        &["jobs", "cancel", "2"],
        &["jobs", "requeue", "2"],
        &["dead", "list"],
        &["dead", "requeue", "--all"],
        &["dead", "purge", "--all", "--yes"],
        &["queues", "list"],
        &["queues", "pause", "q"],
        &["queues", "resume", "q"],
        &["queues", "set", "q", "--keep", "1d"],
        &["migrate", "up"],
        &["migrate", "status"],
        &["effects", "list"],
        &["jobs", "cancel", "1", "2", "3", "4"],
        &["doctor"],
        &["doctor", "--check"],
        &["doctor", "--raise-epoch"],
    ] {
        shell.json(args);
    }
}

// ── waiting ──────────────────────────────────────────────────────────────────────────────────────

fn wait_blocks_until_another_process_has_completed_the_job(shell: &Shell) {
    shell.ok(&["enqueue", "k"]);
    let mut waiting = shell.command(&["jobs", "wait", "1", "--timeout", "60s"]).spawn().unwrap();
    // The command prints this once it has seen that the job has not ended.
    let mut said = String::new();
    let mut stderr = BufReader::new(waiting.stderr.take().unwrap());
    stderr.read_line(&mut said).unwrap();
    assert_eq!(said, "waiting for job 1, which is queued\n");
    assert!(waiting.try_wait().unwrap().is_none());

    settle_next(&mut *shell.store(), complete(r#"{"pages": 3}"#));
    let ran = Ran::of(waiting.wait_with_output().unwrap());
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "{\"pages\": 3}\n"));
}

fn wait_for_a_job_without_a_result_prints_null(shell: &Shell) {
    let id = shell.settled(Outcome::Complete { result: None });
    assert_eq!(shell.ok(&["jobs", "wait", &id.to_string()]), "null\n");
}

fn wait_for_a_job_that_ended_badly_says_why(shell: &Shell) {
    let dead = shell.settled(bury("the address is unknown")).to_string();
    let ran = shell.run(&["jobs", "wait", &dead]);
    ran.refused(1, "job 1 is dead: the address is unknown");
    assert_eq!(ran.stdout, "");
    shell.ok(&["enqueue", "k"]);
    shell.ok(&["jobs", "cancel", "2"]);
    shell.run(&["jobs", "wait", "2"]).refused(1, "job 2 is cancelled");
    assert_eq!(shell.run(&["jobs", "wait", "2", "--json"]).code, 1);
}

fn wait_gives_up_when_its_time_is_over(shell: &Shell) {
    shell.ok(&["enqueue", "k"]);
    shell
        .run(&["jobs", "wait", "1", "--timeout", "1ms"])
        .refused(1, "job 1 is still queued after 1ms");
}

fn wait_for_a_job_that_is_deleted_at_once_ends_too(shell: &Shell) {
    shell.ok(&["enqueue", "k"]);
    shell.ok(&["queues", "set", "default", "--keep", "0s"]);
    let mut waiting = shell.command(&["jobs", "wait", "1", "--timeout", "60s"]).spawn().unwrap();
    let mut stderr = BufReader::new(waiting.stderr.take().unwrap());
    stderr.read_line(&mut String::new()).unwrap();
    settle_next(&mut *shell.store(), complete("1"));
    let mut said = String::new();
    stderr.read_line(&mut said).unwrap();
    assert!(said.contains("job 1 was deleted while waiting"), "{said}");
    assert_eq!(waiting.wait().unwrap().code(), Some(1));
}

// ── operating ────────────────────────────────────────────────────────────────────────────────────

fn a_cancelled_job_can_be_requeued(shell: &Shell) {
    shell.ok(&["enqueue", "k"]);
    assert_eq!(shell.ok(&["jobs", "cancel", "1"]), "job 1 cancelled\n");
    assert_eq!(shell.jobs()[0].state, State::Cancelled);
    // A job that is named twice is still one job.
    assert_eq!(shell.ok(&["jobs", "requeue", "1", "1"]), "job 1 requeued\n");
    assert_eq!(shell.jobs()[0].state, State::Queued);
}

fn a_parked_job_can_be_resumed(shell: &Shell) {
    let id = shell.settled(Outcome::Park { reason: "needs a person".into() }).to_string();
    assert!(shell.ok(&["jobs", "list", "--state", "parked"]).contains("needs a person"));
    assert_eq!(shell.ok(&["jobs", "resume", &id]), "job 1 resumed\n");
    assert_eq!(shell.jobs()[0].state, State::Queued);
}

fn a_running_job_can_be_cancelled_and_its_worker_is_refused(shell: &Shell) {
    shell.ok(&["enqueue", "k"]);
    let mut store = shell.store();
    let fence = claim(&mut *store, 1)[0].lease.fence();
    shell.ok(&["jobs", "cancel", "1"]);
    let answer = store.settle(&[Settlement::new(fence, complete("1"))]).unwrap();
    assert!(matches!(answer[0], Settled::Stale(_)), "{answer:?}");
    assert!(shell.ok(&["jobs", "show", "1"]).contains("stale_write_blocked"));
}

fn several_jobs_in_json_are_each_answered(shell: &Shell) {
    shell.settled(complete("1"));
    shell.ok(&["enqueue", "k"]);
    let ran = shell.run(&["jobs", "cancel", "1", "2", "99", "--json"]);
    assert_eq!(ran.code, 1);
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        answer,
        json!([
            {"id": "1", "verdict": "refused", "state": "succeeded"},
            {"id": "2", "verdict": "applied"},
            {"id": "99", "verdict": "not_found"},
        ])
    );
}

fn dead_jobs_are_listed_with_their_reasons_requeued_and_purged(shell: &Shell) {
    for reason in ["no such address", "no such host", "no such luck"] {
        shell.settled(bury(reason));
    }
    let list = shell.ok(&["dead", "list"]);
    assert!(list.contains("no such address") && list.contains("no such luck"), "{list}");
    assert_eq!(shell.ok(&["dead", "requeue", "1"]), "job 1 requeued\n");
    assert_eq!(shell.ok(&["dead", "purge", "2"]), "job 2 purged\n");
    let left: Vec<(JobId, State)> = shell.jobs().iter().map(|job| (job.id, job.state)).collect();
    assert_eq!(left, [(JobId(3), State::Dead), (JobId(1), State::Queued)]);
    shell.run(&["dead", "purge", "1"]).refused(1, "job 1 is queued, not dead");
}

fn what_ended_otherwise_than_dead_is_safe_from_the_commands_for_dead_jobs(shell: &Shell) {
    shell.settled(complete("1"));
    shell.ok(&["enqueue", "k"]);
    shell.ok(&["jobs", "cancel", "2"]);
    let before = shell.jobs();
    shell.run(&["dead", "purge", "1"]).refused(1, "job 1 is succeeded, not dead");
    shell.run(&["dead", "requeue", "2"]).refused(1, "job 2 is cancelled, not dead");
    shell.ok(&["dead", "requeue", "--all"]);
    shell.ok(&["dead", "purge", "--all", "--yes"]);
    assert_eq!(shell.jobs(), before);
}

fn all_dead_jobs_that_a_filter_leaves_are_requeued_or_purged(shell: &Shell) {
    shell.ok(&["enqueue", "a", "--count", "1200"]);
    shell.ok(&["enqueue", "b", "--count", "3"]);
    bury_all(&mut *shell.store(), 1_203);
    assert_eq!(shell.ok(&["dead", "requeue", "--kind", "b"]), "3 jobs requeued\n");
    assert_eq!(shell.ok(&["dead", "purge", "--queue", "other", "--yes"]), "");
    assert_eq!(shell.ok(&["dead", "requeue", "--all", "--kind", "b"]), "", "all of them, of b");
    assert_eq!(shell.ok(&["dead", "purge", "--all", "--yes"]), "1200 jobs purged\n");
    let left: Vec<State> = shell.jobs().iter().map(|job| job.state).collect();
    assert_eq!(left, [State::Queued; 3]);
}

/// Claims and buries this many jobs of the default queue.
fn bury_all(store: &mut dyn Store, count: usize) {
    let mut buried = 0;
    while buried < count {
        let attempts = claim(store, BATCH_LIMIT);
        assert!(!attempts.is_empty(), "{buried} of {count} jobs were there to bury");
        let settle = |attempt: &Attempt| Settlement::new(attempt.lease.fence(), bury("no"));
        store.settle(&attempts.iter().map(settle).collect::<Vec<_>>()).unwrap();
        buried += attempts.len();
    }
}

fn a_paused_queue_is_shown_as_paused_until_it_is_resumed(shell: &Shell) {
    shell.ok(&["enqueue", "k", "--queue", "mail"]);
    let state = || {
        let list = shell.ok(&["queues", "list"]);
        list.lines().nth(1).unwrap().split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(state(), "open");
    assert!(shell.ok(&["queues", "pause", "mail"]).contains("queue mail is paused"));
    assert_eq!(state(), "paused");
    shell.ok(&["queues", "resume", "mail"]);
    assert_eq!(state(), "open");
}

fn a_paused_queue_is_seen_wherever_one_looks_for_its_jobs(shell: &Shell) {
    shell.ok(&["enqueue", "k", "--queue", "mail", "--tenant", "ann"]);
    shell.ok(&["enqueue", "k", "--queue", "mail", "--delay", "2h"]);
    shell.ok(&["enqueue", "k"]);
    shell.ok(&["queues", "pause", "mail"]);
    shell.ok(&["queues", "pause", "empty"]);
    let stats = shell.ok(&["stats"]);
    let states: Vec<Vec<&str>> =
        stats.lines().map(|line| line.split_whitespace().take(4).collect()).collect();
    assert_eq!(
        states[1..],
        [
            ["default", "open", "-", "1"],
            ["empty", "paused", "-", "0"],
            ["mail", "paused", "-", "0"],
            ["mail", "paused", "ann", "1"]
        ],
        "{stats}"
    );
    let lines = &shell.json(&["stats"])["lines"];
    assert_eq!((&lines[0]["queue"], &lines[0]["paused_at"]), (&json!("default"), &json!(null)));
    assert_eq!((&lines[1]["queue"], &lines[1]["ready"]), (&json!("empty"), &json!(0)));
    lines[3]["paused_at"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    let list = shell.ok(&["jobs", "list"]);
    let ends = ["  due", "m, queue paused", "  queue paused"];
    for (line, end) in list.lines().skip(1).zip(ends) {
        assert!(line.ends_with(end), "not {end:?}: {list}");
    }
    shell.ok(&["queues", "resume", "empty"]);
    assert!(!shell.ok(&["stats"]).contains("empty"));
}

fn a_setting_for_a_queue_without_jobs_is_pointed_out(shell: &Shell) {
    let ran = shell.run(&["queues", "pause", "mial"]);
    assert_eq!(ran.code, 0);
    assert!(ran.stderr.contains("queue mial has no jobs"), "{ran:?}");
}

fn the_time_of_keeping_is_set_and_what_is_not_named_stays(shell: &Shell) {
    shell.ok(&["queues", "set", "mail", "--keep", "12h", "--keep-dead", "90d"]);
    shell.ok(&["queues", "set", "mail", "--keep", "1d"]);
    let queue = &shell.json(&["queues", "list"])[0];
    assert_eq!(
        (&queue["keep_ms"], &queue["keep_dead_ms"]),
        (&json!(86_400_000), &json!(7_776_000_000_i64))
    );
}
