//! What a program learns about many jobs that it enqueues at once, on both engines.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use tenure::engine::store::{Enqueued, Error, Incomplete, Verdict};
use tenure::{Filter, JobId, Tenure};
use tenure_drill::servers;

/// Makes two tests of each claim, one for each engine.
macro_rules! on_both_engines {
    ($($claim:ident),+ $(,)?) => {
        mod sqlite {
            $(#[test] fn $claim() { super::in_a_file(super::$claim); })+
        }
        mod postgres {
            $(#[test] fn $claim() { super::on_a_server(stringify!($claim), super::$claim); })+
        }
    };
}

on_both_engines!(
    one_taken_key_costs_its_own_job_only,
    a_part_that_fails_is_the_last_one_that_is_sent,
    one_part_that_fails_is_told_as_what_it_is,
);

/// Makes a store refuse jobs above this id.
type Fill = Box<dyn Fn(i64)>;

fn in_a_file<Fut: Future<Output = ()>>(claim: fn(Tenure, Fill) -> Fut) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tenure.db");
    let url = file.to_str().unwrap().to_owned();
    let fill = move |last: i64| {
        let sql = format!(
            "CREATE TRIGGER full BEFORE INSERT ON tenure_jobs WHEN NEW.id > {last} \
             BEGIN SELECT RAISE(ABORT, 'no more'); END"
        );
        rusqlite::Connection::open(&file).unwrap().execute_batch(&sql).unwrap();
    };
    run(&url, |tenure| claim(tenure, Box::new(fill)));
}

fn on_a_server<Fut: Future<Output = ()>>(name: &str, claim: fn(Tenure, Fill) -> Fut) {
    let schema = name[..16].to_owned();
    let url = servers::unclocked(&schema).unwrap();
    let database = servers::database();
    let fill = move |last: i64| {
        let sql = format!(
            "CREATE FUNCTION {schema}.no_more() RETURNS trigger LANGUAGE plpgsql \
             AS $$ BEGIN RAISE 'no more'; END $$; \
             CREATE TRIGGER full_now BEFORE INSERT ON {schema}.jobs FOR EACH ROW \
             WHEN (NEW.id > {last}) EXECUTE FUNCTION {schema}.no_more()"
        );
        // The driver has its own runtime, which needs its own thread.
        std::thread::scope(|scope| {
            scope.spawn(|| servers::connect(&database).batch_execute(&sql).unwrap());
        });
    };
    run(&url, |tenure| claim(tenure, Box::new(fill)));
}

fn run<Fut: Future<Output = ()>>(url: &str, claim: impl FnOnce(Tenure) -> Fut) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        claim(Tenure::options().observe(|_| ()).open(url).await.unwrap()).await;
    });
}

async fn enqueue(tenure: &Tenure, numbers: std::ops::Range<usize>) -> Error {
    let jobs = numbers.map(|n| tenure.enqueue_kind("work", &n).key(n.to_string()));
    tenure.enqueue_many(jobs).await.unwrap_err()
}

fn incomplete(error: Error) -> Incomplete {
    match error {
        Error::Incomplete(incomplete) => *incomplete,
        other => panic!("{other}"),
    }
}

/// How many jobs are stored.
async fn stored(tenure: &Tenure) -> usize {
    let all = tenure.with_store(|store| {
        let (mut count, mut filter) = (0, Filter::default());
        loop {
            let page = store.jobs(&filter, 1_000)?;
            let Some(last) = page.last() else { return Ok(count) };
            count += page.len();
            filter.before = Some(last.id);
        }
    });
    all.await.unwrap()
}

async fn one_taken_key_costs_its_own_job_only(tenure: Tenure, _: Fill) {
    let owner = tenure.enqueue_kind("other", &()).key("999").await.unwrap().id();
    let same = tenure.enqueue_kind("work", &2_000).key("2000").await.unwrap().id();
    let error = enqueue(&tenure, 0..2_500).await;
    let said = error.to_string();
    let expected = "of 2500 jobs: 2498 stored, 1 stored before, 1 refused; number 1000 has the key of job 1, \
        which has another kind or other args: use another key; ";
    assert!(said.starts_with(expected), "{said}");
    assert!(!error.is_transient(), "it is not to be repeated as a whole");
    let Incomplete { verdicts, cause } = incomplete(error);
    assert!(cause.is_none() && verdicts.len() == 2_500);
    for (n, verdict) in verdicts.iter().enumerate() {
        match (n, verdict) {
            (999, Verdict::Answered(Enqueued::Conflict(id))) => assert_eq!(*id, owner),
            (2_000, Verdict::Answered(Enqueued::Existing(id))) => assert_eq!(*id, same),
            (_, Verdict::Answered(Enqueued::Created(_))) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(stored(&tenure).await, 2_500);
}

async fn a_part_that_fails_is_the_last_one_that_is_sent(tenure: Tenure, fill: Fill) {
    fill(1_500);
    let error = enqueue(&tenure, 0..2_500).await;
    let said = error.to_string();
    assert!(said.starts_with("of 2500 jobs: 1000 stored, 1000 failed, 500 not sent; "), "{said}");
    assert!(said.contains("no more"), "{said}");
    let Incomplete { verdicts, cause } = incomplete(error);
    assert!(matches!(cause, Some(Error::Engine { .. })), "{cause:?}");
    let expected = (0..2_500).map(|n| match n {
        0..1_000 => Verdict::Answered(Enqueued::Created(JobId(n + 1))),
        1_000..2_000 => Verdict::Failed,
        _ => Verdict::NotSent,
    });
    assert_eq!(verdicts, expected.collect::<Vec<_>>());
    assert_eq!(stored(&tenure).await, 1_000);
}

async fn one_part_that_fails_is_told_as_what_it_is(tenure: Tenure, fill: Fill) {
    fill(500);
    let error = enqueue(&tenure, 0..1_000).await;
    assert!(matches!(error, Error::Engine { .. }), "{error}");
    assert_eq!(stored(&tenure).await, 0);
}
