//! What calls cost on PostgreSQL, by the server's own counts.
//!
//! Pages: jobs that are not due, have ended, or are of a kind that the claim does not ask for must
//! not make a claim more expensive, and neither must dead rows that an old transaction keeps from
//! being vacuumed. Every session is warmed on the empty, never analysed tables, where the planner
//! makes its worst choices.
//!
//! Statements, plans, transactions and bytes of WAL: a job's way through the store stays within a
//! budget.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::time::Duration;

use postgres::Client;
use tenure::WorkerId;
use tenure::engine::clock::Clock;
use tenure::engine::job::{Json, Name, NewJob};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::postgres::{
    Migrations, Postgres, PostgresOptions, Roles, ServerAddress,
};
use tenure::engine::store::{Claim, Settlement, Work};
use tenure_cluster::{Binaries, Cluster, Settings};
use tenure_drill::engines::START;
use tenure_drill::servers;

/// A session that has claimed from empty tables until its plans were cached.
fn warmed() -> Client {
    drop(servers::fresh("tenure", &Clock::manual(START), &PostgresOptions::default()).unwrap());
    let mut client = servers::connect(&servers::database());
    // Emptied as if new, and without autovacuum: statistics and vacuuming would only help.
    client
        .batch_execute(
            "TRUNCATE tenure.jobs, tenure.done, tenure.payloads, tenure.timeline, tenure.keys;
             ALTER TABLE tenure.jobs SET (autovacuum_enabled = off);
             ALTER TABLE tenure.done SET (autovacuum_enabled = off);
             DELETE FROM pg_statistic WHERE starelid IN ('tenure.jobs'::regclass, 'tenure.done'::regclass)",
        )
        .unwrap();
    for _ in 0..3 {
        assert_eq!(claim(&mut client, 10, None).jobs, 0);
        // Statements that run only when there is work get their plans too, while there is hardly
        // any work.
        enqueue(&mut client, "work", 10, 1, 0);
        assert_eq!(claim(&mut client, 10, None).jobs, 10);
        client.batch_execute("DELETE FROM tenure.jobs").unwrap();
    }
    client
}

/// Jobs of one kind, due `delay_ms` from now, spread over tenants.
fn enqueue(client: &mut Client, kind: &str, n: i32, tenants: i32, delay_ms: i64) {
    client
        .execute(
            "INSERT INTO tenure.jobs (id, state, lane, priority, run_at, token, attempt, max_attempts, crashes,
                                      max_crashes, queue, tenant, kind, args, enqueued_at)
             SELECT nextval('tenure.job_id'), CASE WHEN $4::bigint > 0 THEN 1 ELSE 0 END, t.lane, 0,
                    tenure.clock_ms() + $4 + g / 100, 0, 0, 6, 0, 3, 'default', t.tenant, $1::text, '{\"n\":1}',
                    tenure.clock_ms()
               FROM generate_series(0, $2::int - 1) g
               JOIN (SELECT i, 't' || i AS tenant, tenure.lane('default', 't' || i, $1, false) AS lane
                       FROM generate_series(0, $3::int - 1) i) t ON t.i = g % $3",
            &[&kind, &n, &tenants, &delay_ms],
        )
        .unwrap();
}

/// Jobs that have succeeded.
fn ended(client: &mut Client, n: i32) {
    client
        .execute(
            "INSERT INTO tenure.done (id, run_at, token, enqueued_at, started_at, finished_at, attempt, max_attempts,
                                      crashes, max_crashes, priority, state, queue, tenant, kind, args, worker)
             SELECT nextval('tenure.job_id'), 0, 1, 0, 0, tenure.clock_ms() + g / 100, 1, 6, 0, 3, 0, 4, 'default',
                    't0', 'work', '{\"n\":1}', 'ann' FROM generate_series(1, $1::int) g",
            &[&n],
        )
        .unwrap();
}

/// How one claim went.
struct Claimed {
    jobs: i64,
    pages: u64,
    marks: Option<String>,
}

/// A claim of jobs of the kind `work`.
fn claim(client: &mut Client, n: i32, marks: Option<&str>) -> Claimed {
    // The answer goes into a temporary table, since EXPLAIN shows only the cost.
    let explained: Vec<String> = client
        .batch_execute("DROP TABLE IF EXISTS pg_temp.answer; CREATE TEMPORARY TABLE answer (what text, marks text)")
        .and_then(|()| {
            let quoted = marks.map_or("NULL".to_owned(), |marks| format!("'{marks}'"));
            client.simple_query(&format!(
                "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) INSERT INTO answer SELECT c.what, c.marks \
                 FROM tenure.claim_many('ann', '{{default}}', '{{work}}', {n}, 30000, 0, {quoted}, p_round => 0) c"
            ))
        })
        .unwrap()
        .iter()
        .filter_map(|message| match message {
            postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        })
        .collect();
    let plan: serde_json::Value = serde_json::from_str(&explained.concat()).unwrap();
    // The pages of the function itself, without the INSERT around it.
    let scan = &plan[0]["Plan"]["Plans"][0];
    let pages = |which: &str| scan[which].as_u64().unwrap();
    let row = client
        .query_one("SELECT count(*) FILTER (WHERE what = 'claimed'), max(marks) FROM answer", &[])
        .unwrap();
    Claimed {
        jobs: row.get(0),
        pages: pages("Shared Hit Blocks") + pages("Shared Read Blocks"),
        marks: row.get(1),
    }
}

/// The pages of a claim of ten when there are no other jobs.
fn alone() -> u64 {
    let mut client = warmed();
    least(|| {
        client.batch_execute("DELETE FROM tenure.jobs").unwrap();
        enqueue(&mut client, "work", 10, 1, 0);
        ten(&mut client)
    })
}

/// The pages of a claim of ten from a hundred thousand jobs of this many tenants.
fn from_plenty(tenants: i32) -> u64 {
    let mut client = warmed();
    enqueue(&mut client, "work", 100_000, tenants, 0);
    least(|| ten(&mut client))
}

/// The least of three: other sessions of the server can make this one read the catalogue again.
fn least(mut measure: impl FnMut() -> u64) -> u64 {
    (0..3).map(|_| measure()).min().unwrap()
}

/// The pages of a claim of ten from the existing jobs.
fn ten(client: &mut Client) -> u64 {
    let claimed = claim(client, 10, None);
    assert_eq!((claimed.jobs, claimed.marks), (10, None));
    claimed.pages
}

#[test]
fn a_claim_costs_the_same_beside_millions_of_jobs_that_it_does_not_take() {
    let alone = alone();
    let mut client = warmed();
    ended(&mut client, 1_000_000);
    enqueue(&mut client, "work", 1_000_000, 1, 3_600_000);
    enqueue(&mut client, "other", 300_000, 1, 0);
    enqueue(&mut client, "work", 30, 1, 0);
    let beside = least(|| ten(&mut client));
    println!("alone {alone} pages, beside 2,300,000 others {beside}");
    assert!(beside <= 2 * alone, "{beside} pages against {alone}");
}

#[test]
fn a_claim_costs_the_same_with_a_thousand_tenants() {
    let (of_one, of_many) = (from_plenty(1), from_plenty(1_000));
    println!("with one tenant {of_one} pages, with 1,000 tenants {of_many}");
    assert!(of_many <= 2 * of_one, "{of_many} pages against {of_one}");
}

#[test]
fn a_claim_costs_the_same_beside_any_number_of_tenants_whose_jobs_it_cannot_run() {
    let beside = |tenants: i32| {
        let mut client = warmed();
        enqueue(&mut client, "other", tenants, tenants, 0);
        least(|| {
            let claimed = claim(&mut client, 10, None);
            assert_eq!(claimed.jobs, 0);
            claimed.pages
        })
    };
    let (few, many) = (beside(300), beside(10_000));
    println!("beside 300 such tenants {few} pages, beside 10,000 {many}");
    assert!(many <= 2 * few, "{many} pages against {few}");
}

/// Promotion looks only at the queues that a claim asks for. The costs are measured before and
/// after the tables are analysed, since the planner then knows how many jobs wait.
#[test]
fn a_claim_costs_the_same_beside_any_number_of_due_jobs_of_a_queue_that_nobody_serves() {
    let alone = alone();
    let mut client = warmed();
    enqueue(&mut client, "work", 200_000, 10, 3_600_000);
    client
        .batch_execute(
            "UPDATE tenure.jobs SET queue = 'unserved', run_at = 1,
                                    lane = tenure.lane('unserved', tenant, kind, false)",
        )
        .unwrap();
    for analysed in [false, true] {
        if analysed {
            client.batch_execute("ANALYZE tenure.jobs").unwrap();
        }
        enqueue(&mut client, "work", 40, 1, 0);
        let beside = least(|| ten(&mut client));
        println!("alone {alone} pages, beside 200,000 due ones {beside}, analysed: {analysed}");
        assert!(beside <= 2 * alone, "{beside} pages against {alone}, analysed: {analysed}");
    }
}

#[test]
fn an_old_transaction_makes_one_claim_dear_and_not_the_next() {
    let clean = from_plenty(1);
    let mut client = warmed();
    enqueue(&mut client, "work", 100_000, 1, 0);
    let mut old = servers::connect(&servers::database());
    let mut horizon = old.transaction().unwrap();
    horizon
        .batch_execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM tenure.meta")
        .unwrap();
    for _ in 0..50 {
        client
            .batch_execute(
                "WITH c AS MATERIALIZED (SELECT job, token FROM tenure.claim_many('ann', '{default}', '{work}', 1000, 30000)
                                          WHERE what = 'claimed')
                 SELECT count(*) FROM (SELECT array_agg(job) AS jobs, array_agg(token) AS tokens FROM c) a,
                   LATERAL tenure.settle_many(a.jobs, a.tokens, array_fill('complete'::text, ARRAY[1000]),
                     array_fill(NULL::bigint, ARRAY[1000]), array_fill(NULL::text, ARRAY[1000]), array_fill(NULL::json, ARRAY[1000]))",
            )
            .unwrap();
    }
    let first = claim(&mut client, 10, None);
    assert!(first.pages > 10 * clean, "{} pages: there is nothing in the way", first.pages);
    let mut marks = first.marks;
    let marked = least(|| {
        let claimed = claim(&mut client, 10, marks.as_deref());
        assert_eq!(claimed.jobs, 10);
        marks = claimed.marks;
        claimed.pages
    });
    println!(
        "clean {clean} pages, past 50,000 dead jobs {}, and with its marks {marked}",
        first.pages
    );
    assert!(marked <= 2 * clean, "{marked} pages against {clean}");
    horizon.rollback().unwrap();
}

/// Here no old transaction is open, and no vacuum has run yet. The index knows that the entries are
/// dead and skips them without counting them, but their pages are read.
#[test]
fn pages_of_dead_entries_are_passed_by_with_marks_too() {
    let clean = from_plenty(1);
    let mut client = warmed();
    enqueue(&mut client, "work", 250_000, 1, 0);
    client.batch_execute("DELETE FROM tenure.jobs").unwrap();
    enqueue(&mut client, "work", 100, 1, 0);
    client.batch_execute("UPDATE tenure.jobs SET priority = 1").unwrap();
    // The first claim reads the entries and learns that they are dead.
    let pages = [0; 3].map(|_| {
        let claimed = claim(&mut client, 10, None);
        assert_eq!(claimed.jobs, 10);
        (claimed.pages, claimed.marks)
    });
    let mut marks = pages[2].1.clone();
    assert!(marks.is_some(), "{pages:?}");
    let marked = least(|| {
        let claimed = claim(&mut client, 10, marks.as_deref());
        assert_eq!(claimed.jobs, 10);
        marks = claimed.marks;
        claimed.pages
    });
    println!("clean {clean} pages, past dead ones {}, with marks {marked}", pages[2].0);
    assert!(pages[2].0 > 10 * clean, "{} pages: there is nothing in the way", pages[2].0);
    assert!(marked <= 2 * clean, "{marked} pages against {clean}");
}

#[test]
fn without_dead_entries_no_claim_makes_marks() {
    for tenants in [1, 10, 1_000] {
        let mut client = warmed();
        enqueue(&mut client, "work", 5_000, tenants, 0);
        for _ in 0..6 {
            let claimed = claim(&mut client, 1_000, None);
            assert_eq!((claimed.marks, tenants), (None, tenants), "{} jobs", claimed.jobs);
        }
    }
}

/// What some calls have used, as the server counts.
#[derive(Debug)]
struct Used {
    /// Statements that the library sent, each of which is one round trip.
    sent: i64,
    /// Statements within functions.
    inside: i64,
    /// Statements that were planned anew.
    planned: i64,
    /// Transactions and savepoints that wrote.
    transactions: i64,
    /// Bytes of the write-ahead log.
    wal: i64,
}

/// A server that counts statements and plans, and writes nothing by itself.
struct Counter {
    cluster: Cluster,
}

impl Counter {
    fn start() -> Counter {
        let settings = Settings::new()
            .config("shared_preload_libraries", "pg_stat_statements")
            .config("pg_stat_statements.track", "all")
            .config("pg_stat_statements.track_planning", "on")
            .config("autovacuum", "off")
            .config("checkpoint_timeout", "1h")
            .config("bgwriter_delay", "10s")
            .config("fsync", "off");
        let cluster = Cluster::start(&Binaries::find_or_install().unwrap(), &settings).unwrap();
        let address = ServerAddress::parse(&cluster.url()).unwrap();
        Migrations::connect(&address).unwrap().up(Roles::Leave).unwrap();
        cluster.psql("CREATE EXTENSION pg_stat_statements").unwrap();
        Counter { cluster }
    }

    fn connect(&self) -> Postgres {
        let address = ServerAddress::parse(&self.cluster.url()).unwrap();
        Postgres::open(&address, &PostgresOptions::default()).unwrap()
    }

    fn numbers<const N: usize>(&self, sql: &str) -> [i64; N] {
        let answer = self.cluster.psql(sql).unwrap();
        let numbers: Vec<i64> = answer.split('|').map(|it| it.trim().parse().unwrap()).collect();
        numbers.try_into().unwrap()
    }

    /// What `calls` used.
    fn used(&self, calls: impl FnOnce()) -> Used {
        let place = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint,
                            pg_snapshot_xmax(pg_current_snapshot())::text::bigint";
        self.cluster.psql("SELECT pg_stat_statements_reset()").unwrap();
        let [wal, transactions] = self.numbers(place);
        calls();
        let [wal_after, transactions_after] = self.numbers(place);
        let [sent, inside, planned] = self.numbers(
            "SELECT coalesce(sum(calls) FILTER (WHERE toplevel), 0)::bigint,
                    coalesce(sum(calls) FILTER (WHERE NOT toplevel), 0)::bigint,
                    coalesce(sum(plans), 0)::bigint
               FROM pg_stat_statements WHERE query !~ 'pg_stat_statements|pg_snapshot_xmax'",
        );
        Used {
            sent,
            inside,
            planned,
            transactions: transactions_after - transactions,
            wal: wal_after - wal,
        }
    }
}

/// The jobs that a test of a budget has in one call.
const BATCH: usize = 100;

fn job() -> NewJob {
    let kind = Name::check("kind", "work").unwrap();
    NewJob::new(kind, Json::check("args", r#"{"n":1}"#, 100).unwrap())
}

/// Completes what is held and claims up to `n` jobs, in one call.
fn next(store: &mut Postgres, held: &[Settlement], n: usize) -> Vec<Settlement> {
    let ann = WorkerId::check("ann").unwrap();
    let ask = Claim::new(ann, n, Duration::from_secs(30));
    let (settled, claimed) = store.settle_and_claim(held, &ask).unwrap();
    assert_eq!(settled.len(), held.len());
    let complete = |fence| Settlement::new(fence, Outcome::Complete { result: None });
    claimed.attempts.iter().map(|attempt| complete(attempt.lease.fence())).collect()
}

#[test]
fn a_job_goes_through_the_store_within_a_budget_and_nothing_is_planned_again() {
    let counter = Counter::start();
    let mut store = counter.connect();
    let mut held = Vec::new();
    for _ in 0..12 {
        store.enqueue(&vec![job(); BATCH]).unwrap();
        store.enqueue(&[job()]).unwrap();
        held = next(&mut store, &held, BATCH);
        assert_eq!(held.len(), BATCH);
    }
    let batches = counter.used(|| {
        for _ in 0..10 {
            store.enqueue(&vec![job(); BATCH]).unwrap();
        }
    });
    let one = counter.used(|| {
        for _ in 0..10 {
            store.enqueue(&[job()]).unwrap();
        }
    });
    let worked = counter.used(|| {
        for _ in 0..10 {
            held = next(&mut store, &held, BATCH);
            assert_eq!(held.len(), BATCH);
        }
    });
    println!("10 x 100 enqueued: {batches:?}\n10 x 1: {one:?}\n10 x 100 worked off: {worked:?}");
    for used in [&batches, &one, &worked] {
        assert_eq!((used.sent, used.transactions, used.planned), (10, 10, 0), "{used:?}");
    }
    // A call runs no more statements for a hundred jobs than for one.
    assert!(batches.inside <= 10 * 17 && one.inside <= 10 * 17, "{batches:?}, {one:?}");
    assert!(worked.inside <= 10 * 12, "{worked:?}");
    assert!(batches.wal <= 1_000 * 350 && one.wal <= 10 * 400, "{batches:?}, {one:?}");
    assert!(worked.wal <= 1_000 * 930, "{worked:?}");
}
