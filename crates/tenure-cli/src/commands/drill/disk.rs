//! `tenure drill disk`: the power fails after every write, and nothing that was answered is lost.

use anyhow::Result;
use serde::Serialize;
use tenure_drill::disk::{self, Encounters, Report};
use tenure_drill::verdict::Violation;

use crate::args::BadInput;
use crate::{Answer, Session};

/// Let the power fail after every write to the disk, and another program write to the file
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The seed of the calls that are made
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// From that seed on, so many
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "point")]
    seeds: u64,

    /// Let the power fail after this write or flush alone
    #[arg(long, value_name = "N")]
    point: Option<usize>,

    /// Let the power stay on, and only another program write to the file
    #[arg(long, conflicts_with_all = ["point", "seeds", "seed"])]
    strangers: bool,
}

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    let mut seen = Seen { held: true, ..Seen::default() };
    let outcome = look(args, session, &mut seen);
    let violation = match outcome {
        Ok(()) => None,
        Err(Stop::Broken(violation)) => Some(violation),
        Err(Stop::Output(error)) => return Err(error),
    };
    seen.held = violation.is_none();
    seen.violation = violation;
    if session.out.is_json() {
        session.out.document(&seen)?;
    } else if let Some(violation) = &seen.violation {
        violation.to_string().lines().try_for_each(|line| session.out.line(line))?;
    }
    Ok(if seen.held { Answer::Yes } else { Answer::NoAsSaid })
}

#[derive(Default, Serialize)]
struct Seen {
    held: bool,
    power_cuts: Vec<Report>,
    other_programs: Option<Encounters>,
    /// How many calls failed because another file had taken the place of the store's file.
    replaced: Option<usize>,
    violation: Option<Box<Violation>>,
}

enum Stop {
    Broken(Box<Violation>),
    Output(anyhow::Error),
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Stop {
        Stop::Broken(Box::new(violation))
    }
}

impl From<anyhow::Error> for Stop {
    fn from(error: anyhow::Error) -> Stop {
        Stop::Output(error)
    }
}

fn look(args: &Args, session: &mut Session, seen: &mut Seen) -> Result<(), Stop> {
    if let Some(point) = args.point {
        let report = disk::replay(args.seed, point)?;
        if report.cuts == 0 {
            let why = format!("--point: seed {} has only {} of them", args.seed, report.points);
            return Err(Stop::Output(BadInput(why).into()));
        }
        return cut(report, session, seen);
    }
    if args.strangers {
        return meet(session, seen);
    }
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        cut(disk::run(seed)?, session, seen)?;
    }
    cut(disk::run_crowd()?, session, seen)?;
    meet(session, seen)?;
    line(session, "nothing that was answered was lost, and every token and id was new")
}

fn meet(session: &mut Session, seen: &mut Seen) -> Result<(), Stop> {
    let met = disk::run_strangers()?;
    line(session, &format!("another program: {met}"))?;
    seen.other_programs = Some(met);
    let told = disk::run_replaced()?;
    line(
        session,
        &format!(
            "another file in its place: {told} calls, each at another moment, and all were told"
        ),
    )?;
    seen.replaced = Some(told);
    Ok(())
}

fn cut(report: Report, session: &mut Session, seen: &mut Seen) -> Result<(), Stop> {
    line(session, &report.to_string())?;
    seen.power_cuts.push(report);
    Ok(())
}

/// Prints a line for people as soon as it is known.
fn line(session: &mut Session, text: &str) -> Result<(), Stop> {
    if !session.out.is_json() {
        session.out.line(text)?;
        session.out.flush()?;
    }
    Ok(())
}
