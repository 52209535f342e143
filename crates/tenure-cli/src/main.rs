//! The command line of Tenure. This file is its table of contents: the commands, the code that runs
//! each, and the exit codes.
//!
//! Answers go to stdout, messages go to stderr. The commands know nothing of SQL or files: they use
//! a store through the library's port, and what depends on the engine is in [`target`].

mod args;
mod commands;
mod log;
mod output;
mod retry;
mod target;
mod time;

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use tenure::engine::job::Invalid;
use tenure::engine::store::{Error, Store};

#[cfg(feature = "bench")]
use self::commands::bench;
#[cfg(feature = "drill")]
use self::commands::drill;
use self::commands::worker::helper;
use self::commands::{
    completions, dead, dev, doctor, effects, enqueue, jobs, migrate, producer, queues, stats,
    worker,
};
use self::log::{Format, Least, Log};
use self::output::Output;
use self::target::Target;

/// Background jobs that survive crashes.
#[derive(Parser)]
#[command(name = "tenure", version, arg_required_else_help = true, after_help = AFTER_HELP)]
struct Cli {
    /// The store: a file, sqlite:FILE or postgres://… [default: tenure.db]
    #[arg(long, global = true, env = "TENURE_DB", hide_env_values = true)]
    #[arg(value_name = "URL", help_heading = EVERYWHERE)]
    db: Option<OsString>,

    /// Answer with one JSON document, for programs
    #[arg(long, global = true, help_heading = EVERYWHERE)]
    json: bool,

    /// How events are told on stderr
    #[arg(long, global = true, value_name = "FORMAT", help_heading = EVERYWHERE)]
    #[arg(value_enum, default_value_t = Format::Text)]
    log: Format,

    /// From which level on they are told
    #[arg(long, global = true, value_name = "LEVEL", help_heading = EVERYWHERE)]
    #[arg(value_enum, default_value_t = Least::Info)]
    log_level: Least,

    #[command(subcommand)]
    command: Command,
}

const EVERYWHERE: &str = "Options of every command";

const AFTER_HELP: &str = "\
A store in a file is created on first use, one in PostgreSQL by `tenure migrate up`.
Exit codes: 0 done; 1 no: not found, a conflict, not possible; 2 wrong usage or input; 3 the store
cannot be reached or used. Under --json, ids and tokens are strings, and times are RFC 3339.

Start here:
  tenure dev
  tenure enqueue hello '{\"name\":\"you\"}'
  tenure worker -- cat
  tenure stats";

#[derive(Subcommand)]
enum Command {
    Dev(dev::Args),
    Enqueue(enqueue::Args),
    Worker(worker::Args),
    Producer(producer::Args),
    Stats(stats::Args),
    #[command(subcommand)]
    Jobs(jobs::Command),
    #[command(subcommand)]
    Dead(dead::Command),
    #[command(subcommand)]
    Effects(effects::Command),
    #[command(subcommand)]
    Queues(queues::Command),
    #[command(subcommand)]
    Migrate(migrate::Command),
    Doctor(doctor::Args),
    #[cfg(feature = "drill")]
    #[command(subcommand)]
    Drill(drill::Command),
    #[cfg(feature = "bench")]
    Bench(bench::Args),
    Completions(completions::Args),
    /// A worker of `tenure dev`
    #[command(name = dev::WORK, hide = true)]
    DevWorker,
    /// A process of a story of `tenure drill`
    #[cfg(feature = "drill")]
    #[command(name = drill::stories::WORK, hide = true)]
    DrillProcess {
        words: Vec<String>,
    },
    /// A worker process of `tenure bench`
    #[cfg(feature = "bench")]
    #[command(name = bench::WORK, hide = true)]
    BenchProcess {
        words: Vec<String>,
    },
}

/// What a command needs: where the store is, and where the answer goes.
struct Session {
    db: Option<OsString>,
    out: Output,
    log: Log,
}

impl Session {
    /// Where the store is. Parsed late, so that a command that needs no store is not refused
    /// because of it.
    fn target(&self) -> Result<Target> {
        Target::parse(self.db.as_deref())
    }

    /// The address of the store as text, for commands that open the store more than once or pass
    /// the address to another process.
    fn url(&self) -> Result<String> {
        let url = match self.target()? {
            // An absolute path, because a job's command may run in another directory.
            Target::File(file) => std::path::absolute(file)?.into_os_string(),
            Target::Server(_) => self.db.clone().unwrap_or_default(),
        };
        let not_text = |_| args::BadInput("--db: the name of the file is not UTF-8".into());
        Ok(url.into_string().map_err(not_text)?)
    }

    /// Opens the store. Commands check their input first, so that a mistake does not even create a
    /// file.
    fn open(&self) -> Result<Box<dyn Store>> {
        self.target()?.open()
    }
}

/// How a command ended that did its work. Unexpected problems are errors instead.
enum Answer {
    /// Done.
    Yes,
    /// Not found, not possible, a conflict: why, and what to do next.
    No(String),
    /// Also a no, but the answer itself says why.
    NoAsSaid,
}

fn main() -> ExitCode {
    // The helper of a worker is this program too, but has no command line for people.
    if let Some(code) = helper::play() {
        return code;
    }
    let outcome = Cli::try_parse().map_err(anyhow::Error::new).and_then(run);
    explain(&outcome);
    ExitCode::from(exit_code(&outcome))
}

fn run(cli: Cli) -> Result<Answer> {
    let log = Log { format: cli.log, least: cli.log_level };
    let mut session = Session { db: cli.db, out: Output::new(cli.json), log };
    let answer = match cli.command {
        Command::Dev(args) => dev::run(&args, &mut session),
        Command::DevWorker => dev::work(&session),
        #[cfg(feature = "drill")]
        Command::DrillProcess { words } => drill::stories::work(&words, &session),
        Command::Enqueue(args) => enqueue::run(&args, &mut session),
        Command::Worker(args) => worker::run(&args, &mut session),
        Command::Producer(args) => producer::run(&args, &mut session),
        Command::Stats(args) => stats::run(&args, &mut session),
        Command::Jobs(command) => jobs::run(&command, &mut session),
        Command::Dead(command) => dead::run(&command, &mut session),
        Command::Effects(command) => effects::run(&command, &mut session),
        Command::Queues(command) => queues::run(&command, &mut session),
        Command::Migrate(command) => migrate::run(&command, &mut session),
        Command::Doctor(args) => doctor::run(&args, &mut session),
        #[cfg(feature = "drill")]
        Command::Drill(command) => drill::run(&command, &mut session),
        #[cfg(feature = "bench")]
        Command::Bench(args) => bench::run(&args, &mut session),
        #[cfg(feature = "bench")]
        Command::BenchProcess { words } => bench::work(&words, &session),
        Command::Completions(args) => completions::run(&args, &mut session),
    };
    // What was answered before a failure is still an answer: it is written in either case.
    let written = session.out.flush();
    let answer = answer?;
    written?;
    Ok(answer)
}

/// The only place that picks the exit code.
fn exit_code(outcome: &Result<Answer>) -> u8 {
    const DONE: u8 = 0;
    const NO: u8 = 1;
    const USAGE: u8 = 2;
    const STORE: u8 = 3;
    let error = match outcome {
        Ok(Answer::Yes) => return DONE,
        Ok(Answer::No(_) | Answer::NoAsSaid) => return NO,
        Err(error) => error,
    };
    if let Some(clap) = error.downcast_ref::<clap::Error>() {
        return if clap.use_stderr() { USAGE } else { DONE };
    }
    match error.downcast_ref::<Error>() {
        Some(error) if error.is_invalid() => USAGE,
        Some(_) => STORE,
        None if error.is::<Invalid>() || error.is::<args::BadInput>() => USAGE,
        None => NO,
    }
}

/// Prints why it was not done.
fn explain(outcome: &Result<Answer>) {
    match outcome {
        Ok(Answer::Yes | Answer::NoAsSaid) => {}
        Ok(Answer::No(why)) => output::say(&format!("error: {why}")),
        Err(error) => match error.downcast_ref::<clap::Error>() {
            Some(clap) => output::usage(clap),
            None => output::say(&format!("error: {}", describe(error))),
        },
    }
}

/// The error and its causes. An error of the store is complete by itself, and ends with the next
/// step.
fn describe(error: &anyhow::Error) -> String {
    let mut layers = Vec::new();
    for cause in error.chain() {
        layers.push(cause.to_string());
        if cause.is::<Error>() {
            break;
        }
    }
    layers.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn a_request_that_the_store_finds_invalid_is_a_matter_of_usage() {
        assert_eq!(exit_code(&Err(Error::from(Invalid::Batch { size: 1_001 }).into())), 2);
        assert_eq!(exit_code(&Err(Invalid::Batch { size: 1_001 }.into())), 2);
    }

    #[test]
    fn an_error_of_the_store_is_told_once_and_keeps_what_was_done_before_it() {
        let cause = Error::Engine { doing: "enqueue", source: "disk on fire".into() };
        let error = anyhow::Error::new(cause).context("3 jobs were stored before");
        assert_eq!(
            describe(&error),
            "3 jobs were stored before: could not enqueue: disk on fire; `tenure doctor` looks for the cause"
        );
        assert_eq!(exit_code(&Err(error)), 3);
    }
}
