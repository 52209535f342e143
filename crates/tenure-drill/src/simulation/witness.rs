//! The simulated outside system: it knows effects by their keys, and keeps the highest fence it has
//! seen for each effect of a job. A failover of the database does not change what it knows.

use std::collections::BTreeMap;

use tenure::engine::job::{JobId, Name};
use tenure::engine::lease::{Fence, Token};

/// What the outside system has seen.
#[derive(Debug, Default)]
pub(super) struct Witness {
    seen: BTreeMap<(JobId, Name), Seen>,
}

#[derive(Debug)]
struct Seen {
    highest: Token,
    /// The number of the claim that showed the highest token.
    claim: u64,
    /// How often the effect was sent and not refused.
    sent: u32,
}

/// The answer of the outside system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heard {
    /// The effect took place now.
    First,
    /// The effect had taken place before, and its key was recognised.
    Again,
    /// A higher fence was seen before.
    Refused,
    /// The effect was accepted, because its fence is not below the highest. But it comes from an
    /// older claim: so the fences did not rise with the claims.
    OlderClaim,
}

impl Witness {
    /// An effect arrives, sent by the claim with this number.
    pub(super) fn receive(&mut self, fence: Fence, effect: &Name, claim: u64) -> Heard {
        let key = (fence.job, effect.clone());
        let Some(seen) = self.seen.get_mut(&key) else {
            self.seen.insert(key, Seen { highest: fence.token, claim, sent: 1 });
            return Heard::First;
        };
        if fence.token < seen.highest {
            return Heard::Refused;
        }
        if claim < seen.claim {
            return Heard::OlderClaim;
        }
        *seen = Seen { highest: fence.token, claim, sent: seen.sent + 1 };
        Heard::Again
    }

    /// Whether the effect has taken place.
    pub(super) fn has(&self, job: JobId, effect: &Name) -> bool {
        self.seen.contains_key(&(job, effect.clone()))
    }

    /// How often the effect was sent and not refused.
    pub(super) fn sent(&self, job: JobId, effect: &Name) -> u32 {
        self.seen.get(&(job, effect.clone())).map_or(0, |seen| seen.sent)
    }
}
