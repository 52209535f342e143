//! How a holder keeps its lease.

use std::time::Duration;

use rusqlite::{Result, named_params};

use super::row;
use super::tx::Tx;
use crate::clock::millis;
use crate::lease::Fence;
use crate::lifecycle::Verb;
use crate::store::Renewed;

impl Tx<'_> {
    pub(super) fn renew(&self, fences: &[Fence], length: Duration) -> Result<Vec<Renewed>> {
        fences.iter().map(|fence| self.renew_one(*fence, length)).collect()
    }

    fn renew_one(&self, fence: Fence, length: Duration) -> Result<Renewed> {
        let extended = self.one(
            &self.sql.renew.extend,
            named_params! {
                ":job": fence.job.0, ":token": fence.token.0,
                ":now": self.now.as_millis(), ":lease_ms": millis(length),
            },
            |row| Ok(row::time(row.get(0)?)),
        )?;
        if let Some(until) = extended {
            return Ok(Renewed::Held(until));
        }
        match self.current(fence)? {
            None => Ok(Renewed::Gone),
            Some((stale, attempt)) => {
                self.refuse(&stale, attempt, Verb::Renew)?;
                Ok(Renewed::Lost(stale))
            }
        }
    }
}
