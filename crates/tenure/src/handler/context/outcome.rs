//! The outcome of an effect, until the ledger has it.
//!
//! The other side has acted, and only this process knows the result. So a separate task writes the
//! outcome. The task continues when the handler is dropped, when the lease is over, and whatever
//! error the store returns. It ends early only if the outcome itself is invalid or the worker has
//! ended. The attempt is not settled before the task has ended. This module knows nothing of the
//! other side.

use std::time::Duration;

use tokio::sync::oneshot;

use super::Context;
use crate::desk::{Stage, Unwritten};
use crate::job::{Name, State};
use crate::ledger::{Act, Answer, Entry};
use crate::lifecycle::Fault;
use crate::store::{Error, Result as StoreResult};
use crate::telemetry::Fact;

/// How many times the job's row may be locked before the handler gets the error. The handler itself
/// may hold the lock, in a transaction of its own, and would wait for itself.
const LOCKED: u32 = 10;

impl Context {
    /// Writes the outcome of an effect, and waits for the store's answer. A handler that must stop
    /// does not wait for a store that fails; the task continues to write without it.
    pub(in crate::handler) async fn outcome(&self, name: &Name, act: Act) -> Result<Answer, Fault> {
        let (tell, told) = oneshot::channel();
        let entry = Entry { fence: self.fence(), name: name.clone(), act };
        // There is no await from here to the spawn, so the handler cannot be dropped in between.
        let writing = Writing::begin(self.clone(), entry, tell);
        let tenure = self.0.tenure.clone();
        self.0.runtime.spawn(writing.until_answered(move |entry| {
            let tenure = tenure.clone();
            async move { tenure.0.link.ledger(entry).await }
        }));
        told.await.unwrap_or_else(|_| {
            Err(Fault::retry(format!(
                "the outcome of effect {name} was not written: the runtime ends"
            )))
        })
    }
}

/// An outcome that is being written.
struct Writing {
    cx: Context,
    entry: Entry,
    /// Replies to the handler, as long as it waits.
    tell: Option<oneshot::Sender<Result<Answer, Fault>>>,
}

impl Writing {
    fn begin(cx: Context, entry: Entry, tell: oneshot::Sender<Result<Answer, Fault>>) -> Writing {
        cx.0.desk.outcome_known(&cx.0.hold, &entry.name, entry.act.verb());
        Writing { cx, entry, tell: Some(tell) }
    }

    /// Asks the store until it answers, or the worker is over.
    async fn until_answered<Fut>(mut self, ask: impl Fn(Entry) -> Fut)
    where
        Fut: Future<Output = StoreResult<Answer>>,
    {
        let mut pause = Duration::from_millis(20);
        let mut locked = 0;
        loop {
            let error = match ask(self.entry.clone()).await {
                Ok(answer) => return self.answered(answer),
                Err(error) => error,
            };
            if self.cx.0.desk.outcome_failed(self.entry.fence, &self.entry.name, &error) {
                self.cx.tell(self.unrecorded(&error, false));
            }
            if error.is_invalid() {
                return self.reply(Err(Fault::fatal(error)));
            }
            locked += u32::from(matches!(error, Error::Busy { .. }));
            if self.cx.is_cancelled() || locked >= LOCKED {
                self.reply(Err(error.into()));
            }
            if self.cx.0.desk.stage() == Stage::Over {
                return;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    fn answered(&mut self, answer: Answer) {
        let Entry { fence, name, act } = &self.entry;
        let answer = match answer {
            Answer::Stale(stale) => {
                self.cx.0.desk.outcome_answered(*fence, name);
                // Other refusals are reported as such.
                if stale.state == State::Cancelled {
                    self.cx.tell(self.unrecorded(&"the job was cancelled", true));
                }
                Err(self.cx.refused(act.verb(), &stale))
            }
            Answer::NotFound => {
                self.cx.0.desk.outcome_answered(*fence, name);
                self.cx.tell(self.unrecorded(&"the store knows no such job any more", true));
                Err(self.cx.lost())
            }
            answer => {
                self.cx.0.desk.outcome_answered(*fence, name);
                Ok(answer)
            }
        };
        self.reply(answer);
    }

    fn reply(&mut self, answer: Result<Answer, Fault>) {
        if let Some(tell) = self.tell.take() {
            // The handler may be gone.
            let _ = tell.send(answer);
        }
    }

    fn unrecorded(&self, error: &impl ToString, given_up: bool) -> Fact {
        let (effect, verb) = (self.entry.name.clone(), self.entry.act.verb());
        Fact::EffectUnrecorded { effect, verb, given_up, error: error.to_string() }
    }
}

impl Drop for Writing {
    /// If the task ends without an answer of the store, for whatever reason, the outcome is lost:
    /// an event reports that.
    fn drop(&mut self) {
        let Entry { fence, name, .. } = &self.entry;
        if let Some(Unwritten { error, .. }) = self.cx.0.desk.outcome_answered(*fence, name) {
            let error = error.unwrap_or_else(|| "the runtime ended first".into());
            self.cx.tell(self.unrecorded(&error, true));
        }
    }
}

#[cfg(test)]
mod tests;
