//! One worker of the simulation: the real machines at a real desk, and handlers, all stepped by the
//! scheduler. Also the flaws that a mutant worker has, each of which the proof must notice.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::WorkerId;
use tenure::drill::machines::{
    Crew, Desk, Dispatcher, Hold, NextStep, Plan, Relief, Renewer, Sweeper,
};
use tenure::engine::clock::{Chance, Moment};
use tenure::engine::store::Attempt;

use super::faulty::{Faulty, Shared};
use super::handlers::{Did, Running};
use super::trace::Rare;

/// A flaw of a worker. The machines are always the real ones: the flaw is in the scheduler, the
/// connection or the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// It renews only while no handler is at work, as if one thread did both.
    RenewsAmongHandlers,
    /// It looks for work only when it is notified.
    NeedsNotification,
    /// It treats a settlement that was not answered as applied.
    TakesSilenceForConsent,
    /// After a claim that was not answered, it does not ask which jobs it holds.
    ForgetsWhatItHolds,
    /// It looks up a claim whose answer was lost only once, although the claim may still be applied
    /// later.
    AsksOnce,
    /// Its handlers go on after the store has refused.
    IgnoresRefusal,
    /// It renews at most 16 leases at a time.
    RenewsFew,
    /// All its claims begin at the same place of the ring.
    CursorStands,
    /// Its sweeper deletes nothing.
    NeverPrunes,
    /// Its retries all have the same delay.
    NoJitter,
    /// It does not look for work when it is notified.
    IgnoresPokes,
    /// It decides by its own clock, which is ahead, whether leases of other workers are over.
    OwnClock,
}

/// A running worker.
pub(super) struct Worker {
    pub(super) id: WorkerId,
    pub(super) desk: Arc<Desk>,
    pub(super) dispatcher: Dispatcher<Hands>,
    relief: Relief<Hands>,
    renewer: Renewer,
    sweeper: Sweeper,
    /// Connections: one for each machine, and one for the handlers.
    lines: [Faulty; 5],
    wakes: [Moment; 3],
    running: Arc<Mutex<Vec<Running>>>,
    /// It stands still until then.
    pub(super) stalled: Option<Moment>,
    flaw: Option<Flaw>,
}

/// The handlers of one worker.
pub(super) struct Hands {
    who: WorkerId,
    running: Arc<Mutex<Vec<Running>>>,
    chance: Chance,
    shared: Shared,
    now: Arc<Mutex<Moment>>,
    flaw: Option<Flaw>,
}

impl Crew for Hands {
    fn another(&mut self) -> Hands {
        let (running, now) = (Arc::clone(&self.running), Arc::clone(&self.now));
        let chance = Chance::seeded(self.chance.bits());
        Hands { who: self.who.clone(), running, chance, shared: self.shared.clone(), now, ..*self }
    }

    fn start(&mut self, attempt: Attempt, hold: Arc<Hold>) {
        let (number, quiet) = {
            let mut books = self.shared.books();
            (books.number(&self.who, hold.fence).unwrap_or(0), books.quiet)
        };
        let now = *self.now.lock().expect("one thread");
        hold.begin(now);
        let mood = (quiet, self.flaw);
        let running = Running::new(&attempt, hold, number, &mut self.chance, mood, now);
        self.running.lock().expect("one thread").push(running);
    }
}

/// Something that a worker can do now.
#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    Dispatch,
    Relieve,
    Renew,
    Sweep,
    Handle(usize),
}

/// Whether the worker still lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lives {
    Yes,
    /// It has shut down by itself.
    Ended,
    /// A job killed it.
    Killed,
}

impl Worker {
    pub(super) fn new(
        plan: Plan,
        lines: [Faulty; 5],
        chance: Chance,
        now: (Moment, Arc<Mutex<Moment>>),
        flaw: Option<Flaw>,
    ) -> Worker {
        let plan = Arc::new(plan);
        let desk = Arc::new(Desk::new(plan.slots));
        let running: Arc<Mutex<Vec<Running>>> = Arc::default();
        let (now, time) = now;
        let mut hands = Hands {
            who: plan.worker.clone(),
            running: Arc::clone(&running),
            chance,
            shared: lines[3].shared.clone(),
            now: time,
            flaw,
        };
        Worker {
            id: plan.worker.clone(),
            relief: Relief::new(Arc::clone(&plan), Arc::clone(&desk), hands.another()),
            dispatcher: Dispatcher::new(Arc::clone(&plan), Arc::clone(&desk), hands, now),
            renewer: Renewer::new(Arc::clone(&plan), Arc::clone(&desk)),
            sweeper: Sweeper::new(plan, Arc::clone(&desk), now),
            desk,
            lines,
            wakes: [now; 3],
            running,
            stalled: None,
            flaw,
        }
    }

    /// When each machine wants to be stepped.
    fn wakes(&self, handlers: usize) -> [Option<Moment>; 3] {
        let [dispatch, renew, sweep] = self.wakes;
        let told_only = self.flaw == Some(Flaw::NeedsNotification);
        let among_handlers = self.flaw == Some(Flaw::RenewsAmongHandlers) && handlers > 0;
        [
            if told_only { None } else { Some(dispatch) },
            if among_handlers { None } else { Some(renew) },
            Some(sweep),
        ]
    }

    /// Everything that the worker can do now.
    pub(super) fn ready(&self, now: Moment, place: usize, ready: &mut Vec<(usize, What)>) {
        let running = self.running.lock().expect("one thread");
        let [dispatch, renew, sweep] =
            self.wakes(running.len()).map(|wake| wake.is_some_and(|wake| wake <= now));
        let poked = self.desk.is_poked() && self.flaw != Some(Flaw::IgnoresPokes);
        if dispatch || poked {
            ready.push((place, What::Dispatch));
        }
        if self.desk.has_relief() {
            ready.push((place, What::Relieve));
        }
        if renew {
            ready.push((place, What::Renew));
        }
        if sweep {
            ready.push((place, What::Sweep));
        }
        let due = running.iter().enumerate().filter(|(_, one)| one.is_due(now));
        ready.extend(due.map(|(at, _)| (place, What::Handle(at))));
    }

    /// When the worker next has something to do.
    pub(super) fn next(&self) -> Option<Moment> {
        let running = self.running.lock().expect("one thread");
        let wakes = self.wakes(running.len()).into_iter().flatten();
        let next = running.iter().map(|one| one.at).chain(wakes).min();
        next.map(|next| self.stalled.map_or(next, |until| next.max(until)))
    }

    /// Takes one step.
    pub(super) fn act(&mut self, what: What, now: Moment) -> Lives {
        let [dispatching, renewing, sweeping, handling, relieving] = &mut self.lines;
        match what {
            What::Dispatch => self.wakes[0] = when(self.dispatcher.step(dispatching, now), now),
            What::Relieve => {
                let is_answered = self.relief.step(relieving, now);
                let rare = if is_answered { Rare::Relieved } else { Rare::ReliefFailed };
                relieving.shared.books().count(rare);
            }
            What::Renew => self.wakes[1] = when(self.renewer.step(renewing, now), now),
            What::Sweep => self.wakes[2] = when(self.sweeper.step(sweeping, now), now),
            What::Handle(at) => {
                let mut running = self.running.lock().expect("one thread");
                match running[at].step(handling, &self.desk, now) {
                    Did::Goes => {}
                    Did::Died => return Lives::Killed,
                    Did::Returned(returned) => {
                        let fence = running.swap_remove(at).hold().fence;
                        self.desk.returned(fence, returned, now);
                    }
                }
            }
        }
        if self.dispatcher.exit().is_none() {
            return Lives::Yes;
        }
        // This last step of the renewer retires the worker, if it leaves no jobs behind.
        self.renewer.step(&mut self.lines[1], now);
        Lives::Ended
    }
}

fn when(next: NextStep, now: Moment) -> Moment {
    match next {
        NextStep::Again => now,
        NextStep::At(at) => at,
        NextStep::Done => now + Duration::from_secs(1 << 30),
    }
}
