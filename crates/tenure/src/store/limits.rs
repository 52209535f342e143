//! How much one call does at most, and how long a store waits before it takes a silent worker for
//! dead. The same numbers on every engine.

use std::time::Duration;

use super::LEASE_LIMIT;

/// How many waiting jobs one claim makes ready at most.
pub const PROMOTE_LIMIT: usize = 1_000;
/// How many due jobs of each queue a claim of `n` jobs makes ready, if `queues` queues have due
/// jobs. In all: ten times `n`, but at least 100 and at most [`PROMOTE_LIMIT`], rounded up for each
/// queue. More would block others: on PostgreSQL the rows stay locked until the claim's transaction
/// ends.
pub(crate) fn promote_limit(n: usize, queues: usize) -> usize {
    (10 * n).clamp(100, PROMOTE_LIMIT).div_ceil(queues.max(1))
}
/// How many leases one claim lapses at most.
pub const LAPSE_LIMIT: usize = 32;
/// How many (queue, tenant) groups one claim serves at a time. It continues with the next groups
/// until it has leased enough jobs.
pub const GROUP_LIMIT: usize = 64;
/// How many lanes a claim skips, because their kinds were not requested, before it stops looking at
/// further groups. If it has leased fewer jobs than requested by then, its
/// [`Cursor`](super::Cursor) is midway, and the next claim continues there.
pub const PASS_LIMIT: usize = 100;
/// How long a running suspect keeps its worker from claiming another one, for which a crash of the
/// worker would count as well. After this time the worker may claim the next, so that suspects do
/// not wait for each other for long. A suspect that one more crash would bury shares its worker
/// with no other suspect, however long it runs.
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
/// For this long after a stall, a worker's lock must have been free for [`STALLED_GAP`] before its
/// process counts as gone, or for the guard gap if that is longer.
pub const AFTER_STALL: Duration = Duration::from_secs(10);
/// See [`AFTER_STALL`]. After a stall of a server, workers reconnect one by one, and each takes its
/// lock again only then.
pub const STALLED_GAP: Duration = Duration::from_secs(5);
/// How long a worker stays registered after it last registered, if its lock cannot show whether its
/// process lives: the worker has no guard, or only one from before a restart of the server or a
/// break of the clock.
pub const WORKER_MEMORY: Duration = LEASE_LIMIT;
