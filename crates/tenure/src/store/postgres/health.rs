//! What a doctor looks at on a server. Nothing here is needed for a job to run, and nothing needs more rights than to
//! look; what a role may not see is told as such.

use std::time::Duration;

use postgres::Row;
use postgres::types::Type;

use super::Postgres;
use super::address::Address;
use super::link::{Link, Timeouts};
use super::wake::Heard;
use crate::clock::{self, Clock, Timestamp};
use crate::inspect::Due;
use crate::store::Result;

/// The condition of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// The transaction of this database that has been open the longest, if this role may see it.
    pub oldest: Option<Transaction>,
    /// How many sessions hold a snapshot that this role cannot look into.
    pub hidden: u64,
    /// The table of jobs, if the server has counted.
    pub jobs: Option<Rows>,
    /// By how many milliseconds the server's clock is ahead of this machine's.
    pub ahead_ms: i64,
    /// Half of the round trip: by so much that may be wrong.
    pub uncertain: Duration,
}

/// What the promises of an installation rest on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// What it has said about commits.
    pub durability: Durability,
    /// Whether what this session is answered is on disk by then.
    pub is_synced: bool,
    /// Whether the server tells its WAL timeline, by which a failover is noticed.
    pub tells_timeline: bool,
    /// Whether the server tells its system identifier, by which a dump from another one is noticed.
    pub tells_system: bool,
}

/// Whether commits wait for the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Always, whatever a session or role says.
    On,
    /// Unless a session or role says otherwise: then a crash of the server may lose what it has answered, and may issue
    /// a token twice.
    Off,
}

impl Durability {
    /// As the schema and people spell it.
    pub fn name(self) -> &'static str {
        match self {
            Durability::On => "on",
            Durability::Off => "off",
        }
    }
}

/// A transaction that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transaction {
    /// Whose.
    pub holder: Holder,
    /// For how long.
    pub age: Duration,
}

/// Who holds a transaction open.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Holder {
    /// A session: its process, its role and program, and what it does.
    Session { pid: i32, name: String, state: String },
    /// Nobody: it was prepared under this name, and waits for its end.
    Prepared { name: String },
}

/// What vacuum has left of a table, as the server estimates it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Rows {
    pub live: i64,
    pub dead: i64,
    pub vacuumed_at: Option<Timestamp>,
}

impl Postgres {
    /// Looks at the server's condition.
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

    /// What the promises of this installation rest on.
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

    /// Says for the whole installation whether commits wait for the disk.
    pub fn set_durability(&mut self, durability: Durability) -> Result<()> {
        const SET: &str = "SELECT tenure.set_durability($1)";
        self.call("set the durability", |session, schema| {
            let name = durability.name();
            session.execute(&schema.apply(SET), &[(&name, Type::TEXT)]).map(drop)
        })
    }

    /// Jobs that are due and that nobody has taken yet, by queue and kind. Nothing, if this role may
    /// not look at the table.
    pub fn due(&mut self) -> Result<Option<Vec<Due>>> {
        const DUE: &str = include_str!("../../../sql/postgres/due.sql");
        const MAY: &str = "SELECT has_table_privilege('tenure.jobs', 'SELECT')";
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let (lanes, each) = (number(Due::LANES), number(Due::EACH));
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
    /// `patience`. It is said in a channel of its own, so that it wakes nobody.
    pub fn notify(&mut self, address: &Address, patience: Duration) -> Result<Option<Duration>> {
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

fn transaction(row: &Row) -> Result<Option<Transaction>, postgres::Error> {
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
    Ok(Some(Transaction { holder, age }))
}

fn rows(row: &Row) -> Result<Option<Rows>, postgres::Error> {
    let (live, dead): (Option<i64>, Option<i64>) = (row.try_get("live")?, row.try_get("dead")?);
    let vacuumed_at = row.try_get("vacuumed_at")?;
    Ok(live.zip(dead).map(|(live, dead)| Rows { live, dead, vacuumed_at }))
}

fn due(row: &Row) -> Result<Due, postgres::Error> {
    Ok(Due {
        queue: row.try_get("queue")?,
        kind: row.try_get("kind")?,
        jobs: u64::try_from(row.try_get::<_, i64>("jobs")?).unwrap_or(0),
    })
}
