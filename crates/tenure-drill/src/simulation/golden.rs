//! The trace hashes that some seeds must give, recorded in `golden/simulation.txt`: a run is a
//! function of its seed, on every machine and in every build, until its behaviour is changed on
//! purpose.

use std::fmt::Write;

use super::run;
use super::scenario::Scenario;

/// A seed and its hash on each line.
const GOLDEN: &str = include_str!("../../golden/simulation.txt");

/// Runs the recorded seeds, and compares their hashes.
///
/// # Errors
/// If a hash differs. The error contains what the file should say if the change is intended.
pub fn compare() -> Result<(), String> {
    let written = GOLDEN.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let (mut should, mut differs) = (String::new(), written.clone().count() == 0);
    for line in written {
        let (seed, hash) = line.split_once(' ').ok_or(format!("no seed and hash: {line:?}"))?;
        let seed: u64 = seed.parse().map_err(|_| format!("no seed: {line:?}"))?;
        let report = run(&Scenario::default(), seed);
        differs |= report.hash != hash;
        let _ = writeln!(should, "{seed} {}", report.hash);
    }
    if !differs {
        return Ok(());
    }
    Err(format!(
        "seeds come to other traces than crates/tenure-drill/golden/simulation.txt says. If a change of the worker, the store or \
         the simulation is meant to change what happens in a run, write down what \
         `tenure drill simulate --seed N` prints now:\n{should}If not, something depends on more than the seed."
    ))
}
