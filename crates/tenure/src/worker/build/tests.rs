//! Whole workers, from their settings to their end.

use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::job::JobId;
use crate::lease::Token;
use crate::store::{AsSeen, Store};
use crate::telemetry::Fact;

#[tokio::test]
async fn a_worker_listens_for_its_end_before_it_begins() {
    let tenure = Tenure::open("sqlite::memory:").await.unwrap();
    let (listens, began) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (heard, told) = (Arc::clone(&listens), Arc::clone(&began));
    let worker = Worker::new(&tenure).handle_any(|_, _| async { Ok(None) }).drain();
    let worker = worker.observe(move |event| {
        if let Fact::WorkerStarted { .. } = event.fact {
            assert!(heard.load(Ordering::SeqCst), "a signal would have ended the process");
            told.store(true, Ordering::SeqCst);
        }
    });
    let stop = std::future::poll_fn(|_| {
        listens.store(true, Ordering::SeqCst);
        std::task::Poll::Pending
    });
    assert_eq!(worker.run_until(stop).await.unwrap(), Exit::Drained);
    assert!(began.load(Ordering::SeqCst));
}

#[tokio::test]
async fn a_lease_that_a_busy_worker_could_not_keep_is_refused() {
    let tenure = Tenure::open("sqlite::memory:").await.unwrap();
    let worker = |lease| Worker::new(&tenure).handle_any(|_, _| async { Ok(None) }).lease(lease);
    let error = worker(Duration::from_millis(999)).drain().run().await.unwrap_err();
    let told = "lease: with 999ms a worker that is merely busy loses its jobs; use 1 s or more, \
                30 s is usual";
    assert_eq!(error.to_string(), told);
    let error = worker(Duration::MAX).drain().run().await.unwrap_err();
    assert!(error.to_string().contains("outside 1 ms to 24 h"), "{error}");
    assert!(worker(Duration::from_secs(1)).drain().run().await.is_ok());
}

#[tokio::test]
async fn a_worker_claims_at_most_a_second_of_work_ahead() {
    let tenure = Tenure::open("sqlite::memory:").await.unwrap();
    let worker =
        |ahead| Worker::new(&tenure).handle_any(|_, _| async { Ok(None) }).claim_ahead(ahead);
    for ahead in [Duration::ZERO, Duration::from_secs(1)] {
        assert_eq!(worker(ahead).ahead, ahead);
        assert!(worker(ahead).drain().run().await.is_ok());
    }
    let error = worker(Duration::from_millis(1_001)).drain().run().await.unwrap_err();
    assert!(error.to_string().contains("claim_ahead: 1.001s is more than 1s"), "{error}");
}

#[tokio::test]
async fn a_worker_runs_more_jobs_at_a_time_than_one_call_claims() {
    const JOBS: usize = 1_500;
    let tenure = Tenure::open("sqlite::memory:").await.unwrap();
    for _ in 0..JOBS {
        tenure.enqueue_kind("work", &()).await.unwrap();
    }
    // None returns before all have begun.
    let worker = Worker::new(&tenure).state(tokio::sync::Barrier::new(JOBS));
    let worker = worker.handle_any(|_, cx| async move {
        cx.state::<tokio::sync::Barrier>().wait().await;
        Ok(None)
    });
    let ended = worker.concurrency(JOBS).drain().run();
    let exit = tokio::time::timeout(Duration::from_secs(120), ended).await.unwrap();
    assert_eq!(exit.unwrap(), Exit::Drained);
}

#[tokio::test]
async fn a_result_that_json_cannot_express_buries_its_job_with_the_reason() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Divide(f64);
    impl Job for Divide {
        const KIND: &'static str = "divide";
        type Output = Vec<f64>;
    }
    let tenure = Tenure::open("sqlite::memory:").await.unwrap();
    let handle = tenure.enqueue(Divide(0.0)).await.unwrap();
    let divide = |job: Divide, _: Context| async move { Ok(vec![job.0 / 0.0]) };
    Worker::new(&tenure).handle(divide).drain().run().await.unwrap();
    let error = handle.wait().await.unwrap_err().to_string();
    let why = "it ran, but result cannot be stored as JSON: a number is NaN, which JSON cannot \
               say; use null or a text instead";
    assert!(error.contains(why), "{error}");
}

#[tokio::test]
async fn a_worker_that_is_asked_to_end_before_it_begins_ends_in_order() {
    let tenure = Tenure::open("sqlite::memory:").await.unwrap();
    let worker = Worker::new(&tenure).handle_any(|_, _| async { Ok(None) });
    assert_eq!(worker.run_until(std::future::ready(())).await.unwrap(), Exit::Shutdown);
    let left = tenure.with_store(|store| store.workers()).await.unwrap();
    assert!(left.is_empty(), "it has said good-bye: {left:?}");
}

#[tokio::test]
async fn the_end_can_be_waited_for_more_than_once() {
    let tenure = Tenure::open("sqlite::memory:").await.unwrap();
    let worker = Worker::new(&tenure).handle_any(|_, _| async { Ok(None) }).drain();
    let mut running = worker.start().await.unwrap();
    assert_eq!(running.ended().await, Exit::Drained);
    assert_eq!(running.shut_down().await, Exit::Drained);
}

#[tokio::test]
async fn a_handler_that_has_committed_may_go_on_and_its_success_is_told() {
    let tenure = Tenure::open("sqlite::memory:").await.unwrap();
    let handle = tenure.enqueue_kind("work", &()).await.unwrap();
    let (told, mut events) = tokio::sync::mpsc::unbounded_channel();
    let worker = Worker::new(&tenure).lease(Duration::from_secs(1)).drain();
    let worker = worker.observe(move |event| told.send(event.fact.name()).unwrap_or(()));
    let worker = worker.handle_any(|_, cx| async move {
        crate::sqlite::complete(&cx, |_| Ok(7)).await?;
        // Long enough for several renewals. The store refuses them, because the job has ended.
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert!(!cx.is_cancelled());
        Ok(None)
    });
    assert_eq!(worker.run().await.unwrap(), Exit::Drained);
    assert_eq!(handle.wait().await.unwrap(), 7);
    let mut names = Vec::new();
    while let Ok(name) = events.try_recv() {
        names.push(name);
    }
    assert!(
        names.contains(&"job_succeeded") && !names.contains(&"stale_write_blocked"),
        "{names:?}"
    );
}

/// Runs a draining worker whose handler takes a step after `meanwhile` has happened to its job.
/// Returns why it ended, and the reported facts about the job.
async fn drained(meanwhile: fn(&mut dyn Store, JobId)) -> (Exit, Vec<Fact>) {
    let tenure = Tenure::open("sqlite::memory:").await.unwrap();
    let id = tenure.enqueue_kind("work", &()).await.unwrap().id();
    let (told, mut events) = tokio::sync::mpsc::unbounded_channel();
    let worker = Worker::new(&tenure).drain();
    let worker = worker.observe(move |event| told.send(event.fact.clone()).unwrap_or(()));
    let worker = worker.handle_any(move |_, cx| {
        let tenure = cx.tenure().clone();
        async move {
            if cx.token() == Token(1) {
                // Nothing notifies the worker, and its next renewal is seconds away.
                let happens = move |store: &mut dyn Store| {
                    meanwhile(store, id);
                    Ok(())
                };
                tenure.with_store(happens).await?;
                cx.step("next", || async { Ok(()) }).await?;
            }
            Ok(None)
        }
    });
    let exit = worker.run().await.unwrap();
    let mut facts = Vec::new();
    while let Ok(fact) = events.try_recv() {
        facts.push(fact);
    }
    (exit, facts)
}

fn count(facts: &[Fact], name: &str) -> usize {
    facts.iter().filter(|fact| fact.name() == name).count()
}

#[tokio::test]
async fn a_worker_whose_handler_was_refused_does_not_end_as_if_all_were_well() {
    let (exit, facts) = drained(|store, job| {
        store.cancel(&[job]).unwrap();
        store.requeue(&[AsSeen::any(job)]).unwrap();
    })
    .await;
    assert_eq!(exit, Exit::Stale, "{facts:?}");
    assert_eq!(count(&facts, "stale_write_blocked"), 1, "{facts:?}");
    assert_eq!(count(&facts, "job_cancelled"), 0, "{facts:?}");
}

#[tokio::test]
async fn a_cancelled_job_is_told_once_and_as_no_blocked_write() {
    let (exit, facts) = drained(|store, job| drop(store.cancel(&[job]).unwrap())).await;
    assert_eq!(exit, Exit::Drained, "{facts:?}");
    assert_eq!(count(&facts, "job_cancelled"), 1, "{facts:?}");
    assert_eq!(count(&facts, "stale_write_blocked"), 0, "{facts:?}");
}

#[tokio::test]
async fn a_worker_that_drained_tells_how_its_jobs_ended() {
    let tenure = Tenure::open("sqlite::memory:").await.unwrap();
    for kind in ["well", "again", "never", "never"] {
        tenure.enqueue_kind(kind, &()).await.unwrap();
    }
    let (told, mut events) = tokio::sync::mpsc::unbounded_channel();
    let worker = Worker::new(&tenure).drain();
    let worker = worker.observe(move |event| told.send(event.fact.clone()).unwrap_or(()));
    let worker = worker.handle_any(|_, cx| async move {
        match cx.kind().as_str() {
            "well" => Ok(None),
            "again" => Err(Fault::retry_after(Duration::from_secs(60), "not now")),
            _ => Err(Fault::fatal("never")),
        }
    });
    assert_eq!(worker.run().await.unwrap(), Exit::Drained);
    let mut last = None;
    while let Ok(fact) = events.try_recv() {
        last = Some(fact);
    }
    let exit = Fact::WorkerExit { reason: Exit::Drained, succeeded: 1, retried: 1, dead: 2 };
    assert_eq!(last, Some(exit));
}

#[test]
fn without_its_runtime_a_worker_gives_back_what_it_claims_and_ends() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let first = runtime();
    let tenure = first.block_on(Tenure::open("sqlite::memory:")).unwrap();
    let worker = Worker::new(&tenure).handle_any(|_, _| async { Ok(None) });
    let mut running = first.block_on(worker.start()).unwrap();
    drop(first);
    runtime().block_on(async {
        let handle = tenure.enqueue_kind("work", &()).await.unwrap();
        assert_eq!(running.ended().await, Exit::Shutdown);
        assert_eq!(handle.state().await.unwrap(), Some(crate::job::State::Queued));
    });
}

#[tokio::test]
async fn a_worker_runs_the_kinds_that_it_was_asked_to_and_refuses_settings_that_cannot_work() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Mow;
    impl Job for Mow {
        const KIND: &'static str = "mow";
        type Output = ();
    }
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Sow;
    impl Job for Sow {
        const KIND: &'static str = "sow";
        type Output = ();
    }
    let tenure = Tenure::open("sqlite::memory:").await.unwrap();
    let worker = || {
        let mow = |_: Mow, _: Context| async { Ok(()) };
        Worker::new(&tenure).handle(mow).handle(|_: Sow, _: Context| async { Ok(()) })
    };
    let any = || Worker::new(&tenure).handle_any(|_, _| async { Ok(None) });
    let kinds = |worker: Worker| {
        let kinds = worker.plan().unwrap().kinds?;
        Some(kinds.iter().map(|kind| kind.as_str().to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(kinds(worker()).unwrap(), ["mow", "sow"]);
    assert_eq!(kinds(worker().kinds(["sow"])).unwrap(), ["sow"]);
    assert_eq!(kinds(any()), None);
    assert_eq!(kinds(any().kinds(["sow"])).unwrap(), ["sow"]);
    let lease = Duration::from_secs(7);
    assert_eq!(worker().lease(lease).plan().unwrap().lease, lease);
    for slots in [1, 10_000] {
        assert_eq!(worker().concurrency(slots).plan().unwrap().slots, slots);
    }
    for (worker, refusal) in [
        (worker().kinds(["mow", "reap"]), "kinds: there is no handler for reap"),
        (Worker::new(&tenure), "handlers: a worker without handlers can run nothing"),
        (worker().queues([]), "queues: a worker works from at least one queue"),
        (worker().concurrency(0), "concurrency: 0 is outside 1 to 10000"),
        (worker().concurrency(10_001), "concurrency: 10001 is outside 1 to 10000"),
    ] {
        let error = worker.plan().unwrap_err().to_string();
        assert!(error.starts_with(refusal), "{error}");
    }
}

#[tokio::test]
async fn a_worker_whose_store_is_gone_does_not_start() {
    let directory = tempfile::tempdir().unwrap();
    let place = format!("sqlite://{}", directory.path().join("jobs.db").display());
    let tenure = Tenure::open(&place).await.unwrap();
    drop(directory);
    let worker = Worker::new(&tenure).handle_any(|_, _| async { Ok(None) });
    assert!(worker.start().await.is_err());
}
