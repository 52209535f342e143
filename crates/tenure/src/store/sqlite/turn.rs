//! Turns: how processes that share a file write one after the other.
//!
//! SQLite's own busy handler lets one process starve another. So a process that is about to write
//! first takes a lock of the operating system on `<file>-turn`, where waiting processes queue up.
//! The lock ends with its process, however that ends. A process that is *stopped* in its turn
//! blocks the others until it goes on; SQLite's own lock would do the same.
//!
//! The file also records which database and which log were last open together.

use std::fs::File;
use std::io::{ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::file::private_file;
use super::moved::Files;

/// The turn lock of one database.
pub(super) struct Turns(File);

impl Turns {
    /// Opens the lock file.
    pub(super) fn open(path: &Path) -> Result<Turns> {
        private_file(path).map(Turns)
    }

    /// Waits for this process's turn. A signal that arrives meanwhile does not end the wait.
    pub(super) fn take(&self) -> Result<()> {
        loop {
            match self.0.lock() {
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                answer => return answer,
            }
        }
    }

    /// Releases the lock for the next process.
    pub(super) fn give_back(&self) {
        // Unlocking a held lock cannot fail; if it did, the lock would end with the process.
        let _ = self.0.unlock();
    }

    /// Records, in this process's turn, which files are open together.
    pub(super) fn note(&self, files: Files) -> Result<()> {
        let Files { database, log, index } = files;
        let words = [("database", database), ("log", log), ("index", index)]
            .map(|(name, (device, number))| format!("{name} {device:020} {number:020} "));
        // The length is always the same, so that each write replaces the previous text completely.
        let text = format!("{}.\n", words.concat());
        self.0.write_all_at(text.as_bytes(), 0)
    }
}

/// Which files were last open together, if that was recorded.
pub(super) fn last_open(path: &Path) -> Option<Files> {
    // The file may contain anything after the last record.
    let bytes = std::fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let mut words = text.split_whitespace();
    let mut file = |name: &str| {
        let is_named = words.next()? == name;
        let identity = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        is_named.then_some(identity)
    };
    let files = Files { database: file("database")?, log: file("log")?, index: file("index")? };
    (words.next() == Some(".")).then_some(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_open_together_is_read_as_it_was_noted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("turn");
        assert_eq!(last_open(&path), None);
        let turns = Turns::open(&path).unwrap();
        assert_eq!(last_open(&path), None, "nobody has noted anything");
        std::fs::write(&path, [0xff; 5_000]).unwrap();
        for files in [
            Files { database: (u64::MAX, 1), log: (2, u64::MAX), index: (3, 4) },
            Files { database: (1, 2), log: (1, 3), index: (1, 4) },
        ] {
            turns.note(files).unwrap();
            assert_eq!(last_open(&path), Some(files));
        }
    }
}
