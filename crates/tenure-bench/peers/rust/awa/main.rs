//! awa, with its default storage engine. Jobs have no deadline, because awa has a shorter path for
//! such jobs. Bulk enqueues use COPY.

#[path = "../harness.rs"]
mod harness;

use std::ops::Range;
use std::time::Duration;

use awa::{
    Client, InsertOpts, JobArgs, JobResult, QueueConfig, QueueStorage, QueueStorageConfig,
    insert_with,
};
use harness::{Outcome, Peer, ran};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

const QUEUE: &str = "noop";
const WORKERS: u32 = 1_000;

#[derive(Serialize, Deserialize, JobArgs)]
struct Noop {
    n: u64,
}

struct Awa {
    pool: PgPool,
    storage: QueueStorage,
}

fn options() -> InsertOpts {
    InsertOpts { queue: QUEUE.to_owned(), ..InsertOpts::default() }
}

impl Peer for Awa {
    type Worker = Client;

    async fn enqueue(&self, n: u64) -> Outcome<()> {
        insert_with(&self.pool, &Noop { n }, options()).await?;
        Ok(())
    }

    async fn enqueue_many(&self, numbers: Range<u64>) -> Outcome<()> {
        let jobs = numbers.map(|n| awa::model::insert::params_with(&Noop { n }, options()));
        let jobs: Vec<_> = jobs.collect::<Result<_, _>>()?;
        self.storage.enqueue_params_copy(&self.pool, &jobs).await?;
        Ok(())
    }

    async fn work(&self) -> Outcome<Client> {
        let config = QueueConfig {
            max_workers: WORKERS,
            deadline_duration: Duration::ZERO,
            ..QueueConfig::default()
        };
        let client = Client::builder(self.pool.clone())
            .queue(QUEUE, config)
            .register::<Noop, _, _>(|job, _| async move {
                ran(job.n);
                Ok(JobResult::Completed)
            })
            .build()?;
        client.start().await?;
        Ok(client)
    }

    async fn stop(&self, client: Client) -> Outcome<()> {
        client.shutdown(Duration::from_secs(30)).await;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Outcome<()> {
    // `PgConnectOptions::new` finds the server by the variables of libpq.
    let pool = PgPoolOptions::new().max_connections(20).connect_with(PgConnectOptions::new());
    let pool = pool.await?;
    awa::migrations::run(&pool).await?;
    let storage = QueueStorage::new(QueueStorageConfig::default())?;
    let settings = format!("max_workers {WORKERS}, no deadline, bulk by COPY, pool 20");
    let manifest = include_str!("Cargo.toml");
    harness::run(&Awa { pool, storage }, manifest, "awa", &settings).await
}
