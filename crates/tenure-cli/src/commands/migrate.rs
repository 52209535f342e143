//! `tenure migrate`: where the schema stands, and bringing it up to date.
//!
//! A file of Tenure's own is migrated whenever it is opened. `up` is for saying so beforehand, and
//! for a database of somebody else, which gets Tenure's tables only on this request.

use anyhow::Result;
use serde::Serialize;
use tenure::clock::Timestamp;
use tenure::store::migrate::{Standing, Status};

use crate::output::{Column, Table};
use crate::time::{now, relative};
use crate::view::Rfc3339;
use crate::{Answer, Session};

/// Bring the schema up to date, or see where it stands
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Apply what is missing; also adds Tenure's tables to a SQLite database that has others
    Up,
    /// Show each migration and whether it is applied; changes nothing
    Status,
}

pub(crate) fn run(command: &Command, session: &mut Session) -> Result<Answer> {
    match command {
        Command::Up => up(session),
        Command::Status => status(session),
    }
}

fn up(session: &mut Session) -> Result<Answer> {
    let target = session.target()?;
    let pending = count_pending(&target.status()?);
    target.adopt()?;
    let after = target.status()?;
    if !session.out.is_json() {
        let file = target.file.display();
        match pending {
            0 => session.out.say(&format!("{file} is up to date"))?,
            n => session.out.say(&format!("{file}: applied {n} of {} migrations", after.len()))?,
        }
    }
    show(&after, session)?;
    Ok(Answer::Yes)
}

fn status(session: &mut Session) -> Result<Answer> {
    let target = session.target()?;
    let status = target.status()?;
    show(&status, session)?;
    if count_pending(&status) > 0 {
        session.out.say("apply what is pending with: tenure migrate up")?;
    }
    Ok(Answer::Yes)
}

fn count_pending(status: &[Status]) -> usize {
    status.iter().filter(|step| step.standing == Standing::Pending).count()
}

#[derive(Serialize)]
struct View<'a> {
    version: u32,
    name: &'a str,
    standing: &'static str,
    at: Option<Rfc3339>,
}

fn show<'a>(status: &'a [Status], session: &mut Session) -> Result<()> {
    if session.out.is_json() {
        let view = |step: &'a Status| {
            let (standing, at) = spell(&step.standing);
            View { version: step.version, name: &step.name, standing, at: at.map(Rfc3339) }
        };
        return session.out.document(&status.iter().map(view).collect::<Vec<_>>());
    }
    let now = now();
    let mut table = Table::new(&[
        Column::Number("VERSION"),
        Column::Text("NAME"),
        Column::Text("STANDING"),
        Column::Text("WHEN"),
    ]);
    for step in status {
        let (standing, at) = spell(&step.standing);
        let when = at.map(|at| format!("{} ({at})", relative(at, now))).unwrap_or_default();
        table.row(vec![step.version.to_string(), step.name.clone(), standing.into(), when]);
    }
    session.out.table(&table)
}

/// Where the store stands, as the library's JSON spells it too.
fn spell(standing: &Standing) -> (&'static str, Option<Timestamp>) {
    match standing {
        Standing::Applied(at) => ("applied", Some(*at)),
        Standing::Differs(at) => ("differs", Some(*at)),
        Standing::Newer(at) => ("newer", Some(*at)),
        Standing::NeedsUpgrade(at) => ("needs_upgrade", Some(*at)),
        Standing::Pending => ("pending", None),
    }
}
