//! Real processes on one SQLite file: turns, kill -9, wake-ups, and everybody opening it at once.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use tenure::clock::monotonic;
use tenure::inspect::Filter;
use tenure::job::{JobId, Name};
use tenure::lease::WorkerId;
use tenure::store::sqlite::{Options, Sqlite};
use tenure::store::{Claim, Cursor, Store, Wake};

/// A writing process and what it has said so far.
struct Writer {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    acknowledged: Vec<i64>,
    worst: Duration,
}

impl Writer {
    fn start(file: &Path) -> Writer {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-drill-writer"));
        let mut process = command
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the writer starts");
        let lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        Writer { process, lines, acknowledged: Vec::new(), worst: Duration::ZERO }
    }

    /// Listens to up to `n` acknowledgements; false when the process has said its last.
    fn listen(&mut self, n: usize) -> bool {
        for _ in 0..n {
            let Some(Ok(line)) = self.lines.next() else { return false };
            // A line that was cut off by a kill acknowledges nothing.
            let Some((id, micros)) = line.split_once(' ') else { continue };
            let (Ok(id), Ok(micros)) = (id.parse(), micros.parse()) else { continue };
            self.acknowledged.push(id);
            self.worst = self.worst.max(Duration::from_micros(micros));
        }
        true
    }

    fn kill(&mut self) {
        self.process.kill().expect("kill -9");
        while self.listen(1_000) {}
        self.process.wait().expect("it is gone");
    }

    fn stop(&mut self) {
        drop(self.process.stdin.take());
        while self.listen(1_000) {}
        assert!(self.process.wait().expect("it ends").success());
    }
}

fn all_ids(file: &Path) -> Vec<i64> {
    let mut store = Sqlite::open(file, &Options::default()).unwrap();
    let mut filter = Filter::default();
    let mut ids = Vec::new();
    loop {
        let page = store.jobs(&filter, 1_000).unwrap();
        let Some(last) = page.last() else { return ids };
        filter.before = Some(JobId(last.id.0));
        ids.extend(page.iter().map(|job| job.id.0));
    }
}

/// G1, I9: three processes write as fast as they can, and one of them is killed fifty times.
#[test]
fn nothing_acknowledged_is_lost_when_writers_are_killed_and_nobody_starves() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jobs.db");
    let steady: Vec<_> = (0..2)
        .map(|_| {
            let mut writer = Writer::start(&file);
            assert!(writer.listen(1));
            let stop = writer.process.stdin.take();
            let listener = std::thread::spawn(move || {
                while writer.listen(1_000) {}
                writer
            });
            (stop, listener)
        })
        .collect();
    let mut killed = Vec::new();
    for kill in 0..50 {
        let mut victim = Writer::start(&file);
        assert!(victim.listen(1 + kill % 7), "a victim gets its turn");
        victim.kill();
        killed.push(victim);
    }
    let mut writers: Vec<_> = steady
        .into_iter()
        .map(|(stop, listener)| {
            drop(stop);
            let mut writer = listener.join().unwrap();
            writer.stop();
            writer
        })
        .collect();
    let counts: Vec<_> = writers.iter().map(|writer| writer.acknowledged.len()).collect();
    writers.append(&mut killed);
    let acknowledged: Vec<_> =
        writers.iter().flat_map(|writer| writer.acknowledged.iter().copied()).collect();
    let unique: BTreeSet<_> = acknowledged.iter().copied().collect();
    assert_eq!(unique.len(), acknowledged.len(), "no id was given out twice");
    let stored: BTreeSet<_> = all_ids(&file).into_iter().collect();
    let lost: Vec<_> = unique.difference(&stored).collect();
    let worst = writers.iter().map(|writer| writer.worst).max().unwrap_or_default();
    println!(
        "{} acknowledged, {counts:?} by the steady two, longest wait {worst:?}",
        acknowledged.len()
    );
    assert!(lost.is_empty(), "acknowledged, but not there: {lost:?}");
    let (few, many) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    assert!(few * 4 > *many, "one of the two was starved: {counts:?}");
    assert!(worst < Duration::from_secs(1), "somebody waited for {worst:?}");
}

/// G6: no notification crosses processes, and none is needed.
#[test]
fn a_wait_is_ended_by_another_processs_commit() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jobs.db");
    let mut store = Sqlite::open(&file, &Options::default()).unwrap();
    let ask = Claim {
        worker: WorkerId::unique(),
        queues: vec![Name::default_queue()],
        kinds: None,
        n: 1,
        lease: Duration::from_secs(30),
        cursor: Cursor::default(),
    };
    assert!(store.claim(&ask).unwrap().attempts.is_empty());
    let mut writer = Writer::start(&file);
    assert_eq!(store.wait(monotonic() + Duration::from_secs(60)).unwrap(), Wake::Changed);
    assert!(writer.listen(1));
    assert_eq!(store.claim(&ask).unwrap().attempts.len(), 1);
    writer.stop();
}

#[test]
fn processes_that_open_a_new_file_at_once_all_find_it_ready() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jobs.db");
    let mut writers: Vec<_> = (0..8).map(|_| Writer::start(&file)).collect();
    for writer in &mut writers {
        assert!(writer.listen(1), "each of them can write");
    }
    writers.iter_mut().for_each(Writer::stop);
}
