//! The transitions of a job. Pure: time and chance are arguments, so that every decision can be
//! replayed.
//!
//! After this success, failure or crash, what happens to the job next? The answers are durations
//! and states; the caller adds the current time, and the store writes the result. No IO, no SQL, no
//! worker.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::clock::{Jitter, Timestamp};
use crate::job::{ERROR_LIMIT, Json, RetryPolicy, State, UnknownName, shorten, with_causes};
use crate::record::JobRecord;

/// How an attempt ends, as its holder settles it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The job is done.
    Complete {
        /// What the handler returned.
        result: Option<Json>,
    },
    /// The attempt failed. The job is tried again after this delay, if it has an attempt left.
    Retry {
        /// How long to wait.
        after: Duration,
        /// What went wrong.
        error: String,
    },
    /// Run the job later. The attempt does not count.
    Snooze {
        /// How long to wait.
        after: Duration,
    },
    /// The worker gives the job back unfinished, as at shutdown. The attempt does not count.
    Release,
    /// The job will never succeed.
    Bury {
        /// Why.
        reason: String,
    },
    /// The job waits for a person or a signal. The attempt does not count.
    Park {
        /// What for.
        reason: String,
    },
}

/// What can happen to a job, as the timeline and the events name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Verb {
    Complete,
    Retry,
    Snooze,
    Release,
    Bury,
    Park,
    Renew,
    Progress,
    Lapse,
    /// The store takes the job back because the holder's process is gone, even if the lease still
    /// runs.
    Vanish,
    /// A worker whose job was taken back (by a lapse or a vanish) showed its token again: the crash
    /// is not counted.
    Return,
    Cancel,
    Requeue,
    Resume,
    /// A follow-up job that a settlement was to enqueue in the same transaction. The timeline has
    /// it only when the store refused the follow-up because another request holds its key.
    Follow,
    EffectOpen,
    EffectCommit,
    EffectFail,
    EffectResolve,
    StepGet,
    StepPut,
    /// A verb of a newer release, kept by its name. It is only displayed.
    Unknown(UnknownName),
}

impl Verb {
    /// All verbs of this release.
    pub const ALL: [Verb; 21] = [
        Verb::Complete,
        Verb::Retry,
        Verb::Snooze,
        Verb::Release,
        Verb::Bury,
        Verb::Park,
        Verb::Renew,
        Verb::Progress,
        Verb::Lapse,
        Verb::Vanish,
        Verb::Return,
        Verb::Cancel,
        Verb::Requeue,
        Verb::Resume,
        Verb::Follow,
        Verb::EffectOpen,
        Verb::EffectCommit,
        Verb::EffectFail,
        Verb::EffectResolve,
        Verb::StepGet,
        Verb::StepPut,
    ];

    /// The name, as every layer spells it.
    pub fn name(self) -> &'static str {
        match self {
            Verb::Complete => "complete",
            Verb::Retry => "retry",
            Verb::Snooze => "snooze",
            Verb::Release => "release",
            Verb::Bury => "bury",
            Verb::Park => "park",
            Verb::Renew => "renew",
            Verb::Progress => "progress",
            Verb::Lapse => "lapse",
            Verb::Vanish => "vanish",
            Verb::Return => "return",
            Verb::Cancel => "cancel",
            Verb::Requeue => "requeue",
            Verb::Resume => "resume",
            Verb::Follow => "follow",
            Verb::EffectOpen => "effect_open",
            Verb::EffectCommit => "effect_commit",
            Verb::EffectFail => "effect_fail",
            Verb::EffectResolve => "effect_resolve",
            Verb::StepGet => "step_get",
            Verb::StepPut => "step_put",
            Verb::Unknown(name) => name.as_str(),
        }
    }

    /// The verb of this name. An unknown name is kept as [`Verb::Unknown`].
    pub fn named(name: &str) -> Verb {
        let known = Verb::ALL.into_iter().find(|verb| verb.name() == name);
        known.unwrap_or_else(|| Verb::Unknown(UnknownName::new(name)))
    }
}

impl Serialize for Verb {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Verb {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Verb, D::Error> {
        Ok(Verb::named(&String::deserialize(deserializer)?))
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Outcome {
    /// The verb of this outcome.
    pub fn verb(&self) -> Verb {
        match self {
            Outcome::Complete { .. } => Verb::Complete,
            Outcome::Retry { .. } => Verb::Retry,
            Outcome::Snooze { .. } => Verb::Snooze,
            Outcome::Release => Verb::Release,
            Outcome::Bury { .. } => Verb::Bury,
            Outcome::Park { .. } => Verb::Park,
        }
    }

    /// The text for the timeline. It is cut and cleaned, so that it cannot make a settlement fail.
    pub fn note(&self) -> Option<String> {
        match self {
            Outcome::Retry { error: text, .. }
            | Outcome::Bury { reason: text }
            | Outcome::Park { reason: text } => {
                Some(shorten(&text.replace('\0', "\u{fffd}"), ERROR_LIMIT))
            }
            Outcome::Complete { .. } | Outcome::Snooze { .. } | Outcome::Release => None,
        }
    }
}

/// What a decision needs to know about a job: how many attempts and crashes it has used, and its
/// limits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub attempt: u16,
    pub max_attempts: u16,
    pub crashes: u16,
    pub max_crashes: u16,
    pub retry: RetryPolicy,
}

impl From<&JobRecord> for Counts {
    fn from(job: &JobRecord) -> Counts {
        Counts {
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            crashes: job.crashes,
            max_crashes: job.max_crashes,
            retry: job.retry.clone(),
        }
    }
}

/// When a job that goes back to the queue is due again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// As before: it keeps its place in the queue.
    AsBefore,
    /// This long from now.
    In(Duration),
}

/// What happens to a job whose attempt has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It goes back to the queue.
    Queue(Again),
    /// It is set aside until an operator or a program resumes it.
    Park,
    /// It has ended, in this state.
    End(State),
}

impl Next {
    /// The job's state afterwards.
    pub fn state(self) -> State {
        match self {
            Next::Queue(_) => State::Queued,
            Next::Park => State::Parked,
            Next::End(state) => state,
        }
    }
}

/// What happens to the job when its holder settles the attempt with this outcome.
///
/// ```
/// use std::time::Duration;
/// use tenure::engine::job::{RetryPolicy, State};
/// use tenure::engine::lifecycle::{Counts, Next, Outcome, after_settling};
///
/// let last = Counts { attempt: 6, max_attempts: 6, crashes: 0, max_crashes: 5, retry: RetryPolicy::default() };
/// let failed = Outcome::Retry { after: Duration::from_secs(1), error: "timeout".into() };
/// assert_eq!(after_settling(&last, &failed), Next::End(State::Dead));
/// ```
pub fn after_settling(counts: &Counts, outcome: &Outcome) -> Next {
    match outcome {
        Outcome::Complete { .. } => Next::End(State::Succeeded),
        // The store enforces the limit for every client: no client can retry for ever.
        Outcome::Retry { .. } if counts.attempt >= counts.max_attempts => Next::End(State::Dead),
        Outcome::Retry { after, .. } | Outcome::Snooze { after } => Next::Queue(Again::In(*after)),
        Outcome::Release => Next::Queue(Again::AsBefore),
        Outcome::Bury { .. } => Next::End(State::Dead),
        Outcome::Park { .. } => Next::Park,
    }
}

/// Whether an attempt that ends with this verb counts against the limit. After a snooze, a release
/// or a park it does not, because the attempt has not failed.
pub fn attempt_counts(verb: Verb) -> bool {
    !matches!(verb, Verb::Snooze | Verb::Release | Verb::Park)
}

/// What happens to a job that the store takes from its holder, and the reason as text for the
/// timeline. `verb` is [`Verb::Lapse`] if the lease was over, and [`Verb::Vanish`] if the holder's
/// process is gone. `counts` are those before this crash. The delay has no jitter, so that SQL
/// and Rust agree.
pub fn after_lapse(counts: &Counts, verb: Verb) -> (Next, &'static str) {
    let crashes = counts.crashes.saturating_add(1);
    let by_word = |vanished, lapsed| if verb == Verb::Vanish { vanished } else { lapsed };
    if crashes >= counts.max_crashes {
        let why = "crashed too often: max_crashes times its lease was over or its worker vanished";
        (Next::End(State::Dead), why)
    } else if counts.attempt >= counts.max_attempts {
        let why = by_word(
            "its worker vanished during the last attempt",
            "its lease was over during the last attempt",
        );
        (Next::End(State::Dead), why)
    } else if crashes == 1 {
        (Next::Queue(Again::AsBefore), by_word("its worker vanished", "its lease was over"))
    } else {
        let delay = Duration::from_millis(base_delay(&counts.retry, crashes - 1));
        let why = by_word(
            "its worker vanished, after an earlier crash",
            "its lease was over, after an earlier crash",
        );
        (Next::Queue(Again::In(delay)), why)
    }
}

/// How long a crash counts at least. The count is reset when a handler returns by itself and the
/// last crash is at least this old. So a long-lived job survives the loss of many machines, and a
/// job that returns and crashes in turns is still buried.
pub const CRASH_MEMORY: Duration = Duration::from_secs(60 * 60);

/// Whether this many crashes make a job a suspect. Normally that is from the second crash on: the
/// first may have another cause, and so the jobs of a lost machine run again at once. A job with a
/// `max_crashes` of 3 or less is a suspect after its first crash.
///
/// The threshold does not grow with `max_crashes`, because a suspect also endangers the jobs that
/// run beside it, and those have limits of their own.
pub fn makes_suspect(crashes: u16, max_crashes: u16) -> bool {
    crashes >= if max_crashes > 3 { 2 } else { 1 }
}

/// Whether the handler itself returned, and so did not crash its worker. A release does not show
/// that, because the worker decides it, not the handler.
pub fn is_own_return(verb: Verb) -> bool {
    matches!(verb, Verb::Complete | Verb::Retry | Verb::Snooze | Verb::Bury | Verb::Park)
}

/// How many crashes still count after a handler has returned and its job continues.
pub fn crashes_after_return(crashes: u16, crashed_at: Option<Timestamp>, now: Timestamp) -> u16 {
    if crashed_at.is_some_and(|at| at > now - CRASH_MEMORY) { crashes } else { 0 }
}

/// What went wrong in a handler, and what should happen to the job. `?` turns any other error into
/// a fault that means another try:
///
/// ```
/// use std::time::Duration;
/// use tenure::Fault;
///
/// fn count(text: &str) -> Result<u32, Fault> {
///     if text.is_empty() {
///         return Err(Fault::fatal("there is nothing to count"));
///     }
///     Ok(text.parse()?)
/// }
/// assert_eq!(count("7"), Ok(7));
/// assert_eq!(count("x"), Err(Fault::retry("invalid digit found in string")));
/// ```
#[derive(Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Fault {
    /// Try again after the job's own delay.
    Retry { error: String },
    /// Try again after this delay, as the other side asked.
    RetryAfter { after: Duration, error: String },
    /// Do not try again.
    Fatal { error: String },
    /// Not a failure: come back later, without counting the attempt.
    Snooze { after: Duration },
    /// Not a failure: wait, without holding a slot, until a person or a program resumes the job.
    Park { reason: String },
}

impl Fault {
    /// Try again after the job's own delay.
    pub fn retry(error: impl fmt::Display) -> Fault {
        Fault::Retry { error: error.to_string() }
    }

    /// Try again after this delay, as the other side asked.
    pub fn retry_after(after: Duration, error: impl fmt::Display) -> Fault {
        Fault::RetryAfter { after, error: error.to_string() }
    }

    /// Do not try again.
    pub fn fatal(error: impl fmt::Display) -> Fault {
        Fault::Fatal { error: error.to_string() }
    }

    /// Come back later, without counting the attempt.
    pub fn snooze(after: Duration) -> Fault {
        Fault::Snooze { after }
    }

    /// Wait for a person or a signal.
    pub fn park(reason: impl fmt::Display) -> Fault {
        Fault::Park { reason: reason.to_string() }
    }
}

/// A text for people.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Retry { error } | Fault::RetryAfter { error, .. } | Fault::Fatal { error } => {
                f.write_str(error)
            }
            Fault::Snooze { after } => write!(f, "put off for {after:?}"),
            Fault::Park { reason } => f.write_str(reason),
        }
    }
}

/// A text for people too, because a program whose `main` returns a fault prints it with `Debug`. It
/// adds what happens to the job.
impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Retry { .. } => write!(f, "retry: {self}"),
            Fault::RetryAfter { after, .. } => write!(f, "retry after {after:?}: {self}"),
            Fault::Fatal { .. } => write!(f, "fatal: {self}"),
            Fault::Snooze { .. } => write!(f, "{self}"),
            Fault::Park { .. } => write!(f, "park: {self}"),
        }
    }
}

/// Turns any error (also anyhow's, or a text) into a retry. The text has the error and its causes
/// in one line.
impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Fault {
    fn from(error: E) -> Fault {
        Fault::Retry { error: with_causes(&*error.into()) }
    }
}

/// How to settle an attempt that ended in a fault.
pub fn after_fault(counts: &Counts, fault: Fault, jitter: Jitter) -> Outcome {
    match fault {
        Fault::Retry { error } => {
            Outcome::Retry { after: retry_delay(&counts.retry, counts.attempt, jitter), error }
        }
        Fault::RetryAfter { after, error } => Outcome::Retry { after, error },
        Fault::Fatal { error } => Outcome::Bury { reason: error },
        Fault::Snooze { after } => Outcome::Snooze { after },
        Fault::Park { reason } => Outcome::Park { reason },
    }
}

/// The delay before the next try, after `failures` failed ones. Only the exponential policy has
/// jitter: half of the delay is fixed and half is random, so that a thousand jobs that failed
/// together do not all retry together.
pub fn retry_delay(policy: &RetryPolicy, failures: u16, jitter: Jitter) -> Duration {
    let whole = base_delay(policy, failures);
    let delay = match policy {
        RetryPolicy::Exponential { .. } => {
            let certain = whole / 2;
            let chance = (u128::from(whole - certain) * u128::from(jitter.0)) >> 32;
            certain + u64::try_from(chance).unwrap_or(u64::MAX)
        }
        RetryPolicy::Fixed { .. } | RetryPolicy::List { .. } => whole,
    };
    Duration::from_millis(delay)
}

/// The policy's delay in milliseconds after `failures`, without jitter.
fn base_delay(policy: &RetryPolicy, failures: u16) -> u64 {
    let step = u32::from(failures.saturating_sub(1));
    match policy {
        RetryPolicy::Exponential { base_ms, cap_ms } => {
            base_ms.saturating_mul(2u64.saturating_pow(step)).min(*cap_ms)
        }
        RetryPolicy::Fixed { ms } => *ms,
        RetryPolicy::List { ms } => ms.get(step as usize).or(ms.last()).copied().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests;
