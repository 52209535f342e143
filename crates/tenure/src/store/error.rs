//! What can go wrong between a caller and a store: what was being done, to what, and what to do
//! next.

use crate::job::{Invalid, JobId};

/// The result of a call to a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A call that could not be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request makes no sense; nothing was done.
    #[error(transparent)]
    Invalid(#[from] Invalid),

    /// The store cannot be used as it is: the wrong file, no rights, a schema from the future.
    #[error("{target}: {problem}; {next}")]
    #[allow(missing_docs)]
    Unusable { target: String, problem: String, next: String },

    /// The store was busy or out of reach. Whether the call was applied is unknown; repeat it.
    #[error(
        "{target} is busy while trying to {doing}; try again, and look for another program that holds it locked"
    )]
    #[allow(missing_docs)]
    Busy { doing: &'static str, target: String, source: Box<dyn std::error::Error + Send + Sync> },

    /// The server is out of reach, is starting or stopping, or broke the call off. Whether the call
    /// was applied is unknown; repeat it.
    #[error("{target}: {problem} while trying to {doing}; {next}")]
    #[allow(missing_docs)]
    Unavailable {
        doing: &'static str,
        target: String,
        problem: String,
        next: String,
        source: Box<dyn std::error::Error + Send + Sync>,
    },

    /// The key belongs to a job with another kind or other args; nothing was stored.
    #[error(
        "this key belongs to job {owner}, which has another kind or other args, so nothing was stored; use another key"
    )]
    #[allow(missing_docs)]
    Conflict { owner: JobId },

    /// A user's own transaction did not keep to what one may do. Nothing of it was stored.
    #[error("{target}: {problem}, so that everything in this transaction was undone; {next}")]
    #[allow(missing_docs)]
    Undone { target: String, problem: String, next: String },

    /// The engine failed in a way that we do not expect.
    #[error("could not {doing}: {source}; `tenure doctor` looks for the cause")]
    #[allow(missing_docs)]
    Engine { doing: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
}

impl Error {
    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Busy { .. } | Error::Unavailable { .. })
    }

    /// The same for another caller whose request was part of the same call.
    pub(crate) fn for_another(&self) -> Error {
        let said = |source: &(dyn std::error::Error + Send + Sync)| source.to_string().into();
        match self {
            Error::Invalid(invalid) => Error::Invalid(invalid.clone()),
            Error::Unusable { target, problem, next } => Error::Unusable {
                target: target.clone(),
                problem: problem.clone(),
                next: next.clone(),
            },
            Error::Busy { doing, target, source } => {
                Error::Busy { doing, target: target.clone(), source: said(source.as_ref()) }
            }
            Error::Unavailable { doing, target, problem, next, source } => Error::Unavailable {
                doing,
                target: target.clone(),
                problem: problem.clone(),
                next: next.clone(),
                source: said(source.as_ref()),
            },
            Error::Undone { target, problem, next } => Error::Undone {
                target: target.clone(),
                problem: problem.clone(),
                next: next.clone(),
            },
            Error::Conflict { owner } => Error::Conflict { owner: *owner },
            Error::Engine { doing, source } => {
                Error::Engine { doing, source: said(source.as_ref()) }
            }
        }
    }

    /// Whether the request itself was wrong, so that it will never succeed.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Error::Invalid(_))
    }
}
