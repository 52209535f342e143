//! Settle: ends attempts.

use std::collections::BTreeSet;

use postgres::Row;
use postgres::types::Type;

use super::enqueue::enqueue;
use super::row::{self, JsonText, Stage};
use super::schema::Schema;
use super::session::{Param, Session};
use crate::clock::millis;
use crate::job::NewJob;
use crate::lease::{Fence, Stale};
use crate::lifecycle::{Outcome, Verb};
use crate::store::{Enqueued, Settled, Settlement};

pub(super) fn settle(
    session: &mut Session,
    schema: &Schema,
    settlements: &[Settlement],
) -> Result<Vec<Settled>, postgres::Error> {
    const SETTLE: &str = "SELECT n, verdict, became, token, state \
        FROM tenure.settle_many($1, $2, $3, $4, $5, $6)";
    let shown = Shown::new(settlements);
    let rows = session.query(&schema.apply(SETTLE), &shown.params())?;
    answers(settlements, &rows.iter().collect::<Vec<_>>(), "n")
}

/// Enqueues the follow-ups of the settlements that will be applied. Runs first in their
/// transaction, and locks the jobs, so that those settlements will indeed be applied. Not later,
/// because a refused follow-up adds a timeline entry to the job, which would stay behind if the
/// settlement had already deleted the job.
pub(super) fn follow(
    session: &mut Session,
    schema: &Schema,
    settlements: &[Settlement],
) -> Result<(), postgres::Error> {
    const HOLD: &str = "SELECT n FROM tenure.hold_many($1, $2)";
    let (jobs, tokens) = lists(settlements.iter().map(|settlement| settlement.fence));
    let rows = session
        .query(&schema.apply(HOLD), &[(&jobs, Type::INT8_ARRAY), (&tokens, Type::INT8_ARRAY)])?;
    let held = rows.iter().map(|row| row::place(row, "n")).collect::<Result<BTreeSet<_>, _>>()?;
    let mut heard = BTreeSet::new();
    let mut parents = Vec::new();
    let mut follow_ups = Vec::new();
    for place in held {
        let Settlement { fence, then, .. } = &settlements[place];
        // Of several settlements of one job only the first is applied, so only its follow-ups are
        // enqueued.
        if heard.insert(fence.job) {
            parents.extend(then.iter().map(|_| *fence));
            follow_ups
                .extend(then.iter().map(|job| NewJob { parent: Some(fence.job), ..job.clone() }));
        }
    }
    let answers = enqueue(session, schema, &follow_ups)?;
    let refusals = refusals(&parents, &follow_ups, &answers);
    for (parent, note) in refusals {
        const REFUSED: &str = "SELECT tenure.follow_refused($1, $2, $3)";
        session.execute(
            &schema.apply(REFUSED),
            &[(&parent.job.0, Type::INT8), (&parent.token.0, Type::INT8), (&note, Type::TEXT)],
        )?;
    }
    Ok(())
}

/// For each parent, the note that says which of its follow-ups were not enqueued, because other
/// requests have their keys.
fn refusals(
    parents: &[Fence],
    follow_ups: &[NewJob],
    answers: &[Enqueued],
) -> Vec<(Fence, String)> {
    let mut lines: Vec<(Fence, String)> = Vec::new();
    for ((parent, follow_up), answer) in parents.iter().zip(follow_ups).zip(answers) {
        let Enqueued::Conflict(owner) = answer else { continue };
        let words =
            format!("{} not enqueued: job {owner} has its key for another request", follow_up.kind);
        match lines.last_mut() {
            Some((last, line)) if last == parent => *line = format!("{line}; {words}"),
            _ => lines.push((*parent, words)),
        }
    }
    lines
}

/// Adds the timeline entry for a refusal that was rolled back with a user's own transaction.
pub(super) fn refused(
    session: &mut Session,
    schema: &Schema,
    fence: Fence,
    verb: Verb,
) -> Result<(), postgres::Error> {
    const REFUSED: &str = "SELECT tenure.refused($1, $2, $3)";
    let shown: [Param<'_>; 3] =
        [(&fence.job.0, Type::INT8), (&fence.token.0, Type::INT8), (&verb.name(), Type::TEXT)];
    session.execute(&schema.apply(REFUSED), &shown).map(drop)
}

/// The parameters of a batch of settlements.
pub(super) struct Shown<'a> {
    jobs: Vec<i64>,
    tokens: Vec<i64>,
    verbs: Vec<&'static str>,
    after: Vec<Option<i64>>,
    notes: Vec<Option<String>>,
    results: Vec<Option<JsonText<&'a str>>>,
}

impl<'a> Shown<'a> {
    pub(super) fn new(settlements: &'a [Settlement]) -> Shown<'a> {
        let (jobs, tokens) = lists(settlements.iter().map(|settlement| settlement.fence));
        let outcomes = || settlements.iter().map(|settlement| &settlement.outcome);
        let after = |outcome: &Outcome| match outcome {
            Outcome::Retry { after, .. } | Outcome::Snooze { after } => Some(millis(*after)),
            _ => None,
        };
        let result = |outcome: &'a Outcome| match outcome {
            Outcome::Complete { result: Some(result) } => Some(JsonText(result.as_str())),
            _ => None,
        };
        Shown {
            jobs,
            tokens,
            verbs: outcomes().map(|outcome| outcome.verb().name()).collect(),
            after: outcomes().map(after).collect(),
            notes: outcomes().map(Outcome::note).collect(),
            results: outcomes().map(result).collect(),
        }
    }

    pub(super) fn params(&self) -> [Param<'_>; 6] {
        [
            (&self.jobs, Type::INT8_ARRAY),
            (&self.tokens, Type::INT8_ARRAY),
            (&self.verbs, Type::TEXT_ARRAY),
            (&self.after, Type::INT8_ARRAY),
            (&self.notes, Type::TEXT_ARRAY),
            (&self.results, Type::JSON_ARRAY),
        ]
    }
}

/// The answers in the order of the settlements. `place` is the column that says which settlement a
/// row belongs to.
pub(super) fn answers(
    settlements: &[Settlement],
    rows: &[&Row],
    place: &str,
) -> Result<Vec<Settled>, postgres::Error> {
    let mut answers = vec![Settled::NotFound; settlements.len()];
    for row in rows {
        let at = row::place(row, place)?;
        let became = || row.try_get("became").map(|Stage(state, _)| state);
        answers[at] = match row.try_get("verdict")? {
            "settled" | "repeated" => Settled::Applied(became()?),
            "stale" => Settled::Stale(stale(settlements[at].fence, row)?),
            _ => Settled::NotFound,
        };
    }
    Ok(answers)
}

/// The refusal in a row.
pub(super) fn stale(shown: Fence, row: &Row) -> Result<Stale, postgres::Error> {
    let Stage(state, _) = row.try_get("state")?;
    Ok(Stale::new(shown, row.try_get("token")?, state))
}

/// Jobs and tokens as two lists, as the functions take them.
pub(super) fn lists(fences: impl Iterator<Item = Fence>) -> (Vec<i64>, Vec<i64>) {
    fences.map(|fence| (fence.job.0, fence.token.0)).unzip()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobId, Json, Name};
    use crate::lease::Token;

    #[test]
    fn what_was_not_enqueued_is_noted_once_for_each_parent() {
        let parent = |job| Fence { job: JobId(job), token: Token(1) };
        let job = |kind| {
            NewJob::new(Name::check("kind", kind).unwrap(), Json::check("args", "1", 9).unwrap())
        };
        let noted = refusals(
            &[parent(1), parent(1), parent(1), parent(2)],
            &[job("a"), job("b"), job("c"), job("d")],
            &[
                Enqueued::Conflict(JobId(7)),
                Enqueued::Created(JobId(8)),
                Enqueued::Conflict(JobId(9)),
                Enqueued::Conflict(JobId(7)),
            ],
        );
        let of = |kind: &str, owner: u8| {
            format!("{kind} not enqueued: job {owner} has its key for another request")
        };
        let first = format!("{}; {}", of("a", 7), of("c", 9));
        assert_eq!(noted, [(parent(1), first), (parent(2), of("d", 7))]);
    }
}
