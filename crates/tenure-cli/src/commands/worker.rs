//! `tenure worker`: runs a command for each job, so that any language is a worker.
//!
//! Claiming, leases and settling are the library's. This module runs a [`command`] for each job and
//! keeps what is [`captured`] of its output. The commands are started by a [`helper`], a process
//! that kills them when the worker is gone. The [`keeper`] starts the helper, a [`lifeline`] for
//! each command connects it with the worker, and [`messages`] are what they send each other.

pub(crate) mod captured;
pub(crate) mod command;
pub(crate) mod helper;
pub(crate) mod keeper;
pub(crate) mod lifeline;
pub(crate) mod messages;

use std::ffi::OsString;
use std::sync::{Arc, Once};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tenure::engine::job::{BATCH_LIMIT, Invalid, JobId, Json, Limits, Name};
use tenure::{Context, Error, Exit, Fault, Running, Tenure, Worker};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use self::captured::ResultFrom;
use self::command::{Assignment, Finished, Program};
use crate::commands::queues;
use crate::log::Format;
use crate::output::say;
use crate::time::{duration, positive_duration};
use crate::{Answer, Session, args};

/// Run a command for each job, in any language
#[derive(clap::Args)]
#[command(after_help = "\
The command gets the job's args on stdin, and in its environment TENURE_JOB_ID, TENURE_TOKEN,
TENURE_ATTEMPT, TENURE_KIND, TENURE_QUEUE, TENURE_TENANT and TENURE_KEY, a key for outside systems
that is the same for every attempt. Exit code 0: done, and what it wrote to stdout is the result if
it is JSON; a command that also logs there has its result in the last line (--result last-line).
65: never try again. Anything else: try again; the end of stderr is the error.
Ctrl-C or SIGTERM: claim nothing more, let jobs finish for the grace, then give back the rest.
A second one gives them back at once.

Examples:
  tenure worker -- ./handle.sh
  tenure worker --queue mail --kind send_email --concurrency 8 -- python3 send.py
  tenure worker --drain -- sh -c 'jq .width'")]
pub(crate) struct Args {
    /// Work from this queue; may be repeated [default: default]
    #[arg(long = "queue", value_name = "NAME", value_parser = args::queue)]
    queues: Vec<Name>,

    /// Only jobs of this kind; may be repeated [default: all]
    #[arg(long = "kind", value_name = "NAME", value_parser = args::kind)]
    kinds: Vec<Name>,

    /// How many jobs at a time
    #[arg(long, value_name = "N", default_value_t = 4)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=BATCH_LIMIT as i64))]
    concurrency: u16,

    /// For how long a job is taken; it is renewed for as long as this worker lives
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = lease)]
    lease: Duration,

    /// How long jobs may go on once the worker is to end
    #[arg(long, value_name = "DURATION", default_value = "25s", value_parser = duration)]
    grace: Duration,

    /// How long a command that is to stop has between TERM and KILL
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    patience: Duration,

    /// Which part of a command's stdout is the job's result, if it is JSON
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = ResultFrom::Stdout)]
    result: ResultFrom,

    /// How lines of a command's stderr are shown [default: prefix, or plain with --concurrency 1]
    #[arg(long, value_name = "HOW", value_enum)]
    stderr: Option<StderrLines>,

    /// End when nothing is due and nothing runs
    #[arg(long)]
    drain: bool,

    /// What to run for each job
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Checked before the store is opened.
fn lease(text: &str) -> Result<Duration, String> {
    let length = positive_duration(text)?;
    Worker::check_lease(length).map_err(|invalid| invalid.to_string())?;
    Ok(length)
}

/// How lines of commands' stderr are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum StderrLines {
    /// With the job in front, such as [job 12]
    Prefix,
    /// As the command wrote them
    Plain,
}

impl StderrLines {
    /// Lines of several commands are mixed, and need a prefix to show their job. Lines of one
    /// command at a time belong to the events around them, so they stay as they are.
    fn for_concurrency(concurrency: u16) -> StderrLines {
        if concurrency > 1 { StderrLines::Prefix } else { StderrLines::Plain }
    }
}

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    let program = Program::find(args.command.clone())?.patience(args.patience).result(args.result);
    let (db, log) = (session.url()?, session.log);
    let runner = Arc::new(Runner {
        program,
        db,
        result: args.result,
        stderr: args.stderr.unwrap_or_else(|| StderrLines::for_concurrency(args.concurrency)),
        log: log.format,
        warning: Once::new(),
    });
    let (exit, failure) = runtime()?.block_on(async {
        let tenure = Tenure::options().open(&runner.db).await?;
        let mut worker = Worker::new(&tenure)
            .concurrency(args.concurrency.into())
            .lease(args.lease)
            .grace(args.grace)
            .handle_any_patiently(move |job, cx| {
                let runner = Arc::clone(&runner);
                async move { runner.attempt(&job.args, &cx).await }
            });
        let observer = log.observer();
        worker = worker.observe(move |event| observer.tell(event));
        if !args.queues.is_empty() {
            worker = worker.queues(args.queues.iter().map(Name::as_str));
        }
        if !args.kinds.is_empty() {
            worker = worker.kinds(args.kinds.iter().map(Name::as_str));
        }
        if args.drain {
            worker = worker.drain();
        }
        // Registered before the first job is claimed, so that no signal is missed.
        let signals = Signals::new()?;
        let mut running = worker.start().await?;
        let exit = signals.obeyed_by(&mut running, args.grace, log.format).await;
        if exit == Exit::Drained && log.format == Format::Text {
            point_out_paused(&tenure, &args.queues).await;
        }
        anyhow::Ok((exit, running.failure()))
    })?;
    if let Some(forbidden) = failure.filter(Error::is_forbidden) {
        return Err(forbidden.into());
    }
    Ok(match exit {
        Exit::Drained | Exit::Shutdown | Exit::Stale => Answer::Yes,
        Exit::Error => Answer::No(
            "the worker ended without giving everything back; other workers take it over".into(),
        ),
    })
}

/// Reports which due jobs a worker has left because their queue is paused. A role that may work but
/// not read gets no report; its work is done nevertheless.
async fn point_out_paused(tenure: &Tenure, queues: &[Name]) {
    let default = [Name::default_queue()];
    let queues = if queues.is_empty() { &default } else { queues };
    let Ok(settings) = tenure.with_store(|store| store.queues()).await else { return };
    let mut paused = queues::paused(&settings);
    paused.retain(|queue, _| queues.contains(queue));
    if paused.is_empty() {
        return;
    }
    let Ok(overview) = tenure.with_store(|store| store.overview()).await else { return };
    for queue in paused.keys() {
        let lines = overview.lines.iter().filter(|line| line.queue == *queue);
        let left = match lines.map(|line| line.ready).sum() {
            0 => continue,
            1 => "1 due job is".to_owned(),
            n => format!("{n} due jobs are"),
        };
        say(&format!(
            "queue {queue} is paused, and {left} left in it; resume it with: tenure queues \
             resume {queue}"
        ));
    }
}

/// What a worker runs for its jobs, and how it reports.
struct Runner {
    program: Program,
    /// The address of the store, for a command that enqueues more jobs.
    db: String,
    result: ResultFrom,
    stderr: StderrLines,
    log: Format,
    /// Stdout that is not JSON is reported once: such a command writes it for every job.
    warning: Once,
}

impl Runner {
    /// Runs the command for one attempt.
    async fn attempt(&self, args: &Json, cx: &Context) -> Result<Option<Json>, Fault> {
        let assignment = Assignment {
            args: args.as_str().to_owned(),
            environment: vec![
                ("TENURE_JOB_ID", cx.job().to_string()),
                ("TENURE_TOKEN", cx.token().to_string()),
                ("TENURE_ATTEMPT", cx.attempt().to_string()),
                ("TENURE_KIND", cx.kind().to_string()),
                ("TENURE_QUEUE", cx.queue().to_string()),
                ("TENURE_TENANT", cx.tenant().to_string()),
                ("TENURE_KEY", cx.effect_key("command")?),
                ("TENURE_DB", self.db.clone()),
            ],
            result_limit: Limits::default().result,
        };
        match self.program.run(&assignment, self.shows(cx.job()), cx.cancelled()).await {
            Finished::Done { result } => Ok(result),
            Finished::NotJson => {
                self.point_out_lost_output(cx.job());
                Ok(None)
            }
            Finished::TooLarge { size, limit } => {
                let large = Invalid::TooLarge { field: "result", size, limit };
                Err(Fault::fatal(format!("it ran, but {large}")))
            }
            Finished::Fatal { error } => Err(Fault::fatal(error)),
            Finished::Failed { error } => Err(Fault::retry(error)),
        }
    }

    /// A function that shows a line of a command's stderr.
    fn shows(&self, job: JobId) -> impl FnMut(&str) + Send + 'static {
        let (log, stderr) = (self.log, self.stderr);
        move |line| match (log, stderr) {
            // Readers parse every line as an event.
            (Format::Json, _) => {}
            (Format::Text, StderrLines::Plain) => say(line),
            (Format::Text, StderrLines::Prefix) => say(format!("[job {job}] {line}").trim_end()),
        }
    }

    fn point_out_lost_output(&self, job: JobId) {
        // A reader that asked for JSON parses every line.
        if self.log == Format::Json {
            return;
        }
        let (wrote, next) = match self.result {
            ResultFrom::Stdout => (
                "what its command wrote to stdout",
                "write one JSON value and log to stderr, or use --result last-line",
            ),
            ResultFrom::LastLine => (
                "the last line that its command wrote to stdout",
                "write the result last, as JSON on one line",
            ),
        };
        self.warning.call_once(|| {
            say(&format!(
                "warning: job {job} has no result, because {wrote} is not JSON; {next} (this is \
                 said once, and holds for other jobs too)"
            ));
        });
    }
}

/// The runtime of commands that run jobs.
pub(crate) fn runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().thread_name("tenure").build().context("cannot start the runtime")
}

/// The signals by which people and service managers ask a process to end.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    /// The first signal lets jobs finish, the second gives them back at once.
    async fn obeyed_by(mut self, worker: &mut Running, grace: Duration, log: Format) -> Exit {
        tokio::select! {
            biased;
            exit = worker.ended() => return exit,
            () = self.next() => worker.finish(),
        }
        // A reader that asked for JSON parses every line.
        if log == Format::Text {
            say("stopping: jobs may finish; once more to give them back at once");
        }
        tokio::select! {
            biased;
            exit = worker.ended() => return exit,
            () = self.next() => {}
            () = tokio::time::sleep(grace) => {}
        }
        worker.release();
        worker.ended().await
    }
}
