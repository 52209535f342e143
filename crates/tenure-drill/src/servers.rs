//! The PostgreSQL that proofs run on, and a database in it for each thread.
//!
//! `cargo xtask test` starts a server of its own and names it in `TENURE_TEST_POSTGRES`. Installing the schema
//! takes longer than most cases, so databases are kept and lent: a thread holds a lock with the number
//! of its database, and the server frees it with the session, however that ends.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use postgres::{Client, NoTls};
use tenure::clock::Clock;
use tenure::drill::{Dump, Explorable, Patch};
use tenure::store::Result;
use tenure::store::migrate::Standing;
use tenure::store::postgres::{Address, Migrations, Options, Postgres, Roles};

use crate::engines::START;

/// Where the server's address is found.
pub const VARIABLE: &str = "TENURE_TEST_POSTGRES";

/// The address of the server that tests run on.
///
/// # Panics
///
/// If there is none: a test that did not run proves nothing.
pub fn server() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "no PostgreSQL to test on; run `cargo xtask test`, or `cargo xtask postgres COMMAND` for one \
             command, or set {VARIABLE} to the address of a server that may be written to"
        )
    })
}

/// The address of another database of the same server, and of a schema in it.
pub fn address(database: &str, schema: &str) -> String {
    let server = server();
    let (base, query) = server.split_once('?').unwrap_or((&server, ""));
    let base = base.rsplit_once('/').map_or(base, |(host, _)| host);
    format!("{base}/{database}?{query}&schema={}", schema.replace(' ', "%20"))
}

/// A connection of the test's own, without the schema's help.
pub fn connect(database: &str) -> Client {
    let server = address(database, "tenure");
    let plain = server.split_once("&schema=").map_or(server.as_str(), |(plain, _)| plain);
    Client::connect(plain, NoTls).expect("the server answers")
}

/// An empty store in this thread's own database, in a schema of this name. There may be one at a time
/// for each name and thread.
pub fn fresh(schema: &str, clock: &Clock, options: &Options) -> Result<Postgres> {
    let address = Address::parse(&address(&database(), schema))?;
    install(&address, schema)?;
    let mut store = Postgres::with_test_clock(&address, options, clock.clone())?;
    store.load(&Dump::empty(START))?;
    Ok(store)
}

/// The address of an empty store in this thread's own database, in a schema of this name, for those who live by the
/// server's own clock.
pub fn unclocked(schema: &str) -> Result<String> {
    let url = address(&database(), schema);
    drop_schema(schema);
    Migrations::connect(&Address::parse(&url)?)?.up(Roles::Leave)?;
    Ok(url)
}

/// An empty store whose functions lack something, in a schema of its own.
pub fn patched(patches: &[Patch], clock: &Clock) -> Result<Postgres> {
    const MUTANT: &str = "mutant";
    let address = Address::parse(&address(&database(), MUTANT))?;
    drop_schema(MUTANT);
    Postgres::install_patched(&address, patches)?;
    Postgres::with_test_clock(&address, &Options::default(), clock.clone())
}

fn drop_schema(schema: &str) {
    let mut client = connect(&database());
    client
        .batch_execute(&format!("DROP SCHEMA IF EXISTS \"{schema}\" CASCADE"))
        .expect("an old schema can be dropped");
}

/// Brings the schema to what this binary has, whatever an earlier one left there.
fn install(address: &Address, schema: &str) -> Result<()> {
    let mut migrations = Migrations::connect(address)?;
    let applied = |standing: &Standing| matches!(standing, Standing::Applied(_));
    if !migrations.status()?.iter().all(|step| applied(&step.standing)) {
        drop_schema(schema);
        migrations.up(Roles::Leave)?;
    }
    Ok(())
}

/// The name of this thread's database.
pub fn database() -> String {
    // Not thread-local: the driver cannot be dropped while its thread ends.
    static LENT: Mutex<BTreeMap<String, (Client, String)>> = Mutex::new(BTreeMap::new());
    let thread = format!("{:?}", std::thread::current().id());
    let mut lent = LENT.lock().unwrap_or_else(PoisonError::into_inner);
    lent.entry(thread).or_insert_with(lend).1.clone()
}

/// Takes the first database that nobody has, and makes it if there is none.
fn lend() -> (Client, String) {
    let mut client = connect("postgres");
    for number in 1.. {
        let free: bool = client
            .query_one("SELECT pg_try_advisory_lock(7463, $1)", &[&number])
            .expect("the server answers")
            .get(0);
        if free {
            let name = format!("tenure_test_{number}");
            let exists = client
                .query("SELECT 1 FROM pg_database WHERE datname = $1", &[&name])
                .expect("the server answers");
            if exists.is_empty() {
                client
                    .batch_execute(&format!("CREATE DATABASE {name}"))
                    .expect("a database can be made");
            }
            return (client, name);
        }
    }
    unreachable!("numbers do not end")
}
