//! The workers of `tenure dev`: the handlers of the sample jobs.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tenure::engine::telemetry::{Event, Fact};
use tenure::{Context, Fault, Job, Tenure, Worker};
use tokio::io::AsyncReadExt;

use super::QUEUE;
use crate::commands::worker::runtime;
use crate::log::{Format, Least, Log};
use crate::{Answer, Session};

#[derive(Serialize, Deserialize)]
struct Quick {
    n: u64,
}

impl Job for Quick {
    const KIND: &'static str = "quick";
    type Output = u64;
}

async fn quick(job: Quick, _: Context) -> Result<u64, Fault> {
    Ok(job.n * 2)
}

#[derive(Serialize, Deserialize)]
struct Slow {
    n: u64,
}

impl Job for Slow {
    const KIND: &'static str = "slow";
    type Output = Vec<u64>;
}

/// Three steps. If a worker dies in one of them, the next attempt repeats that step, and not those
/// that were completed.
async fn slow(job: Slow, cx: Context) -> Result<Vec<u64>, Fault> {
    let mut pages = Vec::new();
    for page in 1..=3 {
        cx.progress((page - 1) as f64 / 3.0, "reading pages").await?;
        let name = format!("page-{page}");
        let read = || async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok(job.n * page)
        };
        pages.push(cx.step(&name, read).await?);
    }
    Ok(pages)
}

#[derive(Serialize, Deserialize)]
struct Failing {
    n: u64,
}

impl Job for Failing {
    const KIND: &'static str = "failing";
    type Output = ();
}

/// Fails twice, and then succeeds.
async fn failing(_: Failing, cx: Context) -> Result<(), Fault> {
    match cx.attempt() {
        1 => Err(Fault::retry("the other side answers 503")),
        2 => Err(Fault::retry_after(Duration::from_secs(2), "the other side asks for patience")),
        _ => Ok(()),
    }
}

#[derive(Serialize, Deserialize)]
struct Crashing {
    times: u16,
}

impl Job for Crashing {
    const KIND: &'static str = "crashing";
    type Output = ();
}

/// Kills its process in the job's first `times` attempts, as a bug in a C library or the kernel's
/// OOM killer would. Then it succeeds.
async fn crashing(job: Crashing, cx: Context) -> Result<(), Fault> {
    if cx.crashes() < job.times {
        std::process::abort();
    }
    Ok(())
}

/// Works until standard input is closed.
pub(crate) fn work(session: &Session) -> Result<Answer> {
    let url = session.url()?;
    runtime()?.block_on(async {
        let log = Log { format: Format::Text, least: Least::Info }.observer();
        let tenure = Tenure::open(&url).await?;
        let worker = Worker::new(&tenure)
            .queues([QUEUE])
            .handle(quick)
            .handle(slow)
            .handle(failing)
            .handle(crashing)
            .concurrency(8)
            .grace(Duration::from_secs(4))
            .observe(move |event| {
                if is_worth_a_line(event) {
                    log.tell(event);
                }
            });
        let closed = async {
            let mut byte = [0];
            while tokio::io::stdin().read(&mut byte).await.is_ok_and(|read| read > 0) {}
        };
        worker.run_until(closed).await?;
        Ok(Answer::Yes)
    })
}

/// Whether an event gets a line. The success of a `quick` job shows only in the counts. What
/// happens to every job, such as a claim or a renewal, gets no line either.
fn is_worth_a_line(event: &Event) -> bool {
    match &event.fact {
        Fact::JobSucceeded { .. } => {
            event.about.as_ref().is_some_and(|about| about.kind.as_str() != "quick")
        }
        Fact::RetryScheduled { .. }
        | Fact::LeaseLapsed { .. }
        | Fact::HolderVanished { .. }
        | Fact::StaleWriteBlocked { .. }
        | Fact::JobDead { .. }
        | Fact::StoreLost { .. }
        | Fact::StoreBack
        | Fact::StoreCaution { .. } => true,
        _ => false,
    }
}
