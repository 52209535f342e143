//! The house rules: conventions of this project that no compiler checks.
//!
//! Forbidden words are written in two halves here, so that this file needs no exception from its
//! own rules.

mod directions;
mod links;
mod names;
mod path;
mod states;

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::run::{Count, say};

/// Checks every file of the repository and prints violations.
pub(crate) fn check(root: &Path) -> Count {
    let files = match list(root) {
        Ok(files) => files,
        Err(error) => {
            say(format_args!("cannot list the files in {}: {error}", root.display()));
            return Count::ONE_FAILED;
        }
    };
    let mut findings = in_tree(&files);
    let numbers = fs::read_to_string(root.join(states::NUMBERS)).unwrap_or_default();
    let names = states::Names::read(&numbers);
    let mut types = names::Types::default();
    for file in &files {
        // A file that is not UTF-8 is skipped.
        if let Ok(text) = fs::read_to_string(root.join(file)) {
            findings.extend(in_text(file, &text));
            findings.extend(links::in_page(file, &text, &files));
            findings.extend(bare_states(file, &text, &names));
            findings.extend(directions::in_file(file, &text));
            findings.extend(types.read(file, &text));
            if file == path::PAGE {
                match path::measure(&text, root) {
                    Ok(length) => say(length),
                    Err(finding) => findings.push(finding),
                }
            }
            if file == DECISIONS {
                findings.extend(unlisted_decisions(&text, &files));
            }
        }
    }
    for finding in &findings {
        say(finding);
    }
    say(format_args!("{} files, {} against the house rules", files.len(), findings.len()));
    Count { passed: 0, failed: findings.len() }
}

/// A violation of a rule.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    file: String,
    line: usize,
    rule: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.rule)
    }
}

/// Words that some files must not contain.
struct Ban {
    words: &'static [&'static str],
    within: fn(&str) -> bool,
    why: &'static str,
}

const BANS: [Ban; 5] = [
    Ban {
        words: &[
            concat!("to", "do!("),
            concat!("unimple", "mented!("),
            concat!("FIX", "ME"),
            concat!("XX", "X"),
        ],
        within: is_code,
        why: "finish it, or leave it out and write down what is missing",
    },
    Ban {
        words: &[concat!("#[", "ignore")],
        within: is_code,
        why: "a test that does not run proves nothing",
    },
    Ban {
        words: &[concat!("thread::", "sleep")],
        within: |file| file.ends_with(".rs") && !file.starts_with("xtask/"),
        why: "wait for a condition, or move the clock",
    },
    Ban {
        words: &[
            concat!("index.", "crates.io"),
            concat!("static.", "crates.io"),
            concat!("pypi", ".org"),
            concat!("pythonhosted", ".org"),
            concat!("registry.", "npmjs.org"),
            concat!("deb.", "debian.org"),
        ],
        within: |_| true,
        why: "where packages come from is configured on the machine, not here",
    },
    Ban {
        words: &[
            concat!("tenure_", "drill"),
            concat!("tenure::", "drill"),
            concat!("tenure_", "cluster"),
            concat!("_pat", "ched"),
        ],
        within: is_product,
        why: "only the drill's own commands may reach a store that lacks a safeguard",
    },
];

/// Directories that exist on one person's machine only.
const MACHINE_PATHS: [&str; 3] =
    [concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/")];

const LONGEST: usize = 600;

const DECISIONS: &str = "docs/decisions/README.md";

fn is_code(file: &str) -> bool {
    file.ends_with(".rs") || file.ends_with(".sql")
}

/// Whether a file belongs to the command line, but not to the drill's commands. (The library's
/// feature `drill` is off unless cargo is told otherwise.)
fn is_product(file: &str) -> bool {
    let drill = "crates/tenure-cli/src/commands/drill";
    file.starts_with("crates/tenure-cli/src/") && !file.starts_with(drill)
}

/// The rules that one file can break by itself.
fn in_text(file: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |line, rule| findings.push(Finding { file: file.to_owned(), line, rule });
    for (index, text) in text.lines().enumerate() {
        let line = index + 1;
        for ban in BANS.iter().filter(|ban| (ban.within)(file)) {
            for word in ban.words.iter().filter(|word| text.contains(**word)) {
                found(line, format!("`{word}`: {}", ban.why));
            }
        }
        if let Some(path) = machine_path(text) {
            found(line, format!("`{path}`: a path of one machine means nothing on another"));
        }
        if file.ends_with(".sql")
            && let Some(rule) = in_sql(text)
        {
            found(line, rule.to_owned());
        }
    }
    let lines = text.lines().count();
    if file.ends_with(".rs") && lines > LONGEST {
        found(
            LONGEST + 1,
            format!("{lines} lines, above {LONGEST}: which part is a chapter of its own?"),
        );
    }
    let in_crate = file.starts_with("crates/") && file.split('/').nth(2) == Some("src");
    if in_crate && file.ends_with(".rs") && !text.starts_with("//!") {
        found(1, "begin with `//!`: what it is, why it is here, what it refuses to know".into());
    }
    findings
}

fn machine_path(line: &str) -> Option<&'static str> {
    let is_within_path = |c: char| c.is_alphanumeric() || "._-~}".contains(c);
    MACHINE_PATHS
        .into_iter()
        .find(|path| line.match_indices(path).any(|(at, _)| !line[..at].ends_with(is_within_path)))
}

/// The rule that a line of SQL breaks, if any; comments are not checked.
fn in_sql(line: &str) -> Option<&'static str> {
    let code = line.split_once("--").map_or(line, |(code, _)| code).to_lowercase();
    let code = code.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let word = |word: &str, may_follow: fn(char) -> bool| {
        code.match_indices(word).any(|(at, _)| {
            let (before, after) = (&code[..at], &code[at + word.len()..]);
            !before.ends_with(|c| is_name(c) || may_follow(c)) && !after.starts_with(is_name)
        })
    };
    // With a schema in front it is another function: `tenure.now()` reads the clock that tests
    // control.
    let after_dot = |c| c == '.';
    if word("now()", after_dot) || word("now ()", after_dot) || word("pg_catalog.now()", |_| false)
    {
        return Some(
            "bare `now()` is frozen at the start of the transaction: use `tenure.now()`, read once",
        );
    }
    if word("current_timestamp", |_| false) {
        return Some(
            "`CURRENT_TIMESTAMP` is frozen at the start of the transaction: take the time as a parameter",
        );
    }
    if word("select *", |_| false) {
        return Some("`SELECT *` changes its meaning with the schema: name the columns");
    }
    None
}

/// States without their names. A schema says beside each column what its numbers mean.
fn bare_states(file: &str, text: &str, names: &states::Names) -> Vec<Finding> {
    let is_checked = file.starts_with("crates/tenure/sql/")
        && file.ends_with(".sql")
        && !file.contains("/schema/")
        && !file.contains("/versions/");
    let lines = text.lines().enumerate().filter(|_| is_checked);
    let finding = |(index, line)| {
        let rule = names.check(line)?;
        Some(Finding { file: file.to_owned(), line: index + 1, rule })
    };
    lines.filter_map(finding).collect()
}

/// The rules about which files there are.
fn in_tree(files: &BTreeSet<String>) -> Vec<Finding> {
    let verbs = |engine: &str| -> BTreeSet<&str> {
        let directory = format!("crates/tenure/sql/{engine}/verbs/");
        files.iter().filter_map(|file| file.strip_prefix(&directory)).collect()
    };
    let (sqlite, postgres) = (verbs("sqlite"), verbs("postgres"));
    if sqlite.is_empty() || postgres.is_empty() {
        return Vec::new();
    }
    let missing = [("sqlite", &sqlite, &postgres), ("postgres", &postgres, &sqlite)];
    let missing = missing.into_iter().flat_map(|(engine, here, there)| {
        there.difference(here).map(move |verb| Finding {
            file: format!("crates/tenure/sql/{engine}/verbs/{verb}"),
            line: 1,
            rule: "missing: the engines have the same verbs, in files of the same name".into(),
        })
    });
    missing.collect()
}

/// Decisions that the list of decisions does not name.
fn unlisted_decisions(list: &str, files: &BTreeSet<String>) -> Vec<Finding> {
    let names = files.iter().filter_map(|file| file.strip_prefix("docs/decisions/"));
    let is_decision = |name: &&str| {
        let number = name.split('-').next().unwrap_or_default();
        name.ends_with(".md") && number.len() == 4 && number.bytes().all(|c| c.is_ascii_digit())
    };
    names
        .filter(is_decision)
        .filter(|name| !links::targets(list).iter().any(|(_, target)| target == name))
        .map(|name| Finding {
            file: DECISIONS.into(),
            line: 1,
            rule: format!("no link to {name}: a decision that nobody finds was not taken"),
        })
        .collect()
}

/// The files that are in the repository or about to be: what git tracks, and what it would add. If
/// the tree came without git, all files except for cargo's output.
fn list(root: &Path) -> io::Result<BTreeSet<String>> {
    let git = Command::new("git")
        // The tree may belong to another user than the one who runs the tests.
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .args(["--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .stdin(Stdio::null())
        .output();
    let Some(git) = git.ok().filter(|git| git.status.success()) else {
        let mut files = BTreeSet::new();
        walk(root, "", &mut files)?;
        return Ok(files);
    };
    let names = String::from_utf8_lossy(&git.stdout);
    // A file may be deleted while git still lists it.
    let names = names.split('\0').filter(|name| root.join(name).is_file());
    Ok(names.map(str::to_owned).collect())
}

fn walk(directory: &Path, prefix: &str, files: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let kind = entry.file_type()?;
        if kind.is_dir() && ![".git", "target"].contains(&name.as_str()) {
            walk(&entry.path(), &format!("{name}/"), files)?;
        } else if kind.is_file() {
            files.insert(name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
