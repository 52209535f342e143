//! A worker is killed in the middle of a job, under a lease of ten minutes. No worker waits for
//! that lease to end: the guard, a lock that ended with the process, shows the death, and another
//! worker continues the job.

use std::time::Duration;

use tenure::engine::inspect::{EffectView, JobDetail};
use tenure::engine::ledger::Standing;
use tenure::engine::lifecycle::Verb;
use tenure::{Result, State};

use super::{Audience, Claim, Scene, Story, Told, nothing_wrong, play, seconds, times};
use crate::workers::kinds::Work;
use crate::workers::{Setup, job, lines};

/// The story's name.
pub const NAME: &str = "crash";
/// The length of a worker's lease.
pub const LEASE: Duration = Duration::from_secs(600);

/// Runs the story. The takeover must come `within` this time.
pub fn once(scene: &Scene, within: Duration, audience: &mut dyn Audience) -> Result<Story> {
    play(NAME, scene, audience, |stage| {
        let (steps, bank, gate) = (stage.file("steps"), stage.file("bank"), stage.file("gate"));
        let setup = Setup { lease: LEASE, ..Setup::default() };
        stage.enter("A", &setup)?;
        let work = Work { steps: steps.clone(), bank: bank.clone(), gate: gate.clone() };
        let id = stage.put(&[job(&work)])?[0];
        stage.hear_of("A", "execution_started", id)?;
        stage.until("the bank's answer to be in the ledger", |stage| {
            let effects = stage.store.effects(&Default::default(), 10)?;
            Ok(effects.iter().any(|view| view.effect.standing == Standing::Committed))
        })?;
        stage.note("A has remembered a step and charged the bank, and goes on working");
        stage.enter("B", &setup)?;
        let killed_ms = stage.kill("A");
        let taken = stage.hear_of("B", "execution_started", id)?;
        stage.open(&gate)?;
        stage.until_all(&[id], State::Succeeded)?;
        stage.end("B")?;
        let seen = Seen {
            detail: stage.job(id)?,
            effects: stage.effects(id)?,
            killed_ms,
            taken,
            steps: lines(&steps).len(),
            calls: lines(&bank).len(),
        };
        let mut claims = verdict(&seen, within);
        claims.push(nothing_wrong(stage)?);
        Ok(claims)
    })
}

/// What the verdict is based on.
pub(super) struct Seen {
    pub(super) detail: JobDetail,
    pub(super) effects: Vec<EffectView>,
    pub(super) killed_ms: u64,
    /// B's handler was called.
    pub(super) taken: Told,
    /// How often the step was done.
    pub(super) steps: usize,
    /// How often the bank was called.
    pub(super) calls: usize,
}

pub(super) fn verdict(seen: &Seen, within: Duration) -> Vec<Claim> {
    let took = Duration::from_millis(seen.taken.ms.saturating_sub(seen.killed_ms));
    let job = &seen.detail.job;
    let gone = seen.detail.timeline.iter().any(|entry| entry.verb == Verb::Vanish);
    let committed =
        seen.effects.iter().filter(|view| view.effect.standing == Standing::Committed).count();
    vec![
        Claim::new(
            format!(
                "B had the job within {}, under a lease of {}",
                seconds(within),
                minutes(LEASE)
            ),
            took <= within,
            format!("{} after the kill", seconds(took)),
        ),
        Claim::new(
            "it was A's lock that told, not its lease",
            gone,
            if gone { "its timeline says that A vanished" } else { "its timeline does not say so" },
        ),
        Claim::new(
            "B has it under a token of its own",
            seen.taken.token() == Some(job.token) && job.token.0 > 1,
            format!("token {}", job.token),
        ),
        Claim::new("the step was done once, and remembered", seen.steps == 1, times(seen.steps)),
        Claim::new(
            "the bank was called once, and its answer is in the ledger",
            (seen.calls, seen.effects.len(), committed) == (1, 1, 1),
            format!("called {}, {committed} committed", times(seen.calls)),
        ),
        Claim::new(
            "the job succeeded, after one crash",
            (job.state, job.crashes) == (State::Succeeded, 1),
            format!(
                "{}, {}",
                job.state.name(),
                super::many(job.crashes.into(), "crash", "crashes")
            ),
        ),
    ]
}

fn minutes(length: Duration) -> String {
    format!("{} min", length.as_secs() / 60)
}
