//! For tests: a store whose whole state can be read and set, and whose SQL can be broken on
//! purpose.

use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{GUARD_GAP, Look, Operate, Result, Work};
use crate::clock::Timestamp;
use crate::inspect::{QueueSettings, TimelineEntry, WorkerRecord};
use crate::job::{Fingerprint, JobId, Tenant};
use crate::lease::WorkerId;
use crate::ledger::{EffectRecord, Step};
use crate::record::JobRecord;

/// A store whose whole state can be read and set. So the result of a call depends only on a state
/// that the test chooses.
pub trait Explorable: Work + Operate {
    /// The whole state, in one canonical order.
    fn dump(&mut self) -> Result<Dump>;

    /// Puts the store into this state, and sets its clock. From then on the guards of exactly the
    /// workers in `held` are held, as if by their processes.
    fn load(&mut self, state: &Dump) -> Result<()>;

    /// The queries; `None` for the model, which has none.
    fn look(&mut self) -> Option<&mut dyn Look>;

    /// Sets the database back to an earlier state, like a restored copy or a promoted replica. The
    /// database then differs from what is recorded outside of it (by SQLite's witness, or by the
    /// server), and the store must notice that. The clock continues.
    fn go_back(&mut self, state: &Dump) -> Result<()>;
}

/// Removes a safeguard from a verb's SQL file.
#[derive(Debug, Clone, Copy)]
pub struct Patch {
    /// The file, without `.sql`.
    pub file: &'static str,
    /// The text to replace; it must occur exactly once. Space and comments do not count.
    pub find: &'static str,
    /// The replacement.
    pub replace: &'static str,
}

impl Patch {
    /// Applies the patches for a file to its text. Panics if a patch does not match exactly once: a
    /// test with such a patch would prove nothing.
    pub(crate) fn apply(patches: &[Patch], file: &str, text: &str) -> String {
        let ours = patches.iter().filter(|patch| patch.file == file);
        ours.fold(text.to_owned(), |text, patch| {
            let found = patch.places(&text);
            let [place] = found.as_slice() else {
                panic!("{:?} must be in {file}.sql once, and is there {}", patch.find, found.len());
            };
            let (before, after) = (&text[..place.start], &text[place.end..]);
            format!("{before}{}{after}", patch.replace)
        })
    }

    /// The places where `find` occurs in a text. White space and comments do not count, so a patch
    /// still matches after the file was formatted differently.
    fn places(&self, text: &str) -> Vec<Range<usize>> {
        let (wanted, code) = (letters(self.find), letters(text));
        let is_same = |window: &[(usize, char)]| {
            window.iter().map(|(_, c)| c).eq(wanted.iter().map(|(_, c)| c))
        };
        let place = |window: &[(usize, char)]| {
            let (first, (last, c)) = (window.first()?.0, *window.last()?);
            Some(first..last + c.len_utf8())
        };
        let all = code.windows(wanted.len().max(1));
        all.filter(|window| is_same(window)).filter_map(place).collect()
    }
}

/// The characters of an SQL text and the byte offset of each, without comments and white space.
/// Inside quotes, all characters are kept.
fn letters(text: &str) -> Vec<(usize, char)> {
    let mut letters = Vec::new();
    let (mut at, mut in_quotes) = (0, false);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let skipped = match c {
            _ if in_quotes => None,
            '-' if rest.starts_with("--") => Some(rest.find('\n').unwrap_or(rest.len())),
            '/' if rest.starts_with("/*") => {
                Some(rest.find("*/").map_or(rest.len(), |end| end + 2))
            }
            _ if c.is_whitespace() => Some(c.len_utf8()),
            _ => None,
        };
        if skipped.is_none() {
            in_quotes ^= c == '\'';
            letters.push((at, c));
        }
        at += skipped.unwrap_or(c.len_utf8());
    }
    letters
}

/// The whole state of a store. Two stores with equal dumps answer every call in the same way.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct Dump {
    /// The store's clock.
    pub now: Timestamp,
    /// Since when the store's time has run without a break: a server's start, or the last jump of a
    /// machine's clock.
    pub started_at: Timestamp,
    /// The end of the last gap in the workers' pulse, and of the gap before it. The pulse itself is
    /// not part of the state. A store that was set to a state has no pulse until the next beat, so
    /// tests set these two times to simulate a gap.
    pub broke: Timestamp,
    /// See `broke`.
    pub broke_before: Timestamp,
    /// How long a worker's guard must have been free before its process counts as gone.
    pub guard_gap: Duration,
    /// The epoch in which tokens and ids are issued, whether or not it is stored yet.
    pub epoch: u32,
    /// The id that the next job gets.
    pub next_id: i64,
    /// All jobs, live and ended, by id.
    pub jobs: Vec<JobRecord>,
    /// All timelines, by job, oldest first.
    pub timeline: Vec<TimelineEntry>,
    /// All remembered keys, by tenant, scope and key.
    pub keys: Vec<KeyRecord>,
    /// The settings of operators, by queue.
    pub queues: Vec<QueueSettings>,
    /// All effects, by job and name.
    pub ledger: Vec<EffectRecord>,
    /// All remembered steps, by job and name.
    pub steps: Vec<Step>,
    /// The registered workers, by their ids.
    pub workers: Vec<WorkerRecord>,
    /// The workers whose guards are held, in order. No table has this list: it depends on which
    /// processes are alive.
    pub held: Vec<WorkerId>,
}

impl Dump {
    /// A store in which nothing has happened.
    pub fn empty(now: Timestamp) -> Dump {
        Dump {
            now,
            started_at: Timestamp::from_millis(0),
            broke: Timestamp::from_millis(0),
            broke_before: Timestamp::from_millis(0),
            guard_gap: GUARD_GAP,
            epoch: 0,
            next_id: 1,
            jobs: vec![],
            timeline: vec![],
            keys: vec![],
            queues: vec![],
            ledger: vec![],
            steps: vec![],
            workers: vec![],
            held: vec![],
        }
    }
}

/// A remembered key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[allow(missing_docs)]
pub struct KeyRecord {
    pub tenant: Tenant,
    pub scope: KeyScope,
    pub key: String,
    pub fingerprint: Fingerprint,
    pub job: JobId,
    pub expires_at: Timestamp,
}

/// What a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyScope {
    /// At most one job per key and window.
    Idempotency,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(find: &'static str, text: &str) -> String {
        Patch::apply(&[Patch { file: "verb", find, replace: "-" }], "verb", text)
    }

    #[test]
    fn a_patch_finds_its_place_however_the_text_is_laid_out() {
        assert_eq!(apply("a = 2 AND b", "x a = 2 /* running */\n  AND -- why\n b y"), "x - y");
        assert_eq!(apply("'a b'", "x = 'a b'"), "x = -");
        assert_eq!(apply("c", "-- c\na c"), "-- c\na -");
    }

    #[test]
    #[should_panic(expected = "must be in verb.sql once, and is there 0")]
    fn space_within_quotes_counts() {
        apply("'ab'", "'a b'");
    }

    #[test]
    #[should_panic(expected = "must be in verb.sql once, and is there 2")]
    fn a_patch_that_fits_twice_is_a_mistake() {
        apply("a", "a a");
    }
}
