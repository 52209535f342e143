//! Tests of when a worker's lock is taken, against a real server.

use super::super::tests::lent::{Lent, registration};
use super::*;

impl Guard {
    /// As if the lock had been tried this much earlier.
    pub(in super::super) fn age(&mut self, by: Duration) {
        let (at, _) = self.tried.as_mut().unwrap();
        *at -= by;
    }
}

/// Whether a guard registers again, if its lock was last tried `ago` with the result `guarded`.
fn registers(lent: &Lent, guarded: Guarded, is_direct: bool, ago: Duration) -> bool {
    let before = lent.registrations();
    let mut guard = Guard::new(&lent.schema(), &registration());
    guard.tried = Some((clock::monotonic() - ago, guarded));
    lent.link().run("guard", |session| guard.take_if_it_is_time(session, is_direct)).unwrap();
    lent.registrations() != before
}

#[test]
fn a_lock_that_is_held_is_looked_after_every_few_minutes_and_one_that_is_not_every_second() {
    let lent = Lent::new();
    // `minute` is only 30 s, far from the limit of 300 s, so that a slow machine does not reach it.
    let (second, minute, minutes) =
        (Duration::from_secs(1), Duration::from_secs(30), Duration::from_secs(300));
    assert!(!registers(&lent, Guarded::ByLock, true, minute));
    assert!(registers(&lent, Guarded::ByLock, true, minutes));
    assert!(registers(&lent, Guarded::ByLeaseAlone, true, second));
    // Behind a pooler a later try would not get the lock either.
    assert!(!registers(&lent, Guarded::ByLeaseAlone, false, minute));
    assert!(registers(&lent, Guarded::ByLeaseAlone, false, minutes));
    let mut fresh = Guard::new(&lent.schema(), &registration());
    fresh.was_refused();
    fresh.age(second);
    let before = lent.registrations();
    lent.link().run("guard", |session| fresh.take_if_it_is_time(session, true)).unwrap();
    assert_eq!(lent.registrations(), before + 1);
}

#[test]
fn a_lock_counts_only_if_the_next_statement_finds_it() {
    let lent = Lent::new();
    let mut guard = Guard::new(&lent.schema(), &registration());
    let mut link = lent.link();
    let mut take = |link: &mut super::super::link::Link| {
        link.run("guard", |session| guard.take(session, true)).unwrap()
    };
    // This function returns that it took the lock, but takes none. So the next statement does not
    // find the lock, as behind a pooler that gives each statement another session.
    lent.alter(
        "CREATE OR REPLACE FUNCTION tenure.guard(p_worker text) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    );
    assert_eq!(take(&mut link), Guarded::ByLeaseAlone);
    assert_eq!(lent.number("SELECT count(*) FROM tenure.workers WHERE NOT guarded"), 1);
}

#[test]
fn a_lock_that_another_session_has_is_not_ours() {
    let lent = Lent::new();
    let (mut first, mut second) = (lent.link(), lent.link());
    let mut guards = [0, 1].map(|_| Guard::new(&lent.schema(), &registration()));
    let mut take = |at: usize, link: &mut super::super::link::Link| {
        link.run("guard", |session| guards[at].take(session, true)).unwrap()
    };
    assert_eq!(take(0, &mut first), Guarded::ByLock);
    assert_eq!(take(1, &mut second), Guarded::ByLeaseAlone);
    drop(first);
    // The server may need a moment to end the first session.
    while take(1, &mut second) != Guarded::ByLock {}
}
