//! How far ahead of its free slots a worker claims: as many attempts as its slots will probably
//! begin within the next moments, by how long the same kinds took lately.
//!
//! A worker that claimed for its free slots alone would need a call of the store for each handful
//! of short jobs. A worker that claims far ahead keeps jobs from other workers, and if its process
//! dies, each of these jobs counts a crash. So after a claim that brought a slow or unknown kind
//! nothing is claimed ahead, and the number starts small. Pure: time is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Ended, Returned, may_wait};
use crate::clock::Moment;
use crate::job::{BATCH_LIMIT, Name};
use crate::lifecycle::Outcome;
use crate::store::Attempt;

/// For how long nothing is claimed ahead after an attempt that may not wait, or that was given back.
const CAUTION: Duration = Duration::from_secs(1);
/// The most attempts that wait: what two calls bring.
const MOST: usize = 2 * BATCH_LIMIT;
/// So many kinds are remembered.
const MOST_KINDS: usize = 1_000;

/// What is known about the speed of the jobs.
#[derive(Debug)]
pub(super) struct Pace {
    slots: usize,
    /// How much work may wait, as time that the slots need for it.
    ahead: Duration,
    /// How long handlers of each kind took lately, on average.
    took: BTreeMap<Name, Duration>,
    /// How many attempts may wait now.
    allowed: usize,
    /// How many have ended since that number was last raised.
    ended: usize,
    /// None may wait before this time.
    cautious_until: Moment,
}

impl Pace {
    /// The pace of a worker with `slots` slots that claims nothing ahead yet.
    pub(super) fn new(slots: usize) -> Pace {
        let (ahead, cautious_until) = (Duration::ZERO, Moment::default());
        Pace { slots, ahead, took: BTreeMap::new(), allowed: 0, ended: 0, cautious_until }
    }

    /// From now on so much work may wait.
    pub(super) fn claim_ahead(&mut self, ahead: Duration) {
        self.ahead = ahead;
    }

    /// How many attempts may wait now.
    pub(super) fn allowed(&self) -> usize {
        self.allowed
    }

    /// These attempts have ended.
    pub(super) fn ended(&mut self, attempts: &[Ended], now: Moment) {
        for Ended { about, returned, ran, was_sent } in attempts {
            if *was_sent {
                // It was counted before.
                continue;
            }
            self.ended += 1;
            if matches!(returned, Returned::Settle(Outcome::Release)) {
                // It was given back, perhaps because it waited too long.
                (self.allowed, self.cautious_until) = (0, now + CAUTION);
            } else if let Some(took) = self.took.get_mut(&about.kind) {
                // An eighth of each new value: one outlier does not decide.
                *took = (*took * 7 + *ran) / 8;
            } else if self.took.len() < MOST_KINDS {
                self.took.insert(about.kind.clone(), *ran);
            }
        }
    }

    /// A claim has brought these attempts. Others like them are to be expected.
    pub(super) fn claimed(&mut self, attempts: &[Attempt], now: Moment) {
        if attempts.is_empty() {
            return;
        }
        if !attempts.iter().all(may_wait) {
            self.cautious_until = now + CAUTION;
        }
        if now < self.cautious_until {
            (self.allowed, self.ended) = (0, 0);
            return;
        }
        let slowest = attempts
            .iter()
            .map(|attempt| self.took.get(&attempt.kind).copied().unwrap_or(Duration::MAX))
            .max()
            .unwrap_or(Duration::MAX);
        // The number rises by at most one for each attempt that has ended, because what is known
        // about the speed of a kind may be wrong.
        self.allowed = self.in_time(slowest).min(self.allowed + std::mem::take(&mut self.ended));
    }

    /// How many attempts that take this long the slots begin within `ahead`.
    fn in_time(&self, took: Duration) -> usize {
        let all = self.ahead.as_nanos() * self.slots as u128;
        let count = all / took.as_nanos().max(1);
        usize::try_from(count).unwrap_or(MOST).min(MOST)
    }
}

#[cfg(test)]
mod tests;
