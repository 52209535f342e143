//! What a process of the drill does: it is a worker, or it submits a job. It writes each event as a
//! line of JSON.
//!
//! This is the whole of the binary `tenure-drill-worker`, and `tenure` runs it under a hidden
//! argument. The place of the store is not an argument: it may contain a password, and arguments
//! are visible to every user of the machine.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use tenure::engine::job::{Invalid, Json, Key, Limits, Name, NewJob};
use tenure::{Event, Result, Tenure, Worker};
use tokio::runtime::Builder;
use tokio::sync::oneshot::channel;

use super::books::Books;
use super::{Care, End, Setup, kinds};
use crate::speakers::inside::{at_the_end, say};

/// The environment variable that names the store.
pub const PLACE: &str = "TENURE_DB";

/// Does what the arguments say, until it is done or its standard input is closed.
///
/// # Errors
/// If the arguments are invalid, or the store cannot be used.
pub fn run(place: &str, words: &[String]) -> Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match &words[..] {
        ["work", lease, concurrency, threads, queue, care, end] => {
            let setup = Setup {
                lease: Duration::from_millis(number(lease)?),
                concurrency: number(concurrency)?,
                threads: number(threads)?,
                queue: (*queue).to_owned(),
                care: if *care == "stalled" { Care::Stalled } else { Care::Usual },
                end: if *end == "drain" { End::Drain } else { End::Shutdown },
            };
            work(place, &setup)
        }
        ["submit", kind, args, key, gate] => submit(place, kind, args, key, Path::new(gate)),
        _ => Err(nonsense(&words.join(" "))),
    }
}

/// The arguments for a worker.
pub(crate) fn words(setup: &Setup) -> [String; 7] {
    let Setup { lease, concurrency, threads, queue, care, end } = setup;
    [
        "work".into(),
        lease.as_millis().to_string(),
        concurrency.to_string(),
        threads.to_string(),
        queue.clone(),
        if *care == Care::Stalled { "stalled" } else { "usual" }.into(),
        if *end == End::Drain { "drain" } else { "shutdown" }.into(),
    ]
}

fn work(place: &str, setup: &Setup) -> Result<()> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(setup.threads)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let tenure = Tenure::options().observe(tell).open(place).await?;
        let worker = kinds::taught(Worker::new(&tenure), Books::of(place))
            .queues([setup.queue.as_str()])
            .lease(setup.lease)
            .concurrency(setup.concurrency);
        let worker = if setup.care == Care::Stalled { worker.stalled() } else { worker };
        let (open, closed) = channel::<()>();
        at_the_end(move || drop(open));
        let mut running = worker.start().await?;
        let _ = closed.await;
        match setup.end {
            End::Drain => {
                running.drain();
                running.ended().await
            }
            End::Shutdown => running.shut_down().await,
        };
        Ok(())
    })
}

fn tell(event: &Event) {
    say(serde_json::to_string(event).expect("an event is JSON"));
}

/// The answer to a submission.
#[derive(Serialize)]
struct Submitted {
    event: &'static str,
    #[serde(flatten)]
    answer: tenure::engine::store::Enqueued,
}

/// Enqueues a job under a key as soon as the gate exists, so that many processes can do it at the
/// same moment.
fn submit(place: &str, kind: &str, args: &str, key: &str, gate: &Path) -> Result<()> {
    let mut store = super::open(place)?;
    let args = Json::check("args", args, Limits::default().args)?;
    let job = NewJob::new(Name::check("kind", kind)?, args).key(Key::check(key)?);
    at_the_end(|| std::process::exit(0));
    say(json!({ "event": SUBMITTER_READY }));
    while !gate.exists() {
        std::thread::park_timeout(Duration::from_millis(1));
    }
    for answer in store.enqueue(&[job])? {
        let line = serde_json::to_string(&Submitted { event: SUBMITTED, answer });
        say(line.expect("an answer is JSON"));
    }
    Ok(())
}

/// What a submitter reports when it waits for the gate.
pub const SUBMITTER_READY: &str = "submitter_ready";
/// What it reports when the store has answered.
pub const SUBMITTED: &str = "submitted";

fn number<T: std::str::FromStr>(text: &str) -> Result<T> {
    text.parse().map_err(|_| nonsense(text))
}

fn nonsense(words: &str) -> tenure::Error {
    let why = format!("a process of the drill cannot make anything of {words:?}");
    Invalid::Value { field: "words", why }.into()
}
