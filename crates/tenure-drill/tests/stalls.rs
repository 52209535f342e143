//! Stalls of the store, with real workers. No living worker loses a job because the whole store
//! stood still. A worker that is cut off alone does lose its job.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test panics where it fails, and prints its figures"
)]

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use tenure::engine::clock::monotonic;
use tenure::engine::job::{JobId, State};
use tenure::engine::store::postgres::{Migrations, Roles, ServerAddress};
use tenure_cluster::{Binaries, Cluster, PgBouncer, Settings};
use tenure_drill::workers::kinds::Hold;
use tenure_drill::workers::{Bench, Event, Setup, Worker, job};

const LEASE: Duration = Duration::from_secs(1);
const STALL: Duration = Duration::from_secs(10);

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tenure-drill-worker"))
}

/// A bench on the same store, whose workers reach the store at this address.
fn workers_at(bench: &Bench, place: &str) -> Bench {
    Bench::on_server(program(), &bench.directory, place.to_owned())
}

/// Three workers with four jobs each, and one that is idle.
struct Busy {
    workers: Vec<Worker>,
    jobs: Vec<JobId>,
}

fn busy(bench: &mut Bench, near: &Bench) -> Busy {
    let gate = bench.file("gate");
    let setup = Setup { lease: LEASE, concurrency: 4, ..Setup::default() };
    let mut workers: Vec<_> = (0..3).map(|_| near.worker(&setup)).collect();
    let jobs = bench.put(&vec![job(&Hold { gate }); 12]);
    bench.until("all jobs to start", |bench| bench.store.leases(100).unwrap().len() == 12);
    workers.push(near.worker(&setup));
    // Long enough for renewals and a steady pulse.
    bench.let_pass(LEASE * 2);
    Busy { workers, jobs }
}

/// The events that report that a job was taken from its holder.
const TAKEN_BACK: [&str; 2] = ["lease_lapsed", "holder_vanished"];

/// All jobs continue where they were, and end there.
fn went_on(bench: &mut Bench, busy: Busy) {
    bench.let_pass(LEASE * 3);
    fs::write(bench.file("gate"), "").unwrap();
    bench.finish();
    let Busy { mut workers, jobs } = busy;
    workers.iter_mut().for_each(Worker::end);
    let events: Vec<Event> = workers.into_iter().flat_map(|worker| worker.events).collect();
    let lapses = events.iter().filter(|event| TAKEN_BACK.contains(&event.name.as_str())).count();
    let starts = events.iter().filter(|event| event.name == "execution_started").count();
    println!("{} jobs, {starts} starts, {lapses} lapses", jobs.len());
    for id in &jobs {
        assert_eq!(bench.ended(*id, State::Succeeded).1, 0, "job {id} has a crash");
    }
    assert_eq!((starts, lapses), (jobs.len(), 0));
    assert!(bench.wrong().is_empty());
}

fn cluster() -> Cluster {
    cluster_with(&Settings::new().tcp())
}

fn cluster_with(settings: &Settings) -> Cluster {
    let cluster = Cluster::start(&Binaries::find_or_install().unwrap(), settings).unwrap();
    let address = ServerAddress::parse(&cluster.url()).unwrap();
    Migrations::connect(&address).unwrap().up(Roles::Leave).unwrap();
    cluster
}

/// The server's processes.
fn processes(cluster: &Cluster) -> Vec<String> {
    let file = fs::read_to_string(cluster.data_dir().join("postmaster.pid")).unwrap();
    let postmaster: i32 = file.lines().next().unwrap().trim().parse().unwrap();
    let parent = |pid: i32| -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
    };
    let numbers = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let ours = numbers.filter(|pid| *pid == postmaster || parent(*pid) == Some(postmaster));
    ours.map(|pid| pid.to_string()).collect()
}

fn signal(name: &str, processes: &[String]) {
    // Some of the server's own helper processes come and go: one may have ended since it was
    // listed.
    Command::new("kill").arg(name).args(processes).output().unwrap();
}

/// Waits for the length of a stall. It cannot wait on the store, since nothing answers.
fn stand_still() {
    let end = monotonic() + STALL;
    while let left @ 1.. = end.saturating_duration_since(monotonic()).as_millis() {
        thread::park_timeout(Duration::from_millis(left as u64));
    }
}

/// Whether the store has noticed a stall. A stall that it did not notice tests nothing.
fn has_broken(cluster: &Cluster) -> bool {
    cluster.psql("SELECT last_value > 0 FROM tenure.broke").unwrap().trim() == "t"
}

#[test]
fn a_server_that_stands_still_for_ten_leases_takes_no_job_from_a_living_worker() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = cluster();
    let mut bench = Bench::on_server(program(), directory.path(), cluster.url());
    stop_and_go(&cluster, &mut bench, &cluster.url());
}

#[test]
fn a_server_behind_a_pooler_that_stands_still_for_ten_leases_takes_no_job_from_a_living_worker() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = cluster();
    let pooler = PgBouncer::start(&cluster).unwrap();
    let mut bench = Bench::on_server(program(), directory.path(), cluster.url());
    stop_and_go(&cluster, &mut bench, &pooler.url());
}

/// The server stops while workers that reach it at this address run jobs.
fn stop_and_go(cluster: &Cluster, bench: &mut Bench, place: &str) {
    let near = workers_at(bench, place);
    let busy = busy(bench, &near);
    let stopped = processes(cluster);
    signal("-STOP", &stopped);
    stand_still();
    signal("-CONT", &stopped);
    went_on(bench, busy);
    assert!(has_broken(cluster), "the store has noticed that it stood still");
}

#[test]
fn a_servers_clock_that_is_set_by_ten_leases_takes_no_job_from_a_living_worker() {
    let forward = i64::try_from(STALL.as_secs()).unwrap();
    for seconds in [forward, -forward] {
        let directory = tempfile::tempdir().unwrap();
        let cluster = cluster_with(&Settings::new().settable_clock());
        let mut bench = Bench::on_server(program(), directory.path(), cluster.url());
        let near = workers_at(&bench, &cluster.url());
        let busy = busy(&mut bench, &near);
        let time = || -> f64 {
            let now = cluster.psql("SELECT extract(epoch FROM clock_timestamp())").unwrap();
            now.trim().parse().unwrap()
        };
        let before = time();
        cluster.set_clock(seconds).unwrap();
        let moved = time() - before;
        assert!((moved - seconds as f64).abs() < 5.0, "the clock has moved by {moved} s");
        went_on(&mut bench, busy);
        assert_eq!(has_broken(&cluster), seconds > 0, "a step forward looks like a stall");
    }
}

#[test]
fn a_network_that_swallows_everything_for_ten_leases_takes_no_job_from_a_living_worker() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = cluster();
    let mut bench = Bench::on_server(program(), directory.path(), cluster.url());
    let network = Network::to(&cluster.tcp_url().unwrap());
    let near = workers_at(&bench, &network.url);
    let busy = busy(&mut bench, &near);
    network.set(Way::Frozen);
    stand_still();
    network.set(Way::Open);
    went_on(&mut bench, busy);
    assert!(has_broken(&cluster), "the store has noticed that nobody could reach it");
}

#[test]
fn a_file_that_cannot_be_written_for_ten_leases_takes_no_job_from_a_living_worker() {
    let directory = tempfile::tempdir().unwrap();
    let mut bench = Bench::sqlite(program(), directory.path());
    let place = bench.place.clone();
    let near = workers_at(&bench, &place);
    let busy = busy(&mut bench, &near);
    let stranger = rusqlite::Connection::open(&place).unwrap();
    stranger.busy_timeout(Duration::from_secs(10)).unwrap();
    stranger.execute_batch("BEGIN IMMEDIATE").unwrap();
    stand_still();
    stranger.execute_batch("ROLLBACK").unwrap();
    went_on(&mut bench, busy);
    assert!(has_file_broken(&place), "the store has noticed that it could not be written to");
}

fn has_file_broken(place: &str) -> bool {
    let file = rusqlite::Connection::open(place).unwrap();
    file.query_row("SELECT broke > 0 FROM tenure_meta", [], |row| row.get(0)).unwrap()
}

#[test]
fn a_disk_that_is_full_for_ten_leases_takes_no_job_from_a_living_worker() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Disk::new(directory.path());
    let mut bench = Bench::sqlite(program(), directory.path());
    let near = Bench::on_server(&disk.program, directory.path(), bench.place.clone());
    let busy = busy(&mut bench, &near);
    fs::write(&disk.is_full, "").unwrap();
    stand_still();
    fs::remove_file(&disk.is_full).unwrap();
    went_on(&mut bench, busy);
    assert!(has_file_broken(&bench.place), "the store has noticed that nothing could be written");
}

/// A disk that can be full for the workers on it.
struct Disk {
    /// The workers' program.
    program: PathBuf,
    /// It is full while this file exists.
    is_full: PathBuf,
}

impl Disk {
    /// The workers on it load a library of ours before the C library. Its functions write through
    /// the kernel while the disk has room, and fail otherwise.
    fn new(directory: &Path) -> Disk {
        let file = |name: &str| directory.join(name);
        let [library, program, is_full] = ["full_disk.so", "worker", "is-full"].map(file);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/full_disk.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .output()
            .expect("a C compiler");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let script = format!(
            "#!/bin/sh\nLD_PRELOAD='{}' DISK_IS_FULL='{}' exec '{}' \"$@\"\n",
            library.display(),
            is_full.display(),
            self::program().display()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        Disk { program, is_full }
    }
}

/// A worker behind a network of its own, which runs a job, and another one that is idle.
struct CutOff {
    bench: Bench,
    network: Network,
    near: Worker,
    far: Worker,
    id: JobId,
}

fn cut_off(cluster: &Cluster, directory: &Path, lease: Duration) -> CutOff {
    let mut bench = Bench::on_server(program(), directory, cluster.url());
    let network = Network::to(&cluster.tcp_url().unwrap());
    let setup = Setup { lease, ..Setup::default() };
    let mut far = Bench::on_server(program(), directory, network.url.clone()).worker(&setup);
    let id = bench.put(&[job(&Hold { gate: bench.file("gate") })])[0];
    far.starts(id);
    let near = bench.worker(&setup);
    CutOff { bench, network, near, far, id }
}

#[test]
fn a_worker_that_alone_hears_nothing_loses_its_job_when_its_lease_is_over() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = cluster();
    let CutOff { mut bench, network, mut near, mut far, id } =
        cut_off(&cluster, directory.path(), LEASE);
    let frozen = monotonic();
    network.set(Way::Frozen);
    let after = near.starts(id);
    println!("taken over {:.0?} after the last packet", after.at - frozen);
    assert!(after.at - frozen > LEASE / 2, "not before its lease was over");
    fs::write(bench.file("gate"), "").unwrap();
    bench.finish();
    assert_eq!(bench.ended(id, State::Succeeded).0, after.token.unwrap());
    network.set(Way::Open);
    let refused = far.hear("that it was refused", |event| event.is("stale_write_blocked", id));
    assert_eq!(refused.all["current_token"], after.token.unwrap().to_string());
    [&mut near, &mut far].into_iter().for_each(Worker::end);
    assert!(bench.wrong().is_empty());
}

/// With the default gap, the worker's freed lock soon shows it as dead, whatever its lease. With a
/// longer gap it has time to connect again.
#[test]
fn a_worker_whose_connections_are_cut_keeps_its_job_for_as_long_as_the_guard_gap() {
    let cluster = cluster();
    for gap in [None, Some(Duration::from_secs(10))] {
        let directory = tempfile::tempdir().unwrap();
        let CutOff { mut bench, network, mut near, mut far, id } =
            cut_off(&cluster, directory.path(), Duration::from_secs(60));
        gap.map(|gap| bench.store.set_guard_gap(gap).unwrap());
        network.set(Way::Cut);
        if gap.is_some() {
            bench.let_pass(Duration::from_secs(3));
        } else {
            near.starts(id);
        }
        network.set(Way::Open);
        if gap.is_some() {
            far.hear("that it is back", |event| event.name == "store_back");
        }
        fs::write(bench.file("gate"), "").unwrap();
        bench.finish();
        let (_, crashes) = bench.ended(id, State::Succeeded);
        assert_eq!(crashes, u16::from(gap.is_none()), "with a gap of {gap:?}");
        [&mut near, &mut far].into_iter().for_each(Worker::end);
        let starts = near.events.iter().filter(|event| event.is("execution_started", id)).count();
        assert_eq!(starts, usize::from(gap.is_none()), "with a gap of {gap:?}");
        assert!(bench.wrong().is_empty());
    }
}

/// What a network does with packets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Open,
    /// It holds them back, and loses none.
    Frozen,
    /// It has closed every connection, and closes each new one.
    Cut,
}

/// A proxy between workers and their server.
struct Network {
    url: String,
    wires: Arc<Wires>,
}

struct Wires {
    way: Mutex<Way>,
    changed: Condvar,
    all: Mutex<Vec<TcpStream>>,
}

impl Network {
    fn to(url: &str) -> Network {
        let (head, rest) = url.split_once('@').unwrap();
        let (host, tail) = rest.split_once('/').unwrap();
        let server = host.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("{head}@{}/{tail}", listener.local_addr().unwrap());
        let way = Mutex::new(Way::Open);
        let wires = Arc::new(Wires { way, changed: Condvar::new(), all: Mutex::default() });
        let theirs = Arc::clone(&wires);
        thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let mut all = theirs.all.lock().unwrap();
                if *theirs.way.lock().unwrap() == Way::Cut {
                    continue;
                }
                let far = TcpStream::connect(&server).unwrap();
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let wires = Arc::clone(&theirs);
                    thread::spawn(move || carry(from, to, &wires));
                }
                all.extend([near, far]);
            }
        });
        Network { url, wires }
    }

    fn set(&self, way: Way) {
        let mut all = self.wires.all.lock().unwrap();
        *self.wires.way.lock().unwrap() = way;
        self.wires.changed.notify_all();
        if way == Way::Cut {
            all.drain(..).for_each(|wire| drop(wire.shutdown(Shutdown::Both)));
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, wires: &Wires) {
    let mut bytes = [0; 64 * 1024];
    while let Ok(size @ 1..) = from.read(&mut bytes) {
        let way = wires.way.lock().unwrap();
        drop(wires.changed.wait_while(way, |way| *way == Way::Frozen).unwrap());
        if to.write_all(&bytes[..size]).is_err() {
            break;
        }
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
