//! Real processes whose file is replaced or deleted while they work: every acknowledged job is in
//! the file at the path, or its caller got an error.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rusqlite::Connection;
use shell::{Ran, Shell};
use tenure::engine::clock::monotonic;

/// Longer than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(20);

/// A running process, and its stderr.
struct Running {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Running {
    fn start(shell: &Shell, args: &[&str]) -> Running {
        let mut child = shell.command(args).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).all(|line| tell.send(line).is_ok())
        });
        Running { child, lines, seen: Vec::new() }
    }

    /// Waits until it prints this, and returns the line.
    #[track_caller]
    fn says(&mut self, text: &str) -> String {
        let until = monotonic() + PATIENCE;
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(monotonic())) {
            self.seen.push(line.clone());
            if line.contains(text) {
                return line;
            }
        }
        panic!("it never said {text:?}, but: {:#?}", self.seen);
    }

    /// How often it has printed this so far.
    fn has_said(&mut self, text: &str) -> usize {
        self.seen.extend(self.lines.try_iter());
        self.seen.iter().filter(|line| line.contains(text)).count()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end, and returns its exit code, its answer and its messages.
    fn end(mut self) -> Ran {
        let stdout = std::io::read_to_string(self.child.stdout.take().unwrap()).unwrap();
        let code = self.child.wait().unwrap().code().unwrap();
        self.seen.extend(self.lines.iter());
        Ran { code, stdout, stderr: self.seen.join("\n") }
    }
}

/// Copies the file and calls `change` with the copy. A lock keeps other processes from writing
/// meanwhile, so the copy has every job that was acknowledged.
fn meanwhile(file: &Path, change: impl FnOnce(&Path)) {
    let copy = file.with_file_name("copy.db");
    let lock = Connection::open(file).unwrap();
    lock.busy_timeout(PATIENCE).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    let sql = format!("VACUUM INTO '{}'", copy.display());
    Connection::open(file).unwrap().execute_batch(&sql).unwrap();
    change(&copy);
    lock.execute_batch("ROLLBACK").unwrap();
}

fn remove_log(shell: &Shell) {
    for name in ["tenure.db-wal", "tenure.db-shm"] {
        fs::remove_file(shell.path(name)).unwrap();
    }
}

/// Runs a producer whose file is changed in the middle. Returns how many jobs it has acknowledged,
/// and its last message.
fn produce(shell: &Shell, change: impl FnOnce(&Path)) -> (u64, String) {
    let args = ["--json", "producer", "--rate", "500", "--for", "60s"];
    let mut producer = Running::start(shell, &args);
    producer.says("jobs enqueued");
    meanwhile(&shell.path("tenure.db"), change);
    let ran = producer.end();
    assert_ne!(ran.code, 0, "{ran:?}");
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    (answer["enqueued"].as_u64().unwrap(), ran.stderr)
}

#[test]
fn a_producer_whose_file_is_replaced_has_acknowledged_only_what_is_there() {
    let shell = Shell::new();
    let file = shell.path("tenure.db");
    let (acknowledged, told) = produce(&shell, |copy| fs::rename(copy, &file).unwrap());
    assert!(told.contains("another file was put in its place while it was open"), "{told}");
    let refused = shell.run(&["stats"]);
    assert_eq!(refused.code, 3, "{refused:?}");
    assert!(refused.stderr.contains("tenure.db-wal and "), "{refused:?}");
    remove_log(&shell);
    assert_eq!(shell.json(&["stats"])["lines"][0]["ready"], acknowledged);
}

#[test]
fn a_producer_whose_file_is_deleted_is_told_before_it_acknowledges_more() {
    let shell = Shell::new();
    let file = shell.path("tenure.db");
    let (acknowledged, told) = produce(&shell, |_| fs::remove_file(&file).unwrap());
    assert!(told.contains("the file was deleted or moved away while it was open"), "{told}");
    // The copy has what was in the file when it was deleted.
    remove_log(&shell);
    fs::rename(shell.path("copy.db"), &file).unwrap();
    assert_eq!(shell.json(&["stats"])["lines"][0]["ready"], acknowledged);
}

#[test]
fn an_idle_worker_tells_at_once_that_its_file_was_deleted_and_goes_on_when_it_is_back() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "hello"]);
    let mut worker = Running::start(&shell, &["worker", "--log", "json", "--", "true"]);
    worker.says("job_succeeded");
    let (file, aside) = (shell.path("tenure.db"), shell.path("aside.db"));
    fs::rename(&file, &aside).unwrap();
    let began = monotonic();
    let told = worker.says("store_lost");
    assert!(told.contains("the file was deleted or moved away while it was open"), "{told}");
    // The worker looks at least forty times a second; the rest is for a busy machine.
    assert!(monotonic() - began < Duration::from_secs(5), "{:?}", monotonic() - began);
    fs::rename(&aside, &file).unwrap();
    worker.says("store_back");
    shell.ok(&["enqueue", "hello"]);
    worker.says("job_succeeded");
    let told = (worker.has_said("store_lost"), worker.has_said("store_back"));
    assert_eq!(told, (1, 1), "each once: {:#?}", worker.seen);
    worker.kill();
}

#[test]
fn a_worker_with_no_free_slot_tells_at_once_that_its_file_was_deleted_and_what_to_do() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "hello"]);
    let args = ["worker", "--concurrency", "1", "--log", "json", "--", "sleep", "60"];
    let mut worker = Running::start(&shell, &args);
    worker.says("execution_started");
    fs::remove_file(shell.path("tenure.db")).unwrap();
    let began = monotonic();
    let told = worker.says("store_lost");
    assert!(monotonic() - began < Duration::from_secs(5), "{:?}", monotonic() - began);
    assert!(told.contains("put it back; or end all programs that use it"), "{told}");
    worker.kill();
}

#[test]
fn a_worker_whose_file_is_replaced_tells_it_and_takes_no_job_from_the_old_one() {
    let shell = Shell::new();
    shell.ok(&["migrate", "up"]);
    let mut worker = Running::start(&shell, &["worker", "--log", "json", "--", "true"]);
    worker.says("worker_started");
    let file = shell.path("tenure.db");
    meanwhile(&file, |copy| fs::rename(copy, &file).unwrap());
    let told = worker.says("store_lost");
    assert!(told.contains("another file was put in its place while it was open"), "{told}");
    assert_eq!(worker.has_said("store_back"), 0, "{:#?}", worker.seen);
    worker.kill();
    remove_log(&shell);
    shell.ok(&["enqueue", "hello"]);
    let ran = shell.run(&["worker", "--drain", "--log", "json", "--", "true"]);
    assert!(ran.stderr.contains("job_succeeded"), "{ran:?}");
}

#[test]
fn a_worker_tells_once_of_a_witness_that_cannot_be_written_and_the_doctor_says_what_to_do() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "hello"]);
    let witness = shell.path("tenure.db-witness");
    fs::remove_file(&witness).unwrap();
    std::os::unix::fs::symlink("/dev/full", &witness).unwrap();
    for _ in 0..3 {
        shell.ok(&["enqueue", "hello"]);
    }
    let mut worker = Running::start(
        &shell,
        &[
            "worker",
            "--lease",
            "1s",
            "--concurrency",
            "1",
            "--log",
            "json",
            "--log-level",
            "debug",
            "--",
            "sleep",
            "2",
        ],
    );
    let told = worker.says("store_caution");
    assert!(told.contains("tenure.db-witness cannot be written"), "{told}");
    // Renewals continue, and each round could report it again.
    worker.says("lease_renewed");
    worker.says("job_succeeded");
    assert_eq!(worker.has_said("store_caution"), 1, "{:#?}", worker.seen);
    worker.kill();
    let findings = shell.run(&["doctor"]).stdout;
    let line = findings.lines().find(|line| line.starts_with("witness")).unwrap();
    assert!(line.contains("to do") && line.contains("cannot be written (No space left"), "{line}");
    let epoch = findings.lines().find(|line| line.starts_with("epoch")).unwrap();
    assert!(epoch.contains("once"), "one new epoch, and no more: {epoch}");
}
