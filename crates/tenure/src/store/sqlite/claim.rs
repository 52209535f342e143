//! Claim: leases due jobs.
//!
//! Ready jobs stand in lanes; the lanes of one (queue, tenant) form a group. A claim walks the ring
//! of groups that have work for it. It starts after the last group from which its worker was
//! served, and takes an equal share from each group, so that a tenant with a million jobs delays
//! another tenant's job by one round only. Within a group, the claim merges the lanes by priority
//! and age.

use std::collections::BTreeSet;
use std::time::Duration;

use rusqlite::{Result, ToSql, named_params};

use super::lapse::bound;
use super::row;
use super::tx::Tx;
use crate::clock::millis;
use crate::job::{JobId, Name};
use crate::lease::WorkerId;
use crate::store::lane::{self, SUSPECT};
use crate::store::{
    Attempt, Claim, Claimed, Cursor, GROUP_LIMIT, LAPSE_LIMIT, PASS_LIMIT, SUSPICION, promote_limit,
};

impl Tx<'_> {
    pub(super) fn claim(&self, ask: &Claim) -> Result<Claimed> {
        let queues = self.open_queues(ask)?;
        self.promote(&queues, ask.n)?;
        let mut lapsed = Vec::new();
        if self.looks_over(ask)? {
            let breaks = self.note_breaks()?;
            for fence in self.overdue(LAPSE_LIMIT, ask.grace)? {
                lapsed.extend(self.lapse_one(fence, &breaks)?);
            }
        }
        let mut walk = Walk::new(self, ask, &queues)?;
        let attempts = walk.take(ask.n)?;
        let has_room = attempts.len() < ask.n;
        let next_due = if has_room { self.next_due(&queues)? } else { None };
        Ok(Claimed { attempts, lapsed, cursor: walk.cursor(has_room), next_due })
    }

    /// The requested queues that are not paused.
    fn open_queues<'a>(&self, ask: &'a Claim) -> Result<BTreeSet<&'a Name>> {
        let paused = self.names(&self.sql.claim.paused)?;
        Ok(ask.queues.iter().filter(|queue| !paused.contains(queue)).collect())
    }

    /// Makes waiting jobs of these queues ready if they are due, for a claim of `n` jobs.
    fn promote(&self, queues: &BTreeSet<&Name>, n: usize) -> Result<()> {
        let now = self.now.as_millis();
        let asked = named_params! { ":queues": array(queues), ":now": now };
        let due: Vec<String> = self.all(&self.sql.claim.due, asked, |row| row.get(0))?;
        let limit = promote_limit(n, due.len());
        for queue in &due {
            let of_queue = named_params! { ":queue": queue, ":now": now, ":limit": limit };
            self.run(&self.sql.claim.promote, of_queue)?;
        }
        Ok(())
    }

    /// The answer to a claim that finds nothing, without taking a write lock; `None` if the claim
    /// might find something.
    pub(super) fn finds_nothing(&self, ask: &Claim) -> Result<Option<Claimed>> {
        let breaks = self.breaks()?;
        if breaks.is_new && self.looks_over(ask)? {
            // The claim must record a break, which needs the write lock.
            return Ok(None);
        }
        let queues = self.open_queues(ask)?;
        let over = breaks.params(self.now - ask.grace);
        let (now, asked) = (self.now.as_millis(), array(&queues));
        let mut probe = bound(&over);
        probe.extend([(":now", &now as &dyn ToSql), (":queues", &asked)]);
        let due = self.one(&self.sql.claim.probe, probe.as_slice(), |row| row.get(0))?;
        if due.unwrap_or(false) {
            return Ok(None);
        }
        let mut walk = Walk::new(self, ask, &queues)?;
        if ask.n > 0 && !walk.next_groups(1)?.is_empty() {
            return Ok(None);
        }
        let next_due = if ask.n > 0 { self.next_due(&queues)? } else { None };
        let cursor = walk.cursor(ask.n > 0);
        Ok(Some(Claimed { attempts: vec![], lapsed: vec![], cursor, next_due }))
    }

    /// Whether a lease is over, if breaks are ignored.
    fn looks_over(&self, ask: &Claim) -> Result<bool> {
        let over = named_params! { ":over": (self.now - ask.grace).as_millis() };
        Ok(self.one(&self.sql.claim.looks_over, over, |row| row.get(0))?.unwrap_or(false))
    }

    pub(super) fn held(&self, worker: &WorkerId, request: Option<i64>) -> Result<Vec<Attempt>> {
        let asked = named_params! { ":worker": worker.as_str(), ":request": request };
        let held = self.all(&self.sql.claim.held, asked, row::record)?;
        Ok(held.into_iter().filter_map(Attempt::of).collect())
    }

    /// How long until a waiting job of these queues is due.
    fn next_due(&self, queues: &BTreeSet<&Name>) -> Result<Option<Duration>> {
        let asked = named_params! { ":queues": array(queues) };
        let due = self.one(&self.sql.claim.next_due, asked, |row| row.get::<_, Option<i64>>(0))?;
        Ok(due.flatten().map(|due| row::time(due).since(self.now)))
    }
}

/// The names as a JSON array for SQLite. No name has a character that needs escaping.
fn array(queues: &BTreeSet<&Name>) -> String {
    let quoted: Vec<String> = queues.iter().map(|queue| format!("\"{queue}\"")).collect();
    format!("[{}]", quoted.join(","))
}

/// The walk of one claim around the ring.
struct Walk<'a> {
    tx: &'a Tx<'a>,
    ask: &'a Claim,
    epoch: u32,
    /// The queues to take from: the requested ones that are not paused.
    queues: &'a BTreeSet<&'a Name>,
    /// The numbers of the requested kinds; `None` for all.
    kinds: Option<BTreeSet<i64>>,
    /// Whether the claim may take a suspect. Not if its caller forbids it (`Claim::suspects`), not
    /// after it has taken one, and not while its worker runs one that started less than
    /// [`SUSPICION`] ago or that its next crash would bury.
    suspect_allowed: bool,
    /// Whether the claim may take a suspect whose next crash would bury it: only if the worker runs
    /// no other suspect.
    last_chance_allowed: bool,
    /// The ranges of group numbers that are left to walk.
    ranges: Vec<(i64, i64)>,
    /// How many lanes the claim has skipped because their kinds were not requested.
    passed: usize,
    /// The last group that the claim has looked at.
    walked_to: i64,
    /// The last group that gave a job.
    reached: i64,
}

/// Some lanes of one (queue, tenant).
struct Group {
    number: i64,
    lanes: Vec<i64>,
}

/// A ready job, in the order in which jobs are taken.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    priority: i16,
    run_at: i64,
    id: i64,
    suspect: bool,
}

impl<'a> Walk<'a> {
    fn new(tx: &'a Tx<'a>, ask: &'a Claim, queues: &'a BTreeSet<&'a Name>) -> Result<Walk<'a>> {
        let suspicious_since = tx.now - SUSPICION;
        let held: Option<bool> = tx.one(
            &tx.sql.claim.holds_suspect,
            named_params! { ":worker": ask.worker.as_str(), ":suspicious_since": suspicious_since.as_millis() },
            |row| row.get(0),
        )?.flatten();
        Ok(Walk {
            tx,
            ask,
            epoch: tx.epoch()?,
            ranges: ring(queues, ask.cursor),
            queues,
            kinds: ask.kinds.as_ref().map(|kinds| kinds.iter().map(lane::kind).collect()),
            suspect_allowed: ask.suspects && !held.unwrap_or(false),
            last_chance_allowed: held.is_none(),
            passed: 0,
            walked_to: ask.cursor.group,
            reached: ask.cursor.group,
        })
    }

    /// Where the next claim continues. If this claim has room left, but stopped at [`PASS_LIMIT`]
    /// before the end of its round, the next one continues the round there.
    fn cursor(&self, has_room: bool) -> Cursor {
        let end = self.ask.cursor.end();
        if has_room && self.passed >= PASS_LIMIT && self.walked_to != end {
            Cursor { group: self.walked_to, round: Some(end) }
        } else {
            Cursor::after(self.reached)
        }
    }

    /// Takes up to `n` jobs, from at most [`GROUP_LIMIT`] groups at a time, once around the ring.
    fn take(&mut self, n: usize) -> Result<Vec<Attempt>> {
        let mut taken = Vec::new();
        while taken.len() < n {
            let round = self.next_groups((n - taken.len()).min(GROUP_LIMIT))?;
            if round.is_empty() {
                break;
            }
            self.take_from(round, n, &mut taken)?;
        }
        Ok(taken)
    }

    /// Up to `limit` further groups with work for this claim. Removes the groups that it has looked
    /// at from `ranges`.
    fn next_groups(&mut self, limit: usize) -> Result<Vec<Group>> {
        let mut groups = Vec::new();
        while groups.len() < limit
            && self.passed < PASS_LIMIT
            && let Some((first, last)) = self.ranges.first().copied()
        {
            let Some(number) = self.next_group(first, last)? else {
                self.ranges.remove(0);
                continue;
            };
            self.ranges[0].0 = number + 1;
            self.walked_to = number;
            let (lanes, passed): (Vec<_>, Vec<_>) =
                self.lanes_of(number)?.into_iter().partition(|lane| self.serves(*lane));
            self.passed += passed.len();
            if !lanes.is_empty() {
                groups.push(Group { number, lanes });
            }
        }
        Ok(groups)
    }

    /// Whether jobs in this lane may be of a requested kind.
    fn serves(&self, lane: i64) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.contains(&lane::kind_of(lane)))
    }

    /// The next group that has ready jobs of any kind.
    fn next_group(&self, first: i64, last: i64) -> Result<Option<i64>> {
        let (from, to) = (lane::first_in(first), lane::first_in(last + 1));
        let clean = self.next_lane(from, to)?;
        let suspect =
            if self.suspect_allowed { self.next_lane(from + SUSPECT, to + SUSPECT)? } else { None };
        Ok(clean.into_iter().chain(suspect).map(lane::group_of).min())
    }

    /// The lanes of a group that have ready jobs; the lanes of suspects come last.
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
            lanes.push(lane);
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

    /// Takes from these groups in equal shares until there are `n` jobs or the groups are empty.
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
                    self.reached = group.number;
                }
                if picked.len() == wanted {
                    rich.push(group);
                }
            }
            groups = rich;
        }
        Ok(())
    }

    /// The first `wanted` jobs of a group, with its lanes merged by priority and age, and with at
    /// most one suspect.
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

    /// Reads the first `limit` jobs of a lane that this claim can serve. Compares names, since
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
            let suspect = lane & SUSPECT != 0;
            let passed_by = suspect && !self.last_chance_allowed && row.get(5)?;
            if queue_asked && kind_asked && !passed_by {
                found += 1;
                let (id, priority, run_at) = (row.get(0)?, row.get(1)?, row.get(2)?);
                into.push(Candidate { priority, run_at, id, suspect });
            }
        }
        Ok(())
    }

    /// Takes a job, and reads it with a second statement. RETURNING would cost more: SQLite would
    /// then keep a statement journal, although one row changes.
    fn take_one(&self, job: JobId) -> Result<Option<Attempt>> {
        let by_id = named_params! { ":job": job.0 };
        let taken = self.tx.run(
            &self.tx.sql.claim.take,
            named_params! {
                ":job": job.0, ":epoch": self.epoch, ":worker": self.ask.worker.as_str(),
                ":request": self.ask.request,
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

/// The ranges of group numbers to walk, in order: from the cursor to the end of the ring, then from
/// its start to the group that ends the round.
fn ring(queues: &BTreeSet<&Name>, cursor: Cursor) -> Vec<(i64, i64)> {
    let (start, end) = (cursor.group, cursor.end());
    let stretches = if start < end {
        vec![(start + 1, end)]
    } else {
        vec![(start.saturating_add(1), i64::MAX), (i64::MIN, end)]
    };
    let numbers: BTreeSet<i64> = queues.iter().map(|queue| lane::queue(queue)).collect();
    let of_queue = |(low, high): (i64, i64), queue: i64| {
        let (first, last) = lane::groups_of(queue).into_inner();
        Some((first.max(low), last.min(high))).filter(|(first, last)| first <= last)
    };
    stretches
        .into_iter()
        .flat_map(|stretch| numbers.iter().filter_map(move |queue| of_queue(stretch, *queue)))
        .collect()
}
