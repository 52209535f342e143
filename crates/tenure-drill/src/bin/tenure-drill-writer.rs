//! A process that enqueues into a file as fast as it can, until its standard input is closed or it
//! is killed.
//!
//! Each line on standard output is an acknowledged job: its id, and how long the call took, in
//! microseconds.

#![forbid(unsafe_code)]

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tenure::engine::clock::monotonic;
use tenure::engine::job::{Json, Name, NewJob};
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
use tenure::engine::store::{Enqueued, Result, Work};
use tenure_drill::speakers::inside::at_the_end;

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1).unwrap_or_else(|| "tenure.db".into());
    let mut store = Sqlite::open(path, &StoreOptions::default())?;
    let job = NewJob::new(Name::check("kind", "work")?, Json::check("args", "{}", 10)?);
    let stopped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stopped);
    at_the_end(move || flag.store(true, Ordering::Relaxed));
    let mut out = std::io::stdout().lock();
    while !stopped.load(Ordering::Relaxed) {
        let begin = monotonic();
        let answer = store.enqueue(std::slice::from_ref(&job))?;
        let waited = monotonic() - begin;
        if let [Enqueued::Created(id)] = answer[..] {
            let told = writeln!(out, "{id} {}", waited.as_micros()).and_then(|()| out.flush());
            if told.is_err() {
                break; // the reader is gone
            }
        }
    }
    Ok(())
}
