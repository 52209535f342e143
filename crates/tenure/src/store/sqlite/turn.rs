//! How processes that share a file take turns.
//!
//! SQLite's own busy handler lets one process starve another, so whoever is about to write first
//! takes a lock of the operating system on `<file>-turn`, where those who wait stand in line. The
//! lock ends with its process, however that ends. A process that is *stopped* in its turn holds the
//! others up until it goes on: it would by SQLite's own lock as well.

use std::fs::File;
use std::io::{ErrorKind, Result};
use std::path::Path;

use super::file::private_file;

/// The lock of one file.
pub(super) struct Turns(File);

impl Turns {
    /// The lock that stands in this file.
    pub(super) fn open(path: &Path) -> Result<Turns> {
        private_file(path).map(Turns)
    }

    /// Waits for this process's turn. A signal that arrives meanwhile is no reason to give up.
    pub(super) fn take(&self) -> Result<()> {
        loop {
            match self.0.lock() {
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                answer => return answer,
            }
        }
    }

    /// Lets the next in line have it.
    pub(super) fn give_back(&self) {
        // It cannot fail on a lock that is held; if it did, the lock would end with the process.
        let _ = self.0.unlock();
    }
}
