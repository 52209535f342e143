//! Long random sequences of calls on all engines in lockstep: every answer and the whole state must
//! agree.
//!
//! A seed gives the same sequence for ever. Steps name fences and jobs by their place in what was
//! seen so far, so that a failing sequence can be made shorter and still makes sense.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU16;
use std::path::Path;
use std::time::Duration;

use tenure::clock::{Chance, Clock};
use tenure::drill::{Dump, Explorable};
use tenure::inspect::Filter;
use tenure::job::{JobId, Json, Key, Name, NewJob, RetryPolicy, State, Tenant};
use tenure::lease::{Fence, Token, WorkerId};
use tenure::lifecycle::Outcome;
use tenure::store::{AsSeen, Claim, Cursor, Pause, QueueChange, Settlement};

use crate::engines::Engine;

/// One call, or a movement of the clock.
#[derive(Debug, Clone)]
enum Step {
    Pass(Duration),
    Enqueue(Vec<NewJob>),
    Claim(Claim),
    Held(WorkerId),
    Renew(Vec<usize>, Duration),
    Settle(Vec<(usize, Outcome, Vec<NewJob>)>),
    SettleAndClaim(usize, Outcome, Claim),
    Sweep(usize),
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

/// How two engines came to differ.
pub struct Difference {
    seed: u64,
    /// What was done, as short as it could be made.
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

/// How often each kind of answer was given: a sequence that never meets a stale worker proves
/// nothing about it.
pub type Answers = BTreeMap<&'static str, usize>;

/// The answers that a good set of sequences must have met.
pub const SOMETIMES: [&str; 16] = [
    "Created(",
    "Existing(",
    "Conflict(",
    "Held(",
    "Lost(",
    "Stale(",
    "TokenMismatch",
    "AlreadySettled",
    "Gone",
    "Yes(Queued)",
    "Yes(Dead)",
    "Yes(Succeeded)",
    "Yes(Parked)",
    "No(",
    "lapsed: [Lapse",
    "next_due: Some",
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

/// Leaves out what can be left out: halves first, then smaller and smaller parts.
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
    let mut answers = Answers::new();
    for (at, step) in steps.iter().enumerate() {
        let mut expected: Option<(String, Dump)> = None;
        for player in &mut players {
            let answer = player.play(step);
            let dump = player.store.dump().expect("dump answers");
            let Some((known, state)) = &expected else {
                count(&answer, &mut answers);
                expected = Some((answer, dump));
                continue;
            };
            let name = player.engine.name();
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
    out
}

/// One engine, and what has been seen on it: equal on all engines as long as they agree.
struct Player {
    engine: Engine,
    store: Box<dyn Explorable>,
    clock: Clock,
    fences: Vec<Fence>,
    cursor: Cursor,
    last_id: i64,
}

impl Player {
    fn new(engine: Engine, directory: &Path) -> Player {
        let (store, clock) = engine.fresh(directory).expect("a fresh store opens");
        Player { engine, store, clock, fences: Vec::new(), cursor: Cursor::default(), last_id: 0 }
    }

    /// A fence that some claim has given out, recent ones more often, or one that nobody ever gave
    /// out.
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
            Step::Held(worker) => format!("{:?}", self.store.held(worker)),
            Step::Renew(at, length) => {
                let fences: Vec<_> = at.iter().map(|at| self.fence(*at)).collect();
                format!("{:?}", self.store.renew(&fences, *length))
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
            Step::Sweep(limit) => {
                let overdue = self.store.overdue(*limit).expect("overdue answers");
                format!("{overdue:?} {:?}", self.store.lapse(&overdue))
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

    fn remember(&mut self, claimed: &tenure::store::Claimed) {
        self.cursor = claimed.cursor;
        self.fences.extend(claimed.attempts.iter().map(|attempt| attempt.lease.fence()));
    }
}

impl Step {
    fn random(chance: &mut Chance) -> Step {
        let at = |chance: &mut Chance| chance.below(1_000) as usize;
        match chance.below(100) {
            0..15 => Step::Pass(
                one_of(chance, &[1, 500, 1_000, 5_000, 20_000, 61_000, 90_000_000]).into_duration(),
            ),
            15..33 => Step::Enqueue((0..1 + chance.below(4)).map(|_| random_job(chance)).collect()),
            33..55 => Step::Claim(random_claim(chance)),
            55..57 => Step::Held(random_worker(chance)),
            57..62 => Step::Renew(
                (0..2).map(|_| at(chance)).collect(),
                one_of(chance, &[10, 5_000, 30_000]).into_duration(),
            ),
            62..76 => {
                Step::Settle((0..1 + chance.below(3)).map(|_| random_settlement(chance)).collect())
            }
            76..79 => {
                Step::SettleAndClaim(at(chance), random_outcome(chance), random_claim(chance))
            }
            79..82 => Step::Sweep(chance.below(5) as usize),
            82..84 => Step::Lapse((0..2).map(|_| at(chance)).collect()),
            84..87 => Step::Cancel(at(chance)),
            87..90 => Step::Requeue(at(chance), (chance.below(2) == 0).then(|| at(chance))),
            90..92 => Step::Resume(at(chance)),
            92..93 => Step::Purge(at(chance), (chance.below(3) == 0).then(|| at(chance))),
            93..95 => Step::Configure(random_queue(chance), random_change(chance)),
            95..96 => Step::Prune(chance.below(6) as usize),
            96..98 => Step::Page(random_filter(chance), chance.below(5) as usize),
            98..99 => Step::Leases(chance.below(5) as usize),
            _ => Step::Overview,
        }
    }
}

trait IntoDuration {
    fn into_duration(self) -> Duration;
}

impl IntoDuration for u64 {
    fn into_duration(self) -> Duration {
        Duration::from_millis(self)
    }
}

fn one_of<T: Clone>(chance: &mut Chance, items: &[T]) -> T {
    items[chance.below(items.len() as u64) as usize].clone()
}

fn name(text: &str) -> Name {
    Name::check("name", text).expect("a valid name")
}

fn random_queue(chance: &mut Chance) -> Name {
    name(one_of(chance, &["default", "default", "bulk", "slow"]))
}

fn random_kind(chance: &mut Chance) -> Name {
    name(one_of(chance, &["mail", "copy", "sum"]))
}

fn random_tenant(chance: &mut Chance) -> Tenant {
    Tenant::check(one_of(chance, &["", "", "acme", "zeta", "t1", "t2"])).expect("a valid tenant")
}

fn random_worker(chance: &mut Chance) -> WorkerId {
    WorkerId::check(one_of(chance, &["ann", "bob", "cid"])).expect("a valid worker id")
}

fn random_job(chance: &mut Chance) -> NewJob {
    let large = format!("\"{}\"", "x".repeat(2_100));
    let args = one_of(chance, &["{}", "{ }", "[1,2]", r#"{"a":1}"#, &large]).to_owned();
    let json = Json::check("args", args, usize::MAX).expect("valid JSON");
    let mut job = NewJob::new(random_kind(chance), json)
        .queue(random_queue(chance))
        .tenant(random_tenant(chance));
    job = job.priority(one_of(chance, &[0, 0, 0, -1, 5]));
    if chance.below(4) == 0 {
        job = job.delay(one_of(chance, &[1_u64, 900, 30_000]).into_duration());
    }
    if chance.below(3) == 0 {
        let window = one_of(chance, &[5_000_u64, 86_400_000]).into_duration();
        let key = Key::check(one_of(chance, &["k1", "k2", "k3", "k4"])).expect("a valid key");
        job = job.key(key.window(window));
    }
    if chance.below(3) == 0 {
        let few = one_of(chance, &[1, 2, 9]);
        job = job.max_attempts(NonZeroU16::new(few).unwrap_or(NewJob::MAX_ATTEMPTS));
    }
    if chance.below(4) == 0 {
        job = job
            .max_crashes(NonZeroU16::new(one_of(chance, &[1, 5])).unwrap_or(NewJob::MAX_CRASHES));
    }
    if chance.below(4) == 0 {
        job = job.max_runtime(one_of(chance, &[3_000_u64, 40_000]).into_duration());
    }
    if chance.below(3) == 0 {
        job = job.retry(one_of(
            chance,
            &[RetryPolicy::Fixed { ms: 700 }, RetryPolicy::List { ms: vec![10, 20_000] }],
        ));
    }
    job
}

fn random_claim(chance: &mut Chance) -> Claim {
    let queues = (0..1 + chance.below(3)).map(|_| random_queue(chance)).collect();
    let kinds = (chance.below(3) == 0)
        .then(|| (0..1 + chance.below(2)).map(|_| random_kind(chance)).collect());
    Claim {
        worker: random_worker(chance),
        queues,
        kinds,
        n: one_of(chance, &[1, 1, 2, 5, 12]),
        lease: one_of(chance, &[800_u64, 5_000, 30_000]).into_duration(),
        cursor: Cursor::default(),
    }
}

fn random_outcome(chance: &mut Chance) -> Outcome {
    match chance.below(8) {
        0..3 => Outcome::Complete {
            result: (chance.below(2) == 0).then(|| Json::check("result", "7", 9).expect("JSON")),
        },
        3 => Outcome::Retry {
            after: one_of(chance, &[0_u64, 700, 9_000]).into_duration(),
            error: "it failed".into(),
        },
        4 => Outcome::Snooze { after: one_of(chance, &[0_u64, 2_000]).into_duration() },
        5 => Outcome::Release,
        6 => Outcome::Bury { reason: "hopeless".into() },
        _ => Outcome::Park { reason: "ask Ann".into() },
    }
}

fn random_settlement(chance: &mut Chance) -> (usize, Outcome, Vec<NewJob>) {
    let then = if chance.below(5) == 0 { vec![random_job(chance)] } else { vec![] };
    (chance.below(1_000) as usize, random_outcome(chance), then)
}

fn random_change(chance: &mut Chance) -> QueueChange {
    // More often resumed than paused, or everything stands still.
    let pause =
        one_of(chance, &[None, Some(Pause::Pause), Some(Pause::Resume), Some(Pause::Resume)]);
    let keep =
        one_of(chance, &[None, None, Some(0_u64), Some(60_000)]).map(IntoDuration::into_duration);
    let keep_dead = one_of(chance, &[None, Some(60_000_u64)]).map(IntoDuration::into_duration);
    QueueChange { pause, keep, keep_dead }
}

fn random_filter(chance: &mut Chance) -> Filter {
    Filter {
        state: one_of(
            chance,
            &[
                None,
                Some(State::Queued),
                Some(State::Dead),
                Some(State::Succeeded),
                Some(State::Running),
            ],
        ),
        queue: (chance.below(3) == 0).then(|| random_queue(chance)),
        tenant: (chance.below(3) == 0).then(|| random_tenant(chance)),
        kind: (chance.below(3) == 0).then(|| random_kind(chance)),
        before: (chance.below(2) == 0).then(|| JobId(1 + chance.below(60) as i64)),
    }
}
