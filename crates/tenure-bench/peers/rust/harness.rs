//! What the adapters in Rust have in common. This file prepares, times and counts each measure; an
//! adapter has only the code that opens, fills and works its own queue.
//!
//! Arguments: the measure, how many jobs, and how many jobs run before the time begins. The last
//! line on standard output is the answer, one JSON object; `answer.rs` of tenure-bench reads it.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use serde_json::json;
use tokio::sync::Notify;

/// How many jobs one call enqueues in bulk.
const BULK: u64 = 1_000;
const CALLERS: u64 = 16;
/// Until the next job arrives on an idle worker.
const PAUSE: Duration = Duration::from_millis(50);

pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// How a queue is filled and worked on.
pub trait Peer {
    /// What `work` starts and `stop` ends.
    type Worker;

    async fn enqueue(&self, n: u64) -> Outcome<()>;
    async fn enqueue_many(&self, numbers: Range<u64>) -> Outcome<()>;
    async fn work(&self) -> Outcome<Self::Worker>;
    async fn stop(&self, worker: Self::Worker) -> Outcome<()>;
}

/// The runs of each job, by its number, so that a job that ran twice cannot make up for one that did
/// not run.
#[derive(Default)]
struct Runs {
    counts: Vec<u32>,
    total: u64,
    started_at: HashMap<u64, Instant>,
    last_at: Option<Instant>,
}

static RUNS: LazyLock<Mutex<Runs>> = LazyLock::new(Mutex::default);
static RAN: Notify = Notify::const_new();

/// The handler of every adapter calls this with the number of its job.
pub fn ran(n: u64) {
    let now = Instant::now();
    let mut runs = RUNS.lock().unwrap();
    runs.counts[n as usize] += 1;
    runs.total += 1;
    runs.last_at = Some(now);
    runs.started_at.insert(n, now);
    if runs.total >= runs.counts.len() as u64 {
        RAN.notify_one();
    }
}

/// Numbers for new jobs.
fn number(jobs: u64) -> Range<u64> {
    let mut runs = RUNS.lock().unwrap();
    let first = runs.counts.len() as u64;
    runs.counts.resize((first + jobs) as usize, 0);
    first..first + jobs
}

/// Waits until handlers have run as often as there are jobs.
async fn all() {
    let is_done = || {
        let runs = RUNS.lock().unwrap();
        runs.total >= runs.counts.len() as u64
    };
    while !is_done() {
        RAN.notified().await;
    }
}

/// Enqueues in calls of a thousand.
async fn fill(peer: &impl Peer, numbers: Range<u64>) -> Outcome<()> {
    let mut next = numbers.start;
    while next < numbers.end {
        let end = numbers.end.min(next + BULK);
        peer.enqueue_many(next..end).await?;
        next = end;
    }
    Ok(())
}

/// `callers` callers work at the same time. Each of them waits until its job is stored, and then
/// enqueues its next one.
async fn singly(peer: &impl Peer, numbers: Range<u64>, callers: u64) -> Outcome<()> {
    let caller = async |at: u64| {
        for n in numbers.clone().skip(at as usize).step_by(callers as usize) {
            peer.enqueue(n).await?;
        }
        Ok(())
    };
    try_join_all((0..callers).map(caller)).await.map(drop)
}

/// Runs a worker until every job has run, and returns the seconds until the last handler ran. What
/// the peer writes after that, such as the last completions, is not in this time.
async fn drain(peer: &impl Peer) -> Outcome<f64> {
    let begin = Instant::now();
    let worker = peer.work().await?;
    all().await;
    peer.stop(worker).await?;
    let last = RUNS.lock().unwrap().last_at.unwrap_or(begin);
    Ok((last - begin).as_secs_f64())
}

/// How long each job took from the call of enqueue to the call of its handler.
async fn idle(peer: &impl Peer, jobs: u64) -> Outcome<Vec<f64>> {
    let worker = peer.work().await?;
    let mut pickups = Vec::new();
    for _ in 0..jobs {
        let n = number(1).start;
        tokio::time::sleep(PAUSE).await;
        let begin = Instant::now();
        peer.enqueue(n).await?;
        all().await;
        let started = RUNS.lock().unwrap().started_at[&n];
        pickups.push((started - begin).as_secs_f64() * 1_000.0);
    }
    peer.stop(worker).await?;
    Ok(pickups)
}

/// Measures once, and prints the answer. `manifest` is the adapter's Cargo.toml, which names the
/// exact version of the package.
pub async fn run(peer: &impl Peer, manifest: &str, package: &str, settings: &str) -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, jobs, warm_up] = &arguments[..] else {
        return Err("arguments: the measure, jobs, jobs before the time".into());
    };
    let (jobs, warm_up) = (jobs.parse()?, warm_up.parse()?);
    fill(peer, number(warm_up)).await?;
    drain(peer).await?;
    let (mut seconds, mut pickups) = (json!({}), Vec::new());
    match name.as_str() {
        "process" => {
            let begin = Instant::now();
            fill(peer, number(jobs)).await?;
            seconds["enqueue_bulk"] = begin.elapsed().as_secs_f64().into();
            seconds["process"] = drain(peer).await?.into();
        }
        "enqueue_1" | "enqueue_16" => {
            let callers = if name == "enqueue_1" { 1 } else { CALLERS };
            let begin = Instant::now();
            singly(peer, number(jobs), callers).await?;
            seconds[name] = begin.elapsed().as_secs_f64().into();
            drain(peer).await?;
        }
        "idle_pickup" => pickups = idle(peer, jobs).await?,
        name => return Err(format!("there is no measure {name}").into()),
    }
    let runs = RUNS.lock().unwrap();
    let count = |is: fn(u32) -> bool| runs.counts.iter().filter(|count| is(**count)).count();
    let answer = json!({
        "version": version(manifest, package),
        "settings": settings,
        "seconds": seconds,
        "pickups_ms": pickups,
        "enqueued": runs.counts.len(),
        "once": count(|count| count == 1),
        "again": count(|count| count > 1),
    });
    println!("{answer}");
    Ok(())
}

/// The exact version in a manifest: what follows `package = "=` or `package = { version = "=`.
fn version(manifest: &str, package: &str) -> String {
    let line = manifest.lines().find(|line| line.split(" = ").next() == Some(package));
    let version = line.and_then(|line| line.split('"').find_map(|part| part.strip_prefix('=')));
    version.unwrap_or("?").to_owned()
}
