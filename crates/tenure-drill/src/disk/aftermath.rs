//! After a power cut: the file is opened again, and compared with what was answered before.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use tenure::Token;
use tenure::drill::{Dump, Explorable};
use tenure::engine::clock::Clock;
use tenure::engine::job::{JobId, NewJob};
use tenure::engine::store::sqlite::Sqlite;
use tenure::engine::store::{Enqueued, Look, Result, Work};

use super::WITNESS;
use super::history::{self, BESIDE, Call, claim, json, name};
use super::recorder::Recorder;
use super::tape::{Event, Files};
use crate::differential::compare;
use crate::engines::START;
use crate::verdict::Invariant;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// What violates an invariant, the gravest first.
    pub(super) wrong: Vec<(Invariant, String)>,
    /// Whether the call that was under way is applied.
    pub(super) under_way: bool,
    /// Whether the store began a new epoch: it took itself for an older copy.
    pub(super) new_epoch: bool,
    /// The file events until the store was open.
    pub(super) opening: Vec<Event>,
}

/// What the callers know: everything that was answered, and the two states that the store may be
/// in.
pub(super) struct Known<'a> {
    pub(super) answered: Vec<&'a Call>,
    /// The state after the last answer, and after the call that was under way.
    pub(super) states: Vec<&'a Dump>,
}

impl Known<'_> {
    /// Whether the first answer was given: the store was open.
    pub(super) fn is_open(&self) -> bool {
        !self.answered.is_empty()
    }
}

/// Puts `files` into `directory`, which is empty, opens the store there and examines it.
pub(super) fn look(directory: &Path, files: &Files, known: &Known<'_>) -> io::Result<Found> {
    for (name, bytes) in files {
        std::fs::write(directory.join(name), bytes)?;
    }
    let recorder = Recorder::start(directory)?;
    let clock = Clock::manual(known.states.last().map_or(START, |state| state.now));
    let mut found = Found::default();
    let opened = history::open(directory, &clock);
    found.opening = recorder.tape().take();
    if let Ok(said) = std::fs::read(directory.join(WITNESS)) {
        found.opening.push(Event::Witness(said));
    }
    let examined = opened.and_then(|mut store| examine(&mut store, &clock, known, &mut found));
    if let Err(cause) = examined {
        found.wrong.push((Invariant::I10, format!("the store cannot be used any more: {cause}")));
    }
    Ok(found)
}

fn examine(store: &mut Sqlite, clock: &Clock, known: &Known<'_>, found: &mut Found) -> Result<()> {
    let state = store.dump()?;
    found.new_epoch = state.epoch > 0;
    let wrong = &mut found.wrong;
    let created = || known.answered.iter().flat_map(|call| &call.created);

    // I9, before anything is written.
    for (id, _) in created() {
        if state.jobs.iter().all(|job| job.id != *id) {
            wrong.push((Invariant::I9, format!("job {id} was acknowledged and is gone")));
        }
    }
    // I12: a repeated request under the same key gets the same job.
    for (id, job) in created().filter(|(_, job)| is_keyed(job)) {
        let again = store.enqueue(std::slice::from_ref(job))?;
        if again != [Enqueued::Existing(*id)] {
            wrong.push((Invariant::I12, format!("the key of job {id} answers {again:?}")));
        }
    }
    issue_again(store, clock, known, &state, wrong)?;

    // I10: the power failed during a call or after one. The file must hold the state after the last
    // answered call, or the state after the call that the power cut interrupted.
    if let Some(last) = known.states.first() {
        let at = known.states.iter().position(|expected| same(expected, &state));
        found.under_way = at.is_some_and(|at| at > 0);
        if at.is_none() {
            let differs = compare(&comparable(last), &comparable(&state));
            wrong.push((
                Invariant::I10,
                format!("the state is not the one that was answered:\n{differs}"),
            ));
        }
    }
    for id in known.answered.iter().flat_map(|call| &call.ended) {
        let job = state.jobs.iter().find(|job| job.id == *id);
        if job.is_some_and(|job| !job.state.has_ended()) {
            wrong.push((Invariant::I10, format!("job {id} was answered as ended, and has not")));
        }
    }
    let kept = rows_beside(store);
    let owed: BTreeSet<_> =
        state.jobs.iter().filter(|job| job.kind.as_str() == BESIDE).map(|job| job.id.0).collect();
    if kept != owed {
        let what = format!("one transaction, but rows for {kept:?} and jobs {owed:?}");
        wrong.push((Invariant::I10, what));
    }
    for it in store.check(None, 1_000)?.wrong {
        wrong.push((Invariant::I10, format!("check finds job {}: {}", it.job, it.what)));
    }
    let whole = store.with_connection(|connection| {
        connection.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0))
    });
    if whole.as_deref() != Ok("ok") {
        wrong.push((Invariant::I10, format!("SQLite finds the file damaged: {whole:?}")));
    }
    Ok(())
}

/// Claims every job that can be claimed: each must get a higher token than before (I2). Enqueues a
/// job: its id must be above all ids that callers have seen (I9).
fn issue_again(
    store: &mut Sqlite,
    clock: &Clock,
    known: &Known<'_>,
    state: &Dump,
    wrong: &mut Vec<(Invariant, String)>,
) -> Result<()> {
    let mut highest: BTreeMap<JobId, Token> = BTreeMap::new();
    for fence in known.answered.iter().flat_map(|call| &call.issued) {
        let token = highest.entry(fence.job).or_insert(fence.token);
        *token = fence.token.max(*token);
    }
    clock.advance(Duration::from_secs(3_600)); // every lease is over
    let mut queues: Vec<_> = state.jobs.iter().map(|job| job.queue.clone()).collect();
    queues.sort();
    queues.dedup();
    // A worker holds at most one suspect at a time, so each claim is made by another worker.
    for worker in 0..=state.jobs.len() {
        if queues.is_empty() {
            break;
        }
        let claimed = store.claim(&claim(&format!("after-{worker}"), queues.clone(), 100))?;
        if claimed.attempts.is_empty() {
            break;
        }
        for fence in claimed.attempts.iter().map(|it| it.lease.fence()) {
            if highest.get(&fence.job).is_some_and(|before| fence.token <= *before) {
                let what = format!("job {} is given token {} again", fence.job, fence.token);
                wrong.push((Invariant::I2, what));
            }
        }
    }
    let job = NewJob::new(name("mail"), json("{}"));
    let newest = known.answered.iter().flat_map(|call| &call.created).map(|(id, _)| *id).max();
    match store.enqueue(&[job])?.as_slice() {
        [Enqueued::Created(id)] if newest.is_none_or(|newest| *id > newest) => {}
        other => wrong.push((Invariant::I9, format!("a new job is {other:?} after {newest:?}"))),
    }
    Ok(())
}

/// The jobs that the user's own rows belong to; none before the table exists.
fn rows_beside(store: &Sqlite) -> BTreeSet<i64> {
    let look = |connection: &Connection| -> rusqlite::Result<BTreeSet<i64>> {
        let mut rows = connection
            .prepare("SELECT CAST(text AS INTEGER) FROM notes WHERE text NOT LIKE '% %'")?;
        rows.query_map([], |row| row.get(0))?.collect()
    };
    store.with_connection(|connection| look(connection)).unwrap_or_default()
}

fn is_keyed(job: &NewJob) -> bool {
    tenure::drill::parts(job).1.is_some()
}

fn same(expected: &Dump, state: &Dump) -> bool {
    comparable(expected) == comparable(state)
}

/// The state without the time and without what a new epoch changes.
fn comparable(state: &Dump) -> Dump {
    let (now, started_at) = (START, START);
    Dump { now, started_at, epoch: 0, next_id: 0, held: Vec::new(), ..state.clone() }
}
