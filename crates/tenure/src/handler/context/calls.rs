//! The calls of a handler that present its fence to the store.

use std::future::Future;
use std::sync::PoisonError;
use std::time::Duration;

use super::{Context, stopped};
use crate::clock::Moment;
use crate::job::{Name, Progress, State};
use crate::lease::{Reason, Stale, Token};
use crate::ledger::{Act, Answer, Entry};
use crate::lifecycle::{Fault, Verb};
use crate::store::{Error, Renewed, Report, Reported, Result as StoreResult};
use crate::telemetry::Fact;

impl Context {
    /// Asks the store whether this worker still holds the job, and renews the lease to its full
    /// length: for use right before an action that cannot be undone and has no key. It also fails
    /// if this worker could not renew the lease in time, even if no other worker has taken the job
    /// meanwhile. While an open transaction has the job's row locked, such as one of the handler's
    /// own after `hold`, the lease keeps the length that it has.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use tenure::{Context, Fault, Job, Worker};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Launch;
    /// # impl Job for Launch { const KIND: &'static str = "launch"; type Output = (); }
    /// # async fn ignite(_: tenure::Token) {}
    /// async fn launch(_: Launch, cx: Context) -> Result<(), Fault> {
    ///     let token = cx.assert_held().await?; // we still hold it, and for a whole lease from now
    ///     ignite(token).await;
    ///     Ok(())
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sandbox = tenure::testing::Sandbox::new().await?;
    /// # sandbox.tenure().enqueue(Launch).await?;
    /// # let worker = Worker::new(sandbox.tenure()).handle(launch);
    /// # assert_eq!(sandbox.run_due(&worker).await?.succeeded, 1);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn assert_held(&self) -> Result<Token, Fault> {
        let fence = self.fence();
        let trust = self.0.hold.trust();
        if trust.stopped.is_some() {
            return Err(stopped());
        }
        if Moment::now() >= trust.until {
            let stale = Stale {
                shown: fence,
                current: fence.token,
                state: State::Running,
                reason: Reason::LeaseExpired,
            };
            self.tell(Fact::refused(Verb::Renew, &stale, self.ran()));
            return Err(Fault::retry("the lease was over; the attempt begins anew"));
        }
        let lease = self.0.lease;
        let answers = self
            .insist(move || {
                self.0.tenure.0.link.as_holder(move |engine| engine.store().renew(&[fence], lease))
            })
            .await?;
        match answers.first() {
            // An open transaction has locked the row, usually one of the handler's own. No other
            // transaction can take the job until it ends.
            Some(Renewed::Extended(_) | Renewed::Busy) => Ok(fence.token),
            Some(Renewed::Stale(stale)) => Err(self.refused(Verb::Renew, stale)),
            Some(Renewed::NotFound) | None => Err(self.lost()),
        }
    }

    /// Reports how far the job has come, from 0 to 1, and what it is doing; `tenure jobs show`
    /// displays it. A loop may call this as often as it likes: of several reports within a quarter
    /// of a second only the first is sent, but a report of 1 is always sent.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use tenure::{Context, Fault, Job, Worker};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Embed { pages: u32 }
    /// # impl Job for Embed { const KIND: &'static str = "embed"; type Output = (); }
    /// async fn embed(job: Embed, cx: Context) -> Result<(), Fault> {
    ///     for page in 0..job.pages {
    ///         cx.progress(f64::from(page) / f64::from(job.pages), "embedding").await?;
    ///         // …
    ///     }
    ///     Ok(())
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sandbox = tenure::testing::Sandbox::new().await?;
    /// # let cx = sandbox.context(&Embed { pages: 3 }).await?;
    /// # let job = cx.job();
    /// # cx.progress(0.4, "embedding").await.unwrap();
    /// # let seen = sandbox.tenure().job(job).await?.unwrap().job.progress.unwrap();
    /// # assert_eq!(seen.to_string(), "40 % embedding");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn progress(&self, fraction: f64, note: impl AsRef<str>) -> Result<(), Fault> {
        const PAUSE: Duration = Duration::from_millis(250);
        if self.is_cancelled() {
            return Err(stopped());
        }
        let progress = Progress::new(fraction, note.as_ref());
        {
            let now = Moment::now();
            let mut told = self.0.progress_told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.is_some_and(|told| now.since(told) < PAUSE)
                && progress.permille() < Progress::WHOLE
            {
                return Ok(());
            }
            *told = Some(now);
        }
        let fence = self.fence();
        let report = Report { fence, progress };
        let answers = self
            .insist(|| {
                let report = report.clone();
                self.0.tenure.0.link.as_holder(move |engine| engine.store().progress(&[report]))
            })
            .await?;
        match answers.first() {
            // A report that is not stored now is replaced by the next one.
            Some(Reported::Noted | Reported::Busy) => Ok(()),
            Some(Reported::Stale(stale)) => Err(self.refused(Verb::Progress, stale)),
            Some(Reported::NotFound) | None => Err(self.lost()),
        }
    }

    /// Waits until it is certain that this worker holds the job: at once, unless the lease could
    /// not be renewed in time. Nothing is started while that is uncertain.
    pub(crate) async fn certain(&self) -> Result<(), Fault> {
        let mut watch = self.0.hold.watch();
        loop {
            let trust = *watch.borrow_and_update();
            if trust.stopped.is_some() {
                return Err(stopped());
            }
            if Moment::now() < trust.until {
                return Ok(());
            }
            // The sender lives as long as this context does.
            let _ = watch.changed().await;
        }
    }

    pub(in crate::handler) async fn ledger(&self, name: &Name, act: Act) -> Result<Answer, Fault> {
        let verb = act.verb();
        let entry = Entry { fence: self.fence(), name: name.clone(), act };
        match self.insist(|| self.0.tenure.0.link.ledger(entry.clone())).await? {
            Answer::Stale(stale) => Err(self.refused(verb, &stale)),
            Answer::NotFound => Err(self.lost()),
            answer => Ok(answer),
        }
    }

    /// Repeats a call until the store answers, for as long as this worker may hold the job.
    pub(crate) async fn insist<T, Fut>(&self, ask: impl Fn() -> Fut) -> Result<T, Fault>
    where
        Fut: Future<Output = StoreResult<T>>,
    {
        // A limit, because the transaction that has locked the job's row may be this handler's own.
        const LOCKED: u32 = 10;
        let mut pause = Duration::from_millis(20);
        let mut locked = 0;
        loop {
            let answer = ask().await;
            locked += u32::from(matches!(answer, Err(Error::Busy { .. })));
            match answer {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_transient() && locked < LOCKED && !self.is_cancelled() => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                Err(error) if error.is_invalid() => return Err(Fault::fatal(error)),
                Err(error) => return Err(self.failed(error)),
            }
        }
    }
}
