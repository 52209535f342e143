//! Mutants of the library's Rust code: every condition, comparison, guard, statement and simple
//! function is changed, one at a time, and some test must fail.
//!
//! All mutants are compiled into one copy of the library, each behind a switch that an environment
//! variable turns on, so that thousands of them cost one build. Each test runs once to record which
//! switches it reaches; only those tests are then run against a mutant. Survivors are listed in
//! `survivors.txt`, each with a reason.
//!
//! `changes` finds the changes, `edits` puts them into the text, `compile` sorts out those that do
//! not compile, `suite` runs the tests on the unchanged library, and `hunt` runs them against each
//! mutant. This crate knows Rust; it knows nothing of jobs.

mod changes;
mod compile;
mod edits;
mod hunt;
mod mutants;
mod process;
mod suite;
mod survivors;
mod tree;
mod values;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::{Value, json};

use compile::Compiler;
use hunt::Fate;
use mutants::{Mutant, SOURCES, Source};
use suite::{Settings, Test};
use survivors::{End, Figures};
use tree::Tree;

/// Changes the library's Rust code, one place at a time; some test must notice. Tests that need PostgreSQL find it by
/// TENURE_TEST_POSTGRES: `cargo xtask mutants` starts one.
#[derive(Parser)]
struct Options {
    /// Names the mutants and does nothing else.
    #[arg(long)]
    list: bool,
    /// Builds the changed copy and its tests, and does nothing else.
    #[arg(long)]
    build: bool,
    /// Hunts only those in files whose path below the sources begins so; may be given more than once.
    #[arg(long, value_name = "PATH")]
    file: Vec<String>,
    /// Hunts only those whose name contains these words; may be given more than once.
    #[arg(long, value_name = "WORDS")]
    only: Vec<String>,
    /// Hunts every N-th, from the K-th on.
    #[arg(long, value_name = "K/N", value_parser = part)]
    part: Option<(usize, usize)>,
    /// Goes on with an earlier run: keeps what it has measured and found.
    #[arg(long)]
    resume: bool,
    /// Goes on with an earlier run, and hunts again what survived in it.
    #[arg(long)]
    survivors: bool,
    /// Takes the listed survivors as they are, and hunts only the others.
    #[arg(long)]
    unlisted: bool,
    /// How many tests run at a time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// How many seconds the tests of one mutant may take.
    #[arg(long, default_value_t = 60)]
    limit: u64,
    /// The packages whose tests are used.
    #[arg(long, value_name = "NAME", default_values = ["tenure", "tenure-drill", "tenure-cli"])]
    package: Vec<String>,
}

impl Options {
    fn settings(&self) -> Settings {
        Settings { jobs: self.jobs, limit: Duration::from_secs(self.limit) }
    }
}

fn part(text: &str) -> Result<(usize, usize), String> {
    let (k, n) = text.split_once('/').ok_or("a part is written K/N")?;
    match (k.parse(), n.parse()) {
        (Ok(k), Ok(n)) if (1..=n).contains(&k) => Ok((k, n)),
        _ => Err("a part is written K/N, with K from 1 to N".into()),
    }
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(format_args!("{error:#}"));
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<bool> {
    let root = root();
    let files = tree::files(&root)?;
    let sources = mutants::read(&root, &files)?;
    if options.list {
        for mutant in chosen(&sources, &BTreeSet::new(), options) {
            say(mutant.name);
        }
        return Ok(true);
    }
    let place = root.join("target/mutants");
    fs::create_dir_all(&place)?;
    let later = sources.iter().map(|source| format!("{SOURCES}/{}", source.file)).collect();
    let tree = Tree::copy(&root, &place.join("tree"), &files, &later)?;
    let compiler = Compiler { tree: &tree, target: &place.join("build") };
    let dropped = compiler.sort_out(&sources, &place.join("dropped.json"))?;
    let count = sources.iter().map(|source| source.mutants.len()).sum::<usize>();
    say(format_args!("{count} changes, of which {} do not compile", dropped.len()));
    let programs = compiler.build(&options.package)?;
    if options.build {
        return Ok(true);
    }
    let goes_on = options.resume || options.survivors;
    let tests = measured(&place, &sources, &dropped, &suite::list(&programs)?, goes_on, options)?;
    hunted(&place, chosen(&sources, &dropped, options), &tests, goes_on, options)
}

/// The mutants of this run.
fn chosen(sources: &[Source], dropped: &BTreeSet<u32>, options: &Options) -> Vec<Mutant> {
    let all = sources.iter().flat_map(|source| &source.mutants);
    let asked = all.filter(|it| {
        let is_in =
            options.file.is_empty() || options.file.iter().any(|at| it.file.starts_with(at));
        let has = options.only.is_empty() || options.only.iter().any(|at| it.name.contains(at));
        is_in && has && !dropped.contains(&it.number)
    });
    let (k, n) = options.part.unwrap_or((1, 1));
    asked.skip(k - 1).step_by(n).cloned().collect()
}

/// The tests that pass, with their times and the mutants they reach.
fn measured(
    place: &Path,
    sources: &[Source],
    dropped: &BTreeSet<u32>,
    tests: &[Test],
    goes_on: bool,
    options: &Options,
) -> Result<Vec<Test>> {
    // The file has the numbers of mutants, which change with the sources. So its name has a hash of
    // the mutants.
    let mut hasher = DefaultHasher::new();
    for mutant in sources.iter().flat_map(|source| &source.mutants) {
        (&mutant.name, dropped.contains(&mutant.number)).hash(&mut hasher);
    }
    let file = place.join(format!("tests-{:016x}.jsonl", hasher.finish()));
    if !goes_on {
        let _ = fs::remove_file(&file);
    }
    let known = suite::records(&file, "test");
    let log = Log::open(&file)?;
    let (all, news) = (tests.len(), tests.iter().filter(|it| !known.contains_key(&it.id)).count());
    say(format_args!("{all} tests, of which {news} are measured now"));
    suite::measure(tests, &known, options.settings(), &|record| log.write(record))
}

fn hunted(
    place: &Path,
    mutants: Vec<Mutant>,
    tests: &[Test],
    goes_on: bool,
    options: &Options,
) -> Result<bool> {
    let file = place.join("results.jsonl");
    if !goes_on {
        let _ = fs::remove_file(&file);
    }
    let (known, listed) = (suite::records(&file, "mutant"), survivors::listed()?);
    let is_trusted = |name: &str| options.unlisted && listed.contains_key(name);
    let is_done = |mutant: &Mutant| {
        if is_trusted(&mutant.name) {
            return true;
        }
        let end = known.get(&mutant.name).map(|it| &it["end"]);
        end.is_some_and(|end| !options.survivors || *end == "killed")
    };
    let names: Vec<String> = mutants.iter().map(|mutant| mutant.name.clone()).collect();
    let mut left: Vec<Mutant> = mutants.into_iter().filter(|mutant| !is_done(mutant)).collect();
    // Mutants without an earlier result come first, so that a run that is broken off adds the most.
    left.sort_by_key(|mutant| known.contains_key(&mutant.name));
    say(format_args!("{} mutants to hunt, {} known", left.len(), names.len() - left.len()));
    let log = Log::open(&file)?;
    hunt::hunt(left, tests, options.settings(), &|fate| {
        say(line(fate));
        log.write(&record(fate))
    })?;
    let known = suite::records(&file, "mutant");
    let mut figures = Figures::default();
    for name in &names {
        match known.get(name) {
            Some(record) => figures.count(name, &read(record), &listed),
            None if is_trusted(name) => figures.count(name, &End::Survived, &listed),
            None => {}
        }
    }
    for name in &figures.unlisted {
        say(format_args!("survived, and is not listed: {name}"));
    }
    for name in &figures.dead {
        say(format_args!("listed as a survivor, and was killed: {name}"));
    }
    say(&figures);
    Ok(figures.agree())
}

fn line(fate: &Fate) -> String {
    let Fate { name, end, took, tests } = fate;
    let took = took.as_secs_f64();
    match end {
        End::Killed { by, .. } => format!("killed       {took:6.1} s  {name}  by {by}"),
        End::Survived => format!("SURVIVED     {took:6.1} s  {name}  after {tests} tests"),
        End::NotReached => format!("NOT REACHED  {took:6.1} s  {name}"),
    }
}

fn record(fate: &Fate) -> Value {
    let (end, by, said) = match &fate.end {
        End::Killed { by, said } => ("killed", by.as_str(), said.as_str()),
        End::Survived => ("survived", "", ""),
        End::NotReached => ("not reached", "", ""),
    };
    let took = u64::try_from(fate.took.as_millis()).unwrap_or(u64::MAX);
    json!({ "mutant": fate.name, "end": end, "by": by, "said": said, "took_ms": took, "tests": fate.tests })
}

fn read(record: &Value) -> End {
    match record["end"].as_str() {
        Some("killed") => End::Killed { by: String::new(), said: String::new() },
        Some("not reached") => End::NotReached,
        _ => End::Survived,
    }
}

/// A file with one JSON value on each line.
struct Log(Mutex<fs::File>);

impl Log {
    fn open(file: &Path) -> Result<Log> {
        let opened = OpenOptions::new().create(true).append(true).open(file);
        let opened = opened.with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Log(Mutex::new(opened)))
    }

    fn write(&self, value: &Value) -> Result<()> {
        suite::lock(&self.0).write_all(format!("{value}\n").as_bytes())?;
        Ok(())
    }
}

/// Prints a line. A failure to print is ignored.
fn say(line: impl Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// The root of the workspace. Cargo gives it at run time; a binary started by hand uses where it
/// was built.
fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.ancestors().nth(2).map_or(package.clone(), Path::to_path_buf)
}
