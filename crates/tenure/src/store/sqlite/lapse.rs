//! How a job is taken back from a holder whose lease is over.

use rusqlite::{Result, named_params};

use super::row;
use super::tx::{Ending, Tx, entry};
use crate::inspect::TimelineEntry;
use crate::lease::Fence;
use crate::lifecycle::{Standing, Verb, after_lapse};
use crate::store::{Lapse, Lapsed};

impl Tx<'_> {
    pub(super) fn overdue(&self, limit: usize) -> Result<Vec<Fence>> {
        let bounds = named_params! { ":now": self.now.as_millis(), ":limit": limit };
        self.all(&self.sql.lapse.overdue, bounds, row::fence)
    }

    pub(super) fn lapse(&self, fences: &[Fence]) -> Result<Vec<Lapsed>> {
        let answer =
            |lapse: Option<Lapse>| lapse.map_or(Lapsed::No, |lapse| Lapsed::Yes(lapse.became));
        fences.iter().map(|fence| self.lapse_one(*fence).map(answer)).collect()
    }

    pub(super) fn lapse_one(&self, fence: Fence) -> Result<Option<Lapse>> {
        let found = self.one(
            &self.sql.lapse.check,
            named_params! { ":job": fence.job.0, ":token": fence.token.0, ":now": self.now.as_millis() },
            row::record,
        )?;
        let Some(job) = found else { return Ok(None) };
        let (next, why) = after_lapse(&Standing::from(&job));
        let became = next.state();
        let mut after = job.clone();
        after.crashes += 1;
        after.token = job.token.next(self.epoch()?);
        self.move_to(&after, next, Ending { result: None, reason: Some(why) })?;
        let line = entry(&job, Verb::Lapse, became, self.now);
        self.note(&TimelineEntry { note: Some(why.to_owned()), ..line })?;
        Ok(job.worker.map(|worker| Lapse { fence, worker, became }))
    }
}
