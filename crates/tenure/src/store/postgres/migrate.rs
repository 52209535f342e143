//! The schema and its versions: what is applied, what is missing, and bringing it up or down.
//!
//! Two things are installed. Tables come by numbered migrations, once each. Functions come from the
//! binary as a whole and are replaced by every `up`, since replacing one costs nothing and breaks
//! nobody: a signature that was released does not change. Everything happens in one transaction
//! under a lock of its own, so that any number of processes may ask for it at once.

use postgres::types::Type;

use super::address::Address;
use super::link::{Link, Timeouts};
use super::schema::Schema;
use super::session::{Isolation, Session};
use crate::clock::Timestamp;
use crate::store::migrate::{Applied, CLIENT, Migration, Standing, Status, checksum, compare};
use crate::store::{Error, Result};

const MIGRATIONS: [Migration; 1] = [Migration {
    version: 1,
    name: "kernel",
    min_client: 1,
    sql: include_str!("../../../sql/postgres/schema/0001_kernel.sql"),
}];

macro_rules! sql {
    ($($file:literal)+) => { [$(($file, include_str!(concat!("../../../sql/postgres/", $file, ".sql")))),+] };
}

/// The functions, in an order in which each finds what it is made of.
const FUNCTIONS: [(&str, &str); 14] = sql! {
    "verbs/record" "verbs/enqueue" "verbs/claim" "verbs/renew" "verbs/settle" "verbs/lapse" "verbs/operate"
    "verbs/look" "single/enqueue" "single/claim" "single/settle" "single/fence" "single/operate" "single/views"
};

const ROLES: &str = include_str!("../../../sql/postgres/roles.sql");
const REMOVE: &str = include_str!("../../../sql/postgres/remove.sql");
const ABOUT: &str = include_str!("../../../sql/postgres/about.sql");

/// Whether roles are made for those who work, enqueue and read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Roles {
    /// They are made where they are missing, and given their rights.
    Make,
    /// The owner grants rights to roles of their own.
    Leave,
}

/// The schema of one database.
pub struct Migrations {
    link: Link,
    schema: Schema,
}

impl Migrations {
    /// Connects, whatever the schema's state.
    pub fn connect(address: &Address) -> Result<Migrations> {
        let link = Link::open(address, Timeouts::default())?;
        Ok(Migrations { link, schema: Schema::new(address.schema()) })
    }

    /// Where the schema stands. It changes nothing.
    pub fn status(&mut self) -> Result<Vec<Status>> {
        let schema = &self.schema;
        let about = self.link.run("look at the schema", |session| About::of(session, schema))?;
        Ok(about.status())
    }

    /// Applies what is missing and replaces the functions.
    pub fn up(&mut self, roles: Roles) -> Result<()> {
        self.up_with(roles, |_, text| text.to_owned())
    }

    /// The same, with files that `edit` has had in its hands.
    pub(super) fn up_with(
        &mut self,
        roles: Roles,
        edit: impl Fn(&str, &str) -> String,
    ) -> Result<()> {
        let Migrations { link, schema } = self;
        let refused = link.run("bring the schema up to date", |session| {
            session.transaction(Isolation::ReadCommitted, |session| {
                lock(session, schema)?;
                let about = About::of(session, schema)?;
                if let Some(refusal) = about.refusal() {
                    return Ok(Some(refusal));
                }
                install(session, schema, &about, &edit)?;
                if roles == Roles::Make {
                    session.batch(&grants(schema, Roles::Make))?;
                }
                Ok(None)
            })
        })?;
        match refused {
            None => Ok(()),
            Some((problem, next)) => {
                Err(Error::Unusable { target: self.link.target().to_owned(), problem, next })
            }
        }
    }

    /// Removes the schema and everything in it, unless something else depends on it.
    pub fn down(&mut self) -> Result<()> {
        let Migrations { link, schema } = self;
        link.run("remove the schema", |session| {
            session.transaction(Isolation::ReadCommitted, |session| {
                lock(session, schema)?;
                session.batch(&schema.apply(REMOVE))
            })
        })
    }

    /// The statements that give roles their rights, for a person to run.
    pub fn grants(&self) -> String {
        grants(&self.schema, Roles::Leave)
    }

    /// The address as it may be shown.
    pub fn target(&self) -> &str {
        self.link.target()
    }
}

/// Whoever migrates the same schema waits here, and no longer than a person would: the others are
/// doing what we want done.
fn lock(session: &mut Session, schema: &Schema) -> Result<(), postgres::Error> {
    const LOCK: &str = "SELECT pg_advisory_xact_lock(hashtextextended('tenure schema ' || $1, 0))";
    session.batch("SET LOCAL lock_timeout = '60s'")?;
    session.query(LOCK, &[(&schema.name(), Type::TEXT)])?;
    // From here on a lock is one on a table that others use: better to fail than to hold them up.
    session.batch("SET LOCAL lock_timeout = '5s'")
}

fn install(
    session: &mut Session,
    schema: &Schema,
    about: &About,
    edit: &impl Fn(&str, &str) -> String,
) -> Result<(), postgres::Error> {
    const APPLIED: &str = "INSERT INTO tenure.migrations (version, name, checksum, min_client, applied_at) \
        VALUES ($1, $2, $3, $4, tenure.clock_ms())";
    const INSTALLED: &str = "UPDATE tenure.meta SET functions = $1, functions_client = $2, functions_at = tenure.clock_ms()";
    if !about.exists {
        session.batch(&format!("CREATE SCHEMA {}", schema.quoted()))?;
    }
    let pending: Vec<_> = MIGRATIONS
        .iter()
        .filter(|migration| about.applied.iter().all(|done| done.version != migration.version))
        .collect();
    for migration in &pending {
        session.batch(&schema.apply(migration.sql))?;
    }
    for (file, text) in FUNCTIONS {
        session.batch(&schema.apply(&edit(file, text)))?;
    }
    // Nobody but its owner may call anything until it is granted.
    session
        .batch(&format!("REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {} FROM PUBLIC", schema.quoted()))?;
    for migration in pending {
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
    session.execute(
        &schema.apply(INSTALLED),
        &[(&functions_checksum(), Type::TEXT), (&i64::from(CLIENT), Type::INT8)],
    )?;
    Ok(())
}

/// What tells the functions of two binaries apart.
fn functions_checksum() -> String {
    checksum(&FUNCTIONS.map(|(_, text)| text).concat())
}

/// The grants for roles named after the schema.
fn grants(schema: &Schema, roles: Roles) -> String {
    let named = ROLES.replace("tenure_", &format!("{}_", schema.name()));
    let named = if schema.name() == "tenure" {
        named
    } else {
        // Role names need quotes where the schema's name does.
        ["worker", "enqueuer", "reader"].iter().fold(named, |text, role| {
            let name = format!("{}_{role}", schema.name());
            text.replace(&name, &format!("\"{name}\""))
        })
    };
    let text =
        schema.apply(&named).replace("SCHEMA tenure ", &format!("SCHEMA {} ", schema.quoted()));
    let (make, grant) = text.split_once("-- Rights.\n").unwrap_or(("", &text));
    match roles {
        Roles::Make => format!("{make}{grant}"),
        Roles::Leave => grant.to_owned(),
    }
}

/// What is known of a schema without being allowed to read it.
struct About {
    exists: bool,
    /// Whether the role may use it.
    is_usable: bool,
    /// The tables that are there, of those that belong there.
    tables: i64,
    /// How many other objects of the database's are in it.
    others: i64,
    /// Whether the functions that tell about it are there.
    tells: bool,
    applied: Vec<Applied>,
    functions: Option<(String, u32, Timestamp)>,
}

impl About {
    /// The tables of a whole schema.
    const TABLES: i64 = 10;

    fn of(session: &mut Session, schema: &Schema) -> Result<About, postgres::Error> {
        let mut about = About {
            exists: false,
            is_usable: false,
            tables: 0,
            others: 0,
            tells: false,
            applied: vec![],
            functions: None,
        };
        for row in session.query(ABOUT, &[(&schema.name(), Type::TEXT)])? {
            about.exists = row.try_get("exists")?;
            about.is_usable = row.try_get("is_usable")?;
            about.tables = row.try_get("tables")?;
            about.others = row.try_get("others")?;
            about.tells = row.try_get("tells")?;
        }
        if about.tells && about.is_usable {
            const HISTORY: &str =
                "SELECT version, name, checksum, min_client, applied_at FROM tenure.history()";
            for row in session.query(&schema.apply(HISTORY), &[])? {
                let number = |column| {
                    row.try_get::<_, i64>(column).map(|n| u32::try_from(n).unwrap_or(u32::MAX))
                };
                let (name, checksum) = (row.try_get("name")?, row.try_get("checksum")?);
                let (version, min_client) = (number("version")?, number("min_client")?);
                let applied_at = row.try_get("applied_at")?;
                if version == 0 {
                    about.functions = Some((checksum, min_client, applied_at));
                } else {
                    about.applied.push(Applied { version, name, checksum, min_client, applied_at });
                }
            }
        }
        Ok(about)
    }

    fn status(&self) -> Vec<Status> {
        let mut status = compare(&MIGRATIONS, &self.applied);
        let standing = match &self.functions {
            None => Standing::Pending,
            Some((checksum, _, at)) if *checksum == functions_checksum() => Standing::Applied(*at),
            Some((_, client, at)) if *client > CLIENT => Standing::Newer(*at),
            Some((_, _, at)) => Standing::Differs(*at),
        };
        status.push(Status { version: CLIENT, name: "functions".into(), standing });
        status
    }

    /// Why the schema cannot be brought up to date, and what to do instead.
    fn refusal(&self) -> Option<(String, String)> {
        let too_old = |done: &&Applied| done.min_client > CLIENT;
        if let Some(newer) = self.applied.iter().find(too_old) {
            return Some((
                format!("migration {} ({}) is newer than this binary", newer.version, newer.name),
                "upgrade tenure here too".into(),
            ));
        }
        if self.functions.as_ref().is_some_and(|(_, client, _)| *client > CLIENT) {
            return Some((
                "its functions come from a newer binary".into(),
                "upgrade tenure here too, or leave them: this binary can work with them".into(),
            ));
        }
        if self.exists && self.tables == 0 && self.others > 0 {
            return Some((
                format!("the schema holds {} objects that are not Tenure's", self.others),
                "choose another one with ?schema=NAME in the address".into(),
            ));
        }
        (self.tables > 0 && (!self.tells || self.tables < About::TABLES)).then(|| {
            (
                format!("the schema is half installed: {} of {} tables are there", self.tables, About::TABLES),
                "restore the database from a backup, or begin anew with: tenure migrate down --yes, then tenure migrate up".into(),
            )
        })
    }
}

/// Refuses a schema that this binary cannot work with, and says what would help.
pub(super) fn check(link: &mut Link, schema: &Schema) -> Result<()> {
    let about = link.run("look at the schema", |session| About::of(session, schema))?;
    let refuse = |problem: String, next: &str| {
        Err(Error::Unusable { target: link.target().to_owned(), problem, next: next.into() })
    };
    let name = schema.name();
    if !about.exists || about.tables == 0 {
        return refuse(
            format!("the database has no schema {name} of Tenure's"),
            "make it with: tenure migrate up",
        );
    }
    if !about.is_usable {
        return refuse(
            format!("this role may not use the schema {name}"),
            "ask its owner for the rights that `tenure migrate up` prints, or for membership in a role that has them",
        );
    }
    if let Some((problem, next)) = about
        .refusal()
        .filter(|_| about.functions.as_ref().is_none_or(|(_, client, _)| *client <= CLIENT))
    {
        return refuse(problem, &next);
    }
    let pending = compare(&MIGRATIONS, &about.applied)
        .into_iter()
        .find(|step| matches!(step.standing, Standing::Pending | Standing::Differs(_)));
    if let Some(step) = pending {
        return match step.standing {
            Standing::Pending => refuse(
                format!(
                    "migration {} ({}) of the schema {name} is missing",
                    step.version, step.name
                ),
                "apply it with: tenure migrate up",
            ),
            _ => refuse(
                format!(
                    "migration {} ({}) of the schema {name} differs from this binary's",
                    step.version, step.name
                ),
                "use the binary that this store was made with",
            ),
        };
    }
    match &about.functions {
        Some((_, client, _)) if *client >= CLIENT => Ok(()),
        _ => refuse(
            format!("the functions of the schema {name} are older than this binary"),
            "replace them with: tenure migrate up",
        ),
    }
}
