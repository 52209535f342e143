//! `tenure drill step`: every order of statements, in sessions of PostgreSQL.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use serde::Serialize;
use tenure_drill::stepper::{
    self, Case, Isolation, PLANNERS, Report, Setting, Stepper, cases, find, work,
};
use tenure_drill::verdict::Violation;

use super::server::Server;
use crate::args::BadInput;
use crate::output::{Column, Table, say};
use crate::{Answer, Session};

/// Go through every order of statements, in sessions of PostgreSQL
///
/// Two or three sessions call a verb each, or are a user's own transaction with fence, hold or complete in it, and their
/// statements are sent in every order in which they can be. Whoever waits for a lock is seen to wait. What comes of it must
/// be what the sessions come to one after the other, in some order; a deadlock is a failure. Every pair of verbs is gone
/// through at READ COMMITTED, REPEATABLE READ and SERIALIZABLE, with the planner's settings varied in turns.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this case, such as over/claim+fence-write; may be repeated
    #[arg(long = "case", value_name = "NAME", value_parser = case)]
    cases: Vec<Case>,

    /// At this level: rc, rr, serializable, or mixed for users at rr among workers at rc; may be repeated
    #[arg(long = "isolation", value_name = "LEVEL", value_parser = isolation)]
    isolations: Vec<Isolation>,

    /// With these settings of the planner instead of all in turns; may be repeated
    #[arg(long = "planner", value_name = "NAME", value_parser = planner)]
    planners: Vec<usize>,

    /// Send the statements of one case in this order, a letter for each: AABAB
    #[arg(long, value_name = "LETTERS", value_parser = schedule, requires = "cases", conflicts_with_all = ["everywhere", "list"])]
    schedule: Option<String>,

    /// Run each pair from every starting state in which at least one changes something, not only from one in which both do
    #[arg(long, conflicts_with = "cases")]
    everywhere: bool,

    /// Say which cases and settings of the planner there are
    #[arg(long)]
    list: bool,
}

/// The levels that run if none is named.
const LEVELS: [Isolation; 3] =
    [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable];

/// The answer for programs.
#[derive(Serialize)]
struct View<'a> {
    levels: &'a [Level],
    violation: Option<&'a Violation>,
}

/// The result of one level.
#[derive(Serialize)]
struct Level {
    isolation: Isolation,
    #[serde(flatten)]
    report: Report,
}

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    let mut chosen = args.cases.clone();
    if chosen.is_empty() {
        chosen = cases().into_iter().filter(|case| case.is_first || args.everywhere).collect();
    }
    if args.list {
        return list(&chosen, session);
    }
    if let Some(schedule) = &args.schedule {
        return replay(args, schedule, session);
    }
    let _server = Server::find(session)?;
    let isolations = if args.isolations.is_empty() { &LEVELS[..] } else { &args.isolations };
    let (mut levels, mut violation) = (Vec::new(), None);
    for isolation in isolations.iter().copied() {
        let work = work(&chosen, &[isolation], &args.planners);
        let (all, told) = (work.len() as u64, AtomicU64::new(0));
        let tell = |so_far: &Report| {
            let hundreds = so_far.cases / 100;
            if told.fetch_max(hundreds, Ordering::Relaxed) < hundreds || so_far.cases == all {
                let Report { cases, schedules, .. } = so_far;
                say(&format!(
                    "{}: {cases} of {all} cases, {schedules} schedules",
                    isolation.name()
                ));
            }
        };
        match stepper::go_through(&work, &tell) {
            Ok(report) => levels.push(Level { isolation, report }),
            Err(found) => {
                violation = Some(found);
                break;
            }
        }
    }
    answer(&levels, violation.as_ref(), session)
}

/// One schedule, in words.
fn replay(args: &Args, schedule: &str, session: &mut Session) -> Result<Answer> {
    let ([case], [] | [_], [] | [_]) = (&args.cases[..], &args.isolations[..], &args.planners[..])
    else {
        let what = "--schedule needs one case, at one level, with one planner: name one --case";
        return Err(BadInput(what.into()).into());
    };
    let isolation = args.isolations.first().copied().unwrap_or(Isolation::ReadCommitted);
    let setting = Setting { isolation, planner: args.planners.first().copied().unwrap_or(0) };
    let _server = Server::find(session)?;
    match Stepper::new().replay(case, setting, schedule) {
        Ok(report) => {
            if !session.out.is_json() {
                for (at, line) in report.told.iter().enumerate() {
                    session.out.line(&format!("{:4}. {line}", at + 1))?;
                }
            }
            answer(&[Level { isolation, report }], None, session)
        }
        Err(violation) => answer(&[], Some(&violation), session),
    }
}

fn answer(
    levels: &[Level],
    violation: Option<&Violation>,
    session: &mut Session,
) -> Result<Answer> {
    if session.out.is_json() {
        session.out.document(&View { levels, violation })?;
    } else {
        if !levels.is_empty() {
            session.out.table(&table(levels))?;
        }
        if let Some(violation) = violation {
            violation.to_string().lines().try_for_each(|line| session.out.line(line))?;
        } else {
            session.out.line("Every outcome is that of some order, and nobody met a deadlock.")?;
        }
    }
    Ok(if violation.is_none() { Answer::Yes } else { Answer::NoAsSaid })
}

fn table(levels: &[Level]) -> Table {
    let mut table = Table::new(&[
        Column::Text("ISOLATION"),
        Column::Number("CASES"),
        Column::Number("SCHEDULES"),
        Column::Number("STATEMENTS"),
        Column::Number("WAITED"),
        Column::Number("CONFLICTS"),
        Column::Number("REFUSED"),
        Column::Number("PASSED BY"),
        Column::Number("DEADLOCKS"),
        Column::Number("SECONDS"),
    ]);
    for Level { isolation, report: it } in levels {
        let counts = [
            it.cases,
            it.schedules,
            it.statements,
            it.waits,
            it.conflicts,
            it.refusals,
            it.passed_by,
            0,
        ];
        let seconds = format!("{:.1}", it.took_ms as f64 / 1_000.0);
        let cells = counts.iter().map(u64::to_string).chain([seconds]);
        table.row([isolation.name().to_owned()].into_iter().chain(cells).collect());
    }
    table
}

fn list(chosen: &[Case], session: &mut Session) -> Result<Answer> {
    let names: Vec<&str> = chosen.iter().map(|case| case.name.as_str()).collect();
    let planners = PLANNERS.map(|(name, _)| name);
    if session.out.is_json() {
        session.out.document(&serde_json::json!({ "cases": names, "planners": planners }))?;
    } else {
        names.iter().try_for_each(|name| session.out.line(name))?;
        session.out.say(&format!("planners: {}", planners.join(", ")))?;
    }
    Ok(Answer::Yes)
}

fn case(name: &str) -> Result<Case, String> {
    find(name)
        .ok_or_else(|| "there is no such case; see tenure drill step --list --everywhere".into())
}

fn isolation(name: &str) -> Result<Isolation, String> {
    let found = Isolation::ALL.into_iter().find(|level| level.name() == name);
    found.ok_or_else(|| "use rc, rr, serializable or mixed".into())
}

fn planner(name: &str) -> Result<usize, String> {
    let found = PLANNERS.iter().position(|(it, _)| *it == name);
    found.ok_or_else(|| format!("use one of {}", PLANNERS.map(|(name, _)| name).join(", ")))
}

fn schedule(letters: &str) -> Result<String, String> {
    if letters.bytes().all(|letter| (b'A'..=b'C').contains(&letter)) {
        return Ok(letters.to_owned());
    }
    Err("use a letter for each statement, A, B or C: the session that it is of".into())
}
