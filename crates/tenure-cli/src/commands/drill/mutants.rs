//! `tenure drill mutants`: each safeguard removed, and what noticed.

mod machine;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use serde::Serialize;
use tenure_drill::mutants::{self, Fate, Hunt, Stock};

use super::server::Server;
use crate::args::BadInput;
use crate::output::{Column, Table, say};
use crate::{Answer, Session};

/// Take out each safeguard, one at a time, and show what notices
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only mutants whose name contains this
    #[arg(long = "only", value_name = "WORDS")]
    only: Option<String>,

    /// Only mutants of this
    #[arg(long, value_enum)]
    of: Option<Of>,

    /// Tell which mutants there are and what they lack, and hunt none
    #[arg(long)]
    list: bool,

    /// Show the schedule that killed each
    #[arg(long)]
    schedules: bool,

    /// Change every condition, order, limit, assignment and lock of the engines' SQL instead, one at a time
    #[arg(long, conflicts_with = "schedules")]
    machine: bool,

    /// Of those made by machine, only those of this file, such as settle or verbs/settle; may be repeated
    #[arg(long = "file", value_name = "FILE", requires = "machine")]
    files: Vec<String>,

    /// Of those made by machine, take the listed survivors as they are, and hunt only the others
    #[arg(long, requires = "machine")]
    unlisted: bool,

    /// Of those made by machine, every Nth from the Kth on
    #[arg(long, value_name = "K/N", requires = "machine")]
    part: Option<machine::Part>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Of {
    Sqlite,
    Postgres,
    Worker,
}

impl Of {
    fn is(self, stock: Stock) -> bool {
        matches!(
            (self, stock),
            (Of::Sqlite, Stock::Sqlite)
                | (Of::Postgres, Stock::Postgres)
                | (Of::Worker, Stock::Worker)
        )
    }
}

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    if args.machine {
        return machine::run(args, session);
    }
    let hunts = wanted(args)?;
    if args.list {
        return list(&hunts, session);
    }
    let server = hunts.iter().any(|hunt| hunt.stock == Stock::Postgres);
    let _server = server.then(|| Server::find(session)).transpose()?;
    session.out.flush()?;
    let fates = hunt_all(&hunts);
    let bad = |fate: &&Fate| !fate.as_expected;
    let survivors: Vec<&Fate> = fates.iter().filter(bad).collect();
    if session.out.is_json() {
        session.out.document(&View {
            hunted: fates.len(),
            killed: fates.len() - survivors.len(),
            fates: &fates,
        })?;
    } else {
        session.out.table(&matrix(&fates))?;
        for fate in fates.iter().filter(|fate| args.schedules || !fate.as_expected) {
            if let Some(violation) = &fate.killed {
                session.out.line("")?;
                session.out.line(&format!("{} ({}, {})", fate.mutant, fate.stock, fate.level))?;
                violation.to_string().lines().try_for_each(|line| session.out.line(line))?;
            }
        }
    }
    if survivors.is_empty() {
        session.out.say(&format!("all {} mutants were killed", fates.len()))?;
        return Ok(Answer::Yes);
    }
    Ok(Answer::No(format!(
        "{} of {} mutants were not killed as they must be: {}",
        survivors.len(),
        fates.len(),
        survivors.iter().map(|fate| fate.mutant).collect::<Vec<_>>().join(", ")
    )))
}

fn wanted(args: &Args) -> Result<Vec<Hunt>> {
    let named =
        |hunt: &Hunt| args.only.as_ref().is_none_or(|words| hunt.mutant.contains(words.as_str()));
    let of = |hunt: &Hunt| args.of.is_none_or(|of| of.is(hunt.stock));
    let hunts: Vec<Hunt> =
        mutants::all().into_iter().filter(|hunt| named(hunt) && of(hunt)).collect();
    if hunts.is_empty() {
        let why =
            "--only: no mutant is called so; `tenure drill mutants --list` tells which there are";
        return Err(BadInput(why.into()).into());
    }
    Ok(hunts)
}

/// Two at a time: each search has one thread, and those on PostgreSQL wait for the server.
fn hunt_all(hunts: &[Hunt]) -> Vec<Fate> {
    let next = AtomicUsize::new(0);
    let fates = Mutex::new(Vec::new());
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while let Some(hunt) = hunts.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let fate = hunt.run();
                    let verdict = if fate.as_expected { "killed" } else { "NOT KILLED" };
                    let mut fates = fates.lock().expect("no hunt panics with it");
                    fates.push((hunt, fate));
                    say(&format!(
                        "{}/{} {verdict}: {} ({}, {})",
                        fates.len(),
                        hunts.len(),
                        hunt.mutant,
                        hunt.stock,
                        hunt.level
                    ));
                }
            });
        }
    });
    let mut fates = fates.into_inner().expect("all have ended");
    fates.sort_by_key(|(hunt, _)| {
        hunts.iter().position(|other| std::ptr::eq(other, *hunt)).unwrap_or(usize::MAX)
    });
    fates.into_iter().map(|(_, fate)| fate).collect()
}

/// Mutant, what was removed, which level and invariant killed it, and after how much work.
fn matrix(fates: &[Fate]) -> Table {
    use Column::{Number, Text};
    let mut table = Table::new(&[
        Text("MUTANT"),
        Text("OF"),
        Text("WHAT WAS TAKEN OUT"),
        Text("LEVEL"),
        Text("KILLED BY"),
        Number("AFTER"),
    ]);
    for fate in fates {
        let (by, after) = match &fate.killed {
            Some(it) if fate.as_expected => {
                (it.invariant.to_string(), format!("{} {}", it.states, fate.level.unit()))
            }
            Some(it) => (format!("{}, WHICH IT MUST NOT BREAK", it.invariant), String::new()),
            None => ("SURVIVED".to_owned(), String::new()),
        };
        table.row(vec![
            fate.mutant.to_owned(),
            fate.stock.to_string(),
            fate.removed.to_owned(),
            fate.level.to_string(),
            by,
            after,
        ]);
    }
    table
}

fn list(hunts: &[Hunt], session: &mut Session) -> Result<Answer> {
    if session.out.is_json() {
        let named: Vec<Named<'_>> = hunts.iter().map(Named::of).collect();
        session.out.document(&named)?;
        return Ok(Answer::Yes);
    }
    use Column::Text;
    let mut table = Table::new(&[
        Text("MUTANT"),
        Text("OF"),
        Text("WHAT WAS TAKEN OUT"),
        Text("LEVEL"),
        Text("MUST BREAK"),
    ]);
    for hunt in hunts {
        let broken = hunt.broken.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or ");
        table.row(vec![
            hunt.mutant.to_owned(),
            hunt.stock.to_string(),
            hunt.removed.to_owned(),
            hunt.level.to_string(),
            broken,
        ]);
    }
    session.out.table(&table)?;
    Ok(Answer::Yes)
}

#[derive(Serialize)]
struct View<'a> {
    hunted: usize,
    killed: usize,
    fates: &'a [Fate],
}

#[derive(Serialize)]
struct Named<'a> {
    mutant: &'a str,
    of: String,
    removed: &'a str,
    level: String,
    must_break: Vec<String>,
}

impl<'a> Named<'a> {
    fn of(hunt: &'a Hunt) -> Named<'a> {
        Named {
            mutant: hunt.mutant,
            of: hunt.stock.to_string(),
            removed: hunt.removed,
            level: hunt.level.to_string(),
            must_break: hunt.broken.iter().map(ToString::to_string).collect(),
        }
    }
}
