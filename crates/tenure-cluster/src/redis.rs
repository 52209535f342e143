//! A throw-away Redis, for the bench's comparison with queues that keep their jobs there.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::account::Account;
use crate::error::{Error, run};
use crate::keeper::Keeper;
use crate::server::Server;
use crate::{apt, directory, fetch};

/// How the log reports a server ready. The first letter is left out, because it depends on the
/// version: `Ready …` or `The server is now ready …`.
const READY: &str = "eady to accept connections";

/// A running Redis that listens on a Unix socket alone. It is stopped and removed as a cluster is.
#[derive(Debug)]
pub struct Redis {
    version: String,
    server: Server,
    keeper: Keeper,
}

impl Redis {
    /// Starts a server with these settings, such as `("appendonly", "yes")`.
    ///
    /// # Errors
    /// If there is none on the machine and none can be fetched, or it does not start.
    pub fn start(settings: &[(&str, &str)]) -> Result<Redis, Error> {
        let program = Program::find()?;
        let account = Account::of_servers()?;
        let directory = directory::create(account)?;
        let stop = "kill -KILL \"$(cat \"$1/pid\")\"";
        let keeper = Keeper::start(account, &directory, stop, &program.path)?;
        let file = directory.join("redis.conf");
        fs::write(&file, configuration(&directory, settings))
            .and_then(|()| account.own(&file))
            .map_err(|error| Error::at("write", &file, &error))?;
        // Redis logs to its standard output, but `Server` reads the log from standard error. So the
        // shell redirects it. The real standard output stays open as descriptor 3: when it closes,
        // the server has ended.
        let mut command = account.command("sh");
        command.args(["-c", "exec \"$@\" 3>&1 1>&2", "sh"]).arg(&program.path).arg(&file);
        command.env("LD_LIBRARY_PATH", &program.libraries);
        let server = Server::start(command, &directory.join("log"), READY)?;
        Ok(Redis { version: program.version, server, keeper })
    }

    /// The path of its socket.
    pub fn socket(&self) -> PathBuf {
        socket(self.keeper.directory())
    }

    /// The version, such as `7.0.15`.
    pub fn version(&self) -> &str {
        &self.version
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Its data goes with the directory, which the keeper removes.
        self.server.kill();
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("redis.sock")
}

fn configuration(directory: &Path, settings: &[(&str, &str)]) -> String {
    let (place, socket) = (directory.display(), socket(directory));
    let mut lines = format!("port 0\nunixsocket {}\nunixsocketperm 777\n", socket.display());
    lines += &format!("dir {place}\npidfile {place}/pid\n");
    for (name, value) in settings {
        lines += &format!("{name} {value}\n");
    }
    lines
}

/// The program, its version, and the path of its libraries if they are not installed.
struct Program {
    path: PathBuf,
    version: String,
    libraries: OsString,
}

impl Program {
    fn find() -> Result<Program, Error> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        for directory in std::env::split_paths(&path) {
            let libraries = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
            if let Ok(found) = Program::at(directory.join("redis-server"), libraries) {
                return Ok(found);
            }
        }
        // Debian's `redis-server` has a link to a program of `redis-tools`.
        let unpack = |place: &Path| {
            apt::unpack("redis-server", place).and_then(|()| apt::unpack("redis-tools", place))
        };
        let unpacked = fetch::unpacked("redis", unpack)
            .map_err(|error| Error::new(format!("no redis-server here: install it. {error}")))?;
        let libraries = std::env::join_paths(apt::libraries(&unpacked)).unwrap_or_default();
        Program::at(unpacked.join("usr/bin/redis-server"), libraries)
    }

    fn at(path: PathBuf, libraries: OsString) -> Result<Program, Error> {
        let mut command = Command::new(&path);
        let said = run(command.env("LD_LIBRARY_PATH", &libraries).arg("--version"))?;
        let version = version(&said)
            .ok_or_else(|| Error::new(format!("cannot tell the version in `{said}`")))?;
        Ok(Program { path, version: version.to_owned(), libraries })
    }
}

/// The version in `Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64`.
fn version(said: &str) -> Option<&str> {
    said.split_once("v=")?.1.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_as_the_program_says_it() {
        assert_eq!(version("Redis server v=7.0.15 sha=00000000:0 bits=64"), Some("7.0.15"));
        assert_eq!(version("redis-cli 7.0.15"), None);
    }

    #[test]
    fn settings_come_last() {
        let text = configuration(Path::new("/tmp/x"), &[("appendonly", "yes")]);
        assert!(text.starts_with("port 0\nunixsocket /tmp/x/redis.sock\n"), "{text}");
        assert!(text.ends_with("\nappendonly yes\n"), "{text}");
    }
}
