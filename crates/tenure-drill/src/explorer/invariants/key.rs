//! I12: the same key within its window gives the same job, never none; with other args it is a
//! conflict.

use tenure::engine::store::Enqueued;
use tenure::{JobId, Timestamp};

use super::super::call::{Answer, Call, WINDOW};
use super::ghost::Ghost;
use super::{Check, Checked, Ghosts, Seen};
use crate::verdict::Invariant;

/// Which job owns the key, with which args, and until when.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Remembered {
    job: JobId,
    wish: u8,
    until: Timestamp,
}

impl Ghosts {
    /// What an enqueue under the key must answer, and what it must have stored.
    pub(super) fn enqueued(&mut self, seen: &Seen<'_>, check: &mut Check<'_>) -> Checked {
        let (Call::Enqueue(wish), Answer::Enqueued(said)) = (seen.call, seen.answer) else {
            return Ok(());
        };
        let now = seen.old.now;
        let taken = self.key.as_ref().filter(|key| key.until > now);
        if let Some(Remembered { job, wish: first, until }) = taken {
            let expected =
                if first == wish { Enqueued::Existing(*job) } else { Enqueued::Conflict(*job) };
            check.that(Invariant::I12, true, *said == expected, || {
                let whose = if first == wish { "the same" } else { "another" };
                format!(
                    "job {job} has the key for {whose} request until second {}, and the answer was {}",
                    super::super::words::second(*until),
                    super::super::words::enqueued(said)
                )
            })?;
        }
        check.that(
            Invariant::I12,
            taken.is_none(),
            matches!(said, Enqueued::Created(_)),
            || {
                let said = super::super::words::enqueued(said);
                format!("nobody has the key, and the answer was {said}")
            },
        )?;
        let (Enqueued::Created(job) | Enqueued::Existing(job) | Enqueued::Conflict(job)) = *said;
        let is_there = seen.new.jobs.iter().any(|stored| stored.id == job);
        check.that(Invariant::I12, true, is_there, || {
            format!("the answer names job {job}, and there is none")
        })?;
        if let Enqueued::Created(job) = said {
            let is_new = !self.jobs.contains_key(job);
            check.that(Invariant::I9, true, is_new, || format!("job {job} was created twice"))?;
            self.jobs.insert(*job, Ghost::default());
            self.key = Some(Remembered { job: *job, wish: *wish, until: now + WINDOW });
        }
        Ok(())
    }
}
