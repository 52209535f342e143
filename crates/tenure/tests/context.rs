//! What a handler is told of its job and may ask of its right, on a store in memory whose clock the test moves.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::handler::AnyJob;
use tenure::job::{Json, Limits, RetryPolicy, State};
use tenure::testing::Sandbox;
use tenure::{Context, Fault, Job, Tenure, Worker};

#[derive(Serialize, Deserialize)]
struct Tell;

impl Job for Tell {
    const KIND: &'static str = "tell";
    type Output = ();
}

/// What each attempt was told.
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
async fn a_holder_that_asks_still_has_its_job_and_one_that_was_cancelled_does_not() {
    let sandbox = Sandbox::new().await.unwrap();
    let cx = sandbox.context(&Tell).await.unwrap();
    assert_eq!(cx.fence().await.unwrap(), cx.token());
    assert!(!cx.lease_lost() && !cx.is_cancelled());
    sandbox.tenure().cancel(cx.job()).await.unwrap();
    assert!(cx.fence().await.is_err());
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
    // Of what is said again at once only the end is sure to be kept.
    cx.progress(0.5, "storing").await.unwrap();
    cx.progress(1.0, "done").await.unwrap();
    assert_eq!(kept().await, Some((1_000, Some("done".into()))));
}

/// As JSON, `size` bytes long.
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
}
