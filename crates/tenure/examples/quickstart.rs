//! The first example of the README: a typed job, a key, a worker and its result. It uses
//! `tenure.db` in the current directory: `cargo run -p tenure --example quickstart`.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use serde::{Deserialize, Serialize};
use tenure::{Context, Fault, Job, Tenure, Worker};

#[derive(Serialize, Deserialize)]
struct Greet {
    name: String,
}

impl Job for Greet {
    const KIND: &'static str = "greet";
    type Output = String;
}

async fn greet(job: Greet, cx: Context) -> Result<String, Fault> {
    // Remembered under its name: an attempt after this one does not do it again.
    let greeting = cx.step("write", || async { Ok(format!("Hello, {}!", job.name)) }).await?;
    Ok(greeting)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tenure = Tenure::open("tenure.db").await?; // or "postgres://…"
    let ann = tenure.enqueue(Greet { name: "Ann".into() }).key("greet-ann").await?;

    // Shows what happens, and ends when nothing is due. A service has a subscriber of `tracing` instead
    // of .observe, and .run_until(tenure::shutdown_signal()) instead of .drain().run().
    let worker = Worker::new(&tenure).handle(greet).observe(|event| eprintln!("{event}"));
    worker.drain().run().await?;

    println!("job {} says: {}", ann.id(), ann.wait().await?);
    Ok(())
}
