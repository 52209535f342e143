//! Checks whether the file at the path is still the one that is open.
//!
//! SQLite does not check this: a file that was replaced or deleted while it was open still takes
//! commits, which no other process will ever see. So before anything is acknowledged, and before
//! anything that was read is returned, a check must show the same database, the same log and the
//! same index of the log at their paths. A file keeps its inode number for as long as it is open,
//! so that no other file can be mistaken for it.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::file::beside;
use crate::store::{Error, Result};

/// The identity of a file, whatever its name: its device and its inode number.
pub(super) type FileIdentity = (u64, u64);

pub(super) fn identity(path: &Path) -> io::Result<FileIdentity> {
    path.metadata().map(|file| (file.dev(), file.ino()))
}

/// The paths and the identities of the open files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Whereabouts {
    path: PathBuf,
    log: PathBuf,
    index: PathBuf,
    pub(super) files: Files,
}

/// The database, its write-ahead log (`-wal`), and the log's index, which processes share (`-shm`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Files {
    pub(super) database: FileIdentity,
    pub(super) log: FileIdentity,
    pub(super) index: FileIdentity,
}

/// How the files have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Moved {
    Gone,
    Replaced,
    Log,
}

impl Whereabouts {
    /// For a database that SQLite has open, with its log.
    pub(super) fn of(path: &Path) -> io::Result<Whereabouts> {
        let (log, index) = (beside(path, "-wal"), beside(path, "-shm"));
        let files =
            Files { database: identity(path)?, log: identity(&log)?, index: identity(&index)? };
        Ok(Whereabouts { path: path.to_owned(), log, index, files })
    }

    /// Checks whether all files are still at their paths.
    pub(super) fn check(&self) -> Result<(), Moved> {
        let is = |path: &Path, file: FileIdentity| identity(path).is_ok_and(|found| found == file);
        match identity(&self.path) {
            Err(_) => Err(Moved::Gone),
            Ok(found) if found != self.files.database => Err(Moved::Replaced),
            Ok(_) if !is(&self.log, self.files.log) => Err(Moved::Log),
            Ok(_) if !is(&self.index, self.files.index) => Err(Moved::Log),
            Ok(_) => Ok(()),
        }
    }
}

impl Moved {
    pub(super) fn error(self, target: &str) -> Error {
        let (problem, next) = match self {
            Moved::Gone => (
                "the file was deleted or moved away while it was open, so that nothing more is stored",
                format!(
                    "put it back; or end all programs that use it, delete {target}-wal and {target}-shm, and start them again"
                ),
            ),
            Moved::Replaced => (
                "another file was put in its place while it was open, so that nothing more is stored",
                format!(
                    "end all programs that use it, delete {target}-wal and {target}-shm, which are the earlier file's, and \
                     start them again"
                ),
            ),
            Moved::Log => (
                "its write-ahead log (-wal, -shm) was deleted or replaced while it was open, so that nothing more is stored",
                format!(
                    "end all programs that use it, and start them again; then `tenure --db {target} doctor --check` tells \
                     what is left"
                ),
            ),
        };
        Error::Unusable { target: target.to_owned(), problem: problem.to_owned(), next }
    }
}

/// Refuses a log that belongs to another database: SQLite would take its pages for pages of this
/// one. `last` has the files of the last opening. If the log or its index is still the one of that
/// time, but the database is another file, the log belongs to the earlier database.
pub(super) fn check_log(path: &Path, target: &str, last: Option<Files>) -> Result<()> {
    let there = |suffix: &str| identity(&beside(path, suffix)).ok();
    let stayed =
        |last: &Files| there("-wal") == Some(last.log) || there("-shm") == Some(last.index);
    let Some(last) = last.filter(stayed) else { return Ok(()) };
    if there("") == Some(last.database) {
        return Ok(());
    }
    let state = if path.exists() { "another file was put in its place" } else { "it was deleted" };
    Err(Error::Unusable {
        target: target.to_owned(),
        problem: format!("{state}, but the write-ahead log of the earlier file is still there"),
        next: format!(
            "end all programs that use it, then put the earlier file back, or delete {target}-wal and {target}-shm"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_or_a_log_that_is_another_one_is_noticed_and_one_that_is_back_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("jobs.db");
        let (log, aside) = (beside(&path, "-wal"), directory.path().join("aside"));
        std::fs::write(&path, "db").unwrap();
        std::fs::write(&log, "log").unwrap();
        let index = beside(&path, "-shm");
        std::fs::write(&index, "index").unwrap();
        let open = Whereabouts::of(&path).unwrap();
        assert_eq!(open.check(), Ok(()));
        std::fs::rename(&path, &aside).unwrap();
        assert_eq!(open.check(), Err(Moved::Gone));
        std::fs::write(&path, "db").unwrap();
        assert_eq!(open.check(), Err(Moved::Replaced));
        std::fs::rename(&aside, &path).unwrap();
        assert_eq!(open.check(), Ok(()));
        std::fs::rename(&log, &aside).unwrap();
        assert_eq!(open.check(), Err(Moved::Log));
        std::fs::write(&log, "log").unwrap();
        assert_eq!(open.check(), Err(Moved::Log));
        std::fs::rename(&aside, &log).unwrap();
        assert_eq!(open.check(), Ok(()));
        std::fs::remove_file(&index).unwrap();
        assert_eq!(open.check(), Err(Moved::Log));
    }

    #[test]
    fn a_log_is_refused_only_if_it_stayed_while_its_database_did_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("jobs.db");
        let (log, aside) = (beside(&path, "-wal"), directory.path().join("aside"));
        std::fs::write(&path, "db").unwrap();
        std::fs::write(&log, "log").unwrap();
        let index = beside(&path, "-shm");
        std::fs::write(&index, "index").unwrap();
        let last = Some(Whereabouts::of(&path).unwrap().files);
        let refusal =
            |last| check_log(&path, "jobs.db", last).err().map(|refused| refused.to_string());
        assert_eq!(refusal(last), None);
        std::fs::rename(&path, &aside).unwrap();
        assert!(refusal(last).unwrap().contains("it was deleted, but the write-ahead log"));
        std::fs::write(&path, "other").unwrap();
        let words = refusal(last).unwrap();
        assert!(words.contains("another file was put in its place"), "{words}");
        assert!(words.contains("delete jobs.db-wal and jobs.db-shm"), "{words}");
        assert_eq!(refusal(None), None, "nobody knows what it was");
        // From here on: if only the log or only the index stayed, it is refused. If both are gone
        // or new, as in a copy of the whole directory, the files belong together.
        let away = directory.path().join("away");
        std::fs::rename(&index, &away).unwrap();
        assert!(refusal(last).is_some(), "the log alone would be read");
        std::fs::rename(&away, &index).unwrap();
        std::fs::rename(&log, &away).unwrap();
        assert!(refusal(last).is_some(), "who has the earlier file open shares the index");
        std::fs::rename(&index, directory.path().join("away too")).unwrap();
        assert_eq!(refusal(last), None, "both were deleted with the database");
        std::fs::write(&log, "log").unwrap();
        std::fs::write(&index, "index").unwrap();
        assert_eq!(refusal(last), None);
    }
}
