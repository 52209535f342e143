//! Parses the address of a store, as a person writes it, and connects to it.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

#[cfg(feature = "postgres")]
use super::postgres::{self, Address, Postgres};
use super::sqlite::{self, Sqlite};
use super::{Result, Store};
use crate::job::Invalid;

/// The place of a store.
pub(crate) enum Place {
    /// In a file.
    File(PathBuf),
    /// In memory. The store lives as long as any connection to it.
    Memory(Box<Mutex<Sqlite>>),
    /// On a server.
    #[cfg(feature = "postgres")]
    Server(Box<Address>),
}

/// A connection to one of the engines.
pub(crate) enum Engine {
    Sqlite(Box<Sqlite>),
    #[cfg(feature = "postgres")]
    Postgres(Box<Postgres>),
}

impl Engine {
    /// The connection, whichever engine it belongs to.
    pub(crate) fn store(&mut self) -> &mut dyn Store {
        match self {
            Engine::Sqlite(store) => store.as_mut(),
            #[cfg(feature = "postgres")]
            Engine::Postgres(store) => store.as_mut(),
        }
    }

    /// Limits how long enqueues and ledger writes of this connection wait for each lock. No effect
    /// on SQLite, which has no row locks.
    #[cfg_attr(
        not(feature = "postgres"),
        allow(unused_variables, reason = "only a server has such locks")
    )]
    pub(crate) fn wait_for_locks(&mut self, wait: Duration) {
        match self {
            Engine::Sqlite(_) => {}
            #[cfg(feature = "postgres")]
            Engine::Postgres(store) => store.wait_for_locks(wait),
        }
    }

    /// Whether the engine locks single rows. Then a call that ends with
    /// [`Error::Busy`](super::Error::Busy) has changed nothing.
    pub(crate) fn has_row_locks(&self) -> bool {
        match self {
            Engine::Sqlite(_) => false,
            #[cfg(feature = "postgres")]
            Engine::Postgres(_) => true,
        }
    }

    pub(crate) fn into_store(self) -> Box<dyn Store> {
        match self {
            Engine::Sqlite(store) => store,
            #[cfg(feature = "postgres")]
            Engine::Postgres(store) => store,
        }
    }
}

impl Place {
    /// Parses an address: a file, `sqlite:FILE`, `sqlite::memory:` or `postgres://…`. Does not
    /// connect. Errors do not repeat the address, since it may contain a password.
    pub(crate) fn parse(url: &str, options: &sqlite::Options) -> Result<Place> {
        let bad = |why: &str| Invalid::Value { field: "url", why: why.into() };
        if is_meant_as_a_server(url) {
            #[cfg(feature = "postgres")]
            return Ok(Place::Server(Box::new(Address::parse(url)?)));
            #[cfg(not(feature = "postgres"))]
            return Err(bad("PostgreSQL needs the feature `postgres` of the crate `tenure`").into());
        }
        let file = url.strip_prefix("sqlite://").or(url.strip_prefix("sqlite:")).unwrap_or(url);
        match file {
            ":memory:" => Ok(Place::Memory(Box::new(Mutex::new(Sqlite::in_memory(options)?)))),
            "" => Err(bad("it names no store; give it a file, such as tenure.db").into()),
            file if file.contains("://") => {
                Err(bad("this is no store of Tenure's; name a file, or write postgres://…").into())
            }
            file => Ok(Place::File(file.into())),
        }
    }

    pub(crate) fn connect(&self, options: &sqlite::Options) -> Result<Engine> {
        match self {
            Place::File(file) => Ok(Engine::Sqlite(Box::new(Sqlite::open(file, options)?))),
            Place::Memory(first) => {
                let first = first.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(Engine::Sqlite(Box::new(first.share()?)))
            }
            #[cfg(feature = "postgres")]
            Place::Server(address) => {
                let limits = options.limits;
                let options = postgres::Options { limits, ..postgres::Options::default() };
                Ok(Engine::Postgres(Box::new(Postgres::open(address, &options)?)))
            }
        }
    }

    /// The schema of Tenure's functions; `None` for SQLite.
    #[cfg(feature = "postgres")]
    pub(crate) fn schema(&self) -> Option<&str> {
        match self {
            Place::Server(address) => Some(address.schema()),
            Place::File(_) | Place::Memory(_) => None,
        }
    }
}

/// Whether the text is meant as the address of a server, even if it is misspelled. Taken for a file
/// name, it would be shown in full (with its password), and a file of that name would be created.
pub fn is_meant_as_a_server(text: &str) -> bool {
    let begins = |word: &str| text.get(..word.len()).is_some_and(|t| t.eq_ignore_ascii_case(word));
    let is_setting = |word: &str| {
        ["host=", "hostaddr=", "user=", "password=", "dbname="]
            .iter()
            .any(|key| word.starts_with(key))
    };
    begins("postgres:") || begins("postgresql:") || text.split_whitespace().any(is_setting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_meant_as_a_server_is_never_taken_for_a_file_nor_repeated() {
        for url in ["postgres:/me:secret@h/d", "POSTGRESQL:secret", "user=me secret"] {
            let problem = Place::parse(url, &sqlite::Options::default()).err().unwrap().to_string();
            assert!(!problem.contains("secret"), "{problem}");
        }
    }

    #[test]
    fn what_names_no_store_is_refused() {
        for url in ["", "sqlite:", "sqlite://", "mysql://host/db"] {
            assert!(Place::parse(url, &sqlite::Options::default()).is_err(), "{url:?}");
        }
    }
}
