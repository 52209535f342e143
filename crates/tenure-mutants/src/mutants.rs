//! All mutants of the library, each with a number and a name, and the sources that contain them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};

use crate::changes::{self, Change};
use crate::edits::{self, Edited};

/// Where the sources are, below the root of the workspace.
pub(crate) const SOURCES: &str = "crates/tenure/src";

/// The files and directories whose code is changed.
const CHANGED: [&str; 12] = [
    "lifecycle.rs",
    "ledger.rs",
    "desk.rs",
    "desk/",
    "worker.rs",
    "worker/",
    "handler.rs",
    "handler/",
    "store/sqlite.rs",
    "store/sqlite/",
    "store/postgres.rs",
    "store/postgres/",
];

/// One change of one file.
#[derive(Debug, Clone)]
pub(crate) struct Mutant {
    /// The number that switches it on. It changes with the sources.
    pub(crate) number: u32,
    /// The file, the function, and what is changed. It stays the same when other code is edited.
    pub(crate) name: String,
    /// The file, below the sources.
    pub(crate) file: String,
    /// The function, with its file.
    pub(crate) function: String,
    within: Range<usize>,
    change: Change,
}

/// A source file and its mutants.
pub(crate) struct Source {
    /// Its path below the sources.
    pub(crate) file: String,
    /// The unchanged text.
    pub(crate) text: String,
    /// In the order of the text.
    pub(crate) mutants: Vec<Mutant>,
}

/// Reads the sources of a workspace that are changed. `files` are paths below the root.
pub(crate) fn read(root: &Path, files: &BTreeSet<String>) -> Result<Vec<Source>> {
    let mut texts = BTreeMap::new();
    for file in files.iter().filter_map(|file| file.strip_prefix(&format!("{SOURCES}/"))) {
        let is_changed = |it: &&str| file == *it || it.ends_with('/') && file.starts_with(*it);
        if file.ends_with(".rs") && CHANGED.iter().any(is_changed) {
            let path = root.join(SOURCES).join(file);
            let text = fs::read_to_string(&path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            texts.insert(file.to_owned(), text);
        }
    }
    let alone = left_alone(&texts)?;
    let mut sources = Vec::new();
    let mut number = 0;
    for (file, text) in texts {
        if alone.iter().any(|it| file == format!("{it}.rs") || file.starts_with(&format!("{it}/")))
        {
            continue;
        }
        let changes = changes::changes(&text).with_context(|| format!("cannot read {file}"))?;
        let mutants = name(&file, changes, &mut number);
        sources.push(Source { file, text, mutants });
    }
    Ok(sources)
}

/// The modules in separate files that are not part of the product, as paths without `.rs`.
fn left_alone(texts: &BTreeMap<String, String>) -> Result<Vec<String>> {
    let mut alone = Vec::new();
    for (file, text) in texts {
        let directory = file.trim_end_matches(".rs");
        let modules = changes::modules_left_alone(text)?;
        alone.extend(modules.into_iter().map(|module| format!("{directory}/{module}")));
    }
    Ok(alone)
}

/// Names the changes of a file. Changes that would have the same name are numbered.
fn name(file: &str, changes: Vec<Change>, number: &mut u32) -> Vec<Mutant> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let stem = file.trim_end_matches(".rs");
    let mut named = Vec::new();
    for change in changes {
        *number += 1;
        let function = format!("{stem} {}", change.function);
        let plain = format!("{function}: {}", change.what);
        let times = seen.entry(plain.clone()).or_default();
        *times += 1;
        let name = if *times > 1 { format!("{plain} #{times}") } else { plain };
        let (file, within) = (file.to_owned(), change.within.clone());
        named.push(Mutant { number: *number, name, file, function, within, change });
    }
    named
}

impl Source {
    /// The text with all mutants except these.
    pub(crate) fn edited(&self, without: &BTreeSet<u32>) -> Edited {
        let kept = self.mutants.iter().filter(|mutant| !without.contains(&mutant.number));
        let edits: Vec<_> =
            kept.map(|mutant| (mutant.number, mutant.change.edits.as_slice())).collect();
        edits::apply(&self.text, &edits)
    }

    /// The mutants of the function that contains a line of the source. Edits add no lines.
    pub(crate) fn of_function_at(&self, line: usize) -> BTreeSet<u32> {
        let line_of = |at: usize| self.text.get(..at).map_or(0, |it| it.matches('\n').count() + 1);
        let is_there = |mutant: &&Mutant| {
            (line_of(mutant.within.start)..=line_of(mutant.within.end)).contains(&line)
        };
        self.mutants.iter().filter(is_there).map(|mutant| mutant.number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survivors;
    use crate::tree;

    fn sources() -> Vec<Source> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let files = tree::files(&root).unwrap();
        read(&root, &files).unwrap()
    }

    #[test]
    fn every_mutant_has_a_name_of_its_own_and_every_listed_survivor_is_a_mutant() {
        let sources = sources();
        let mutants = || sources.iter().flat_map(|source| &source.mutants);
        let names: BTreeSet<&str> = mutants().map(|mutant| mutant.name.as_str()).collect();
        assert_eq!(names.len(), mutants().count());
        let listed = survivors::listed().unwrap();
        let strangers: Vec<_> = listed.keys().filter(|name| !names.contains(*name)).collect();
        assert!(strangers.is_empty(), "listed, but no mutant: {strangers:#?}");
    }

    #[test]
    fn every_part_has_mutants_and_tests_have_none() {
        let sources = sources();
        for part in CHANGED {
            let of_part = |source: &&Source| source.file.starts_with(part);
            let count: usize = sources.iter().filter(of_part).map(|it| it.mutants.len()).sum();
            assert!(count > 0, "{part}");
        }
        assert!(sources.iter().all(|source| !source.file.contains("tests")));
        assert!(sources.iter().all(|source| !source.file.contains("drill")));
    }

    #[test]
    fn all_mutants_of_a_file_stand_in_one_text_that_can_be_read() {
        for source in sources() {
            let edited = source.edited(&BTreeSet::new());
            let parsed = syn::parse_file(&edited.text);
            parsed.unwrap_or_else(|error| panic!("{}: {error} in\n{}", source.file, edited.text));
        }
    }
}
