//! The renewer, the sweeper and the threads, with a store that fails.

use std::num::NonZeroU16;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use super::threads::Threads;
use super::troubled::{Troubled, forbidden, unavailable, unwritable};
use super::*;
use crate::clock::{Clock, Timestamp};
use crate::desk::{Hold, Returned, Stage};
use crate::job::{BATCH_LIMIT, Json, Limits, NewJob};
use crate::lifecycle::Outcome;
use crate::store::sqlite::{Sqlite, StoreOptions};
use crate::store::{Attempt, Beat, Claim, GUARD_GAP, Pruned, Work};
use crate::telemetry::Exit;

const LEASE: Duration = Duration::from_secs(30);

fn at(millis: u64) -> Moment {
    Moment::after_start(Duration::from_secs(1_000) + Duration::from_millis(millis))
}

/// A worker whose machines are stepped by hand.
struct Bench {
    clock: Clock,
    store: Troubled,
    plan: Arc<Plan>,
    desk: Arc<Desk>,
    told: Arc<Mutex<Vec<Fact>>>,
}

impl Bench {
    fn new() -> Bench {
        Bench::at(Desk::new(BATCH_LIMIT))
    }

    fn at(desk: Desk) -> Bench {
        let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
        let options = StoreOptions { clock: clock.clone(), limits: Limits::default() };
        let store = Troubled::new(Sqlite::in_memory(&options).unwrap());
        let told: Arc<Mutex<Vec<Fact>>> = Arc::default();
        let tell = Arc::clone(&told);
        let plan = Plan {
            slots: 4,
            observer: Observer::new(move |event| tell.lock().unwrap().push(event.fact.clone())),
            ..Plan::new(WorkerId::unique())
        };
        Bench { clock, store, plan: Arc::new(plan), desk: Arc::new(desk), told }
    }

    fn renewer(&self) -> Renewer {
        Renewer::new(Arc::clone(&self.plan), Arc::clone(&self.desk))
    }

    fn sweeper(&self) -> Sweeper {
        Sweeper::new(Arc::clone(&self.plan), Arc::clone(&self.desk), at(0))
    }

    /// Lets the worker hold this many jobs, each of which dies at its first crash.
    fn hold(&mut self, mut n: usize) -> Vec<Arc<Hold>> {
        let kind = Name::check("kind", "work").unwrap();
        let job = NewJob::new(kind, Json::check("args", "{}", 10).unwrap());
        let job = job.max_crashes(NonZeroU16::MIN);
        let mut holds = Vec::new();
        while n > 0 {
            let part = n.min(BATCH_LIMIT);
            self.store.enqueue(&vec![job.clone(); part]).unwrap();
            let ask = Claim {
                queues: self.plan.queues.clone(),
                ..Claim::new(self.plan.worker.clone(), part, LEASE)
            };
            for attempt in self.store.claim(&ask).unwrap().attempts {
                holds.push(self.desk.hold(&attempt, at(0), LEASE).unwrap());
            }
            n -= part;
        }
        self.store.calls();
        holds
    }

    /// The facts since the last time that this was asked.
    fn told(&self) -> Vec<Fact> {
        std::mem::take(&mut self.told.lock().unwrap())
    }

    fn start(&self, crew: impl Crew + Send + 'static) -> Result<Threads, Error> {
        let mut connect = || Ok(Box::new(self.store.share()) as Box<dyn Work>);
        Threads::start(&self.plan, &self.desk, crew, &mut connect)
    }
}

fn store_forbidden() -> Vec<Fact> {
    vec![Fact::StoreForbidden { error: forbidden().to_string() }]
}

#[test]
fn a_worker_that_lacks_a_right_reports_it_once_and_gives_back_its_jobs() {
    let mut bench = Bench::new();
    let mut renewer = bench.renewer();
    bench.store.fails("register", forbidden);
    renewer.step(&mut bench.store, at(0));
    assert_eq!(bench.told(), store_forbidden());
    assert_eq!(bench.desk.stage(), Stage::Releasing);
    assert!(bench.desk.failure().is_forbidden());
    renewer.step(&mut bench.store, at(10_000));
    assert_eq!(bench.store.calls(), ["register"; 2], "it tries again");
    assert_eq!(bench.told(), []);
}

#[test]
fn a_store_that_cannot_be_written_to_is_lost_until_it_is_written_to() {
    let mut bench = Bench::new();
    bench.hold(1);
    let mut renewer = bench.renewer();
    bench.store.fails("register", unwritable);
    renewer.step(&mut bench.store, at(0));
    let lost = Fact::StoreLost { error: unwritable().to_string() };
    assert_eq!(bench.told(), [lost]);
    let failure = bench.desk.failure().to_string();
    assert!(failure.contains("the disk is full"), "{failure}");
    bench.plan.tell_answered(&bench.desk, false);
    assert_eq!(bench.told(), [], "it was only read");
    bench.store.works_again();
    renewer.step(&mut bench.store, at(1_000));
    assert_eq!(bench.told(), [Fact::StoreBack]);
}

#[test]
fn a_round_without_a_call_does_not_show_that_the_store_is_back_and_a_renewal_does() {
    let mut bench = Bench::new();
    let mut renewer = bench.renewer();
    renewer.step(&mut bench.store, at(0));
    assert_eq!(bench.store.calls(), ["register"]);
    bench.plan.tell_of_store(&bench.desk, &unwritable());
    bench.told();
    let NextStep::At(next) = renewer.step(&mut bench.store, at(60_000)) else {
        panic!("it goes on")
    };
    assert_eq!((bench.store.calls(), bench.told()), (vec![], vec![]), "it had nothing to ask");
    bench.hold(1);
    renewer.step(&mut bench.store, next);
    assert_eq!(bench.store.calls(), ["renew"]);
    assert!(bench.told().contains(&Fact::StoreBack));
}

#[test]
fn a_renewer_whose_store_is_out_of_reach_asks_it_once_a_round() {
    let mut bench = Bench::new();
    let holds = bench.hold(BATCH_LIMIT + 1);
    let mut renewer = bench.renewer();
    bench.store.fails("register", unavailable);
    let NextStep::At(next) = renewer.step(&mut bench.store, at(10_000)) else {
        panic!("it goes on")
    };
    assert_eq!(bench.store.calls(), ["register"], "a renewal would fail as well");
    renewer.step(&mut bench.store, at(10_001));
    assert_eq!(bench.store.calls(), [""; 0], "this round has ended");

    bench.store.works_again();
    bench.store.fails("renew", unavailable);
    renewer.step(&mut bench.store, next);
    assert_eq!(bench.store.calls(), ["register", "renew"], "a second renewal would fail as well");
    // No settlement waits for a renewal that was never sent.
    for hold in &holds {
        let done = Returned::Settle(Outcome::Complete { result: None });
        bench.desk.returned(hold.fence, done, next);
    }
    let mut parts = [Vec::new(), Vec::new()];
    for part in &mut parts {
        bench.desk.take(part, next);
    }
    assert_eq!(parts.map(|part| part.len()), [BATCH_LIMIT, 1]);
}

#[test]
fn a_caution_about_the_store_is_reported_when_it_is_new() {
    let mut bench = Bench::new();
    let mut renewer = bench.renewer();
    let mut now = at(0);
    let mut told = Vec::new();
    for caution in [None, Some("a"), Some("a"), Some("b"), None, Some("b")] {
        bench.store.trouble().caution = caution.map(str::to_owned);
        let NextStep::At(next) = renewer.step(&mut bench.store, now) else { panic!("it goes on") };
        now = next;
        told.push(bench.told());
    }
    let is = |problem: &str| vec![Fact::StoreCaution { problem: problem.to_owned() }];
    assert_eq!(told, [vec![], is("a"), vec![], is("b"), vec![], is("b")]);
}

#[test]
fn a_wait_that_failed_is_reported_only_if_that_does_not_pass_by_itself() {
    let bench = Bench::new();
    bench.renewer().unheard(&unavailable());
    assert_eq!(bench.told(), []);
    bench.renewer().unheard(&forbidden());
    assert_eq!(bench.told(), store_forbidden());
}

#[test]
fn a_sweeper_reports_a_missing_right_and_leaves_outages_to_the_others() {
    for call in ["beat", "prune"] {
        let mut bench = Bench::new();
        let mut sweeper = bench.sweeper();
        bench.store.fails(call, unavailable);
        sweeper.step(&mut bench.store, at(60_000));
        assert_eq!(bench.told(), [], "{call}");
        bench.store.fails(call, forbidden);
        sweeper.step(&mut bench.store, at(120_000));
        assert_eq!(bench.told(), store_forbidden(), "{call}");
        assert_eq!(bench.desk.stage(), Stage::Releasing, "{call}");
    }
}

#[test]
fn a_sweeper_asks_the_store_nothing_before_it_is_time() {
    let mut bench = Bench::new();
    let mut sweeper = bench.sweeper();
    sweeper.step(&mut bench.store, at(0));
    assert_eq!(bench.store.calls(), ["beat"]);
    sweeper.step(&mut bench.store, at(1));
    assert_eq!(bench.store.calls(), [""; 0]);
}

#[test]
fn a_deletion_shows_that_the_store_is_back_if_it_succeeds() {
    let mut bench = Bench::new();
    let mut sweeper = bench.sweeper();
    bench.plan.tell_of_store(&bench.desk, &unwritable());
    bench.told();
    bench.store.fails("prune", unwritable);
    sweeper.step(&mut bench.store, at(60_000));
    assert_eq!(bench.told(), []);
    bench.store.works_again();
    sweeper.step(&mut bench.store, at(120_000));
    assert_eq!(bench.told(), [Fact::StoreBack]);
}

#[test]
fn lost_processes_are_looked_for_after_the_last_of_many_deletions() {
    let mut bench = Bench::new();
    let mut sweeper = bench.sweeper();
    bench.store.trouble().pruned = Some(Pruned { jobs: BATCH_LIMIT, keys: 0 });
    sweeper.step(&mut bench.store, at(60_000));
    assert_eq!(bench.store.calls(), ["beat", "prune"]);
    bench.store.trouble().pruned = Some(Pruned { jobs: 1, keys: 0 });
    sweeper.step(&mut bench.store, at(60_010));
    assert_eq!(bench.store.calls(), ["prune", "vanished"]);
    sweeper.step(&mut bench.store, at(60_010) + GUARD_GAP);
    assert!(bench.store.calls().contains(&"vanished"), "one look cannot tell");
}

#[test]
fn the_dispatcher_learns_how_many_workers_are_woken_with_it() {
    let mut bench = Bench::new();
    for (workers, wakes, company) in [(5, true, 5), (0, true, 1), (5, false, 0)] {
        let beat = Beat { leads: false, leases_are_out: false, workers, wakes };
        bench.store.trouble().beat = Some(beat);
        bench.sweeper().step(&mut bench.store, at(0));
        assert_eq!(bench.desk.take(&mut Vec::new(), at(0)).company, company);
    }
}

#[test]
fn a_sweeper_that_comes_late_lets_others_keep_their_leases_for_longer() {
    let mut bench = Bench::new();
    let leads = Beat { leads: true, leases_are_out: true, workers: 1, wakes: true };
    bench.store.trouble().beat = Some(leads);
    let mut sweeper = bench.sweeper();
    for late in [Duration::ZERO, LEASE / 2, LEASE / 2 + Duration::from_millis(1)] {
        // The sweeper is stepped when it asked for it, or later.
        let look = sweeper.look + late;
        sweeper.step(&mut bench.store, look);
    }
    assert_eq!(bench.store.trouble().graces, [Duration::ZERO, Duration::ZERO, LEASE]);
}

#[test]
fn a_job_that_lapses_for_the_last_time_is_reported_as_dead() {
    let mut bench = Bench::new();
    let job = bench.hold(1)[0].fence.job;
    let plan = Arc::clone(&bench.plan);
    let waiting = plan.waiters.wait_for(job);
    let mut sweeper = bench.sweeper();
    let mut now = at(0);
    // Step the sweeper without a long pause. After a pause the store would prolong the lease.
    while now < at(60_000) && bench.told.lock().unwrap().is_empty() {
        let NextStep::At(next) = sweeper.step(&mut bench.store, now) else { panic!("it goes on") };
        bench.clock.advance(next.since(now));
        now = next;
    }
    let reason = "its lease was over, and it may not be tried again".to_owned();
    let told = bench.told();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(matches!(&told[0], Fact::LeaseLapsed { became: State::Dead, .. }), "{told:?}");
    assert_eq!(told[1], Fact::JobDead { reason, ran_ms: None });
    assert!(waiting.is_woken());
}

#[cfg(feature = "drill")]
#[test]
fn a_worker_that_neglects_its_leases_takes_back_no_jobs_of_others() {
    let mut bench = Bench::at(Desk::stalled(1));
    bench.sweeper().step(&mut bench.store, at(60_000));
    assert_eq!(bench.store.calls(), [""; 0]);
}

#[test]
fn workers_do_not_all_sweep_at_the_same_pace() {
    let next = || {
        let mut bench = Bench::new();
        let beat = Beat { leads: false, leases_are_out: false, workers: 100, wakes: true };
        bench.store.trouble().beat = Some(beat);
        bench.sweeper().step(&mut bench.store, at(0))
    };
    let first = next();
    assert!((0..20).any(|_| next() != first));
}

/// Handlers that return at once.
struct Quick(Arc<Desk>);

impl Crew for Quick {
    fn another(&mut self) -> Quick {
        Quick(Arc::clone(&self.0))
    }

    fn start(&mut self, _: Attempt, hold: Arc<Hold>) {
        let done = Returned::Settle(Outcome::Complete { result: None });
        self.0.returned(hold.fence, done, Moment::now());
    }
}

/// How the worker ended, if it does so within a minute.
fn end(threads: Threads) -> Exit {
    let (tell, ended) = channel();
    std::thread::spawn(move || tell.send(threads.join()));
    ended.recv_timeout(Duration::from_secs(60)).expect("it ends")
}

#[test]
fn a_worker_that_cannot_be_registered_does_not_start() {
    let bench = Bench::new();
    bench.store.fails("register", unavailable);
    let started = bench.start(Quick(Arc::clone(&bench.desk)));
    assert_eq!(started.err().map(|error| error.to_string()), Some(unavailable().to_string()));
    assert_eq!(bench.told(), []);
}

#[test]
fn a_worker_waits_for_changes_and_sweeps_while_it_runs() {
    let bench = Bench::new();
    let threads = bench.start(Quick(Arc::clone(&bench.desk))).unwrap();
    for call in ["wait", "beat"] {
        assert!(bench.store.is_called(call), "{call}");
    }
    bench.desk.advance(Stage::Finishing);
    assert_eq!(end(threads), Exit::Shutdown);
}

#[test]
fn a_worker_that_may_not_wait_for_changes_ends_and_says_why() {
    let bench = Bench::new();
    bench.store.fails("wait", forbidden);
    let threads = bench.start(Quick(Arc::clone(&bench.desk))).unwrap();
    assert_eq!(end(threads), Exit::Error);
    assert_eq!(bench.told()[1..], store_forbidden());
    assert!(bench.desk.failure().is_forbidden());
}

#[test]
fn a_worker_ends_if_one_of_its_threads_panics() {
    struct Panics;
    impl Crew for Panics {
        fn another(&mut self) -> Panics {
            Panics
        }

        fn start(&mut self, _: Attempt, _: Arc<Hold>) {
            panic!("on purpose");
        }
    }
    let mut bench = Bench::new();
    let kind = Name::check("kind", "work").unwrap();
    bench.store.enqueue(&[NewJob::new(kind, Json::check("args", "{}", 10).unwrap())]).unwrap();
    assert_eq!(end(bench.start(Panics).unwrap()), Exit::Error, "the dispatcher");

    let bench = Bench::new();
    bench.store.fails("wait", || panic!("on purpose"));
    let threads = bench.start(Quick(Arc::clone(&bench.desk))).unwrap();
    assert_eq!(end(threads), Exit::Shutdown, "the renewer");
}
