//! Calls that fail, and the events that report it.

use super::line::{Scene, done, work};
use super::*;
use crate::desk::Loss;
use crate::store::Lapse;

fn broken() -> Error {
    Error::Unavailable {
        doing: "claim",
        target: "the store".into(),
        problem: "the connection broke".into(),
        next: "try again".into(),
        source: "a fault".into(),
    }
}

fn forbidden() -> Error {
    Error::Forbidden {
        target: "the store".into(),
        problem: "a right is missing".into(),
        next: "grant it".into(),
    }
}

#[test]
fn a_worker_pauses_after_a_failed_call_and_ends_once_it_knows_what_came_of_its_claim() {
    let mut scene = Scene::new(2, true, &[]);
    scene.line.fails = Some(("claim", broken()));
    assert_eq!(scene.step(at(0)), (NextStep::At(at(50)), vec!["claim"]));
    scene.desk.poke();
    assert_eq!(scene.step(at(49)), (NextStep::At(at(50)), vec![]));
    // The store has been asked about the lost claim once, and knows no jobs of it. That is enough
    // to end, although the claim might still arrive.
    assert_eq!(scene.rest(at(50)), (NextStep::Done, vec!["held", "claim"]));
    assert_eq!(scene.dispatcher.exit(), Some(Exit::Drained));
}

#[test]
fn a_lost_claim_is_asked_about_for_as_long_as_one_lease() {
    let mut scene = Scene::new(2, false, &[]);
    let lost = Lost { request: 7, sent: at(0), ask: at(0), was_asked: false };
    scene.dispatcher.lost.push(lost);
    for (now, left) in [(0, 1), (30_000, 1), (31_000, 0)] {
        assert_eq!(scene.step(at(now)).1, ["held"]);
        assert_eq!(scene.dispatcher.lost.len(), left, "after {now} ms");
    }
}

#[test]
fn attempts_whose_rows_are_locked_do_not_make_the_others_wait() {
    let mut scene = Scene::new(2, false, &[work(), work()]);
    scene.rest(at(0));
    for n in [0, 1] {
        scene.desk.returned(scene.fence(n), done(), at(10));
    }
    let busy = Error::Busy { doing: "settle", target: "the store".into(), source: "wait".into() };
    scene.line.fails = Some(("settle_and_claim", busy));
    scene.line.locked = vec![scene.fence(0)];
    assert_eq!(scene.step(at(10)), (NextStep::At(at(60)), vec!["settle_and_claim"]));
    assert_eq!(scene.step(at(60)).1, ["renew", "settle", "held"]);
    assert_eq!((scene.state(0), scene.state(1)), (State::Running, State::Succeeded));
    scene.line.locked.clear();
    scene.rest(at(560));
    assert_eq!(scene.state(0), State::Succeeded);
}

#[test]
fn a_worker_that_may_not_claim_ends_with_an_error_and_leaves_nothing() {
    let mut scene = Scene::new(2, false, &[]);
    scene.line.fails = Some(("claim", forbidden()));
    assert_eq!(scene.step(at(0)), (NextStep::Again, vec!["claim"]));
    assert_eq!(scene.step(at(0)), (NextStep::Done, vec![]));
    assert_eq!(scene.dispatcher.exit(), Some(Exit::Error));
    assert!(scene.desk.leaves_nothing());
    assert!(scene.was_told("store_forbidden"));
}

#[test]
fn a_worker_that_may_not_give_back_its_jobs_ends_at_once_and_leaves_them() {
    let mut scene = Scene::new(2, false, &[work()]);
    scene.rest(at(0));
    scene.desk.advance(Stage::Releasing);
    scene.desk.returned(scene.fence(0), Returned::Settle(Outcome::Release), at(10));
    scene.line.fails = Some(("settle", forbidden()));
    assert_eq!(scene.step(at(10)), (NextStep::Done, vec!["settle"]));
    assert_eq!(scene.dispatcher.exit(), Some(Exit::Error));
    assert!(!scene.desk.leaves_nothing());
}

#[test]
fn a_worker_that_may_not_ask_what_its_handlers_committed_leaves_that_open() {
    for call in ["claim", "current"] {
        let mut scene = Scene::new(2, false, &[work()]);
        scene.rest(at(0));
        scene.desk.returned(scene.fence(0), Returned::PerhapsCommitted, at(10));
        scene.line.fails = Some((call, forbidden()));
        assert_eq!(scene.step(at(10)).1.last(), Some(&call));
        assert_eq!(scene.step(at(10)), (NextStep::Done, vec![]), "it asks only once");
        assert_eq!(scene.dispatcher.exit(), Some(Exit::Error));
        assert!(scene.was_told("store_forbidden"));
        assert!(!scene.desk.leaves_nothing(), "after {call}");
    }
}

#[test]
fn a_store_that_could_not_be_written_to_is_back_once_a_call_has_written() {
    let is_back = |scene: &mut Scene, now| {
        scene.desk.store_lost(Loss::Unwritable);
        scene.step(now);
        scene.was_told("store_back")
    };
    let mut scene = Scene::new(2, false, &[]);
    assert!(!is_back(&mut scene, at(0)), "it claimed nothing");
    let mut scene = Scene::new(2, false, &[work()]);
    assert!(is_back(&mut scene, at(0)), "it claimed");
    let claim = scene.dispatcher.ask.clone();
    scene.told.lock().unwrap().clear();
    scene.desk.returned(scene.fence(0), done(), at(10));
    assert!(is_back(&mut scene, at(10)), "it settled and claimed nothing");

    let mut scene = Scene::new(1, false, &[work(), work()]);
    scene.rest(at(0));
    let lost = Lost { request: 7, sent: at(5), ask: at(5), was_asked: false };
    scene.dispatcher.lost.push(lost);
    assert!(!is_back(&mut scene, at(5)), "it only asked");
    scene.desk.advance(Stage::Finishing);
    scene.desk.returned(scene.fence(0), done(), at(10));
    assert!(is_back(&mut scene, at(10)), "it settled without a claim");

    let mut scene = Scene::new(2, false, &[work()]);
    let attempt = scene.line.store.claim(&claim).unwrap().attempts.remove(0);
    let lapse =
        Lapse { about: attempt.about(), worker: claim.worker.clone(), became: State::Queued };
    let (cursor, next_due) = (Cursor::default(), None);
    let lapsed = vec![lapse];
    scene.line.answers.push_back(Claimed { attempts: vec![], lapsed, cursor, next_due });
    assert!(is_back(&mut scene, at(0)), "it took back a job of another worker");
}
