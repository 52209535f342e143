//! Another file takes the store's place, at every moment of a call at which it can.
//!
//! The store keeps the old file open, and SQLite continues to write to it. But a program that opens
//! the path from now on does not see what is in the old file. So nothing may be acknowledged until
//! the file is back.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;
use tenure::engine::clock::Clock;
use tenure::engine::store::sqlite::Sqlite;

use super::FILE;
use super::history;
use super::strangers::{VERBS, given, see_off};
use crate::engines::START;
use crate::verdict::{Invariant, Violation};

/// Whether a store checks that its file is still in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looks {
    /// As the library does: after the commit, and before it answers.
    Yes,
    Never,
}

/// For each verb, replaces the file by a copy at every moment of the call. Returns how many calls
/// failed because of it.
pub(crate) fn replace(looks: Looks) -> Result<usize, Violation> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut store = history::open(directory.path(), &Clock::manual(START)).expect("a store opens");
    if looks == Looks::Never {
        store.look_away();
    }
    let places = Places::of(directory.path());
    let (mut calls, mut told) = (0, 0);
    for verb in &VERBS {
        for moment in 1.. {
            let given = given(&mut store, calls).expect("nobody disturbs this");
            places.copy();
            let visit = invite(&store, &places, moment);
            let answer = (verb.call)(&mut store, &given);
            see_off(&store);
            calls += 1;
            if !visit.load(Ordering::SeqCst) {
                break; // the call had ended before that moment
            }
            if answer.is_ok() {
                return Err(violation(looks, verb.name, moment, calls));
            }
            told += 1;
            places.put_back();
        }
    }
    Ok(told)
}

/// The store's file, and what replaces it.
#[derive(Clone)]
struct Places {
    file: PathBuf,
    /// A hard link to the store's file, which keeps the file until it is put back.
    kept: PathBuf,
    copy: PathBuf,
}

impl Places {
    fn of(directory: &Path) -> Places {
        let name = |name: &str| directory.join(name);
        Places { file: name(FILE), kept: name("kept.db"), copy: name("copy.db") }
    }

    /// Makes a valid copy that contains everything acknowledged.
    fn copy(&self) {
        for old in [&self.kept, &self.copy] {
            // The first time there is none.
            let _ = fs::remove_file(old);
        }
        fs::hard_link(&self.file, &self.kept).expect("a file may have two names");
        let sql = format!("VACUUM INTO '{}'", self.copy.display());
        let made = Connection::open(&self.file).and_then(|file| file.execute_batch(&sql));
        made.expect("a copy is made");
    }

    fn put_back(&self) {
        fs::rename(&self.kept, &self.file).expect("the file is put back");
    }
}

/// Replaces the file by the copy when SQLite calls the progress handler for the `moment`-th time
/// during the store's next call.
fn invite(store: &Sqlite, places: &Places, moment: usize) -> Arc<AtomicBool> {
    let visit = Arc::new(AtomicBool::new(false));
    let (came, places, mut passed) = (Arc::clone(&visit), places.clone(), 0);
    let look_up = move || {
        passed += 1;
        if passed == moment {
            fs::rename(&places.copy, &places.file).expect("the copy is put in place");
            came.store(true, Ordering::SeqCst);
        }
        false // continue the call
    };
    store
        .with_connection(|connection| connection.progress_handler(1, Some(look_up)))
        .expect("a handler is set");
    visit
}

fn violation(looks: Looks, verb: &str, moment: usize, states: usize) -> Violation {
    Violation {
        invariant: Invariant::I9,
        what: format!("{verb} was acknowledged, and nothing of it is in the file"),
        schedule: vec![
            format!("{verb} begins"),
            format!("a copy takes the place of the file, at moment {moment} of the call"),
            format!("{verb} is answered as if it were stored"),
        ],
        states,
        replay: (looks == Looks::Yes).then(|| "drill disk --strangers".to_owned()),
    }
}
