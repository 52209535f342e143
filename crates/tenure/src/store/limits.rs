//! The most that one call does, and how long a store waits before it takes a silent worker for
//! dead. The same numbers on every engine.

use std::time::Duration;

use super::LEASE_LIMIT;

/// How many waiting jobs one claim makes ready at most.
pub const PROMOTE_LIMIT: usize = 1_000;
/// How many jobs of each queue become ready in a claim of `n` jobs from this many queues. In all:
/// ten times `n`, but at least 100 and at most [`PROMOTE_LIMIT`]. They are locked until the claim's
/// transaction ends.
pub(crate) fn promote_limit(n: usize, queues: usize) -> usize {
    (10 * n).clamp(100, PROMOTE_LIMIT).div_ceil(queues.max(1))
}
/// How many leases one claim lapses at most.
pub const LAPSE_LIMIT: usize = 32;
/// How many (queue, tenant) groups one claim serves at a time; it continues with the next groups
/// while it has room.
pub const GROUP_LIMIT: usize = 64;
/// How many lanes of other kinds one claim skips before it stops looking at further groups. If the
/// claim has room left then, its [`Cursor`](super::Cursor) is midway, and the next claim continues
/// there.
pub const PASS_LIMIT: usize = 100;
/// How long a running suspect keeps its worker from claiming another suspect, so that a job that
/// kills its process is alone at its next crash. A suspect whose next crash would bury it shares
/// its worker with no other suspect, however long it runs.
pub const SUSPICION: Duration = Duration::from_secs(60);

/// How long a worker's lock must have been free before its process counts as gone. This is the
/// default and the minimum; [`Operate::set_guard_gap`](super::Operate::set_guard_gap) sets a longer
/// gap. A broken connection reconnects within this time.
///
/// The gap is a trade-off. A worker whose connections are cut for longer than the gap loses its
/// jobs, whatever its leases say, and they run a second time; the fence keeps that safe. With a
/// longer gap the worker keeps them, but the jobs of a dead process wait longer.
pub const GUARD_GAP: Duration = Duration::from_millis(300);
/// The longest guard gap.
pub const GUARD_GAP_LIMIT: Duration = Duration::from_secs(60);
/// How often the pulse advances, while jobs are running.
pub const PULSE: Duration = Duration::from_millis(500);
/// If the pulse has not advanced for this long while jobs are running, the store has stalled.
pub const STALL: Duration = Duration::from_secs(3);
/// For this long after a stall, a worker's lock must have been free for [`STALLED_GAP`], or for the
/// guard gap if that is longer.
pub const AFTER_STALL: Duration = Duration::from_secs(10);
/// See [`AFTER_STALL`]: workers reconnect one by one, and take their locks again as they do.
pub const STALLED_GAP: Duration = Duration::from_secs(5);
/// How long a worker is remembered after it last registered, if its lock says nothing: it has no
/// guard, or only one from before a restart of the server or a break of the clock.
pub const WORKER_MEMORY: Duration = LEASE_LIMIT;
