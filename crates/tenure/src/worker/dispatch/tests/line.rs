//! A store in memory whose calls are recorded, and a dispatcher that uses it.

use std::time::Instant;

use super::*;
use crate::inspect::Current;
use crate::job::JobId;
use crate::lease::Fence;
use crate::ledger::{self, Entry};
use crate::store::{
    Beat, Enqueued, Guarded, Lapse, Lapsed, Look, Pruned, Registration, Renewed, Report, Reported,
    Settled, Settlement, Wake, sealed,
};

/// A store whose calls can fail.
pub(super) struct Line {
    pub(super) store: Sqlite,
    /// The dispatcher's calls.
    pub(super) calls: Vec<&'static str>,
    /// What was asked for in the claims.
    pub(super) asked: Vec<Claim>,
    /// The next call of this name fails with this error, without reaching the store.
    pub(super) fails: Option<(&'static str, Error)>,
    /// The answers to the next claims, in place of the store's.
    pub(super) answers: VecDeque<Claimed>,
    /// The attempts whose row another transaction has locked.
    pub(super) locked: Vec<Fence>,
}

impl Line {
    fn call(&mut self, name: &'static str) -> Result<()> {
        self.calls.push(name);
        match self.fails.take_if(|(fails, _)| *fails == name) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

impl sealed::Sealed for Line {}

macro_rules! pass {
    (
        recorded { $($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)* }
        plain { $($look:ident($($what:ident: $of:ty),*) -> $seen:ty;)* }
        by hand { $($hand:tt)* }
    ) => {
        impl Work for Line {
            $(fn $name(&mut self, $($arg: $type),*) -> Result<$answer> {
                self.call(stringify!($name))?;
                self.store.$name($($arg),*)
            })*
            $(fn $look(&mut self, $($what: $of),*) -> Result<$seen> {
                self.store.$look($($what),*)
            })*
            $($hand)*
        }
    };
}

pass! {
    recorded {
        held(worker: &WorkerId, request: Option<i64>) -> Vec<Attempt>;
        settle(settlements: &[Settlement]) -> Vec<Settled>;
        current(jobs: &[JobId]) -> Vec<Option<Current>>;
    }
    plain {
        enqueue(jobs: &[NewJob]) -> Vec<Enqueued>;
        progress(reports: &[Report]) -> Vec<Reported>;
        ledger(entries: &[Entry]) -> Vec<ledger::Answer>;
        register(worker: &Registration) -> Guarded;
        retire(worker: &WorkerId) -> ();
        vanished(limit: usize) -> Vec<Lapse>;
        beat() -> Beat;
        overdue(limit: usize, grace: Duration) -> Vec<Fence>;
        lapse(fences: &[Fence]) -> Vec<Lapsed>;
        prune(limit: usize) -> Pruned;
        wait(until: Instant) -> Wake;
    }
    by hand {
        fn claim(&mut self, ask: &Claim) -> Result<Claimed> {
            self.asked.push(ask.clone());
            self.call("claim")?;
            self.answers.pop_front().map_or_else(|| self.store.claim(ask), Ok)
        }

        fn settle_and_claim(
            &mut self,
            settlements: &[Settlement],
            ask: &Claim,
        ) -> Result<(Vec<Settled>, Claimed)> {
            self.asked.push(ask.clone());
            self.call("settle_and_claim")?;
            self.store.settle_and_claim(settlements, ask)
        }

        fn renew(&mut self, fences: &[Fence], length: Duration) -> Result<Vec<Renewed>> {
            self.call("renew")?;
            let mut answers = self.store.renew(fences, length)?;
            for (fence, answer) in fences.iter().zip(&mut answers) {
                if self.locked.contains(fence) {
                    *answer = Renewed::Busy;
                }
            }
            Ok(answers)
        }
    }
}

/// A worker that has not made a step yet.
pub(super) struct Scene {
    pub(super) line: Line,
    pub(super) desk: Arc<Desk>,
    pub(super) dispatcher: Dispatcher<Begun>,
    /// The names of the reported events.
    pub(super) told: Arc<Mutex<Vec<&'static str>>>,
}

pub(super) fn work() -> NewJob {
    NewJob::new(Name::check("kind", "work").unwrap(), Json::check("args", "{}", 10).unwrap())
}

pub(super) fn done() -> Returned {
    Returned::Settle(Outcome::Complete { result: None })
}

impl Scene {
    /// A worker of the default queue, which has these jobs.
    pub(super) fn new(slots: usize, drain: bool, jobs: &[NewJob]) -> Scene {
        Scene::of(vec![Name::default_queue()], slots, drain, jobs)
    }

    /// A worker of 100 queues. The jobs are in the default queue, the last of them.
    pub(super) fn of_many_queues(drain: bool, jobs: &[NewJob]) -> Scene {
        let others = (1..100).map(|n| Name::check("queue", format!("q{n}")).unwrap());
        Scene::of(others.chain([Name::default_queue()]).collect(), 2, drain, jobs)
    }

    fn of(queues: Vec<Name>, slots: usize, drain: bool, jobs: &[NewJob]) -> Scene {
        let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
        let options = StoreOptions { clock, limits: Limits::default() };
        let mut store = Sqlite::in_memory(&options).unwrap();
        store.enqueue(jobs).unwrap();
        let told: Arc<Mutex<Vec<&'static str>>> = Arc::default();
        let tell = Arc::clone(&told);
        let plan = Arc::new(Plan {
            queues,
            slots,
            drain,
            observer: Observer::new(move |event| tell.lock().unwrap().push(event.fact.name())),
            ..Plan::new(WorkerId::unique())
        });
        let desk = Arc::new(Desk::new(slots));
        let dispatcher = Dispatcher::new(plan, Arc::clone(&desk), Begun::default(), at(0));
        let line = Line {
            store,
            calls: Vec::new(),
            asked: Vec::new(),
            fails: None,
            answers: VecDeque::new(),
            locked: Vec::new(),
        };
        Scene { line, desk, dispatcher, told }
    }

    /// One step: when it wants to be called again, and what it asked the store.
    pub(super) fn step(&mut self, now: Moment) -> (NextStep, Vec<&'static str>) {
        let next = self.dispatcher.step(&mut self.line, now);
        (next, std::mem::take(&mut self.line.calls))
    }

    /// Steps until it rests or ends.
    pub(super) fn rest(&mut self, now: Moment) -> (NextStep, Vec<&'static str>) {
        let mut calls = Vec::new();
        for _ in 0..100 {
            let (next, called) = self.step(now);
            calls.extend(called);
            if next != NextStep::Again {
                return (next, calls);
            }
        }
        panic!("it never rests: {calls:?}");
    }

    /// The fence of the job that the dispatcher started as number `n`, from 0.
    pub(super) fn fence(&self, n: usize) -> Fence {
        self.dispatcher.crew.0.lock().unwrap()[n].fence
    }

    /// How many attempts have begun.
    pub(super) fn started(&self) -> usize {
        self.dispatcher.crew.0.lock().unwrap().len()
    }

    /// How many jobs are running, and the attempts that each queued one has used.
    pub(super) fn running_and_queued(&mut self) -> (usize, Vec<u16>) {
        running_and_queued(&mut self.line.store)
    }

    pub(super) fn state(&mut self, n: usize) -> State {
        let job = self.fence(n).job;
        self.line.store.job(job).unwrap().unwrap().job.state
    }

    pub(super) fn was_told(&self, name: &str) -> bool {
        self.told.lock().unwrap().contains(&name)
    }
}
