//! The payment story: a worker opens an effect, charges the bank, and its process dies before it
//! can record the outcome.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use tenure::EffectFilter;
use tenure::engine::clock::monotonic;
use tenure::engine::job::{Json, Name, NewJob, State};
use tenure::engine::lease::{Fence, WorkerId};
use tenure::engine::ledger::{Act, Answer, EffectKey, Entry, Resolution, effect_name};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::postgres::{self, Migrations, Postgres, Roles, ServerAddress};
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
use tenure::engine::store::{Claim, Resolved, Settled, Settlement, Store};
use tenure_cluster::{Binaries, Cluster, Settings};
use tenure_drill::holders::{Holder, sweep};

/// A bank that records every request, and executes each key once.
struct Bank<'a>(&'a Path);

impl Bank<'_> {
    fn charge(&self, key: &str) {
        let mut book = std::fs::OpenOptions::new().append(true).open(self.0).unwrap();
        writeln!(book, "{key}").unwrap();
    }

    fn requests(&self) -> Vec<String> {
        std::fs::read_to_string(self.0).unwrap().lines().map(str::to_owned).collect()
    }

    fn charges(&self) -> usize {
        self.requests().into_iter().collect::<BTreeSet<_>>().len()
    }
}

fn json(text: &str) -> Json {
    Json::check("result", text, 99).unwrap()
}

fn ask(store: &mut dyn Store, fence: Fence, act: Act) -> Answer {
    let entry = Entry { fence, name: effect_name("charge").unwrap(), act };
    store.ledger(&[entry]).unwrap().remove(0)
}

fn claim(store: &mut dyn Store) -> Fence {
    let ask = Claim::new(WorkerId::unique(), 1, Duration::from_secs(600));
    store.claim(&ask).unwrap().attempts[0].lease.fence()
}

/// A first attempt in a process of its own, killed after it has charged the bank. Returns the
/// fences of the first and the second attempt.
fn dies_after_charging(store: &mut dyn Store, place: &str, bank: &Path) -> (Fence, Fence) {
    let job = NewJob::new(Name::check("kind", "pay").unwrap(), json("{}"));
    store.enqueue(&[job]).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_tenure-drill-holder"));
    let ten_minutes = Duration::from_secs(600);
    let mut first = Holder::start_with(program, place, 1, ten_minutes, Some(bank));
    first.kill();
    let taken =
        sweep(store, monotonic() + Duration::from_secs(30), |taken| !taken.is_empty()).unwrap();
    assert_eq!(taken[0].1, first.held[0]);
    (first.held[0], claim(store))
}

/// The store refuses every write of the first attempt's worker, in case that worker still lives.
fn assert_refused(store: &mut dyn Store, zombie: Fence) {
    for act in [
        Act::Commit { result: json("\"zombie\"") },
        Act::Resolve(Resolution::Committed { result: json("\"zombie\"") }),
        Act::Resolve(Resolution::Resend),
        Act::Open,
    ] {
        assert!(matches!(ask(store, zombie, act), Answer::Stale(_)));
    }
}

fn complete(store: &mut dyn Store, fence: Fence) {
    let done = Settlement::new(fence, Outcome::Complete { result: None });
    assert_eq!(store.settle(&[done]).unwrap(), [Settled::Applied(State::Succeeded)]);
    assert!(store.check(None, 1_000).unwrap().wrong.is_empty());
}

/// The policy `resend`: the same key again, and the bank charges once.
fn sent_again(store: &mut dyn Store, place: &str, directory: &Path) {
    let book = directory.join("resend");
    let (zombie, second) = dies_after_charging(store, place, &book);
    let bank = Bank(&book);
    assert_eq!(bank.requests().len(), 1);
    assert!(
        matches!(ask(store, second, Act::Open), Answer::InDoubt(doubt) if doubt.token == zombie.token)
    );
    assert_eq!(ask(store, second, Act::Resolve(Resolution::Resend)), Answer::Recorded);
    let installation = store.identity().unwrap().installation;
    let effect = effect_name("charge").unwrap();
    let key = EffectKey { installation, job: second.job, effect };
    bank.charge(&key.to_string());
    assert_refused(store, zombie);
    assert_eq!(ask(store, second, Act::Commit { result: json("\"paid\"") }), Answer::Recorded);
    assert_refused(store, zombie);
    complete(store, second);
    assert_eq!((bank.requests().len(), bank.charges()), (2, 1), "asked twice, charged once");
}

/// The policy `park`: a person looks at the bank's book, and the job continues with what was found
/// there.
fn parked(store: &mut dyn Store, place: &str, directory: &Path) {
    let book = directory.join("park");
    let (zombie, second) = dies_after_charging(store, place, &book);
    assert!(matches!(ask(store, second, Act::Open), Answer::InDoubt(_)));
    let park = Outcome::Park { reason: "effect charge is in doubt".into() };
    assert_eq!(
        store.settle(&[Settlement::new(second, park)]).unwrap(),
        [Settled::Applied(State::Parked)]
    );
    let in_doubt = EffectFilter { in_doubt: true, ..EffectFilter::default() };
    assert_eq!(store.effects(&in_doubt, 10).unwrap()[0].effect.job, second.job);
    assert_refused(store, zombie);
    let found = Resolution::Committed { result: json("\"found in the book\"") };
    let effect = effect_name("charge").unwrap();
    assert_eq!(
        store.resolve(second.job, &effect, &found).unwrap(),
        Resolved::Applied(State::Queued)
    );
    let third = claim(store);
    assert_eq!(ask(store, third, Act::Open), Answer::Decided(json("\"found in the book\"")));
    assert_refused(store, zombie);
    complete(store, third);
    assert_eq!(Bank(&book).requests().len(), 1, "asked once");
}

#[test]
fn on_sqlite_a_payment_is_made_once_whatever_dies() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jobs.db");
    let mut store = Sqlite::open(&file, &StoreOptions::default()).unwrap();
    sent_again(&mut store, file.to_str().unwrap(), directory.path());
    parked(&mut store, file.to_str().unwrap(), directory.path());
}

#[test]
fn on_postgresql_a_payment_is_made_once_whatever_dies() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&Binaries::find_or_install().unwrap(), &Settings::new()).unwrap();
    let address = ServerAddress::parse(&cluster.url()).unwrap();
    Migrations::connect(&address).unwrap().up(Roles::Leave).unwrap();
    let mut store = Postgres::open(&address, &postgres::PostgresOptions::default()).unwrap();
    sent_again(&mut store, &cluster.url(), directory.path());
    parked(&mut store, &cluster.url(), directory.path());
}
