//! What a handler can learn about its job and ask about its lease, on a store in memory whose clock
//! the test moves.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tenure::engine::job::{JobId, Json, Key, Limits, Name, RetryPolicy, State, Tenant};
use tenure::testing::Sandbox;
use tenure::{AnyJob, Context, Fault, Job, Tenure, Timestamp, Worker, sqlite};

#[derive(Serialize, Deserialize)]
struct Tell;

impl Job for Tell {
    const KIND: &'static str = "tell";
    type Output = ();
}

/// What each attempt learned from its context.
type Told = Arc<Mutex<Vec<String>>>;

async fn tell(_: Tell, cx: Context) -> Result<(), Fault> {
    let words = format!(
        "attempt {} last {} crashes {} key {:?} trace {:?} of {} in {}",
        cx.attempt(),
        cx.is_last_attempt(),
        cx.crashes(),
        cx.key(),
        cx.trace(),
        cx.tenant(),
        cx.queue(),
    );
    cx.state::<Told>().lock().unwrap().push(words);
    Err(Fault::retry("once more"))
}

#[tokio::test]
async fn a_handler_is_told_what_is_known_of_its_job_and_its_attempt() {
    let sandbox = Sandbox::new().await.unwrap();
    let tenure = sandbox.tenure();
    let full = tenure.enqueue(Tell).key("k").trace("00-ab-cd-01").tenant("acme").queue("slow");
    full.max_attempts(2).retry(RetryPolicy::Fixed { ms: 1_000 }).await.unwrap();
    let told = Told::default();
    let worker =
        Worker::new(tenure).handle(tell).state(Arc::clone(&told)).queues(["default", "slow"]);
    assert_eq!(sandbox.run_due(&worker).await.unwrap().retried, 1);
    sandbox.advance(Duration::from_secs(1));
    assert_eq!(sandbox.run_due(&worker).await.unwrap().dead, 1);
    tenure.enqueue(Tell).max_attempts(2).await.unwrap();
    assert_eq!(sandbox.run_due(&worker).await.unwrap().retried, 1);
    let known = r#"crashes 0 key Some("k") trace Some("00-ab-cd-01") of acme in slow"#;
    assert_eq!(
        *told.lock().unwrap(),
        [
            format!("attempt 1 last false {known}"),
            format!("attempt 2 last true {known}"),
            "attempt 1 last false crashes 0 key None trace None of  in default".to_owned(),
        ]
    );
}

#[tokio::test]
async fn a_handler_is_told_how_often_a_worker_vanished_with_its_job() {
    let sandbox = Sandbox::new().await.unwrap();
    let vanishes = sandbox.context(&Tell).await.unwrap();
    let job = vanishes.job();
    drop(vanishes);
    // Longer than any lease.
    sandbox.advance(Duration::from_secs(24 * 60 * 60));
    let told = Told::default();
    let worker = Worker::new(sandbox.tenure()).handle(tell).state(Arc::clone(&told));
    let worker = worker.queues(["sandbox"]);
    for _ in 0..3 {
        // The first call takes the job back. When it runs again depends on its retry policy, so
        // this tries several times.
        sandbox.run_due(&worker).await.unwrap();
        sandbox.advance(Duration::from_secs(60 * 60));
        if !told.lock().unwrap().is_empty() {
            break;
        }
    }
    assert_eq!(sandbox.tenure().job(job).await.unwrap().unwrap().job.crashes, 1);
    let told = told.lock().unwrap();
    assert!(told.first().is_some_and(|words| words.contains(" crashes 1 ")), "{told:?}");
}

/// Otherwise a second call under the name would silently get the result of the first.
#[tokio::test]
async fn a_step_that_an_earlier_attempt_has_done_has_used_up_its_name() {
    let sandbox = Sandbox::new().await.unwrap();
    let again = |_, cx: Context| async move {
        let load = || cx.step("load", async || Ok(7));
        assert_eq!(load().await, Ok(7));
        let twice = load().await;
        assert!(matches!(twice, Err(Fault::Fatal { .. })), "{twice:?}");
        if cx.attempt() == 1 { Err(Fault::retry("once more")) } else { Ok(None) }
    };
    let worker = Worker::new(sandbox.tenure()).handle_any(again);
    let job = sandbox.tenure().enqueue_kind("load", &()).max_attempts(2).await.unwrap();
    assert_eq!(sandbox.run_due(&worker).await.unwrap().retried, 1);
    sandbox.advance(Duration::from_secs(60));
    let ran = sandbox.run_due(&worker).await.unwrap();
    let found = sandbox.tenure().job(job.id()).await.unwrap().unwrap();
    assert_eq!(ran.succeeded, 1, "{found:?}");
    let failed = found.timeline.iter().find_map(|line| line.note.as_deref());
    assert_eq!(failed, Some("once more"));
}

/// The store would refuse a second settlement, and an event would warn of a blocked write.
#[tokio::test]
async fn what_a_handler_has_committed_itself_is_not_settled_again() {
    let sandbox = Sandbox::new().await.unwrap();
    let job = sandbox.tenure().enqueue_kind("commit", &()).await.unwrap();
    let worker = Worker::new(sandbox.tenure()).handle_any(|_, cx| async move {
        tenure::sqlite::complete(&cx, |_| Ok(7)).await?;
        Err(Fault::fatal("what fails after the commit does not count"))
    });
    assert_eq!(sandbox.run_due(&worker).await.unwrap().succeeded, 1);
    let found = sandbox.tenure().job(job.id()).await.unwrap().unwrap();
    assert!(found.timeline.iter().all(|line| !line.refused), "{found:?}");
    assert_eq!(job.wait().await.unwrap(), 7);
}

#[tokio::test]
async fn a_holder_that_asks_still_has_its_job_and_one_that_was_cancelled_does_not() {
    let sandbox = Sandbox::new().await.unwrap();
    let cx = sandbox.context(&Tell).await.unwrap();
    assert_eq!(cx.assert_held().await.unwrap(), cx.token());
    assert!(!cx.lease_lost() && !cx.is_cancelled());
    sandbox.tenure().cancel(cx.job()).await.unwrap();
    assert!(cx.assert_held().await.is_err());
    assert!(cx.is_cancelled());
}

#[tokio::test]
async fn what_a_holder_says_of_its_progress_is_kept_and_the_last_word_always() {
    let sandbox = Sandbox::new().await.unwrap();
    let cx = sandbox.context(&Tell).await.unwrap();
    let kept = async || {
        let found = sandbox.tenure().job(cx.job()).await.unwrap().unwrap().job.progress;
        found.map(|progress| (progress.permille(), progress.note().map(str::to_owned)))
    };
    cx.progress(0.25, "loading").await.unwrap();
    assert_eq!(kept().await, Some((250, Some("loading".into()))));
    // Of reports in quick succession only the one with 1.0 is sure to be stored.
    cx.progress(0.5, "storing").await.unwrap();
    cx.progress(1.0, "done").await.unwrap();
    assert_eq!(kept().await, Some((1_000, Some("done".into()))));
}

/// Returns JSON of `size` bytes.
async fn long(job: AnyJob, _: Context) -> Result<Option<Json>, Fault> {
    let size: usize = serde_json::from_str(job.args.as_str())?;
    let text = format!("\"{}\"", "x".repeat(size - 2));
    Ok(Some(Json::check("result", text, size)?))
}

#[tokio::test]
async fn a_result_may_be_as_long_as_the_limit_and_not_longer() {
    let limits = Limits { result: 100, ..Limits::default() };
    let tenure = Tenure::options().limits(limits).open("sqlite::memory:").await.unwrap();
    let fits = tenure.enqueue_kind("long", &100).await.unwrap();
    let over = tenure.enqueue_kind("long", &101).await.unwrap();
    Worker::new(&tenure).handle_any(long).drain().run().await.unwrap();
    assert_eq!(fits.wait().await.unwrap().as_str().map(str::len), Some(98));
    assert_eq!(over.state().await.unwrap(), Some(State::Dead));
    let reason = tenure.job(over.id()).await.unwrap().unwrap().job.reason.unwrap();
    assert!(reason.starts_with("it ran, but result"), "not what it did failed: {reason}");
}

/// Names may be built at run time, and a store may be opened by a path.
#[tokio::test]
async fn what_a_program_says_may_be_owned_borrowed_or_a_path() {
    let directory = tempfile::tempdir().unwrap();
    let file: PathBuf = directory.path().join("jobs.db");
    let tenure = Tenure::open(&file).await.unwrap();
    assert!(Tenure::open(file.to_str().unwrap().to_owned()).await.is_ok());
    let month = 7;
    let report = tenure.enqueue_kind(format!("report-{month}"), &month).key(format!("k-{month}"));
    let report =
        report.queue(String::from("slow")).tenant(format!("t{month}")).tag(format!("v{month}"));
    let due = SystemTime::UNIX_EPOCH + Duration::from_millis(1_500);
    let id = report.at(due).await.unwrap().id();
    let kept = tenure.job(id).await.unwrap().unwrap().job;
    assert_eq!((kept.kind.as_str(), kept.key.as_deref()), ("report-7", Some("k-7")));
    assert_eq!((kept.run_at, Timestamp::from(due).as_millis()), (due.into(), 1_500));
    let before = SystemTime::UNIX_EPOCH - Duration::from_millis(1_500);
    assert_eq!(Timestamp::from(before).as_millis(), -1_500);

    assert_eq!((JobId::from(7), "7".parse::<JobId>().unwrap()), (JobId(7), JobId(7)));
    assert!("seven".parse::<JobId>().is_err());
    assert!(Name::try_from("mail").is_ok() && Name::try_from("Mail").is_err());
    assert!(Tenant::try_from("").is_ok() && Tenant::try_from("Acme").is_err());
    assert!(Key::try_from("k 1").is_ok() && Key::try_from("").is_err());
}

/// These are the errors that `?` usually meets: any error type, also anyhow's, and a text.
#[test]
fn an_error_that_a_handler_meets_becomes_another_try_with_its_causes() {
    fn fails(how: &str) -> Result<(), Fault> {
        match how {
            "anyhow" => Err(anyhow::anyhow!("no disk").context("cannot store"))?,
            "text" => Err(format!("no {how}"))?,
            _ => Err(std::io::Error::other("broken pipe"))?,
        }
        Ok(())
    }
    for (how, expected) in
        [("anyhow", "cannot store: no disk"), ("text", "no text"), ("io", "broken pipe")]
    {
        let error = expected.to_owned();
        assert_eq!(fails(how), Err(Fault::Retry { error }));
    }
}

/// For example logs and metrics at the same time.
#[tokio::test]
async fn every_observer_is_told_of_a_stores_and_of_a_workers() {
    let told = Told::default();
    let tell = |who: &'static str| {
        let told = Arc::clone(&told);
        move |event: &tenure::Event| {
            if event.fact.name() == "job_dead" {
                told.lock().unwrap().push(who.to_owned());
            }
        }
    };
    let options = Tenure::options().observe(tell("first")).observe(tell("second"));
    let tenure = options.open("sqlite::memory:").await.unwrap();
    tenure.enqueue(Tell).max_attempts(1).await.unwrap();
    let worker = Worker::new(&tenure).handle(tell_nobody).observe(tell("third"));
    worker.observe(tell("fourth")).drain().run().await.unwrap();
    assert_eq!(*told.lock().unwrap(), ["first", "second", "third", "fourth"]);
}

async fn tell_nobody(_: Tell, _: Context) -> Result<(), Fault> {
    Err(Fault::fatal("no"))
}

#[tokio::test]
async fn a_sandbox_whose_store_fails_says_so_instead_of_trying_again() {
    let sandbox = Sandbox::new().await.unwrap();
    sandbox.tenure().enqueue(Tell).await.unwrap();
    let worker = Worker::new(sandbox.tenure()).handle(tell).state(Told::default());
    sqlite::transaction(sandbox.tenure(), |tx| {
        Ok(tx.execute_batch("ALTER TABLE tenure_jobs RENAME COLUMN args TO arguments")?)
    })
    .await
    .unwrap();
    let failed = sandbox.run_due(&worker).await.unwrap_err().to_string();
    assert!(failed.contains("run the due jobs") && failed.contains("args"), "{failed}");
}
