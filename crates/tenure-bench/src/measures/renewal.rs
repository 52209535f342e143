//! Ten thousand jobs run and are renewed, on ten workers of a thousand each, while another worker
//! runs jobs that do nothing. No lease may be lost.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use tenure::engine::clock::monotonic;
use tenure::{Event, Fact, Worker};

use super::{Limit, Reading, Unit};
use crate::jobs::{Goal, Hold, taught};
use crate::stand::{Stand, within};
use crate::stats::{rate, whole};

const WORKERS: u64 = 10;

/// What the workers of the held jobs report.
#[derive(Default)]
struct Heard {
    renewed: Goal,
    lost: Goal,
}

impl Heard {
    fn hear(&self, event: &Event) {
        match event.fact {
            Fact::LeaseRenewed { .. } => self.renewed.add(1),
            Fact::LeaseLapsed { .. } | Fact::StaleWriteBlocked { .. } => self.lost.add(1),
            _ => {}
        }
    }
}

/// Ten thousand, with a lease of ten seconds: each is renewed every 3.3 s.
pub(super) async fn ten_thousand(stand: &Stand) -> Result<Vec<Reading>> {
    let (held, jobs) = (stand.size(10_000, 200), stand.size(40_000, 1_000));
    let lease = Duration::from_secs(stand.size(10, 1));
    stand.warm_up().await?;
    stand.fill_with(held, |n| stand.tenure.enqueue(Hold { n })).await?;
    let heard = Arc::new(Heard::default());
    let mut holders = Vec::new();
    for _ in 0..WORKERS {
        let hear = Arc::clone(&heard);
        let slots = usize::try_from(held / WORKERS)?;
        let worker = taught(Worker::new(&stand.tenure), &stand.runs);
        let worker = worker.queues(["held"]).concurrency(slots).lease(lease);
        holders.push(worker.observe(move |event| hear.hear(event)).start().await?);
    }
    within("all held jobs to run", stand.runs.held.reach(held)).await?;
    stand.fill(jobs).await?;
    let before = heard.renewed.count();
    let begin = monotonic();
    let took = stand.drain(stand.worker().concurrency(100)).await?;
    // At least one whole round of renewals.
    within("renewals", heard.renewed.reach(before + held)).await?;
    let renewals = rate(heard.renewed.count() - before, monotonic() - begin);
    ensure!(
        heard.lost.count() == 0,
        "{} leases were lost while all workers lived",
        heard.lost.count()
    );
    stand.runs.release();
    for holder in holders {
        holder.finish();
        holder.shut_down().await;
    }
    let settings =
        format!("{} jobs beside {}, a lease of {} s", whole(jobs), whole(held), lease.as_secs());
    let mut readings = Reading::rate(rate(jobs, took), Limit::Process, settings.clone());
    readings.push(Reading {
        part: "renewals",
        unit: Unit::Renewals,
        value: renewals,
        limit: None,
        settings,
    });
    Ok(readings)
}
