//! Checks a server right after connecting: whether it can hold a store at all, and whether the
//! session is direct. Looks at no tables.

use super::session::Session;
use crate::store::{Error, Result};

/// The oldest supported version: it has what the schema needs.
const OLDEST: i32 = 150_000;

/// Facts about a server and the session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFacts {
    /// The version as text, for example `15.6`.
    pub version: String,
    /// The version as a number, for example `150006`.
    pub version_number: i32,
    /// The encoding of the database.
    pub encoding: String,
    /// Whether the server is a replica.
    pub is_replica: bool,
    /// Whether this session cannot write.
    pub is_read_only: bool,
    /// Whether the session belongs to this client alone. Behind a pooler it does not: notifications
    /// do not arrive, and the timeouts are those of the pool.
    pub is_direct: bool,
}

/// Reads the facts in one round trip. `mark` is the session's mark, if it could be set.
pub(super) fn look(
    session: &mut Session,
    mark: Option<&str>,
) -> Result<ServerFacts, postgres::Error> {
    let row = session.query_one(include_str!("../../../sql/postgres/server.sql"), &[])?;
    let seen: &str = row.try_get("mark")?;
    Ok(ServerFacts {
        version: row.try_get("version")?,
        version_number: row.try_get("version_number")?,
        encoding: row.try_get("encoding")?,
        is_replica: row.try_get("is_replica")?,
        is_read_only: row.try_get("is_read_only")?,
        is_direct: mark == Some(seen),
    })
}

/// Refuses a server that cannot hold a store.
pub(super) fn check(facts: &ServerFacts, target: &str) -> Result<()> {
    let refuse = |problem: String, next: &str| {
        Err(Error::Unusable { target: target.to_owned(), problem, next: next.to_owned() })
    };
    if facts.version_number < OLDEST {
        return refuse(
            format!("PostgreSQL {} is too old; 15 or newer is needed", facts.version),
            "upgrade the server, or name another one",
        );
    }
    if facts.encoding != "UTF8" {
        return refuse(
            format!(
                "the database has the encoding {}, which cannot hold every text",
                facts.encoding
            ),
            "make a database with: createdb --encoding=UTF8 --template=template0 NAME",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_too_old_or_cannot_hold_every_text_is_refused() {
        let facts = |version_number, encoding: &str| ServerFacts {
            version: "14.9".into(),
            version_number,
            encoding: encoding.into(),
            is_replica: false,
            is_read_only: false,
            is_direct: true,
        };
        assert!(check(&facts(150_000, "UTF8"), "db").is_ok());
        let said = check(&facts(140_009, "UTF8"), "db").unwrap_err().to_string();
        assert!(said.contains("PostgreSQL 14.9 is too old; 15 or newer is needed"), "{said}");
        let said = check(&facts(150_000, "SQL_ASCII"), "db").unwrap_err().to_string();
        assert!(said.contains("SQL_ASCII") && said.contains("createdb"), "{said}");
    }
}
