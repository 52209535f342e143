//! A worker of the library with the handlers of the drill, until its standard input is closed or somebody kills it.
//!
//! Its arguments: a file or an address, the length of the lease in milliseconds, how many jobs at a time, how many threads
//! for handlers, and a queue. Each line on standard output is an event, as JSON.

#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::time::Duration;

use tenure::store::Result;
use tenure::telemetry::Event;
use tenure::{Tenure, Worker};
use tenure_drill::workers::books::Books;
use tenure_drill::workers::kinds;
use tokio::runtime::Builder;
use tokio::sync::oneshot::{Receiver, channel};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [place, lease, concurrency, threads, queue] = &arguments[..] else {
        panic!("PLACE LEASE_MS CONCURRENCY THREADS QUEUE, not {arguments:?}");
    };
    let number = |text: &str| -> u32 { text.parse().expect("a number") };
    let runtime = Builder::new_multi_thread()
        .worker_threads(number(threads) as usize)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let tenure = Tenure::options().observe(say).open(place).await?;
        let worker = kinds::taught(Worker::new(&tenure), Books::open(place).await)
            .queues([queue.as_str()])
            .lease(Duration::from_millis(number(lease).into()))
            .concurrency(number(concurrency) as usize);
        let end = stdin_closed();
        worker.run_until(async { drop(end.await) }).await?;
        Ok(())
    })
}

fn say(event: &Event) {
    let line = serde_json::to_string(event).expect("an event is JSON");
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0); // nobody listens any more
    }
}

/// Closed when standard input is.
fn stdin_closed() -> Receiver<()> {
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(tell);
    });
    told
}
