//! `tenure bench`: what this machine does with Tenure, measured on stores that are made for it and
//! removed after it.
//!
//! What is measured, and how, is in the crate `tenure-bench`. This file decides where it runs and
//! which processes its workers are (this same program, with a hidden argument), and shows the
//! report.

mod bars;
mod peers;
mod show;

use std::fs::{self, OpenOptions};
use std::future::poll_fn;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Context, Result};
use tenure_bench::{Choice, Ground, On, Plan, Program, Progress};

use crate::args::BadInput;
use crate::commands::worker::helper::this_program;
use crate::commands::worker::runtime;
use crate::target::Target;
use crate::{Answer, Session};

/// Measure Tenure on this machine, beside what the machine can do at all
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP, args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    /// On a throw-away PostgreSQL of this machine, instead of SQLite
    #[arg(long)]
    postgres: bool,

    /// Only these measures; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// List the measures, and measure nothing
    #[arg(long)]
    list: bool,

    #[command(flatten)]
    how: How,
}

/// What every bench can be told.
#[derive(clap::Args)]
struct How {
    /// How often everything is measured; the median counts [default: 3, with --quick 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,

    /// Small sizes, to see that it works; the figures mean nothing
    #[arg(long)]
    quick: bool,

    /// Also draw the figures into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl How {
    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.quick { 1 } else { 3 })
    }

    /// A file for the picture, if there is to be one.
    fn drawing(&self) -> Result<Option<Drawing<'_>>> {
        self.svg.as_deref().map(Drawing::begin).transpose()
    }
}

#[derive(clap::Subcommand)]
enum Command {
    Peers(peers::Args),
}

const AFTER_HELP: &str = "\
Without --db it measures SQLite in the temporary directory (TMPDIR); --db FILE measures the disk of
a file that does not exist yet, and --db postgres://… a server, where it makes a database of its own.
It removes all of them. Everything takes ten minutes on SQLite and half an hour on PostgreSQL, and
other work on the machine makes every figure worse. Exit code 1 means that a job did not run exactly once.";

/// The hidden argument that makes this program a worker process of a bench.
pub(crate) const WORK: &str = "__bench";

/// How long the end of a run waits for a thread that is blocked in the database driver, as after
/// Ctrl-C.
const PATIENCE: Duration = Duration::from_secs(2);

/// Becomes a worker process. It refuses every store but a bench's.
pub(crate) fn work(words: &[String], session: &Session) -> Result<Answer> {
    let url = session.url()?;
    if !tenure_bench::is_of_a_bench(&url) {
        let why = format!("{WORK} works on the stores of a bench alone; run: tenure bench");
        return Err(BadInput(why).into());
    }
    runtime()?.block_on(tenure_bench::work(&url, words))?;
    Ok(Answer::Yes)
}

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    if let Some(Command::Peers(args)) = &args.command {
        return peers::run(args, session);
    }
    if args.list {
        return show::list(&mut session.out);
    }
    let on = place(args, session)?;
    let path = this_program().context("cannot find this program to start a worker")?;
    let plan = Plan {
        choice: if args.only.is_empty() { Choice::All } else { Choice::Only(args.only.clone()) },
        rounds: args.how.rounds(),
        quick: args.how.quick,
        program: Program { path, word: WORK },
    };
    plan.choice.on(on.engine()).map_err(BadInput)?;
    let drawing = args.how.drawing()?;
    if matches!(on, On::ThrowAway) {
        session.out.say("starting a throw-away PostgreSQL")?;
    }
    let measured = until_stopped(
        || Ground::prepare(&on).map(Arc::new),
        async |ground, progress| tenure_bench::run(&plan, ground, progress).await,
        |ground| ground.clear(),
    )?;
    let Some(report) = measured else {
        return Ok(Answer::No("interrupted; what was made for the bench is removed".to_owned()));
    };
    show::report(&report, &mut session.out)?;
    if let Some(drawing) = drawing {
        drawing.end(&tenure_bench::draw(&report))?;
    }
    Ok(Answer::Yes)
}

/// Where to measure.
fn place(args: &Args, session: &Session) -> Result<On> {
    if args.postgres {
        return Ok(On::ThrowAway);
    }
    if session.db.is_none() {
        return Ok(On::Temporary);
    }
    match session.target()? {
        Target::File(file) => Ok(On::File(file)),
        Target::Server(_) => Ok(On::Server(session.url()?)),
    }
}

/// Prepares a place, measures there, and clears it. `None`: Ctrl-C or TERM came first.
fn until_stopped<P, R>(
    prepare: impl FnOnce() -> Result<P>,
    measure: impl AsyncFnOnce(&P, &Arc<Progress>) -> Result<R>,
    clear: impl FnOnce(&P),
) -> Result<Option<R>> {
    let runtime = runtime()?;
    let mut stop = pin!(tenure::shutdown_signal());
    // The first poll installs the handlers of the signals. From here on, Ctrl-C or TERM cannot end
    // this process before it has cleaned up.
    let listens = poll_fn(|task| Poll::Ready(stop.as_mut().poll(task)));
    if runtime.block_on(listens).is_ready() {
        return Ok(None);
    }
    let place = prepare()?;
    let progress = Arc::new(Progress::default());
    let measured = runtime.block_on(async {
        tokio::select! {
            biased;
            () = &mut stop => Ok(None),
            report = measure(&place, &progress) => report.map(Some),
            () = bars::draw(&progress) => Ok(None),
        }
    });
    runtime.shutdown_timeout(PATIENCE);
    clear(&place);
    measured
}

/// A file for the picture. It is opened before the run, because half an hour later is too late to
/// learn that it cannot be written.
struct Drawing<'a> {
    file: &'a Path,
    is_new: bool,
    is_drawn: bool,
}

impl Drawing<'_> {
    fn begin(file: &Path) -> Result<Drawing<'_>> {
        let is_new = !file.exists();
        let opened = OpenOptions::new().create(true).append(true).open(file);
        if let Err(cause) = opened {
            let why =
                format!("--svg: {}: {cause}; name a file that can be written", file.display());
            return Err(BadInput(why).into());
        }
        Ok(Drawing { file, is_new, is_drawn: false })
    }

    fn end(mut self, svg: &str) -> Result<()> {
        fs::write(self.file, svg).with_context(|| format!("write {}", self.file.display()))?;
        self.is_drawn = true;
        Ok(())
    }
}

impl Drop for Drawing<'_> {
    fn drop(&mut self) {
        if self.is_new && !self.is_drawn {
            // The file is empty, and does no harm if it cannot be removed.
            let _ = fs::remove_file(self.file);
        }
    }
}
