//! How a job is leased.
//!
//! Ready jobs stand in lanes, and the lanes of one (queue, tenant) are a group. A claim walks the
//! ring of groups that have work for it, beginning after the last one that its worker was served
//! from, and takes an equal share from each; so a tenant with a million jobs delays another
//! tenant's job by one round. Within a group its lanes are merged by priority and age.

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::{Result, named_params};

use super::row;
use super::tx::Tx;
use crate::clock::millis;
use crate::job::{JobId, Name};
use crate::lease::WorkerId;
use crate::store::lane::{self, SUSPECT};
use crate::store::{
    Attempt, Claim, Claimed, Cursor, GROUP_LIMIT, LAPSE_LIMIT, PROMOTE_LIMIT, SUSPICION,
};

impl Tx<'_> {
    pub(super) fn claim(&self, ask: &Claim) -> Result<Claimed> {
        let now = self.now.as_millis();
        self.run(&self.sql.claim.promote, named_params! { ":now": now, ":limit": PROMOTE_LIMIT })?;
        let overdue = self.overdue(LAPSE_LIMIT, ask.grace)?;
        let mut lapsed = Vec::new();
        for fence in overdue {
            lapsed.extend(self.lapse_one(fence)?);
        }
        let mut walk = Walk::new(self, ask)?;
        let attempts = walk.take(ask.n)?;
        let next_due = if attempts.len() < ask.n { self.next_due()? } else { None };
        Ok(Claimed { attempts, lapsed, cursor: walk.cursor, next_due })
    }

    /// Whether a claim could find anything, by a look that takes no lock.
    pub(super) fn claim_may_find(&self, ask: &Claim) -> Result<bool> {
        let (since, over) = (self.steady_since()?.as_millis(), (self.now - ask.grace).as_millis());
        let probe = named_params! { ":now": self.now.as_millis(), ":since": since, ":over": over };
        let due = self.one(&self.sql.claim.probe, probe, |row| row.get(0))?.unwrap_or(false);
        Ok(due || Walk::new(self, ask)?.finds_any()?)
    }

    pub(super) fn held(&self, worker: &WorkerId) -> Result<Vec<Attempt>> {
        let held = self.all(
            &self.sql.claim.held,
            named_params! { ":worker": worker.as_str() },
            row::record,
        )?;
        Ok(held.into_iter().filter_map(Attempt::of).collect())
    }

    pub(super) fn next_due(&self) -> Result<Option<Duration>> {
        let due =
            self.one(&self.sql.claim.next_due, [], |row| row.get::<_, Option<i64>>(0))?.flatten();
        Ok(due.map(|due| row::time(due).since(self.now)))
    }
}

/// One claim's way around the ring.
struct Walk<'a> {
    tx: &'a Tx<'a>,
    ask: &'a Claim,
    epoch: u32,
    /// The queues that it may take from: those asked for that are not paused.
    queues: BTreeSet<&'a Name>,
    /// The numbers of the kinds asked for; `None` for all.
    kinds: Option<BTreeSet<i64>>,
    /// Whether it may still take a suspect: one at a time for each worker.
    suspect_allowed: bool,
    /// The last group that gave something.
    cursor: Cursor,
}

/// Some lanes of one (queue, tenant).
struct Group {
    number: i64,
    lanes: Vec<i64>,
}

/// A ready job, ordered as it is to be taken.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: i16,
    run_at: i64,
    id: i64,
    suspect: bool,
}

impl<'a> Walk<'a> {
    fn new(tx: &'a Tx<'a>, ask: &'a Claim) -> Result<Walk<'a>> {
        let paused = tx.names(&tx.sql.claim.paused)?;
        let suspicious_since = tx.now - SUSPICION;
        let holds_suspect = tx.one(
            &tx.sql.claim.holds_suspect,
            named_params! { ":worker": ask.worker.as_str(), ":suspicious_since": suspicious_since.as_millis() },
            |row| row.get(0),
        )?;
        Ok(Walk {
            tx,
            ask,
            epoch: tx.epoch()?,
            queues: ask.queues.iter().filter(|queue| !paused.contains(queue)).collect(),
            kinds: ask.kinds.as_ref().map(|kinds| kinds.iter().map(lane::kind).collect()),
            suspect_allowed: !holds_suspect.unwrap_or(false),
            cursor: ask.cursor,
        })
    }

    /// Takes up to `n` jobs, in rounds of at most [`GROUP_LIMIT`] groups, once around the ring.
    fn take(&mut self, n: usize) -> Result<Vec<Attempt>> {
        let mut taken = Vec::new();
        let start = self.cursor.0;
        let mut ranges = self.ring(start);
        while taken.len() < n {
            let round = self.next_groups(&mut ranges, (n - taken.len()).min(GROUP_LIMIT))?;
            if round.is_empty() {
                break;
            }
            self.take_from(round, n, &mut taken)?;
        }
        Ok(taken)
    }

    /// Whether there is ready work for this claim.
    fn finds_any(&self) -> Result<bool> {
        Ok(!self.next_groups(&mut self.ring(self.cursor.0), 1)?.is_empty())
    }

    /// The ranges of group numbers to walk, in order: from the cursor to the end, then from the
    /// beginning to the cursor.
    fn ring(&self, start: i64) -> Vec<(i64, i64)> {
        let numbers: BTreeSet<i64> = self.queues.iter().map(|queue| lane::queue(queue)).collect();
        let (mut after, mut before) = (Vec::new(), Vec::new());
        for (first, last) in numbers.into_iter().map(|queue| lane::groups_of(queue).into_inner()) {
            if last > start {
                after.push((first.max(start + 1), last));
            }
            if first <= start {
                before.push((first, last.min(start)));
            }
        }
        after.extend(before);
        after
    }

    /// Up to `limit` further groups with work for this claim. What was walked is cut off the
    /// ranges.
    fn next_groups(&self, ranges: &mut Vec<(i64, i64)>, limit: usize) -> Result<Vec<Group>> {
        let mut groups = Vec::new();
        while groups.len() < limit
            && let Some((first, last)) = ranges.first().copied()
        {
            let Some(number) = self.next_group(first, last)? else {
                ranges.remove(0);
                continue;
            };
            ranges[0].0 = number + 1;
            let lanes = self.lanes_of(number)?;
            if !lanes.is_empty() {
                groups.push(Group { number, lanes });
            }
        }
        Ok(groups)
    }

    /// The next group that has ready jobs of any kind.
    fn next_group(&self, first: i64, last: i64) -> Result<Option<i64>> {
        let (from, to) = (lane::first_in(first), lane::first_in(last + 1));
        let clean = self.next_lane(from, to)?;
        let suspect =
            if self.suspect_allowed { self.next_lane(from + SUSPECT, to + SUSPECT)? } else { None };
        Ok(clean.into_iter().chain(suspect).map(lane::group_of).min())
    }

    /// The lanes of a group that this claim can serve, suspects' lanes last.
    fn lanes_of(&self, group: i64) -> Result<Vec<i64>> {
        let (from, to) = (lane::first_in(group), lane::first_in(group + 1));
        let mut lanes = self.lanes_between(from, to)?;
        if self.suspect_allowed {
            lanes.extend(self.lanes_between(from + SUSPECT, to + SUSPECT)?);
        }
        Ok(lanes)
    }

    fn lanes_between(&self, mut from: i64, to: i64) -> Result<Vec<i64>> {
        let mut lanes = Vec::new();
        while let Some(lane) = self.next_lane(from, to)? {
            if self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&lane::kind_of(lane))) {
                lanes.push(lane);
            }
            from = lane + 1;
        }
        Ok(lanes)
    }

    fn next_lane(&self, from: i64, to: i64) -> Result<Option<i64>> {
        self.tx.one(
            &self.tx.sql.claim.next_lane,
            named_params! { ":from": from, ":to": to },
            |row| row.get(0),
        )
    }

    /// Takes from these groups in equal shares until there are `n` or the groups are empty.
    fn take_from(
        &mut self,
        mut groups: Vec<Group>,
        n: usize,
        taken: &mut Vec<Attempt>,
    ) -> Result<()> {
        while taken.len() < n && !groups.is_empty() {
            let share = (n - taken.len()).div_ceil(groups.len());
            let mut rich = Vec::new();
            for group in groups {
                let wanted = share.min(n - taken.len());
                if wanted == 0 {
                    break;
                }
                let picked = self.pick(&group, wanted)?;
                for candidate in &picked {
                    taken.extend(self.take_one(JobId(candidate.id))?);
                    self.suspect_allowed &= !candidate.suspect;
                }
                if !picked.is_empty() {
                    self.cursor = Cursor(group.number);
                }
                if picked.len() == wanted {
                    rich.push(group);
                }
            }
            groups = rich;
        }
        Ok(())
    }

    /// The first `wanted` jobs of a group, its lanes merged by priority and age, with one suspect
    /// at most.
    fn pick(&self, group: &Group, wanted: usize) -> Result<Vec<Candidate>> {
        let mut candidates = Vec::new();
        for &lane in &group.lanes {
            let suspect = lane & SUSPECT != 0;
            match suspect {
                true if self.suspect_allowed => self.read_lane(lane, 1, &mut candidates)?,
                true => {}
                false => self.read_lane(lane, wanted, &mut candidates)?,
            }
        }
        candidates.sort();
        let mut suspects = 0;
        candidates.retain(|candidate| {
            suspects += usize::from(candidate.suspect);
            !candidate.suspect || suspects == 1
        });
        candidates.truncate(wanted);
        Ok(candidates)
    }

    /// Reads the first `limit` jobs of a lane that this claim can serve. Names are compared, since
    /// lanes may collide.
    fn read_lane(&self, lane: i64, limit: usize, into: &mut Vec<Candidate>) -> Result<()> {
        let mut statement = self.tx.connection.prepare_cached(&self.tx.sql.claim.pick)?;
        let mut rows = statement.query(named_params! { ":lane": lane })?;
        let mut found = 0;
        while found < limit
            && let Some(row) = rows.next()?
        {
            let (queue, kind) = (row.get_ref(3)?.as_str()?, row.get_ref(4)?.as_str()?);
            let queue_asked = self.queues.iter().any(|asked| asked.as_str() == queue);
            let kind_asked = self
                .ask
                .kinds
                .as_ref()
                .is_none_or(|kinds| kinds.iter().any(|k| k.as_str() == kind));
            if queue_asked && kind_asked {
                found += 1;
                let (id, priority, run_at) = (row.get(0)?, row.get(1)?, row.get(2)?);
                into.push(Candidate { priority, run_at, id, suspect: lane & SUSPECT != 0 });
            }
        }
        Ok(())
    }

    /// Takes a job, and reads it in a statement of its own: RETURNING would keep a journal for a
    /// statement that changes one row.
    fn take_one(&self, job: JobId) -> Result<Option<Attempt>> {
        let by_id = named_params! { ":job": job.0 };
        let taken = self.tx.run(
            &self.tx.sql.claim.take,
            named_params! {
                ":job": job.0, ":epoch": self.epoch, ":worker": self.ask.worker.as_str(),
                ":now": self.tx.now.as_millis(), ":lease_ms": millis(self.ask.lease),
            },
        )?;
        if taken == 0 {
            return Ok(None);
        }
        let taken = self.tx.one(&self.tx.sql.claim.taken, by_id, row::record)?;
        Ok(taken.and_then(Attempt::of))
    }
}
