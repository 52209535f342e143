//! `tenure bench peers`, run by the real binary with adapters that are scripts: nothing here reaches
//! a registry, and nothing is about speed.

#![cfg(feature = "bench")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod process;
mod shell;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use process::Process;
use rustix::process::Signal;
use serde_json::json;
use shell::{Ran, Shell};

/// Takes the place of an adapter's Python. It answers for every measure, but fails unless it was
/// given a database of the bench.
const ANSWERS: &str = r#"#!/bin/sh
case $PGDATABASE in tenure_bench_*) ;; *) echo "no database" >&2; exit 1 ;; esac
all=$(($3 + $4))
printf '{"version":"9","settings":"a script","seconds":{"%s":0.5},"pickups_ms":[3],' "$2"
printf '"enqueued":%s,"once":%s,"again":0}\n' $all $all
"#;

/// Never answers, and neither does a process that it has started.
const HANGS: &str = r#"#!/bin/sh
mkfifo pipe
(: > pipe) &
echo $$ $! > pids.new && mv pids.new pids
: > pipe
"#;

/// What the real adapter is installed by.
const MANIFEST: &str = include_str!("../../tenure-bench/peers/python/pgqueuer/requirements.txt");

/// A bench of one test, with a role that nothing else uses.
struct Bench {
    shell: Shell,
    role: String,
}

impl Bench {
    /// A bench in whose directory pgqueuer is installed already: its Python is this script.
    fn with(script: &str) -> Bench {
        let shell = Shell::on_server();
        let installed = shell.path("peers/python/pgqueuer");
        fs::create_dir_all(installed.join("venv/bin")).unwrap();
        fs::create_dir_all(shell.path("tmp")).unwrap();
        fs::write(installed.join("installed.txt"), MANIFEST).unwrap();
        let python = installed.join("venv/bin/python");
        fs::write(&python, script).unwrap();
        fs::set_permissions(&python, fs::Permissions::from_mode(0o755)).unwrap();
        let role = shell.database().role("bencher");
        shell.database().execute(&format!("ALTER ROLE {role} CREATEDB"));
        Bench { shell, role }
    }

    fn command(&self, args: &[&str]) -> Command {
        let common = ["bench", "peers", "--quick", "--dir", "peers", "--only", "pgqueuer"];
        let mut command = self.shell.command(&[&common, args].concat());
        command.env("TMPDIR", self.shell.path("tmp"));
        command.env("TENURE_DB", self.shell.database().url_as(&self.role));
        command
    }

    /// The databases and directories that it has made, and that are there now.
    fn left(&self) -> Vec<String> {
        let owned = "SELECT datname FROM pg_database WHERE datdba = (SELECT oid FROM pg_roles \
                     WHERE rolname = $1)";
        let rows = self.shell.database().connect().query(owned, &[&self.role]).unwrap();
        let files = fs::read_dir(self.shell.path("tmp")).unwrap();
        let files = files.map(|file| format!("{:?}", file.unwrap().path()));
        rows.iter().map(|row| row.get(0)).chain(files).collect()
    }
}

#[test]
fn peers_plain_sql_and_tenure_are_measured_and_compared_with_the_targets() {
    let bench = Bench::with(ANSWERS);
    let svg = bench.shell.path("peers.svg");
    let args = ["--only", "raw", "--only", "tenure", "--svg", svg.to_str().unwrap(), "--json"];
    let ran = Ran::of(bench.command(&args).output().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains("peers are installed in "), "{ran:?}");
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&report["quick"], &report["failures"]), (&json!(true), &json!([])));
    let lines = report["lines"].as_array().unwrap();
    let has = |work: &str, store: &str, subject: &str| {
        let named = [work, store, subject];
        lines.iter().any(|it| [&it["work"], &it["store"], &it["subject"]] == named)
    };
    for store in ["PostgreSQL", "SQLite"] {
        for subject in ["tenure", "tenure, tuned", "tenure, no history", "plain SQL"] {
            assert!(has("process", store, subject), "{store} {subject}: {report:#}");
        }
        assert!(has("idle_pickup p99", store, "tenure"), "{report:#}");
    }
    assert!(has("enqueue_16", "PostgreSQL", "plain SQL"), "{report:#}");
    assert!(has("enqueue_16_keys", "PostgreSQL", "tenure"), "{report:#}");
    assert!(has("idle_pickup p50", "PostgreSQL", "pgqueuer"), "{report:#}");
    let peer = lines.iter().find(|it| it["subject"] == "pgqueuer" && it["work"] == "process");
    assert_eq!(peer.unwrap()["median"], json!(2_000.0));
    assert_eq!(peer.unwrap()["marks"], json!(["deletes", "unfenced"]));
    let outcomes: Vec<_> = report["targets"].as_array().unwrap().iter().collect();
    let not = outcomes.iter().filter(|it| it["outcome"] == "not_measured").count();
    // Three targets lack a figure: the script has no time for bulk enqueues, and huey, the only
    // peer on SQLite, is not measured.
    assert_eq!((outcomes.len(), not), (17, 3), "{outcomes:#?}");
    let drawn = fs::read_to_string(&svg).unwrap();
    assert!(drawn.contains("pgqueuer 9") && drawn.ends_with("</svg>\n"), "{drawn}");
    assert_eq!(bench.left(), [""; 0]);
}

#[test]
fn a_peer_that_fails_is_reported_and_the_table_is_printed() {
    let bench = Bench::with("#!/bin/sh\necho out of luck >&2; exit 1\n");
    let ran = Ran::of(bench.command(&[]).output().unwrap());
    assert_eq!(ran.code, 0, "{ran:?}");
    let failed = ran.stdout.lines().find(|line| line.starts_with("pgqueuer")).unwrap();
    assert!(failed.contains("process") && failed.ends_with(": out of luck"), "{failed}");
    assert!(ran.stdout.contains("F no fence: a late worker"), "{}", ran.stdout);
    assert_eq!(ran.stdout.matches("not measured").count(), 17, "{}", ran.stdout);
    assert_eq!(bench.left(), [""; 0]);
}

#[test]
fn an_interrupted_comparison_ends_every_process_and_leaves_nothing_behind() {
    let bench = Bench::with(HANGS);
    let child = bench.command(&[]).spawn().unwrap();
    let pids = bench.shell.path("peers/python/pgqueuer/pids");
    while !pids.exists() {
        std::thread::yield_now();
    }
    let started = Process::all(&fs::read_to_string(&pids).unwrap());
    assert_eq!(bench.left().len(), 3, "a database of each of the two, and a directory");
    Process::of(&child.id().to_string()).signal(Signal::INT);
    let ran = Ran::of(child.wait_with_output().unwrap());
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("interrupted; what was made for the bench is removed"), "{ran:?}");
    started.iter().for_each(Process::ends);
    assert_eq!(bench.left(), [""; 0]);
}

#[test]
fn the_list_names_every_peer_with_its_version_and_marks() {
    let shell = Shell::new();
    let listed = shell.ok(&["bench", "peers", "--list"]);
    let line = listed.lines().find(|line| line.starts_with("graphile-worker ")).unwrap();
    assert!(line.contains("0.18.0") && line.contains("D F"), "{line}");
    assert!(listed.contains("P not persistent"), "{listed}");
    let json = shell.json(&["bench", "peers", "--list"]);
    assert_eq!(json.as_array().unwrap().len(), 10);
    assert_eq!(json[0]["marks"], json!(["deletes", "unfenced"]));
}

#[test]
fn what_cannot_be_compared_is_refused_before_anything_is_made() {
    let shell = Shell::new();
    let refused = |args: &[&str], code: i32, why: &str| {
        let ran = shell.run(&[&["bench", "peers"], args].concat());
        assert_eq!(ran.code, code, "{ran:?}");
        assert!(ran.stderr.contains(why), "{ran:?}");
    };
    refused(&["--only", "sidekiq"], 2, "there is no peer \"sidekiq\"; `tenure bench peers --list`");
    refused(&["--db", "tenure.db"], 2, "the peers need a server");
    refused(&["--svg", "no/such/directory.svg"], 2, "name a file that can be written");
    refused(&["--db", "postgres://me@127.0.0.1:1/x"], 3, "a bench needs a server that runs");
}
