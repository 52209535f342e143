//! `tenure drill simulate`: the worker's machines, from a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tenure_drill::simulation::{
    self, Kind, Lost, Nth, Report, Scenario, Sometimes, When, fail_each, fail_nth,
};
use tenure_drill::verdict::Violation;

use crate::args::BadInput;
use crate::output::{Column, Table};
use crate::time::duration;
use crate::{Answer, Session};

/// Run the worker's machines from a seed, with faults
///
/// The dispatcher, its relief, the renewer and the sweeper of many workers are stepped on one thread, with SQLite in memory and with
/// time and chance from a seed: the same seed repeats the same run, and its trace hash says so. Workers are killed, stalled,
/// cut off and asked to end, calls and replies are lost or come late, the store is down, stands still or is full, its clock is
/// set, the database goes back in time, and people cancel, requeue and enqueue. When a promise is broken, the smallest run that breaks it is looked for.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The seed, or the first of several
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// How many seeds to run, one after the other
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,

    /// Run each seed twice, and compare the hashes
    #[arg(long)]
    twice: bool,

    /// How many workers there are at a time
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    workers: Option<u16>,

    /// How many jobs there are to do
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    jobs: Option<u32>,

    /// How many jobs each worker runs at a time
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=1_000))]
    slots: Option<u16>,

    /// For how long a job is taken, such as 10s; at least 1s
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    lease: Option<Duration>,

    /// About one turn in so many loses a call, and as many a reply; 0 for none
    #[arg(long, value_name = "TURNS")]
    lost_in: Option<u64>,

    /// About one turn in so many brings something else, such as a kill; 0 for none
    #[arg(long, value_name = "TURNS")]
    kill_in: Option<u64>,

    /// What may happen: call, reply, kill, late, stall, cut, end, down, freeze, full, jump, sleep, failover, cancel, requeue,
    /// enqueue
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    faults: Option<Vec<Kind>>,

    /// Of all faults, only those with these numbers
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    only_faults: Option<Vec<u32>>,

    /// Leave out the faults with these numbers
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    without: Vec<u32>,

    /// For how long to look for a smaller run that breaks the same promise
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "20s")]
    shrink: Duration,

    /// Instead, lose the N-th call of a small run and nothing else; without a number each call in turn, before and after it is applied
    #[arg(long, value_name = "N", num_args = 0..=1)]
    #[arg(conflicts_with_all = ["seeds", "twice", "workers", "jobs", "slots", "lease", "lost_in", "kill_in", "faults", "only_faults", "without"])]
    fail_nth: Option<Option<u64>>,

    /// With --fail-nth N: the call is applied, and its reply is lost
    #[arg(long, requires = "fail_nth")]
    after: bool,
}

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    match args.fail_nth {
        Some(Some(call)) => {
            let when = if args.after { When::After } else { When::Before };
            let report = fail_nth(Lost { call, when });
            if session.out.is_json() {
                session.out.document(&report)?;
            } else {
                tell(&report, session)?;
            }
            Ok(if report.violation.is_none() { Answer::Yes } else { Answer::NoAsSaid })
        }
        Some(None) if args.after => {
            Err(BadInput("--after needs the number of a call: --fail-nth 17 --after".into()).into())
        }
        Some(None) => fail_all(session),
        None => run_seeds(args, &scenario(args)?, session),
    }
}

/// The scenario to simulate.
fn scenario(args: &Args) -> Result<Scenario> {
    let usual = Scenario::default();
    let lease = args.lease.unwrap_or(usual.lease);
    if lease < Duration::from_secs(1) {
        let why =
            "--lease: below 1s a worker that is merely busy loses its jobs, and nothing is shown";
        return Err(BadInput(why.into()).into());
    }
    let numbers = |list: &[u32]| list.iter().copied().collect::<BTreeSet<u32>>();
    Ok(Scenario {
        workers: args.workers.map_or(usual.workers, usize::from),
        jobs: args.jobs.map_or(usual.jobs, |jobs| jobs as usize),
        slots: args.slots.map_or(usual.slots, usize::from),
        lease,
        lost_in: args.lost_in.unwrap_or(usual.lost_in),
        kill_in: args.kill_in.unwrap_or(usual.kill_in),
        faults: args.faults.as_ref().map_or(usual.faults, |kinds| kinds.iter().copied().collect()),
        only: args.only_faults.as_deref().map(numbers),
        without: numbers(&args.without),
    })
}

/// The totals of all seeds.
#[derive(Serialize, Default)]
struct Sum {
    seeds: u64,
    jobs: usize,
    turns: u64,
    calls: u64,
    faults: BTreeMap<Kind, u64>,
    sometimes: Sometimes,
}

impl Sum {
    fn add(&mut self, report: &Report) {
        self.seeds += 1;
        self.jobs += report.jobs;
        self.turns += report.turns;
        self.calls += report.calls;
        report.faults.iter().for_each(|(kind, n)| *self.faults.entry(*kind).or_default() += n);
        self.sometimes.add(&report.sometimes);
    }
}

/// The whole answer for programs.
#[derive(Serialize)]
struct View<'a> {
    #[serde(flatten)]
    sum: &'a Sum,
    /// The run, if there was only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a Report>,
    /// The smallest run that breaks the promise.
    violation: Option<&'a Violation>,
    /// The seed whose two runs differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    differs: Option<u64>,
}

fn run_seeds(args: &Args, scenario: &Scenario, session: &mut Session) -> Result<Answer> {
    let mut sum = Sum::default();
    let mut last = None;
    let (mut violation, mut differs) = (None, None);
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let report = simulation::run(scenario, seed);
        sum.add(&report);
        if args.twice && simulation::run(scenario, seed).hash != report.hash {
            differs = Some(seed);
        }
        if report.violation.is_some() {
            session
                .out
                .say(&format!("seed {seed} breaks a promise; looking for less that does"))?;
            let small = simulation::shrink(scenario, &report, args.shrink);
            violation = small.map(|small| small.violation);
        } else if sum.seeds.is_multiple_of(100) && args.seeds > 1 {
            session.out.say(&format!("{} seeds", sum.seeds))?;
        }
        last = Some(report);
        if violation.is_some() || differs.is_some() {
            break;
        }
    }
    let run = last.filter(|_| args.seeds == 1);
    if session.out.is_json() {
        let (run, violation) = (run.as_ref(), violation.as_ref());
        session.out.document(&View { sum: &sum, run, violation, differs })?;
    } else {
        show(&sum, run.as_ref(), session)?;
        if let Some(violation) = &violation {
            session.out.line("")?;
            violation.to_string().lines().try_for_each(|line| session.out.line(line))?;
        }
        if let Some(seed) = differs {
            session
                .out
                .line(&format!("seed {seed} came to another trace when it was run again"))?;
        }
    }
    Ok(if violation.is_none() && differs.is_none() { Answer::Yes } else { Answer::NoAsSaid })
}

fn show(sum: &Sum, run: Option<&Report>, session: &mut Session) -> Result<()> {
    let Sum { seeds, jobs, turns, calls, .. } = sum;
    let befell: Vec<String> = sum.faults.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
    let befell = if befell.is_empty() { "none".to_owned() } else { befell.join(", ") };
    let what = run.map_or(format!("{seeds} seeds"), |run| format!("seed {}", run.seed));
    session.out.line(&format!("{what}: {jobs} jobs, {turns} turns, {calls} calls"))?;
    session.out.line(&format!("faults: {befell}"))?;
    session.out.line("")?;
    let mut table = Table::new(&[Column::Text("SOMETIMES"), Column::Number("TIMES")]);
    for (rare, count) in sum.sometimes.iter() {
        table.row(vec![rare.name().to_owned(), count.to_string()]);
    }
    session.out.table(&table)?;
    if let Some(run) = run {
        session.out.line("")?;
        session.out.line(&format!("trace hash {}", run.hash))?;
    }
    Ok(())
}

/// Reports one run in which one call was lost.
fn tell(report: &Report, session: &mut Session) -> Result<()> {
    let Report { jobs, turns, calls, hash, .. } = report;
    session.out.line(&format!("{jobs} jobs, {turns} turns, {calls} calls"))?;
    if let Some(violation) = &report.violation {
        violation.to_string().lines().try_for_each(|line| session.out.line(line))?;
    }
    session.out.line(&format!("trace hash {hash}"))
}

/// Loses each call in turn.
fn fail_all(session: &mut Session) -> Result<Answer> {
    let nth = fail_each(|call| {
        if call.is_multiple_of(50) {
            crate::output::say(&format!("call {call}"));
        }
    });
    let Nth { calls, runs, violation } = &nth;
    if session.out.is_json() {
        session.out.document(&nth)?;
    } else {
        session.out.line(&format!(
            "{calls} calls when none is lost; {runs} runs, in each of which one was, before or after it was applied"
        ))?;
        match violation {
            None => session
                .out
                .line("every job succeeded in one attempt, and its effect was sent once")?,
            Some(violation) => {
                violation.to_string().lines().try_for_each(|line| session.out.line(line))?;
            }
        }
    }
    Ok(if violation.is_none() { Answer::Yes } else { Answer::NoAsSaid })
}
