//! Several connections to one store, in memory as in a file.

use std::time::Duration;

use tenure::Filter;
use tenure::engine::clock::monotonic;
use tenure::engine::store::{Claim, GUARD_GAP, Guarded, Look, Registration, Wake, Work};

use crate::{LONG, Shop, ask, job, order_and_job};

fn ann() -> Registration {
    Registration::new(ask().worker, vec![])
}

#[test]
fn what_one_connection_stores_the_others_see() {
    Shop::each(|mut shop| {
        let mut other = shop.store.share().unwrap();
        order_and_job(&mut other).unwrap().unwrap();
        assert_eq!(shop.counts(), (1, 1));
        assert_eq!(other.share().unwrap().jobs(&Filter::default(), 9).unwrap().len(), 1);
    });
}

#[test]
fn a_store_in_memory_lives_as_long_as_any_of_its_connections() {
    let mut shop = Shop::in_memory();
    order_and_job(&mut shop.store).unwrap().unwrap();
    let mut other = shop.store.share().unwrap();
    drop(shop);
    assert_eq!(other.jobs(&Filter::default(), 9).unwrap().len(), 1);
}

#[test]
fn a_wait_is_ended_by_a_commit_or_a_transaction_of_another_connection() {
    Shop::each(|shop| {
        let plain = |mut other: tenure::sqlite::Sqlite| drop(other.enqueue(&[job()]).unwrap());
        let own = |mut other: tenure::sqlite::Sqlite| drop(order_and_job(&mut other).unwrap());
        for commit in [plain as fn(_), own] {
            let mut waiter = shop.store.share().unwrap();
            waiter.claim(&Claim { n: 0, ..ask() }).unwrap();
            assert_eq!(waiter.wait(monotonic()).unwrap(), Wake::TimedOut, "nothing is new");
            let other = shop.store.share().unwrap();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| waiter.wait(monotonic() + LONG));
                commit(other);
                assert_eq!(waiting.join().unwrap().unwrap(), Wake::Changed);
            });
        }
    });
}

#[test]
fn a_transaction_that_is_undone_wakes_nobody() {
    let mut shop = Shop::in_memory();
    let mut waiter = shop.store.share().unwrap();
    waiter.claim(&Claim { n: 0, ..ask() }).unwrap();
    let undone = shop.store.transact(LONG, |tx| {
        crate::both(tx);
        Err::<(), _>(())
    });
    undone.unwrap().unwrap_err();
    assert_eq!(waiter.wait(monotonic()).unwrap(), Wake::TimedOut);
}

#[test]
fn a_worker_is_guarded_by_one_connection_and_lives_for_all_of_them() {
    Shop::each(|shop| {
        let (mut one, mut two) = (shop.store.share().unwrap(), shop.store.share().unwrap());
        let ann = ann();
        assert_eq!(one.register(&ann).unwrap(), Guarded::ByLock);
        assert_eq!(two.register(&ann).unwrap(), Guarded::ByLeaseAlone, "another has the lock");
        assert_eq!(one.register(&ann).unwrap(), Guarded::ByLock);
        assert_eq!(two.workers().unwrap()[0].is_alive, Some(true));
        one.retire(&ann.worker).unwrap();
        assert_eq!(two.workers().unwrap(), []);
        assert_eq!(two.register(&ann).unwrap(), Guarded::ByLock);
    });
}

#[test]
fn the_jobs_of_a_connection_that_is_gone_are_taken_back_by_the_others() {
    Shop::each(|mut shop| {
        let (mut worker, mut sweeper) = (shop.store.share().unwrap(), shop.store.share().unwrap());
        let ann = ann();
        worker.register(&ann).unwrap();
        shop.store.enqueue(&[job()]).unwrap();
        let claimed = worker.claim(&Claim { worker: ann.worker.clone(), ..ask() }).unwrap();
        let fence = claimed.attempts[0].lease.fence();
        let look = |sweeper: &mut tenure::sqlite::Sqlite| sweeper.vanished(9).unwrap();
        assert_eq!(look(&mut sweeper), []);
        shop.clock.advance(GUARD_GAP);
        assert_eq!(look(&mut sweeper), [], "it lives");
        drop(worker);
        assert_eq!(sweeper.workers().unwrap()[0].is_alive, Some(false));
        assert_eq!(look(&mut sweeper), [], "one look is not enough");
        shop.clock.advance(GUARD_GAP);
        let lapses = look(&mut sweeper);
        assert_eq!((lapses.len(), lapses[0].about.fence()), (1, fence));
        assert_eq!(shop.claim().crashes, 1);
    });
}

#[test]
fn a_file_that_was_replaced_is_not_shared() {
    let shop = Shop::in_file();
    let file = shop.directory.as_ref().unwrap().path().join("shop.db");
    std::fs::rename(&file, file.with_extension("old")).unwrap();
    let gone = shop.store.share().err().unwrap();
    assert!(!file.exists(), "and nothing is made in its place: {gone}");
    std::fs::copy(file.with_extension("old"), &file).unwrap();
    let replaced = shop.store.share().err().unwrap().to_string();
    assert!(
        replaced.contains("another file was put in its place")
            && replaced.ends_with("start them again"),
        "{replaced}"
    );
    std::fs::rename(file.with_extension("old"), &file).unwrap();
    shop.store.share().unwrap().wait(monotonic() + Duration::from_millis(1)).unwrap();
}
