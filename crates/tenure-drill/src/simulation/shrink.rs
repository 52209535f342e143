//! Shrinks a failing scenario: fewer faults, fewer jobs, fewer workers, as long as the same
//! invariant is broken.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tenure::engine::clock::monotonic;

use super::scenario::Scenario;
use super::{Report, run};
use crate::verdict::{Invariant, Violation};

/// The smallest failing scenario that was found.
#[derive(Debug, Clone)]
pub struct Shrunk {
    /// The scenario.
    pub scenario: Scenario,
    /// The seed; it may differ from the seed of the original run.
    pub seed: u64,
    /// The violation in it.
    pub violation: Violation,
    /// How many runs it took to find.
    pub runs: u32,
}

/// Looks for the smallest scenario that breaks the same invariant as this run, for at most
/// `patience`. `None` if the run broke none.
pub fn shrink(scenario: &Scenario, report: &Report, patience: Duration) -> Option<Shrunk> {
    shrink_with(scenario, report, patience, run)
}

/// Like `shrink`, with the caller's own way to run a scenario.
pub(crate) fn shrink_with(
    scenario: &Scenario,
    report: &Report,
    patience: Duration,
    run: impl Fn(&Scenario, u64) -> Report,
) -> Option<Shrunk> {
    let violation = report.violation.clone()?;
    let mut search = Search {
        run,
        invariant: violation.invariant,
        until: monotonic() + patience,
        best: (scenario.clone(), report.seed),
        violation,
        struck: report.struck.clone(),
        runs: 0,
    };
    // First fewer jobs and workers: after that, each run takes a fraction of the time.
    search.fewer_jobs();
    search.fewer_workers();
    search.fewer_faults();
    search.fewer_jobs();
    search.fewer_workers();
    search.fewer_faults();
    let Search { best: (scenario, seed), violation, runs, .. } = search;
    Some(Shrunk { scenario, seed, violation, runs })
}

struct Search<R> {
    run: R,
    invariant: Invariant,
    until: Instant,
    /// The smallest so far, with its seed.
    best: (Scenario, u64),
    violation: Violation,
    /// The numbers of the faults that happened in that run.
    struck: Vec<u32>,
    runs: u32,
}

impl<R: Fn(&Scenario, u64) -> Report> Search<R> {
    /// Tries a scenario, and keeps it if it breaks the same invariant.
    fn holds(&mut self, scenario: Scenario, seed: u64) -> bool {
        if monotonic() >= self.until {
            return false;
        }
        self.runs += 1;
        let report = (self.run)(&scenario, seed);
        let same = report.violation.filter(|found| found.invariant == self.invariant);
        let Some(violation) = same else { return false };
        self.violation = violation;
        self.struck = report.struck;
        self.best = (scenario, seed);
        true
    }

    /// The same seed gives a different run in a smaller scenario, so try a few other seeds too,
    /// with all faults again.
    fn in_small(&mut self, small: &Scenario) -> bool {
        const OTHERS: u64 = 12;
        let seed = self.best.1;
        let all = Scenario { only: None, ..small.clone() };
        self.holds(small.clone(), seed)
            || (seed..=seed.saturating_add(OTHERS)).any(|seed| self.holds(all.clone(), seed))
    }

    fn fewer_jobs(&mut self) {
        for jobs in [1, 2, 3, 5, 8, 13, 20, 40, 80, 160, 1_000] {
            if jobs >= self.best.0.jobs || self.in_small(&Scenario { jobs, ..self.best.0.clone() })
            {
                return;
            }
        }
    }

    fn fewer_workers(&mut self) {
        for workers in 1..self.best.0.workers {
            if self.in_small(&Scenario { workers, ..self.best.0.clone() }) {
                break;
            }
        }
        for slots in [1, 2, 4] {
            if slots >= self.best.0.slots
                || self.in_small(&Scenario { slots, ..self.best.0.clone() })
            {
                return;
            }
        }
    }

    /// Leaves out one part of the faults after the other, first large parts and then single faults.
    fn fewer_faults(&mut self) {
        let mut parts = 1;
        loop {
            let struck: Vec<u32> = self.struck.clone();
            let size = struck.len().div_ceil(parts).max(1);
            let smaller = struck.chunks(size).any(|part| {
                let left: BTreeSet<u32> =
                    struck.iter().copied().filter(|number| !part.contains(number)).collect();
                let (scenario, seed) = self.best.clone();
                self.holds(Scenario { only: Some(left), ..scenario }, seed)
            });
            if struck.is_empty() || monotonic() >= self.until {
                return;
            }
            if smaller {
                parts = (parts - 1).max(1);
            } else if size == 1 {
                // Nothing more can be left out. Name the faults that happen, so that no others do.
                let (scenario, seed) = self.best.clone();
                if scenario.only.as_ref().is_none_or(|only| only.len() > struck.len()) {
                    let only = Some(struck.into_iter().collect());
                    self.holds(Scenario { only, ..scenario }, seed);
                }
                return;
            } else {
                parts = (parts * 2).min(struck.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Flaw, run_mutant};
    use super::*;

    #[test]
    fn a_planted_mistake_shrinks_to_a_few_jobs_and_faults_and_is_repeated_exactly() {
        let planted = |scenario: &Scenario, seed: u64| {
            run_mutant(scenario, seed, Some(Flaw::TakesSilenceForConsent), &[])
        };
        let usual = Scenario::default();
        let found = (0..20).map(|seed| planted(&usual, seed)).find(|it| it.violation.is_some());
        let found = found.expect("the mistake shows");

        let small = shrink_with(&usual, &found, Duration::from_secs(60), planted).unwrap();

        let Scenario { jobs, workers, only, .. } = &small.scenario;
        let faults = only.as_ref().map_or(usize::MAX, BTreeSet::len);
        let said = small.scenario.arguments(small.seed);
        assert!(*jobs <= 3 && *workers <= 3 && faults <= 2, "{said}: {}", small.violation);
        assert_eq!(small.violation.invariant, found.violation.unwrap().invariant);
        let again = planted(&small.scenario, small.seed).violation.unwrap();
        assert_eq!(again.to_string(), small.violation.to_string());
    }

    #[test]
    fn what_is_right_does_not_shrink() {
        let usual = Scenario { jobs: 5, ..Scenario::default() };
        let right = run(&usual, 0);
        assert!(shrink(&usual, &right, Duration::from_secs(1)).is_none());
    }
}
