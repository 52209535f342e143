//! Renew: extends leases.

use std::time::Duration;

use rusqlite::{Result, named_params};

use super::row;
use super::tx::Tx;
use crate::clock::millis;
use crate::lease::Fence;
use crate::lifecycle::Verb;
use crate::store::Renewed;

/// Runs `each` over a batch in the order of jobs and tokens, as every engine does, so that refusals
/// of one job are recorded in the same order. Returns the answers in the order of the batch.
pub(super) fn in_one_order<T, A>(
    items: &[T],
    fence: impl Fn(&T) -> Fence,
    mut each: impl FnMut(&T) -> Result<A>,
) -> Result<Vec<A>> {
    let mut places: Vec<usize> = (0..items.len()).collect();
    places.sort_by_key(|at| (fence(&items[*at]).job, fence(&items[*at]).token));
    let mut answers = Vec::with_capacity(items.len());
    for at in places {
        answers.push((at, each(&items[at])?));
    }
    answers.sort_by_key(|(at, _)| *at);
    Ok(answers.into_iter().map(|(_, answer)| answer).collect())
}

impl Tx<'_> {
    pub(super) fn renew(&self, fences: &[Fence], length: Duration) -> Result<Vec<Renewed>> {
        in_one_order(fences, |fence| *fence, |fence| self.renew_one(*fence, length))
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
            return Ok(Renewed::Extended(until));
        }
        match self.current(fence)? {
            None => Ok(Renewed::NotFound),
            Some(stale) => {
                self.refuse(&stale, Verb::Renew)?;
                Ok(Renewed::Stale(stale))
            }
        }
    }
}
