//! Another program (a stranger) writes to the same file, at every moment of a call at which it can.
//!
//! Tenure's own processes take turns by a lock that other programs do not know. A program that
//! writes to the file during a call may make the call wait, and nothing more. A transaction that
//! reads before it has the write lock would fail at once, whatever its timeout is.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use serde::Serialize;
use tenure::Fence;
use tenure::engine::clock::Clock;
use tenure::engine::job::{Key, Name, NewJob, State};
use tenure::engine::ledger::{Act, Answer, Entry};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::sqlite::Sqlite;
use tenure::engine::store::{
    Changed, Enqueued, Operate, Renewed, Result, Settled, Settlement, Work,
};

use super::FILE;
use super::history::{self, claim, json, name};
use super::recorder::Recorder;
use crate::engines::START;
use crate::verdict::{Invariant, Violation};

/// How a store begins its transactions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// As the library does: it takes the write lock before it reads.
    Immediate,
    /// It reads first, and asks for the write lock when it writes.
    Deferred,
}

/// The result.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Encounters {
    /// How many calls were made, each with the other program's write at another moment.
    pub calls: usize,
    /// How often that write succeeded in the middle of a call.
    pub wrote: usize,
    /// How often that write was refused because the file is locked.
    pub refused: usize,
}

impl fmt::Display for Encounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Encounters { calls, wrote, refused } = self;
        write!(
            f,
            "{calls} calls, each with a stranger at another moment: it wrote in {wrote} and was locked out in {refused}"
        )
    }
}

/// For each verb, another program writes to the file, or tries to, at every moment of the call.
pub(crate) fn meet(begin: Begin) -> std::result::Result<Encounters, Violation> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let _recorder = Recorder::start(directory.path()).expect("the directory is there");
    let mut store = history::open(directory.path(), &Clock::manual(START)).expect("a store opens");
    let stranger = stranger(directory.path()).expect("a stranger opens the file");
    if begin == Begin::Deferred {
        store.begin_deferred();
    }
    let mut seen = Encounters::default();
    for verb in &VERBS {
        for moment in 1.. {
            let given = given(&mut store, seen.calls).expect("nobody disturbs this");
            let visit = invite(&store, &stranger, moment);
            let answer = (verb.call)(&mut store, &given);
            see_off(&store);
            seen.calls += 1;
            let wrong = match answer {
                Ok(true) => None,
                Ok(false) => Some("was not heard".to_owned()),
                Err(cause) => Some(format!("failed ({cause}: {})", root(&cause))),
            };
            if let Some(wrong) = wrong {
                return Err(violation(begin, verb.name, &wrong, moment, seen.calls));
            }
            match visit.wrote() {
                Some(true) => seen.wrote += 1,
                Some(false) => seen.refused += 1,
                None => break, // the call had ended before that moment
            }
        }
    }
    Ok(seen)
}

fn violation(begin: Begin, verb: &str, wrong: &str, moment: usize, states: usize) -> Violation {
    Violation {
        invariant: Invariant::I10,
        what: format!("{verb} {wrong}, though nobody had the file locked"),
        schedule: vec![
            format!("{verb} begins"),
            format!("a stranger writes to the file, at moment {moment} of the call, and is done"),
            format!("{verb} {wrong}"),
        ],
        states,
        replay: (begin == Begin::Immediate).then(|| "drill disk --strangers".to_owned()),
    }
}

/// The innermost error: SQLite's own message.
fn root(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), root)
}

/// What a call needs: a job that is held, another one that is queued, and an unused name.
pub(super) struct Given {
    held: Fence,
    fresh: String,
}

pub(super) fn given(store: &mut Sqlite, number: usize) -> Result<Given> {
    store.enqueue(&[job(), job()])?;
    let claimed = store.claim(&claim("ann", vec![Name::default_queue()], 1))?;
    let held = claimed.attempts.first().expect("one was enqueued just now").lease.fence();
    Ok(Given { held, fresh: format!("k-{number}") })
}

fn job() -> NewJob {
    NewJob::new(name("mail"), json("{}"))
}

/// A call, and whether it was applied.
pub(super) struct Verb {
    pub(super) name: &'static str,
    pub(super) call: fn(&mut Sqlite, &Given) -> Result<bool>,
}

pub(super) const VERBS: [Verb; 8] = [
    Verb {
        name: "enqueue",
        call: |store, _| Ok(matches!(store.enqueue(&[job()])?[..], [Enqueued::Created(_)])),
    },
    Verb {
        name: "enqueue with a key",
        call: |store, given| {
            let job = job().key(Key::check(given.fresh.clone()).expect("a valid key"));
            Ok(matches!(store.enqueue(&[job])?[..], [Enqueued::Created(_)]))
        },
    },
    Verb {
        name: "claim",
        call: |store, _| {
            let claimed = store.claim(&claim("bob", vec![Name::default_queue()], 1))?;
            Ok(claimed.attempts.len() == 1)
        },
    },
    Verb {
        name: "renew",
        call: |store, given| {
            let renewed = store.renew(&[given.held], Duration::from_secs(60))?;
            Ok(matches!(renewed[..], [Renewed::Extended(_)]))
        },
    },
    Verb {
        name: "write to the ledger",
        call: |store, given| {
            let entry = Entry { fence: given.held, name: name("charge"), act: Act::Open };
            Ok(matches!(store.ledger(&[entry])?[..], [Answer::Opened]))
        },
    },
    Verb {
        name: "settle",
        call: |store, given| {
            let settled = store.settle(&[complete(given.held)])?;
            Ok(settled == [Settled::Applied(State::Succeeded)])
        },
    },
    Verb {
        name: "settle and claim",
        call: |store, given| {
            let ask = claim("bob", vec![Name::default_queue()], 1);
            let (settled, claimed) = store.settle_and_claim(&[complete(given.held)], &ask)?;
            Ok(settled == [Settled::Applied(State::Succeeded)] && claimed.attempts.len() == 1)
        },
    },
    Verb {
        name: "cancel",
        call: |store, given| Ok(store.cancel(&[given.held.job])? == [Changed::Applied]),
    },
];

fn complete(fence: Fence) -> Settlement {
    Settlement::new(fence, Outcome::Complete { result: None })
}

/// A connection that never waits for a lock, with a table to write to.
fn stranger(directory: &Path) -> rusqlite::Result<Arc<Mutex<Connection>>> {
    let stranger = Connection::open(directory.join(FILE))?;
    stranger.busy_timeout(Duration::ZERO)?;
    stranger.execute_batch("CREATE TABLE notes (n INTEGER); INSERT INTO notes VALUES (0)")?;
    Ok(Arc::new(Mutex::new(stranger)))
}

/// Whether the other program's write succeeded; none if its moment never came.
#[derive(Default)]
struct Visit(Mutex<Option<bool>>);

impl Visit {
    fn wrote(&self) -> Option<bool> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lets the other program write once, when SQLite calls the progress handler for the `moment`-th
/// time during the store's next call.
fn invite(store: &Sqlite, stranger: &Arc<Mutex<Connection>>, moment: usize) -> Arc<Visit> {
    let visit = Arc::new(Visit::default());
    let (outcome, stranger, mut passed) = (Arc::clone(&visit), Arc::clone(stranger), 0);
    let look_up = move || {
        passed += 1;
        if passed == moment {
            let stranger = stranger.lock().unwrap_or_else(PoisonError::into_inner);
            let tried = stranger.execute("UPDATE notes SET n = n + 1", []);
            *outcome.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(tried.is_ok());
        }
        false // continue the call
    };
    store
        .with_connection(|connection| connection.progress_handler(1, Some(look_up)))
        .expect("a handler is set");
    visit
}

pub(super) fn see_off(store: &Sqlite) {
    store
        .with_connection(|connection| connection.progress_handler(0, None::<fn() -> bool>))
        .expect("a handler is removed");
}
