//! One job kills every worker that runs it; the jobs beside it are harmless. It is buried after
//! five crashes, with the evidence, and the jobs beside it crash twice at most.

use std::collections::BTreeSet;

use tenure::engine::inspect::{JobDetail, TimelineEntry};
use tenure::engine::lifecycle::Verb;
use tenure::{Result, State, WorkerId};

use super::{Audience, Claim, Scene, Story, nothing_wrong, play};
use crate::workers::kinds::{Hold, Poison};
use crate::workers::{Setup, job};

/// The story's name.
pub const NAME: &str = "poison";
/// The default number of crashes after which a job is buried.
const CRASHES: u16 = 5;
/// The number of jobs beside it.
const BYSTANDERS: usize = 5;
/// More workers than the job may kill.
const CREW: [&str; 7] = ["A", "B", "C", "D", "E", "F", "G"];

/// Runs the story.
pub fn once(scene: &Scene, audience: &mut dyn Audience) -> Result<Story> {
    play(NAME, scene, audience, |stage| {
        let gate = stage.file("gate");
        stage.enter(CREW[0], &Setup::default())?;
        let beside = stage.put(&vec![job(&Hold { gate: gate.clone() }); BYSTANDERS])?;
        for id in &beside {
            stage.hear_of(CREW[0], "execution_started", *id)?;
        }
        stage.note("A is busy with five jobs; here comes one that kills whoever runs it");
        let poison = stage.put(&[job(&Poison {})])?[0];
        let mut deaths = 0;
        for (at, who) in CREW.iter().enumerate() {
            stage.until("the worker to die, or all jobs to end", |stage| {
                let lines = stage.store.overview()?.lines;
                let owed: u64 =
                    lines.iter().map(|line| line.ready + line.waiting + line.running).sum();
                Ok(stage.has_ended(who) || owed == 0)
            })?;
            if !stage.has_ended(who) {
                stage.end(who)?;
                break;
            }
            deaths += 1;
            stage.note(&format!("{who} is dead"));
            // The other jobs have crashed together with the poison once. From now on they may end.
            stage.open(&gate)?;
            if let Some(next) = CREW.get(at + 1) {
                stage.enter(next, &Setup::default())?;
            }
        }
        let mut others = Vec::new();
        for id in beside {
            others.push(stage.job(id)?);
        }
        let mut claims = verdict(&Seen { poison: stage.job(poison)?, others, deaths });
        claims.push(nothing_wrong(stage)?);
        Ok(claims)
    })
}

/// What the verdict is based on.
pub(super) struct Seen {
    pub(super) poison: JobDetail,
    pub(super) others: Vec<JobDetail>,
    /// How many workers died.
    pub(super) deaths: usize,
}

pub(super) fn verdict(seen: &Seen) -> Vec<Claim> {
    let job = &seen.poison.job;
    let is_evidence = |entry: &&TimelineEntry| entry.verb == Verb::Vanish && !entry.refused;
    let evidence: Vec<&TimelineEntry> = seen.poison.timeline.iter().filter(is_evidence).collect();
    let victims: BTreeSet<&WorkerId> =
        evidence.iter().filter_map(|entry| entry.worker.as_ref()).collect();
    let worst = seen.others.iter().map(|other| other.job.crashes).max().unwrap_or(0);
    let done = seen.others.iter().filter(|other| other.job.state == State::Succeeded).count();
    vec![
        Claim::new(
            format!("the poison is buried after {CRASHES} crashes"),
            (job.state, job.crashes) == (State::Dead, CRASHES),
            format!(
                "{}, {}",
                job.state.name(),
                super::many(job.crashes.into(), "crash", "crashes")
            ),
        ),
        Claim::new(
            "with the evidence: which workers it killed, and when",
            evidence.len() == usize::from(CRASHES) && victims.len() == usize::from(CRASHES),
            format!("its timeline names {}", super::many(victims.len(), "worker", "workers")),
        ),
        Claim::new(
            "it killed no worker more",
            seen.deaths == usize::from(CRASHES),
            format!("{} died", seen.deaths),
        ),
        Claim::new(
            "every job beside it succeeded",
            done == seen.others.len() && done > 0,
            format!("{done} of {}", seen.others.len()),
        ),
        // After the first crash all of them run again at once. After the second they are suspects,
        // and the poison runs beside none of them.
        Claim::new("and crashed twice at most", worst <= 2, format!("{worst} at worst")),
    ]
}
