//! The lane of a job: its place in the claim index.
//!
//! A lane is a (queue, tenant, kind). Its number is computed from SHA-256 prefixes, the same on all
//! engines, so that enqueueing writes no lane row and takes no lock for one. The queue comes first:
//! a worker reads only the ranges of its own queues. The tenant comes next: the lanes of one
//! (queue, tenant) group are neighbours. Collisions cost time, never correctness, because names are
//! compared as well.
//!
//! ```text
//! bit  63  62       61       60 … 41   40 … 15   14 … 0
//!      0   limited  suspect  queue     tenant    kind
//! ```
//!
//! Suspects have their own lanes, because a claim may take only one suspect. The suspect bit is the
//! only place that stores whether a job is a suspect. `limited` is reserved for lanes per limit
//! key.

use sha2::{Digest, Sha256};

use crate::job::{Name, Tenant};
use crate::record::JobRecord;

const KIND_BITS: u32 = 15;
const TENANT_BITS: u32 = 26;
const QUEUE_BITS: u32 = 20;
/// Set in the lanes of suspects.
pub(crate) const SUSPECT: i64 = 1 << (KIND_BITS + TENANT_BITS + QUEUE_BITS);

/// The lane of a job in its current state.
pub(crate) fn of(job: &JobRecord) -> i64 {
    of_names(&job.queue, &job.tenant, &job.kind, job.is_suspect)
}

/// The lane of a job with these names, suspect or not.
pub(crate) fn of_names(queue: &Name, tenant: &Tenant, name: &Name, suspect: bool) -> i64 {
    let lane = first_in(group_of_names(queue, tenant)) | kind(name);
    if suspect { lane | SUSPECT } else { lane }
}

/// The number of a kind within a lane.
pub(crate) fn kind(name: &Name) -> i64 {
    prefix(name.as_str(), KIND_BITS)
}

/// The number of a queue.
pub(crate) fn queue(name: &Name) -> i64 {
    prefix(name.as_str(), QUEUE_BITS)
}

/// The number of a (queue, tenant) group: its position on the ring.
pub(crate) fn group_of_names(name: &Name, tenant: &Tenant) -> i64 {
    group(queue(name), prefix(tenant.as_str(), TENANT_BITS))
}

fn group(queue: i64, tenant: i64) -> i64 {
    queue << TENANT_BITS | tenant
}

/// The range of one queue's groups.
pub(crate) fn groups_of(queue: i64) -> std::ops::RangeInclusive<i64> {
    group(queue, 0)..=group(queue + 1, 0) - 1
}

/// The first lane of a group.
pub(crate) fn first_in(group: i64) -> i64 {
    group << KIND_BITS
}

/// The group of a lane, whether or not it is a lane of suspects.
pub(crate) fn group_of(lane: i64) -> i64 {
    (lane & !SUSPECT) >> KIND_BITS
}

/// The kind's number in a lane.
pub(crate) fn kind_of(lane: i64) -> i64 {
    lane & ((1 << KIND_BITS) - 1)
}

/// The first `bits` bits of the SHA-256 of `text`.
fn prefix(text: &str, bits: u32) -> i64 {
    let hash = Sha256::digest(text.as_bytes());
    let first = u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]);
    i64::from(first >> (u32::BITS - bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_of_a_thousand_queues_share_a_number() {
        let numbers: std::collections::BTreeSet<i64> = (0..1_000)
            .map(|n| queue(&Name::check("queue", format!("queue-{n}")).unwrap()))
            .collect();
        assert!(numbers.len() >= 998, "{}", numbers.len());
    }

    #[test]
    fn the_groups_of_a_queue_are_those_of_all_its_tenants_and_no_others() {
        for queue in [0, 7, (1 << QUEUE_BITS) - 1] {
            let last = group(queue, (1 << TENANT_BITS) - 1);
            assert_eq!(groups_of(queue), group(queue, 0)..=last);
            assert!(first_in(last + 1) <= SUSPECT, "and no clean lane is a suspect's");
        }
    }
}
