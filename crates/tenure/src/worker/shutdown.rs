//! How a worker ends: it claims nothing more, lets what runs come to its end for a while, and gives back what is left.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::desk::{Desk, Stage};
use crate::store::{Error, Result};
use crate::telemetry::Exit;

/// A worker at work. Dropped, it gives back what it has and ends.
pub struct Running {
    pub(super) desk: Arc<Desk>,
    pub(super) ended: oneshot::Receiver<Exit>,
    /// Why it ended, once that was heard.
    pub(super) exit: Option<Exit>,
    pub(super) grace: Duration,
}

impl Running {
    /// Claim nothing more, and end when what runs has come to its end.
    pub fn finish(&self) {
        self.desk.advance(Stage::Finishing);
    }

    /// Stop what runs, give it back unfinished, and end.
    pub fn release(&self) {
        self.desk.advance(Stage::Releasing);
    }

    /// Lets it end as a worker that drains does: when nothing is due and nothing runs.
    #[cfg(feature = "drill")]
    pub fn drain(&self) {
        self.desk.drain();
    }

    /// Finishes, and after the worker's grace releases; waits for the end.
    pub async fn shut_down(mut self) -> Exit {
        self.shut().await
    }

    pub(super) async fn shut(&mut self) -> Exit {
        self.finish();
        if let Ok(exit) = tokio::time::timeout(self.grace, self.ended()).await {
            return exit;
        }
        self.release();
        self.ended().await
    }

    /// Waits for the end.
    pub async fn ended(&mut self) -> Exit {
        if let Some(exit) = self.exit {
            return exit;
        }
        let exit = (&mut self.ended).await.unwrap_or(Exit::Error);
        self.exit = Some(exit);
        exit
    }
}

impl Running {
    /// Why it could not go on, once it has ended with [`Exit::Error`].
    pub fn failure(&self) -> Option<Error> {
        (self.exit == Some(Exit::Error)).then(|| self.desk.failure())
    }

    /// How it ended, for callers that expect it to end well.
    pub(super) fn verdict(&self, exit: Exit) -> Result<Exit> {
        match exit {
            Exit::Error => Err(self.desk.failure()),
            exit => Ok(exit),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.release();
    }
}

/// Waits until this process is asked to end: by Ctrl-C, or by SIGTERM as from a service manager.
///
/// ```no_run
/// # async fn serve(worker: tenure::Worker) -> Result<(), tenure::store::Error> {
/// worker.run_until(tenure::shutdown_signal()).await?;
/// # Ok(())
/// # }
/// ```
pub async fn shutdown_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let heard = |kind| async move {
        match signal(kind) {
            Ok(mut signal) => drop(signal.recv().await),
            // Without a handler the signal ends the process by itself.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = heard(SignalKind::terminate()) => {}
        () = heard(SignalKind::interrupt()) => {}
    }
}
