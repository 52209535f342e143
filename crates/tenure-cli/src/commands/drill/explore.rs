//! `tenure drill explore`: every order of calls, on the real engines.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tenure_drill::explorer::{
    EXPLORED, Engines, Replayed, Report, SCOPES, Scope, Tally, Unplayable, WIDE_SCOPES, Ways,
    explore, replay,
};
use tenure_drill::verdict::{Invariant, Violation};

use super::server::{self, Server};
use crate::args::BadInput;
use crate::output::{Column, Table};
use crate::{Answer, Session};

/// Go through every order of calls, on the real engines
///
/// Two or three workers, a sweeper, a clock, an operator and what may befall them: each call is a real
/// one on the real engine, and the model runs beside it. After each step the invariants are checked. The
/// first that does not hold is told with a shortest schedule that leads there, and the command that
/// repeats it.
#[derive(clap::Args)]
#[command(after_help = scopes_in_words())]
pub(crate) struct Args {
    /// Only this scope; may be given several times [default: all of the daily ones]
    #[arg(long, value_name = "NAME", value_parser = scope)]
    scope: Vec<Scope>,

    /// On which engine, always beside the model [default: sqlite; both if --db names a server]
    #[arg(long, value_name = "ENGINE", value_enum)]
    engine: Option<Engine>,

    #[command(flatten)]
    bounds: Bounds,

    /// Give up on a scope with more states than this
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    max_states: usize,

    /// Go through exactly this schedule: the codes of its steps, with commas between
    #[arg(long, value_name = "CODES", requires = "scope", value_delimiter = ',')]
    replay: Option<Vec<String>>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Engine {
    Sqlite,
    Postgres,
    Both,
}

/// Budgets for a whole schedule, in place of the scope's own
#[derive(clap::Args)]
#[command(next_help_heading = "Bounds, in place of the scope's own")]
struct Bounds {
    /// Workers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=4))]
    workers: Option<u8>,
    /// Jobs in the queue at the beginning
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=8))]
    jobs: Option<u8>,
    /// Moves of the clock by half a lease
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=20))]
    ticks: Option<u8>,
    /// Deaths of workers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=20))]
    crashes: Option<u8>,
    /// Calls and replies that are lost
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=20))]
    losses: Option<u8>,
    /// Attempts that are given back: snoozed, released or parked
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=20))]
    give_backs: Option<u8>,
    /// Times that an operator cancels, and requeues
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=20))]
    operations: Option<u8>,
    /// Starts of the server
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=20))]
    restarts: Option<u8>,
    /// Times that the database goes back to a copy
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=20))]
    failovers: Option<u8>,
    /// Times that the store is down
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=20))]
    outages: Option<u8>,
    /// Jumps of the store's clock
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=20))]
    jumps: Option<u8>,
    /// Times that each of two callers enqueues under the key
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=20))]
    enqueues: Option<u8>,
}

impl Bounds {
    /// The scope with these bounds instead of its own.
    fn apply(&self, scope: &Scope) -> Scope {
        let given = [
            ("workers", self.workers),
            ("jobs", self.jobs),
            ("ticks", self.ticks),
            ("crashes", self.crashes),
            ("losses", self.losses),
            ("give-backs", self.give_backs),
            ("operations", self.operations),
            ("restarts", self.restarts),
            ("failovers", self.failovers),
            ("outages", self.outages),
            ("jumps", self.jumps),
            ("enqueues", self.enqueues),
        ];
        let mut scope = *scope;
        for (name, bound) in given {
            bound.map(|bound| scope.set(name, bound));
        }
        scope
    }
}

fn scope(name: &str) -> Result<Scope, BadInput> {
    let names: Vec<_> = SCOPES.iter().chain(&WIDE_SCOPES).map(|scope| scope.name).collect();
    let unknown = || BadInput(format!("there is no such scope; there are {}", names.join(", ")));
    Scope::named(name).ok_or_else(unknown)
}

fn scopes_in_words() -> String {
    let line = |scope: &Scope| format!("  {:<18}{}\n", scope.name, scope.about);
    let daily: String = SCOPES.iter().map(line).collect();
    let wide: String = WIDE_SCOPES.iter().map(line).collect();
    format!(
        "Scopes:\n{daily}Wider ones, which take longer and are only run when they are named:\n{wide}"
    )
}

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    let engines = match args.engine {
        Some(Engine::Sqlite) => Engines::Sqlite,
        Some(Engine::Postgres) => Engines::Postgres,
        Some(Engine::Both) => Engines::Both,
        None if server::is_server(session) => Engines::Both,
        None => Engines::Sqlite,
    };
    let named = if args.scope.is_empty() { SCOPES.to_vec() } else { args.scope.clone() };
    let scopes: Vec<_> = named.iter().map(|scope| args.bounds.apply(scope)).collect();
    if args.replay.is_some() && scopes.len() != 1 {
        return Err(BadInput("--replay: name the one scope that the schedule is of".into()).into());
    }
    // Kept for as long as the drill runs.
    let _server = match engines {
        Engines::Sqlite => None,
        Engines::Postgres | Engines::Both => Some(Server::find(session)?),
    };
    match &args.replay {
        Some(codes) => again(&scopes[0], engines, codes, session),
        None => go_through(scopes, Ways { most: args.max_states, ..Ways::on(engines) }, session),
    }
}

// ── all schedules ────────────────────────────────────────────────────────────────────────────────

/// What a thread reports about its search.
enum News {
    Passing(&'static str, usize),
    Ended(Box<Report>),
    Broken(&'static str, Box<Violation>),
}

/// All results, for programs.
#[derive(Serialize)]
struct Verdict {
    engine: &'static str,
    holds: bool,
    scopes: Vec<Report>,
    violations: Vec<Broken>,
}

#[derive(Serialize)]
struct Broken {
    scope: &'static str,
    #[serde(flatten)]
    violation: Box<Violation>,
}

fn go_through(scopes: Vec<Scope>, ways: Ways, session: &mut Session) -> Result<Answer> {
    let order: Vec<_> = scopes.iter().map(|scope| scope.name).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(scopes.len());
    let left = Mutex::new(VecDeque::from(scopes));
    let (teller, news) = channel();
    let (mut scopes, violations) = std::thread::scope(|scope| {
        for _ in 0..threads {
            let (teller, left) = (teller.clone(), &left);
            scope.spawn(move || work(left, ways, &teller));
        }
        drop(teller);
        listen(&news, session)
    })?;
    scopes.sort_by_key(|report| order.iter().position(|name| *name == report.scope));
    let holds = violations.is_empty()
        && scopes.iter().all(|report| report.whole && report.vacuous.is_empty());
    let verdict = Verdict { engine: ways.engines.name(), holds, scopes, violations };
    if session.out.is_json() {
        session.out.document(&verdict)?;
        return Ok(if holds { Answer::Yes } else { Answer::NoAsSaid });
    }
    show(&verdict, session)?;
    Ok(judge(&verdict, ways.most))
}

/// Explores one scope after the other until none is left, or a thread has found a violation.
fn work(left: &Mutex<VecDeque<Scope>>, ways: Ways, teller: &Sender<News>) {
    let lock = || left.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let next = lock().pop_front();
        let Some(scope) = next else { return };
        let mut tell = |states| drop(teller.send(News::Passing(scope.name, states)));
        let ended = match explore(&scope, ways, &mut tell) {
            Ok(report) => News::Ended(Box::new(report)),
            Err(violation) => {
                lock().clear();
                News::Broken(scope.name, Box::new(violation))
            }
        };
        // The receiver is gone only if the answer cannot be written.
        drop(teller.send(ended));
    }
}

fn listen(news: &Receiver<News>, session: &mut Session) -> Result<(Vec<Report>, Vec<Broken>)> {
    let (mut reports, mut violations) = (Vec::new(), Vec::new());
    for news in news {
        match news {
            News::Passing(scope, states) => {
                session.out.say(&format!("{scope}: {states} states so far"))?;
            }
            News::Ended(report) => {
                let (scope, states, took) = (report.scope, report.states, seconds(report.took));
                session.out.say(&format!("{scope}: {states} states, {took}"))?;
                reports.push(*report);
            }
            News::Broken(scope, violation) => {
                let (invariant, states) = (violation.invariant, violation.states);
                session
                    .out
                    .say(&format!("{scope}: {invariant} does not hold, after {states} states"))?;
                violations.push(Broken { scope, violation });
            }
        }
    }
    Ok((reports, violations))
}

fn show(verdict: &Verdict, session: &mut Session) -> Result<()> {
    if !verdict.scopes.is_empty() {
        session.out.table(&searches(&verdict.scopes))?;
        session.out.line("")?;
        session.out.table(&premises(&verdict.scopes))?;
    }
    for Broken { scope, violation } in &verdict.violations {
        session.out.line("")?;
        session.out.line(&format!("In the scope {scope}, {}:", broken(violation)))?;
        for (at, step) in violation.schedule.iter().enumerate() {
            session.out.line(&format!("{:4}. {step}", at + 1))?;
        }
        if let Some(replay) = &violation.replay {
            session.out.line(&format!("Repeat it with: tenure {replay}"))?;
        }
    }
    Ok(())
}

fn searches(reports: &[Report]) -> Table {
    let mut table = Table::new(&[
        Column::Text("SCOPE"),
        Column::Number("STATES"),
        Column::Number("TRANSITIONS"),
        Column::Number("SCHEDULES"),
        Column::Number("CALLS"),
        Column::Number("TIME"),
    ]);
    for report in reports {
        table.row(vec![
            report.scope.into(),
            report.states.to_string(),
            report.transitions.to_string(),
            format!("{:.1e}", report.schedules),
            report.calls.to_string(),
            seconds(report.took),
        ]);
    }
    table
}

/// How often each invariant was evaluated, and how often its premise was true: in total, and in
/// each scope.
fn premises(reports: &[Report]) -> Table {
    let mut columns = vec![
        Column::Text("INVARIANT"),
        Column::Number("EVALUATED"),
        Column::Number("PREMISE TRUE"),
    ];
    columns.extend(reports.iter().map(|report| Column::Number(report.scope)));
    let mut table = Table::new(&columns);
    let mut total = Tally::default();
    reports.iter().for_each(|report| total.add(&report.tally));
    for invariant in EXPLORED {
        let (evaluated, held) = total.of(invariant);
        let mut row = vec![invariant.to_string(), evaluated.to_string(), held.to_string()];
        row.extend(reports.iter().map(|report| report.tally.of(invariant).1.to_string()));
        table.row(row);
    }
    table
}

fn judge(verdict: &Verdict, most: usize) -> Answer {
    if !verdict.violations.is_empty() {
        return Answer::NoAsSaid;
    }
    if let Some(report) = verdict.scopes.iter().find(|report| !report.whole) {
        let name = report.scope;
        return Answer::No(format!(
            "{name} has more than {most} states and was not gone through whole, which is no proof; \
             narrow its bounds or raise --max-states"
        ));
    }
    match verdict.scopes.iter().find(|report| !report.vacuous.is_empty()) {
        None => Answer::Yes,
        Some(report) => Answer::No(format!(
            "with these bounds {} never puts {} to the test; widen them",
            report.scope,
            report.vacuous.iter().map(Invariant::to_string).collect::<Vec<_>>().join(", ")
        )),
    }
}

// ── one schedule ─────────────────────────────────────────────────────────────────────────────────

fn again(
    scope: &Scope,
    engines: Engines,
    codes: &[String],
    session: &mut Session,
) -> Result<Answer> {
    let codes: Vec<_> =
        codes.iter().map(|code| code.trim()).filter(|code| !code.is_empty()).collect();
    let replayed = replay(scope, engines, &codes).map_err(|problem| match problem {
        Unplayable::Store(error) => anyhow::Error::new(error),
        impossible => BadInput(format!("--replay: {impossible}")).into(),
    })?;
    let answer = if replayed.violation.is_some() { Answer::NoAsSaid } else { Answer::Yes };
    if session.out.is_json() {
        session.out.document(&replayed)?;
        return Ok(answer);
    }
    let Replayed { beginning, steps, violation, possible } = replayed;
    session.out.line(&format!("      {beginning}"))?;
    for (at, step) in steps.iter().enumerate() {
        session.out.line(&format!("{:4}. {}", at + 1, step.words))?;
        session.out.line(&format!("      {}", step.after))?;
    }
    match &violation {
        Some(violation) => session.out.line(&capital(&broken(violation)))?,
        None => {
            session.out.line("Everything holds.")?;
            session.out.say(&format!("possible next: {}", possible.join(", ")))?;
        }
    }
    Ok(answer)
}

fn broken(violation: &Violation) -> String {
    let Violation { invariant, what, .. } = violation;
    format!("{invariant} does not hold: {what}")
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}
