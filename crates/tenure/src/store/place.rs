//! Connects to the store at an address: the only place that chooses the engine.

#[cfg(feature = "sqlite")]
use std::path::PathBuf;
#[cfg(feature = "sqlite")]
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::address::{self, Address, Kind};
#[cfg(feature = "postgres")]
use super::postgres::{self, Postgres, ServerAddress};
#[cfg(feature = "sqlite")]
use super::sqlite::Sqlite;
use super::{Result, Store};
use crate::clock::Clock;
use crate::job::Limits;

/// Options for opening a store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Where an embedded store reads the time. A server has a clock of its own.
    pub clock: Clock,
    /// The sizes that the store accepts.
    pub limits: Limits,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions { clock: Clock::system(), limits: Limits::default() }
    }
}

/// The place of a store.
pub(crate) enum Place {
    /// In a file.
    #[cfg(feature = "sqlite")]
    File(PathBuf),
    /// In memory. The store lives as long as any connection to it.
    #[cfg(feature = "sqlite")]
    Memory(Box<Mutex<Sqlite>>),
    /// On a server.
    #[cfg(feature = "postgres")]
    Server(Box<ServerAddress>),
}

/// A connection to one of the engines.
pub(crate) enum Engine {
    #[cfg(feature = "sqlite")]
    Sqlite(Box<Sqlite>),
    #[cfg(feature = "postgres")]
    Postgres(Box<Postgres>),
}

impl Engine {
    /// The connection, whichever engine it belongs to.
    pub(crate) fn store(&mut self) -> &mut dyn Store {
        match self {
            #[cfg(feature = "sqlite")]
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
            #[cfg(feature = "sqlite")]
            Engine::Sqlite(_) => {}
            #[cfg(feature = "postgres")]
            Engine::Postgres(store) => store.wait_for_locks(wait),
        }
    }

    /// Whether the engine locks single rows. Then a call that ends with
    /// [`Error::Busy`](super::Error::Busy) has changed nothing.
    pub(crate) fn has_row_locks(&self) -> bool {
        match self {
            #[cfg(feature = "sqlite")]
            Engine::Sqlite(_) => false,
            #[cfg(feature = "postgres")]
            Engine::Postgres(_) => true,
        }
    }

    pub(crate) fn into_store(self) -> Box<dyn Store> {
        match self {
            #[cfg(feature = "sqlite")]
            Engine::Sqlite(store) => store,
            #[cfg(feature = "postgres")]
            Engine::Postgres(store) => store,
        }
    }
}

impl Place {
    /// Whether two connections are served at the same time. SQLite has one writer.
    pub(crate) fn serves_two_at_once(&self) -> bool {
        match self {
            #[cfg(feature = "sqlite")]
            Place::File(_) | Place::Memory(_) => false,
            #[cfg(feature = "postgres")]
            Place::Server(_) => true,
        }
    }

    /// The place at this address. A store in memory is made here; nothing else is opened.
    #[cfg_attr(
        not(feature = "sqlite"),
        allow(unused_variables, reason = "only a store in memory needs the options")
    )]
    pub(crate) fn new(address: &Address, options: &StoreOptions) -> Result<Place> {
        Ok(match &address.0 {
            Kind::File(file) if address::looks_like_an_address(file.as_os_str()) => {
                let why = "a path names a file, and this one looks like the address of a server; \
                           pass such an address as text";
                return Err(address::bad(why));
            }
            #[cfg(feature = "sqlite")]
            Kind::File(file) => Place::File(file.clone()),
            #[cfg(feature = "sqlite")]
            Kind::Memory => Place::Memory(Box::new(Mutex::new(Sqlite::in_memory(options)?))),
            #[cfg(not(feature = "sqlite"))]
            Kind::File(_) | Kind::Memory => {
                let why = "this build has no SQLite; add the feature `sqlite` to the dependency on tenure";
                return Err(address::bad(why));
            }
            #[cfg(feature = "postgres")]
            Kind::Server(server) => Place::Server(server.clone()),
        })
    }

    /// Opens a connection to the store.
    pub(crate) fn connect(&self, options: &StoreOptions) -> Result<Engine> {
        match self {
            #[cfg(feature = "sqlite")]
            Place::File(file) => Ok(Engine::Sqlite(Box::new(Sqlite::open(file, options)?))),
            #[cfg(feature = "sqlite")]
            Place::Memory(first) => {
                let first = first.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(Engine::Sqlite(Box::new(first.share()?)))
            }
            #[cfg(feature = "postgres")]
            Place::Server(address) => {
                let limits = options.limits;
                let options =
                    postgres::PostgresOptions { limits, ..postgres::PostgresOptions::default() };
                Ok(Engine::Postgres(Box::new(Postgres::open(address, &options)?)))
            }
        }
    }

    /// The schema of Tenure's functions; `None` for SQLite.
    #[cfg(feature = "postgres")]
    pub(crate) fn schema(&self) -> Option<&str> {
        match self {
            Place::Server(address) => Some(address.schema()),
            #[cfg(feature = "sqlite")]
            Place::File(_) | Place::Memory(_) => None,
        }
    }
}
