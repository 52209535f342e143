//! The promises as test cases: each is written once against the port, and every engine must pass
//! all of them.
//!
//! A case's name is the claim it makes; the tag before it is the guarantee or invariant that it
//! tests.

#![allow(clippy::unwrap_used, reason = "a case is a test: it panics where a promise is broken")]

mod check;
mod claim;
mod effects;
mod enqueue;
mod epoch;
mod guard;
mod lapse;
mod ledger;
mod look;
mod operate;
mod progress;
mod pulse;
mod renew;
mod resolve;
mod returns;
mod settle;
mod suspect;
mod traces;

use std::num::NonZeroU16;
use std::path::Path;
use std::time::Duration;

use tenure::TimelineEntry;
use tenure::drill::{Dump, Explorable};
use tenure::engine::clock::{Clock, Timestamp};
use tenure::engine::job::{JobId, JobRecord, Json, Key, Limits, Name, NewJob, State, Tenant};
use tenure::engine::lease::{Fence, WorkerId};
use tenure::engine::ledger::{Act, Answer, Entry, effect_name};
use tenure::engine::lifecycle::{Outcome, Verb};
use tenure::engine::store::{Attempt, Claim, Claimed, Enqueued, Lapsed, Look, Settled, Settlement};

use crate::engines::Engine;

/// One promise.
#[derive(Clone, Copy)]
pub struct Case {
    /// The verb it is about.
    pub chapter: &'static str,
    /// The guarantee or invariant that the case tests.
    pub tag: &'static str,
    /// The claim.
    pub name: &'static str,
    /// Whether it is about a query. The model has none.
    is_query: bool,
    run: fn(&mut World),
}

impl Case {
    /// Whether this engine must pass the case. Every engine must pass all cases, except that the
    /// model has no queries.
    pub fn is_for(&self, engine: Engine) -> bool {
        !self.is_query || engine != Engine::Model
    }

    /// Runs the case on a fresh store. Panics if the promise is broken.
    pub fn run(&self, engine: Engine, directory: &Path) {
        let (store, clock) = engine.fresh(directory).expect("a fresh store opens");
        self.run_on(store, clock);
    }

    /// Like `run`, on the caller's store, which must be empty. Returns the store.
    pub(crate) fn run_on(&self, store: Box<dyn Explorable>, clock: Clock) -> Box<dyn Explorable> {
        let mut world = World { store, clock };
        (self.run)(&mut world);
        world.store
    }
}

/// All cases, in the order of a job's life.
pub fn cases() -> Vec<Case> {
    let chapters: [&[Case]; 21] = [
        enqueue::CASES,
        claim::CASES,
        renew::CASES,
        progress::CASES,
        settle::CASES,
        traces::CASES,
        ledger::CASES,
        resolve::CASES,
        effects::QUERIES,
        lapse::CASES,
        guard::CASES,
        guard::QUERIES,
        pulse::CASES,
        suspect::CASES,
        returns::CASES,
        epoch::CASES,
        epoch::QUERIES,
        operate::CASES,
        look::CASES,
        look::QUERIES,
        check::QUERIES,
    ];
    chapters.concat()
}

/// Defines the cases of one chapter. `promises` hold for every store. `queries` test what a store
/// shows, and the model has none.
macro_rules! chapter {
    ($is_query:literal $chapter:literal: $($tag:literal $name:ident($world:ident) $body:block)+) => {
        &[$(
            $crate::conformance::Case {
                chapter: $chapter,
                tag: $tag,
                name: stringify!($name),
                is_query: $is_query,
                run: { fn $name($world: &mut $crate::conformance::World) $body $name },
            },
        )+]
    };
}
use chapter;

macro_rules! promises {
    ($($cases:tt)+) => {
        pub(super) const CASES: &[$crate::conformance::Case] =
            $crate::conformance::chapter!(false $($cases)+);
    };
}
use promises;

macro_rules! queries {
    ($($cases:tt)+) => {
        pub(super) const QUERIES: &[$crate::conformance::Case] =
            $crate::conformance::chapter!(true $($cases)+);
    };
}
use queries;

/// A store of some engine, its clock, and the helpers that the cases use.
pub(crate) struct World {
    pub(crate) store: Box<dyn Explorable>,
    pub(crate) clock: Clock,
}

pub(crate) const LEASE: Duration = Duration::from_secs(30);

pub(crate) fn name(text: &str) -> Name {
    Name::check("name", text).expect("a valid name")
}

pub(crate) fn tenant(text: &str) -> Tenant {
    Tenant::check(text).expect("a valid tenant")
}

pub(crate) fn json(text: &str) -> Json {
    Json::check("args", text, Limits::default().args).expect("valid JSON")
}

pub(crate) fn key(text: &str) -> Key {
    Key::check(text).expect("a valid key")
}

pub(crate) fn worker(text: &str) -> WorkerId {
    WorkerId::check(text).expect("a valid worker id")
}

pub(crate) fn job(kind: &str) -> NewJob {
    NewJob::new(name(kind), json("{}"))
}

pub(crate) fn of_tenant(text: &str) -> NewJob {
    job("work").tenant(tenant(text))
}

pub(crate) fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

pub(crate) fn complete() -> Outcome {
    Outcome::Complete { result: None }
}

pub(crate) fn retry(after: Duration) -> Outcome {
    Outcome::Retry { after, error: "it failed".into() }
}

/// One of each way to end an attempt.
pub(crate) fn outcomes() -> [Outcome; 6] {
    [
        complete(),
        retry(secs(1)),
        Outcome::Snooze { after: secs(1) },
        Outcome::Release,
        Outcome::Bury { reason: "hopeless".into() },
        Outcome::Park { reason: "ask Ann".into() },
    ]
}

/// A claim of up to `n` jobs of every kind in the default queue.
pub(crate) fn ask(who: &str, n: usize) -> Claim {
    Claim::new(worker(who), n, LEASE)
}

impl World {
    pub(crate) fn put(&mut self, job: NewJob) -> JobId {
        match self.store.enqueue(&[job]).expect("enqueue answers")[..] {
            [Enqueued::Created(id)] => id,
            ref other => panic!("the job was not created: {other:?}"),
        }
    }

    pub(crate) fn put_one(&mut self) -> JobId {
        self.put(job("work"))
    }

    pub(crate) fn claim(&mut self, ask: &Claim) -> Claimed {
        self.store.claim(ask).expect("claim answers")
    }

    pub(crate) fn claim_ids(&mut self, ask: &Claim) -> Vec<JobId> {
        self.claim(ask).attempts.iter().map(|attempt| attempt.lease.job()).collect()
    }

    /// Claims as this worker, and returns the one job it gets.
    pub(crate) fn take(&mut self, who: &str) -> Attempt {
        let mut claimed = self.claim(&ask(who, 1)).attempts;
        assert_eq!(claimed.len(), 1, "{who} found one job");
        claimed.remove(0)
    }

    pub(crate) fn settle(&mut self, fence: Fence, outcome: Outcome) -> Settled {
        self.store.settle(&[Settlement::new(fence, outcome)]).expect("settle answers")[0]
    }

    /// The ledger's answer to one act of a job's holder.
    pub(crate) fn act(&mut self, fence: Fence, name: &str, act: Act) -> Answer {
        let entry = Entry { fence, name: effect_name(name).expect("a valid name"), act };
        self.store.ledger(&[entry]).expect("ledger answers").remove(0)
    }

    pub(crate) fn open(&mut self, fence: Fence, name: &str) -> Answer {
        self.act(fence, name, Act::Open)
    }

    /// Changes the state from outside the store: a process dies, a server restarts.
    pub(crate) fn surroundings(&mut self, change: impl FnOnce(&mut Dump)) {
        let mut state = self.dump();
        change(&mut state);
        self.store.load(&state).expect("load answers");
    }

    pub(crate) fn pass(&self, length: Duration) {
        self.clock.advance(length);
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// The queries of the store.
    pub(crate) fn look(&mut self) -> &mut dyn Look {
        self.store.look().expect("a case about queries runs on engines only")
    }

    pub(crate) fn find(&mut self, id: JobId) -> Option<JobRecord> {
        self.dump().jobs.into_iter().find(|job| job.id == id)
    }

    pub(crate) fn is_there(&mut self, id: JobId) -> bool {
        self.find(id).is_some()
    }

    pub(crate) fn record(&mut self, id: JobId) -> JobRecord {
        self.find(id).expect("the job is there")
    }

    pub(crate) fn state(&mut self, id: JobId) -> State {
        self.record(id).state
    }

    pub(crate) fn timeline(&mut self, id: JobId) -> Vec<TimelineEntry> {
        self.dump().timeline.into_iter().filter(|line| line.job == id).collect()
    }

    pub(crate) fn verbs(&mut self, id: JobId) -> Vec<Verb> {
        self.timeline(id).iter().filter(|line| !line.refused).map(|line| line.verb).collect()
    }

    pub(crate) fn refusals(&mut self, id: JobId) -> Vec<Verb> {
        self.timeline(id).iter().filter(|line| line.refused).map(|line| line.verb).collect()
    }

    pub(crate) fn dump(&mut self) -> Dump {
        self.store.dump().expect("dump answers")
    }

    /// The first holder's lease runs out, and another worker takes the job over. Returns both
    /// attempts.
    pub(crate) fn taken_over(&mut self) -> (Attempt, Attempt) {
        let first = self.take("ann");
        self.pass(LEASE);
        let second = self.take("bob");
        assert_eq!(first.lease.job(), second.lease.job());
        (first, second)
    }

    /// A job that has ended with this outcome.
    pub(crate) fn ended(&mut self, outcome: Outcome) -> JobId {
        let id = self.put_one();
        let fence = self.take("ann").lease.fence();
        assert!(matches!(self.settle(fence, outcome), Settled::Applied(_)));
        id
    }

    /// Lapses these fences. Returns the new state of each job that was taken back; `None` for the
    /// others.
    pub(crate) fn lapse(&mut self, fences: &[Fence]) -> Vec<Option<State>> {
        let became = |answer: &Lapsed| match answer {
            Lapsed::TakenBack(lapse) => Some(lapse.became),
            Lapsed::LeftAlone => None,
            Lapsed::Busy => panic!("nobody holds a row in the suite"),
        };
        self.store.lapse(fences).expect("lapse answers").iter().map(became).collect()
    }

    pub(crate) fn sweep(&mut self) -> usize {
        let overdue = self.store.overdue(1_000, Duration::ZERO).expect("overdue answers");
        self.store.lapse(&overdue).expect("lapse answers").len()
    }

    /// A ready job that has crashed its worker once, and is a suspect because its `max_crashes` is
    /// only three.
    pub(crate) fn suspect(&mut self, kind: &str) -> JobId {
        let id = self.put(job(kind).max_crashes(NonZeroU16::new(3).expect("not zero")));
        let only = Claim { kinds: Some(vec![name(kind)]), ..ask("doomed", 1) };
        assert_eq!(self.claim_ids(&only), [id]);
        self.pass(LEASE);
        assert_eq!(self.sweep(), 1);
        id
    }
}
