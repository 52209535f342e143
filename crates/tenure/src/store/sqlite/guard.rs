//! Worker locks, which end with the process that holds them: from a free lock, others see that a
//! worker is gone.
//!
//! A worker's lock is a lock of the operating system on a file of its own beside the database. The
//! kernel frees it when the process ends, however that happens, and only then. The file stays
//! behind. If the file is missing, the lock counts as held.
//!
//! A store in memory is visible to one process only. There a lock is an entry in a set that the
//! connections share, and ends with the connection that holds it.

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

/// The locks that one connection holds; also checks the locks of other workers.
#[derive(Debug)]
pub(super) struct Guards {
    place: Place,
    /// The workers whose locks are held here. In memory there is no file.
    held: BTreeMap<WorkerId, Option<File>>,
}

/// Where the locks of a store are.
#[derive(Debug, Clone)]
enum Place {
    /// In files beside this database.
    Beside(PathBuf),
    /// In this process: the workers that any connection to the store guards.
    Memory(Arc<Mutex<BTreeSet<WorkerId>>>),
}

impl Guards {
    /// The locks beside this database, or of a new store in memory.
    pub(super) fn new(path: Option<&Path>) -> Guards {
        let place = match path {
            Some(path) => Place::Beside(path.to_owned()),
            None => Place::Memory(Arc::default()),
        };
        Guards { place, held: BTreeMap::new() }
    }

    /// For another connection to the same store. Holds no lock yet.
    pub(super) fn share(&self) -> Guards {
        Guards { place: self.place.clone(), held: BTreeMap::new() }
    }

    /// The path of the database; `None` for a store in memory.
    pub(super) fn database(&self) -> Option<&Path> {
        match &self.place {
            Place::Beside(path) => Some(path),
            Place::Memory(_) => None,
        }
    }

    /// Takes a worker's lock, and holds it until it is freed or this value is dropped. Answers
    /// [`Guarded::ByLeaseAlone`] if another holder has it.
    pub(super) fn take(&mut self, worker: &WorkerId) -> Result<Guarded> {
        if self.held.contains_key(worker) {
            return Ok(Guarded::ByLock);
        }
        let file = match &self.place {
            Place::Beside(path) => loop {
                let file = private_file(&file_of(path, worker))?;
                if !lock(&file)? {
                    return Ok(Guarded::ByLeaseAlone);
                }
                // A sweep of another process may have deleted the file a moment ago. Then others
                // would check a new file, so take the lock of a new file too.
                if file.metadata()?.nlink() > 0 {
                    break Some(file);
                }
            },
            Place::Memory(all) => {
                if !open(all).insert(worker.clone()) {
                    return Ok(Guarded::ByLeaseAlone);
                }
                None
            }
        };
        self.held.insert(worker.clone(), file);
        Ok(Guarded::ByLock)
    }

    /// Frees a worker's lock and deletes its file. A lock that another process holds stays.
    pub(super) fn remove(&mut self, worker: &WorkerId) {
        if let Place::Beside(path) = &self.place {
            let file = file_of(path, worker);
            if self.held.contains_key(worker) {
                // If the file cannot be removed, it stays; it belongs to no registered worker, so
                // it does no harm.
                let _ = std::fs::remove_file(file);
            } else {
                remove_if_free(&file);
            }
        }
        self.free(worker);
    }

    /// Removes the lock files of workers that are no longer registered. A file whose lock is held
    /// stays: its worker is about to register.
    pub(super) fn sweep(&self, known: &[WorkerId]) {
        let Place::Beside(path) = &self.place else { return };
        let known: BTreeSet<PathBuf> = known.iter().map(|worker| file_of(path, worker)).collect();
        let left = files(path).unwrap_or_default();
        left.iter().filter(|file| !known.contains(*file)).for_each(|file| remove_if_free(file));
    }

    /// Whether a worker's lock is free. If that cannot be determined, it counts as held.
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
            // A shared lock that is taken here ends when the file is closed.
            Ok(file) => file.try_lock_shared().is_ok(),
        }
    }

    /// Sets the locks to this state, for `tenure-drill`: holds those of `held`, and creates the
    /// files of `known`.
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

    /// The workers whose locks are held here.
    pub(super) fn all(&self) -> Vec<WorkerId> {
        self.held.keys().cloned().collect()
    }

    /// Frees a lock that is held here; a lock of another connection stays.
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
    // The set is consistent even if a thread panicked while it held the mutex.
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

/// Removes a lock file if its lock is free. A worker that takes the lock at this moment notices
/// that the file is gone, and creates another.
fn remove_if_free(path: &Path) {
    if let Ok(file) = File::open(path)
        && file.metadata().is_ok_and(|file| file.is_file())
        && file.try_lock().is_ok()
    {
        let _ = std::fs::remove_file(path);
    }
}

/// The file of a worker's lock. A worker's id may contain anything, so the file is named by its
/// hash.
fn file_of(path: &Path, worker: &WorkerId) -> PathBuf {
    let hash = Sha256::digest(worker.as_str().as_bytes());
    let name: String = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    beside(path, &format!("-guard-{name}"))
}

/// Tries for up to 200 ms: another process that only checks the lock holds it for an instant.
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
        assert_eq!(ours.take(&ann).unwrap(), Guarded::ByLock);
        assert!(!theirs.is_free(&ann) && !ours.is_free(&ann));
        let mut late = Guards::new(Some(&file));
        assert_eq!(late.take(&ann).unwrap(), Guarded::ByLeaseAlone, "and nobody waits for ever");
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
        assert_eq!(ours.take(&ann).unwrap(), Guarded::ByLock);
        assert_eq!(ours.take(&ann).unwrap(), Guarded::ByLock, "it is ours already");
        assert_eq!(theirs.take(&ann).unwrap(), Guarded::ByLeaseAlone);
        theirs.remove(&ann);
        assert!(!looker.is_free(&ann), "nobody frees what is another's");
        drop(ours);
        assert!(looker.is_free(&ann));
        assert_eq!(theirs.take(&ann).unwrap(), Guarded::ByLock);
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
                assert_eq!(taken, Guarded::ByLock);
                !file_of(&file, &ann).exists()
            });
            let lost = lost.count();
            is_over.store(true, std::sync::atomic::Ordering::SeqCst);
            assert_eq!(lost, 0);
        });
    }

    #[test]
    fn the_files_of_locks_are_listed_in_order_and_only_files_are_swept() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("jobs.db");
        let mut guards = Guards::new(Some(&file));
        let mut all: Vec<_> = (0..20).map(|n| worker(&format!("w{n}"))).collect();
        for worker in &all {
            guards.take(worker).unwrap();
        }
        let found = files(&file).unwrap();
        all.sort_by_key(|worker| file_of(&file, worker));
        let sorted: Vec<_> = all.iter().map(|worker| file_of(&file, worker)).collect();
        assert_eq!(found, sorted);
        drop(guards);
        let link = beside(&file, "-guard-link");
        std::os::unix::fs::symlink(directory.path(), &link).unwrap();
        Guards::new(Some(&file)).sweep(&[]);
        assert_eq!(files(&file).unwrap(), [link], "a link to a directory is none of ours");
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
