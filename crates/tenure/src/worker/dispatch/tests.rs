//! The dispatcher, stepped by hand.

mod ahead;
mod checks;
mod failures;
mod line;
mod relief;
use crate::store::Look;
use std::sync::Mutex;

use super::*;
use crate::clock::{Clock, Timestamp};
use crate::desk::{Cause, Returned};
use crate::inspect::Filter;
use crate::job::{JobId, Json, Limits, Name, NewJob, State, Tenant};
use crate::lease::{Fence, Token, WorkerId};
use crate::lifecycle::{Outcome, Verb};
use crate::record::About;
use crate::store::sqlite::{Sqlite, StoreOptions};
use crate::telemetry::{Event, Observer};
use crate::worker::Renewer;

/// Handlers that start and never return.
#[derive(Clone, Default)]
struct Begun(Arc<Mutex<Vec<Arc<Hold>>>>);

impl Crew for Begun {
    fn another(&mut self) -> Begun {
        self.clone()
    }

    fn start(&mut self, _: Attempt, hold: Arc<Hold>) {
        self.0.lock().unwrap().push(hold);
    }
}

fn at(millis: u64) -> Moment {
    Moment::after_start(Duration::from_secs(1_000) + Duration::from_millis(millis))
}

/// A worker that has started one job.
struct Bench {
    clock: Clock,
    store: Sqlite,
    desk: Arc<Desk>,
    dispatcher: Dispatcher<Begun>,
    renewer: Renewer,
    /// The renewer's connection.
    line: Sqlite,
    hold: Arc<Hold>,
    /// The names of the reported events.
    told: Arc<Mutex<Vec<&'static str>>>,
}

impl Bench {
    fn new(drain: bool) -> Bench {
        let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
        let options = StoreOptions { clock: clock.clone(), limits: Limits::default() };
        let mut store = Sqlite::in_memory(&options).unwrap();
        let kind = Name::check("kind", "work").unwrap();
        let job = NewJob::new(kind, Json::check("args", "{}", 10).unwrap());
        store.enqueue(&[job]).unwrap();
        let told: Arc<Mutex<Vec<&'static str>>> = Arc::default();
        let tell = Arc::clone(&told);
        let plan = Arc::new(Plan {
            slots: 2,
            drain,
            observer: Observer::new(move |event| tell.lock().unwrap().push(event.fact.name())),
            ..Plan::new(WorkerId::unique())
        });
        let desk = Arc::new(Desk::new(plan.slots));
        let mut line = store.share().unwrap();
        let mut renewer = Renewer::new(Arc::clone(&plan), Arc::clone(&desk));
        renewer.step(&mut line, at(0));
        let begun = Begun::default();
        let mut dispatcher = Dispatcher::new(plan, Arc::clone(&desk), begun.clone(), at(0));
        dispatcher.step(&mut store, at(0));
        let hold = Arc::clone(&begun.0.lock().unwrap()[0]);
        Bench { clock, store, desk, dispatcher, renewer, line, hold, told }
    }

    /// Steps until it rests, and returns whether it has ended.
    fn ends(&mut self, now: Moment) -> bool {
        loop {
            match self.dispatcher.step(&mut self.store, now) {
                NextStep::Again => {}
                next => return next == NextStep::Done,
            }
        }
    }

    fn state(&mut self) -> State {
        self.store.job(self.hold.fence.job).unwrap().unwrap().job.state
    }

    /// Sends a claim of `n` jobs that reaches the store, but whose answer is lost.
    fn lose_a_claim(&mut self, n: usize, sent: Moment) {
        let kind = Name::check("kind", "work").unwrap();
        let job = NewJob::new(kind, Json::check("args", "{}", 10).unwrap());
        self.store.enqueue(&vec![job; n]).unwrap();
        self.dispatcher.ask.request += 1;
        let request = self.dispatcher.ask.request;
        self.dispatcher.lost.push(Lost { request, sent, ask: sent, was_asked: false });
        let ask = Claim { n, ..self.dispatcher.ask.clone() };
        assert_eq!(self.store.claim(&ask).unwrap().attempts.len(), n);
    }

    fn running_and_queued(&mut self) -> (usize, Vec<u16>) {
        running_and_queued(&mut self.store)
    }
}

/// How many jobs are running, and the attempts that each queued one has used.
fn running_and_queued(store: &mut Sqlite) -> (usize, Vec<u16>) {
    let jobs = store.jobs(&Filter::default(), 100).unwrap().into_iter();
    let jobs = jobs.filter(|job| matches!(job.state, State::Running | State::Queued));
    let (running, queued): (Vec<_>, Vec<_>) = jobs.partition(|job| job.state == State::Running);
    (running.len(), queued.iter().map(|job| job.attempt).collect())
}

#[test]
fn a_claim_that_arrives_late_fills_the_free_slots_and_gives_the_rest_back() {
    let mut bench = Bench::new(false);
    bench.lose_a_claim(3, at(1));
    bench.dispatcher.step(&mut bench.store, at(2));
    assert_eq!(bench.dispatcher.crew.0.lock().unwrap().len(), 2, "it has two slots");
    assert_eq!(bench.running_and_queued(), (2, vec![0, 0]), "a release costs no attempt");
}

#[test]
fn a_worker_that_ends_gives_back_what_a_late_claim_got() {
    let mut bench = Bench::new(false);
    bench.lose_a_claim(1, at(1));
    bench.desk.advance(Stage::Finishing);
    bench.dispatcher.step(&mut bench.store, at(2));
    assert_eq!(bench.dispatcher.crew.0.lock().unwrap().len(), 1, "it begins nothing more");
    assert_eq!(bench.running_and_queued(), (1, vec![0]));
}

#[test]
fn a_worker_that_holds_nothing_does_not_wait_long_for_the_answer_to_a_claim() {
    let mut bench = Bench::new(false);
    let done = Returned::Settle(Outcome::Complete { result: None });
    bench.desk.returned(bench.hold.fence, done, at(10));
    assert!(!bench.ends(at(10)));
    // The answer to claim 7 was lost. The dispatcher asks the store about this claim only at 60 s,
    // so until then it does not know which jobs the claim leased.
    let lost = Lost { request: 7, sent: at(11), ask: at(60_000), was_asked: false };
    bench.dispatcher.lost.push(lost);
    bench.desk.advance(Stage::Finishing);
    assert!(!bench.ends(at(12)));
    assert!(!bench.ends(at(10_011)));
    assert!(bench.ends(at(10_012)));
    assert_eq!(bench.dispatcher.exit(), Some(Exit::Error));
}

#[test]
fn a_worker_that_lets_its_jobs_finish_waits_longer_for_them_than_for_the_store() {
    let mut bench = Bench::new(false);
    bench.desk.advance(Stage::Finishing);
    for now in [1, 10_001, 60_000] {
        assert!(!bench.ends(at(now)), "its job is still running at {now} ms");
    }
    let done = Returned::Settle(Outcome::Complete { result: None });
    bench.desk.returned(bench.hold.fence, done, at(60_001));
    assert!(bench.ends(at(60_001)));
    assert_eq!(bench.state(), State::Succeeded);
}

#[test]
fn nobody_ends_while_a_settlement_waits_for_the_renewal_of_its_job() {
    for drain in [true, false] {
        let mut bench = Bench::new(drain);
        if !drain {
            bench.desk.advance(Stage::Finishing);
        }
        let renewed = bench.desk.to_renew(at(5_000), at(6_000));
        let renewed: Vec<_> = renewed.iter().map(|hold| hold.fence).collect();
        let done = Returned::Settle(Outcome::Complete { result: None });
        bench.desk.returned(bench.hold.fence, done, at(6_001));
        assert!(!bench.ends(at(6_002)), "the renewal has not been answered yet");
        bench.desk.renewed(&renewed, &renewed, at(6_000), Duration::from_secs(30));
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
    assert_eq!(bench.dispatcher.exit(), Some(Exit::Drained));
    assert_eq!(bench.renewer.step(&mut bench.line, at(11)), NextStep::Done);
    assert!(bench.store.workers().unwrap().is_empty());
}

#[test]
fn who_leaves_jobs_behind_says_nothing_so_that_others_notice() {
    let mut bench = Bench::new(false);
    // As if the dispatcher had given up, or panicked.
    bench.desk.advance(Stage::Over);
    assert_eq!(bench.renewer.step(&mut bench.line, at(11)), NextStep::Done);
    drop(bench.line);
    let mut lapsed = 0;
    for _ in 0..4 {
        bench.clock.advance(Duration::from_millis(400));
        lapsed += bench.store.vanished(10).unwrap().len();
    }
    assert_eq!(lapsed, 1, "within moments, whatever its lease");
}

#[test]
fn a_worker_waits_for_what_came_of_an_effect_and_says_so_if_it_gives_up() {
    let mut bench = Bench::new(false);
    let charge = Name::check("effect", "charge").unwrap();
    bench.desk.outcome_known(&bench.hold, &charge, Verb::EffectCommit);
    bench.desk.lose(bench.hold.fence, crate::desk::Cause::Lost);
    bench.desk.advance(Stage::Releasing);
    assert!(!bench.ends(at(1_000)), "nothing is held, but an outcome is on its way");
    assert!(!bench.ends(at(10_000)));
    assert!(!bench.told.lock().unwrap().contains(&"effect_unrecorded"));
    assert!(bench.ends(at(11_000)));
    assert_eq!(bench.dispatcher.exit(), Some(Exit::Error));
    assert!(bench.told.lock().unwrap().contains(&"effect_unrecorded"));
}

/// A worker of these queues that can run `work`. The store has one such job in the last queue, and
/// jobs of other tenants that the worker cannot run.
fn beside_others(
    queues: Vec<Name>,
    others: usize,
    drain: bool,
) -> (Sqlite, Dispatcher<Begun>, Begun) {
    let mut store = Sqlite::in_memory(&StoreOptions::default()).unwrap();
    let job = |kind: &str| {
        NewJob::new(Name::check("kind", kind).unwrap(), Json::check("args", "{}", 10).unwrap())
            .queue(queues.last().unwrap().clone())
    };
    let other = |n| job("other").tenant(crate::job::Tenant::check(format!("t{n}")).unwrap());
    store.enqueue(&(0..others).map(other).collect::<Vec<_>>()).unwrap();
    store.enqueue(&[job("work")]).unwrap();
    let plan = Arc::new(Plan {
        queues,
        kinds: Some(vec![Name::check("kind", "work").unwrap()]),
        slots: 2,
        drain,
        ..Plan::new(WorkerId::unique())
    });
    let begun = Begun::default();
    let desk = Arc::new(Desk::new(plan.slots));
    (store, Dispatcher::new(plan, desk, begun.clone(), at(0)), begun)
}

/// Steps until it rests or ends, and returns how many steps that took.
fn steps(dispatcher: &mut Dispatcher<Begun>, store: &mut Sqlite) -> usize {
    let mut steps = 1;
    while dispatcher.step(store, at(0)) == NextStep::Again {
        steps += 1;
        assert!(dispatcher.ask.queues.len() <= QUEUES);
        assert!(steps < 1_000, "it never rests");
    }
    steps
}

#[test]
fn a_worker_is_not_done_before_it_has_looked_at_everything() {
    let many: Vec<Name> =
        (0..100).map(|n| Name::check("queue", format!("q{n}")).unwrap()).collect();
    for drain in [true, false] {
        for (queues, others) in [(vec![Name::default_queue()], 550), (many.clone(), 0)] {
            let (mut store, mut dispatcher, begun) = beside_others(queues, others, drain);
            let steps = steps(&mut dispatcher, &mut store);
            assert_eq!(begun.0.lock().unwrap().len(), 1, "found in {steps} steps");
            assert!((2..20).contains(&steps), "{steps} steps");
        }
    }
}

#[test]
fn an_idle_worker_looks_the_more_seldom_the_more_workers_are_woken() {
    let pauses = [0, 1, 33, 100, 1_000, 5_000].map(|company| pause(6, company).as_millis());
    assert_eq!(pauses, [1_000, 1_000, 1_000, 3_000, 30_000, 30_000]);
    assert_eq!(pause(0, 1_000).as_millis(), 5, "after it has found something it looks again soon");
}

#[test]
fn two_claims_that_arrive_late_share_the_free_slots() {
    let mut bench = Bench::new(false);
    bench.lose_a_claim(1, at(1));
    bench.lose_a_claim(1, at(1));
    bench.desk.poke();
    bench.dispatcher.step(&mut bench.store, at(1));
    assert_eq!(bench.dispatcher.crew.0.lock().unwrap().len(), 2, "it has two slots");
    assert_eq!(bench.running_and_queued(), (2, vec![0]));
}

#[test]
fn nobody_ends_while_a_handler_goes_on_after_it_has_completed_its_job() {
    for drain in [true, false] {
        let mut bench = Bench::new(drain);
        if !drain {
            bench.desk.advance(Stage::Finishing);
        }
        bench.desk.committed(bench.hold.fence, at(5));
        assert!(!bench.ends(at(5)));
        assert!(!bench.ends(at(2_000)));
        bench.desk.returned(bench.hold.fence, Returned::Committed, at(2_001));
        assert!(bench.ends(at(2_001)));
        let exit = if drain { Exit::Drained } else { Exit::Shutdown };
        assert_eq!(bench.dispatcher.exit(), Some(exit));
    }
}

#[test]
fn a_claim_is_reported_with_the_whole_identity_and_how_long_its_job_was_due() {
    let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
    let options = StoreOptions { clock: clock.clone(), limits: Limits::default() };
    let mut store = Sqlite::in_memory(&options).unwrap();
    let (kind, tenant) = (Name::check("kind", "work").unwrap(), Tenant::check("acme").unwrap());
    let job = NewJob::new(kind.clone(), Json::check("args", "{}", 10).unwrap());
    let job = job.tenant(tenant.clone()).trace("00-abc-01").unwrap();
    store.enqueue(&[job.delay(Duration::from_secs(60))]).unwrap();
    clock.advance(Duration::from_millis(61_500));
    let told: Arc<Mutex<Vec<Event>>> = Arc::default();
    let tell = Arc::clone(&told);
    let observer = Observer::new(move |event| tell.lock().unwrap().push(event.clone()));
    let plan = Arc::new(Plan { observer, ..Plan::new(WorkerId::unique()) });
    let desk = Arc::new(Desk::new(1));
    Dispatcher::new(Arc::clone(&plan), desk, Begun::default(), at(0)).step(&mut store, at(0));
    let about = About {
        job: JobId(1),
        token: Token(1),
        kind,
        queue: Name::default_queue(),
        tenant,
        attempt: 1,
        trace: Some("00-abc-01".into()),
    };
    let acquired = Fact::LeaseAcquired { wait_ms: 1_500 };
    assert_eq!(*told.lock().unwrap(), [Event::of_job(&plan.worker, &Arc::new(about), acquired)]);
}
