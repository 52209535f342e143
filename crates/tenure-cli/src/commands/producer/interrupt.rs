//! Ctrl-C, heard on a thread of its own: the store blocks the main one, and must not be called from a runtime.

use std::process;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) struct Interrupt(Receiver<()>);

impl Interrupt {
    /// From now on the first Ctrl-C, or TERM, is an event. The second one ends the process: the store may not answer for
    /// long.
    pub(crate) fn listen() -> Result<Interrupt> {
        const ENDED_BY_HAND: i32 = 130;
        let runtime = Builder::new_current_thread().enable_io().build();
        let runtime = runtime.context("cannot listen for Ctrl-C")?;
        // Here and not on the thread, so that none is missed once this returns.
        let entered = runtime.enter();
        let mut int = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
        let mut term = signal(SignalKind::terminate()).context("cannot listen for TERM")?;
        drop(entered);
        let (sender, receiver) = channel();
        thread::spawn(move || {
            runtime.block_on(async {
                for is_first in [true, false] {
                    tokio::select! {
                        biased;
                        _ = int.recv() => {}
                        _ = term.recv() => {}
                    }
                    if !is_first {
                        process::exit(ENDED_BY_HAND);
                    }
                    // Nobody listens any more only when it is over anyway.
                    let _ = sender.send(());
                }
            });
        });
        Ok(Interrupt(receiver))
    }

    /// Waits this long, and tells whether somebody wants it to stop.
    pub(crate) fn within(&self, pause: Duration) -> bool {
        !matches!(self.0.recv_timeout(pause), Err(RecvTimeoutError::Timeout))
    }
}
