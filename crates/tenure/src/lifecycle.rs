//! The moves of a job. Pure: time and chance are arguments, so that every decision can be replayed.
//!
//! After this success, failure or crash, what becomes of the job? The answers are durations and
//! states; whoever owns the clock adds `now`, and whoever owns the database makes them true. No IO,
//! no SQL, no worker.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::clock::{Jitter, Timestamp};
use crate::inspect::UnknownName;
use crate::job::{ERROR_LIMIT, JobRecord, Json, RetryPolicy, State, shorten, with_causes};

/// How an attempt ends, by the word of its holder.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It is done.
    Complete {
        /// What it returned.
        result: Option<Json>,
    },
    /// It failed; another try after this delay, if there is one left.
    Retry {
        /// How long to wait.
        after: Duration,
        /// What went wrong.
        error: String,
    },
    /// Not now; the attempt does not count.
    Snooze {
        /// How long to wait.
        after: Duration,
    },
    /// The worker gives it back unfinished, as at shutdown; the attempt does not count.
    Release,
    /// It will never succeed.
    Bury {
        /// Why.
        reason: String,
    },
    /// It waits for a person or a signal; the attempt does not count.
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
    /// Its worker's process is gone, whatever its lease says.
    Vanish,
    /// A worker that was taken for gone has shown its token again: the crash does not count.
    Return,
    Cancel,
    Requeue,
    Resume,
    /// A job that a settlement was to enqueue in the same transaction.
    Follow,
    EffectOpen,
    EffectCommit,
    EffectFail,
    EffectResolve,
    StepGet,
    StepPut,
    /// What a newer release has done, by its name. It is only shown.
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

    /// The verb of this name. A name that this release does not know is kept.
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
    /// The verb that ends the attempt so.
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

    /// The words that go into the timeline, cut to a size that can never fail a settlement.
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

/// What a decision needs to know of a job: how much of its patience is used up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Standing {
    pub attempt: u16,
    pub max_attempts: u16,
    pub crashes: u16,
    pub max_crashes: u16,
    pub retry: RetryPolicy,
}

impl From<&JobRecord> for Standing {
    fn from(job: &JobRecord) -> Standing {
        Standing {
            attempt: job.attempt,
            max_attempts: job.max_attempts,
            crashes: job.crashes,
            max_crashes: job.max_crashes,
            retry: job.retry.clone(),
        }
    }
}

/// When a job that goes back to the queue is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// As it was: it keeps its place among those of its age.
    AsBefore,
    /// This long from now.
    In(Duration),
}

/// What becomes of a job whose attempt has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Back to the queue.
    Queue(Again),
    /// Aside, until someone resumes it.
    Park,
    /// Over, in this state.
    End(State),
}

impl Next {
    /// The state the job has then.
    pub fn state(self) -> State {
        match self {
            Next::Queue(_) => State::Queued,
            Next::Park => State::Parked,
            Next::End(state) => state,
        }
    }
}

/// What becomes of the job when its holder settles so.
///
/// ```
/// use std::time::Duration;
/// use tenure::job::{RetryPolicy, State};
/// use tenure::lifecycle::{Next, Outcome, Standing, after_settling};
///
/// let last = Standing { attempt: 6, max_attempts: 6, crashes: 0, max_crashes: 5, retry: RetryPolicy::default() };
/// let failed = Outcome::Retry { after: Duration::from_secs(1), error: "timeout".into() };
/// assert_eq!(after_settling(&last, &failed), Next::End(State::Dead));
/// ```
pub fn after_settling(standing: &Standing, outcome: &Outcome) -> Next {
    match outcome {
        Outcome::Complete { .. } => Next::End(State::Succeeded),
        // The store holds the limit, whoever settles: no client can retry for ever.
        Outcome::Retry { .. } if standing.attempt >= standing.max_attempts => {
            Next::End(State::Dead)
        }
        Outcome::Retry { after, .. } | Outcome::Snooze { after } => Next::Queue(Again::In(*after)),
        Outcome::Release => Next::Queue(Again::AsBefore),
        Outcome::Bury { .. } => Next::End(State::Dead),
        Outcome::Park { .. } => Next::Park,
    }
}

/// Whether the attempt that ends so counts against the limit. Waiting is not failing.
pub fn attempt_counts(verb: Verb) -> bool {
    !matches!(verb, Verb::Snooze | Verb::Release | Verb::Park)
}

/// What becomes of a job that is taken from its holder by `verb`, and why, in words for the timeline: by [`Verb::Lapse`]
/// because its lease was over, by [`Verb::Vanish`] because the holder's process is gone. `standing` is from before the
/// crash. There is no jitter in it, so that SQL and Rust agree.
pub fn after_lapse(standing: &Standing, verb: Verb) -> (Next, &'static str) {
    let crashes = standing.crashes.saturating_add(1);
    let by_word = |vanished, lapsed| if verb == Verb::Vanish { vanished } else { lapsed };
    if crashes >= standing.max_crashes {
        let why = "crashed too often: max_crashes times its lease was over or its worker vanished";
        (Next::End(State::Dead), why)
    } else if standing.attempt >= standing.max_attempts {
        let why = by_word(
            "its worker vanished during the last attempt",
            "its lease was over during the last attempt",
        );
        (Next::End(State::Dead), why)
    } else if crashes == 1 {
        (Next::Queue(Again::AsBefore), by_word("its worker vanished", "its lease was over"))
    } else {
        let delay = Duration::from_millis(base_delay(&standing.retry, crashes - 1));
        let why = by_word(
            "its worker vanished, after an earlier crash",
            "its lease was over, after an earlier crash",
        );
        (Next::Queue(Again::In(delay)), why)
    }
}

/// For how long a crash counts at the least. The count goes when a handler returns by itself and the last crash is as old as
/// this: a job that lives long outlives many machines, and one that returns and kills in turns is still buried.
pub const CRASH_MEMORY: Duration = Duration::from_secs(60 * 60);

/// Whether so many crashes make a job a suspect: from its second crash on. The first may be anybody's fault, and then the
/// jobs of a lost machine run again at once. A job with few crashes to lose is a suspect after its first.
///
/// The number does not grow with `max_crashes`: jobs that run beside it have limits of their own.
pub fn makes_suspect(crashes: u16, max_crashes: u16) -> bool {
    crashes >= if max_crashes > 3 { 2 } else { 1 }
}

/// Whether the handler itself has come back, and so did not kill its worker. A release is the worker's word.
pub fn is_own_return(verb: Verb) -> bool {
    matches!(verb, Verb::Complete | Verb::Retry | Verb::Snooze | Verb::Bury | Verb::Park)
}

/// How many crashes still count when a handler has come back and its job goes on.
pub fn crashes_after_return(crashes: u16, crashed_at: Option<Timestamp>, now: Timestamp) -> u16 {
    if crashed_at.is_some_and(|at| at > now - CRASH_MEMORY) { crashes } else { 0 }
}

/// What went wrong in a handler, and what it asks for. Any other error is turned into one by `?`, and means
/// another try:
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
    /// Not a failure: wait for a person or a signal, without holding a slot, until somebody resumes it.
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

/// In words, for people.
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

/// In words as well, for a program whose `main` returns it, and with what is to become of the job.
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

/// An error and its causes, in one line: any error, and what can be made into one, such as anyhow's or a text.
impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Fault {
    fn from(error: E) -> Fault {
        Fault::Retry { error: with_causes(&*error.into()) }
    }
}

/// How to settle an attempt that ended in a fault.
pub fn after_fault(standing: &Standing, fault: Fault, jitter: Jitter) -> Outcome {
    match fault {
        Fault::Retry { error } => {
            Outcome::Retry { after: retry_delay(&standing.retry, standing.attempt, jitter), error }
        }
        Fault::RetryAfter { after, error } => Outcome::Retry { after, error },
        Fault::Fatal { error } => Outcome::Bury { reason: error },
        Fault::Snooze { after } => Outcome::Snooze { after },
        Fault::Park { reason } => Outcome::Park { reason },
    }
}

/// The delay before the next try, after `failures` of them. Only the exponential policy has jitter:
/// half of the delay is certain, half is chance, so that a thousand jobs that failed together do
/// not come back together.
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

/// The policy's delay in milliseconds after `failures`, before any chance.
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
mod tests {
    use super::*;

    fn standing(attempt: u16, crashes: u16) -> Standing {
        Standing {
            attempt,
            max_attempts: 3,
            crashes,
            max_crashes: 3,
            retry: RetryPolicy::default(),
        }
    }

    fn delays(policy: &RetryPolicy, jitter: u32) -> Vec<u64> {
        let delay = |n| retry_delay(policy, n, Jitter(jitter)).as_millis() as u64;
        (1..=6).map(delay).collect()
    }

    #[test]
    fn the_default_policy_doubles_from_a_second_to_five_minutes_and_at_least_half_is_certain() {
        let policy = RetryPolicy::default();
        assert_eq!(delays(&policy, 0), [500, 1_000, 2_000, 4_000, 8_000, 16_000]);
        assert_eq!(delays(&policy, u32::MAX), [999, 1_999, 3_999, 7_999, 15_999, 31_999]);
        assert_eq!(retry_delay(&policy, 500, Jitter(0)), Duration::from_secs(150));
    }

    #[test]
    fn no_delay_stays_none_however_often_it_is_doubled() {
        let policy = RetryPolicy::Exponential { base_ms: 0, cap_ms: 300_000 };
        for failures in [1, 64, 65, 66, 1_000] {
            assert_eq!(
                retry_delay(&policy, failures, Jitter(u32::MAX)),
                Duration::ZERO,
                "{failures}"
            );
        }
    }

    #[test]
    fn a_fixed_delay_and_a_list_are_exact_and_the_list_repeats_its_last() {
        assert_eq!(delays(&RetryPolicy::Fixed { ms: 70 }, 9), [70; 6]);
        let list = RetryPolicy::list(&[1_000, 2_000, 4_000]);
        assert_eq!(delays(&list, 9), [1_000, 2_000, 4_000, 4_000, 4_000, 4_000]);
    }

    #[test]
    fn a_first_crash_is_due_at_once_and_later_ones_back_off() {
        assert_eq!(after_lapse(&standing(1, 0), Verb::Lapse).0, Next::Queue(Again::AsBefore));
        assert_eq!(
            after_lapse(&standing(1, 1), Verb::Lapse).0,
            Next::Queue(Again::In(Duration::from_secs(1)))
        );
    }

    #[test]
    fn a_crash_that_uses_up_attempts_or_crashes_buries() {
        assert_eq!(after_lapse(&standing(3, 0), Verb::Lapse).0, Next::End(State::Dead));
        assert_eq!(after_lapse(&standing(1, 2), Verb::Lapse).0, Next::End(State::Dead));
    }

    #[test]
    fn a_job_is_a_suspect_from_its_second_crash_on_or_from_its_first_if_it_has_few_to_lose() {
        let first = |max| (1..=max).find(|crashes| makes_suspect(*crashes, max));
        assert_eq!([1, 2, 3].map(first), [Some(1); 3]);
        assert_eq!([4, 5, 50, u16::MAX].map(first), [Some(2); 4]);
        assert!(!makes_suspect(0, 1));
    }

    #[test]
    fn a_release_is_no_return_and_what_ends_a_handler_is() {
        let own = Verb::ALL.into_iter().filter(|verb| is_own_return(*verb)).collect::<Vec<_>>();
        assert_eq!(own, [Verb::Complete, Verb::Retry, Verb::Snooze, Verb::Bury, Verb::Park]);
    }

    #[test]
    fn crashes_count_until_the_last_of_them_is_an_hour_old() {
        let at = Timestamp::from_millis(5_000);
        let left = |after| crashes_after_return(3, Some(at), at + after);
        assert_eq!(left(Duration::ZERO), 3);
        assert_eq!(left(CRASH_MEMORY - Duration::from_millis(1)), 3);
        assert_eq!(left(CRASH_MEMORY), 0);
        assert_eq!(crashes_after_return(0, None, at), 0);
    }

    #[test]
    fn waiting_does_not_count_and_failing_does() {
        let counted =
            Verb::ALL.into_iter().filter(|verb| !attempt_counts(*verb)).collect::<Vec<_>>();
        assert_eq!(counted, [Verb::Snooze, Verb::Release, Verb::Park]);
    }

    #[test]
    fn a_fault_becomes_the_settlement_that_it_asks_for() {
        let settle = |fault| after_fault(&standing(1, 0), fault, Jitter(0));
        let after = Duration::from_secs(9);
        let error = || "no".to_owned();
        assert_eq!(
            settle(Fault::Retry { error: error() }),
            Outcome::Retry { after: Duration::from_millis(500), error: error() }
        );
        assert_eq!(
            settle(Fault::RetryAfter { after, error: error() }),
            Outcome::Retry { after, error: error() }
        );
        assert_eq!(settle(Fault::Fatal { error: error() }), Outcome::Bury { reason: error() });
        assert_eq!(settle(Fault::Snooze { after }), Outcome::Snooze { after });
        assert_eq!(settle(Fault::Park { reason: error() }), Outcome::Park { reason: error() });
    }

    #[test]
    fn an_error_becomes_a_fault_with_all_its_causes_each_said_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{0}")]
        struct Failed(&'static str, #[source] Option<Box<Failed>>);
        let because = |text, cause| Failed(text, Some(Box::new(cause)));
        let refused = || Failed("refused", None);
        assert_eq!(Fault::from(refused()), Fault::retry("refused"));
        let chain = because("cannot pay", because("cannot connect", refused()));
        assert_eq!(Fault::from(chain), Fault::retry("cannot pay: cannot connect: refused"));
        let repeats = because("cannot connect: refused", refused());
        assert_eq!(Fault::from(repeats), Fault::retry("cannot connect: refused"));
    }

    #[test]
    fn an_error_text_is_cut_and_cleaned_so_that_it_cannot_fail_a_settlement() {
        let note =
            Outcome::Bury { reason: format!("\0{}", "é".repeat(ERROR_LIMIT)) }.note().unwrap();
        assert!(note.len() <= ERROR_LIMIT && !note.contains('\0'));
    }

    #[test]
    fn a_fault_says_in_words_what_is_to_become_of_the_job() {
        let after = Duration::from_secs(5);
        for (fault, told) in [
            (Fault::retry("no answer"), "retry: no answer"),
            (Fault::retry_after(after, "busy"), "retry after 5s: busy"),
            (Fault::fatal("no such address"), "fatal: no such address"),
            (Fault::snooze(after), "put off for 5s"),
            (Fault::park("ask Ann"), "park: ask Ann"),
        ] {
            assert_eq!(format!("{fault:?}"), told);
        }
    }
}
