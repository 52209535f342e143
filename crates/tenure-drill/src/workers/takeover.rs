//! A worker with a long lease is killed, and another one takes over.

use std::time::Duration;

use tenure::State;
use tenure::engine::clock::{Chance, monotonic};

use super::kinds::Hold;
use super::{Bench, Setup, job};

/// Kills a worker `times` times in the middle of a job. Returns how long each takeover took, from
/// the kill until the other worker had called the job's handler.
pub fn takeovers(bench: &mut Bench, times: usize) -> Vec<Duration> {
    let setup = Setup { lease: Duration::from_secs(600), ..Setup::default() };
    let mut chance = Chance::system();
    let mut victim = bench.worker(&setup);
    let mut took = Vec::new();
    for time in 0..times {
        let gate = bench.file(&format!("gate-{time}"));
        let id = bench.put(&[job(&Hold { gate: gate.clone() })])[0];
        let first = victim.starts(id);
        let mut heir = bench.worker(&setup);
        // Not always at the same point of the workers' intervals.
        bench.let_pass(Duration::from_millis(chance.below(500)));
        let killed = monotonic();
        victim.kill();
        let second = heir.starts(id);
        took.push(second.at - killed);
        assert!(second.token > first.token, "{first:?}, then {second:?}");
        std::fs::write(&gate, "").expect("the gate opens");
        bench.finish();
        assert_eq!(bench.ended(id, State::Succeeded), (second.token.expect("a token"), 1));
        victim = heir;
    }
    took
}
