//! `tenure producer`: enqueues jobs at a steady rate, to try out workers and the other commands.
//!
//! Every job has its own key. If the store does not answer, it is unknown whether the last jobs
//! were stored. They are sent again, and their keys keep them from being stored twice.

mod interrupt;
mod rhythm;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use tenure::engine::clock;
use tenure::engine::job::{
    BATCH_LIMIT, Invalid, Json, Key, Limits, Name, NewJob, RetryPolicy, Tenant,
};
use tenure::engine::store::Store;

pub(crate) use self::interrupt::Interrupt;
use self::rhythm::Rhythm;
use crate::args::{self, BadInput};
use crate::output::say;
use crate::time::{positive_duration, show};
use crate::{Answer, Session, retry};

/// Enqueue jobs in a steady rhythm, to try things out
#[derive(clap::Args)]
#[command(after_help = "\
Without --for or --count it goes on until Ctrl-C. A store that is gone for a while is waited for.

Examples:
  tenure producer --for 10s
  tenure producer --kind send_email --tenant ann --tenant bob --rate 500 --count 10000")]
pub(crate) struct Args {
    /// A kind; several are taken in turn
    #[arg(long = "kind", value_name = "NAME", value_parser = args::kind)]
    #[arg(default_values = ["quick", "slow", "failing"])]
    kinds: Vec<Name>,

    /// The queue
    #[arg(long, value_name = "NAME", default_value = "default", value_parser = args::queue)]
    queue: Name,

    /// Whose jobs they are; several are taken in turn
    #[arg(long = "tenant", value_name = "NAME", default_value = "", hide_default_value = true)]
    #[arg(value_parser = args::tenant)]
    tenants: Vec<Tenant>,

    /// So many jobs a second
    #[arg(long, value_name = "N", default_value = "10")]
    rate: NonZeroU32,

    /// Stop after this long, such as 10s
    #[arg(long = "for", value_name = "DURATION", value_parser = positive_duration)]
    #[arg(allow_hyphen_values = true, conflicts_with = "count")]
    length: Option<Duration>,

    /// Stop after so many jobs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// What the handler gets, as JSON; without it {"n":1}, {"n":2} and so on
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    args: Option<String>,

    /// How long to wait between tries, as for `tenure enqueue` [default: exponential:1s..5m]
    #[arg(long, value_name = "POLICY", value_parser = retry::policy)]
    retry: Option<RetryPolicy>,
}

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    let source = Source::of(args)?;
    let mut store = session.open()?;
    let interrupt = Interrupt::listen()?;
    let start = clock::monotonic();
    let mut production = Production::new(source, start);
    let produced = production.run(args, &mut *store, &interrupt);
    // What was enqueued before a failure is reported in either case.
    let summary = production.summary(clock::monotonic() - start);
    if session.out.is_json() {
        session.out.document(&summary)?;
    } else {
        session.out.line(&summary.sentence())?;
    }
    produced.map(|()| Answer::Yes)
}

/// Makes the jobs.
struct Source<'a> {
    kinds: &'a [Name],
    tenants: &'a [Tenant],
    queue: &'a Name,
    args: Option<Json>,
    retry: RetryPolicy,
    /// The prefix of this run's keys.
    run: String,
}

impl<'a> Source<'a> {
    fn of(args: &'a Args) -> Result<Source<'a>> {
        let text = args.args.clone();
        let json = text.map(|text| Json::check("args", text, Limits::default().args)).transpose();
        let json = json.map_err(|invalid| match invalid {
            Invalid::NotJson { .. } => {
                BadInput(format!("--args: {invalid}; write one JSON value, such as '{{\"to\":7}}'"))
            }
            _ => BadInput(format!("--args: {invalid}")),
        })?;
        let run = format!("producer-{}", clock::unique());
        Ok(Source {
            kinds: &args.kinds,
            tenants: &args.tenants,
            queue: &args.queue,
            args: json,
            retry: args.retry.clone().unwrap_or_default(),
            run,
        })
    }

    /// The n-th job, from 1 on: always the same, so that it can be sent again.
    fn job(&self, n: u64) -> Result<NewJob, Invalid> {
        let args = match &self.args {
            Some(args) => args.clone(),
            None => Json::check("args", format!("{{\"n\":{n}}}"), Limits::default().args)?,
        };
        // The tenant changes after each round of kinds, so that every tenant gets every kind.
        let place = usize::try_from(n - 1).unwrap_or_default();
        let kind = &self.kinds[place % self.kinds.len()];
        let tenant = &self.tenants[place / self.kinds.len() % self.tenants.len()];
        Ok(NewJob::new(kind.clone(), args)
            .queue(self.queue.clone())
            .tenant(tenant.clone())
            .retry(self.retry.clone())
            .key(Key::check(format!("{}-{n}", self.run))?))
    }

    /// How many of the first `stored` jobs are of each kind.
    fn by_kind(&self, stored: u64) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for (place, kind) in (0..).zip(self.kinds) {
            let rounds = self.kinds.len() as u64;
            *counts.entry(kind.to_string()).or_default() += (stored + rounds - 1 - place) / rounds;
        }
        counts
    }
}

/// The progress of a run.
struct Production<'a> {
    source: Source<'a>,
    start: Instant,
    stored: u64,
    breaks: u64,
    /// Whether the store does not answer at the moment.
    is_waiting: bool,
    told: (Instant, u64),
}

impl<'a> Production<'a> {
    fn new(source: Source<'a>, start: Instant) -> Production<'a> {
        Production { source, start, stored: 0, breaks: 0, is_waiting: false, told: (start, 0) }
    }

    fn run(&mut self, args: &Args, store: &mut dyn Store, interrupt: &Interrupt) -> Result<()> {
        /// The pause before a store that did not answer is called again.
        const PAUSE: Duration = Duration::from_millis(500);
        let mut rhythm = Rhythm::new(args.rate);
        loop {
            let elapsed = clock::monotonic() - self.start;
            let left = args.count.unwrap_or(u64::MAX) - self.stored;
            if left == 0 || args.length.is_some_and(|length| elapsed >= length) {
                return Ok(());
            }
            let due = rhythm.due(elapsed, self.stored).min(left).min(BATCH_LIMIT as u64);
            self.send(due, store)?;
            self.tell();
            let pause = if self.is_waiting {
                PAUSE
            } else {
                rhythm.pause(clock::monotonic() - self.start, self.stored)
            };
            let rest =
                args.length.map_or(pause, |length| length.saturating_sub(elapsed).min(pause));
            if interrupt.within(rest) {
                return Ok(());
            }
        }
    }

    /// Stores the next `n` jobs. If the store does not answer, the same jobs are sent again next
    /// time.
    fn send(&mut self, n: u64, store: &mut dyn Store) -> Result<()> {
        if n == 0 {
            return Ok(());
        }
        let next = self.stored + 1..=self.stored + n;
        let jobs = next.map(|n| self.source.job(n)).collect::<Result<Vec<_>, _>>()?;
        match store.enqueue(&jobs) {
            Ok(_) => {
                self.stored += n;
                if std::mem::take(&mut self.is_waiting) {
                    say("the store is back; going on");
                }
            }
            Err(error) if error.is_transient() => {
                if !std::mem::replace(&mut self.is_waiting, true) {
                    self.breaks += 1;
                    say(&format!("waiting for the store: {error}"));
                }
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Reports progress once a second.
    fn tell(&mut self) {
        let (then, stored) = self.told;
        let now = clock::monotonic();
        let since = now - then;
        if since < Duration::from_secs(1) || self.is_waiting {
            return;
        }
        let rate = per_second(self.stored - stored, since);
        say(&format!("{} jobs enqueued, {rate:.0} a second", self.stored));
        self.told = (now, self.stored);
    }

    fn summary(&self, elapsed: Duration) -> Summary {
        Summary {
            enqueued: self.stored,
            elapsed_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            kinds: self.source.by_kind(self.stored),
            breaks: self.breaks,
        }
    }
}

/// The result of a run.
#[derive(Serialize)]
struct Summary {
    enqueued: u64,
    elapsed_ms: u64,
    kinds: BTreeMap<String, u64>,
    /// How often the store was unreachable for a while.
    breaks: u64,
}

impl Summary {
    fn sentence(&self) -> String {
        let kinds: Vec<String> = self.kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        let elapsed = Duration::from_millis(self.elapsed_ms);
        let rate = per_second(self.enqueued, elapsed);
        let jobs = if self.enqueued == 1 { "job" } else { "jobs" };
        let breaks = match self.breaks {
            0 => String::new(),
            1 => "; the store was gone once".to_owned(),
            n => format!("; the store was gone {n} times"),
        };
        format!(
            "enqueued {} {jobs} in {}, {rate:.1} a second: {}{breaks}",
            self.enqueued,
            show(elapsed),
            kinds.join(", ")
        )
    }
}

fn per_second(n: u64, length: Duration) -> f64 {
    n as f64 / length.as_secs_f64().max(0.001)
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use tenure::JobId;

    use super::*;
    use crate::time;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(line: &str) -> Args {
        Line::parse_from(["producer"].into_iter().chain(line.split_whitespace())).args
    }

    #[test]
    fn every_tenant_gets_every_kind_in_turn() {
        let args = args("--kind a --kind b --tenant x --tenant y");
        let source = Source::of(&args).unwrap();
        let jobs = (1..=5).map(|n| source.job(n).unwrap().record(JobId(n as i64), time::now()));
        let shown: Vec<String> =
            jobs.map(|job| format!("{} {} {}", job.kind, job.tenant, job.args)).collect();
        assert_eq!(
            shown,
            ["a x {\"n\":1}", "b x {\"n\":2}", "a y {\"n\":3}", "b y {\"n\":4}", "a x {\"n\":5}"]
        );
        assert_eq!(source.by_kind(5), BTreeMap::from([("a".into(), 3), ("b".into(), 2)]));
        assert_eq!(source.by_kind(0), BTreeMap::from([("a".into(), 0), ("b".into(), 0)]));
    }

    #[test]
    fn a_job_that_is_sent_again_is_the_same_and_those_of_another_run_are_others() {
        let args = args("");
        let source = Source::of(&args).unwrap();
        let job = |source: &Source<'_>, n| source.job(n).unwrap();
        assert_eq!(job(&source, 7), job(&source, 7));
        assert_ne!(job(&source, 7), job(&Source::of(&args).unwrap(), 7));
    }
}
