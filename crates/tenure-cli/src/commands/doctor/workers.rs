//! Which workers there are, and whether one of them takes what is due.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use tenure::Timestamp;
use tenure::engine::inspect::{DueJobs, Overview, QueueSettings, WorkerView};
use tenure::engine::job::{BATCH_LIMIT, Name};
use tenure::engine::store::Store;

use super::{Finding, count};
use crate::time::relative;

pub(super) fn look(workers: &[WorkerView], now: Timestamp) -> Finding {
    let gone: Vec<_> = workers.iter().filter(|worker| worker.is_alive == Some(false)).collect();
    let unknown = workers.iter().filter(|worker| worker.is_alive.is_none()).count();
    let alive = workers.len() - gone.len() - unknown;
    let mut found = match workers {
        [] => "none has made itself known".to_owned(),
        _ => format!("{alive} alive"),
    };
    if unknown > 0 {
        found = format!("{found}, {unknown} behind a pooler, of which only leases tell");
    }
    let Some(first) = gone.first() else { return Finding::well("workers", found) };
    let found = format!(
        "{found}, {} gone and not swept yet, such as {}, known since {}",
        gone.len(),
        first.worker.short(),
        relative(first.since, now)
    );
    if alive > 0 {
        // A living worker takes their jobs back within a second. Its next cleanup removes those
        // that had no jobs.
        return Finding::well("workers", found);
    }
    let next =
        "any living worker takes their jobs back within a second, so start one, or look again";
    Finding::ill("workers", found, next)
}

/// Due jobs that a worker should take.
#[derive(Debug)]
pub(super) struct Demand {
    queue: Name,
    /// Unknown if this role may not read the jobs.
    kind: Option<Name>,
    jobs: u64,
}

/// What is due in queues that are not paused.
pub(super) fn demand(
    due: Option<Vec<DueJobs>>,
    overview: &Overview,
    queues: &[QueueSettings],
) -> Vec<Demand> {
    let demand: Vec<Demand> = match due {
        Some(due) => due
            .into_iter()
            .map(|DueJobs { queue, kind, jobs }| Demand { queue, kind: Some(kind), jobs })
            .collect(),
        None => {
            let ready = overview.lines.iter().filter(|line| line.ready > 0);
            let demand = |queue: &Name, jobs| Demand { queue: queue.clone(), kind: None, jobs };
            ready.map(|line| demand(&line.queue, line.ready)).collect()
        }
    };
    let is_paused = |queue: &Name| {
        queues.iter().any(|settings| settings.queue == *queue && settings.paused_at.is_some())
    };
    demand.into_iter().filter(|demand| !is_paused(&demand.queue)).collect()
}

/// The kinds that are running at this moment, whether or not their workers have registered: clients
/// of the SQL functions need not register.
pub(super) fn holders(store: &mut dyn Store) -> Result<BTreeSet<Name>> {
    let over = store.overdue(BATCH_LIMIT, Duration::ZERO)?;
    let leases = store.leases(BATCH_LIMIT)?.into_iter();
    let held = leases.filter(|lease| over.iter().all(|fence| fence.job != lease.job));
    Ok(held.map(|lease| lease.kind).collect())
}

pub(super) fn kinds(
    demand: &[Demand],
    workers: &[WorkerView],
    running: &BTreeSet<Name>,
) -> Finding {
    let left: Vec<&Demand> =
        demand.iter().filter(|demand| !is_taken(demand, workers, running)).collect();
    let Some(first) = left.first() else {
        let found =
            if demand.is_empty() { "nothing is due" } else { "all that are due have workers" };
        return Finding::well("kinds", found);
    };
    let kind = first.kind.as_ref().map(|kind| format!(" of kind {kind}")).unwrap_or_default();
    let place = format!("{kind} in queue {}", first.queue);
    let mut found = match first.jobs {
        1 => format!("1 job{place} is due, and no known worker takes it"),
        n if n >= DueJobs::EACH as u64 => {
            format!("{n} or more jobs{place} are due, and no known worker takes them")
        }
        n => format!("{n} jobs{place} are due, and no known worker takes them"),
    };
    if left.len() > 1 {
        found = format!("{found} (and {})", count(left.len() - 1, "more kind", "more kinds"));
    }
    let list = match &first.kind {
        Some(kind) => format!("--queue {} --kind {kind}", first.queue),
        None => format!("--queue {}", first.queue),
    };
    let next =
        format!("start a worker for that kind; see what waits with: tenure jobs list {list}");
    Finding::ill("kinds", found, next)
}

fn is_taken(demand: &Demand, workers: &[WorkerView], running: &BTreeSet<Name>) -> bool {
    let Demand { queue, kind, .. } = demand;
    let takes = |worker: &WorkerView| {
        let kinds = worker.kinds.as_ref();
        worker.is_alive != Some(false)
            && worker.queues.contains(queue)
            && kind.as_ref().is_none_or(|kind| kinds.is_none_or(|kinds| kinds.contains(kind)))
    };
    workers.iter().any(takes)
        || match kind {
            Some(kind) => running.contains(kind),
            None => !running.is_empty(),
        }
}

#[cfg(test)]
mod tests {
    use tenure::WorkerId;

    use super::*;

    fn name(text: &str) -> Name {
        Name::check("kind", text).unwrap()
    }

    fn worker(queue: &str, kinds: Option<&str>, is_alive: Option<bool>) -> WorkerView {
        WorkerView {
            worker: WorkerId::check("ann").unwrap(),
            queues: vec![name(queue)],
            kinds: kinds.map(|kind| vec![name(kind)]),
            since: Timestamp::from_millis(0),
            is_alive,
        }
    }

    #[test]
    fn a_worker_that_is_gone_is_something_to_do() {
        let look = |workers: &[WorkerView]| look(workers, Timestamp::from_millis(5_000));
        assert_eq!(look(&[]).found, "none has made itself known");
        let unknown = look(&[worker("q", None, Some(true)), worker("q", None, None)]);
        assert!(
            unknown.ok && unknown.found.starts_with("1 alive, 1 behind a pooler"),
            "{unknown:?}"
        );
        let gone = look(&[worker("q", None, Some(false))]);
        let said = "0 alive, 1 gone and not swept yet, such as ann, known since 5s ago";
        assert!(!gone.ok && gone.found == said, "{gone:?}");
    }

    #[test]
    fn what_is_due_needs_a_living_worker_for_its_queue_and_kind() {
        let demand = |jobs| [Demand { queue: name("q"), kind: Some(name("k")), jobs }];
        let is_well = |workers: &[WorkerView]| kinds(&demand(1), workers, &BTreeSet::new()).ok;
        assert!(is_well(&[worker("q", None, Some(true))]));
        assert!(is_well(&[worker("q", Some("k"), None)]));
        assert!(!is_well(&[]));
        assert!(!is_well(&[worker("q", None, Some(false))]));
        assert!(!is_well(&[worker("other", None, Some(true)), worker("q", Some("l"), Some(true))]));
        assert!(kinds(&demand(1), &[], &BTreeSet::from([name("k")])).ok, "somebody runs that kind");
        let many = kinds(&demand(100), &[], &BTreeSet::new());
        assert!(many.found.starts_with("100 or more jobs of kind k in queue q"), "{many:?}");
        assert_eq!(kinds(&[], &[], &BTreeSet::new()).found, "nothing is due");
    }
}
