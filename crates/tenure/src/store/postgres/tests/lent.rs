//! A schema for one test on a real server, and ways to end a session and to let time pass.

use postgres::types::Type;

use super::super::address::ServerAddress;
use super::super::link::{Link, Timeouts};
use super::super::migrate::{Migrations, Roles};
use super::super::schema::Schema;
use super::super::{Postgres, PostgresOptions};
use crate::clock;
use crate::job::{Json, Name, NewJob};
use crate::lease::WorkerId;
use crate::store::{Claim, Registration};

/// The server that the tests may use freely, with further settings. Without one they fail: a test
/// that passes without having run is worse than none.
pub(in super::super) fn address(settings: &[(&str, &str)]) -> ServerAddress {
    let given = std::env::var("TENURE_TEST_POSTGRES");
    let mut given = given.expect("set TENURE_TEST_POSTGRES or run cargo xtask test");
    for (key, value) in settings {
        let sign = if given.contains('?') { '&' } else { '?' };
        given.push_str(&format!("{sign}{key}={}", value.replace(' ', "%20").replace('=', "%3D")));
    }
    ServerAddress::parse(&given).unwrap()
}

/// Settings that make a session look like one of a pooler: its mark is not the one that we gave it.
pub(in super::super) const SHARED: (&str, &str) = ("options", "-c tenure.session=another");

/// An installed schema, dropped at the end.
pub(in super::super) struct Lent {
    name: String,
}

impl Lent {
    pub(in super::super) fn new() -> Lent {
        let lent = Lent { name: format!("lent-{}", clock::unique()) };
        Migrations::connect(&lent.address()).unwrap().up(Roles::Leave).unwrap();
        lent
    }

    pub(in super::super) fn address(&self) -> ServerAddress {
        address(&[("schema", &self.name)])
    }

    pub(in super::super) fn shared_address(&self) -> ServerAddress {
        address(&[("schema", &self.name), SHARED])
    }

    pub(in super::super) fn schema(&self) -> Schema {
        Schema::new(&self.name)
    }

    pub(in super::super) fn link(&self) -> Link {
        Link::open(&self.address(), Timeouts::default()).unwrap()
    }

    pub(in super::super) fn store(&self) -> Postgres {
        Postgres::open(&self.address(), &PostgresOptions::default()).unwrap()
    }

    /// Runs statements that call the schema `tenure`.
    pub(in super::super) fn alter(&self, sql: &str) {
        self.link().run("alter", |session| session.batch(&self.schema().apply(sql))).unwrap();
    }

    /// A number that this query returns.
    pub(in super::super) fn number(&self, sql: &str) -> i64 {
        let sql = self.schema().apply(sql).into_owned();
        self.link().run("ask", |session| session.query_one(&sql, &[])?.try_get(0)).unwrap()
    }

    /// How often the worker `w` was registered.
    pub(in super::super) fn registrations(&self) -> i64 {
        self.number("SELECT coalesce(sum(takings), 0)::int8 FROM tenure.workers WHERE worker = 'w'")
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let sql = format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema().quoted());
        let dropped = Link::open(&self.address(), Timeouts::default())
            .and_then(|mut link| link.run("drop", |session| session.batch(&sql)));
        assert!(dropped.is_ok() || std::thread::panicking(), "{dropped:?}");
    }
}

pub(in super::super) fn pid(link: &mut Link) -> i32 {
    link.run("ask", |session| session.query_one("SELECT pg_backend_pid()", &[])?.try_get(0))
        .unwrap()
}

/// Ends the session of another link as soon as `condition` holds for it.
pub(in super::super) fn kill_when(pid: i32, condition: &str) {
    let sql = format!(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE pid = $1 AND {condition}"
    );
    let mut killer = Link::open(&address(&[]), Timeouts::default()).unwrap();
    while killer
        .run("kill", |session| session.query(&sql, &[(&pid, Type::INT4)]))
        .unwrap()
        .is_empty()
    {}
}

pub(in super::super) fn kill(pid: i32) {
    kill_when(pid, "true");
}

/// Ends the session of this link. Also makes the link believe that it was just used, so that it
/// does not test the session before the next call.
pub(in super::super) fn cut(link: &mut Link) {
    kill(pid(link));
    link.seem_fresh();
}

pub(in super::super) fn name(text: &str) -> Name {
    Name::check("name", text).unwrap()
}

pub(in super::super) fn job(queue: &str) -> NewJob {
    NewJob::new(name("work"), Json::check("args", "{}", 9).unwrap()).queue(name(queue))
}

pub(in super::super) fn worker() -> WorkerId {
    WorkerId::check("w").unwrap()
}

/// The worker `w`, which serves the queue `own`.
pub(in super::super) fn registration() -> Registration {
    Registration::new(worker(), vec![name("own")])
}

/// A claim of the worker `w`.
pub(in super::super) fn ask() -> Claim {
    Claim {
        queues: vec![name("own")],
        request: 1,
        ..Claim::new(worker(), 1, std::time::Duration::from_secs(60))
    }
}
