//! `tenure producer`: jobs at a steady rate, and what happens when the store is unreachable or the
//! user interrupts it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod process;
mod shell;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStderr, Command};

use process::Process;
use rustix::process::Signal;
use serde_json::json;
use shell::{Ran, Shell, on_both_engines};
use tenure::RetryPolicy;
use tenure_cluster::{Binaries, Cluster, Settings};

on_both_engines!(
    kinds_and_tenants_come_in_turn_and_the_answer_counts_them,
    a_producer_stops_after_its_time,
    a_producer_that_is_interrupted_says_what_it_did,
);

fn kinds_and_tenants_come_in_turn_and_the_answer_counts_them(shell: &Shell) {
    let args =
        ["producer", "--count", "7", "--rate", "100000", "--tenant", "ann", "--tenant", "bob"];
    let answer = shell.json(&args);
    assert_eq!(answer["enqueued"], json!(7));
    assert_eq!(answer["kinds"], json!({"quick": 3, "slow": 2, "failing": 2}));
    assert_eq!(answer["breaks"], json!(0));
    let mut jobs = shell.jobs();
    jobs.sort_by_key(|job| job.id);
    let shown: Vec<String> =
        jobs.iter().map(|job| format!("{} {} {}", job.kind, job.tenant, job.args)).collect();
    assert_eq!(shown[0], "quick ann {\"n\":1}");
    assert_eq!(shown[3], "quick bob {\"n\":4}");
    assert_eq!(shown[6], "quick ann {\"n\":7}");
    let again = [
        "producer", "--count", "2", "--rate", "1000", "--kind", "k", "--args", "[1]", "--queue",
        "q", "--retry", "fixed:5s",
    ];
    let line = shell.ok(&again);
    assert!(line.starts_with("enqueued 2 jobs in ") && line.ends_with(": 2 k\n"), "{line}");
    let jobs = shell.jobs();
    let ours = jobs.iter().filter(|job| job.queue.as_str() == "q" && job.args.as_str() == "[1]");
    let retries: Vec<_> = ours.map(|job| job.retry.clone()).collect();
    assert_eq!((jobs.len(), retries), (9, vec![RetryPolicy::Fixed { ms: 5_000 }; 2]));
}

fn a_producer_stops_after_its_time(shell: &Shell) {
    let answer = shell.json(&["producer", "--for", "300ms", "--rate", "2000"]);
    let enqueued = answer["enqueued"].as_u64().unwrap();
    // At most what the rate allows in that time; on a slow machine less.
    let allowed = answer["elapsed_ms"].as_u64().unwrap() * 2 + 1;
    assert!((1..=allowed).contains(&enqueued), "{answer}");
    assert!(answer["elapsed_ms"].as_u64().unwrap() >= 300, "{answer}");
    let ready: u64 = shell.json(&["stats"])["lines"][0]["ready"].as_u64().unwrap();
    assert_eq!(ready, enqueued);
}

fn a_producer_that_is_interrupted_says_what_it_did(shell: &Shell) {
    for signal in [Signal::INT, Signal::TERM] {
        let before = shell.jobs().len();
        let mut producer = Producer::start(shell.command(&["producer", "--rate", "50"]));
        producer.says("jobs enqueued, ");
        let ran = producer.interrupt(signal);
        let enqueued = shell.jobs().len() - before;
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.stdout.starts_with(&format!("enqueued {enqueued} jobs in ")), "{ran:?}");
    }
}

/// A running producer, and its stderr.
struct Producer {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Producer {
    fn start(mut command: Command) -> Producer {
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Producer { child, stderr }
    }

    /// Waits until it prints this.
    fn says(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert!(self.stderr.read_line(&mut line).unwrap() > 0, "it never said {text:?}");
        }
    }

    fn interrupt(self, signal: Signal) -> Ran {
        Process::of(&self.child.id().to_string()).signal(signal);
        Ran::of(self.child.wait_with_output().unwrap())
    }
}

#[test]
fn a_store_that_is_gone_for_a_while_is_waited_for_and_no_job_is_stored_twice() {
    let binaries = Binaries::find_or_install().unwrap();
    let mut cluster = Cluster::start(&binaries, &Settings::new()).unwrap();
    let (shell, url) = (Shell::new(), cluster.url());
    shell.ok(&["--db", &url, "migrate", "up"]);
    let mut producer =
        Producer::start(shell.command(&["--db", &url, "producer", "--rate", "500", "--json"]));
    producer.says("jobs enqueued, ");
    cluster.stop_immediately().unwrap();
    producer.says("waiting for the store: ");
    cluster.start_again().unwrap();
    producer.says("the store is back");
    producer.says("jobs enqueued, ");
    let ran = producer.interrupt(Signal::INT);
    let answer: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(answer["breaks"].as_u64().unwrap() >= 1, "{answer}");
    let stored =
        cluster.psql("SELECT count(*) || ' ' || count(DISTINCT args::text) FROM tenure.jobs");
    let n = answer["enqueued"].as_u64().unwrap();
    assert_eq!(stored.unwrap().trim(), format!("{n} {n}"));
}

#[test]
fn what_a_producer_cannot_do_is_refused_before_the_store_is_opened() {
    let shell = Shell::new();
    for (args, reason) in [
        (&["--rate", "0"][..], "--rate"),
        (&["--for", "10s", "--count", "3"], "cannot be used with"),
        (&["--count", "0"], "--count"),
        (&["--args", "{"], "write one JSON value"),
        (&["--kind", "No"], "--kind"),
        (&["--for", "0s"], "zero is too short"),
    ] {
        shell.run(&[&["producer"], args].concat()).refused(2, reason);
    }
    assert!(!shell.path("tenure.db").exists());
}
