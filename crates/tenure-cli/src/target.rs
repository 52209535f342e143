//! Where the store is, and everything that depends on its engine: the only place that knows which
//! engines there are. A store is in a [`file`] or on a [`server`]; both modules have the same
//! functions in the same order.

mod file;
mod server;

use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::Result;
use tenure::inspect::Due;
use tenure::store::Store;
use tenure::store::migrate::Status;
use tenure::store::postgres::{Address, Brought, Contents, Durability, Newer, Roles};

use crate::args::BadInput;
use crate::commands::doctor::Examined;

/// The default file.
const DEFAULT: &str = "tenure.db";

/// A store that can be opened.
#[derive(Debug)]
pub(crate) enum Target {
    File(PathBuf),
    Server(Box<Address>),
}

/// What a removal would find.
pub(crate) enum Removable {
    /// A store with these jobs.
    Store(Contents),
    /// There is none.
    Nothing,
    /// A command does not remove it: why, and what to do instead.
    No(String),
}

impl Target {
    /// Parses `--db` or `TENURE_DB`. Errors do not repeat the text: it may contain a password.
    pub(crate) fn parse(db: Option<&OsStr>) -> Result<Target> {
        let db = db.unwrap_or(OsStr::new(DEFAULT));
        let text = db.to_string_lossy();
        if tenure::store::is_meant_as_a_server(&text) {
            let text = db.to_str().ok_or(BadInput("--db: the address is not UTF-8".into()))?;
            return Ok(Target::Server(Box::new(Address::parse(text)?)));
        }
        // A name that is not UTF-8 cannot be a URL, but may be a file.
        let Some(text) = db.to_str() else { return Ok(Target::File(db.into())) };
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        if let Some(other) = scheme.filter(|scheme| *scheme != "sqlite") {
            let why = format!(
                "--db: {other}:// is no store of Tenure's; name a file, or write sqlite:FILE or postgres://…"
            );
            return Err(BadInput(why).into());
        }
        let file = text.strip_prefix("sqlite://").or(text.strip_prefix("sqlite:")).unwrap_or(text);
        match file {
            "" => Err(BadInput(
                "--db (or TENURE_DB) names no file; give it one, such as tenure.db".into(),
            )
            .into()),
            ":memory:" => Err(BadInput(
                "--db: a store in memory is gone when this command ends; name a file".into(),
            )
            .into()),
            file => Ok(Target::File(file.into())),
        }
    }

    /// The store's name for people, without secrets.
    pub(crate) fn name(&self) -> String {
        match self {
            Target::File(file) => file.display().to_string(),
            Target::Server(address) => address.to_string(),
        }
    }

    /// Opens the store. A file is created if it does not exist.
    pub(crate) fn open(&self) -> Result<Box<dyn Store>> {
        match self {
            Target::File(file) => file::open(file),
            Target::Server(address) => server::open(address),
        }
    }

    /// The state of the schema. Changes nothing.
    pub(crate) fn status(&self) -> Result<Vec<Status>> {
        match self {
            Target::File(file) => file::status(file),
            Target::Server(address) => server::status(address),
        }
    }

    /// Brings the schema up to date, also beside another application's tables.
    pub(crate) fn migrate_up(&self, roles: Roles, newer: Newer) -> Result<Brought> {
        match self {
            Target::File(file) => file::migrate_up(file, roles, newer),
            Target::Server(address) => server::migrate_up(address, roles, newer),
        }
    }

    /// The statements that grant other roles their rights, if there are other roles.
    pub(crate) fn grants(&self) -> Option<String> {
        match self {
            Target::File(_) => None,
            Target::Server(address) => Some(server::grants(address)),
        }
    }

    /// What a removal would delete. Changes nothing.
    pub(crate) fn removable(&self) -> Result<Removable> {
        match self {
            Target::File(file) => Ok(file::removable(file)),
            Target::Server(address) => server::removable(address),
        }
    }

    /// Removes the store.
    pub(crate) fn migrate_down(&self) -> Result<()> {
        match self {
            Target::File(file) => file::migrate_down(file),
            Target::Server(address) => server::migrate_down(address),
        }
    }

    /// Sets whether commits wait for the disk, and returns the previous setting.
    pub(crate) fn set_durability(&self, durability: Durability) -> Result<Durability> {
        match self {
            Target::File(_) => {
                let why = "--durability: a file always waits for the disk; this is for PostgreSQL, so name a server \
                           with --db";
                Err(BadInput(why.into()).into())
            }
            Target::Server(address) => server::set_durability(address, durability),
        }
    }

    /// What is due, by queue and kind; none if this role may not read it.
    pub(crate) fn due(&self) -> Result<Option<Vec<Due>>> {
        match self {
            Target::File(file) => file::due(file),
            Target::Server(address) => server::due(address),
        }
    }

    /// Examines what the promises of this store rest on.
    pub(crate) fn examine(&self) -> Result<Examined> {
        match self {
            Target::File(file) => file::examine(file),
            Target::Server(address) => server::examine(address),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parse(db: &str) -> Result<Target> {
        Target::parse(Some(OsStr::new(db)))
    }

    fn file(db: &str) -> PathBuf {
        match parse(db).unwrap() {
            Target::File(file) => file,
            Target::Server(address) => panic!("{db} is not {address}"),
        }
    }

    #[test]
    fn a_file_has_several_spellings() {
        assert_eq!(Target::parse(None).unwrap().name(), "tenure.db");
        assert_eq!(file("a.db"), Path::new("a.db"));
        assert_eq!(file("sqlite:a.db"), Path::new("a.db"));
        assert_eq!(file("sqlite://a/b.db"), Path::new("a/b.db"));
        assert_eq!(file("sqlite:///a/b.db"), Path::new("/a/b.db"));
        assert_eq!(file("postgres.db"), Path::new("postgres.db"));
    }

    #[test]
    fn a_server_has_several_spellings_and_its_password_is_not_shown() {
        for db in [
            "postgres://me:secret@h:1/d?schema=jobs",
            "postgresql://me:secret@h:1/d?schema=jobs",
            "host=h port=1 user=me password=secret dbname=d schema=jobs",
        ] {
            let target = parse(db).unwrap();
            assert_eq!(target.name(), "postgres://me@h:1/d?schema=jobs", "{db}");
            assert!(!format!("{target:?}").contains("secret"), "{db}");
        }
    }

    #[test]
    fn what_is_meant_as_an_address_is_never_taken_for_a_file() {
        for db in [
            "postgres:/me:secret@h/d",
            "postgres:me:secret@h/d",
            "Postgres://me:secret@h/d",
            "POSTGRESQL:secret",
            "user=me secret",
            "postgres://me:secret@h:port/d",
            "postgres://me:secret@h/d?nonsense=secret",
        ] {
            let error = parse(db).unwrap_err();
            assert!(!format!("{error:#} {error:?}").contains("secret"), "{db}: {error:#}");
        }
    }

    #[test]
    fn what_names_no_store_is_refused() {
        for db in ["", "sqlite:", "sqlite://", ":memory:", "mysql://host/db"] {
            let error = parse(db).unwrap_err();
            assert!(error.is::<BadInput>(), "{db:?}: {error}");
        }
    }
}
