//! The compiler: which mutants it accepts, and the test programs of the changed copy.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::edits::Edited;
use crate::mutants::{SOURCES, Source};
use crate::say;
use crate::tree::Tree;

/// A program that has tests.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    /// The package and the target, as nextest names them.
    pub(crate) id: String,
    /// The program.
    pub(crate) path: PathBuf,
    /// The directory of its package, where its tests run.
    pub(crate) directory: PathBuf,
}

/// Compiles the copy.
pub(crate) struct Compiler<'a> {
    /// The copy.
    pub(crate) tree: &'a Tree,
    /// Cargo's target directory.
    pub(crate) target: &'a Path,
}

/// How often the compiler runs at most. One run does not report all errors: each of the compiler's
/// stages runs only if the one before found none.
const ROUNDS: usize = 60;

impl Compiler<'_> {
    /// Writes the sources with all mutants that compile, and returns those that do not. The result
    /// for a file is remembered until the file changes.
    pub(crate) fn sort_out(&self, sources: &[Source], memory: &Path) -> Result<BTreeSet<u32>> {
        let mut dropped = recall(sources, memory);
        let mut doubtful = Vec::new();
        for _ in 0..ROUNDS {
            let edited = self.write(sources, &dropped)?;
            let (done, messages) = self.check()?;
            if done {
                self.take_back(sources, &mut dropped, &doubtful)?;
                remember(sources, &dropped, memory)?;
                return Ok(dropped);
            }
            let mut blamed = BTreeSet::new();
            for error in messages.iter().filter_map(error) {
                let found = blame(error, sources, &edited, &dropped);
                ensure!(!found.is_empty(), "the compiler does not take the copy: {error}");
                if is_about_borrows(error) {
                    doubtful.extend(found.difference(&dropped));
                }
                blamed.extend(found);
            }
            if blamed.is_subset(&dropped) {
                bail!("the compiler does not take the copy, and does not say where");
            }
            say(format_args!("{} mutants do not compile", blamed.difference(&dropped).count()));
            dropped.extend(blamed);
        }
        bail!("the compiler still does not take the copy after {ROUNDS} rounds")
    }

    /// A borrow error may show at another place than the left-out statement that causes it. So the
    /// mutants that were dropped because of borrow errors are put back one after the other, and
    /// stay if the copy then compiles.
    fn take_back(
        &self,
        sources: &[Source],
        dropped: &mut BTreeSet<u32>,
        doubtful: &[u32],
    ) -> Result<()> {
        let mut is_written = true;
        for number in doubtful {
            dropped.remove(number);
            self.write(sources, dropped)?;
            is_written = self.check()?.0;
            if !is_written {
                dropped.insert(*number);
            }
        }
        if !is_written {
            self.write(sources, dropped)?;
        }
        Ok(())
    }

    fn write<'s>(
        &self,
        sources: &'s [Source],
        dropped: &BTreeSet<u32>,
    ) -> Result<BTreeMap<&'s str, Edited>> {
        let edited: BTreeMap<&str, Edited> =
            sources.iter().map(|it| (it.file.as_str(), it.edited(dropped))).collect();
        for (file, edited) in &edited {
            self.tree.write(&format!("{SOURCES}/{file}"), edited.text.as_bytes())?;
        }
        Ok(edited)
    }

    fn check(&self) -> Result<(bool, Vec<Value>)> {
        let arguments = "check -p tenure --lib --all-features --message-format=json";
        messages(&mut self.cargo(arguments))
    }

    /// Builds all tests of these packages.
    pub(crate) fn build(&self, packages: &[String]) -> Result<Vec<Program>> {
        let mut build = self.cargo("test --no-run --all-features --message-format=json");
        for package in packages {
            build.args(["-p", package]);
        }
        let (done, messages) = messages(&mut build)?;
        let first = messages.iter().find_map(error).map(|it| it.to_string()).unwrap_or_default();
        ensure!(done, "the tests of the copy cannot be built: {first}");
        Ok(messages.iter().filter_map(program).collect())
    }

    fn cargo(&self, arguments: &str) -> Command {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(arguments.split_whitespace()).current_dir(&self.tree.root);
        cargo.env("CARGO_TARGET_DIR", self.target).stdin(Stdio::null());
        cargo
    }
}

/// Runs cargo. Returns whether it succeeded, and what it reported: a line of JSON for each thing.
fn messages(cargo: &mut Command) -> Result<(bool, Vec<Value>)> {
    let output = cargo.stderr(Stdio::inherit()).output().context("cannot run cargo")?;
    let lines = String::from_utf8_lossy(&output.stdout);
    let messages = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    Ok((output.status.success(), messages))
}

fn error(message: &Value) -> Option<&Value> {
    let message = message.get("message")?;
    let has_place = !message["spans"].as_array().is_none_or(Vec::is_empty);
    (message["level"] == "error" && has_place).then_some(message)
}

/// Whether an error is about a value that is moved, borrowed, or not initialised.
fn is_about_borrows(error: &Value) -> bool {
    let code = error["code"]["code"].as_str().unwrap_or_default();
    ["E0381", "E0382", "E0384", "E0499", "E05"].iter().any(|start| code.starts_with(start))
}

fn program(message: &Value) -> Option<Program> {
    let path = message.get("executable")?.as_str()?;
    if message["profile"]["test"] != true {
        return None;
    }
    let directory = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
    let package = directory.file_name()?.to_string_lossy().into_owned();
    let (target, kind) = (&message["target"]["name"], message["target"]["kind"][0].as_str()?);
    let id = match kind {
        "lib" => package,
        "test" => format!("{package}::{}", target.as_str()?),
        kind => format!("{package}::{kind}/{}", target.as_str()?),
    };
    Some(Program { id, path: path.into(), directory })
}

/// The mutants that are blamed for an error: those at its primary place, or at another place that
/// it mentions. If there are none, the left-out statements of the same function. If there are none
/// either, all mutants of that function.
fn blame(
    error: &Value,
    sources: &[Source],
    edited: &BTreeMap<&str, Edited>,
    dropped: &BTreeSet<u32>,
) -> BTreeSet<u32> {
    let places = places(error);
    let by_place = places.iter().find_map(|place| {
        let blamed = edited.get(place.file)?.blamed(&place.range);
        (!blamed.is_empty()).then_some(blamed)
    });
    if let Some(blamed) = by_place {
        return blamed;
    }
    let by_function = places.iter().find_map(|place| {
        let source = sources.iter().find(|source| source.file == place.file)?;
        let mut all = source.of_function_at(place.line);
        all.retain(|number| !dropped.contains(number));
        let left_out = source.mutants.iter().filter(|it| it.name.contains("` left out"));
        let left_out: BTreeSet<u32> =
            left_out.map(|it| it.number).filter(|number| all.contains(number)).collect();
        let blamed = if left_out.is_empty() { all } else { left_out };
        (!blamed.is_empty()).then_some(blamed)
    });
    by_function.unwrap_or_default()
}

struct Place<'a> {
    file: &'a str,
    range: Range<usize>,
    line: usize,
}

/// The places of an error, the primary ones first.
fn places(error: &Value) -> Vec<Place<'_>> {
    let mut all: Vec<&Value> = error["spans"].as_array().into_iter().flatten().collect();
    all.sort_by_key(|span| span["is_primary"] != true);
    let children = error["children"].as_array().into_iter().flatten();
    all.extend(children.flat_map(|child| child["spans"].as_array().into_iter().flatten()));
    let number = |span: &Value, key: &str| usize::try_from(span[key].as_u64()?).ok();
    let place = |span: &'_ Value| -> Option<(Range<usize>, usize)> {
        Some((number(span, "byte_start")?..number(span, "byte_end")?, number(span, "line_start")?))
    };
    let of_sources = all.into_iter().filter_map(|span| {
        let file = span["file_name"].as_str()?.strip_prefix(SOURCES)?.strip_prefix('/')?;
        let (range, line) = place(span)?;
        Some(Place { file, range, line })
    });
    of_sources.collect()
}

fn hash(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The mutants that did not compile in an earlier run.
fn recall(sources: &[Source], memory: &Path) -> BTreeSet<u32> {
    let text = fs::read_to_string(memory).unwrap_or_default();
    let known: Value = serde_json::from_str(&text).unwrap_or_default();
    let mut dropped = BTreeSet::new();
    for source in sources {
        let of_file = &known[&source.file];
        if of_file["text"] != hash(&source.text) {
            continue;
        }
        let names: BTreeSet<&str> =
            of_file["dropped"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let mutants = source.mutants.iter().filter(|it| names.contains(it.name.as_str()));
        dropped.extend(mutants.map(|it| it.number));
    }
    dropped
}

fn remember(sources: &[Source], dropped: &BTreeSet<u32>, memory: &Path) -> Result<()> {
    let mut known = serde_json::Map::new();
    for source in sources {
        let of_file = source.mutants.iter().filter(|it| dropped.contains(&it.number));
        let names: Vec<&str> = of_file.map(|it| it.name.as_str()).collect();
        let of_file = json!({ "text": hash(&source.text), "dropped": names });
        known.insert(source.file.clone(), of_file);
    }
    fs::write(memory, serde_json::to_string_pretty(&Value::Object(known))?)?;
    Ok(())
}
