//! What really happened to a job, in the order of commits. Every answer is checked against this.
//!
//! Each claim has a number of its own that the code under test never sees. Without it the worst
//! mistakes, a token that does not rise and a fence without a token, would go unnoticed.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::Timestamp;
use tenure::engine::job::{Json, Name, State, Tenant};
use tenure::engine::lease::{Token, WorkerId};
use tenure::engine::lifecycle::{CRASH_MEMORY, Verb};

/// The expected state of a job.
#[derive(Debug, Clone)]
pub(super) struct Ghost {
    pub(super) kind: Name,
    pub(super) tenant: Tenant,
    pub(super) state: State,
    /// All claims of the job, oldest first, without those that a failover undid.
    pub(super) claims: Vec<Claimed>,
    /// The highest token that was ever issued for the job, including those that a failover undid.
    pub(super) highest: Token,
    pub(super) effects: BTreeMap<Name, Effect>,
    /// The remembered results of its steps, each with the claim that wrote it.
    pub(super) steps: BTreeMap<Name, (Json, Option<u64>)>,
    /// Since the last requeue:
    pub(super) starts: u32,
    pub(super) given_back: u32,
    pub(super) crashes: u32,
    /// How many of the crashes the store may have taken back, because their workers showed their
    /// tokens again.
    pub(super) returns: u32,
    pub(super) successes: u32,
    /// When the job last crashed, unless that is forgotten.
    pub(super) crashed_at: Option<Timestamp>,
    /// The handler has not returned by itself since the last crash.
    pub(super) unreturned: bool,
}

/// One claim of a job.
#[derive(Debug, Clone)]
pub(super) struct Claimed {
    /// The number of the claim: larger than that of every earlier claim of any job.
    pub(super) number: u64,
    pub(super) worker: WorkerId,
    /// The worker's own number of the claim.
    pub(super) request: i64,
    pub(super) token: Token,
    /// When the lease ends, on the store's clock.
    pub(super) until: Timestamp,
    /// When the lease was last granted, in time since the start of the run.
    pub(super) granted: Duration,
    /// How many of its worker's calls the simulation had lost when the lease was last granted. If
    /// few more were lost when the job lapses, the worker should have renewed in time.
    pub(super) losses: u32,
    pub(super) started_at: Timestamp,
    /// The job is a suspect: it has crashed often enough, and its handler has not returned since.
    pub(super) suspect: bool,
    /// How many crashes the job had before this attempt.
    pub(super) crashes: u16,
    /// How many crashes the job may have.
    pub(super) max_crashes: u16,
    /// The job has a maximum runtime, so its lease cannot be renewed forever.
    pub(super) is_limited: bool,
    /// Which attempt of the job it is.
    pub(super) attempt: u16,
    /// The worker has not got the answer to the claim yet.
    pub(super) unheard: bool,
    /// The claim was applied after its worker had given up on it, and the worker does not know of
    /// it.
    pub(super) late: bool,
    /// The job was taken from this claim, and its worker has not shown its token since.
    pub(super) missing: bool,
    /// How the claim was settled.
    pub(super) settled: Option<Verb>,
}

/// The expected state of an effect.
#[derive(Debug, Clone, Default)]
pub(super) struct Effect {
    /// The claim that opened the effect and has not recorded its outcome.
    pub(super) opened: Option<u64>,
    /// The claim that recorded that the effect did not take place.
    pub(super) failed: Option<u64>,
    /// The claim that recorded that the effect took place; `Some(None)` if a person decided that.
    pub(super) committed: Option<Option<u64>>,
}

impl Ghost {
    pub(super) fn new(kind: Name, tenant: Tenant) -> Ghost {
        Ghost {
            kind,
            tenant,
            state: State::Queued,
            claims: Vec::new(),
            highest: Token::NONE,
            effects: BTreeMap::new(),
            steps: BTreeMap::new(),
            starts: 0,
            given_back: 0,
            crashes: 0,
            returns: 0,
            successes: 0,
            crashed_at: None,
            unreturned: false,
        }
    }

    /// The claim to which this worker's token belongs.
    pub(super) fn claim(&mut self, worker: &WorkerId, token: Token) -> Option<&mut Claimed> {
        self.claims.iter_mut().rev().find(|claim| claim.token == token && claim.worker == *worker)
    }

    /// The claim that holds the job.
    pub(super) fn holder(&mut self) -> Option<&mut Claimed> {
        if self.state == State::Running { self.claims.last_mut() } else { None }
    }

    /// Whether this claim holds the job.
    pub(super) fn is_held_by(&self, number: u64) -> bool {
        self.state == State::Running && self.claims.last().is_some_and(|it| it.number == number)
    }

    /// A worker from which the job was taken shows its token again: the store may take the crash
    /// back.
    pub(super) fn heard_of(&mut self, worker: &WorkerId, token: Token) {
        let missing = self.claim(worker, token).map(|claim| std::mem::take(&mut claim.missing));
        self.returns += u32::from(missing == Some(true));
    }

    /// The job was taken back: that counts as a crash.
    pub(super) fn crashed(&mut self, now: Timestamp) {
        if let Some(claim) = self.claims.last_mut() {
            claim.missing = true;
        }
        self.crashes += 1;
        (self.crashed_at, self.unreturned) = (Some(now), true);
    }

    /// The handler has returned by itself, and the job goes on.
    pub(super) fn came_back(&mut self, now: Timestamp) {
        self.unreturned = false;
        if self.crashed_at.is_some_and(|at| at + CRASH_MEMORY <= now) {
            (self.crashes, self.returns, self.crashed_at) = (0, 0, None);
        }
    }

    /// A requeue resets all counts.
    pub(super) fn requeued(&mut self) {
        (self.starts, self.given_back, self.successes) = (0, 0, 0);
        (self.crashes, self.returns) = (0, 0);
        (self.crashed_at, self.unreturned) = (None, false);
        self.state = State::Queued;
    }
}
