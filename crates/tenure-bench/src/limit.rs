//! What the machine can do at all: the work of a job as plain SQL, by the driver alone, on tables
//! that are thrown away. No queue on this engine can be much faster, so the report gives each
//! figure also as a fraction of its limit. A command for each job is compared with starting the
//! command (`spawn`).

mod crowd;
mod postgres;
mod spawn;
mod sqlite;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use tenure::engine::clock::{Clock, monotonic};

use crate::ground::Ground;
use crate::measures::{Engine, Unit};
use crate::stats::{millis, percentile, rate};

pub(crate) use self::crowd::{insert_by, process_by};

/// What a figure is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Limit {
    /// Rows inserted a second, a thousand in a commit.
    Insert,
    /// Rows inserted a second, each in a commit of its own.
    InsertSingly,
    /// Rows inserted a second, 16 in a commit.
    Insert16,
    /// The same as `Insert`, with 64 KiB in each row.
    InsertLarge,
    /// Jobs claimed and completed a second, a thousand in a commit.
    Process,
    /// The same as `Process`, with 64 KiB in each row.
    ProcessLarge,
    /// One job inserted and claimed, in two commits: the median.
    Start50,
    /// The same: the 99th percentile.
    Start99,
    /// One job inserted, claimed and completed, in three commits: the median.
    Through50,
    /// The same: the 99th percentile.
    Through99,
    /// Processes that are started and run `true`, 16 at a time.
    SpawnTrue,
}

impl Limit {
    /// A short name, for tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Limit::Insert => "insert_1000",
            Limit::InsertSingly => "insert_1",
            Limit::Insert16 => "insert_16",
            Limit::InsertLarge => "insert_64k",
            Limit::Process => "process_1000",
            Limit::ProcessLarge => "process_64k",
            Limit::Start50 => "start p50",
            Limit::Start99 => "start p99",
            Limit::Through50 => "through p50",
            Limit::Through99 => "through p99",
            Limit::SpawnTrue => "spawn_true",
        }
    }

    /// What it is, for people.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Limit::Insert => "rows inserted, 1,000 in each commit",
            Limit::InsertSingly => "rows inserted, 1 in each commit",
            Limit::Insert16 => "rows inserted, 16 in each commit",
            Limit::InsertLarge => "rows of 64 KiB inserted, 1,000 in each commit",
            Limit::Process => "rows claimed and moved to the ended ones, 1,000 in each commit",
            Limit::ProcessLarge => "rows of 64 KiB claimed and moved, 1,000 in each commit",
            Limit::Start50 | Limit::Start99 => "one row inserted and claimed, in 2 commits",
            Limit::Through50 | Limit::Through99 => {
                "one row inserted, claimed and moved, in 3 commits"
            }
            Limit::SpawnTrue => "processes started that run `true`, 16 at a time",
        }
    }

    /// In what it is measured.
    pub(crate) fn unit(self) -> Unit {
        match self {
            Limit::Start50 | Limit::Start99 | Limit::Through50 | Limit::Through99 => Unit::Millis,
            _ => Unit::Rate,
        }
    }
}

/// A connection of the driver, to tables of its own.
trait Driver: Send {
    /// Inserts a batch in one commit.
    fn insert(&mut self, args: &[String], now: i64) -> Result<()>;

    /// Claims up to so many in one commit, and returns their ids.
    fn claim(&mut self, most: usize, now: i64) -> Result<Vec<i64>>;

    /// Moves them to the table of ended jobs, in one commit.
    fn complete(&mut self, jobs: &[i64], now: i64) -> Result<()>;
}

const BATCH: usize = 1_000;

/// Measures these limits. It blocks, so an async caller runs it on a thread for blocking calls.
pub(crate) fn measure(
    ground: &Arc<Ground>,
    wanted: &[Limit],
    quick: bool,
) -> Result<BTreeMap<Limit, f64>> {
    let site = ground.site();
    let mut driver: Box<dyn Driver> = match ground.engine() {
        Engine::Sqlite => Box::new(sqlite::connect(&site.driver)?),
        Engine::Postgres => Box::new(postgres::create(&site.driver, site.schema())?),
    };
    let measured = all(driver.as_mut(), wanted, quick).context("measure the machine's own limit");
    drop(driver);
    ground.remove(&site)?;
    measured
}

fn all(driver: &mut dyn Driver, wanted: &[Limit], quick: bool) -> Result<BTreeMap<Limit, f64>> {
    let size = |whole, small| if quick { small } else { whole };
    let (small, large) = ("{\"n\":123456}".to_owned(), "x".repeat(64 << 10));
    let wants = |of: &[Limit]| of.iter().any(|limit| wanted.contains(limit));
    let mut found = BTreeMap::new();
    // The first calls prepare the statements.
    through(driver, &small, 3)?;
    if wants(&[Limit::Insert, Limit::Process]) {
        let batches = size(50, 2);
        found.insert(Limit::Insert, insert(driver, &small, batches, BATCH)?);
        found.insert(Limit::Process, process(driver, batches * BATCH)?);
    }
    if wants(&[Limit::InsertLarge, Limit::ProcessLarge]) {
        let (batches, batch) = (size(2, 1), size(BATCH, 50));
        found.insert(Limit::InsertLarge, insert(driver, &large, batches, batch)?);
        found.insert(Limit::ProcessLarge, process(driver, batches * batch)?);
    }
    for (limit, batch) in [(Limit::InsertSingly, 1), (Limit::Insert16, 16)] {
        if wants(&[limit]) {
            let batches = size(1_000, 100);
            found.insert(limit, insert(driver, &small, batches, batch)?);
            process(driver, batches * batch)?;
        }
    }
    if wants(&[Limit::Start50, Limit::Start99, Limit::Through50, Limit::Through99]) {
        let (starts, throughs) = through(driver, &small, size(500, 50))?;
        found.insert(Limit::Start50, percentile(&starts, 50.0));
        found.insert(Limit::Start99, percentile(&starts, 99.0));
        found.insert(Limit::Through50, percentile(&throughs, 50.0));
        found.insert(Limit::Through99, percentile(&throughs, 99.0));
    }
    if wants(&[Limit::SpawnTrue]) {
        found.insert(Limit::SpawnTrue, spawn::measure(size(2_000, 50))?);
    }
    Ok(found)
}

/// Inserts batches, and returns the rows a second.
fn insert(driver: &mut dyn Driver, args: &str, batches: usize, batch: usize) -> Result<f64> {
    let args = vec![args.to_owned(); batch];
    let begin = monotonic();
    for _ in 0..batches {
        driver.insert(&args, now())?;
    }
    Ok(rate((batches * batch) as u64, monotonic() - begin))
}

/// Claims and completes everything, and returns the jobs a second.
fn process(driver: &mut dyn Driver, rows: usize) -> Result<f64> {
    let (begin, mut done) = (monotonic(), 0);
    loop {
        let jobs = driver.claim(BATCH, now())?;
        if jobs.is_empty() {
            ensure!(done == rows, "{done} of {rows} rows were claimed");
            return Ok(rate(done as u64, monotonic() - begin));
        }
        driver.complete(&jobs, now())?;
        done += jobs.len();
    }
}

/// Inserts, claims and completes one job after the other. Returns how long each took until it was
/// claimed, and until it had ended.
fn through(driver: &mut dyn Driver, args: &str, jobs: usize) -> Result<(Vec<f64>, Vec<f64>)> {
    let args = [args.to_owned()];
    let one = |_| -> Result<(f64, f64)> {
        let begin = monotonic();
        driver.insert(&args, now())?;
        let claimed = driver.claim(1, now())?;
        let start = monotonic() - begin;
        driver.complete(&claimed, now())?;
        Ok((millis(start), millis(monotonic() - begin)))
    };
    (0..jobs).map(one).collect()
}

fn now() -> i64 {
    Clock::system().now().as_millis()
}

/// The statements of a section `-- :name`.
fn section<'a>(file: &'a str, name: &str) -> Result<&'a str> {
    let head = format!("-- :{name}\n");
    let (_, rest) = file.split_once(&head).with_context(|| format!("no section {name}"))?;
    Ok(rest.split("-- :").next().unwrap_or(rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ground::On;

    #[test]
    fn every_limit_is_a_positive_number() {
        let ground = Arc::new(Ground::prepare(&On::Temporary).unwrap());
        let wanted = [Limit::Insert, Limit::InsertSingly, Limit::InsertLarge, Limit::Through99];
        let found = measure(&ground, &wanted, true).unwrap();
        assert_eq!(found.len(), 9, "those that are measured together come together");
        assert!(found.values().all(|value| value.is_finite() && *value > 0.0), "{found:?}");
        let found = measure(&ground, &[Limit::Through50], true).unwrap();
        assert!(found.keys().eq(&[
            Limit::Start50,
            Limit::Start99,
            Limit::Through50,
            Limit::Through99
        ]));
    }

    #[test]
    fn both_engines_have_the_same_work() {
        for file in [sqlite::SQL, postgres::SQL] {
            for name in ["schema", "insert", "claim", "complete"] {
                assert!(section(file, name).unwrap().contains("jobs"), "{name}");
            }
            assert!(section(file, "nothing").is_err());
        }
    }
}
