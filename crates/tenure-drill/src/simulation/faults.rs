//! The faults that happen to workers, calls and the store: a numbered list that depends on the seed
//! alone, and on nothing that happens in the run. So one fault can be left out while the others
//! stay the same: that is how a failure is shrunk.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use tenure::engine::clock::Chance;

use super::scenario::Scenario;

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A call is lost before it is applied.
    Call,
    /// A call is applied, but its reply is lost.
    Reply,
    /// A call is applied after its sender has given up on it.
    Late,
    /// A worker's process is killed.
    Kill,
    /// A worker stands still, for half a lease to three leases.
    Stall,
    /// One worker cannot reach the store, for half a lease to three leases.
    Cut,
    /// A worker is asked to shut down.
    End,
    /// The store answers no call for a while.
    Down,
    /// The store keeps all callers waiting, for up to ten leases.
    Freeze,
    /// The store can be read, but every write fails, for a while.
    Full,
    /// The store's clock is set, forward or back.
    Jump,
    /// The whole machine is suspended for up to three leases, and wakes up.
    Sleep,
    /// The database goes back to an earlier state, as after the promotion of a replica.
    Failover,
    /// An operator cancels a job.
    Cancel,
    /// An operator requeues a job that has ended.
    Requeue,
    /// A caller enqueues a job under a key, sometimes twice.
    Enqueue,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 16] = [
        Kind::Call,
        Kind::Reply,
        Kind::Kill,
        Kind::Late,
        Kind::Stall,
        Kind::Cut,
        Kind::End,
        Kind::Down,
        Kind::Freeze,
        Kind::Full,
        Kind::Jump,
        Kind::Sleep,
        Kind::Failover,
        Kind::Cancel,
        Kind::Requeue,
        Kind::Enqueue,
    ];

    /// The name, as in the command line options.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Call => "call",
            Kind::Reply => "reply",
            Kind::Late => "late",
            Kind::Kill => "kill",
            Kind::Stall => "stall",
            Kind::Cut => "cut",
            Kind::End => "end",
            Kind::Down => "down",
            Kind::Freeze => "freeze",
            Kind::Full => "full",
            Kind::Jump => "jump",
            Kind::Sleep => "sleep",
            Kind::Failover => "failover",
            Kind::Cancel => "cancel",
            Kind::Requeue => "requeue",
            Kind::Enqueue => "enqueue",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Kind, String> {
        let named = Kind::ALL.into_iter().find(|kind| kind.name() == text);
        named.ok_or_else(|| format!("{text:?} is none of {}", Kind::ALL.map(Kind::name).join(", ")))
    }
}

/// One fault of a run.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    /// The number of the fault, from 1.
    pub(super) number: u32,
    /// The turn at which it happens.
    pub(super) turn: u64,
    pub(super) kind: Kind,
    /// Decides which worker is affected, and how much. Each fault has a random sequence of its own,
    /// so that leaving one fault out does not change the others.
    pub(super) chance: Chance,
}

/// All faults of a run, in order, without end.
#[derive(Debug)]
pub(super) struct Faults {
    seed: u64,
    /// In how many out of a million turns a call or reply is lost, and in how many another fault
    /// happens.
    losses: u64,
    blows: u64,
    last: Option<(u32, u64)>,
}

impl Faults {
    pub(super) fn new(scenario: &Scenario, seed: u64) -> Faults {
        let rate = |one_in: u64| 1_000_000_u64.checked_div(one_in).unwrap_or(0);
        // A random sequence other than the scheduler's, which begins with the same seed.
        let seed = Chance::seeded(!seed).bits();
        let (losses, blows) = (2 * rate(scenario.lost_in), rate(scenario.kill_in));
        Faults { seed, losses, blows, last: Some((0, 0)) }
    }
}

impl Iterator for Faults {
    type Item = Fault;

    fn next(&mut self) -> Option<Fault> {
        let all = self.losses + self.blows;
        let mean = 1_000_000_u64.checked_div(all)?;
        let (number, turn) = self.last?;
        let number = number + 1;
        let mut chance = Chance::seeded(self.seed ^ (u64::from(number) << 20));
        let turn = turn + 1 + chance.below(2 * mean);
        let loses = chance.below(all) < self.losses;
        let throw = chance.below(100);
        let lost = match throw {
            0..45 => Kind::Call,
            45..90 => Kind::Reply,
            _ => Kind::Late,
        };
        let kind = match throw {
            _ if loses => lost,
            0..16 => Kind::Kill,
            16..33 => Kind::Stall,
            33..39 => Kind::Cut,
            39..46 => Kind::End,
            46..52 => Kind::Down,
            52..56 => Kind::Freeze,
            56..60 => Kind::Full,
            60..66 => Kind::Jump,
            66..69 => Kind::Sleep,
            69..72 => Kind::Failover,
            72..82 => Kind::Cancel,
            82..90 => Kind::Requeue,
            _ => Kind::Enqueue,
        };
        self.last = Some((number, turn));
        Some(Fault { number, turn, kind, chance })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_always_brings_the_same_faults_and_none_where_none_are_wanted() {
        let told = |seed| {
            let faults = Faults::new(&Scenario::default(), seed).take(50);
            faults.map(|fault| (fault.number, fault.turn, fault.kind)).collect::<Vec<_>>()
        };
        assert_eq!(told(7), told(7));
        assert_ne!(told(7), told(8));
        assert!(Faults::new(&Scenario::default().faultless(), 7).next().is_none());
    }

    #[test]
    fn a_kind_is_read_as_it_is_written() {
        assert!(Kind::ALL.into_iter().all(|kind| kind.name().parse() == Ok(kind)));
        assert!("quake".parse::<Kind>().is_err());
    }
}
