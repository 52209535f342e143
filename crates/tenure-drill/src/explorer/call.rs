//! One call of a store, with fixed details, and its answer.

use std::time::Duration;

use tenure::drill::{Dump, Explorable};
use tenure::engine::clock::Clock;
use tenure::engine::job::{JobId, Json, Key, Name, NewJob, Progress};
use tenure::engine::lease::{Fence, WorkerId};
use tenure::engine::ledger::{self, Entry, Resolution, effect_name};
use tenure::engine::store::{
    AsSeen, Attempt, Changed, Claim, Claimed, Enqueued, Lapse, Lapsed, Pruned, Registration,
    Renewed, Report, Reported, Resolved, Result, Settled, Settlement,
};

use super::actors::{Doing, Ending};

/// The length of a lease.
pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// By how much the clock advances at a time.
pub(crate) const TICK: Duration = Duration::from_secs(1);
/// For how long a key is remembered.
pub(crate) const WINDOW: Duration = Duration::from_secs(2);

/// One call of a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    /// A job under the one key, with the args of this caller.
    Enqueue(u8),
    /// The worker's identity, and how many jobs it claims.
    Claim(u8, u8),
    Held(u8),
    Renew(Vec<Fence>),
    Progress(Fence),
    Settle(Vec<(Fence, Ending)>),
    SettleAndClaim(Vec<(Fence, Ending)>, u8, u8),
    Overdue,
    Lapse(Vec<Fence>),
    Cancel,
    Requeue,
    Resume,
    Prune,
    Ledger(Fence, Doing),
    Resolve(Resolution),
    Register(u8),
    Vanished,
    /// A write to a system outside the store, which refuses a token below the highest it has seen.
    /// The call does not reach the store.
    Write(Fence),
    Tick,
    Jump(Jump),
    /// A worker's lock is freed, whether or not its process has ended.
    Free(u8),
    /// The server restarts; no lock survives that.
    Restart,
    /// No call from any worker reaches the store for longer than a lease. The store notices this by
    /// the gap in the workers' pulse.
    Stall,
    /// The store cannot be reached for a while.
    Down,
    /// A copy of the database is made. The store does not notice.
    Backup,
    /// The database goes back to the state with this number.
    GoBack(usize),
    /// Nothing reaches the store.
    Nothing,
}

impl Call {
    /// Whether the call does not reach the store.
    pub(crate) fn is_outside(&self) -> bool {
        matches!(self, Call::Nothing | Call::Backup | Call::Down | Call::Write(_))
    }
}

/// How a clock jumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Jump {
    /// Ahead, and the store gets no sign of it.
    Ahead,
    /// Ahead, and the store notices, as on a machine that woke from sleep.
    Noticed,
    /// Back.
    Back,
}

impl Jump {
    /// By how many ticks the clock jumps.
    pub(crate) const AHEAD: u32 = 5;
    pub(crate) const BACK: u32 = 3;
}

/// The answer to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Enqueued(Enqueued),
    Claimed(Claimed),
    Held(Vec<Attempt>),
    Renewed(Vec<Renewed>),
    Reported(Reported),
    Settled(Vec<Settled>),
    SettledAndClaimed(Vec<Settled>, Claimed),
    Overdue(Vec<Fence>),
    Lapsed(Vec<Lapsed>),
    Changed(Changed),
    Pruned(Pruned),
    Ledger(ledger::Answer),
    Resolved(Resolved),
    Vanished(Vec<Lapse>),
    Nothing,
}

impl Answer {
    /// What was claimed, by either call that claims.
    pub(crate) fn claimed(&self) -> Option<&Claimed> {
        match self {
            Answer::Claimed(claimed) | Answer::SettledAndClaimed(_, claimed) => Some(claimed),
            _ => None,
        }
    }

    /// What was settled, by either call that settles.
    pub(crate) fn settled(&self) -> Option<&[Settled]> {
        match self {
            Answer::Settled(settled) | Answer::SettledAndClaimed(settled, _) => Some(settled),
            _ => None,
        }
    }
}

pub(crate) fn perform(store: &mut dyn Explorable, clock: &Clock, call: &Call) -> Result<Answer> {
    // Operators act on the first job only.
    let first = JobId(1);
    Ok(match call {
        Call::Enqueue(wish) => Answer::Enqueued(store.enqueue(&[wanted(*wish)])?[0]),
        Call::Claim(identity, n) => Answer::Claimed(store.claim(&claim(*identity, *n))?),
        Call::Held(identity) => Answer::Held(store.held(&worker(*identity), None)?),
        Call::Renew(fences) => Answer::Renewed(store.renew(fences, LEASE)?),
        Call::Progress(fence) => {
            let report = Report { fence: *fence, progress: Progress::new(0.5, "half-way") };
            Answer::Reported(store.progress(&[report])?[0])
        }
        Call::Settle(endings) => Answer::Settled(store.settle(&settlements(endings))?),
        Call::SettleAndClaim(endings, identity, n) => {
            let (settled, claimed) =
                store.settle_and_claim(&settlements(endings), &claim(*identity, *n))?;
            Answer::SettledAndClaimed(settled, claimed)
        }
        Call::Overdue => Answer::Overdue(store.overdue(10, Duration::ZERO)?),
        Call::Lapse(fences) => Answer::Lapsed(store.lapse(fences)?),
        Call::Cancel => Answer::Changed(store.cancel(&[first])?[0]),
        Call::Requeue => Answer::Changed(store.requeue(&[AsSeen::any(first)])?[0]),
        Call::Resume => Answer::Changed(store.resume(&[first])?[0]),
        Call::Prune => Answer::Pruned(store.prune(10)?),
        Call::Ledger(fence, doing) => {
            let name = effect_name("charge").expect("a valid name");
            let entry = Entry { fence: *fence, name, act: doing.act() };
            Answer::Ledger(store.ledger(&[entry])?.remove(0))
        }
        Call::Resolve(how) => {
            let name = effect_name("charge").expect("a valid name");
            Answer::Resolved(store.resolve(first, &name, how)?)
        }
        Call::Register(identity) => {
            store.register(&registration(*identity))?;
            Answer::Nothing
        }
        Call::Vanished => Answer::Vanished(store.vanished(10)?),
        Call::Tick => {
            clock.advance(TICK);
            Answer::Nothing
        }
        Call::Jump(jump) => surroundings(store, |state| match jump {
            Jump::Ahead => state.now = state.now + TICK * Jump::AHEAD,
            Jump::Noticed => {
                state.now = state.now + TICK * Jump::AHEAD;
                state.started_at = state.now;
            }
            Jump::Back => state.now = state.now - TICK * Jump::BACK,
        })?,
        Call::Free(identity) => {
            let gone = worker(*identity);
            surroundings(store, |state| state.held.retain(|held| *held != gone))?
        }
        Call::Restart => surroundings(store, |state| {
            state.started_at = state.now;
            state.held.clear();
        })?,
        Call::Stall => surroundings(store, |state| {
            state.now = state.now + TICK * Jump::AHEAD;
            (state.broke_before, state.broke) = (state.broke, state.now);
        })?,
        Call::Write(_) | Call::Down | Call::Backup | Call::GoBack(_) | Call::Nothing => {
            Answer::Nothing
        }
    })
}

/// Changes the state from outside the store.
fn surroundings(store: &mut dyn Explorable, change: impl FnOnce(&mut Dump)) -> Result<Answer> {
    let mut state = store.dump()?;
    change(&mut state);
    store.load(&state)?;
    Ok(Answer::Nothing)
}

/// The job that a caller enqueues, under the same key as the other caller's.
fn wanted(wish: u8) -> NewJob {
    let args = format!("{{\"amount\":{wish}}}");
    let args = Json::check("args", &args, 100).expect("valid JSON");
    let key = Key::check("order-7").expect("a valid key").window(WINDOW);
    NewJob::new(kind(), args).key(key)
}

/// The kind of every job.
pub(crate) fn kind() -> Name {
    Name::check("kind", "work").expect("a valid name")
}

pub(crate) fn registration(identity: u8) -> Registration {
    Registration::new(worker(identity), vec![Name::default_queue()])
}

fn claim(identity: u8, n: u8) -> Claim {
    Claim::new(worker(identity), usize::from(n), LEASE)
}

fn settlements(endings: &[(Fence, Ending)]) -> Vec<Settlement> {
    let settlement = |(fence, ending): &(Fence, Ending)| Settlement::new(*fence, ending.outcome());
    endings.iter().map(settlement).collect()
}

/// The names of workers, which also limit how many there are.
pub(crate) const NAMES: [&str; 4] = ["ann", "bob", "cleo", "dora"];
/// The identity of the healthy worker that brings all jobs to their end after the faults (I11).
pub(crate) const HEALER: u8 = u8::MAX;

/// An identity combines a worker's place with a number that rises with each start of its process.
pub(crate) fn identity(place: usize, start: u8) -> u8 {
    place as u8 + start * NAMES.len() as u8
}

/// The place of a worker with this identity.
pub(crate) fn place(identity: u8) -> usize {
    usize::from(identity) % NAMES.len()
}

/// Which start of a worker's process this identity is.
pub(crate) fn start(identity: u8) -> u8 {
    identity / NAMES.len() as u8
}

/// The worker id of an identity: a new one for each start of a process.
pub(crate) fn worker(identity: u8) -> WorkerId {
    let name = match (identity, start(identity)) {
        (HEALER, _) => "healer".to_owned(),
        (_, 0) => NAMES[place(identity)].to_owned(),
        (_, again) => format!("{}-{}", NAMES[place(identity)], again + 1),
    };
    WorkerId::check(name).expect("a valid worker id")
}
