//! A lease: the right to settle one attempt, as a value that only a claim creates.
//!
//! The token decides, never the time. A late worker may still settle if its token is still the
//! job's latest. A worker whose job was taken back may not, however early it is. Nothing here reads
//! a clock.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::clock::Timestamp;
use crate::job::{Invalid, JobId, State, as_decimal, shorten};

/// The fencing token: a number on the job that rises with every change of ownership and never
/// falls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub i64);

impl Token {
    /// The token of a job that was never claimed. No lease carries it.
    pub const NONE: Token = Token(0);

    /// The bits of a token below its epoch: each job has 2^40 tokens in one epoch.
    const EPOCH_BITS: u32 = 40;

    /// The next token in `epoch`: above this one, and above every token of an earlier epoch. An
    /// epoch begins when the database may have gone back in time, so that a forgotten token is
    /// never issued again.
    pub fn next(self, epoch: u32) -> Token {
        Token(self.0.max(first_of(epoch)) + 1)
    }

    /// Parses a token that a person or another program wrote.
    pub fn parse(text: &str) -> Result<Token, Invalid> {
        match text.parse() {
            Ok(number) if number > 0 => Ok(Token(number)),
            _ => Err(Invalid::Value {
                field: "token",
                why: format!(
                    "{:?} is not a token; tokens are positive whole numbers",
                    shorten(text, 80)
                ),
            }),
        }
    }
}

/// The number after which an epoch's tokens and job ids begin.
pub const fn first_of(epoch: u32) -> i64 {
    (epoch as i64) << Token::EPOCH_BITS
}

/// The epoch in which a token or a job id was issued.
pub const fn epoch_of(number: i64) -> u32 {
    (number >> Token::EPOCH_BITS) as u32
}

/// The epoch that follows `epoch` when the database may have gone back in time. It must be larger,
/// and another one after a second restore of the same old state. So it is derived from the time, in
/// units of ten minutes since 2026, which fits until the year 2185.
pub const fn raised(epoch: u32, now: Timestamp) -> u32 {
    const START_MS: i64 = 1_767_225_600_000;
    const UNIT_MS: i64 = 10 * 60 * 1000;
    const LAST: i64 = (1 << (63 - Token::EPOCH_BITS)) - 1;
    let by_time = (now.as_millis() - START_MS) / UNIT_MS;
    let by_count = epoch as i64 + 1;
    let next = if by_time > by_count { by_time } else { by_count };
    (if next > LAST { LAST } else { next }) as u32
}

/// What a fenced call must present: the job, and the token under which it was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fence {
    /// The job.
    pub job: JobId,
    /// The token of the claim.
    pub token: Token,
}

/// The right to settle one attempt of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Lease {
    fence: Fence,
    until: Timestamp,
}

impl Lease {
    /// Only a store grants leases.
    pub(crate) fn granted(fence: Fence, until: Timestamp) -> Lease {
        Lease { fence, until }
    }

    /// What to present when settling or renewing.
    pub fn fence(&self) -> Fence {
        self.fence
    }

    /// The job.
    pub fn job(&self) -> JobId {
        self.fence.job
    }

    /// The token.
    pub fn token(&self) -> Token {
        self.fence.token
    }

    /// When other workers may take the job, on the store's clock.
    pub fn until(&self) -> Timestamp {
        self.until
    }
}

/// Why a fenced call was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The job has another token by now: it lapsed or was claimed again, or it was cancelled,
    /// requeued or released.
    TokenMismatch,
    /// The token is the job's latest, but this attempt was already ended by another settlement.
    AlreadySettled,
    /// The lease is over by the worker's own clock. Only `Context::assert_held` refuses for this
    /// reason; the store never does.
    LeaseExpired,
}

impl Reason {
    /// The name, as events spell it.
    pub fn name(self) -> &'static str {
        match self {
            Reason::TokenMismatch => "token_mismatch",
            Reason::AlreadySettled => "already_settled",
            Reason::LeaseExpired => "lease_expired",
        }
    }
}

/// A refused call: the fence that the caller presented, and what the job holds instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Stale {
    /// The fence that the caller presented.
    pub shown: Fence,
    /// The job's token now.
    pub current: Token,
    /// The job's state now.
    pub state: State,
    /// Why it was refused.
    pub reason: Reason,
}

impl Stale {
    /// The refusal of `shown`, where the job has the token `current` and is in `state`.
    pub fn new(shown: Fence, current: Token, state: State) -> Stale {
        let same = shown.token == current;
        let reason = if same { Reason::AlreadySettled } else { Reason::TokenMismatch };
        Stale { shown, current, state, reason }
    }
}

/// The worker that holds a lease. The id is random for each process start, so that a worker on a
/// reused host name never adopts a dead worker's jobs.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WorkerId(String);

impl WorkerId {
    /// A new id for this process start.
    pub fn unique() -> WorkerId {
        WorkerId(crate::clock::unique().simple().to_string())
    }

    /// Checks an id given from outside: 1 to 128 printable ASCII characters.
    pub fn check(text: impl Into<String>) -> Result<WorkerId, Invalid> {
        let text = text.into();
        if (1..=128).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_graphic()) {
            Ok(WorkerId(text))
        } else {
            Err(Invalid::Value {
                field: "worker",
                why: "a worker id has 1 to 128 printable ASCII characters".into(),
            })
        }
    }

    pub(crate) fn trusted(text: String) -> WorkerId {
        WorkerId(text)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// A short form for people, in logs and tables: the first 8 characters of an id from
    /// [`WorkerId::unique`], which are enough to tell workers apart. An id from outside is a name,
    /// and stays whole.
    ///
    /// ```
    /// use tenure::WorkerId;
    ///
    /// assert_eq!(WorkerId::unique().short().len(), 8);
    /// assert_eq!(WorkerId::check("host-7.worker-12")?.short(), "host-7.worker-12");
    /// # Ok::<(), tenure::engine::job::Invalid>(())
    /// ```
    pub fn short(&self) -> &str {
        let is_ours = self.0.len() == 32 && self.0.bytes().all(|c| c.is_ascii_hexdigit());
        self.0.get(..8).filter(|_| is_ours).unwrap_or(&self.0)
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        as_decimal::serialize(self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Token, D::Error> {
        as_decimal::deserialize(deserializer).map(Token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_rises_within_an_epoch_and_across_epochs() {
        assert_eq!(Token::NONE.next(0), Token(1));
        assert_eq!(Token(41).next(0), Token(42));
        assert_eq!(Token(41).next(1), Token((1 << 40) + 1));
        assert_eq!(Token((1 << 40) + 7).next(1), Token((1 << 40) + 8));
        // A token from a later epoch than the store's own still rises.
        assert_eq!(Token((2 << 40) + 7).next(1), Token((2 << 40) + 8));
    }

    #[test]
    fn an_epoch_rises_by_count_and_by_time_and_stays_within_its_bits() {
        let at = Timestamp::from_millis;
        assert_eq!(raised(0, at(0)), 1, "a clock from before 2026 still raises it");
        assert_eq!(raised(7, at(0)), 8);
        let new_year_2027 = 1_798_761_600_000;
        assert_eq!(raised(0, at(new_year_2027)), 365 * 24 * 6);
        assert_eq!(raised(365 * 24 * 6, at(new_year_2027)), 365 * 24 * 6 + 1);
        assert!(first_of(raised(0, Timestamp::MAX)) > 0, "no number overflows");
        assert_eq!(epoch_of(first_of(3) + 1042), 3);
    }

    #[test]
    fn everyday_tokens_are_small_and_serialise_as_strings() {
        assert_eq!(serde_json::to_string(&Token::NONE.next(0)).unwrap(), r#""1""#);
    }
}
