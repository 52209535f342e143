//! The dispatcher: one per worker. It settles attempts that have ended and claims jobs for the
//! free slots, both in one call where it can.
//!
//! Attempts that end while a call is under way are settled with the next one: a busy worker settles
//! in batches, and an idle one does not wait. After a call whose answer was lost, the dispatcher
//! repeats the settlements, asks the store which jobs that claim leased, and starts them. The lost
//! claim may reach the store even later and lease jobs then; so the dispatcher asks about it again
//! from time to time, for as long as one lease.
//!
//! It may claim more attempts than there are free slots; the desk computes how many may wait there.
//! They begin as soon as a slot is free, without the dispatcher.
//!
//! While its call is under way, a [relief](super::relief) may make another one.
//!
//! One claim does not always check everything: it asks for some of the worker's queues at a time,
//! and it may stop midway around the ring. The claims that together have checked everything are a
//! round. Only a complete round shows that there is nothing to do.

mod lost;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use self::lost::Lost;
use super::settle::Settler;
use super::{NextStep, Plan, attempt};
use crate::clock::Moment;
use crate::desk::{Desk, Found, Hold, Stage, Unwritten, may_wait};
use crate::job::Name;
use crate::store::{Attempt, Claim, Claimed, Cursor, Error, Result, Work};
use crate::telemetry::{Exit, Fact};

/// How long ended attempts may gather while other jobs still run, counted from the last answer.
const GATHER: Duration = Duration::from_millis(1);
/// How long an idle worker waits before it checks the store if nothing wakes it.
const IDLE: Duration = Duration::from_secs(1);
/// How much longer it waits for each worker that shares the store: together the idle workers check
/// the store about thirty times a second, however many they are.
const SHARE: Duration = Duration::from_millis(30);
/// The longest wait, because a wake-up may be lost.
const LONGEST: Duration = Duration::from_secs(30);
/// How long it waits if a job is due but could not be claimed.
const BUSY: Duration = Duration::from_millis(50);
/// How many queues one claim asks for: each costs the store a lookup of its own.
pub(super) const QUEUES: usize = 32;
/// The longest pause after a failed call.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a worker that must end keeps trying to give back its jobs. After that it exits, and
/// other workers notice the end of its process.
const GIVE_UP: Duration = Duration::from_secs(10);

/// How long an idle worker waits until its next check, after `in_vain` checks that found nothing.
/// The wait starts short, because a queue that had work often has more soon, without a wake-up.
fn pause(in_vain: u32, company: usize) -> Duration {
    const FIRST: Duration = Duration::from_millis(5);
    const DOUBLINGS: u32 = 6;
    let idle = SHARE * u32::try_from(company).unwrap_or(u32::MAX);
    if in_vain < DOUBLINGS { FIRST * 2_u32.pow(in_vain) } else { idle.clamp(IDLE, LONGEST) }
}

/// Runs the handlers.
pub trait Crew {
    /// Another crew like this one, for the relief.
    fn another(&mut self) -> Self;

    /// Starts to run a job. When the handler has returned, the crew calls [`Desk::returned`].
    fn start(&mut self, attempt: Attempt, hold: Arc<Hold>);
}

/// Starts the attempts of a claim that was sent at `asked`. Those that find no free slot wait on
/// the desk, or are given back if they may not wait.
pub(super) fn start(
    plan: &Plan,
    desk: &Desk,
    crew: &mut impl Crew,
    mut attempts: Vec<Attempt>,
    asked: Moment,
) {
    // Attempts that may not wait come first, so that they get the free slots.
    attempts.sort_by_key(may_wait);
    for attempt in attempts {
        let Some(hold) = attempt::begin(plan, desk, &attempt, asked) else {
            continue;
        };
        if let Some((attempt, hold)) = desk.seat(attempt, hold, asked) {
            crew.start(attempt, hold);
        }
    }
}

/// The dispatcher's state.
pub struct Dispatcher<C> {
    plan: Arc<Plan>,
    desk: Arc<Desk>,
    crew: C,
    settler: Settler,
    ask: Claim,
    /// The worker's other queues, in the order of their turns, each with the position where its
    /// last claim ended.
    others: VecDeque<(Vec<Name>, Cursor)>,
    /// How many turns are left in this round.
    turns: usize,
    /// Whether it goes through a round without a pause: something has changed, or nothing would
    /// wake it.
    hurries: bool,
    /// The last round checked everything, and left places free.
    dry: bool,
    /// It pauses, and continues its round at the next check.
    rests: bool,
    /// Claims whose answers were lost.
    lost: Vec<Lost>,
    /// When to check the store even if nothing has happened.
    look: Moment,
    /// How many times in a row it found nothing.
    in_vain: u32,
    /// Set if the last check found nothing and changes in the store wake this worker: the time
    /// until which it may rest, because then the next job is due.
    may_rest: Option<Moment>,
    /// When the answer to the last call was there.
    answered: Moment,
    /// Whether there was a call in the last step.
    has_called: bool,
    /// Whether the store wrote something in that call.
    wrote: bool,
    failures: u32,
    /// No call before this time, after a failure.
    pause: Moment,
    /// When it expected to be called again.
    expected: Moment,
    /// When it ends even if the store has not answered everything.
    give_up: Option<Moment>,
    exit: Option<Exit>,
}

impl<C: Crew> Dispatcher<C> {
    /// The dispatcher of the worker at this desk.
    pub fn new(plan: Arc<Plan>, desk: Arc<Desk>, crew: C, now: Moment) -> Dispatcher<C> {
        let mut others: VecDeque<_> =
            plan.queues.chunks(QUEUES).map(|some| (some.to_vec(), Cursor::default())).collect();
        let (queues, _) = others.pop_front().unwrap_or_default();
        let ask = Claim {
            queues,
            kinds: plan.kinds.clone(),
            ..Claim::new(plan.worker.clone(), 0, plan.lease)
        };
        desk.claim_ahead(plan.ahead);
        Dispatcher {
            plan,
            desk,
            crew,
            settler: Settler::default(),
            ask,
            turns: others.len() + 1,
            others,
            hurries: true,
            dry: false,
            rests: false,
            lost: Vec::new(),
            look: now,
            in_vain: 0,
            may_rest: None,
            answered: Moment::default(),
            has_called: false,
            wrote: false,
            failures: 0,
            pause: now,
            expected: now,
            give_up: None,
            exit: None,
        }
    }

    /// Does what is due, and returns when to call it again.
    pub fn step(&mut self, store: &mut dyn Work, now: Moment) -> NextStep {
        let grace = self.grace(now);
        if std::mem::take(&mut self.has_called) {
            self.answered = now;
        }
        let revoke = self.desk.revoke(now);
        while let Some((attempt, hold)) = self.desk.next() {
            self.crew.start(attempt, hold);
        }
        let found = self.settler.gather(&self.desk, now);
        for (request, sent) in self.desk.take_lost() {
            self.lost.push(Lost { request, sent, ask: now, was_asked: false });
        }
        let mut next = self.act(store, now, found, grace);
        if let NextStep::At(at) = next {
            let at = revoke.map_or(at, |revoke| revoke.min(at));
            self.expected = at;
            next = NextStep::At(at);
        }
        if next == NextStep::Done {
            self.exit = Some(self.reason(found));
            let leaves_nothing = !self.leaves_something(found);
            for (effect, Unwritten { about, verb, error }) in self.desk.close(leaves_nothing) {
                let error = error.unwrap_or_else(|| "the store has not answered".into());
                let given_up = true;
                self.plan.tell(&about, Fact::EffectUnrecorded { effect, verb, given_up, error });
            }
        }
        next
    }

    /// The caller reports how long the last step took. If that step was a check that took long and
    /// found nothing, the dispatcher rests for up to twenty times as long and relies on being woken
    /// by changes. So an idle worker does not keep the store busy.
    pub fn took(&mut self, step: Duration, now: Moment) {
        const REST: u32 = 20;
        let rest = step.saturating_mul(REST).min(LONGEST);
        if let Some(due) = self.may_rest.take()
            && rest > IDLE
        {
            self.look = self.look.max(due.min(now + rest));
        }
    }

    fn act(
        &mut self,
        store: &mut dyn Work,
        now: Moment,
        found: Found,
        grace: Duration,
    ) -> NextStep {
        if found.poked || now >= self.look {
            (self.dry, self.rests) = (false, false);
            self.hurries = found.poked || found.company == 0;
        }
        if found.poked {
            // The change may be in a part that this round has already passed.
            self.turns = self.others.len() + 1;
            self.ask.cursor = Cursor::after(self.ask.cursor.group);
        }
        if self.drains(found) {
            (self.hurries, self.rests) = (true, false);
        }
        if self.may_give_up(found) && now >= *self.give_up.get_or_insert(now + GIVE_UP) {
            return NextStep::Done;
        }
        if now < self.pause {
            return NextStep::At(self.pause);
        }
        if self.settler.is_empty() && !self.is_unsure() && self.is_done(found) {
            return NextStep::Done;
        }
        let room = match found.stage {
            Stage::Working if !self.dry && !self.rests => found.room,
            _ => 0,
        };
        if self.may_gather(now, found) {
            self.desk.gather(found.enough - self.settler.pending().len());
            return NextStep::At(self.answered + GATHER);
        }
        let asks = self.next_question().is_some_and(|ask| now >= ask);
        if !self.settler.is_ready(now) && !asks && room == 0 {
            let working = found.stage == Stage::Working && found.free > 0;
            let rest = if working { self.look } else { now + IDLE };
            return NextStep::At(self.earliest(rest));
        }
        self.has_called = true;
        self.wrote = false;
        self.desk.call_begins();
        let answer = self.call(store, now, room, grace, found);
        self.desk.call_ended(answer.is_ok());
        match answer {
            Ok(()) => self.well(now, found),
            Err(error) => self.ill(&error, store, now, found),
        }
    }

    /// Whether it may end without the store's answer once it has tried for [`GIVE_UP`]: when it
    /// gives back running jobs, and when all that is left is a claim whose result is unknown.
    fn may_give_up(&self, found: Found) -> bool {
        found.stage >= Stage::Releasing
            || found.stage == Stage::Finishing && self.settler.is_empty() && self.is_done(found)
    }

    /// Whether ended attempts wait a moment, so that others are settled with them. They wait only
    /// if the last call was answered less than [`GATHER`] ago. So after a quiet time, the first
    /// attempt to end is settled at once.
    fn may_gather(&self, now: Moment, found: Found) -> bool {
        let alone = !self.settler.has_pending() || found.busy == 0;
        !alone && self.settler.pending().len() < found.enough && now.since(self.answered) < GATHER
    }

    fn call(
        &mut self,
        store: &mut dyn Work,
        now: Moment,
        room: usize,
        grace: Duration,
        found: Found,
    ) -> Result<()> {
        self.settler.pass_by_locked(store, self.plan.lease, now)?;
        self.send(store, now, room, grace, found)?;
        if let Err(error) = self.settler.look_up(store, &self.plan, &self.desk, now) {
            self.plan.tell_of_store(&self.desk, &error);
            self.settler.abandon(&self.desk);
        }
        Ok(())
    }

    fn send(
        &mut self,
        store: &mut dyn Work,
        now: Moment,
        room: usize,
        grace: Duration,
        found: Found,
    ) -> Result<()> {
        let settlements = self.settler.settlements(&self.plan, &self.desk);
        if self.next_question().is_some_and(|ask| now >= ask) || room == 0 {
            if !settlements.is_empty() {
                let answers = store.settle(&settlements)?;
                self.wrote = true;
                self.settler.heard(&answers, &self.plan, &self.desk);
            }
            return self.take_up(store, now, found);
        }
        (self.ask.n, self.ask.grace) = (room, grace);
        let request = self.desk.next_request();
        self.ask.request = request;
        // Keeps places on the desk until the attempts of this claim have begun.
        let _places = self.desk.reserve(room);
        self.lost.push(Lost { request, sent: now, ask: now, was_asked: false });
        let answer = if settlements.is_empty() {
            store.claim(&self.ask).map(|claimed| (Vec::new(), claimed))
        } else {
            store.settle_and_claim(&settlements, &self.ask)
        };
        if answer.as_ref().err().is_none_or(Error::did_nothing) {
            self.lost.pop();
        }
        let (answers, claimed) = answer?;
        if !settlements.is_empty() {
            self.settler.heard(&answers, &self.plan, &self.desk);
        }
        self.wrote =
            !settlements.is_empty() || !claimed.attempts.is_empty() || !claimed.lapsed.is_empty();
        self.claimed(claimed, room, now, found.company);
        Ok(())
    }

    /// `rest`, or earlier if there is something to ask the store before that.
    fn earliest(&self, rest: Moment) -> Moment {
        [self.settler.next_look(), self.next_question()]
            .into_iter()
            .flatten()
            .fold(rest, Moment::min)
    }

    fn claimed(&mut self, claimed: Claimed, room: usize, now: Moment, company: usize) {
        self.ask.cursor = claimed.cursor;
        let has_room = claimed.attempts.len() < room;
        self.dry = self.ends_round(has_room);
        self.rests = has_room && !self.dry && !self.hurries;
        if !claimed.attempts.is_empty() {
            self.in_vain = 0;
        } else if self.dry || self.rests {
            self.in_vain = self.in_vain.saturating_add(1);
        }
        let due = claimed.next_due.unwrap_or(LONGEST);
        // A job is due, but this claim leased none: most likely another worker or transaction has
        // locked it. An immediate retry would find it still locked.
        let is_taken = due.is_zero() && claimed.attempts.is_empty();
        let may_rest = claimed.attempts.is_empty() && (self.dry || self.rests) && company > 0;
        self.may_rest = may_rest.then(|| now + due);
        self.look = now + if is_taken { BUSY } else { due.min(pause(self.in_vain, company)) };
        for lapse in &claimed.lapsed {
            self.plan.tell_lapsed(lapse);
        }
        self.desk.claimed(&claimed.attempts, now);
        self.start(claimed.attempts, now);
    }

    /// Whether this claim completes a round: all queues were checked since the last claim that
    /// leased as many jobs as it asked for.
    fn ends_round(&mut self, has_room: bool) -> bool {
        if has_room && self.ask.cursor.is_midway() {
            return false;
        }
        let all = self.others.len() + 1;
        self.turns = if has_room { self.turns - 1 } else { all };
        if let Some((queues, cursor)) = self.others.pop_front() {
            let asked = std::mem::replace(&mut self.ask.queues, queues);
            self.others.push_back((asked, std::mem::replace(&mut self.ask.cursor, cursor)));
        }
        let is_over = self.turns == 0;
        if is_over {
            self.turns = all;
        }
        is_over
    }

    fn start(&mut self, attempts: Vec<Attempt>, asked: Moment) {
        start(&self.plan, &self.desk, &mut self.crew, attempts, asked);
    }

    fn well(&mut self, now: Moment, found: Found) -> NextStep {
        self.plan.tell_answered(&self.desk, self.wrote);
        self.failures = 0;
        // Step again at once: if the round is not complete; if attempts may wait on the desk, so
        // that none waits there too long; if the worker drains, to see whether more jobs are due;
        // or if the settler found attempts whose handlers did not commit, so that the next call
        // settles them.
        let rests = self.dry || self.rests;
        if !rests || self.desk.claims_ahead() || self.drains(found) || self.settler.has_pending() {
            return NextStep::Again;
        }
        NextStep::At(self.earliest(self.look).max(now))
    }

    fn ill(&mut self, error: &Error, store: &mut dyn Work, now: Moment, found: Found) -> NextStep {
        self.settler.unheard(error, store);
        self.plan.tell_of_store(&self.desk, error);
        if error.is_forbidden() {
            self.settler.abandon(&self.desk);
            // Running jobs are given back, unless giving back is what the store refused.
            return if found.stage >= Stage::Releasing { NextStep::Done } else { NextStep::Again };
        }
        self.failures = self.failures.saturating_add(1);
        let pause = Duration::from_millis(25) * 2_u32.pow(self.failures.min(6));
        self.pause = now + pause.min(PAUSE);
        NextStep::At(self.pause)
    }

    /// If this step runs late (the machine was suspended), give other workers one lease of grace
    /// before lapsing their jobs.
    fn grace(&self, now: Moment) -> Duration {
        let late = now.since(self.expected);
        if late > self.plan.lease / 2 { self.plan.lease } else { Duration::ZERO }
    }

    fn drains(&self, found: Found) -> bool {
        self.plan.drain || found.drains
    }

    fn is_done(&self, found: Found) -> bool {
        let settled = found.held == 0 && found.unwritten == 0 && !found.is_relieved;
        match found.stage {
            Stage::Working => self.drains(found) && self.dry && found.busy == 0 && settled,
            Stage::Finishing => settled && found.busy == 0,
            // A handler that has not returned by now is not waited for: its attempt is settled
            // without it.
            Stage::Releasing | Stage::Over => settled,
        }
    }

    /// Whether it would leave something unsettled behind.
    fn leaves_something(&self, found: Found) -> bool {
        !self.settler.is_empty()
            || self.settler.has_abandoned
            || self.is_unsure()
            || found.is_relieved
            || found.held > 0
            || found.unwritten > 0
    }

    fn reason(&self, found: Found) -> Exit {
        match found.stage {
            _ if self.leaves_something(found) || self.desk.has_failed() => Exit::Error,
            Stage::Working if self.settler.refused + found.refused > 0 => Exit::Stale,
            Stage::Working => Exit::Drained,
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
