//! A connection on a thread of its own, so that async code need not block: requests in, answers out.
//!
//! What arrives while a call is under way goes out together in the next one: many callers that each enqueue one
//! job cost one statement and one commit.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use tokio::sync::oneshot;

use super::place::Engine;
use super::{Enqueued, Error, Result, Store};
use crate::job::{BATCH_LIMIT, NewJob};
use crate::ledger::{Act, Answer, Entry};

/// The way to the thread. It ends when the last way to it does.
#[derive(Clone)]
pub(crate) struct Link(Sender<Request>);

type Reply<T> = oneshot::Sender<Result<T>>;

enum Request {
    Enqueue(Vec<NewJob>, Reply<Vec<Enqueued>>),
    Ledger(Entry, Reply<Answer>),
    /// Anything else.
    Call(Box<dyn FnOnce(&mut Engine) + Send>),
}

impl Link {
    /// Connects on a new thread, and answers once it is connected.
    pub(crate) async fn open(
        connect: impl FnOnce() -> Result<Engine> + Send + 'static,
    ) -> Result<Link> {
        let (requests, inbox) = channel();
        let (opened, answer) = oneshot::channel();
        let work = move || match connect() {
            Ok(engine) => {
                // Nobody may be waiting any more: then the inbox is closed as well.
                let _ = opened.send(Ok(()));
                serve(engine, &inbox);
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        thread::Builder::new().name("tenure-store".into()).spawn(work).map_err(no_thread)?;
        answer.await.map_err(no_thread)??;
        Ok(Link(requests))
    }

    pub(crate) async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>> {
        self.ask(|reply| Request::Enqueue(jobs, reply)).await
    }

    pub(crate) async fn ledger(&self, entry: Entry) -> Result<Answer> {
        self.ask(|reply| Request::Ledger(entry, reply)).await
    }

    /// Does something with the connection. If it panics, so does the caller, and the thread goes on.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let work = |reply: Reply<thread::Result<T>>| {
            Request::Call(Box::new(move |engine| {
                if reply.is_closed() {
                    return; // whoever asked has gone
                }
                let answer = match catch_unwind(AssertUnwindSafe(|| work(engine))) {
                    Ok(answer) => answer.map(Ok),
                    Err(panic) => Ok(Err(panic)),
                };
                // Whoever asked may have gone.
                let _ = reply.send(answer);
            }))
        };
        Ok(self.ask(work).await?.unwrap_or_else(|panic| resume_unwind(panic)))
    }

    async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.0.send(request(reply)).map_err(|_| no_thread("it has ended"))?;
        answer.await.map_err(no_thread)?
    }
}

fn no_thread(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Engine { doing: "reach the store's thread", source: cause.into() }
}

fn serve(mut engine: Engine, inbox: &Receiver<Request>) {
    let mut waiting = VecDeque::new();
    loop {
        if waiting.is_empty() {
            match inbox.recv() {
                Ok(request) => waiting.push_back(request),
                Err(_) => return,
            }
        }
        waiting.extend(inbox.try_iter().take(BATCH_LIMIT));
        // A panic of the engine's costs those who wait for this call, and nobody else.
        let _ = catch_unwind(AssertUnwindSafe(|| answer(&mut engine, &mut waiting)));
    }
}

fn answer(engine: &mut Engine, waiting: &mut VecDeque<Request>) {
    match waiting.pop_front() {
        Some(request) if request.is_forsaken() => {}
        Some(Request::Enqueue(jobs, reply)) => enqueue(engine.store(), (jobs, reply), waiting),
        Some(Request::Ledger(entry, reply)) => ledger(engine.store(), (entry, reply), waiting),
        Some(Request::Call(work)) => work(engine),
        None => {}
    }
}

impl Request {
    /// Nobody waits for the answer any more, and nothing has happened that the store should know of.
    fn is_forsaken(&self) -> bool {
        match self {
            Request::Enqueue(_, reply) => reply.is_closed(),
            Request::Ledger(entry, reply) => {
                reply.is_closed() && matches!(entry.act, Act::Open | Act::Recall)
            }
            // It looks by itself.
            Request::Call(_) => false,
        }
    }
}

/// Stores the jobs of all who wait for the same, in one call.
fn enqueue(
    store: &mut dyn Store,
    first: (Vec<NewJob>, Reply<Vec<Enqueued>>),
    waiting: &mut VecDeque<Request>,
) {
    let (mut jobs, mut callers) = (first.0, vec![]);
    callers.push((jobs.len(), first.1));
    while let Some(Request::Enqueue(more, _)) = waiting.front()
        && jobs.len() + more.len() <= BATCH_LIMIT
    {
        if let Some(Request::Enqueue(more, reply)) = waiting.pop_front() {
            callers.push((more.len(), reply));
            jobs.extend(more);
        }
    }
    match store.enqueue(&jobs) {
        // One of them is wrong, and nothing was stored: each for itself.
        Err(error) if error.is_invalid() && callers.len() > 1 => {
            let mut rest = jobs.as_slice();
            for (size, reply) in callers {
                let (own, others) = rest.split_at(size);
                rest = others;
                let _ = reply.send(store.enqueue(own));
            }
        }
        Err(error) => {
            for (_, reply) in callers {
                let _ = reply.send(Err(error.for_another()));
            }
        }
        Ok(mut answers) => {
            for (size, reply) in callers {
                let rest = answers.split_off(size.min(answers.len()));
                let _ = reply.send(Ok(std::mem::replace(&mut answers, rest)));
            }
        }
    }
}

/// Writes the entries of all who wait for the same, in one call.
fn ledger(store: &mut dyn Store, first: (Entry, Reply<Answer>), waiting: &mut VecDeque<Request>) {
    let (mut entries, mut callers) = (vec![first.0], vec![first.1]);
    while let Some(Request::Ledger(..)) = waiting.front()
        && entries.len() < BATCH_LIMIT
    {
        if let Some(Request::Ledger(entry, reply)) = waiting.pop_front() {
            entries.push(entry);
            callers.push(reply);
        }
    }
    match store.ledger(&entries) {
        Err(error) if error.is_invalid() && callers.len() > 1 => {
            for (entry, reply) in entries.iter().zip(callers) {
                let alone = store.ledger(std::slice::from_ref(entry));
                let answer = alone.and_then(|mut answers| {
                    answers.pop().ok_or_else(|| no_thread("the store gave no answer"))
                });
                let _ = reply.send(answer);
            }
        }
        Err(error) => {
            for reply in callers {
                let _ = reply.send(Err(error.for_another()));
            }
        }
        Ok(answers) => {
            for (answer, reply) in answers.into_iter().zip(callers) {
                let _ = reply.send(Ok(answer));
            }
        }
    }
}
