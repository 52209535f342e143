//! The long proof: wider scopes and more seeds than the daily test. `cargo xtask prove` runs it,
//! optimised.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::path::Path;
use std::time::Duration;

use tenure::job::{JobId, Json, Name, NewJob, State};
use tenure::lease::WorkerId;
use tenure::lifecycle::Outcome;
use tenure::store::postgres::{self, Address, Migrations, Postgres, Roles};
use tenure::store::{Claim, Cursor, Renewed, Settled, Settlement, Store};
use tenure_cluster::{Binaries, Cluster, PgBouncer, Settings};
use tenure_drill::differential::run;
use tenure_drill::engines::Engine;
use tenure_drill::explorer::{WIDE_SCOPES, explore};
use tenure_drill::processes::contend;
use tenure_drill::sessions;

#[test]
fn every_interleaving_in_the_wide_scopes_keeps_the_invariants() {
    for scope in &WIDE_SCOPES {
        println!("{}", explore(scope).unwrap());
    }
}

#[test]
fn a_thousand_random_sequences_agree_on_all_engines() {
    let directory = tempfile::tempdir().unwrap();
    for seed in 1_000..2_000 {
        run(seed, 300, &[Engine::Model, Engine::SqliteInMemory], directory.path()).unwrap();
    }
}

/// Long enough that whoever starves would show: with a busy handler instead of turns, one process
/// waits for as long as another is busy.
#[test]
fn three_busy_processes_wait_for_each_other_less_than_a_second() {
    let directory = tempfile::tempdir().unwrap();
    let writer = Path::new(env!("CARGO_BIN_EXE_tenure-drill-writer"));
    let seen = contend(writer, &directory.path().join("jobs.db"), 50, 300).unwrap();
    println!("{seen:?}");
    assert!(seen.lost.is_empty() && seen.doubled == 0, "{seen:?}");
    assert!(seen.worst < Duration::from_secs(1), "somebody waited for {:?}", seen.worst);
}

/// G6: a pooler lends one session to many. Statements, settings and wake-ups of one must not reach another.
#[test]
fn workers_behind_a_transaction_pooler_do_every_job_once() {
    const JOBS: usize = 4_000;
    let cluster = Cluster::start(&Binaries::find_or_install().unwrap(), &Settings::new()).unwrap();
    let pooler = PgBouncer::start_with(&cluster, &[("default_pool_size", "3")]).unwrap();
    Migrations::connect(&Address::parse(&cluster.url()).unwrap())
        .unwrap()
        .up(Roles::Leave)
        .unwrap();
    let address = Address::parse(&pooler.url()).unwrap();
    let open = || Postgres::open(&address, &postgres::Options::default()).unwrap();
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

/// Works until nothing is left, and tells what it has done.
fn drain(mut store: Postgres) -> Vec<JobId> {
    let ask = Claim {
        worker: WorkerId::unique(),
        queues: vec![Name::default_queue()],
        kinds: None,
        n: 10,
        lease: Duration::from_secs(30),
        cursor: Cursor::default(),
        grace: Duration::ZERO,
    };
    let mut done = Vec::new();
    let mut held: Vec<Settlement> = Vec::new();
    loop {
        let (settled, claimed) = store.settle_and_claim(&held, &ask).unwrap();
        for (settlement, answer) in held.iter().zip(settled) {
            assert_eq!(answer, Settled::Yes(State::Succeeded), "{:?}", settlement.fence);
            done.push(settlement.fence.job);
        }
        if claimed.attempts.is_empty() {
            return done;
        }
        let fences: Vec<_> = claimed.attempts.iter().map(|attempt| attempt.lease.fence()).collect();
        // A claim of somebody else may look at our jobs for a moment, and then they are busy: ask again.
        while store.renew(&fences, Duration::from_secs(30)).unwrap().iter().any(|answer| {
            match answer {
                Renewed::Held(_) => false,
                Renewed::Busy => true,
                other => panic!("a held job answered {other:?}"),
            }
        }) {}
        let complete = Outcome::Complete { result: None };
        held = fences.into_iter().map(|fence| Settlement::new(fence, complete.clone())).collect();
    }
}

/// Fewer seeds than in memory, because every call is a flush; but on real servers.
#[test]
fn fifty_random_sequences_agree_on_postgresql() {
    let directory = tempfile::tempdir().unwrap();
    for seed in 5_000..5_050 {
        run(seed, 300, &[Engine::Model, Engine::Postgres], directory.path()).unwrap();
    }
}

/// About a minute of it, each round in a database that was emptied.
#[test]
fn sessions_that_do_everything_at_once_leave_no_deadlock_and_no_leftovers() {
    for seed in 100..110 {
        let report = sessions::contend(8, 1_000, seed);
        println!("seed {seed}: {report:?}");
        assert!(report.wrong.is_empty(), "seed {seed}: {:#?}", report.wrong);
    }
}
