//! What a job is: a kind with args, in a queue, of a tenant; and all values that a caller can set
//! on it.
//!
//! Values of these types have been checked: a [`Name`] can be stored and compared on any engine, a
//! [`Json`] can be stored. So the rest of the library does not check again. Nothing here knows how
//! a job is stored or run.

mod extras;
mod json;
mod new;
mod progress;
mod unknown;

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::extras::Extras;
pub use self::json::{Fingerprint, Json};
pub use self::new::{Due, Key, NewJob};
pub use self::progress::{PROGRESS_LIMIT, Progress};
pub use self::unknown::UnknownName;

/// A job's number. The database assigns it; no two jobs ever share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub i64);

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Not finished: it runs when it is due and a worker is free.
    Queued,
    /// Not finished: a worker holds its lease.
    Running,
    /// Not finished: it waits for a person or a signal.
    Parked,
    /// Ended with success.
    Succeeded,
    /// Ended by failure: its attempts or crashes are used up, or it was buried.
    Dead,
    /// Ended by a request to cancel it.
    Cancelled,
}

impl State {
    /// All states, in the order of a job's life.
    pub const ALL: [State; 6] = [
        State::Queued,
        State::Running,
        State::Parked,
        State::Succeeded,
        State::Dead,
        State::Cancelled,
    ];

    /// Whether the job has ended.
    pub fn has_ended(self) -> bool {
        matches!(self, State::Succeeded | State::Dead | State::Cancelled)
    }

    /// The name, as every layer spells it.
    pub fn name(self) -> &'static str {
        match self {
            State::Queued => "queued",
            State::Running => "running",
            State::Parked => "parked",
            State::Succeeded => "succeeded",
            State::Dead => "dead",
            State::Cancelled => "cancelled",
        }
    }
}

impl FromStr for State {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<State, Invalid> {
        State::ALL.into_iter().find(|state| state.name() == text).ok_or_else(|| Invalid::Value {
            field: "state",
            why: format!("{text:?} is none of queued, running, parked, succeeded, dead, cancelled"),
        })
    }
}

/// The name of a kind, a queue or a tag: `^[a-z0-9][a-z0-9_.:-]{0,62}$`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Name(String);

impl Name {
    /// Checks a name. `field` is what the error calls it.
    ///
    /// ```
    /// use tenure::Name;
    ///
    /// assert!(Name::check("queue", "mail.bulk").is_ok());
    /// assert!(Name::check("queue", "'; DROP TABLE jobs").is_err());
    /// ```
    pub fn check(field: &'static str, text: impl Into<String>) -> Result<Name, Invalid> {
        let text = text.into();
        let first = |c: &u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let rest = |c: &u8| first(c) || b"_.:-".contains(c);
        let bytes = text.as_bytes();
        if bytes.len() <= 63 && bytes.first().is_some_and(first) && bytes.iter().all(rest) {
            Ok(Name(text))
        } else {
            Err(Invalid::Name { field, text: shorten(&text, 80) })
        }
    }

    /// The queue of a job that sets none.
    pub fn default_queue() -> Name {
        Name("default".into())
    }

    pub(crate) fn trusted(text: String) -> Name {
        Name(text)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The tenant that a job belongs to. Jobs without a tenant have the empty one.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Tenant(String);

impl Tenant {
    /// Checks a tenant: empty, or a [`Name`].
    pub fn check(text: impl Into<String>) -> Result<Tenant, Invalid> {
        let text = text.into();
        if text.is_empty() {
            Ok(Tenant(text))
        } else {
            Name::check("tenant", text).map(|name| Tenant(name.0))
        }
    }

    pub(crate) fn trusted(text: String) -> Tenant {
        Tenant(text)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// How long to wait before another try.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RetryPolicy {
    /// Doubling from `base_ms` up to `cap_ms`, with equal jitter.
    Exponential {
        /// The first delay.
        base_ms: u64,
        /// The longest delay.
        cap_ms: u64,
    },
    /// Always the same delay.
    Fixed {
        /// The delay.
        ms: u64,
    },
    /// These delays in turn; the last one repeats.
    List {
        /// The delays. Borrowed or owned, so that a constant can hold them: see
        /// [`RetryPolicy::list`].
        ms: Cow<'static, [u64]>,
    },
}

/// The most delays that a [`RetryPolicy::List`] may have.
pub const RETRY_LIMIT: usize = 64;

impl RetryPolicy {
    /// The policy of a job that sets none: one second, doubling, at most five minutes.
    pub const DEFAULT: RetryPolicy = RetryPolicy::Exponential { base_ms: 1_000, cap_ms: 300_000 };

    /// A list of delays in milliseconds, used in turn, as a constant.
    ///
    /// ```
    /// use tenure::RetryPolicy;
    ///
    /// const RETRY: RetryPolicy = RetryPolicy::list(&[1_000, 5_000, 60_000]);
    /// ```
    pub const fn list(ms: &'static [u64]) -> RetryPolicy {
        RetryPolicy::List { ms: Cow::Borrowed(ms) }
    }

    /// Whether a store accepts this policy.
    pub fn is_reasonable(&self) -> bool {
        match self {
            RetryPolicy::List { ms } => (1..=RETRY_LIMIT).contains(&ms.len()),
            RetryPolicy::Exponential { .. } | RetryPolicy::Fixed { .. } => true,
        }
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy::DEFAULT
    }
}

/// The largest sizes that a store accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The largest size of a job's args, in bytes.
    pub args: usize,
    /// The largest size of a result, in bytes.
    pub result: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { args: 256 * 1024, result: 256 * 1024 }
    }
}

/// The longest delay that a caller may set: 100 years. A longer one is surely a mistake, and would
/// make a job that waits until the year 9999.
pub const DELAY_LIMIT: Duration = Duration::from_secs(36_500 * 24 * 60 * 60);

/// The most items that one call of a store accepts.
pub const BATCH_LIMIT: usize = 1_000;

/// An error text longer than this is cut: it is for people, and it must never make a settlement
/// fail.
pub const ERROR_LIMIT: usize = 8 * 1024;

/// What is wrong with a value from outside, and what would be valid.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// A name outside the pattern.
    #[error(
        "{field} {text:?} is not a valid name; use 1 to 63 of a-z 0-9 _ . : - and begin with a letter or digit"
    )]
    #[allow(missing_docs)]
    Name { field: &'static str, text: String },
    /// Text that is not JSON, or JSON that a store cannot keep.
    #[error("{field} cannot be stored as JSON: {why}")]
    #[allow(missing_docs)]
    NotJson { field: &'static str, why: String },
    /// Data above its limit.
    #[error(
        "{field} is {size} bytes, above the limit of {limit} bytes; store the data elsewhere and pass a reference to it"
    )]
    #[allow(missing_docs)]
    TooLarge { field: &'static str, size: usize, limit: usize },
    /// A batch above [`BATCH_LIMIT`].
    #[error("a batch of {size} is above the limit of {BATCH_LIMIT}; send it in parts")]
    #[allow(missing_docs)]
    Batch { size: usize },
    /// Any other invalid value.
    #[error("{field}: {why}")]
    #[allow(missing_docs)]
    Value { field: &'static str, why: String },
}

/// Cuts `text` to at most `limit` bytes, between characters, and marks the cut with " …".
pub fn shorten(text: &str, limit: usize) -> String {
    const MARK: &str = " …";
    if text.len() <= limit {
        return text.to_owned();
    }
    let mut end = limit.saturating_sub(MARK.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MARK}", &text[..end])
}

/// An error and its causes, in one line. A cause that the text already contains is not repeated:
/// many errors quote their cause.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| {
        let cause = cause.to_string();
        if text.contains(&cause) { text } else { format!("{text}: {cause}") }
    })
}

/// The readable text, because a program whose `main` returns this error prints it with `Debug`.
impl fmt::Debug for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl JobId {
    /// Parses a number that a person typed.
    pub fn parse(text: &str) -> Result<JobId, Invalid> {
        match text.parse() {
            Ok(number) if number > 0 => Ok(JobId(number)),
            _ => Err(Invalid::Value {
                field: "job",
                why: format!(
                    "{:?} is not a job id; ids are positive whole numbers",
                    shorten(text, 80)
                ),
            }),
        }
    }
}

impl From<i64> for JobId {
    /// The job with this number. It need not exist in any store.
    fn from(number: i64) -> JobId {
        JobId(number)
    }
}

impl FromStr for JobId {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<JobId, Invalid> {
        JobId::parse(text)
    }
}

impl TryFrom<&str> for Name {
    type Error = Invalid;

    fn try_from(text: &str) -> Result<Name, Invalid> {
        Name::check("name", text)
    }
}

impl TryFrom<&str> for Tenant {
    type Error = Invalid;

    fn try_from(text: &str) -> Result<Tenant, Invalid> {
        Tenant::check(text)
    }
}

impl TryFrom<&str> for Key {
    type Error = Invalid;

    fn try_from(text: &str) -> Result<Key, Invalid> {
        Key::check(text)
    }
}

macro_rules! displays_as_its_text {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    )*};
}
displays_as_its_text!(Name, Tenant, Key);

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name, D::Error> {
        Name::check("name", String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Tenant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tenant, D::Error> {
        Tenant::check(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        as_decimal::serialize(self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JobId, D::Error> {
        as_decimal::deserialize(deserializer).map(JobId)
    }
}

/// 64-bit numbers are decimal strings in JSON, because JavaScript loses integers above 2^53.
pub(crate) mod as_decimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(number: i64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&number)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_outside_the_pattern_are_refused() {
        let long = "a".repeat(64);
        for text in
            ["", "A", "_a", "-a", "a b", "a/b", "é", "a\0", "a\n", "a'; DROP TABLE x", &long]
        {
            assert!(Name::check("kind", text).is_err(), "{text:?}");
        }
        for text in ["a", "0", "send_email", "mail.bulk:v2-x", &long[..63]] {
            assert!(Name::check("kind", text).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn only_a_tenant_may_be_empty() {
        assert!(Tenant::check("").is_ok());
        assert!(Tenant::check("Acme").is_err());
    }

    #[test]
    fn ids_cross_json_as_strings() {
        let id = JobId(9_007_199_254_740_993);
        assert_eq!(serde_json::to_string(&id).unwrap(), r#""9007199254740993""#);
        assert_eq!(serde_json::from_str::<JobId>(r#""9007199254740993""#).unwrap(), id);
    }

    #[test]
    fn shortened_text_stays_within_its_limit_and_on_a_character() {
        assert_eq!(shorten("short", 10), "short");
        let cut = shorten(&"é".repeat(20), 15);
        assert!(cut.len() <= 15 && cut.ends_with('…'), "{cut}");
    }
}
