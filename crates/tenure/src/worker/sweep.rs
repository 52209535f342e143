//! The sweeper: takes back what other workers cannot finish, and clears away what nobody needs any more.
//!
//! Any worker sweeps for all, so that nothing else need be running. It looks for lost processes a few times a
//! second, for leases that are over every second, and for what may be deleted every minute.

use std::sync::Arc;
use std::time::Duration;

use super::desk::{Desk, Stage};
use super::{Next, Plan};
use crate::clock::Moment;
use crate::job::BATCH_LIMIT;
use crate::store::{GUARD_GAP, Lapsed, Result, Store};

/// How often it looks for workers whose process is gone. Two looks, [`GUARD_GAP`] apart, find one, so this
/// and that stay well below a second.
const LOOK: Duration = Duration::from_millis(250);
/// How often it looks for leases that are over. Every claim looks as well.
const SWEEP: Duration = Duration::from_secs(1);
/// How often it looks for what may be deleted.
const PRUNE: Duration = Duration::from_secs(60);

/// The machine.
#[derive(Debug)]
pub struct Sweeper {
    plan: Arc<Plan>,
    desk: Arc<Desk>,
    look: Moment,
    sweep: Moment,
    prune: Moment,
}

impl Sweeper {
    /// The sweeper of the worker at this desk, which begins at `now`.
    pub fn new(plan: Arc<Plan>, desk: Arc<Desk>, now: Moment) -> Sweeper {
        Sweeper { plan, desk, look: now, sweep: now + SWEEP, prune: now + PRUNE }
    }

    /// Does what is due, and tells when to be called again.
    pub fn step(&mut self, store: &mut dyn Store, now: Moment) -> Next {
        if self.desk.stage() == Stage::Over {
            return Next::Done;
        }
        if self.desk.is_stalled() {
            return Next::At(now + SWEEP);
        }
        // What failed is tried again in the next round; nobody waits for it.
        if now >= self.look {
            let found = self.look(store).unwrap_or(false);
            self.look = now + if found { GUARD_GAP } else { LOOK };
        }
        if now >= self.sweep {
            let grace = self.grace(now);
            let _ = self.sweep(store, grace);
            self.sweep = now + SWEEP;
        }
        if now >= self.prune {
            let full = store.prune(BATCH_LIMIT);
            let more = full.is_ok_and(|pruned| pruned.jobs.max(pruned.keys) == BATCH_LIMIT);
            self.prune = now + if more { LOOK } else { PRUNE };
        }
        Next::At(self.look.min(self.sweep).min(self.prune))
    }

    /// Who comes late, because the machine stood still, lets others wake up first.
    fn grace(&self, now: Moment) -> Duration {
        let late = now.since(self.sweep);
        if late > self.plan.lease / 2 { self.plan.lease } else { Duration::ZERO }
    }

    fn look(&self, store: &mut dyn Store) -> Result<bool> {
        let gone = store.vanished(BATCH_LIMIT)?;
        for lapse in &gone {
            self.plan.tell_lapse(lapse);
        }
        if !gone.is_empty() {
            self.desk.poke();
        }
        Ok(!gone.is_empty())
    }

    fn sweep(&self, store: &mut dyn Store, grace: Duration) -> Result<()> {
        let over = store.overdue(BATCH_LIMIT, grace)?;
        if over.is_empty() {
            return Ok(());
        }
        let answers = store.lapse(&over)?;
        for (fence, answer) in over.iter().zip(answers) {
            if let Lapsed::Yes(became) = answer {
                self.plan.tell_lapsed(*fence, None, became);
            }
        }
        self.desk.poke();
        Ok(())
    }
}
