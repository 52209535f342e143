//! The address of a store, as a person writes it.
//!
//! Parsing opens no store; `place.rs` does that. A text that may contain a password is never shown,
//! neither in an error nor when a parsed address is printed.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::place::{Place, StoreOptions};
#[cfg(feature = "postgres")]
use super::postgres::ServerAddress;
use super::{Error, Result, Store};
use crate::job::Invalid;

/// The address of a store.
///
/// | text | store |
/// |---|---|
/// | `jobs.db`, `./dir/jobs.db`, `sqlite:jobs.db` | SQLite, in this file |
/// | `sqlite::memory:` | SQLite, in memory |
/// | `postgres://user:password@host/database`, `postgresql://…` | PostgreSQL, with the feature of that name |
///
/// A text is parsed as in this table. A path is always the path of a file. An address prints
/// without its password:
///
/// ```
/// use std::path::Path;
/// use tenure::Address;
///
/// let address: Address = "sqlite:jobs.db".parse()?;
/// assert_eq!(address.file(), Some(Path::new("jobs.db")));
/// assert_eq!(address.to_string(), "jobs.db");
/// # #[cfg(feature = "postgres")]
/// # {
/// let address: Address = "postgres://app:secret@db.example/shop".parse()?;
/// assert_eq!(address.to_string(), "postgres://app@db.example:5432/shop");
/// # }
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone)]
pub struct Address(pub(super) Kind);

/// What an address leads to.
#[derive(Clone)]
pub(super) enum Kind {
    File(PathBuf),
    Memory,
    #[cfg(feature = "postgres")]
    Server(Box<ServerAddress>),
}

impl Address {
    /// The file, if the store is in one.
    pub fn file(&self) -> Option<&Path> {
        match &self.0 {
            Kind::File(file) => Some(file),
            _ => None,
        }
    }

    /// The database, if the store is on a server.
    #[cfg(feature = "postgres")]
    pub fn server(&self) -> Option<&ServerAddress> {
        match &self.0 {
            Kind::Server(server) => Some(server),
            _ => None,
        }
    }

    /// Opens one connection to the store, with the default options. A file is created if it does
    /// not exist. [`Tenure::open`](crate::Tenure::open) is for async programs.
    pub fn open(&self) -> Result<Box<dyn Store>> {
        let options = StoreOptions::default();
        Ok(Place::new(self, &options)?.connect(&options)?.into_store())
    }
}

/// Parses a text. A text that is not UTF-8 cannot be a URL, but it may be the name of a file.
fn parse(text: &OsStr) -> Result<Address> {
    match text.to_str() {
        Some(text) => text.parse(),
        None if looks_like_an_address(text) => Err(bad("it is not UTF-8; write UTF-8")),
        None => Ok(Address(Kind::File(text.into()))),
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address> {
        if is_meant_as_a_server(text) {
            return server(text);
        }
        if begins(text, "http:") || begins(text, "https:") {
            return Err(bad(
                "this build cannot reach a store over HTTP yet; name its file, or write postgres://…",
            ));
        }
        let file = text.strip_prefix("sqlite://").or(text.strip_prefix("sqlite:")).unwrap_or(text);
        match (file, file.split_once("://")) {
            ("", _) => Err(bad("it names no file; give it one, such as tenure.db")),
            (":memory:", _) => Ok(Address(Kind::Memory)),
            (_, Some((scheme, _))) => Err(bad(format!(
                "{} is no store of Tenure's; name a file, or write sqlite:FILE or postgres://…",
                shown(scheme)
            ))),
            (file, None) => Ok(Address(Kind::File(file.into()))),
        }
    }
}

#[cfg(feature = "postgres")]
fn server(text: &str) -> Result<Address> {
    Ok(ServerAddress::parse(text)?.into())
}

#[cfg(not(feature = "postgres"))]
fn server(_: &str) -> Result<Address> {
    Err(bad("PostgreSQL needs the feature `postgres` of the crate `tenure`"))
}

/// The text before `://`, as an error shows it: only if it looks like a scheme, because it may also
/// contain a password.
fn shown(scheme: &str) -> String {
    let is_scheme = scheme.len() <= 20 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_scheme { format!("{scheme}://") } else { "this".to_owned() }
}

macro_rules! parsed {
    ($($text:ty)*) => {
        $(impl TryFrom<$text> for Address {
            type Error = Error;

            fn try_from(text: $text) -> Result<Address> {
                parse(text.as_ref())
            }
        })*
    };
}

macro_rules! files {
    ($($path:ty)*) => {
        $(impl From<$path> for Address {
            fn from(path: $path) -> Address {
                Address(Kind::File(path.into()))
            }
        })*
    };
}

parsed! { &str String &String &OsStr OsString &OsString }
files! { &Path PathBuf &PathBuf }

impl From<&Address> for Address {
    fn from(address: &Address) -> Address {
        address.clone()
    }
}

#[cfg(feature = "postgres")]
impl From<ServerAddress> for Address {
    fn from(server: ServerAddress) -> Address {
        Address(Kind::Server(Box::new(server)))
    }
}

/// For callers that take any type with `TryInto<Address>`: converting a path cannot fail, so its
/// error type is [`Infallible`].
impl From<Infallible> for Error {
    fn from(never: Infallible) -> Error {
        match never {}
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::File(file) if looks_like_an_address(file.as_os_str()) => {
                f.write_str("a file that is named like the address of a server")
            }
            Kind::File(file) => file.display().fmt(f),
            Kind::Memory => f.write_str("sqlite::memory:"),
            #[cfg(feature = "postgres")]
            Kind::Server(server) => server.fmt(f),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Address").field(&format_args!("{self}")).finish()
    }
}

/// The error for a bad address.
pub(super) fn bad(why: impl Into<String>) -> Error {
    Invalid::Value { field: "db", why: why.into() }.into()
}

/// Whether this looks like the address of some server. Such a path is not opened as a file: a
/// message about the file would show the password.
pub(super) fn looks_like_an_address(text: &OsStr) -> bool {
    let text = text.to_string_lossy();
    text.contains("://") || is_meant_as_a_server(&text)
}

/// Whether the text is meant as the address of a PostgreSQL server, even if it is misspelled.
/// Otherwise it would be taken for the name of a file: a file of that name would be created, and
/// messages would show it in full, with its password.
fn is_meant_as_a_server(text: &str) -> bool {
    let is_setting = |word: &str| {
        ["host=", "hostaddr=", "user=", "password=", "dbname="]
            .iter()
            .any(|key| word.starts_with(key))
    };
    begins(text, "postgres:")
        || begins(text, "postgresql:")
        || text.split_whitespace().any(is_setting)
}

fn begins(text: &str, word: &str) -> bool {
    text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests;
