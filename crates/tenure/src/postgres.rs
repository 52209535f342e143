//! Your own transaction on PostgreSQL: your tables and jobs, over your own `tokio-postgres`
//! connection, in one commit.
//!
//! These functions are one statement each, in whatever transaction the client is in. Their changes
//! are visible when you commit, not before, and not if you roll back. They call the functions that
//! any language may call (`docs/sql-api.md`).
//!
//! ```no_run
//! # use serde::{Deserialize, Serialize};
//! use tenure::postgres::{self, tokio_postgres};
//! use tenure::{Context, Fault, Job, Tenure};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Ship {
//!     order: i64,
//! }
//!
//! impl Job for Ship {
//!     const KIND: &'static str = "ship";
//!     type Output = ();
//! }
//!
//! /// An order, and the job that ships it.
//! async fn place_order(
//!     client: &mut tokio_postgres::Client,
//!     tenure: &Tenure,
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     let tx = client.transaction().await?;
//!     tx.execute("INSERT INTO orders (id) VALUES (1)", &[]).await?;
//!     postgres::enqueue(&tx, tenure.enqueue(Ship { order: 1 }).key("ship-1")).await?;
//!     Ok(tx.commit().await?)
//! }
//!
//! /// Its handler marks the order and ends the job. If it has lost the job, `complete` fails, and nothing is marked.
//! async fn ship(job: Ship, cx: Context) -> Result<(), Fault> {
//!     let mut client = connect().await?;
//!     let tx = client.transaction().await?;
//!     tx.execute("UPDATE orders SET shipped = true WHERE id = $1", &[&job.order]).await?;
//!     postgres::complete(&tx, &cx, &()).await?;
//!     tx.commit().await?;
//!     Ok(())
//! }
//! # async fn connect() -> Result<tokio_postgres::Client, Fault> { Err(Fault::retry("")) }
//! ```
//!
//! **Write first, then complete, then commit.** After a COMMIT whose answer was lost, let the
//! handler fail: either the job is done and there is no next attempt, or the next attempt finds the
//! true state. A handler may also send the whole transaction again. If it had been committed,
//! [`complete`] fails: roll back and return the error. Then the worker knows that the job is done.
//!
//! At REPEATABLE READ and above, call [`hold`] first. Otherwise a renewal after the transaction's
//! snapshot would end it with SQLSTATE 40001, which means *try again* and never that the job is
//! lost.

pub(crate) mod raw;

use serde::Serialize;
pub use tokio_postgres;
use tokio_postgres::GenericClient;

pub use self::raw::{CallError, Refusal, refusal};
use crate::client::{Enqueue, Handle, Tenure};
use crate::desk::Committed;
use crate::handler::Context;
use crate::job::{Invalid, Json};
use crate::lifecycle::{Fault, Verb};
use crate::store;
use crate::store::place::Engine;

/// Stores a job in this transaction. A key that belongs to another request is an error, and leaves
/// the transaction as it is.
pub async fn enqueue<T>(
    client: &impl GenericClient,
    job: Enqueue<T>,
) -> Result<Handle<T>, store::Error> {
    let (tenure, job) = job.into_parts()?;
    let schema = schema(&tenure)?;
    let limits = tenure.0.options.limits;
    let answers = raw::enqueue(client, schema, std::slice::from_ref(&job), &limits).await;
    match answers.map_err(store_error)?.first() {
        // No event is reported: it is unknown here whether the transaction will be committed.
        Some(answer) => tenure.handle_on(*answer),
        None => Err(Invalid::Batch { size: 0 }.into()),
    }
}

/// Completes the handler's job, together with everything else in this transaction: commit it before
/// you return. If another worker holds the job by now, the call fails, the transaction can only be
/// rolled back, and the refusal is recorded.
///
/// If an earlier transaction of this attempt has already completed the job, the call fails as well,
/// so that nothing is written twice: roll back, and return the error. For the worker the job has
/// succeeded.
pub async fn complete(
    client: &impl GenericClient,
    cx: &Context,
    output: &impl Serialize,
) -> Result<(), Fault> {
    let result = Json::of("result", output, cx.result_limit());
    let result = result.map_err(|invalid| Fault::fatal(format!("it ran, but {invalid}")))?;
    let schema = schema(cx.tenure()).map_err(Fault::fatal)?;
    let done = raw::complete(client, schema, cx.fence(), Some(&result)).await;
    heard(cx, Verb::Complete, done).await?;
    cx.set_committed(Committed::Perhaps);
    Ok(())
}

/// Lets this transaction commit only if the handler still holds its job: for writes in the middle
/// of a job. The check is made at once, and again at COMMIT, which fails with a [`refusal`] if the
/// job was lost meanwhile. Until then nothing is locked, and the lease may be renewed.
pub async fn fence(client: &impl GenericClient, cx: &Context) -> Result<(), Fault> {
    let schema = schema(cx.tenure()).map_err(Fault::fatal)?;
    heard(cx, Verb::Renew, raw::fence(client, schema, cx.fence()).await).await
}

/// Locks the handler's job until the end of the transaction: no other worker can take it, and its
/// lease need not be renewed. For transactions at REPEATABLE READ and above, as the first call.
/// `cx.step` and `cx.effect` of the same job wait until the transaction has ended, and fail after
/// about 100 seconds. A handler that calls them inside this transaction waits for itself, so call
/// them before it begins.
pub async fn hold(client: &impl GenericClient, cx: &Context) -> Result<(), Fault> {
    let schema = schema(cx.tenure()).map_err(Fault::fatal)?;
    heard(cx, Verb::Renew, raw::hold(client, schema, cx.fence()).await).await
}

/// Turns the database's answer into a fault for the handler. A refusal rolls back its own line in
/// the timeline with the transaction, so another transaction records it.
async fn heard(cx: &Context, verb: Verb, answer: Result<(), CallError>) -> Result<(), Fault> {
    match answer {
        Ok(()) => Ok(()),
        Err(CallError::Stale(stale)) => {
            let fence = cx.fence();
            let record = move |engine: &mut Engine| match engine {
                Engine::Postgres(store) => store.refused(fence, verb),
                #[cfg(feature = "sqlite")]
                Engine::Sqlite(_) => Ok(()),
            };
            // The write was refused even if the refusal cannot be recorded.
            let _ = cx.tenure().0.link.call(record).await;
            Err(cx.refused(verb, &stale))
        }
        Err(CallError::NotFound(_)) => Err(cx.lost()),
        Err(done @ CallError::AlreadyDone(_)) => {
            cx.set_committed(Committed::Yes);
            Err(Fault::retry(done))
        }
        Err(CallError::Invalid(invalid)) => Err(Fault::fatal(invalid)),
        Err(error @ CallError::Driver(_)) => Err(error.into()),
    }
}

fn schema(tenure: &Tenure) -> Result<&str, store::Error> {
    tenure.0.place.schema().ok_or_else(|| {
        let why =
            "this store is in SQLite; use tenure::sqlite::transaction and tenure::sqlite::complete";
        Invalid::Value { field: "transaction", why: why.into() }.into()
    })
}

fn store_error(error: CallError) -> store::Error {
    match error {
        CallError::Invalid(invalid) => invalid.into(),
        error => store::Error::Engine { doing: "enqueue in a transaction", source: error.into() },
    }
}
