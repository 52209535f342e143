//! Long random sequences of calls on all engines in lockstep: every answer and the whole state must
//! agree.
//!
//! A seed always gives the same sequence. Steps name fences and jobs by their position among those
//! seen so far, so that a failing sequence can be shortened and still makes sense.

mod random;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use tenure::drill::{Dump, Explorable};
use tenure::engine::clock::{Chance, Clock};
use tenure::engine::inspect::{Checked, EffectFilter, Filter};
use tenure::engine::job::{JobId, Limits, Name, NewJob, Progress};
use tenure::engine::lease::{Fence, Token, WorkerId};
use tenure::engine::ledger::{Act, Entry, Resolution};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::{
    AsSeen, Claim, Cursor, GUARD_GAP, Look, QueueChange, Registration, Report, Settlement,
};

use crate::engines::{Engine, START};
use crate::model::Model;

/// One call, or an advance of the clock.
#[derive(Debug, Clone)]
enum Step {
    Pass(Duration),
    Enqueue(Vec<NewJob>),
    Claim(Claim),
    Held(WorkerId, Option<i64>),
    Renew(Vec<usize>, Duration),
    Progress(Vec<(usize, Progress)>),
    Settle(Vec<(usize, Outcome, Vec<NewJob>)>),
    SettleAndClaim(usize, Outcome, Claim),
    Ledger(Vec<(usize, Name, Act)>),
    Resolve(usize, Name, Resolution),
    /// Like `Resolve`, for the jobs of the last eight fences.
    Decide(Name, Resolution),
    Register(WorkerId),
    Retire(WorkerId),
    /// A worker's process ends, and its lock with it. If the flag is set, two sweeps follow, so
    /// that the death is noticed.
    Die(WorkerId, bool),
    Vanish(usize),
    Beat,
    GuardGap(Duration),
    /// The server restarts.
    Restart,
    /// A copy of the database is made.
    Backup,
    /// The copy is restored.
    GoBack,
    Sweep(usize, Duration),
    Lapse(Vec<usize>),
    Cancel(usize),
    Requeue(usize, Option<usize>),
    Resume(usize),
    Purge(usize, Option<usize>),
    Configure(Name, QueueChange),
    Prune(usize),
    Look(Query),
}

/// A query of an engine. The answer must be what the model computes for it.
#[derive(Debug, Clone)]
enum Query {
    Effects(bool, usize),
    Check(usize),
    Page(Filter, usize),
    Overview,
    Leases(usize),
    Workers,
    GuardGap,
}

/// A difference between two engines.
pub struct Difference {
    seed: u64,
    /// The steps that lead to it, shortened as far as possible.
    steps: Vec<Step>,
    what: String,
}

impl fmt::Debug for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the engines differ, after {} steps of seed {}:", self.steps.len(), self.seed)?;
        for (at, step) in self.steps.iter().enumerate() {
            writeln!(f, "{at:4}  {step:?}")?;
        }
        writeln!(f, "{}", self.what)?;
        write!(
            f,
            "repeat it with: TENURE_DRILL_SEED={} cargo test -p tenure-drill --test differential",
            self.seed
        )
    }
}

/// How often each kind of answer was given. A sequence without a stale worker proves nothing about
/// stale workers.
pub type Answers = BTreeMap<&'static str, usize>;

/// Parts of answers. Each must occur in a good set of sequences.
pub const SOMETIMES: [&str; 27] = [
    "Created(",
    "Existing(",
    "Conflict(",
    "Extended(",
    "Stale(",
    "TokenMismatch",
    "AlreadySettled",
    "NotFound",
    "Applied(Queued)",
    "Applied(Dead)",
    "Applied(Succeeded)",
    "Applied(Parked)",
    "Refused(",
    "lapsed: [Lapse",
    "next_due: Some",
    "Opened",
    "Committed(",
    "Decided(",
    "InDoubt(",
    "Recorded",
    "Remembered(",
    "Unknown",
    "NotAllowed(Some(",
    "vanished: [Lapse",
    "wrong: [(",
    "reported: [Noted",
    "reported: [Stale(",
];

/// Runs one seed's sequence on `engines`, the first of which is the specification.
pub fn run(
    seed: u64,
    length: usize,
    engines: &[Engine],
    directory: &Path,
) -> Result<Answers, Difference> {
    let mut chance = Chance::seeded(seed);
    let steps: Vec<_> = (0..length).map(|_| Step::random(&mut chance)).collect();
    match play(&steps, engines, directory) {
        Ok(answers) => Ok(answers),
        Err(_) => {
            let steps = shorten(steps, |steps| play(steps, engines, directory).is_err());
            let what = play(&steps, engines, directory).err().unwrap_or_default();
            Err(Difference { seed, steps, what })
        }
    }
}

/// Runs one seed's sequence on the model and on the caller's store beside it. Returns the
/// difference, if there is one.
pub(crate) fn beside_the_model(
    seed: u64,
    length: usize,
    (store, clock): (Box<dyn Explorable>, Clock),
) -> Option<String> {
    let mut chance = Chance::seeded(seed);
    let steps: Vec<_> = (0..length).map(|_| Step::random(&mut chance)).collect();
    let model = Player::new(Engine::Model, Path::new(""));
    let mut players = [model, Player::on("the other", Seat::Engine(store), clock)];
    play_on(&steps, &mut players).err()
}

/// Removes steps that are not needed for the failure: halves first, then smaller and smaller parts.
fn shorten(mut steps: Vec<Step>, fails: impl Fn(&[Step]) -> bool) -> Vec<Step> {
    let mut part = steps.len() / 2;
    while part > 0 {
        let mut at = 0;
        while at < steps.len() {
            let mut shorter = steps.clone();
            shorter.drain(at..(at + part).min(steps.len()));
            if fails(&shorter) { steps = shorter } else { at += part }
        }
        part /= 2;
    }
    steps
}

fn play(steps: &[Step], engines: &[Engine], directory: &Path) -> Result<Answers, String> {
    let mut players: Vec<_> =
        engines.iter().map(|engine| Player::new(*engine, directory)).collect();
    play_on(steps, &mut players)
}

fn play_on(steps: &[Step], players: &mut [Player]) -> Result<Answers, String> {
    let mut answers = Answers::new();
    for (at, step) in steps.iter().enumerate() {
        let mut expected: Option<(String, Dump)> = None;
        for player in &mut *players {
            let answer = player.play(step);
            let dump = player.store().dump().expect("dump answers");
            let Some((known, state)) = &expected else {
                count(&answer, &mut answers);
                expected = Some((answer, dump));
                continue;
            };
            let name = player.name;
            if answer != *known {
                return Err(format!(
                    "step {at}: {step:?}\n  model answers {known}\n  {name} answers {answer}"
                ));
            }
            if dump != *state {
                return Err(format!(
                    "step {at}: {step:?} leaves another state on {name}:\n{}",
                    compare(state, &dump)
                ));
            }
        }
    }
    Ok(answers)
}

fn count(answer: &str, answers: &mut Answers) {
    for mark in SOMETIMES {
        *answers.entry(mark).or_default() += usize::from(answer.contains(mark));
    }
}

/// The parts in which two states differ.
pub(crate) fn compare(model: &Dump, engine: &Dump) -> String {
    let mut out = String::new();
    let mut part = |name: &str, model: &dyn fmt::Debug, engine: &dyn fmt::Debug| {
        let (model, engine) = (format!("{model:?}"), format!("{engine:?}"));
        if model != engine {
            out.push_str(&format!("  {name}\n    model:  {model}\n    engine: {engine}\n"));
        }
    };
    part("next id", &(model.epoch, model.next_id), &(engine.epoch, engine.next_id));
    let (jobs, theirs) = (&model.jobs, &engine.jobs);
    if jobs.len() != theirs.len() {
        let ids = |jobs: &[tenure::engine::job::JobRecord]| {
            jobs.iter().map(|job| job.id.0).collect::<Vec<_>>()
        };
        part("jobs", &ids(jobs), &ids(theirs));
    }
    jobs.iter().zip(theirs).for_each(|(ours, theirs)| part("job", ours, theirs));
    part("timeline", &model.timeline, &engine.timeline);
    part("keys", &model.keys, &engine.keys);
    part("queues", &model.queues, &engine.queues);
    part("ledger", &model.ledger, &engine.ledger);
    part("steps", &model.steps, &engine.steps);
    part("started", &model.started_at, &engine.started_at);
    let breaks = |state: &Dump| (state.broke, state.broke_before);
    part("breaks", &breaks(model), &breaks(engine));
    part("workers", &model.workers, &engine.workers);
    part("held", &model.held, &engine.held);
    out
}

/// The model, or an engine beside it.
enum Seat {
    Model(Box<Model>),
    Engine(Box<dyn Explorable>),
}

impl Seat {
    /// The answer to a query as text, so that the model and an engine can be compared.
    fn see(&mut self, query: &Query) -> String {
        match self {
            Seat::Model(model) => match query {
                Query::Effects(in_doubt, limit) => {
                    format!("{:?}", model.effects(&effects_filter(*in_doubt), *limit))
                }
                Query::Check(limit) => findings(&model.check(None, *limit)),
                Query::Page(filter, limit) => format!("{:?}", model.page(filter, *limit)),
                Query::Overview => format!("{:?} {:?}", model.overview(), model.queues()),
                Query::Leases(limit) => format!("{:?}", model.leases(*limit)),
                Query::Workers => format!("{:?}", model.workers()),
                Query::GuardGap => format!("{:?}", model.guard_gap()),
            },
            Seat::Engine(store) => {
                let store = store.look().expect("an engine has queries");
                ask(store, query).expect("a query answers")
            }
        }
    }
}

fn ask(store: &mut dyn Look, query: &Query) -> tenure::Result<String> {
    Ok(match query {
        Query::Effects(in_doubt, limit) => {
            format!("{:?}", store.effects(&effects_filter(*in_doubt), *limit)?)
        }
        Query::Check(limit) => findings(&store.check(None, *limit)?),
        Query::Page(filter, limit) => format!("{:?}", store.jobs(filter, *limit)?),
        Query::Overview => format!("{:?} {:?}", store.overview()?, store.queues()?),
        Query::Leases(limit) => format!("{:?}", store.leases(*limit)?),
        Query::Workers => format!("{:?}", store.workers()?),
        Query::GuardGap => format!("{:?}", store.guard_gap()?),
    })
}

fn effects_filter(in_doubt: bool) -> EffectFilter {
    EffectFilter { in_doubt, ..EffectFilter::default() }
}

/// What a check found, without the descriptions: each engine words them differently.
fn findings(checked: &Checked) -> String {
    let wrong: Vec<_> = checked.wrong.iter().map(|it| (it.job, it.rule)).collect();
    format!("{} {:?} wrong: {wrong:?}", checked.looked, checked.next)
}

/// One engine, and what its answers were so far: these are the same on all engines as long as they
/// agree.
struct Player {
    name: &'static str,
    store: Seat,
    clock: Clock,
    fences: Vec<Fence>,
    cursor: Cursor,
    last_id: i64,
    backup: Option<Dump>,
}

impl Player {
    fn new(engine: Engine, directory: &Path) -> Player {
        let (store, clock) = match engine {
            Engine::Model => {
                let clock = Clock::manual(START);
                (Seat::Model(Box::new(Model::new(clock.clone(), Limits::default()))), clock)
            }
            engine => {
                let (store, clock) = engine.fresh(directory).expect("a fresh store opens");
                (Seat::Engine(store), clock)
            }
        };
        Player::on(engine.name(), store, clock)
    }

    fn on(name: &'static str, store: Seat, clock: Clock) -> Player {
        let (fences, cursor) = (Vec::new(), Cursor::default());
        Player { name, store, clock, fences, cursor, last_id: 0, backup: None }
    }

    fn store(&mut self) -> &mut dyn Explorable {
        match &mut self.store {
            Seat::Model(model) => model.as_mut(),
            Seat::Engine(store) => store.as_mut(),
        }
    }

    /// One of the last fences that claims have returned, or one that was never issued.
    fn fence(&self, at: usize) -> Fence {
        let unknown = Fence { job: JobId(self.last_id + 1), token: Token(1) };
        let back = at % 32;
        self.fences.len().checked_sub(back + 1).map_or(unknown, |at| self.fences[at])
    }

    fn job(&self, at: usize) -> JobId {
        let back = i64::try_from(at % 24).unwrap_or(0);
        JobId((self.last_id + 1 - back).max(1))
    }

    fn as_seen(&self, at: usize, token: Option<usize>) -> AsSeen {
        match token.map(|at| self.fence(at)) {
            None => AsSeen::any(self.job(at)),
            Some(fence) => AsSeen::at(fence.job, fence.token),
        }
    }

    fn play(&mut self, step: &Step) -> String {
        match step {
            Step::Pass(length) => {
                self.clock.advance(*length);
                String::new()
            }
            Step::Enqueue(jobs) => {
                let answer = self.store().enqueue(jobs).expect("enqueue answers");
                self.last_id = self.store().dump().expect("dump answers").next_id - 1;
                format!("{answer:?}")
            }
            Step::Claim(ask) => {
                let ask = Claim { cursor: self.cursor, ..ask.clone() };
                let claimed = self.store().claim(&ask).expect("claim answers");
                self.remember(&claimed);
                format!("{claimed:?}")
            }
            Step::SettleAndClaim(at, outcome, ask) => {
                let settlement = Settlement::new(self.fence(*at), outcome.clone());
                let ask = Claim { cursor: self.cursor, ..ask.clone() };
                let (settled, claimed) =
                    self.store().settle_and_claim(&[settlement], &ask).expect("it answers");
                self.remember(&claimed);
                format!("{settled:?} {claimed:?}")
            }
            Step::Held(worker, request) => {
                format!("{:?}", self.store().held(worker, *request))
            }
            Step::Renew(at, length) => {
                let fences: Vec<_> = at.iter().map(|at| self.fence(*at)).collect();
                format!("{:?}", self.store().renew(&fences, *length))
            }
            Step::Progress(items) => {
                let report = |(at, progress): &(usize, Progress)| Report {
                    fence: self.fence(*at),
                    progress: progress.clone(),
                };
                let reports: Vec<_> = items.iter().map(report).collect();
                format!(
                    "reported: {:?}",
                    self.store().progress(&reports).expect("progress answers")
                )
            }
            Step::Settle(items) => {
                let settlements: Vec<_> = items
                    .iter()
                    .map(|(at, outcome, then)| Settlement {
                        fence: self.fence(*at),
                        outcome: outcome.clone(),
                        then: then.clone(),
                    })
                    .collect();
                format!("{:?}", self.store().settle(&settlements))
            }
            Step::Sweep(limit, grace) => {
                let overdue = self.store().overdue(*limit, *grace).expect("overdue answers");
                format!("{overdue:?} {:?}", self.store().lapse(&overdue))
            }
            Step::Ledger(items) => {
                let entry = |(at, name, act): &(usize, Name, Act)| Entry {
                    fence: self.fence(*at),
                    name: name.clone(),
                    act: act.clone(),
                };
                let entries: Vec<_> = items.iter().map(entry).collect();
                format!("{:?}", self.store().ledger(&entries))
            }
            Step::Resolve(at, effect, how) => {
                let job = self.job(*at);
                format!("{:?}", self.store().resolve(job, effect, how))
            }
            Step::Decide(effect, how) => {
                let jobs: Vec<_> = (0..8).map(|at| self.fence(at).job).collect();
                let resolve = |job| self.store().resolve(job, effect, how);
                format!("{:?}", jobs.into_iter().map(resolve).collect::<Vec<_>>())
            }
            Step::Register(worker) => {
                let queues = vec![Name::default_queue()];
                let known = Registration::new(worker.clone(), queues);
                let guarded = self.store().register(&known);
                format!("{guarded:?} {}", self.store.see(&Query::Workers))
            }
            Step::Retire(worker) => format!("{:?}", self.store().retire(worker)),
            Step::Vanish(limit) => {
                format!("vanished: {:?}", self.store().vanished(*limit).expect("vanished answers"))
            }
            Step::Beat => format!("{:?}", self.store().beat()),
            Step::GuardGap(gap) => {
                let before = self.store().set_guard_gap(*gap);
                format!("{before:?} {}", self.store.see(&Query::GuardGap))
            }
            Step::Die(worker, noticed) => {
                let mut seen = self.surroundings(|state| state.held.retain(|held| held != worker));
                if *noticed {
                    for _ in 0..2 {
                        seen.push_str(&self.play(&Step::Vanish(1_000)));
                        self.clock.advance(GUARD_GAP);
                    }
                }
                seen
            }
            Step::Restart => self.surroundings(|state| {
                state.started_at = state.now;
                state.held.clear();
            }),
            Step::Backup => {
                self.backup = Some(self.store().dump().expect("dump answers"));
                String::new()
            }
            Step::GoBack => match self.backup.clone() {
                Some(backup) => format!("{:?}", self.store().go_back(&backup)),
                None => String::new(),
            },
            Step::Lapse(at) => {
                let fences: Vec<_> = at.iter().map(|at| self.fence(*at)).collect();
                format!("{:?}", self.store().lapse(&fences))
            }
            Step::Cancel(at) => {
                let job = self.job(*at);
                format!("{:?}", self.store().cancel(&[job]))
            }
            Step::Requeue(at, token) => {
                let seen = self.as_seen(*at, *token);
                format!("{:?}", self.store().requeue(&[seen]))
            }
            Step::Resume(at) => {
                let job = self.job(*at);
                format!("{:?}", self.store().resume(&[job]))
            }
            Step::Purge(at, token) => {
                let seen = self.as_seen(*at, *token);
                format!("{:?}", self.store().purge(&[seen]))
            }
            Step::Configure(queue, change) => {
                format!("{:?}", self.store().configure(queue, change))
            }
            Step::Prune(limit) => format!("{:?}", self.store().prune(*limit)),
            Step::Look(query) => self.store.see(query),
        }
    }

    fn surroundings(&mut self, change: impl FnOnce(&mut Dump)) -> String {
        let mut state = self.store().dump().expect("dump answers");
        change(&mut state);
        format!("{:?}", self.store().load(&state))
    }

    fn remember(&mut self, claimed: &tenure::engine::store::Claimed) {
        self.cursor = claimed.cursor;
        self.fences.extend(claimed.attempts.iter().map(|attempt| attempt.lease.fence()));
    }
}
