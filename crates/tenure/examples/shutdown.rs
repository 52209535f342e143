//! Graceful shutdown. Ctrl-C or SIGTERM asks the worker to end: it claims no more jobs, lets
//! running jobs continue for its grace, and gives back the rest. Those run at the next start, from
//! the step that they had reached.
//!
//! `cargo run -p tenure --example shutdown`, and then Ctrl-C.
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::{Context, Fault, Handle, Job, State, Tenure, Worker, shutdown_signal};

#[derive(Serialize, Deserialize)]
struct Print {
    title: String,
    pages: u32,
}

impl Job for Print {
    const KIND: &'static str = "print";
    type Output = u32;
}

/// A page takes a fifth of a second. Once it is remembered, it is not printed again.
async fn print(job: Print, cx: Context) -> Result<u32, Fault> {
    for page in 1..=job.pages {
        let print = || async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            println!("  {}, page {page} of {}", job.title, job.pages);
            Ok(())
        };
        cx.step(&format!("page-{page}"), print).await?;
    }
    Ok(job.pages)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("tenure.db").display().to_string();
    let tenure = Tenure::open(&file).await?;
    let letter = tenure.enqueue(Print { title: "a letter".into(), pages: 3 }).await?;
    let novel = tenure.enqueue(Print { title: "a novel".into(), pages: 20 }).await?;

    println!("printing; stop me with Ctrl-C, or: kill {}", std::process::id());
    let worker = Worker::new(&tenure).handle(print).grace(Duration::from_secs(2));
    let exit = worker.run_until(shutdown_signal()).await?;
    println!("the worker has ended ({exit:?})");
    tell("the letter", &tenure, &letter).await?;
    tell("the novel", &tenure, &novel).await?;

    println!("the next start");
    let done_or_asked = async {
        tokio::select! {
            _ = novel.wait() => {}
            () = shutdown_signal() => {}
        }
    };
    Worker::new(&tenure).handle(print).run_until(done_or_asked).await?;
    tell("the novel", &tenure, &novel).await
}

async fn tell(title: &str, tenure: &Tenure, job: &Handle<u32>) -> Result<(), Box<dyn Error>> {
    let found = tenure.job(job.id()).await?.ok_or("jobs that have ended are kept for days")?;
    let left = match found.job.state {
        State::Succeeded => "done",
        State::Queued => "given back, and no attempt was counted",
        state => state.name(),
    };
    println!("{title}: {left} (attempts: {})", found.job.attempt);
    Ok(())
}
