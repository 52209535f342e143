//! Attempts that are claimed ahead of the free slots, and wait on the desk.

use super::line::{Scene, done, work};
use super::*;

/// A worker with two slots that has learnt that its jobs are quick. It runs the third and the
/// fourth of these jobs. Two more are claimed and wait on the desk.
fn ahead(jobs: usize) -> Scene {
    let mut scene = Scene::new(2, false, &vec![work(); jobs]);
    assert_eq!(scene.rest(at(0)).1, ["claim"], "nothing is known about them");
    assert_eq!(scene.started(), 2);
    for n in 0..2 {
        scene.desk.returned(scene.fence(n), done(), at(1));
    }
    assert_eq!(scene.rest(at(1)).1, ["settle_and_claim", "claim"]);
    assert_eq!(scene.line.asked.iter().map(|ask| ask.n).collect::<Vec<_>>(), [2, 2, 2]);
    assert_eq!(scene.started(), 4);
    scene
}

#[test]
fn an_attempt_that_waits_begins_as_soon_as_a_slot_is_free() {
    let scene = ahead(100);
    let (first, second) = (scene.fence(2), scene.fence(3));
    let (_, next) = scene.desk.returned_for_next(first, done(), at(3)).unwrap();
    let (_, last) = scene.desk.returned_for_next(second, done(), at(3)).unwrap();
    assert!(next.fence.job < last.fence.job, "in the order in which they were due");
    assert!(scene.desk.returned_for_next(next.fence, done(), at(3)).is_none(), "none is left");
    assert_eq!(scene.desk.take(&mut Vec::new(), at(3)).free, 1);
}

#[test]
fn the_dispatcher_begins_what_waits_if_a_slot_is_free() {
    let mut scene = ahead(100);
    scene.desk.returned(scene.fence(2), done(), at(3));
    scene.step(at(3));
    assert!(scene.started() > 4);
}

#[test]
fn attempts_that_wait_too_long_are_given_back_and_cost_no_attempt() {
    let mut scene = ahead(8);
    let (NextStep::At(first), _) = scene.rest(at(3)) else { panic!() };
    assert!(first <= at(51));
    let (_, calls) = scene.rest(at(53));
    assert_eq!(calls, ["settle"], "there is no slot to claim for");
    assert!(scene.was_told("job_released"));
    assert_eq!(scene.running_and_queued(), (2, vec![0; 4]));
    scene.desk.returned(scene.fence(2), done(), at(60));
    scene.rest(at(60));
    assert_eq!(scene.line.asked.last().unwrap().n, 1, "and for a while it is cautious");
}

#[test]
fn attempts_that_wait_when_the_worker_shuts_down_are_given_back_at_once() {
    let mut scene = ahead(8);
    scene.desk.advance(Stage::Finishing);
    assert_eq!(scene.rest(at(3)).1, ["settle"]);
    assert_eq!(scene.running_and_queued(), (2, vec![0; 4]));
    assert!(scene.desk.returned_for_next(scene.fence(2), done(), at(4)).is_none());
}

#[test]
fn attempts_that_may_not_wait_get_the_first_slots() {
    let last = work().max_attempts(std::num::NonZeroU16::MIN);
    let mut scene = Scene::new(2, false, &[work(), work(), last]);
    let ask = Claim { n: 3, ..scene.dispatcher.ask.clone() };
    let attempts = scene.line.store.claim(&ask).unwrap().attempts;
    let jobs: Vec<JobId> = attempts.iter().map(|attempt| attempt.lease.fence().job).collect();
    scene.dispatcher.start(attempts, at(0));
    assert_eq!([0, 1].map(|n| scene.fence(n).job), [jobs[2], jobs[0]]);
    let (_, next) = scene.desk.returned_for_next(scene.fence(0), done(), at(1)).unwrap();
    assert_eq!(next.fence.job, jobs[1]);
}

#[test]
fn attempts_that_may_not_wait_are_given_back_at_once_if_there_is_no_slot() {
    let last = work().max_attempts(std::num::NonZeroU16::MIN);
    let mut scene = Scene::new(1, false, &[work(), last]);
    let ask = Claim { n: 2, ..scene.dispatcher.ask.clone() };
    let attempts = scene.line.store.claim(&ask).unwrap().attempts;
    scene.dispatcher.start(attempts, at(0));
    scene.rest(at(0));
    // The last attempt began, and the other job waits.
    assert_eq!((scene.started(), scene.running_and_queued()), (1, (2, vec![])));

    let mut scene = Scene::new(1, false, &[]);
    let last = work().max_attempts(std::num::NonZeroU16::MIN);
    scene.line.store.enqueue(&[last.clone(), last]).unwrap();
    let attempts = scene.line.store.claim(&ask).unwrap().attempts;
    scene.dispatcher.start(attempts, at(0));
    assert_eq!(scene.rest(at(0)).1, ["settle"]);
    assert_eq!((scene.started(), scene.running_and_queued()), (1, (1, vec![0])));
}

#[test]
fn a_worker_that_drains_ends_after_what_waits_has_run() {
    let mut scene = Scene::new(1, true, &vec![work(); 20]);
    let mut now = 0;
    let mut ended = 0;
    while scene.rest(at(now)).0 != NextStep::Done {
        now += 1;
        while ended < scene.started() {
            scene.desk.returned(scene.fence(ended), done(), at(now));
            ended += 1;
        }
        assert!(now < 1_000);
    }
    assert_eq!((ended, scene.dispatcher.exit()), (20, Some(Exit::Drained)));
    assert!(scene.line.asked.len() < 20, "fewer claims than jobs");
}

#[test]
fn a_job_that_is_lost_while_it_waits_does_not_begin() {
    let scene = ahead(100);
    let waiting = scene.desk.to_renew(at(3), at(3)).into_iter().map(|hold| hold.fence);
    let waiting: Vec<Fence> =
        waiting.filter(|fence| *fence != scene.fence(2) && *fence != scene.fence(3)).collect();
    assert_eq!(waiting.len(), 2);
    scene.desk.lose(waiting[0], Cause::Lost);
    let (_, next) = scene.desk.returned_for_next(scene.fence(2), done(), at(3)).unwrap();
    assert_eq!(next.fence, waiting[1]);
}

#[test]
fn an_attempt_that_ends_waits_a_moment_for_others_and_is_settled_with_them() {
    let mut scene = ahead(100);
    scene.desk.returned(scene.fence(2), done(), at(1));
    assert_eq!(scene.rest(at(1)), (NextStep::At(at(2)), vec![]), "the last answer came just now");
    assert_eq!(scene.rest(at(2)).1[0], "settle_and_claim");

    let mut scene = ahead(100);
    for n in 2..4 {
        scene.desk.returned(scene.fence(n), done(), at(1));
    }
    assert_eq!(scene.rest(at(1)).1[0], "settle_and_claim", "these are enough");
}
