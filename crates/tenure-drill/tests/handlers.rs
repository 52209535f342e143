//! A handler that misbehaves fails its own attempt, and never its worker.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test panics where it fails, and prints its figures"
)]

use std::collections::BTreeMap;
use std::future::IntoFuture;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::Poll;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::json;
use tenure::engine::clock::monotonic;
use tenure::engine::job::{JobRecord, RetryPolicy, State};
use tenure::engine::lifecycle::Verb;
use tenure::{Context, Exit, Fault, Handle, Job, Running, Tenure, Worker};
use tenure_drill::workers::Bench;
use tenure_drill::workers::books::{self, Books};
use tokio::sync::Notify;

/// Makes two tests of each claim, one for each engine.
macro_rules! on_both_engines {
    ($($claim:ident),+ $(,)?) => {
        mod sqlite {
            $(#[test] fn $claim() { super::run(super::Bench::sqlite, super::$claim); })+
        }
        mod postgres {
            $(#[test] fn $claim() { super::run(super::Bench::postgres, super::$claim); })+
        }
    };
}

on_both_engines!(
    a_handler_that_panics_fails_its_attempt_and_not_its_worker,
    args_that_do_not_decode_are_buried_with_the_reason,
    args_whose_decoding_panics_fail_the_attempt_and_not_the_worker,
    a_result_above_the_limit_is_buried_naming_its_size,
    a_result_that_is_no_json_is_buried_with_the_reason,
    an_async_handler_that_hangs_is_stopped_at_its_max_runtime,
    a_blocking_handler_that_hangs_loses_its_attempt_at_its_max_runtime,
    a_short_max_runtime_is_a_failed_attempt_and_never_a_crash,
    a_running_job_that_is_cancelled_stops,
    a_job_that_is_left_when_the_worker_ends_is_given_back,
    a_step_that_its_handler_gave_up_is_tried_again_under_its_name,
    a_step_that_was_remembered_before_it_was_dropped_is_not_done_again,
    an_effect_that_its_handler_gave_up_is_in_doubt_in_the_next_attempt,
);

/// Runs a claim with a timeout: nothing here may hang.
fn run<Fut: Future<Output = ()>>(bench: fn(&Path, &Path) -> Bench, claim: impl Fn(Tenure) -> Fut) {
    let directory = tempfile::tempdir().unwrap();
    let place = bench(Path::new("there is none"), directory.path()).place;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tenure = Tenure::options().observe(|_| ()).open(&place).await.unwrap();
        within(claim(tenure)).await;
    });
}

/// G2: the answer to COMMIT was lost, and the handler sends the whole transaction again over its
/// own connection.
#[test]
fn a_handler_that_sends_its_own_transaction_again_writes_once_and_its_job_has_succeeded() {
    let directory = tempfile::tempdir().unwrap();
    let place = Bench::postgres(Path::new("there is none"), directory.path()).place;
    books::make(&place);
    let (tell, told) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let found = runtime.block_on(within(async {
        let observe = move |event: &tenure::Event| {
            let _ = tell.send(event.fact.name());
        };
        let tenure = Tenure::options().observe(observe).open(&place).await.unwrap();
        let handler = |_: Bad, cx: Context| async move {
            let books = cx.state::<Books>();
            books.enter(&cx).await?;
            let again = books.enter(&cx).await;
            assert!(again.as_ref().unwrap_err().to_string().contains("before"), "{again:?}");
            cx.state::<Arc<Notify>>().notify_one();
            again.map(|()| 1)
        };
        let refused = Arc::new(Notify::new());
        let worker = worker(&tenure).state(Books::of(&place)).state(Arc::clone(&refused));
        let worker = worker.handle(handler);
        let running = worker.start().await.unwrap();
        let handle = tenure.enqueue(bad("lost answer")).await.unwrap();
        refused.notified().await;
        still_works(&tenure, running).await;
        record(&tenure, &handle).await
    }));
    assert_eq!((found.state, found.attempt), (State::Succeeded, 1));
    assert_eq!(books::count(&place), (1, 1));
    let told: Vec<&str> = told.try_iter().collect();
    assert!(told.contains(&"job_succeeded"), "{told:?}");
    assert!(
        !told.contains(&"stale_write_blocked") && !told.contains(&"retry_scheduled"),
        "{told:?}"
    );
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.expect("it hangs")
}

fn worker(tenure: &Tenure) -> Worker {
    Worker::new(tenure).lease(Duration::from_secs(2)).grace(Duration::ZERO).handle(good)
}

async fn good(_: Good, _: Context) -> Result<u8, Fault> {
    Ok(1)
}

/// After whatever happened, this worker still works, and shuts down in order.
async fn still_works(tenure: &Tenure, running: Running) {
    assert_eq!(tenure.enqueue(Good {}).await.unwrap().wait().await.unwrap(), 1);
    assert_eq!(running.shut_down().await, Exit::Shutdown);
}

async fn record<T>(tenure: &Tenure, handle: &Handle<T>) -> JobRecord {
    tenure.job(handle.id()).await.unwrap().unwrap().job
}

/// Waits until a job is dead; returns the reason, and in which attempt.
async fn death<T: serde::de::DeserializeOwned>(
    tenure: &Tenure,
    handle: &Handle<T>,
) -> (String, u16) {
    assert!(handle.wait().await.is_err(), "it is not to succeed");
    let found = record(tenure, handle).await;
    assert_eq!((found.state, found.crashes), (State::Dead, 0), "{found:?}");
    (found.reason.unwrap(), found.attempt)
}

#[derive(Serialize, Deserialize)]
struct Good {}

impl Job for Good {
    const KIND: &'static str = "good";
    type Output = u8;
}

#[derive(Serialize, Deserialize)]
struct Bad {
    how: String,
}

impl Job for Bad {
    const KIND: &'static str = "bad";
    type Output = u8;
}

#[derive(Serialize, Deserialize)]
struct BadAndBlocking {}

impl Job for BadAndBlocking {
    const KIND: &'static str = "blocking";
    type Output = u8;
}

fn bad(how: &str) -> Bad {
    Bad { how: how.into() }
}

async fn a_handler_that_panics_fails_its_attempt_and_not_its_worker(tenure: Tenure) {
    let handler = |job: Bad, _: Context| {
        assert_ne!(job.how, "before it has a future", "as it was told");
        async move {
            assert_ne!(job.how, "at once", "as it was told");
            tokio::task::yield_now().await;
            panic!("as it was told {}", job.how);
        }
    };
    let blocking = |_: BadAndBlocking, _: Context| panic!("as it was told");
    let running =
        worker(&tenure).concurrency(1).handle(handler).handle_blocking(blocking).start().await;
    let running = running.unwrap();
    for how in ["before it has a future", "at once", "later"] {
        let handle = tenure.enqueue(bad(how)).max_attempts(1).await.unwrap();
        let (reason, _) = death(&tenure, &handle).await;
        assert!(reason.contains("the handler panicked: "), "{how}: {reason}");
        assert!(reason.contains("as it was told"), "{how}: {reason}");
    }
    let handle = tenure.enqueue(BadAndBlocking {}).max_attempts(1).await.unwrap();
    let (reason, _) = death(&tenure, &handle).await;
    assert!(reason.contains("the handler panicked: as it was told"), "{reason}");
    still_works(&tenure, running).await;
}

async fn args_that_do_not_decode_are_buried_with_the_reason(tenure: Tenure) {
    let running = worker(&tenure).handle(|_: Bad, _| async { Ok(1) }).start().await.unwrap();
    let handle = tenure.enqueue_kind("bad", &json!({ "how": 7 })).await.unwrap();
    let (reason, attempt) = death(&tenure, &handle).await;
    assert!(reason.contains("its args are not what the handler of bad expects: "), "{reason}");
    assert!(reason.contains("invalid type: integer `7`, expected a string"), "{reason}");
    assert_eq!(attempt, 1, "another attempt would find the same args");
    still_works(&tenure, running).await;
}

/// Args whose own type fails to deserialize.
#[derive(Serialize)]
struct Brittle {}

impl<'de> Deserialize<'de> for Brittle {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Brittle, D::Error> {
        panic!("an overflow in its own code")
    }
}

impl Job for Brittle {
    const KIND: &'static str = "brittle";
    type Output = u8;
}

async fn args_whose_decoding_panics_fail_the_attempt_and_not_the_worker(tenure: Tenure) {
    let running = worker(&tenure).handle(|_: Brittle, _| async { Ok(1) }).start().await.unwrap();
    let handle = tenure.enqueue(Brittle {}).max_attempts(1).await.unwrap();
    let (reason, attempt) = death(&tenure, &handle).await;
    assert!(reason.contains("panicked: an overflow in its own code"), "{reason}");
    assert_eq!(attempt, 1);
    still_works(&tenure, running).await;
}

#[derive(Serialize, Deserialize)]
struct Long {}

impl Job for Long {
    const KIND: &'static str = "long";
    type Output = String;
}

async fn a_result_above_the_limit_is_buried_naming_its_size(tenure: Tenure) {
    let calls = Arc::new(AtomicUsize::new(0));
    let called = Arc::clone(&calls);
    let handler = move |_: Long, _| {
        called.fetch_add(1, Ordering::SeqCst);
        async { Ok("x".repeat(300_000)) }
    };
    let running = worker(&tenure).handle(handler).start().await.unwrap();
    let handle = tenure.enqueue(Long {}).await.unwrap();
    let (reason, _) = death(&tenure, &handle).await;
    assert!(reason.contains("300002") && reason.contains("262144"), "{reason}");
    assert_eq!(calls.load(Ordering::SeqCst), 1, "it would be as long again");
    still_works(&tenure, running).await;
}

#[derive(Serialize, Deserialize)]
struct Odd {}

impl Job for Odd {
    const KIND: &'static str = "odd";
    type Output = BTreeMap<(u8, u8), u8>;
}

async fn a_result_that_is_no_json_is_buried_with_the_reason(tenure: Tenure) {
    let handler = |_: Odd, _| async { Ok(BTreeMap::from([((1, 2), 3)])) };
    let running = worker(&tenure).handle(handler).start().await.unwrap();
    let handle = tenure.enqueue(Odd {}).await.unwrap();
    let (reason, attempt) = death(&tenure, &handle).await;
    assert!(reason.contains("it ran, but ") && reason.contains("key must be a string"), "{reason}");
    assert_eq!(attempt, 1);
    still_works(&tenure, running).await;
}

/// Notifies when it is dropped.
struct Dropped(Arc<Notify>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

#[track_caller]
fn tells_of_max_runtime(reason: &str, limit: Duration) {
    let told = format!(", because its max_runtime of {limit:?} was ");
    assert!(reason.starts_with("it was stopped after ") && reason.contains(&told), "{reason}");
}

async fn an_async_handler_that_hangs_is_stopped_at_its_max_runtime(tenure: Tenure) {
    let dropped = Arc::new(Notify::new());
    let tell = Arc::clone(&dropped);
    let handler = move |_: Bad, _| {
        let guard = Dropped(Arc::clone(&tell));
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    };
    let running = worker(&tenure).concurrency(1).handle(handler).start().await.unwrap();
    let limit = Duration::from_millis(400);
    let begun = monotonic();
    let job = tenure.enqueue(bad("hung")).max_runtime(limit).max_attempts(1);
    let handle = job.await.unwrap();
    let (reason, _) = death(&tenure, &handle).await;
    tells_of_max_runtime(&reason, limit);
    assert!(begun.elapsed() >= limit / 2, "a little before the store would take it back");
    dropped.notified().await;
    still_works(&tenure, running).await;
}

async fn a_blocking_handler_that_hangs_loses_its_attempt_at_its_max_runtime(tenure: Tenure) {
    let (release, hung) = mpsc::channel::<()>();
    let hung = Mutex::new(hung);
    let handler = move |_: BadAndBlocking, _: Context| {
        // The handler checks nothing, and returns only when it is released.
        let _ = hung.lock().unwrap().recv();
        Ok(1)
    };
    let running = worker(&tenure).concurrency(2).handle_blocking(handler).start().await.unwrap();
    let limit = Duration::from_millis(400);
    let job = tenure.enqueue(BadAndBlocking {}).max_runtime(limit).max_attempts(1);
    let handle = job.await.unwrap();
    let (reason, _) = death(&tenure, &handle).await;
    tells_of_max_runtime(&reason, limit);
    // Its thread is lost for as long as it hangs. The other jobs continue.
    assert_eq!(tenure.enqueue(Good {}).await.unwrap().wait().await.unwrap(), 1);
    drop(release);
    still_works(&tenure, running).await;
    assert_eq!(record(&tenure, &handle).await.state, State::Dead, "what it returned is not heard");
}

/// The store also takes back a job that runs too long, and counts a crash; the worker must be
/// first.
async fn a_short_max_runtime_is_a_failed_attempt_and_never_a_crash(tenure: Tenure) {
    let handler = |_: Bad, _| std::future::pending();
    let start = async || worker(&tenure).concurrency(8).handle(handler).start().await.unwrap();
    let (first, second) = (start().await, start().await);
    // Other jobs come and go all the time, so that both workers claim and sweep again and again.
    let busy = tokio::spawn({
        let tenure = tenure.clone();
        async move {
            loop {
                tenure.enqueue(Good {}).await.unwrap().wait().await.unwrap();
            }
        }
    });
    for limit in [1_500, 3_000] {
        let limit = Duration::from_millis(limit);
        let job = || tenure.enqueue(bad("hung")).max_runtime(limit).max_attempts(1);
        for handle in tenure.enqueue_many((0..8).map(|_| job())).await.unwrap() {
            assert!(handle.wait().await.is_err());
            let found = tenure.job(handle.id()).await.unwrap().unwrap();
            assert_eq!(found.job.crashes, 0, "{limit:?}: {found:?}");
            tells_of_max_runtime(found.job.reason.as_deref().unwrap(), limit);
        }
    }
    busy.abort();
    assert_eq!(first.shut_down().await, Exit::Shutdown);
    still_works(&tenure, second).await;
}

async fn a_running_job_that_is_cancelled_stops(tenure: Tenure) {
    let (started, dropped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begin, end) = (Arc::clone(&started), Arc::clone(&dropped));
    let handler = move |_: Bad, _| {
        let (begin, guard) = (Arc::clone(&begin), Dropped(Arc::clone(&end)));
        async move {
            let _guard = guard;
            begin.notify_one();
            std::future::pending().await
        }
    };
    let (stop, stopped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (begin, end) = (Arc::clone(&stop), Arc::clone(&stopped));
    let blocking = move |_: BadAndBlocking, cx: Context| {
        begin.notify_one();
        cx.block_on(cx.cancelled());
        assert!(cx.is_cancelled() && cx.lease_lost());
        end.notify_one();
        Ok(1)
    };
    let running = worker(&tenure).handle(handler).handle_blocking(blocking).start().await.unwrap();
    let handle = tenure.enqueue(bad("hung")).await.unwrap();
    started.notified().await;
    handle.cancel().await.unwrap();
    let begun = monotonic();
    dropped.notified().await;
    println!("a cancelled handler was dropped after {:.0?}, with a lease of 2 s", begun.elapsed());
    let handle = tenure.enqueue(BadAndBlocking {}).await.unwrap();
    stop.notified().await;
    handle.cancel().await.unwrap();
    stopped.notified().await;
    still_works(&tenure, running).await;
    assert_eq!(
        record(&tenure, &handle).await.state,
        State::Cancelled,
        "what it returned is not heard"
    );
}

async fn a_job_that_is_left_when_the_worker_ends_is_given_back(tenure: Tenure) {
    let started = Arc::new(Notify::new());
    let begin = Arc::clone(&started);
    let handler = move |_: Bad, _| {
        begin.notify_one();
        std::future::pending()
    };
    let running = worker(&tenure).handle(handler).start().await.unwrap();
    let handle = tenure.enqueue(bad("hung")).await.unwrap();
    started.notified().await;
    assert_eq!(running.shut_down().await, Exit::Shutdown);
    let found = tenure.job(handle.id()).await.unwrap().unwrap();
    assert_eq!((found.job.state, found.job.attempt), (State::Queued, 0), "{found:?}");
    assert_eq!(found.timeline.last().unwrap().verb, Verb::Release);
}

async fn a_step_that_its_handler_gave_up_is_tried_again_under_its_name(tenure: Tenure) {
    let handler = |_: Bad, cx: Context| async move {
        let limit = Duration::from_millis(20);
        for _ in 0..2 {
            let hangs = cx.step("slow", std::future::pending::<Result<u8, Fault>>);
            assert!(tokio::time::timeout(limit, hangs).await.is_err(), "it hangs");
        }
        let output = cx.step("slow", || async { Ok(7) }).await?;
        assert!(cx.step("slow", || async { Ok(8) }).await.is_err(), "now the name is used up");
        Ok(output)
    };
    let running = worker(&tenure).handle(handler).start().await.unwrap();
    let handle = tenure.enqueue(bad("slow")).max_attempts(1).await.unwrap();
    assert_eq!(handle.wait().await.unwrap(), 7);
    still_works(&tenure, running).await;
}

/// The step's future is dropped right after it has sent its result to the store.
async fn a_step_that_was_remembered_before_it_was_dropped_is_not_done_again(tenure: Tenure) {
    let handler = |_: Bad, cx: Context| async move {
        let mut step = Box::pin(cx.step("once", || async { Ok(7) }));
        let pending =
            std::future::poll_fn(|task| Poll::Ready(step.as_mut().poll(task).is_pending()));
        assert!(pending.await, "the store has not answered yet");
        drop(step);
        cx.step("once", || async { panic!("it was done") }).await
    };
    let running = worker(&tenure).handle(handler).start().await.unwrap();
    let handle = tenure.enqueue(bad("dropped")).max_attempts(1).await.unwrap();
    assert_eq!(handle.wait().await.unwrap(), 7);
    still_works(&tenure, running).await;
}

/// Only the next attempt's policy decides whether the effect may be sent again.
async fn an_effect_that_its_handler_gave_up_is_in_doubt_in_the_next_attempt(tenure: Tenure) {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let sending = Arc::clone(&sent);
    let handler = move |_: Bad, cx: Context| {
        let sent = Arc::clone(&sending);
        async move {
            let effect = || {
                cx.effect("charge", |_| async {
                    sent.lock().unwrap().push(cx.attempt());
                    if cx.attempt() == 1 {
                        std::future::pending::<()>().await;
                    }
                    Ok(7)
                })
                .resend()
            };
            if cx.attempt() == 1 {
                let limit = Duration::from_millis(200);
                let hangs = tokio::time::timeout(limit, effect().into_future()).await;
                assert!(hangs.is_err(), "it hangs");
            }
            effect().await
        }
    };
    let running = worker(&tenure).handle(handler).start().await.unwrap();
    let retry = RetryPolicy::Fixed { ms: 1 };
    let handle = tenure.enqueue(bad("dropped")).retry(retry).max_attempts(2).await.unwrap();
    assert_eq!(handle.wait().await.unwrap(), 7);
    assert_eq!(*sent.lock().unwrap(), [1, 2], "once in each attempt");
    still_works(&tenure, running).await;
}
