//! The worker's machines under a scheduler: many workers, a thousand jobs, one thread, one seed.
//!
//! The machines are the real ones, and so is the store, SQLite in memory. Only time and chance are the
//! scheduler's: which machine is stepped next, how long a handler takes and what it comes to, which call is
//! lost before or after it is applied, and when a worker is killed or stands still. The same seed repeats the
//! same run to the last event, and the hash of its trace says so.

mod faulty;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tenure::clock::{Chance, Clock, Moment};
use tenure::drill::machines::{
    Crew, Desk, Dispatcher, Hold, Next, Plan, Renewer, Returned, Stage, Sweeper,
};
use tenure::inspect::Filter;
use tenure::job::{JobId, Json, Limits, Name, NewJob, State};
use tenure::lease::{Fence, Token, WorkerId};
use tenure::lifecycle::{self, Fault, Outcome};
use tenure::store::sqlite::{Options, Sqlite};
use tenure::store::{Attempt, Store};
use tenure::telemetry::{Event, Exit, Fact, Observer};

use self::faulty::{Faulty, Weather};
use crate::engines::START;

/// What is simulated.
#[derive(Debug, Clone, Copy)]
pub struct Scenario {
    /// How many workers there are at a time.
    pub workers: usize,
    /// How many jobs there are to do.
    pub jobs: usize,
    /// How many jobs each worker runs at a time.
    pub slots: usize,
    /// For how long a job is taken.
    pub lease: Duration,
    /// One call in so many is lost before it is applied, and one after; none at zero.
    pub lost_call_in: u64,
    /// One step in so many is a kill, and one a stall; none at zero.
    pub kill_in: u64,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario {
            workers: 5,
            jobs: 1_000,
            slots: 8,
            lease: Duration::from_secs(10),
            lost_call_in: 100,
            kill_in: 400,
        }
    }
}

/// How a run went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The seed that repeats it.
    pub seed: u64,
    /// The hash of all events and their times.
    pub hash: String,
    /// How often each event was told.
    pub events: BTreeMap<&'static str, u64>,
    /// What happened that no event tells.
    pub faults: Faults,
    /// How long it took, in simulated time.
    pub took: Duration,
    /// What must not be.
    pub violations: Vec<String>,
}

/// What was done to the workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Faults {
    pub kills: u64,
    pub stalls: u64,
    /// Workers that were asked to end, and did so in order.
    pub ends: u64,
    pub lost_calls: u64,
    pub lost_replies: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Faults { kills, stalls, ends, lost_calls, lost_replies } = self.faults;
        write!(
            f,
            "seed {}: {kills} kills, {stalls} stalls, {ends} ends, {lost_calls} calls and {lost_replies} replies lost, {:?}; {:?}; trace hash {}",
            self.seed, self.took, self.events, self.hash
        )
    }
}

/// Runs a scenario from a seed.
pub fn run(scenario: &Scenario, seed: u64) -> Report {
    let mut world = World::new(scenario, seed);
    world.enqueue();
    // Far more than any run needs: what has not ended by then never will.
    let limit = Duration::from_secs(4 * 60 * 60);
    while !world.is_over() && world.elapsed < limit {
        world.turn();
    }
    world.report(limit)
}

struct World {
    scenario: Scenario,
    seed: u64,
    chance: Chance,
    clock: Clock,
    store: Sqlite,
    weather: Arc<Mutex<Weather>>,
    elapsed: Duration,
    /// The same for the handlers.
    time: Arc<Mutex<Moment>>,
    workers: Vec<Option<Worker>>,
    born: u64,
    /// When a killed worker is replaced.
    rebirths: Vec<(Duration, usize)>,
    trace: Arc<Mutex<Trace>>,
    faults: Faults,
    /// How many events there had been when somebody last looked whether it is over.
    told: u64,
}

struct Worker {
    id: WorkerId,
    desk: Arc<Desk>,
    dispatcher: Dispatcher<Hands>,
    renewer: Renewer,
    sweeper: Sweeper,
    lines: [Faulty; 3],
    wakes: [Moment; 3],
    running: Arc<Mutex<Vec<Running>>>,
    /// It stands still until then.
    stalled: Option<Moment>,
}

/// A handler at work.
struct Running {
    until: Moment,
    hold: Arc<Hold>,
    returned: Returned,
}

/// The handlers of one worker.
struct Hands {
    running: Arc<Mutex<Vec<Running>>>,
    chance: Chance,
    now: Arc<Mutex<Moment>>,
}

impl Crew for Hands {
    fn start(&mut self, attempt: Attempt, hold: Arc<Hold>) {
        let millis = match self.chance.below(100) {
            0..80 => 1 + self.chance.below(50),
            80..96 => self.chance.below(2_000),
            // Longer than its lease, so that it lives by renewals.
            _ => self.chance.below(40_000),
        };
        let fault = match self.chance.below(100) {
            0..88 => None,
            88..96 => Some(Fault::Retry { error: "it failed".into() }),
            96..98 => Some(Fault::RetryAfter {
                after: Duration::from_millis(self.chance.below(3_000)),
                error: "429".into(),
            }),
            _ => Some(Fault::Snooze { after: Duration::from_millis(self.chance.below(1_000)) }),
        };
        let outcome = match fault {
            None => Outcome::Complete { result: None },
            Some(fault) => lifecycle::after_fault(&attempt.standing(), fault, self.chance.jitter()),
        };
        let until = *self.now.lock().expect("one thread") + Duration::from_millis(millis);
        let running = Running { until, hold, returned: Returned::Settle(outcome) };
        self.running.lock().expect("one thread").push(running);
    }
}

/// What was told, and what must be true of it.
#[derive(Default)]
struct Trace {
    now: Duration,
    hash: Sha256,
    events: BTreeMap<&'static str, u64>,
    /// All that were given out.
    tokens: BTreeSet<(JobId, Token)>,
    succeeded: BTreeSet<JobId>,
    violations: Vec<String>,
}

impl Trace {
    fn hear(&mut self, event: &Event) {
        *self.events.entry(event.fact.name()).or_default() += 1;
        self.hash.update(self.now.as_micros().to_le_bytes());
        self.hash.update(serde_json::to_vec(event).unwrap_or_default());
        let (Some(job), Some(token)) = (event.job, event.token) else { return };
        match &event.fact {
            // A claim that was never heard may be heard of later, after others: but no token twice.
            Fact::LeaseAcquired { .. } if !self.tokens.insert((job, token)) => {
                self.violations
                    .push(format!("I2: job {job} was given out twice under token {token}"));
            }
            Fact::JobSucceeded { .. } if !self.succeeded.insert(job) => {
                self.violations.push(format!("I1: job {job} succeeded twice"));
            }
            _ => {}
        }
    }
}

impl World {
    fn new(scenario: &Scenario, seed: u64) -> World {
        let clock = Clock::manual(START);
        let options = Options { clock: clock.clone(), limits: Limits::default() };
        let mut chance = Chance::seeded(seed);
        let weather = Weather::new(Chance::seeded(chance.bits()), scenario.lost_call_in);
        let mut world = World {
            scenario: *scenario,
            seed,
            clock,
            store: Sqlite::in_memory(&options).expect("a store in memory"),
            weather: Arc::new(Mutex::new(weather)),
            elapsed: Duration::ZERO,
            time: Arc::default(),
            workers: (0..scenario.workers).map(|_| None).collect(),
            born: 0,
            rebirths: Vec::new(),
            trace: Arc::default(),
            faults: Faults::default(),
            told: 0,
            chance,
        };
        for place in 0..scenario.workers {
            world.bear(place);
        }
        world
    }

    fn now(&self) -> Moment {
        Moment::after_start(Duration::from_secs(1) + self.elapsed)
    }

    fn enqueue(&mut self) {
        let kind = Name::check("kind", "work").expect("a name");
        let args = Json::check("args", "{}", 10).expect("args");
        let many = std::num::NonZeroU16::new(50).expect("not zero");
        let job = NewJob::new(kind, args).max_attempts(many).max_crashes(many);
        for chunk in vec![job; self.scenario.jobs].chunks(1_000) {
            self.store.enqueue(chunk).expect("enqueue");
        }
    }

    /// A new worker takes a place.
    fn bear(&mut self, place: usize) {
        self.born += 1;
        let trace = Arc::clone(&self.trace);
        let plan = Arc::new(Plan {
            worker: WorkerId::check(format!("worker-{}", self.born)).expect("a worker"),
            queues: vec![Name::default_queue()],
            kinds: None,
            slots: self.scenario.slots,
            lease: self.scenario.lease,
            drain: false,
            observer: Observer::new(move |event| trace.lock().expect("one thread").hear(event)),
        });
        let desk = Arc::new(Desk::new(plan.slots));
        let running: Arc<Mutex<Vec<Running>>> = Arc::default();
        let now = self.now();
        let hands = Hands {
            running: Arc::clone(&running),
            chance: Chance::seeded(self.chance.bits()),
            now: Arc::clone(&self.time),
        };
        let line = || Faulty {
            store: self.store.share().expect("another connection"),
            weather: Arc::clone(&self.weather),
        };
        self.workers[place] = Some(Worker {
            id: plan.worker.clone(),
            dispatcher: Dispatcher::new(Arc::clone(&plan), Arc::clone(&desk), hands, now),
            renewer: Renewer::new(Arc::clone(&plan), Arc::clone(&desk)),
            sweeper: Sweeper::new(plan, Arc::clone(&desk), now),
            desk,
            lines: [line(), line(), line()],
            wakes: [now; 3],
            running,
            stalled: None,
        });
    }

    /// One thing happens: to a worker, or to the time.
    fn turn(&mut self) {
        if self.scenario.kill_in > 0 && self.chance.below(self.scenario.kill_in) == 0 {
            self.strike();
        }
        let now = self.now();
        let mut ready = Vec::new();
        for (place, worker) in self.workers.iter_mut().enumerate() {
            let Some(worker) = worker else { continue };
            if worker.stalled.is_some_and(|until| until > now) {
                continue;
            }
            worker.stalled = None;
            ready.extend(worker.ready(now).into_iter().map(|what| (place, what)));
        }
        if ready.is_empty() {
            return self.pass_time();
        }
        let at = usize::try_from(self.chance.below(ready.len() as u64)).expect("small");
        let (place, what) = ready[at];
        let mut ended = false;
        if let Some(worker) = &mut self.workers[place] {
            worker.act(what, now);
            ended = worker.dispatcher.exit().is_some();
        }
        if ended {
            self.bury(place);
        }
        // A step takes a moment.
        let micros = self.chance.below(300);
        self.advance(Duration::from_micros(micros));
    }

    fn advance(&mut self, by: Duration) {
        self.elapsed += by;
        let target = START + self.elapsed;
        self.clock.advance(target.since(self.clock.now()));
        self.trace.lock().expect("one thread").now = self.elapsed;
        *self.time.lock().expect("one thread") = self.now();
        let due: Vec<usize> = self
            .rebirths
            .extract_if(.., |(at, _)| *at <= self.elapsed)
            .map(|(_, place)| place)
            .collect();
        for place in due {
            self.bear(place);
        }
    }

    /// Nobody has anything to do: the time goes on to when somebody has.
    fn pass_time(&mut self) {
        let now = self.now();
        let workers = self.workers.iter().flatten().map(Worker::next);
        let rebirths =
            self.rebirths.iter().map(|(at, _)| Moment::after_start(Duration::from_secs(1) + *at));
        let next = workers.chain(rebirths).min().unwrap_or(now);
        self.advance(next.since(now).max(Duration::from_micros(100)));
    }

    /// A worker is killed, stands still for up to three leases, or is asked to end.
    fn strike(&mut self) {
        let place = usize::try_from(self.chance.below(self.workers.len() as u64)).expect("small");
        match self.chance.below(4) {
            0 | 1 => {
                if self.workers[place].take().is_some() {
                    self.faults.kills += 1;
                    self.replace(place);
                }
            }
            2 => {
                let millis = self.chance.below(3 * self.scenario.lease.as_millis() as u64);
                let until = self.now() + Duration::from_millis(millis);
                if let Some(worker) = &mut self.workers[place] {
                    self.faults.stalls += 1;
                    worker.stalled = Some(until);
                }
            }
            _ => {
                let stage =
                    if self.chance.below(2) == 0 { Stage::Finishing } else { Stage::Releasing };
                if let Some(worker) = &self.workers[place] {
                    worker.desk.advance(stage);
                }
            }
        }
    }

    /// Somebody else takes a place after a while.
    fn replace(&mut self, place: usize) {
        let delay = Duration::from_millis(self.chance.below(5_000));
        self.rebirths.push((self.elapsed + delay, place));
    }

    /// A worker that has ended in order leaves nothing behind; its place is taken by another.
    fn bury(&mut self, place: usize) {
        let Some(worker) = self.workers[place].take() else { return };
        self.faults.ends += 1;
        if worker.dispatcher.exit() != Some(Exit::Error) {
            let left = self.store.held(&worker.id).expect("what it holds");
            if !left.is_empty() {
                let what = format!("I11: {} ended in order and left {left:?}", worker.id);
                self.trace.lock().expect("one thread").violations.push(what);
            }
        }
        self.replace(place);
    }

    /// Whether every job has ended. It is asked after every turn, so it looks only when something was told.
    fn is_over(&mut self) -> bool {
        let (told, ended) = {
            let trace = self.trace.lock().expect("one thread");
            let count = |name| trace.events.get(name).copied().unwrap_or(0);
            (trace.events.values().sum(), trace.succeeded.len() as u64 + count("job_dead"))
        };
        // What a lost reply told nobody is in the store all the same.
        let near = ended + 2 * self.scenario.workers as u64 >= self.scenario.jobs as u64;
        if !near || std::mem::replace(&mut self.told, told) == told {
            return false;
        }
        let overview = self.store.overview().expect("an overview");
        overview
            .lines
            .iter()
            .all(|line| line.ready + line.waiting + line.running + line.parked == 0)
    }

    fn report(mut self, limit: Duration) -> Report {
        let mut trace = std::mem::take(&mut *self.trace.lock().expect("one thread"));
        if self.elapsed >= limit {
            trace.violations.push(format!("I11: not everything has ended after {limit:?}"));
        }
        let weather = self.weather.lock().expect("one thread");
        let mut filter = Filter::default();
        let mut seen = 0;
        loop {
            let page = self.store.jobs(&filter, 1_000).expect("a page of jobs");
            let Some(last) = page.last() else { break };
            filter.before = Some(last.id);
            seen += page.len();
            for job in &page {
                if !job.state.has_ended() {
                    trace.violations.push(format!("I11: job {} is {}", job.id, job.state));
                }
                if trace.succeeded.contains(&job.id) && job.state != State::Succeeded {
                    trace.violations.push(format!("I3: job {} was told to have succeeded", job.id));
                }
            }
        }
        if seen != self.scenario.jobs {
            trace.violations.push(format!("I9: {seen} jobs of {}", self.scenario.jobs));
        }
        let mut from = None;
        loop {
            let checked = self.store.check(from, 1_000).expect("a check");
            trace.violations.extend(checked.wrong.iter().map(|wrong| format!("{wrong:?}")));
            from = checked.next;
            if from.is_none() {
                break;
            }
        }
        let hash = trace.hash.finalize();
        Report {
            seed: self.seed,
            hash: hash[..8].iter().map(|byte| format!("{byte:02x}")).collect(),
            events: trace.events,
            faults: Faults {
                lost_calls: weather.lost,
                lost_replies: weather.unheard,
                ..self.faults
            },
            took: self.elapsed,
            violations: trace.violations,
        }
    }
}

/// Something that a worker can do now.
#[derive(Debug, Clone, Copy)]
enum What {
    Dispatch,
    Renew,
    Sweep,
    Return(usize),
}

impl Worker {
    fn ready(&self, now: Moment) -> Vec<What> {
        let mut ready = Vec::new();
        if self.wakes[0] <= now || self.desk.is_poked() {
            ready.push(What::Dispatch);
        }
        if self.wakes[1] <= now {
            ready.push(What::Renew);
        }
        if self.wakes[2] <= now {
            ready.push(What::Sweep);
        }
        let running = self.running.lock().expect("one thread");
        let returns = running.iter().enumerate();
        ready.extend(returns.filter(|(_, one)| one.is_due(now)).map(|(at, _)| What::Return(at)));
        ready
    }

    fn next(&self) -> Moment {
        let running = self.running.lock().expect("one thread");
        let next = running.iter().map(|one| one.until).chain(self.wakes).min();
        let next = next.unwrap_or_default();
        self.stalled.map_or(next, |until| next.max(until))
    }

    fn act(&mut self, what: What, now: Moment) {
        let [dispatching, renewing, sweeping] = &mut self.lines;
        match what {
            What::Dispatch => self.wakes[0] = when(self.dispatcher.step(dispatching, now), now),
            What::Renew => self.wakes[1] = when(self.renewer.step(renewing, now), now),
            What::Sweep => self.wakes[2] = when(self.sweeper.step(sweeping, now), now),
            What::Return(at) => {
                let one = self.running.lock().expect("one thread").swap_remove(at);
                let fence: Fence = one.hold.fence;
                self.desk.returned(fence, one.returned, now);
            }
        }
    }
}

impl Running {
    fn is_due(&self, now: Moment) -> bool {
        self.until <= now || self.hold.is_stopped()
    }
}

fn when(next: Next, now: Moment) -> Moment {
    match next {
        Next::Again => now,
        Next::At(at) => at,
        Next::Done => now + Duration::from_secs(1 << 30),
    }
}
