//! Two workers, one job. A claims it and stalls; its lease ends, B takes the job over and succeeds;
//! then A wakes up, assumes that the job is still its own, and proceeds to its effect.
//!
//! A is a worker whose renewal and whose own check for expired leases are switched off, so that
//! only the store stands between it and the effect. Its handler waits for a file, the gate. The
//! story makes that file when B has succeeded, and not before A has stalled for [`STALL`].

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use tenure::engine::inspect::{EffectView, JobDetail};
use tenure::engine::ledger::Standing;
use tenure::engine::lifecycle::Verb;
use tenure::{Result, State, Token};

use super::stage::Stage;
use super::{Audience, Claim, Go, Scene, Story, Told, play, seconds, times};
use crate::workers::kinds::{CHARGE, Late};
use crate::workers::{Care, End, Setup, job, lines};

/// The story's name.
pub const NAME: &str = "race";
/// The length of a worker's lease.
pub const LEASE: Duration = Duration::from_secs(1);
/// How long A stalls, at least.
pub const STALL: Duration = Duration::from_millis(2_500);
/// Of many races, how many run side by side: in the same two processes, each with its own job.
const ABREAST: usize = 50;

/// One race.
pub fn once(scene: &Scene, audience: &mut dyn Audience) -> Result<Story> {
    play(NAME, scene, audience, |stage| {
        let seen = run(stage, 1)?;
        Ok(seen.iter().flat_map(verdict).collect())
    })
}

/// Many races. The trace has the events of those that failed.
pub fn many(scene: &Scene, runs: usize, audience: &mut dyn Audience) -> Result<Story> {
    let (mut all, mut broken) = (Vec::new(), Vec::new());
    while all.len() < runs {
        let abreast = ABREAST.min(runs - all.len());
        let mut quiet = Quiet(audience);
        let batch = play(NAME, scene, &mut quiet, |stage| {
            let seen = run(stage, abreast)?;
            for one in &seen {
                let verdict = verdict(one);
                if verdict.iter().any(|claim| !claim.held) {
                    broken.extend(one.trace.iter().cloned());
                }
                all.push((Figures::of(one), verdict));
            }
            stage.so_far(&format!("{} of {runs} races", all.len()));
            Ok(vec![Claim::new("every race is run", true, "it is")])
        })?;
        if !batch.held {
            return Ok(Story { runs: all.len(), ..batch });
        }
    }
    let figures = all.iter().map(|(figures, _)| *figures).reduce(Figures::and);
    let verdicts: Vec<Vec<Claim>> = all.into_iter().map(|(_, verdict)| verdict).collect();
    let story = Story::new(NAME, scene, broken, sum(&verdicts));
    Ok(Story { runs, figures, ..story })
}

/// Hides the single events of many races. Those of a failed race are in the trace.
struct Quiet<'a>(&'a mut dyn Audience);

impl Audience for Quiet<'_> {
    fn told(&mut self, _: &Told) {}

    fn so_far(&mut self, text: &str) {
        self.0.so_far(text);
    }

    fn has_left(&mut self) -> bool {
        self.0.has_left()
    }
}

/// Runs this many races side by side, each with its own job.
fn run(stage: &mut Stage<'_>, abreast: usize) -> Go<Vec<Seen>> {
    // Several batches may share a directory.
    let batch = tenure::engine::clock::unique();
    let (gate, bank) = (stage.file(&format!("gate-{batch}")), stage.file(&format!("bank-{batch}")));
    let usual = Setup { lease: LEASE, concurrency: abreast, end: End::Drain, ..Setup::default() };
    stage.enter("A", &Setup { care: Care::Stalled, ..usual.clone() })?;
    let jobs = stage.put(&vec![job(&Late { gate: gate.clone(), bank: bank.clone() }); abreast])?;
    let mut started = 0;
    for id in &jobs {
        started = started.max(stage.hear_of("A", "execution_started", *id)?.ms);
    }
    // All of A's slots are in use, so B claims what A loses.
    stage.enter("B", &usual)?;
    stage.until_all(&jobs, State::Succeeded)?;
    stage.until_ms(started + u64::try_from(STALL.as_millis()).unwrap_or(0))?;
    stage.note("A wakes up");
    stage.open(&gate)?;
    stage.end("A")?;
    stage.end("B")?;
    let keys = lines(&bank);
    let mut seen = Vec::new();
    for id in jobs {
        let is_of = |told: &&Told| told.job().is_none_or(|job| job == id);
        seen.push(Seen {
            detail: stage.job(id)?,
            effects: stage.effects(id)?,
            calls: keys.iter().filter(|key| key.ends_with(&format!("/{id}/{CHARGE}"))).count(),
            trace: stage.trace.iter().filter(is_of).cloned().collect(),
        });
    }
    Ok(seen)
}

/// What the verdict on one race is based on.
pub(super) struct Seen {
    pub(super) detail: JobDetail,
    pub(super) effects: Vec<EffectView>,
    /// How often the bank was called for this job.
    pub(super) calls: usize,
    /// The events of this job and of the workers.
    pub(super) trace: Vec<Told>,
}

impl Seen {
    /// The token of this worker's last lease: on a very busy machine even B may be too slow for its
    /// lease and claim the job twice.
    fn token(&self, who: &str) -> Option<Token> {
        self.trace.iter().rfind(|told| told.is(who, "lease_acquired"))?.token()
    }

    /// How long after A's claim the job was taken back, by the store's own clock.
    fn taken_back_after(&self) -> Option<Duration> {
        let of_a = |verb| {
            self.detail.timeline.iter().find(|entry| {
                entry.verb == verb && !entry.refused && Some(entry.token) == self.token("A")
            })
        };
        let lapse = of_a(Verb::Lapse)?;
        Some(lapse.at.since(lapse.from?))
    }

    /// A's write that the store refused.
    fn refusal(&self) -> Option<&Told> {
        self.trace.iter().find(|told| told.is("A", "stale_write_blocked"))
    }

    /// The time from A's claim to B's.
    fn takeover_ms(&self) -> Option<u64> {
        let given = |who| self.trace.iter().find(|told| told.is(who, "lease_acquired"));
        Some(given("B")?.ms.saturating_sub(given("A")?.ms))
    }
}

/// The trace must contain these events in this order, whatever is between them.
const ORDER: [(&str, &str, &str); 7] = [
    ("A", "lease_acquired", ""),
    ("A", "execution_started", ""),
    ("B", "lease_acquired", ""),
    ("B", "execution_started", ""),
    ("A", "stale_write_blocked", "token_mismatch"),
    ("A", "worker_exit", "stale"),
    ("B", "worker_exit", "drained"),
];

pub(super) fn verdict(seen: &Seen) -> Vec<Claim> {
    let (a, b) = (seen.token("A"), seen.token("B"));
    let show = |token: Option<Token>| token.map_or("none".to_owned(), |token| token.to_string());
    let later = matches!((a, b), (Some(a), Some(b)) if b > a);
    let after = seen.taken_back_after();
    let refusal = seen.refusal();
    let refused = refusal.is_some_and(|told| {
        told.token_in("stale_token") == a
            && told.token_in("current_token") == b
            && told.text("reason") == "token_mismatch"
    });
    let committed: Vec<&EffectView> =
        seen.effects.iter().filter(|view| view.effect.standing == Standing::Committed).collect();
    let tokens: BTreeSet<Token> = seen.effects.iter().map(|view| view.effect.token).collect();
    let job = &seen.detail.job;
    vec![
        Claim::new(
            "B took the job over, with a higher token",
            later,
            format!("A had {}, B has {}", show(a), show(b)),
        ),
        Claim::new(
            format!("not before A's lease of {} was over", seconds(LEASE)),
            after.is_some_and(|after| after >= LEASE),
            after.map_or("it was never taken back".into(), |after| {
                format!("taken back after {}, by the store's clock", seconds(after))
            }),
        ),
        Claim::new(
            "A woke up, wanted to write, and was refused",
            refused,
            refusal.map_or("it was not".into(), |told| {
                let field = |name: &str| format!("{name}={}", told.text(name));
                ["verb", "stale_token", "current_token", "reason"].map(field).join(" ")
            }),
        ),
        Claim::new(
            "one ledger entry",
            seen.effects.len() == 1 && committed.len() == 1,
            format!(
                "{}, {} committed",
                super::many(seen.effects.len(), "entry", "entries"),
                committed.len()
            ),
        ),
        Claim::new(
            "one token: B's, on the entry and on the job",
            b.is_some() && tokens.iter().copied().eq(b) && Some(job.token) == b,
            format!(
                "{} on the entry, {} on the job",
                show(tokens.first().copied().filter(|_| tokens.len() == 1)),
                job.token
            ),
        ),
        Claim::new("the bank was called once", seen.calls == 1, times(seen.calls)),
        Claim::new(
            "the job succeeded",
            job.state == State::Succeeded,
            format!("it is {}", job.state.name()),
        ),
        order(&seen.trace),
    ]
}

fn order(trace: &[Told]) -> Claim {
    let mut left = trace.iter();
    let missing = ORDER.iter().find(|(who, name, reason)| {
        !left
            .any(|told| told.is(who, name) && (reason.is_empty() || told.text("reason") == *reason))
    });
    let seen = match missing {
        None => format!("{} of {}", ORDER.len(), ORDER.len()),
        Some((who, name, reason)) => format!("no {name} {reason} of {who} where it should be"),
    };
    Claim::new(
        "the events came in this order, and end with stale for A and drained for B",
        missing.is_none(),
        seen,
    )
}

/// The totals of many races.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// How many races there were.
    pub runs: usize,
    /// In how many of them B took the job over.
    pub takeovers: usize,
    /// In how many of them A was refused.
    pub refusals: usize,
    /// How many entries there are in the ledger.
    pub ledger_entries: usize,
    /// The shortest time from A's claim to B's.
    pub fastest_ms: u64,
    /// The longest.
    pub slowest_ms: u64,
}

impl Figures {
    fn of(seen: &Seen) -> Figures {
        let took = seen.takeover_ms();
        Figures {
            runs: 1,
            takeovers: usize::from(took.is_some()),
            refusals: usize::from(seen.refusal().is_some()),
            ledger_entries: seen.effects.len(),
            fastest_ms: took.unwrap_or(u64::MAX),
            slowest_ms: took.unwrap_or(0),
        }
    }

    fn and(self, other: Figures) -> Figures {
        Figures {
            runs: self.runs + other.runs,
            takeovers: self.takeovers + other.takeovers,
            refusals: self.refusals + other.refusals,
            ledger_entries: self.ledger_entries + other.ledger_entries,
            fastest_ms: self.fastest_ms.min(other.fastest_ms),
            slowest_ms: self.slowest_ms.max(other.slowest_ms),
        }
    }
}

/// Merges the verdicts of many races: each claim holds if it held in all of them.
pub(super) fn sum(verdicts: &[Vec<Claim>]) -> Vec<Claim> {
    let Some(first) = verdicts.first() else { return Vec::new() };
    let of = |at: usize| verdicts.iter().map(move |verdict| &verdict[at]);
    let claims = first.iter().enumerate().map(|(at, claim)| {
        let held = of(at).filter(|claim| claim.held).count();
        let broken = of(at).find(|claim| !claim.held);
        let but = broken.map(|claim| format!(", but once: {}", claim.seen)).unwrap_or_default();
        let seen = format!("in {held} of {}{but}", verdicts.len());
        Claim::new(claim.claim.clone(), broken.is_none(), seen)
    });
    claims.collect()
}
