//! A thread that answers requests in order. It sends neighbouring requests of the same sort in one
//! call.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Receiver;

use super::Lazy;
use super::contended::Contended;
use super::request::{Reply, Request};
use crate::job::{BATCH_LIMIT, NewJob};
use crate::ledger::{Answer, Entry};
use crate::store::place::Engine;
use crate::store::{Enqueued, Error};

/// Answers requests until all senders are dropped. Requests that did not get their lock go to
/// `contended`, if given; otherwise they are answered with the error.
pub(super) fn serve(
    mut connection: Lazy,
    inbox: &Receiver<Request>,
    contended: Option<&Contended>,
) {
    let mut waiting = VecDeque::new();
    let sort = |request: Request, waiting: &mut VecDeque<Request>| match contended {
        // A contended request would only delay the others.
        Some(contended) if contended.waits_for(&request) => contended.send(request),
        _ => waiting.push_back(request),
    };
    loop {
        if waiting.is_empty() {
            match inbox.recv() {
                Ok(request) => sort(request, &mut waiting),
                Err(_) => return,
            }
        }
        inbox.try_iter().take(BATCH_LIMIT).for_each(|request| sort(request, &mut waiting));
        // If the engine panics, only the callers of this call are affected.
        let _ = catch_unwind(AssertUnwindSafe(|| match connection.engine() {
            Ok(engine) => answer(engine, &mut waiting, contended),
            Err(error) => {
                waiting.drain(..).for_each(|request| request.refuse(error.for_another()));
            }
        }));
    }
}

fn answer(engine: &mut Engine, waiting: &mut VecDeque<Request>, contended: Option<&Contended>) {
    let unanswered = match waiting.pop_front() {
        Some(request) if request.is_forsaken() => return,
        Some(Request::Enqueue(jobs, reply)) => enqueue(engine, (jobs, reply), waiting),
        Some(Request::Ledger(entry, reply)) => ledger(engine, (entry, reply), waiting),
        Some(request @ Request::Call(_)) => request.alone(engine).into_iter().collect(),
        None => return,
    };
    for (request, error) in unanswered {
        match contended {
            Some(contended) => contended.send(request),
            None => request.refuse(error),
        }
    }
}

/// Requests that did not get their lock, with the error of each.
type Unanswered = Vec<(Request, Error)>;

/// Stores the jobs of all enqueues at the front of the queue in one call.
fn enqueue(
    engine: &mut Engine,
    first: (Vec<NewJob>, Reply<Vec<Enqueued>>),
    waiting: &mut VecDeque<Request>,
) -> Unanswered {
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
    match engine.store().enqueue(&jobs) {
        Ok(mut answers) => {
            for (size, reply) in callers {
                let rest = answers.split_off(size.min(answers.len()));
                let _ = reply.send(Ok(std::mem::replace(&mut answers, rest)));
            }
            Vec::new()
        }
        Err(error) => {
            let one = |(size, reply)| {
                let rest = jobs.split_off(size);
                Request::Enqueue(std::mem::replace(&mut jobs, rest), reply)
            };
            separate(engine, callers.into_iter().map(one).collect(), &error)
        }
    }
}

/// Writes the entries of all ledger requests at the front of the queue in one call.
fn ledger(
    engine: &mut Engine,
    first: (Entry, Reply<Answer>),
    waiting: &mut VecDeque<Request>,
) -> Unanswered {
    let (mut entries, mut callers) = (vec![first.0], vec![first.1]);
    while let Some(Request::Ledger(..)) = waiting.front()
        && entries.len() < BATCH_LIMIT
    {
        if let Some(Request::Ledger(entry, reply)) = waiting.pop_front() {
            entries.push(entry);
            callers.push(reply);
        }
    }
    match engine.store().ledger(&entries) {
        Ok(answers) => {
            for (answer, reply) in answers.into_iter().zip(callers) {
                let _ = reply.send(Ok(answer));
            }
            Vec::new()
        }
        Err(error) => {
            let pairs = entries.into_iter().zip(callers);
            let requests = pairs.map(|(entry, reply)| Request::Ledger(entry, reply)).collect();
            separate(engine, requests, &error)
        }
    }
}

/// Handles requests whose common call failed.
fn separate(engine: &mut Engine, requests: Vec<Request>, error: &Error) -> Unanswered {
    // Perhaps the store refuses only one of these requests. Send each alone, so that the others do
    // not get the error of that one. After an error that leaves open whether the call was applied,
    // only requests that may be repeated are sent again: other jobs would be stored twice.
    let may_repeat = || error.did_nothing() || requests.iter().all(Request::may_be_repeated);
    if !error.is_transient() && requests.len() > 1 && may_repeat() {
        return requests.into_iter().filter_map(|request| request.alone(engine)).collect();
    }
    let each = requests.into_iter().map(|request| (request, error.for_another()));
    if matches!(error, Error::Busy { .. }) && engine.has_row_locks() {
        return each.collect();
    }
    each.for_each(|(request, error)| request.refuse(error));
    Vec::new()
}
