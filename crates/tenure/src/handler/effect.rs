//! An effect, from its intent to its outcome.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Context;
use super::context::unexpected;
use crate::job::{Json, Name, shorten};
use crate::ledger::{Act, Answer, Doubt, Resolution};
use crate::lifecycle::Fault;
use crate::telemetry::Fact;

/// What the code that has the effect is given.
#[derive(Debug, Clone)]
pub struct Effect {
    key: String,
    refused: Arc<AtomicBool>,
}

impl Effect {
    /// The key by which the other side recognises a repetition: the same for every attempt, and unique in the world.
    pub fn key(&self) -> String {
        self.key.clone()
    }

    /// Says that the other side refused, so that it certainly has not happened: the next attempt may simply do it. Any
    /// other error leaves it in doubt, for a timeout does not tell.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use tenure::{Context, Fault, Job, Worker};
    /// # use std::time::Duration;
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Ask;
    /// # impl Job for Ask { const KIND: &'static str = "ask"; type Output = (); }
    /// # async fn call(_: String) -> u16 { 429 }
    /// async fn ask(_: Ask, cx: Context) -> Result<(), Fault> {
    ///     cx.effect("ask", |fx| async move {
    ///         match call(fx.key()).await {
    ///             200 => Ok(()),
    ///             429 => Err(fx.refused(Fault::retry_after(Duration::from_secs(2), "too many requests"))),
    ///             code => Err(Fault::retry(format!("the other side answers {code}"))),
    ///         }
    ///     })
    ///     .await
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sandbox = tenure::testing::Sandbox::new().await?;
    /// # sandbox.tenure().enqueue(Ask).await?;
    /// # let worker = Worker::new(sandbox.tenure()).handle(ask);
    /// # assert_eq!(sandbox.run_due(&worker).await?.retried, 1);
    /// # sandbox.advance(Duration::from_secs(2));
    /// # assert_eq!(sandbox.run_due(&worker).await?.retried, 1, "it is not in doubt");
    /// # Ok(())
    /// # }
    /// ```
    pub fn refused(&self, error: impl Into<Fault>) -> Fault {
        self.refused.store(true, Ordering::SeqCst);
        error.into()
    }
}

type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Asks the other side what came of the effect with this key; `None` if it never happened.
type Verify<'a, T> = Box<dyn FnOnce(String) -> BoxFuture<'a, Result<Option<T>, Fault>> + Send + 'a>;

enum Policy<'a, T> {
    Park,
    Resend,
    Verify(Verify<'a, T>),
}

/// An effect that is about to happen. Awaiting it makes it happen, unless it has.
#[must_use = "nothing happens until this is awaited"]
pub struct EffectCall<'a, T, F> {
    cx: &'a Context,
    name: String,
    send: F,
    policy: Policy<'a, T>,
    output: PhantomData<fn() -> T>,
}

impl<'a, T, F> EffectCall<'a, T, F> {
    pub(super) fn new(cx: &'a Context, name: &str, send: F) -> EffectCall<'a, T, F> {
        EffectCall { cx, name: name.to_owned(), send, policy: Policy::Park, output: PhantomData }
    }

    /// In doubt, wait for a person.
    pub fn park(self) -> EffectCall<'a, T, F> {
        EffectCall { policy: Policy::Park, ..self }
    }

    /// In doubt, do it again under the same key.
    pub fn resend(self) -> EffectCall<'a, T, F> {
        EffectCall { policy: Policy::Resend, ..self }
    }

    /// In doubt, ask the other side by the key: what came of it, or `None` if it never happened; then it is done now.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # use tenure::{Context, Fault, Job, Worker};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Pay;
    /// # impl Job for Pay { const KIND: &'static str = "pay"; type Output = String; }
    /// # async fn pay_by_bank(key: String) -> Result<String, Fault> { Err(Fault::retry("a timeout")) }
    /// # async fn look_up(key: String) -> Result<Option<String>, Fault> { Ok(Some("receipt".into())) }
    /// async fn pay(_: Pay, cx: Context) -> Result<String, Fault> {
    ///     cx.effect("pay", |fx| pay_by_bank(fx.key())).verify(|key| look_up(key)).await
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let sandbox = tenure::testing::Sandbox::new().await?;
    /// # let handle = sandbox.tenure().enqueue(Pay).await?;
    /// # let worker = Worker::new(sandbox.tenure()).handle(pay);
    /// # assert_eq!(sandbox.run_due(&worker).await?.retried, 1);
    /// # sandbox.advance(std::time::Duration::from_secs(60));
    /// # sandbox.run_due(&worker).await?;
    /// # assert_eq!(handle.wait().await?, "receipt");
    /// # Ok(())
    /// # }
    /// ```
    pub fn verify<V, Fut>(self, verify: V) -> EffectCall<'a, T, F>
    where
        V: FnOnce(String) -> Fut + Send + 'a,
        Fut: Future<Output = Result<Option<T>, Fault>> + Send + 'a,
    {
        let verify: Verify<'a, T> = Box::new(move |key| Box::pin(verify(key)));
        EffectCall { policy: Policy::Verify(verify), ..self }
    }
}

impl<'a, T, F, Fut> IntoFuture for EffectCall<'a, T, F>
where
    T: Serialize + DeserializeOwned + Send + 'a,
    F: FnOnce(Effect) -> Fut + Send + 'a,
    Fut: Future<Output = Result<T, Fault>> + Send + 'a,
{
    type Output = Result<T, Fault>;
    type IntoFuture = BoxFuture<'a, Result<T, Fault>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(run(self))
    }
}

async fn run<'a, T, F, Fut>(call: EffectCall<'a, T, F>) -> Result<T, Fault>
where
    T: Serialize + DeserializeOwned + Send + 'a,
    F: FnOnce(Effect) -> Fut + Send + 'a,
    Fut: Future<Output = Result<T, Fault>> + Send + 'a,
{
    let EffectCall { cx, name, send, policy, .. } = call;
    let mut used = cx.names().take("effect", &name)?;
    let name = used.name.clone();
    if used.is_open {
        // The same attempt may write its intent as often as it likes: the ledger would not stop a second call.
        return Err(Fault::retry(format!(
            "the effect {name} was sent in this attempt, and what came of it is not known; the next attempt decides as it \
             does about every effect in doubt"
        )));
    }
    let key = cx.effect_key(name.as_str())?;
    // The intent counts from here on, so it must be ours to have.
    cx.certain().await?;
    match cx.ledger(&name, Act::Open).await? {
        Answer::Opened => {}
        Answer::Committed(kept) => {
            used.keep();
            return recalled(cx, &name, &kept);
        }
        Answer::Decided(kept) => {
            let answer = go_on_with_decision(cx, &name, kept).await?;
            used.keep();
            return Ok(answer);
        }
        Answer::InDoubt(doubt) => {
            if let Some(output) = settle_doubt(cx, &name, &key, doubt, policy).await? {
                used.keep();
                return Ok(output);
            }
        }
        other => return Err(unexpected(&name, &other)),
    }
    cx.certain().await?;
    let refused = Arc::new(AtomicBool::new(false));
    used.leave_open();
    match send(Effect { key, refused: Arc::clone(&refused) }).await {
        Ok(output) => {
            let result = cx.encode("effect", &name, &output)?;
            match cx.outcome(&name, Act::Commit { result }).await? {
                Answer::Recorded => {
                    used.keep();
                    Ok(output)
                }
                other => Err(unexpected(&name, &other)),
            }
        }
        Err(fault) => {
            if refused.load(Ordering::SeqCst) {
                cx.outcome(&name, Act::Fail { error: fault.to_string() }).await?;
                used.free();
            }
            Err(fault)
        }
    }
}

/// What an earlier attempt had back. If the handler cannot read it, the job is parked: a person can correct the value.
fn recalled<T: DeserializeOwned>(cx: &Context, name: &Name, kept: &Json) -> Result<T, Fault> {
    serde_json::from_str(kept.as_str()).map_err(|cause| {
        Fault::park(format!(
            "what the effect {name} came to in an earlier attempt is not what the handler expects: {cause}; run a \
             handler that can read it, and let the job go on with: tenure jobs resume {}",
            cx.job()
        ))
    })
}

/// What a person decided. An attempt that can read it says so, and from then on it stands; else the person is asked again.
async fn go_on_with_decision<T: DeserializeOwned>(
    cx: &Context,
    name: &Name,
    kept: Json,
) -> Result<T, Fault> {
    let output = serde_json::from_str(kept.as_str()).map_err(|cause| {
        let (job, kept) = (cx.job(), shorten(kept.as_str(), 200));
        Fault::park(format!(
            "a person decided that the effect {name} came to {kept}, which is not what the handler expects: {cause}; \
             correct it with: tenure effects resolve {job} {name} --committed JSON"
        ))
    })?;
    match cx.ledger(name, Act::Resolve(Resolution::Committed { result: kept })).await? {
        Answer::Recorded => Ok(output),
        other => Err(unexpected(name, &other)),
    }
}

/// What came of an effect in doubt, or nothing if it is to be done now.
async fn settle_doubt<T: Serialize>(
    cx: &Context,
    name: &Name,
    key: &str,
    doubt: Doubt,
    policy: Policy<'_, T>,
) -> Result<Option<T>, Fault> {
    cx.tell(Fact::EffectInDoubt { effect: name.clone(), opened_by: doubt.token });
    let verdict = match policy {
        Policy::Park => {
            let job = cx.job();
            return Err(Fault::park(format!(
                "the effect {name} is in doubt: the attempt with token {} wrote its intent and no outcome; look whether \
                 it happened, and decide: tenure effects resolve {job} {name}",
                doubt.token
            )));
        }
        Policy::Resend => None,
        Policy::Verify(verify) => verify(key.to_owned()).await?,
    };
    let answer = match &verdict {
        Some(output) => {
            let result = cx.encode("effect", name, output)?;
            cx.outcome(name, Act::Resolve(Resolution::Committed { result })).await?
        }
        // A permission, not an outcome: it is asked for only while the job may be ours.
        None => cx.ledger(name, Act::Resolve(Resolution::Resend)).await?,
    };
    match answer {
        Answer::Recorded => Ok(verdict),
        other => Err(unexpected(name, &other)),
    }
}

impl<T, F> fmt::Debug for EffectCall<'_, T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EffectCall").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::inspect::EffectFilter;
    use crate::ledger::Standing;
    use crate::testing::Sandbox;
    use crate::{Tenure, Worker};

    /// How often the other side was called.
    #[derive(Default)]
    struct Sent(AtomicUsize);

    impl Sent {
        fn once_more(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The job is lost at this moment, and the store has not been asked. The handlers are patient ones, which are not dropped
    /// for it.
    fn lose(cx: &Context) {
        assert!(!cx.is_cancelled(), "it was ours until now");
        drop(cx.lost());
        assert!(cx.is_cancelled());
    }

    async fn standings(tenure: &Tenure) -> Vec<Standing> {
        let all = EffectFilter::default();
        let found = tenure.with_store(move |store| store.effects(&all, 10)).await.unwrap();
        found.iter().map(|view| view.effect.standing).collect()
    }

    #[tokio::test]
    async fn what_was_lost_before_an_effect_is_not_begun() {
        let sandbox = Sandbox::new().await.unwrap();
        let sent = Arc::new(Sent::default());
        let worker = Worker::new(sandbox.tenure()).state(Arc::clone(&sent));
        let worker = worker.handle_any_patiently(|_, cx: Context| async move {
            lose(&cx);
            let call = cx.effect("charge", |_| async {
                cx.state::<Arc<Sent>>().once_more();
                Ok(1)
            });
            assert!(call.await.is_err());
            Ok(None)
        });
        sandbox.tenure().enqueue_kind("work", &()).await.unwrap();
        assert_eq!(sandbox.run_due(&worker).await.unwrap().total(), 1);
        assert_eq!(sent.0.load(Ordering::SeqCst), 0);
        assert_eq!(standings(sandbox.tenure()).await, [], "not even the intent is written");
    }

    #[tokio::test]
    async fn what_is_lost_between_the_intent_and_the_call_is_not_sent() {
        let sandbox = Sandbox::new().await.unwrap();
        let sent = Arc::new(Sent::default());
        let worker = Worker::new(sandbox.tenure()).state(Arc::clone(&sent));
        let worker = worker.handle_any_patiently(|_, cx: Context| async move {
            let send = |_| async {
                cx.state::<Arc<Sent>>().once_more();
                Err::<u8, _>(Fault::retry("no answer"))
            };
            if cx.attempt() == 1 {
                return cx.effect("charge", send).await.map(|_| None);
            }
            // It is found out that it never happened, and meanwhile the job is lost.
            let find_out = |_| async {
                lose(&cx);
                Ok(None)
            };
            assert!(cx.effect("charge", send).verify(find_out).await.is_err());
            Ok(None)
        });
        sandbox.tenure().enqueue_kind("work", &()).await.unwrap();
        assert_eq!(sandbox.run_due(&worker).await.unwrap().retried, 1);
        assert_eq!(sent.0.load(Ordering::SeqCst), 1, "the first attempt has sent it");
        sandbox.advance(std::time::Duration::from_secs(60));
        assert_eq!(sandbox.run_due(&worker).await.unwrap().total(), 1);
        assert_eq!(sent.0.load(Ordering::SeqCst), 1, "and the second has not");
    }
}
