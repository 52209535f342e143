//! The dispatcher, stepped by hand.

use std::sync::Mutex;

use super::*;
use crate::clock::{Clock, Timestamp};
use crate::job::{Json, Limits, Name, NewJob, State};
use crate::lease::WorkerId;
use crate::lifecycle::Outcome;
use crate::store::sqlite::{Options, Sqlite};
use crate::telemetry::Observer;
use crate::worker::Renewer;
use crate::worker::desk::Returned;

/// Handlers that are begun and never return.
#[derive(Clone, Default)]
struct Begun(Arc<Mutex<Vec<Arc<Hold>>>>);

impl Crew for Begun {
    fn start(&mut self, _: Attempt, hold: Arc<Hold>) {
        self.0.lock().unwrap().push(hold);
    }
}

fn at(millis: u64) -> Moment {
    Moment::after_start(Duration::from_secs(1_000) + Duration::from_millis(millis))
}

/// A worker that has begun one job.
struct Bench {
    clock: Clock,
    store: Sqlite,
    desk: Arc<Desk>,
    dispatcher: Dispatcher<Begun>,
    renewer: Renewer,
    /// The renewer's connection.
    line: Sqlite,
    hold: Arc<Hold>,
}

impl Bench {
    fn new(drain: bool) -> Bench {
        let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
        let options = Options { clock: clock.clone(), limits: Limits::default() };
        let mut store = Sqlite::in_memory(&options).unwrap();
        let kind = Name::check("kind", "work").unwrap();
        let job = NewJob::new(kind, Json::check("args", "{}", 10).unwrap());
        store.enqueue(&[job]).unwrap();
        let plan = Arc::new(Plan {
            worker: WorkerId::unique(),
            queues: vec![Name::default_queue()],
            kinds: None,
            slots: 2,
            lease: Duration::from_secs(30),
            drain,
            observer: Observer::new(|_| ()),
        });
        let desk = Arc::new(Desk::new(plan.slots));
        let mut line = store.share().unwrap();
        let mut renewer = Renewer::new(Arc::clone(&plan), Arc::clone(&desk));
        renewer.step(&mut line, at(0));
        let begun = Begun::default();
        let mut dispatcher = Dispatcher::new(plan, Arc::clone(&desk), begun.clone(), at(0));
        dispatcher.step(&mut store, at(0));
        let hold = Arc::clone(&begun.0.lock().unwrap()[0]);
        Bench { clock, store, desk, dispatcher, renewer, line, hold }
    }

    /// Steps until it rests, and tells whether it has ended.
    fn ends(&mut self, now: Moment) -> bool {
        loop {
            match self.dispatcher.step(&mut self.store, now) {
                Next::Again => {}
                next => return next == Next::Done,
            }
        }
    }

    fn state(&mut self) -> State {
        self.store.job(self.hold.fence.job).unwrap().unwrap().job.state
    }
}

#[test]
fn nobody_ends_while_a_settlement_waits_for_the_renewal_of_its_job() {
    for drain in [true, false] {
        let mut bench = Bench::new(drain);
        if !drain {
            bench.desk.advance(Stage::Finishing);
        }
        let renewed = bench.desk.to_renew(at(5_000), at(6_000));
        let done = Returned::Settle(Outcome::Complete { result: None });
        bench.desk.returned(bench.hold.fence, done, at(6_001));
        assert!(!bench.ends(at(6_002)), "the renewal has not been answered yet");
        bench.desk.renewed(&renewed, at(6_000), Duration::from_secs(30));
        assert!(bench.ends(at(6_003)));
        assert_eq!(bench.state(), State::Succeeded);
    }
}

#[test]
fn who_ends_in_order_says_good_bye() {
    let mut bench = Bench::new(true);
    let done = Returned::Settle(Outcome::Complete { result: None });
    bench.desk.returned(bench.hold.fence, done, at(10));
    assert!(bench.ends(at(10)));
    assert_eq!(bench.dispatcher.exit(), Some(Exit::Success));
    assert_eq!(bench.renewer.step(&mut bench.line, at(11)), Next::Done);
    assert!(bench.store.workers().unwrap().is_empty());
}

#[test]
fn who_leaves_jobs_behind_says_nothing_so_that_others_notice() {
    let mut bench = Bench::new(false);
    // As if the dispatcher had given up, or panicked.
    bench.desk.advance(Stage::Over);
    assert_eq!(bench.renewer.step(&mut bench.line, at(11)), Next::Done);
    drop(bench.line);
    let mut lapsed = 0;
    for _ in 0..4 {
        bench.clock.advance(Duration::from_millis(400));
        lapsed += bench.store.vanished(10).unwrap().len();
    }
    assert_eq!(lapsed, 1, "within moments, whatever its lease");
}
