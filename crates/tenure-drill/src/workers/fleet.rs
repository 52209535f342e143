//! Many idle workers. The real machines of each worker are stepped when they are due, over a few
//! connections that all workers share, so that a fleet needs neither a thread nor a connection for
//! each worker. The server itself counts what this costs it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use postgres::{Client, NoTls};
use tenure::WorkerId;
use tenure::drill::machines::{Crew, Desk, Dispatcher, Hold, NextStep, Plan, Renewer, Sweeper};
use tenure::engine::clock::{Moment, monotonic};
use tenure::engine::store::postgres::{Postgres, PostgresOptions, ServerAddress};
use tenure::engine::store::{Attempt, Wake, Work};

use crate::servers;

/// The number of connections of a fleet, at most.
const LINES: usize = 2;

/// Workers that serve the queue `default`.
pub struct Fleet {
    lines: Vec<Postgres>,
    members: Vec<Member>,
    /// When each machine of each member wants to be stepped.
    wakes: BinaryHeap<Reverse<(Moment, usize, Machine)>>,
}

struct Member {
    desk: Arc<Desk>,
    dispatcher: Dispatcher<Nobody>,
    renewer: Renewer,
    sweeper: Sweeper,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Machine {
    Renewer,
    Dispatcher,
    Sweeper,
}

/// Runs no job: what is claimed stays leased.
struct Nobody;

impl Crew for Nobody {
    fn another(&mut self) -> Nobody {
        Nobody
    }

    fn start(&mut self, _: Attempt, _: Arc<Hold>) {}
}

impl Fleet {
    /// Registers this many workers in the store at `place`. They begin when [`Fleet::run`] is
    /// called.
    pub fn new(place: &str, workers: usize) -> Fleet {
        let address = ServerAddress::parse(place).expect("an address");
        let open = || Postgres::open(&address, &PostgresOptions::default()).expect("it answers");
        let now = Moment::now();
        let member = |_| {
            let mut plan = Plan::new(WorkerId::unique());
            plan.slots = 4;
            let plan = Arc::new(plan);
            let desk = Arc::new(Desk::new(plan.slots));
            Member {
                dispatcher: Dispatcher::new(Arc::clone(&plan), Arc::clone(&desk), Nobody, now),
                renewer: Renewer::new(Arc::clone(&plan), Arc::clone(&desk)),
                sweeper: Sweeper::new(plan, Arc::clone(&desk), now),
                desk,
            }
        };
        let machines = [Machine::Renewer, Machine::Dispatcher, Machine::Sweeper];
        Fleet {
            lines: (0..workers.min(LINES)).map(|_| open()).collect(),
            members: (0..workers).map(member).collect(),
            wakes: (0..workers)
                .flat_map(|who| machines.map(|machine| Reverse((now, who, machine))))
                .collect(),
        }
    }

    /// Runs the workers for this long.
    pub fn run(&mut self, length: Duration) {
        let end = Moment::now() + length;
        while let now = Moment::now()
            && now < end
        {
            match self.wakes.peek() {
                Some(Reverse((at, ..))) if *at <= now => self.step(now),
                next => {
                    let until = next.map_or(end, |Reverse((at, ..))| end.min(*at));
                    self.listen(until.since(now));
                }
            }
        }
    }

    fn step(&mut self, now: Moment) {
        let Some(Reverse((_, who, machine))) = self.wakes.pop() else { return };
        let line = who % self.lines.len();
        let (store, member) = (&mut self.lines[line], &mut self.members[who]);
        let next = match machine {
            Machine::Renewer => member.renewer.step(store, now),
            Machine::Dispatcher => member.dispatcher.step(store, now),
            Machine::Sweeper => member.sweeper.step(store, now),
        };
        match next {
            NextStep::Again => self.wakes.push(Reverse((now, who, machine))),
            NextStep::At(at) => self.wakes.push(Reverse((at, who, machine))),
            NextStep::Done => {}
        }
    }

    /// Waits for a change, as the threads of real workers do; but one connection listens for all,
    /// since they serve the same queue.
    fn listen(&mut self, left: Duration) {
        if self.lines[0].wait(monotonic() + left).expect("it answers") == Wake::TimedOut {
            return;
        }
        let now = Moment::now();
        for (who, member) in self.members.iter().enumerate() {
            member.desk.poke();
            self.wakes.push(Reverse((now, who, Machine::Dispatcher)));
        }
        // Each dispatcher is stepped once, at its earliest time.
        let mut earliest = BTreeMap::new();
        for Reverse((at, who, machine)) in self.wakes.drain() {
            let known = earliest.entry((who, machine)).or_insert(at);
            *known = at.min(*known);
        }
        let wakes = earliest.into_iter().map(|((who, machine), at)| Reverse((at, who, machine)));
        self.wakes = wakes.collect();
    }
}

/// The processor time of a server's processes; the server is found by its data directory.
pub fn time_at_work(data: &Path) -> Duration {
    let file = fs::read_to_string(data.join("postmaster.pid")).expect("it runs");
    let postmaster = file.lines().next().expect("its first line").trim().to_owned();
    let of = |pid: &str| -> Option<Duration> {
        let read = |what: &str| fs::read_to_string(format!("/proc/{pid}/{what}")).ok();
        let stat = read("stat")?;
        let is_child = stat.rsplit(')').next()?.split_whitespace().nth(1)? == postmaster;
        let nanos = read("schedstat")?.split_whitespace().next()?.parse().ok()?;
        (is_child || pid == postmaster).then(|| Duration::from_nanos(nanos))
    };
    let processes = fs::read_dir("/proc").expect("a Linux");
    processes.filter_map(|entry| of(entry.ok()?.file_name().to_str()?)).sum()
}

/// How often sessions that have ended called each function of the database, as the server counts.
pub struct Calls {
    client: Client,
    database: String,
    /// The counts that [`Calls::since`] has already returned.
    told: BTreeMap<String, i64>,
}

impl Calls {
    /// Counts from now on, in sessions that begin after this call.
    pub fn count(place: &str) -> Calls {
        let connect = || Client::connect(&servers::in_no_schema(place), NoTls).expect("it answers");
        let database = "SELECT current_database()::text";
        let mut client = connect();
        let name: String = client.query_one(database, &[]).expect("it answers").get(0);
        let settings = format!(
            "ALTER DATABASE \"{name}\" SET track_functions = 'all'; SELECT pg_stat_reset()"
        );
        client.batch_execute(&settings).expect("it may");
        Calls { client: connect(), database: name, told: BTreeMap::new() }
    }

    /// Waits until the calling sessions have ended. Returns the functions that were called since
    /// the last call of `since`.
    pub fn since(&mut self) -> BTreeSet<String> {
        let all = self.all();
        let more = |(name, calls): &(&String, &i64)| self.told.get(*name) != Some(*calls);
        let called = all.iter().filter(more).map(|(name, _)| name.clone()).collect();
        self.told = all;
        called
    }

    /// All counts, once the calling sessions have ended.
    pub fn all(&mut self) -> BTreeMap<String, i64> {
        let others = "SELECT count(*) FROM pg_stat_activity
                       WHERE datname = current_database() AND pid <> pg_backend_pid()
                         AND backend_type = 'client backend'";
        while self.client.query_one(others, &[]).expect("it answers").get::<_, i64>(0) > 0 {}
        let calls =
            "SELECT funcname::text, sum(calls)::bigint FROM pg_stat_user_functions GROUP BY 1";
        let rows = self.client.query(calls, &[]).expect("it answers");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        let settings = format!("ALTER DATABASE \"{}\" RESET track_functions", self.database);
        // If the server does not answer any more, there is nothing to reset.
        let _ = self.client.batch_execute(&settings);
    }
}
