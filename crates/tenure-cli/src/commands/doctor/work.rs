//! What waits for a person: paused queues, leases that are over, effects in doubt, dead jobs.

use std::time::Duration;

use anyhow::Result;
use tenure::Timestamp;
use tenure::engine::inspect::{EffectFilter, EffectView, Overview, QueueSettings, Rule};
use tenure::engine::job::{BATCH_LIMIT, JobId, Name, State};
use tenure::engine::store::Store;

use super::{Finding, count};
use crate::time::relative;

pub(super) fn queues(queues: &[QueueSettings], now: Timestamp) -> Finding {
    let paused: Vec<(&Name, Timestamp)> =
        queues.iter().filter_map(|queue| Some((&queue.queue, queue.paused_at?))).collect();
    let Some((first, _)) = paused.first() else {
        return Finding::well("queues", "none is paused");
    };
    let since = |(queue, at): &(_, Timestamp)| format!("{queue} (paused {})", relative(*at, now));
    let names: Vec<String> = paused.iter().map(since).collect();
    let next = format!("if that is over: tenure queues resume {first}");
    Finding::ill("queues", names.join(", "), next)
}

pub(super) fn leases(store: &mut dyn Store, now: Timestamp) -> Result<Finding> {
    let over = store.overdue(BATCH_LIMIT, Duration::ZERO)?.into_iter().map(|fence| fence.job);
    let mut overdue: Vec<JobId> = over.collect();
    if overdue.is_empty() {
        // While no worker runs, nothing advances the workers' pulse. Then `overdue` gives each
        // lease its whole length again, and may report none. So report here each lease whose time
        // ended `Rule::OVERDUE` ago or earlier.
        let leases = store.leases(BATCH_LIMIT)?.into_iter();
        overdue.extend(leases.filter(|it| it.until + Rule::OVERDUE <= now).map(|it| it.job));
    }
    let Some(first) = overdue.first() else {
        return Ok(Finding::well("leases", "none is overdue"));
    };
    let found = match overdue.len() {
        1 => "1 lease is overdue".to_owned(),
        BATCH_LIMIT => format!("{BATCH_LIMIT} or more leases are overdue"),
        n => format!("{n} leases are overdue"),
    };
    let (them, longest) = match overdue.len() {
        1 => ("it", "see it with"),
        _ => ("them", "the longest"),
    };
    let next = format!(
        "the next claim of any worker takes {them} back, so start one; {longest}: tenure jobs show {first}"
    );
    Ok(Finding::ill("leases", found, next))
}

/// If a job continues, its next attempt decides by the effect's policy. If it does not continue,
/// its effects in doubt wait for an operator.
pub(super) fn effects(store: &mut dyn Store) -> Result<Finding> {
    let filter = EffectFilter { in_doubt: true, ..EffectFilter::default() };
    let doubtful = store.effects(&filter, BATCH_LIMIT)?;
    let goes_on = |view: &&EffectView| matches!(view.state, State::Queued | State::Running);
    let (going, waiting): (Vec<_>, Vec<_>) = doubtful.iter().partition(goes_on);
    let Some(EffectView { effect, .. }) = waiting.first() else {
        return Ok(Finding::well(
            "effects",
            match going.len() {
                0 => "none is in doubt".to_owned(),
                n => format!("{n} in doubt, and their jobs go on and decide"),
            },
        ));
    };
    let number = match waiting.len() {
        BATCH_LIMIT => format!("{BATCH_LIMIT} or more effects are"),
        n => count(n, "effect is", "effects are"),
    };
    let found = format!("{number} in doubt, such as {} of job {}", effect.name, effect.job);
    let next = "ask the other side whether it happened, and decide: tenure effects list --in-doubt";
    Ok(Finding::ill("effects", found, next))
}

pub(super) fn dead(overview: &Overview) -> Finding {
    let dead: u64 = overview.lines.iter().map(|line| line.dead).sum();
    match dead {
        0 => Finding::well("dead", "no dead jobs"),
        1 => Finding::ill("dead", "1 dead job", "see why with: tenure dead list"),
        n => Finding::ill("dead", format!("{n} dead jobs"), "see why with: tenure dead list"),
    }
}

#[cfg(test)]
mod tests {
    use tenure::WorkerId;
    use tenure::engine::clock::Clock;
    use tenure::engine::job::{Json, Limits, NewJob};
    use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
    use tenure::engine::store::{Claim, Work};

    use super::*;

    #[test]
    fn a_lease_is_overdue_in_the_end_though_no_worker_is_left_to_tell() {
        let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
        let options = StoreOptions { clock: clock.clone(), limits: Limits::default() };
        let mut store = Sqlite::in_memory(&options).unwrap();
        let kind = Name::check("kind", "work").unwrap();
        store.enqueue(&[NewJob::new(kind, Json::check("args", "{}", 10).unwrap())]).unwrap();
        let ask =
            Claim { request: 1, ..Claim::new(WorkerId::unique(), 1, Duration::from_secs(30)) };
        store.claim(&ask).unwrap();
        assert!(store.beat().unwrap().leads);
        clock.advance(Duration::from_secs(60));
        let soon = leases(&mut store, clock.now()).unwrap();
        assert!(soon.ok, "the pulse has stopped, so the lease is pardoned: {soon:?}");
        clock.advance(Rule::OVERDUE);
        let found = leases(&mut store, clock.now()).unwrap();
        assert!(!found.ok && found.found == "1 lease is overdue", "{found:?}");
    }
}
