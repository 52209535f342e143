//! What is simulated: how many workers and jobs, and how many faults. A scenario can be written as
//! options of the command that repeats it.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::faults::Kind;

/// What is simulated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// How many workers there are at a time.
    pub workers: usize,
    /// How many jobs there are at the beginning. More are enqueued during the run.
    pub jobs: usize,
    /// How many jobs each worker runs at a time.
    pub slots: usize,
    /// The length of a lease.
    pub lease: Duration,
    /// About one turn in this many loses a call before it is applied, and as many lose a reply; a
    /// tenth of these calls is applied late instead. None at zero.
    pub lost_in: u64,
    /// About one turn in this many brings another fault: a kill, a stall, an operator who cancels;
    /// none at zero.
    pub kill_in: u64,
    /// The kinds of faults that may happen.
    pub faults: BTreeSet<Kind>,
    /// If set, only the faults with these numbers happen.
    pub only: Option<BTreeSet<u32>>,
    /// The faults with these numbers do not happen.
    pub without: BTreeSet<u32>,
}

impl Default for Scenario {
    fn default() -> Self {
        Scenario {
            workers: 5,
            jobs: 300,
            slots: 8,
            lease: Duration::from_secs(10),
            lost_in: 100,
            kill_in: 200,
            faults: Kind::ALL.into_iter().collect(),
            only: None,
            without: BTreeSet::new(),
        }
    }
}

impl Scenario {
    /// The same scenario without faults.
    pub fn faultless(self) -> Scenario {
        Scenario { lost_in: 0, kill_in: 0, ..self }
    }

    /// Whether the fault with this number happens.
    pub(super) fn has(&self, number: u32, kind: Kind) -> bool {
        self.faults.contains(&kind)
            && self.only.as_ref().is_none_or(|only| only.contains(&number))
            && !self.without.contains(&number)
    }

    /// After this many turns no more faults happen, and every job must reach its end.
    pub(super) fn quiet_after(&self) -> u64 {
        800 + 12 * self.jobs as u64
    }

    /// The arguments of `tenure` that run the scenario from this seed.
    pub fn arguments(&self, seed: u64) -> String {
        format!("drill simulate --seed {seed}{self}")
    }
}

/// Writes the scenario as options of the command: those that differ from the default.
impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Scenario::default();
        let numbers = |set: &BTreeSet<u32>| {
            let all: Vec<String> = set.iter().map(u32::to_string).collect();
            // An option needs a value. 0 means no fault, because the first fault has the number 1.
            if all.is_empty() { "0".to_owned() } else { all.join(",") }
        };
        if self.workers != usual.workers {
            write!(f, " --workers {}", self.workers)?;
        }
        if self.jobs != usual.jobs {
            write!(f, " --jobs {}", self.jobs)?;
        }
        if self.slots != usual.slots {
            write!(f, " --slots {}", self.slots)?;
        }
        if self.lease != usual.lease {
            write!(f, " --lease {}ms", self.lease.as_millis())?;
        }
        if self.lost_in != usual.lost_in {
            write!(f, " --lost-in {}", self.lost_in)?;
        }
        if self.kill_in != usual.kill_in {
            write!(f, " --kill-in {}", self.kill_in)?;
        }
        if self.faults != usual.faults {
            let names: Vec<&str> = self.faults.iter().map(|kind| kind.name()).collect();
            write!(f, " --faults {}", names.join(","))?;
        }
        if let Some(only) = &self.only {
            write!(f, " --only-faults {}", numbers(only))?;
        }
        if !self.without.is_empty() {
            write!(f, " --without {}", numbers(&self.without))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_name_what_is_not_as_usual() {
        assert_eq!(Scenario::default().arguments(7), "drill simulate --seed 7");
        let small = Scenario {
            workers: 2,
            jobs: 3,
            lease: Duration::from_millis(1_500),
            faults: BTreeSet::from([Kind::Stall, Kind::Kill]),
            only: Some(BTreeSet::from([11, 4])),
            ..Scenario::default()
        };
        assert_eq!(
            small.arguments(7),
            "drill simulate --seed 7 --workers 2 --jobs 3 --lease 1500ms --faults kill,stall --only-faults 4,11"
        );
    }
}
