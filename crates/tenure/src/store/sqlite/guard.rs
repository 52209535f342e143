//! Locks that end with the process that holds them: by these, others see that a worker is gone.
//!
//! A worker's lock is the operating system's, on a file of its own beside the database. The kernel frees it when the
//! process ends, however that happens, and only then. The file stays; without it nothing can be told.
//!
//! A store in memory is seen by one process only. There a lock is a line in a list that its connections share, and ends with
//! the connection that holds it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::file::{beside, directory_of, private_file};
use crate::clock;
use crate::lease::WorkerId;
use crate::store::Guarded;

/// The locks that one connection holds, and its look at those of others.
#[derive(Debug)]
pub(super) struct Guards {
    place: Place,
    /// Whose locks are held here. In memory there is no file.
    held: BTreeMap<WorkerId, Option<File>>,
}

/// Where the locks of a store are.
#[derive(Debug, Clone)]
enum Place {
    /// In files beside this database.
    Beside(PathBuf),
    /// In this process: who is guarded by any connection to the store.
    Memory(Arc<Mutex<BTreeSet<WorkerId>>>),
}

impl Guards {
    /// Those beside this database, or of a new store in memory.
    pub(super) fn new(path: Option<&Path>) -> Guards {
        let place = match path {
            Some(path) => Place::Beside(path.to_owned()),
            None => Place::Memory(Arc::default()),
        };
        Guards { place, held: BTreeMap::new() }
    }

    /// Those of another connection to the same store. It holds none yet.
    pub(super) fn share(&self) -> Guards {
        Guards { place: self.place.clone(), held: BTreeMap::new() }
    }

    /// The database; none for a store in memory.
    pub(super) fn database(&self) -> Option<&Path> {
        match &self.place {
            Place::Beside(path) => Some(path),
            Place::Memory(_) => None,
        }
    }

    /// Takes a worker's lock, and keeps it until it is freed or this value ends; or tells that somebody else has it.
    pub(super) fn take(&mut self, worker: &WorkerId) -> Result<Guarded> {
        if self.held.contains_key(worker) {
            return Ok(Guarded::Yes);
        }
        let file = match &self.place {
            Place::Beside(path) => loop {
                let file = private_file(&file_of(path, worker))?;
                if !lock(&file)? {
                    return Ok(Guarded::No);
                }
                // Whoever clears away may have deleted it a moment ago: then others would look at another one.
                if file.metadata()?.nlink() > 0 {
                    break Some(file);
                }
            },
            Place::Memory(all) => {
                if !open(all).insert(worker.clone()) {
                    return Ok(Guarded::No);
                }
                None
            }
        };
        self.held.insert(worker.clone(), file);
        Ok(Guarded::Yes)
    }

    /// Frees a worker's lock and leaves nothing behind. A lock that another process holds stays.
    pub(super) fn remove(&mut self, worker: &WorkerId) {
        if let Place::Beside(path) = &self.place {
            let file = file_of(path, worker);
            if self.held.contains_key(worker) {
                // If it cannot be removed, it stays, and tells nothing of anybody who is known.
                let _ = std::fs::remove_file(file);
            } else {
                remove_if_free(&file);
            }
        }
        self.free(worker);
    }

    /// Removes what workers have left behind that are not known any more. What is held stays: its worker is
    /// about to make itself known.
    pub(super) fn sweep(&self, known: &[WorkerId]) {
        let Place::Beside(path) = &self.place else { return };
        let known: BTreeSet<PathBuf> = known.iter().map(|worker| file_of(path, worker)).collect();
        let left = files(path).unwrap_or_default();
        left.iter().filter(|file| !known.contains(*file)).for_each(|file| remove_if_free(file));
    }

    /// Whether nobody holds a worker's lock. If that cannot be told, it counts as held.
    pub(super) fn is_free(&self, worker: &WorkerId) -> bool {
        let path = match &self.place {
            Place::Beside(path) => path,
            Place::Memory(all) => return !open(all).contains(worker),
        };
        if self.held.contains_key(worker) {
            return false;
        }
        match File::open(file_of(path, worker)) {
            Err(_) => false,
            // A lock that is gained here ends with the file.
            Ok(file) => file.try_lock_shared().is_ok(),
        }
    }

    /// Puts the locks into this state, for the proof: these are held, and those could be.
    #[cfg(feature = "drill")]
    pub(super) fn set(&mut self, held: &[WorkerId], known: &[WorkerId]) -> Result<()> {
        let over = self.all().into_iter().filter(|worker| !held.contains(worker));
        over.collect::<Vec<_>>().iter().for_each(|worker| self.free(worker));
        held.iter().try_for_each(|worker| self.take(worker).map(drop))?;
        if let Place::Beside(path) = &self.place {
            known.iter().try_for_each(|worker| private_file(&file_of(path, worker)).map(drop))?;
        }
        Ok(())
    }

    /// Whose locks are held here.
    pub(super) fn all(&self) -> Vec<WorkerId> {
        self.held.keys().cloned().collect()
    }

    /// Frees a lock that is held here; one that another connection holds stays its own.
    fn free(&mut self, worker: &WorkerId) {
        if self.held.remove(worker).is_some()
            && let Place::Memory(all) = &self.place
        {
            open(all).remove(worker);
        }
    }
}

impl Drop for Guards {
    fn drop(&mut self) {
        self.all().iter().for_each(|worker| self.free(worker));
    }
}

fn open(all: &Mutex<BTreeSet<WorkerId>>) -> MutexGuard<'_, BTreeSet<WorkerId>> {
    // A set is sound whatever became of whoever changed it last.
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The files of all locks beside a database.
pub(super) fn files(path: &Path) -> Result<Vec<PathBuf>> {
    let prefix = beside(path, "-guard-");
    let prefix = prefix.file_name().unwrap_or_default().as_encoded_bytes();
    let mut found = Vec::new();
    for entry in directory_of(path).read_dir()? {
        let entry = entry?;
        if entry.file_name().as_encoded_bytes().starts_with(prefix) {
            found.push(path.with_file_name(entry.file_name()));
        }
    }
    found.sort();
    Ok(found)
}

/// Whoever takes the lock at this moment finds, when it is theirs, that the file is gone, and makes another.
fn remove_if_free(path: &Path) {
    if let Ok(file) = File::open(path)
        && file.metadata().is_ok_and(|file| file.is_file())
        && file.try_lock().is_ok()
    {
        let _ = std::fs::remove_file(path);
    }
}

/// The file of a worker's lock. A worker's id may be anything; its hash can be a name.
fn file_of(path: &Path, worker: &WorkerId) -> PathBuf {
    let hash = Sha256::digest(worker.as_str().as_bytes());
    let name: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    beside(path, &format!("-guard-{name}"))
}

/// Tries for a moment: somebody who looks at it now is gone in the next.
fn lock(file: &File) -> Result<bool> {
    const PATIENCE: Duration = Duration::from_millis(200);
    let until = clock::monotonic() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(cause)) if cause.kind() != ErrorKind::Interrupted => {
                return Err(cause);
            }
            Err(_) if clock::monotonic() >= until => return Ok(false),
            Err(_) => std::thread::yield_now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(name: &str) -> WorkerId {
        WorkerId::check(name).unwrap()
    }

    #[test]
    fn a_lock_is_seen_by_others_while_it_is_held_and_no_longer() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("jobs.db");
        let (mut ours, theirs) = (Guards::new(Some(&file)), Guards::new(Some(&file)));
        let ann = worker("ann/../../etc");
        assert!(!theirs.is_free(&ann), "of a worker that never took one nothing can be told");
        assert_eq!(ours.take(&ann).unwrap(), Guarded::Yes);
        assert!(!theirs.is_free(&ann) && !ours.is_free(&ann));
        let mut late = Guards::new(Some(&file));
        assert_eq!(late.take(&ann).unwrap(), Guarded::No, "and nobody waits for ever");
        drop(ours);
        assert!(theirs.is_free(&ann));
        assert!(theirs.is_free(&ann), "and a look takes nothing away");
    }

    #[test]
    fn in_memory_a_lock_is_seen_by_others_while_its_connection_lives_and_no_longer() {
        let mut ours = Guards::new(None);
        let (mut theirs, looker) = (ours.share(), ours.share());
        let ann = worker("ann");
        assert!(looker.is_free(&ann));
        assert_eq!(ours.take(&ann).unwrap(), Guarded::Yes);
        assert_eq!(ours.take(&ann).unwrap(), Guarded::Yes, "it is ours already");
        assert_eq!(theirs.take(&ann).unwrap(), Guarded::No);
        theirs.remove(&ann);
        assert!(!looker.is_free(&ann), "nobody frees what is another's");
        drop(ours);
        assert!(looker.is_free(&ann));
        assert_eq!(theirs.take(&ann).unwrap(), Guarded::Yes);
        theirs.remove(&ann);
        assert!(looker.is_free(&ann));
        assert!(Guards::new(None).is_free(&ann), "another store has other locks");
    }

    #[test]
    fn what_was_removed_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let mut guards = Guards::new(Some(&directory.path().join("jobs.db")));
        guards.take(&worker("ann")).unwrap();
        assert_eq!(directory.path().read_dir().unwrap().count(), 1);
        guards.remove(&worker("ann"));
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_lock_that_is_taken_while_others_clear_away_is_one_that_they_see() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("jobs.db");
        let (ann, looker) = (worker("ann"), Guards::new(Some(&file)));
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                    looker.sweep(&[]);
                }
            });
            let lost = (0..2_000).filter(|_| {
                let mut guards = Guards::new(Some(&file));
                let taken = guards.take(&ann).unwrap();
                assert_eq!(taken, Guarded::Yes);
                !file_of(&file, &ann).exists()
            });
            let lost = lost.count();
            is_over.store(true, std::sync::atomic::Ordering::SeqCst);
            assert_eq!(lost, 0);
        });
    }

    #[test]
    fn what_is_left_of_unknown_workers_is_removed_unless_it_is_held() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("jobs.db");
        let mut ours = Guards::new(Some(&file));
        for name in ["held", "known", "left"] {
            ours.take(&worker(name)).unwrap();
        }
        for name in ["known", "left"] {
            ours.free(&worker(name));
        }
        let mut other = Guards::new(Some(&file));
        other.sweep(&[worker("known")]);
        assert_eq!(files(&file).unwrap().len(), 2);
        other.remove(&worker("held"));
        assert!(file_of(&file, &worker("held")).exists(), "nobody removes what another holds");
        other.sweep(&[]);
        assert_eq!(files(&file).unwrap(), [file_of(&file, &worker("held"))]);
    }
}
