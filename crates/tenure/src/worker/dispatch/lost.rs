//! Claims whose answers were lost. The dispatcher asks the store later which jobs such a claim
//! leased, and starts them.

use std::time::Duration;

use super::{Crew, Dispatcher};
use crate::clock::Moment;
use crate::desk::{Found, Stage};
use crate::store::{Result, Work};
use crate::worker::settle;

/// How long it waits before it asks again about a claim whose answer was lost and that had leased
/// nothing so far.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// A claim that was sent and whose answer was lost.
pub(super) struct Lost {
    pub(super) request: i64,
    pub(super) sent: Moment,
    /// When to ask the store what it leased.
    pub(super) ask: Moment,
    /// Whether the store was asked before.
    pub(super) was_asked: bool,
}

impl<C: Crew> Dispatcher<C> {
    /// Whether there is a lost claim that the store has not been asked about yet.
    pub(super) fn is_unsure(&self) -> bool {
        self.lost.iter().any(|lost| !lost.was_asked)
    }

    /// When to ask about a claim whose answer was lost.
    pub(super) fn next_question(&self) -> Option<Moment> {
        self.lost.iter().map(|lost| lost.ask).min()
    }

    /// Asks which jobs the lost claims leased, and starts them. A claim that leased nothing may
    /// still reach the store: the dispatcher asks about it again, until a lease has passed.
    pub(super) fn take_up(
        &mut self,
        store: &mut dyn Work,
        now: Moment,
        found: Found,
    ) -> Result<()> {
        let mut free = if found.stage == Stage::Working { found.free } else { 0 };
        while let Some(place) = self.lost.iter().position(|lost| now >= lost.ask) {
            let Lost { request, sent, .. } = self.lost[place];
            let mut got = store.held(&self.plan.worker, Some(request))?;
            // A lost claim can reach the store late. By then its slots may have been filled, or the
            // worker may be about to end.
            let surplus = got.split_off(free.min(got.len()));
            if !surplus.is_empty() {
                settle::release(store, &self.plan, &self.desk, &surplus)?;
            }
            free -= got.len();
            if !got.is_empty() || !surplus.is_empty() || now.since(sent) > self.plan.lease {
                self.lost.remove(place);
            } else {
                let lost = &mut self.lost[place];
                (lost.ask, lost.was_asked) = (now + ASK_AGAIN, true);
            }
            self.start(got, sent);
        }
        Ok(())
    }
}
