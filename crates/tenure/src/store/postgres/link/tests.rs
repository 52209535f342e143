//! Tests of the connection, against a real server.

use std::panic::{AssertUnwindSafe, catch_unwind};

use postgres::types::Type;

use super::super::session::Isolation;
use super::super::tests::lent::{
    Lent, SHARED, address, cut, kill, kill_when, name, pid, registration, worker,
};
use super::*;
use crate::store::Error;
use crate::store::Registration;

fn open() -> Link {
    Link::open(&address(&[]), Timeouts::default()).unwrap()
}

fn text(link: &mut Link, sql: &str) -> String {
    link.run("ask", |session| session.query_one(sql, &[])?.try_get(0)).unwrap()
}

impl Link {
    /// As if the last call had been a while ago.
    pub(in super::super) fn let_time_pass(&mut self) {
        self.used -= IDLE;
    }

    /// As if the last call had just been made, however slow this machine is.
    pub(in super::super) fn seem_fresh(&mut self) {
        self.used += Duration::from_secs(60);
    }

    /// As if the guards had been tried this much earlier.
    pub(in super::super) fn age_guards(&mut self, by: Duration) {
        self.guards.iter_mut().for_each(|guard| guard.age(by));
    }
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
    link.let_time_pass();
    assert_ne!(pid(&mut link), before);
}

#[test]
fn a_session_that_was_just_ended_fails_one_call_and_no_more() {
    let mut link = open();
    let before = pid(&mut link);
    kill(before);
    link.seem_fresh();
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
    link.let_time_pass();
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

    // The second insert fails, so the first is rolled back too.
    let twice = link.run("insert", |session| {
        session.transaction(Isolation::ReadCommitted, |session| {
            insert(session, 3)?;
            insert(session, 1)
        })
    });
    assert!(matches!(twice.unwrap_err(), Error::Engine { .. }));
    assert_eq!(count(&mut link), "2");

    // The work ignores the error of its second insert, but the transaction must not seem committed.
    let swallowed = link.run("insert", |session| {
        session.transaction(Isolation::ReadCommitted, |session| {
            insert(session, 4)?;
            let _ = insert(session, 1);
            Ok(())
        })
    });
    assert!(swallowed.is_err());
    assert_eq!(count(&mut link), "2");

    // After a rollback to a savepoint, the rest of the transaction is committed.
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
    let mut waiting = Link::open(&address(&[]), timeouts).unwrap();
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

/// A guard of the worker `w`.
fn guard(lent: &Lent) -> Guard {
    Guard::new(&lent.schema(), &registration())
}

/// A link that guards the worker `w`.
fn guarding(lent: &Lent) -> Link {
    let mut link = lent.link();
    assert_eq!(link.guard(guard(lent)).unwrap(), Guarded::ByLock);
    link
}

/// Whether this session has the lock of the worker `w`.
fn has_lock(link: &mut Link, lent: &Lent) -> bool {
    let sql = lent.schema().apply("SELECT tenure.is_guarding('w')").into_owned();
    link.run("ask", |session| session.query_one(&sql, &[])?.try_get(0)).unwrap()
}

fn said(queues: &[&str]) -> BTreeSet<Notice> {
    let notice = |queue: &&str| Notice { channel: "c".into(), payload: (*queue).to_owned() };
    queues.iter().map(notice).collect()
}

#[test]
fn a_session_that_is_not_ours_alone_prepares_nothing_and_holds_no_lock() {
    let lent = Lent::new();
    let mut link = Link::open(&lent.shared_address(), Timeouts::default()).unwrap();
    assert!(!link.facts().is_direct && !link.hears());
    for _ in 0..3 {
        assert_eq!(text(&mut link, "SELECT 'once'"), "once");
    }
    let prepared = "SELECT count(*)::text FROM pg_prepared_statements";
    assert_eq!(text(&mut link, prepared), "0");
    // A direct session, later, may prepare.
    assert!(link.may_prepare);
    assert_eq!(link.guard(guard(&lent)).unwrap(), Guarded::ByLeaseAlone);
    assert!(!has_lock(&mut link, &lent));
    assert_eq!(lent.registrations(), 1);
    link.listen("tenure_test_shared").unwrap();
    let listening = "SELECT count(*)::text FROM pg_listening_channels()";
    assert_eq!(text(&mut link, listening), "0");
    cut(&mut link);
    link.let_time_pass();
    link.let_time_pass();
    link.used -= Duration::from_secs(60);
    assert_eq!(text(&mut link, listening), "0");
    assert!(!has_lock(&mut link, &lent));
}

#[test]
fn a_new_session_is_judged_anew() {
    let mut link = open();
    assert!(link.facts().is_direct);
    link.address = address(&[SHARED]);
    link.dialer = Dialer::new(&link.address, Timeouts::default()).unwrap();
    link.session = None;
    assert_eq!(text(&mut link, "SELECT 'well'"), "well");
    assert!(!link.facts().is_direct);
}

#[test]
fn a_lock_is_taken_again_in_the_next_session_and_not_registered_more_often() {
    let lent = Lent::new();
    let mut link = guarding(&lent);
    for _ in 0..3 {
        assert!(has_lock(&mut link, &lent));
    }
    assert_eq!(lent.registrations(), 1);
    cut(&mut link);
    link.session = None;
    assert!(has_lock(&mut link, &lent));
    assert_eq!(lent.registrations(), 2);
    // After a few minutes the worker is registered again, in the same session.
    let before = pid(&mut link);
    link.age_guards(Duration::from_secs(301));
    assert_eq!(pid(&mut link), before);
    assert_eq!(lent.registrations(), 3);
}

#[test]
fn a_worker_that_registers_twice_or_retires_is_guarded_once_or_no_more() {
    let lent = Lent::new();
    let mut link = guarding(&lent);
    assert_eq!(link.guard(guard(&lent)).unwrap(), Guarded::ByLock);
    assert_eq!(link.guards.len(), 1);
    let other = Registration { worker: WorkerId::check("other").unwrap(), ..registration() };
    link.guard(Guard::new(&lent.schema(), &other)).unwrap();
    assert_eq!(link.guards.len(), 2);
    link.unguard(&worker());
    let left: Vec<_> = link.guards.iter().map(|guard| guard.worker().clone()).collect();
    assert_eq!(left, [other.worker]);
    assert!(link.has_guards());
}

#[test]
fn the_session_stays_the_same_when_a_worker_is_registered() {
    let lent = Lent::new();
    let mut link = lent.link();
    let before = pid(&mut link);
    link.guard(guard(&lent)).unwrap();
    assert!(link.is_connected());
    assert_eq!(pid(&mut link), before);
}

#[test]
fn an_idle_session_that_still_works_is_kept() {
    let mut link = open();
    let before = pid(&mut link);
    link.let_time_pass();
    assert_eq!(pid(&mut link), before);
}

#[test]
fn a_session_that_ended_is_noticed_when_the_lock_is_looked_after() {
    let lent = Lent::new();
    let mut link = guarding(&lent);
    cut(&mut link);
    link.age_guards(Duration::from_secs(301));
    // The statement that takes the lock again finds that the session has ended, so the call gets a
    // new session.
    assert!(has_lock(&mut link, &lent));
}

#[test]
fn a_lock_that_is_refused_does_not_keep_a_worker_from_working() {
    let lent = Lent::new();
    let mut link = guarding(&lent);
    lent.alter("ALTER FUNCTION tenure.guard(text) RENAME TO away");
    cut(&mut link);
    link.session = None;
    assert_eq!(text(&mut link, "SELECT 'well'"), "well");
    assert!(!has_lock(&mut link, &lent));
    // The lock is tried again after a second.
    lent.alter("ALTER FUNCTION tenure.away(text) RENAME TO guard");
    link.age_guards(Duration::from_secs(2));
    assert!(has_lock(&mut link, &lent));
}

#[test]
fn only_notices_for_its_workers_concern_a_link_and_all_if_it_has_none() {
    let lent = Lent::new();
    let mut link = lent.link();
    assert!(link.concerns(&said(&["other"])));
    link.guard(guard(&lent)).unwrap();
    assert!(!link.concerns(&said(&["other"])));
    assert!(link.concerns(&said(&["other", "own"])));
    // A notice without a name is about all queues.
    assert!(link.concerns(&said(&[""])));
    let second = Registration { worker: WorkerId::check("x").unwrap(), ..registration() };
    let second = Registration { queues: vec![name("other")], ..second };
    link.guard(Guard::new(&lent.schema(), &second)).unwrap();
    assert!(link.concerns(&said(&["other"])) && !link.concerns(&said(&["third"])));
}

#[test]
fn a_wait_comes_back_for_a_worker_and_says_that_it_was_away() {
    use super::super::wake::Heard;
    let lent = Lent::new();
    let mut link = guarding(&lent);
    link.listen("tenure_test_away").unwrap();
    // The session is lost before the wait begins.
    link.session = None;
    link.come_back(clock::monotonic());
    assert!(link.is_connected() && has_lock(&mut link, &lent));
    assert_eq!(link.wait(clock::monotonic()).unwrap(), Heard::Gap);
    // The session is lost during the wait.
    cut(&mut link);
    let soon = clock::monotonic() + Duration::from_secs(20);
    assert_eq!(link.wait(soon).unwrap(), Heard::Gap);
    assert!(link.is_connected());
    assert!(has_lock(&mut link, &lent));
    // The gap is reported only once.
    assert_eq!(link.wait(clock::monotonic()).unwrap(), Heard::Nothing);
}

#[test]
fn a_worker_whose_server_is_gone_waits_for_it_no_longer_than_it_was_told() {
    use super::super::fake::{Fake, Tls};
    let lent = Lent::new();
    let mut link = guarding(&lent);
    let gone = Fake::start(Tls::Lacks, |_| Some("57P03"));
    let there = std::mem::replace(&mut link.address, gone.address("sslmode=disable"));
    link.dialer = Dialer::new(&link.address, Timeouts::default()).unwrap();
    link.session = None;
    link.come_back(clock::monotonic());
    assert!(!link.is_connected());
    assert_eq!(gone.calls().len(), 1);
    // With a later deadline the link tries again and again, with pauses.
    link.come_back(clock::monotonic() + Duration::from_millis(120));
    assert!((3..=9).contains(&gone.calls().len()), "{}", gone.calls().len());
    let before = gone.calls().len();
    let lost = link.wait(clock::monotonic() + Duration::from_millis(120)).unwrap_err();
    assert!(lost.is_transient(), "{lost}");
    assert!(gone.calls().len() >= before + 3, "{before} {}", gone.calls().len());
    link.dialer = Dialer::new(&there, Timeouts::default()).unwrap();
    link.address = there;
    assert!(has_lock(&mut link, &lent));
}

#[test]
fn a_missing_right_is_told_with_the_grant_that_helps() {
    let lent = Lent::new();
    let role = format!("r{}", clock::unique().simple());
    lent.alter(
        &format!("CREATE ROLE {role}; GRANT USAGE ON SCHEMA \"tenure\" TO {role}")
            .replace("\"tenure\"", lent.schema().quoted()),
    );
    let mut link = lent.link();
    let ask = lent.schema().apply("SELECT tenure.retire('w')").into_owned();
    let refused = link.run("retire a worker", |session| {
        session.batch(&format!("SET ROLE {role}"))?;
        session.query(&ask, &[]).map(drop)
    });
    let refused = refused.unwrap_err().to_string();
    drop(link);
    lent.alter(&format!("DROP OWNED BY {role}; DROP ROLE {role}"));
    assert!(refused.contains("GRANT"), "{refused}");
}

#[test]
fn a_transaction_that_is_still_open_ends_with_its_session() {
    let mut link = open();
    let before = pid(&mut link);
    link.run("panic", |session| {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            session.transaction(Isolation::ReadCommitted, |_| -> Result<(), postgres::Error> {
                panic!("as the test wants it")
            })
        }));
        assert!(panicked.is_err());
        Ok(())
    })
    .unwrap();
    assert!(!link.is_connected());
    assert_ne!(pid(&mut link), before);
}

#[test]
fn an_error_outside_a_transaction_leaves_the_session_as_it_was() {
    let mut link = open();
    let before = pid(&mut link);
    for _ in 0..2 {
        link.run("divide", |session| session.batch("SELECT 1/0")).unwrap_err();
        link.run("divide", |session| session.query("SELECT 1/0", &[])).unwrap_err();
    }
    assert!(link.is_connected());
    assert_eq!(pid(&mut link), before);
}

#[test]
fn a_batch_that_failed_and_was_ignored_does_not_pass_for_a_commit() {
    let mut link = open();
    let swallowed = link.run("divide", |session| {
        session.transaction(Isolation::ReadCommitted, |session| {
            let _ = session.batch("SELECT 1/0");
            Ok(())
        })
    });
    assert!(swallowed.is_err());
}

#[test]
fn within_a_transaction_the_loss_of_a_statement_is_told_as_what_it_is() {
    let mut link = open();
    let sql = "SELECT 'lost'";
    for _ in 0..2 {
        assert_eq!(text(&mut link, sql), "lost");
    }
    let code = link.run("ask", |session| {
        let asked = session.transaction(Isolation::ReadCommitted, |session| {
            session.batch("DEALLOCATE ALL")?;
            session.query(sql, &[])
        });
        Ok(asked.unwrap_err().code().map(|code| code.code().to_owned()))
    });
    assert_eq!(code.unwrap().as_deref(), Some("26000"));
}

#[test]
fn a_database_that_cannot_hold_every_text_is_refused_when_connecting() {
    let base = format!("tenure_ascii_{}", clock::unique().simple());
    let mut link = open();
    let make = format!(
        "CREATE DATABASE {base} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
    );
    link.run("make", |session| session.batch(&make)).unwrap();
    let opened = Link::open(&address(&[("dbname", &base)]), Timeouts::default());
    let refused = opened.err().map(|refused| refused.to_string());
    let drop = format!("DROP DATABASE {base} WITH (FORCE)");
    link.run("drop", |session| session.batch(&drop)).unwrap();
    assert!(refused.as_deref().is_some_and(|said| said.contains("SQL_ASCII")), "{refused:?}");
}
