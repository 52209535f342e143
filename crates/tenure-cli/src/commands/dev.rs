//! `tenure dev`: enqueues and works in one terminal, to see Tenure run.
//!
//! This process enqueues sample jobs into the queue `dev` and shows the counts. It starts worker
//! processes that do the work, because some of the jobs kill their worker. Then this process starts
//! another worker, and the log shows what becomes of the job.

mod hands;
mod show;

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use tenure::Tenure;
use tenure::engine::clock::monotonic;
use tokio::process::{Child, Command};

use crate::commands::worker::runtime;
use crate::output::say;
use crate::time::positive_duration;
use crate::{Answer, Session};

pub(crate) use self::hands::work;

/// Start it all in one terminal: workers, sample jobs of several kinds, live counts
#[derive(clap::Args)]
pub(crate) struct Args {
    /// How many worker processes
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    workers: u8,

    /// End after this long; otherwise with Ctrl-C
    #[arg(long = "for", value_name = "DURATION", value_parser = positive_duration)]
    length: Option<Duration>,
}

/// The queue of the sample jobs, separate from the user's own jobs.
pub(crate) const QUEUE: &str = "dev";

/// The hidden argument with which this program starts its workers.
pub(crate) const WORK: &str = "__dev";

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    let (url, name) = (session.url()?, session.target()?.name());
    runtime()?.block_on(async {
        let tenure = Tenure::options().observe(|_| {}).open(&url).await?;
        show::welcome(&name);
        let mut crew = Crew::start(args.workers, &url)?;
        let sampled = tokio::select! {
            biased;
            () = tenure::shutdown_signal() => Ok(()),
            () = after(args.length) => Ok(()),
            broken = crew.keep() => broken,
            broken = sample(&tenure) => broken,
            broken = show::counts(&tenure) => broken,
        };
        say("stopping: workers finish what they have");
        crew.stop().await;
        sampled?;
        show::farewell(&tenure, session).await
    })
}

async fn after(length: Option<Duration>) {
    match length {
        Some(length) => tokio::time::sleep(length).await,
        None => std::future::pending().await,
    }
}

/// Enqueues sample jobs until it is cancelled.
async fn sample(tenure: &Tenure) -> Result<()> {
    let mut rhythm = tokio::time::interval(Duration::from_millis(250));
    for n in 0_u64.. {
        rhythm.tick().await;
        let mut jobs = vec![tenure.enqueue_kind("quick", &json!({ "n": n })).queue(QUEUE)];
        if n % 8 == 1 {
            jobs.push(tenure.enqueue_kind("slow", &json!({ "n": n })).queue(QUEUE));
        }
        if n % 12 == 2 {
            jobs.push(tenure.enqueue_kind("failing", &json!({ "n": n })).queue(QUEUE));
        }
        if n % 40 == 6 {
            // Every other one is poison: it kills every worker that runs it, until it is buried.
            let times = if n % 80 == 6 { 1 } else { 99 };
            jobs.push(tenure.enqueue_kind("crashing", &json!({ "times": times })).queue(QUEUE));
        }
        match tenure.enqueue_many(jobs).await {
            Err(error) if error.is_transient() => {}
            answer => drop(answer?),
        }
    }
    Ok(())
}

/// The worker processes.
struct Crew {
    url: String,
    workers: Vec<Child>,
}

impl Crew {
    fn start(size: u8, url: &str) -> Result<Crew> {
        let mut crew = Crew { url: url.into(), workers: Vec::new() };
        for _ in 0..size {
            crew.workers.push(crew.worker()?);
        }
        let pids: Vec<String> = crew
            .workers
            .iter()
            .filter_map(|worker| worker.id())
            .map(|pid| pid.to_string())
            .collect();
        say(&format!("workers: processes {}", pids.join(", ")));
        Ok(crew)
    }

    /// A worker that ends when its standard input is closed, and so also when this process is
    /// killed.
    fn worker(&self) -> Result<Child> {
        let program =
            std::env::current_exe().context("cannot find this program to start a worker")?;
        Command::new(program)
            .arg(WORK)
            .env("TENURE_DB", &self.url)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C goes to this process only, which stops the workers itself.
            .process_group(0)
            .spawn()
            .context("cannot start a worker")
    }

    /// Replaces workers that die, until it is cancelled.
    async fn keep(&mut self) -> Result<()> {
        let mut rhythm = tokio::time::interval(Duration::from_millis(100));
        loop {
            rhythm.tick().await;
            for at in 0..self.workers.len() {
                let Some(status) = self.workers[at].try_wait()? else { continue };
                let fresh = self.worker()?;
                let pid = fresh.id().unwrap_or_default();
                self.workers[at] = fresh;
                say(&format!(
                    "a worker process died ({status}); started process {pid} in its place"
                ));
            }
        }
    }

    async fn stop(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(10);
        for worker in &mut self.workers {
            drop(worker.stdin.take());
        }
        let until = monotonic() + PATIENCE;
        for worker in &mut self.workers {
            let left = until.saturating_duration_since(monotonic());
            if tokio::time::timeout(left, worker.wait()).await.is_err() {
                // Another worker takes back the jobs that it held.
                let _ = worker.kill().await;
            }
        }
    }
}
