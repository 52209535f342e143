//! What idle workers cost the server.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test panics where it fails, and prints its figures"
)]
use std::collections::BTreeMap;
use std::time::Duration;
use tenure::engine::store::{Claim, Look, Work};

use tenure::WorkerId;
use tenure::engine::clock::monotonic;
use tenure::engine::job::{Json, Name, NewJob};
use tenure::engine::store::postgres::{self, Migrations, Postgres, Roles, ServerAddress};
use tenure_cluster::{Binaries, Cluster, Settings};
use tenure_drill::workers::fleet::{Calls, Fleet};

/// A server that nothing else uses, and that writes nothing by itself. It does not wait for the
/// disk, so that hundreds of workers can register at once.
fn cluster() -> Cluster {
    let settings = Settings::new()
        .config("autovacuum", "off")
        .config("bgwriter_delay", "10s")
        .config("fsync", "off");
    let cluster = Cluster::start(&Binaries::find_or_install().unwrap(), &settings).unwrap();
    let address = ServerAddress::parse(&cluster.url()).unwrap();
    Migrations::connect(&address).unwrap().up(Roles::Leave).unwrap();
    cluster
}

fn connect(cluster: &Cluster) -> Postgres {
    let address = ServerAddress::parse(&cluster.url()).unwrap();
    Postgres::open(&address, &postgres::PostgresOptions::default()).unwrap()
}

fn job(queue: &str) -> NewJob {
    let kind = Name::check("kind", "work").unwrap();
    NewJob::new(kind, Json::check("args", "{}", 10).unwrap())
        .queue(Name::check("queue", queue).unwrap())
}

/// A worker holds a job for ten minutes.
fn hold_a_job(cluster: &Cluster) {
    let mut store = connect(cluster);
    store.enqueue(&[job("elsewhere")]).unwrap();
    let ask = Claim {
        queues: vec![Name::check("queue", "elsewhere").unwrap()],
        ..Claim::new(WorkerId::unique(), 1, Duration::from_secs(600))
    };
    assert_eq!(store.claim(&ask).unwrap().attempts.len(), 1);
}

fn of(calls: &BTreeMap<String, i64>, function: &str) -> i64 {
    calls.get(function).copied().unwrap_or(0)
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn jobs_of_other_queues_cause_no_claim() {
    let cluster = cluster();
    let mut calls = Calls::count(&cluster.url());
    let begun = monotonic();
    let mut fleet = Fleet::new(&cluster.url(), 5);
    fleet.run(SECOND);
    let mut store = connect(&cluster);
    for _ in 0..50 {
        store.enqueue(&[job("other")]).unwrap();
        // Longer than the minimum interval between two announcements of one session.
        fleet.run(Duration::from_millis(60));
    }
    store.enqueue(&[job("default")]).unwrap();
    fleet.run(SECOND / 2);
    assert_eq!(store.leases(10).unwrap().len(), 1, "but a job of their own wakes them");
    let seconds = i64::try_from(begun.elapsed().as_secs()).unwrap() + 1;
    drop((fleet, store));
    let claims = of(&calls.all(), "settle_and_claim");
    println!("5 workers, 50 jobs of another queue, {seconds} s: {claims} claims");
    // Each worker claims a few times when it starts and after a job of its own, and then once a
    // second.
    assert!(claims <= 5 * (seconds + 16), "{claims} claims in {seconds} s");
}

#[test]
fn one_worker_looks_for_all_while_a_lease_is_out() {
    let cluster = cluster();
    hold_a_job(&cluster);
    let mut calls = Calls::count(&cluster.url());
    let begun = monotonic();
    let mut fleet = Fleet::new(&cluster.url(), 50);
    fleet.run(SECOND * 5);
    let seconds = i64::try_from(begun.elapsed().as_secs()).unwrap() + 1;
    drop(fleet);
    let calls = calls.all();
    let count = |function| of(&calls, function);
    println!("50 workers beside a lease, {seconds} s: {calls:?}");
    // Two pulses a second, and two checks of the locks for each.
    assert!((2..=2 * seconds + 2).contains(&count("overdue")), "{}", count("overdue"));
    assert!((4..=4 * seconds + 4).contains(&count("vanished")), "{}", count("vanished"));
    // At first each worker calls on its own. Then all of them share 40 beats and 33 claims a
    // second.
    assert!(count("beat") <= 40 * seconds + 50 * 6, "{}", count("beat"));
    assert!(count("settle_and_claim") <= 33 * seconds + 50 * 14, "{}", count("settle_and_claim"));
}

/// Idle workers poll for jobs that no notification announces, less often the larger the fleet is.
#[test]
fn three_hundred_idle_workers_look_as_often_as_thirty() {
    let cluster = cluster();
    let mut calls = Calls::count(&cluster.url());
    // All workers register, and learn of each other.
    let mut fleet = Fleet::new(&cluster.url(), 300);
    fleet.run(SECOND * 3);
    let before = monotonic();
    fleet.run(SECOND * 6);
    let seconds = i64::try_from(before.elapsed().as_secs()).unwrap() + 1;
    drop(fleet);
    let calls = calls.all();
    println!("300 idle workers, {seconds} s and the beginning: {calls:?}");
    let claims = of(&calls, "settle_and_claim");
    // A dozen from each worker at first, and then 33 a second.
    assert!(claims <= 300 * 12 + 33 * seconds, "{claims} claims in {seconds} s");
    assert_eq!((of(&calls, "overdue"), of(&calls, "vanished")), (0, 0), "no lease is out");
}

#[test]
fn idle_workers_write_nothing() {
    let cluster = cluster();
    let written = || -> i64 {
        let bytes = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint";
        cluster.psql(bytes).unwrap().parse().unwrap()
    };
    let mut fleet = Fleet::new(&cluster.url(), 5);
    fleet.run(SECOND * 2);
    cluster.psql("CHECKPOINT").unwrap();
    let before = written();
    fleet.run(SECOND * 6);
    let bytes = written() - before;
    println!("5 idle workers wrote {bytes} bytes of WAL in 6 s");
    // The server itself logs the running transactions now and then, in about 50 bytes.
    assert!(bytes <= 200, "{bytes} bytes of WAL");
}
