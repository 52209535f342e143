//! A worker is killed between its call of the bank and the record of the answer. The store cannot
//! tell whether the bank was charged, and the next worker does not guess: the effect is in doubt.
//! One job is parked for a person, who asks the bank; the other sends the effect again under the
//! same key, and the bank recognises the key.
//!
//! The bank's book is a file beside the store, which only the calls write.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tenure::engine::inspect::{EffectView, JobDetail};
use tenure::engine::job::{JobId, Json, State};
use tenure::engine::ledger::{Resolution, Standing, effect_name};
use tenure::engine::store::{Resolved, Result};

use super::stage::Stage;
use super::{Audience, Claim, Go, Halt, Scene, Story, nothing_wrong, play};
use crate::workers::kinds::{CHARGE, InDoubt, Slow};
use crate::workers::{Setup, job, lines};

/// The story's name.
pub const NAME: &str = "mid-apply";
const RECEIPT: &str = "\"r-42\"";

/// Runs the story.
pub fn once(scene: &Scene, audience: &mut dyn Audience) -> Result<Story> {
    play(NAME, scene, audience, |stage| {
        stage.enter("A", &Setup::default())?;
        let (parked, bank) = die_mid_call(stage, "A", "B", InDoubt::Park)?;
        stage.hear_of("B", "job_parked", parked)?;
        let doubted = stage.effects(parked)?.iter().any(|view| view.in_doubt);
        let waited = stage.job(parked)?.job.state == State::Parked;
        stage.note("a person looks into the bank's book, finds the charge, and says so:");
        stage.note(&format!("tenure effects resolve {parked} {CHARGE} --committed '{RECEIPT}'"));
        resolve(stage, parked)?;
        stage.until_all(&[parked], State::Succeeded)?;
        let first = Seen::of(stage, parked, &bank)?;

        stage.note("once more, with a job that sends again when in doubt");
        let (resent, bank) = die_mid_call(stage, "B", "C", InDoubt::Resend)?;
        stage.until_all(&[resent], State::Succeeded)?;
        stage.end("C")?;
        let second = Seen::of(stage, resent, &bank)?;
        let mut claims = verdict(&Parked { doubted, waited, seen: first }, &second);
        claims.push(nothing_wrong(stage)?);
        Ok(claims)
    })
}

/// `victim` calls the bank for a new job and is killed before it receives the answer; then `heir`
/// starts.
fn die_mid_call(
    stage: &mut Stage<'_>,
    victim: &str,
    heir: &str,
    in_doubt: InDoubt,
) -> Go<(JobId, PathBuf)> {
    let (bank, gate) =
        (stage.file(&format!("bank-{victim}")), stage.file(&format!("gate-{victim}")));
    let id = stage.put(&[job(&Slow { bank: bank.clone(), gate: gate.clone(), in_doubt })])?[0];
    stage.hear_of(victim, "execution_started", id)?;
    stage.until("the bank to be called", |_| Ok(lines(&bank).len() == 1))?;
    stage.note(&format!("the bank is charged, and {victim} waits for its answer"));
    stage.kill(victim);
    // From now on the bank answers at once.
    stage.open(&gate)?;
    stage.enter(heir, &Setup::default())?;
    stage.hear_of(heir, "effect_in_doubt", id)?;
    Ok((id, bank))
}

fn resolve(stage: &mut Stage<'_>, id: JobId) -> Go<()> {
    let result = Json::check("result", RECEIPT, 100).map_err(tenure::Error::from)?;
    let name = effect_name(CHARGE).map_err(tenure::Error::from)?;
    match stage.store.resolve(id, &name, &Resolution::Committed { result })? {
        Resolved::Applied(_) => Ok(()),
        other => Err(Halt::Stuck(format!("the effect could not be resolved: {other:?}"))),
    }
}

/// What the verdict on one job is based on.
pub(super) struct Seen {
    pub(super) detail: JobDetail,
    pub(super) effects: Vec<EffectView>,
    /// The bank's book: the key of each call.
    pub(super) book: Vec<String>,
}

impl Seen {
    fn of(stage: &mut Stage<'_>, id: JobId, bank: &std::path::Path) -> Go<Seen> {
        Ok(Seen { detail: stage.job(id)?, effects: stage.effects(id)?, book: lines(bank) })
    }

    fn keys(&self) -> usize {
        self.book.iter().collect::<BTreeSet<_>>().len()
    }

    /// The job's state, and how many of its effects the ledger has as committed.
    fn ended(&self) -> (State, usize) {
        let committed =
            self.effects.iter().filter(|view| view.effect.standing == Standing::Committed);
        (self.detail.job.state, committed.count())
    }

    fn calls(&self) -> String {
        let calls = super::many(self.book.len(), "call", "calls");
        format!("{calls} under {}", super::many(self.keys(), "key", "keys"))
    }
}

/// What was seen before a person resolved the parked job.
pub(super) struct Parked {
    pub(super) doubted: bool,
    pub(super) waited: bool,
    pub(super) seen: Seen,
}

pub(super) fn verdict(first: &Parked, second: &Seen) -> Vec<Claim> {
    let ended = |seen: &Seen| {
        let (state, committed) = seen.ended();
        format!("{}, {committed} committed", state.name())
    };
    let yes = |is: bool| if is { "it was" } else { "it was not" };
    vec![
        Claim::new("the effect was in doubt, and said so", first.doubted, yes(first.doubted)),
        Claim::new("the job was parked, to wait for a person", first.waited, yes(first.waited)),
        Claim::new(
            "after their word it succeeded, with one entry in the ledger",
            first.seen.ended() == (State::Succeeded, 1),
            ended(&first.seen),
        ),
        Claim::new("the bank was called once", first.seen.book.len() == 1, first.seen.calls()),
        Claim::new(
            "sent again, it reached the bank twice, under one key by which the bank knows it",
            (second.book.len(), second.keys()) == (2, 1),
            second.calls(),
        ),
        Claim::new(
            "and that job succeeded too, with one entry in the ledger",
            second.ended() == (State::Succeeded, 1),
            ended(second),
        ),
    ]
}
