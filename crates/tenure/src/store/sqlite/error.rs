//! Turns errors of SQLite and of the file system into errors that say what to do.

use rusqlite::{ErrorCode, ffi};

use super::moved::Moved;
use crate::store::Error;

/// An error of SQLite while doing something to `target`.
pub(super) fn from_sqlite(target: &str, doing: &'static str, cause: rusqlite::Error) -> Error {
    let unusable = |problem: &str, next: &str| Error::Unusable {
        target: target.to_owned(),
        problem: problem.to_owned(),
        next: next.to_owned(),
    };
    if cause.sqlite_error().is_some_and(|it| it.extended_code == ffi::SQLITE_READONLY_DBMOVED) {
        return Moved::Replaced.error(target);
    }
    match cause.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            Error::Busy { doing, target: target.to_owned(), source: Box::new(cause) }
        }
        Some(ErrorCode::NotADatabase) => not_a_database(target),
        Some(ErrorCode::DatabaseCorrupt) => unusable(
            "the database file is damaged",
            "keep a copy of it, and restore a backup or use `sqlite3 FILE .recover`",
        ),
        Some(ErrorCode::ReadOnly) => read_only(target),
        Some(ErrorCode::DiskFull) => Error::Unwritable {
            target: target.to_owned(),
            problem: "the disk is full; nothing of this call was stored".to_owned(),
            next: "free some space and repeat it".to_owned(),
        },
        Some(ErrorCode::CannotOpen) => unusable(
            "the file cannot be opened",
            "check that its directory exists and that you may write to it (SQLite keeps two more files there)",
        ),
        _ => Error::Engine { doing, source: Box::new(cause) },
    }
}

/// An error of the operating system while doing something to `target`.
pub(super) fn from_io(target: &str, doing: &'static str, cause: std::io::Error) -> Error {
    use std::io::ErrorKind;
    let next = match cause.kind() {
        ErrorKind::NotFound => "create its directory first, or name another file with --db",
        ErrorKind::PermissionDenied => "check who owns the file and its directory",
        _ => return Error::Engine { doing, source: Box::new(cause) },
    };
    Error::Unusable { target: target.to_owned(), problem: cause.to_string(), next: next.to_owned() }
}

pub(super) fn not_a_database(target: &str) -> Error {
    Error::Unusable {
        target: target.to_owned(),
        problem: "this file is not a SQLite database".to_owned(),
        next: "name another file with --db; it is created where there is none".to_owned(),
    }
}

pub(super) fn read_only(target: &str) -> Error {
    Error::Unwritable {
        target: target.to_owned(),
        problem: "the file is read-only".to_owned(),
        next: "make it writable with `chmod u+w`, or name another file with --db".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_can_do_something_about_is_told_apart() {
        let say = |code| {
            let cause = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            from_sqlite("jobs.db", "enqueue", cause)
        };
        for code in [ffi::SQLITE_BUSY, ffi::SQLITE_BUSY_RECOVERY, ffi::SQLITE_LOCKED] {
            assert!(say(code).is_transient(), "{code}");
        }
        for (code, word) in [
            (ffi::SQLITE_FULL, "full"),
            (ffi::SQLITE_CORRUPT, "damaged"),
            (ffi::SQLITE_READONLY, "read-only"),
            (ffi::SQLITE_NOTADB, "not a SQLite database"),
            (ffi::SQLITE_CANTOPEN, "cannot be opened"),
            (ffi::SQLITE_READONLY_DBMOVED, "put in its place"),
        ] {
            let said = say(code);
            assert!(
                matches!(said, Error::Unusable { .. } | Error::Unwritable { .. })
                    && said.to_string().contains(word),
                "{said}"
            );
        }
    }
}
