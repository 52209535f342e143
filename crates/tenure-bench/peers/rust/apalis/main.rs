//! apalis on PostgreSQL, with large batches, LISTEN/NOTIFY to wake an idle worker, and handlers on
//! tasks of their own.

#[path = "../harness.rs"]
mod harness;

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use apalis::prelude::*;
use apalis_postgres::{Config, PgTask, PostgresStorage};
use harness::{Outcome, Peer};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const QUEUE: &str = "noop";
const BATCH: usize = 1_000;
const CONCURRENCY: usize = 1_000;

static WORKERS: AtomicU32 = AtomicU32::new(0);

struct Apalis {
    pool: PgPool,
}

fn task(n: u64) -> PgTask {
    TaskBuilder::new(n.to_string().into_bytes()).build()
}

async fn noop(n: u64) -> Result<(), BoxDynError> {
    harness::ran(n);
    Ok(())
}

impl Apalis {
    async fn push(&self, tasks: Vec<PgTask>) -> Outcome<()> {
        let mut connection = self.pool.acquire().await?;
        apalis_postgres::queries::push_tasks(&mut *connection, QUEUE, tasks).await?;
        Ok(())
    }
}

impl Peer for Apalis {
    type Worker = (oneshot::Sender<()>, JoinHandle<()>);

    async fn enqueue(&self, n: u64) -> Outcome<()> {
        self.push(vec![task(n)]).await
    }

    async fn enqueue_many(&self, numbers: Range<u64>) -> Outcome<()> {
        self.push(numbers.map(task).collect()).await
    }

    async fn work(&self) -> Outcome<Self::Worker> {
        let config = Config::default().queue(QUEUE).batch_size(BATCH);
        let backend = PostgresStorage::<u64>::new(&self.pool)
            .with_config(config)
            .with_pubsub()
            .poll_with_interval(Duration::from_millis(100));
        // apalis accepts a worker's name again only after the earlier worker of that name is gone,
        // so each worker gets a name of its own.
        let count = WORKERS.fetch_add(1, Ordering::Relaxed);
        let (stop, stopped) = oneshot::channel::<()>();
        let signal = async move {
            let _ = stopped.await;
            Ok::<(), std::io::Error>(())
        };
        let runtime = Handle::current();
        // The compiler cannot tell that this future is `Send`, so it cannot be spawned on the
        // runtime, and gets a thread of its own. The handlers run on the runtime's threads.
        let task = tokio::task::spawn_blocking(move || {
            let worker = WorkerBuilder::new(format!("worker-{count}"))
                .backend(backend)
                .parallelize(tokio::spawn)
                .concurrency(CONCURRENCY)
                .build(noop);
            if let Err(error) = runtime.block_on(worker.run_until(signal)) {
                eprintln!("{error}");
            }
        });
        Ok((stop, task))
    }

    async fn stop(&self, (stop, task): Self::Worker) -> Outcome<()> {
        let _ = stop.send(());
        Ok(task.await?)
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    // `PgConnectOptions::new` finds the server by the variables of libpq.
    let pool = PgPoolOptions::new().max_connections(20).connect_with(PgConnectOptions::new());
    let pool = pool.await?;
    PostgresStorage::setup(&pool).await?;
    let settings =
        format!("batch_size {BATCH}, concurrency {CONCURRENCY}, pubsub, poll 100 ms, pool 20");
    let manifest = include_str!("Cargo.toml");
    harness::run(&Apalis { pool }, manifest, "apalis-postgres", &settings).await
}
