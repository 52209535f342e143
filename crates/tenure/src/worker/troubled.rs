//! A store in memory that fails where a test wants it to.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::inspect::Current;
use crate::job::{JobId, NewJob};
use crate::lease::{Fence, WorkerId};
use crate::ledger::{Answer, Entry};
use crate::store::sqlite::Sqlite;
use crate::store::{
    Attempt, Beat, Claim, Claimed, Enqueued, Error, Guarded, Lapse, Lapsed, Pruned, Registration,
    Renewed, Report, Reported, Result, Settled, Settlement, Wake, Work, sealed,
};

/// What is wrong with a store, and the calls that it got.
#[derive(Default)]
pub(super) struct Trouble {
    fails: BTreeMap<&'static str, fn() -> Error>,
    calls: Vec<&'static str>,
    pub(super) caution: Option<String>,
    /// Answers instead of the store's own.
    pub(super) beat: Option<Beat>,
    pub(super) pruned: Option<Pruned>,
    /// The grace of each search for leases that are over.
    pub(super) graces: Vec<Duration>,
}

/// One connection to the store.
pub(super) struct Troubled {
    store: Sqlite,
    shared: Arc<(Mutex<Trouble>, Condvar)>,
}

impl Troubled {
    pub(super) fn new(store: Sqlite) -> Troubled {
        Troubled { store, shared: Arc::default() }
    }

    /// Another connection, with the same trouble.
    pub(super) fn share(&self) -> Troubled {
        Troubled { store: self.store.share().unwrap(), shared: Arc::clone(&self.shared) }
    }

    pub(super) fn trouble(&self) -> MutexGuard<'_, Trouble> {
        self.shared.0.lock().unwrap()
    }

    /// From now on this call fails with the error that `so` makes. `so` may also panic.
    pub(super) fn fails(&self, call: &'static str, so: fn() -> Error) {
        self.trouble().fails.insert(call, so);
    }

    pub(super) fn works_again(&self) {
        self.trouble().fails.clear();
    }

    /// The calls since the last time that this was asked.
    pub(super) fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.trouble().calls)
    }

    /// Whether this call arrives within a minute.
    pub(super) fn is_called(&self, call: &str) -> bool {
        let minute = Duration::from_secs(60);
        let (trouble, called) = &*self.shared;
        let missing = |trouble: &mut Trouble| !trouble.calls.contains(&call);
        !called.wait_timeout_while(trouble.lock().unwrap(), minute, missing).unwrap().1.timed_out()
    }

    fn meet(&self, call: &'static str) -> Result<()> {
        let mut trouble = self.trouble();
        trouble.calls.push(call);
        let fails = trouble.fails.get(call).copied();
        drop(trouble);
        self.shared.1.notify_all();
        fails.map_or(Ok(()), |so| Err(so()))
    }
}

pub(super) fn forbidden() -> Error {
    let (problem, next) = ("a right is missing".into(), "grant it".into());
    Error::Forbidden { target: "store".into(), problem, next }
}

pub(super) fn unwritable() -> Error {
    let (problem, next) = ("the disk is full".into(), "make room".into());
    Error::Unwritable { target: "store".into(), problem, next }
}

pub(super) fn unavailable() -> Error {
    Error::Unavailable {
        doing: "call",
        target: "store".into(),
        problem: "the connection broke".into(),
        next: "try again".into(),
        source: "a fault".into(),
    }
}

impl sealed::Sealed for Troubled {}

macro_rules! pass {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        impl Work for Troubled {
            $(fn $name(&mut self, $($arg: $type),*) -> Result<$answer> {
                self.meet(stringify!($name))?;
                self.store.$name($($arg),*)
            })*

            fn beat(&mut self) -> Result<Beat> {
                self.meet("beat")?;
                let made_up = self.trouble().beat;
                made_up.map_or_else(|| self.store.beat(), Ok)
            }

            fn prune(&mut self, limit: usize) -> Result<Pruned> {
                self.meet("prune")?;
                let made_up = self.trouble().pruned;
                made_up.map_or_else(|| self.store.prune(limit), Ok)
            }

            fn overdue(&mut self, limit: usize, grace: Duration) -> Result<Vec<Fence>> {
                self.meet("overdue")?;
                self.trouble().graces.push(grace);
                self.store.overdue(limit, grace)
            }

            fn caution(&mut self) -> Option<String> {
                self.trouble().caution.clone()
            }
        }
    };
}

pass! {
    enqueue(jobs: &[NewJob]) -> Vec<Enqueued>;
    claim(ask: &Claim) -> Claimed;
    held(worker: &WorkerId, request: Option<i64>) -> Vec<Attempt>;
    renew(fences: &[Fence], length: Duration) -> Vec<Renewed>;
    progress(reports: &[Report]) -> Vec<Reported>;
    settle(settlements: &[Settlement]) -> Vec<Settled>;
    settle_and_claim(settlements: &[Settlement], ask: &Claim) -> (Vec<Settled>, Claimed);
    ledger(entries: &[Entry]) -> Vec<Answer>;
    register(worker: &Registration) -> Guarded;
    retire(worker: &WorkerId) -> ();
    vanished(limit: usize) -> Vec<Lapse>;
    lapse(fences: &[Fence]) -> Vec<Lapsed>;
    current(jobs: &[JobId]) -> Vec<Option<Current>>;
    wait(until: Instant) -> Wake;
}
