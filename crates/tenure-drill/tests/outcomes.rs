//! Only the process that made an outside call knows its outcome. So it writes the outcome even if
//! the store refuses it for a while, and whatever happens to the handler.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::json;
use tenure::engine::clock::Clock;
use tenure::engine::job::{Json, State};
use tenure::engine::ledger::{Resolution, Standing, effect_name};
use tenure::engine::store::Resolved;
use tenure::engine::telemetry::{Event, Exit, Fact};
use tenure::{Context, EffectFilter, Fault, Handle, Job, Tenure, Worker};
use tenure_drill::servers;
use tenure_drill::workers::Bench;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Mutex, Notify};

/// Makes two tests of each claim, one for each engine.
macro_rules! on_both_engines {
    ($($claim:ident),+ $(,)?) => {
        mod sqlite {
            $(#[test] fn $claim() {
                super::run(super::Bench::sqlite, &super::ON_SQLITE, super::$claim);
            })+
        }
        mod postgres {
            $(#[test] fn $claim() {
                super::run(super::Bench::postgres, &super::ON_POSTGRES, super::$claim);
            })+
        }
    };
}

on_both_engines!(
    an_outcome_waits_until_the_store_takes_it,
    a_handler_that_gives_up_waiting_does_not_lose_its_outcome,
    a_worker_that_ends_writes_what_it_knows_before_it_gives_the_job_back,
    an_outcome_is_written_however_long_ago_the_lease_was_over,
    an_outcome_that_comes_too_late_is_refused_and_told,
    a_persons_word_that_the_handler_cannot_read_parks_the_job_until_it_is_corrected,
);

/// Statements that make the store refuse outcomes of effects, each for another reason, and the
/// statement that ends this.
struct Resistance {
    begin: &'static [&'static str],
    end: &'static str,
}

const ON_SQLITE: Resistance = Resistance {
    begin: &[
        "CREATE TRIGGER resist BEFORE UPDATE ON tenure_ledger BEGIN SELECT RAISE(ABORT, 'no room'); END",
    ],
    end: "DROP TRIGGER resist",
};

/// A store that is read-only, has no space left, or does not let this role write.
const ON_POSTGRES: Resistance = Resistance {
    begin: &[
        "CREATE FUNCTION workers.resist() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '25006'; END $$;
         CREATE TRIGGER resist BEFORE UPDATE ON workers.ledger FOR EACH ROW EXECUTE FUNCTION workers.resist()",
        "CREATE FUNCTION workers.resist() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '53100'; END $$;
         CREATE TRIGGER resist BEFORE UPDATE ON workers.ledger FOR EACH ROW EXECUTE FUNCTION workers.resist()",
        "CREATE FUNCTION workers.resist() RETURNS trigger LANGUAGE plpgsql AS
             $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '42501'; END $$;
         CREATE TRIGGER resist BEFORE UPDATE ON workers.ledger FOR EACH ROW EXECUTE FUNCTION workers.resist()",
    ],
    end: "DROP FUNCTION workers.resist() CASCADE",
};

/// A store, the events of its workers, and a way to make it refuse.
struct Scene {
    place: String,
    /// On a server: the database of this test's thread.
    database: String,
    tenure: Tenure,
    told: Mutex<UnboundedReceiver<Event>>,
    resistance: &'static Resistance,
}

impl Scene {
    /// Runs SQL as the owner of the database does, over its own connection.
    fn say(&self, sql: &str) {
        if self.place.contains("://") {
            let (database, sql) = (self.database.clone(), sql.to_owned());
            let owner = move || servers::connect(&database).batch_execute(&sql).unwrap();
            std::thread::spawn(owner).join().unwrap();
        } else {
            rusqlite::Connection::open(&self.place).unwrap().execute_batch(sql).unwrap();
        }
    }

    fn resist(&self) {
        self.say(self.resistance.begin[0]);
    }

    fn yields(&self) {
        self.say(self.resistance.end);
    }

    /// Waits for an event of a worker.
    async fn heard(&self, is: impl Fn(&Fact) -> bool) -> Fact {
        let mut told = self.told.lock().await;
        loop {
            let event = told.recv().await.unwrap();
            if is(&event.fact) {
                return event.fact;
            }
        }
    }

    /// Waits until an outcome could not be written.
    async fn refuses(&self) {
        let fact = self.heard(|fact| matches!(fact, Fact::EffectUnrecorded { .. })).await;
        assert!(matches!(fact, Fact::EffectUnrecorded { given_up: false, .. }), "{fact:?}");
    }

    fn worker(&self) -> Worker {
        Worker::new(&self.tenure).lease(Duration::from_secs(2)).grace(Duration::ZERO)
    }

    async fn standing(&self, handle: &Handle<String>) -> Standing {
        let only = EffectFilter { job: Some(handle.id()), ..EffectFilter::default() };
        let found = self.tenure.with_store(move |store| store.effects(&only, 10)).await.unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].effect.standing
    }
}

fn run<Fut: Future<Output = ()>>(
    bench: fn(&Path, &Path) -> Bench,
    resistance: &'static Resistance,
    claim: impl Fn(Arc<Scene>) -> Fut,
) {
    let directory = tempfile::tempdir().unwrap();
    let place = bench(Path::new("there is none"), directory.path()).place;
    let database = if place.contains("://") { servers::database() } else { String::new() };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (tell, told) = unbounded_channel();
        let tenure = Tenure::options()
            .observe(move |event| drop(tell.send(event.clone())))
            .open(&place)
            .await
            .unwrap();
        let scene = Arc::new(Scene { place, database, tenure, told: Mutex::new(told), resistance });
        tokio::time::timeout(Duration::from_secs(40), claim(scene)).await.expect("it hangs");
    });
}

#[derive(Serialize, Deserialize)]
struct Pay {}

impl Job for Pay {
    const KIND: &'static str = "pay";
    type Output = String;
}

/// A bank that counts its requests.
#[derive(Clone, Default)]
struct Bank(Arc<AtomicUsize>);

impl Bank {
    fn charge(&self) -> String {
        self.0.fetch_add(1, Ordering::SeqCst);
        "receipt".into()
    }

    fn charges(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

async fn pay(_: Pay, cx: Context) -> Result<String, Fault> {
    let bank = cx.state::<Bank>();
    cx.effect("charge", |_| async { Ok(bank.charge()) }).await
}

async fn an_outcome_waits_until_the_store_takes_it(scene: Arc<Scene>) {
    for reason in scene.resistance.begin {
        let bank = Bank::default();
        scene.say(reason);
        let handle = scene.tenure.enqueue(Pay {}).await.unwrap();
        let running = scene.worker().state(bank.clone()).handle(pay).start().await.unwrap();
        scene.refuses().await;
        assert_eq!(scene.standing(&handle).await, Standing::Open);
        scene.yields();
        assert_eq!(handle.wait().await.unwrap(), "receipt", "{reason}");
        let found = scene.tenure.job(handle.id()).await.unwrap().unwrap();
        assert_eq!((bank.charges(), found.job.attempt), (1, 1), "{reason}: {found:?}");
        assert_eq!(scene.standing(&handle).await, Standing::Committed);
        assert_eq!(running.shut_down().await, Exit::Shutdown);
    }
}

async fn a_handler_that_gives_up_waiting_does_not_lose_its_outcome(scene: Arc<Scene>) {
    let (bank, impatience) = (Bank::default(), Arc::new(Notify::new()));
    let enough = Arc::clone(&impatience);
    let handler = move |job: Pay, cx: Context| {
        let enough = Arc::clone(&enough);
        async move {
            tokio::select! {
                paid = pay(job, cx) => paid,
                () = enough.notified() => Err(Fault::retry_after(Duration::ZERO, "no patience")),
            }
        }
    };
    scene.resist();
    let handle = scene.tenure.enqueue(Pay {}).await.unwrap();
    let running = scene.worker().state(bank.clone()).handle(handler).start().await.unwrap();
    scene.refuses().await;
    impatience.notify_one();
    // Another worker claims and settles another job. In that time the first worker could have
    // settled the first job, too.
    let other = scene.tenure.enqueue_kind("other", &()).queue("other").await.unwrap();
    let beside = scene.worker().queues(["other"]).handle_any(|_, _| async { Ok(None) }).drain();
    beside.run().await.unwrap();
    assert_eq!(other.state().await.unwrap(), Some(State::Succeeded));
    assert_eq!(handle.state().await.unwrap(), Some(State::Running), "its outcome comes first");
    scene.yields();
    assert_eq!(handle.wait().await.unwrap(), "receipt", "the next attempt gets it back");
    assert_eq!(bank.charges(), 1);
    assert_eq!(running.shut_down().await, Exit::Shutdown);
}

/// Notifies when it is dropped, together with the handler that owns it.
struct Dropped(Arc<Notify>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

async fn a_worker_that_ends_writes_what_it_knows_before_it_gives_the_job_back(scene: Arc<Scene>) {
    let (bank, dropped) = (Bank::default(), Arc::new(Notify::new()));
    let tell = Arc::clone(&dropped);
    let handler = move |job: Pay, cx: Context| {
        let tells = Dropped(Arc::clone(&tell));
        async move {
            let paid = pay(job, cx).await;
            drop(tells);
            paid
        }
    };
    scene.resist();
    let handle = scene.tenure.enqueue(Pay {}).await.unwrap();
    let running = scene.worker().state(bank.clone()).handle(handler).start().await.unwrap();
    scene.refuses().await;
    let ending = tokio::spawn(running.shut_down());
    dropped.notified().await;
    scene.yields();
    assert_eq!(ending.await.unwrap(), Exit::Shutdown, "it leaves nothing behind");
    assert_eq!(scene.standing(&handle).await, Standing::Committed);
    let found = scene.tenure.job(handle.id()).await.unwrap().unwrap();
    assert_eq!((found.job.state, found.job.attempt), (State::Queued, 0), "{found:?}");
    scene.worker().state(bank.clone()).handle(pay).drain().run().await.unwrap();
    assert_eq!((handle.wait().await.unwrap().as_str(), bank.charges()), ("receipt", 1));
}

/// Waits until the job's lease is over by the store's clock, which is this machine's.
async fn lease_is_over(scene: &Scene, handle: &Handle<String>) {
    let mut look = tokio::time::interval(Duration::from_millis(20));
    loop {
        look.tick().await;
        let found = scene.tenure.job(handle.id()).await.unwrap().unwrap().job;
        if found.lease_until.unwrap() < Clock::system().now() {
            return;
        }
    }
}

async fn an_outcome_is_written_however_long_ago_the_lease_was_over(scene: Arc<Scene>) {
    let bank = Bank::default();
    scene.resist();
    let handle = scene.tenure.enqueue(Pay {}).await.unwrap();
    // The worker renews nothing, as if no renewal reached the store, and nothing else takes the job
    // back.
    let worker = scene.worker().lease(Duration::from_secs(1)).concurrency(1).stalled();
    let running = worker.state(bank.clone()).handle(pay).start().await.unwrap();
    scene.refuses().await;
    lease_is_over(&scene, &handle).await;
    scene.yields();
    assert_eq!((handle.wait().await.unwrap().as_str(), bank.charges()), ("receipt", 1));
    assert_eq!(running.shut_down().await, Exit::Shutdown);
}

async fn an_outcome_that_comes_too_late_is_refused_and_told(scene: Arc<Scene>) {
    let bank = Bank::default();
    scene.resist();
    let handle = scene.tenure.enqueue(Pay {}).await.unwrap();
    let running = scene.worker().state(bank.clone()).handle(pay).start().await.unwrap();
    scene.refuses().await;
    handle.cancel().await.unwrap();
    scene.yields();
    let is_lost = |fact: &Fact| matches!(fact, Fact::EffectUnrecorded { given_up: true, .. });
    let told = serde_json::to_value(scene.heard(is_lost).await).unwrap();
    assert_eq!(
        (&told["verb"], &told["error"]),
        (&json!("effect_commit"), &json!("the job was cancelled"))
    );
    assert_eq!(running.shut_down().await, Exit::Shutdown);
    let found = scene.tenure.job(handle.id()).await.unwrap().unwrap();
    assert!(found.timeline.iter().any(|line| line.refused && line.verb.name() == "effect_commit"));
    assert_eq!((found.job.state, bank.charges()), (State::Cancelled, 1));
}

/// An operator resolves the effect as committed, with this result.
async fn decide(scene: &Scene, handle: &Handle<String>, result: &str) -> Resolved {
    let (job, result) = (handle.id(), Json::check("result", result, 100).unwrap());
    let how = Resolution::Committed { result };
    let effect = effect_name("charge").unwrap();
    scene.tenure.with_store(move |store| store.resolve(job, &effect, &how)).await.unwrap()
}

async fn parked(scene: &Scene) -> String {
    match scene.heard(|fact| matches!(fact, Fact::JobParked { .. } | Fact::JobDead { .. })).await {
        Fact::JobParked { reason, .. } => reason,
        fact => panic!("{fact:?}"),
    }
}

async fn a_persons_word_that_the_handler_cannot_read_parks_the_job_until_it_is_corrected(
    scene: Arc<Scene>,
) {
    let handler = |_: Pay, cx: Context| async move {
        let no_answer = |_| async { Err(Fault::retry_after(Duration::ZERO, "no answer")) };
        let _: String = cx.effect("charge", no_answer).await?;
        Err(Fault::park("for another reason"))
    };
    let handle = scene.tenure.enqueue(Pay {}).max_attempts(9).await.unwrap();
    let running = scene.worker().handle(handler).start().await.unwrap();
    assert!(parked(&scene).await.contains("is in doubt"));
    assert_eq!(
        decide(&scene, &handle, r#"{"receipt":"r-1"}"#).await,
        Resolved::Applied(State::Queued)
    );
    let reason = parked(&scene).await;
    assert!(
        reason.starts_with(r#"a person decided that the effect charge came to {"receipt":"r-1"}"#)
    );
    assert!(reason.contains("tenure effects resolve 1 charge --committed JSON"), "{reason}");
    assert_eq!(decide(&scene, &handle, r#""r-1""#).await, Resolved::Applied(State::Queued));
    assert_eq!(parked(&scene).await, "for another reason");
    let late = decide(&scene, &handle, r#""r-2""#).await;
    assert_eq!(late, Resolved::NotInDoubt(Standing::Committed), "an attempt has gone on with it");
    assert_eq!(
        decide(&scene, &handle, r#""r-1""#).await,
        Resolved::Applied(State::Parked),
        "it stands"
    );
    assert_eq!(running.shut_down().await, Exit::Shutdown);
}
