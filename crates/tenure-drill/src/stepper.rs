//! Every order of statements: two or three PostgreSQL sessions, one statement at a time.
//!
//! A [`Case`] is a known state and a script for each session: a verb in its own transaction, or a
//! user's own transaction that calls `fence`, `hold` or `complete`. The stepper runs every order in
//! which the statements can be sent. `pg_blocking_pids` shows which session waits for a lock; a
//! waiting session goes on when the server lets it. The outcome must equal that of the same scripts
//! run one after the other, in some order. `judge.rs` has what sessions must never do to each
//! other, and where the promise is weaker. Nothing here uses the port: the sessions send plain SQL,
//! as any client can.

mod bench;
mod cases;
mod inside;
mod judge;
mod run;
mod script;
mod start;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use tenure::drill::Patch;
use tenure::engine::clock::monotonic;

use self::bench::Bench;
pub use self::cases::{Case, cases, chosen as chosen_cases, find, inside as inside_cases, planted};
use self::judge::Judge;
use self::run::{Run, run, run_inside};
use self::script::{About, Script};
use crate::verdict::Violation;

/// The most sessions that a case has.
const SESSIONS: usize = 3;

/// The isolation level of all sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Isolation {
    /// READ COMMITTED.
    #[serde(rename = "rc")]
    ReadCommitted,
    /// REPEATABLE READ.
    #[serde(rename = "rr")]
    RepeatableRead,
    /// SERIALIZABLE.
    #[serde(rename = "serializable")]
    Serializable,
    /// REPEATABLE READ in users' own transactions, READ COMMITTED in all others.
    #[serde(rename = "mixed")]
    Mixed,
}

impl Isolation {
    /// All isolation levels.
    pub const ALL: [Isolation; 4] = [
        Isolation::ReadCommitted,
        Isolation::RepeatableRead,
        Isolation::Serializable,
        Isolation::Mixed,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Isolation::ReadCommitted => "rc",
            Isolation::RepeatableRead => "rr",
            Isolation::Serializable => "serializable",
            Isolation::Mixed => "mixed",
        }
    }

    /// The isolation level, if the whole transaction has one snapshot; `None` if each statement has
    /// its own.
    fn of(self, script: &Script) -> Option<&'static str> {
        match self {
            Isolation::Mixed if script.about != About::Users => None,
            Isolation::ReadCommitted => None,
            Isolation::RepeatableRead | Isolation::Mixed => Some("REPEATABLE READ"),
            Isolation::Serializable => Some("SERIALIZABLE"),
        }
    }
}

/// Planner settings, by name. The verbs fix the settings they depend on, so these must make no
/// difference.
pub const PLANNERS: [(&str, &str); 9] = [
    ("default", ""),
    ("no-nestloop", "SET enable_nestloop = off;"),
    ("no-index", "SET enable_indexscan = off; SET enable_indexonlyscan = off;"),
    ("no-hash", "SET enable_hashjoin = off; SET enable_hashagg = off; SET enable_mergejoin = off;"),
    ("no-seq", "SET enable_seqscan = off; SET enable_bitmapscan = off;"),
    (
        "loops-only",
        "SET enable_sort = off; SET enable_hashagg = off; SET enable_material = off; SET enable_memoize = off; \
         SET enable_hashjoin = off; SET enable_mergejoin = off;",
    ),
    ("custom", "SET plan_cache_mode = force_custom_plan;"),
    ("generic", "SET plan_cache_mode = force_generic_plan;"),
    (WARMED, ""),
];

/// The setting in which sessions have planned every statement on empty tables, and keep those
/// plans.
const WARMED: &str = "warmed";

/// The settings under which a case is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// The isolation level.
    pub isolation: Isolation,
    /// The index into [`PLANNERS`].
    pub planner: usize,
}

/// The answer to a session's statement.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Rows(Vec<Vec<String>>),
    /// The SQLSTATE.
    Refused(String),
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Answer::Refused(code) => write!(f, "refused, {code}"),
            Answer::Rows(rows) if rows.is_empty() => f.write_str("nothing"),
            Answer::Rows(rows) => {
                let cells = |row: &Vec<String>| row.join(" ").trim().to_owned();
                let rows: Vec<String> = rows.iter().map(cells).collect();
                let text = rows.join(", ");
                f.write_str(if text.is_empty() { "done" } else { &text })
            }
        }
    }
}

/// How much was run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    /// How many cases were run. A case counts once for each isolation level and each setting of the
    /// planner.
    pub cases: u64,
    /// Orders of statements, each run once.
    pub schedules: u64,
    /// Statements sent.
    pub statements: u64,
    /// Statements that had to wait for another session.
    pub waits: u64,
    /// Transactions that failed with a conflict (40001) and were retried.
    pub conflicts: u64,
    /// Statements that were refused (TN001 to TN004).
    pub refusals: u64,
    /// Outcomes in which a call skipped a locked row. Such a call may count as not made, and its
    /// session is then left out of the serial order that has the same outcome.
    pub passed_by: u64,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// The last schedule, in words.
    #[serde(skip)]
    pub told: Vec<String>,
}

impl Report {
    /// Adds another one.
    pub fn add(&mut self, other: Report) {
        self.cases += other.cases;
        self.schedules += other.schedules;
        self.statements += other.statements;
        self.waits += other.waits;
        self.conflicts += other.conflicts;
        self.refusals += other.refusals;
        self.passed_by += other.passed_by;
        self.took_ms += other.took_ms;
        self.told = other.told;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            cases,
            schedules,
            statements,
            waits,
            conflicts,
            refusals,
            passed_by,
            took_ms,
            ..
        } = self;
        write!(
            f,
            "{cases} cases, {schedules} schedules, {statements} statements: {waits} waited, {conflicts} conflicts, \
             {refusals} refused, {passed_by} passed by; {took_ms} ms"
        )
    }
}

/// All runs to make: each case under each of these isolation levels, except where `Mixed` makes no
/// difference. Uses all of these planners, or takes turns through all planners if none is named.
pub fn work(cases: &[Case], isolations: &[Isolation], planners: &[usize]) -> Vec<(Case, Setting)> {
    let mut work = Vec::new();
    for (n, case) in cases.iter().enumerate() {
        for (m, isolation) in isolations.iter().copied().enumerate() {
            if isolation == Isolation::Mixed && !case.is_mixed() {
                continue;
            }
            let in_turn = [(n + m) % PLANNERS.len()];
            for planner in if planners.is_empty() { &in_turn } else { planners } {
                work.push((case.clone(), Setting { isolation, planner: *planner }));
            }
        }
    }
    // Sort by planner: to plan everything again takes longer than a case.
    work.sort_by_key(|(_, setting)| setting.planner);
    work
}

/// Runs all of it, on two threads with a database each. Calls `tell` after each case.
///
/// # Errors
/// The first violation.
pub fn go_through(
    work: &[(Case, Setting)],
    tell: &(dyn Fn(&Report) + Sync),
) -> Result<Report, Violation> {
    const THREADS: usize = 2;
    let total = Mutex::new(Ok(Report::default()));
    let next = AtomicUsize::new(0);
    let one = || {
        let mut stepper = Stepper::new();
        while let Some((case, setting)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
            let came = stepper.go_through(case, *setting);
            let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
            match (&mut *total, came) {
                (Ok(total), Ok(report)) => {
                    total.add(report);
                    tell(total);
                }
                (total @ Ok(_), Err(violation)) => *total = Err(violation),
                (Err(_), _) => return,
            }
        }
    };
    thread::scope(|threads| {
        (1..THREADS).for_each(|_| drop(threads.spawn(one)));
        one();
    });
    total.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Sessions on a store, which run cases.
pub struct Stepper {
    bench: Bench,
    /// The planner settings of the sessions.
    planner: Option<usize>,
    /// The statements that restore each start.
    backs: BTreeMap<&'static str, String>,
    is_whole: bool,
}

impl Stepper {
    /// On the unchanged store, in this thread's own database.
    #[expect(clippy::new_without_default, reason = "it is a whole database, not a value")]
    pub fn new() -> Stepper {
        Stepper { bench: Bench::whole(), planner: None, backs: BTreeMap::new(), is_whole: true }
    }

    /// On a patched store, which lacks a safeguard.
    pub fn patched(patches: &[Patch]) -> Stepper {
        let bench = Bench::patched(patches);
        Stepper { bench, planner: None, backs: BTreeMap::new(), is_whole: false }
    }

    /// On a store whose functions can be paused between their statements.
    pub fn inside(patches: &[Patch]) -> Stepper {
        let mut stepper = Stepper::patched(patches);
        inside::instrument(&mut stepper.bench);
        stepper
    }

    /// Runs every pair of places at which the two calls of a case can pause, in both orders.
    ///
    /// # Errors
    /// The first run with a wrong outcome.
    pub fn go_inside(&mut self, case: &Case) -> Result<Report, Violation> {
        let setting = Setting { isolation: Isolation::ReadCommitted, planner: 0 };
        let mut report = Report { cases: 1, ..Report::default() };
        let began = monotonic();
        for case in [case.clone(), case.turned()] {
            let mut judge = self.prepare(&case, setting);
            for first in 0.. {
                let mut came_there = false;
                for second in 0.. {
                    let back = &self.backs[case.start.name];
                    let (run, stopped) = run_inside(&mut self.bench, &case, back, [first, second]);
                    self.judge(&case, setting, &mut judge, &run, &mut report)?;
                    came_there = stopped[0];
                    if !stopped[1] || !stopped[0] {
                        break;
                    }
                }
                if !came_there {
                    break;
                }
            }
        }
        report.took_ms = millis(monotonic() - began);
        Ok(report)
    }

    /// Runs every order of a case's statements.
    ///
    /// # Errors
    /// The first schedule with a wrong outcome.
    pub fn go_through(&mut self, case: &Case, setting: Setting) -> Result<Report, Violation> {
        let mut report = Report { cases: 1, ..Report::default() };
        let began = monotonic();
        let mut judge = self.prepare(case, setting);
        let mut next = Some(vec![]);
        while let Some(turns) = next {
            let run = self.run_one(case, setting, &turns);
            self.judge(case, setting, &mut judge, &run, &mut report)?;
            next = after(run.turns);
        }
        report.took_ms = millis(monotonic() - began);
        Ok(report)
    }

    /// Runs one schedule: a letter for each statement, in the order in which they are sent.
    ///
    /// # Errors
    /// If the outcome is wrong.
    pub fn replay(
        &mut self,
        case: &Case,
        setting: Setting,
        schedule: &str,
    ) -> Result<Report, Violation> {
        let mut report = Report { cases: 1, ..Report::default() };
        let turns: Vec<usize> =
            schedule.bytes().map(|it| usize::from(it.wrapping_sub(b'A'))).collect();
        let mut judge = self.prepare(case, setting);
        let run = self.run_one(case, setting, &turns);
        report.told.clone_from(&run.told);
        self.judge(case, setting, &mut judge, &run, &mut report)?;
        Ok(report)
    }
}

impl Stepper {
    /// The scripts that change nothing in a start where they claim to act, each with the start.
    /// There must be none: a case in which no session changes anything proves nothing.
    pub fn idle(&mut self) -> Vec<String> {
        let setting = Setting { isolation: Isolation::ReadCommitted, planner: 0 };
        let mut idle = Vec::new();
        for case in cases::alone() {
            self.prepare(&case, setting);
            let back = &self.backs[case.start.name];
            let mut rows = |who: &[usize]| {
                run(&mut self.bench, &case, setting.isolation, back, who, |ready, _| ready[0]).rows
            };
            // Run the second session: its token is the latest one.
            if rows(&[]) == rows(&[1]) {
                idle.push(case.name);
            }
        }
        idle
    }

    /// Gives the sessions their settings, and makes the start if it is new.
    fn prepare(&mut self, case: &Case, setting: Setting) -> Judge {
        if self.planner != Some(setting.planner) {
            self.bench.set(PLANNERS[setting.planner]);
            self.planner = Some(setting.planner);
        }
        let bench = &mut self.bench;
        self.backs.entry(case.start.name).or_insert_with(|| bench.make(case.start));
        Judge::default()
    }

    /// Runs the schedule that begins with these turns. After them, the first session that is ready
    /// is always next.
    fn run_one(&mut self, case: &Case, setting: Setting, turns: &[usize]) -> Run {
        let all: Vec<usize> = (0..case.scripts.len()).collect();
        let mut turns = turns.iter();
        let choose = |ready: &[usize], able: &[usize]| match turns.next() {
            Some(turn) if able.contains(turn) => *turn,
            _ => ready[0],
        };
        let back = &self.backs[case.start.name];
        run(&mut self.bench, case, setting.isolation, back, &all, choose)
    }

    fn judge(
        &mut self,
        case: &Case,
        setting: Setting,
        judge: &mut Judge,
        run: &Run,
        report: &mut Report,
    ) -> Result<(), Violation> {
        report.schedules += 1;
        report.statements += run.statements;
        report.waits += run.waits;
        report.conflicts += run.conflicts;
        report.refusals += run.refusals;
        let back = &self.backs[case.start.name];
        match judge.judge(&mut self.bench, case, setting.isolation, back, run) {
            Ok(passed_by) => {
                report.passed_by += u64::from(passed_by);
                Ok(())
            }
            Err((invariant, what)) => {
                let replay = self.is_whole.then(|| command(case, setting, run));
                let schedule = run.told.clone();
                Err(Violation {
                    invariant,
                    what,
                    schedule,
                    states: report.schedules as usize,
                    replay,
                })
            }
        }
    }
}

/// The turns that the next schedule begins with, if there is one.
fn after(mut taken: Vec<(usize, Vec<usize>)>) -> Option<Vec<usize>> {
    while let Some((turn, ready)) = taken.pop() {
        if let Some(other) = ready.into_iter().find(|other| *other > turn) {
            return Some(taken.iter().map(|(turn, _)| *turn).chain([other]).collect());
        }
    }
    None
}

/// The arguments of `tenure` that repeat a run.
fn command(case: &Case, setting: Setting, run: &Run) -> String {
    let schedule: String = run.turns.iter().map(|(turn, _)| letter(*turn)).collect();
    let (isolation, planner) = (setting.isolation.name(), PLANNERS[setting.planner].0);
    format!(
        "drill step --case {} --isolation {isolation} --planner {planner} --schedule {schedule}",
        case.name
    )
}

fn letter(n: usize) -> String {
    char::from(b'A' + n as u8).to_string()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
