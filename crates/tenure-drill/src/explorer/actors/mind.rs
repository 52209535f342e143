//! What one worker knows, what it may call next, and what it learns from an answer.

use tenure::Fence;
use tenure::engine::ledger::{self, Standing};
use tenure::engine::store::{Attempt, Renewed, Reported};

use super::super::call::{Answer, Call, identity, place, start};
use super::super::invariants::Ghosts;
use super::super::scope::Scope;
use super::{Doing, Ending, Loss};

/// What one worker knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Mind {
    /// A new identity for each start of the process.
    pub(super) identity: u8,
    held: Vec<Held>,
    progress: Progress,
    unsure: Option<Unsure>,
    /// The worker's lock was freed. The worker knows this, and may register to take the lock again.
    pub(super) unguarded: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Held {
    fence: Fence,
    /// The number of the claim, which the code under test never sees.
    ghost: u8,
}

/// How far a worker is with the effect of the job it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Progress {
    Untouched,
    /// The worker may do the effect now, and perhaps it has.
    Opened,
    Doubtful,
    Ended,
}

/// A call whose outcome the worker does not know.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Unsure {
    Claim,
    Settle(Vec<Ending>),
    /// The worker settled and claimed in one call. First it settles again, then it asks which jobs
    /// it holds.
    SettleAndClaim(Vec<Ending>),
    Ledger(Doing),
}

/// Which losses are possible for a call.
type Losses = &'static [Loss];
const EITHER: Losses = &[Loss::Call, Loss::Reply];
/// Only the reply. A lost call would lead to nothing new: the store is unchanged, and the worker
/// ends up where it was (after a claim, once it has asked which jobs it holds).
const REPLY: Losses = &[Loss::Reply];
const NONE: Losses = &[];

/// Which claim the fence of a job comes from; 0 if the caller does not hold it.
pub(crate) fn by_claim(rights: &[(Fence, u8)], fence: Fence) -> u8 {
    rights.iter().find(|(held, _)| *held == fence).map_or(0, |(_, ghost)| *ghost)
}

impl Mind {
    pub(super) fn new(identity: u8) -> Mind {
        let progress = Progress::Untouched;
        Mind { identity, held: Vec::new(), progress, unsure: None, unguarded: false }
    }

    /// The process dies. The next process knows nothing.
    pub(super) fn next_start(&self) -> Mind {
        Mind::new(identity(place(self.identity), start(self.identity) + 1))
    }

    /// The same worker under the name of another place.
    pub(super) fn renamed(&self, to: usize) -> Mind {
        Mind { identity: identity(to, start(self.identity)), ..self.clone() }
    }

    pub(super) fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    pub(super) fn is_unsure(&self) -> bool {
        self.unsure.is_some()
    }

    pub(super) fn rights(&self) -> Vec<(Fence, u8)> {
        self.held.iter().map(|held| (held.fence, held.ghost)).collect()
    }

    /// All calls that the worker may make next, each with its possible losses.
    pub(super) fn calls(&self, scope: &Scope, may_give_back: bool) -> Vec<(Call, Losses)> {
        let mut calls = match (&self.unsure, self.held.first()) {
            (None, None) => {
                let claim = |n: &u8| (Call::Claim(self.identity, *n), REPLY);
                scope.claims.iter().map(claim).collect()
            }
            (Some(Unsure::Settle(endings) | Unsure::SettleAndClaim(endings)), Some(_)) => {
                vec![(Call::Settle(self.ending(endings)), REPLY)]
            }
            (Some(Unsure::Ledger(doing)), Some(held)) => {
                vec![(Call::Ledger(held.fence, *doing), REPLY)]
            }
            (Some(_), _) => vec![(Call::Held(self.identity), NONE)],
            (None, Some(first)) => self.work(first.fence, scope, may_give_back),
        };
        if self.unguarded {
            calls.push((Call::Register(self.identity), NONE));
        }
        calls
    }

    /// The calls that the worker may make about the jobs it holds.
    fn work(&self, first: Fence, scope: &Scope, may_give_back: bool) -> Vec<(Call, Losses)> {
        let mut calls = Vec::new();
        if scope.renewals {
            let fences = self.held.iter().map(|held| held.fence).collect();
            calls.push((Call::Renew(fences), REPLY));
        }
        if scope.reports {
            calls.push((Call::Progress(first), REPLY));
        }
        if scope.writes {
            calls.push((Call::Write(first), NONE));
        }
        let doings: &[Doing] = match self.progress {
            _ if !scope.effects => &[],
            Progress::Untouched => &[Doing::Open],
            Progress::Opened => &[Doing::Commit, Doing::Fail],
            Progress::Doubtful => &[Doing::FindOut, Doing::Resend],
            Progress::Ended => &[],
        };
        calls.extend(doings.iter().map(|doing| (Call::Ledger(first, *doing), EITHER)));
        let sensible = |ending: &&Ending| match ending {
            _ if ending.gives_back() && !may_give_back => false,
            Ending::Complete if scope.effects => self.progress == Progress::Ended,
            Ending::Park if scope.effects => self.progress == Progress::Doubtful,
            _ => true,
        };
        for ending in scope.endings.iter().filter(sensible) {
            let all = self.ending(&vec![*ending; self.held.len()]);
            calls.push((Call::Settle(all), EITHER));
        }
        if self.held.len() > 1 {
            calls.push((Call::Settle(self.ending(&[Ending::Complete, Ending::Retry])), EITHER));
            calls.push((Call::Settle(self.ending(&[Ending::Complete])), EITHER));
        }
        if scope.in_one_call {
            let most = scope.claims.iter().copied().max().unwrap_or(1);
            for ending in [Ending::Complete, Ending::Retry] {
                let all = self.ending(&vec![ending; self.held.len()]);
                calls.push((Call::SettleAndClaim(all, self.identity, most), EITHER));
            }
        }
        calls
    }

    /// The worker's first jobs, one for each of the endings.
    fn ending(&self, endings: &[Ending]) -> Vec<(Fence, Ending)> {
        self.held.iter().zip(endings).map(|(held, ending)| (held.fence, *ending)).collect()
    }

    /// Whether the worker becomes unsure of an outcome if this call gets no answer. False if the
    /// worker is unsure of an earlier call already.
    pub(super) fn doubts(&self, call: &Call) -> bool {
        let asked = matches!(
            call,
            Call::Claim(..) | Call::Settle(_) | Call::SettleAndClaim(..) | Call::Ledger(..)
        );
        asked && self.unsure.is_none()
    }

    /// Whether this call counts against the scope's limit of jobs that are given back. A repeated
    /// call does not count again.
    pub(super) fn gives_back(&self, call: &Call) -> bool {
        let given = |(_, ending): &(Fence, Ending)| ending.gives_back();
        matches!(call, Call::Settle(endings) if endings.iter().any(given)) && self.unsure.is_none()
    }

    /// The worker has called and got no answer.
    pub(super) fn doubt(&mut self, call: &Call) {
        let endings =
            |endings: &[(Fence, Ending)]| endings.iter().map(|(_, ending)| *ending).collect();
        match call {
            // A lost settlement after a lost settle-and-claim: the outcome of both is still
            // unknown.
            Call::Settle(_) if matches!(self.unsure, Some(Unsure::SettleAndClaim(_))) => {}
            Call::Claim(..) => self.unsure = Some(Unsure::Claim),
            Call::Settle(ends) => self.unsure = Some(Unsure::Settle(endings(ends))),
            Call::SettleAndClaim(ends, ..) => {
                self.unsure = Some(Unsure::SettleAndClaim(endings(ends)));
            }
            Call::Ledger(_, doing) => self.unsure = Some(Unsure::Ledger(*doing)),
            _ => {}
        }
    }

    /// The worker has called and got an answer.
    pub(super) fn hear(&mut self, call: &Call, answer: &Answer, ghosts: &Ghosts) {
        let hold = |attempt: &Attempt| {
            let fence = attempt.lease.fence();
            Held { fence, ghost: ghosts.latest(fence.job) }
        };
        match (call, answer) {
            (Call::Register(_), _) => self.unguarded = false,
            (Call::Ledger(_, doing), Answer::Ledger(answer)) => {
                self.unsure = None;
                match after_ledger(*doing, answer) {
                    Some(progress) => self.progress = progress,
                    None => self.held.clear(),
                }
            }
            (_, Answer::Claimed(claimed)) => {
                self.progress = Progress::Untouched;
                self.held = claimed.attempts.iter().map(hold).collect();
            }
            (_, Answer::SettledAndClaimed(_, claimed)) => {
                self.held = claimed.attempts.iter().map(hold).collect();
            }
            (_, Answer::Held(held)) => {
                self.unsure = None;
                self.progress = Progress::Untouched;
                self.held = held.iter().map(hold).collect();
            }
            (_, Answer::Renewed(renewed)) => {
                let mut answers = renewed.iter();
                self.held.retain(|_| matches!(answers.next(), Some(Renewed::Extended(_))));
            }
            (_, Answer::Reported(Reported::Noted)) => {}
            (_, Answer::Reported(_)) => self.held.clear(),
            (_, Answer::Settled(settled)) => {
                self.held.drain(..settled.len());
                let was = self.unsure.take();
                self.unsure =
                    matches!(was, Some(Unsure::SettleAndClaim(_))).then_some(Unsure::Claim);
            }
            _ => {}
        }
    }
}

/// How far a worker is after an answer; `None` if it has lost the job.
fn after_ledger(doing: Doing, answer: &ledger::Answer) -> Option<Progress> {
    Some(match (answer, doing) {
        (ledger::Answer::Stale(_) | ledger::Answer::NotFound, _) => return None,
        (ledger::Answer::Opened, _) => Progress::Opened,
        (ledger::Answer::InDoubt(_) | ledger::Answer::Decided(_), _) => Progress::Doubtful,
        (ledger::Answer::Recorded, Doing::Resend) => Progress::Opened,
        (ledger::Answer::Recorded, Doing::Fail) => Progress::Untouched,
        (ledger::Answer::Recorded | ledger::Answer::Committed(_), _) => Progress::Ended,
        (ledger::Answer::NotAllowed(Some(Standing::Committed)), _) => Progress::Ended,
        _ => Progress::Untouched,
    })
}
