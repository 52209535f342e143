//! Connections on their own threads, so that async code does not block: requests in, answers out.
//!
//! A program has one thread for each sort of call. A call that waits for a lock delays only calls
//! of its own sort, and those only briefly: see `contended.rs`. Requests that arrive while a call
//! is under way are sent together in the next call: many callers that each enqueue one job cost one
//! statement and one commit (`serve.rs`).

mod contended;
mod request;
mod serve;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

use self::contended::Contended;
use self::request::{Reply, Request};
use super::place::Engine;
use super::{Enqueued, Error, Result};
use crate::job::NewJob;
use crate::ledger::{Answer, Entry};

/// How long a call that serves many callers waits for a lock.
const BRIEFLY: Duration = Duration::from_millis(100);

/// Sends calls to the store's threads. The threads stop when this is dropped.
pub(crate) struct Link {
    /// Enqueues without a key: these wait for no other transaction.
    plain: Thread,
    /// Enqueues with a key: these wait for an open transaction that has taken the key.
    keyed: Thread,
    /// Writes under a job's token: these wait for an open transaction that has locked the job.
    ledger: Thread,
    /// Calls that only read.
    look: Thread,
    /// All other calls, however long they take.
    other: Thread,
}

impl Link {
    /// Connects, and returns what `first` finds on that connection. On PostgreSQL, the first thread
    /// that needs a connection gets this one, and the others connect when they get their first
    /// request. On SQLite, all threads get connections that share its writer.
    pub(crate) async fn open<T: Send + 'static>(
        connect: impl Fn() -> Result<Engine> + Send + Sync + 'static,
        first: impl FnOnce(&mut Engine) -> Result<T> + Send + 'static,
    ) -> Result<(Link, T)> {
        let (opened, answer) = oneshot::channel();
        let work = move || {
            let connected = connect().and_then(|mut engine| {
                let found = first(&mut engine)?;
                Ok((Source { connect: Box::new(connect), first: Mutex::new(Some(engine)) }, found))
            });
            // If the caller has gone, this closes the connection.
            let _ = opened.send(connected);
        };
        spawn(work)?;
        let (source, found) = answer.await.map_err(no_thread)??;
        Ok((Link::new(&Arc::new(source)), found))
    }

    fn new(source: &Arc<Source>) -> Link {
        let connection = |lock_wait| Connection { source: Arc::clone(source), lock_wait };
        let contended = Arc::new(Contended::new(connection(None)));
        let patient = || {
            let connection = connection(None);
            Thread::new(move |inbox| serve::serve(connection.open_later(), &inbox, None))
        };
        let brief = || {
            let (connection, contended) = (connection(Some(BRIEFLY)), Arc::clone(&contended));
            Thread::new(move |inbox| {
                serve::serve(connection.open_later(), &inbox, Some(&contended));
            })
        };
        Link {
            plain: patient(),
            keyed: brief(),
            ledger: brief(),
            look: patient(),
            other: patient(),
        }
    }

    pub(crate) async fn enqueue(&self, jobs: Vec<NewJob>) -> Result<Vec<Enqueued>> {
        let is_keyed = jobs.iter().any(|job| job.key.is_some());
        let thread = if is_keyed { &self.keyed } else { &self.plain };
        thread.ask(|reply| Request::Enqueue(jobs, reply)).await
    }

    pub(crate) async fn ledger(&self, entry: Entry) -> Result<Answer> {
        self.ledger.ask(|reply| Request::Ledger(entry, reply)).await
    }

    /// Runs a call under a job's token that waits for no lock.
    pub(crate) async fn as_holder<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.ledger.call(work).await
    }

    /// Runs a call that only reads.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.look.call(work).await
    }

    /// Runs any other call.
    pub(crate) async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.other.call(work).await
    }
}

/// Where connections come from.
struct Source {
    connect: Box<dyn Fn() -> Result<Engine> + Send + Sync>,
    /// The first connection. On PostgreSQL a thread takes it; on SQLite it stays here, and is
    /// shared.
    first: Mutex<Option<Engine>>,
}

impl Source {
    fn connect(&self) -> Result<Engine> {
        let mut first = locked(&self.first);
        match first.take() {
            #[cfg(feature = "sqlite")]
            // Shared, so that all threads use the file that was opened, even if its path now names
            // another file.
            Some(Engine::Sqlite(store)) => {
                let another = store.share();
                *first = Some(Engine::Sqlite(store));
                Ok(Engine::Sqlite(Box::new(another?)))
            }
            #[cfg(feature = "postgres")]
            Some(engine @ Engine::Postgres(_)) => Ok(engine),
            None => {
                drop(first);
                (self.connect)()
            }
        }
    }
}

impl Drop for Source {
    /// Closes the connection on its own thread: closing blocks, and the last owner may be a task of
    /// an async runtime.
    fn drop(&mut self) {
        if let Some(engine) = locked(&self.first).take() {
            let _ = spawn(move || drop(engine));
        }
    }
}

/// How to make a connection.
#[derive(Clone)]
struct Connection {
    source: Arc<Source>,
    /// How long its calls wait for a lock, if not the usual time.
    lock_wait: Option<Duration>,
}

/// A connection that is made when it is first used.
struct Lazy {
    connection: Connection,
    engine: Option<Engine>,
}

impl Connection {
    fn open_later(&self) -> Lazy {
        Lazy { connection: self.clone(), engine: None }
    }
}

impl Lazy {
    fn engine(&mut self) -> Result<&mut Engine> {
        match &mut self.engine {
            Some(engine) => Ok(engine),
            none => {
                let mut engine = self.connection.source.connect()?;
                if let Some(wait) = self.connection.lock_wait {
                    engine.wait_for_locks(wait);
                }
                Ok(none.insert(engine))
            }
        }
    }
}

/// Sends requests to a thread. The thread starts at the first request and stops when this is
/// dropped.
struct Thread {
    requests: Sender<Request>,
    /// The receiving end, until the thread takes it.
    inbox: Arc<Mutex<Option<Receiver<Request>>>>,
    serve: Arc<dyn Fn(Receiver<Request>) + Send + Sync>,
}

impl Thread {
    fn new(serve: impl Fn(Receiver<Request>) + Send + Sync + 'static) -> Thread {
        let (requests, inbox) = channel();
        Thread { requests, inbox: Arc::new(Mutex::new(Some(inbox))), serve: Arc::new(serve) }
    }

    fn send(&self, request: Request) -> Result<()> {
        if locked(&self.inbox).is_some() {
            let (inbox, serve) = (Arc::clone(&self.inbox), Arc::clone(&self.serve));
            spawn(move || {
                let inbox = locked(&inbox).take();
                // If the inbox is gone, another first request was sent at the same time, and the
                // thread for that one has taken it.
                if let Some(inbox) = inbox {
                    serve(inbox);
                }
            })?;
        }
        self.requests.send(request).map_err(|_| no_thread("it has ended"))
    }

    async fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        self.send(request(reply))?;
        answer.await.map_err(no_thread)?
    }

    /// Runs a call on the connection. If the call panics, the caller panics too, and the thread
    /// goes on.
    async fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Engine) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let work = |reply: Reply<thread::Result<T>>| {
            Request::Call(Box::new(move |engine| {
                if reply.is_closed() {
                    return; // the caller has gone
                }
                let answer = engine.and_then(|engine| {
                    match catch_unwind(AssertUnwindSafe(|| work(engine))) {
                        Ok(answer) => answer.map(Ok),
                        Err(panic) => Ok(Err(panic)),
                    }
                });
                // The caller may have gone.
                let _ = reply.send(answer);
            }))
        };
        Ok(self.ask(work).await?.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = thread::Builder::new().name("tenure-store".into()).spawn(work);
    thread.map(drop).map_err(no_thread)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn no_thread(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Engine { doing: "reach the store's thread", source: cause.into() }
}
