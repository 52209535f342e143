//! The actors of a schedule, what each of them knows, and what each may do next.
//!
//! A stalled worker is one that makes no move while the others do. A worker that does not know
//! whether its call was applied repeats the call, or asks which jobs it holds: that is the contract
//! of the port.

mod mind;

use std::time::Duration;

use tenure::engine::ledger::{Act, Resolution};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::{Changed, Resolved};
use tenure::{Fence, Json};

use self::mind::Mind;
pub(super) use self::mind::by_claim;
use super::call::{Answer, Call, Jump, TICK, identity};
use super::invariants::Ghosts;
use super::scope::Scope;

/// How an attempt may end, with fixed details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Ending {
    Complete,
    Retry,
    Snooze,
    Release,
    Bury,
    Park,
}

impl Ending {
    /// The settlement that this ending makes.
    pub fn outcome(self) -> Outcome {
        match self {
            Ending::Complete => Outcome::Complete { result: None },
            Ending::Retry => Outcome::Retry { after: Duration::ZERO, error: "it failed".into() },
            Ending::Snooze => Outcome::Snooze { after: TICK },
            Ending::Release => Outcome::Release,
            Ending::Bury => Outcome::Bury { reason: "hopeless".into() },
            Ending::Park => Outcome::Park { reason: "ask Ann".into() },
        }
    }

    fn gives_back(self) -> bool {
        matches!(self, Ending::Snooze | Ending::Release | Ending::Park)
    }
}

/// What a worker writes about the one effect of its job, with fixed details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Doing {
    Open,
    Commit,
    Fail,
    /// The effect was in doubt; record that it took place.
    FindOut,
    /// The effect was in doubt; send it again.
    Resend,
}

impl Doing {
    pub(crate) fn act(self) -> Act {
        match self {
            Doing::Open => Act::Open,
            Doing::Commit => Act::Commit { result: one() },
            Doing::Fail => Act::Fail { error: "no".into() },
            Doing::FindOut => Act::Resolve(Resolution::Committed { result: one() }),
            Doing::Resend => Act::Resolve(Resolution::Resend),
        }
    }
}

/// The result of every effect.
pub(crate) fn one() -> Json {
    Json::check("result", "1", 9).expect("valid JSON")
}

/// What was lost between an actor and the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Loss {
    /// The call never arrived.
    Call,
    /// The call was applied, but its reply was lost.
    Reply,
    /// The store is down and does not answer.
    Down,
}

/// The actor that makes a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Actor {
    Worker(usize),
    /// A caller that wants a job under the key.
    Caller(usize),
    Sweeper,
    Operator,
    Clock,
    /// Faults of servers, clocks and disks.
    Fate,
}

/// One step of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Move {
    pub(crate) actor: Actor,
    pub(crate) call: Call,
    pub(crate) loss: Option<Loss>,
    /// A worker's process dies instead of calling.
    pub(crate) dies: bool,
}

impl Move {
    fn new(actor: Actor, call: Call) -> Move {
        Move { actor, call, loss: None, dies: false }
    }

    /// What reaches the store: nothing if the call was lost or the store is down; the call itself
    /// if only its reply was lost.
    pub(crate) fn arriving(&self) -> Call {
        match self.loss {
            Some(Loss::Call | Loss::Down) => Call::Nothing,
            Some(Loss::Reply) | None => self.call.clone(),
        }
    }
}

/// All actors, and how often each fault or operation may still happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Actors {
    workers: Vec<Mind>,
    /// How often each caller still enqueues. The number falls only when the caller gets the answer:
    /// after a lost call or reply, the caller enqueues again.
    callers: [u8; 2],
    /// The overdue leases that the sweeper found when it last looked.
    seen: Vec<Fence>,
    ticks: u8,
    crashes: u8,
    losses: u8,
    give_backs: u8,
    cancels: u8,
    requeues: u8,
    /// How often a person may still resolve an effect in doubt.
    resolutions: u8,
    /// How often a living worker's lock may still be freed.
    breaks: u8,
    restarts: u8,
    stalls: u8,
    backups: u8,
    failovers: u8,
    outages: u8,
    /// For how many ticks the store is still down.
    down: u8,
    jumps: u8,
}

impl Actors {
    /// For how many ticks each outage lasts.
    const OUTAGE: u8 = 2;

    pub(crate) fn new(scope: &Scope) -> Actors {
        Actors {
            workers: (0..usize::from(scope.workers)).map(|at| Mind::new(identity(at, 0))).collect(),
            callers: [scope.enqueues; 2],
            seen: Vec::new(),
            ticks: scope.ticks,
            crashes: scope.crashes,
            losses: scope.losses,
            give_backs: scope.give_backs,
            cancels: scope.operations,
            requeues: scope.operations,
            resolutions: u8::from(scope.effects),
            breaks: scope.guard.unwrap_or(0),
            restarts: scope.restarts,
            stalls: scope.stalls,
            backups: scope.failovers,
            failovers: scope.failovers,
            outages: scope.outages,
            down: 0,
            jumps: scope.jumps,
        }
    }

    /// The same actors, with the workers permuted.
    pub(crate) fn renamed(&self, places: &[usize]) -> Actors {
        let mut renamed = self.clone();
        for (mind, to) in self.workers.iter().zip(places) {
            renamed.workers[*to] = mind.renamed(*to);
        }
        renamed
    }

    /// Every possible next move. `backup` is the number of the state that the database can go back
    /// to.
    pub(crate) fn moves(&self, scope: &Scope, backup: Option<usize>) -> Vec<Move> {
        let mut moves = Vec::new();
        for at in 0..self.workers.len() {
            self.worker_moves(at, scope, &mut moves);
        }
        if self.ticks > 0 {
            moves.push(Move::new(Actor::Clock, Call::Tick));
        }
        if self.down > 0 {
            return moves;
        }
        let look =
            if self.seen.is_empty() { Call::Overdue } else { Call::Lapse(self.seen.clone()) };
        moves.push(Move::new(Actor::Sweeper, look));
        self.caller_moves(&mut moves);
        let mut may = |possible: bool, actor, call| {
            if possible {
                moves.push(Move::new(actor, call));
            }
        };
        may(scope.enqueues > 0, Actor::Sweeper, Call::Prune);
        may(self.cancels > 0, Actor::Operator, Call::Cancel);
        may(self.requeues > 0, Actor::Operator, Call::Requeue);
        may(scope.endings.contains(&Ending::Park), Actor::Operator, Call::Resume);
        for how in [Resolution::Resend, Resolution::Committed { result: one() }] {
            may(self.resolutions > 0, Actor::Operator, Call::Resolve(how));
        }
        may(scope.guard.is_some(), Actor::Sweeper, Call::Vanished);
        for mind in self.workers.iter().filter(|mind| !mind.unguarded && mind.holds()) {
            may(self.breaks > 0, Actor::Fate, Call::Free(mind.identity));
        }
        may(self.restarts > 0, Actor::Fate, Call::Restart);
        may(self.stalls > 0, Actor::Fate, Call::Stall);
        may(self.outages > 0, Actor::Fate, Call::Down);
        for jump in [Jump::Ahead, Jump::Noticed, Jump::Back] {
            may(self.jumps > 0, Actor::Fate, Call::Jump(jump));
        }
        may(self.backups > 0, Actor::Fate, Call::Backup);
        if let Some(backup) = backup {
            may(self.failovers > 0, Actor::Fate, Call::GoBack(backup));
        }
        moves
    }

    fn caller_moves(&self, moves: &mut Vec<Move>) {
        for (at, _) in self.callers.iter().enumerate().filter(|(_, left)| **left > 0) {
            let ask = Move::new(Actor::Caller(at), Call::Enqueue(at as u8 + 1));
            if self.losses > 0 {
                moves.extend(
                    [Loss::Call, Loss::Reply].map(|loss| Move { loss: Some(loss), ..ask.clone() }),
                );
            }
            moves.push(ask);
        }
    }

    fn worker_moves(&self, at: usize, scope: &Scope, moves: &mut Vec<Move>) {
        let actor = Actor::Worker(at);
        let mind = &self.workers[at];
        for (call, losses) in mind.calls(scope, self.give_backs > 0) {
            let lost = |loss| Move { loss: Some(loss), ..Move::new(actor, call.clone()) };
            if self.down > 0 {
                // While the store is down, no call reaches it. A call is a move only if its missing
                // answer puts the worker in doubt. The others would change nothing.
                moves.extend(mind.doubts(&call).then(|| lost(Loss::Down)));
                continue;
            }
            moves.push(Move::new(actor, call.clone()));
            if self.losses > 0 {
                moves.extend(losses.iter().map(|loss| lost(*loss)));
            }
        }
        if self.crashes > 0 && (mind.holds() || mind.is_unsure()) {
            // The worker's lock ends with its process.
            let end = if scope.guard.is_some() { Call::Free(mind.identity) } else { Call::Nothing };
            moves.push(Move { dies: true, ..Move::new(actor, end) });
        }
    }

    /// The fences that the caller holds, each with the number of the claim that it comes from.
    pub(crate) fn rights(&self, step: &Move) -> Vec<(Fence, u8)> {
        match step.actor {
            Actor::Worker(at) => self.workers[at].rights(),
            _ => Vec::new(),
        }
    }

    /// Updates what the actor knows after a move.
    pub(crate) fn learn(&mut self, step: &Move, answer: &Answer, ghosts: &Ghosts) {
        match step.actor {
            Actor::Clock => {
                self.ticks -= 1;
                self.down = self.down.saturating_sub(1);
            }
            Actor::Sweeper => match answer {
                Answer::Overdue(seen) => self.seen.clone_from(seen),
                Answer::Lapsed(_) => self.seen.clear(),
                _ => {}
            },
            Actor::Operator => match (&step.call, answer) {
                // An operation that was refused costs no budget and changes nothing.
                (_, Answer::Changed(Changed::Refused(_) | Changed::NotFound)) => {}
                (Call::Cancel, _) => self.cancels -= 1,
                (Call::Requeue, _) => self.requeues -= 1,
                (Call::Resolve(_), Answer::Resolved(Resolved::Applied(_))) => self.resolutions -= 1,
                _ => {}
            },
            Actor::Fate => self.suffer(&step.call),
            Actor::Caller(at) => {
                let heard = step.loss.is_none();
                self.callers[at] -= u8::from(heard);
                self.losses -= u8::from(!heard);
            }
            Actor::Worker(at) => self.worker_learns(at, step, answer, ghosts),
        }
    }

    fn suffer(&mut self, call: &Call) {
        match call {
            Call::Free(identity) => {
                self.breaks -= 1;
                let whose = self.workers.iter_mut().filter(|mind| mind.identity == *identity);
                whose.for_each(|mind| mind.unguarded = true);
            }
            Call::Restart => {
                self.restarts -= 1;
                self.workers.iter_mut().for_each(|mind| mind.unguarded = true);
            }
            Call::Stall => self.stalls -= 1,
            Call::Down => {
                self.outages -= 1;
                self.down = Actors::OUTAGE;
            }
            Call::Jump(_) => self.jumps -= 1,
            Call::Backup => self.backups -= 1,
            Call::GoBack(_) => self.failovers -= 1,
            _ => {}
        }
    }

    fn worker_learns(&mut self, at: usize, step: &Move, answer: &Answer, ghosts: &Ghosts) {
        let mind = &mut self.workers[at];
        if step.dies {
            self.crashes -= 1;
            *mind = mind.next_start();
            return;
        }
        self.give_backs -= u8::from(mind.gives_back(&step.call));
        if let Some(loss) = step.loss {
            self.losses -= u8::from(loss != Loss::Down);
            mind.doubt(&step.call);
        } else {
            mind.hear(&step.call, answer, ghosts);
        }
    }
}
