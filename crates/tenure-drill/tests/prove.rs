//! The long proof: wider scopes and more seeds than the daily test. `cargo xtask prove` runs it,
//! optimised.

#![allow(clippy::print_stdout, reason = "whoever runs it reads the figures")]
#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::WorkerId;
use tenure::engine::clock::monotonic;
use tenure::engine::job::{JobId, Json, Name, NewJob, State};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::postgres::{self, Migrations, Postgres, Roles, ServerAddress};
use tenure::engine::store::{Claim, Operate, Renewed, Settled, Settlement, Work};
use tenure_cluster::{Binaries, Cluster, PgBouncer, Settings};
use tenure_drill::differential::run;
use tenure_drill::disk;
use tenure_drill::engines::Engine;
use tenure_drill::explorer::{Engines, Merging, SCOPES, Scope, WIDE_SCOPES, Ways, explore};
use tenure_drill::holders::{Holder, sweep};
use tenure_drill::processes::contend;
use tenure_drill::sessions;
use tenure_drill::simulation::{self, Scenario};
use tenure_drill::stepper;
use tenure_drill::stories::{Scene, race};
use tenure_drill::workers::attack::attack;
use tenure_drill::workers::fleet::{Calls, Fleet, time_at_work};
use tenure_drill::workers::takeover::takeovers;
use tenure_drill::workers::{Bench, Program};

/// Explores these scopes completely, two at a time, each thread on a database of its own.
fn explore_all(scopes: &[Scope], engines: Engines) {
    let left = Mutex::new(scopes.iter());
    let work = || {
        loop {
            let next = left.lock().unwrap().next();
            let Some(scope) = next else { return };
            let report = explore(scope, Ways::on(engines), &mut |_| {}).unwrap();
            println!("{report}");
            let (name, never) = (report.scope, &report.vacuous);
            assert!(never.is_empty(), "{name} never put to the test: {never:?}");
        }
    };
    std::thread::scope(|threads| {
        let two = [threads.spawn(work), threads.spawn(work)];
        two.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn every_interleaving_in_the_wide_scopes_keeps_the_invariants() {
    explore_all(&WIDE_SCOPES, Engines::Sqlite);
}

/// The search merges only states that are equivalent: if workers are distinguished and every value,
/// time and line of the dump is compared, all scopes hold as well, and test the same invariants.
/// There are many more states, so this runs with two ticks and up to a bound, which few scopes
/// reach.
#[test]
fn every_interleaving_keeps_the_invariants_if_no_two_states_are_taken_for_one() {
    let scopes = SCOPES.map(|scope| Scope { ticks: scope.ticks.min(2), ..scope });
    let left = Mutex::new(scopes.iter());
    let work = || {
        let mut whole = 0;
        loop {
            let next = left.lock().unwrap().next();
            let Some(scope) = next else { return whole };
            let go = |merging| {
                let ways = Ways { merging, most: 120_000, ..Ways::on(Engines::Sqlite) };
                explore(scope, ways, &mut |_| {}).unwrap()
            };
            let (merged, apart) = (go(Merging::Alike), go(Merging::Nothing));
            println!("{}: {} states, and {} of all", scope.name, merged.states, apart.states);
            // Merging never adds states. Where the callers are not alike, there is nothing to
            // merge.
            assert!(merged.whole && merged.states <= apart.states, "{}", scope.name);
            if apart.whole {
                assert_eq!(merged.vacuous, apart.vacuous, "{}", scope.name);
                whole += 1;
            }
        }
    };
    let whole: usize = std::thread::scope(|threads| {
        let two = [threads.spawn(work), threads.spawn(work)];
        two.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(whole >= 8, "only {whole} scopes were gone through whole");
}

#[test]
fn every_interleaving_in_every_scope_is_the_same_on_postgresql() {
    explore_all(&SCOPES, Engines::Both);
}

#[test]
fn a_thousand_random_sequences_agree_on_all_engines() {
    let directory = tempfile::tempdir().unwrap();
    for seed in 1_000..2_000 {
        run(seed, 300, &[Engine::Model, Engine::SqliteInMemory], directory.path()).unwrap();
    }
}

/// The machines decide only by their inputs: not by the order of a hash map, not by the machine's
/// clock.
#[test]
fn a_thousand_simulated_runs_keep_the_promises_and_repeat_bit_for_bit() {
    let scenario = Scenario::default();
    for seed in 0..1_000 {
        let report = simulation::run(&scenario, seed);
        assert!(report.violation.is_none(), "{:?}", report.violation);
        if seed % 10 == 0 {
            assert_eq!(simulation::run(&scenario, seed).hash, report.hash, "seed {seed}");
        }
    }
}

/// The power fails after each write and flush of thirty histories, in the ways in which a disk may
/// lose what was not flushed; and the same for concurrent callers that share commits.
#[test]
fn a_power_cut_at_any_point_of_thirty_histories_loses_nothing_that_was_answered() {
    for seed in 100..130 {
        println!("{}", disk::run(seed).unwrap());
    }
    for _ in 0..10 {
        println!("{}", disk::run_crowd().unwrap());
    }
}

/// The comparison of the daily test, in an optimised build.
#[test]
fn a_seed_comes_to_the_same_trace_in_a_release_build() {
    simulation::golden::compare().unwrap();
}

#[test]
fn a_hundred_thousand_jobs_on_fifty_workers_keep_the_promises() {
    // A lower rate of faults than in a small run, since each failover copies the whole store.
    let rates = Scenario { lost_in: 1_000, kill_in: 3_000, ..Scenario::default() };
    let scenario = Scenario { workers: 50, jobs: 100_000, ..rates };
    let report = simulation::run(&scenario, 1);
    println!("{report}\n{}", report.sometimes);
    assert!(report.violation.is_none(), "{:?}", report.violation);
}

/// Long enough that starvation would show. With SQLite's busy handler instead of turns, one process
/// would wait for as long as another is busy.
#[test]
fn three_busy_processes_wait_for_each_other_less_than_a_second() {
    let directory = tempfile::tempdir().unwrap();
    let writer = Path::new(env!("CARGO_BIN_EXE_tenure-drill-writer"));
    let seen = contend(writer, &directory.path().join("jobs.db"), 50, 300).unwrap();
    println!("{seen:?}");
    assert!(seen.lost.is_empty() && seen.doubled == 0, "{seen:?}");
    assert!(seen.worst < Duration::from_secs(1), "somebody waited for {:?}", seen.worst);
}

/// Runs `show` on a store of each engine, one after the other.
fn on_both_engines(show: impl Fn(&mut Bench)) {
    let worker = Path::new(env!("CARGO_BIN_EXE_tenure-drill-worker"));
    for make in [Bench::sqlite, Bench::postgres] {
        let directory = tempfile::tempdir().unwrap();
        show(&mut make(worker, directory.path()));
    }
}

#[test]
fn ten_thousand_jobs_survive_workers_that_are_killed_at_random_and_pay_once() {
    on_both_engines(|bench| {
        let seen = attack(bench, 10_000, 300, 7);
        println!("{seen}");
        assert_eq!(seen.wrong, Vec::<String>::new(), "{seen}");
        assert!(seen.kills >= 20 && seen.lapses >= 20, "too few were hit: {seen}");
    });
}

#[test]
fn twenty_times_the_job_of_a_killed_worker_starts_elsewhere_within_a_second() {
    on_both_engines(|bench| {
        let took = takeovers(bench, 20);
        let worst = took.iter().max().unwrap();
        println!("takeovers after {took:.0?}, at worst {worst:.0?}");
        assert!(*worst < Duration::from_secs(1), "{took:?}");
    });
}

/// Each race has its own job and a lease of a second: one worker stalls for two and a half seconds,
/// and the other has long been done when the first wakes.
#[test]
fn five_hundred_times_the_worker_that_stalled_is_refused_and_the_effect_happens_once() {
    let program = Program::itself(Path::new(env!("CARGO_BIN_EXE_tenure-drill-worker")));
    on_both_engines(|bench| {
        let (place, directory) = (bench.place.clone(), bench.directory.clone());
        let scene = Scene { program: program.clone(), place, directory };
        let story = race::many(&scene, 500, &mut ()).unwrap();
        println!("{} on {}: {:?}", story.story, story.engine, story.figures);
        assert!(story.held, "{:#?}\n{:#?}", story.verdict, story.trace);
        assert_eq!(story.figures.unwrap().refusals, 500);
    });
}

/// G6: a pooler shares one session among many clients. Statements, settings and wake-ups of one
/// client must not reach another.
#[test]
fn workers_behind_a_transaction_pooler_do_every_job_once() {
    const JOBS: usize = 4_000;
    let cluster = Cluster::start(&Binaries::find_or_install().unwrap(), &Settings::new()).unwrap();
    let pooler = PgBouncer::start_with(&cluster, &[("default_pool_size", "3")]).unwrap();
    Migrations::connect(&ServerAddress::parse(&cluster.url()).unwrap())
        .unwrap()
        .up(Roles::Leave)
        .unwrap();
    let address = ServerAddress::parse(&pooler.url()).unwrap();
    let open = || Postgres::open(&address, &postgres::PostgresOptions::default()).unwrap();
    assert!(!open().facts().is_direct, "the pooler was noticed");

    let job =
        NewJob::new(Name::check("kind", "work").unwrap(), Json::check("args", "{}", 10).unwrap());
    for _ in 0..JOBS / 1_000 {
        open().enqueue(&vec![job.clone(); 1_000]).unwrap();
    }
    let done = std::thread::scope(|threads| {
        let workers: Vec<_> = (0..8).map(|_| threads.spawn(|| drain(open()))).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    let distinct: std::collections::BTreeSet<_> = done.iter().collect();
    assert_eq!((done.len(), distinct.len()), (JOBS, JOBS), "each once");
}

/// Works until nothing is left, and returns the jobs that it has completed.
fn drain(mut store: Postgres) -> Vec<JobId> {
    let ask = Claim::new(WorkerId::unique(), 10, Duration::from_secs(30));
    let mut done = Vec::new();
    let mut held: Vec<Settlement> = Vec::new();
    loop {
        let (settled, claimed) = store.settle_and_claim(&held, &ask).unwrap();
        for (settlement, answer) in held.iter().zip(settled) {
            assert_eq!(answer, Settled::Applied(State::Succeeded), "{:?}", settlement.fence);
            done.push(settlement.fence.job);
        }
        if claimed.attempts.is_empty() {
            return done;
        }
        let fences: Vec<_> = claimed.attempts.iter().map(|attempt| attempt.lease.fence()).collect();
        // Another worker's claim may lock our jobs for a moment, and then they are busy: ask again.
        while store.renew(&fences, Duration::from_secs(30)).unwrap().iter().any(|answer| {
            match answer {
                Renewed::Extended(_) => false,
                Renewed::Busy => true,
                other => panic!("a held job answered {other:?}"),
            }
        }) {}
        let complete = Outcome::Complete { result: None };
        held = fences.into_iter().map(|fence| Settlement::new(fence, complete.clone())).collect();
    }
}

/// On a real server, with fewer seeds than in memory, because every call waits for the disk.
#[test]
fn fifty_random_sequences_agree_on_postgresql() {
    let directory = tempfile::tempdir().unwrap();
    for seed in 5_000..5_050 {
        run(seed, 300, &[Engine::Model, Engine::Postgres], directory.path()).unwrap();
    }
}

/// About a minute, each round in an emptied database.
#[test]
fn sessions_that_do_everything_at_once_leave_no_deadlock_and_no_leftovers() {
    for seed in 100..110 {
        let report = sessions::contend(8, 1_000, seed);
        println!("seed {seed}: {report:?}");
        assert!(report.wrong.is_empty(), "seed {seed}: {:#?}", report.wrong);
        assert!(report.claims > 200 && report.effects > 20, "nothing happened: {report:?}");
    }
}

/// Every pair for which one of the two sessions has something to do, at every isolation level;
/// then, with every planner setting, the daily cases that claim.
#[test]
fn whatever_order_statements_are_sent_in_they_come_to_what_some_order_of_calls_comes_to() {
    let all = stepper::cases();
    for isolation in stepper::Isolation::ALL {
        let work = stepper::work(&all, &[isolation], &[]);
        println!("{}: {}", isolation.name(), stepper::go_through(&work, &|_| ()).unwrap());
    }
    let takes = |case: &stepper::Case| case.is_first && case.name.contains("claim");
    let (planners, all) = ((0..stepper::PLANNERS.len()).collect::<Vec<_>>(), all);
    let taking: Vec<_> = all.into_iter().filter(takes).collect();
    let work = stepper::work(&taking, &[stepper::Isolation::ReadCommitted], &planners);
    println!("every planner: {}", stepper::go_through(&work, &|_| ()).unwrap());
}

/// The same with calls that stop between their own statements.
#[test]
fn whatever_others_commit_while_a_call_is_under_way_it_comes_to_what_some_order_comes_to() {
    let mut stepper = stepper::Stepper::inside(&[]);
    for case in stepper::inside_cases() {
        println!("{}: {}", case.name, stepper.go_inside(&case).unwrap());
    }
}

/// What decision 0010 claims about locks that become free, with the real functions and real
/// processes: directly, and behind a pooler.
#[test]
fn nobody_who_lives_is_taken_for_gone_and_everybody_who_died_is_noticed() {
    const WORKERS: usize = 20;
    let lease = Duration::from_secs(30);
    let mut cluster =
        Cluster::start(&Binaries::find_or_install().unwrap(), &Settings::new()).unwrap();
    let address = ServerAddress::parse(&cluster.url()).unwrap();
    Migrations::connect(&address).unwrap().up(Roles::Leave).unwrap();
    let open = || Postgres::open(&address, &postgres::PostgresOptions::default()).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_tenure-drill-holder"));
    let job =
        NewJob::new(Name::check("kind", "work").unwrap(), Json::check("args", "{}", 10).unwrap());
    let mut store = open();
    store.enqueue(&vec![job.clone(); WORKERS]).unwrap();
    let url = cluster.url();
    let mut workers: Vec<_> =
        (0..WORKERS).map(|_| Holder::start(program, &url, 1, lease)).collect();
    assert!(workers.iter().all(|worker| worker.guarded && worker.held.len() == 1));
    let after = |length| monotonic() + length;

    let mut taken = 0;
    for _ in 0..100 {
        let ended = "SELECT pg_terminate_backend(pid)::int FROM pg_locks \
             WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' ORDER BY random() LIMIT 1";
        cluster.psql(ended).unwrap();
        taken += sweep(&mut store, after(Duration::from_millis(700)), |_| false).unwrap().len();
    }
    println!("100 terminated backends: {taken} taken from living workers");
    assert!(taken <= 1);

    taken = 0;
    for worker in workers.iter().cycle().take(20) {
        worker.signal("STOP");
        taken += sweep(&mut store, after(Duration::from_secs(1)), |_| false).unwrap().len();
        worker.signal("CONT");
    }
    println!("20 stopped processes: {taken} taken from them");
    assert_eq!(taken, 0);

    for _ in 0..20 {
        cluster.stop_immediately().unwrap();
        cluster.start_again().unwrap();
        store = open();
        taken += sweep(&mut store, after(Duration::from_secs(1)), |_| false).unwrap().len();
    }
    println!("20 immediate restarts: {taken} taken from living workers");
    assert_eq!(taken, 0);
    workers.iter().for_each(|worker| drop((worker.said(), worker.hear("renewed"))));

    let mut times = Vec::new();
    for worker in &mut workers {
        worker.kill();
        let killed = monotonic();
        let gone = sweep(&mut store, killed + lease, |taken| !taken.is_empty()).unwrap();
        assert_eq!(gone[0].1, worker.held[0]);
        times.push(gone[0].0 - killed);
        store.cancel(&[worker.held[0].job]).unwrap();
    }
    times.sort();
    println!(
        "20 kills: noticed after {:?}, {:?}, {:?}",
        times[0],
        times[WORKERS / 2],
        times[WORKERS - 1]
    );
    assert!(times[WORKERS - 1] < lease / 2, "it was the lock that told, not the lease");

    let pooler = PgBouncer::start_with(&cluster, &[("default_pool_size", "3")]).unwrap();
    store.enqueue(&[job.clone(), job.clone(), job.clone(), job]).unwrap();
    let pooled: Vec<_> = (0..4).map(|_| Holder::start(program, &pooler.url(), 1, lease)).collect();
    assert!(pooled.iter().all(|worker| !worker.guarded && worker.held.len() == 1));
    for _ in 0..20 {
        cluster.psql("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'").unwrap();
        store = open();
        taken += sweep(&mut store, after(Duration::from_millis(700)), |_| false).unwrap().len();
    }
    println!("20 times all sessions of a pooler ended: {taken} taken from living workers");
    assert_eq!(taken, 0);
}

/// The machines of a thousand workers, over a few connections. The server's processor time for them
/// is printed: about a twentieth of a core, more on a busy machine.
#[test]
fn a_thousand_idle_workers_ask_a_server_as_often_as_fifty() {
    let settings = Settings::new().config("fsync", "off");
    let cluster = Cluster::start(&Binaries::find_or_install().unwrap(), &settings).unwrap();
    let address = ServerAddress::parse(&cluster.url()).unwrap();
    Migrations::connect(&address).unwrap().up(Roles::Leave).unwrap();
    let mut calls = Calls::count(&cluster.url());
    // `first` is until all have registered and have been idle for a while; `then` is measured.
    let (first, then) = (Duration::from_secs(60), Duration::from_secs(30));
    let (url, is_over) = (cluster.url(), AtomicBool::new(false));
    let (at_work, lasted) = std::thread::scope(|threads| {
        for _ in 1..10 {
            threads.spawn(|| {
                let mut fleet = Fleet::new(&url, 100);
                while !is_over.load(Ordering::Relaxed) {
                    fleet.run(Duration::from_secs(1));
                }
            });
        }
        let mut fleet = Fleet::new(&url, 100);
        fleet.run(first);
        let (before, begun) = (time_at_work(&cluster.data_dir()), monotonic());
        fleet.run(then);
        let at_work = time_at_work(&cluster.data_dir()).saturating_sub(before);
        let lasted = begun.elapsed();
        is_over.store(true, Ordering::Relaxed);
        (at_work, lasted)
    });
    let share = 100.0 * at_work.as_secs_f64() / lasted.as_secs_f64();
    let calls = calls.all();
    println!("1,000 idle workers: {share:.1} % of a core; from the beginning: {calls:?}");
    let seconds = i64::try_from(lasted.as_secs()).unwrap() + 60;
    let count = |function: &str| calls.get(function).copied().unwrap_or(0);
    assert!(
        count("settle_and_claim") <= 1_000 * 12 + 34 * seconds,
        "{}",
        count("settle_and_claim")
    );
    assert!(count("beat") <= 1_000 * 3 + 65 * seconds, "{}", count("beat"));
    assert!(count("prune") <= 4 * seconds, "{}", count("prune"));
    assert_eq!(count("overdue"), 0, "no lease is out");
    assert!(count("vanished") <= 8 * seconds, "{}", count("vanished"));
}
