//! The sessions that are stepped, and a control session that sees which session waits for which.
//!
//! Each session has its own thread, gets one statement at a time and answers it. The server itself
//! reports which sessions wait, so nothing here sleeps.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use postgres::{Client, SimpleQueryMessage};
use tenure::drill::Patch;
use tenure::engine::clock::{Clock, monotonic};
use tenure::engine::store::postgres::PostgresOptions;

use super::script::SCRIPTS;
use super::start::Start;
use super::{Answer, SESSIONS, WARMED};
use crate::engines::START;
use crate::servers;

/// How long a statement that waits for no other session may take before it counts as stuck.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// A database with the schema and a user's table, and sessions on it.
pub(super) struct Bench {
    schema: String,
    control: Client,
    /// The process id of the control session.
    pid: i32,
    seats: Vec<Seat>,
    answers: Receiver<(usize, Answer)>,
    restores: u32,
}

/// Stands for the control session. A session that is paused inside a call waits for it.
pub(super) const CONTROL: usize = SESSIONS;

/// One session.
struct Seat {
    pid: i32,
    ask: Option<Sender<String>>,
    thread: Option<JoinHandle<()>>,
}

/// The committed state of all jobs.
#[derive(Debug, Clone, Default)]
pub(super) struct Facts {
    /// The store's clock.
    pub(super) now: i64,
    /// Jobs by id.
    pub(super) jobs: BTreeMap<i64, Fact>,
}

/// The committed state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fact {
    pub(super) state: i64,
    pub(super) token: i64,
    pub(super) lease_until: i64,
    pub(super) lease_ms: i64,
}

/// The state of the sessions once nothing moves by itself.
pub(super) struct Calm {
    /// The answers, in the order in which they came.
    pub(super) answered: Vec<(usize, Answer)>,
    /// The sessions that wait, and for which others.
    pub(super) waiting: Vec<(usize, Vec<usize>)>,
}

impl Bench {
    /// On the unchanged store.
    pub(super) fn whole() -> Bench {
        const SCHEMA: &str = "tenure";
        let store = servers::fresh(SCHEMA, &Clock::manual(START), &PostgresOptions::default());
        drop(store.expect("a store can be made"));
        Bench::open(SCHEMA)
    }

    /// On a patched store, which lacks a safeguard.
    pub(super) fn patched(patches: &[Patch]) -> Bench {
        let store = servers::patched(patches, &Clock::manual(START));
        drop(store.expect("a patched store can be made"));
        Bench::open("mutant")
    }

    fn open(schema: &str) -> Bench {
        let database = servers::database();
        let mut control = servers::connect(&database);
        control
            .batch_execute(
                &"SET synchronous_commit = off; SET lock_timeout = '30s'; SELECT tenure.set_durability('off');
                 CREATE TABLE IF NOT EXISTS public.writes (job bigint, token bigint, note text)"
                    .replace("tenure.", &format!("\"{schema}\".")),
            )
            .expect("a table of the user's own");
        let pid =
            control.query_one("SELECT pg_backend_pid()", &[]).expect("the server answers").get(0);
        let (tell, answers) = channel();
        let seats = (0..SESSIONS).map(|n| Seat::take(&database, n, tell.clone())).collect();
        Bench { schema: schema.to_owned(), control, pid, seats, answers, restores: 0 }
    }

    /// Sets the planner of all sessions, and discards their plans.
    pub(super) fn set(&mut self, (name, settings): (&str, &str)) {
        let sql = format!(
            "RESET ALL; SET synchronous_commit = off; SET statement_timeout = '50s';
             DO $$ BEGIN PERFORM set_config('deadlock_timeout', '50ms', false);
             EXCEPTION WHEN insufficient_privilege THEN NULL; END $$; {settings} DISCARD PLANS"
        );
        for seat in 0..SESSIONS {
            self.send(seat, &sql);
            let calm = self.calm(&[seat]).expect("a setting waits for nobody");
            assert!(matches!(calm.answered[..], [(_, Answer::Rows(_))]), "{settings} can be set");
        }
        if name == WARMED {
            self.warm();
        }
    }

    /// Lets every session plan every verb on empty tables. The sessions keep those plans.
    fn warm(&mut self) {
        self.run(EMPTY);
        TABLES.iter().for_each(|table| self.run(&format!("VACUUM tenure.{table}")));
        for seat in 0..SESSIONS {
            for step in SCRIPTS.iter().flat_map(|script| script.steps) {
                self.send(seat, &format!("BEGIN; {}", step.written(1, "warm")));
                drop(self.calm(&[seat]));
                self.send(seat, "ROLLBACK");
                drop(self.calm(&[seat]));
            }
        }
    }

    /// Makes a start by calling the verbs, and returns the statements that restore it.
    pub(super) fn make(&mut self, start: &Start) -> String {
        self.run(&format!("{EMPTY} {}", start.whole()));
        let mut back = EMPTY.to_owned();
        for table in TABLES {
            let rows = self.text(&format!("SELECT json_agg(r)::text FROM tenure.{table} r"));
            if let Some(rows) = rows {
                back += &format!(
                    "INSERT INTO tenure.{table} OVERRIDING SYSTEM VALUE SELECT r.* FROM \
                     json_populate_recordset(NULL::tenure.{table}, $json${rows}$json$) r;\n"
                );
            }
        }
        back + start.beside
    }

    /// Restores a start.
    pub(super) fn restore(&mut self, back: &str) {
        const SWEEP_AFTER: u32 = 250;
        self.restores += 1;
        // Remove the dead rows of earlier runs before they slow the scans down.
        if self.restores.is_multiple_of(SWEEP_AFTER) {
            for table in TABLES {
                self.run(&format!("VACUUM tenure.{table}"));
            }
        }
        self.run(back);
    }

    /// Makes a session pause at this place inside its next call.
    pub(super) fn stop_at(&mut self, seat: usize, place: usize) {
        self.run(&format!("SELECT pg_advisory_lock(7464, {seat})"));
        self.send(
            seat,
            &format!("SELECT set_config('drill.seat', '{seat}', false), set_config('drill.more', '{place}', false)"),
        );
        drop(self.calm(&[seat]));
    }

    /// Lets a paused session go on.
    pub(super) fn let_go(&mut self, seat: usize) {
        self.run(&format!("SELECT pg_advisory_unlock(7464, {seat})"));
    }

    /// The session does not pause from now on.
    pub(super) fn stop_nowhere(&mut self, seat: usize) {
        self.send(seat, "RESET drill.more");
        drop(self.calm(&[seat]));
    }

    /// Sends a statement to a session.
    pub(super) fn send(&self, seat: usize, sql: &str) {
        let ask = self.seats[seat].ask.as_ref().expect("a session is open while its bench is");
        ask.send(self.named(sql)).expect("a session lives as long as its bench");
    }

    /// Waits until each of these sessions has answered, or waits for another of our sessions.
    /// `None` if one of them does neither.
    pub(super) fn calm(&mut self, asked: &[usize]) -> Option<Calm> {
        let mut calm = Calm { answered: vec![], waiting: vec![] };
        let mut open = asked.to_vec();
        let deadline = monotonic() + PATIENCE;
        let mut seen_before = false;
        while !open.is_empty() {
            let mut heard = |(seat, answer): (usize, Answer)| {
                open.retain(|it| *it != seat);
                calm.answered.push((seat, answer));
            };
            // Wait briefly, since most answers come at once; then ask the server.
            match self.answers.recv_timeout(Duration::from_millis(3)) {
                Ok(answer) => {
                    heard(answer);
                    seen_before = false;
                    continue;
                }
                Err(_) => self.answers.try_iter().for_each(heard),
            }
            let waiting = self.who_waits(&open);
            // Check twice, because the server looks at one session after the other.
            if waiting.len() == open.len() && seen_before {
                calm.waiting = waiting;
                break;
            }
            seen_before = waiting.len() == open.len();
            if monotonic() > deadline {
                return None;
            }
        }
        Some(calm)
    }

    /// Which of these sessions wait for others of ours, and for which. A session that waits for a
    /// foreign session will go on by itself.
    fn who_waits(&mut self, open: &[usize]) -> Vec<(usize, Vec<usize>)> {
        let pids: Vec<i32> = open.iter().map(|seat| self.seats[*seat].pid).collect();
        let ask = "SELECT p.pid, pg_blocking_pids(p.pid) FROM unnest($1::int[]) p(pid)";
        let rows = self.control.query(ask, &[&pids]).expect("the server answers");
        // The control session holds the lock at which a session pauses.
        let seat_of = |pid: i32| {
            let seat = self.seats.iter().position(|seat| seat.pid == pid);
            seat.or((pid == self.pid).then_some(CONTROL))
        };
        rows.iter()
            .filter_map(|row| {
                let blockers: Vec<i32> = row.get(1);
                let ours: Option<Vec<usize>> = blockers.into_iter().map(seat_of).collect();
                let ours = ours.filter(|them| !them.is_empty())?;
                Some((seat_of(row.get(0))?, ours))
            })
            .collect()
    }

    /// Reads the committed state of all jobs.
    pub(super) fn facts(&mut self) -> Facts {
        let rows = self.ask(
            "SELECT tenure.clock_ms(), NULL, NULL, NULL, NULL UNION ALL
             SELECT id, state, token, lease_until, lease_ms FROM tenure.jobs UNION ALL
             SELECT id, state, token, NULL, NULL FROM tenure.done",
        );
        let mut facts = Facts::default();
        for row in rows {
            let number = |at: usize| row[at].parse::<i64>().unwrap_or_default();
            if row[1].is_empty() {
                facts.now = number(0);
            } else {
                let (state, token) = (number(1), number(2));
                let (lease_until, lease_ms) = (number(3), number(4));
                facts.jobs.insert(number(0), Fact { state, token, lease_until, lease_ms });
            }
        }
        facts
    }

    /// Everything that is stored, one line per row, except serial numbers: the order of a timeline
    /// follows from its tokens.
    pub(super) fn rows(&mut self) -> Vec<String> {
        let tables = TABLES.map(|table| match table {
            "clock" => String::new(),
            "timeline" => "SELECT 'timeline ' || (to_jsonb(r) - 'seq')::text FROM tenure.timeline r UNION ALL ".into(),
            // The reason of an epoch may contain a position in the write-ahead log.
            "epochs" => "SELECT 'epochs ' || (to_jsonb(r) - 'reason')::text FROM tenure.epochs r UNION ALL ".into(),
            table => format!("SELECT '{table} ' || to_jsonb(r)::text FROM tenure.{table} r UNION ALL "),
        });
        let sql = format!(
            "{} SELECT 'meta ' || epoch || ' ' || guard_gap FROM tenure.meta UNION ALL
             SELECT 'fence ' || to_jsonb(r)::text FROM tenure.fences r UNION ALL
             SELECT 'write ' || to_jsonb(r)::text FROM public.writes r",
            tables.concat()
        );
        self.ask(&sql).into_iter().flatten().collect()
    }

    /// Runs statements on the control session.
    pub(super) fn run(&mut self, sql: &str) {
        let sql = self.named(sql);
        self.control.batch_execute(&sql).unwrap_or_else(|error| panic!("{error:?} in: {sql}"));
    }

    /// One text, or `None`.
    fn text(&mut self, sql: &str) -> Option<String> {
        self.ask(sql).pop()?.pop().filter(|text| !text.is_empty())
    }

    pub(super) fn ask(&mut self, sql: &str) -> Vec<Vec<String>> {
        let sql = self.named(sql);
        let answer = self.control.simple_query(&sql);
        texts(&answer.unwrap_or_else(|error| panic!("{error:?} in: {sql}")))
    }

    /// Replaces the schema's name in a statement by the bench's own.
    fn named(&self, sql: &str) -> String {
        if self.schema == "tenure" {
            sql.to_owned()
        } else {
            sql.replace("tenure.", &format!("\"{}\".", self.schema))
        }
    }
}

impl Seat {
    fn take(database: &str, n: usize, tell: Sender<(usize, Answer)>) -> Seat {
        let mut client = servers::connect(database);
        let pid =
            client.query_one("SELECT pg_backend_pid()", &[]).expect("the server answers").get(0);
        let (ask, asked) = channel::<String>();
        let thread = thread::spawn(move || {
            for sql in asked {
                let answer = match client.simple_query(&sql) {
                    Ok(said) => Answer::Rows(texts(&said)),
                    Err(error) => {
                        let code = crate::sessions::code(&error);
                        // Roll the failed transaction back before reporting its answer, so that its
                        // locks hold up no other session.
                        drop(client.batch_execute("ROLLBACK"));
                        Answer::Refused(code)
                    }
                };
                if tell.send((n, answer)).is_err() {
                    return;
                }
            }
        });
        Seat { pid, ask: Some(ask), thread: Some(thread) }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        // Close all sessions before joining any thread: one session may wait for another.
        for seat in &mut self.seats {
            seat.ask = None;
        }
        let pids: Vec<i32> = self.seats.iter().map(|seat| seat.pid).collect();
        let end = "SELECT pg_terminate_backend(p.pid) FROM unnest($1::int[]) p(pid)";
        drop(self.control.execute(end, &[&pids]));
        for thread in self.seats.iter_mut().filter_map(|seat| seat.thread.take()) {
            drop(thread.join());
        }
    }
}

fn texts(said: &[SimpleQueryMessage]) -> Vec<Vec<String>> {
    let rows = said.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    let text = |cell: Option<&str>| cell.unwrap_or_default().to_owned();
    rows.map(|row| (0..row.len()).map(|at| text(row.get(at))).collect()).collect()
}

const TABLES: [&str; 11] = [
    "jobs", "done", "payloads", "timeline", "keys", "queues", "ledger", "steps", "workers",
    "epochs", "clock",
];

const EMPTY: &str = "DELETE FROM tenure.jobs; DELETE FROM tenure.done; DELETE FROM tenure.payloads; \
    DELETE FROM tenure.timeline; DELETE FROM tenure.keys; DELETE FROM tenure.queues; DELETE FROM tenure.ledger; \
    DELETE FROM tenure.steps; DELETE FROM tenure.workers; DELETE FROM tenure.epochs; DELETE FROM tenure.clock; \
    DELETE FROM tenure.fences; DELETE FROM public.writes; \
    SELECT setval('tenure.broke', 0), setval('tenure.broke_before', 0); \
    UPDATE tenure.meta m SET epoch = 0, floor = 0, guard_gap = 300, wal_timeline = h.wal_timeline, system = h.system, jobs_table = h.jobs_table \
      FROM tenure.whereabouts() h WHERE (m.epoch, m.floor, m.guard_gap, m.wal_timeline, m.system, m.jobs_table) \
        IS DISTINCT FROM (0, 0, 300, h.wal_timeline, h.system, h.jobs_table); \
    SELECT setval('tenure.job_id', 1001, false), setval('tenure.pulse', 0, false);\n";
