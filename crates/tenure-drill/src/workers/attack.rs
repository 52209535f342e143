//! Many small jobs, each with an effect: half of them on a bank outside, half in the same database.
//! Meanwhile workers are killed at random and others take their place.

use std::collections::BTreeSet;
use std::fmt;
use std::num::NonZeroU16;
use std::time::Duration;

use tenure::State;
use tenure::engine::clock::{Chance, monotonic};
use tenure::engine::ledger::Standing;

use super::kinds::{Account, Book};
use super::{Bench, Event, Setup, Worker, books, job, lines};

/// The result.
#[derive(Debug)]
pub struct Attack {
    /// How many jobs there were.
    pub jobs: usize,
    /// How many workers were killed.
    pub kills: usize,
    /// How often a handler was called.
    pub executions: usize,
    /// How many leases workers took back from killed ones.
    pub lapses: usize,
    /// How often the bank was called.
    pub requests: usize,
    /// How long it took until the last job had ended.
    pub took: Duration,
    /// Violations. There must be none.
    pub wrong: Vec<String>,
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Attack { jobs, kills, executions, lapses, requests, took, wrong } = self;
        write!(
            f,
            "{jobs} jobs, {kills} kills: {executions} executions, {lapses} lapses, {requests} requests to the bank, \
             {} wrong, {took:.1?}",
            wrong.len()
        )
    }
}

/// How many processes work at a time.
const CREW: usize = 3;

/// Enqueues the jobs, and kills a worker each time about `pace` more of them have ended, until at
/// most `2 * pace` are left.
pub fn attack(bench: &mut Bench, jobs: usize, pace: u64, seed: u64) -> Attack {
    let mut chance = Chance::seeded(seed);
    let bank = bench.file("bank");
    let setup = Setup::default();
    books::make(&bench.place);
    let often = NonZeroU16::new(20).unwrap_or(NonZeroU16::MAX);
    let pay = job(&Account { bank: bank.clone(), gate: None }).max_crashes(often);
    let book = job(&Book {}).max_crashes(often);
    let ids = bench.put(&[vec![pay; jobs / 2], vec![book; jobs / 2]].concat());
    let begun = monotonic();
    let mut crew: Vec<Worker> = (0..CREW).map(|_| bench.worker(&setup)).collect();
    let mut dead: Vec<Worker> = Vec::new();
    let mut next = ids.len() as u64;
    while next > 2 * pace {
        next -= pace / 2 + chance.below(pace);
        bench.until("more jobs to end", |bench| bench.owed() <= next);
        let victim = usize::try_from(chance.below(CREW as u64)).unwrap_or(0);
        let fresh = bench.worker(&setup);
        let mut victim = std::mem::replace(&mut crew[victim], fresh);
        victim.kill();
        dead.push(victim);
    }
    bench.finish();
    let took = begun.elapsed();
    bench.until("the killed workers to be forgotten", |bench| {
        bench.store.workers().expect("it answers").len() <= CREW
    });
    crew.iter_mut().for_each(Worker::end);
    let wrong = wrong(bench, jobs / 2);
    let kills = dead.len();
    let events: Vec<Event> =
        dead.into_iter().chain(crew).flat_map(|worker| worker.events).collect();
    let count = |name: &str| events.iter().filter(|event| event.name == name).count();
    Attack {
        jobs,
        kills,
        executions: count("execution_started"),
        lapses: count("lease_lapsed") + count("holder_vanished"),
        requests: lines(&bank).len(),
        took,
        wrong,
    }
}

/// Violations after all jobs have ended, `jobs` of each kind.
fn wrong(bench: &mut Bench, jobs: usize) -> Vec<String> {
    let mut wrong: Vec<String> = Vec::new();
    let effects = bench.effects();
    for view in &effects {
        if view.state != State::Succeeded || view.effect.standing != Standing::Committed {
            wrong.push(format!("{view:?}"));
        }
    }
    let once: BTreeSet<_> = effects.iter().map(|view| view.effect.job).collect();
    if effects.len() != jobs || once.len() != jobs {
        wrong.push(format!("{} effects of {} jobs, not {jobs}", effects.len(), once.len()));
    }
    let keys: BTreeSet<String> = lines(&bench.file("bank")).into_iter().collect();
    if keys.len() != jobs {
        wrong.push(format!("the bank was given {} keys, not {jobs}", keys.len()));
    }
    let booked = books::count(&bench.place);
    if booked != (jobs as i64, jobs as i64) {
        wrong.push(format!("{} rows of {} jobs in the books, not {jobs}", booked.0, booked.1));
    }
    let running = bench.store.leases(10).expect("it answers");
    if !running.is_empty() {
        wrong.push(format!("still running: {running:?}"));
    }
    let left = bench.store.workers().expect("it answers");
    if !left.is_empty() {
        wrong.push(format!("workers that nobody has forgotten: {left:?}"));
    }
    wrong.extend(bench.wrong().iter().map(|found| format!("{found:?}")));
    wrong
}
