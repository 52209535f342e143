//! The tests: which there are, how long each takes, and which mutants it reaches. Each runs in a
//! process of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::compile::Program;
use crate::process::{self, Ended};
use crate::say;

/// One test.
#[derive(Debug, Clone)]
pub(crate) struct Test {
    /// The name of its program and its own.
    pub(crate) id: String,
    name: String,
    program: PathBuf,
    directory: PathBuf,
    /// How long it takes.
    pub(crate) took: Duration,
    /// The mutants that it reaches.
    pub(crate) reached: BTreeSet<u32>,
}

/// Where one test at a time has its temporary files and its output.
pub(crate) struct Slot {
    directory: tempfile::TempDir,
}

impl Slot {
    /// A new slot, below the machine's temporary directory: paths of sockets must be short.
    pub(crate) fn new() -> Result<Slot> {
        let directory = tempfile::Builder::new().prefix("tm").tempdir()?;
        Ok(Slot { directory })
    }

    /// Removes what killed tests have left behind.
    pub(crate) fn clean(&self) -> Result<()> {
        let files = self.files();
        if files.exists() {
            fs::remove_dir_all(&files)
                .with_context(|| format!("cannot empty {}", files.display()))?;
        }
        Ok(())
    }

    fn files(&self) -> PathBuf {
        self.directory.path().join("t")
    }
}

impl Test {
    /// Runs the test, with one mutant or none.
    pub(crate) fn run(
        &self,
        mutant: Option<u32>,
        limit: Duration,
        slot: &Slot,
    ) -> Result<(Ended, Duration)> {
        let mut command = self.command(slot)?;
        if let Some(number) = mutant {
            command.env("TENURE_MUTANT", number.to_string());
        }
        let output = slot.directory.path().join("output");
        process::run(&mut command, limit, &output)
            .with_context(|| format!("cannot run {}", self.id))
    }

    fn command(&self, slot: &Slot) -> Result<Command> {
        fs::create_dir_all(slot.files())?;
        let mut command = Command::new(&self.program);
        command.args(["--exact", &self.name]).current_dir(&self.directory);
        command.env("CARGO_MANIFEST_DIR", &self.directory).env("TMPDIR", slot.files());
        // A backtrace takes longer than most tests.
        command.env("RUST_BACKTRACE", "0").env_remove("TENURE_MUTANT");
        Ok(command)
    }

    /// Runs the test without a mutant, and records its time and the mutants it reaches.
    fn measure(&mut self, limit: Duration, slot: &Slot) -> Result<Ended> {
        let notes = slot.directory.path().join("reached");
        let _ = fs::remove_file(&notes);
        let mut command = self.command(slot)?;
        command.env("TENURE_MUTANTS_REACHED", &notes);
        let output = slot.directory.path().join("output");
        let (ended, took) = process::run(&mut command, limit, &output)
            .with_context(|| format!("cannot run {}", self.id))?;
        let lines = fs::read_to_string(&notes).unwrap_or_default();
        self.reached = lines.lines().filter_map(|line| line.parse().ok()).collect();
        self.took = took;
        slot.clean()?;
        Ok(ended)
    }
}

/// All tests of these programs.
pub(crate) fn list(programs: &[Program]) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    for Program { id, path, directory } in programs {
        let mut command = Command::new(path);
        command.args(["--list", "--format", "terse"]).current_dir(directory);
        let listed = command.output().with_context(|| format!("cannot run {}", path.display()))?;
        ensure!(listed.status.success(), "{id} does not list its tests");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        tests.extend(names.map(|name| Test {
            id: format!("{id} {name}"),
            name: name.to_owned(),
            program: path.clone(),
            directory: directory.clone(),
            took: Duration::ZERO,
            reached: BTreeSet::new(),
        }));
    }
    Ok(tests)
}

/// How tests are run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// How many at a time.
    pub(crate) jobs: usize,
    /// The time limit for all tests of one mutant. A test that alone takes longer is not used.
    pub(crate) limit: Duration,
}

/// Runs all tests without a mutant, and returns those that pass. Results in `known` are reused; new
/// ones are passed to `tell`.
pub(crate) fn measure(
    tests: &[Test],
    known: &BTreeMap<String, Value>,
    Settings { jobs, limit }: Settings,
    tell: &(dyn Fn(&Value) -> Result<()> + Sync),
) -> Result<Vec<Test>> {
    let (next, count) = (AtomicUsize::new(0), tests.len());
    let passed = Mutex::new(Vec::new());
    let work = || -> Result<()> {
        let slot = Slot::new()?;
        while let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut test = test.clone();
            let ended = match known.get(&test.id) {
                Some(record) => read(record, &mut test),
                None => {
                    let mut ended = test.measure(limit, &slot)?;
                    if let Ended::Failed(_) = ended {
                        // The machine may be busy: a failure counts only if it happens twice.
                        ended = test.measure(limit, &slot)?;
                    }
                    tell(&record(&test, &ended))?;
                    ended
                }
            };
            match ended {
                Ended::Passed => lock(&passed).push(test),
                ended => say(format_args!("not used: {} of {count}: {ended:?}", test.id)),
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|it| it.join().unwrap_or_else(|thrown| std::panic::resume_unwind(thrown)))
    })?;
    let mut passed = passed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    passed.sort_by_key(|test: &Test| test.took);
    Ok(passed)
}

/// Locks a mutex, even if a panic has poisoned it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn record(test: &Test, ended: &Ended) -> Value {
    let ended = match ended {
        Ended::Passed => "passed",
        Ended::Failed(said) => said.as_str(),
        Ended::OutOfTime => "out of time",
    };
    let took = u64::try_from(test.took.as_millis()).unwrap_or(u64::MAX);
    json!({ "test": test.id, "ended": ended, "took_ms": took, "reached": test.reached })
}

fn read(record: &Value, test: &mut Test) -> Ended {
    test.took = Duration::from_millis(record["took_ms"].as_u64().unwrap_or_default());
    let reached = record["reached"].as_array().into_iter().flatten().filter_map(Value::as_u64);
    test.reached = reached.filter_map(|it| u32::try_from(it).ok()).collect();
    match record["ended"].as_str() {
        Some("passed") => Ended::Passed,
        Some("out of time") => Ended::OutOfTime,
        said => Ended::Failed(said.unwrap_or_default().to_owned()),
    }
}

/// The JSON values of a file, one on each line, by their field `key`. Of several with the same key,
/// the last counts.
pub(crate) fn records(file: &Path, key: &str) -> BTreeMap<String, Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let values = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    values.filter_map(|value| Some((value.get(key)?.as_str()?.to_owned(), value))).collect()
}
