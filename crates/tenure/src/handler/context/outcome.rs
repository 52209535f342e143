//! What came of an effect, on its way into the ledger until the store has answered.
//!
//! The other side has acted, and only this process knows it. So the outcome is written by a task of its own: it goes on when
//! the handler is dropped, when the lease is over, and whatever the store says, unless the outcome itself is invalid. The
//! attempt is not settled before. This module knows nothing of the other side.

use std::time::Duration;

use tokio::sync::oneshot;

use super::Context;
use crate::job::{Name, State};
use crate::ledger::{Act, Answer, Entry};
use crate::lifecycle::Fault;
use crate::store::Error;
use crate::telemetry::Fact;
use crate::worker::desk::{Stage, Unwritten};

/// How often the job's row may be locked before the handler hears of it. The handler itself may hold the lock, in a transaction
/// of its own, and would wait for itself.
const LOCKED: u32 = 10;

impl Context {
    /// Writes what came of an effect, and waits for the store's answer. A handler that is to stop does not wait for a store that
    /// fails; the writing goes on without it.
    pub(in crate::handler) async fn outcome(&self, name: &Name, act: Act) -> Result<Answer, Fault> {
        let (tell, told) = oneshot::channel();
        let entry = Entry { fence: self.shown(), name: name.clone(), act };
        // From here to the spawn nothing awaits: no handler is dropped in between.
        let writing = Writing::begin(self.clone(), entry, tell);
        self.0.runtime.spawn(writing.until_answered());
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
    /// For the handler, as long as it waits.
    tell: Option<oneshot::Sender<Result<Answer, Fault>>>,
}

impl Writing {
    fn begin(cx: Context, entry: Entry, tell: oneshot::Sender<Result<Answer, Fault>>) -> Writing {
        cx.0.desk.outcome_known(entry.fence, &entry.name, entry.act.verb());
        Writing { cx, entry, tell: Some(tell) }
    }

    async fn until_answered(mut self) {
        let mut pause = Duration::from_millis(20);
        let mut locked = 0;
        loop {
            let error = match self.cx.0.tenure.0.link.ledger(self.entry.clone()).await {
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
                // Else the refusal is told as such.
                if stale.state == State::Cancelled {
                    self.cx.tell(self.unrecorded(&"the job was cancelled", true));
                }
                Err(self.cx.refused(act.verb(), &stale))
            }
            Answer::Gone => {
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
            // The handler may have gone.
            let _ = tell.send(answer);
        }
    }

    fn unrecorded(&self, error: &impl ToString, given_up: bool) -> Fact {
        let (effect, verb) = (self.entry.name.clone(), self.entry.act.verb());
        Fact::EffectUnrecorded { effect, verb, given_up, error: error.to_string() }
    }
}

impl Drop for Writing {
    /// Whatever ended it without an answer: the outcome is lost, and the log says so.
    fn drop(&mut self) {
        let Entry { fence, name, .. } = &self.entry;
        if let Some(Unwritten { error, .. }) = self.cx.0.desk.outcome_answered(*fence, name) {
            let error = error.unwrap_or_else(|| "the runtime ended first".into());
            self.cx.tell(self.unrecorded(&error, true));
        }
    }
}
