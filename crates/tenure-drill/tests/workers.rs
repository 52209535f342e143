//! Real worker processes at work: killed, stopped, starved of processor time and cut off from their
//! store.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test panics where it fails, and prints its figures"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use tenure::engine::clock::monotonic;
use tenure::engine::job::{JobId, Name, State};
use tenure::engine::ledger::Standing;
use tenure::engine::store::postgres::{Migrations, Roles, ServerAddress};
use tenure_cluster::{Binaries, Cluster, Settings};
use tenure_drill::servers;
use tenure_drill::workers::attack::attack;
use tenure_drill::workers::kinds::{Account, Hold, Line, Poison, Quick, Spin};
use tenure_drill::workers::takeover::takeovers;
use tenure_drill::workers::{Bench, Event, Setup, Worker, job, lines};

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_tenure-drill-worker"))
}

/// Makes two tests of each claim, one for each engine.
macro_rules! on_both_engines {
    ($($claim:ident),+ $(,)?) => {
        mod sqlite {
            $(#[test] fn $claim() {
                let directory = tempfile::tempdir().unwrap();
                super::$claim(&mut super::Bench::sqlite(super::program(), directory.path()));
            })+
        }
        mod postgres {
            $(#[test] fn $claim() {
                let directory = tempfile::tempdir().unwrap();
                super::$claim(&mut super::Bench::postgres(super::program(), directory.path()));
            })+
        }
    };
}

on_both_engines!(
    four_workers_do_each_of_fifty_jobs_once,
    jobs_survive_workers_that_are_killed_at_random_and_pay_once,
    a_poison_job_is_buried_and_those_beside_it_succeed,
    two_poison_jobs_are_buried_and_those_beside_them_succeed,
    the_job_of_a_killed_worker_starts_elsewhere_within_moments,
    a_stopped_worker_loses_its_job_and_is_refused_when_it_wakes,
    handlers_that_spin_on_every_thread_lose_no_lease,
    an_idle_worker_starts_a_job_at_once_and_costs_nothing,
);

fn open(gate: &Path) {
    std::fs::write(gate, "").unwrap();
}

fn count(events: &[Event], name: &str) -> usize {
    events.iter().filter(|event| event.name == name).count()
}

/// How many jobs were taken back from their holders.
fn taken_back(events: &[Event]) -> usize {
    count(events, "lease_lapsed") + count(events, "holder_vanished")
}

fn four_workers_do_each_of_fifty_jobs_once(bench: &mut Bench) {
    let file = bench.file("lines");
    // One at a time, so that no worker can have them all.
    let setup = Setup { concurrency: 1, ..Setup::default() };
    let mut workers: Vec<_> = (0..4).map(|_| bench.worker(&setup)).collect();
    let ids = bench.put(&vec![job(&Line { file: file.clone() }); 50]);
    bench.finish();
    workers.iter_mut().for_each(Worker::end);
    let written = lines(&file);
    let jobs: BTreeSet<&str> = written.iter().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!((written.len(), jobs.len()), (50, 50), "{written:?}");
    for id in ids {
        bench.ended(id, State::Succeeded);
    }
    let shares: Vec<_> =
        workers.iter().map(|worker| count(&worker.events, "job_succeeded")).collect();
    println!("fifty jobs were shared as {shares:?}");
    assert_eq!(shares.iter().sum::<usize>(), 50, "each is told once");
}

fn jobs_survive_workers_that_are_killed_at_random_and_pay_once(bench: &mut Bench) {
    // On a server each effect is a round trip over a socket, so there are fewer jobs here; the long
    // proof has as many there.
    let jobs = if bench.place.starts_with("postgres:") { 3_000 } else { 10_000 };
    let seen = attack(bench, jobs, 300, 1);
    println!("{seen}");
    assert_eq!(seen.wrong, Vec::<String>::new(), "{seen}");
    assert!(seen.kills >= 5 && seen.lapses >= 5, "hardly anybody was hit: {seen}");
}

fn a_poison_job_is_buried_and_those_beside_it_succeed(bench: &mut Bench) {
    let gate = bench.file("gate");
    let mut worker = bench.worker(&Setup::default());
    let beside = bench.put(&vec![job(&Hold { gate: gate.clone() }); 15]);
    for _ in &beside {
        worker.hear("that another job has started", |event| event.name == "execution_started");
    }
    let poison = bench.put(&[job(&Poison {})])[0];
    worker.starts(poison);
    bench.until("the poison to kill its worker", |_| worker.has_ended());
    open(&gate);
    let mut deaths = 1;
    worker = bench.worker(&Setup::default());
    bench.until("all jobs to end", |bench| {
        if worker.has_ended() {
            deaths += 1;
            worker = bench.worker(&Setup::default());
        }
        bench.owed() == 0
    });
    let (_, crashes) = bench.ended(poison, State::Dead);
    assert_eq!((crashes, deaths), (5, 5));
    for id in beside {
        let (_, crashes) = bench.ended(id, State::Succeeded);
        assert!((1..=2).contains(&crashes), "the poison met its later crashes alone: {crashes}");
    }
    assert!(bench.wrong().is_empty());
}

/// Two workers run side by side, so that the two poison jobs do not always kill the same worker.
fn two_poison_jobs_are_buried_and_those_beside_them_succeed(bench: &mut Bench) {
    let gate = bench.file("gate");
    let setup = Setup { concurrency: 9, ..Setup::default() };
    let mut workers = [bench.worker(&setup), bench.worker(&setup)];
    let mut beside = bench.put(&vec![job(&Hold { gate: gate.clone() }); 7]);
    let first = bench.put(&[job(&Poison {})])[0];
    beside.extend(bench.put(&vec![job(&Hold { gate: gate.clone() }); 7]));
    let second = bench.put(&[job(&Poison {})])[0];
    let mut deaths = 0;
    bench.until("all jobs to end", |bench| {
        for worker in &mut workers {
            if worker.has_ended() {
                deaths += 1;
                *worker = bench.worker(&setup);
                // Two workers have died by now; the other jobs may end.
                if deaths == 2 {
                    open(&gate);
                }
            }
        }
        bench.owed() == 0
    });
    for poison in [first, second] {
        assert_eq!(bench.ended(poison, State::Dead).1, 5);
    }
    assert!((5..=10).contains(&deaths), "{deaths}");
    let crashes: Vec<_> = beside.iter().map(|id| bench.ended(*id, State::Succeeded).1).collect();
    println!("{deaths} workers died, and those beside them crashed {crashes:?} times");
    assert!(crashes.iter().all(|crashes| *crashes <= 4), "{crashes:?}");
    assert!(bench.wrong().is_empty());
}

/// The killed worker's lease is ten minutes. The long proof demands a second, on a machine that
/// does nothing else.
fn the_job_of_a_killed_worker_starts_elsewhere_within_moments(bench: &mut Bench) {
    let took = takeovers(bench, 3);
    let worst = took.iter().max().unwrap();
    println!("takeovers after {took:.0?}, at worst {worst:.0?}");
    assert!(*worst < Duration::from_secs(10), "{took:?}");
}

fn a_stopped_worker_loses_its_job_and_is_refused_when_it_wakes(bench: &mut Bench) {
    let (bank, gate) = (bench.file("bank"), bench.file("gate"));
    let lease = Duration::from_secs(1);
    let setup = Setup { lease, ..Setup::default() };
    let mut first = bench.worker(&setup);
    let id = bench.put(&[job(&Account { bank: bank.clone(), gate: Some(gate.clone()) })])[0];
    let before = first.starts(id);
    bench.until("the bank to be paid", |bench| {
        bench.effects().iter().any(|view| view.effect.standing == Standing::Committed)
    });
    let mut second = bench.worker(&setup);
    first.signal("STOP");
    let stopped = monotonic();
    let after = second.starts(id);
    println!("taken over {:.0?} after the stop", after.at - stopped);
    assert!(after.at - stopped > lease / 2, "not before its lease was over");
    open(&gate);
    bench.finish();
    assert_eq!(bench.ended(id, State::Succeeded).0, after.token.unwrap());
    bench.let_pass((lease * 2).saturating_sub(stopped.elapsed()));
    first.signal("CONT");
    let refused = first.hear("that it was refused", |event| event.is("stale_write_blocked", id));
    assert_eq!(refused.all["stale_token"], before.token.unwrap().to_string());
    assert_eq!(refused.all["current_token"], after.token.unwrap().to_string());
    first.end();
    second.end();
    let succeeded = [&first, &second].map(|worker| count(&worker.events, "job_succeeded"));
    assert_eq!(succeeded, [0, 1]);
    let effects = bench.effects();
    assert_eq!((lines(&bank).len(), effects.len()), (1, 1), "{effects:?}");
    assert_eq!(effects[0].effect.standing, Standing::Committed);
    assert!(bench.wrong().is_empty());
}

fn handlers_that_spin_on_every_thread_lose_no_lease(bench: &mut Bench) {
    let lease = Duration::from_secs(1);
    let setup = Setup { lease, concurrency: 2, threads: 2, ..Setup::default() };
    let mut busy = bench.worker(&setup);
    let ids = bench.put(&vec![job(&Spin { ms: 5_000 }); 2]);
    ids.iter().for_each(|_| {
        busy.hear("that a job has started", |event| event.name == "execution_started");
    });
    let mut idle = bench.worker(&Setup { lease, ..Setup::default() });
    bench.finish();
    busy.end();
    idle.end();
    assert_eq!(count(&idle.events, "execution_started"), 0, "nothing was taken over");
    assert_eq!(taken_back(&idle.events), 0);
    let renewed = count(&busy.events, "lease_renewed");
    println!("{renewed} renewals beside two threads that spin");
    assert!(renewed >= 2 * 3, "{renewed}");
    for id in ids {
        let (token, crashes) = bench.ended(id, State::Succeeded);
        let started = busy.events.iter().find(|event| event.is("execution_started", id)).unwrap();
        assert_eq!((Some(token), crashes), (started.token, 0), "at its first token");
    }
}

fn an_idle_worker_starts_a_job_at_once_and_costs_nothing(bench: &mut Bench) {
    const IDLE: Duration = Duration::from_secs(2);
    const WORKERS: usize = 5;
    // Each in its own queue, so that two rounds make ten idle workers.
    let queue = |n: usize| format!("queue-{n}");
    let mut workers: Vec<_> = (0..WORKERS)
        .map(|n| bench.worker(&Setup { queue: queue(n), ..Setup::default() }))
        .collect();
    let (mut took, mut shares) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        // The cost of a start is not part of the cost of being idle.
        bench.let_pass(Duration::from_secs(1));
        let before: Vec<Duration> = workers.iter().map(|worker| worker.cpu()).collect();
        let begun = monotonic();
        bench.let_pass(IDLE);
        let length = begun.elapsed();
        for (worker, before) in workers.iter().zip(before) {
            shares.push((worker.cpu() - before).as_secs_f64() / length.as_secs_f64());
        }
        let jobs = (0..WORKERS)
            .map(|n| job(&Quick {}).queue(Name::check("queue", queue(n)).unwrap()))
            .collect::<Vec<_>>();
        let ids = bench.put(&jobs);
        let put = monotonic();
        for (worker, id) in workers.iter_mut().zip(ids) {
            took.push(worker.starts(id).at.saturating_duration_since(put));
        }
        bench.finish();
    }
    took.sort();
    let percent: Vec<String> = shares.iter().map(|share| format!("{:.1}", share * 100.0)).collect();
    println!("idle workers start a job after {took:.1?}, and use {percent:?} % of a core");
    // Far above what a quiet machine shows (a few milliseconds, and half a percent), and below what
    // a worker that only polls once a second, or that never rests, would show.
    assert!(took[took.len() / 2] < Duration::from_millis(300), "{took:?}");
    let mean = shares.iter().sum::<f64>() / 10.0;
    assert!(mean < 0.2, "{percent:?}");
}

/// The channel that announces jobs of the schema `workers`: its name, with the quotes around it.
const CHANNEL: &str = "\"\"\"workers\"\"\"";

/// A wake-up is a hint: if it is never sent, that costs time and nothing else.
#[test]
fn a_job_that_nobody_is_told_of_starts_all_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let mut bench = Bench::postgres(program(), directory.path());
    let mut worker = bench.worker(&Setup::default());
    let mut quiet = servers::connect(&servers::database());
    let mut ear = servers::connect(&servers::database());
    ear.batch_execute(&format!("LISTEN {CHANNEL}")).unwrap();
    quiet.query("SELECT workers.enqueue('quick', '{}')", &[]).unwrap();
    assert_eq!(heard(&mut ear), 1, "usually they are told");
    bench.finish();
    let mut took = Vec::new();
    let until = monotonic() + Duration::from_secs(60);
    while took.len() < 3 {
        assert!(monotonic() < until, "the server always says something");
        // So long that the worker relies on notifications again; and longer each time, so that the
        // job comes at another point of the worker's intervals.
        bench.let_pass(Duration::from_millis(1_200 + 300 * took.len() as u64));
        let id: i64 = {
            let mut transaction = quiet.transaction().unwrap();
            transaction.batch_execute("SET LOCAL tenure_session.quiet = 'on'").unwrap();
            let row = transaction.query_one("SELECT workers.enqueue('quick', '{}')", &[]).unwrap();
            transaction.commit().unwrap();
            row.get(0)
        };
        let put = monotonic();
        let started = worker.starts(JobId(id));
        bench.finish();
        // On a machine that was busy for too long, the job was announced after all. Then this round
        // proves nothing and does not count.
        if heard(&mut ear) == 0 {
            took.push(started.at.saturating_duration_since(put));
        }
    }
    println!("jobs that nobody was told of start after {took:.0?}");
    assert!(took.iter().all(|took| *took < Duration::from_secs(10)), "{took:?}");
}

/// How many notifications were sent up to now. They arrive in order, so the last is one of our own.
fn heard(ear: &mut ::postgres::Client) -> usize {
    use ::postgres::fallible_iterator::FallibleIterator;
    const LAST: &str = "the last";
    ear.batch_execute(&format!("NOTIFY {CHANNEL}, '{LAST}'")).unwrap();
    let mut arriving = ear.notifications();
    let mut arriving = arriving.timeout_iter(Duration::from_secs(20));
    let mut heard = 0;
    while arriving.next().unwrap().expect("what was sent arrives").payload() != LAST {
        heard += 1;
    }
    heard
}

/// The server dies under load and comes back. Its workers wait for it, and continue what they have:
/// a settlement whose answer was lost is repeated, and the leases of a claim whose answer was lost
/// are picked up. So nothing starts twice, and no lease lapses.
#[test]
fn workers_go_on_by_themselves_when_the_server_dies_and_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    let mut cluster =
        Cluster::start(&Binaries::find_or_install().unwrap(), &Settings::new()).unwrap();
    let url = cluster.url();
    Migrations::connect(&ServerAddress::parse(&url).unwrap()).unwrap().up(Roles::Leave).unwrap();
    let mut bench = Bench::on_server(program(), directory.path(), url.clone());
    let (bank, gate) = (bench.file("bank"), bench.file("gate"));
    let setup = Setup { lease: Duration::from_secs(10), concurrency: 8, ..Setup::default() };
    let mut workers: Vec<_> = (0..4).map(|_| bench.worker(&setup)).collect();
    let long = bench.put(&vec![job(&Hold { gate: gate.clone() }); 8]);
    bench.until("the long jobs to start", |bench| bench.store.leases(100).unwrap().len() == 8);
    let paid = bench.put(&vec![job(&Account { bank: bank.clone(), gate: None }); 600]);
    bench.until("the load to be under way", |_| lines(&bank).len() >= 100);
    cluster.stop_immediately().unwrap();
    let done = lines(&bank).len();
    cluster.start_again().unwrap();
    let mut bench = Bench::on_server(program(), directory.path(), url);
    bench.until("the load to be done", |bench| bench.owed() == 8);
    open(&gate);
    bench.finish();
    workers.iter_mut().for_each(Worker::end);
    let events: Vec<Event> = workers.into_iter().flat_map(|worker| worker.events).collect();
    let starts =
        |id: JobId| events.iter().filter(|event| event.is("execution_started", id)).count();
    let twice: Vec<_> = long.iter().chain(&paid).filter(|id| starts(**id) != 1).collect();
    println!(
        "stopped after {done} of 600: {} lapses, {} in doubt, {} jobs did not start once, {} workers noticed",
        taken_back(&events),
        count(&events, "effect_in_doubt"),
        twice.len(),
        count(&events, "store_lost"),
    );
    assert!(done < 600, "it was stopped too late to be under load");
    assert_eq!(twice, Vec::<&JobId>::new());
    assert_eq!(taken_back(&events), 0);
    for id in long.iter().chain(&paid) {
        assert_eq!(bench.ended(*id, State::Succeeded).1, 0, "job {id} has a crash");
    }
    assert_eq!(lines(&bank).into_iter().collect::<BTreeSet<_>>().len(), 600);
    assert!(bench.wrong().is_empty());
}
