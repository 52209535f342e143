//! What `kill -9` of a worker costs. The killed worker is a process of its own. It cannot catch the
//! signal, so it gives no job back.
//!
//! How soon: the time from the signal to the start of the job's next attempt on a worker that was
//! idle. How many: the jobs that a busy worker held when it was killed, which all run again, whether
//! their handlers had begun, had returned, or were still to begin.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::engine::clock::monotonic;
use tenure::engine::job::JobRecord;

use super::{Reading, Unit};
use crate::children::Child;
use crate::jobs::{Hold, number};
use crate::stand::{Stand, within};
use crate::stats::{millis, percentile, whole};

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

/// How many jobs the killed worker runs at a time.
const CONCURRENCY: usize = 100;

/// `kill -9` in the middle of a backlog of jobs that do nothing, some times.
pub(super) async fn reruns(stand: &Stand) -> Result<Vec<Reading>> {
    let (kills, jobs) = (stand.size(5, 1), stand.size(50_000, 2_000));
    stand.warm_up().await?;
    let mut again = Vec::new();
    for _ in 0..kills {
        stand.fill(jobs).await?;
        let most = stand.runs.counts().len() as u64;
        let url = &stand.site.url;
        let mut victim = Child::drain(&stand.program, url, CONCURRENCY, most).await?;
        victim.go().await?;
        // Until it is a tenth through.
        let begun = ready_and_running(stand, |_, ready| ready < jobs / 10 * 9);
        let left = within("a worker to begin", begun).await??;
        ensure!(left > 0, "the worker was done before it was killed");
        victim.kill()?;
        // A worker that drains would not wait for jobs that the killed one holds.
        let running = stand.worker().concurrency(CONCURRENCY).start().await?;
        within("all jobs to end", ready_and_running(stand, |left, _| left == 0)).await??;
        running.shut_down().await;
        again.push(count(stand, most - jobs).await? as f64);
    }
    let settings = format!("kills: {kills}, {} jobs each, concurrency {CONCURRENCY}", whole(jobs));
    let reading = |part, percent| Reading {
        part,
        unit: Unit::Jobs,
        value: percentile(&again, percent),
        limit: None,
        settings: settings.clone(),
    };
    Ok(vec![reading("median", 50.0), reading("most", 100.0)])
}

/// Waits until `holds` accepts two counts: the jobs that are ready or running, and the ready jobs
/// alone. Returns the first count.
async fn ready_and_running(stand: &Stand, holds: impl Fn(u64, u64) -> bool) -> Result<u64> {
    loop {
        let overview = stand.tenure.with_store(|store| store.overview()).await?;
        let ready: u64 = overview.lines.iter().map(|line| line.ready).sum();
        let running: u64 = overview.lines.iter().map(|line| line.running).sum();
        if holds(ready + running, ready) {
            return Ok(ready + running);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// How many of the jobs with this number and above have a crash. What the killed worker ran it could
/// not report, so its jobs that succeeded count as run once. `Stand::account` checks the attempts.
async fn count(stand: &Stand, first: u64) -> Result<u64> {
    let of = move |job: &JobRecord| {
        Some((number(job.args.as_str()).filter(|n| *n >= first)?, job.crashes))
    };
    let jobs = stand.succeeded(of).await?;
    let counts = stand.runs.counts();
    for (number, _) in &jobs {
        if counts.get(*number as usize) == Some(&0) {
            // This fails only for a number that no job has, and there is none above.
            let _ = stand.runs.ran(*number);
        }
    }
    Ok(jobs.iter().filter(|(_, crashes)| *crashes > 0).count() as u64)
}
