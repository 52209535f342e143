//! Writes the outcome of an effect to a store whose answers are made up. Where a test waits,
//! tokio's clock is paused, so that pauses take no real time.

use std::cell::RefCell;
use std::collections::VecDeque;

use super::super::tests::{Scene, after, busy, invalid, unavailable};
use super::*;
use crate::job::Json;
use crate::lease::{Stale, Token};
use crate::ledger::effect_name;
use crate::lifecycle::Verb;

/// Writes an outcome to a store that gives these answers, and checks that the store was called once
/// for each of them. Returns the reply to the handler, if there was one.
async fn write(scene: &Scene, answers: Vec<StoreResult<Answer>>) -> Option<Result<Answer, Fault>> {
    let answers = RefCell::new(VecDeque::from(answers));
    let (writing, told) = begun(scene);
    let ask = |_| {
        let answer = answers.borrow_mut().pop_front();
        async { answer.expect("it was asked once too often") }
    };
    writing.until_answered(ask).await;
    assert_eq!(answers.borrow().len(), 0, "it was not asked often enough");
    let nothing_is_left = scene.desk.outcome_answered(scene.cx.fence(), &charge()).is_none();
    assert!(nothing_is_left, "the settlement of the attempt still waits");
    told.await.ok()
}

fn begun(scene: &Scene) -> (Writing, oneshot::Receiver<Result<Answer, Fault>>) {
    let (tell, told) = oneshot::channel();
    let act = Act::Commit { result: Json::check("result", "7", 10).unwrap() };
    let entry = Entry { fence: scene.cx.fence(), name: charge(), act };
    (Writing::begin(scene.cx.clone(), entry, tell), told)
}

fn charge() -> Name {
    effect_name("charge").unwrap()
}

fn unrecorded(error: &str, given_up: bool) -> Fact {
    let (effect, verb) = (charge(), Verb::EffectCommit);
    Fact::EffectUnrecorded { effect, verb, given_up, error: error.to_owned() }
}

fn stale(scene: &Scene, state: State) -> Stale {
    let shown = scene.cx.fence();
    Stale::new(shown, Token(shown.token.0 + 1), state)
}

#[tokio::test(start_paused = true)]
async fn a_handler_waits_for_a_store_that_is_out_of_reach_and_hears_its_answer() {
    let scene = Scene::new().await;
    let began = tokio::time::Instant::now();
    let told = write(&scene, after(30, unavailable, Answer::Recorded)).await;
    assert_eq!(told, Some(Ok(Answer::Recorded)));
    assert_eq!(scene.told(), [unrecorded(&unavailable().to_string(), false)], "once");
    // 20 ms, then twice as long each time, up to a second.
    let expected = Duration::from_millis(20 + 40 + 80 + 160 + 320 + 640 + 24 * 1_000);
    let took = began.elapsed();
    assert!(took >= expected && took < expected * 2, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_handler_hears_of_a_row_that_stays_locked_and_its_outcome_is_written_all_the_same() {
    let scene = Scene::new().await;
    let told = write(&scene, after(9, busy, Answer::Recorded)).await;
    assert_eq!(told, Some(Ok(Answer::Recorded)));
    let told = write(&scene, after(10, busy, Answer::Recorded)).await;
    assert_eq!(told, Some(Err(busy().into())), "it may hold the lock itself");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_is_to_stop_does_not_wait_for_its_outcome() {
    let scene = Scene::new().await;
    scene.cx.lost();
    let told = write(&scene, after(1, unavailable, Answer::Recorded)).await;
    assert_eq!(told, Some(Err(unavailable().into())));
}

#[tokio::test]
async fn an_outcome_that_is_invalid_is_given_up_and_told() {
    let scene = Scene::new().await;
    let told = write(&scene, vec![Err(invalid())]).await;
    assert_eq!(told, Some(Err(Fault::fatal(invalid()))));
    let error = invalid().to_string();
    assert_eq!(scene.told(), [unrecorded(&error, false), unrecorded(&error, true)]);
}

#[tokio::test]
async fn an_outcome_is_given_up_when_its_worker_is_over() {
    let scene = Scene::new().await;
    scene.desk.advance(Stage::Over);
    assert_eq!(write(&scene, vec![Err(unavailable())]).await, None, "nothing is decided");
    let error = unavailable().to_string();
    assert_eq!(scene.told(), [unrecorded(&error, false), unrecorded(&error, true)]);
}

#[tokio::test]
async fn an_outcome_that_the_runtime_never_wrote_is_told() {
    let scene = Scene::new().await;
    drop(begun(&scene));
    assert_eq!(scene.told(), [unrecorded("the runtime ended first", true)]);
}

#[tokio::test]
async fn an_outcome_that_is_refused_stops_the_handler_and_is_told_once() {
    let scene = Scene::new().await;
    let refused = stale(&scene, State::Running);
    let waiting = scene.cx.tenure().0.waiters.wait_for(scene.cx.job());
    let told = write(&scene, vec![Ok(Answer::Stale(refused))]).await;
    assert!(!waiting.is_woken(), "it runs elsewhere");
    assert!(matches!(told, Some(Err(Fault::Retry { .. }))), "{told:?}");
    let told = scene.told();
    let [Fact::StaleWriteBlocked { verb, current_token, .. }] = told[..] else {
        panic!("{told:?}");
    };
    assert_eq!((verb, current_token), (Verb::EffectCommit, refused.current));
    assert!(scene.cx.lease_lost());
}

#[tokio::test]
async fn an_outcome_whose_job_was_cancelled_or_is_gone_is_told_as_lost() {
    let scene = Scene::new().await;
    let refused = stale(&scene, State::Cancelled);
    let waiting = scene.cx.tenure().0.waiters.wait_for(scene.cx.job());
    let told = write(&scene, vec![Ok(Answer::Stale(refused))]).await;
    assert!(waiting.is_woken(), "it has ended");
    assert!(matches!(told, Some(Err(Fault::Retry { .. }))), "{told:?}");
    let told = scene.told();
    assert_eq!(told[0], unrecorded("the job was cancelled", true));
    assert!(matches!(told[1..], [Fact::JobCancelled { .. }]), "{told:?}");

    let scene = Scene::new().await;
    let told = write(&scene, vec![Ok(Answer::NotFound)]).await;
    assert!(matches!(told, Some(Err(Fault::Retry { .. }))), "{told:?}");
    assert_eq!(scene.told(), [unrecorded("the store knows no such job any more", true)]);
    assert!(scene.cx.lease_lost());
}
