//! A command for each job: the real `tenure worker -- true`, in a process of its own. The time of a
//! job beyond starting the command (the limit `spawn_true`) is the worker's part.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tenure::Job;
use tenure::engine::job::JobRecord;
use tokio::process::Command;

use super::{Limit, Reading};
use crate::jobs::{Noop, number};
use crate::stand::{Stand, within};
use crate::stats::whole;

const CONCURRENCY: &str = "16";

/// `true` for each job.
pub(super) async fn truth(stand: &Stand) -> Result<Vec<Reading>> {
    let jobs = stand.size(2_000, 50);
    stand.warm_up().await?;
    let first = stand.runs.counts().len() as u64;
    stand.fill(jobs).await?;
    drain(stand).await?;
    let took = account(stand, first..first + jobs).await?;
    let settings = format!("{} jobs, concurrency {CONCURRENCY}", whole(jobs));
    Ok(Reading::rate(jobs as f64 / took, Limit::SpawnTrue, settings))
}

/// Runs a worker until nothing is due.
async fn drain(stand: &Stand) -> Result<()> {
    let mut worker = Command::new(&stand.program.path)
        .args(["worker", "--drain", "--concurrency", CONCURRENCY, "--kind", Noop::KIND])
        .args(["--log-level", "warn", "--", "true"])
        // Not an argument: the address may contain a password.
        .env("TENURE_DB", &stand.site.url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // Ctrl-C goes to the bench, which ends its children itself.
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .context("cannot start this program again as a worker")?;
    let status = within("a worker of commands", worker.wait()).await??;
    ensure!(status.success(), "the worker of commands has failed; it says why above");
    Ok(())
}

/// Counts the succeeded jobs with these numbers as run once each, because a command cannot count
/// its runs as a handler does. `Stand::account` checks the attempts in the store. Returns the
/// seconds from the first claim to the last settlement, by the times in the store, so that the
/// start of the worker's process is not in them.
async fn account(stand: &Stand, numbers: std::ops::Range<u64>) -> Result<f64> {
    let of = move |job: &JobRecord| {
        let number = number(job.args.as_str()).filter(|n| numbers.contains(n))?;
        Some((number, job.started_at?.as_millis(), job.finished_at?.as_millis()))
    };
    let times = stand.succeeded(of).await?;
    for (number, ..) in &times {
        // This fails only for a number that no job has. `Stand::account` then finds a wrong count.
        let _ = stand.runs.ran(*number);
    }
    let begin = times.iter().map(|(_, started, _)| *started).min();
    let end = times.iter().map(|(.., finished)| *finished).max();
    let took = begin.zip(end).map(|(begin, end)| (end - begin).max(1));
    Ok(took.context("the worker of commands has run nothing")? as f64 / 1_000.0)
}
