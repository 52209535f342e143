//! `tenure drill race` and the other stories: what real workers do when the worst happens.
//!
//! The stories themselves are in `tenure-drill`. This file decides where they run (on a [`ground`]
//! of their own), which processes run them (this same program, with a hidden argument), and how
//! they are shown.

mod ground;

use std::time::Duration;

use anyhow::Result;
use tenure_drill::stories::{
    Audience, Story, Told, crash, duplicate, mid_apply, outage, poison, race,
};
use tenure_drill::workers::process;

use self::ground::Ground;
use crate::args::BadInput;
use crate::commands::producer::Interrupt;
use crate::output::{Column, Output, Table};
use crate::time::{positive_duration, show};
use crate::{Answer, Session};

/// Where a story is played.
#[derive(clap::Args)]
pub(crate) struct On {
    /// Play it on a throw-away PostgreSQL of this machine, instead of SQLite
    #[arg(long)]
    postgres: bool,
}

/// Two workers, one job: the first stalls, the second takes over, the first wakes up
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Race {
    #[command(flatten)]
    on: On,

    /// How many races; more than one are told as a table
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    runs: u32,
}

/// A worker is killed with -9 in the middle of a job
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Crash {
    #[command(flatten)]
    on: On,

    /// How soon another worker must have the job; a machine that is busy with other things may need longer
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = positive_duration)]
    within: Duration,
}

/// The same key is submitted twice, with other args, and by many at once
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Duplicate {
    #[command(flatten)]
    on: On,
}

/// The database goes away in the middle of jobs, and comes back
#[derive(clap::Args)]
#[command(after_help = "\
On SQLite another program locks the file. With --postgres the server is stopped at once, as by a
power cut, and started again. The server that --db names is not ours to stop: there, each session of
the drill's own workers is ended for two seconds, as soon as there is one. It makes a store of its
own and removes it. Exit code 1 means that a claim of the verdict does not hold.")]
pub(crate) struct Outage {
    #[command(flatten)]
    on: On,
}

/// A worker is killed between its call of a bank and the record of the answer
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct MidApply {
    #[command(flatten)]
    on: On,
}

/// A job that kills every worker that runs it, among others that do not
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Poison {
    #[command(flatten)]
    on: On,
}

const AFTER_HELP: &str = "\
It makes a store of its own and removes it: in a temporary directory, or with --db postgres://… in a
new schema of that database. Exit code 1 means that a claim of the verdict does not hold.";

/// The hidden argument that makes this program a process of a story.
pub(crate) const WORK: &str = "__drill";

/// Becomes a worker or another process of a story: the arguments say which. Workers of a story may
/// lack a safeguard, so this refuses any store but a story's.
pub(crate) fn work(words: &[String], session: &Session) -> Result<Answer> {
    if !ground::is_of_a_story(&session.target()?) {
        let why =
            format!("{WORK} works on the stores of stories alone; play one: tenure drill race");
        return Err(BadInput(why).into());
    }
    process::run(&session.url()?, words)?;
    Ok(Answer::Yes)
}

pub(crate) fn race(args: &Race, session: &mut Session) -> Result<Answer> {
    let title = format!(
        "A claims a job for {} s and stalls for {} s, B takes it over; then A wakes up and goes on",
        race::LEASE.as_secs_f64(),
        race::STALL.as_secs_f64(),
    );
    let (runs, ground) = (args.runs as usize, Ground::prepare(&args.on, session)?);
    tell(race::NAME, &title, session, ground, |ground, seat| {
        if runs == 1 {
            return Ok(race::once(&ground.scene, seat)?);
        }
        Ok(race::many(&ground.scene, runs, seat)?)
    })
}

pub(crate) fn crash(args: &Crash, session: &mut Session) -> Result<Answer> {
    let lease = show(crash::LEASE);
    let title =
        format!("A is killed in the middle of a job, under a lease of {lease}; B goes on with it");
    let ground = Ground::prepare(&args.on, session)?;
    tell(crash::NAME, &title, session, ground, |ground, seat| {
        Ok(crash::once(&ground.scene, args.within, seat)?)
    })
}

pub(crate) fn duplicate(args: &Duplicate, session: &mut Session) -> Result<Answer> {
    let title = "the same key is submitted twice, with other args, and by many at once";
    let ground = Ground::prepare(&args.on, session)?;
    tell(duplicate::NAME, title, session, ground, |ground, seat| {
        Ok(duplicate::once(&ground.scene, seat)?)
    })
}

pub(crate) fn outage(args: &Outage, session: &mut Session) -> Result<Answer> {
    let title = "the database goes away in the middle of jobs, and comes back";
    let ground = Ground::prepare(&args.on, session)?;
    tell(outage::NAME, title, session, ground, |ground, seat| {
        let Ground { scene, .. } = ground;
        let scene = scene.clone();
        Ok(outage::once(&scene, ground.outage()?.as_mut(), seat)?)
    })
}

pub(crate) fn mid_apply(args: &MidApply, session: &mut Session) -> Result<Answer> {
    let title = "a worker is killed between its call of a bank and the record of the answer";
    let ground = Ground::prepare(&args.on, session)?;
    tell(mid_apply::NAME, title, session, ground, |ground, seat| {
        Ok(mid_apply::once(&ground.scene, seat)?)
    })
}

pub(crate) fn poison(args: &Poison, session: &mut Session) -> Result<Answer> {
    let title = "a job kills every worker that runs it, among others that do not";
    let ground = Ground::prepare(&args.on, session)?;
    tell(poison::NAME, title, session, ground, |ground, seat| {
        Ok(poison::once(&ground.scene, seat)?)
    })
}

/// Runs a story on its ground, and shows it: the trace as it happens, then the verdict.
fn tell(
    name: &str,
    title: &str,
    session: &mut Session,
    mut ground: Ground,
    play: impl FnOnce(&mut Ground, &mut Seat<'_>) -> Result<Story>,
) -> Result<Answer> {
    let interrupt = Interrupt::listen()?;
    let out = &mut session.out;
    if !out.is_json() {
        out.line(&format!("{name} on {}: {title}", ground.name))?;
    }
    let mut seat = Seat { out, interrupt, has_left: false, problem: None };
    let story = play(&mut ground, &mut seat);
    let problem = seat.problem;
    let on = ground.on();
    // Removes the store before the verdict is shown, so that a reader of the verdict can check that
    // nothing is left.
    drop(ground);
    let story = story?;
    problem.map_or(Ok(()), Err)?;
    show_story(&story, on, &mut session.out)?;
    Ok(if story.held { Answer::Yes } else { Answer::NoAsSaid })
}

/// Shows a story on the terminal.
struct Seat<'a> {
    out: &'a mut Output,
    interrupt: Interrupt,
    has_left: bool,
    /// Set if the answer could not be written.
    problem: Option<anyhow::Error>,
}

impl Audience for Seat<'_> {
    fn told(&mut self, told: &Told) {
        if self.out.is_json() || self.problem.is_some() {
            return;
        }
        let shown = self.out.line(&told.to_string()).and_then(|()| self.out.flush());
        self.problem = shown.err();
    }

    fn so_far(&mut self, text: &str) {
        if let Err(problem) = self.out.say(text) {
            self.problem = Some(problem);
        }
    }

    fn has_left(&mut self) -> bool {
        self.has_left |= self.problem.is_some() || self.interrupt.within(Duration::ZERO);
        self.has_left
    }
}

fn show_story(story: &Story, on: &str, out: &mut Output) -> Result<()> {
    if out.is_json() {
        return out.document(story);
    }
    if let Some(figures) = &story.figures {
        for told in &story.trace {
            out.line(&told.to_string())?;
        }
        let seconds = |ms: u64| format!("{}.{:03} s", ms / 1_000, ms % 1_000);
        let mut table = Table::new(&[
            Column::Number("RACES"),
            Column::Number("TAKEOVERS"),
            Column::Number("REFUSALS"),
            Column::Number("LEDGER ENTRIES"),
            Column::Number("FASTEST TAKEOVER"),
            Column::Number("SLOWEST"),
        ]);
        table.row(vec![
            figures.runs.to_string(),
            figures.takeovers.to_string(),
            figures.refusals.to_string(),
            figures.ledger_entries.to_string(),
            seconds(figures.fastest_ms),
            seconds(figures.slowest_ms),
        ]);
        out.table(&table)?;
    }
    out.line("verdict")?;
    for claim in &story.verdict {
        out.line(&format!("  {claim}"))?;
    }
    if !story.held {
        let runs = if story.runs > 1 { format!(" --runs {}", story.runs) } else { String::new() };
        out.line(&format!("Repeat it with: tenure drill {}{runs}{on}", story.story))?;
    }
    Ok(())
}
