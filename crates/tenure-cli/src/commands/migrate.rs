//! `tenure migrate`: the state of the schema, bringing it up to date, and removing it.
//!
//! A file of Tenure's own is migrated whenever it is opened; `up` does that beforehand. In another
//! application's database, only `up` adds Tenure's tables. On a server, only `up` changes the
//! schema, because that is the owner's decision.

use anyhow::Result;
use tenure::engine::store::migrate::{MigrationState, Status};
use tenure::engine::store::postgres::{Brought, Contents, Newer, Roles};
use tenure::json;

use crate::output::{Column, Table};
use crate::target::{Removable, Target};
use crate::time::{now, relative};
use crate::{Answer, Session};

/// Bring the schema up to date, see where it stands, or remove it
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Apply missing migrations; several processes may run this at once
    #[command(after_help = UP)]
    Up {
        /// On PostgreSQL, make the roles SCHEMA_worker, SCHEMA_enqueuer and SCHEMA_reader with their rights
        #[arg(long)]
        roles: bool,

        /// On PostgreSQL, put this binary's functions back over newer ones
        #[arg(long)]
        force: bool,
    },
    /// Remove the schema with all jobs, on PostgreSQL
    #[command(after_help = DOWN)]
    Down {
        /// Do it; without this, it says what would be removed
        #[arg(long)]
        yes: bool,
    },
    /// Show each migration and whether it is applied; changes nothing
    Status,
}

const UP: &str = "\
It also adds Tenure's tables to a SQLite database that has others. On PostgreSQL it prints the
statements that give a worker, an enqueuer and a reader their rights, unless --roles does it:
  tenure migrate up > grants.sql";

const DOWN: &str = "\
If something else depends on the schema or is kept in it, nothing is removed. Roles stay. A store in a
file is removed by deleting the file.";

pub(crate) fn run(command: &Command, session: &mut Session) -> Result<Answer> {
    match command {
        Command::Up { roles, force } => {
            let roles = if *roles { Roles::Make } else { Roles::Leave };
            up(roles, if *force { Newer::Replace } else { Newer::Leave }, session)
        }
        Command::Down { yes } => down(*yes, session),
        Command::Status => status(session),
    }
}

fn up(roles: Roles, newer: Newer, session: &mut Session) -> Result<Answer> {
    let target = session.target()?;
    // If the status cannot be read, the next call reports why.
    let before = target.status().unwrap_or_default();
    let brought = target.migrate_up(roles, newer)?;
    let after = target.status()?;
    let grants = target.grants().filter(|_| roles == Roles::Leave);
    if session.out.is_json() {
        session.out.document(&json::migrated(&after, grants.as_deref()))?;
        return Ok(Answer::Yes);
    }
    let name = target.name();
    if let Brought::LeftNewer { installed, own } = brought {
        session.out.say(&format!(
            "{name} has the functions of release {installed}, which are newer than those of this binary ({own}) and were \
             left in place; upgrade tenure here too, or if older ones are meant: tenure migrate up --force"
        ))?;
    }
    match after.iter().filter(|step| !before.contains(step)).count() {
        0 => session.out.say(&format!("{name} is up to date"))?,
        n => session.out.say(&format!("{name}: applied {n} of {} migrations", after.len()))?,
    }
    match grants {
        None => session.out.table(&table(&after))?,
        Some(grants) => {
            session.out.say(
                "to give roles of yours the rights of a worker, an enqueuer or a reader, put their \
                 names into these statements and run them as the owner:",
            )?;
            grants.lines().try_for_each(|line| session.out.line(line))?;
        }
    }
    Ok(Answer::Yes)
}

fn down(yes: bool, session: &mut Session) -> Result<Answer> {
    let target = session.target()?;
    let contents = match target.removable()? {
        Removable::Store(contents) => contents,
        Removable::No(why) => return Ok(Answer::No(why)),
        Removable::Nothing => {
            session
                .out
                .say(&format!("{} has no store; there is nothing to remove", target.name()))?;
            return Ok(Answer::Yes);
        }
    };
    if !yes {
        return Ok(Answer::No(ask(&target, &contents)));
    }
    target.migrate_down()?;
    if session.out.is_json() {
        session.out.document(&json::removed(&contents))?;
    } else {
        session.out.line(&format!("removed {} with {}", target.name(), count(&contents)))?;
    }
    Ok(Answer::Yes)
}

fn ask(target: &Target, contents: &Contents) -> String {
    format!(
        "this would remove {} with {} for good; if that is meant: tenure migrate down --yes",
        target.name(),
        count(contents)
    )
}

fn count(Contents { live, ended }: &Contents) -> String {
    let number = |n: u64| match n {
        Contents::MOST.. => format!("{} or more", Contents::MOST),
        n => n.to_string(),
    };
    format!("{} live and {} ended jobs", number(*live), number(*ended))
}

fn status(session: &mut Session) -> Result<Answer> {
    let target = session.target()?;
    let status = target.status()?;
    if session.out.is_json() {
        session.out.document(&status.iter().map(json::migration).collect::<Vec<_>>())?;
    } else {
        session.out.table(&table(&status))?;
    }
    if status.iter().any(|step| step.standing == MigrationState::Pending) {
        session.out.say("apply what is pending with: tenure migrate up")?;
    }
    Ok(Answer::Yes)
}

fn table(status: &[Status]) -> Table {
    let now = now();
    let mut table = Table::new(&[
        Column::Number("VERSION"),
        Column::Text("NAME"),
        Column::Text("STANDING"),
        Column::Text("WHEN"),
    ]);
    for step in status {
        let (standing, at) = (step.standing.name(), step.standing.at());
        let when = at.map(|at| format!("{} ({at})", relative(at, now))).unwrap_or_default();
        table.row(vec![step.version.to_string(), step.name.clone(), standing.into(), when]);
    }
    table
}
