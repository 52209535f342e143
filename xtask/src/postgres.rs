//! The PostgreSQL that tests and documents run on: the one that `TENURE_TEST_POSTGRES` names, or a
//! throw-away one that is started here and ends with this process, however it ends.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU32, Ordering};

use tenure_cluster::{Address, Binaries, Cluster, Error, Settings};

use crate::run::say;

/// The variable by which tests find the server.
const VARIABLE: &str = "TENURE_TEST_POSTGRES";

/// Which server a step needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The user's own server, or else what the machine has.
    Any,
    /// One of this major version, whatever the machine has.
    Major(u32),
}

/// The command that repeats a step on such a server.
impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::Any => f.write_str("cargo xtask postgres"),
            Wanted::Major(major) => write!(f, "cargo xtask postgres --major {major}"),
        }
    }
}

/// A server for as long as this value lives.
pub(crate) struct Server {
    wanted: Wanted,
    address: Address,
    /// The directory of `psql`. Tests do not need it.
    programs: Option<PathBuf>,
    /// Its name for people.
    name: String,
    /// None if the server is the user's own. Held only to keep the server running.
    _cluster: Option<Cluster>,
}

impl Server {
    /// Keeps the current server if it is the wanted one, otherwise replaces it.
    pub(crate) fn keep_or_start(
        place: &mut Option<Server>,
        wanted: Wanted,
    ) -> Result<&Server, Error> {
        let server = match place.take() {
            Some(server) if server.wanted == wanted => server,
            other => {
                drop(other);
                let server = Server::start(wanted)?;
                say(format_args!("      {}", server.name));
                server
            }
        };
        Ok(place.insert(server))
    }

    fn start(wanted: Wanted) -> Result<Server, Error> {
        let given = std::env::var(VARIABLE).ok().filter(|given| !given.is_empty());
        match (wanted, given) {
            (Wanted::Any, Some(given)) => {
                let name = format!("PostgreSQL as {VARIABLE} says");
                let address = Address::parse(&given)?;
                Ok(Server { wanted, address, programs: programs(), name, _cluster: None })
            }
            (Wanted::Any, None) => Server::throw_away(wanted, &Binaries::find_or_install()?),
            (Wanted::Major(major), _) => Server::throw_away(wanted, &Binaries::of_major(major)?),
        }
    }

    fn throw_away(wanted: Wanted, binaries: &Binaries) -> Result<Server, Error> {
        let cluster = Cluster::start(binaries, &Settings::new())?;
        let (version, directory) = (binaries.version(), binaries.directory().display());
        let name = format!("PostgreSQL {version} of {directory}");
        let address = cluster.address();
        Ok(Server { wanted, address, programs: programs(), name, _cluster: Some(cluster) })
    }

    /// The variable that gives tests the address of this server.
    pub(crate) fn variable(&self) -> (&'static str, String) {
        (VARIABLE, self.address.to_string())
    }

    /// A new database, dropped with the value.
    pub(crate) fn fresh_database(&self) -> Result<Database, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tenure_page_{}_{n}", std::process::id());
        self.address.psql(&format!("CREATE DATABASE {name}"))?;
        let address = self.address.with_database(&name);
        let (server, programs) = (self.address.clone(), self.programs.clone());
        Ok(Database { server, address, name, programs })
    }
}

/// A database of its own for one page.
pub(crate) struct Database {
    server: Address,
    address: Address,
    name: String,
    programs: Option<PathBuf>,
}

impl Database {
    /// The variables by which tests and `psql` find it.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        variables(&self.address)
    }

    /// The directory of `psql`.
    pub(crate) fn programs(&self) -> Option<PathBuf> {
        self.programs.clone()
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // A page may have left a worker connected.
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        if let Err(error) = self.server.psql(&drop) {
            say(format_args!("cannot drop the database {} of a page: {error}", self.name));
        }
    }
}

/// `cargo xtask postgres [--major N] [COMMAND…]`
pub(crate) fn with_server(words: &[&str]) -> ExitCode {
    let (wanted, words) = match words {
        ["--major", major, rest @ ..] => match major.parse() {
            Ok(major) => (Wanted::Major(major), rest),
            Err(_) => {
                say(format_args!("a major version is a number such as 18, not `{major}`"));
                return ExitCode::from(2);
            }
        },
        words => (Wanted::Any, words),
    };
    let server = match Server::start(wanted) {
        Ok(server) => server,
        Err(error) => {
            say(error);
            return ExitCode::FAILURE;
        }
    };
    // On stderr, because another program may read the command's stdout.
    eprintln!("{}", server.name);
    match words {
        [] => {
            say(format_args!("{VARIABLE}='{}'", server.address));
            eprintln!("It lives until you press Enter.");
            // The end of the input counts as a line.
            let _ = io::stdin().read_line(&mut String::new());
            ExitCode::SUCCESS
        }
        [program, arguments @ ..] => run(&server, program, arguments),
    }
}

fn run(server: &Server, program: &str, arguments: &[&str]) -> ExitCode {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::split_paths(&path).chain(server.programs.clone());
    let mut command = Command::new(program);
    command.args(arguments);
    // The user's settings for another server must not apply to this one.
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_about_servers(name)) {
        command.env_remove(name);
    }
    command.envs(variables(&server.address));
    if let Ok(path) = std::env::join_paths(path) {
        command.env("PATH", path);
    }
    match command.status() {
        // A process that was killed by a signal has no exit code.
        Ok(status) => ExitCode::from(status.code().map_or(1, |code| code.to_le_bytes()[0])),
        Err(error) => {
            say(format_args!("cannot run {program}: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn variables(address: &Address) -> Vec<(String, String)> {
    let mut variables = address.variables();
    variables.push((VARIABLE.to_owned(), address.to_string()));
    variables
}

/// Whether clients of PostgreSQL, or tests, read this variable.
pub(crate) fn is_about_servers(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("PG") || name == VARIABLE
}

fn programs() -> Option<PathBuf> {
    tenure_cluster::psql().ok()?.parent().map(Path::to_owned)
}
