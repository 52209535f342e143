//! The worker's machines, many workers of them, under a scheduler that kills, stalls and loses calls.

#![allow(clippy::print_stdout, reason = "a test tells what it saw")]

use std::collections::BTreeMap;

use tenure_drill::simulation::{Scenario, run};

#[test]
fn every_job_ends_once_under_kills_stalls_and_lost_calls_and_a_seed_repeats_its_run() {
    let scenario = Scenario::default();
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in 0..8 {
        let report = run(&scenario, seed);
        println!("{report}");
        assert_eq!(report.violations, Vec::<String>::new(), "seed {seed}");
        assert_eq!(run(&scenario, seed).hash, report.hash, "seed {seed}");
        for (event, count) in report.events {
            *seen.entry(event).or_default() += count;
        }
    }
    // What was never reached was never tried.
    for event in
        ["stale_write_blocked", "lease_lapsed", "lease_renewed", "retry_scheduled", "store_lost"]
    {
        assert!(seen.get(event).is_some_and(|count| *count > 0), "{event}: {seen:?}");
    }
}
