//! A job that was enqueued, and its result.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::Tenure;
use crate::inspect::JobOutcome;
use crate::job::{JobId, State, with_causes};
use crate::store::{Changed, Error, Result};

/// A job that was enqueued.
pub struct Handle<T> {
    tenure: Tenure,
    id: JobId,
    is_new: bool,
    output: PhantomData<fn() -> T>,
}

/// Why a job has no output.
#[derive(thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum JobError {
    /// It has failed, and will not be tried again.
    #[error("job {job} is dead: {reason}; see `tenure jobs show {job}`")]
    Dead { job: JobId, reason: String },
    /// It was cancelled.
    #[error("job {job} was cancelled")]
    Cancelled { job: JobId },
    /// The store does not have the job: there was none, or it ended and its retention is over.
    #[error("job {job} is not in the store any more; its queue may keep ended jobs too short")]
    NotFound { job: JobId },
    /// It succeeded, but its result is not of the type that this program expects.
    #[error("job {job} returned something else than expected: {source}")]
    Output { job: JobId, source: serde_json::Error },
    /// The store could not be asked.
    #[error(transparent)]
    Store(#[from] Error),
}

/// The readable text with its causes, because a program whose `main` returns this error prints it
/// with `Debug`.
impl fmt::Debug for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobError::Store(error) => fmt::Debug::fmt(error, f),
            _ => f.write_str(&with_causes(self)),
        }
    }
}

impl<T> Handle<T> {
    pub(super) fn new(tenure: &Tenure, id: JobId, is_new: bool) -> Handle<T> {
        Handle { tenure: tenure.clone(), id, is_new, output: PhantomData }
    }

    /// The job's number.
    pub fn id(&self) -> JobId {
        self.id
    }

    /// Whether this request created the job: false if another job already has its key.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// The job's state; `None` if the store does not know it any more.
    pub async fn state(&self) -> Result<Option<State>> {
        Ok(self.outcome().await?.map(|found| found.state))
    }

    async fn outcome(&self) -> Result<Option<JobOutcome>> {
        let job = self.id;
        self.tenure.0.link.look(move |engine| engine.store().outcome(job)).await
    }

    /// Cancels the job, if it has not ended.
    pub async fn cancel(&self) -> Result<Changed> {
        self.tenure.cancel(self.id).await
    }
}

impl<T: DeserializeOwned> Handle<T> {
    /// Waits until the job has ended, however long that takes, and returns its result. A parked job
    /// waits for a person, and so does this call. Use `tokio::time::timeout` to limit the wait.
    pub async fn wait(&self) -> Result<T, JobError> {
        let job = self.id;
        let mut pause = Duration::from_millis(5);
        // Registered before the first check: otherwise an end between a check and a rest would be
        // missed.
        let waiting = self.tenure.0.waiters.wait_for(job);
        loop {
            let found = match self.outcome().await {
                Err(error) if error.is_transient() => None,
                Err(error) => return Err(error.into()),
                Ok(None) => return Err(JobError::NotFound { job }),
                Ok(Some(found)) => Some(found),
            };
            match found {
                Some(found) if found.state == State::Succeeded => {
                    let text = found.result.as_ref().map_or("null", |result| result.as_str());
                    return serde_json::from_str(text)
                        .map_err(|source| JobError::Output { job, source });
                }
                Some(found) if found.state == State::Dead => {
                    let reason = found.reason.unwrap_or_default();
                    return Err(JobError::Dead { job, reason });
                }
                Some(found) if found.state == State::Cancelled => {
                    return Err(JobError::Cancelled { job });
                }
                _ => {}
            }
            // The job may end in another process, which cannot wake this one.
            waiting.rest(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }
}

impl<T> fmt::Debug for Handle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("id", &self.id).field("is_new", &self.is_new).finish()
    }
}
