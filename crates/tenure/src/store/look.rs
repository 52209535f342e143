//! Queries: they change nothing. The model and the simulation in `tenure-drill` have none of them,
//! so a new query needs no change there.

use std::time::Duration;

use super::Result;
use super::sealed::Sealed;
use crate::inspect::{
    Checked, EffectFilter, EffectView, Filter, Identity, JobDetail, JobOutcome, LeaseView,
    Overview, QueueSettings, WorkerView,
};
use crate::job::JobId;
use crate::record::JobRecord;

/// What people and pages ask about jobs, queues, workers and effects.
pub trait Look: Sealed + Send {
    /// The state of a job and what came of it, for callers that wait for it.
    fn outcome(&mut self, id: JobId) -> Result<Option<JobOutcome>>;

    /// One job and its timeline.
    fn job(&mut self, id: JobId) -> Result<Option<JobDetail>>;

    /// A page of jobs, newest first.
    fn jobs(&mut self, filter: &Filter, limit: usize) -> Result<Vec<JobRecord>>;

    /// Counts for all queues.
    fn overview(&mut self) -> Result<Overview>;

    /// The leases that end soonest.
    fn leases(&mut self, limit: usize) -> Result<Vec<LeaseView>>;

    /// The queues with settings of their own, ordered by name.
    fn queues(&mut self) -> Result<Vec<QueueSettings>>;

    /// A page of the ledger's effects, those of the newest jobs first.
    fn effects(&mut self, filter: &EffectFilter, limit: usize) -> Result<Vec<EffectView>>;

    /// The registered workers.
    fn workers(&mut self) -> Result<Vec<WorkerView>>;

    /// How long a worker's lock must have been free before its process counts as gone.
    fn guard_gap(&mut self) -> Result<Duration>;

    /// The id of this installation and its epoch.
    fn identity(&mut self) -> Result<Identity>;

    /// Checks stored data against the invariants, for `limit` jobs, starting with `from`. Changes
    /// nothing. Any finding is a bug or damage.
    fn check(&mut self, from: Option<JobId>, limit: usize) -> Result<Checked>;
}
