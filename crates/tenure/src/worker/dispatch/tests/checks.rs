//! When the dispatcher checks the store, and for what.

use std::collections::BTreeSet;

use super::line::{Scene, done, work};
use super::*;

fn nothing(cursor: Cursor, next_due: Option<Duration>) -> Claimed {
    Claimed { attempts: vec![], lapsed: vec![], cursor, next_due }
}

/// How many queues were asked for since the last time.
fn queues_asked(scene: &mut Scene) -> usize {
    let asked = std::mem::take(&mut scene.line.asked);
    asked.into_iter().flat_map(|ask| ask.queues).collect::<BTreeSet<Name>>().len()
}

#[test]
fn a_worker_that_nothing_has_woken_checks_some_of_its_queues_at_a_time() {
    let mut scene = Scene::of_many_queues(false, &[]);
    assert_eq!(scene.rest(at(0)), (NextStep::At(at(10)), vec!["claim"; 4]), "it has just begun");
    assert_eq!(queues_asked(&mut scene), 100);
    assert_eq!(scene.step(at(4)), (NextStep::At(at(10)), vec![]), "a step that comes too early");
    assert_eq!(scene.step(at(10)), (NextStep::At(at(30)), vec!["claim"]), "a part of its round");
    assert_eq!(scene.step(at(15)), (NextStep::At(at(30)), vec![]));
    assert_eq!(scene.step(at(30)), (NextStep::At(at(70)), vec!["claim"]), "the next part");
    queues_asked(&mut scene);
    scene.desk.poke();
    assert_eq!(scene.rest(at(35)).1, ["claim"; 4], "the change may be anywhere");
    assert_eq!(queues_asked(&mut scene), 100);
    let NextStep::At(look) = scene.step(at(36)).0 else { panic!() };
    scene.desk.set_company(0);
    assert_eq!(scene.rest(look).1, ["claim"; 4], "nothing would wake it");
}

#[test]
fn a_worker_that_drains_checks_all_its_queues_at_once() {
    let mut scene = Scene::of_many_queues(true, &[work()]);
    let (NextStep::At(look), _) = scene.rest(at(0)) else { panic!() };
    assert_eq!(scene.rest(look).1, ["claim"; 4]);
    scene.desk.returned(scene.fence(0), done(), look);
    assert_eq!(scene.rest(look).0, NextStep::Done);
    assert_eq!(scene.dispatcher.exit(), Some(Exit::Drained));
}

#[cfg(feature = "drill")]
#[test]
fn a_worker_that_is_told_to_drain_ends_when_nothing_is_left() {
    let mut scene = Scene::of_many_queues(false, &[work()]);
    scene.rest(at(0));
    scene.desk.drain();
    let (NextStep::At(look), _) = scene.rest(at(1)) else { panic!() };
    assert_eq!(scene.rest(look).1, ["claim"; 4]);
    scene.desk.returned(scene.fence(0), done(), look);
    assert_eq!(scene.rest(look).0, NextStep::Done);
    assert_eq!(scene.dispatcher.exit(), Some(Exit::Drained));
}

#[test]
fn a_worker_that_is_woken_midway_begins_a_new_round_where_it_is() {
    let mut scene = Scene::new(2, false, &[]);
    let midway = |group| Cursor { group, round: Some(3) };
    scene.line.answers.extend([nothing(midway(7), None), nothing(midway(9), None)]);
    assert_eq!(scene.step(at(0)).0, NextStep::Again);
    assert_eq!(scene.step(at(0)).0, NextStep::Again);
    scene.desk.poke();
    scene.step(at(0));
    let cursors: Vec<Cursor> = scene.line.asked.iter().map(|ask| ask.cursor).collect();
    assert_eq!(cursors, [Cursor::default(), midway(7), Cursor::after(9)]);
}

#[test]
fn only_a_worker_that_comes_late_lets_others_keep_their_leases_for_longer() {
    let mut scene = Scene::new(2, false, &[]);
    let mut now = at(0);
    while now < at(20_000) {
        let (NextStep::At(look), calls) = scene.step(now) else { panic!() };
        assert_eq!(calls, ["claim"], "it comes when it said, and it checks");
        assert!(look > now);
        now = look;
    }
    assert!(scene.line.asked.iter().all(|ask| ask.grace.is_zero()), "it was never late");
    let half = Duration::from_secs(15);
    let (NextStep::At(look), _) = scene.step(now + half) else { panic!() };
    assert_eq!(scene.line.asked.last().unwrap().grace, Duration::ZERO);
    scene.step(look + half + Duration::from_millis(1));
    assert_eq!(scene.line.asked.last().unwrap().grace, Duration::from_secs(30));
}

#[test]
fn a_worker_is_there_when_a_handler_has_run_for_as_long_as_it_may() {
    let job = work().max_runtime(Duration::from_secs(2));
    let mut scene = Scene::new(1, false, &[job]);
    scene.rest(at(0));
    assert_eq!(scene.step(at(1_000)).0, NextStep::At(at(1_600)));
    // The last call was answered just now and the handler has not returned. But no other attempt is
    // open, so the ended one waits for no other.
    scene.dispatcher.answered = at(1_600);
    assert_eq!(scene.step(at(1_600)).1, ["settle"]);
    assert!(scene.was_told("retry_scheduled"));
}

#[test]
fn after_a_check_that_took_long_and_found_nothing_a_worker_rests_much_longer() {
    let millis = Duration::from_millis;
    // How long a check took, when the next job is due according to the store, and when the
    // dispatcher checks again.
    let cases = [
        (50, None, 10),
        (51, None, 1_020),
        (180, None, 3_600),
        (60_000, None, 30_000),
        (180, Some(2_000), 2_000),
        (180, Some(5), 5),
    ];
    for (took, due, expected) in cases {
        let mut scene = Scene::new(2, false, &[]);
        scene.line.answers.push_back(nothing(Cursor::default(), due.map(millis)));
        assert_eq!(scene.step(at(0)).1, ["claim"]);
        scene.dispatcher.took(millis(took), at(0));
        let NextStep::At(early) = scene.step(at(1)).0 else { panic!() };
        assert_eq!(early, at(expected), "a check of {took} ms, the next job due in {due:?} ms");
        assert_eq!(scene.step(at(expected)).1, ["claim"]);
    }
}

#[test]
fn a_long_call_that_found_work_and_a_worker_that_nothing_wakes_cause_no_long_rest() {
    let long = Duration::from_secs(1);
    let mut scene = Scene::new(2, false, &[work()]);
    scene.step(at(0));
    scene.dispatcher.took(long, at(0));
    assert_eq!(scene.dispatcher.look, at(5), "it has leased a job");
    let mut scene = Scene::new(2, false, &[]);
    scene.desk.set_company(0);
    scene.step(at(0));
    scene.dispatcher.took(long, at(0));
    assert_eq!(scene.dispatcher.look, at(10));
    let mut scene = Scene::new(2, false, &[]);
    scene.step(at(0));
    scene.dispatcher.took(long, at(0));
    scene.desk.poke();
    assert_eq!(scene.step(at(7)).1, ["claim"], "a change wakes it in its rest");
    scene.dispatcher.took(Duration::ZERO, at(7));
    assert!(scene.dispatcher.look < at(100), "the last check was quick");
}

#[test]
fn a_due_job_that_another_transaction_has_locked_is_not_tried_again_at_once() {
    let mut scene = Scene::new(2, false, &[work()]);
    scene.line.answers.push_back(nothing(Cursor::default(), Some(Duration::ZERO)));
    assert_eq!(scene.step(at(0)).0, NextStep::At(at(50)));
    // This claim leases one of two jobs that were due. The other one need not be locked: another
    // worker may have been faster. So the dispatcher tries again at once.
    let claim = Claim { n: 1, ..scene.dispatcher.ask.clone() };
    let attempts = scene.line.store.claim(&claim).unwrap().attempts;
    let claimed = Claimed { attempts, ..nothing(Cursor::default(), Some(Duration::ZERO)) };
    scene.line.answers.push_back(claimed);
    assert_eq!(scene.step(at(50)), (NextStep::At(at(50)), vec!["claim"]));
    assert_eq!(scene.dispatcher.crew.0.lock().unwrap().len(), 1);
}

#[test]
fn attempts_that_end_shortly_after_a_call_wait_a_moment_for_others() {
    let mut scene = Scene::new(2, false, &[work(), work()]);
    scene.rest(at(0));
    let soon = at(0) + Duration::from_micros(500);
    scene.desk.returned(scene.fence(0), done(), soon);
    assert_eq!(scene.step(soon), (NextStep::At(at(1)), vec![]));
    assert_eq!(scene.step(at(1)).1, ["settle_and_claim"]);
    assert_eq!(scene.state(0), State::Succeeded);
}

#[test]
fn an_attempt_whose_handler_did_not_commit_is_settled_at_once() {
    let mut scene = Scene::new(2, false, &[work()]);
    scene.rest(at(0));
    scene.desk.returned(scene.fence(0), Returned::PerhapsCommitted, at(10));
    assert_eq!(scene.step(at(10)), (NextStep::Again, vec!["claim", "current"]));
    scene.step(at(10));
    assert!(scene.was_told("retry_scheduled"));
}
