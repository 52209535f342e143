//! What can go wrong between a caller and a store: what was being done, to what, and what to do
//! next.

use crate::job::Invalid;

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

    /// Whether the request itself was wrong, so that it will never succeed.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Error::Invalid(_))
    }
}
