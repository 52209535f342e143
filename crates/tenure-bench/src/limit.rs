//! What the machine can do at all: the work of a job as plain SQL, by the driver alone, on tables
//! that are thrown away. No queue on this engine can be much faster, so each figure is also told as
//! a fraction of it.

mod postgres;
mod sqlite;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::engine::clock::{Clock, monotonic};

use crate::ground::Ground;
use crate::measures::Engine;
use crate::stats::{millis, percentile, rate};

/// What a figure is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Limit {
    /// Rows inserted a second, a thousand in a commit.
    Insert,
    /// Rows inserted a second, each in a commit of its own.
    InsertSingly,
    /// The same as `Insert`, with 64 KiB in each row.
    InsertLarge,
    /// Jobs claimed and completed a second, a thousand in a commit.
    Process,
    /// The same as `Process`, with 64 KiB in each row.
    ProcessLarge,
    /// One job inserted, claimed and completed, in three commits: the median.
    Through50,
    /// The same: the 99th percentile.
    Through99,
}

impl Limit {
    /// What it is, for people.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Limit::Insert => "insert, 1,000 a commit",
            Limit::InsertSingly => "insert, 1 a commit",
            Limit::InsertLarge => "insert 64 KiB, 1,000 a commit",
            Limit::Process => "claim and complete, 1,000 a commit",
            Limit::ProcessLarge => "claim and complete 64 KiB, 1,000 a commit",
            Limit::Through50 => "insert, claim, complete: p50",
            Limit::Through99 => "insert, claim, complete: p99",
        }
    }
}

/// A connection of the driver, to tables of its own.
trait Driver {
    /// Inserts a batch in one commit.
    fn insert(&mut self, args: &[String], now: i64) -> Result<()>;

    /// Claims up to so many in one commit, and returns their ids.
    fn claim(&mut self, most: usize, now: i64) -> Result<Vec<i64>>;

    /// Moves them to the table of ended jobs, in one commit.
    fn complete(&mut self, jobs: &[i64], now: i64) -> Result<()>;
}

const BATCH: usize = 1_000;

/// Measures these limits. Blocks; call it on a thread for that.
pub(crate) fn measure(
    ground: &Arc<Ground>,
    wanted: &[Limit],
    quick: bool,
) -> Result<BTreeMap<Limit, f64>> {
    let site = ground.site();
    let mut driver: Box<dyn Driver> = match ground.engine() {
        Engine::Sqlite => Box::new(sqlite::connect(&site.driver)?),
        Engine::Postgres => Box::new(postgres::connect(&site.driver, site.schema())?),
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
    if wants(&[Limit::InsertSingly]) {
        let rows = size(2_000, 100);
        found.insert(Limit::InsertSingly, insert(driver, &small, rows, 1)?);
        process(driver, rows)?;
    }
    if wants(&[Limit::Through50, Limit::Through99]) {
        let times = through(driver, &small, size(500, 50))?;
        found.insert(Limit::Through50, percentile(&times, 50.0));
        found.insert(Limit::Through99, percentile(&times, 99.0));
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

/// Takes one job after the other all the way, and returns how long each took.
fn through(driver: &mut dyn Driver, args: &str, jobs: usize) -> Result<Vec<f64>> {
    let args = [args.to_owned()];
    let one = |_| -> Result<f64> {
        let begin = monotonic();
        driver.insert(&args, now())?;
        let claimed = driver.claim(1, now())?;
        driver.complete(&claimed, now())?;
        let took: Duration = monotonic() - begin;
        Ok(millis(took))
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
        assert_eq!(found.len(), 7, "those that are measured together come together");
        assert!(found.values().all(|value| value.is_finite() && *value > 0.0), "{found:?}");
        let found = measure(&ground, &[Limit::Through50], true).unwrap();
        assert!(found.keys().eq(&[Limit::Through50, Limit::Through99]));
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
