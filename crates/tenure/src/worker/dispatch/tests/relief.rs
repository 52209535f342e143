//! The second call of the store while one is under way.

use super::line::{Scene, done, work};
use super::*;
use crate::desk::Returned;
use crate::worker::relief::Relief;

/// A worker with four slots, all of them taken, and its relief, which makes a call for two ended
/// attempts.
struct Pair {
    scene: Scene,
    relief: Relief<Begun>,
}

impl Pair {
    fn new(jobs: usize) -> Pair {
        Pair::of(Scene::new(4, false, &vec![work(); jobs]))
    }

    fn of(mut scene: Scene) -> Pair {
        let plan = Plan {
            relief: 2,
            queues: scene.dispatcher.plan.queues.clone(),
            observer: scene.dispatcher.plan.observer.clone(),
            ..Plan::new(scene.dispatcher.plan.worker.clone())
        };
        // Nothing is claimed ahead, so that half of the slots is a batch.
        scene.desk.claim_ahead(Duration::ZERO);
        let crew = scene.dispatcher.crew.another();
        let relief = Relief::new(Arc::new(plan), Arc::clone(&scene.desk), crew);
        scene.rest(at(0));
        scene.line.asked.clear();
        Pair { scene, relief }
    }

    /// These attempts end, by the order in which they began.
    fn end(&self, ended: std::ops::Range<usize>) {
        for n in ended {
            self.scene.desk.returned(self.scene.fence(n), done(), at(1));
        }
    }

    /// One step of the relief: whether it was answered, and what it asked the store.
    fn relieve(&mut self, now: Moment) -> (bool, Vec<&'static str>) {
        let is_answered = self.relief.step(&mut self.scene.line, now);
        (is_answered, std::mem::take(&mut self.scene.line.calls))
    }
}

fn lost() -> Error {
    Error::Unavailable {
        doing: "call",
        target: "store".into(),
        problem: "the connection broke".into(),
        next: "try again".into(),
        source: "a fault".into(),
    }
}

#[test]
fn the_relief_settles_a_batch_and_claims_the_next_one() {
    let mut pair = Pair::new(10);
    pair.end(0..1);
    assert_eq!(pair.relieve(at(2)), (false, vec![]), "half of the slots are a batch");
    pair.end(1..3);
    assert_eq!(pair.relieve(at(2)), (true, vec!["settle_and_claim"]));
    assert_eq!([0, 1, 2].map(|n| pair.scene.state(n)), [State::Succeeded; 3]);
    assert_eq!(pair.scene.started(), 7);
    let asked = &pair.scene.line.asked[0];
    assert_eq!((asked.n, asked.suspects, asked.grace), (3, false, Duration::from_secs(30)));
    assert_eq!(asked.request, 2, "the dispatcher's had another number");
}

#[test]
fn the_relief_only_settles_if_there_is_no_room() {
    let mut pair = Pair::new(10);
    pair.end(0..2);
    // A call of the dispatcher that is under way has asked for these places.
    let places = pair.scene.desk.reserve(2);
    assert_eq!(pair.relieve(at(2)), (true, vec!["settle"]));
    assert!(pair.scene.was_told("job_succeeded"));
    let found = pair.scene.desk.take(&mut Vec::new(), at(2));
    assert_eq!((found.room, found.held), (0, 2), "what is settled is forgotten");
    drop(places);
    assert_eq!(pair.scene.desk.take(&mut Vec::new(), at(2)).room, 2);
}

#[test]
fn the_relief_forgets_a_lost_job_without_a_settlement() {
    let mut pair = Pair::new(10);
    pair.scene.desk.returned(pair.scene.fence(0), Returned::Lost, at(1));
    pair.end(1..2);
    assert_eq!(pair.relieve(at(2)), (true, vec!["settle_and_claim"]));
    assert_eq!([0, 1].map(|n| pair.scene.state(n)), [State::Running, State::Succeeded]);
    let held = pair.scene.desk.take(&mut Vec::new(), at(2)).held;
    assert_eq!(held, pair.scene.started() - 2);
}

#[test]
fn what_the_relief_could_not_finish_is_done_by_the_dispatcher() {
    let mut pair = Pair::new(10);
    pair.end(0..2);
    pair.scene.line.fails = Some(("settle_and_claim", lost()));
    assert_eq!(pair.relieve(at(2)), (false, vec!["settle_and_claim"]));
    // The claim whose answer was lost has reached the store.
    let ask = pair.scene.line.asked[0].clone();
    pair.scene.line.store.claim(&ask).unwrap();
    pair.end(2..4);
    assert_eq!(pair.relieve(at(2)), (false, vec![]), "it rests");
    let (_, calls) = pair.scene.rest(at(3));
    assert_eq!(calls[..2], ["settle", "held"]);
    assert_eq!([0, 1, 2, 3].map(|n| pair.scene.state(n)), [State::Succeeded; 4]);
    assert!(pair.scene.started() >= 6, "what the lost claim has leased");
    pair.end(4..6);
    assert!(pair.relieve(at(4)).0, "the store has answered the dispatcher since");
}

#[test]
fn a_call_that_did_nothing_leaves_no_claim_to_ask_about() {
    let mut pair = Pair::new(10);
    pair.end(0..2);
    let refused = Error::Forbidden { target: "store".into(), problem: "".into(), next: "".into() };
    assert!(refused.did_nothing());
    pair.scene.line.fails = Some(("settle_and_claim", refused));
    assert_eq!(pair.relieve(at(2)), (false, vec!["settle_and_claim"]));
    assert_eq!(pair.scene.rest(at(3)).1[0], "settle_and_claim");
}

#[test]
fn attempts_to_look_up_and_settlements_to_repeat_stay_for_the_dispatcher() {
    let mut pair = Pair::new(10);
    let unknown = pair.scene.fence(0);
    pair.scene.desk.returned(unknown, Returned::PerhapsCommitted, at(1));
    pair.end(1..2);
    assert_eq!(pair.relieve(at(2)), (true, vec!["settle_and_claim"]));
    assert_eq!(pair.scene.state(0), State::Running);
    assert!(pair.scene.rest(at(3)).1.contains(&"current"));

    let mut pair = Pair::new(10);
    pair.end(0..2);
    pair.scene.line.fails = Some(("settle_and_claim", lost()));
    pair.relieve(at(2));
    pair.scene.desk.call_ended(true);
    assert_eq!(pair.relieve(at(3)), (false, vec![]));
    assert_eq!([0, 1].map(|n| pair.scene.state(n)), [State::Running; 2]);
}

#[test]
fn a_worker_does_not_end_while_its_relief_has_a_call_under_way() {
    for stage in [Stage::Working, Stage::Finishing] {
        let scene = Scene::new(4, true, &vec![work(); 4]);
        let mut pair = Pair::of(scene);
        pair.end(0..4);
        let mut taken = Vec::new();
        assert_eq!(pair.scene.desk.take_relief(&mut taken, at(2)), Some(4));
        assert_eq!(taken.len(), 4);
        for ended in &taken {
            pair.scene.desk.forget(ended.fence());
        }
        pair.scene.desk.advance(stage);
        assert_ne!(pair.scene.rest(at(3)).0, NextStep::Done);
        pair.scene.desk.relieved(None);
        assert_eq!(pair.scene.rest(at(4)).0, NextStep::Done);
    }
}

#[test]
fn a_job_that_is_due_again_by_the_relief_is_found_before_a_draining_worker_ends() {
    let mut pair = Pair::of(Scene::new(4, true, &[work(), work()]));
    for n in 0..2 {
        let again = Outcome::Snooze { after: Duration::ZERO };
        pair.scene.desk.returned(pair.scene.fence(n), Returned::Settle(again), at(1));
    }
    // All places are reserved, as for a call of the dispatcher. So the relief claims nothing.
    let places = pair.scene.desk.reserve(4);
    assert_eq!(pair.relieve(at(2)), (true, vec!["settle"]));
    drop(places);
    assert_ne!(pair.scene.rest(at(3)).0, NextStep::Done);
    assert_eq!(pair.scene.started(), 4);
}

#[test]
fn the_relief_asks_for_the_queues_in_turn() {
    let mut pair = Pair::of(Scene::of_many_queues(false, &vec![work(); 12]));
    let mut asked = Vec::new();
    for n in 0..5 {
        pair.end(2 * n..2 * n + 2);
        assert!(pair.relieve(at(2)).0);
        asked.push(pair.scene.line.asked.pop().unwrap().queues[0].clone());
        pair.scene.rest(at(3));
    }
    let asked: Vec<_> = asked.iter().map(Name::as_str).collect();
    assert_eq!(asked, ["q1", "q33", "q65", "q97", "q1"]);
}

#[test]
fn the_relief_rests_until_there_is_a_batch_during_a_call_and_ends_with_the_worker() {
    let pair = Pair::new(10);
    let rests = |desk: &Arc<Desk>| {
        let desk = Arc::clone(desk);
        std::thread::spawn(move || desk.rest_of_relief())
    };
    let resting = rests(&pair.scene.desk);
    pair.end(0..2);
    pair.scene.desk.call_begins();
    assert!(resting.join().unwrap());
    pair.scene.desk.call_ended(true);
    let resting = rests(&pair.scene.desk);
    pair.scene.desk.call_begins();
    assert!(resting.join().unwrap());
    pair.scene.desk.call_ended(true);
    let resting = rests(&pair.scene.desk);
    pair.scene.desk.advance(Stage::Over);
    assert!(!resting.join().unwrap());
}

#[test]
fn the_relief_makes_no_call_if_all_that_ended_is_the_dispatchers() {
    let mut pair = Pair::new(10);
    for n in 0..2 {
        let unknown = pair.scene.fence(n);
        pair.scene.desk.returned(unknown, Returned::PerhapsCommitted, at(1));
    }
    assert!(pair.scene.desk.has_relief());
    assert_eq!(pair.relieve(at(2)), (false, vec![]));
    assert!(!pair.scene.desk.has_relief(), "it does not ask again and again");
    assert!(pair.scene.rest(at(3)).1.contains(&"current"), "the dispatcher looks them up");
}

#[test]
fn attempts_that_the_relief_brings_to_a_worker_that_gives_back_its_jobs_do_not_begin() {
    let mut pair = Pair::new(10);
    pair.end(0..2);
    let ask = Claim { n: 2, ..pair.scene.dispatcher.ask.clone() };
    let late = pair.scene.line.store.claim(&ask).unwrap().attempts;
    pair.scene.desk.advance(Stage::Releasing);
    pair.scene.dispatcher.start(late, at(2));
    assert_eq!(pair.scene.started(), 4);
    pair.scene.rest(at(3));
    // Two handlers are still to stop, and two jobs were done.
    assert_eq!(pair.scene.running_and_queued(), (2, vec![0; 6]), "and cost no attempt");
}
