//! What only the proof and tests may do: use the store below its port, read its whole state, and
//! put it into any state.
//!
//! It exists only with the feature `drill`. Of the commands of `tenure`, only `tenure drill` uses
//! it, on stores of its own.

use crate::job::{JobId, Name, NewJob, Tenant};
use crate::record::JobRecord;
use crate::store::Attempt;

pub use crate::inspect::WorkerRecord;
pub use crate::store::explore::{Dump, Explorable, KeyRecord, KeyScope, Patch};
pub use crate::store::sealed::Sealed;

/// The machines of a worker, for a caller that steps them instead of running threads.
pub mod machines {
    pub use crate::worker::machines::*;
}

/// A lease as a store grants it, for the model.
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

/// The position of a (queue, tenant) on the ring that claims walk.
pub fn group(queue: &Name, tenant: &Tenant) -> i64 {
    crate::store::lane::group_of_names(queue, tenant)
}
