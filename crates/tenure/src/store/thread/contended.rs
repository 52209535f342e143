//! Requests that wait for a lock: for a key that an open transaction has taken, or for a job that
//! an open transaction has locked.
//!
//! Each request here is sent alone, on this thread's own connection, so that it delays no request
//! of the other threads. The requests take turns, again and again, and each turn waits for a share
//! of [`ROUND`]. A request that only shared a call with a contended one succeeds at its first turn.
//! A request that waits long does not delay the next one, whose lock may be free by now. After
//! [`PATIENCE`] the caller gets the error that the store is busy.
//!
//! Requests for a key or job that is known to be contended come here directly, so that the other
//! requests do not wait for that lock once more.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::request::{Request, Wanted};
use super::{Connection, Lazy, Thread, locked};
use crate::clock;

/// How long one round through all requests takes if none of them gets its lock.
const ROUND: Duration = Duration::from_millis(400);
/// How long a turn of one request waits at least, however many requests there are.
const LEAST: Duration = Duration::from_millis(5);
/// How long a request is tried before it fails: as long as any other call waits for one lock.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Contended {
    thread: Thread,
    known: Arc<Known>,
}

/// How many requests wait for each key and each job.
type Known = Mutex<BTreeMap<Wanted, usize>>;

impl Contended {
    pub(super) fn new(connection: Connection) -> Contended {
        let known = Arc::default();
        let thread = Thread::new({
            let known = Arc::clone(&known);
            move |inbox| serve(connection.open_later(), &inbox, &known)
        });
        Contended { thread, known }
    }

    /// Whether this request needs a key or job that other requests wait for here.
    pub(super) fn waits_for(&self, request: &Request) -> bool {
        let known = locked(&self.known);
        !known.is_empty() && request.wanted().iter().any(|wanted| known.contains_key(wanted))
    }

    pub(super) fn send(&self, request: Request) {
        // If the thread cannot be started, the caller notices because its reply is dropped.
        let _ = self.thread.send(request);
    }
}

/// A request that waits.
struct Waiting {
    request: Request,
    since: Instant,
    /// Set once the request has waited without getting its lock.
    noted: Option<Noted>,
}

impl Waiting {
    fn new(request: Request) -> Waiting {
        Waiting { request, since: clock::monotonic(), noted: None }
    }
}

/// What a request waits for; registered in `known` until this is dropped.
struct Noted {
    known: Arc<Known>,
    wanted: Vec<Wanted>,
}

impl Noted {
    fn new(known: &Arc<Known>, request: &Request) -> Noted {
        let wanted = request.wanted();
        let mut all = locked(known);
        for one in &wanted {
            *all.entry(one.clone()).or_default() += 1;
        }
        Noted { known: Arc::clone(known), wanted }
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        let mut all = locked(&self.known);
        for one in &self.wanted {
            if let Some(count) = all.get_mut(one) {
                *count -= 1;
                if *count == 0 {
                    all.remove(one);
                }
            }
        }
    }
}

fn serve(mut connection: Lazy, inbox: &Receiver<Request>, known: &Arc<Known>) {
    let mut queue = VecDeque::new();
    loop {
        if queue.is_empty() {
            match inbox.recv() {
                Ok(request) => queue.push_back(Waiting::new(request)),
                Err(_) => return,
            }
        }
        queue.extend(inbox.try_iter().map(Waiting::new));
        let share = ROUND / u32::try_from(queue.len()).unwrap_or(u32::MAX);
        let Some(next) = queue.pop_front() else { continue };
        // If the engine panics, only the caller of this request is affected.
        let left = catch_unwind(AssertUnwindSafe(|| {
            take_turn(&mut connection, next, share.max(LEAST), known)
        }));
        queue.extend(left.ok().flatten());
    }
}

/// Tries once. Returns the request if it must wait again.
fn take_turn(
    connection: &mut Lazy,
    waiting: Waiting,
    wait: Duration,
    known: &Arc<Known>,
) -> Option<Waiting> {
    let Waiting { request, since, noted } = waiting;
    if request.is_forsaken() {
        return None;
    }
    let engine = match connection.engine() {
        Ok(engine) => engine,
        Err(error) => {
            request.refuse(error);
            return None;
        }
    };
    engine.wait_for_locks(wait);
    let (request, busy) = request.alone(engine)?;
    if clock::monotonic() - since >= PATIENCE {
        request.refuse(busy);
        return None;
    }
    let noted = noted.or_else(|| Some(Noted::new(known, &request)));
    Some(Waiting { request, since, noted })
}
