//! Many sessions on few jobs: every verb, at random, on the server's own clock.
//!
//! What must hold whichever session wins: no deadlock, no error but a refusal, no job in two
//! places, nothing left over of a job that is gone, and tokens that only rise. Each session draws
//! from a seed of its own, so that a run can be repeated as closely as a server with a clock of its
//! own allows.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread;

use postgres::{Client, Error, Row};
use tenure::engine::clock::Chance;

use super::lab::{Lab, code};

/// The result.
#[derive(Debug, Default, Clone)]
pub struct Report {
    /// Calls that succeeded.
    pub done: u64,
    /// Refusals by SQLSTATE.
    pub refused: BTreeMap<String, u64>,
    /// Claimed jobs.
    pub claims: u64,
    /// Fenced transactions that committed.
    pub effects: i64,
    /// Everything that violates a rule.
    pub wrong: Vec<String>,
}

/// Runs this many sessions, each of which makes this many calls.
pub fn contend(sessions: u64, operations: u64, seed: u64) -> Report {
    let mut lab = Lab::new();
    lab.run_clock();
    // One queue deletes its successes at once.
    lab.text("SELECT keep_ms::text FROM tenure.configure('fleeting', p_keep_ms => 0)");
    let seen = Mutex::new(Seen::default());
    let mut report = Report::default();
    thread::scope(|scope| {
        let sessions: Vec<_> = (0..sessions)
            .map(|n| {
                let client = lab.session();
                let chance = Chance::seeded(seed.wrapping_mul(1_000).wrapping_add(n));
                let seen = &seen;
                scope.spawn(move || Actor::new(n, client, chance, seen).run(operations))
            })
            .collect();
        for session in sessions {
            report.add(session.join().expect("a session comes to its end"));
        }
    });
    report.effects = lab.number("SELECT count(*) FROM public.effects");
    report.wrong.extend(leftovers(&mut lab));
    report
}

impl Report {
    fn add(&mut self, other: Report) {
        self.done += other.done;
        self.claims += other.claims;
        for (code, n) in other.refused {
            *self.refused.entry(code).or_default() += n;
        }
        self.wrong.extend(other.wrong);
    }
}

/// What all sessions know together.
#[derive(Default)]
struct Seen {
    /// The highest token that a claim returned, by job.
    tokens: BTreeMap<i64, i64>,
    /// Leases that were granted, newest last; many are over.
    leases: Vec<(i64, i64)>,
}

struct Actor<'a> {
    worker: String,
    client: Client,
    chance: Chance,
    seen: &'a Mutex<Seen>,
    mine: Vec<(i64, i64)>,
    report: Report,
}

impl<'a> Actor<'a> {
    fn new(n: u64, client: Client, chance: Chance, seen: &'a Mutex<Seen>) -> Actor<'a> {
        let worker = format!("session-{n}");
        Actor { worker, client, chance, seen, mine: vec![], report: Report::default() }
    }

    fn run(mut self, operations: u64) -> Report {
        for _ in 0..operations {
            let doing = self.step();
            match doing {
                Ok(()) => self.report.done += 1,
                Err((sql, error)) => {
                    self.note(&sql, &error);
                    // A refusal aborts its transaction, if there was one.
                    if let Err(error) = self.client.batch_execute("ROLLBACK") {
                        self.note("ROLLBACK", &error);
                    }
                }
            }
        }
        self.report
    }

    /// A refusal is expected; any other error is not.
    fn note(&mut self, sql: &str, error: &Error) {
        let code = code(error);
        if !matches!(code.as_str(), "TN001" | "TN002" | "TN003" | "TN004") {
            self.report.wrong.push(format!("{}: {sql}: {error:?}", self.worker));
        }
        *self.report.refused.entry(code).or_default() += 1;
    }

    fn step(&mut self) -> Result<(), (String, Error)> {
        match self.chance.below(21) {
            0..=1 => self.enqueue(),
            2 => self.enqueue_batch(),
            3..=6 => self.claim(),
            7 => self.renew(),
            8..=11 => self.settle(),
            12 => self.settle_batch(),
            13 => self.settle_and_claim(),
            14..=15 => self.effect(),
            16 => self.sweep(),
            17 => self.operate(),
            18 => self.operate_batch(),
            19 => self.progress(),
            _ => self.hold(),
        }
    }

    fn call(&mut self, sql: &str) -> Result<Vec<Row>, (String, Error)> {
        self.client.query(sql, &[]).map_err(|error| (sql.to_owned(), error))
    }

    /// Uses eight keys, which expire soon. One request in eight has another kind than the others
    /// under its key.
    fn enqueue(&mut self) -> Result<(), (String, Error)> {
        let (key, other) = (self.chance.below(8), self.chance.below(8) / 7);
        // Some args are large, so that they are stored separately.
        let padding = if key < 2 { 3_000 } else { 1 };
        let queue = if key % 3 == 0 { "fleeting" } else { "default" };
        let sql = format!(
            "SELECT tenure.enqueue('kind{other}', json_build_object('pad', repeat('x', {padding})), key => 'key{key}',
             queue => '{queue}', key_window => '{} ms', retry => '{{\"fixed\":{{\"ms\":0}}}}', max_attempts => 9, max_crashes => 9)",
            self.chance.below(200)
        );
        self.call(&sql).map(drop)
    }

    /// The same keys, several at a time, in any order.
    fn enqueue_batch(&mut self) -> Result<(), (String, Error)> {
        let n = 2 + self.chance.below(4);
        let keys = self.list(n, |chance| format!("'key{}'", chance.below(8)));
        let sql = format!(
            "SELECT * FROM tenure.enqueue_many(array_fill('kind0'::text, ARRAY[{n}]), array_fill('{{}}'::json, ARRAY[{n}]),
             p_keys => ARRAY[{keys}], p_options => array_fill('{{\"key_window_ms\":{}}}'::json, ARRAY[{n}]),
             p_fingerprints => array_fill(tenure.fingerprint('kind0', '{{}}'), ARRAY[{n}]))",
            self.chance.below(200)
        );
        self.call(&sql).map(drop)
    }

    fn claim(&mut self) -> Result<(), (String, Error)> {
        let (n, lease) = (1 + self.chance.below(4), 1 + self.chance.below(40));
        let before = self.tokens();
        let sql = format!(
            "SELECT id, token FROM tenure.claim('{}', '{{default,fleeting}}', {n}, '{lease} ms')",
            self.worker
        );
        let rows = self.call(&sql)?;
        self.take(&before, rows.iter().map(|row| (row.get(0), row.get(1))));
        Ok(())
    }

    fn renew(&mut self) -> Result<(), (String, Error)> {
        let leases = self.some_leases();
        self.call(&format!("SELECT * FROM tenure.renew_many({}, 20)", arrays(&leases)))?;
        let (job, token) = self.lease();
        self.call(&format!("SELECT tenure.renew({job}, {token}, '20 ms')")).map(drop)
    }

    fn progress(&mut self) -> Result<(), (String, Error)> {
        let leases = self.some_leases();
        let n = leases.len();
        self.call(&format!(
            "SELECT * FROM tenure.progress_many({}, array_fill(500::smallint, ARRAY[{n}]), array_fill('half'::text, ARRAY[{n}]))",
            arrays(&leases)
        ))?;
        let (job, token) = self.lease();
        self.call(&format!("SELECT tenure.progress({job}, {token}, 0.7)")).map(drop)
    }

    fn settle(&mut self) -> Result<(), (String, Error)> {
        let (job, token) = self.lease();
        let call = match self.chance.below(9) {
            0..=3 => format!("complete({job}, {token}, '1')"),
            4 => format!("fail({job}, {token}, 'no')"),
            5 => format!("snooze({job}, {token}, '{} ms')", self.chance.below(5)),
            6 => format!("release({job}, {token})"),
            7 => format!("park({job}, {token}, 'later')"),
            _ => format!("bury({job}, {token}, 'never')"),
        };
        self.call(&format!("SELECT tenure.{call}")).map(drop)
    }

    /// Mixed verbs on the same few jobs, in any order, sometimes a job more than once.
    fn settle_batch(&mut self) -> Result<(), (String, Error)> {
        let settlements = self.settlements();
        self.call(&format!("SELECT * FROM tenure.settle_many({settlements})")).map(drop)
    }

    fn settle_and_claim(&mut self) -> Result<(), (String, Error)> {
        let settlements = self.settlements();
        let before = self.tokens();
        let sql = format!(
            "SELECT job, token FROM tenure.settle_and_claim({settlements}, '{}', '{{default,fleeting}}', NULL, 2, 20)
              WHERE what = 'claimed'",
            self.worker
        );
        let rows = self.call(&sql)?;
        self.take(&before, rows.iter().map(|row| (row.get(0), row.get(1))));
        Ok(())
    }

    /// A user's own transaction: a write, a fence, and perhaps the completion.
    fn effect(&mut self) -> Result<(), (String, Error)> {
        let (job, token) = self.lease();
        let complete = match self.chance.below(3) {
            0 => String::new(),
            _ => format!("SELECT tenure.complete({job}, {token});"),
        };
        let sql = format!(
            "BEGIN; SELECT tenure.fence({job}, {token});
             INSERT INTO public.effects VALUES ({job}, {token}, '{}'); {complete} COMMIT",
            if complete.is_empty() { "fenced" } else { "completed" }
        );
        self.client.batch_execute(&sql).map_err(|error| (sql, error))
    }

    /// A transaction that holds its job while other sessions continue.
    fn hold(&mut self) -> Result<(), (String, Error)> {
        let (job, token) = self.lease();
        let end = if self.chance.below(2) == 0 { "COMMIT" } else { "ROLLBACK" };
        for sql in [
            "BEGIN".to_owned(),
            format!("SELECT tenure.hold({job}, {token})"),
            format!("SELECT tenure.complete({job}, {token})"),
            end.to_owned(),
        ] {
            self.client.batch_execute(&sql).map_err(|error| (sql, error))?;
        }
        Ok(())
    }

    fn sweep(&mut self) -> Result<(), (String, Error)> {
        let over = self.call("SELECT job, token FROM tenure.overdue(5)")?;
        let over: Vec<(i64, i64)> = over.iter().map(|row| (row.get(0), row.get(1))).collect();
        self.call(&format!("SELECT * FROM tenure.lapse_many({})", arrays(&over)))?;
        if self.chance.below(8) == 0 {
            self.call("SELECT * FROM tenure.prune(10)")?;
        }
        Ok(())
    }

    fn operate(&mut self) -> Result<(), (String, Error)> {
        let (job, token) = self.lease();
        let call = match self.chance.below(5) {
            0 => format!("cancel({job})"),
            1 => format!("requeue({job}, {token})"),
            2 => format!("refused({job}, {token}, 'complete')"),
            3 => format!("resume({job})"),
            _ => format!("requeue({job})"),
        };
        self.call(&format!("SELECT tenure.{call}")).map(drop)
    }

    fn operate_batch(&mut self) -> Result<(), (String, Error)> {
        let n = 1 + self.chance.below(6);
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner).tokens.len() as u64;
        let jobs = self.list(n, |chance| (1 + chance.below(seen + 4)).to_string());
        let tokens = format!("array_fill(NULL::bigint, ARRAY[{n}])");
        let call = match self.chance.below(6) {
            0 => format!("cancel_many(ARRAY[{jobs}]::bigint[])"),
            1..=3 => format!("requeue_many(ARRAY[{jobs}]::bigint[], {tokens})"),
            4 => format!("resume_many(ARRAY[{jobs}]::bigint[])"),
            // Jobs that ended some time ago, as an operator purges them.
            _ => format!(
                "purge_many(p.jobs, p.tokens) FROM (SELECT coalesce(array_agg(d.id), '{{}}'), coalesce(array_agg(d.token), '{{}}')
                 FROM tenure.done d WHERE d.finished_at < tenure.clock_ms() - 250 AND d.id % 7 = {n}) p(jobs, tokens)"
            ),
        };
        self.call(&format!("SELECT tenure.{call}")).map(drop)
    }

    /// A lease of this session or of any other, which may long be over.
    fn lease(&mut self) -> (i64, i64) {
        let own = self.mine.len() as u64;
        if own > 0 && self.chance.below(4) > 0 {
            // The latest leases are the ones that may still hold.
            let back = self.chance.below(own.min(3));
            return self.mine[(own - 1 - back) as usize];
        }
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let all = seen.leases.len() as u64;
        if all == 0 {
            return (1, 1);
        }
        let back = self.chance.below(all.min(20));
        seen.leases[(all - 1 - back) as usize]
    }

    fn some_leases(&mut self) -> Vec<(i64, i64)> {
        (0..1 + self.chance.below(5)).map(|_| self.lease()).collect()
    }

    fn settlements(&mut self) -> String {
        let leases = self.some_leases();
        let n = leases.len();
        let verbs = self.list(n as u64, |chance| {
            let verbs = ["complete", "retry", "snooze", "release", "bury", "park", "complete"];
            format!("'{}'", verbs[chance.below(verbs.len() as u64) as usize])
        });
        format!(
            "{}, ARRAY[{verbs}], array_fill(0::bigint, ARRAY[{n}]), array_fill('why'::text, ARRAY[{n}]),
             array_fill(NULL::json, ARRAY[{n}])",
            arrays(&leases)
        )
    }

    fn list(&mut self, n: u64, item: impl Fn(&mut Chance) -> String) -> String {
        (0..n).map(|_| item(&mut self.chance)).collect::<Vec<_>>().join(", ")
    }

    /// The highest tokens that were known before a call began.
    fn tokens(&self) -> BTreeMap<i64, i64> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).tokens.clone()
    }

    /// I2: the token that a claim returns is above every token of the job that was known before the
    /// claim began.
    fn take(&mut self, before: &BTreeMap<i64, i64>, leases: impl Iterator<Item = (i64, i64)>) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        for (job, token) in leases {
            self.report.claims += 1;
            if before.get(&job).is_some_and(|known| *known >= token) {
                self.report.wrong.push(format!("job {job}: token {token} after {before:?}"));
            }
            if seen.leases.contains(&(job, token)) {
                self.report.wrong.push(format!("job {job}: token {token} was given out twice"));
            }
            let highest = seen.tokens.entry(job).or_default();
            *highest = token.max(*highest);
            seen.leases.push((job, token));
            self.mine.push((job, token));
        }
    }
}

/// The jobs and tokens as two arrays, for a function that takes a batch.
fn arrays(leases: &[(i64, i64)]) -> String {
    let list = |of: fn(&(i64, i64)) -> i64| {
        leases.iter().map(|lease| of(lease).to_string()).collect::<Vec<_>>().join(", ")
    };
    format!("ARRAY[{}]::bigint[], ARRAY[{}]::bigint[]", list(|l| l.0), list(|l| l.1))
}

/// What a store must not contain, whatever was done to it.
fn leftovers(lab: &mut Lab) -> Vec<String> {
    const RULES: [(&str, &str); 7] = [
        ("jobs in both tables", "SELECT count(*) FROM tenure.jobs JOIN tenure.done USING (id)"),
        (
            "payloads of no job",
            "SELECT count(*) FROM tenure.payloads p WHERE NOT EXISTS (SELECT 1 FROM tenure.record r WHERE r.id = p.job_id)",
        ),
        ("jobs without args", "SELECT count(*) FROM tenure.record WHERE args IS NULL"),
        (
            "timelines of no job",
            "SELECT count(*) FROM tenure.timeline l WHERE NOT EXISTS (SELECT 1 FROM tenure.record r WHERE r.id = l.job_id)",
        ),
        (
            "running jobs without a lease or a holder",
            "SELECT count(*) FROM tenure.jobs WHERE (state = 2) <> (lease_until IS NOT NULL AND worker IS NOT NULL
             AND lease_ms IS NOT NULL AND started_at IS NOT NULL)",
        ),
        ("fences that outlived their transaction", "SELECT count(*) FROM tenure.fences"),
        (
            "completions whose effect is there twice",
            "SELECT count(*) FROM (SELECT 1 FROM public.effects WHERE note = 'completed'
             GROUP BY job, token HAVING count(*) > 1) twice",
        ),
    ];
    let mut wrong = Vec::new();
    for (what, sql) in RULES {
        let found = lab.number(sql);
        if found > 0 {
            wrong.push(format!("{found} {what}"));
        }
    }
    wrong
}
