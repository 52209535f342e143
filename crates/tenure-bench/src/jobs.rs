//! The jobs that are measured, their handlers, and the count of their runs.
//!
//! A job does nothing but be counted. Its number in the args says which one it is, so that a job
//! that ran twice cannot make up for one that did not run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tenure::engine::clock::monotonic;
use tenure::{Context, Fact, Fault, Job, Worker};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};

/// A job whose handler returns at once.
#[derive(Serialize, Deserialize)]
pub(crate) struct Noop {
    pub(crate) n: u64,
}

impl Job for Noop {
    const KIND: &'static str = "bench_noop";
    type Output = ();
}

/// The same with a large argument.
#[derive(Serialize, Deserialize)]
pub(crate) struct Padded {
    pub(crate) n: u64,
    pub(crate) pad: String,
}

impl Job for Padded {
    const KIND: &'static str = "bench_padded";
    type Output = ();
}

/// A job that runs until it is released.
#[derive(Serialize, Deserialize)]
pub(crate) struct Hold {
    pub(crate) n: u64,
}

impl Job for Hold {
    const KIND: &'static str = "bench_hold";
    const QUEUE: &'static str = "held";
    type Output = ();
}

/// The number in the args of any of them.
#[derive(Deserialize)]
struct Numbered {
    n: u64,
}

/// The number of a job, by its args.
pub(crate) fn number(args: &str) -> Option<u64> {
    serde_json::from_str::<Numbered>(args).ok().map(|args| args.n)
}

/// Gives a worker the handlers.
pub(crate) fn taught(worker: Worker, runs: &Arc<Runs>) -> Worker {
    let hear = Arc::clone(runs);
    worker
        .handle(async |job: Noop, cx: Context| cx.state::<Arc<Runs>>().ran(job.n))
        .handle(async |job: Padded, cx: Context| cx.state::<Arc<Runs>>().ran(job.n))
        .handle(hold)
        .state(Arc::clone(runs))
        .observe(move |event| {
            if matches!(event.fact, Fact::JobSucceeded { .. }) {
                hear.settled();
            }
        })
}

async fn hold(job: Hold, cx: Context) -> Result<(), Fault> {
    let runs = Arc::clone(cx.state::<Arc<Runs>>());
    runs.held.add(1);
    // Waiting fails only if the sender is gone, but `runs` holds the sender.
    let _ = runs.release.subscribe().wait_for(|released| *released).await;
    runs.ran(job.n)
}

/// How often each job has run to its end.
pub(crate) struct Runs {
    inner: Mutex<Inner>,
    /// How many runs have ended.
    pub(crate) ended: Goal,
    /// How many held jobs have started.
    pub(crate) held: Goal,
    release: watch::Sender<bool>,
    /// When the last settlement was reported, which is after its commit.
    settled_at: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Inner {
    counts: Vec<u32>,
    told: Option<UnboundedSender<(u64, Instant)>>,
}

impl Runs {
    pub(crate) fn new() -> Arc<Runs> {
        Arc::new(Runs {
            inner: Mutex::default(),
            ended: Goal::default(),
            held: Goal::default(),
            release: watch::Sender::new(false),
            settled_at: Mutex::default(),
        })
    }

    /// Numbers for so many new jobs; the first of them.
    pub(crate) fn number(&self, jobs: u64) -> u64 {
        let mut inner = self.inner();
        let first = inner.counts.len();
        inner.counts.resize(first + jobs as usize, 0);
        first as u64
    }

    /// A handler has reached its end.
    pub(crate) fn ran(&self, n: u64) -> Result<(), Fault> {
        let mut inner = self.inner();
        match inner.counts.get_mut(n as usize) {
            Some(count) => *count += 1,
            None => return Err(Fault::fatal(format!("job {n} is none of this run"))),
        }
        if let Some(told) = &inner.told {
            let _ = told.send((n, monotonic()));
        }
        drop(inner);
        self.ended.add(1);
        Ok(())
    }

    fn settled(&self) {
        *self.settled_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(monotonic());
    }

    /// When the last settlement so far was reported. The end of the worker would be too late: its
    /// renewer may first wait for the store for a moment.
    pub(crate) fn settled_at(&self) -> Option<Instant> {
        *self.settled_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on each run of a handler is sent, with its time.
    pub(crate) fn listen(&self) -> UnboundedReceiver<(u64, Instant)> {
        let (told, heard) = unbounded_channel();
        self.inner().told = Some(told);
        heard
    }

    /// Lets held jobs end, those that start later too.
    pub(crate) fn release(&self) {
        self.release.send_replace(true);
    }

    /// How often each job has run, by its number.
    pub(crate) fn counts(&self) -> Vec<u32> {
        self.inner().counts.clone()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A counter; one caller can wait until it reaches a number.
#[derive(Debug, Default)]
pub(crate) struct Goal {
    count: AtomicU64,
    changed: Notify,
    wanted: AtomicU64,
}

impl Goal {
    pub(crate) fn add(&self, more: u64) {
        let now = self.count.fetch_add(more, Ordering::SeqCst) + more;
        if now >= self.wanted.load(Ordering::SeqCst) {
            self.changed.notify_one();
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Waits until the count is at least this.
    pub(crate) async fn reach(&self, wanted: u64) {
        self.wanted.store(wanted, Ordering::SeqCst);
        while self.count() < wanted {
            self.changed.notified().await;
        }
        // The wait is over. No count reaches this number, so counting wakes nothing any more.
        self.wanted.store(u64::MAX, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_counts_for_its_own_job() {
        let runs = Runs::new();
        assert_eq!((runs.number(2), runs.number(1)), (0, 2));
        runs.ran(1).unwrap();
        runs.ran(1).unwrap();
        assert_eq!(runs.counts(), [0, 2, 0]);
        assert!(runs.ran(3).is_err(), "a job that was never numbered");
        assert_eq!(runs.ended.count(), 2);
    }

    #[test]
    fn the_number_is_read_from_the_args_of_every_kind() {
        assert_eq!(number("{\"n\":7}"), Some(7));
        assert_eq!(number("{\"n\":7,\"pad\":\"aaa\"}"), Some(7));
        assert_eq!(number("{}"), None);
    }

    #[tokio::test]
    async fn a_goal_that_was_reached_before_is_not_waited_for() {
        let goal = Goal::default();
        goal.add(3);
        goal.reach(2).await;
        let reached = async { goal.reach(5).await };
        let adding = async {
            goal.add(1);
            goal.add(1);
        };
        tokio::join!(reached, adding);
        assert_eq!(goal.count(), 5);
    }
}
