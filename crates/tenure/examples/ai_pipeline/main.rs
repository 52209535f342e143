//! An AI pipeline that pays once. Documents are loaded, embedded chunk by chunk and summarised by a
//! metered model, which is slow, says "too many requests", fails, and loses answers. Halfway
//! through, the worker is killed with `kill -9`, and another one takes over. A call that is
//! recorded as paid is not paid for again.
//!
//! `cargo run -p tenure --example ai_pipeline`
//!
//! This file is all that a user writes: [`digest`] is the pipeline, and `main` runs the scenario.
//! `model.rs` is the vendor.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

mod model;

use std::error::Error;
use std::io;
use std::process::{Child, Command, Stdio};

use serde::{Deserialize, Serialize};
use tenure::{Context, Fault, Job, RetryPolicy, Tenure, Worker};

use self::model::{EMBED_CENTS, Model, Place, SUMMARY_CENTS, Trouble};

const DOCUMENTS: u32 = 24;
const CHUNKS: u32 = 6;

#[derive(Serialize, Deserialize)]
struct Digest {
    document: u32,
}

impl Job for Digest {
    const KIND: &'static str = "digest";
    type Output = String;
}

/// The pipeline. Whatever goes wrong, the next attempt continues where this one stopped.
async fn digest(job: Digest, cx: Context) -> Result<String, Fault> {
    let model = cx.state::<Model>();
    // For the vendor's statistics only.
    let place = |call| Place { document: job.document, token: cx.token(), call };

    let chunks = cx.step("load", || load(job.document)).await?;
    let mut vectors = Vec::new();
    for (call, chunk) in (1..).zip(&chunks) {
        // Cheap: a step. If the worker dies in the middle of the call, this one call is repeated,
        // and no other.
        let embed = || async { Ok(model.embed(place(call), chunk).await?) };
        vectors.push(cx.step(&format!("embed-{call}"), embed).await?);
        cx.progress(f64::from(call) / f64::from(CHUNKS + 1), "embedding").await?;
    }

    // Expensive: an effect. If in doubt it is sent again with its key, and the vendor does not
    // charge for a key twice.
    let place = place(CHUNKS + 1);
    let summarise = cx.effect("summarise", |fx| async move {
        match model.summarise(place, &vectors, &fx.key()).await {
            // The call was refused, so it certainly has not happened: the effect is not in doubt.
            Err(busy @ Trouble::TooManyRequests { .. }) => Err(fx.refused(busy)),
            other => Ok(other?),
        }
    });
    summarise.resend().await
}

/// What each error means for the job. The blanket `From` for errors would turn each into a plain
/// retry.
impl From<Trouble> for Fault {
    fn from(trouble: Trouble) -> Fault {
        match trouble {
            Trouble::TooManyRequests { after } => Fault::retry_after(after, "too many requests"),
            Trouble::NotNow(why) => Fault::retry(why),
        }
    }
}

async fn load(document: u32) -> Result<Vec<String>, Fault> {
    Ok((1..=CHUNKS).map(|chunk| format!("chunk {chunk} of document {document}")).collect())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [file, model] = arguments.as_slice() {
        return work(file, model).await;
    }
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("tenure.db").display().to_string();
    let (model, mut meter) = model::serve().await?;
    let one_pass = u64::from(DOCUMENTS * (CHUNKS * EMBED_CENTS + SUMMARY_CENTS));

    let tenure = Tenure::open(&file).await?;
    let soon = RetryPolicy::Exponential { base_ms: 50, cap_ms: 500 };
    let jobs = (1..=DOCUMENTS).map(|document| {
        let job = tenure.enqueue(Digest { document }).key(format!("document-{document}"));
        job.retry(soon.clone()).max_attempts(30)
    });
    let jobs = tenure.enqueue_many(jobs).await?;
    println!("{DOCUMENTS} documents, of {CHUNKS} chunks each; one pass costs {one_pass} cents");

    let mut first = start_worker(&file, &model)?;
    meter.wait_for(|meter| meter.cents >= one_pass / 2).await?;
    first.kill()?; // SIGKILL: it cannot react
    first.wait()?;
    println!("killed the worker with -9, {} cents into it", meter.borrow().cents);

    let mut second = start_worker(&file, &model)?;
    for job in &jobs {
        job.wait().await?;
    }
    drop(second.stdin.take());
    second.wait()?;

    let meter = meter.borrow();
    println!("{} documents done", jobs.len());
    println!(
        "{} calls made; a run without memory would have made at least {}",
        meter.calls,
        meter.calls_without_memory()
    );
    println!(
        "the model refused {} calls, failed in {} and lost {} answers",
        meter.refused, meter.failed, meter.lost
    );
    println!(
        "paid {} cents for {one_pass}: paid {:.2} × one pass",
        meter.cents,
        meter.cents as f64 / one_pass as f64
    );
    Ok(())
}

fn start_worker(file: &str, model: &str) -> io::Result<Child> {
    Command::new(std::env::current_exe()?).args([file, model]).stdin(Stdio::piped()).spawn()
}

/// The worker's process. It ends when the parent process closes its stdin, or is gone.
async fn work(file: &str, model: &str) -> Result<(), Box<dyn Error>> {
    let tenure = Tenure::open(file).await?;
    let input_ends = tokio::task::spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink()));
    let worker = Worker::new(&tenure).handle(digest).state(Model::at(model)).concurrency(4);
    worker.run_until(async { drop(input_ends.await) }).await?;
    Ok(())
}
