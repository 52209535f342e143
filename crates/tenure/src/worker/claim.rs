//! The dispatcher: one per process. It settles what has ended and claims for the slots that are free, both in
//! one call where it can.
//!
//! While one call is under way, what ends gathers for the next: a busy worker settles in batches, and an idle one
//! waits for nobody. After a call whose answer was lost it repeats the settlements, asks what it holds,
//! and takes up what it did not know it had.

use std::sync::Arc;
use std::time::Duration;

use super::desk::{Desk, Found, Hold, Stage};
use super::settle::Settler;
use super::{Next, Plan};
use crate::clock::Moment;
use crate::job::BATCH_LIMIT;
use crate::store::{Attempt, Claim, Claimed, Cursor, Error, Result, Store};
use crate::telemetry::{Exit, Fact};

/// How long what ends may gather while other jobs still run, counted from the last call.
const GATHER: Duration = Duration::from_millis(1);
/// How long an idle worker goes without a look of its own, if nothing wakes it.
const IDLE: Duration = Duration::from_secs(1);
/// How long it waits for a job that is due and that it could not get.
const BUSY: Duration = Duration::from_millis(50);
/// How long the pause after a failed call is at most.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a worker that is to end goes on trying to give back what it has. After that, the end of its process
/// tells.
const GIVE_UP: Duration = Duration::from_secs(10);

/// How long until the next look: a queue that had work often has more soon, and nobody need tell.
fn pause(in_vain: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(5);
    const DOUBLINGS: u32 = 6;
    if in_vain < DOUBLINGS { FIRST * 2_u32.pow(in_vain) } else { IDLE }
}

/// Whoever runs the handlers.
pub trait Crew {
    /// Begins to run a job. When it has returned, the desk is told.
    fn start(&mut self, attempt: Attempt, hold: Arc<Hold>);
}

/// The machine.
pub struct Dispatcher<C> {
    plan: Arc<Plan>,
    desk: Arc<Desk>,
    crew: C,
    settler: Settler,
    ask: Claim,
    /// The last claim found less than there was room for.
    dry: bool,
    /// A claim was sent at that moment, and its answer was lost.
    unsure: Option<Moment>,
    /// When to look though nothing has happened.
    look: Moment,
    /// How many claims in a row found nothing.
    in_vain: u32,
    last_call: Moment,
    failures: u32,
    /// Not before this, after a failure.
    pause: Moment,
    /// When it was to be called again.
    expected: Moment,
    /// When it ends although the store has not heard everything.
    give_up: Option<Moment>,
    exit: Option<Exit>,
}

impl<C: Crew> Dispatcher<C> {
    /// The dispatcher of the worker at this desk.
    pub fn new(plan: Arc<Plan>, desk: Arc<Desk>, crew: C, now: Moment) -> Dispatcher<C> {
        let ask = Claim {
            worker: plan.worker.clone(),
            queues: plan.queues.clone(),
            kinds: plan.kinds.clone(),
            n: 0,
            lease: plan.lease,
            cursor: Cursor::default(),
            grace: Duration::ZERO,
        };
        Dispatcher {
            plan,
            desk,
            crew,
            settler: Settler::default(),
            ask,
            dry: false,
            unsure: None,
            look: now,
            in_vain: 0,
            last_call: Moment::default(),
            failures: 0,
            pause: now,
            expected: now,
            give_up: None,
            exit: None,
        }
    }

    /// Does what is due, and tells when to be called again.
    pub fn step(&mut self, store: &mut dyn Store, now: Moment) -> Next {
        let grace = self.grace(now);
        let revoke = self.desk.revoke(now);
        let found = self.settler.gather(&self.desk, now);
        let mut next = self.act(store, now, found, grace);
        if let Next::At(at) = next {
            let at = revoke.map_or(at, |revoke| revoke.min(at));
            self.expected = at;
            next = Next::At(at);
        }
        if next == Next::Done {
            let reason = self.reason(found);
            self.exit = Some(reason);
            self.desk.close(reason != Exit::Error);
        }
        next
    }

    fn act(&mut self, store: &mut dyn Store, now: Moment, found: Found, grace: Duration) -> Next {
        if found.poked || now >= self.look {
            self.dry = false;
        }
        if found.stage >= Stage::Releasing && now >= *self.give_up.get_or_insert(now + GIVE_UP) {
            return Next::Done;
        }
        if now < self.pause {
            return Next::At(self.pause);
        }
        if self.settler.is_empty() && self.unsure.is_none() && self.is_done(found) {
            return Next::Done;
        }
        let room = match found.stage {
            Stage::Working if !self.dry => found.free.min(BATCH_LIMIT),
            _ => 0,
        };
        if self.may_gather(now, found) {
            return Next::At(self.last_call + GATHER);
        }
        if !self.settler.is_ready(now) && self.unsure.is_none() && room == 0 {
            let working = found.stage == Stage::Working && found.free > 0;
            let rest = if working { self.look } else { now + IDLE };
            return Next::At(self.settler.next_look().map_or(rest, |look| look.min(rest)));
        }
        self.last_call = now;
        match self.call(store, now, room, grace) {
            Ok(()) => self.well(now, found),
            Err(error) => self.ill(&error, store, now),
        }
    }

    /// Whether what has ended waits a moment for company: only while the last call was a moment ago, so that the
    /// first to end is settled at once.
    fn may_gather(&self, now: Moment, found: Found) -> bool {
        let alone = !self.settler.has_pending() || found.busy == 0;
        !alone
            && !self.settler.is_full()
            && self.settler.len() < self.plan.slots
            && now.since(self.last_call) < GATHER
    }

    fn call(
        &mut self,
        store: &mut dyn Store,
        now: Moment,
        room: usize,
        grace: Duration,
    ) -> Result<()> {
        self.settler.pass_by_locked(store, self.plan.lease, now)?;
        let settlements = self.settler.settlements(store, &self.plan, &self.desk)?;
        if self.unsure.is_some() || room == 0 {
            if !settlements.is_empty() {
                let answers = store.settle(&settlements)?;
                self.settler.heard(&answers, &self.plan, &self.desk);
            }
            return self.take_up(store);
        }
        (self.ask.n, self.ask.grace) = (room, grace);
        self.unsure = Some(now);
        let claimed = if settlements.is_empty() {
            store.claim(&self.ask)?
        } else {
            let (answers, claimed) = store.settle_and_claim(&settlements, &self.ask)?;
            self.settler.heard(&answers, &self.plan, &self.desk);
            claimed
        };
        self.unsure = None;
        self.claimed(claimed, room, now);
        Ok(())
    }

    /// After a claim whose answer was lost: what it got is asked for, and begun.
    fn take_up(&mut self, store: &mut dyn Store) -> Result<()> {
        if let Some(asked) = self.unsure {
            let held = store.held(&self.plan.worker)?;
            self.unsure = None;
            self.start(held, asked);
        }
        Ok(())
    }

    fn claimed(&mut self, claimed: Claimed, room: usize, now: Moment) {
        self.ask.cursor = claimed.cursor;
        self.dry = claimed.attempts.len() < room;
        self.in_vain = if claimed.attempts.is_empty() { self.in_vain.saturating_add(1) } else { 0 };
        let due = claimed.next_due.unwrap_or(IDLE);
        // What is due and could not be had is somebody else's at this moment: at once, it still would be.
        let is_taken = due.is_zero() && claimed.attempts.is_empty();
        self.look = now + if is_taken { BUSY } else { due.min(pause(self.in_vain)) };
        for lapse in &claimed.lapsed {
            self.plan.tell_lapse(lapse);
        }
        self.start(claimed.attempts, now);
    }

    fn start(&mut self, attempts: Vec<Attempt>, asked: Moment) {
        for attempt in attempts {
            let Some(hold) = self.desk.hold(&attempt, asked, self.plan.lease) else { continue };
            self.plan.tell(
                hold.fence,
                Fact::LeaseAcquired {
                    kind: attempt.kind.clone(),
                    queue: attempt.queue.clone(),
                    tenant: attempt.tenant.clone(),
                    attempt: attempt.attempt,
                },
            );
            self.crew.start(attempt, hold);
        }
    }

    fn well(&mut self, now: Moment, found: Found) -> Next {
        self.plan.tell_of_store(&self.desk, None);
        self.failures = 0;
        // Whoever drains looks at once whether that was all.
        if self.dry && !self.drains(found) { Next::At(self.look.max(now)) } else { Next::Again }
    }

    fn ill(&mut self, error: &Error, store: &mut dyn Store, now: Moment) -> Next {
        self.settler.unheard(error, store);
        self.plan.tell_of_store(&self.desk, Some(error));
        self.failures = self.failures.saturating_add(1);
        let pause = Duration::from_millis(25) * 2_u32.pow(self.failures.min(6));
        self.pause = now + pause.min(PAUSE);
        Next::At(self.pause)
    }

    /// Who comes late, because the machine stood still, lets others wake up before taking their jobs.
    fn grace(&self, now: Moment) -> Duration {
        let late = now.since(self.expected);
        if late > self.plan.lease / 2 { self.plan.lease } else { Duration::ZERO }
    }

    fn drains(&self, found: Found) -> bool {
        self.plan.drain || found.drains
    }

    fn is_done(&self, found: Found) -> bool {
        match found.stage {
            Stage::Working => self.drains(found) && self.dry && found.busy == 0 && found.held == 0,
            Stage::Finishing => found.held == 0 && found.busy == 0,
            // Whoever does not return now will never be heard: its attempt is settled without it.
            Stage::Releasing | Stage::Over => found.held == 0,
        }
    }

    fn reason(&self, found: Found) -> Exit {
        match found.stage {
            // It gives up, and leaves something behind.
            _ if !self.settler.is_empty() || self.unsure.is_some() || found.held > 0 => Exit::Error,
            Stage::Working if self.settler.refused + found.refused > 0 => Exit::Stale,
            Stage::Working => Exit::Success,
            Stage::Finishing | Stage::Releasing | Stage::Over => Exit::Shutdown,
        }
    }

    /// Why it ended, once it has.
    pub fn exit(&self) -> Option<Exit> {
        self.exit
    }
}

#[cfg(test)]
mod tests;
