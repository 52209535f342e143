//! Packages of Debian and its derivatives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, run};

/// Debian starts a server of its own after installing one, unless this file says not to.
const NO_SERVER: (&str, &str) =
    ("/etc/postgresql-common/createcluster.conf", "create_main_cluster = false\n");

/// Installs PostgreSQL, as root.
pub(crate) fn install_postgresql() -> Result<(), Error> {
    let (file, text) = NO_SERVER;
    let file = Path::new(file);
    if !file.exists() {
        // Only a convenience: another server does not disturb the tests.
        let _ = file.parent().map(fs::create_dir_all);
        let _ = fs::write(file, text);
    }
    let install = || {
        let mut apt = apt(&[]);
        // Another process may be installing too, and the file above must not be replaced.
        apt.args(["-o", "DPkg::Lock::Timeout=600", "-o", "Dpkg::Options::=--force-confold"]);
        run(apt.args(["install", "--yes", "--no-install-recommends", "postgresql"])).map(drop)
    };
    // A new machine has no list of packages yet, and an old list names versions that are gone.
    install().or_else(|_| {
        run(apt(&[]).arg("update"))?;
        install()
    })
}

/// Unpacks a package, and its dependencies that the machine lacks, below a directory: nothing is
/// installed, no service is started, and it needs no root.
pub(crate) fn unpack(package: &str, directory: &Path) -> Result<(), Error> {
    let with = |options: &[String]| {
        let simulate = ["install", "--simulate", "--no-install-recommends", package];
        let plan = run(apt(options).args(simulate))?;
        // `Inst libc-ares2 (1.18.1-3 Debian:12/stable [amd64])`. The package itself is unpacked
        // even if it is installed.
        let mut packages: Vec<&str> = plan
            .lines()
            .filter_map(|line| line.strip_prefix("Inst ")?.split_whitespace().next())
            .collect();
        if !packages.contains(&package) {
            packages.push(package);
        }
        run(apt(options).arg("download").args(packages).current_dir(directory)).map(drop)
    };
    with(&[]).or_else(|_| {
        // The machine's list of packages is missing or old, and only root may renew it: use a
        // private one.
        let own = private(directory)?;
        run(apt(&own).arg("update"))?;
        with(&own)
    })?;
    for archive in archives(directory) {
        run(Command::new("dpkg").arg("--extract").args([&archive, directory]))?;
        let _ = fs::remove_file(archive);
    }
    let _ = fs::remove_dir_all(directory.join("apt"));
    Ok(())
}

/// Where the libraries of unpacked packages are.
pub(crate) fn libraries(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for lib in [directory.join("usr/lib"), directory.join("lib")] {
        let entries = fs::read_dir(lib).into_iter().flatten().flatten().map(|entry| entry.path());
        found.extend(entries.filter(|path| path.to_string_lossy().ends_with("-linux-gnu")));
    }
    found
}

fn apt(options: &[String]) -> Command {
    let mut apt = Command::new("apt-get");
    apt.arg("--quiet").args(options).env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C");
    apt
}

fn private(directory: &Path) -> Result<Vec<String>, Error> {
    let apt = directory.join("apt");
    for part in ["lists/partial", "cache/archives/partial"] {
        let part = apt.join(part);
        fs::create_dir_all(&part)
            .map_err(|error| Error::at("make the directory", &part, &error))?;
    }
    Ok(vec![
        format!("-oDir::State::Lists={}", apt.join("lists").display()),
        format!("-oDir::Cache={}", apt.join("cache").display()),
        // As root, apt would download as another user, who may not write here.
        "-oAPT::Sandbox::User=".to_owned(),
    ])
}

fn archives(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let archives = entries.map(|entry| entry.path());
    archives.filter(|path| path.extension().is_some_and(|extension| extension == "deb")).collect()
}
