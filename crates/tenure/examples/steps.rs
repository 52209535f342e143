//! Durable steps: a handler fails after the second of three, and the retry does not repeat the
//! finished ones.
//!
//! `cargo run -p tenure --example steps`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use serde::{Deserialize, Serialize};
use tenure::{Context, Fault, Job, RetryPolicy, Tenure, Worker};

#[derive(Serialize, Deserialize)]
struct Publish {
    video: String,
}

impl Job for Publish {
    const KIND: &'static str = "publish";
    type Output = String;
}

/// Each step is remembered under its name as soon as it has returned. The code between steps is
/// ordinary, and runs again in each attempt.
async fn publish(job: Publish, cx: Context) -> Result<String, Fault> {
    println!("attempt {} begins", cx.attempt());
    let file = cx.step("download", || download(&job.video)).await?;
    let small = cx.step("shrink", || shrink(&file)).await?;
    if cx.attempt() == 1 {
        return Err(Fault::retry("the network is down"));
    }
    cx.step("upload", || upload(&small)).await
}

async fn download(video: &str) -> Result<String, Fault> {
    println!("  downloading {video}");
    Ok(format!("{video}.mov"))
}

async fn shrink(file: &str) -> Result<String, Fault> {
    println!("  shrinking {file}, which takes an hour");
    Ok(file.replace(".mov", ".mp4"))
}

async fn upload(file: &str) -> Result<String, Fault> {
    println!("  uploading {file}");
    Ok(format!("https://videos.example/{file}"))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tenure = Tenure::open("sqlite::memory:").await?;
    let soon = RetryPolicy::Fixed { ms: 50 };
    let job = tenure.enqueue(Publish { video: "holiday".into() }).retry(soon).await?;

    let worker = Worker::new(&tenure).handle(publish).start().await?;
    println!("published at {}", job.wait().await?);
    worker.shut_down().await;

    for line in tenure.job(job.id()).await?.into_iter().flat_map(|found| found.timeline) {
        let why = line.note.as_deref().unwrap_or_default();
        println!("the timeline: attempt {} ended with {}: {why}", line.attempt, line.event());
    }
    Ok(())
}
