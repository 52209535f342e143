//! A connection pooler between the tests and a server, which gives a connection to another client
//! after each transaction.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::account::Account;
use crate::address::Address;
use crate::cluster::Cluster;
use crate::error::{Error, run};
use crate::keeper::Keeper;
use crate::server::{self, Server};
use crate::{apt, directory, fetch};

const PORT: u16 = 6432;

const READY: &str = "process up:";

/// The first version that supports prepared statements, and has `max_prepared_statements`.
const PREPARES: (u32, u32) = (1, 21);

/// A running PgBouncer in transaction mode, in front of a [`Cluster`]. It is stopped and removed as
/// a cluster is.
#[derive(Debug)]
pub struct PgBouncer {
    server: Server,
    keeper: Keeper,
}

impl PgBouncer {
    /// Starts a pooler that supports no prepared statements.
    ///
    /// # Errors
    /// If there is none on the machine and none can be fetched, or it does not start.
    pub fn start(cluster: &Cluster) -> Result<PgBouncer, Error> {
        PgBouncer::start_with(cluster, &[])
    }

    /// Starts a pooler with further settings, which come last: `("max_prepared_statements",
    /// "100")`.
    ///
    /// # Errors
    /// If there is none on the machine and none can be fetched, or it does not start.
    pub fn start_with(cluster: &Cluster, settings: &[(&str, &str)]) -> Result<PgBouncer, Error> {
        let program = Program::find()?;
        let account = Account::of_servers()?;
        let directory = directory::create(account)?;
        let stop = "kill -KILL \"$(cat \"$1/pid\")\"";
        let keeper = Keeper::start(account, &directory, stop, &program.path)?;
        let ini = directory.join("pgbouncer.ini");
        fs::write(&ini, configuration(cluster, &directory, program.version, settings))
            .and_then(|()| account.own(&ini))
            .map_err(|error| Error::at("write", &ini, &error))?;
        let mut command = account.command(&program.path);
        command.env("LD_LIBRARY_PATH", &program.libraries).arg(&ini);
        let server = Server::start(command, &directory.join("log"), READY)?;
        Ok(PgBouncer { server, keeper })
    }

    /// The address of the database `tenure` through the pooler.
    pub fn url(&self) -> String {
        self.address().to_string()
    }

    /// The address as a value.
    pub fn address(&self) -> Address {
        Address::new(self.keeper.directory().display(), PORT)
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.server.catch_up();
        server::text(&self.keeper.directory().join("log"))
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        // It has only connections to lose, and the keeper removes the directory.
        self.server.kill();
    }
}

/// Clients are not authenticated, and the pooler connects to the server as `tenure` for all of
/// them.
fn configuration(
    cluster: &Cluster,
    directory: &Path,
    version: (u32, u32),
    settings: &[(&str, &str)],
) -> String {
    let mut lines = format!(
        "[databases]\n* = host={} port={} user=tenure\n\n[pgbouncer]\n",
        cluster.socket_dir().display(),
        cluster.port()
    );
    let place = directory.display();
    lines += &format!("unix_socket_dir = {place}\nlisten_port = {PORT}\npidfile = {place}/pid\n");
    lines += "auth_type = any\npool_mode = transaction\nmax_client_conn = 1000\n";
    // Some drivers always send this at the start. Other startup parameters are refused.
    lines += "ignore_startup_parameters = extra_float_digits\n";
    if version >= PREPARES {
        lines += "max_prepared_statements = 0\n";
    }
    for (name, value) in settings {
        lines += &format!("{name} = {value}\n");
    }
    lines
}

/// The program, its version, and the path of its libraries if they are not installed.
struct Program {
    path: PathBuf,
    version: (u32, u32),
    libraries: OsString,
}

impl Program {
    fn find() -> Result<Program, Error> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let directories = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
        for directory in directories {
            let libraries = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
            if let Ok(found) = Program::at(directory.join("pgbouncer"), libraries) {
                return Ok(found);
            }
        }
        let unpacked = fetch::unpacked("pgbouncer", |place| apt::unpack("pgbouncer", place))
            .map_err(|error| Error::new(format!("no pgbouncer here: install it. {error}")))?;
        let libraries = std::env::join_paths(apt::libraries(&unpacked)).unwrap_or_default();
        Program::at(unpacked.join("usr/sbin/pgbouncer"), libraries)
    }

    fn at(path: PathBuf, libraries: OsString) -> Result<Program, Error> {
        let mut command = Command::new(&path);
        let said = run(command.env("LD_LIBRARY_PATH", &libraries).arg("--version"))?;
        let version = version(&said)
            .ok_or_else(|| Error::new(format!("cannot tell the version in `{said}`")))?;
        Ok(Program { path, version, libraries })
    }
}

/// The version in `PgBouncer 1.18.0`, without its last part.
fn version(said: &str) -> Option<(u32, u32)> {
    let mut numbers = said.split_once("PgBouncer ")?.1.split(['.', '\n']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(version("PgBouncer 1.18.0\nlibevent 2.1.12"), Some((1, 18)));
        assert!(version("PgBouncer 1.9.0").unwrap() < PREPARES);
    }
}
