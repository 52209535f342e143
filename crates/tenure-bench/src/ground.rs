//! Where the stores of a run are: in a temporary directory, or in a database that is made for the
//! run. Everything is removed at the end, however the run ends. A user's own store is never opened.

use std::error::Error as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use postgres::{Client, NoTls};
use tempfile::TempDir;
use tenure::engine::clock::unique;
use tenure::engine::store::postgres::{
    Migrations, Postgres, PostgresOptions, Roles, ServerAddress,
};
use tenure::engine::store::sqlite::Sqlite;
use tenure::{Address, Error};
use tenure_cluster::{Binaries, Cluster, Settings};

use crate::address::{in_schema, plain};
use crate::measures::Engine;

/// Where to measure.
#[derive(Debug, Clone)]
pub enum On {
    /// SQLite, in the temporary directory.
    Temporary,
    /// SQLite, beside this file, which must not exist.
    File(PathBuf),
    /// PostgreSQL, in a new database of this server.
    Server(String),
    /// PostgreSQL, on a server that is started for the run.
    ThrowAway,
    /// The same, and if there is no PostgreSQL on this machine, it is installed or fetched.
    Installed,
}

impl On {
    /// The engine that is measured there.
    pub fn engine(&self) -> Engine {
        match self {
            On::Temporary | On::File(_) => Engine::Sqlite,
            On::Server(_) | On::ThrowAway | On::Installed => Engine::Postgres,
        }
    }
}

/// The place of all stores of a run. Dropping it removes them.
pub struct Ground {
    kind: Kind,
    stores: AtomicU64,
}

enum Kind {
    Directory(TempDir),
    // Dropped in this order.
    Database { lent: Mutex<Vec<Database>>, database: Database, cluster: Option<Box<Cluster>> },
}

impl Kind {
    fn on(binaries: &Binaries) -> Result<Kind> {
        let cluster = Cluster::start(binaries, &Settings::new()).map_err(anyhow::Error::new)?;
        let database = Database::make(&cluster.url())?;
        Ok(Kind::of(database, Some(Box::new(cluster))))
    }

    fn of(database: Database, cluster: Option<Box<Cluster>>) -> Kind {
        Kind::Database { lent: Mutex::default(), database, cluster }
    }
}

/// The place of one store.
#[derive(Debug, Clone)]
pub(crate) struct Site {
    /// The address for the library.
    pub(crate) url: String,
    /// The address for the driver: a directory, or a database.
    pub(crate) driver: String,
    /// The directory or the schema, to be removed.
    name: String,
}

impl Site {
    /// The name of the schema, on a server.
    pub(crate) fn schema(&self) -> &str {
        &self.name
    }
}

/// A store of a run has this file name, or a schema with this prefix. By these, [`is_of_a_bench`]
/// tells it from a user's store.
const FILE: &str = "bench.db";
const SCHEMA: &str = "bench_";

/// Whether a bench made the store at this address. The bench's worker processes refuse every other
/// store.
pub fn is_of_a_bench(url: &str) -> bool {
    let Ok(address) = url.parse::<Address>() else { return false };
    match address.server() {
        Some(server) => server.schema().starts_with(SCHEMA),
        None => address.file().and_then(Path::file_name).is_some_and(|name| name == FILE),
    }
}

impl Ground {
    /// Makes the directory or the database.
    ///
    /// # Errors
    /// If it cannot be made; the error says what to do.
    pub fn prepare(on: &On) -> Result<Ground> {
        let kind = match on {
            On::Temporary => Kind::Directory(
                tempfile::Builder::new()
                    .prefix("tenure-bench-")
                    .tempdir()
                    .context("no directory for the stores; set TMPDIR to one that can be used")?,
            ),
            On::File(file) => Kind::Directory(beside(file)?),
            On::Server(url) => Kind::of(Database::make(url)?, None),
            On::ThrowAway => {
                let binaries = Binaries::find().map_err(anyhow::Error::new).context(
                    "--postgres needs the programs of a PostgreSQL server on this machine: install \
                     one, or name a server with --db postgres://…",
                )?;
                Kind::on(&binaries)?
            }
            On::Installed => {
                let binaries = Binaries::find_or_install().map_err(anyhow::Error::new)?;
                Kind::on(&binaries)?
            }
        };
        Ok(Ground { kind, stores: AtomicU64::new(1) })
    }

    /// The engine of its stores.
    pub fn engine(&self) -> Engine {
        match self.kind {
            Kind::Directory(_) => Engine::Sqlite,
            Kind::Database { .. } => Engine::Postgres,
        }
    }

    /// Makes a new store.
    pub(crate) fn store(&self) -> Result<Site> {
        let site = self.site();
        match &self.kind {
            Kind::Directory(_) => {
                Sqlite::open(
                    Path::new(&site.url),
                    &tenure::engine::store::StoreOptions::default(),
                )?;
            }
            Kind::Database { .. } => {
                Migrations::connect(&ServerAddress::parse(&site.url)?)?.up(Roles::Leave)?;
            }
        }
        Ok(site)
    }

    /// A place that is still empty, for the driver alone.
    pub(crate) fn site(&self) -> Site {
        let n = self.stores.fetch_add(1, Ordering::Relaxed);
        match &self.kind {
            Kind::Directory(directory) => {
                let own = directory.path().join(n.to_string());
                // If this fails, opening the store reports why.
                let _ = fs::create_dir(&own);
                let (url, name) = (own.join(FILE), own.display().to_string());
                Site { url: url.display().to_string(), driver: name.clone(), name }
            }
            Kind::Database { database, .. } => {
                let name = format!("{SCHEMA}{n}");
                let driver = plain(&database.url, None);
                Site { url: in_schema(&database.url, &name), driver, name }
            }
        }
    }

    /// Removes a store early, so that a long run does not fill the disk.
    pub(crate) fn remove(&self, site: &Site) -> Result<()> {
        match &self.kind {
            Kind::Directory(_) => {
                fs::remove_dir_all(&site.name).with_context(|| format!("remove {}", site.name))
            }
            Kind::Database { .. } => {
                let mut client = Client::connect(&site.driver, NoTls)?;
                Ok(client.batch_execute(&format!("DROP SCHEMA IF EXISTS {} CASCADE", site.name))?)
            }
        }
    }

    /// Makes an empty database for another program, and returns its address. It is removed with
    /// everything else, unless `take_back` has removed it before.
    pub(crate) fn lend(&self) -> Result<String> {
        let Kind::Database { lent, database, .. } = &self.kind else {
            bail!("there are databases on PostgreSQL only");
        };
        let made = Database::make(&database.server)?;
        let url = made.url.clone();
        lent.lock().unwrap_or_else(PoisonError::into_inner).push(made);
        Ok(url)
    }

    /// Removes a database that was lent.
    pub(crate) fn take_back(&self, url: &str) {
        if let Kind::Database { lent, .. } = &self.kind {
            lent.lock().unwrap_or_else(PoisonError::into_inner).retain(|it| it.url != url);
        }
    }

    /// Removes everything at once, even if a thread that was left behind still uses this value.
    /// Without this call, everything is removed when the last user drops the value.
    pub fn clear(&self) {
        match &self.kind {
            // A directory that is gone already is what is wanted.
            Kind::Directory(directory) => drop(fs::remove_dir_all(directory.path())),
            Kind::Database { lent, database, .. } => {
                lent.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .iter()
                    .for_each(Database::remove);
                database.remove();
            }
        }
    }

    /// The engine's version, and when a commit counts as done.
    pub(crate) fn terms(&self, site: &Site) -> Result<(String, String)> {
        match &self.kind {
            Kind::Directory(_) => {
                let file = Path::new(&site.url);
                let facts = Sqlite::open(file, &tenure::engine::store::StoreOptions::default())?;
                let facts = facts.facts()?;
                let synced = if facts.is_synced { "FULL" } else { "not FULL" };
                let durability =
                    format!("{}, synchronous={synced}", facts.journal_mode.to_uppercase());
                Ok((format!("SQLite {}", facts.version), durability))
            }
            Kind::Database { cluster, .. } => {
                let address = ServerAddress::parse(&site.url)?;
                let mut store = Postgres::open(&address, &PostgresOptions::default())?;
                // Packagers append a name of their own to the version.
                let version = store.facts().version.split_whitespace().next();
                let version = version.unwrap_or_default().to_owned();
                let terms = store.terms()?;
                let fsync = if terms.is_synced { "on" } else { "off" };
                let commits = terms.durability.name();
                let whose =
                    if cluster.is_some() { ", a throw-away server as installed" } else { "" };
                let durability = format!("synchronous_commit={commits}, fsync={fsync}{whose}");
                Ok((format!("PostgreSQL {version}"), durability))
            }
        }
    }
}

/// A directory beside a file that does not exist, so that the file's disk is measured.
fn beside(file: &Path) -> Result<TempDir> {
    let unusable = |problem: String, next: &str| Error::Unusable {
        target: file.display().to_string(),
        problem,
        next: next.to_owned(),
    };
    if file.exists() {
        let next = "a bench makes stores of its own: name a file that does not exist yet, on the \
                    disk to measure, or leave out --db (and unset TENURE_DB)";
        return Err(unusable("it exists".to_owned(), next).into());
    }
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let made = tempfile::Builder::new().prefix("tenure-bench-").tempdir_in(parent);
    let next = "name a file in a directory that can be written to";
    Ok(made.map_err(|cause| unusable(cause.to_string(), next))?)
}

/// A database that was made for the run. Dropping it removes it.
struct Database {
    /// Where it was made from.
    server: String,
    url: String,
    name: String,
    is_gone: AtomicBool,
}

impl Database {
    fn make(url: &str) -> Result<Database> {
        let address = ServerAddress::parse(url)?;
        let unusable = |problem: String, next: &str| Error::Unusable {
            target: address.to_string(),
            problem,
            next: next.to_owned(),
        };
        if !url.contains("://") {
            let next = "write the address as postgres://user@host/database";
            return Err(unusable("a bench needs a URL".to_owned(), next).into());
        }
        let broken = |broken: postgres::Error| {
            // The driver's error says what it was doing; its source says why.
            let why = broken.source().map_or_else(|| broken.to_string(), ToString::to_string);
            unusable(why, "a bench needs a server that runs, and that answers without TLS")
        };
        let server = plain(url, None);
        let mut client = Client::connect(&server, NoTls).map_err(broken)?;
        let may = "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user";
        if !client.query_one(may, &[]).map_err(broken)?.get::<_, bool>(0) {
            let next = "a bench makes a database of its own and removes it: ALTER ROLE … CREATEDB, \
                        or use --postgres for a throw-away server";
            return Err(unusable("this user may not make databases".to_owned(), next).into());
        }
        let name = format!("tenure_bench_{}", unique().simple());
        client.batch_execute(&format!("CREATE DATABASE {name}")).map_err(broken)?;
        let (url, is_gone) = (plain(url, Some(&name)), AtomicBool::new(false));
        Ok(Database { server, url, name, is_gone })
    }
}

impl Database {
    fn remove(&self) {
        let Database { server, name, is_gone, .. } = self;
        if is_gone.swap(true, Ordering::SeqCst) {
            return;
        }
        let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        let gone = Client::connect(server, NoTls).and_then(|mut it| it.batch_execute(&drop));
        if let Err(error) = gone {
            // There is no caller to return this to, and the user must know.
            eprintln!("the database {name} could not be removed: {error}; run: {drop}");
        }
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_made_and_everything_is_removed() {
        let ground = Ground::prepare(&On::Temporary).unwrap();
        let site = ground.store().unwrap();
        assert!(Path::new(&site.url).exists() && is_of_a_bench(&site.url));
        let (version, durability) = ground.terms(&site).unwrap();
        assert!(version.starts_with("SQLite 3."), "{version}");
        assert_eq!(durability, "WAL, synchronous=FULL");
        let directory = Path::new(&site.name).parent().unwrap().to_owned();
        ground.remove(&site).unwrap();
        assert!(!Path::new(&site.url).exists() && directory.exists());
        drop(ground);
        assert!(!directory.exists());
    }

    #[test]
    fn a_file_that_exists_is_refused_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tenure.db");
        fs::write(&file, "mine").unwrap();
        let error = Ground::prepare(&On::File(file.clone())).err().unwrap().to_string();
        assert!(error.contains("it exists; a bench makes stores of its own"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "mine");
        let new = directory.path().join("new.db");
        let ground = Ground::prepare(&On::File(new)).unwrap();
        assert!(ground.site().url.starts_with(&directory.path().display().to_string()));
        drop(ground);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_users_store_is_not_of_a_bench() {
        for url in ["tenure.db", "postgres://db/shop", "postgres://db/shop?schema=tenure"] {
            assert!(!is_of_a_bench(url), "{url}");
        }
        assert!(is_of_a_bench("postgres://db/tenure_bench_1?schema=bench_7"));
    }
}
