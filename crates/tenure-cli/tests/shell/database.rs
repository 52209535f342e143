//! A database for each test, on the server that `TENURE_TEST_POSTGRES` names. Creating and dropping
//! one takes seconds, so they are kept: a test holds an advisory lock with the number of its
//! database, and the server frees the lock when the session ends, for whatever reason.

use postgres::{Client, NoTls};
use tenure_cluster::Address;

pub(crate) struct Database {
    address: Address,
    /// Holds the lock.
    _lease: Client,
}

impl Database {
    /// An empty database that nothing else uses.
    ///
    /// # Panics
    ///
    /// If there is no server: a test that did not run proves nothing.
    pub(crate) fn lend() -> Database {
        let server = std::env::var("TENURE_TEST_POSTGRES").expect(
            "no PostgreSQL to test on; run `cargo xtask test`, or set TENURE_TEST_POSTGRES to the \
             address of a server that may be written to",
        );
        let server = Address::parse(&server).unwrap();
        let mut lease = connect(&server);
        let is_free = |number: &i32| -> bool {
            lease.query_one("SELECT pg_try_advisory_lock(7464, $1)", &[number]).unwrap().get(0)
        };
        let number = (1..).find(is_free).unwrap();
        let name = format!("tenure_cli_{number}");
        let exists = "SELECT 1 FROM pg_database WHERE datname = $1";
        if lease.query(exists, &[&name]).unwrap().is_empty() {
            lease.batch_execute(&format!("CREATE DATABASE {name}")).unwrap();
        }
        let database = Database { address: server.with_database(&name), _lease: lease };
        database.empty();
        database
    }

    /// The address for `--db`.
    pub(crate) fn url(&self) -> String {
        self.address.to_string()
    }

    /// The address for another role.
    pub(crate) fn url_as(&self, role: &str) -> String {
        self.address.with_user(role).to_string()
    }

    /// The address with one more parameter.
    pub(crate) fn url_with(&self, parameter: &str) -> String {
        let url = self.url();
        let mark = if url.contains('?') { '&' } else { '?' };
        format!("{url}{mark}{parameter}")
    }

    /// A session of the test's own.
    pub(crate) fn connect(&self) -> Client {
        connect(&self.address)
    }

    pub(crate) fn execute(&self, sql: &str) {
        self.connect().batch_execute(sql).unwrap();
    }

    /// The only value that a query returns, as text.
    pub(crate) fn value(&self, sql: &str) -> String {
        self.connect().query_one(&format!("SELECT ({sql})::text"), &[]).unwrap().get(0)
    }

    /// A role that may log in and has no rights, named after the database and so used by no other
    /// test.
    pub(crate) fn role(&self, name: &str) -> String {
        let role = format!("{}_{name}", self.value("current_database()"));
        let mut client = self.connect();
        let exists = "SELECT 1 FROM pg_roles WHERE rolname = $1";
        if !client.query(exists, &[&role]).unwrap().is_empty() {
            client.batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).unwrap();
        }
        client.batch_execute(&format!("CREATE ROLE {role} LOGIN")).unwrap();
        role
    }

    /// Drops all schemas except the server's own, with everything in them, and creates an empty
    /// `public`.
    fn empty(&self) {
        self.execute(
            "SET client_min_messages = warning; DO $$ DECLARE left_over text; BEGIN
                 FOR left_over IN SELECT n.nspname FROM pg_namespace n
                     WHERE n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
                 LOOP EXECUTE format('DROP SCHEMA %I CASCADE', left_over); END LOOP;
             END $$; CREATE SCHEMA public",
        );
    }
}

/// Connects to the database that the address names. A lock belongs to one database, so `lend` takes
/// its locks in the one of the server's own address, which all tests share.
fn connect(address: &Address) -> Client {
    Client::connect(&address.to_string(), NoTls).expect("the server answers")
}
