//! How a worker ends: it claims nothing more, lets running jobs finish for a while, and gives back
//! the rest.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::desk::{Desk, Stage};
use crate::store::{Error, Result};
use crate::telemetry::Exit;

/// A running worker. When dropped, it gives back its jobs and ends.
pub struct Running {
    pub(super) desk: Arc<Desk>,
    pub(super) ended: oneshot::Receiver<Exit>,
    /// Why it ended, once that is known.
    pub(super) exit: Option<Exit>,
    pub(super) grace: Duration,
}

impl Running {
    /// Claims nothing more, and ends when all running jobs have finished.
    pub fn finish(&self) {
        self.desk.advance(Stage::Finishing);
    }

    /// Stops running jobs, gives them back unfinished, and ends.
    pub fn release(&self) {
        self.desk.advance(Stage::Releasing);
    }

    /// Makes it end like a draining worker: when nothing is due and nothing runs.
    #[cfg(feature = "drill")]
    pub fn drain(&self) {
        self.desk.drain();
    }

    /// Finishes, and releases after the worker's grace; waits for the end.
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

    /// Waits until it has ended.
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
    /// Why it could not continue, once it has ended with [`Exit::Error`].
    pub fn failure(&self) -> Option<Error> {
        (self.exit == Some(Exit::Error)).then(|| self.desk.failure())
    }

    /// The exit, with [`Exit::Error`] as an error.
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

/// Waits until this process is asked to end: by Ctrl-C, or by SIGTERM, as a service manager sends
/// it.
///
/// ```no_run
/// # async fn serve(worker: tenure::Worker) -> Result<(), tenure::Error> {
/// worker.run_until(tenure::shutdown_signal()).await?;
/// # Ok(())
/// # }
/// ```
pub async fn shutdown_signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let heard = |kind| async move {
        match signal(kind) {
            Ok(mut signal) => drop(signal.recv().await),
            // Without a handler the signal kills the process.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = heard(SignalKind::terminate()) => {}
        () = heard(SignalKind::interrupt()) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running() -> (oneshot::Sender<Exit>, Arc<Desk>, Running) {
        let (tell, ended) = oneshot::channel();
        let desk = Arc::new(Desk::new(1));
        let running = Running { desk: Arc::clone(&desk), ended, exit: None, grace: Duration::ZERO };
        (tell, desk, running)
    }

    #[tokio::test]
    async fn only_a_worker_that_ended_with_an_error_has_a_failure() {
        for (exit, fails) in [(Exit::Shutdown, false), (Exit::Drained, false), (Exit::Error, true)]
        {
            let (tell, _desk, mut running) = running();
            assert!(running.failure().is_none(), "it has not ended");
            tell.send(exit).unwrap();
            assert_eq!(running.ended().await, exit);
            assert_eq!(running.failure().is_some(), fails, "{exit:?}");
        }
    }

    #[test]
    fn a_running_worker_that_is_dropped_gives_back_its_jobs() {
        let (_tell, desk, running) = running();
        assert_eq!(desk.stage(), Stage::Working);
        drop(running);
        assert_eq!(desk.stage(), Stage::Releasing);
    }
}
