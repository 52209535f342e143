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

/// What the code that makes the outside call gets.
#[derive(Debug, Clone)]
pub struct Effect {
    key: String,
    refused: Arc<AtomicBool>,
}

impl Effect {
    /// The key by which the other side recognises a repeated call: the same for every attempt, and
    /// globally unique.
    pub fn key(&self) -> String {
        self.key.clone()
    }

    /// Declares that the other side refused, so that the effect certainly has not happened: the
    /// next attempt may simply make the call. Any other error leaves the effect in doubt, because a
    /// timeout does not show what happened.
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

/// Asks the other side for the outcome of the effect with this key; `None` if it never happened.
type Verify<'a, T> = Box<dyn FnOnce(String) -> BoxFuture<'a, Result<Option<T>, Fault>> + Send + 'a>;

enum Policy<'a, T> {
    Park,
    Resend,
    Verify(Verify<'a, T>),
}

/// An effect that is about to happen. Awaiting it makes the call, unless it has already happened.
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

    /// If in doubt, wait for a person.
    pub fn park(self) -> EffectCall<'a, T, F> {
        EffectCall { policy: Policy::Park, ..self }
    }

    /// If in doubt, make the call again with the same key.
    pub fn resend(self) -> EffectCall<'a, T, F> {
        EffectCall { policy: Policy::Resend, ..self }
    }

    /// If in doubt, ask the other side by the key. It returns the outcome, or `None` if the call
    /// never happened; then the call is made now.
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
        // The ledger would not prevent a second call: it lets the same attempt store its intent
        // again.
        return Err(Fault::retry(format!(
            "the effect {name} was sent in this attempt, and what came of it is not known; the next attempt decides as it \
             does about every effect in doubt"
        )));
    }
    let key = cx.effect_key(name.as_str())?;
    // The intent counts as soon as it is stored, so this worker must hold the job for certain.
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
            let result = written(cx, &name, &output)?;
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

/// The outcome as JSON, for the ledger. If the ledger cannot keep it, for example because it is too
/// large, the job is parked until a person has recorded the outcome. The effect has taken place:
/// another attempt must not repeat it, and the job must not be reported as dead.
fn written(cx: &Context, name: &Name, output: &impl Serialize) -> Result<Json, Fault> {
    let job = cx.job();
    Json::of("result", output, cx.result_limit()).map_err(|invalid| {
        Fault::park(format!(
            "the effect {name} has taken place, but its {invalid}; say what it came to with: tenure effects resolve \
             {job} {name} --committed JSON"
        ))
    })
}

/// The outcome of an earlier attempt. If the handler cannot read it, the job is parked until a
/// person runs a handler that can, and resumes the job.
fn recalled<T: DeserializeOwned>(cx: &Context, name: &Name, kept: &Json) -> Result<T, Fault> {
    serde_json::from_str(kept.as_str()).map_err(|cause| {
        Fault::park(format!(
            "what the effect {name} came to in an earlier attempt is not what the handler expects: {cause}; run a \
             handler that can read it, and let the job go on with: tenure jobs resume {}",
            cx.job()
        ))
    })
}

/// Continues with the outcome that a person has decided. If the handler can decode it, the attempt
/// confirms it in the ledger, and from then on the decision is final. Otherwise the job is parked,
/// so that the person can correct the decision.
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

/// Resolves an effect in doubt: returns its outcome, or `None` if the call must be made now.
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
            let result = written(cx, name, output)?;
            cx.outcome(name, Act::Resolve(Resolution::Committed { result })).await?
        }
        // This asks for the permission to call; no known outcome could get lost. So it is retried
        // only while this worker may hold the job, and not longer as `cx.outcome` is.
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
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::inspect::EffectFilter;
    use crate::ledger::Standing;
    use crate::store::Store;
    use crate::testing::Sandbox;
    use crate::{Tenure, Worker};

    /// How often the other side was called, and how many handlers ran to their end. The second
    /// number shows that no assertion in a handler panicked: a panic of a handler that has lost its
    /// job is not settled, so the job does not show it.
    #[derive(Default)]
    struct Sent(AtomicUsize, AtomicUsize);

    impl Sent {
        fn once_more(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }

        fn is_over(&self) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }

        fn counts(&self) -> (usize, usize) {
            (self.0.load(Ordering::SeqCst), self.1.load(Ordering::SeqCst))
        }
    }

    /// Makes the worker lose the job at this moment, without a call to the store. The handlers that
    /// use this are patient: they are not dropped when their job is lost.
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
            cx.state::<Arc<Sent>>().is_over();
            Ok(None)
        });
        sandbox.tenure().enqueue_kind("work", &()).await.unwrap();
        assert_eq!(sandbox.run_due(&worker).await.unwrap().put_off, 1, "nothing to settle");
        assert_eq!(sent.counts(), (0, 1));
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
            // The check finds that the call never happened, and meanwhile the job is lost.
            let find_out = |_| async {
                lose(&cx);
                Ok(None)
            };
            assert!(cx.effect("charge", send).verify(find_out).await.is_err());
            cx.state::<Arc<Sent>>().is_over();
            Ok(None)
        });
        sandbox.tenure().enqueue_kind("work", &()).await.unwrap();
        assert_eq!(sandbox.run_due(&worker).await.unwrap().retried, 1);
        assert_eq!(sent.counts(), (1, 0), "the first attempt has sent it");
        sandbox.advance(std::time::Duration::from_secs(60));
        assert_eq!(sandbox.run_due(&worker).await.unwrap().put_off, 1, "nothing to settle");
        assert_eq!(sent.counts(), (1, 1), "and the second has not");
    }

    #[tokio::test]
    async fn an_effect_whose_outcome_cannot_be_kept_waits_for_a_person() {
        let sandbox = Sandbox::new().await.unwrap();
        let worker = Worker::new(sandbox.tenure()).handle_any(|_, cx: Context| async move {
            let too_much = "x".repeat(cx.result_limit());
            cx.effect("charge", |_| async { Ok(too_much) }).await.map(|_| None)
        });
        let job = sandbox.tenure().enqueue_kind("work", &()).await.unwrap().id();
        assert_eq!(sandbox.run_due(&worker).await.unwrap().put_off, 1);
        assert_eq!(standings(sandbox.tenure()).await, [Standing::Open], "it is in doubt");
        let look = move |store: &mut dyn Store| store.outcome(job);
        let reason = sandbox.tenure().with_store(look).await.unwrap().unwrap().reason.unwrap();
        let next = format!("tenure effects resolve {job} charge --committed JSON");
        assert!(reason.contains("has taken place") && reason.ends_with(&next), "{reason}");
    }

    #[tokio::test]
    async fn an_effect_that_the_other_side_refused_may_be_sent_again_at_once_and_later() {
        let sandbox = Sandbox::new().await.unwrap();
        let sent = Arc::new(Sent::default());
        let worker = Worker::new(sandbox.tenure()).state(Arc::clone(&sent));
        let worker = worker.handle_any(|_, cx: Context| async move {
            let refuses =
                |fx: Effect| async move { Err::<u8, _>(fx.refused(Fault::retry("busy"))) };
            if cx.attempt() == 1 {
                for _ in 0..2 {
                    cx.state::<Arc<Sent>>().once_more();
                    assert_eq!(cx.effect("charge", refuses).await, Err(Fault::retry("busy")));
                }
                return Err(Fault::retry_after(std::time::Duration::ZERO, "refused twice"));
            }
            // If the effect were in doubt, the job would be parked.
            let call = cx.effect("charge", |_| async {
                cx.state::<Arc<Sent>>().once_more();
                Ok(1)
            });
            call.await.map(|_| None)
        });
        let job = sandbox.tenure().enqueue_kind("work", &()).await.unwrap();
        let ran = sandbox.run_due(&worker).await.unwrap();
        let found = sandbox.tenure().job(job.id()).await.unwrap().unwrap();
        assert_eq!((ran.retried, ran.succeeded), (1, 1), "{found:?}");
        let retried = found.timeline.iter().find_map(|line| line.note.as_deref());
        assert_eq!(retried, Some("refused twice"));
        assert_eq!(sent.0.load(Ordering::SeqCst), 3);
        assert_eq!(standings(sandbox.tenure()).await, [Standing::Committed]);
    }

    /// It does not matter where the outcome is from: this attempt, an earlier one, a person's
    /// decision, or the other side's answer to `verify`.
    #[tokio::test]
    async fn an_effect_that_has_come_to_something_has_used_up_its_name() {
        let sandbox = Sandbox::new().await.unwrap();
        let tenure = sandbox.tenure();
        let told: Arc<Mutex<Vec<Fact>>> = Arc::default();
        let hears = Arc::clone(&told);
        let worker = Worker::new(tenure).observe(move |event| {
            if event.fact.name() == "effect_in_doubt" {
                hears.lock().unwrap().push(event.fact.clone());
            }
        });
        let worker = worker.handle_any(|_, cx: Context| async move {
            let twice = async |name: &str| {
                let call =
                    || cx.effect(name, |_| async { Ok(1) }).verify(|_| async { Ok(Some(1)) });
                assert_eq!(call().await, Ok(1), "{name}");
                let again = call().await;
                let is_used = |error: &str| error.contains("was used twice in one attempt");
                assert!(
                    matches!(&again, Err(Fault::Fatal { error }) if is_used(error)),
                    "{again:?}"
                );
            };
            if cx.attempt() == 1 {
                twice("done").await;
                for name in ["decided", "found"] {
                    let no_answer = |_| async { Err::<u8, _>(Fault::retry("no answer")) };
                    assert!(cx.effect(name, no_answer).await.is_err());
                }
                return Err(Fault::retry("once more"));
            }
            for name in ["done", "decided", "found"] {
                twice(name).await;
            }
            Ok(None)
        });
        let job = tenure.enqueue_kind("work", &()).await.unwrap().id();
        assert_eq!(sandbox.run_due(&worker).await.unwrap().retried, 1);
        let failed = tenure.job(job).await.unwrap().unwrap();
        assert!(failed.timeline.iter().any(|line| line.note.as_deref() == Some("once more")));
        let result = Json::check("result", "1", 10).unwrap();
        let decided = crate::ledger::effect_name("decided").unwrap();
        let how = Resolution::Committed { result };
        tenure.with_store(move |store| store.resolve(job, &decided, &how)).await.unwrap();
        sandbox.advance(std::time::Duration::from_secs(60));
        let ran = sandbox.run_due(&worker).await.unwrap();
        assert_eq!(ran.succeeded, 1, "{:?}", tenure.job(job).await.unwrap());
        let effect = crate::ledger::effect_name("found").unwrap();
        let opened_by = failed.timeline.iter().map(|line| line.token).max().unwrap();
        assert_eq!(*told.lock().unwrap(), [Fact::EffectInDoubt { effect, opened_by }]);
        assert_eq!(standings(tenure).await, [Standing::Committed; 3]);
    }
}
