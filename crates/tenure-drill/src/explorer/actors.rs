//! Who acts in a schedule, what each of them knows, and what each may do next.
//!
//! A worker that stalls is simply one that does not move while the others do. A worker that does
//! not know whether its call was applied repeats it, or asks what it holds: that is the contract of
//! the port.

use std::time::Duration;

use tenure::lease::Fence;
use tenure::lifecycle::Outcome;
use tenure::store::{Changed, Renewed};

use super::invariants::Ghosts;
use super::scope::Scope;
use super::{Answer, Call};

/// How an attempt may end, with fixed details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
    /// The settlement that it stands for.
    pub fn outcome(self) -> Outcome {
        match self {
            Ending::Complete => Outcome::Complete { result: None },
            Ending::Retry => Outcome::Retry { after: Duration::ZERO, error: "it failed".into() },
            Ending::Snooze => Outcome::Snooze { after: super::TICK },
            Ending::Release => Outcome::Release,
            Ending::Bury => Outcome::Bury { reason: "hopeless".into() },
            Ending::Park => Outcome::Park { reason: "ask Ann".into() },
        }
    }

    fn gives_back(self) -> bool {
        matches!(self, Ending::Snooze | Ending::Release | Ending::Park)
    }
}

/// What was lost between an actor and the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Loss {
    /// The call never arrived.
    Call,
    /// It was applied, and nobody heard of it.
    Reply,
}

/// Who makes a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Actor {
    Worker(usize),
    Sweeper,
    Operator,
    Clock,
}

/// One step of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Move {
    pub(crate) actor: Actor,
    pub(crate) call: Call,
    pub(crate) loss: Option<Loss>,
    /// A worker's process dies instead of calling.
    dies: bool,
}

impl Move {
    fn new(actor: Actor, call: Call) -> Move {
        Move { actor, call, loss: None, dies: false }
    }

    /// The step in words, for a person who follows the schedule.
    pub(crate) fn words(&self, answer: Option<&Answer>) -> String {
        let who = match self.actor {
            Actor::Worker(0) => "Ann",
            Actor::Worker(_) => "Bob",
            Actor::Sweeper => "the sweeper",
            Actor::Operator => "an operator",
            Actor::Clock => "the clock",
        };
        let what = match &self.call {
            _ if self.dies => "dies and starts anew".to_owned(),
            Call::Claim(_) => "claims".to_owned(),
            Call::Held(_) => "asks what it holds".to_owned(),
            Call::Renew(fence) => format!("renews under token {}", fence.token),
            Call::Settle(fence, ending) => {
                format!("settles under token {}: {}", fence.token, ending.outcome().verb())
            }
            Call::Overdue => "looks for leases that are over".to_owned(),
            Call::Lapse(fences) => format!("lapses {} lease(s) it has seen", fences.len()),
            Call::Cancel => "cancels job 1".to_owned(),
            Call::Requeue => "requeues job 1".to_owned(),
            Call::Resume => "resumes job 1".to_owned(),
            Call::Tick => "moves on by half a lease".to_owned(),
            Call::Nothing => "does nothing".to_owned(),
        };
        let heard = match (self.loss, answer) {
            (Some(Loss::Call), _) => " (the call is lost)".to_owned(),
            (Some(Loss::Reply), _) => " (applied, but the reply is lost)".to_owned(),
            (None, Some(Answer::Nothing) | None) => String::new(),
            (None, Some(Answer::Claimed(claimed))) => match claimed.attempts.first() {
                Some(attempt) => {
                    format!(
                        ": gets job {} under token {}",
                        attempt.lease.job(),
                        attempt.lease.token()
                    )
                }
                None => ": gets nothing".to_owned(),
            },
            (None, Some(answer)) => format!(": {answer:?}"),
        };
        format!("{who} {what}{heard}")
    }
}

/// What one worker knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Mind {
    /// A new one for each start of the process.
    identity: u8,
    held: Option<Held>,
    unsure: Option<Unsure>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Held {
    fence: Fence,
    /// Which claim it was, which the code under test never sees.
    ghost: u8,
}

/// A call whose outcome the worker does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Unsure {
    Claim,
    Settle(Ending),
}

/// All actors, and what is left of the budgets.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Actors {
    workers: Vec<Mind>,
    /// What the sweeper saw when it last looked.
    seen: Vec<Fence>,
    ticks: u8,
    crashes: u8,
    losses: u8,
    give_backs: u8,
    cancels: u8,
    requeues: u8,
}

impl Actors {
    pub(crate) fn new(scope: &Scope) -> Actors {
        let mind = |identity| Mind { identity, held: None, unsure: None };
        Actors {
            workers: (0..scope.workers).map(|at| mind(at as u8)).collect(),
            seen: Vec::new(),
            ticks: scope.ticks,
            crashes: scope.crashes,
            losses: scope.losses,
            give_backs: scope.give_backs,
            cancels: scope.operations,
            requeues: scope.operations,
        }
    }

    /// Everything that may happen next.
    pub(crate) fn moves(&self, scope: &Scope) -> Vec<Move> {
        let mut moves = Vec::new();
        for at in 0..self.workers.len() {
            self.worker_moves(at, scope, &mut moves);
        }
        if self.seen.is_empty() {
            moves.push(Move::new(Actor::Sweeper, Call::Overdue));
        } else {
            moves.push(Move::new(Actor::Sweeper, Call::Lapse(self.seen.clone())));
        }
        if self.ticks > 0 {
            moves.push(Move::new(Actor::Clock, Call::Tick));
        }
        if self.cancels > 0 {
            moves.push(Move::new(Actor::Operator, Call::Cancel));
        }
        if self.requeues > 0 {
            moves.push(Move::new(Actor::Operator, Call::Requeue));
        }
        if scope.endings.contains(&Ending::Park) {
            moves.push(Move::new(Actor::Operator, Call::Resume));
        }
        moves
    }

    fn worker_moves(&self, at: usize, scope: &Scope, moves: &mut Vec<Move>) {
        let mind = &self.workers[at];
        let actor = Actor::Worker(at);
        let mut may = |call: Call, losses: &[Loss]| {
            moves.push(Move::new(actor, call.clone()));
            if self.losses > 0 {
                let lost =
                    |loss: &Loss| Move { loss: Some(*loss), ..Move::new(actor, call.clone()) };
                moves.extend(losses.iter().map(lost));
            }
        };
        match (mind.held, mind.unsure) {
            // A claim that never arrived changes nothing, so only its reply can be lost.
            (None, None) => may(Call::Claim(mind.identity), &[Loss::Reply]),
            (None, Some(_)) => may(Call::Held(mind.identity), &[]),
            (Some(held), Some(Unsure::Settle(ending))) => {
                may(Call::Settle(held.fence, ending), &[Loss::Reply]);
            }
            (Some(held), _) => {
                if scope.renewals {
                    may(Call::Renew(held.fence), &[Loss::Reply]);
                }
                for ending in scope
                    .endings
                    .iter()
                    .filter(|ending| !ending.gives_back() || self.give_backs > 0)
                {
                    may(Call::Settle(held.fence, *ending), &[Loss::Call, Loss::Reply]);
                }
            }
        }
        if self.crashes > 0 && (mind.held.is_some() || mind.unsure.is_some()) {
            moves.push(Move { dies: true, ..Move::new(actor, Call::Nothing) });
        }
    }

    /// Which claim the caller's right comes from.
    pub(crate) fn ghost(&self, step: &Move) -> Option<u8> {
        match step.actor {
            Actor::Worker(at) => self.workers[at].held.map(|held| held.ghost),
            _ => None,
        }
    }

    /// What the actor knows afterwards.
    pub(crate) fn learn(&mut self, step: &Move, answer: &Answer, ghosts: &Ghosts) {
        match step.actor {
            Actor::Clock => self.ticks -= 1,
            Actor::Sweeper => {
                self.seen =
                    if let Answer::Overdue(seen) = answer { seen.clone() } else { Vec::new() };
            }
            Actor::Operator => match (&step.call, answer) {
                // What was not possible costs nothing, and changes nothing.
                (_, Answer::Changed(Changed::No(_) | Changed::Gone)) => {}
                (Call::Cancel, _) => self.cancels -= 1,
                (Call::Requeue, _) => self.requeues -= 1,
                _ => {}
            },
            Actor::Worker(at) => self.worker_learns(at, step, answer, ghosts),
        }
    }

    fn worker_learns(&mut self, at: usize, step: &Move, answer: &Answer, ghosts: &Ghosts) {
        let workers = self.workers.len() as u8;
        let mind = &mut self.workers[at];
        if step.dies {
            self.crashes -= 1;
            *mind = Mind { identity: mind.identity + workers, held: None, unsure: None };
            return;
        }
        if let Call::Settle(_, ending) = step.call
            && ending.gives_back()
            && mind.unsure.is_none()
        {
            self.give_backs -= 1;
        }
        if step.loss.is_some() {
            self.losses -= 1;
            mind.unsure = match step.call {
                Call::Claim(_) => Some(Unsure::Claim),
                Call::Settle(_, ending) => Some(Unsure::Settle(ending)),
                _ => mind.unsure,
            };
            return;
        }
        let hold = |fence: Fence| Held { fence, ghost: ghosts.latest(fence.job) };
        match answer {
            Answer::Claimed(claimed) => {
                mind.held = claimed.attempts.first().map(|attempt| hold(attempt.lease.fence()));
            }
            Answer::Held(held) => {
                mind.unsure = None;
                mind.held = held.first().map(|attempt| hold(attempt.lease.fence()));
            }
            Answer::Renewed(Renewed::Held(_)) => {}
            Answer::Renewed(_) | Answer::Settled(_) => (mind.held, mind.unsure) = (None, None),
            _ => {}
        }
    }
}
