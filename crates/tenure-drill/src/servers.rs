//! The PostgreSQL that proofs run on, and a database in it for each thread.
//!
//! `cargo xtask test` starts a server of its own and names it in `TENURE_TEST_POSTGRES`. Installing
//! the schema takes longer than most cases, so databases are kept and reused: a thread holds an
//! advisory lock with the number of its database, and the server frees the lock when the session
//! ends, for whatever reason.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::sync::{Mutex, OnceLock, PoisonError};

use postgres::{Client, NoTls};
use tenure::drill::{Dump, Explorable, Patch};
use tenure::engine::clock::Clock;
use tenure::engine::store::migrate::MigrationState;
use tenure::engine::store::postgres::{
    Migrations, Postgres, PostgresOptions, Roles, ServerAddress,
};
use tenure::engine::store::{Error, Result};

use crate::engines::START;

/// The environment variable with the server's address.
pub const VARIABLE: &str = "TENURE_TEST_POSTGRES";

static CHOSEN: OnceLock<String> = OnceLock::new();

/// Sets the server for the whole process, whatever the environment says. The first call decides.
pub fn choose(url: &str) {
    CHOSEN.get_or_init(|| url.to_owned());
}

/// Checks that proofs can run on a server: it answers without TLS, and we may create databases.
///
/// # Errors
/// If not, with what to do about it.
pub fn check(url: &str) -> Result<()> {
    let address = ServerAddress::parse(url)?;
    let unusable = |problem: String, next: &str| Error::Unusable {
        target: address.to_string(),
        problem,
        next: next.to_owned(),
    };
    let out_of_reach = |broken: postgres::Error| {
        // The driver's error says only what it was doing. The reason is in the error's source.
        let why = broken.source().map_or_else(|| broken.to_string(), ToString::to_string);
        unusable(why, "a drill needs a server that runs, and that answers without TLS")
    };
    let mut client = Client::connect(&plain(url, None), NoTls).map_err(out_of_reach)?;
    let may = "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user";
    if client.query_one(may, &[]).map_err(out_of_reach)?.get(0) {
        return Ok(());
    }
    let next = "a drill makes databases of its own: ALTER ROLE … CREATEDB, or leave --db out";
    Err(unusable("this user may not make databases".into(), next))
}

/// The address of the server that proofs run on.
///
/// # Panics
///
/// If there is none: a test that did not run proves nothing.
pub fn server() -> String {
    if let Some(chosen) = CHOSEN.get() {
        return chosen.clone();
    }
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "no PostgreSQL to test on; run `cargo xtask test`, or `cargo xtask postgres COMMAND` for one \
             command, or set {VARIABLE} to the address of a server that may be written to"
        )
    })
}

/// The address of another database of the same server, and of a schema in it.
pub fn address(database: &str, schema: &str) -> String {
    let plain = plain(&server(), Some(database));
    let sign = if plain.contains('?') { '&' } else { '?' };
    format!("{plain}{sign}schema={}", schema.replace(' ', "%20"))
}

/// A plain connection of the test's own.
pub fn connect(database: &str) -> Client {
    Client::connect(&plain(&server(), Some(database)), NoTls).expect("the server answers")
}

/// The same address with this schema instead of its own.
pub fn in_schema(url: &str, schema: &str) -> String {
    let url = in_no_schema(url);
    let sign = match (url.contains("://"), url.contains('?')) {
        (false, _) => ' ',
        (true, true) => '&',
        (true, false) => '?',
    };
    format!("{url}{sign}schema={schema}")
}

/// The same address without a schema, as drivers expect it.
pub fn in_no_schema(url: &str) -> String {
    if url.contains("://") {
        return plain(url, None);
    }
    let words = url.split_whitespace().filter(|word| !word.starts_with("schema="));
    words.collect::<Vec<_>>().join(" ")
}

/// An address without a schema, as drivers expect it, and of another database if one is named.
fn plain(url: &str, database: Option<&str>) -> String {
    let (base, query) = url.split_once('?').unwrap_or((url, ""));
    let host = base.find("://").map_or(0, |at| at + 3);
    let path = base[host..].find('/').map_or(base.len(), |at| host + at);
    let base = database.map_or_else(|| base.to_owned(), |it| format!("{}/{it}", &base[..path]));
    let kept = query.split('&').filter(|it| !it.is_empty() && !it.starts_with("schema="));
    let query = kept.collect::<Vec<_>>().join("&");
    if query.is_empty() { base } else { format!("{base}?{query}") }
}

/// An empty store in this thread's own database, in a schema of this name. There may be one at a
/// time for each name and thread.
pub fn fresh(schema: &str, clock: &Clock, options: &PostgresOptions) -> Result<Postgres> {
    let address = ServerAddress::parse(&address(&database(), schema))?;
    if is_bloated(schema) {
        drop_schema(schema);
    }
    install(&address, schema)?;
    let mut store = Postgres::with_test_clock(&address, options, clock.clone())?;
    store.load(&Dump::empty(START))?;
    Ok(store)
}

/// The address of an empty store in this thread's own database, in a schema of this name, for tests
/// on the server's own clock.
pub fn unclocked(schema: &str) -> Result<String> {
    let url = address(&database(), schema);
    drop_schema(schema);
    Migrations::connect(&ServerAddress::parse(&url)?)?.up(Roles::Leave)?;
    Ok(url)
}

/// The schema of mutants.
pub(crate) const MUTANT: &str = "mutant";

/// An empty store whose functions are patched, in a schema of its own.
pub fn patched(patches: &[Patch], clock: &Clock) -> Result<Postgres> {
    let address = install_mutant(patches)?;
    Postgres::with_test_clock(&address, &PostgresOptions::default(), clock.clone())
}

/// Installs patched functions into a schema of their own, replacing what was there.
pub(crate) fn install_mutant(patches: &[Patch]) -> Result<ServerAddress> {
    let address = ServerAddress::parse(&address(&database(), MUTANT))?;
    drop_schema(MUTANT);
    Postgres::install_patched(&address, patches)?;
    Ok(address)
}

/// Whether an earlier proof has left many dead rows behind. The dead rows of a million jobs make
/// every read of the tables slow, and an explorer reads them a hundred thousand times.
fn is_bloated(schema: &str) -> bool {
    const MUCH: i64 = 16 << 20;
    const SIZE: &str = "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c \
        JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind = 'r'";
    let row = connect(&database()).query_one(SIZE, &[&schema]).expect("the server answers");
    row.get::<_, i64>(0) > MUCH
}

fn drop_schema(schema: &str) {
    let mut client = connect(&database());
    client
        .batch_execute(&format!("DROP SCHEMA IF EXISTS \"{schema}\" CASCADE"))
        .expect("an old schema can be dropped");
}

/// Brings the schema to this binary's version, whatever an earlier one left there.
fn install(address: &ServerAddress, schema: &str) -> Result<()> {
    let mut migrations = Migrations::connect(address)?;
    let applied = |standing: &MigrationState| matches!(standing, MigrationState::Applied(_));
    if !migrations.status()?.iter().all(|step| applied(&step.standing)) {
        drop_schema(schema);
        migrations.up(Roles::Leave)?;
    }
    Ok(())
}

/// Drops the databases that this process created or reused. Call it on a server that is not the
/// drill's own, so that nothing stays behind there. No thread may use the databases any more.
pub fn clean_up() {
    let lent = std::mem::take(&mut *LENT.lock().unwrap_or_else(PoisonError::into_inner));
    for (mut client, name) in lent.into_values() {
        // A database that cannot be dropped is reused next time.
        let _ = client.batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"));
    }
}

/// For each thread: the client whose session holds the advisory lock on the thread's database, and
/// the database's name. This is not thread-local: a client cannot be dropped while its thread ends.
static LENT: Mutex<BTreeMap<String, (Client, String)>> = Mutex::new(BTreeMap::new());

/// The name of this thread's database.
pub fn database() -> String {
    let thread = format!("{:?}", std::thread::current().id());
    let mut lent = LENT.lock().unwrap_or_else(PoisonError::into_inner);
    lent.entry(thread).or_insert_with(lend).1.clone()
}

/// Takes the first database that no session has locked, and creates it if necessary.
fn lend() -> (Client, String) {
    let mut client = connect("postgres");
    for number in 1.. {
        let free: bool = client
            .query_one("SELECT pg_try_advisory_lock(7463, $1)", &[&number])
            .expect("the server answers")
            .get(0);
        if free {
            let name = format!("tenure_drill_{number}");
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

#[cfg(test)]
mod tests {
    use super::{in_schema, plain};

    #[test]
    fn an_address_in_another_schema_keeps_the_rest_of_it_too() {
        for (url, expected) in [
            ("postgres://db/shop", "postgres://db/shop?schema=x"),
            ("postgres://db/shop?schema=jobs&a=b", "postgres://db/shop?a=b&schema=x"),
            ("host=db schema=jobs user=me", "host=db user=me schema=x"),
        ] {
            assert_eq!(in_schema(url, "x"), expected);
        }
    }

    #[test]
    fn another_database_of_a_server_keeps_the_rest_of_its_address() {
        let url = "postgres://ann:x@db:5433/shop?schema=jobs&connect_timeout=5";
        assert_eq!(plain(url, None), "postgres://ann:x@db:5433/shop?connect_timeout=5");
        assert_eq!(plain(url, Some("other")), "postgres://ann:x@db:5433/other?connect_timeout=5");
        assert_eq!(plain("postgres://db", Some("other")), "postgres://db/other");
    }
}
