//! A store in a file of this machine: SQLite.

use std::path::Path;

use anyhow::Result;
use tenure::engine::inspect::DueJobs;
use tenure::engine::store::migrate::Status;
use tenure::engine::store::postgres::{Brought, Newer, Roles};
use tenure::engine::store::sqlite::{Beside, Sqlite, StoreOptions};

use super::Removable;
use crate::args::BadInput;
use crate::commands::doctor::{Examined, Finding};

pub(super) fn status(file: &Path) -> Result<Vec<Status>> {
    Ok(Sqlite::status(file)?)
}

pub(super) fn migrate_up(file: &Path, roles: Roles, newer: Newer) -> Result<Brought> {
    if roles == Roles::Make {
        let why = "--roles: a file has no roles; leave it out, and see to who may write the file";
        return Err(BadInput(why.into()).into());
    }
    if newer == Newer::Replace {
        let why =
            "--force: a file has no functions that could be newer than this binary; leave it out";
        return Err(BadInput(why.into()).into());
    }
    Sqlite::adopt(file, &StoreOptions::default())?;
    Ok(Brought::Current)
}

/// Offers no removal: the owner of a file can delete the file, and in a file with other tables only
/// the owner knows what to remove.
pub(super) fn removable(file: &Path) -> Removable {
    if !file.exists() {
        return Removable::Nothing;
    }
    let name = file.display();
    Removable::No(format!(
        "a store in a file is removed with the file; end whoever uses it, and then: \
         rm {name} {name}-wal {name}-shm {name}-turn {name}-witness {name}-guard-*; or, if it holds \
         tables of yours too, drop what begins with tenure_, the views first"
    ))
}

pub(super) fn migrate_down(file: &Path) -> Result<()> {
    match removable(file) {
        Removable::No(why) => Err(anyhow::anyhow!(why)),
        Removable::Store(_) | Removable::Nothing => Ok(()),
    }
}

pub(super) fn examine(file: &Path) -> Result<Examined> {
    let store = Sqlite::open(file, &StoreOptions::default())?;
    let facts = store.facts()?;
    let next = "find the program that changed it with PRAGMA journal_mode";
    let journal = match facts.journal_mode.as_str() {
        "wal" => Finding::well("journal", "write-ahead log"),
        other => Finding::ill("journal", format!("{other}, not a write-ahead log"), next),
    };
    let commits = if facts.is_synced {
        Finding::well("commits", "on disk before they are acknowledged")
    } else {
        Finding::ill("commits", "acknowledged before they are on disk", "use an unchanged build")
    };
    let findings = vec![
        size(file),
        Finding::well("sqlite", facts.version),
        journal,
        commits,
        witness(&store.beside(file)?),
        Finding::well("notifications", "not needed: processes look for each other's changes"),
        Finding::well("clock", "this machine's own, as for all who use the file"),
    ];
    Ok(Examined { findings, due: Some(store.due()?) })
}

pub(super) fn due(file: &Path) -> Result<Option<Vec<DueJobs>>> {
    Ok(Some(Sqlite::open(file, &StoreOptions::default())?.due()?))
}

/// Whether an older copy of the file would be noticed, and which guard files workers have left.
fn witness(Beside { witness, is_witnessed, problem, guards }: &Beside) -> Finding {
    let name = |file: &Path| file.file_name().unwrap_or_default().display().to_string();
    if let Some(problem) = problem {
        let found = format!("{problem}, so that an older file would not be noticed");
        let next = format!(
            "see that there is space, and that {} is a plain file which you may write, or nothing; it \
             is made again; and after a restore say so with `tenure doctor --raise-epoch`",
            name(witness)
        );
        return Finding::ill("witness", found, next);
    }
    if !is_witnessed {
        let found = format!("{} is missing, or of another store", name(witness));
        let next =
            "end whoever uses the store; it is made again when the store is opened, in a new epoch";
        return Finding::ill("witness", found, next);
    }
    let found = format!("{} is there, so that an older file is noticed", name(witness));
    let guards = match guards.as_slice() {
        [] => "no worker has left a guard file".to_owned(),
        [one] => format!("and the guard file {}", name(one)),
        [one, ..] => format!("and {} guard files, such as {}", guards.len(), name(one)),
    };
    Finding::well("witness", format!("{found}; {guards}"))
}

/// The sizes of the file and its log.
fn size(path: &Path) -> Finding {
    let size = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        Path::new(&name).metadata().map_or(0, |file| file.len())
    };
    let sizes = format!("{}, and {} in its log", bytes(size("")), bytes(size("-wal")));
    Finding::well("size", sizes)
}

/// A size for people to read.
fn bytes(size: u64) -> String {
    match size {
        0..1024 => format!("{size} bytes"),
        1024..1_048_576 => format!("{} KiB", size / 1024),
        _ => format!("{}.{} MiB", size / 1_048_576, size % 1_048_576 * 10 / 1_048_576),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_in_the_unit_that_fits() {
        assert_eq!(bytes(1_023), "1023 bytes");
        assert_eq!(bytes(4_096), "4 KiB");
        assert_eq!(bytes(1_048_576 * 5 / 2), "2.5 MiB");
    }
}
