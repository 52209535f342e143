//! The schema and its versions: what is applied, what is missing, and how it is brought up to date
//! or removed.
//!
//! Two things are installed. Tables come by numbered migrations, each applied once. Functions come
//! from the binary as a whole and replace those of an older one; the functions of
//! `sql/postgres/single` keep their released signatures, so that their callers need no change.
//! Functions of a newer release stay in place: each set of functions has a release number.
//!
//! Every change happens in one transaction under one lock, so that any number of processes may
//! start it at once. If nothing is missing and no roles are to be made, nothing is locked.

mod about;
mod replace;
mod texts;

use postgres::types::Type;

use self::about::About;
use self::replace::replace;
use self::texts::{Functions, MIGRATIONS};
use super::address::ServerAddress;
use super::link::{Link, Timeouts};
use super::schema::Schema;
use super::session::{Isolation, Session};
use crate::store::migrate::{CLIENT, Refusal, Status};
use crate::store::{Error, Result};

/// Whether to make roles for workers, for programs that enqueue, and for readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Roles {
    /// Make the missing ones, and grant them their rights.
    Make,
    /// Make none: the owner grants rights to other roles.
    Leave,
}

/// What to do with functions that are newer than this binary's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Newer {
    /// Leave them in place.
    Leave,
    /// Replace them by this binary's.
    Replace,
}

/// The result of bringing a schema up to date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Brought {
    /// It has all that this binary installs.
    Current,
    /// Its tables are up to date. Its functions are newer than this binary's, and were left in
    /// place.
    LeftNewer {
        /// The release of the installed functions.
        installed: u32,
        /// The release of this binary's functions.
        own: u32,
    },
}

/// How many jobs a store holds, for the operator who removes it. Counting stops at
/// [`Contents::MOST`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contents {
    /// Jobs that are queued, running or parked.
    pub live: u64,
    /// Jobs that have ended.
    pub ended: u64,
}

impl Contents {
    /// A count that is this high means this many jobs or more.
    pub const MOST: u64 = 1_000_000;
}

/// The schema of one database.
pub struct Migrations {
    link: Link,
    schema: Schema,
}

impl Migrations {
    /// Connects, whatever the schema's state.
    pub fn connect(address: &ServerAddress) -> Result<Migrations> {
        let link = Link::open(address, Timeouts::default())?;
        Ok(Migrations { link, schema: Schema::new(address.schema()) })
    }

    /// The state of the schema. Changes nothing.
    pub fn status(&mut self) -> Result<Vec<Status>> {
        let about = look(&mut self.link, &self.schema)?;
        about.status().map_err(|refusal| self.refused(refusal))
    }

    /// Applies what is missing, and replaces the functions if they are older than this binary's.
    pub fn up(&mut self, roles: Roles) -> Result<Brought> {
        self.bring(roles, Newer::Leave)
    }

    /// Like [`Migrations::up`], with the choice whether newer functions are left or replaced.
    pub fn bring(&mut self, roles: Roles, newer: Newer) -> Result<Brought> {
        self.up_with(roles, newer, &Functions::own())
    }

    /// Like [`Migrations::up`], with the text of each file passed through `edit`.
    #[cfg(feature = "drill")]
    pub(super) fn up_edited(&mut self, edit: impl Fn(&str, &str) -> String) -> Result<()> {
        self.up_with(Roles::Leave, Newer::Leave, &Functions::edited(edit)).map(drop)
    }

    /// The files of functions, without `.sql`, and their texts.
    #[cfg(feature = "drill")]
    pub(super) fn texts() -> Vec<(&'static str, &'static str)> {
        texts::FUNCTIONS.to_vec()
    }

    /// Replaces the functions of one file, and gives them their planner settings again, which a
    /// replaced function loses.
    #[cfg(feature = "drill")]
    pub(super) fn replace(&mut self, text: &str) -> Result<()> {
        let Migrations { link, schema } = self;
        link.run("replace functions", |session| {
            session.transaction(Isolation::ReadCommitted, |session| {
                session.batch("SET LOCAL search_path = pg_catalog, pg_temp")?;
                session.batch(&schema.apply(text))?;
                session.batch(&schema.apply(texts::PLANS))
            })
        })
    }

    fn up_with(&mut self, roles: Roles, newer: Newer, functions: &Functions) -> Result<Brought> {
        let Migrations { link, schema } = self;
        let wanted = |about: &About| {
            about.can_go_up()?;
            if newer == Newer::Replace {
                about.can_go_back()?;
            }
            if roles == Roles::Make { about.can_have_roles() } else { Ok(()) }
        };
        let left = |about: &About| about.newer_than(functions).filter(|_| newer == Newer::Leave);
        let is_done = |about: &About| {
            about.is_current(functions) || left(about).is_some() && about.has_tables()
        };
        let brought = |about: &About| match left(about) {
            Some(installed) => Brought::LeftNewer { installed, own: functions.release },
            None => Brought::Current,
        };
        let about = look(link, schema)?;
        if roles == Roles::Leave && wanted(&about).is_ok() && is_done(&about) {
            return Ok(brought(&about));
        }
        let done = link.run("bring the schema up to date", |session| {
            session.transaction(Isolation::ReadCommitted, |session| {
                lock(session, schema)?;
                let about = About::of(session, schema)?;
                if let Err(refusal) = wanted(&about) {
                    return Ok(Err(refusal));
                }
                if roles == Roles::Make {
                    session.batch(&make_roles(schema))?;
                }
                if about.acts_for_another() {
                    // Act as the owner of the schema. Functions that a superuser owned would run
                    // with a superuser's rights.
                    let owner = (&about.owner as &_, Type::TEXT);
                    session.query("SELECT set_config('role', $1, true)", &[owner])?;
                }
                if !is_done(&about) {
                    install(session, schema, &about, functions, left(&about).is_none())?;
                }
                if roles == Roles::Make {
                    session.batch(&grants(schema))?;
                }
                Ok(Ok(brought(&about)))
            })
        })?;
        done.map_err(|refusal| self.refused(refusal))
    }

    /// How many jobs [`Migrations::down`] would delete; `None` if there is no store. Refuses what
    /// `down` would refuse.
    pub fn contents(&mut self) -> Result<Option<Contents>> {
        const COUNT: &str = "SELECT count(*) FROM (SELECT 1 FROM tenure.TABLE LIMIT $1) counted";
        let about = look(&mut self.link, &self.schema)?;
        about.can_be_removed().map_err(|refusal| self.refused(refusal))?;
        if !about.is_there() {
            return Ok(None);
        }
        let Migrations { link, schema } = self;
        let most = i64::try_from(Contents::MOST).unwrap_or(i64::MAX);
        let mut count = |table: &str| -> Result<u64> {
            if !about.has(&format!("table {table}")) {
                return Ok(0);
            }
            let sql = COUNT.replace("TABLE", table);
            let n: i64 = link.run("count jobs", |session| {
                session.query_one(&schema.apply(&sql), &[(&most, Type::INT8)])?.try_get(0)
            })?;
            Ok(n.unsigned_abs())
        };
        Ok(Some(Contents { live: count("jobs")?, ended: count("done")? }))
    }

    /// Removes the schema with Tenure's objects. If the schema holds anything else, or another
    /// object depends on it, nothing is removed. Roles stay: they belong to the whole server.
    pub fn down(&mut self) -> Result<()> {
        let Migrations { link, schema } = self;
        let done = link.run("remove the schema", |session| {
            session.transaction(Isolation::ReadCommitted, |session| {
                lock(session, schema)?;
                let about = About::of(session, schema)?;
                if let Err(refusal) = about.can_be_removed() {
                    return Ok(Err(refusal));
                }
                if about.is_there() {
                    remove(session, schema)?;
                }
                Ok(Ok(()))
            })
        })?;
        done.map_err(|refusal| self.refused(refusal))
    }

    /// The statements that give roles their rights, for a person to run.
    pub fn grants(address: &ServerAddress) -> String {
        grants(&Schema::new(address.schema()))
    }

    fn refused(&self, refusal: Refusal) -> Error {
        unusable(&self.link, refusal)
    }
}

/// Refuses a schema that this binary cannot work with, and says what would help.
pub(super) fn check(link: &mut Link, schema: &Schema) -> Result<()> {
    let about = look(link, schema)?;
    about.can_be_used().map_err(|refusal| unusable(link, refusal))
}

fn look(link: &mut Link, schema: &Schema) -> Result<About> {
    link.run("look at the schema", |session| About::of(session, schema))
}

fn unusable(link: &Link, Refusal { problem, next }: Refusal) -> Error {
    Error::Unusable { target: link.target().to_owned(), problem, next }
}

/// Takes the lock under which the schema is changed. Other processes that migrate it wait here, for
/// 60 s at most; the first one does the work for all.
fn lock(session: &mut Session, schema: &Schema) -> Result<(), postgres::Error> {
    const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended('tenure schema ' || $1, 0))";
    // No time limit for a statement: a slow migration must not be aborted. And a fixed search path:
    // names in the files must not depend on the path of the role.
    session.batch(
        "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '60s'; SET LOCAL search_path = pg_catalog, pg_temp",
    )?;
    session.query(LOCK, &[(&schema.name(), Type::TEXT)])?;
    // From here on, the locks are on tables that workers use. Fail after 5 s instead of blocking
    // the workers for longer.
    session.batch("SET LOCAL lock_timeout = '5s'")
}

fn install(
    session: &mut Session,
    schema: &Schema,
    about: &About,
    functions: &Functions,
    replaces: bool,
) -> Result<(), postgres::Error> {
    const APPLIED: &str = "INSERT INTO tenure.migrations (version, name, checksum, min_client, applied_at) \
        VALUES ($1, $2, $3, $4, tenure.clock_ms())";
    const INSTALLED: &str = "UPDATE tenure.meta SET functions = $1, functions_client = $2, functions_release = $3, \
        functions_at = tenure.clock_ms()";
    // Set only once. A restored dump contains the values of its old server. They must stay, because
    // they show that the database was moved.
    const NOTED: &str = "UPDATE tenure.meta m SET wal_timeline = h.wal_timeline, system = h.system, jobs_table = h.jobs_table \
        FROM tenure.whereabouts() h WHERE m.wal_timeline IS NULL";
    if !about.exists {
        session.batch(&format!("CREATE SCHEMA {}", schema.quoted()))?;
    }
    let is_missing = |version| about.applied().iter().all(|done| done.version != version);
    let pending = || MIGRATIONS.iter().filter(|step| is_missing(step.version));
    for (migration, text) in MIGRATIONS.iter().zip(&functions.tables) {
        if is_missing(migration.version) {
            session.batch(&schema.apply(text))?;
        }
    }
    if replaces && about.has_any_functions() {
        replace(session, schema, &functions.files)?;
    } else if replaces {
        functions.files.iter().try_for_each(|text| session.batch(&schema.apply(text)))?;
    }
    // Only the owner may call a function until the right is granted.
    session
        .batch(&format!("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {} FROM PUBLIC", schema.quoted()))?;
    // Recorded last, because `tenure.clock_ms` is one of the functions.
    for migration in pending() {
        session.execute(
            &schema.apply(APPLIED),
            &[
                (&i64::from(migration.version), Type::INT8),
                (&migration.name, Type::TEXT),
                (&migration.checksum(), Type::TEXT),
                (&i64::from(migration.min_client), Type::INT8),
            ],
        )?;
    }
    if replaces {
        session.execute(
            &schema.apply(INSTALLED),
            &[
                (&functions.checksum, Type::TEXT),
                (&i64::from(CLIENT), Type::INT8),
                (&i64::from(functions.release), Type::INT8),
            ],
        )?;
    }
    session.execute(&schema.apply(NOTED), &[])?;
    Ok(())
}

fn remove(session: &mut Session, schema: &Schema) -> Result<(), postgres::Error> {
    const REMOVE: &str = include_str!("../../../sql/postgres/remove.sql");
    let ours = texts::all_parts();
    let name = (&schema.name() as &_, Type::TEXT);
    for row in session.query(REMOVE, &[name, (&ours, Type::TEXT_ARRAY)])? {
        session.batch(row.try_get("statement")?)?;
    }
    Ok(())
}

fn make_roles(schema: &Schema) -> String {
    // In that file the role names stand in single quotes, which no schema's name contains.
    include_str!("../../../sql/postgres/roles.sql")
        .replace("'tenure_", &format!("'{}_", schema.name()))
}

fn grants(schema: &Schema) -> String {
    let named = include_str!("../../../sql/postgres/grants.sql")
        // Replace the names of the roles first: the schema's own name may begin like them, for
        // example `tenure_jobs`.
        .replace("\"tenure_", &format!("\"{}_", schema.name()))
        .replace("\"tenure\"", &format!("\"{}\"", schema.name()));
    schema.apply(&named).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_given_to_roles_that_are_named_after_the_schema() {
        for name in ["tenure", "tenure_jobs", "Job Queue-2", "my tenure"] {
            let text = grants(&Schema::new(name));
            let first = format!(
                "GRANT USAGE ON SCHEMA \"{name}\" TO \"{name}_worker\", \"{name}_enqueuer\", \"{name}_reader\";"
            );
            assert!(text.contains(&first), "{text}");
            let home = Schema::new(name);
            assert!(text.contains(&format!("FUNCTION {}.history, ", home.quoted())), "{text}");
            assert!(make_roles(&home).contains(&format!("ARRAY['{name}_worker', ")), "{name}");
        }
    }
}
