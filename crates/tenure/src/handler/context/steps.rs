//! What a handler must not do twice: steps and effects.

use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Context;
use crate::handler::Effect;
use crate::handler::effect::EffectCall;
use crate::job::{Json, Name};
use crate::lease::{epoch_of, first_of};
use crate::ledger::{Act, Answer};
use crate::lifecycle::Fault;

impl Context {
    /// Does something and remembers its result under this name: a later attempt gets that result
    /// back, and does not do it again. If the worker dies in the middle, it is done again; for work
    /// that must not be repeated, see [`Context::effect`]. A step that fails, or that your own
    /// timeout drops, may be tried again under its name in the same attempt.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use tenure::{Context, Fault, Job, Worker};
    /// # use std::sync::atomic::{AtomicU32, Ordering};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Index;
    /// # impl Job for Index { const KIND: &'static str = "index"; type Output = usize; }
    /// async fn index(_: Index, cx: Context) -> Result<usize, Fault> {
    ///     let loads = cx.state::<AtomicU32>();
    ///     let text: String = cx
    ///         .step("load", || async {
    ///             loads.fetch_add(1, Ordering::SeqCst); // slow and dear
    ///             Ok("a long text".to_owned())
    ///         })
    ///         .await?;
    ///     if cx.attempt() == 1 {
    ///         return Err(Fault::retry("the index is busy"));
    ///     }
    ///     Ok(text.len())
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use tenure::testing::Sandbox;
    /// let sandbox = Sandbox::new().await?;
    /// let handle = sandbox.tenure().enqueue(Index).await?;
    /// let worker = Worker::new(sandbox.tenure()).handle(index).state(AtomicU32::new(0));
    /// sandbox.run_due(&worker).await?; // fails
    /// sandbox.advance(std::time::Duration::from_secs(60));
    /// sandbox.run_due(&worker).await?; // succeeds, and has not loaded again
    /// assert_eq!(handle.wait().await?, 11);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn step<T, F, Fut>(&self, name: &str, work: F) -> Result<T, Fault>
    where
        T: Serialize + DeserializeOwned,
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, Fault>>,
    {
        let mut used = self.0.names.take("step", name)?;
        let name = used.name.clone();
        // An earlier call of this attempt may have been stored although its answer was lost.
        if used.is_open || !self.is_first_claim() {
            match self.ledger(&name, Act::Recall).await? {
                Answer::Remembered(kept) => {
                    used.keep();
                    return decode(&name, &kept);
                }
                Answer::Unknown => {}
                other => return Err(unexpected(&name, &other)),
            }
        }
        self.certain().await?;
        // Nothing is remembered of a step that failed or was dropped, so that it may be tried again
        // under its name.
        let output = work().await?;
        let unkept = |invalid| Fault::fatal(format!("the step {name} ran, but its {invalid}"));
        let result = Json::of("result", &output, self.result_limit()).map_err(unkept)?;
        used.leave_open();
        let answer = self.ledger(&name, Act::Remember { result }).await?;
        used.keep();
        match answer {
            Answer::Recorded => Ok(output),
            // The answer to the first call was lost and the call repeated: the result that was
            // stored first counts.
            Answer::Remembered(kept) => decode(&name, &kept),
            other => Err(unexpected(&name, &other)),
        }
    }

    /// Makes an outside call that must not happen twice. The intent is stored before it, and the
    /// outcome after it; a later attempt that finds the outcome gets it back. An attempt that finds
    /// an intent without an outcome does not know whether the call happened: the effect is *in
    /// doubt*, and your choice decides:
    ///
    /// - nothing, or [`park`](EffectCall::park): the job waits until a person has checked, and
    ///   decides with `tenure effects resolve`.
    /// - [`resend`](EffectCall::resend): the call is made again, with the same [key](Effect::key),
    ///   so that the other side can recognise it.
    /// - [`verify`](EffectCall::verify): the other side is asked.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use tenure::{Context, Fault, Job, Worker};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Charge { cents: u32 }
    /// # impl Job for Charge { const KIND: &'static str = "charge"; type Output = String; }
    /// # async fn bank_charge(_: u32, key: String) -> Result<String, Fault> { Ok(key) }
    /// async fn charge(job: Charge, cx: Context) -> Result<String, Fault> {
    ///     cx.effect("charge", |fx| bank_charge(job.cents, fx.key())).resend().await
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sandbox = tenure::testing::Sandbox::new().await?;
    /// # let handle = sandbox.tenure().enqueue(Charge { cents: 42 }).await?;
    /// # sandbox.run_due(&Worker::new(sandbox.tenure()).handle(charge)).await?;
    /// # assert!(handle.wait().await?.ends_with("/charge"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn effect<'a, T, F, Fut>(&'a self, name: &str, send: F) -> EffectCall<'a, T, F>
    where
        T: Serialize + DeserializeOwned + Send,
        F: FnOnce(Effect) -> Fut + Send + 'a,
        Fut: Future<Output = Result<T, Fault>> + Send,
    {
        EffectCall::new(self, name, send)
    }

    /// Whether this is the job's first claim: then the ledger has nothing for it, and need not be
    /// asked.
    pub(super) fn is_first_claim(&self) -> bool {
        self.token().0 == first_of(epoch_of(self.job().0)) + 1
    }
}

/// A result that an older version of the handler stored may have another type.
fn decode<T: DeserializeOwned>(name: &Name, kept: &Json) -> Result<T, Fault> {
    serde_json::from_str(kept.as_str()).map_err(|cause| {
        Fault::fatal(format!(
            "what the step {name} came to in an earlier attempt does not decode any more: {cause}; \
             give it another name when its type changes"
        ))
    })
}

pub(in crate::handler) fn unexpected(name: &Name, answer: &Answer) -> Fault {
    Fault::fatal(format!("the ledger does not allow {name}: {answer:?}"))
}
