//! `tenure enqueue`: how jobs get in from a shell, one or a million.
//!
//! Everything that can be checked is checked before the store is even opened; lines from a pipe are
//! read only once, and checked as they come. Many jobs are sent in batches of [`BATCH_LIMIT`], each
//! stored as a whole or not at all.

mod delivery;
mod source;

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tenure::engine::job::{
    BATCH_LIMIT, Invalid, Json, Key, Limits, Name, NewJob, RetryPolicy, Tenant,
};
use tenure::engine::store::{Enqueued, Verdict};
use tenure::{Timestamp, json};

use self::delivery::Delivery;
pub(crate) use self::source::all_of_stdin;
use self::source::{Lines, Source};
use crate::args::{self, BadInput, moment};
use crate::output::say;
use crate::time::{duration, positive_duration};
use crate::{Answer, Session, retry};

/// Enqueue a job, and print its id
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure enqueue send_email '{\"to\":\"a@b.c\"}' --queue mail --key welcome-7
  tenure enqueue report --at 2030-01-31T08:00:00Z --max-attempts 3
  tenure enqueue sync --retry list:1s,1m,1h
  cat args.jsonl | tenure enqueue resize --file -")]
pub(crate) struct Args {
    /// The kind: which handler runs it
    #[arg(value_parser = args::kind)]
    kind: Name,

    /// What the handler gets, as JSON; - reads it from stdin
    #[arg(value_name = "ARGS", default_value = "{}", allow_negative_numbers = true)]
    args: String,

    /// A job for each line of this file, which holds its args; - reads stdin
    #[arg(long, value_name = "FILE", conflicts_with_all = ["args", "key", "count"])]
    file: Option<PathBuf>,

    /// The queue
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = args::queue)]
    queue: Name,

    /// Whose job it is
    #[arg(long, value_name = "NAME", value_parser = args::tenant)]
    tenant: Option<Tenant>,

    /// Enqueue at most once under this key, for 24 hours; a second time prints the first job's id
    #[arg(long, value_parser = args::key)]
    key: Option<Key>,

    /// Lower numbers run first
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    priority: i16,

    /// Due after this long, such as 500ms, 5s, 10m, 2h or 7d
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    delay: Option<Duration>,

    /// Due at this time, such as 2030-01-31T08:00:00Z
    #[arg(long, value_name = "TIME", value_parser = moment, allow_hyphen_values = true)]
    #[arg(conflicts_with = "delay")]
    at: Option<Timestamp>,

    /// How often it may be tried
    #[arg(long, value_name = "N", default_value_t = NewJob::MAX_ATTEMPTS)]
    max_attempts: NonZeroU16,

    /// How long to wait between tries: fixed:5s, list:1s,5s,1m (the last repeats), or
    /// exponential:1s..5m (doubling up to the longest) [default: exponential:1s..5m]
    #[arg(long, value_name = "POLICY", value_parser = retry::policy)]
    retry: Option<RetryPolicy>,

    /// How many times its worker may vanish before it is buried
    #[arg(long, value_name = "N", default_value_t = NewJob::MAX_CRASHES)]
    max_crashes: NonZeroU16,

    /// How long one attempt may take, such as 10m
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    #[arg(allow_hyphen_values = true)]
    max_runtime: Option<Duration>,

    /// A word to find it by; may be repeated
    #[arg(long = "tag", value_name = "NAME", value_parser = args::tag)]
    tags: Vec<Name>,

    /// Enqueue so many copies
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    #[arg(conflicts_with = "key")]
    count: Option<u64>,
}

impl Args {
    /// The job that the arguments describe, with these args.
    fn job(&self, args: Json) -> Result<NewJob, Invalid> {
        let mut job = NewJob::new(self.kind.clone(), args)
            .queue(self.queue.clone())
            .tenant(self.tenant.clone().unwrap_or_default())
            .priority(self.priority)
            .max_attempts(self.max_attempts)
            .max_crashes(self.max_crashes)
            .retry(self.retry.clone().unwrap_or_default())
            .tags(self.tags.clone())?;
        if let Some(delay) = self.delay {
            job = job.delay(delay);
        }
        if let Some(time) = self.at {
            job = job.at(time);
        }
        if let Some(limit) = self.max_runtime {
            job = job.max_runtime(limit);
        }
        if let Some(key) = &self.key {
            job = job.key(key.clone());
        }
        Ok(job)
    }
}

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    if let Some(file) = &args.file {
        return lines(args, Source::open(file)?, session);
    }
    let text = match args.args.as_str() {
        "-" => all_of_stdin("args", Limits::default().args)?,
        text => text.to_owned(),
    };
    let json = check_args(text).map_err(|invalid| match invalid {
        Invalid::NotJson { .. } => {
            BadInput(format!("{invalid}; args are one JSON value, such as '{{\"to\":\"a@b.c\"}}'"))
        }
        _ => BadInput(invalid.to_string()),
    })?;
    let job = args.job(json)?;
    match args.count {
        None => one(&job, session),
        Some(count) => copies(&job, count, session),
    }
}

fn check_args(text: String) -> Result<Json, Invalid> {
    Json::check("args", text, Limits::default().args)
}

fn one(job: &NewJob, session: &mut Session) -> Result<Answer> {
    let answers = session.open()?.enqueue(std::slice::from_ref(job))?;
    session.log.enqueued(std::slice::from_ref(job), &answers);
    let answer = *answers.first().context("the store gave no answer; see: tenure jobs list")?;
    match (answer, session.out.is_json()) {
        (answer, true) => session.out.document(&json::verdict(Verdict::Answered(answer)))?,
        (Enqueued::Created(id) | Enqueued::Existing(id), false) => {
            session.out.line(&id.to_string())?;
        }
        (Enqueued::Conflict(_), false) => {}
    }
    match answer {
        Enqueued::Created(_) => Ok(Answer::Yes),
        Enqueued::Existing(id) => {
            say(&format!("job {id} has this key already; nothing was enqueued"));
            Ok(Answer::Yes)
        }
        Enqueued::Conflict(id) => Ok(Answer::No(format!(
            "this key belongs to job {id}, which has another kind or other args, so nothing was \
             stored; use another key, or see that job with: tenure jobs show {id}"
        ))),
    }
}

fn copies(job: &NewJob, count: u64, session: &mut Session) -> Result<Answer> {
    let mut delivery = Delivery::new(session.open()?, Some(count), &mut session.out, session.log);
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let batch = vec![job.clone(); count.min(BATCH_LIMIT)];
    let mut parts =
        std::iter::repeat_n(BATCH_LIMIT, count / BATCH_LIMIT).chain([count % BATCH_LIMIT]);
    let sent = parts.try_for_each(|part| delivery.send(&batch[..part]));
    delivery.finish(sent)
}

/// A job for each line. A file is read twice, so that a bad line is found before anything is
/// stored; a source that cannot be read twice is stored up to the bad line.
fn lines(args: &Args, mut source: Source, session: &mut Session) -> Result<Answer> {
    let total = if source.can_rewind() {
        let count = check(args, &mut source)?;
        source.rewind()?;
        Some(count)
    } else {
        None
    };
    let mut delivery = Delivery::new(session.open()?, total, &mut session.out, session.log);
    let sent = send_lines(args, &mut source, &mut delivery);
    delivery.finish(sent)
}

/// The number of jobs, if every one of them can be stored.
fn check(args: &Args, source: &mut Source) -> Result<u64> {
    let mut count = 0;
    for line in Lines::of(source) {
        let checked =
            line.and_then(|json| args.job(json).map_err(|invalid| BadInput(invalid.to_string())));
        if let Err(BadInput(why)) = checked {
            return Err(BadInput(format!("{why}; nothing was stored")).into());
        }
        count += 1;
    }
    Ok(count)
}

fn send_lines(args: &Args, source: &mut Source, delivery: &mut Delivery<'_>) -> Result<()> {
    let mut batch = Vec::with_capacity(BATCH_LIMIT);
    for line in Lines::of(source) {
        match line {
            Ok(json) => batch.push(args.job(json)?),
            Err(BadInput(why)) => {
                // What came before is stored, so that the rest can be sent from this line on.
                delivery.send(&batch)?;
                let stored = delivery.stored();
                let next = "correct it, and send the rest from there on";
                return Err(BadInput(format!(
                    "{why}; {stored} jobs before it were stored; {next}"
                ))
                .into());
            }
        }
        if batch.len() == BATCH_LIMIT {
            delivery.send(&batch)?;
            batch.clear();
        }
    }
    delivery.send(&batch)
}
