//! What a look at a schema finds, and what follows from that: whether the schema can be used,
//! brought up to date, or removed. The look takes one or two round trips and changes nothing. The
//! decisions use its result and nothing else.

use postgres::types::Type;

use super::texts::{self, Functions, MIGRATIONS, lacking};
use crate::clock::Timestamp;
use crate::store::migrate::{
    Applied, CLIENT, FROM_BEFORE, MigrationState, Refusal, Status, check_known, compare,
    is_from_before,
};
use crate::store::postgres::schema::Schema;
use crate::store::postgres::session::Session;

/// A schema as one role sees it.
#[derive(Debug, Clone, Default)]
pub(super) struct About {
    schema: String,
    pub(super) exists: bool,
    /// Whether the role has the right USAGE on the schema.
    is_usable: bool,
    /// Whether the role may create objects in the schema or, if it is missing, the schema itself.
    is_open: bool,
    role: String,
    database: String,
    /// The owner of Tenure's tables or, if there are none, of the schema.
    pub(super) owner: String,
    /// Whether the role has the owner's rights.
    is_owner: bool,
    /// Whether the roles for workers, for enqueueing and for readers exist or can be made.
    has_roles: bool,
    /// Whether it is a schema of Tenure's, whole or not.
    is_ours: bool,
    /// The objects in it, such as `table jobs`.
    parts: Vec<String>,
    /// What was applied; `None` if the role cannot read that.
    history: Option<History>,
}

#[derive(Debug, Clone, Default)]
struct History {
    applied: Vec<Applied>,
    functions: Option<Installed>,
}

/// The functions that were installed.
#[derive(Debug, Clone)]
struct Installed {
    checksum: String,
    client: u32,
    /// 0 for functions from before releases were counted.
    release: u32,
    at: Timestamp,
}

fn refuse(problem: impl Into<String>, next: impl Into<String>) -> Result<(), Refusal> {
    Err(Refusal::new(problem, next))
}

impl About {
    /// Looks at the schema in the database.
    pub(super) fn of(session: &mut Session, schema: &Schema) -> Result<About, postgres::Error> {
        const ABOUT: &str = include_str!("../../../../sql/postgres/about.sql");
        let row = session.query_one(ABOUT, &[(&schema.name(), Type::TEXT)])?;
        let mut about = About {
            schema: schema.name().to_owned(),
            exists: row.try_get("exists")?,
            is_usable: row.try_get("is_usable")?,
            is_open: row.try_get("is_open")?,
            role: row.try_get("role")?,
            database: row.try_get("database")?,
            owner: row.try_get("owner")?,
            is_owner: row.try_get("is_owner")?,
            has_roles: row.try_get("has_roles")?,
            is_ours: row.try_get("is_ours")?,
            parts: row.try_get("parts")?,
            history: None,
        };
        if about.is_ours && about.is_usable {
            about.history = about.read_history(session, schema)?;
        }
        Ok(about)
    }

    /// Reads which migrations and functions were installed. The owner reads the tables, because the
    /// function `history` may be missing. Other roles have no right on the tables, and call the
    /// function.
    fn read_history(
        &self,
        session: &mut Session,
        schema: &Schema,
    ) -> Result<Option<History>, postgres::Error> {
        // By way of JSON, because an older table may lack the column `functions_release`.
        const OWN: &str = "SELECT version, name, checksum, min_client, applied_at FROM tenure.migrations \
            UNION ALL SELECT 0, concat('functions ', to_json(m) ->> 'functions_release'), functions, functions_client, \
            functions_at FROM tenure.meta m WHERE functions IS NOT NULL ORDER BY 1";
        const GRANTED: &str =
            "SELECT version, name, checksum, min_client, applied_at FROM tenure.history()";
        if !self.has("table migrations") || !self.has("table meta") {
            return Ok(Some(History::default()));
        }
        let sql = match (self.is_owner, self.has("function history")) {
            (true, _) => OWN,
            (false, true) => GRANTED,
            (false, false) => return Ok(None),
        };
        let mut history = History::default();
        for row in session.query(&schema.apply(sql), &[])? {
            let number = |column| {
                row.try_get::<_, i64>(column).map(|n| u32::try_from(n).unwrap_or(u32::MAX))
            };
            let (name, checksum): (String, _) = (row.try_get("name")?, row.try_get("checksum")?);
            let (version, min_client) = (number("version")?, number("min_client")?);
            let applied_at = row.try_get("applied_at")?;
            if version == 0 {
                let release = name.split(' ').nth(1).and_then(|number| number.parse().ok());
                let (client, release) = (min_client, release.unwrap_or(0));
                history.functions = Some(Installed { checksum, client, release, at: applied_at });
            } else {
                history.applied.push(Applied { version, name, checksum, min_client, applied_at });
            }
        }
        Ok(Some(history))
    }

    pub(super) fn has(&self, part: &str) -> bool {
        self.parts.iter().any(|found| found == part)
    }

    /// Whether the schema holds anything: a store, what is left of one, or objects of others.
    pub(super) fn is_there(&self) -> bool {
        self.is_ours || !self.parts.is_empty()
    }

    /// Whether the connected role has the rights of the owner, but is another role, such as a
    /// superuser.
    pub(super) fn acts_for_another(&self) -> bool {
        self.exists && self.is_owner && self.owner != self.role
    }

    pub(super) fn applied(&self) -> &[Applied] {
        self.history.as_ref().map_or(&[], |history| &history.applied)
    }

    fn functions(&self) -> Option<&Installed> {
        self.history.as_ref().and_then(|history| history.functions.as_ref())
    }

    /// Whether an `up` with these functions would have nothing to do.
    pub(super) fn is_current(&self, functions: &Functions) -> bool {
        self.has_tables() && self.has_functions(functions)
    }

    /// Whether all tables of this binary are there.
    pub(super) fn has_tables(&self) -> bool {
        let is_applied = |status: &Status| {
            matches!(status.standing, MigrationState::Applied(_) | MigrationState::Newer(_))
        };
        compare(&MIGRATIONS, self.applied()).iter().all(is_applied)
    }

    /// Whether functions of some release are installed.
    pub(super) fn has_any_functions(&self) -> bool {
        self.functions().is_some()
    }

    /// Whether these functions are installed, and all of them.
    pub(super) fn has_functions(&self, functions: &Functions) -> bool {
        let same = |installed: &Installed| installed.checksum == functions.checksum;
        self.functions().is_some_and(same) && self.lacking_functions().is_empty()
    }

    /// The release of the installed functions, if they are newer than these: from a later release,
    /// or from a binary with a higher [`CLIENT`].
    pub(super) fn newer_than(&self, functions: &Functions) -> Option<u32> {
        let is_newer = |installed: &&Installed| {
            installed.checksum != functions.checksum
                && (installed.client, installed.release) > (CLIENT, functions.release)
        };
        self.functions().filter(is_newer).map(|installed| installed.release)
    }

    /// The state of each migration and, as the last entry, of the functions.
    pub(super) fn status(&self) -> Result<Vec<Status>, Refusal> {
        self.is_whole()?;
        let mut status = compare(&MIGRATIONS, self.applied());
        let standing = match self.functions() {
            Some(installed) if installed.checksum == Functions::own().checksum => {
                if self.lacking_functions().is_empty() {
                    MigrationState::Applied(installed.at)
                } else {
                    MigrationState::Pending
                }
            }
            Some(installed) if self.newer_than(&Functions::own()).is_some() => {
                MigrationState::Newer(installed.at)
            }
            Some(installed) => MigrationState::Differs(installed.at),
            None => MigrationState::Pending,
        };
        status.push(Status { version: CLIENT, name: "functions".into(), standing });
        Ok(status)
    }

    /// Refuses a schema that this binary cannot work with.
    pub(super) fn can_be_used(&self) -> Result<(), Refusal> {
        let name = &self.schema;
        if !self.is_there() {
            return refuse(
                format!("the database has no schema {name} of Tenure's"),
                "make it with: tenure migrate up",
            );
        }
        self.is_whole()?;
        check_known(&MIGRATIONS, self.applied())?;
        if compare(&MIGRATIONS, self.applied())
            .iter()
            .any(|step| step.standing == MigrationState::Pending)
        {
            return refuse(
                format!("the schema {name} is older than this binary"),
                "bring it up to date with: tenure migrate up",
            );
        }
        let lacking = self.lacking_functions();
        if !lacking.is_empty() {
            return refuse(
                format!("the schema {name} lacks {}", list(&lacking)),
                "put it back with: tenure migrate up",
            );
        }
        if self.functions().is_none_or(|installed| installed.client < CLIENT) {
            return refuse(
                format!("the functions of the schema {name} are older than this binary"),
                "replace them with: tenure migrate up",
            );
        }
        Ok(())
    }

    /// Refuses a schema that must not be brought up to date, or not by this role.
    pub(super) fn can_go_up(&self) -> Result<(), Refusal> {
        let About { schema, role, database, owner, .. } = self;
        if !self.is_open && !self.exists {
            return refuse(
                format!("the role {role} may not make a schema in this database"),
                format!(
                    "run it as the database's owner, or have them run: GRANT CREATE ON DATABASE \"{database}\" TO \"{role}\""
                ),
            );
        }
        if self.exists && !self.is_there() && !self.is_open {
            return refuse(
                format!("the role {role} may not make tables in the schema {schema}"),
                format!(
                    "run it as {owner}, or have them run: GRANT USAGE, CREATE ON SCHEMA \"{schema}\" TO \"{role}\""
                ),
            );
        }
        if self.is_ours && !self.is_owner {
            return refuse(
                format!("the schema {schema} belongs to {owner}, not to {role}"),
                format!("run it as {owner}"),
            );
        }
        self.is_whole()?;
        check_known(&MIGRATIONS, self.applied())
    }

    /// Refuses to replace newer functions by this binary's, if they belong to tables that this
    /// binary does not know.
    pub(super) fn can_go_back(&self) -> Result<(), Refusal> {
        if self.functions().is_some_and(|installed| installed.client > CLIENT) {
            return refuse(
                "its functions come from a newer binary, and its tables too, which this one's functions do not know",
                "upgrade tenure here too, or leave --force out: this binary can work with them",
            );
        }
        Ok(())
    }

    /// Refuses roles that could not be made.
    pub(super) fn can_have_roles(&self) -> Result<(), Refusal> {
        // The server cuts longer names, and then two of the roles could get the same name.
        const LONGEST: usize = 63 - "_enqueuer".len();
        let leave = "leave --roles out, and give the rights to roles of yours";
        if self.schema.len() > LONGEST {
            return refuse("its name is too long to name roles after it", leave);
        }
        if !self.has_roles {
            return refuse(
                format!("the role {} may not make roles", self.role),
                format!("run it as one that has CREATEROLE, or {leave}"),
            );
        }
        Ok(())
    }

    /// Refuses to remove a schema that does not belong to Tenure alone.
    pub(super) fn can_be_removed(&self) -> Result<(), Refusal> {
        let About { schema, role, owner, .. } = self;
        if !self.is_ours {
            return self.is_whole();
        }
        if !self.is_owner {
            return refuse(
                format!("the schema {schema} belongs to {owner}, not to {role}"),
                format!("run it as {owner}"),
            );
        }
        check_known(&MIGRATIONS, self.applied())?;
        let mut others = lacking(self.parts.clone(), &texts::all_parts());
        // A trigger is dropped with its table.
        others.retain(|part| !part.starts_with("trigger "));
        if !others.is_empty() {
            return refuse(
                format!(
                    "the schema {schema} also holds what is not Tenure's, and nothing was removed: {}",
                    list(&others)
                ),
                "move it elsewhere or drop it, then repeat this",
            );
        }
        Ok(())
    }

    /// Refuses a schema that belongs to another program, that this role may not use, or that has
    /// lost a table.
    fn is_whole(&self) -> Result<(), Refusal> {
        let name = &self.schema;
        if !self.is_ours && !self.parts.is_empty() {
            return refuse(
                format!("the schema {name} is not Tenure's; it holds {}", list(&self.parts)),
                "choose another one with ?schema=NAME in the address",
            );
        }
        if !self.is_ours {
            return Ok(());
        }
        if !self.is_usable {
            return refuse(
                format!("the role {} may not use the schema {name}", self.role),
                format!("ask {} for the rights that `tenure migrate up` prints", self.owner),
            );
        }
        let Some(history) = &self.history else {
            return refuse(
                format!("the schema {name} lacks function history"),
                format!("have {} run: tenure migrate up", self.owner),
            );
        };
        if is_from_before(&history.applied) {
            return refuse(
                FROM_BEFORE,
                format!(
                    "choose another schema with ?schema=NAME in the address, or let the tenure that made {name} finish \
                     its jobs and then drop it: DROP SCHEMA \"{name}\" CASCADE"
                ),
            );
        }
        let lost = lacking(texts::table_parts(&history.applied), &self.parts);
        let what = match (history.applied.is_empty(), lost.is_empty()) {
            (false, true) => return Ok(()),
            (false, false) => format!("it lacks {}", list(&lost)),
            (true, _) => "it does not say what was applied".to_owned(),
        };
        refuse(
            format!("the schema {name} is half installed: {what}"),
            "restore the database from a backup, or begin anew with: tenure migrate down --yes, and then: tenure migrate up",
        )
    }

    /// The missing functions, if those of this binary are installed. Otherwise none: this binary
    /// does not know which functions another binary has.
    fn lacking_functions(&self) -> Vec<String> {
        match self.functions() {
            Some(installed) if installed.checksum == Functions::own().checksum => {
                lacking(texts::function_parts(), &self.parts)
            }
            _ => Vec::new(),
        }
    }
}

/// The first few, and how many more.
fn list(parts: &[String]) -> String {
    const SHOWN: usize = 3;
    let first = parts.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match parts.len().saturating_sub(SHOWN) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

#[cfg(test)]
mod tests;
