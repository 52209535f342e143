//! The witness: a small file beside the database that records its last commit.
//!
//! Each commit that changes something raises the beat in the database and then writes it to the
//! witness. A database whose beat is behind its witness has therefore gone back in time. A database
//! that was in use and has no witness counts as gone back too: it was copied from elsewhere. In
//! both cases a new epoch begins, so that no token and no id is ever issued twice.

use std::fs::File;
use std::io::Result;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::file::private_file;
use crate::clock;

/// The position of a store in its history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Beat {
    /// The id of the store's installation.
    pub(super) installation: String,
    /// Rises with each commit.
    pub(super) beat: i64,
    pub(super) epoch: u32,
}

/// The file beside the database.
#[derive(Debug)]
pub(super) struct Witness {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` if it cannot be opened.
    file: Option<File>,
    /// What this process wrote last, whether or not the file kept it.
    told: Option<Beat>,
    /// Why the file keeps nothing.
    problem: Option<String>,
}

impl Witness {
    /// Opens the witness. If that fails, the witness keeps nothing and reports the problem; the
    /// store can still be used.
    pub(super) fn open(path: &Path) -> Witness {
        let state = match private_file(path) {
            Ok(file) => State { file: Some(file), ..State::default() },
            // Perhaps the file can still be read.
            Err(cause) => State {
                file: File::open(path).ok(),
                problem: Some(cause.to_string()),
                ..State::default()
            },
        };
        Witness { path: path.to_owned(), state: Mutex::new(state) }
    }

    /// What the witness has recorded; `None` if it is new or cannot be read.
    pub(super) fn read(&self) -> Option<Beat> {
        self.state().read()
    }

    /// Records a commit. The file is not flushed: after a power cut the witness may be behind the
    /// database, which is harmless. If the file cannot be written at all, the witness falls behind
    /// too, and [`Witness::problem`] returns the reason.
    pub(super) fn write(&self, seen: &Beat) {
        let Beat { installation, beat, epoch } = seen;
        // The length is always the same, so that each write replaces the previous text completely.
        let text = format!("installation {installation} beat {beat:020} epoch {epoch:010} end .\n");
        let mut state = self.state();
        state.told = Some(seen.clone());
        let written = state.write(&self.path, text.as_bytes());
        // After a problem, read the file back before believing that it is solved.
        if written.is_err() || state.problem.is_some() {
            let kept = state.read().as_ref() == Some(seen);
            state.problem = match written {
                Err(cause) => Some(cause.to_string()),
                Ok(()) if kept => None,
                Ok(()) => Some(FORGETS.to_owned()),
            };
        }
    }

    /// What this process wrote last.
    pub(super) fn told(&self) -> Option<Beat> {
        self.state().told.clone()
    }

    /// Whether the file keeps what is written to it. Writes a text that is no record, so that if
    /// this process ends here, the database counts as gone back in time.
    pub(super) fn can_keep(&self) -> bool {
        let text = format!("trial {} .\n", clock::unique());
        let mut state = self.state();
        let written = state.write(&self.path, text.as_bytes());
        let kept = state.bytes().is_some_and(|bytes| bytes.starts_with(text.as_bytes()));
        state.problem = match written {
            Err(cause) => Some(cause.to_string()),
            Ok(()) if kept => None,
            Ok(()) => Some(FORGETS.to_owned()),
        };
        state.problem.is_none()
    }

    /// Writes the recorded beat once more, to test whether writing works. Call only in this
    /// process's turn.
    pub(super) fn rehearse(&self) {
        match self.read() {
            Some(seen) => {
                // Set a problem, so that `write` reads the file back.
                self.state().problem.get_or_insert_default();
                self.write(&seen);
            }
            None => drop(self.can_keep()),
        }
    }

    /// Why the witness cannot be written, if so. As long as that lasts, a restored older file is
    /// not noticed.
    pub(super) fn problem(&self) -> Option<String> {
        let state = self.state();
        let name = self.path.file_name().unwrap_or_default().display();
        state.problem.as_ref().map(|problem| format!("{name} cannot be written ({problem})"))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The problem of a witness on a device that discards what is written, such as `/dev/null`.
const FORGETS: &str = "it does not keep what is written";

impl State {
    fn bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = [0; 256];
        let size = self.file.as_ref()?.read_at(&mut bytes, 0).ok()?;
        Some(bytes[..size].to_vec())
    }

    fn read(&self) -> Option<Beat> {
        // The file may contain anything after the last record.
        let bytes = self.bytes()?;
        let text = String::from_utf8_lossy(&bytes);
        let mut words = text.split_whitespace();
        let mut word = |name: &str| (words.next()? == name).then(|| words.next()).flatten();
        let installation = word("installation")?.to_owned();
        let (beat, epoch) = (word("beat")?.parse().ok()?, word("epoch")?.parse().ok()?);
        (word("end") == Some(".")).then_some(Beat { installation, beat, epoch })
    }

    fn write(&mut self, path: &Path, bytes: &[u8]) -> Result<()> {
        // If the file was deleted, no other process sees what is written to it: they use the new
        // file at its path.
        let deleted = |file: &File| file.metadata().is_ok_and(|file| file.nlink() == 0);
        if self.problem.is_some() || self.file.as_ref().is_none_or(deleted) {
            self.file = Some(private_file(path)?);
        }
        self.file.as_ref().map_or(Ok(()), |file| file.write_all_at(bytes, 0))
    }
}

/// If the database has gone back in time: the highest epoch that is known, and the reason in words.
pub(super) fn accuse(file: &Beat, seen: Option<&Beat>) -> Option<(u32, String)> {
    let seen = seen.filter(|seen| seen.installation == file.installation);
    match seen {
        None if file.beat == 0 => None, // new, or from before there were witnesses
        None => Some((
            file.epoch,
            "there is no witness of this store beside the file: it was copied, moved or restored"
                .into(),
        )),
        Some(seen) if seen.beat > file.beat => Some((
            file.epoch.max(seen.epoch),
            format!(
                "the file is older than the witness beside it, by commits: {}; it was restored",
                seen.beat - file.beat
            ),
        )),
        Some(seen) if seen.epoch > file.epoch => Some((
            seen.epoch,
            "the file is from an earlier epoch than the witness beside it".into(),
        )),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(beat: i64, epoch: u32) -> Beat {
        Beat { installation: "i".into(), beat, epoch }
    }

    #[test]
    fn a_witness_says_what_it_was_told_last() {
        let directory = tempfile::tempdir().unwrap();
        let witness = Witness::open(&directory.path().join("w"));
        assert_eq!(witness.read(), None);
        for seen in [beat(7, 0), beat(1_000_000, 3), beat(8, 3)] {
            witness.write(&seen);
            assert_eq!(witness.read(), Some(seen));
        }
        std::fs::write(directory.path().join("w"), "nonsense").unwrap();
        assert_eq!(witness.read(), None);
        std::fs::write(directory.path().join("w"), [0xff; 5_000]).unwrap();
        assert_eq!(witness.read(), None);
        witness.write(&beat(9, 3));
        assert_eq!(witness.read(), Some(beat(9, 3)), "whatever lies behind it");
    }

    #[test]
    fn a_witness_that_was_deleted_is_followed_by_one_that_others_see() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("w");
        let (ours, theirs) = (Witness::open(&path), Witness::open(&path));
        ours.write(&beat(1, 0));
        std::fs::remove_file(&path).unwrap();
        theirs.write(&beat(2, 0));
        ours.write(&beat(3, 0));
        assert_eq!(Witness::open(&path).read(), Some(beat(3, 0)));
        assert_eq!(theirs.read(), Some(beat(3, 0)));
    }

    #[test]
    fn a_witness_that_keeps_nothing_says_why_until_it_keeps_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("w");
        let put = |device: &str| {
            let _ = std::fs::remove_file(&path);
            std::os::unix::fs::symlink(device, &path).unwrap();
        };
        put("/dev/full");
        let witness = Witness::open(&path);
        witness.write(&beat(1, 0));
        assert!(witness.problem().unwrap().contains("No space left"));
        assert_eq!(witness.told(), Some(beat(1, 0)), "the process itself knows");
        std::fs::remove_file(&path).unwrap();
        witness.write(&beat(2, 0));
        assert_eq!((witness.problem(), witness.read()), (None, Some(beat(2, 0))));
        put("/dev/null");
        let witness = Witness::open(&path);
        witness.rehearse();
        assert!(witness.problem().unwrap().contains("does not keep what is written"));
    }

    #[test]
    fn a_rehearsal_writes_to_the_file_that_others_would_open() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("w");
        let witness = Witness::open(&path);
        witness.write(&beat(1, 0));
        witness.rehearse();
        assert_eq!((witness.problem(), witness.read()), (None, Some(beat(1, 0))));
        std::fs::rename(&path, directory.path().join("aside")).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        witness.rehearse();
        assert!(witness.problem().unwrap().contains("does not keep what is written"));
    }

    #[test]
    fn only_a_file_that_is_behind_or_alone_has_gone_back() {
        let other = Beat { installation: "other".into(), ..beat(9, 0) };
        let accused =
            |file: Beat, seen: Option<Beat>| accuse(&file, seen.as_ref()).map(|(after, _)| after);
        assert_eq!(accused(beat(0, 0), None), None, "a new file");
        assert_eq!(accused(beat(0, 0), Some(other.clone())), None, "the witness of another file");
        assert_eq!(accused(beat(5, 0), Some(beat(5, 0))), None);
        assert_eq!(accused(beat(6, 0), Some(beat(5, 0))), None, "a power cut");
        assert_eq!(accused(beat(5, 0), Some(beat(6, 0))), Some(0));
        assert_eq!(accused(beat(5, 0), None), Some(0));
        assert_eq!(accused(beat(5, 2), Some(other)), Some(2));
        assert_eq!(accused(beat(5, 0), Some(beat(5, 3))), Some(3), "restored twice");
        assert_eq!(accused(beat(5, 0), Some(beat(9, 3))), Some(3));
    }
}
