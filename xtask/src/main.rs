//! The project's own commands. This file is their table of contents: what each one runs, in which order.
//!
//! Only the standard library is used here, and a crate of ours that uses nothing else either, so that a fresh
//! machine starts testing within seconds. This crate knows the tree and the tools; it knows nothing of jobs.

mod cargo;
mod markdown;
mod postgres;
mod readme;
mod run;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cargo::Cargo;
use postgres::Wanted;
use run::{Step, say};

/// What `cargo xtask` answers to. The README may only speak of these.
const COMMANDS: [(&str, &str); 5] = [
    ("test", "everything that must hold before a change is shared"),
    ("prove", "the long proofs, in release"),
    ("tidy", "the house rules alone"),
    ("readme", "the console blocks of README.md and docs/*.md, or of the files named"),
    (
        "postgres",
        "a command that finds a throw-away PostgreSQL; without one, its address until Enter",
    ),
];

fn main() -> ExitCode {
    let root = root();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["test"] => run::steps(&root, &test()),
        ["prove"] => run::steps(&root, &prove(&root)),
        ["tidy"] => tidy::check(&root).exit_code(),
        ["readme"] => readme::check(&root, None).exit_code(),
        ["readme", files @ ..] => readme::check_files(&root, None, files).exit_code(),
        ["postgres", words @ ..] => postgres::with_server(words),
        [] | ["help" | "-h" | "--help"] => {
            usage();
            ExitCode::SUCCESS
        }
        unknown => {
            say(format_args!("cargo xtask cannot do `{}`\n", unknown.join(" ")));
            usage();
            ExitCode::from(2)
        }
    }
}

/// The daily suite. What is quick and often wrong comes first.
fn test() -> Vec<Step> {
    vec![
        Step::cargo("formatting", Cargo::new("fmt --all --check")),
        Step::own("house rules", "cargo xtask tidy", |root, _| tidy::check(root)),
        Step::cargo(
            "lints",
            Cargo::new("clippy --workspace --all-targets --all-features -- -D warnings"),
        ),
        // Not run every day, and so not among all targets; but it must not rot.
        Step::cargo(
            "lints of the long proofs",
            Cargo::new("clippy -p tenure-drill --all-features --test prove -- -D warnings"),
        ),
        Step::cargo("tests", suite("--workspace --all-features")).on(Wanted::Any),
        // nextest does not run these.
        Step::cargo(
            "documentation tests",
            Cargo::new("test --workspace --all-features --no-fail-fast --doc").counted(),
        )
        .on(Wanted::Any),
        Step::cargo(
            "documentation",
            Cargo::new("doc --workspace --no-deps --all-features")
                .env("RUSTDOCFLAGS", "-Dwarnings"),
        ),
        Step::cargo(
            "the library without features",
            Cargo::new("check -p tenure --no-default-features"),
        ),
        Step::cargo(
            "the command line without the drill",
            Cargo::new("check -p tenure-cli --no-default-features"),
        ),
        Step::own("documents", "cargo xtask readme", readme::check).on(Wanted::Any),
    ]
}

/// The long suite. A further proof is a further line.
fn prove(root: &Path) -> Vec<Step> {
    if !root.join("crates/tenure-drill/tests/prove.rs").exists() {
        say(
            "crates/tenure-drill/tests/prove.rs is not there yet: running the tests in release instead",
        );
        return vec![
            Step::cargo("tests in release", suite("--release --workspace --all-features"))
                .on(Wanted::Any),
        ];
    }
    let mut steps = vec![
        Step::cargo(
            "the proofs of the drill",
            Cargo::new("test --release -p tenure-drill --all-features --test prove -- --nocapture")
                .counted(),
        )
        .on(Wanted::Any),
    ];
    steps.extend(MADE_BY_MACHINE.map(|(title, of)| {
        let hunt = "run --release -p tenure-cli -- drill mutants --machine";
        Step::cargo(title, Cargo::new(&format!("{hunt} {of}")))
    }));
    steps.extend(on_the_newest(root));
    steps
}

/// The mutants that a machine makes: the parts whose survivors are all listed, with the options that choose them. The
/// rest of PostgreSQL's takes hours.
const MADE_BY_MACHINE: [(&str, &str); 2] = [
    ("every lock that PostgreSQL's SQL lacks is noticed", "--of postgres --only lock:"),
    ("every change of SQLite's SQL is noticed, or listed with a reason", "--of sqlite"),
];

/// What the daily suite shows on the machine's PostgreSQL, shown on the newest as well: each a test, and how it
/// is called.
const ON_THE_NEWEST: [(&str, &str, &str); 3] = [
    (
        "the promises on PostgreSQL 18",
        "crates/tenure-drill/tests/conformance.rs",
        "test --release -p tenure-drill --all-features --test conformance -- postgres",
    ),
    (
        "the SQL API on PostgreSQL 18",
        "crates/tenure-drill/tests/sql_api/main.rs",
        "test --release -p tenure-drill --all-features --test sql_api",
    ),
    (
        "what a claim costs on PostgreSQL 18",
        "crates/tenure-drill/tests/cost_postgres.rs",
        "test --release -p tenure-drill --all-features --test cost_postgres -- --nocapture",
    ),
];

fn on_the_newest(root: &Path) -> impl Iterator<Item = Step> {
    let there = ON_THE_NEWEST.iter().filter(|(_, file, _)| root.join(file).exists());
    there.map(|(title, _, call)| {
        Step::cargo(title, Cargo::new(call).counted()).on(Wanted::Major(18))
    })
}

/// All tests but those in documentation, by nextest where it is installed.
fn suite(scope: &str) -> Cargo {
    let command = if Cargo::new("nextest --version").works() {
        format!("nextest run {scope} --no-fail-fast")
    } else {
        format!("test {scope} --no-fail-fast --lib --bins --tests --examples")
    };
    Cargo::new(&command).counted()
}

fn usage() {
    say("Usage: cargo xtask COMMAND\n");
    for (name, about) in COMMANDS {
        say(format_args!("  {name:<8} {about}"));
    }
}

/// The root of the repository. Cargo tells it at run time; a binary started by hand remembers where it was built.
fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().map_or(package.clone(), Path::to_path_buf)
}
