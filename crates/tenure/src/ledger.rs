//! What took effect, once per key.
//!
//! An effect is something a job does that must not happen twice. Its row in the ledger is keyed by
//! (job, effect), never by token: keyed by token, a stale and a current attempt would both get in.
//! The token only decides who may write. This module holds the decisions; it knows neither the
//! table nor the outside system.

use std::fmt;

use crate::job::{Invalid, JobId, Json, Name};
use crate::lease::Token;

/// The key that outside systems deduplicate by: the same for every attempt of this effect of this
/// job, and unique in the world, because the installation is random and the epoch rises when a
/// database may have gone back in time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EffectKey {
    /// The installation that the job was enqueued in.
    pub installation: uuid::Uuid,
    /// The epoch at enqueue.
    pub epoch: u32,
    /// The job.
    pub job: JobId,
    /// The effect's name within the job.
    pub effect: Name,
}

impl fmt::Display for EffectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EffectKey { installation, epoch, job, effect } = self;
        write!(f, "{}/{epoch}/{job}/{effect}", installation.simple())
    }
}

/// Checks the name of an effect or a step.
pub fn effect_name(text: impl Into<String>) -> Result<Name, Invalid> {
    Name::check("effect", text)
}

/// An effect as the ledger holds it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The attempt that wrote the intent, or last sent it again.
    pub token: Token,
    /// How it ended, if anyone knows.
    pub outcome: Option<EffectOutcome>,
}

/// How an effect ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EffectOutcome {
    /// It happened, and this came back.
    Committed(Json),
    /// It did not happen; it may be tried again.
    Failed(String),
}

/// The answer to an attempt that opens an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opening {
    /// The intent is written; go on and do it.
    Opened,
    /// It has happened already; this is what came back. Do not do it again.
    Committed(Json),
    /// An earlier attempt wrote its intent and no outcome: it may have happened. The effect's
    /// policy decides.
    InDoubt(Token),
}

/// What opening answers, given what the ledger holds and the token of the attempt that asks.
pub fn open(found: Option<&Entry>, token: Token) -> Opening {
    match found {
        None => Opening::Opened,
        Some(Entry { outcome: Some(EffectOutcome::Committed(result)), .. }) => {
            Opening::Committed(result.clone())
        }
        Some(Entry { outcome: Some(EffectOutcome::Failed(_)), .. }) => Opening::Opened,
        // The same attempt asks again: its first answer was lost on the way.
        Some(Entry { token: before, outcome: None }) if *before == token => Opening::Opened,
        Some(Entry { token: before, outcome: None }) => Opening::InDoubt(*before),
    }
}

/// What to do about an effect in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Doubt {
    /// Send it again under the same key, for the other side to deduplicate.
    Resend,
    /// Ask the other side whether it happened.
    Verify,
    /// Park the job; a person decides.
    Park,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intent_without_outcome_from_another_attempt_is_in_doubt() {
        let intent = Entry { token: Token(1), outcome: None };
        assert_eq!(open(None, Token(1)), Opening::Opened);
        assert_eq!(open(Some(&intent), Token(1)), Opening::Opened);
        assert_eq!(open(Some(&intent), Token(2)), Opening::InDoubt(Token(1)));
    }

    #[test]
    fn a_committed_effect_answers_with_its_result_and_a_failed_one_opens_again() {
        let result = Json::check("result", "42", 10).unwrap();
        let committed = EffectOutcome::Committed(result.clone());
        let ended = |outcome| Some(Entry { token: Token(1), outcome: Some(outcome) });
        assert_eq!(open(ended(committed).as_ref(), Token(2)), Opening::Committed(result));
        let failed = ended(EffectOutcome::Failed("refused".into()));
        assert_eq!(open(failed.as_ref(), Token(2)), Opening::Opened);
    }

    #[test]
    fn the_key_for_the_outside_is_the_same_for_every_attempt() {
        let key = EffectKey {
            installation: uuid::Uuid::from_u128(7),
            epoch: 2,
            job: JobId(1042),
            effect: effect_name("charge").unwrap(),
        };
        assert_eq!(key.to_string(), "00000000000000000000000000000007/2/1042/charge");
    }
}
