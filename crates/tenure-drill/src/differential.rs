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

use tenure::clock::{Chance, Clock};
use tenure::drill::{Dump, Explorable};
use tenure::inspect::{EffectFilter, Filter};
use tenure::job::{JobId, Name, NewJob, Progress};
use tenure::lease::{Fence, Token, WorkerId};
use tenure::ledger::{Act, Entry, Resolution};
use tenure::lifecycle::Outcome;
use tenure::store::{
    AsSeen, Claim, Cursor, GUARD_GAP, QueueChange, Registration, Report, Settlement,
};

use crate::engines::Engine;

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
    Effects(bool, usize),
    Register(WorkerId),
    Retire(WorkerId),
    /// A worker's process ends, and its lock with it. If the flag is set, its death is noticed.
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
    Check(usize),
    Sweep(usize, Duration),
    Lapse(Vec<usize>),
    Cancel(usize),
    Requeue(usize, Option<usize>),
    Resume(usize),
    Purge(usize, Option<usize>),
    Configure(Name, QueueChange),
    Prune(usize),
    Page(Filter, usize),
    Overview,
    Leases(usize),
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

/// The answers that a good set of sequences must contain.
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
    let mut players = [model, Player::on("the other", store, clock)];
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
            let dump = player.store.dump().expect("dump answers");
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
        let ids =
            |jobs: &[tenure::job::JobRecord]| jobs.iter().map(|job| job.id.0).collect::<Vec<_>>();
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

/// One engine, and what was seen on it: the same on all engines as long as they agree.
struct Player {
    name: &'static str,
    store: Box<dyn Explorable>,
    clock: Clock,
    fences: Vec<Fence>,
    cursor: Cursor,
    last_id: i64,
    backup: Option<Dump>,
}

impl Player {
    fn new(engine: Engine, directory: &Path) -> Player {
        let (store, clock) = engine.fresh(directory).expect("a fresh store opens");
        Player::on(engine.name(), store, clock)
    }

    fn on(name: &'static str, store: Box<dyn Explorable>, clock: Clock) -> Player {
        let (fences, cursor) = (Vec::new(), Cursor::default());
        Player { name, store, clock, fences, cursor, last_id: 0, backup: None }
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
                let answer = self.store.enqueue(jobs).expect("enqueue answers");
                self.last_id = self.store.dump().expect("dump answers").next_id - 1;
                format!("{answer:?}")
            }
            Step::Claim(ask) => {
                let claimed = self
                    .store
                    .claim(&Claim { cursor: self.cursor, ..ask.clone() })
                    .expect("claim answers");
                self.remember(&claimed);
                format!("{claimed:?}")
            }
            Step::SettleAndClaim(at, outcome, ask) => {
                let settlement = Settlement::new(self.fence(*at), outcome.clone());
                let ask = Claim { cursor: self.cursor, ..ask.clone() };
                let (settled, claimed) =
                    self.store.settle_and_claim(&[settlement], &ask).expect("it answers");
                self.remember(&claimed);
                format!("{settled:?} {claimed:?}")
            }
            Step::Held(worker, request) => {
                format!("{:?}", self.store.held(worker, *request))
            }
            Step::Renew(at, length) => {
                let fences: Vec<_> = at.iter().map(|at| self.fence(*at)).collect();
                format!("{:?}", self.store.renew(&fences, *length))
            }
            Step::Progress(items) => {
                let report = |(at, progress): &(usize, Progress)| Report {
                    fence: self.fence(*at),
                    progress: progress.clone(),
                };
                let reports: Vec<_> = items.iter().map(report).collect();
                format!("reported: {:?}", self.store.progress(&reports).expect("progress answers"))
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
                format!("{:?}", self.store.settle(&settlements))
            }
            Step::Sweep(limit, grace) => {
                let overdue = self.store.overdue(*limit, *grace).expect("overdue answers");
                format!("{overdue:?} {:?}", self.store.lapse(&overdue))
            }
            Step::Ledger(items) => {
                let entry = |(at, name, act): &(usize, Name, Act)| Entry {
                    fence: self.fence(*at),
                    name: name.clone(),
                    act: act.clone(),
                };
                let entries: Vec<_> = items.iter().map(entry).collect();
                format!("{:?}", self.store.ledger(&entries))
            }
            Step::Resolve(at, effect, how) => {
                format!("{:?}", self.store.resolve(self.job(*at), effect, how))
            }
            Step::Decide(effect, how) => {
                let resolve = |at| self.store.resolve(self.fence(at).job, effect, how);
                format!("{:?}", (0..8).map(resolve).collect::<Vec<_>>())
            }
            Step::Effects(in_doubt, limit) => {
                let filter = EffectFilter { in_doubt: *in_doubt, ..EffectFilter::default() };
                format!("{:?}", self.store.effects(&filter, *limit))
            }
            Step::Register(worker) => {
                let queues = vec![Name::default_queue()];
                let known = Registration { worker: worker.clone(), queues, kinds: None };
                let guarded = self.store.register(&known);
                format!("{guarded:?} {:?}", self.store.workers())
            }
            Step::Retire(worker) => format!("{:?}", self.store.retire(worker)),
            Step::Vanish(limit) => {
                format!("vanished: {:?}", self.store.vanished(*limit).expect("vanished answers"))
            }
            Step::Beat => format!("{:?}", self.store.beat()),
            Step::GuardGap(gap) => {
                format!("{:?} {:?}", self.store.set_guard_gap(*gap), self.store.guard_gap())
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
                self.backup = Some(self.store.dump().expect("dump answers"));
                String::new()
            }
            Step::GoBack => match self.backup.clone() {
                Some(backup) => format!("{:?}", self.store.go_back(&backup)),
                None => String::new(),
            },
            Step::Check(limit) => {
                let checked = self.store.check(None, *limit).expect("check answers");
                let wrong: Vec<_> = checked.wrong.iter().map(|it| (it.job, it.rule)).collect();
                format!("{} {:?} wrong: {wrong:?}", checked.looked, checked.next)
            }
            Step::Lapse(at) => {
                let fences: Vec<_> = at.iter().map(|at| self.fence(*at)).collect();
                format!("{:?}", self.store.lapse(&fences))
            }
            Step::Cancel(at) => format!("{:?}", self.store.cancel(&[self.job(*at)])),
            Step::Requeue(at, token) => {
                format!("{:?}", self.store.requeue(&[self.as_seen(*at, *token)]))
            }
            Step::Resume(at) => format!("{:?}", self.store.resume(&[self.job(*at)])),
            Step::Purge(at, token) => {
                format!("{:?}", self.store.purge(&[self.as_seen(*at, *token)]))
            }
            Step::Configure(queue, change) => format!("{:?}", self.store.configure(queue, change)),
            Step::Prune(limit) => format!("{:?}", self.store.prune(*limit)),
            Step::Page(filter, limit) => format!("{:?}", self.store.jobs(filter, *limit)),
            Step::Overview => format!("{:?} {:?}", self.store.overview(), self.store.queues()),
            Step::Leases(limit) => format!("{:?}", self.store.leases(*limit)),
        }
    }

    fn surroundings(&mut self, change: impl FnOnce(&mut Dump)) -> String {
        let mut state = self.store.dump().expect("dump answers");
        change(&mut state);
        format!("{:?}", self.store.load(&state))
    }

    fn remember(&mut self, claimed: &tenure::store::Claimed) {
        self.cursor = claimed.cursor;
        self.fences.extend(claimed.attempts.iter().map(|attempt| attempt.lease.fence()));
    }
}
