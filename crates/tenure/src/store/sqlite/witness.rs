//! What remembers how far a file has come, outside of it: a witness, in a small file beside it.
//!
//! Each commit that changes something raises the beat in the database and then writes it to the witness. So a file
//! whose beat is behind the witness has gone back in time, and so has, as far as anybody can tell, one that was in use
//! and has no witness beside it: it was copied from elsewhere. Then a new epoch begins, and no token and no id is
//! ever issued twice.

use std::fs::File;
use std::io::Result;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::file::private_file;
use crate::clock;

/// How far a store has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Beat {
    /// The installation it is about.
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
    /// None, if it cannot be opened.
    file: Option<File>,
    /// What this process has told it last, whether it was kept or not.
    told: Option<Beat>,
    /// Why it keeps nothing.
    problem: Option<String>,
}

impl Witness {
    /// One that cannot be opened keeps nothing, and says so: the store is used all the same.
    pub(super) fn open(path: &Path) -> Witness {
        let state = match private_file(path) {
            Ok(file) => State { file: Some(file), ..State::default() },
            // It may say something all the same.
            Err(cause) => State {
                file: File::open(path).ok(),
                problem: Some(cause.to_string()),
                ..State::default()
            },
        };
        Witness { path: path.to_owned(), state: Mutex::new(state) }
    }

    /// What it has seen; nothing if it is new, or is not to be read.
    pub(super) fn read(&self) -> Option<Beat> {
        self.state().read()
    }

    /// Writes down what was committed. It is not flushed: after a power cut the witness may be behind, which accuses
    /// nobody. If it cannot be written at all, it stays behind too, and [`Witness::problem`] tells why.
    pub(super) fn write(&self, seen: &Beat) {
        let Beat { installation, beat, epoch } = seen;
        // Always the same length, so that it is overwritten whole.
        let text = format!("installation {installation} beat {beat:020} epoch {epoch:010} end .\n");
        let mut state = self.state();
        state.told = Some(seen.clone());
        let written = state.write(&self.path, text.as_bytes());
        // What was wrong once is believed to be right again only when it is seen.
        if written.is_err() || state.problem.is_some() {
            let kept = state.read().as_ref() == Some(seen);
            state.problem = match written {
                Err(cause) => Some(cause.to_string()),
                Ok(()) if kept => None,
                Ok(()) => Some(FORGETS.to_owned()),
            };
        }
    }

    /// What this process has told it last.
    pub(super) fn told(&self) -> Option<Beat> {
        self.state().told.clone()
    }

    /// Whether it keeps what is written into it. It is tried with something that accuses the file as well, should this
    /// process end here.
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

    /// Writes once more what it says, to see whether it can. Only in our turn.
    pub(super) fn rehearse(&self) {
        match self.read() {
            Some(seen) => {
                // Whoever looks believes only what is seen.
                self.state().problem.get_or_insert_default();
                self.write(&seen);
            }
            None => drop(self.can_keep()),
        }
    }

    /// Why it keeps nothing, if it does not: then an older file is not noticed.
    pub(super) fn problem(&self) -> Option<String> {
        let state = self.state();
        let name = self.path.file_name().unwrap_or_default().display();
        state.problem.as_ref().map(|problem| format!("{name} cannot be written ({problem})"))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As a device that swallows everything.
const FORGETS: &str = "it does not keep what is written";

impl State {
    fn bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = [0; 256];
        let size = self.file.as_ref()?.read_at(&mut bytes, 0).ok()?;
        Some(bytes[..size].to_vec())
    }

    fn read(&self) -> Option<Beat> {
        // Behind what was written last there may be anything.
        let bytes = self.bytes()?;
        let text = String::from_utf8_lossy(&bytes);
        let mut words = text.split_whitespace();
        let mut word = |name: &str| (words.next()? == name).then(|| words.next()).flatten();
        let installation = word("installation")?.to_owned();
        let (beat, epoch) = (word("beat")?.parse().ok()?, word("epoch")?.parse().ok()?);
        (word("end") == Some(".")).then_some(Beat { installation, beat, epoch })
    }

    fn write(&mut self, path: &Path, bytes: &[u8]) -> Result<()> {
        // If somebody deleted it, what is written there is seen by nobody; others look at the one that came after it.
        let deleted = |file: &File| file.metadata().is_ok_and(|file| file.nlink() == 0);
        if self.problem.is_some() || self.file.as_ref().is_none_or(deleted) {
            self.file = Some(private_file(path)?);
        }
        self.file.as_ref().map_or(Ok(()), |file| file.write_all_at(bytes, 0))
    }
}

/// Why the file must have gone back in time, if it must, and the epoch to begin the next one after.
pub(super) fn accuse(file: &Beat, seen: Option<&Beat>) -> Option<(u32, String)> {
    let seen = seen.filter(|seen| seen.installation == file.installation);
    match seen {
        None if file.beat == 0 => None, // it is new, or from before there were witnesses
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
