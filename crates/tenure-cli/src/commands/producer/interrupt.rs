//! Ctrl-C, received on a thread of its own: the store blocks the main thread, and must not be
//! called from a runtime.

use std::process;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

pub(crate) struct Interrupt(Receiver<()>);

impl Interrupt {
    /// From now on [`Interrupt::within`] reports the first Ctrl-C or TERM. The second one ends the
    /// process, because the store may not answer for a long time.
    pub(crate) fn listen() -> Result<Interrupt> {
        const ENDED_BY_HAND: i32 = 130;
        let runtime = Builder::new_current_thread().enable_io().build();
        let runtime = runtime.context("cannot listen for Ctrl-C")?;
        // Registered here and not on the thread, so that no signal is missed once this returns.
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
                    // The receiver is gone only when the command is over.
                    let _ = sender.send(());
                }
            });
        });
        Ok(Interrupt(receiver))
    }

    /// Waits this long, and returns whether the command should stop.
    pub(crate) fn within(&self, pause: Duration) -> bool {
        !matches!(self.0.recv_timeout(pause), Err(RecvTimeoutError::Timeout))
    }
}
