//! Where the store is, and everything that depends on its engine. A store is in a [`file`] or on a
//! [`server`]. What both have to do has the same name in both modules.

mod file;
mod server;

use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::Result;
use tenure::Address;
use tenure::engine::inspect::DueJobs;
use tenure::engine::store::Store;
use tenure::engine::store::migrate::Status;
use tenure::engine::store::postgres::{Brought, Contents, Durability, Newer, Roles, ServerAddress};

use crate::args::BadInput;
use crate::commands::doctor::Examined;
use crate::output::say;

/// The default file.
const DEFAULT: &str = "tenure.db";

/// A store that can be opened.
#[derive(Debug)]
pub(crate) enum Target {
    File(PathBuf),
    Server(Box<ServerAddress>),
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
    /// The store that `--db` or `TENURE_DB` names.
    pub(crate) fn parse(db: Option<&OsStr>) -> Result<Target> {
        let address = Address::try_from(db.unwrap_or(OsStr::new(DEFAULT)))?;
        if let Some(server) = address.server() {
            return Ok(Target::Server(Box::new(server.clone())));
        }
        let in_memory = "--db: a store in memory is gone when this command ends; name a file";
        let file = address.file().ok_or_else(|| BadInput(in_memory.into()))?;
        Ok(Target::File(file.to_owned()))
    }

    /// The store's name for people, without secrets.
    pub(crate) fn name(&self) -> String {
        self.address().to_string()
    }

    /// Opens the store. A file is created if it does not exist.
    pub(crate) fn open(&self) -> Result<Box<dyn Store>> {
        let is_new = matches!(self, Target::File(file) if !file.exists());
        let store = self.address().open()?;
        if is_new {
            // Reported, because a typo in a path would otherwise look like an empty store.
            say(&format!("created {}", self.name()));
        }
        Ok(store)
    }

    fn address(&self) -> Address {
        match self {
            Target::File(file) => file.into(),
            Target::Server(server) => ServerAddress::clone(server).into(),
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
    pub(crate) fn due(&self) -> Result<Option<Vec<DueJobs>>> {
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
    use super::*;

    #[test]
    fn without_a_name_the_store_is_a_file_of_the_current_directory() {
        assert_eq!(Target::parse(None).unwrap().name(), "tenure.db");
    }

    #[test]
    fn a_store_in_memory_is_refused() {
        for db in [":memory:", "sqlite::memory:"] {
            let error = Target::parse(Some(OsStr::new(db))).unwrap_err();
            assert!(error.is::<BadInput>(), "{db}: {error}");
        }
    }
}
