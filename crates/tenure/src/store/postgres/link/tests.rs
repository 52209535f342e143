//! Claims about the connection, against a real server.

use std::panic::{AssertUnwindSafe, catch_unwind};

use postgres::types::Type;

use super::super::session::Isolation;
use super::*;
use crate::store::Error;

/// A server where the tests may do as they like. Without one they fail: a test that passes without
/// having run is worse than none.
fn address() -> Address {
    let given = std::env::var("TENURE_TEST_POSTGRES");
    let given = given.expect("set TENURE_TEST_POSTGRES or run cargo xtask test");
    Address::parse(&given).unwrap()
}

fn open() -> Link {
    Link::open(&address(), Timeouts::default()).unwrap()
}

fn text(link: &mut Link, sql: &str) -> String {
    link.run("ask", |session| session.query_one(sql, &[])?.try_get(0)).unwrap()
}

fn pid(link: &mut Link) -> i32 {
    link.run("ask", |session| session.query_one("SELECT pg_backend_pid()", &[])?.try_get(0))
        .unwrap()
}

/// Ends the session of another link, once `condition` holds for it.
fn kill_when(pid: i32, condition: &str) {
    let sql = format!(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE pid = $1 AND {condition}"
    );
    let mut killer = open();
    while killer
        .run("kill", |session| session.query(&sql, &[(&pid, Type::INT4)]))
        .unwrap()
        .is_empty()
    {}
}

fn kill(pid: i32) {
    kill_when(pid, "true");
}

/// As if the last call had been a while ago.
fn let_time_pass(link: &mut Link) {
    link.used -= IDLE;
}

#[test]
fn a_session_of_ours_is_known_to_be_ours_and_has_its_settings() {
    let mut link = open();
    assert!(link.facts().is_direct, "{:?}", link.facts());
    assert!(link.facts().version_number >= 150_000, "{:?}", link.facts());
    assert!(!link.facts().is_replica && !link.facts().is_read_only);
    for (setting, value) in [
        ("statement_timeout", "1min"),
        ("lock_timeout", "10s"),
        ("idle_in_transaction_session_timeout", "1min"),
        ("client_min_messages", "warning"),
        ("default_transaction_isolation", "read committed"),
        ("application_name", "tenure"),
        ("client_encoding", "UTF8"),
    ] {
        assert_eq!(text(&mut link, &format!("SHOW {setting}")), value, "{setting}");
    }
}

#[test]
fn a_session_that_was_ended_while_idle_is_made_again_unnoticed() {
    let mut link = open();
    let before = pid(&mut link);
    kill(before);
    let_time_pass(&mut link);
    assert_ne!(pid(&mut link), before);
}

#[test]
fn a_session_that_was_just_ended_fails_one_call_and_no_more() {
    let mut link = open();
    let before = pid(&mut link);
    kill(before);
    // However slow this machine is today, the last call was just now.
    link.used += Duration::from_secs(60);
    let asked = link.run("ask", |session| session.query("SELECT 1", &[]));
    let lost = asked.unwrap_err();
    assert!(lost.is_transient() && lost.to_string().contains("while trying to ask"), "{lost}");
    assert_ne!(pid(&mut link), before);
}

#[test]
fn a_call_that_is_broken_off_is_told_and_not_repeated() {
    let mut link = open();
    let pid_of_call = pid(&mut link);
    let killer = std::thread::spawn(move || kill_when(pid_of_call, "query LIKE '%pg_sleep%'"));
    let broken = link.run("doze", |session| session.query("SELECT pg_sleep(30)", &[])).unwrap_err();
    killer.join().unwrap();
    assert!(matches!(broken, Error::Unavailable { .. }), "{broken:?}");
    assert_eq!(text(&mut link, "SELECT 'well'"), "well");
}

#[test]
fn a_statement_is_prepared_at_its_second_use_and_kept() {
    let mut link = open();
    let prepared = |link: &mut Link| -> i64 {
        let count =
            "SELECT count(*) FROM pg_prepared_statements WHERE statement = $$SELECT 'kept'$$";
        link.run("count", |session| session.query_one(count, &[])?.try_get(0)).unwrap()
    };
    for expected in [0, 1, 1] {
        assert_eq!(text(&mut link, "SELECT 'kept'"), "kept");
        assert_eq!(prepared(&mut link), expected);
    }
}

#[test]
fn a_session_that_loses_its_statements_is_answered_all_the_same() {
    let mut link = open();
    let ask = |session: &mut Session| {
        session.query_one("SELECT $1::int4 + 1", &[(&41, Type::INT4)])?.try_get::<_, i32>(0)
    };
    for _ in 0..2 {
        assert_eq!(link.run("ask", ask).unwrap(), 42);
    }
    link.run("forget", |session| session.batch("DEALLOCATE ALL")).unwrap();
    assert_eq!(link.run("ask", ask).unwrap(), 42);
    assert!(!link.may_prepare, "a session that is shared is not trusted again");
    kill(pid(&mut link));
    let_time_pass(&mut link);
    assert_eq!(link.run("ask", ask).unwrap(), 42);
    assert!(!link.session.as_ref().unwrap().may_prepare());
}

#[test]
fn a_statement_whose_columns_changed_is_prepared_anew() {
    let mut link = open();
    let define = |returns: &str| {
        format!(
            "DROP FUNCTION IF EXISTS pg_temp.f(); \
             CREATE FUNCTION pg_temp.f() RETURNS {returns} LANGUAGE sql AS 'SELECT 7::{returns}'"
        )
    };
    let sql = "SELECT f FROM pg_temp.f()";
    link.run("define", |session| session.batch(&define("int4"))).unwrap();
    for _ in 0..2 {
        let seven: i32 =
            link.run("ask", |session| session.query_one(sql, &[])?.try_get(0)).unwrap();
        assert_eq!(seven, 7);
    }
    link.run("define", |session| session.batch(&define("text"))).unwrap();
    for _ in 0..3 {
        assert_eq!(text(&mut link, sql), "7");
    }
    assert!(link.may_prepare);
}

#[test]
fn a_transaction_is_all_or_nothing_and_leaves_the_session_clean() {
    let mut link = open();
    link.run("make a table", |session| session.batch("CREATE TEMP TABLE t (n int4 UNIQUE)"))
        .unwrap();
    let insert = |session: &mut Session, n: i32| {
        session.execute("INSERT INTO t VALUES ($1)", &[(&n, Type::INT4)])
    };
    let count = |link: &mut Link| text(link, "SELECT count(*)::text FROM t");

    link.run("insert", |session| {
        session.transaction(Isolation::ReadCommitted, |session| {
            insert(session, 1)?;
            insert(session, 2)
        })
    })
    .unwrap();
    assert_eq!(count(&mut link), "2");

    // The second fails, so the first is not there either.
    let twice = link.run("insert", |session| {
        session.transaction(Isolation::ReadCommitted, |session| {
            insert(session, 3)?;
            insert(session, 1)
        })
    });
    assert!(matches!(twice.unwrap_err(), Error::Engine { .. }));
    assert_eq!(count(&mut link), "2");

    // An error that is swallowed does not pass for a commit.
    let swallowed = link.run("insert", |session| {
        session.transaction(Isolation::ReadCommitted, |session| {
            insert(session, 4)?;
            let _ = insert(session, 1);
            Ok(())
        })
    });
    assert!(swallowed.is_err());
    assert_eq!(count(&mut link), "2");

    // One that was undone to a savepoint does.
    link.run("insert", |session| {
        session.transaction(Isolation::ReadCommitted, |session| {
            session.batch("SAVEPOINT s")?;
            let _ = insert(session, 1);
            session.batch("ROLLBACK TO s")?;
            insert(session, 5)
        })
    })
    .unwrap();
    assert_eq!(count(&mut link), "3");

    let read_only = link.run("insert", |session| {
        session.transaction(Isolation::Snapshot, |session| {
            session.batch("CREATE TABLE not_temporary (n int4)")
        })
    });
    assert!(matches!(read_only.unwrap_err(), Error::Unusable { .. }));
}

#[test]
fn a_panic_within_a_transaction_leaves_nothing_open() {
    let mut link = open();
    let before = pid(&mut link);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        link.run("panic", |session| {
            session.transaction(Isolation::ReadCommitted, |_| -> Result<(), postgres::Error> {
                panic!("as the test wants it")
            })
        })
    }));
    assert!(panicked.is_err());
    assert_ne!(pid(&mut link), before);
}

#[test]
fn what_the_server_says_is_told_by_its_code() {
    let mut link = open();
    let mut told =
        |sql: &str| link.run("try", |session| session.batch(sql)).expect_err("it does not work");
    let slow = told("SET statement_timeout = 1; SELECT pg_sleep(5)");
    assert!(slow.is_transient() && slow.to_string().contains("broke the call off"), "{slow}");
    let unknown = told("SELECT FROM tenure_no_such_table");
    assert!(unknown.to_string().contains("run: tenure migrate up"), "{unknown}");
    let raised = "DO $$ BEGIN RAISE 'too long' USING ERRCODE = 'TN003', COLUMN = 'lease'; END $$";
    let invalid = told(raised);
    assert!(invalid.is_invalid() && invalid.to_string() == "lease: too long", "{invalid}");
}

#[test]
fn a_lock_that_is_not_got_in_time_is_busy() {
    let timeouts = Timeouts { lock: Duration::from_millis(50), ..Timeouts::default() };
    let mut waiting = Link::open(&address(), timeouts).unwrap();
    open()
        .run("hold a lock", |holder| {
            holder.transaction(Isolation::ReadCommitted, |holder| {
                holder.query("SELECT 1 FROM pg_advisory_xact_lock(7106)", &[])?;
                let busy = waiting.run("lock", |session| {
                    session.query("SELECT 1 FROM pg_advisory_xact_lock(7106)", &[])
                });
                let busy = busy.unwrap_err();
                assert!(matches!(busy, Error::Busy { .. }) && busy.is_transient(), "{busy:?}");
                Ok(())
            })
        })
        .unwrap();
}
