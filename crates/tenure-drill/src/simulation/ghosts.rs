//! What really happened to a job, in the order of commits: by this, every answer is judged.
//!
//! Each claim has a number of its own that the code under test never sees. Without it the worst mistakes, a token that does not
//! rise and a fence without token, would pass unseen.

use std::collections::BTreeMap;
use std::time::Duration;

use tenure::clock::Timestamp;
use tenure::job::{Json, Name, State, Tenant};
use tenure::lease::{Token, WorkerId};
use tenure::lifecycle::{CRASH_MEMORY, Verb};

/// A job as it must be.
#[derive(Debug, Clone)]
pub(super) struct Ghost {
    pub(super) kind: Name,
    pub(super) tenant: Tenant,
    pub(super) state: State,
    /// All claims of it, oldest first, without those of a time that is lost.
    pub(super) claims: Vec<Claimed>,
    /// The highest token that was ever issued for it, also in times that are lost.
    pub(super) highest: Token,
    pub(super) effects: BTreeMap<Name, Effect>,
    /// What is remembered of its steps, and by which claim's word.
    pub(super) steps: BTreeMap<Name, (Json, Option<u64>)>,
    /// Since the last requeue:
    pub(super) starts: u32,
    pub(super) given_back: u32,
    pub(super) crashes: u32,
    /// How many of them may count no more, because their workers were heard of again.
    pub(super) returns: u32,
    pub(super) successes: u32,
    /// When it crashed last, if that is not forgotten.
    pub(super) crashed_at: Option<Timestamp>,
    /// Its handler has not come back since.
    pub(super) unreturned: bool,
}

/// One claim of a job.
#[derive(Debug, Clone)]
pub(super) struct Claimed {
    /// Its own number: larger than that of every earlier claim of any job.
    pub(super) number: u64,
    pub(super) worker: WorkerId,
    /// Its worker's own number of it.
    pub(super) request: i64,
    pub(super) token: Token,
    /// When the lease ends, on the store's clock.
    pub(super) until: Timestamp,
    /// When the lease was last granted, since the beginning.
    pub(super) granted: Duration,
    /// How many of its worker's calls had been lost by then.
    pub(super) losses: u32,
    pub(super) started_at: Timestamp,
    /// It may kill its worker: it has crashed often enough, and its handler has not come back since.
    pub(super) suspect: bool,
    /// How often its workers had vanished before.
    pub(super) crashes: u16,
    /// How often they may.
    pub(super) max_crashes: u16,
    /// It may not be renewed for ever.
    pub(super) is_limited: bool,
    /// Which attempt of the job it is.
    pub(super) attempt: u16,
    /// Nobody heard of it yet.
    pub(super) unheard: bool,
    /// It was applied after its worker had given up on it, and the worker does not know of it.
    pub(super) late: bool,
    /// The job was taken from it, and its worker has not been heard of since.
    pub(super) missing: bool,
    /// How it was settled.
    pub(super) settled: Option<Verb>,
}

/// An effect as it must be.
#[derive(Debug, Clone, Default)]
pub(super) struct Effect {
    /// Which claim has said that it is about to do it, and has not said how it ended.
    pub(super) opened: Option<u64>,
    /// Which claim's word it is that it did not happen.
    pub(super) failed: Option<u64>,
    /// Which claim's word it is that it happened; nothing if it was a person's.
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

    /// The claim under which this worker shows this token.
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

    /// A worker that it was taken from is heard of again: the store may take the crash back.
    pub(super) fn heard_of(&mut self, worker: &WorkerId, token: Token) {
        let missing = self.claim(worker, token).map(|claim| std::mem::take(&mut claim.missing));
        self.returns += u32::from(missing == Some(true));
    }

    /// Its worker has vanished with it.
    pub(super) fn crashed(&mut self, now: Timestamp) {
        if let Some(claim) = self.claims.last_mut() {
            claim.missing = true;
        }
        self.crashes += 1;
        (self.crashed_at, self.unreturned) = (Some(now), true);
    }

    /// Its handler has come back by itself, and the job goes on.
    pub(super) fn came_back(&mut self, now: Timestamp) {
        self.unreturned = false;
        if self.crashed_at.is_some_and(|at| at + CRASH_MEMORY <= now) {
            (self.crashes, self.returns, self.crashed_at) = (0, 0, None);
        }
    }

    /// A person begins to count anew.
    pub(super) fn requeued(&mut self) {
        (self.starts, self.given_back, self.successes) = (0, 0, 0);
        (self.crashes, self.returns) = (0, 0);
        (self.crashed_at, self.unreturned) = (None, false);
        self.state = State::Queued;
    }
}
