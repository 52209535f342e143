//! The relief: a second call of the store while one of the dispatcher's is under way, for stores
//! that can serve two at once.
//!
//! It settles a large batch of ended attempts (half of what the worker can hold, 32 to 1,000) and
//! claims the next ones, and does nothing else. What needs more than that stays with the
//! dispatcher, or goes back to it: repeated settlements, claims whose answer was lost, attempts
//! that must be looked up. After a call that failed it rests until the dispatcher's calls succeed
//! again.
//!
//! Its claims take no suspects. A worker takes one suspect at a time, but two claims at the same
//! time could each take one.

use std::collections::VecDeque;
use std::sync::Arc;

use super::dispatch::{self, Crew, QUEUES};
use super::settle::Settler;
use super::{Desk, Plan};
use crate::clock::Moment;
use crate::job::Name;
use crate::store::{Claim, Cursor, Result, Work};

/// The relief's state.
pub struct Relief<C> {
    plan: Arc<Plan>,
    desk: Arc<Desk>,
    crew: C,
    settler: Settler,
    /// The worker's queues, in the order of their turns, each part with the position where its
    /// last claim ended.
    queues: VecDeque<(Vec<Name>, Cursor)>,
}

impl<C: Crew> Relief<C> {
    /// The relief of the dispatcher at this desk.
    pub fn new(plan: Arc<Plan>, desk: Arc<Desk>, crew: C) -> Relief<C> {
        desk.relieve_from(plan.relief);
        let parts = plan.queues.chunks(QUEUES);
        let queues = parts.map(|some| (some.to_vec(), Cursor::default())).collect();
        Relief { plan, desk, crew, settler: Settler::default(), queues }
    }

    /// Makes one call, if there is a batch for it; returns whether the store has answered.
    pub fn step(&mut self, store: &mut dyn Work, now: Moment) -> bool {
        let Some(room) = self.settler.gather_relief(&self.desk, now) else { return false };
        let ask = self.ask(room);
        let failed = self.call(store, &ask, now).err().map(|error| {
            let is_lost = room > 0 && !error.did_nothing();
            let ended = self.settler.hand_over(!error.did_nothing());
            (ended, is_lost.then_some((ask.request, now)))
        });
        let is_answered = failed.is_none();
        self.desk.relieved(failed);
        is_answered
    }

    /// The next claim: of the next part of the queues.
    fn ask(&mut self, n: usize) -> Claim {
        let plan = &self.plan;
        let (queues, cursor) = self.queues.front().cloned().unwrap_or_default();
        Claim {
            queues,
            cursor,
            kinds: plan.kinds.clone(),
            request: self.desk.next_request(),
            suspects: false,
            // Leaves leases that have just ended to the dispatcher, which notices whether this
            // machine was suspended.
            grace: plan.lease,
            ..Claim::new(plan.worker.clone(), n, plan.lease)
        }
    }

    fn call(&mut self, store: &mut dyn Work, ask: &Claim, now: Moment) -> Result<()> {
        let settlements = self.settler.settlements(&self.plan, &self.desk);
        if ask.n == 0 {
            let answers = store.settle(&settlements)?;
            self.settler.heard(&answers, &self.plan, &self.desk);
            return Ok(());
        }
        // Keeps places on the desk until the attempts of this claim have begun.
        let _places = self.desk.reserve(ask.n);
        let (answers, claimed) = store.settle_and_claim(&settlements, ask)?;
        self.settler.heard(&answers, &self.plan, &self.desk);
        if let Some((queues, _)) = self.queues.pop_front() {
            self.queues.push_back((queues, claimed.cursor));
        }
        for lapse in &claimed.lapsed {
            self.plan.tell_lapsed(lapse);
        }
        self.desk.claimed(&claimed.attempts, now);
        dispatch::start(&self.plan, &self.desk, &mut self.crew, claimed.attempts, now);
        Ok(())
    }
}
