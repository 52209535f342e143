//! Real worker processes that die, are stopped, or survive a restart of the server.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test panics where it fails, and prints its figures"
)]

use std::path::Path;
use std::time::Duration;

use tenure::engine::clock::monotonic;
use tenure::engine::job::{Json, Name, NewJob};
use tenure::engine::store::postgres::{self, Migrations, Postgres, Roles, ServerAddress};
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
use tenure::engine::store::{Enqueued, Look, Store};
use tenure_cluster::{Binaries, Cluster, PgBouncer, Settings};
use tenure_drill::holders::{Holder, sweep};

const TEN_MINUTES: Duration = Duration::from_secs(600);

fn holder() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tenure-drill-holder"))
}

fn put(store: &mut dyn Store, n: usize) {
    let job =
        NewJob::new(Name::check("kind", "work").unwrap(), Json::check("args", "{}", 9).unwrap());
    let stored = store.enqueue(&vec![job; n]).unwrap();
    assert!(stored.iter().all(|answer| matches!(answer, Enqueued::Created(_))));
}

fn connect(url: &str) -> Postgres {
    Postgres::open(&ServerAddress::parse(url).unwrap(), &postgres::PostgresOptions::default())
        .unwrap()
}

fn cluster() -> Cluster {
    let cluster = Cluster::start(&Binaries::find_or_install().unwrap(), &Settings::new()).unwrap();
    Migrations::connect(&ServerAddress::parse(&cluster.url()).unwrap())
        .unwrap()
        .up(Roles::Leave)
        .unwrap();
    cluster
}

/// G5: each time a process is killed, its job, leased for ten minutes, is taken back within about a
/// second.
fn kill_and_take_back(store: &mut dyn Store, place: &str, times: usize) -> Duration {
    let mut worst = Duration::ZERO;
    for _ in 0..times {
        put(store, 1);
        let mut victim = Holder::start(holder(), place, 1, TEN_MINUTES);
        assert!(victim.guarded && victim.held.len() == 1, "{victim:?}");
        victim.kill();
        let killed = monotonic();
        let taken =
            sweep(store, killed + Duration::from_secs(30), |taken| !taken.is_empty()).unwrap();
        assert_eq!(taken.iter().map(|(_, fence)| *fence).collect::<Vec<_>>(), victim.held);
        worst = worst.max(taken[0].0 - killed);
        let job = victim.held[0].job;
        store.cancel(&[job]).unwrap();
    }
    println!("{times} kills, the worst was noticed after {worst:?}");
    worst
}

#[test]
fn on_sqlite_a_killed_process_is_noticed_whatever_its_lease() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jobs.db");
    let mut store = Sqlite::open(&file, &StoreOptions::default()).unwrap();
    kill_and_take_back(&mut store, file.to_str().unwrap(), 5);
    assert!(store.workers().unwrap().is_empty(), "nothing is left of the dead");
    let guards =
        directory.path().read_dir().unwrap().filter(|entry| {
            entry.as_ref().unwrap().file_name().to_string_lossy().contains("-guard-")
        });
    assert_eq!(guards.count(), 0);
}

#[test]
fn on_postgresql_a_killed_process_is_noticed_whatever_its_lease() {
    let cluster = cluster();
    let mut store = connect(&cluster.url());
    kill_and_take_back(&mut store, &cluster.url(), 5);
    assert!(store.workers().unwrap().is_empty(), "nothing is left of the dead");
}

/// A stopped process keeps its lock: only the end of its lease shows it.
#[test]
fn a_stopped_process_loses_its_job_with_its_lease_and_is_refused_when_it_wakes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jobs.db");
    let mut store = Sqlite::open(&file, &StoreOptions::default()).unwrap();
    put(&mut store, 1);
    let lease = Duration::from_secs(2);
    let sleeper = Holder::start(holder(), file.to_str().unwrap(), 1, lease);
    sleeper.hear("renewed");
    sleeper.signal("STOP");
    let stopped = monotonic();
    let taken = sweep(&mut store, stopped + lease * 10, |taken| !taken.is_empty()).unwrap();
    assert!(taken[0].0 - stopped > lease / 4, "not before its lease was over");
    sleeper.signal("CONT");
    let heard = sleeper.hear("lost");
    assert!(heard.last().unwrap().contains(&sleeper.held[0].job.to_string()), "{heard:?}");
}

/// The server restarts while living processes hold 200 jobs, and takes no job from them.
#[test]
fn no_living_workers_job_is_lost_to_an_immediate_restart_of_the_server() {
    const WORKERS: usize = 10;
    const EACH: usize = 20;
    let lease = Duration::from_secs(3);
    let mut cluster = cluster();
    let mut store = connect(&cluster.url());
    put(&mut store, WORKERS * EACH);
    let workers: Vec<_> =
        (0..WORKERS).map(|_| Holder::start(holder(), &cluster.url(), EACH, lease)).collect();
    assert!(workers.iter().all(|worker| worker.guarded && worker.held.len() == EACH));
    for _ in 0..2 {
        cluster.stop_immediately().unwrap();
        cluster.start_again().unwrap();
        let mut store = connect(&cluster.url());
        let taken = sweep(&mut store, monotonic() + lease * 2, |_| false).unwrap();
        assert_eq!(taken, [], "taken from living workers");
    }
    for worker in &workers {
        worker.said();
        assert_eq!(worker.hear("renewed").last().unwrap(), &format!("renewed {EACH}"));
    }
    // Workers that are really gone are still noticed.
    let mut store = connect(&cluster.url());
    let mut workers = workers;
    workers[0].kill();
    let taken =
        sweep(&mut store, monotonic() + Duration::from_secs(30), |taken| taken.len() >= EACH)
            .unwrap();
    assert_eq!(taken.len(), EACH);
}

/// One backend that crashes ends all sessions, and the server recovers without a new start time: no
/// lock survives, though no worker has died.
#[test]
fn no_living_workers_job_is_lost_to_a_backend_that_crashes() {
    let lease = Duration::from_secs(3);
    let cluster = cluster();
    put(&mut connect(&cluster.url()), 5);
    let workers: Vec<_> =
        (0..5).map(|_| Holder::start(holder(), &cluster.url(), 1, lease)).collect();
    let life = "SELECT pg_stat_get_bgwriter_stat_reset_time()";
    let before = cluster.psql(life).unwrap();
    let victim = cluster.psql("SELECT min(pid) FROM pg_locks WHERE locktype = 'advisory'").unwrap();
    // The workers reconnect slowly, as over a bad network.
    workers.iter().for_each(|worker| worker.signal("STOP"));
    let killed = std::process::Command::new("kill").args(["-9", &victim]).status();
    assert!(killed.unwrap().success());
    let until = monotonic() + Duration::from_secs(60);
    while monotonic() < until && cluster.psql(life).is_ok_and(|life| life == before) {}
    while monotonic() < until && cluster.psql(life).is_err() {}
    assert_ne!(cluster.psql(life).unwrap(), before, "by this the server's lives are told apart");
    let mut store = connect(&cluster.url());
    let slow = monotonic() + Duration::from_secs(1);
    let mut taken = sweep(&mut store, slow, |_| false).unwrap();
    workers.iter().for_each(|worker| worker.signal("CONT"));
    taken.extend(sweep(&mut store, monotonic() + lease * 2, |_| false).unwrap());
    assert_eq!(taken, [], "taken from living workers");
    for worker in &workers {
        worker.said();
        assert_eq!(worker.hear("renewed").last().unwrap(), "renewed 1");
    }
}

/// A terminated backend frees the lock of a living process, which takes it again at once.
#[test]
fn a_terminated_backend_costs_a_living_worker_nothing() {
    let cluster = cluster();
    let mut store = connect(&cluster.url());
    put(&mut store, 1);
    let worker = Holder::start(holder(), &cluster.url(), 1, TEN_MINUTES);
    for round in 1..=5 {
        let ended = cluster.psql(
            "SELECT count(pg_terminate_backend(l.pid)) FROM pg_locks l \
             WHERE l.locktype = 'advisory' AND l.mode = 'ExclusiveLock'",
        );
        assert_eq!(ended.unwrap(), "1");
        let again = |taken: &[_]| {
            !taken.is_empty()
                || cluster.psql(&format!("SELECT takings > {round} FROM tenure.workers")).unwrap()
                    == "t"
        };
        let taken = sweep(&mut store, monotonic() + Duration::from_secs(30), again).unwrap();
        assert_eq!(taken, [], "taken from a living worker");
    }
    let taken = sweep(&mut store, monotonic() + Duration::from_secs(1), |_| false).unwrap();
    assert_eq!(taken, []);
    drop(worker);
}

/// Through a pooler a lock would belong to another client's session: so no worker takes one, and
/// only leases decide.
#[test]
fn through_a_pooler_nobody_is_taken_for_gone() {
    let cluster = cluster();
    let pooler = PgBouncer::start_with(&cluster, &[("default_pool_size", "3")]).unwrap();
    let mut store = connect(&cluster.url());
    put(&mut store, 4);
    let mut workers: Vec<_> =
        (0..4).map(|_| Holder::start(holder(), &pooler.url(), 1, TEN_MINUTES)).collect();
    assert!(workers.iter().all(|worker| !worker.guarded && worker.held.len() == 1));
    workers[0].kill();
    let taken = sweep(&mut store, monotonic() + Duration::from_secs(3), |_| false).unwrap();
    assert_eq!(taken, [], "only the lease tells");
}
