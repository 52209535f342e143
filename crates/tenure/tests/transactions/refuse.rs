//! A refusal is visible in the job's timeline, whatever happens to the transaction that it was part
//! of.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use tenure::engine::store::{Settled, Work};

use tenure::Fence;
use tenure::engine::lifecycle::Verb;

use crate::settle::{bury, complete, order_and_settle};
use crate::{LONG, Shop};

/// A job that another worker took over, and the fence of its first holder.
fn lost(shop: &mut Shop) -> Fence {
    let fence = shop.attempt().lease.fence();
    shop.take_over();
    fence
}

#[test]
fn when_the_work_gives_up() {
    Shop::each(|mut shop| {
        let fence = lost(&mut shop);
        let answer = shop.store.transact(LONG, |tx| order_and_settle(tx, &complete(fence)));
        assert!(matches!(answer.unwrap(), Err(Settled::Stale(_))));
        assert_eq!(shop.refusals(fence.job), [Verb::Complete]);
        assert_eq!(shop.counts(), (0, 1));
    });
}

#[test]
fn when_the_work_goes_on_and_commits() {
    Shop::each(|mut shop| {
        let fence = lost(&mut shop);
        let answer = shop.store.transact(LONG, |tx| {
            assert!(order_and_settle(tx, &complete(fence)).is_err());
            Ok::<_, ()>(())
        });
        answer.unwrap().unwrap();
        assert_eq!(shop.refusals(fence.job), [Verb::Complete]);
        assert_eq!(shop.counts(), (1, 1), "the refusal is a value; the work has decided");
    });
}

#[test]
fn when_the_work_panics() {
    Shop::each(|mut shop| {
        let fence = lost(&mut shop);
        let panic = catch_unwind(AssertUnwindSafe(|| {
            shop.store
                .transact(LONG, |tx| order_and_settle(tx, &complete(fence)).map_err(|_| panic!()))
        }));
        assert!(panic.is_err());
        assert_eq!(shop.refusals(fence.job), [Verb::Complete]);
        assert_eq!(shop.counts(), (0, 1));
    });
}

#[test]
fn when_the_transaction_is_undone_for_breaking_a_rule_or_its_limit() {
    Shop::each(|mut shop| {
        let fence = lost(&mut shop);
        let answer = shop.store.transact(LONG, |tx| {
            assert!(order_and_settle(tx, &complete(fence)).is_err());
            tx.execute_batch("COMMIT")
        });
        assert!(answer.is_err());
        let answer = shop.store.transact(Duration::ZERO, |tx| {
            assert!(order_and_settle(tx, &bury(fence)).is_err());
            Ok::<_, ()>(())
        });
        assert!(answer.is_err());
        assert_eq!(shop.refusals(fence.job), [Verb::Complete, Verb::Bury]);
        assert_eq!(shop.counts(), (0, 1));
    });
}

#[test]
fn when_a_savepoint_of_the_work_undoes_it_and_the_rest_is_committed() {
    Shop::each(|mut shop| {
        let fence = lost(&mut shop);
        let answer = shop.store.transact(LONG, |tx| {
            tx.execute_batch("SAVEPOINT mine").unwrap();
            assert!(order_and_settle(tx, &complete(fence)).is_err());
            tx.execute_batch("ROLLBACK TO mine; INSERT INTO orders DEFAULT VALUES")
        });
        answer.unwrap().unwrap();
        assert_eq!(shop.refusals(fence.job), [Verb::Complete]);
        assert_eq!(shop.counts(), (1, 1));
    });
}

#[test]
fn but_not_when_only_the_transactions_own_settlement_stood_in_the_way_and_was_undone() {
    Shop::each(|mut shop| {
        let fence = shop.attempt().lease.fence();
        let answer = shop.store.transact(LONG, |tx| {
            assert!(order_and_settle(tx, &complete(fence)).is_ok());
            order_and_settle(tx, &bury(fence))
        });
        assert!(matches!(answer.unwrap(), Err(Settled::Stale(_))));
        assert_eq!(shop.refusals(fence.job), [], "the job is still held under this token");
        assert!(matches!(shop.store.settle(&[bury(fence)]).unwrap()[..], [Settled::Applied(_)]));
    });
}
