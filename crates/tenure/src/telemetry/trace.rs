//! How `tracing` sees events and attempts: with real fields, under the target `tenure`. Nothing
//! here decides what is an event.

use tracing::Span;

use super::{Event, Fact};
use crate::job::Name;
use crate::lease::WorkerId;
use crate::record::About;

/// Passes an event to `tracing`. The message is the line for people. Fields without a value are
/// left out, and so is an empty tenant.
pub(super) fn trace(event: &Event) {
    let name = event.fact.name();
    let about = event.about.as_deref();
    let (job, token) = (about.map(|about| about.job.0), about.and_then(About::attempt_token));
    let token = token.map(|token| token.0);
    let kind = about.map(|about| about.kind.as_str());
    let queue = about.map(|about| about.queue.as_str());
    let tenant = about.and_then(tenant);
    let attempt = about.map(|about| about.attempt).filter(|attempt| *attempt > 0);
    let trace = about.and_then(|about| about.trace.as_deref());
    let worker = event.worker.as_ref().map(WorkerId::as_str);
    // The level and the names of the fields must be constants where `tracing` is called.
    macro_rules! tell {
        ($level:ident $($own:tt)*) => {
            tracing::$level!(
                target: "tenure",
                event = name, job, token, kind, queue, tenant, attempt, trace, worker $($own)*,
                "{event}"
            )
        };
    }
    match &event.fact {
        Fact::JobEnqueued => tell!(info),
        Fact::LeaseAcquired { wait_ms } => tell!(info, wait_ms),
        Fact::ExecutionStarted => tell!(info),
        Fact::LeaseRenewed { until } => tell!(debug, until = until.as_millis()),
        Fact::StaleWriteBlocked { verb, stale_token, current_token, reason, state, ran_ms } => {
            let (verb, reason, state) = (verb.name(), reason.name(), state.name());
            let (stale_token, current_token) = (stale_token.0, current_token.0);
            tell!(warn, verb, stale_token, current_token, reason, state, ran_ms);
        }
        Fact::LeaseLapsed { from, became } | Fact::HolderVanished { from, became } => {
            tell!(warn, from = from.as_str(), became = became.name());
        }
        Fact::RetryScheduled { after_ms, error, ran_ms } => tell!(warn, after_ms, error, ran_ms),
        Fact::JobSnoozed { after_ms, ran_ms } => tell!(info, after_ms, ran_ms),
        Fact::JobReleased { ran_ms } => tell!(info, ran_ms),
        Fact::JobParked { reason, ran_ms } => tell!(warn, reason, ran_ms),
        Fact::JobSucceeded { ran_ms } => tell!(info, ran_ms),
        Fact::JobDead { reason, ran_ms } => tell!(warn, reason, ran_ms),
        Fact::JobCancelled { ran_ms } => tell!(info, ran_ms),
        Fact::EffectInDoubt { effect, opened_by } => {
            tell!(warn, effect = effect.as_str(), opened_by = opened_by.0);
        }
        Fact::EffectUnrecorded { effect, verb, given_up, error } => {
            tell!(warn, effect = effect.as_str(), verb = verb.name(), given_up, error);
        }
        Fact::WorkerStarted { queues, kinds, concurrency } => {
            tell!(info, queues = list(queues), kinds = kinds.as_deref().map(list), concurrency);
        }
        Fact::WorkerExit { reason, succeeded, retried, dead } => {
            tell!(info, reason = reason.name(), succeeded, retried, dead);
        }
        Fact::StoreLost { error } => tell!(warn, error),
        Fact::StoreBack => tell!(info),
        Fact::StoreCaution { problem } => tell!(warn, problem),
        Fact::StoreForbidden { error } => tell!(warn, error),
    }
}

/// The span in which the handler of an attempt runs, so that the handler's own log lines carry the
/// job.
pub(crate) fn span(worker: &WorkerId, about: &About) -> Span {
    tracing::info_span!(
        target: "tenure",
        "attempt",
        job = about.job.0,
        token = about.token.0,
        kind = about.kind.as_str(),
        queue = about.queue.as_str(),
        tenant = tenant(about),
        attempt = about.attempt,
        trace = about.trace.as_deref(),
        worker = worker.as_str(),
    )
}

/// The tenant, if the job has one.
fn tenant(about: &About) -> Option<&str> {
    Some(about.tenant.as_str()).filter(|tenant| !tenant.is_empty())
}

/// Names as one text, separated by commas.
fn list(names: &[Name]) -> String {
    names.iter().map(Name::as_str).collect::<Vec<_>>().join(",")
}
