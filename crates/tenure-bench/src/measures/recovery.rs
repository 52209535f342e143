//! How soon the job of a killed worker runs on another worker. The killed worker is a process of
//! its own. It cannot catch the signal, so it gives no job back. The time is from the signal to the
//! start of the job's next attempt on a worker that was idle.

use std::time::Duration;

use anyhow::{Context, Result};
use tenure::engine::clock::monotonic;

use super::Reading;
use crate::children::Child;
use crate::jobs::Hold;
use crate::stand::{Stand, within};
use crate::stats::millis;

/// The other worker looks for dead workers regularly. It gets this long to begin with that before
/// the kill.
const PAUSE: Duration = Duration::from_millis(1_500);

/// `kill -9`, some times.
pub(super) async fn kill(stand: &Stand) -> Result<Vec<Reading>> {
    let kills = stand.size(5, 1);
    stand.warm_up().await?;
    // The next attempt ends at once.
    stand.runs.release();
    let mut started = stand.runs.listen();
    let mut times = Vec::new();
    for _ in 0..kills {
        let mut victim = Child::hold(&stand.program, &stand.site.url).await?;
        let n = stand.runs.number(1);
        stand.tenure.enqueue(Hold { n }).await?;
        victim.started().await?;
        let running = stand.worker().queues(["held"]).start().await?;
        tokio::time::sleep(PAUSE).await;
        let begin = monotonic();
        victim.kill()?;
        let told = within("the job to start again", started.recv()).await?;
        let (_, at) = told.context("the worker has ended")?;
        times.push(millis(at - begin));
        running.shut_down().await;
    }
    let settings = format!("kills: {kills}, a lease of 30 s");
    // No limit: it is about noticing a death, not about SQL.
    Ok(Reading::latencies(&times, &[("median", 50.0), ("slowest", 100.0)], &[], &settings))
}
