//! A settlement together with the user's own writes.

use std::time::Duration;

use tenure::State;
use tenure::engine::lease::{Fence, Reason};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::{Look, Settled, Settlement, Work};
use tenure::sqlite::Transaction;

use crate::{LONG, Shop, job};

pub(crate) fn complete(fence: Fence) -> Settlement {
    Settlement::new(fence, Outcome::Complete { result: None })
}

pub(crate) fn bury(fence: Fence) -> Settlement {
    Settlement::new(fence, Outcome::Bury { reason: "no".into() })
}

/// Inserts an order and settles the attempt; inserts nothing if the settlement is refused.
pub(crate) fn order_and_settle(
    tx: &Transaction<'_>,
    settlement: &Settlement,
) -> Result<State, Settled> {
    tx.execute("INSERT INTO orders DEFAULT VALUES", []).unwrap();
    match tx.settle(settlement).unwrap() {
        Settled::Applied(became) => Ok(became),
        refused => Err(refused),
    }
}

#[test]
fn a_row_and_the_end_of_the_job_are_stored_together() {
    Shop::each(|mut shop| {
        let fence = shop.attempt().lease.fence();
        let answer = shop.store.transact(LONG, |tx| order_and_settle(tx, &complete(fence)));
        assert_eq!(answer.unwrap(), Ok(State::Succeeded));
        assert_eq!(shop.counts(), (1, 1));
        assert_eq!(shop.store.job(fence.job).unwrap().unwrap().job.state, State::Succeeded);
    });
}

#[test]
fn a_settlement_that_is_undone_leaves_the_job_running_for_its_holder() {
    Shop::each(|mut shop| {
        let fence = shop.attempt().lease.fence();
        let answer = shop.store.transact(LONG, |tx| {
            order_and_settle(tx, &complete(fence)).unwrap();
            Err::<(), _>(())
        });
        assert_eq!(answer.unwrap(), Err(()));
        assert_eq!(shop.counts(), (0, 1));
        assert_eq!(shop.store.job(fence.job).unwrap().unwrap().job.state, State::Running);
        let settled = shop.store.settle(&[complete(fence)]).unwrap();
        assert_eq!(settled, [Settled::Applied(State::Succeeded)]);
    });
}

#[test]
fn a_worker_that_lost_its_job_writes_neither_and_the_winner_both() {
    Shop::each(|mut shop| {
        let late = shop.attempt().lease.fence();
        let winner = shop.take_over().lease.fence();
        let answer = shop.store.transact(LONG, |tx| order_and_settle(tx, &complete(late)));
        let Err(Settled::Stale(stale)) = answer.unwrap() else { panic!("it was heard") };
        assert_eq!((stale.current, stale.reason), (winner.token, Reason::TokenMismatch));
        assert_eq!(shop.counts(), (0, 1));
        let answer = shop.store.transact(LONG, |tx| order_and_settle(tx, &complete(winner)));
        assert_eq!(answer.unwrap(), Ok(State::Succeeded));
        assert_eq!(shop.counts(), (1, 1));
    });
}

#[test]
fn a_transaction_that_is_sent_again_writes_nothing_twice() {
    Shop::each(|mut shop| {
        for settlement in [complete, bury] {
            let fence = shop.attempt().lease.fence();
            let (before, _) = shop.counts();
            let settlement = settlement(fence);
            shop.store.transact(LONG, |tx| order_and_settle(tx, &settlement)).unwrap().unwrap();
            let again = shop.store.transact(LONG, |tx| order_and_settle(tx, &settlement));
            let Err(Settled::Stale(stale)) = again.unwrap() else { panic!("it was heard twice") };
            assert_eq!(stale.reason, Reason::AlreadySettled);
            assert_eq!(shop.counts().0, before + 1);
            let plain = shop.store.settle(&[settlement]).unwrap();
            assert!(
                matches!(plain[..], [Settled::Applied(_)]),
                "alone it may be repeated: {plain:?}"
            );
        }
    });
}

#[test]
fn within_one_transaction_a_settlement_may_be_repeated_and_undone_with_a_savepoint() {
    let mut shop = Shop::in_memory();
    let fence = shop.attempt().lease.fence();
    let answer = shop.store.transact(LONG, |tx| -> tenure::sqlite::rusqlite::Result<()> {
        tx.execute_batch("SAVEPOINT mine")?;
        order_and_settle(tx, &bury(fence)).unwrap();
        assert_eq!(order_and_settle(tx, &bury(fence)), Ok(State::Dead));
        tx.execute_batch("ROLLBACK TO mine")?;
        assert_eq!(order_and_settle(tx, &complete(fence)), Ok(State::Succeeded));
        Ok(())
    });
    answer.unwrap().unwrap();
    assert_eq!(shop.counts(), (1, 1));
    assert_eq!(shop.store.job(fence.job).unwrap().unwrap().timeline, []);
}

#[test]
fn what_follows_is_enqueued_with_it_or_not_at_all() {
    let mut shop = Shop::in_memory();
    let fence = shop.attempt().lease.fence();
    let settlement =
        Settlement { then: vec![job().delay(Duration::from_secs(9))], ..complete(fence) };
    let undone = shop.store.transact(LONG, |tx| {
        order_and_settle(tx, &settlement).unwrap();
        Err::<(), _>(())
    });
    undone.unwrap().unwrap_err();
    assert_eq!(shop.counts(), (0, 1));
    shop.store.transact(LONG, |tx| order_and_settle(tx, &settlement)).unwrap().unwrap();
    assert_eq!(shop.counts(), (1, 2));
}

#[test]
fn a_job_that_is_not_there_is_gone() {
    let mut shop = Shop::in_memory();
    let mut fence = shop.attempt().lease.fence();
    fence.job.0 += 1;
    let answer = shop.store.transact(LONG, |tx| order_and_settle(tx, &complete(fence)));
    assert_eq!(answer.unwrap(), Err(Settled::NotFound));
    assert_eq!(shop.counts(), (0, 1));
}
