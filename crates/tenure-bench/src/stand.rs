//! One store for one measure, and what measures do with it: fill it, work on it, and count whether
//! each job ran exactly once.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tenure::engine::client::Enqueue;
use tenure::engine::clock::monotonic;
use tenure::engine::job::{BATCH_LIMIT, JobRecord};
use tenure::{Filter, State, Tenure, Worker};

use crate::children::Program;
use crate::ground::{Ground, Site};
use crate::jobs::{Noop, Runs, number, taught};
use crate::progress::Progress;
use crate::stats::rate;

/// The timeout of every wait. Running into it is always an error.
const PATIENCE: Duration = Duration::from_secs(600);

/// A store, and the jobs that were put there.
pub(crate) struct Stand {
    pub(crate) tenure: Tenure,
    pub(crate) runs: Arc<Runs>,
    pub(crate) site: Site,
    pub(crate) program: Program,
    quick: bool,
    progress: Arc<Progress>,
    ground: Arc<Ground>,
}

/// What became of the jobs of a measure.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account {
    /// How many were enqueued.
    pub(crate) enqueued: u64,
    /// How many succeeded, after exactly one run of their handler.
    pub(crate) once: u64,
    /// How many are still in the queue, and never ran.
    pub(crate) left: u64,
}

impl Stand {
    /// A new store.
    pub(crate) async fn make(
        ground: &Arc<Ground>,
        program: &Program,
        quick: bool,
        progress: &Arc<Progress>,
    ) -> Result<Stand> {
        let there = Arc::clone(ground);
        let site = blocking(move || there.store()).await?;
        let tenure = Tenure::options().open(site.url.as_str()).await?;
        Ok(Stand {
            tenure,
            runs: Runs::new(),
            site,
            program: program.clone(),
            quick,
            progress: Arc::clone(progress),
            ground: Arc::clone(ground),
        })
    }

    /// Removes the store.
    pub(crate) async fn remove(self) -> Result<()> {
        let Stand { tenure, ground, site, .. } = self;
        drop(tenure);
        blocking(move || ground.remove(&site)).await
    }

    /// How many, in a whole run and in a quick one.
    pub(crate) fn size(&self, whole: u64, quick: u64) -> u64 {
        if self.quick { quick } else { whole }
    }

    /// Enqueues so many jobs that do nothing, in batches of a thousand.
    pub(crate) async fn fill(&self, jobs: u64) -> Result<()> {
        self.fill_with(jobs, |n| self.tenure.enqueue(Noop { n })).await
    }

    /// Enqueues so many jobs, in batches of a thousand.
    pub(crate) async fn fill_with(
        &self,
        jobs: u64,
        job: impl Fn(u64) -> Enqueue<()>,
    ) -> Result<()> {
        self.progress.expect(jobs);
        let first = self.runs.number(jobs);
        let mut n = first;
        while n < first + jobs {
            let part = (first + jobs - n).min(BATCH_LIMIT as u64);
            self.tenure.enqueue_many((n..n + part).map(&job)).await?;
            self.progress.moved(part);
            n += part;
        }
        Ok(())
    }

    /// A worker with the handlers and otherwise the default settings.
    pub(crate) fn worker(&self) -> Worker {
        taught(Worker::new(&self.tenure), &self.runs)
    }

    /// Works until nothing is due and the worker has ended. Returns the time from its start to the
    /// commit of the last settlement.
    pub(crate) async fn drain(&self, worker: Worker) -> Result<Duration> {
        let before = self.runs.ended.count();
        self.progress.expect((self.runs.counts().len() as u64).saturating_sub(before));
        let begin = monotonic();
        let mut work = std::pin::pin!(worker.drain().run());
        let mut beat = tokio::time::interval(Duration::from_millis(200));
        let mut told = before;
        loop {
            tokio::select! {
                biased;
                ended = &mut work => {
                    ended?;
                    return self.took(begin);
                }
                _ = beat.tick() => {
                    let ended = self.runs.ended.count();
                    self.progress.moved(ended - told);
                    told = ended;
                }
            }
        }
    }

    /// Runs some jobs before the measure: connections, caches and plans are warm afterwards.
    pub(crate) async fn warm_up(&self) -> Result<()> {
        self.fill(self.size(500, 50)).await?;
        self.drain(self.worker().concurrency(100)).await.map(drop)
    }

    /// Runs at least `jobs` of the jobs that are due, and returns the rate. More may be due: as
    /// soon as so many have run, the worker claims no more, and ends with those that it holds.
    pub(crate) async fn process(&self, jobs: u64, concurrency: usize) -> Result<f64> {
        let before = self.runs.ended.count();
        let begin = monotonic();
        let mut running = self.worker().concurrency(concurrency).start().await?;
        within("jobs to run", self.runs.ended.reach(before + jobs)).await?;
        running.finish();
        running.ended().await;
        if let Some(error) = running.failure() {
            return Err(error.into());
        }
        Ok(rate(self.runs.ended.count() - before, self.took(begin)?))
    }

    /// From a time to the commit of the last settlement.
    fn took(&self, begin: Instant) -> Result<Duration> {
        let settled = self.runs.settled_at().filter(|at| *at > begin);
        Ok(settled.context("the worker has ended, and settled nothing")? - begin)
    }

    /// What this picks of each job that has succeeded, newest first.
    pub(crate) async fn succeeded<T: Send + 'static>(
        &self,
        pick: impl Fn(&JobRecord) -> Option<T> + Send + 'static,
    ) -> Result<Vec<T>> {
        let picked = self.tenure.with_store(move |store| {
            let mut picked = Vec::new();
            let mut filter = Filter { state: Some(State::Succeeded), ..Filter::default() };
            loop {
                // Half of what a call may ask for: some jobs have large args.
                let page = store.jobs(&filter, BATCH_LIMIT / 2)?;
                let Some(last) = page.last() else { return Ok(picked) };
                filter.before = Some(last.id);
                picked.extend(page.iter().filter_map(&pick));
            }
        });
        Ok(picked.await?)
    }

    /// Counts in the store what became of every job. Any other end than exactly one run and a
    /// success is an error, except that a measure may leave jobs that never ran.
    pub(crate) async fn account(&self, may_leave: bool) -> Result<Account> {
        let of =
            |job: &JobRecord| Some((number(job.args.as_str()), job.attempt == 1 + job.crashes));
        let succeeded = self.succeeded(of).await?;
        let overview = self.tenure.with_store(|store| store.overview()).await?;
        let in_queue: u64 = overview.lines.iter().map(|line| line.ready + line.waiting).sum();
        let elsewhere: u64 =
            overview.lines.iter().map(|line| line.running + line.parked + line.dead).sum();
        let tried_again = succeeded.iter().filter(|(_, first_try)| !first_try).count();
        let numbers: Vec<u64> = succeeded.iter().filter_map(|(number, _)| *number).collect();
        let found = Found { numbers: &numbers, in_queue, elsewhere, tried_again };
        balance(&self.runs.counts(), &found, may_leave)
    }
}

/// What the store says at the end of a measure.
struct Found<'a> {
    /// The numbers of the jobs that succeeded.
    numbers: &'a [u64],
    in_queue: u64,
    /// Running, parked or dead.
    elsewhere: u64,
    /// How many needed another attempt without a crash.
    tried_again: usize,
}

/// Compares the runs of each job with what the store says.
fn balance(runs: &[u32], found: &Found<'_>, may_leave: bool) -> Result<Account> {
    let distinct: BTreeSet<u64> = found.numbers.iter().copied().collect();
    let ran = |n: &u64| runs.get(*n as usize).copied().unwrap_or(0);
    let once = distinct.iter().filter(|n| ran(n) == 1).count() as u64;
    let unrun = runs.iter().filter(|count| **count == 0).count() as u64;
    let account = Account { enqueued: runs.len() as u64, once, left: found.in_queue };
    let is_whole = distinct.len() == found.numbers.len()
        && once == distinct.len() as u64
        && once + found.in_queue == account.enqueued
        && unrun == found.in_queue
        && found.elsewhere == 0
        && found.tried_again == 0
        && (may_leave || found.in_queue == 0);
    if is_whole {
        return Ok(account);
    }
    let often = runs.iter().filter(|count| **count > 1).count();
    Err(anyhow!(
        "of {} jobs, {once} succeeded after exactly one run; {} succeeded in the store, {often} ran \
         more than once, {unrun} never, {} are still in the queue, {} are running, parked or dead, \
         and {} were tried again. This is a bug of Tenure or of this bench: please report it",
        account.enqueued,
        found.numbers.len(),
        found.in_queue,
        found.elsewhere,
        found.tried_again,
    ))
}

/// Waits for something that should happen soon.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> Result<T> {
    tokio::time::timeout(PATIENCE, future).await.with_context(|| {
        format!(
            "gave up after {} minutes of waiting for {what}; try --quick, or another disk",
            PATIENCE.as_secs() / 60
        )
    })
}

/// Runs blocking work on a thread that is meant for it. The drivers must not be called on a thread
/// of the async runtime.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context("a thread of the bench has panicked")?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(numbers: &[u64], in_queue: u64) -> Found<'_> {
        Found { numbers, in_queue, elsewhere: 0, tried_again: 0 }
    }

    #[test]
    fn each_job_must_have_run_once_and_succeeded() {
        let account = balance(&[1, 1], &found(&[1, 0], 0), false).unwrap();
        assert_eq!(account, Account { enqueued: 2, once: 2, left: 0 });
        for (runs, numbers) in [
            (&[1, 2][..], &[0, 1][..]),
            (&[1, 0], &[0, 1]),
            (&[1, 1], &[0]),
            (&[1, 1], &[0, 0]),
            (&[2, 0], &[0, 0]),
        ] {
            let error = balance(runs, &found(numbers, 0), true).unwrap_err().to_string();
            assert!(error.contains("please report it"), "{runs:?} {numbers:?}: {error}");
        }
    }

    #[test]
    fn jobs_may_be_left_only_where_that_is_meant_and_if_they_never_ran() {
        let account = balance(&[1, 0, 0], &found(&[0], 2), true).unwrap();
        assert_eq!(account, Account { enqueued: 3, once: 1, left: 2 });
        assert!(balance(&[1, 0, 0], &found(&[0], 2), false).is_err());
        assert!(balance(&[1, 1, 0], &found(&[0], 2), true).is_err());
        let dead = Found { elsewhere: 1, ..found(&[0], 0) };
        assert!(balance(&[1, 1], &dead, true).is_err());
        let again = Found { tried_again: 1, ..found(&[0], 0) };
        assert!(balance(&[1], &again, true).is_err());
    }
}
