//! Real processes that share one SQLite file, some of which are killed.
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;
use tenure::engine::store::{Look, Result};

use tenure::Filter;
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};

/// A process that enqueues as fast as it can, and what it has reported so far.
#[derive(Debug)]
pub struct Writer {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    acknowledged: Vec<i64>,
    worst: Duration,
}

impl Writer {
    /// Starts `program`, the binary `tenure-drill-writer`, on `file`.
    pub fn start(program: &Path, file: &Path) -> Writer {
        let mut command = Command::new(program);
        let mut process = command
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the writer starts");
        let lines = BufReader::new(process.stdout.take().expect("its output")).lines();
        Writer { process, lines, acknowledged: Vec::new(), worst: Duration::ZERO }
    }

    /// Reads up to `n` acknowledgements; false at the end of the process's output.
    pub fn listen(&mut self, n: usize) -> bool {
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

    /// Kills the process with SIGKILL, and reads what it had reported before.
    pub fn kill(&mut self) {
        self.process.kill().expect("kill -9");
        while self.listen(1_000) {}
        self.process.wait().expect("it is gone");
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(&mut self) {
        drop(self.process.stdin.take());
        while self.listen(1_000) {}
        assert!(self.process.wait().expect("it ends").success());
    }
}

/// The result of three processes that write to one file.
#[derive(Debug)]
pub struct Contention {
    /// How many jobs were acknowledged in all.
    pub acknowledged: usize,
    /// How many jobs were acknowledged to each of the two processes that were not killed.
    pub steady: [usize; 2],
    /// The longest wait for an acknowledgement.
    pub worst: Duration,
    /// Acknowledged ids that are not in the store. There must be none.
    pub lost: Vec<i64>,
    /// How many acknowledged ids were issued more than once. There must be none.
    pub doubled: usize,
}

/// Two processes write all the time. A third is started and killed `kills` times, each time after
/// `patience` acknowledgements or up to six more.
pub fn contend(program: &Path, file: &Path, kills: usize, patience: usize) -> Result<Contention> {
    let steady = [0, 1].map(|_| {
        let mut writer = Writer::start(program, file);
        assert!(writer.listen(1), "a steady writer gets its turn");
        let stop = writer.process.stdin.take();
        let listener = thread::spawn(move || {
            while writer.listen(1_000) {}
            writer
        });
        (stop, listener)
    });
    let mut writers = Vec::new();
    for kill in 0..kills {
        let mut victim = Writer::start(program, file);
        assert!(victim.listen(patience + kill % 7), "a victim gets its turn");
        victim.kill();
        writers.push(victim);
    }
    let steady = steady.map(|(stop, listener)| {
        drop(stop);
        let mut writer = listener.join().expect("the listener ends");
        writer.stop();
        writers.push(writer);
        writers[writers.len() - 1].acknowledged.len()
    });
    let told = writers.iter().flat_map(|writer| writer.acknowledged.iter().copied());
    let unique: BTreeSet<i64> = told.clone().collect();
    let stored = all_ids(file)?;
    Ok(Contention {
        acknowledged: told.clone().count(),
        steady,
        worst: writers.iter().map(|writer| writer.worst).max().unwrap_or_default(),
        doubled: told.count() - unique.len(),
        lost: unique.difference(&stored).copied().collect(),
    })
}

fn all_ids(file: &Path) -> Result<BTreeSet<i64>> {
    let mut store = Sqlite::open(file, &StoreOptions::default())?;
    let mut filter = Filter::default();
    let mut ids = BTreeSet::new();
    loop {
        let page = store.jobs(&filter, 1_000)?;
        let Some(last) = page.last() else { return Ok(ids) };
        filter.before = Some(last.id);
        ids.extend(page.iter().map(|job| job.id.0));
    }
}
