//! A transaction that stays open, as a forgotten psql or a long report leaves one. While it is
//! open, vacuum cannot remove rows that were deleted or changed after its beginning, and claims
//! must pass these dead rows.

use anyhow::{Context, Result};
use postgres::{Client, NoTls};
use tokio::sync::oneshot::{Sender, channel};
use tokio::task::JoinHandle;

use super::{Limit, Reading, START, idle};
use crate::stand::{Stand, blocking};
use crate::stats::{rate, whole};

/// While work goes on.
pub(super) async fn busy(stand: &Stand) -> Result<Vec<Reading>> {
    let (jobs, before) = (stand.size(20_000, 500), stand.size(60_000, 1_000));
    let old = Old::begin(stand).await?;
    stand.fill(before).await?;
    stand.drain(stand.worker().concurrency(1_000)).await?;
    stand.fill(jobs).await?;
    let took = stand.drain(stand.worker().concurrency(100)).await?;
    old.end().await?;
    let settings = format!("{} jobs after {}, concurrency 100", whole(jobs), whole(before));
    Ok(Reading::rate(rate(jobs, took), Limit::Process, settings))
}

/// When there is little to do.
pub(super) async fn idle(stand: &Stand) -> Result<Vec<Reading>> {
    let (jobs, before) = (stand.size(200, 10), stand.size(60_000, 1_000));
    let old = Old::begin(stand).await?;
    stand.fill(before).await?;
    stand.drain(stand.worker().concurrency(1_000)).await?;
    let times = idle::times(stand, jobs).await?;
    old.end().await?;
    let parts = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0)];
    let settings = format!("{}, after {} jobs", idle::settings(jobs), whole(before));
    Ok(Reading::latencies(&times, &parts, START, &settings))
}

/// A transaction with a snapshot, on a thread of its own: the driver blocks.
struct Old {
    end: Sender<()>,
    thread: JoinHandle<Result<()>>,
}

impl Old {
    async fn begin(stand: &Stand) -> Result<Old> {
        let url = stand.site.driver.clone();
        let (tell, begun) = channel();
        let (end, ended) = channel::<()>();
        let thread = tokio::spawn(blocking(move || {
            let mut client = Client::connect(&url, NoTls)?;
            let mut old = client
                .build_transaction()
                .isolation_level(postgres::IsolationLevel::RepeatableRead)
                .start()?;
            // The first statement takes the snapshot.
            old.query_one("SELECT 1", &[])?;
            let _ = tell.send(());
            let _ = ended.blocking_recv();
            // It must have lasted until now.
            old.query_one("SELECT 1", &[])?;
            Ok(old.rollback()?)
        }));
        begun.await.context("the old transaction could not begin")?;
        Ok(Old { end, thread })
    }

    async fn end(self) -> Result<()> {
        let _ = self.end.send(());
        self.thread.await?.context("the old transaction did not last")
    }
}
