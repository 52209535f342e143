//! What the closure may not do to the connection, and that no trace is left if it tries.
use std::time::Duration;
use tenure::engine::store::{Error, Work};

use tenure::engine::job::BATCH_LIMIT;

use crate::{LONG, Shop, both, job, undone};

#[test]
fn work_that_ends_the_transaction_itself_is_told_and_nothing_is_stored() {
    for (sql, word) in [
        ("COMMIT", "COMMIT"),
        ("END", "COMMIT"),
        ("ROLLBACK", "ROLLBACK"),
        ("BEGIN", "BEGIN"),
        ("COMMIT; BEGIN", "COMMIT"),
        ("ROLLBACK; BEGIN IMMEDIATE; INSERT INTO orders DEFAULT VALUES", "ROLLBACK"),
    ] {
        Shop::each(|mut shop| {
            let answer = shop.store.transact(LONG, |tx| {
                both(tx);
                assert!(tx.execute_batch(sql).is_err(), "{sql}");
                both(tx); // as if nothing had happened
                Ok::<_, ()>(())
            });
            let words = undone(answer);
            assert!(
                words.contains(&format!("{word} is not")) && words.contains("return Ok"),
                "{words}"
            );
            assert_eq!(shop.counts(), (0, 0), "{sql}");
            shop.still_works();
        });
    }
}

#[test]
fn its_own_error_about_that_is_not_all_the_caller_gets() {
    let mut shop = Shop::in_memory();
    let answer = shop.store.transact(LONG, |tx| tx.execute_batch("COMMIT"));
    assert!(undone(answer).contains("COMMIT"), "and not only: not authorized");
}

#[test]
fn settings_and_files_are_not_changed_and_nothing_stands_in_front_of_our_tables() {
    for (sql, word) in [
        ("PRAGMA synchronous = OFF", "PRAGMA synchronous"),
        ("pragma QUERY_ONLY = 1", "PRAGMA query_only"),
        ("PRAGMA main.locking_mode = EXCLUSIVE", "PRAGMA locking_mode"),
        ("PRAGMA writable_schema(on)", "PRAGMA writable_schema"),
        ("PRAGMA count_changes = 1", "PRAGMA count_changes"),
        ("ATTACH ':memory:' AS other", "ATTACH"),
        ("DETACH temp", "DETACH"),
        ("CREATE TEMP TABLE tenure_jobs (id INTEGER)", "tenure_jobs"),
        ("CREATE TEMP VIEW Tenure_Jobs AS SELECT 1", "Tenure_Jobs"),
        ("CREATE TEMP TRIGGER t AFTER INSERT ON tenure_jobs BEGIN SELECT 1; END", "tenure_jobs"),
    ] {
        Shop::each(|mut shop| {
            let answer = shop.store.transact(LONG, |tx| {
                both(tx);
                assert!(tx.execute_batch(sql).is_err(), "{sql}");
                Ok::<_, ()>(())
            });
            let words = undone(answer);
            assert!(words.contains(word), "{words}");
            assert_eq!(shop.counts(), (0, 0), "{sql}");
            shop.still_works();
        });
    }
}

#[test]
fn what_harms_nobody_is_allowed() {
    Shop::each(|mut shop| {
        let answer = shop.store.transact(LONG, |tx| -> tenure::sqlite::rusqlite::Result<i64> {
            tx.execute_batch(
                "PRAGMA table_info(orders); PRAGMA foreign_keys; PRAGMA defer_foreign_keys = ON; PRAGMA user_version = 7;
                 CREATE TABLE lines (id INTEGER PRIMARY KEY); CREATE INDEX by_id ON lines (id);
                 CREATE TEMP TABLE sums (x); DROP TABLE sums;
                 SAVEPOINT mine; INSERT INTO lines VALUES (1); ROLLBACK TO mine; RELEASE mine",
            )?;
            both(tx);
            tx.query_row("SELECT count(*) FROM lines", [], |row| row.get(0))
        });
        assert_eq!(answer.unwrap().unwrap(), 0);
        assert_eq!(shop.counts(), (1, 1));
        shop.still_works();
    });
}

#[test]
fn a_statement_that_rolls_everything_back_keeps_what_follows_from_being_stored() {
    let then: [&str; 3] = [
        "SELECT 1",
        "INSERT INTO orders DEFAULT VALUES",
        "SAVEPOINT mine; INSERT INTO orders DEFAULT VALUES",
    ];
    for sql in then {
        Shop::each(|mut shop| {
            let answer = shop.store.transact(LONG, |tx| {
                both(tx);
                assert!(tx.execute("INSERT OR ROLLBACK INTO orders VALUES (1)", []).is_err());
                let _ = tx.execute_batch(sql);
                assert!(undone(tx.enqueue(&[job()])).contains("rolled the transaction back"));
                Ok::<_, ()>(())
            });
            let words = undone(answer);
            assert!(words.contains("ON CONFLICT ROLLBACK"), "{words}");
            assert_eq!(shop.counts(), (0, 0), "{sql}");
            shop.still_works();
        });
    }
}

#[test]
fn whoever_returns_the_error_of_such_a_statement_gets_it_back() {
    let mut shop = Shop::in_memory();
    let answer = shop.store.transact(LONG, |tx| {
        both(tx);
        tx.execute("INSERT OR ROLLBACK INTO orders VALUES (1)", [])
    });
    assert!(answer.unwrap().unwrap_err().to_string().contains("UNIQUE"));
    assert_eq!(shop.counts(), (0, 0));
}

#[test]
fn a_deferred_constraint_that_does_not_hold_at_the_commit_undoes_both() {
    Shop::each(|mut shop| {
        let answer = shop.store.transact(LONG, |tx| -> tenure::sqlite::rusqlite::Result<()> {
            tx.execute_batch(
                "CREATE TABLE lines (of INTEGER REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED);
                 INSERT INTO lines VALUES (99)",
            )?;
            both(tx);
            Ok(())
        });
        let words = undone(answer);
        assert!(words.contains("FOREIGN KEY"), "{words}");
        assert_eq!(shop.counts(), (0, 0));
        shop.still_works();
    });
}

#[test]
fn whoever_uses_the_store_in_the_middle_of_its_own_transaction_is_told_instead_of_waiting_for_ever()
{
    Shop::each(|mut shop| {
        let mut other = shop.store.share().unwrap();
        let answer = shop.store.transact(LONG, |tx| {
            let again = other.transact(Duration::ZERO, |_| Ok::<_, ()>(()));
            assert!(again.unwrap_err().is_invalid());
            both(tx);
            other.enqueue(&[job()])
        });
        let words = answer.unwrap().unwrap_err().to_string();
        assert!(words.contains("cannot enqueue on") && words.contains("own methods"), "{words}");
        assert_eq!(shop.counts(), (0, 0));
        other.enqueue(&[job()]).unwrap();
        shop.still_works();
    });
}

#[test]
fn a_request_that_makes_no_sense_is_refused_and_the_work_may_go_on() {
    let mut shop = Shop::in_memory();
    let answer = shop.store.transact(LONG, |tx| {
        let refused = tx.enqueue(&vec![job(); BATCH_LIMIT + 1]);
        assert!(matches!(refused, Err(Error::Invalid(_))), "{refused:?}");
        both(tx);
        Ok::<_, ()>(())
    });
    answer.unwrap().unwrap();
    assert_eq!(shop.counts(), (1, 1));
}

#[test]
fn a_verb_that_fails_half_way_leaves_nothing_behind() {
    let mut shop = Shop::in_memory();
    let answer = shop.store.transact(LONG, |tx| -> tenure::sqlite::rusqlite::Result<()> {
        tx.execute_batch(
            "CREATE TRIGGER late BEFORE INSERT ON tenure_jobs WHEN NEW.priority = 7
             BEGIN SELECT RAISE(ABORT, 'not this one'); END",
        )?;
        assert!(tx.enqueue(&[job(), job().priority(7)]).is_err());
        tx.execute("INSERT INTO orders DEFAULT VALUES", [])?;
        Ok(())
    });
    answer.unwrap().unwrap();
    assert_eq!(shop.counts(), (1, 0), "the first of the two jobs is not there either");
}
