//! The errors of a call to a store: what was being done, to what, and what to do next.

use std::fmt;

use super::Enqueued;
use crate::job::{Invalid, JobId, with_causes};

/// The result of a call to a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error of a call to a store.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request is invalid; nothing was done.
    #[error(transparent)]
    Invalid(#[from] Invalid),

    /// The store cannot be used as it is: for example the wrong file, missing permissions, or a
    /// schema of a newer release.
    #[error("{target}: {problem}; {next}")]
    #[allow(missing_docs)]
    Unusable { target: String, problem: String, next: String },

    /// The store can be read, but not written to: the disk is full, or the file is read-only.
    /// Nothing was done.
    #[error("{target}: {problem}; {next}")]
    #[allow(missing_docs)]
    Unwritable { target: String, problem: String, next: String },

    /// The connected role lacks a right; nothing was done. Repeating the call does not help: `next`
    /// has the statement that grants the right, if it is known.
    #[error("{target}: {problem}; {next}")]
    #[allow(missing_docs)]
    Forbidden { target: String, problem: String, next: String },

    /// Another transaction or program held the store locked for too long, or the call lost a
    /// conflict with another transaction. Repeat the call, and treat it as one whose outcome is
    /// unknown.
    #[error(
        "{target} is busy while trying to {doing}; try again, and look for another program that holds it locked"
    )]
    #[allow(missing_docs)]
    Busy { doing: &'static str, target: String, source: Box<dyn std::error::Error + Send + Sync> },

    /// The server cannot be reached, is starting or stopping, or aborted the call. Whether the call
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

    /// Some of many jobs were not enqueued; the verdicts tell which.
    #[error(transparent)]
    Incomplete(Box<Incomplete>),

    /// A user's own transaction did something that is not allowed in it. Everything in it was
    /// rolled back.
    #[error("{target}: {problem}, so that everything in this transaction was undone; {next}")]
    #[allow(missing_docs)]
    Undone { target: String, problem: String, next: String },

    /// The work of a user's own transaction returned this error. Everything in it was rolled back.
    #[error(transparent)]
    Yours(Box<dyn std::error::Error + Send + Sync>),

    /// The engine failed in an unexpected way.
    #[error("could not {doing}: {source}; `tenure doctor` looks for the cause")]
    #[allow(missing_docs)]
    Engine { doing: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
}

impl Error {
    /// Whether the same call may succeed later. False for [`Error::Incomplete`]: the same call
    /// would store jobs without a key a second time.
    pub fn is_transient(&self) -> bool {
        matches!(self, Error::Busy { .. } | Error::Unavailable { .. })
    }

    /// The error that the work of a user's own transaction returned. An [`Error`] of Tenure is
    /// returned as it is; any other becomes [`Error::Yours`].
    #[cfg(feature = "sqlite")]
    pub(crate) fn yours(cause: Box<dyn std::error::Error + Send + Sync>) -> Error {
        cause.downcast().map_or_else(Error::Yours, |ours| *ours)
    }

    /// Whether it is certain that the call was not applied.
    pub(crate) fn did_nothing(&self) -> bool {
        matches!(self, Error::Invalid(_) | Error::Unwritable { .. } | Error::Forbidden { .. })
    }

    /// Whether the store may work as long as nothing is written.
    pub(crate) fn is_about_writing(&self) -> bool {
        matches!(self, Error::Unwritable { .. } | Error::Busy { .. })
    }

    /// Whether the connected role lacks a right.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Error::Forbidden { .. })
    }

    /// A copy, for another caller whose request was part of the same call.
    pub(crate) fn for_another(&self) -> Error {
        let said = |source: &(dyn std::error::Error + Send + Sync)| source.to_string().into();
        match self {
            Error::Invalid(invalid) => Error::Invalid(invalid.clone()),
            Error::Unusable { target, problem, next } => Error::Unusable {
                target: target.clone(),
                problem: problem.clone(),
                next: next.clone(),
            },
            Error::Unwritable { target, problem, next } => Error::Unwritable {
                target: target.clone(),
                problem: problem.clone(),
                next: next.clone(),
            },
            Error::Forbidden { target, problem, next } => Error::Forbidden {
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
            Error::Yours(cause) => Error::Yours(said(cause.as_ref())),
            Error::Conflict { owner } => Error::Conflict { owner: *owner },
            Error::Incomplete(incomplete) => Error::Incomplete(Box::new(Incomplete {
                verdicts: incomplete.verdicts.clone(),
                cause: incomplete.cause.as_ref().map(Error::for_another),
            })),
            Error::Engine { doing, source } => {
                Error::Engine { doing, source: said(source.as_ref()) }
            }
        }
    }

    /// Whether the request itself was wrong, so that repeating it can never succeed.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Error::Invalid(_))
    }
}

/// Prints the message with its causes, because `Debug` is what a program shows whose `main` returns
/// the error. Variants whose messages look alike append their name.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_causes(self))?;
        match self {
            Error::Unusable { .. } => f.write_str(" (Unusable)"),
            Error::Unwritable { .. } => f.write_str(" (Unwritable)"),
            Error::Forbidden { .. } => f.write_str(" (Forbidden)"),
            _ => Ok(()),
        }
    }
}

/// The outcome of enqueueing many jobs, if some were not enqueued. The jobs are sent in parts, with
/// one call for each part.
#[derive(Debug)]
pub struct Incomplete {
    /// One per job, in the order given.
    pub verdicts: Vec<Verdict>,
    /// Why a part failed, if one failed.
    pub cause: Option<Error>,
}

/// The outcome for one of many jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The store answered: the job is stored, or another job has its key.
    Answered(Enqueued),
    /// The job was in the part that failed. A part is stored whole or not at all; if the cause [is
    /// transient](Error::is_transient), it is unknown which.
    Failed,
    /// The job was in a later part, which was not sent.
    NotSent,
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Enqueued::{Conflict, Created, Existing};
        let count =
            |which: fn(&Verdict) -> bool| self.verdicts.iter().filter(|it| which(it)).count();
        let counts = [
            (count(|it| matches!(it, Verdict::Answered(Created(_)))), "stored"),
            (count(|it| matches!(it, Verdict::Answered(Existing(_)))), "stored before"),
            (count(|it| matches!(it, Verdict::Answered(Conflict(_)))), "refused"),
            (count(|it| matches!(it, Verdict::Failed)), "failed"),
            (count(|it| matches!(it, Verdict::NotSent)), "not sent"),
        ];
        let counts: Vec<_> = counts
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        write!(f, "of {} jobs: {}", self.verdicts.len(), counts.join(", "))?;
        let conflict = self.verdicts.iter().zip(1..).find_map(|(verdict, n)| match verdict {
            Verdict::Answered(Conflict(owner)) => Some((n, owner)),
            _ => None,
        });
        if let Some((n, owner)) = conflict {
            write!(
                f,
                "; number {n} has the key of job {owner}, which has another kind or other args: use another key"
            )?;
        }
        if let Some(cause) = &self.cause {
            write!(f, "; {cause}")?;
        }
        f.write_str("; the verdicts say which")
    }
}

impl std::error::Error for Incomplete {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_incomplete_says_how_many_of_each_and_why() {
        let answered = |answer| Verdict::Answered(answer);
        let incomplete = Error::Incomplete(Box::new(Incomplete {
            verdicts: vec![
                answered(Enqueued::Created(JobId(4))),
                answered(Enqueued::Existing(JobId(2))),
                answered(Enqueued::Conflict(JobId(1))),
                Verdict::Failed,
                Verdict::NotSent,
                Verdict::NotSent,
            ],
            cause: Some(Error::Engine { doing: "enqueue", source: "disk on fire".into() }),
        }));
        assert!(!incomplete.is_transient() && !incomplete.is_invalid());
        let said = "of 6 jobs: 1 stored, 1 stored before, 1 refused, 1 failed, 2 not sent; number 3 has the key of \
            job 1, which has another kind or other args: use another key; could not enqueue: disk on fire; `tenure doctor` \
            looks for the cause; the verdicts say which";
        assert_eq!(incomplete.to_string(), said);
        assert_eq!(incomplete.for_another().to_string(), said);
    }

    #[test]
    fn an_error_that_main_returns_is_printed_in_words_with_its_causes() {
        let target = || "tenure.db".to_owned();
        let busy = Error::Busy { doing: "enqueue", target: target(), source: "code 5".into() };
        assert_eq!(
            format!("{busy:?}"),
            "tenure.db is busy while trying to enqueue; try again, and look for another program that holds it \
             locked: code 5"
        );
        // The message of this variant already contains its cause.
        let engine = Error::Engine { doing: "enqueue", source: "disk on fire".into() };
        assert_eq!(format!("{engine:?}"), engine.to_string());
        let invalid = Invalid::Batch { size: 1_001 };
        assert_eq!(format!("{invalid:?}"), invalid.to_string());
        assert_eq!(format!("{:?}", Error::from(invalid.clone())), invalid.to_string());
        let (problem, next) = ("the disk is full".to_owned(), "free some space".to_owned());
        let full = Error::Unwritable { target: target(), problem, next };
        let told = "tenure.db: the disk is full; free some space (Unwritable)";
        assert_eq!(format!("{full:?}"), told);
        assert_eq!(format!("{:?}", crate::JobError::from(full)), told);
        let dead = crate::JobError::Dead { job: JobId(7), reason: "no such address".into() };
        assert_eq!(format!("{dead:?}"), dead.to_string());
    }
}
