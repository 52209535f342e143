//! The user's own transaction on PostgreSQL, over the user's own driver: the user's rows and our
//! jobs, both or neither.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]
use std::future::Future;
use std::num::NonZeroU16;
use std::time::Duration;
use tenure::engine::store::{Enqueued, Look, Work};

use tenure::Filter;
use tenure::engine::clock::{Clock, Timestamp};
use tenure::engine::job::{
    Fingerprint, JobId, JobRecord, Json, Key, Limits, Name, NewJob, RetryPolicy, State, Tenant,
};
use tenure::engine::lease::{Fence, Reason, Stale, Token};
use tenure::engine::raw as own;
use tenure::engine::store::postgres::{Postgres, PostgresOptions};
use tenure::postgres::tokio_postgres::{self, Client, IsolationLevel, NoTls};
use tenure::postgres::{CallError, Refusal};
use tenure_drill::engines::{OTHER_SCHEMA, START};
use tenure_drill::servers;
use tenure_drill::sessions::Lab;
use tokio::runtime::{Builder, Runtime};

const SCHEMA: &str = "tenure";
const WRITE: &str = "INSERT INTO public.effects VALUES (1, 1, 'mine')";

/// A user with their own connection and runtime.
struct User {
    runtime: Runtime,
    client: Client,
}

impl User {
    fn of(database: &str) -> User {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let address = servers::address(database, SCHEMA);
        let (address, _) = address.split_once("&schema=").unwrap();
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(address, NoTls).await.unwrap();
            tokio::spawn(connection);
            client
        });
        User { runtime, client }
    }

    /// A user who may do what a role may, and nothing else.
    fn member(lab: &Lab, role: &str) -> User {
        let user = User::of(lab.database());
        let become_ = format!("SET SESSION AUTHORIZATION \"{}\"", lab.member(role));
        user.runtime.block_on(user.client.batch_execute(&become_)).unwrap();
        user
    }

    fn enqueue(&mut self, jobs: &[NewJob]) -> Vec<Enqueued> {
        self.try_enqueue(jobs).unwrap()
    }

    /// Jobs and a row of the user's own, committed.
    fn try_enqueue(&mut self, jobs: &[NewJob]) -> Result<Vec<Enqueued>, CallError> {
        self.runtime.block_on(async {
            let tx = self.client.transaction().await.unwrap();
            tx.execute(WRITE, &[]).await.unwrap();
            let answers = own::enqueue(&tx, SCHEMA, jobs, &Limits::default()).await?;
            tx.commit().await.unwrap();
            Ok(answers)
        })
    }

    /// The job's completion and a row of the user's own, committed.
    fn complete(&mut self, fence: Fence) -> Result<(), CallError> {
        self.runtime.block_on(async {
            let tx = self.client.transaction().await.unwrap();
            tx.execute(WRITE, &[]).await.unwrap();
            own::complete(&tx, SCHEMA, fence, Some(&json(r#"{"sent":true}"#))).await?;
            tx.commit().await.unwrap();
            Ok(())
        })
    }

    fn refused(&self, fence: Fence) -> bool {
        self.runtime.block_on(own::refused(&self.client, SCHEMA, fence)).unwrap()
    }
}

fn json(text: &str) -> Json {
    Json::check("args", text, 10_000).unwrap()
}

fn name(text: &str) -> Name {
    Name::check("name", text).unwrap()
}

fn job() -> NewJob {
    NewJob::new(name("work"), json("{}"))
}

/// A running job, with a lease of 300 ms.
fn running(lab: &mut Lab) -> Fence {
    lab.number("SELECT tenure.enqueue('work')");
    claim(lab)
}

fn claim(lab: &mut Lab) -> Fence {
    let ask = "SELECT id, token FROM tenure.claim('ann', lease => '300 ms')";
    let row = lab.owner().query_one(ask, &[]).unwrap();
    Fence { job: JobId(row.get(0)), token: Token(row.get(1)) }
}

/// Claims the job again, as another worker does once its lease is over.
fn take_over(lab: &mut Lab) -> Fence {
    lab.advance(300);
    claim(lab)
}

/// The number of the user's own rows, and of jobs.
fn counts(lab: &mut Lab) -> (i64, i64) {
    (
        lab.number("SELECT count(*) FROM public.effects"),
        lab.number("SELECT count(*) FROM tenure.job"),
    )
}

fn state(lab: &mut Lab, fence: Fence) -> String {
    lab.text(&format!("SELECT state FROM tenure.job WHERE id = {}", fence.job))
}

fn refusals(lab: &mut Lab) -> i64 {
    lab.number("SELECT count(*) FROM tenure.event WHERE refused")
}

fn stale(answer: Result<(), CallError>) -> Stale {
    match answer {
        Err(CallError::Stale(stale)) => stale,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_row_and_a_job_are_committed_together() {
    let mut lab = Lab::new();
    let mut user = User::of(lab.database());
    assert_eq!(user.enqueue(&[job()]), [Enqueued::Created(JobId(1))]);
    assert_eq!(counts(&mut lab), (1, 1));
}

#[test]
fn a_rollback_leaves_neither() {
    let mut lab = Lab::new();
    let mut user = User::of(lab.database());
    user.runtime.block_on(async {
        let tx = user.client.transaction().await.unwrap();
        tx.execute(WRITE, &[]).await.unwrap();
        own::enqueue(&tx, SCHEMA, &[job()], &Limits::default()).await.unwrap();
        tx.rollback().await.unwrap();
    });
    assert_eq!(counts(&mut lab), (0, 0));
}

#[test]
fn a_row_and_the_end_of_the_job_are_committed_together() {
    let mut lab = Lab::new();
    let fence = running(&mut lab);
    User::member(&lab, "worker").complete(fence).unwrap();
    assert_eq!((counts(&mut lab), state(&mut lab, fence)), ((1, 1), "succeeded".into()));
    assert_eq!(lab.text("SELECT result::text FROM tenure.job"), r#"{"sent":true}"#);
}

#[test]
fn a_worker_that_lost_its_job_is_told_what_the_job_holds_and_its_row_is_not_there() {
    let mut lab = Lab::new();
    let shown = running(&mut lab);
    let winner = take_over(&mut lab);
    let mut late = User::member(&lab, "worker");
    let answer = late.complete(shown);
    let words = answer.as_ref().unwrap_err().to_string();
    assert!(words.contains("token 1 is no longer the right to job 1"), "{words}");
    let reason = Reason::TokenMismatch;
    let expected = Stale { shown, current: winner.token, state: State::Running, reason };
    assert_eq!(stale(answer), expected);
    assert_eq!((counts(&mut lab), state(&mut lab, shown)), ((0, 1), "running".into()));
    assert_eq!(refusals(&mut lab), 0, "its trace was rolled back with it");
    assert!(late.refused(shown));
    assert_eq!(refusals(&mut lab), 1);
    late.complete(winner).unwrap();
    assert_eq!((counts(&mut lab), state(&mut lab, shown)), ((1, 1), "succeeded".into()));
}

#[test]
fn a_transaction_that_is_sent_again_writes_nothing_twice() {
    let mut lab = Lab::new();
    let shown = running(&mut lab);
    let mut user = User::of(lab.database());
    user.complete(shown).unwrap();
    let again = user.complete(shown);
    assert!(matches!(again, Err(CallError::AlreadyDone(fence)) if fence == shown), "{again:?}");
    let words = again.unwrap_err().to_string();
    assert!(words.contains("has completed job 1 before"), "{words}");
    assert_eq!(counts(&mut lab), (1, 1));
}

#[test]
fn every_call_tells_a_job_that_ended_from_one_that_is_gone() {
    let mut lab = Lab::new();
    let shown = running(&mut lab);
    lab.text(&format!("SELECT tenure.cancel({})", shown.job));
    let gone = Fence { job: JobId(99), ..shown };
    let user = User::of(lab.database());
    user.runtime.block_on(async {
        let ended = [
            own::complete(&user.client, SCHEMA, shown, None).await,
            own::fence(&user.client, SCHEMA, shown).await,
            own::hold(&user.client, SCHEMA, shown).await,
        ];
        for answer in ended {
            let answer = stale(answer);
            assert_eq!((answer.shown, answer.state), (shown, State::Cancelled));
            assert_eq!((answer.reason, answer.current), (Reason::TokenMismatch, Token(2)));
        }
        let gone_ = [
            own::complete(&user.client, SCHEMA, gone, None).await,
            own::fence(&user.client, SCHEMA, gone).await,
            own::hold(&user.client, SCHEMA, gone).await,
        ];
        for answer in gone_ {
            assert!(
                matches!(answer, Err(CallError::NotFound(fence)) if fence == gone),
                "{answer:?}"
            );
        }
    });
    assert!(!user.refused(gone), "there is nothing to leave a trace of");
}

#[test]
fn a_takeover_after_a_fence_makes_the_commit_fail_and_the_refusal_can_be_read() {
    let mut lab = Lab::new();
    let shown = running(&mut lab);
    let mut user = User::member(&lab, "worker");
    let User { runtime, client } = &mut user;
    let tx = runtime.block_on(async {
        let tx = client.transaction().await.unwrap();
        own::fence(&tx, SCHEMA, shown).await.unwrap();
        tx.execute(WRITE, &[]).await.unwrap();
        tx
    });
    let winner = take_over(&mut lab);
    let refused = runtime.block_on(tx.commit()).unwrap_err();
    let reason = Reason::TokenMismatch;
    let expected = Stale { shown, current: winner.token, state: State::Running, reason };
    assert_eq!(own::refusal(&refused), Some(Refusal::Stale(expected)));
    assert_eq!(counts(&mut lab), (0, 1));
}

#[test]
fn a_fence_that_holds_lets_the_commit_through_and_the_job_run_on() {
    let mut lab = Lab::new();
    let fence = running(&mut lab);
    let mut user = User::of(lab.database());
    let User { runtime, client } = &mut user;
    let tx = runtime.block_on(async {
        let tx = client.transaction().await.unwrap();
        own::fence(&tx, SCHEMA, fence).await.unwrap();
        tx.execute(WRITE, &[]).await.unwrap();
        tx
    });
    lab.text(&format!("SELECT tenure.renew({}, {})::text", fence.job, fence.token));
    runtime.block_on(tx.commit()).unwrap();
    assert_eq!((counts(&mut lab), state(&mut lab, fence)), ((1, 1), "running".into()));
}

#[test]
fn a_held_job_is_taken_by_nobody_and_completes_in_a_snapshot() {
    let mut lab = Lab::new();
    let fence = running(&mut lab);
    let mut user = User::of(lab.database());
    let User { runtime, client } = &mut user;
    let tx = runtime.block_on(async {
        let snapshot = client.build_transaction().isolation_level(IsolationLevel::RepeatableRead);
        let tx = snapshot.start().await.unwrap();
        own::hold(&tx, SCHEMA, fence).await.unwrap();
        tx
    });
    lab.advance(10_000);
    assert_eq!(lab.number("SELECT count(*) FROM tenure.claim('bob')"), 0);
    runtime.block_on(async {
        tx.execute(WRITE, &[]).await.unwrap();
        own::complete(&tx, SCHEMA, fence, None).await.unwrap();
        tx.commit().await.unwrap();
    });
    assert_eq!((counts(&mut lab), state(&mut lab, fence)), ((1, 1), "succeeded".into()));
}

/// Jobs with every option there is, and some with none.
fn all_options() -> Vec<NewJob> {
    let count = |n| NonZeroU16::new(n).unwrap();
    let key = Key::check("welcome-7").unwrap().window(Duration::from_secs(60));
    let mut own_fingerprint = Key::check("x'\"").unwrap();
    own_fingerprint.fingerprint = Some(Fingerprint([7; 32]));
    let large = format!(r#"{{"pad":"{}"}}"#, "x".repeat(5_000));
    vec![
        job(),
        NewJob::new(name("send"), json(r#"{"to": "ä@b.c", "n": [1, null, 1.50]}"#))
            .queue(name("mail"))
            .tenant(Tenant::check("acme").unwrap())
            .priority(-7)
            .delay(Duration::from_millis(1_234))
            .max_attempts(count(2))
            .max_crashes(count(9))
            .retry(RetryPolicy::list(&[5, 70]))
            .max_runtime(Duration::from_secs(90))
            .key(key.clone())
            .trace("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
            .unwrap()
            .tags(vec![name("a"), name("b:c")])
            .unwrap(),
        job()
            .at(Timestamp::from_millis(START.as_millis() + 99))
            .retry(RetryPolicy::Fixed { ms: 3 }),
        NewJob::new(name("send"), json(&large)).key(own_fingerprint).priority(i16::MAX),
        job().retry(RetryPolicy::Exponential { base_ms: 5, cap_ms: 6 }),
        // The key again: for a tenant that has not used it yet, and for one that has, with another
        // request. The test sends the whole batch twice.
        job().key(key.clone()),
        job().tenant(Tenant::check("acme").unwrap()).key(key),
    ]
}

#[test]
fn every_option_arrives_as_it_does_through_the_port() {
    let (mut ours, mut theirs) = (Lab::new(), Lab::new());
    let mut port = Postgres::open(&ours.address(), &PostgresOptions::default()).unwrap();
    let mut user = User::member(&theirs, "enqueuer");
    for _ in 0..2 {
        let (by_port, by_user) = (port.enqueue(&all_options()), user.enqueue(&all_options()));
        assert_eq!(by_user, by_port.unwrap());
    }
    let kept: Vec<_> = [&ours, &theirs].map(records).into();
    assert_eq!(kept[0], kept[1]);
    assert_eq!(kept[0].len(), 6 + 3, "the second time those with a key are there already");
    let keys = "SELECT string_agg(concat_ws(' ', tenant, key, fingerprint, job_id, expires_at), ';' ORDER BY tenant, key)
                  FROM tenure.keys";
    let keys = [&mut ours, &mut theirs].map(|lab| lab.text(keys));
    assert_eq!(keys[0], keys[1]);
}

fn records(lab: &Lab) -> Vec<JobRecord> {
    let mut store = Postgres::open(&lab.address(), &PostgresOptions::default()).unwrap();
    store.jobs(&Filter::default(), 100).unwrap()
}

#[test]
fn keys_are_answered_with_whose_they_are() {
    let mut lab = Lab::new();
    let mut user = User::of(lab.database());
    let keyed = job().key(Key::check("once").unwrap());
    let other = NewJob::new(name("other"), json("{}")).key(Key::check("once").unwrap());
    let first = JobId(1);
    assert_eq!(user.enqueue(std::slice::from_ref(&keyed)), [Enqueued::Created(first)]);
    assert_eq!(
        user.enqueue(&[keyed, other]),
        [Enqueued::Existing(first), Enqueued::Conflict(first)]
    );
    assert_eq!(counts(&mut lab), (2, 1));
}

#[test]
fn what_makes_no_sense_is_refused_before_it_is_sent() {
    let mut lab = Lab::new();
    let mut user = User::of(lab.database());
    let too_many = user.try_enqueue(&vec![job(); 1_001]);
    assert!(matches!(too_many, Err(CallError::Invalid(_))), "{too_many:?}");
    assert_eq!(user.enqueue(&[]), []);
    let fence = running(&mut lab);
    let injection = "tenure\".x; DROP TABLE public.effects; --";
    user.runtime.block_on(async {
        let small = Limits { args: 1, result: 1 };
        let large = own::enqueue(&user.client, SCHEMA, &[job()], &small).await;
        assert!(matches!(large, Err(CallError::Invalid(_))), "{large:?}");
        for schema in ["", "pg_x", injection] {
            let answer = own::complete(&user.client, schema, fence, None).await;
            let words = answer.unwrap_err().to_string();
            assert!(words.starts_with("schema: ") && words.contains("not a name"), "{words}");
        }
        let large = Json::check("result", format!("\"{}\"", "x".repeat(300_000)), 400_000).unwrap();
        let answer = own::complete(&user.client, SCHEMA, fence, Some(&large)).await;
        let words = answer.unwrap_err().to_string();
        assert!(words.starts_with("result: ") && words.contains("above the limit"), "{words}");
    });
    assert_eq!(state(&mut lab, fence), "running");
}

#[test]
fn what_the_driver_says_is_kept() {
    let lab = Lab::new();
    let nobody = User::member(&lab, "nobody");
    let fence = Fence { job: JobId(1), token: Token(1) };
    let answer = nobody.runtime.block_on(own::hold(&nobody.client, SCHEMA, fence));
    let Err(CallError::Driver(cause)) = answer else { panic!("{answer:?}") };
    assert_eq!((cause.code().unwrap().code(), own::refusal(&cause)), ("42501", None));
    assert!(CallError::Driver(cause).to_string().contains("SQLSTATE 42501"));
}

#[test]
fn a_schema_of_another_name_serves_as_well() {
    let clock = Clock::manual(START);
    let mut store = servers::fresh(OTHER_SCHEMA, &clock, &PostgresOptions::default()).unwrap();
    let user = User::of(&servers::database());
    let fence = Fence { job: JobId(1), token: Token(1) };
    user.runtime.block_on(async {
        let answers = own::enqueue(&user.client, OTHER_SCHEMA, &[job()], &Limits::default()).await;
        assert_eq!(answers.unwrap(), [Enqueued::Created(fence.job)]);
        let claim = format!("SELECT token FROM \"{OTHER_SCHEMA}\".claim('ann')");
        assert_eq!(user.client.query_one(&claim, &[]).await.unwrap().get::<_, i64>(0), 1);
        own::fence(&user.client, OTHER_SCHEMA, fence).await.unwrap();
        own::complete(&user.client, OTHER_SCHEMA, fence, None).await.unwrap();
    });
    assert_eq!(store.job(fence.job).unwrap().unwrap().job.state, State::Succeeded);
}

#[test]
fn the_calls_may_move_between_threads() {
    fn moves<T>(future: impl Future<Output = T> + Send) -> impl Future<Output = T> + Send {
        future
    }
    let mut lab = Lab::new();
    let fence = running(&mut lab);
    let user = User::of(lab.database());
    let (jobs, limits) = ([job()], Limits::default());
    user.runtime.block_on(async {
        moves(own::enqueue(&user.client, SCHEMA, &jobs, &limits)).await.unwrap();
        moves(own::fence(&user.client, SCHEMA, fence)).await.unwrap();
        moves(own::hold(&user.client, SCHEMA, fence)).await.unwrap();
        moves(own::complete(&user.client, SCHEMA, fence, None)).await.unwrap();
    });
    assert_eq!(state(&mut lab, fence), "succeeded");
}
