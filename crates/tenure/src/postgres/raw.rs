//! The functions of [`crate::postgres`] for a program that has no [`crate::Tenure`] and no handler.
//! It passes jobs, fences and the schema's name as values.
//!
//! Each function is one statement, in whatever transaction the client is in.

use std::fmt;

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::job::{Invalid, JobId, Json, Limits, NewJob, State, with_causes};
use crate::lease::{Fence, Reason, Stale, Token};
use crate::store::postgres::{JsonText, Lists, Param, Schema, bad_request};
use crate::store::{self, Enqueued, check_jobs};

/// The SQLSTATE for an attempt that an earlier transaction has already ended in the same way.
const ALREADY_DONE: &str = "TN004";

/// Why a call in your own transaction failed. Whatever the reason, roll back.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// Another worker holds the job by now, or the job has ended: this transaction writes nothing
    /// for it.
    #[error(
        "token {} is no longer the right to job {} ({}): its token is {} and it is {}; roll back, and stop working on it",
        .0.shown.token, .0.shown.job, .0.reason.name(), .0.current, .0.state.name()
    )]
    Stale(Stale),

    /// The store does not know the job, or no longer.
    #[error("there is no job {}, or no longer; roll back, and stop working on it", .0.job)]
    NotFound(Fence),

    /// An earlier transaction has completed this attempt, as after a COMMIT whose answer was lost.
    /// There is nothing left to do.
    #[error("token {} has completed job {} before, in an earlier transaction; roll back: it is done", .0.token, .0.job)]
    AlreadyDone(Fence),

    /// The request is invalid; nothing was done.
    #[error(transparent)]
    Invalid(#[from] Invalid),

    /// The server or the driver failed.
    #[error("{}", said(.0))]
    Driver(#[source] tokio_postgres::Error),
}

/// The readable text with its causes, because a program whose `main` returns this error prints it
/// with `Debug`.
impl fmt::Debug for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_causes(self))
    }
}

/// The content of a refusal, which the database raises as SQLSTATE `TN001`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Another worker holds the job by now, or the job has ended.
    Stale(Stale),
    /// The store does not know the job, or no longer.
    NotFound(Fence),
}

/// Stores jobs, all or none, and returns an answer for each. A job whose key is taken is not stored
/// again.
///
/// An open transaction that has taken a key makes other requests for the same key wait; it blocks
/// nothing else.
pub async fn enqueue(
    client: &impl GenericClient,
    schema: &str,
    jobs: &[NewJob],
    limits: &Limits,
) -> Result<Vec<Enqueued>, CallError> {
    let schema = Schema::check(schema)?;
    check_jobs(jobs, limits).map_err(invalid)?;
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let lists = Lists::of(jobs);
    let rows = client.query_typed(&schema.apply(Lists::SQL), &lists.params()).await;
    rows.and_then(|rows| lists.answers(&rows)).map_err(|cause| failure(cause, None))
}

/// Completes an attempt, together with everything else in this transaction: from here on the job is
/// locked until you commit. If the token is stale, the call fails with [`CallError::Stale`], and the
/// transaction can only be rolled back. If a transaction is sent again after it was committed, the
/// call fails with [`CallError::AlreadyDone`].
pub async fn complete(
    client: &impl GenericClient,
    schema: &str,
    fence: Fence,
    result: Option<&Json>,
) -> Result<(), CallError> {
    let result = result.map(|result| JsonText(result.as_str()));
    let sql = "SELECT tenure.complete($1, $2, $3)";
    call(client, schema, sql, fence, &[(&result, Type::JSON)]).await
}

/// Lets this transaction commit only if the job is still held: for writes in the middle of a job.
/// The check is made at once, and again at COMMIT, which fails with a [`refusal`] if the job was
/// lost meanwhile. Until then nothing is locked, and the lease may be renewed.
pub async fn fence(
    client: &impl GenericClient,
    schema: &str,
    fence: Fence,
) -> Result<(), CallError> {
    call(client, schema, "SELECT tenure.fence($1, $2)", fence, &[]).await
}

/// Locks the job until the end of the transaction: no other worker can take it, and its lease need
/// not be renewed. For transactions at REPEATABLE READ and above, as the first call.
pub async fn hold(
    client: &impl GenericClient,
    schema: &str,
    fence: Fence,
) -> Result<(), CallError> {
    call(client, schema, "SELECT tenure.hold($1, $2)", fence, &[]).await
}

/// Writes a refusal into the job's timeline, after the line that the refused call wrote was rolled
/// back with its transaction. Call it in a new transaction, or in none. Returns whether the token
/// is stale; if not, nothing is written.
pub async fn refused(
    client: &impl GenericClient,
    schema: &str,
    fence: Fence,
) -> Result<bool, CallError> {
    let schema = Schema::check(schema)?;
    let sql = schema.apply("SELECT tenure.refused($1, $2, 'complete')");
    let shown: [Param<'_>; 2] = [(&fence.job.0, Type::INT8), (&fence.token.0, Type::INT8)];
    let row = client.query_typed_one(&sql, &shown).await;
    row.and_then(|row| row.try_get(0)).map_err(|cause| failure(cause, Some(fence)))
}

/// The content of a refusal, if the error is one: for the error of a COMMIT after [`fence`].
///
/// It is parsed from the texts of the schema. If a newer schema words them differently, the result
/// is [`Refusal::NotFound`], or has zeros for the numbers.
pub fn refusal(error: &tokio_postgres::Error) -> Option<Refusal> {
    let said = error.as_db_error().filter(|said| said.code().code() == "TN001")?;
    let shown = Fence {
        job: JobId(number_after(said.message(), "job").unwrap_or_default()),
        token: number_after(said.message(), "token").map_or(Token::NONE, Token),
    };
    Some(understand(said.detail().unwrap_or_default(), shown))
}

/// Calls a function that checks a fence and returns nothing of interest.
async fn call(
    client: &impl GenericClient,
    schema: &str,
    sql: &str,
    fence: Fence,
    more: &[Param<'_>],
) -> Result<(), CallError> {
    let schema = Schema::check(schema)?;
    let mut params: Vec<Param<'_>> = vec![(&fence.job.0, Type::INT8), (&fence.token.0, Type::INT8)];
    params.extend_from_slice(more);
    let answer = client.execute_typed(&schema.apply(sql), &params).await;
    answer.map(drop).map_err(|cause| failure(cause, Some(fence)))
}

/// Turns a driver error into an error for a caller that presented this fence.
fn failure(cause: tokio_postgres::Error, shown: Option<Fence>) -> CallError {
    if let Some(refusal) = refusal(&cause) {
        return match refusal {
            Refusal::Stale(stale) => {
                CallError::Stale(Stale { shown: shown.unwrap_or(stale.shown), ..stale })
            }
            Refusal::NotFound(fence) => CallError::NotFound(shown.unwrap_or(fence)),
        };
    }
    if let Some(fence) = shown
        && cause.code().is_some_and(|code| code.code() == ALREADY_DONE)
    {
        return CallError::AlreadyDone(fence);
    }
    match bad_request(&cause) {
        Some(invalid) => CallError::Invalid(invalid),
        None => CallError::Driver(cause),
    }
}

/// Parses the detail of a refusal: the reason's name, then the job's token or its state.
fn understand(detail: &str, shown: Fence) -> Refusal {
    let (word, rest) = detail.split_once(':').unwrap_or_default();
    let reasons = [Reason::TokenMismatch, Reason::AlreadySettled, Reason::LeaseExpired];
    let Some(reason) = reasons.into_iter().find(|reason| reason.name() == word) else {
        return Refusal::NotFound(shown);
    };
    let state = words(rest).find_map(|word| word.parse().ok()).unwrap_or(State::Running);
    let current = match reason {
        Reason::TokenMismatch => number_after(rest, "is").map_or(Token::NONE, Token),
        Reason::AlreadySettled | Reason::LeaseExpired => shown.token,
    };
    Refusal::Stale(Stale { shown, current, state, reason })
}

fn number_after(text: &str, before: &str) -> Option<i64> {
    let pairs = words(text).zip(words(text).skip(1));
    pairs.filter(|(word, _)| *word == before).find_map(|(_, next)| next.parse().ok())
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace().map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()))
}

/// Turns an error of the port's checks into an invalid request.
fn invalid(error: store::Error) -> CallError {
    match error {
        store::Error::Invalid(invalid) => CallError::Invalid(invalid),
        other => CallError::Invalid(Invalid::Value { field: "request", why: other.to_string() }),
    }
}

/// The server's message: the driver's error alone prints as "db error".
fn said(cause: &tokio_postgres::Error) -> String {
    match cause.as_db_error() {
        Some(said) => format!("{} (SQLSTATE {})", said.message(), said.code().code()),
        None => cause.to_string(),
    }
}
