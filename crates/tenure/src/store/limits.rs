//! How much one call does at most, and how long a store waits before it takes a silence for a death. Every engine has the
//! same numbers.

use std::time::Duration;

use super::LEASE_LIMIT;

/// How many waiting jobs one claim makes ready at most.
pub const PROMOTE_LIMIT: usize = 1_000;
/// How many jobs of each of so many queues become ready in a claim of `n`: ten times as many as are claimed, but 100 to
/// [`PROMOTE_LIMIT`] in all. They are locked for as long as the claim's transaction is open.
pub(crate) fn promote_limit(n: usize, queues: usize) -> usize {
    (10 * n).clamp(100, PROMOTE_LIMIT).div_ceil(queues.max(1))
}
/// How many leases one claim lapses at most.
pub const LAPSE_LIMIT: usize = 32;
/// How many (queue, tenant) groups one claim serves at a time; it goes on to the next ones while it
/// has room.
pub const GROUP_LIMIT: usize = 64;
/// How many lanes one claim passes by on its walk because it does not ask for their kinds. Then it looks
/// at no further group. If it has room left, its [`Cursor`](super::Cursor) is midway, and the next claim goes on
/// from there.
pub const PASS_LIMIT: usize = 100;
/// For how long the attempt of a suspect keeps its worker from taking another one, so that a job that
/// kills its process meets its next crash alone. One whose next crash would bury it shares its worker with
/// no other suspect, however long it runs.
pub const SUSPICION: Duration = Duration::from_secs(60);

/// How long a worker's lock must have been free before its process counts as gone, unless the installation says otherwise
/// with [`Store::set_guard_gap`](super::Store::set_guard_gap); and the least that it may say. A connection that broke is made again in this time.
///
/// It is a trade: a worker whose connections are cut for longer than this loses its jobs, whatever its lease, and they run
/// a second time. The fence keeps that safe. A longer gap keeps them, and a dead process's jobs wait for as much longer.
pub const GUARD_GAP: Duration = Duration::from_millis(300);
/// The longest guard gap.
pub const GUARD_GAP_LIMIT: Duration = Duration::from_secs(60);
/// How often the pulse advances, while there is something to look after.
pub const PULSE: Duration = Duration::from_millis(500);
/// A pulse that has not advanced for so long, while leases are out, tells of a stall of the store.
pub const STALL: Duration = Duration::from_secs(3);
/// For so long after a stall, a worker's lock must have been free for [`STALLED_GAP`], or for the guard gap if that is longer.
pub const AFTER_STALL: Duration = Duration::from_secs(10);
/// See [`AFTER_STALL`]: workers come back one by one, and their locks with them.
pub const STALLED_GAP: Duration = Duration::from_secs(5);
/// For how long a worker that cannot be guarded is remembered after it was last heard of.
pub const WORKER_MEMORY: Duration = LEASE_LIMIT;
