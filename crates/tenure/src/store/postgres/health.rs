//! What `tenure doctor` checks on a server. No job needs any of this to run. A role needs no
//! further right to read it; what the role may not see is reported as such.

use std::time::Duration;

use postgres::Row;
use postgres::types::Type;

use super::Postgres;
use super::address::ServerAddress;
use super::link::{Link, Timeouts};
use super::wake::Heard;
use crate::clock::{self, Clock, Timestamp};
use crate::inspect::DueJobs;
use crate::store::Result;

/// The condition of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// The transaction of this database that has been open longest, if this role may see it.
    pub oldest: Option<OpenTransaction>,
    /// How many sessions hold a snapshot and cannot be seen by this role.
    pub hidden: u64,
    /// The table of jobs, if the server has statistics of it.
    pub jobs: Option<Rows>,
    /// How many milliseconds the server's clock is ahead of this machine's clock.
    pub ahead_ms: i64,
    /// The error of `ahead_ms`: half of the round trip.
    pub uncertain: Duration,
}

/// The settings that the guarantees of an installation depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The installation's setting for commits.
    pub durability: Durability,
    /// Whether this session's commits are on disk before they are acknowledged.
    pub is_synced: bool,
    /// Whether the server reports its WAL timeline, by which a failover is noticed.
    pub tells_timeline: bool,
    /// Whether the server reports its system identifier, by which a dump from another server is
    /// noticed.
    pub tells_system: bool,
}

/// Whether commits wait for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Always, whatever the setting of a session or role is.
    On,
    /// Unless the setting of a session or role says otherwise. If it does, a crash of the server
    /// may lose acknowledged commits, and the server may then issue a token twice.
    Off,
}

impl Durability {
    /// The name in the schema and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Durability::On => "on",
            Durability::Off => "off",
        }
    }
}

/// An open transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTransaction {
    /// What holds it open.
    pub holder: Holder,
    /// How long it has been open.
    pub age: Duration,
}

/// What holds a transaction open.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Holder {
    /// A session: its process, its role and program, and what it does.
    Session { pid: i32, name: String, state: String },
    /// No session: it was prepared under this name, and waits for its COMMIT or ROLLBACK.
    Prepared { name: String },
}

/// The live and dead rows of a table, as the server estimates them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Rows {
    pub live: i64,
    pub dead: i64,
    pub vacuumed_at: Option<Timestamp>,
}

impl Postgres {
    /// Reads the server's condition.
    pub fn health(&mut self) -> Result<Health> {
        const HEALTH: &str = include_str!("../../../sql/postgres/health.sql");
        self.call("look at the server's condition", |session, schema| {
            let (asked, wall) = (clock::monotonic(), Clock::system().now());
            let row = session.query_one(HEALTH, &[(&schema.name(), Type::TEXT)])?;
            let uncertain = (clock::monotonic() - asked) / 2;
            let at: Timestamp = row.try_get("at")?;
            Ok(Health {
                oldest: transaction(&row)?,
                hidden: u64::try_from(row.try_get::<_, i64>("hidden")?).unwrap_or(0),
                jobs: rows(&row)?,
                ahead_ms: at.as_millis() - (wall + uncertain).as_millis(),
                uncertain,
            })
        })
    }

    /// Reads the settings that the guarantees of this installation depend on.
    pub fn terms(&mut self) -> Result<Terms> {
        const TERMS: &str =
            "SELECT durability, is_synced, tells_timeline, tells_system FROM tenure.terms()";
        self.call("look at the installation's terms", |session, schema| {
            let row = session.query_one(&schema.apply(TERMS), &[])?;
            let durability = match row.try_get("durability")? {
                "off" => Durability::Off,
                _ => Durability::On,
            };
            Ok(Terms {
                durability,
                is_synced: row.try_get("is_synced")?,
                tells_timeline: row.try_get("tells_timeline")?,
                tells_system: row.try_get("tells_system")?,
            })
        })
    }

    /// Sets, for the whole installation, whether commits always wait for the disk.
    pub fn set_durability(&mut self, durability: Durability) -> Result<()> {
        const SET: &str = "SELECT tenure.set_durability($1)";
        self.call("set the durability", |session, schema| {
            let name = durability.name();
            session.execute(&schema.apply(SET), &[(&name, Type::TEXT)]).map(drop)
        })
    }

    /// Jobs that are due and not yet claimed, by queue and kind. `None` if this role may not read
    /// the table.
    pub fn due(&mut self) -> Result<Option<Vec<DueJobs>>> {
        const DUE: &str = include_str!("../../../sql/postgres/due.sql");
        const MAY: &str = "SELECT has_table_privilege('tenure.jobs', 'SELECT')";
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let (lanes, each) = (number(DueJobs::LANES), number(DueJobs::EACH));
        self.call("look for due jobs", |session, schema| {
            if !session.query_one(&schema.apply(MAY), &[])?.try_get::<_, bool>(0)? {
                return Ok(None);
            }
            let params = [(&lanes as _, Type::INT8), (&each as _, Type::INT8)];
            let rows = session.query(&schema.apply(DUE), &params)?;
            rows.iter().map(due).collect::<Result<_, _>>().map(Some)
        })
    }

    /// How long a notification takes from this connection to another one, if it arrives within
    /// `patience`. Uses a channel of its own, so that it wakes no worker.
    pub fn notify(
        &mut self,
        address: &ServerAddress,
        patience: Duration,
    ) -> Result<Option<Duration>> {
        let channel = format!("tenure_doctor_{}", clock::unique().simple());
        let mut ears = Link::open(address, Timeouts::default())?;
        ears.listen(&channel)?;
        let said = clock::monotonic();
        self.call("notify", |session, _| {
            session.query("SELECT pg_notify($1, '')", &[(&channel.as_str(), Type::TEXT)])
        })?;
        let heard = ears.wait(said + patience)?;
        Ok(matches!(heard, Heard::Notices(_)).then(|| clock::monotonic() - said))
    }
}

fn transaction(row: &Row) -> Result<Option<OpenTransaction>, postgres::Error> {
    let Some(age_ms) = row.try_get::<_, Option<i64>>("age_ms")? else { return Ok(None) };
    let name = row.try_get("name")?;
    let holder = match row.try_get::<_, Option<i32>>("pid")? {
        Some(pid) => {
            let state: Option<String> = row.try_get("state")?;
            Holder::Session { pid, name, state: state.unwrap_or_default() }
        }
        None => Holder::Prepared { name },
    };
    let age = Duration::from_millis(u64::try_from(age_ms).unwrap_or(0));
    Ok(Some(OpenTransaction { holder, age }))
}

fn rows(row: &Row) -> Result<Option<Rows>, postgres::Error> {
    let (live, dead): (Option<i64>, Option<i64>) = (row.try_get("live")?, row.try_get("dead")?);
    let vacuumed_at = row.try_get("vacuumed_at")?;
    Ok(live.zip(dead).map(|(live, dead)| Rows { live, dead, vacuumed_at }))
}

fn due(row: &Row) -> Result<DueJobs, postgres::Error> {
    Ok(DueJobs {
        queue: row.try_get("queue")?,
        kind: row.try_get("kind")?,
        jobs: u64::try_from(row.try_get::<_, i64>("jobs")?).unwrap_or(0),
    })
}
