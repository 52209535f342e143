//! Turns errors of PostgreSQL, the driver and the network into errors that say what to do.
//!
//! SQLSTATEs decide, never the messages, which servers translate. Messages are shown. Details and
//! hints may quote a row, so they are shown only where it is known that they do not. The driver has
//! codes only for errors of the server; its own errors are distinguished by their cause: an error
//! of the network, of TLS, or neither.

use std::error::Error as Source;
use std::fmt;
use std::io;
use std::time::Duration;

use postgres::error::{DbError, Severity};
use rustls::CertificateError;

use super::address::ServerAddress;
use super::tls::Mode;
use crate::job::Invalid;
use crate::store::Error;

/// The SQLSTATE of the schema's functions for an invalid request.
const BAD_REQUEST: &str = "TN003";

/// The fields that a request can be wrong in; the functions name the field as the column of their
/// error.
const FIELDS: [&str; 40] = [
    "after",
    "args",
    "args_limit",
    "batch",
    "committed",
    "delay",
    "durability",
    "effect",
    "extras",
    "fingerprint",
    "fraction",
    "grace",
    "guard_gap",
    "job",
    "keep",
    "key",
    "key_window",
    "kind",
    "lease",
    "marks",
    "max_attempts",
    "max_crashes",
    "max_runtime",
    "n",
    "options",
    "priority",
    "queue",
    "queues",
    "reason",
    "result",
    "retry",
    "retry_in",
    "run_at",
    "tag",
    "tags",
    "tenant",
    "trace",
    "transaction",
    "verb",
    "worker",
];

/// An error of the driver while doing something to `target`.
pub(super) fn from_postgres(target: &str, doing: &'static str, cause: postgres::Error) -> Error {
    if let Some(said) = cause.as_db_error().cloned() {
        return from_server(target, doing, &said, cause);
    }
    if !is_about_network(&cause) {
        return Error::Engine { doing, source: Box::new(Told(cause)) };
    }
    Error::Unavailable {
        doing,
        target: target.to_owned(),
        problem: "the connection was lost".to_owned(),
        next: "repeat it: whether it was done is not known".to_owned(),
        source: Box::new(Told(cause)),
    }
}

/// An error of the driver while connecting.
pub(super) fn from_connecting(address: &ServerAddress, cause: postgres::Error) -> Error {
    let target = address.to_string();
    if let Some(said) = cause.as_db_error().cloned() {
        return from_server(&target, "connect", &said, cause);
    }
    if let Some(tls) = beneath::<rustls::Error>(&cause) {
        let (problem, next) = about_tls(tls);
        return Error::Unusable { target, problem, next };
    }
    let told = Told(cause);
    let Some(network) = beneath::<io::Error>(&told.0) else {
        return Error::Unusable {
            target,
            problem: told.to_string(),
            next: what_was_missing(address).to_owned(),
        };
    };
    let next = match network.kind() {
        io::ErrorKind::PermissionDenied if network.raw_os_error().is_some() => {
            return Error::Unusable {
                target,
                problem: format!("the socket may not be used: {network}"),
                next: "check who owns its directory, or name a host".to_owned(),
            };
        }
        io::ErrorKind::PermissionDenied => {
            "wait for a server that fits target_session_attrs, or leave that out"
        }
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {
            "check that the server runs, and host and port of the address"
        }
        _ => "check host and port of the address, and that the server runs and can be reached",
    };
    Error::Unavailable {
        doing: "connect",
        target,
        problem: network.to_string(),
        next: next.to_owned(),
        source: Box::new(told),
    }
}

/// The error when the server does not answer in time.
pub(super) fn silent(address: &ServerAddress, after: Duration) -> Error {
    Error::Unavailable {
        doing: "connect",
        target: address.to_string(),
        problem: format!("there was no answer within {after:?}"),
        next: "check that the server is well, or set connect_timeout in the address".to_owned(),
        source: Box::new(io::Error::from(io::ErrorKind::TimedOut)),
    }
}

/// The error when no thread could be started for connecting.
pub(super) fn no_thread(
    address: &ServerAddress,
    cause: impl Source + Send + Sync + 'static,
) -> Error {
    Error::Unavailable {
        doing: "connect",
        target: address.to_string(),
        problem: format!("no thread could be started for it ({cause})"),
        next: "look for what uses up this machine, and try again".to_owned(),
        source: Box::new(cause),
    }
}

/// Whether the other side refused settings in the startup packet, as poolers do.
pub(super) fn refuses_settings(cause: &postgres::Error) -> bool {
    // PgBouncer reports a protocol violation, others an unsupported feature.
    matches!(code(cause), Some("08P01" | "0A000"))
}

/// Whether connecting without TLS may work: the handshake failed, or logging in this way is not
/// allowed.
pub(super) fn is_about_tls(cause: &postgres::Error) -> bool {
    beneath::<rustls::Error>(cause).is_some() || code(cause) == Some("28000")
}

/// Whether the connection cannot be used any more.
pub(super) fn ends_connection(cause: &postgres::Error) -> bool {
    match cause.as_db_error() {
        Some(said) => {
            matches!(said.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
        }
        None => is_about_network(cause),
    }
}

/// The field that a request was wrong in, if the server refused it as invalid.
pub(crate) fn bad_request(cause: &postgres::Error) -> Option<Invalid> {
    let said = cause.as_db_error()?;
    (said.code().code() == BAD_REQUEST).then(|| about_request(said))
}

fn from_server(target: &str, doing: &'static str, said: &DbError, cause: postgres::Error) -> Error {
    let message = said.message();
    let unusable = |problem: &str, next: &str| Error::Unusable {
        target: target.to_owned(),
        problem: format!("{problem} ({message})"),
        next: next.to_owned(),
    };
    let code = said.code().code();
    let (problem, next) = match code {
        BAD_REQUEST => {
            return about_request(said).into();
        }
        // Lost against another transaction: serialization failure, deadlock, lock timeout.
        "40001" | "40P01" | "55P03" => {
            return Error::Busy { doing, target: target.to_owned(), source: Box::new(Told(cause)) };
        }
        "28P01" | "28000" => {
            return unusable(
                "the server did not let us in",
                "check user and password (in the address, or PGUSER and PGPASSWORD), and pg_hba.conf",
            );
        }
        "3D000" => {
            return unusable(
                "there is no such database",
                "create it with `createdb`, or correct the address",
            );
        }
        "42501" => {
            return Error::Forbidden {
                target: target.to_owned(),
                problem: format!("this role may not {doing} ({message})"),
                next: "connect as the owner of the schema, or ask them for the rights that `tenure migrate up` prints"
                    .to_owned(),
            };
        }
        "25006" => {
            return unusable(
                "the server only reads, as a replica does",
                "use the address of the primary, or add target_session_attrs=read-write to it",
            );
        }
        // The detail lists the objects that depend on the one to be dropped; it quotes no row.
        "2BP01" => {
            return unusable(
                &format!(
                    "something else depends on it, and nothing was removed: {}",
                    said.detail().unwrap_or_default().replace('\n', ", ")
                ),
                "drop that first, then repeat this",
            );
        }
        // No such schema, function, table, column or type.
        "3F000" | "42883" | "42P01" | "42703" | "42704" => {
            return unusable("the schema is missing or too old", "run: tenure migrate up");
        }
        "53100" => {
            return unusable(
                "the server's disk is full; nothing of this call was stored",
                "free some space and repeat it",
            );
        }
        "53300" => (
            "the server has no connection left",
            "try again, and raise max_connections or put a pooler before it",
        ),
        "57014" => (
            "the server broke the call off",
            "repeat it, and look in pg_stat_activity for what it waits for",
        ),
        "57P01" | "57P02" | "57P03" => {
            ("the server is starting or stopping", "repeat it in a moment")
        }
        // The rest of class 08, sessions that were idle for too long, an unknown outcome.
        "57P05" | "25P03" | "40003" => LOST,
        _ if code.starts_with("08") => LOST,
        _ => return Error::Engine { doing, source: Box::new(Told(cause)) },
    };
    Error::Unavailable {
        doing,
        target: target.to_owned(),
        problem: format!("{problem} ({message})"),
        next: next.to_owned(),
        source: Box::new(Told(cause)),
    }
}

/// The error of a schema's function about a request, in the form of the library's own checks. The
/// functions' hints quote nothing from the request.
fn about_request(said: &DbError) -> Invalid {
    let column = said.column().unwrap_or_default();
    let field = FIELDS.into_iter().find(|field| *field == column).unwrap_or("request");
    let message = said.message();
    let problem = message.strip_prefix(&format!("{column}: ")).unwrap_or(message);
    let why = match said.hint() {
        None => problem.to_owned(),
        Some(hint) => format!("{problem}; {}", as_next_step(hint)),
    };
    Invalid::Value { field, why }
}

/// A hint as the last clause of an error: without a full stop, and in lower case.
fn as_next_step(hint: &str) -> String {
    let mut rest = hint.strip_suffix('.').unwrap_or(hint).chars();
    rest.next().map_or_else(String::new, |first| first.to_lowercase().chain(rest).collect())
}

const LOST: (&str, &str) =
    ("the connection was ended", "repeat it: whether it was done is not known");

fn about_tls(cause: &rustls::Error) -> (String, String) {
    use CertificateError as Bad;
    let next = match cause {
        rustls::Error::InvalidCertificate(Bad::UnknownIssuer) => {
            "name the file of the authority that signed it with sslrootcert=FILE"
        }
        rustls::Error::InvalidCertificate(
            Bad::NotValidForName | Bad::NotValidForNameContext { .. },
        ) => {
            "connect by a name that is among the certificate's alternative names, or use \
             sslmode=verify-ca"
        }
        rustls::Error::InvalidCertificate(_) => "renew the server's certificate",
        _ => "check sslmode in the address, and the TLS settings of the server",
    };
    (format!("the server's TLS was not accepted: {cause}"), next.to_owned())
}

/// What to do when the login fails without a code. The driver does not distinguish a server without
/// TLS from one that wants a password, but the address tells what was requested.
fn what_was_missing(address: &ServerAddress) -> &'static str {
    match (address.encryption().mode >= Mode::Require, address.has_password()) {
        (false, false) => "give a password in the address or as PGPASSWORD",
        (true, false) => {
            "check that the server has TLS, and give a password in the address or as PGPASSWORD"
        }
        (true, true) => "check that the server has TLS, or use sslmode=prefer",
        (false, true) => "check how the server wants users to log in (pg_hba.conf)",
    }
}

fn is_about_network(cause: &postgres::Error) -> bool {
    // Messages that cannot be encoded or decoded are also an `io::Error`, of these two kinds.
    let is_transport = |network: &io::Error| {
        !matches!(network.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)
    };
    cause.is_closed() || beneath::<io::Error>(cause).is_some_and(is_transport)
}

fn code(cause: &postgres::Error) -> Option<&str> {
    cause.code().map(|code| code.code())
}

/// The first cause of this type. Also looks inside an `io::Error`, which hides what it wraps.
fn beneath<E: Source + 'static>(cause: &postgres::Error) -> Option<&E> {
    let mut next = cause.source();
    while let Some(cause) = next {
        if let Some(found) = cause.downcast_ref::<E>() {
            return Some(found);
        }
        let wrapped = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(wrapped) => Some(wrapped),
            None => cause.source(),
        };
    }
    None
}

/// The driver's error with its full message: by itself it prints as "db error".
#[derive(Debug)]
struct Told(postgres::Error);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(said) = self.0.as_db_error() {
            return write!(f, "{} (SQLSTATE {})", said.message(), said.code().code());
        }
        write!(f, "{}", self.0)?;
        let mut next = self.0.source();
        while let Some(cause) = next {
            write!(f, ": {cause}")?;
            next = cause.source();
        }
        Ok(())
    }
}

impl Source for Told {
    fn source(&self) -> Option<&(dyn Source + 'static)> {
        self.0.source()
    }
}

#[cfg(test)]
mod tests;
