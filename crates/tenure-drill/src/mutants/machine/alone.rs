//! Checks for SQLite in memory only. One looks for damage in tables that were changed by hand; on
//! PostgreSQL the cases of the SQL API do that. The other sets the machine's clock, which a
//! PostgreSQL server does not notice.

use std::iter;
use std::time::Duration;

use tenure::engine::clock::Clock;
use tenure::engine::store::sqlite::Sqlite;
use tenure::engine::store::{GUARD_GAP, Registration};

use crate::conformance::{LEASE, World, ask, name, worker};
use crate::damage::{self, DAMAGES};

/// Makes an empty store.
type Make<'a> = &'a mut dyn FnMut() -> (Sqlite, Clock);

/// A case for the mutants of one file.
pub(super) struct Case {
    pub(super) file: &'static str,
    pub(super) name: &'static str,
    pub(super) run: fn(Make<'_>),
}

pub(super) fn cases() -> impl Iterator<Item = Case> {
    let lapse = Case { file: "lapse", name: "a jump of the clock", run: jump };
    let check = Case { file: "check", name: "damages to the tables", run: reconcile };
    [lapse, check].into_iter()
}

/// The store's check finds each damage, and nothing in a store without damage.
fn reconcile(make: Make<'_>) {
    for damage in iter::once(None).chain(DAMAGES.iter().map(Some)) {
        let (mut store, _) = make();
        damage::fill(&mut store);
        if let Some(damage) = damage {
            let done = store.with_connection(|connection| connection.execute_batch(damage.sql));
            done.expect("a table can be written to");
        }
        damage::look_through_store(damage, &mut store);
    }
}

/// After a jump of the clock, a lease from before it gets its whole length again. A free lock
/// proves nothing at first, if the lock was taken before the jump. Once the worker has renewed a
/// lease, a free lock shows again that the worker is dead.
fn jump(make: Make<'_>) {
    let (store, clock) = make();
    let mut w = World { store: Box::new(store), clock };
    let ann = Registration::new(worker("ann"), vec![name("default")]);
    w.store.register(&ann).expect("register answers");
    w.put_one();
    let fence = w.take("ann").lease.fence();
    // As if a sweep had once seen the worker's lock free; the lock is held again.
    let seen = w.now();
    w.surroundings(|state| state.workers[0].free_since = Some(seen));
    w.clock.jump(Duration::from_secs(3_600));
    assert!(w.claim(&ask("bob", 1)).lapsed.is_empty(), "the claim noticed the jump");
    assert!(w.store.overdue(9, Duration::ZERO).expect("overdue answers").is_empty());
    w.pass(Duration::from_secs(1));
    w.store.renew(&[fence], LEASE).expect("renew answers");
    let kept = w.dump().workers.remove(0);
    assert_eq!((kept.takings, kept.taken_at, kept.free_since), (2, w.now(), None));
    w.surroundings(|state| state.held.clear());
    let vanished = |w: &mut World| w.store.vanished(9).expect("vanished answers").len();
    assert_eq!(vanished(&mut w), 0, "one look is not enough");
    w.pass(GUARD_GAP);
    assert_eq!(vanished(&mut w), 1, "its lock tells of it again");
}
