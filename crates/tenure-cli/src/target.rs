//! Where the store is, and how it is opened: the only place that knows which engines this build
//! has.

use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::Result;
use tenure::store::migrate::Status;
use tenure::store::sqlite::{Facts, Options, Sqlite};
use tenure::store::{Error, Store};

use crate::args::BadInput;
use crate::output::say;

/// The file that is used when nobody names one.
const DEFAULT: &str = "tenure.db";

/// A store that can be opened.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) file: PathBuf,
}

impl Target {
    /// Reads what `--db` or `TENURE_DB` says.
    pub(crate) fn parse(db: Option<&OsStr>) -> Result<Target> {
        let db = db.unwrap_or(OsStr::new(DEFAULT));
        // What is not UTF-8 cannot be a URL, but may well be a file.
        let Some(text) = db.to_str() else { return Ok(Target { file: db.into() }) };
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        match scheme {
            Some("postgres" | "postgresql") => return Err(no_postgres().into()),
            Some("sqlite") | None => {}
            Some(other) => {
                let why = format!(
                    "--db: {other}:// is no store of Tenure's; name a file, or sqlite:FILE"
                );
                return Err(BadInput(why).into());
            }
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
            file => Ok(Target { file: file.into() }),
        }
    }

    /// Opens the store, and creates it where there is none.
    pub(crate) fn open(&self) -> Result<Box<dyn Store>> {
        let is_new = !self.file.exists();
        let store = Sqlite::open(&self.file, &Options::default())?;
        if is_new {
            // Said aloud, because a slip in a path would otherwise look like an empty store.
            say(&format!("created {}", self.file.display()));
        }
        Ok(Box::new(store))
    }

    /// Brings the schema up to date, also beside the tables of somebody else.
    pub(crate) fn adopt(&self) -> Result<()> {
        Sqlite::adopt(&self.file, &Options::default())?;
        Ok(())
    }

    /// How the store is kept.
    pub(crate) fn facts(&self) -> Result<Facts> {
        Ok(Sqlite::open(&self.file, &Options::default())?.facts()?)
    }

    /// Where the schema stands. It changes nothing.
    pub(crate) fn status(&self) -> Result<Vec<Status>> {
        Ok(Sqlite::status(&self.file)?)
    }
}

/// The address is not repeated: it may hold a password.
fn no_postgres() -> Error {
    Error::Unusable {
        target: "postgres://…".into(),
        problem: "this build has only the embedded store, not PostgreSQL".into(),
        next: "name a file with --db, for example --db tenure.db".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn file(db: &str) -> PathBuf {
        Target::parse(Some(OsStr::new(db))).unwrap().file
    }

    #[test]
    fn a_file_has_several_spellings() {
        assert_eq!(Target::parse(None).unwrap().file, Path::new("tenure.db"));
        assert_eq!(file("a.db"), Path::new("a.db"));
        assert_eq!(file("sqlite:a.db"), Path::new("a.db"));
        assert_eq!(file("sqlite://a/b.db"), Path::new("a/b.db"));
        assert_eq!(file("sqlite:///a/b.db"), Path::new("/a/b.db"));
    }

    #[test]
    fn a_password_in_an_address_is_not_repeated() {
        let error = Target::parse(Some(OsStr::new("postgres://me:secret@host/db"))).unwrap_err();
        assert!(!error.to_string().contains("secret"), "{error}");
    }

    #[test]
    fn what_names_no_store_is_refused() {
        for db in ["", "sqlite:", "sqlite://", ":memory:", "mysql://host/db"] {
            let error = Target::parse(Some(OsStr::new(db))).unwrap_err();
            assert!(error.is::<BadInput>(), "{db:?}: {error}");
        }
    }
}
