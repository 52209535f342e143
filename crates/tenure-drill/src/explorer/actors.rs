//! Who acts in a schedule, what each of them knows, and what each may do next.
//!
//! A worker that stalls is simply one that does not move while the others do. A worker that does
//! not know whether its call was applied repeats it, or asks what it holds: that is the contract of
//! the port.

use std::time::Duration;

use tenure::job::Json;
use tenure::lease::Fence;
use tenure::ledger::{self, Act, Resolution, Standing};
use tenure::lifecycle::Outcome;
use tenure::store::{Changed, Renewed, Reported, Resolved};

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

/// What a worker asks of the ledger about the one effect of its job, with fixed details.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Doing {
    Open,
    Commit,
    Fail,
    /// It was in doubt, and has happened.
    FindOut,
    /// It was in doubt, and is sent again.
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

/// What every effect comes to.
pub(crate) fn one() -> Json {
    Json::check("result", "1", 9).expect("valid JSON")
}

/// How far a worker has come with the effect of the job it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Progress {
    Untouched,
    /// It may do it now, and perhaps it has.
    Opened,
    Doubtful,
    Ended,
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
    /// What befalls servers and disks.
    Fate,
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
            Actor::Fate => "fate",
        };
        let what = match &self.call {
            _ if self.dies => "dies and starts anew".to_owned(),
            Call::Claim(_) => "claims".to_owned(),
            Call::Held(_) => "asks what it holds".to_owned(),
            Call::Renew(fence) => format!("renews under token {}", fence.token),
            Call::Progress(fence) => {
                format!("tells how far it is under token {}", fence.token)
            }
            Call::Settle(fence, ending) => {
                format!("settles under token {}: {}", fence.token, ending.outcome().verb())
            }
            Call::Overdue => "looks for leases that are over".to_owned(),
            Call::Lapse(fences) => format!("lapses {} lease(s) it has seen", fences.len()),
            Call::Cancel => "cancels job 1".to_owned(),
            Call::Requeue => "requeues job 1".to_owned(),
            Call::Resume => "resumes job 1".to_owned(),
            Call::Tick => "moves on by half a lease".to_owned(),
            Call::Ledger(fence, doing) => {
                format!("asks the ledger under token {}: {}", fence.token, doing.act().verb())
            }
            Call::Resolve(how) => format!("resolves the effect of job 1: {}", how.name()),
            Call::Register(_) => "takes its guard".to_owned(),
            Call::Vanished => "looks for workers that are gone".to_owned(),
            Call::Free(identity) => format!("frees the lock of worker-{identity}"),
            Call::Restart => "starts the server again".to_owned(),
            Call::Backup => "makes a copy of the database".to_owned(),
            Call::GoBack(_) => "restores the copy".to_owned(),
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
    progress: Progress,
    unsure: Option<Unsure>,
    /// It has noticed that its lock is not held, and will take it again.
    unguarded: bool,
}

impl Mind {
    fn new(identity: u8) -> Mind {
        let progress = Progress::Untouched;
        Mind { identity, held: None, progress, unsure: None, unguarded: false }
    }
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
    Ledger(Doing),
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
    /// How often an effect in doubt may still be resolved by a person.
    resolutions: u8,
    /// How often a living worker's lock may still be freed.
    breaks: u8,
    restarts: u8,
    backups: u8,
    failovers: u8,
}

impl Actors {
    pub(crate) fn new(scope: &Scope) -> Actors {
        Actors {
            workers: (0..scope.workers).map(|at| Mind::new(at as u8)).collect(),
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
            backups: scope.failovers,
            failovers: scope.failovers,
        }
    }

    /// Everything that may happen next. `backup` is the state that the database can go back to.
    pub(crate) fn moves(&self, scope: &Scope, backup: Option<usize>) -> Vec<Move> {
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
        if self.resolutions > 0 {
            let ways = [Resolution::Resend, Resolution::Committed { result: one() }];
            moves.extend(ways.map(|how| Move::new(Actor::Operator, Call::Resolve(how))));
        }
        self.moves_of_fate(scope, backup, &mut moves);
        moves
    }

    fn moves_of_fate(&self, scope: &Scope, backup: Option<usize>, moves: &mut Vec<Move>) {
        let mut may = |possible: bool, actor, call| {
            if possible {
                moves.push(Move::new(actor, call));
            }
        };
        may(scope.guard.is_some(), Actor::Sweeper, Call::Vanished);
        for mind in self.workers.iter().filter(|mind| !mind.unguarded && mind.held.is_some()) {
            may(self.breaks > 0, Actor::Fate, Call::Free(mind.identity));
        }
        may(self.restarts > 0, Actor::Fate, Call::Restart);
        may(self.backups > 0, Actor::Fate, Call::Backup);
        if let Some(backup) = backup {
            may(self.failovers > 0, Actor::Fate, Call::GoBack(backup));
        }
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
            (Some(held), Some(Unsure::Ledger(doing))) => {
                may(Call::Ledger(held.fence, doing), &[Loss::Reply]);
            }
            (Some(held), _) => {
                if scope.renewals {
                    may(Call::Renew(held.fence), &[Loss::Reply]);
                }
                if scope.reports {
                    may(Call::Progress(held.fence), &[Loss::Reply]);
                }
                let possible: &[Doing] = match mind.progress {
                    _ if !scope.effects => &[],
                    Progress::Untouched => &[Doing::Open],
                    Progress::Opened => &[Doing::Commit, Doing::Fail],
                    Progress::Doubtful => &[Doing::FindOut, Doing::Resend],
                    Progress::Ended => &[],
                };
                for doing in possible {
                    may(Call::Ledger(held.fence, *doing), &[Loss::Call, Loss::Reply]);
                }
                let sensible = |ending: &&Ending| match ending {
                    _ if !scope.effects => true,
                    Ending::Complete => mind.progress == Progress::Ended,
                    Ending::Park => mind.progress == Progress::Doubtful,
                    _ => true,
                };
                for ending in scope
                    .endings
                    .iter()
                    .filter(|ending| !ending.gives_back() || self.give_backs > 0)
                    .filter(sensible)
                {
                    may(Call::Settle(held.fence, *ending), &[Loss::Call, Loss::Reply]);
                }
            }
        }
        if mind.unguarded {
            may(Call::Register(mind.identity), &[]);
        }
        if self.crashes > 0 && (mind.held.is_some() || mind.unsure.is_some()) {
            // Its lock ends with it.
            let end = if scope.guard.is_some() { Call::Free(mind.identity) } else { Call::Nothing };
            moves.push(Move { dies: true, ..Move::new(actor, end) });
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
            Actor::Sweeper => match answer {
                Answer::Overdue(seen) => self.seen.clone_from(seen),
                Answer::Lapsed(_) => self.seen.clear(),
                _ => {}
            },
            Actor::Operator => match (&step.call, answer) {
                // What was not possible costs nothing, and changes nothing.
                (_, Answer::Changed(Changed::No(_) | Changed::Gone)) => {}
                (Call::Cancel, _) => self.cancels -= 1,
                (Call::Requeue, _) => self.requeues -= 1,
                (Call::Resolve(_), Answer::Resolved(Resolved::Yes(_))) => self.resolutions -= 1,
                _ => {}
            },
            Actor::Fate => match step.call {
                Call::Free(identity) => {
                    self.breaks -= 1;
                    let whose = self.workers.iter_mut().filter(|mind| mind.identity == identity);
                    whose.for_each(|mind| mind.unguarded = true);
                }
                Call::Restart => {
                    self.restarts -= 1;
                    self.workers.iter_mut().for_each(|mind| mind.unguarded = true);
                }
                Call::Backup => self.backups -= 1,
                Call::GoBack(_) => self.failovers -= 1,
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
            *mind = Mind::new(mind.identity + workers);
            return;
        }
        if let Call::Register(_) = step.call {
            mind.unguarded = false;
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
                Call::Ledger(_, doing) => Some(Unsure::Ledger(doing)),
                _ => mind.unsure,
            };
            return;
        }
        let hold = |fence: Fence| Held { fence, ghost: ghosts.latest(fence.job) };
        match answer {
            Answer::Ledger(answer) => {
                mind.unsure = None;
                let doing = if let Call::Ledger(_, doing) = step.call { Some(doing) } else { None };
                match after_ledger(doing, answer) {
                    Some(progress) => mind.progress = progress,
                    None => mind.held = None,
                }
            }
            Answer::Claimed(claimed) => {
                mind.progress = Progress::Untouched;
                mind.held = claimed.attempts.first().map(|attempt| hold(attempt.lease.fence()));
            }
            Answer::Held(held) => {
                mind.unsure = None;
                mind.progress = Progress::Untouched;
                mind.held = held.first().map(|attempt| hold(attempt.lease.fence()));
            }
            Answer::Renewed(Renewed::Held(_)) | Answer::Reported(Reported::Yes) => {}
            Answer::Renewed(_) | Answer::Reported(_) | Answer::Settled(_) => {
                (mind.held, mind.unsure) = (None, None);
            }
            _ => {}
        }
    }
}

/// How far a worker is after an answer; nothing if it has lost the job.
fn after_ledger(doing: Option<Doing>, answer: &ledger::Answer) -> Option<Progress> {
    Some(match (answer, doing) {
        (ledger::Answer::Stale(_) | ledger::Answer::Gone, _) => return None,
        (ledger::Answer::Opened, _) => Progress::Opened,
        (ledger::Answer::InDoubt(_), _) => Progress::Doubtful,
        (ledger::Answer::Recorded, Some(Doing::Resend)) => Progress::Opened,
        (ledger::Answer::Recorded, Some(Doing::Fail)) => Progress::Untouched,
        (ledger::Answer::Recorded | ledger::Answer::Committed(_), _) => Progress::Ended,
        (ledger::Answer::No(Some(Standing::Committed)), _) => Progress::Ended,
        _ => Progress::Untouched,
    })
}
