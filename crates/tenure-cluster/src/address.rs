//! Where a server is: as an address of the form `postgres://…`, and as the variables that `psql`
//! reads.

use std::fmt;

use crate::binaries::{psql, query};
use crate::error::Error;

const PORT: u16 = 5432;

/// A database, and the user that connects to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    user: String,
    password: Option<String>,
    /// A host name, or the directory of a socket.
    host: String,
    port: u16,
    database: String,
    /// Other parameters, such as `sslmode`.
    others: Vec<(String, String)>,
}

impl Address {
    pub(crate) fn new(host: impl fmt::Display, port: u16) -> Address {
        let tenure = "tenure".to_owned();
        Address {
            user: tenure.clone(),
            password: None,
            host: host.to_string(),
            port,
            database: tenure,
            others: Vec::new(),
        }
    }

    /// Parses an address such as `postgres://user:password@host:port/database?sslmode=require` or
    /// `postgres://user@/database?host=/directory/of/a/socket`.
    ///
    /// # Errors
    /// If it is not of this form, or has no user, no host or no database.
    pub fn parse(text: &str) -> Result<Address, Error> {
        parse(text).ok_or_else(|| {
            Error::new(
                "an address has the form postgres://user@host:port/database \
                 or postgres://user@/database?host=/directory/of/a/socket",
            )
        })
    }

    /// The same server, but another database.
    #[must_use]
    pub fn with_database(&self, database: &str) -> Address {
        Address { database: database.to_owned(), ..self.clone() }
    }

    /// The same server, but another user, without a password.
    #[must_use]
    pub fn with_user(&self, user: &str) -> Address {
        Address { user: user.to_owned(), password: None, ..self.clone() }
    }

    /// Runs SQL there by `psql`, each statement by itself, and returns its unaligned output: a line
    /// for each row, with `|` between the columns.
    ///
    /// # Errors
    /// If a statement fails, or `psql` cannot be found or fetched.
    pub fn psql(&self, sql: &str) -> Result<String, Error> {
        query(&psql()?, self, sql)
    }

    /// The environment variables by which `psql` and other clients find this database.
    pub fn variables(&self) -> Vec<(String, String)> {
        let mut variables = vec![
            ("PGHOST".to_owned(), self.host.clone()),
            ("PGPORT".to_owned(), self.port.to_string()),
            ("PGUSER".to_owned(), self.user.clone()),
            ("PGDATABASE".to_owned(), self.database.clone()),
        ];
        if let Some(password) = &self.password {
            variables.push(("PGPASSWORD".to_owned(), password.clone()));
        }
        for (name, value) in &self.others {
            let variable = match name.as_str() {
                "application_name" => "PGAPPNAME".to_owned(),
                "connect_timeout" => "PGCONNECT_TIMEOUT".to_owned(),
                name => format!("PG{}", name.to_uppercase().replace('_', "")),
            };
            variables.push((variable, value.clone()));
        }
        variables
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "postgres://{}", encode(&self.user))?;
        if let Some(password) = &self.password {
            write!(f, ":{}", encode(password))?;
        }
        f.write_str("@")?;
        let mut parameters = Vec::new();
        if self.host.starts_with('/') {
            parameters.push(format!("host={}", encode(&self.host)));
            if self.port != PORT {
                parameters.push(format!("port={}", self.port));
            }
        } else {
            // The brackets separate the colons of an IPv6 address from that of the port.
            let host =
                if self.host.contains(':') { &format!("[{}]", self.host) } else { &self.host };
            write!(f, "{host}:{}", self.port)?;
        }
        write!(f, "/{}", encode(&self.database))?;
        for (name, value) in &self.others {
            parameters.push(format!("{name}={}", encode(value)));
        }
        if !parameters.is_empty() {
            write!(f, "?{}", parameters.join("&"))?;
        }
        Ok(())
    }
}

fn parse(text: &str) -> Option<Address> {
    let text = text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://"))?;
    let (place, query) = text.split_once('?').unwrap_or((text, ""));
    let (authority, database) = place.split_once('/').unwrap_or((place, ""));
    let (who, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let (user, password) = match who.split_once(':') {
        Some((user, password)) => (user, Some(decode(password)?)),
        None => (who, None),
    };
    let (host, port) = match host.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (host, PORT),
    };
    let host = decode(host.trim_start_matches('[').trim_end_matches(']'))?;
    let (user, database) = (decode(user)?, decode(database)?);
    let mut address = Address { user, password, host, port, database, others: Vec::new() };
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let (name, value) = parameter.split_once('=')?;
        let value = decode(value)?;
        match name {
            "host" => address.host = value,
            "port" => address.port = value.parse().ok()?,
            "user" => address.user = value,
            "password" => address.password = Some(value),
            "dbname" => address.database = value,
            _ => address.others.push((name.to_owned(), value)),
        }
    }
    let complete = [&address.user, &address.host, &address.database];
    complete.iter().all(|part| !part.is_empty()).then_some(address)
}

/// Percent-encodes everything that could need it in some part of an address.
fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded += &format!("%{byte:02X}");
        }
    }
    // A slash stays only in the directory of a socket, which begins with one. In any other part of
    // an address it would end that part.
    if text.starts_with('/') { encoded } else { encoded.replace('/', "%2F") }
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digit = |byte: u8| char::from(byte).to_digit(16);
            let value = digit(rest.next()?)? * 16 + digit(rest.next()?)?;
            bytes.push(u8::try_from(value).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_written_as_it_was_read() {
        for text in [
            "postgres://tenure@/tenure?host=/tmp/x",
            "postgres://tenure@/tenure?host=/tmp/x&port=5433",
            "postgres://a%40b:p%2F%3Aw@db.example.org:5432/some%20jobs?sslmode=require",
            "postgres://tenure@[::1]:6000/tenure",
        ] {
            assert_eq!(Address::parse(text).unwrap().to_string(), text);
        }
        let other = "postgresql:///jobs?user=me&host=/run/x&port=7";
        let address = Address::parse(other).unwrap();
        assert_eq!(address.to_string(), "postgres://me@/jobs?host=/run/x&port=7");
    }

    #[test]
    fn an_address_that_leaves_something_open_is_refused() {
        for text in ["", "mysql://a@b/c", "postgres://a@/c", "postgres://a@b", "postgres://b/c"] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        for text in ["postgres://a@b:x/c", "postgres://a@b/%c", "postgres://a@b/c?d"] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn clients_find_the_database_by_variables() {
        let address = Address::parse("postgres://a:b@c:1/d?sslmode=require").unwrap();
        let variables = address.with_database("e").variables();
        let variables: Vec<_> = variables.iter().map(|(n, v)| format!("{n}={v}")).collect();
        let expected = ["PGHOST=c", "PGPORT=1", "PGUSER=a", "PGDATABASE=e", "PGPASSWORD=b"];
        assert_eq!(variables[..5], expected);
        assert_eq!(variables[5], "PGSSLMODE=require");
    }
}
