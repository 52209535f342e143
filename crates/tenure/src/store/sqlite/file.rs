//! Opening the file: what may be opened, how it is set up, and its schema.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, named_params};

use super::moved::{Moved, Whereabouts, identity};
use super::turn::Turns;
use super::tx::Tx;
use super::witness::{Beat, Witness, accuse};
use super::writer::Beside;
use super::{error, mount, moved, row, turn};
use crate::clock::{self, Clock};
use crate::store::migrate::{self, Applied, Migration, Refusal, Status};
use crate::store::{Error, Result};

/// The schema of this engine.
pub(super) const MIGRATIONS: [Migration; 1] = [Migration {
    version: 1,
    name: "first",
    min_client: 1,
    sql: include_str!("../../../sql/sqlite/schema/0001_first.sql"),
}];

/// Older versions can corrupt a WAL that several processes share.
const OLDEST_SQLITE: i32 = 3_051_003;

/// What to do with a database that has tables, but none of Tenure's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Foreign {
    /// Refuse it: it belongs to another program, and was named by mistake.
    Refuse,
    /// Add Tenure's tables to it, as its owner asked.
    Adopt,
}

/// An open file: the connection that writes, and the files beside the database.
pub(super) struct Opened {
    pub(super) connection: Connection,
    pub(super) beside: Beside,
}

/// Opens the file, creates it where there is none, and brings its schema up to date.
pub(super) fn open(path: &Path, clock: &Clock, foreign: Foreign) -> Result<Opened> {
    let target = path.display().to_string();
    check_version()?;
    check_file(path, &target)?;
    mount::check(path, &target)?;
    let turn_file = beside(path, "-turn");
    moved::check_log(path, &target, turn::last_open(&turn_file))?;
    // Refuse a database that is not Tenure's before anything is created beside it or changed in it.
    if path.metadata().is_ok_and(|file| file.len() > 0) {
        let reader = open_reader(path, &target)?;
        // Read it in one snapshot: another process may be creating the tables at this moment.
        let snapshot = reader
            .unchecked_transaction()
            .map_err(|cause| error::from_sqlite(&target, "look at the store", cause))?;
        check_ours(&snapshot, &target, foreign)?;
    }
    let failed = |cause| error::from_io(&target, "open the store", cause);
    let turns = Turns::open(&turn_file).map_err(failed)?;
    let witness = Witness::open(&beside(path, "-witness"));
    // The process that gets the first turn sets the file up. Other processes that open the file at
    // the same time wait here, and then find it set up.
    turns.take().map_err(failed)?;
    let opened = moved::check_log(path, &target, turn::last_open(&turn_file))
        .and_then(|()| open_in_turn(path, &target, clock, foreign, &witness))
        .and_then(|(connection, whereabouts)| {
            turns.note(whereabouts.files).map_err(failed)?;
            Ok((connection, whereabouts))
        });
    turns.give_back();
    let (connection, whereabouts) = opened?;
    Ok(Opened { connection, beside: Beside { turns, witness, whereabouts } })
}

fn open_in_turn(
    path: &Path,
    target: &str,
    clock: &Clock,
    foreign: Foreign,
    witness: &Witness,
) -> Result<(Connection, Whereabouts)> {
    /// Where containers put one file system over another (overlay), a file may get another inode
    /// number when it is first written. Then the file is opened again, this often at most.
    const TRIES: usize = 3;
    let failed = |cause| error::from_io(target, "open the store", cause);
    for _ in 0..TRIES {
        create_private(path).map_err(failed)?;
        let before = identity(path).map_err(failed)?;
        let mut connection = connect(path, target)?;
        migrate_up(&mut connection, target, clock, foreign)?;
        hear_witness(&mut connection, witness, clock)
            .map_err(|cause| error::from_sqlite(target, "look for an older state", cause))?;
        let whereabouts = Whereabouts::of(path).map_err(failed)?;
        // The path led to the same file before and after, so that file is the open one.
        if whereabouts.files.database == before {
            return Ok((connection, whereabouts));
        }
    }
    Err(Moved::Replaced.error(target))
}

/// Begins a new epoch if the file has gone back in time. Otherwise writes nothing.
pub(super) fn hear_witness(
    connection: &mut Connection,
    witness: &Witness,
    clock: &Clock,
) -> rusqlite::Result<()> {
    let tx = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    if heed(&tx, witness, clock)? {
        let beat = beat(&tx)?;
        tx.commit()?;
        witness.write(&beat);
    }
    Ok(())
}

/// Like [`hear_witness`], in a transaction of the caller. Returns whether an epoch has begun. The
/// caller must write the witness after the commit.
pub(super) fn heed(
    connection: &Connection,
    witness: &Witness,
    clock: &Clock,
) -> rusqlite::Result<bool> {
    let mut file = connection
        .prepare_cached("SELECT installation, beat, epoch, unwitnessed FROM tenure_meta")?;
    let (file, unwitnessed) =
        file.query_row([], |row| Ok((read_beat(row)?, row.get::<_, bool>(3)?)))?;
    let mut seen = witness.read();
    let Some(mut accused) = accuse(&file, seen.as_ref()) else { return Ok(false) };
    // If the witness keeps nothing that is written to it, every comparison would find that the file
    // has gone back in time. Therefore a new epoch begins for this reason only once, and
    // `unwitnessed` in the database records that. From then on, compare the file with what this
    // process wrote last.
    let keeps = seen.as_ref().is_some_and(|seen| seen.installation == file.installation)
        || witness.can_keep();
    if !keeps {
        seen = witness.told();
        match (&seen, accuse(&file, seen.as_ref())) {
            (Some(_), None) => return Ok(false),
            (None, _) if unwitnessed => return Ok(false),
            (_, now) => accused = now.unwrap_or(accused),
        }
    }
    let (epoch, reason) = accused;
    Tx { connection, sql: &super::embedded(), now: clock.now() }.raise_epoch(epoch, &reason)?;
    // Raise the file's beat to the witness's. Otherwise this restore would be noticed again at the
    // next opening.
    let seen = seen.map_or(0, |seen| seen.beat);
    connection
        .execute("UPDATE tenure_meta SET beat = max(beat, ?1), unwitnessed = ?2", (seen, !keeps))?;
    Ok(true)
}

/// Raises the beat. Call this in the transaction whose commit the beat counts.
pub(super) fn beat(connection: &Connection) -> rusqlite::Result<Beat> {
    let mut beat = connection.prepare_cached(
        "UPDATE tenure_meta SET beat = beat + 1 RETURNING installation, beat, epoch",
    )?;
    beat.query_row([], read_beat)
}

fn read_beat(row: &rusqlite::Row<'_>) -> rusqlite::Result<Beat> {
    Ok(Beat { installation: row.get(0)?, beat: row.get(1)?, epoch: row.get(2)? })
}

/// A connection that can only read.
pub(super) fn open_reader(path: &Path, target: &str) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let set_up = |cause| error::from_sqlite(target, "open the store for reading", cause);
    let connection = Connection::open_with_flags(path, flags).map_err(set_up)?;
    connection.execute_batch("PRAGMA query_only = ON").map_err(set_up)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(set_up)?;
    keep_statements(&connection).map_err(set_up)?;
    Ok(connection)
}

/// The state of a file's schema. Changes nothing. If the file does not exist, all migrations are
/// pending.
pub(super) fn status(path: &Path) -> Result<Vec<Status>> {
    let target = path.display().to_string();
    check_file(path, &target)?;
    moved::check_log(path, &target, turn::last_open(&beside(path, "-turn")))?;
    let exists = path.metadata().is_ok_and(|file| file.len() > 0);
    let applied = if exists { applied(&open_reader(path, &target)?, &target)? } else { Vec::new() };
    Ok(migrate::compare(&MIGRATIONS, &applied))
}

/// The path of the file itself, with links and relative names resolved. All processes that open the
/// file must find the same files beside it.
pub(super) fn resolve(path: &Path) -> PathBuf {
    let found = path.canonicalize().or_else(|_| {
        let name = path.file_name().unwrap_or_default();
        directory_of(path).canonicalize().map(|directory| directory.join(name))
    });
    found.unwrap_or_else(|_| path.to_owned())
}

pub(super) fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The path of a file beside the database: the database's path and a suffix.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const STATEMENTS: usize = 64;

fn check_version() -> Result<()> {
    if rusqlite::version_number() >= OLDEST_SQLITE {
        return Ok(());
    }
    Err(Error::Unusable {
        target: format!("SQLite {}", rusqlite::version()),
        problem: "this version can corrupt a file that several processes write".into(),
        next: "build with the bundled SQLite, or with 3.51.3 or newer".into(),
    })
}

/// Refuses what cannot be a database of Tenure's, before anything is created or changed.
fn check_file(path: &Path, target: &str) -> Result<()> {
    let found = match path.metadata() {
        Ok(found) => found,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(error::from_io(target, "look at the file", cause)),
    };
    if !found.is_file() {
        let what =
            if found.is_dir() { "this is a directory" } else { "this is not a regular file" };
        return Err(Error::Unusable {
            target: target.into(),
            problem: what.into(),
            next: "name a file with --db, for example tenure.db".into(),
        });
    }
    if found.nlink() > 1 {
        return Err(Error::Unusable {
            target: target.into(),
            problem: "this file has a second name (a hard link); each name would have a log of its own, and jobs \
                that were acknowledged under one would be lost under the other"
                .into(),
            next: "remove the other name, or copy the file and open the copy".into(),
        });
    }
    // Look at the permissions instead of trying to write, because root may write to a read-only
    // file.
    if found.permissions().readonly() {
        return Err(error::read_only(target));
    }
    Ok(())
}

/// Opens a file. If there is none, creates one that only its owner may read.
pub(super) fn private_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Creates the database file if there is none. Must not open an existing one, only SQLite may do
/// that: by POSIX, closing any descriptor of a file drops every lock that this process holds on it.
fn create_private(path: &Path) -> std::io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(cause) if cause.kind() != ErrorKind::AlreadyExists => Err(cause),
        _ => Ok(()),
    }
}

fn connect(path: &Path, target: &str) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |cause| error::from_sqlite(target, "open the store", cause);
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
    prepare(&connection).map_err(failed)?;
    Ok(connection)
}

/// The settings that the guarantees rest on.
pub(super) fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    // A store in memory answers "memory", and needs no journal.
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" && mode != "memory" {
        return Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN),
            Some(format!("the file system allows only journal mode {mode}")),
        ));
    }
    // FULL: an acknowledged commit survives a power cut.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    keep_statements(connection)
}

/// Keeps compiled statements. Without the setting (QPSG), SQLite compiles a statement again for
/// other values of its parameters, if a partial index might suit them.
fn keep_statements(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(drop)
}

/// Refuses a database that is not Tenure's, or whose tables this binary does not know. Returns the
/// migrations that were applied to it.
fn check_ours(connection: &Connection, target: &str, foreign: Foreign) -> Result<Vec<Applied>> {
    let failed = |cause| error::from_sqlite(target, "look at the store", cause);
    let unusable =
        |problem: String, next: String| Error::Unusable { target: target.into(), problem, next };
    let done = applied(connection, target)?;
    if migrate::is_from_before(&done) {
        return Err(unusable(
            migrate::FROM_BEFORE.into(),
            "name another file; the tenure that made this one can finish its jobs".into(),
        ));
    }
    if done.is_empty() && foreign == Foreign::Refuse && has_tables(connection).map_err(failed)? {
        return Err(unusable(
            "this is a SQLite database, but not one of Tenure's".into(),
            format!(
                "name another file, or add Tenure's tables to this one: tenure --db {target} migrate up"
            ),
        ));
    }
    migrate::check_known(&MIGRATIONS, &done)
        .map_err(|Refusal { problem, next }| unusable(problem, next))?;
    Ok(done)
}

/// Applies what is missing.
pub(super) fn migrate_up(
    connection: &mut Connection,
    target: &str,
    clock: &Clock,
    foreign: Foreign,
) -> Result<()> {
    migrate_up_edited(connection, target, clock, foreign, |_, text| text.to_owned())
}

/// Like [`migrate_up`], with the text of each migration passed through `edit`.
pub(super) fn migrate_up_edited(
    connection: &mut Connection,
    target: &str,
    clock: &Clock,
    foreign: Foreign,
    edit: impl Fn(&str, &str) -> String,
) -> Result<()> {
    let failed = |cause| error::from_sqlite(target, "migrate the store", cause);
    let tx = connection
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .map_err(failed)?;
    let done = check_ours(&tx, target, foreign)?;
    if done.is_empty() {
        tx.execute_batch(MIGRATIONS_TABLE).map_err(failed)?;
    }
    let missing =
        |migration: &&Migration| done.iter().all(|applied| applied.version != migration.version);
    for migration in MIGRATIONS.iter().filter(missing) {
        let sql =
            edit(&format!("schema/{:04}_{}", migration.version, migration.name), migration.sql);
        apply(&tx, migration, &sql, clock).map_err(failed)?;
    }
    tx.commit().map_err(failed)
}

const MIGRATIONS_TABLE: &str = "
CREATE TABLE tenure_migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    checksum   TEXT    NOT NULL,
    min_client INTEGER NOT NULL,
    applied_at INTEGER NOT NULL
) STRICT";

fn apply(
    connection: &Connection,
    migration: &Migration,
    sql: &str,
    clock: &Clock,
) -> rusqlite::Result<()> {
    connection.execute_batch(sql)?;
    if migration.version == 1 {
        let installation = clock::unique().to_string();
        connection.execute(
            "INSERT INTO tenure_meta (one, installation) VALUES (1, ?1)",
            [installation],
        )?;
    }
    connection.execute(
        "INSERT INTO tenure_migrations (version, name, checksum, min_client, applied_at)
         VALUES (:version, :name, :checksum, :min_client, :applied_at)",
        named_params! {
            ":version": migration.version, ":name": migration.name, ":checksum": migration.checksum(),
            ":min_client": migration.min_client, ":applied_at": clock.now().as_millis(),
        },
    )?;
    Ok(())
}

fn applied(connection: &Connection, target: &str) -> Result<Vec<Applied>> {
    let read = || -> rusqlite::Result<Vec<Applied>> {
        let table =
            "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'tenure_migrations'";
        if connection.query_row(table, [], |_| Ok(())).optional()?.is_none() {
            return Ok(Vec::new());
        }
        let mut statement = connection.prepare(
            "SELECT version, name, checksum, min_client, applied_at FROM tenure_migrations ORDER BY version",
        )?;
        let rows = statement.query_map([], |row| {
            Ok(Applied {
                version: row.get(0)?,
                name: row.get(1)?,
                checksum: row.get(2)?,
                min_client: row.get(3)?,
                applied_at: row::time(row.get(4)?),
            })
        })?;
        rows.collect()
    };
    read().map_err(|cause| error::from_sqlite(target, "read the schema's version", cause))
}

fn has_tables(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_on_disk_before_it_is_acknowledged() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("jobs.db");
        let connection = open(&file, &Clock::system(), Foreign::Refuse).unwrap().connection;
        let mode: String =
            connection.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
        let synchronous: i64 =
            connection.pragma_query_value(None, "synchronous", |row| row.get(0)).unwrap();
        assert_eq!((mode.as_str(), synchronous), ("wal", 2), "2 is FULL");
    }

    #[test]
    fn what_is_no_file_is_refused_with_what_it_is_and_left_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let words = |path: &Path| [status(path).unwrap_err(), check_file(path, "it").unwrap_err()];
        for told in words(directory.path()) {
            assert!(told.to_string().contains("this is a directory"), "{told}");
        }
        for told in words(Path::new("/dev/null")) {
            assert!(told.to_string().contains("this is not a regular file"), "{told}");
        }
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_bare_name_is_a_file_in_the_current_directory() {
        assert_eq!(directory_of(Path::new("jobs.db")), Path::new("."));
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        let name = format!("{}.db", clock::unique());
        assert_eq!(resolve(Path::new(&name)), here.join(name));
    }

    #[test]
    fn a_reader_cannot_write_and_waits_for_a_busy_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("jobs.db");
        open(&file, &Clock::system(), Foreign::Refuse).unwrap();
        let reader = open_reader(&file, "test").unwrap();
        assert!(reader.execute("DELETE FROM tenure_jobs", []).is_err());
        let patience: i64 =
            reader.pragma_query_value(None, "busy_timeout", |row| row.get(0)).unwrap();
        assert_eq!(Duration::from_millis(patience.unsigned_abs()), BUSY_TIMEOUT);
    }
}
