//! Where the programs of PostgreSQL are: on this machine, or fetched.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;

use crate::account::{Account, is_root, without_settings};
use crate::address::Address;
use crate::error::{Error, answer, run};
use crate::{apt, fetch};

/// The version that is fetched if the machine has none, and may install none.
const FETCHED: u32 = 18;

/// A directory with `initdb`, `pg_ctl` and `postgres`, all of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    directory: PathBuf,
    version: String,
    major: u32,
}

impl Binaries {
    /// The newest PostgreSQL on this machine: on the `PATH`, where `pg_config` says, or where
    /// Debian puts it.
    ///
    /// # Errors
    /// If there is none whose server the servers' user can run.
    pub fn find() -> Result<Binaries, Error> {
        installed()?.into_iter().next().ok_or_else(|| {
            Error::new("no PostgreSQL server found: put initdb, pg_ctl and postgres on the PATH")
        })
    }

    /// The newest PostgreSQL on this machine. If there is none, root installs Debian's, and other
    /// users fetch binaries into a cache.
    ///
    /// # Errors
    /// If there is none, and none can be installed or fetched.
    pub fn find_or_install() -> Result<Binaries, Error> {
        if let Ok(found) = Binaries::find() {
            return Ok(found);
        }
        let installed = if is_root() {
            apt::install_postgresql().and_then(|()| Binaries::find())
        } else {
            Err(Error::new("apt-get installs for root only"))
        };
        installed.or_else(|not_installed| {
            fetch::postgresql(FETCHED).map_err(|not_fetched| {
                Error::new(format!("no PostgreSQL here.\n{not_installed}\n{not_fetched}"))
            })
        })
    }

    /// PostgreSQL of one major version: on this machine, or fetched into a cache.
    ///
    /// # Errors
    /// If it is not here, and cannot be fetched.
    pub fn of_major(major: u32) -> Result<Binaries, Error> {
        match installed()?.into_iter().find(|found| found.major == major) {
            Some(found) => Ok(found),
            None => fetch::postgresql(major),
        }
    }

    /// The PostgreSQL in this directory.
    ///
    /// # Errors
    /// If a program is missing, or the servers' user cannot run it.
    pub fn in_directory(directory: &Path) -> Result<Binaries, Error> {
        let account = Account::of_servers()?;
        // Only running them shows that their libraries exist, and that the user may run them.
        for program in ["initdb", "pg_ctl"] {
            run(account.command(directory.join(program)).arg("--version"))?;
        }
        let said = run(account.command(directory.join("postgres")).arg("--version"))?;
        let (version, major) = version(&said)
            .ok_or_else(|| Error::new(format!("cannot tell the version in `{said}`")))?;
        Ok(Binaries { directory: directory.to_owned(), version: version.to_owned(), major })
    }

    /// Where the programs are.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The version, such as `15.18`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The major version, such as 15.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// A client program: from this directory, or another one that is not older. The fetched
    /// packages lack some.
    pub fn client(&self, name: &str) -> Result<PathBuf, Error> {
        let here = self.directory.join(name);
        if here.is_file() { Ok(here) } else { client(name, self.major) }
    }
}

/// The path of `psql`, on this machine or fetched.
///
/// # Errors
/// If there is none, and none can be fetched.
pub fn psql() -> Result<PathBuf, Error> {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Ok(found.clone());
    }
    let found = client("psql", 0)?;
    Ok(FOUND.get_or_init(|| found).clone())
}

/// Runs SQL by `psql` and returns its unaligned output: a line for each row, with `|` between the
/// columns.
pub(crate) fn query(psql: &Path, address: &Address, sql: &str) -> Result<String, Error> {
    let mut command = without_settings(psql);
    // There is no person to ask for a password.
    command.args(["-X", "-w", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-f", "-"]);
    command.envs(address.variables());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.spawn().and_then(|mut child| {
        let input = child.stdin.take();
        thread::scope(|scope| {
            // Written on a thread, because both sides may wait for the other to read.
            scope.spawn(move || input.map(|mut input| input.write_all(sql.as_bytes())));
            child.wait_with_output()
        })
    });
    answer(&command, output)
}

/// Servers on this machine, the newest first.
fn installed() -> Result<Vec<Binaries>, Error> {
    // If no server can be run at all, the error must say that, and not that none was found.
    Account::of_servers()?;
    let mut directories = Vec::new();
    for directory in std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()) {
        // The PATH may have only a link; then the other programs are where it leads.
        if let Ok(initdb) = fs::canonicalize(directory.join("initdb")) {
            directories.extend(initdb.parent().map(Path::to_owned));
        }
    }
    directories.extend(run(Command::new("pg_config").arg("--bindir")).ok().map(PathBuf::from));
    directories.extend(debian());
    directories.sort();
    directories.dedup();
    let found = directories.iter().filter_map(|path| Binaries::in_directory(path).ok());
    let mut found: Vec<Binaries> = found.collect();
    found.sort_by_key(|binaries| std::cmp::Reverse(binaries.major));
    Ok(found)
}

/// Where Debian puts the programs of each major version.
fn debian() -> Vec<PathBuf> {
    let majors = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    majors.map(|major| major.path().join("bin")).collect()
}

/// A client program on this machine, the newest if Debian has several; otherwise a fetched one.
fn client(name: &str, at_least: u32) -> Result<PathBuf, Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories = debian().into_iter().chain(std::env::split_paths(&path));
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for program in directories.map(|directory| directory.join(name)) {
        let said = run(Command::new(&program).arg("--version")).unwrap_or_default();
        if let Some((_, major)) = version(&said)
            && major >= at_least
        {
            found.push((major, program));
        }
    }
    // The sort is stable and `debian()` comes before the PATH. So of one version, Debian's own
    // program is used, not its wrapper on the PATH.
    found.sort_by_key(|(major, _)| std::cmp::Reverse(*major));
    if let Some((_, program)) = found.into_iter().next() {
        return Ok(program);
    }
    let program = fetch::postgresql(FETCHED.max(at_least))?.directory.join(name);
    if program.is_file() {
        return Ok(program);
    }
    Err(Error::new(format!("no {name} here, nor among the fetched binaries: install it")))
}

/// Version and major version in `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`.
fn version(said: &str) -> Option<(&str, u32)> {
    let version = said.split_once("(PostgreSQL) ")?.1.split_whitespace().next()?;
    let digits = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
    Some((version, version[..digits].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_programs_say_them() {
        let debian = "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)";
        assert_eq!(version(debian), Some(("15.18", 15)));
        assert_eq!(version("psql (PostgreSQL) 19beta1"), Some(("19beta1", 19)));
        assert_eq!(version("PgBouncer 1.18.0"), None);
    }
}
