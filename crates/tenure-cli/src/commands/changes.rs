//! The report that cancel, requeue, resume and purge share: what became of each job that the
//! operator named.
//!
//! A success is an answer on stdout. A refusal is a message on stderr with the next step; the other
//! jobs are done nevertheless.

use anyhow::{Context, Result};
use tenure::engine::job::{BATCH_LIMIT, JobId, State};
use tenure::engine::store::{self, Changed};
use tenure::json;

use crate::Answer;
use crate::output::Output;

/// The operation on the jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Cancel,
    Requeue,
    Resume,
    /// Requeue, but only dead jobs.
    RequeueDead,
    PurgeDead,
}

impl Operation {
    /// The verb while it runs.
    pub(crate) fn doing(self) -> &'static str {
        match self {
            Operation::Cancel => "cancelling",
            Operation::Requeue | Operation::RequeueDead => "requeueing",
            Operation::Resume => "resuming",
            Operation::PurgeDead => "purging",
        }
    }

    /// What a job is afterwards.
    pub(crate) fn done(self) -> &'static str {
        match self {
            Operation::Cancel => "cancelled",
            Operation::Requeue | Operation::RequeueDead => "requeued",
            Operation::Resume => "resumed",
            Operation::PurgeDead => "purged",
        }
    }

    /// Why the operation is not possible for a job in this state, and what is possible instead.
    fn refusal(self, job: JobId, state: State) -> String {
        let known = format!("job {job} is {state}");
        match (self, state) {
            (Operation::RequeueDead | Operation::PurgeDead, _) => {
                format!("{known}, not dead; see it with: tenure jobs show {job}")
            }
            (Operation::Cancel, _) => format!("{known} already; there is nothing to cancel"),
            (Operation::Resume, State::Dead | State::Cancelled) => {
                format!("{known}, not parked; queue it again with: tenure jobs requeue {job}")
            }
            (Operation::Resume, _) => format!("{known}, not parked; there is nothing to resume"),
            (Operation::Requeue, State::Parked) => {
                format!("{known}; let it go on with: tenure jobs resume {job}")
            }
            (Operation::Requeue, State::Running) => {
                format!("{known}; to start it over, first: tenure jobs cancel {job}")
            }
            (Operation::Requeue, State::Succeeded) => {
                format!("{known}; to run it again, enqueue a new job with its args")
            }
            (Operation::Requeue, _) => format!("{known} already; there is nothing to requeue"),
        }
    }
}

/// Sends ids in batches that a store accepts, and returns each answer with its id.
pub(crate) fn in_batches<T: Copy>(
    requests: &[T],
    id: impl Fn(T) -> JobId,
    mut send: impl FnMut(&[T]) -> store::Result<Vec<Changed>>,
) -> Result<Vec<(JobId, Changed)>> {
    let mut answers = Vec::with_capacity(requests.len());
    for part in requests.chunks(BATCH_LIMIT) {
        let answered = send(part).map_err(anyhow::Error::new);
        let answered = match answers.len() {
            0 => answered?,
            n => answered.with_context(|| format!("after the first {n} jobs were done"))?,
        };
        answers.extend(part.iter().map(|request| id(*request)).zip(answered));
    }
    Ok(answers)
}

/// Reports each answer, and a summary.
pub(crate) fn report(
    operation: Operation,
    answers: &[(JobId, Changed)],
    out: &mut Output,
) -> Result<Answer> {
    if out.is_json() {
        let view = |(id, changed): &(JobId, Changed)| json::changed(*id, *changed);
        out.document(&answers.iter().map(view).collect::<Vec<_>>())?;
    }
    let mut refusals = Vec::new();
    for (id, changed) in answers {
        match changed {
            Changed::Applied if !out.is_json() => {
                out.line(&format!("job {id} {}", operation.done()))?;
            }
            Changed::Applied => {}
            Changed::Refused(state) => refusals.push(operation.refusal(*id, *state)),
            Changed::NotFound => refusals.push(unknown(*id)),
        }
    }
    sum_up(operation, refusals, answers.len(), out)
}

fn sum_up(
    operation: Operation,
    mut refusals: Vec<String>,
    asked: usize,
    out: &mut Output,
) -> Result<Answer> {
    match refusals.len() {
        0 => Ok(Answer::Yes),
        // The refusal of a single job is the whole answer.
        1 if asked == 1 => Ok(Answer::No(refusals.remove(0))),
        n => {
            refusals.iter().try_for_each(|refusal| out.say(refusal))?;
            let done = operation.done();
            Ok(Answer::No(format!("{n} of {asked} jobs were not {done}; see above")))
        }
    }
}

/// The message for a job that the store does not have.
pub(crate) fn unknown(job: JobId) -> String {
    format!("there is no job {job}, or no longer; list the jobs with: tenure jobs list")
}
