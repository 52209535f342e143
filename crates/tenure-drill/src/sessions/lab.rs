//! A database to try the SQL API in, whose clock the caller moves.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use postgres::error::{DbError, SqlState};
use postgres::{Client, Error};
use tenure::engine::clock::{Clock, monotonic};
use tenure::engine::store::postgres::{Migrations, PostgresOptions, Roles, ServerAddress};

use crate::engines::START;
use crate::servers;

/// Databases of this process that are not in use, in the order in which they were made. The oldest
/// is used first, so that a caller with one lab at a time always gets the same. Making one takes
/// longer than most tests.
static FREE: Mutex<BTreeMap<usize, String>> = Mutex::new(BTreeMap::new());
static MADE: AtomicUsize = AtomicUsize::new(0);

/// How long anything here may take before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(30);

/// A database with the schema, its roles, and an empty table `public.effects`, which stands for
/// whatever a user writes. Its clock stands still until the caller moves it.
pub struct Lab {
    /// How many labs were made before this one.
    number: usize,
    database: String,
    owner: Client,
}

impl Lab {
    /// An empty lab.
    #[expect(clippy::new_without_default, reason = "it is a whole database, not a value")]
    pub fn new() -> Lab {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop_first();
        // In a thread of its own: each thread has one database, and a test may have several labs.
        let (number, database) = free.unwrap_or_else(|| {
            let made = thread::spawn(install).join();
            (MADE.fetch_add(1, Ordering::Relaxed), made.expect("a database for tests can be made"))
        });
        let mut owner = connect(&database);
        owner
            .batch_execute(
                "DELETE FROM tenure.jobs; DELETE FROM tenure.done; DELETE FROM tenure.payloads;
                 DELETE FROM tenure.timeline; DELETE FROM tenure.keys; DELETE FROM tenure.queues;
                 DELETE FROM tenure.clock; DELETE FROM tenure.ledger; DELETE FROM tenure.steps;
                 DELETE FROM tenure.workers; DELETE FROM tenure.epochs; DELETE FROM public.effects;
                 DELETE FROM tenure.fences;
                 UPDATE tenure.meta m SET epoch = 0, floor = 0, durability = 'on', guard_gap = 300, wal_timeline = h.wal_timeline, system = h.system,
                     jobs_table = h.jobs_table FROM tenure.whereabouts() h;
                 SELECT setval('tenure.job_id', 1, false), setval('tenure.pulse', 0, false), setval('tenure.announced', 0, false),
                        setval('tenure.broke', 0), setval('tenure.broke_before', 0)",
            )
            .expect("the tables can be emptied");
        // The owner's session waits only briefly for locks: a test that would hang fails instead.
        owner.batch_execute("SET lock_timeout = '10s'").expect("a timeout can be set");
        let mut lab = Lab { number, database, owner };
        let set = "INSERT INTO tenure.clock (one, at) VALUES (1, $1)";
        lab.owner.execute(set, &[&START.as_millis()]).expect("the clock can be set");
        lab
    }

    /// The database's name.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// The address for the library.
    pub fn address(&self) -> ServerAddress {
        ServerAddress::parse(&servers::address(&self.database, "tenure")).expect("a valid address")
    }

    /// A session of the owner.
    pub fn session(&self) -> Client {
        connect(&self.database)
    }

    /// A session of a user who is a member of one of Tenure's roles and nothing else: `"worker"`,
    /// `"enqueuer"` or `"reader"`; or of no role, for `"nobody"`.
    pub fn session_as(&self, role: &str) -> Client {
        let mut session = self.session();
        session
            .batch_execute(&format!("SET SESSION AUTHORIZATION \"{}\"", self.member(role)))
            .expect("the member exists");
        session
    }

    /// The name of the member of a role.
    pub fn member(&self, role: &str) -> String {
        format!("{}_{role}", self.database)
    }

    /// The owner's own session, for queries and for what operators do.
    pub fn owner(&mut self) -> &mut Client {
        &mut self.owner
    }

    /// Moves the clock.
    pub fn advance(&mut self, ms: i64) {
        let moved = self.owner.execute("UPDATE tenure.clock SET at = at + $1", &[&ms]);
        assert_eq!(moved.expect("the clock can be moved"), 1, "the server's own clock runs");
    }

    /// Switches to the server's own clock.
    pub fn run_clock(&mut self) {
        self.owner.execute("DELETE FROM tenure.clock", &[]).expect("the clock can be let go");
    }

    /// A whole number that a query returns.
    pub fn number(&mut self, sql: &str) -> i64 {
        self.owner.query_one(sql, &[]).expect("a query of the test's own").get(0)
    }

    /// A text that a query returns.
    pub fn text(&mut self, sql: &str) -> String {
        self.owner.query_one(sql, &[]).expect("a query of the test's own").get(0)
    }

    /// Waits until a query returns true.
    ///
    /// # Panics
    ///
    /// If it does not within half a minute.
    pub fn wait_until(&mut self, sql: &str) {
        let deadline = monotonic() + PATIENCE;
        while !self.owner.query_one(sql, &[]).expect("a question").get::<_, bool>(0) {
            assert!(monotonic() < deadline, "never came true: {sql}");
        }
    }

    /// Waits until the session with this process id waits for another.
    pub fn wait_until_blocked(&mut self, pid: i32) {
        self.wait_until(&format!("SELECT cardinality(pg_blocking_pids({pid})) > 0"));
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        free.insert(self.number, self.database.clone());
    }
}

/// A plain session. What it creates is in `public`, even if its user has the name of the schema,
/// which PostgreSQL would otherwise put first in the search path.
fn connect(database: &str) -> Client {
    let mut session = servers::connect(database);
    // A statement that hangs fails instead.
    let settings = "SET search_path = public; SET statement_timeout = '60s'";
    session.batch_execute(settings).expect("a session can be set up");
    session
}

/// Takes a database that is never given back, and installs the schema, the roles with one member
/// each, and the table `public.effects`.
fn install() -> String {
    let database = servers::database();
    drop(
        servers::fresh("tenure", &Clock::manual(START), &PostgresOptions::default())
            .expect("a store"),
    );
    let address = ServerAddress::parse(&servers::address(&database, "tenure")).expect("an address");
    let mut migrations = Migrations::connect(&address).expect("the server answers");
    migrations.up(Roles::Make).expect("the roles can be made");
    let mut owner = servers::connect(&database);
    for role in ["worker", "enqueuer", "reader", "nobody"] {
        let member = format!("{database}_{role}");
        let known = "SELECT 1 FROM pg_roles WHERE rolname = $1";
        if owner.query_opt(known, &[&member]).expect("a look at the roles").is_none() {
            owner.batch_execute(&format!("CREATE ROLE \"{member}\"")).expect("a role can be made");
        }
        if role != "nobody" {
            owner
                .batch_execute(&format!("GRANT tenure_{role} TO \"{member}\""))
                .expect("a role can have members");
        }
    }
    owner
        .batch_execute(
            "CREATE TABLE IF NOT EXISTS public.effects (job bigint, token bigint, note text);
             GRANT SELECT, INSERT ON public.effects TO PUBLIC",
        )
        .expect("a table of the tests' own");
    database
}

/// The SQLSTATE of an error, or its text if it has none.
pub fn code(error: &Error) -> String {
    error.code().map(SqlState::code).map_or_else(|| error.to_string(), str::to_owned)
}

/// The server's error.
///
/// # Panics
///
/// If the call succeeded, or failed elsewhere than on the server.
pub fn fault<T>(answer: Result<T, Error>) -> DbError {
    let error = answer.err().expect("this is refused");
    error.as_db_error().unwrap_or_else(|| panic!("the server did not say so: {error}")).clone()
}
