//! The requests to a thread, and how each is served alone.

use tokio::sync::oneshot;

use super::no_thread;
use crate::job::{JobId, NewJob, Tenant};
use crate::ledger::{Act, Answer, Entry};
use crate::store::place::Engine;
use crate::store::{Enqueued, Error, Result};

pub(super) type Reply<T> = oneshot::Sender<Result<T>>;

/// Work on the thread's connection.
pub(super) type Call = Box<dyn FnOnce(Result<&mut Engine>) + Send>;

pub(super) enum Request {
    Enqueue(Vec<NewJob>, Reply<Vec<Enqueued>>),
    Ledger(Entry, Reply<Answer>),
    /// Any other call. If there is no connection, the call gets the error.
    Call(Call),
}

/// What a request may have to wait for: a key or a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wanted {
    Key(Tenant, String),
    Job(JobId),
}

impl Request {
    /// Whether the caller has gone and the request may therefore be dropped. An entry that records
    /// something that has happened is never dropped.
    pub(super) fn is_forsaken(&self) -> bool {
        match self {
            Request::Enqueue(_, reply) => reply.is_closed(),
            Request::Ledger(entry, reply) => {
                reply.is_closed() && matches!(entry.act, Act::Open | Act::Recall)
            }
            // The call checks this itself.
            Request::Call(_) => false,
        }
    }

    pub(super) fn wanted(&self) -> Vec<Wanted> {
        let key = |job: &NewJob| {
            let key = job.key.as_ref()?;
            Some(Wanted::Key(job.tenant.clone(), key.as_str().to_owned()))
        };
        match self {
            Request::Enqueue(jobs, _) => jobs.iter().filter_map(key).collect(),
            Request::Ledger(entry, _) => vec![Wanted::Job(entry.fence.job)],
            Request::Call(_) => Vec::new(),
        }
    }

    /// Whether the store applies it once, even if it is sent twice.
    pub(super) fn may_be_repeated(&self) -> bool {
        match self {
            Request::Enqueue(jobs, _) => jobs.iter().all(|job| job.key.is_some()),
            Request::Ledger(..) => true,
            Request::Call(_) => false,
        }
    }

    /// Serves the request in a call of its own. If it waited for a lock and did not get it, so that
    /// nothing was done, returns the request with the error.
    pub(super) fn alone(self, engine: &mut Engine) -> Option<(Request, Error)> {
        let has_row_locks = engine.has_row_locks();
        match self {
            Request::Enqueue(jobs, reply) => match engine.store().enqueue(&jobs) {
                Err(busy @ Error::Busy { .. }) if has_row_locks => {
                    return Some((Request::Enqueue(jobs, reply), busy));
                }
                // Here and below: the caller may have gone, so a failed send is ignored.
                answers => drop(reply.send(answers)),
            },
            Request::Ledger(entry, reply) => {
                match engine.store().ledger(std::slice::from_ref(&entry)) {
                    Err(busy @ Error::Busy { .. }) if has_row_locks => {
                        return Some((Request::Ledger(entry, reply), busy));
                    }
                    answers => drop(reply.send(answers.and_then(|mut answers| {
                        answers.pop().ok_or_else(|| no_thread("the store gave no answer"))
                    }))),
                }
            }
            Request::Call(work) => work(Ok(engine)),
        }
        None
    }

    /// Answers the request with an error.
    pub(super) fn refuse(self, error: Error) {
        match self {
            Request::Enqueue(_, reply) => drop(reply.send(Err(error))),
            Request::Ledger(_, reply) => drop(reply.send(Err(error))),
            Request::Call(work) => work(Err(error)),
        }
    }
}
