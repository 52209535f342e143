//! `tenure bench`, run by the real binary on both engines with small sizes: the shape of its report,
//! that every job ran exactly once, and that it leaves nothing behind. Nothing here is about speed.

#![cfg(feature = "bench")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod process;
mod shell;

use std::process::Command;

use process::Process;
use rustix::process::Signal;
use serde_json::{Value, json};
use shell::{Ran, Shell, on_both_engines};

on_both_engines!(
    every_figure_has_what_is_needed_to_judge_it_and_every_job_ran_once,
    a_bench_that_is_interrupted_leaves_nothing_behind,
);

/// A bench of one test: with a temporary directory and, on a server, a role that nothing else uses.
struct Bench<'a> {
    shell: &'a Shell,
    role: Option<String>,
}

impl Bench<'_> {
    fn of(shell: &Shell) -> Bench<'_> {
        std::fs::create_dir_all(shell.path("tmp")).unwrap();
        let role = shell.database.as_ref().map(|database| {
            let role = database.role("bencher");
            database.execute(&format!("ALTER ROLE {role} CREATEDB"));
            role
        });
        Bench { shell, role }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = self.shell.command(&[&["bench", "--quick"], args].concat());
        command.env("TMPDIR", self.shell.path("tmp"));
        if let Some(role) = &self.role {
            command.env("TENURE_DB", self.shell.database().url_as(role));
        }
        command
    }

    /// The directory or database that a running bench has made; empty if there is none.
    fn ground(&self) -> Vec<String> {
        let Some(role) = &self.role else {
            let files = std::fs::read_dir(self.shell.path("tmp")).unwrap();
            return files.map(|file| format!("{:?}", file.unwrap().path())).collect();
        };
        let owned = "SELECT datname FROM pg_database WHERE datdba = (SELECT oid FROM pg_roles \
                     WHERE rolname = $1)";
        let rows = self.shell.database().connect().query(owned, &[role]).unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Asserts that nothing is left, and that the user's own store is unchanged.
    #[track_caller]
    fn leaves_nothing(&self) {
        assert_eq!(self.ground(), [""; 0]);
        assert_eq!(self.shell.jobs(), []);
    }

    /// Runs a bench that must end well, and returns its report.
    #[track_caller]
    fn measured(&self, args: &[&str]) -> Value {
        let ran = Ran::of(self.command(&[args, &["--json"]].concat()).output().unwrap());
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
        self.leaves_nothing();
        serde_json::from_str(&ran.stdout).unwrap()
    }
}

fn every_figure_has_what_is_needed_to_judge_it_and_every_job_ran_once(shell: &Shell) {
    let names =
        ["enqueue_16_keys", "process_4_workers", "backlog_1000", "recovery_kill", "kill_reruns"];
    let names = [&names[..], &["command_true"]].concat();
    let only: Vec<&str> = names.iter().flat_map(|name| ["--only", name]).collect();
    let svg = shell.path("bench.svg");
    let drawn = ["--rounds", "2", "--svg", svg.to_str().unwrap()];
    let report = Bench::of(shell).measured(&[&only[..], &drawn].concat());

    let (engine, durability) = match &shell.database {
        None => ("SQLite 3.", "WAL, synchronous=FULL"),
        Some(_) => ("PostgreSQL ", "synchronous_commit=on, fsync=on"),
    };
    assert!(report["engine"].as_str().unwrap().starts_with(engine), "{report:#}");
    assert_eq!((&report["durability"], &report["rounds"]), (&json!(durability), &json!(2)));
    assert_eq!((&report["quick"], &report["tenure"]), (&json!(true), &json!("0.1.0")));
    assert!(report["machine"]["cores"].as_u64().unwrap() >= 1, "{report:#}");

    let figures = report["figures"].as_array().unwrap();
    let named: Vec<&str> = figures.iter().map(|figure| figure["name"].as_str().unwrap()).collect();
    let expected = [
        "enqueue_16_keys",
        "process_4_workers",
        "backlog_1000",
        "recovery_kill median",
        "recovery_kill slowest",
        "kill_reruns median",
        "kill_reruns most",
        "command_true",
    ];
    assert_eq!(named, expected);
    for figure in figures {
        let values = figure["values"].as_array().unwrap();
        assert!(
            values.len() == 2 && values.iter().all(|it| it.as_f64().unwrap() > 0.0),
            "{figure}"
        );
        assert!(figure["median"].as_f64().unwrap() > 0.0, "{figure}");
        assert!(figure["spread"].as_f64().unwrap() >= 0.0, "{figure}");
        assert!(!figure["settings"].as_str().unwrap().is_empty(), "{figure}");
        assert!(figure["on"].as_str().unwrap().contains(engine), "{figure}");
        let compares = figure["unit"] == "jobs/s";
        assert_eq!(figure["limit"]["fraction"].is_number(), compares, "{figure}");
    }

    let summary = &report["summary"];
    let jobs = |of: &str| summary[of].as_u64().unwrap();
    assert!(jobs("jobs_run_once") > 1_000, "{summary}");
    assert_eq!(jobs("jobs_enqueued"), jobs("jobs_run_once") + jobs("jobs_left"), "{summary}");
    assert_eq!(jobs("jobs_left"), 0, "a backlog of this size is worked off whole: {summary}");
    assert_eq!(summary["noop_measure"], "process_4_workers");
    assert!(summary["p99_ms_at_40000_a_day"].is_null(), "it was not measured: {summary}");

    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(drawn.starts_with("<?xml") && drawn.ends_with("</svg>\n"), "{drawn}");
    expected.iter().for_each(|name| assert!(drawn.contains(&format!(">{name}<")), "{name}"));
}

fn a_bench_that_is_interrupted_leaves_nothing_behind(shell: &Shell) {
    let bench = Bench::of(shell);
    // Far more rounds than this test waits for.
    let mut child =
        bench.command(&["--only", "process_4_workers", "--rounds", "100"]).spawn().unwrap();
    while bench.ground().is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before it was interrupted");
        std::thread::yield_now();
    }
    Process::of(&child.id().to_string()).signal(Signal::INT);
    let ran = Ran::of(child.wait_with_output().unwrap());
    ran.refused(1, "interrupted; what was made for the bench is removed");
    assert_eq!(ran.stdout, "");
    bench.leaves_nothing();
}

#[test]
fn the_report_for_people_is_the_conditions_a_table_and_three_answers() {
    let shell = Shell::new();
    let bench = Bench::of(&shell);
    let ran = Ran::of(bench.command(&["--only", "enqueue_1"]).output().unwrap());
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("Tenure 0.1.0 on SQLite 3."), "{ran:?}");
    assert!(lines[1].starts_with("1 round in "), "{ran:?}");
    assert!(lines.iter().any(|line| line.starts_with("FIGURE     MEDIAN  UNIT")), "{ran:?}");
    assert!(lines.iter().any(|line| line.starts_with("enqueue_1  ")), "{ran:?}");
    let [jobs, p99, once] = lines[lines.len() - 3..] else { panic!("{ran:?}") };
    assert_eq!(jobs, "no-op jobs a second: not measured");
    assert!(p99.starts_with("p99 from enqueue to result: not measured"), "{p99}");
    assert_eq!(once, "ran to their end exactly once: 100 of 100 jobs");
    bench.leaves_nothing();
}

#[test]
fn the_list_names_every_measure_and_where_it_runs() {
    let shell = Shell::new();
    let listed = shell.ok(&["bench", "--list"]);
    assert!(
        listed.lines().any(|line| line.starts_with("process_1000       both        run no-op"))
    );
    assert!(listed.lines().any(|line| line.starts_with("horizon_busy       PostgreSQL  run jobs")));
    let json = shell.json(&["bench", "--list"]);
    assert_eq!(json.as_array().unwrap().len(), listed.lines().count() - 1);
    assert_eq!(json[0]["name"], "enqueue_bulk");
}

#[test]
fn what_cannot_be_measured_is_refused_before_anything_is_made() {
    let shell = Shell::new();
    let refused = |args: &[&str], code: i32, why: &str| {
        shell.run(&[&["bench"], args].concat()).refused(code, why);
    };
    refused(&["--only", "speed"], 2, "there is no measure \"speed\"; `tenure bench --list`");
    refused(&["--only", "horizon_busy"], 2, "on PostgreSQL only; add --postgres");
    refused(&["--svg", "no/such/directory.svg"], 2, "name a file that can be written");
    refused(&["--db", "postgres://me@127.0.0.1:1/x"], 3, "a bench needs a server that runs");
    shell.ok(&["enqueue", "mine"]);
    refused(&["--db", "tenure.db"], 3, "it exists; a bench makes stores of its own");
    assert_eq!(shell.jobs().len(), 1);
}

#[test]
fn a_role_that_may_not_make_databases_is_told_what_it_needs() {
    let shell = Shell::on_server();
    let database = shell.database();
    let url = database.url_as(&database.role("bencher"));
    let ran = shell.run(&["bench", "--db", &url]);
    ran.refused(3, "this user may not make databases; a bench makes a database of its own");
}

#[test]
fn a_worker_process_of_a_bench_refuses_a_users_store() {
    let shell = Shell::new();
    shell.run(&["__bench", "drain", "1", "1"]).refused(2, "on the stores of a bench alone");
    assert!(!shell.path("tenure.db").exists());
    let help = shell.ok(&["--help"]);
    assert!(help.contains("  bench ") && !help.contains("__bench"), "{help}");
}
