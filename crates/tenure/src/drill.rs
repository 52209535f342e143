//! What only the proof may do: stand behind the port, see the whole state, and put a store into any
//! state.
//!
//! It exists with the feature `drill` alone. No command, address or environment variable of the
//! product reaches it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::inspect::{QueueSettings, TimelineEntry};
use crate::job::{Fingerprint, JobId, JobRecord, Name, NewJob, Tenant};
use crate::lease::WorkerId;
use crate::ledger::{Effect, Step};
use crate::store::{Attempt, GUARD_GAP, Result, Store};

pub use crate::inspect::WorkerRecord;
pub use crate::store::sealed::Sealed;

/// The machines of a worker, for whoever steps them instead of threads.
pub mod machines {
    pub use crate::worker::machines::*;
}

/// A store whose whole state can be read and set, so that a call on it is a function of the state.
pub trait Explorable: Store {
    /// The whole state, in one canonical order.
    fn dump(&mut self) -> Result<Dump>;

    /// Puts the store into this state, and its clock to that time. The locks of the workers that it
    /// names are held from then on, as if by their processes, and no others.
    fn load(&mut self, state: &Dump) -> Result<()>;

    /// Lets the database go back to an earlier state, as a restored copy or a promoted replica is:
    /// what it is and what it remembers to be differ, and it is up to the store to notice. The clock
    /// goes on.
    fn go_back(&mut self, state: &Dump) -> Result<()>;
}

/// A safeguard taken out of a verb's SQL file.
#[derive(Debug, Clone, Copy)]
pub struct Patch {
    /// The file, without `.sql`.
    pub file: &'static str,
    /// What is replaced; it must be there exactly once.
    pub find: &'static str,
    /// What takes its place.
    pub replace: &'static str,
}

impl Patch {
    /// The text of a file without its safeguards. A patch that does not fit is a mistake of its
    /// author's: it would prove nothing.
    pub(crate) fn apply(patches: &[Patch], file: &str, text: &str) -> String {
        let ours = patches.iter().filter(|patch| patch.file == file);
        ours.fold(text.to_owned(), |text, patch| {
            let found = text.matches(patch.find).count();
            assert_eq!(found, 1, "{:?} must be in {file}.sql exactly once", patch.find);
            text.replace(patch.find, patch.replace)
        })
    }
}

/// The whole state of a store. Two stores with equal dumps answer every call alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Dump {
    /// The store's clock.
    pub now: Timestamp,
    /// Since when the store's time has run without a break: a server's start, or the last jump of a
    /// machine's clock.
    pub started_at: Timestamp,
    /// The end of the last gap in the workers' pulse, and of the one before it. The pulse itself is not part
    /// of the state, and a store that is put into a state has none: there, a gap is something that happens to it.
    pub broke: Timestamp,
    /// See `broke`.
    pub broke_before: Timestamp,
    /// How long a worker's lock must have been free before its process counts as gone.
    pub guard_gap: Duration,
    /// The epoch that tokens and ids are issued in, whether or not it is written down yet.
    pub epoch: u32,
    /// The id that the next job gets.
    pub next_id: i64,
    /// All jobs, live and ended, by id.
    pub jobs: Vec<JobRecord>,
    /// All timelines, by job, oldest first.
    pub timeline: Vec<TimelineEntry>,
    /// All remembered keys, by tenant, scope and key.
    pub keys: Vec<KeyRecord>,
    /// What operators have set, by queue.
    pub queues: Vec<QueueSettings>,
    /// All effects, by job and name.
    pub ledger: Vec<Effect>,
    /// All remembered steps, by job and name.
    pub steps: Vec<Step>,
    /// The workers that have made themselves known, by their ids.
    pub workers: Vec<WorkerRecord>,
    /// Whose locks are held, in order. It is not in any table, but a fact of the surroundings.
    pub held: Vec<WorkerId>,
}

impl Dump {
    /// A store in which nothing has happened.
    pub fn empty(now: Timestamp) -> Dump {
        Dump {
            now,
            started_at: Timestamp::from_millis(0),
            broke: Timestamp::from_millis(0),
            broke_before: Timestamp::from_millis(0),
            guard_gap: GUARD_GAP,
            epoch: 0,
            next_id: 1,
            jobs: vec![],
            timeline: vec![],
            keys: vec![],
            queues: vec![],
            ledger: vec![],
            steps: vec![],
            workers: vec![],
            held: vec![],
        }
    }
}

/// A remembered key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[allow(missing_docs)]
pub struct KeyRecord {
    pub tenant: Tenant,
    pub scope: KeyScope,
    pub key: String,
    pub fingerprint: Fingerprint,
    pub job: JobId,
    pub expires_at: Timestamp,
}

/// What a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyScope {
    /// At most one job per key and window.
    Idempotency,
}

/// A lease as a store grants it, for the model's sake.
pub fn attempt(job: JobRecord) -> Option<Attempt> {
    Attempt::of(job)
}

/// Parts of a new job that only a store reads.
pub fn parts(job: &NewJob) -> (&Tenant, Option<&crate::job::Key>) {
    (&job.tenant, job.key.as_ref())
}

/// The job as a follow-up of `parent`.
pub fn following(job: &NewJob, parent: JobId) -> NewJob {
    NewJob { parent: Some(parent), ..job.clone() }
}

/// The place of a (queue, tenant) on the ring that claims walk.
pub fn group(queue: &Name, tenant: &Tenant) -> i64 {
    crate::store::lane::group_of_names(queue, tenant)
}
