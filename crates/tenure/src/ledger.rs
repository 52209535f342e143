//! The ledger: which effects happened, once per key, and the remembered results of a job's steps.
//!
//! An effect is something a job does that must not happen twice. Its row in the ledger is keyed by
//! (job, effect), never by token: keyed by token, a stale and a current attempt could both insert a
//! row. The token only decides which attempt may write. The intent is written before the outside
//! call and the outcome after it. An intent that another attempt left without an outcome is *in
//! doubt*: the ledger reports that instead of silently letting it run again. This module has the
//! decisions; it knows neither the table nor the outside system.

use std::fmt;

use serde::Serialize;

use crate::clock::Timestamp;
use crate::job::{ERROR_LIMIT, Invalid, JobId, Json, Name, shorten};
use crate::lease::{Fence, Stale, Token, epoch_of};
use crate::lifecycle::Verb;

/// The key by which outside systems deduplicate: the same for every attempt of this effect of this
/// job, and globally unique, because the installation is random and the epoch rises when a database
/// may have gone back in time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct EffectKey {
    /// The installation that the job was enqueued in.
    pub installation: uuid::Uuid,
    /// The job. Its number contains the epoch in which it was enqueued.
    pub job: JobId,
    /// The effect's name within the job.
    pub effect: Name,
}

impl fmt::Display for EffectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EffectKey { installation, job, effect } = self;
        write!(f, "{}/{}/{job}/{effect}", installation.simple(), epoch_of(job.0))
    }
}

/// Checks the name of an effect or a step.
pub fn effect_name(text: impl Into<String>) -> Result<Name, Invalid> {
    Name::check("effect", text)
}

/// A request of a job's holder to the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The holder's fence.
    pub fence: Fence,
    /// The effect's or the step's name within the job. Effects and steps have separate namespaces.
    pub name: Name,
    /// What is requested.
    pub act: Act,
}

/// The requests to the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Act {
    /// `effect_open`: the attempt is about to make the outside call. It must wait for the answer
    /// before the call.
    Open,
    /// `effect_commit`: it happened, with this result.
    Commit {
        /// The result of the outside call.
        result: Json,
    },
    /// `effect_fail`: it did not happen; it may be opened again.
    Fail {
        /// What went wrong.
        error: String,
    },
    /// `effect_resolve`: resolves an effect that was in doubt; or confirms that the attempt
    /// continues with the outcome that a person has decided.
    Resolve(Resolution),
    /// `step_get`: asks for the remembered result of this step.
    Recall,
    /// `step_put`: remembers this result. A result that is already remembered stays.
    Remember {
        /// The step's result.
        result: Json,
    },
}

impl Act {
    /// The verb, as every layer spells it.
    pub fn verb(&self) -> Verb {
        match self {
            Act::Open => Verb::EffectOpen,
            Act::Commit { .. } => Verb::EffectCommit,
            Act::Fail { .. } => Verb::EffectFail,
            Act::Resolve(_) => Verb::EffectResolve,
            Act::Recall => Verb::StepGet,
            Act::Remember { .. } => Verb::StepPut,
        }
    }

    /// The result to store, if there is one.
    pub fn result(&self) -> Option<&Json> {
        match self {
            Act::Commit { result }
            | Act::Remember { result }
            | Act::Resolve(Resolution::Committed { result }) => Some(result),
            Act::Open | Act::Fail { .. } | Act::Resolve(Resolution::Resend) | Act::Recall => None,
        }
    }

    /// The text to store, cut and cleaned so that it cannot make a call fail.
    pub fn note(&self) -> Option<String> {
        match self {
            Act::Fail { error } => Some(shorten(&error.replace('\0', "\u{fffd}"), ERROR_LIMIT)),
            _ => None,
        }
    }
}

/// How an effect in doubt is resolved.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Resolution {
    /// It has happened, with this result.
    Committed {
        /// The result of the outside call.
        result: Json,
    },
    /// Send it again with the same key, for the other side to deduplicate.
    Resend,
}

impl Resolution {
    /// The name, as every layer spells it.
    pub fn name(&self) -> &'static str {
        match self {
            Resolution::Committed { .. } => "committed",
            Resolution::Resend => "resend",
        }
    }
}

/// The state of an effect in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// Its intent is written; its outcome is unknown.
    Open,
    /// It happened.
    Committed,
    /// It did not happen.
    Failed,
    /// It was in doubt, and a person decided to send it again.
    Resend,
}

impl Standing {
    /// All of them, in the order of their numbers in the tables.
    pub const ALL: [Standing; 4] =
        [Standing::Open, Standing::Committed, Standing::Failed, Standing::Resend];

    /// The name, as every layer spells it.
    pub fn name(self) -> &'static str {
        match self {
            Standing::Open => "open",
            Standing::Committed => "committed",
            Standing::Failed => "failed",
            Standing::Resend => "resend",
        }
    }
}

/// An effect as the ledger keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct EffectRecord {
    /// The job.
    pub job: JobId,
    /// Its name within the job.
    #[serde(rename = "effect")]
    pub name: Name,
    /// Its state in the ledger.
    pub standing: Standing,
    /// The token of the attempt that wrote this last. A person's decision has [`Token::NONE`],
    /// until an attempt continues with it and writes its own token.
    pub token: Token,
    /// When the intent was written, or last sent again.
    pub opened_at: Timestamp,
    /// When its outcome was written.
    pub ended_at: Option<Timestamp>,
    /// The result of the outside call.
    pub result: Option<Json>,
    /// What went wrong. If the effect is committed or to be sent again, a note that a person
    /// decided so.
    pub note: Option<String>,
}

impl EffectRecord {
    /// The note of a person's decision.
    pub const DECIDED: &'static str = "a person decided";

    /// Whether a person decided its state.
    pub fn is_decided(&self) -> bool {
        matches!(self.standing, Standing::Committed | Standing::Resend) && self.note.is_some()
    }

    /// Whether a person may still change the decision: no attempt has continued with it.
    pub fn can_be_corrected(&self) -> bool {
        self.is_decided() && self.token == Token::NONE
    }
}

/// A remembered step.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[allow(missing_docs)]
pub struct Step {
    pub job: JobId,
    #[serde(rename = "step")]
    pub name: Name,
    pub token: Token,
    pub at: Timestamp,
    pub result: Json,
}

/// The ledger's answer to one entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "verdict", content = "detail", rename_all = "snake_case")]
pub enum Answer {
    /// The intent is written: make the outside call.
    Opened,
    /// It has already happened, with this result. Do not do it again.
    Committed(Json),
    /// A person decided that it happened, with this result. If the attempt can continue with it, it
    /// confirms that with [`Act::Resolve`] and the same result; from then on the decision cannot be
    /// changed.
    Decided(Json),
    /// Another attempt wrote its intent and no outcome: the effect may have happened. Its policy
    /// decides.
    InDoubt(Doubt),
    /// Written, now or by an earlier send of the same request.
    Recorded,
    /// The result that was first remembered for this step.
    Remembered(Json),
    /// Nothing is remembered of this step.
    Unknown,
    /// The ledger does not allow it. Carries the state of the effect, or `None` if this job has no
    /// such effect. Nothing was changed.
    NotAllowed(Option<Standing>),
    /// Refused: the token is not the job's latest, or the attempt has ended.
    Stale(Stale),
    /// Refused: the store does not know the job, or no longer.
    NotFound,
}

/// An intent without an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Doubt {
    /// The attempt that wrote it.
    pub token: Token,
    /// When it was written.
    pub since: Timestamp,
}

/// The new state of an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its state from now on, written by the attempt that asks.
    pub standing: Standing,
    /// The result of the outside call.
    pub result: Option<Json>,
    /// What went wrong.
    pub note: Option<String>,
}

/// What the ledger answers to the job's holder about an effect, and what is written. The caller has
/// passed the fence. Steps are simpler, and not decided here.
pub fn decide(found: Option<&EffectRecord>, token: Token, act: &Act) -> (Answer, Option<Change>) {
    use Standing::{Committed, Failed, Open, Resend};
    let standing = found.map(|effect| effect.standing);
    let ours = found.is_some_and(|effect| effect.token == token);
    let becomes = |standing| Change { standing, result: act.result().cloned(), note: act.note() };
    let no = (Answer::NotAllowed(standing), None);
    match (act, found, standing) {
        (Act::Open, None, _) | (Act::Open, _, Some(Failed | Resend)) => {
            (Answer::Opened, Some(becomes(Open)))
        }
        // The same attempt asks again: its first answer was lost.
        (Act::Open, _, Some(Open)) if ours => (Answer::Opened, None),
        (Act::Open, Some(effect), Some(Open)) => {
            let doubt = Doubt { token: effect.token, since: effect.opened_at };
            (Answer::InDoubt(doubt), None)
        }
        (Act::Open, Some(effect @ EffectRecord { result: Some(result), .. }), Some(Committed)) => {
            let result = result.clone();
            let told = if effect.can_be_corrected() { Answer::Decided } else { Answer::Committed };
            (told(result), None)
        }
        // The attempt continues with a person's decision.
        (Act::Resolve(Resolution::Committed { result }), Some(effect), Some(Committed))
            if effect.can_be_corrected() && effect.result.as_ref() == Some(result) =>
        {
            (Answer::Recorded, Some(Change { note: effect.note.clone(), ..becomes(Committed) }))
        }
        // The attempt that wrote the intent may write its outcome, and committed is final.
        (Act::Commit { .. }, _, Some(Open | Failed)) if ours => {
            (Answer::Recorded, Some(becomes(Committed)))
        }
        (Act::Fail { .. }, _, Some(Open)) if ours => (Answer::Recorded, Some(becomes(Failed))),
        // Only an effect in doubt can be resolved: its intent is from another attempt.
        (Act::Resolve(Resolution::Committed { .. }), _, Some(Open)) if !ours => {
            (Answer::Recorded, Some(becomes(Committed)))
        }
        (Act::Resolve(Resolution::Resend), _, Some(Open)) => {
            (Answer::Recorded, (!ours).then(|| becomes(Open)))
        }
        _ if was_heard(found, token, act) => (Answer::Recorded, None),
        _ => no,
    }
}

/// Whether this same attempt already wrote this outcome: then a repeated request is confirmed,
/// however late. A permission (to open, or to send again) is not repeated to an attempt that has
/// ended.
pub fn was_heard(found: Option<&EffectRecord>, token: Token, act: &Act) -> bool {
    let stands =
        |standing| found.is_some_and(|effect| effect.token == token && effect.standing == standing);
    match act {
        Act::Commit { .. } | Act::Resolve(Resolution::Committed { .. }) => {
            stands(Standing::Committed)
        }
        Act::Fail { .. } => stands(Standing::Failed),
        Act::Open | Act::Resolve(Resolution::Resend) | Act::Recall | Act::Remember { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::check("result", text, 100).unwrap()
    }

    /// An effect as attempt 1 left it.
    fn left(standing: Standing) -> EffectRecord {
        EffectRecord {
            job: JobId(1),
            name: effect_name("charge").unwrap(),
            standing,
            token: Token(1),
            opened_at: Timestamp::from_millis(5),
            ended_at: None,
            result: (standing == Standing::Committed).then(|| json("42")),
            note: None,
        }
    }

    fn acts() -> [Act; 5] {
        [
            Act::Open,
            Act::Commit { result: json("43") },
            Act::Fail { error: "no".into() },
            Act::Resolve(Resolution::Committed { result: json("44") }),
            Act::Resolve(Resolution::Resend),
        ]
    }

    /// The answers to open, commit, fail, resolve committed and resolve resend, with the state that
    /// is written.
    fn table(found: Option<&EffectRecord>, token: i64) -> Vec<(String, Option<Standing>)> {
        let row = |act: &Act| {
            let (answer, change) = decide(found, Token(token), act);
            let word = match answer {
                Answer::Opened => "opened".into(),
                Answer::Committed(result) => format!("committed {}", result.as_str()),
                Answer::Decided(result) => format!("decided {}", result.as_str()),
                Answer::InDoubt(doubt) => format!("doubt {}", doubt.token),
                Answer::Recorded => "yes".into(),
                Answer::NotAllowed(_) => "no".into(),
                other => format!("{other:?}"),
            };
            (word, change.map(|change| change.standing))
        };
        acts().iter().map(row).collect()
    }

    #[test]
    fn the_table_of_decisions() {
        use Standing::{Committed, Failed, Open, Resend};
        type Rows = [(&'static str, Option<Standing>); 5];
        let cases: [(Option<Standing>, i64, Rows); 9] = [
            (
                None,
                1,
                [("opened", Some(Open)), ("no", None), ("no", None), ("no", None), ("no", None)],
            ),
            (
                Some(Open),
                1,
                [
                    ("opened", None),
                    ("yes", Some(Committed)),
                    ("yes", Some(Failed)),
                    ("no", None),
                    ("yes", None),
                ],
            ),
            (
                Some(Open),
                2,
                [
                    ("doubt 1", None),
                    ("no", None),
                    ("no", None),
                    ("yes", Some(Committed)),
                    ("yes", Some(Open)),
                ],
            ),
            (
                Some(Committed),
                1,
                [("committed 42", None), ("yes", None), ("no", None), ("yes", None), ("no", None)],
            ),
            (
                Some(Committed),
                2,
                [("committed 42", None), ("no", None), ("no", None), ("no", None), ("no", None)],
            ),
            (
                Some(Failed),
                1,
                [
                    ("opened", Some(Open)),
                    ("yes", Some(Committed)),
                    ("yes", None),
                    ("no", None),
                    ("no", None),
                ],
            ),
            (
                Some(Failed),
                2,
                [("opened", Some(Open)), ("no", None), ("no", None), ("no", None), ("no", None)],
            ),
            (
                Some(Resend),
                2,
                [("opened", Some(Open)), ("no", None), ("no", None), ("no", None), ("no", None)],
            ),
            (
                None,
                2,
                [("opened", Some(Open)), ("no", None), ("no", None), ("no", None), ("no", None)],
            ),
        ];
        for (standing, token, expected) in cases {
            let found = standing.map(left);
            let expected: Vec<_> =
                expected.iter().map(|(word, becomes)| ((*word).to_owned(), *becomes)).collect();
            assert_eq!(table(found.as_ref(), token), expected, "{standing:?} under token {token}");
        }
    }

    #[test]
    fn what_a_person_decided_is_corrected_until_an_attempt_goes_on_with_it() {
        let decided = EffectRecord {
            token: Token::NONE,
            note: Some(EffectRecord::DECIDED.into()),
            ..left(Standing::Committed)
        };
        let word = |at: usize, found: &EffectRecord| table(Some(found), 2)[at].0.clone();
        assert!(decided.can_be_corrected());
        assert_eq!(word(0, &decided), "decided 42");
        assert_eq!(word(3, &decided), "no", "it was something else that a person decided");
        let goes_on = Act::Resolve(Resolution::Committed { result: json("42") });
        let (answer, change) = decide(Some(&decided), Token(2), &goes_on);
        assert_eq!(answer, Answer::Recorded);
        let used = EffectRecord { token: Token(2), note: change.unwrap().note, ..decided };
        assert!(used.is_decided() && !used.can_be_corrected());
        assert_eq!(word(0, &used), "committed 42");
    }

    #[test]
    fn only_what_a_person_decided_and_no_attempt_has_used_can_be_corrected() {
        let noted = |standing, token| {
            let note = Some("words".into());
            EffectRecord { token, note, ..left(standing) }
        };
        assert!(!noted(Standing::Failed, Token(1)).is_decided(), "a failure has words of its own");
        assert!(!noted(Standing::Failed, Token::NONE).can_be_corrected());
        assert!(!noted(Standing::Committed, Token(1)).can_be_corrected());
        assert!(noted(Standing::Resend, Token::NONE).can_be_corrected());
    }

    #[test]
    fn an_attempt_cannot_take_over_what_another_attempt_has_committed() {
        let same = Act::Resolve(Resolution::Committed { result: json("42") });
        let (answer, change) = decide(Some(&left(Standing::Committed)), Token(2), &same);
        assert_eq!((answer, change), (Answer::NotAllowed(Some(Standing::Committed)), None));
    }

    #[test]
    fn every_standing_has_the_name_that_it_has_in_json() {
        for standing in Standing::ALL {
            assert_eq!(serde_json::to_value(standing).unwrap(), standing.name());
        }
    }

    #[test]
    fn an_attempt_that_has_ended_hears_what_it_wrote_and_gets_no_permission() {
        let heard = |standing, token: i64| {
            acts().map(|act| was_heard(Some(&left(standing)), Token(token), &act))
        };
        assert_eq!(heard(Standing::Committed, 1), [false, true, false, true, false]);
        assert_eq!(heard(Standing::Failed, 1), [false, false, true, false, false]);
        assert_eq!(heard(Standing::Open, 1), [false; 5]);
        assert_eq!(heard(Standing::Committed, 2), [false; 5]);
    }

    #[test]
    fn the_key_for_the_outside_is_the_same_for_every_attempt() {
        let key = EffectKey {
            installation: uuid::Uuid::from_u128(7),
            job: JobId((2 << 40) + 1042),
            effect: effect_name("charge").unwrap(),
        };
        let job = (2_i64 << 40) + 1042;
        assert_eq!(key.to_string(), format!("00000000000000000000000000000007/2/{job}/charge"));
    }
}
