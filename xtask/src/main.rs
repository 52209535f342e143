//! The project's own commands. This file is their table of contents: what each one runs, in which
//! order.
//!
//! It uses only the standard library and `tenure-cluster`, which has no other dependencies either,
//! so that a new machine starts testing within seconds. This crate knows the tree and the tools; it
//! knows nothing of jobs.

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

/// The commands of `cargo xtask`. README.md and the pages in docs may only mention these.
const COMMANDS: [(&str, &str); 7] = [
    ("quick", "format, house rules, lints, unit tests and the promises on SQLite, in minutes"),
    ("test", "everything that must hold before a change is shared"),
    ("prove", "the long proofs, in release; or some parts of them: kernel, mutants, newest"),
    ("mutants", "every change of the library's Rust code, or those that the options choose"),
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
        ["quick"] => run::steps(&root, &quick()),
        ["test"] => run::steps(&root, &test()),
        ["prove", parts @ ..] => match prove(parts) {
            Ok(steps) => run::steps(&root, &steps),
            Err(unknown) => {
                let parts = PROOFS.map(|(name, _)| name).join(", ");
                say(format_args!("no part of the proof is called `{unknown}`; there are {parts}"));
                ExitCode::from(2)
            }
        },
        ["mutants", options @ ..] => {
            let hunt = ["cargo", "run", "--quiet", "--package", "tenure-mutants", "--"];
            postgres::with_server(&[&hunt, options].concat())
        }
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

/// The daily suite. Checks that are quick and often fail come first.
fn test() -> Vec<Step> {
    vec![
        Step::cargo("formatting", Cargo::new("fmt --all --check")),
        Step::own("house rules", "cargo xtask tidy", |root, _| tidy::check(root)),
        Step::cargo(
            "lints",
            Cargo::new("clippy --workspace --all-targets --all-features -- -D warnings"),
        ),
        // The long proofs do not run every day, so `--all-targets` leaves them out; but they must
        // compile.
        Step::cargo(
            "lints of the long proofs",
            Cargo::new("clippy -p tenure-drill --all-features --test prove -- -D warnings"),
        ),
        Step::cargo("tests", tests("--workspace --all-features", "")).on(Wanted::Any),
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
            "the library on PostgreSQL alone",
            Cargo::new("check -p tenure --no-default-features --features postgres"),
        ),
        Step::cargo(
            "the command line without the drill and the bench",
            Cargo::new("check -p tenure-cli --no-default-features"),
        ),
        Step::own("documents", "cargo xtask readme", readme::check).on(Wanted::Any),
    ]
}

/// The most informative checks that take minutes, for use during work.
fn quick() -> Vec<Step> {
    vec![
        Step::cargo("formatting", Cargo::new("fmt --all --check")),
        Step::own("house rules", "cargo xtask tidy", |root, _| tidy::check(root)),
        Step::cargo("lints", Cargo::new("clippy --workspace --all-features -- -D warnings")),
        // Some of them are about PostgreSQL.
        Step::cargo("unit tests", tests("--workspace --all-features --lib --bins", ""))
            .on(Wanted::Any),
        Step::cargo("the promises on SQLite", tests(CONFORMANCE, "sqlite")),
    ]
}

/// A part of the long suite.
type Proof = fn() -> Vec<Step>;

/// All parts, in the order in which they run.
const PROOFS: [(&str, Proof); 3] = [("kernel", kernel), ("mutants", mutants), ("newest", newest)];

/// The long suite, or these parts of it. The error is the name of an unknown part.
fn prove<'a>(parts: &[&'a str]) -> Result<Vec<Step>, &'a str> {
    let is_part = |name: &str| PROOFS.iter().any(|(part, _)| *part == name);
    if let Some(unknown) = parts.iter().find(|part| !is_part(part)) {
        return Err(unknown);
    }
    let wanted = PROOFS.iter().filter(|(part, _)| parts.is_empty() || parts.contains(part));
    Ok(wanted.flat_map(|(_, steps)| steps()).collect())
}

/// Levels 1 to 4 within wide bounds.
fn kernel() -> Vec<Step> {
    let proofs = "test --release -p tenure-drill --all-features --test prove -- --nocapture";
    vec![Step::cargo("the proofs of the drill", Cargo::new(proofs).counted()).on(Wanted::Any)]
}

/// The generated mutants, and the options that choose them.
fn mutants() -> Vec<Step> {
    const HUNTS: [(&str, &str); 2] = [
        ("every change of PostgreSQL's SQL is noticed, or listed with a reason", "--of postgres"),
        ("every change of SQLite's SQL is noticed, or listed with a reason", "--of sqlite"),
    ];
    let hunt = "run --release -p tenure-cli -- drill mutants --machine";
    HUNTS.map(|(title, of)| Step::cargo(title, Cargo::new(&format!("{hunt} {of}")))).into()
}

/// What the daily suite tests on the machine's own PostgreSQL, repeated on the newest version.
fn newest() -> Vec<Step> {
    const STALLS: &str = "--test stalls --test guard --test failover --test locked_rows";
    const TESTS: [(&str, &str); 4] = [
        ("the promises on PostgreSQL 18", "--test conformance -- postgres"),
        ("the SQL API on PostgreSQL 18", "--test sql_api"),
        ("stalls, deaths, failovers and locks on PostgreSQL 18", STALLS),
        ("what a claim costs on PostgreSQL 18", "--test cost_postgres -- --nocapture"),
    ];
    let call = |test| Cargo::new(&format!("test --release -p tenure-drill --all-features {test}"));
    TESTS.map(|(title, test)| Step::cargo(title, call(test).counted()).on(Wanted::Major(18))).into()
}

/// The suite that every engine passes.
const CONFORMANCE: &str = "-p tenure-drill --all-features --test conformance";

/// Tests of these packages and targets whose names contain these words, by nextest if it is
/// installed.
fn tests(targets: &str, words: &str) -> Cargo {
    let command = if Cargo::new("nextest --version").works() {
        format!("nextest run {targets} --no-fail-fast {words}")
    } else if targets.contains("--lib") || targets.contains("--test") {
        format!("test {targets} --no-fail-fast -- {words}")
    } else {
        // All but those in documentation, which nextest does not run either.
        format!("test {targets} --no-fail-fast --lib --bins --tests --examples")
    };
    Cargo::new(&command).counted()
}

fn usage() {
    say("Usage: cargo xtask COMMAND\n");
    for (name, about) in COMMANDS {
        say(format_args!("  {name:<8} {about}"));
    }
}

/// The root of the repository. Cargo gives it at run time; a binary started by hand uses where it
/// was built.
fn root() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    package.parent().map_or(package.clone(), Path::to_path_buf)
}
