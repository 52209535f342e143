//! The record of a run: a hash over everything, the last lines in words, and how often each rare
//! path was taken.
//!
//! The hash is over text, of whole numbers and names, so that it is the same on every machine and
//! in every build.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::time::Duration;

use serde::Serialize;
use sha2::{Digest, Sha256};
use tenure::JobId;

/// Rare paths. A run that never takes a path has not tested it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rare {
    /// A worker that had lost a job tried to write, and was refused.
    StaleRefused,
    /// A lease was over, no other worker had taken the job, and its settlement was accepted.
    LateSettlement,
    /// A settlement was repeated because its reply was lost, and the second answer was true.
    ReplyHealed,
    /// The answer to a claim was lost, and its worker found the job by asking which jobs it holds.
    ClaimTakenUp,
    /// A write to the ledger was repeated because its reply was lost, and the second answer was
    /// true.
    LedgerHealed,
    /// A renewal was refused because its own attempt was settled already.
    RenewalCrossed,
    /// A lease was over by the clock, but the clock had jumped, so the lease was spared.
    BrakeEngaged,
    /// The database went back in time, and a new epoch began.
    EpochRaised,
    /// A write of a claim that the database has forgotten was refused.
    LostTimeRefused,
    /// A lease ran out, and the job was taken back.
    Lapsed,
    /// A process was gone, and its jobs were taken back before their leases ran out.
    Vanished,
    /// A job that kills its workers was buried.
    CrashCap,
    /// A suspect was leased, and no other suspect was at risk beside it.
    SuspectAlone,
    /// A job failed for the last time.
    AttemptsUsedUp,
    /// A job was enqueued again under its key, and existed already.
    KeyRepeated,
    /// A key was taken by another request.
    KeyConflict,
    /// An effect was found in doubt.
    InDoubt,
    /// A job was parked because of an effect in doubt.
    ParkedInDoubt,
    /// A person resolved an effect in doubt.
    ResolvedByPerson,
    /// An effect was sent again under its key, and recognised.
    Resent,
    /// The other side was asked whether the effect had taken place.
    Verified,
    /// The outside system refused a fence below the highest it had seen.
    WitnessRefused,
    /// A running job was cancelled.
    CancelledRunning,
    /// A job that had ended was requeued.
    Requeued,
    /// A job was given back unfinished.
    Released,
    /// A job was snoozed.
    Snoozed,
    /// A job reached its maximum runtime.
    TimedOut,
    /// A worker gave up and ended with an error.
    GaveUp,
    /// A job was cancelled while it waited.
    CancelledQueued,
    /// A handler completed its job in a transaction of its own.
    CommittedByHandler,
    /// A handler did not learn whether its own transaction was committed, and the worker looked it
    /// up.
    CommitLookedUp,
    /// A worker that was cut off from the store lost a job.
    CutOffLapsed,
    /// The store kept all callers waiting for longer than a lease, while jobs were running.
    StoreStalled,
    /// A write failed because the store was full or read-only.
    WriteFailed,
    /// A call was applied after its sender had given up on it.
    LateCall,
    /// A claim was applied after its sender had given up on it, and took a job.
    LateClaim,
    /// The store's clock was set ahead by more than a lease.
    ClockAhead,
    /// The store's clock was set back by more than a lease.
    ClockBack,
    /// A worker's second call settled a batch and claimed the next one.
    Relieved,
    /// A worker's second call failed, and the dispatcher took its batch over.
    ReliefFailed,
}

impl Rare {
    /// All rare paths.
    pub const ALL: [Rare; 40] = [
        Rare::StaleRefused,
        Rare::LateSettlement,
        Rare::ReplyHealed,
        Rare::ClaimTakenUp,
        Rare::LedgerHealed,
        Rare::RenewalCrossed,
        Rare::BrakeEngaged,
        Rare::EpochRaised,
        Rare::LostTimeRefused,
        Rare::Lapsed,
        Rare::Vanished,
        Rare::CrashCap,
        Rare::SuspectAlone,
        Rare::AttemptsUsedUp,
        Rare::KeyRepeated,
        Rare::KeyConflict,
        Rare::InDoubt,
        Rare::ParkedInDoubt,
        Rare::ResolvedByPerson,
        Rare::Resent,
        Rare::Verified,
        Rare::WitnessRefused,
        Rare::CancelledRunning,
        Rare::Requeued,
        Rare::Released,
        Rare::Snoozed,
        Rare::TimedOut,
        Rare::GaveUp,
        Rare::CancelledQueued,
        Rare::CommittedByHandler,
        Rare::CommitLookedUp,
        Rare::CutOffLapsed,
        Rare::StoreStalled,
        Rare::WriteFailed,
        Rare::LateCall,
        Rare::LateClaim,
        Rare::ClockAhead,
        Rare::ClockBack,
        Rare::Relieved,
        Rare::ReliefFailed,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Rare::StaleRefused => "stale refused",
            Rare::LateSettlement => "late settle accepted",
            Rare::ReplyHealed => "lost reply healed",
            Rare::ClaimTakenUp => "lost claim taken up",
            Rare::LedgerHealed => "lost ledger reply healed",
            Rare::RenewalCrossed => "renewal crossed a settlement",
            Rare::BrakeEngaged => "brake engaged",
            Rare::EpochRaised => "epoch bumped",
            Rare::LostTimeRefused => "write from a lost time refused",
            Rare::Lapsed => "lease lapsed",
            Rare::Vanished => "dead process noticed",
            Rare::CrashCap => "crash cap hit",
            Rare::SuspectAlone => "suspect alone",
            Rare::AttemptsUsedUp => "attempts used up",
            Rare::KeyRepeated => "key repeated",
            Rare::KeyConflict => "key conflict",
            Rare::InDoubt => "effect in doubt",
            Rare::ParkedInDoubt => "in doubt parked",
            Rare::ResolvedByPerson => "in doubt resolved",
            Rare::Resent => "effect resent",
            Rare::Verified => "effect verified",
            Rare::WitnessRefused => "witness refused a lower fence",
            Rare::CancelledRunning => "cancelled while running",
            Rare::Requeued => "requeued",
            Rare::Released => "released",
            Rare::Snoozed => "snoozed",
            Rare::TimedOut => "timed out",
            Rare::GaveUp => "worker gave up",
            Rare::CancelledQueued => "cancelled while queued",
            Rare::CommittedByHandler => "committed by its handler",
            Rare::CommitLookedUp => "commit looked up",
            Rare::CutOffLapsed => "cut off and lapsed",
            Rare::StoreStalled => "store stalled",
            Rare::WriteFailed => "write failed",
            Rare::LateCall => "late call",
            Rare::LateClaim => "late claim",
            Rare::ClockAhead => "clock ahead",
            Rare::ClockBack => "clock back",
            Rare::Relieved => "second call answered",
            Rare::ReliefFailed => "second call failed",
        }
    }
}

/// How often each rare path was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sometimes(BTreeMap<Rare, u64>);

impl Default for Sometimes {
    fn default() -> Sometimes {
        Sometimes(Rare::ALL.into_iter().map(|rare| (rare, 0)).collect())
    }
}

impl Sometimes {
    pub(super) fn count(&mut self, rare: Rare) {
        *self.0.entry(rare).or_default() += 1;
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Sometimes) {
        for (rare, count) in &other.0 {
            *self.0.entry(*rare).or_default() += count;
        }
    }

    /// Each path and how often it was taken, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (Rare, u64)> + '_ {
        self.0.iter().map(|(rare, count)| (*rare, *count))
    }

    /// The paths that were never taken.
    pub fn never(&self) -> Vec<&'static str> {
        self.iter().filter(|(_, count)| *count == 0).map(|(rare, _)| rare.name()).collect()
    }
}

impl Serialize for Sometimes {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(rare, count)| (rare.name(), count)))
    }
}

impl fmt::Display for Sometimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told: Vec<String> =
            self.iter().map(|(rare, count)| format!("{} {count}", rare.name())).collect();
        f.write_str(&told.join(", "))
    }
}

/// Everything that happened so far.
#[derive(Debug, Default)]
pub(super) struct Trace {
    /// The simulated time since the start.
    pub(super) now: Duration,
    hash: Sha256,
    /// The last lines, each with the job that it is about, if any.
    lines: VecDeque<(Duration, Option<JobId>, String)>,
    pub(super) sometimes: Sometimes,
}

impl Trace {
    /// How many lines are kept: usually enough for the whole life of a job.
    const KEPT: usize = 20_000;

    /// Records an event of one job, or of all.
    pub(super) fn tell(&mut self, job: Option<JobId>, text: String) {
        self.mix(&text);
        if self.lines.len() == Trace::KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back((self.now, job, text));
    }

    /// Adds a text to the hash only, without a line.
    pub(super) fn mix(&mut self, text: &str) {
        self.hash.update(self.now.as_micros().to_string());
        self.hash.update(" ");
        self.hash.update(text);
        self.hash.update("\n");
    }

    /// The last lines about these jobs. Lines about no job are included if they name no worker, or
    /// only workers that the jobs' own lines name.
    pub(super) fn story(&self, jobs: &BTreeSet<JobId>) -> Vec<String> {
        const LINES: usize = 40;
        let of_jobs = || {
            let ours = |job: &Option<JobId>| job.is_some_and(|job| jobs.contains(&job));
            self.lines.iter().filter(move |(_, job, _)| ours(job))
        };
        let workers: BTreeSet<&str> = of_jobs().flat_map(|(_, _, text)| workers_in(text)).collect();
        let concerns = |job: &Option<JobId>, text: &str| match job {
            Some(job) => jobs.contains(job),
            None => workers_in(text).all(|worker| workers.contains(worker)),
        };
        let begun = of_jobs().next().map_or(Duration::ZERO, |(at, _, _)| *at);
        let told = self.lines.iter().rev().filter(|(_, job, text)| concerns(job, text));
        let mut lines: Vec<String> = told
            .take_while(|(at, _, _)| *at >= begun)
            .take(LINES)
            .map(|(at, job, text)| {
                let about = job.map_or(String::new(), |job| format!("job {job}: "));
                format!("{:>4}.{:06} s  {about}{text}", at.as_secs(), at.subsec_micros())
            })
            .collect();
        lines.reverse();
        lines
    }

    /// The hash of everything so far.
    pub(super) fn hash(&self) -> String {
        let hash = self.hash.clone().finalize();
        hash[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The workers that a line names.
fn workers_in(text: &str) -> impl Iterator<Item = &str> {
    text.split([' ', ',']).filter(|word| word.starts_with("worker-"))
}
