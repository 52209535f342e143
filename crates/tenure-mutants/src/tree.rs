//! The copy of the workspace in which the library is changed. Unchanged files are not written
//! again, so that cargo only compiles what has changed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::mutants::SOURCES;

/// The source of the switches, for the copy.
const SWITCH: &str = include_str!("switch.rs");

/// The files of a workspace, as paths below its root: those that git tracks, and new ones.
pub(crate) fn files(root: &Path) -> Result<BTreeSet<String>> {
    let mut git = Command::new("git");
    git.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = git.output().context("cannot run git")?;
    ensure!(listed.status.success(), "git cannot list the files in {}", root.display());
    let listed = String::from_utf8(listed.stdout).context("a file's name is not UTF-8")?;
    let files = listed.split('\0').filter(|file| !file.is_empty() && root.join(file).is_file());
    Ok(files.map(str::to_owned).collect())
}

/// The copy.
pub(crate) struct Tree {
    /// Its root.
    pub(crate) root: PathBuf,
}

impl Tree {
    /// Makes the copy equal to the workspace, except for the named files, which are written later.
    pub(crate) fn copy(
        from: &Path,
        to: &Path,
        files: &BTreeSet<String>,
        later: &BTreeSet<String>,
    ) -> Result<Tree> {
        let tree = Tree { root: to.to_owned() };
        let switch = format!("{SOURCES}/mutated.rs");
        tree.remove_others(to, &|path| path == switch || files.contains(path))?;
        for file in files.iter().filter(|file| !later.contains(*file)) {
            let mut bytes =
                fs::read(from.join(file)).with_context(|| format!("cannot read {file}"))?;
            if *file == format!("{SOURCES}/lib.rs") {
                bytes.extend(b"\nmod mutated;\npub(crate) use self::mutated::mutated;\n");
            }
            tree.write(file, &bytes)?;
        }
        tree.write(&switch, SWITCH.as_bytes())?;
        Ok(tree)
    }

    /// Writes a file, unless it has this content already.
    pub(crate) fn write(&self, file: &str, bytes: &[u8]) -> Result<()> {
        let path = self.root.join(file);
        if fs::read(&path).is_ok_and(|there| there == bytes) {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes files of an earlier copy that the workspace no longer has.
    fn remove_others(&self, directory: &Path, is_kept: &dyn Fn(&str) -> bool) -> Result<()> {
        let Ok(entries) = fs::read_dir(directory) else { return Ok(()) };
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                self.remove_others(&path, is_kept)?;
            } else if let Ok(file) = path.strip_prefix(&self.root)
                && !is_kept(&file.to_string_lossy())
            {
                fs::remove_file(&path)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_follows_what_it_is_a_copy_of() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let set = |files: &[&str]| files.iter().map(|&it| it.to_owned()).collect::<BTreeSet<_>>();
        let lib = "crates/tenure/src/lib.rs";
        fs::create_dir_all(from.path().join(SOURCES)).unwrap();
        for file in [lib, "old", "later"] {
            fs::write(from.path().join(file), "text").unwrap();
        }
        let all = set(&[lib, "old", "later"]);
        Tree::copy(from.path(), to.path(), &all, &set(&["later"])).unwrap();
        let there = |file: &str| fs::read_to_string(to.path().join(file)).ok();
        assert!(there(lib).unwrap().starts_with("text\nmod mutated;"));
        assert_eq!(there("old").as_deref(), Some("text"));
        assert_eq!(there("later"), None);
        assert!(there("crates/tenure/src/mutated.rs").is_some());
        Tree::copy(from.path(), to.path(), &set(&[lib]), &BTreeSet::new()).unwrap();
        assert_eq!(there("old"), None);
    }
}
