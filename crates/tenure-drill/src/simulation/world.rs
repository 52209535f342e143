//! The scheduler: which machine is stepped next, which faults happen, and how time advances. One
//! thread, one seed.

mod compare;
mod people;
mod struck;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tenure::engine::store::Work;

use tenure::drill::Dump;
use tenure::drill::Patch;
use tenure::drill::machines::Plan;
use tenure::engine::clock::{Chance, Clock, Moment, Timestamp};
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
use tenure::engine::telemetry::{Exit, Observer};
use tenure::{Limits, WorkerId};

use super::books::{Books, Copy, Living};
use super::faults::{Fault, Faults};
use super::faulty::{Faulty, Shared, Weather, When};
use super::orders;
use super::scenario::Scenario;
use super::trace::Rare;
use super::workers::{Flaw, Lives, Worker};
use crate::engines::START;
use crate::verdict::Invariant;

/// What is run: a scenario, and settings that only the proof itself uses.
#[derive(Debug, Clone)]
pub(super) struct Setup<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) seed: u64,
    pub(super) drive: Drive,
    /// The one call that is lost.
    pub(super) nth: Option<(u64, When)>,
    pub(super) flaw: Option<Flaw>,
    pub(super) patches: &'a [Patch],
}

/// Which jobs there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drive {
    /// All kinds, of several tenants.
    Mixture,
    /// All of one kind; no handler fails by chance.
    Only(&'static str),
    /// This many that kill their worker, among others that run for several leases.
    Poisoned(usize),
    /// Short jobs that arrive one at a time while the workers are idle and are notified. The run
    /// goes on until the jobs must have been deleted.
    Steady,
}

/// A copy of the database.
struct Backup {
    /// The turn at which the database goes back to it.
    turn: u64,
    dump: Dump,
    books: Copy,
    /// State that is not in a dump.
    last_order: i64,
    pulse: i64,
}

/// A worker that is cut off from the store.
struct Cut {
    who: WorkerId,
    since: Duration,
    until: Duration,
    /// How many faults had affected all workers when the cut began.
    disturbances: u64,
}

/// The whole simulated world.
pub(super) struct World<'a> {
    setup: Setup<'a>,
    chance: Chance,
    clock: Clock,
    pub(super) store: Sqlite,
    /// The operator's connection.
    person: Faulty,
    pub(super) shared: Shared,
    pub(super) elapsed: Duration,
    /// By how much the store's clock was set ahead, in milliseconds.
    ahead: i64,
    /// The current moment, for the handlers.
    time: Arc<Mutex<Moment>>,
    workers: Vec<Option<Worker>>,
    born: u64,
    /// When a worker that is gone is replaced, and at which place.
    rebirths: Vec<(Duration, usize)>,
    pub(super) turn: u64,
    faults: std::iter::Peekable<Faults>,
    /// Copies of the database, each with the turn at which it is restored.
    copies: Vec<Backup>,
    cuts: Vec<Cut>,
    /// Until when the store last stood still for all workers.
    still_until: Option<Duration>,
    /// When jobs arrive.
    arrivals: VecDeque<Duration>,
    /// The run goes on at least until then.
    linger: Duration,
    /// The faults that have happened.
    pub(super) struck: Vec<(u32, super::Kind)>,
    /// By then every job must have ended.
    limit: Option<Duration>,
}

impl<'a> World<'a> {
    pub(super) fn new(setup: Setup<'a>) -> World<'a> {
        let clock = Clock::manual(START);
        let options = StoreOptions { clock: clock.clone(), limits: Limits::default() };
        let store = Sqlite::in_memory_patched(&options, setup.patches).expect("a store in memory");
        let weather = Weather { nth: setup.nth, ..Weather::default() };
        let shared = Shared {
            weather: Arc::new(Mutex::new(weather)),
            books: Arc::new(Mutex::new(Books::new(clock.clone()))),
        };
        let person = Faulty {
            store: store.share().expect("another connection"),
            shared: shared.clone(),
            who: WorkerId::check("person").expect("a name"),
            flaw: None,
        };
        let scenario = setup.scenario;
        let mut world = World {
            chance: Chance::seeded(setup.seed),
            clock,
            store,
            person,
            shared,
            elapsed: Duration::ZERO,
            ahead: 0,
            time: Arc::new(Mutex::new(moment(Duration::ZERO))),
            workers: (0..scenario.workers).map(|_| None).collect(),
            born: 0,
            rebirths: Vec::new(),
            turn: 0,
            faults: Faults::new(scenario, setup.seed).peekable(),
            copies: Vec::new(),
            cuts: Vec::new(),
            still_until: None,
            arrivals: VecDeque::new(),
            linger: Duration::ZERO,
            struck: Vec::new(),
            limit: None,
            setup,
        };
        world.shared.books().quiet = world.setup.drive != Drive::Mixture;
        orders::create(&world.store);
        world.enqueue_all();
        (0..scenario.workers).for_each(|place| world.bear(place));
        world
    }

    fn scenario(&self) -> &'a Scenario {
        self.setup.scenario
    }

    fn now(&self) -> Moment {
        moment(self.elapsed)
    }

    /// Starts a new worker at a place.
    fn bear(&mut self, place: usize) {
        self.born += 1;
        let who = WorkerId::check(format!("worker-{}", self.born)).expect("a name");
        let books = Arc::clone(&self.shared.books);
        let mut plan = Plan::new(who.clone());
        (plan.slots, plan.lease) = (self.scenario().slots, self.scenario().lease);
        // Two ended attempts are enough for a second call: with so few slots, the usual 32 would
        // hardly ever end together, and the relief would have no work.
        plan.relief = 2;
        plan.observer = Observer::new(move |event| books.lock().expect("one thread").hear(event));
        let flaw = self.setup.flaw;
        let line = || Faulty {
            store: self.store.share().expect("another connection"),
            shared: self.shared.clone(),
            who: who.clone(),
            flaw,
        };
        let lines = std::array::from_fn(|_| line());
        let chance = Chance::seeded(self.chance.bits());
        let now = (self.now(), Arc::clone(&self.time));
        self.workers[place] = Some(Worker::new(plan, lines, chance, now, flaw));
        let mut books = self.shared.books();
        books.trace.tell(None, format!("{who} begins"));
        books.workers.insert(who, Living { since: self.elapsed, ..Living::default() });
    }

    /// Whether every job has ended, or something is wrong.
    pub(super) fn is_over(&self) -> bool {
        let books = self.shared.books();
        let is_done = books.live == 0 && self.arrivals.is_empty() && self.elapsed >= self.linger;
        is_done || books.wrong.is_some()
    }

    /// One turn: a worker takes a step, or time advances.
    pub(super) fn turn(&mut self) {
        self.turn += 1;
        self.befall();
        self.arrive();
        if self.chance.below(64) == 0 {
            self.people_decide();
        }
        let now = self.now();
        let mut ready = Vec::new();
        for (place, worker) in self.workers.iter_mut().enumerate() {
            let Some(worker) = worker else { continue };
            if worker.stalled.is_some_and(|until| until > now) {
                continue;
            }
            worker.stalled = None;
            worker.ready(now, place, &mut ready);
        }
        if ready.is_empty() {
            return self.pass_time();
        }
        let (place, what) = ready[self.pick(ready.len())];
        let lives = match &mut self.workers[place] {
            Some(worker) => worker.act(what, now),
            None => Lives::Yes,
        };
        match lives {
            Lives::Yes => {}
            Lives::Ended => self.bury(place),
            Lives::Killed => self.kill(place, "a job"),
        }
        // A step takes a short time.
        let micros = self.chance.below(300);
        self.advance(Duration::from_micros(micros));
        self.check_time();
    }

    fn pick(&mut self, of: usize) -> usize {
        usize::try_from(self.chance.below(of as u64)).unwrap_or(0)
    }

    fn advance(&mut self, by: Duration) {
        self.elapsed += by;
        self.set_clocks();
        let due: Vec<usize> = self
            .rebirths
            .extract_if(.., |(at, _)| *at <= self.elapsed)
            .map(|(_, place)| place)
            .collect();
        due.into_iter().for_each(|place| self.bear(place));
        self.deliver();
        self.end_cuts();
    }

    fn set_clocks(&self) {
        let millis = i64::try_from(self.elapsed.as_millis()).unwrap_or(i64::MAX);
        self.clock.set(Timestamp::from_millis(START.as_millis() + millis + self.ahead));
        self.shared.books().trace.now = self.elapsed;
        *self.time.lock().expect("one thread") = self.now();
    }

    /// No worker has anything to do: advance to the time when one has.
    fn pass_time(&mut self) {
        self.people_decide();
        let now = self.now();
        let workers = self.workers.iter().flatten().filter_map(Worker::next);
        let rebirths = self.rebirths.iter().map(|(at, _)| moment(*at));
        let arrivals = self.arrivals.front().map(|at| moment(*at));
        let next = workers.chain(rebirths).chain(arrivals).min().unwrap_or(now);
        self.advance(next.since(now).max(Duration::from_micros(100)));
        self.check_time();
    }

    /// Another worker takes the place after a while.
    fn replace(&mut self, place: usize) {
        let delay = Duration::from_millis(self.chance.below(5_000));
        self.rebirths.push((self.elapsed + delay, place));
    }

    fn kill(&mut self, place: usize, by: &str) {
        let Some(worker) = self.workers[place].take() else { return };
        {
            let mut books = self.shared.books();
            books.workers.remove(&worker.id);
            books.trace.tell(None, format!("{} is killed by {by}", worker.id));
        }
        self.replace(place);
    }

    /// A worker has shut down. Unless it gave up with an error, it must leave no jobs behind.
    /// Another worker takes its place.
    fn bury(&mut self, place: usize) {
        let Some(worker) = self.workers[place].take() else { return };
        let left = self.store.held(&worker.id, None).expect("what it holds");
        {
            let mut books = self.shared.books();
            books.workers.remove(&worker.id);
            books.trace.tell(None, format!("{} ends", worker.id));
            if worker.dispatcher.exit() == Some(Exit::Error) {
                books.count(Rare::GaveUp);
            // Excused: after a failover the store may list jobs that the worker has ended long ago;
            // and a worker does not know of a job that a late claim has leased to it.
            } else if let Some(left) =
                left.iter().find(|left| books.went_back == 0 && !books.is_late(left.lease.job()))
            {
                let what = format!("{} ended in order and left {:?}", worker.id, left.lease);
                books.fail(Invariant::I11, left.lease.job(), what);
            }
        }
        self.replace(place);
    }

    /// Once no more faults happen, every job must reach its end in time.
    fn check_time(&mut self) {
        if self.limit.is_none() && self.turn > self.scenario().quiet_after() {
            self.be_quiet();
        }
        if let Some(limit) = self.limit.filter(|limit| *limit < self.elapsed) {
            let mut books = self.shared.books();
            let open = books.jobs.iter().find(|(_, ghost)| !ghost.state.has_ended());
            let Some((job, state)) = open.map(|(job, ghost)| (*job, ghost.state)) else { return };
            let (left, seconds) = (books.live, limit.as_secs());
            let what = format!("job {job} is {state} after {seconds} s, and {left} are not done");
            books.fail(Invariant::I11, job, what);
        }
    }

    /// No more faults from now on: sets the time by which all jobs must have ended.
    fn be_quiet(&mut self) {
        *self.shared.weather() = Weather { nth: self.setup.nth, ..Weather::default() };
        self.copies.clear();
        self.cuts.clear();
        let mut books = self.shared.books();
        books.quiet = true;
        books.trace.tell(None, "nothing goes wrong any more".into());
        let Scenario { workers, lease, .. } = self.scenario();
        // A stalled worker stands still for three leases at most. Leases that a jump of the clock
        // extends, and the grace of a late sweep, add one lease each. A handler takes 40 s at most,
        // and a retry waits 5 s at most. Suspects run one at a time.
        let each = Duration::from_secs(4) * u32::try_from(books.live).unwrap_or(u32::MAX);
        let each = each / u32::try_from(*workers).unwrap_or(1).max(1);
        self.limit = Some(self.elapsed + 8 * *lease + Duration::from_secs(120) + each);
    }

    /// Applies the faults that are due at this turn.
    fn befall(&mut self) {
        if self.limit.is_some() {
            return;
        }
        let due: Vec<Backup> =
            self.copies.extract_if(.., |backup| backup.turn <= self.turn).collect();
        if let Some(backup) = due.into_iter().next() {
            self.go_back(backup);
        }
        while let Some(fault) = self.faults.next_if(|fault| fault.turn <= self.turn) {
            if self.scenario().has(fault.number, fault.kind) {
                self.strike(fault);
            }
        }
    }
}

fn moment(elapsed: Duration) -> Moment {
    Moment::after_start(Duration::from_secs(1) + elapsed)
}
