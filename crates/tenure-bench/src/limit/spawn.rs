//! The limit of commands: how often this machine starts `true` and waits for its end, without a
//! store, a worker or a pipe.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, ensure};
use tenure::engine::clock::monotonic;

use crate::stats::rate;

/// As many as the worker runs at a time.
const AT_A_TIME: usize = 16;

/// Processes a second, 16 at a time.
pub(super) fn measure(processes: usize) -> Result<f64> {
    let left = AtomicUsize::new(processes);
    let take = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
    let one_after_another = || {
        while take().is_ok() {
            start()?;
        }
        anyhow::Ok(())
    };
    let begin = monotonic();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(one_after_another)).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(ended) => ended,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(rate(processes as u64, monotonic() - begin))
}

fn start() -> Result<()> {
    let mut command = Command::new("true");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().context("cannot start `true`")?;
    ensure!(status.success(), "`true` has failed: {status}");
    Ok(())
}
