//! The surroundings of the commands: the store they open, and the shell they run in.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use std::fs;
use std::io::{Read, Write};
use std::process::Stdio;

use serde_json::json;
use shell::{Ran, Shell, on_both_engines};
use tenure::engine::lifecycle::Outcome;

on_both_engines!(
    a_reader_that_has_gone_is_no_reason_to_panic,
    jobs_are_all_stored_even_if_nobody_reads_their_ids,
    talk_about_an_answer_comes_after_it,
    an_answer_that_cannot_be_written_is_an_error,
    lines_that_arrive_slowly_are_still_whole_lines,
);

// ── the store ────────────────────────────────────────────────────────────────────────────────────

#[test]
fn migrate_status_changes_nothing_and_up_creates_the_store() {
    let shell = Shell::new();
    let status = shell.run(&["migrate", "status"]);
    assert!(status.stdout.contains("pending"), "{status:?}");
    assert!(status.stderr.contains("tenure migrate up"), "{status:?}");
    assert!(!shell.path("tenure.db").exists());
    let up = shell.run(&["migrate", "up"]);
    assert!(up.stdout.contains("applied") && up.stderr.contains("applied 1 of 1"), "{up:?}");
    assert!(shell.run(&["migrate", "up"]).stderr.contains("up to date"));
}

#[test]
fn a_store_in_a_file_is_created_aloud_and_removed_by_hand() {
    let shell = Shell::new();
    assert_eq!(shell.run(&["migrate", "down", "--yes"]).code, 0);
    assert_eq!(shell.run(&["enqueue", "k"]).stderr, "created tenure.db\n");
    for args in [&["migrate", "down"][..], &["migrate", "down", "--yes"]] {
        let ran = shell.run(args);
        ran.refused(1, "rm tenure.db tenure.db-wal tenure.db-shm tenure.db-turn tenure.db-witness");
        ran.refused(1, " tenure.db-guard-*; or");
        ran.refused(1, "begins with tenure_");
    }
    assert_eq!(shell.jobs().len(), 1);
    shell.run(&["migrate", "up", "--roles"]).refused(2, "a file has no roles");
}

#[test]
fn migrate_up_adds_tables_beside_those_of_somebody_else() {
    let shell = Shell::new();
    let books = rusqlite::Connection::open(shell.path("books.db")).unwrap();
    books.execute_batch("CREATE TABLE books (x); INSERT INTO books VALUES (42);").unwrap();
    drop(books);
    shell.ok(&["--db", "books.db", "migrate", "up"]);
    assert_eq!(shell.ok(&["--db", "books.db", "enqueue", "k"]), "1\n");
    let books = rusqlite::Connection::open(shell.path("books.db")).unwrap();
    let x: i64 = books.query_row("SELECT x FROM books", [], |row| row.get(0)).unwrap();
    assert_eq!(x, 42);
}

#[test]
fn the_store_is_named_by_option_or_by_environment() {
    let shell = Shell::new();
    for db in ["a.db", "sqlite:b.db", "sqlite://c.db"] {
        assert_eq!(shell.ok(&["--db", db, "enqueue", "k"]), "1\n");
    }
    let with_env = |args: &[&str]| {
        Ran::of(shell.command(args).env("TENURE_DB", "sqlite:a.db").output().unwrap())
    };
    assert_eq!(with_env(&["enqueue", "k"]).stdout, "2\n");
    assert_eq!(with_env(&["enqueue", "k", "--db", "b.db"]).stdout, "2\n");
    assert!(shell.path("c.db").exists() && !shell.path("tenure.db").exists());
}

// ── the shell ────────────────────────────────────────────────────────────────────────────────────

#[test]
fn there_are_completions_for_every_shell() {
    let shell = Shell::new();
    for name in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = shell.ok(&["completions", name]);
        assert!(script.contains("enqueue") && script.contains("requeue"), "{name}");
    }
    // Completions need no store, not even a reachable one.
    shell.ok(&["--db", "postgres://h/d", "completions", "bash"]);
    assert!(!shell.path("tenure.db").exists());
}

#[test]
fn help_is_an_answer_and_goes_to_stdout() {
    let shell = Shell::new();
    for args in [&["--help"][..], &["enqueue", "--help"], &["help", "jobs"], &["--version"]] {
        let ran = shell.run(args);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{args:?}");
        assert!(ran.stdout.contains("tenure"), "{args:?}");
    }
}

fn a_reader_that_has_gone_is_no_reason_to_panic(shell: &Shell) {
    shell.ok(&["enqueue", "k", "--count", "10"]);
    for args in [
        &["jobs", "list"][..],
        &["jobs", "list", "--json"],
        &["jobs", "show", "1"],
        &["stats"],
        &["completions", "bash"],
        &["--help"],
    ] {
        let ran = run_without_a_reader(shell, args);
        // That no worker takes these jobs is a message, and goes to stderr.
        let talk = ran.stderr.lines().filter(|line| !line.contains("no known worker takes them"));
        assert_eq!((ran.code, talk.collect::<String>().as_str()), (0, ""), "{args:?}");
    }
}

fn jobs_are_all_stored_even_if_nobody_reads_their_ids(shell: &Shell) {
    let ran = run_without_a_reader(shell, &["enqueue", "k", "--count", "2500"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(shell.json(&["stats"])["lines"][0]["ready"], json!(2_500));
}

fn run_without_a_reader(shell: &Shell, args: &[&str]) -> Ran {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    Ran::of(shell.command(args).stdout(writer).output().unwrap())
}

fn talk_about_an_answer_comes_after_it(shell: &Shell) {
    shell.settled(Outcome::Bury { reason: "no such address".into() });
    // As on a terminal, where stdout and stderr share a screen.
    let (mut screen, writer) = std::io::pipe().unwrap();
    let mut command = shell.command(&["dead", "list"]);
    command.stdout(writer.try_clone().unwrap()).stderr(writer);
    assert!(command.status().unwrap().success());
    drop(command);
    let mut text = String::new();
    screen.read_to_string(&mut text).unwrap();
    assert!(text.find("no such address") < text.find("requeue one with"), "{text}");
    assert!(text.starts_with("ID"), "{text}");
}

fn an_answer_that_cannot_be_written_is_an_error(shell: &Shell) {
    shell.ok(&["enqueue", "k"]);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let ran = Ran::of(shell.command(&["jobs", "list"]).stdout(full).output().unwrap());
    ran.refused(1, "cannot write the answer");
}

fn lines_that_arrive_slowly_are_still_whole_lines(shell: &Shell) {
    let mut child =
        shell.command(&["enqueue", "k", "--file", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for piece in ["{\"a\":", "1}\n{\"a\"", ":2}"] {
        stdin.write_all(piece.as_bytes()).unwrap();
        stdin.flush().unwrap();
    }
    drop(stdin);
    assert_eq!(Ran::of(child.wait_with_output().unwrap()).stdout, "1\n2\n");
}
