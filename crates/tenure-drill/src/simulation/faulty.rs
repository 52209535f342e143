//! A connection on which calls are lost: before they are applied, or after, when the caller never hears the
//! answer.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tenure::clock::Chance;
use tenure::drill::Sealed;
use tenure::inspect::{
    Checked, EffectFilter, EffectView, Filter, Identity, JobDetail, LeaseView, Overview,
    QueueSettings, WorkerView,
};
use tenure::job::{JobId, JobRecord, Name, NewJob};
use tenure::lease::{Fence, WorkerId};
use tenure::ledger::{Answer, Entry, Resolution};
use tenure::store::sqlite::Sqlite;
use tenure::store::{
    AsSeen, Attempt, Changed, Claim, Claimed, Enqueued, Error, Guarded, Lapse, Lapsed, Pruned,
    QueueChange, Registration, Renewed, Report, Reported, Resolved, Result, Settled, Settlement,
    Store, Wake,
};

/// How often a call is lost.
#[derive(Debug)]
pub(super) struct Weather {
    chance: Chance,
    /// One call in so many is lost before, and one after it is applied; none at zero.
    one_in: u64,
    pub(super) lost: u64,
    pub(super) unheard: u64,
}

impl Weather {
    pub(super) fn new(chance: Chance, one_in: u64) -> Weather {
        Weather { chance, one_in, lost: 0, unheard: 0 }
    }
}

/// One connection to the store that all share.
pub(super) struct Faulty {
    pub(super) store: Sqlite,
    pub(super) weather: Arc<Mutex<Weather>>,
}

impl Faulty {
    fn through<T>(&mut self, call: impl FnOnce(&mut Sqlite) -> Result<T>) -> Result<T> {
        let mut weather = self.weather.lock().expect("one thread");
        let throw = if weather.one_in == 0 {
            2
        } else {
            let of = weather.one_in;
            weather.chance.below(of)
        };
        match throw {
            0 => {
                weather.lost += 1;
                Err(broken())
            }
            1 => {
                weather.unheard += 1;
                drop(weather);
                call(&mut self.store)?;
                Err(broken())
            }
            _ => {
                drop(weather);
                call(&mut self.store)
            }
        }
    }
}

fn broken() -> Error {
    Error::Unavailable {
        doing: "call",
        target: "simulation".into(),
        problem: "the connection broke".into(),
        next: "try again".into(),
        source: "a fault".into(),
    }
}

impl Sealed for Faulty {}

/// Each call passes through the weather.
macro_rules! pass {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        impl Store for Faulty {
            $(fn $name(&mut self, $($arg: $type),*) -> Result<$answer> {
                self.through(|store| store.$name($($arg),*))
            })*
        }
    };
}

pass! {
    enqueue(jobs: &[NewJob]) -> Vec<Enqueued>;
    claim(ask: &Claim) -> Claimed;
    held(worker: &WorkerId) -> Vec<Attempt>;
    renew(fences: &[Fence], length: Duration) -> Vec<Renewed>;
    progress(reports: &[Report]) -> Vec<Reported>;
    settle(settlements: &[Settlement]) -> Vec<Settled>;
    settle_and_claim(settlements: &[Settlement], ask: &Claim) -> (Vec<Settled>, Claimed);
    ledger(entries: &[Entry]) -> Vec<Answer>;
    register(worker: &Registration) -> Guarded;
    retire(worker: &WorkerId) -> ();
    vanished(limit: usize) -> Vec<Lapse>;
    overdue(limit: usize, grace: Duration) -> Vec<Fence>;
    lapse(fences: &[Fence]) -> Vec<Lapsed>;
    cancel(jobs: &[JobId]) -> Vec<Changed>;
    requeue(jobs: &[AsSeen]) -> Vec<Changed>;
    resume(jobs: &[JobId]) -> Vec<Changed>;
    purge(jobs: &[AsSeen]) -> Vec<Changed>;
    configure(queue: &Name, change: &QueueChange) -> QueueSettings;
    resolve(job: JobId, effect: &Name, how: &Resolution) -> Resolved;
    raise_epoch(reason: &str) -> u32;
    prune(limit: usize) -> Pruned;
    job(id: JobId) -> Option<JobDetail>;
    jobs(filter: &Filter, limit: usize) -> Vec<JobRecord>;
    overview() -> Overview;
    leases(limit: usize) -> Vec<LeaseView>;
    queues() -> Vec<QueueSettings>;
    effects(filter: &EffectFilter, limit: usize) -> Vec<EffectView>;
    workers() -> Vec<WorkerView>;
    identity() -> Identity;
    check(from: Option<JobId>, limit: usize) -> Checked;
    wait(until: Instant) -> Wake;
}
