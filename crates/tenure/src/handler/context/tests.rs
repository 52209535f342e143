//! What a context asks of its store, how long it repeats a call, and what it does not begin while
//! it is uncertain whether its worker holds the job. Where it matters, the store's answers are made
//! up. Where a test waits, tokio's clock is paused, so that pauses take no real time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::Poll;

use super::*;
use crate::Worker;
use crate::desk::Returned;
use crate::job::{Invalid, State};
use crate::lease::Reason;
use crate::lifecycle::Verb;
use crate::store::{Claim, Error, LEASE_LIMIT, Result as StoreResult};

/// A handler's context on a store in memory, the desk of its worker, and the reported events.
pub(super) struct Scene {
    pub(super) cx: Context,
    pub(super) desk: Arc<Desk>,
    told: Arc<Mutex<Vec<Fact>>>,
}

impl Scene {
    pub(super) async fn new() -> Scene {
        Scene::trusted_for(LEASE_LIMIT).await
    }

    /// The store grants a long lease. The worker trusts it as if it had only this length.
    async fn trusted_for(length: Duration) -> Scene {
        let told: Arc<Mutex<Vec<Fact>>> = Arc::default();
        let hears = Arc::clone(&told);
        let tenure = Tenure::options()
            .observe(move |event| hears.lock().unwrap().push(event.fact.clone()))
            .open("sqlite::memory:")
            .await
            .unwrap();
        tenure.enqueue_kind("work", &()).await.unwrap();
        let worker = Worker::new(&tenure).handle_any(|_, _| async { Ok(None) });
        let plan = worker.plan().unwrap();
        let ask = Claim {
            queues: plan.queues.clone(),
            ..Claim::new(plan.worker.clone(), 1, LEASE_LIMIT)
        };
        let claimed = tenure.with_store(move |store| store.claim(&ask)).await.unwrap();
        let attempt = claimed.attempts.into_iter().next().unwrap();
        let desk = Arc::new(Desk::new(1));
        let hold = desk.hold(&attempt, Moment::now(), length).unwrap();
        let cx = Context::new(&worker.surroundings(&plan, &desk), attempt, hold);
        told.lock().unwrap().clear();
        Scene { cx, desk, told }
    }

    /// The events that were reported since the last call.
    pub(super) fn told(&self) -> Vec<Fact> {
        std::mem::take(&mut *self.told.lock().unwrap())
    }

    /// Repeats a call to a store that gives these answers, and checks that the store was called
    /// once for each of them. Returns the result, and how long that took.
    async fn insist(&self, answers: Vec<StoreResult<u8>>) -> (Result<u8, Fault>, Duration) {
        let answers = RefCell::new(VecDeque::from(answers));
        let began = tokio::time::Instant::now();
        let ask = || {
            let answer = answers.borrow_mut().pop_front();
            async { answer.expect("it was asked once too often") }
        };
        let answer = self.cx.insist(ask).await;
        assert_eq!(answers.borrow().len(), 0, "it was not asked often enough");
        (answer, began.elapsed())
    }
}

pub(super) fn busy() -> Error {
    Error::Busy { doing: "write", target: "the store".into(), source: "locked".into() }
}

pub(super) fn unavailable() -> Error {
    Error::Unavailable {
        doing: "write",
        target: "the store".into(),
        problem: "it is out of reach".into(),
        next: "look for it".into(),
        source: "no route".into(),
    }
}

pub(super) fn invalid() -> Error {
    Invalid::Batch { size: 1_001 }.into()
}

fn forbidden() -> Error {
    Error::Forbidden {
        target: "the store".into(),
        problem: "no right".into(),
        next: "grant it".into(),
    }
}

/// This many failures, and then an answer.
pub(super) fn after<T>(failures: usize, error: fn() -> Error, answer: T) -> Vec<StoreResult<T>> {
    let failures = std::iter::repeat_with(|| Err(error())).take(failures);
    failures.chain([Ok(answer)]).collect()
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_out_of_reach_is_asked_again_until_it_answers() {
    let scene = Scene::new().await;
    let (answer, took) = scene.insist(after(30, unavailable, 7)).await;
    assert_eq!(answer, Ok(7));
    // 20 ms, then twice as long each time, up to a second.
    let expected = Duration::from_millis(20 + 40 + 80 + 160 + 320 + 640 + 24 * 1_000);
    assert!(took >= expected && took < expected * 2, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_row_that_stays_locked_is_asked_for_ten_times() {
    let scene = Scene::new().await;
    assert_eq!(scene.insist(after(9, busy, 7)).await.0, Ok(7));
    let (answer, _) = scene.insist((0..10).map(|_| Err(busy())).collect()).await;
    assert!(matches!(&answer, Err(Fault::Retry { error }) if error.contains("is busy")));
}

#[tokio::test]
async fn what_will_not_pass_is_not_asked_again() {
    let scene = Scene::new().await;
    let (answer, _) = scene.insist(vec![Err(invalid())]).await;
    assert!(matches!(answer, Err(Fault::Fatal { .. })), "{answer:?}");
    let engine = Error::Engine { doing: "write", source: "disk on fire".into() };
    let (answer, _) = scene.insist(vec![Err(engine)]).await;
    assert!(matches!(answer, Err(Fault::Retry { .. })), "{answer:?}");
    assert_eq!((scene.told(), scene.desk.has_failed()), (vec![], false));
    assert!(!scene.cx.is_cancelled());
    scene.cx.lost();
    let (answer, _) = scene.insist(vec![Err(unavailable())]).await;
    assert!(matches!(answer, Err(Fault::Retry { .. })), "the job is not ours: {answer:?}");
}

#[tokio::test]
async fn a_right_that_a_handler_lacks_ends_its_worker_and_gives_the_job_back() {
    let scene = Scene::new().await;
    let (answer, _) = scene.insist(vec![Err(forbidden())]).await;
    assert!(matches!(answer, Err(Fault::Retry { .. })), "{answer:?}");
    assert_eq!(scene.told(), [Fact::StoreForbidden { error: forbidden().to_string() }]);
    assert!(scene.desk.has_failed());
    assert!(scene.cx.is_cancelled() && !scene.cx.lease_lost(), "it stops, and is given back");
}

#[tokio::test]
async fn nothing_is_begun_by_a_handler_whose_job_is_lost() {
    let scene = Scene::new().await;
    scene.cx.lost();
    assert!(scene.cx.is_cancelled() && scene.cx.lease_lost());
    let is_begun = Cell::new(false);
    let step = scene.cx.step("load", || async {
        is_begun.set(true);
        Ok(())
    });
    assert!(step.await.is_err() && !is_begun.get());
    // These two calls fail without asking the store, which would still accept them.
    assert!(scene.cx.assert_held().await.is_err());
    assert!(scene.cx.progress(0.5, "half").await.is_err());
    let found = scene.cx.tenure().job(scene.cx.job()).await.unwrap().unwrap();
    assert_eq!((found.job.state, found.job.progress), (State::Running, None));
}

#[tokio::test]
async fn a_handler_waits_with_what_it_begins_until_its_lease_is_certain_again() {
    let scene = Scene::trusted_for(Duration::ZERO).await;
    let is_begun = Cell::new(false);
    let mut step = Box::pin(scene.cx.step("load", || async {
        is_begun.set(true);
        Ok(7)
    }));
    let waits = std::future::poll_fn(|task| Poll::Ready(step.as_mut().poll(task).is_pending()));
    assert!(waits.await && !is_begun.get());
    let fences = [scene.cx.fence()];
    scene.desk.renewed(&fences, &fences, Moment::now(), LEASE_LIMIT);
    assert_eq!(step.await, Ok(7));
}

#[tokio::test]
async fn a_lease_that_was_over_for_a_moment_is_no_fence_though_nobody_took_the_job() {
    let scene = Scene::trusted_for(Duration::ZERO).await;
    let begun = Moment::now();
    while Moment::now().since(begun) < Duration::from_millis(20) {
        tokio::task::yield_now().await;
    }
    let refused = scene.cx.assert_held().await;
    assert!(
        matches!(&refused, Err(Fault::Retry { error }) if error.contains("the lease was over"))
    );
    let token = scene.cx.token();
    let (verb, state, reason) = (Verb::Renew, State::Running, Reason::LeaseExpired);
    let told = scene.told();
    let [Fact::StaleWriteBlocked { ran_ms, .. }] = &told[..] else { panic!("{told:?}") };
    assert!(*ran_ms >= 20, "it was begun 20 ms before: {ran_ms}");
    let (stale_token, current_token, ran_ms) = (token, token, *ran_ms);
    let expected =
        Fact::StaleWriteBlocked { verb, stale_token, current_token, reason, state, ran_ms };
    assert_eq!(told, [expected]);
}

#[tokio::test]
async fn progress_that_is_told_again_within_a_quarter_of_a_second_is_not_written() {
    let scene = Scene::new().await;
    let Scene { cx, .. } = &scene;
    let kept = async || {
        let found = cx.tenure().job(cx.job()).await.unwrap().unwrap().job.progress;
        found.map(|progress| progress.permille())
    };
    let last_told_at = |moment| *cx.0.progress_told.lock().unwrap() = Some(moment);
    let before = Moment::now();
    cx.progress(0.1, "").await.unwrap();
    assert_eq!(kept().await, Some(100));
    assert!(cx.0.progress_told.lock().unwrap().is_some_and(|told| told >= before));
    // A time in the future: so the pause is not over, however slow this machine is.
    last_told_at(Moment::now() + LEASE_LIMIT);
    cx.progress(0.2, "").await.unwrap();
    assert_eq!(kept().await, Some(100), "too soon");
    cx.progress(1.0, "").await.unwrap();
    assert_eq!(kept().await, Some(1_000), "the end is always written");
    last_told_at(Moment::default());
    cx.progress(0.3, "").await.unwrap();
    assert_eq!(kept().await, Some(300), "that was long ago");
}

#[tokio::test]
async fn an_attempt_is_over_for_its_worker_as_soon_as_its_handler_has_committed() {
    let ended = |scene: &Scene| {
        let mut ended = Vec::new();
        scene.desk.take(&mut ended, Moment::now());
        ended.into_iter().map(|ended| ended.returned).collect::<Vec<_>>()
    };
    let scene = Scene::new().await;
    assert_eq!((scene.cx.committed(), ended(&scene)), (None, vec![]));
    scene.cx.set_committed(Committed::Perhaps);
    assert_eq!(scene.cx.committed(), Some(Committed::Perhaps));
    assert_eq!(ended(&scene), [], "its handler has yet to return");
    scene.cx.set_committed(Committed::Yes);
    assert_eq!(scene.cx.committed(), Some(Committed::Yes));
    assert_eq!(ended(&scene), [Returned::Committed]);
}
