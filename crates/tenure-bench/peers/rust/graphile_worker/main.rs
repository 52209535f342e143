//! graphile_worker, with what its documentation offers for throughput: a high concurrency, a local
//! queue, and completions in batches.

#[path = "../harness.rs"]
mod harness;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, Worker, WorkerContext,
    WorkerOptions, WorkerUtils,
};
use harness::{Outcome, Peer, ran};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::task::JoinHandle;

const CONCURRENCY: usize = 100;
const LOCAL: usize = 1_000;

#[derive(Clone, Serialize, Deserialize)]
struct Noop {
    n: u64,
}

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        ran(self.n);
        Ok::<(), String>(())
    }
}

struct Graphile {
    pool: PgPool,
    utils: WorkerUtils,
}

impl Peer for Graphile {
    type Worker = (Arc<Worker>, JoinHandle<()>);

    async fn enqueue(&self, n: u64) -> Outcome<()> {
        self.utils.add_job(Noop { n }, JobSpec::default()).await?;
        Ok(())
    }

    async fn enqueue_many(&self, numbers: Range<u64>) -> Outcome<()> {
        let spec = JobSpec::default();
        let jobs: Vec<_> = numbers.map(|n| (Noop { n }, &spec)).collect();
        self.utils.add_jobs::<Noop>(&jobs).await?;
        Ok(())
    }

    async fn work(&self) -> Outcome<Self::Worker> {
        let options = WorkerOptions::default()
            .concurrency(CONCURRENCY)
            .local_queue(LocalQueueConfig::default().with_size(LOCAL))
            .complete_job_batch_delay(Duration::from_millis(5))
            .define_job::<Noop>()
            .pg_pool(self.pool.clone());
        let worker = Arc::new(options.init().await?);
        let running = Arc::clone(&worker);
        let task = tokio::spawn(async move {
            if let Err(error) = running.run().await {
                eprintln!("{error}");
            }
        });
        Ok((worker, task))
    }

    async fn stop(&self, (worker, task): Self::Worker) -> Outcome<()> {
        worker.request_shutdown();
        Ok(task.await?)
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    // `PgConnectOptions::new` finds the server by the variables of libpq.
    let pool = PgPoolOptions::new().max_connections(20).connect_with(PgConnectOptions::new());
    let pool = pool.await?;
    let utils = WorkerUtils::new(pool.clone(), "graphile_worker");
    utils.migrate().await?;
    let settings = format!(
        "concurrency {CONCURRENCY}, local queue {LOCAL}, complete_job_batch_delay 5 ms, pool 20"
    );
    let manifest = include_str!("Cargo.toml");
    harness::run(&Graphile { pool, utils }, manifest, "graphile_worker", &settings).await
}
