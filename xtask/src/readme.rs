//! The console blocks of README.md and docs/*.md, run as a reader would type them, in a directory
//! of their own.
//!
//! `cargo run --release -- …` becomes a call of the binary that `cargo build --release` made just
//! before, because the directory is not the repository. Commands that fetch something, and those of
//! `cargo xtask`, are not run here. Each page has its own PostgreSQL database, which `psql` finds
//! through the environment.

mod console;
mod shell;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::COMMANDS;
use crate::cargo::Cargo;
use crate::postgres::{Database, Server, Wanted};
use crate::run::{Count, say};
use console::Command;
use shell::Shell;

/// Checks README.md and every page directly in docs.
pub(crate) fn check(root: &Path, server: Option<&Server>) -> Count {
    let mut pages = vec!["README.md".to_owned()];
    let docs = fs::read_dir(root.join("docs")).into_iter().flatten().flatten();
    let names = docs.map(|entry| format!("docs/{}", entry.file_name().to_string_lossy()));
    pages.extend(names.filter(|name| name.ends_with(".md")));
    pages[1..].sort();
    let pages: Vec<&str> = pages.iter().map(String::as_str).collect();
    check_files(root, server, &pages)
}

/// Checks these pages, given as paths below the root of the repository, on this server or one of
/// their own.
pub(crate) fn check_files(root: &Path, server: Option<&Server>, pages: &[&str]) -> Count {
    let mut total = Count::default();
    let mut scripts = Vec::new();
    for page in pages {
        let read = fs::read_to_string(root.join(page)).map_err(|error| {
            format!("cannot be read, and what it shows is part of the tests: {error}")
        });
        match read.and_then(|text| console::commands(&text)) {
            Ok(commands) => scripts.push((page, commands)),
            Err(error) => {
                say(format_args!("{page}: {error}"));
                total += Count::ONE_FAILED;
            }
        }
    }
    let is_run = |command: &Command| matches!(plan(&command.text), Plan::Run(_));
    if scripts.iter().any(|(_, commands)| commands.iter().any(is_run)) {
        let build = Cargo::new("build --release");
        say(format_args!("      {build}"));
        let built = build.run(root, None);
        if built.failed > 0 {
            return built;
        }
    }
    let mut own = None;
    for (page, commands) in &scripts {
        let database = match server {
            _ if !commands.iter().any(is_run) => Ok(None),
            Some(server) => server.fresh_database().map(Some),
            None => Server::keep_or_start(&mut own, Wanted::Any)
                .and_then(|server| server.fresh_database())
                .map(Some),
        };
        let (passed, complaints) = database
            .map_err(io::Error::other)
            .and_then(|database| run_page(page, commands, &Surroundings::new(database.as_ref())))
            .unwrap_or_else(|error| (0, vec![format!("{page}: cannot start: {error}")]));
        complaints.iter().for_each(say);
        let failed = complaints.len();
        let left = commands.len().saturating_sub(passed + failed);
        say(format_args!(
            "      {page}: {passed} commands ran as written, {failed} did not, {left} were not run"
        ));
        total += Count { passed, failed };
    }
    total
}

/// Runs the commands of one page in order, in one shell and one directory, as its reader would.
/// Returns how many behaved as written, and what is wrong with the others.
fn run_page(
    page: &str,
    commands: &[Command],
    surroundings: &Surroundings,
) -> io::Result<(usize, Vec<String>)> {
    let (mut passed, mut complaints) = (0, Vec::new());
    let directory = Scratch::new()?;
    let mut shell = Shell::start(&directory.0, surroundings)?;
    for command in commands {
        let happened = match plan(&command.text) {
            Plan::Trust => continue,
            Plan::Refuse(why) => Ok(Some(why)),
            Plan::Run(text) => shell.run(&text).map(|happened| command.complaint(&happened)),
        };
        let shell_is_lost = happened.is_err();
        match happened.unwrap_or_else(|error| Some(format!("  {error}"))) {
            None => passed += 1,
            Some(why) => {
                complaints.push(format!("{page}:{}: $ {}\n{why}", command.line, command.text));
            }
        }
        if shell_is_lost {
            break;
        }
    }
    Ok((passed, complaints))
}

/// The environment of a page's commands.
#[derive(Default)]
struct Surroundings {
    /// The directories that are searched for programs first.
    programs: Vec<PathBuf>,
    variables: Vec<(String, String)>,
}

impl Surroundings {
    fn new(database: Option<&Database>) -> Surroundings {
        let mut programs = vec![binaries()];
        programs.extend(database.and_then(Database::programs));
        let variables = database.map(Database::variables).unwrap_or_default();
        Surroundings { programs, variables }
    }
}

/// How a command is treated.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    Run(String),
    Trust,
    Refuse(String),
}

fn plan(command: &str) -> Plan {
    let words: Vec<&str> = command.split_whitespace().collect();
    match words.as_slice() {
        ["cargo", "xtask", name, ..] if COMMANDS.iter().any(|known| known.0 == *name) => {
            Plan::Trust
        }
        ["cargo", "xtask", ..] => Plan::Refuse("  there is no such command of cargo xtask".into()),
        // These need the network, or change the user's own project.
        ["git", "clone", ..] | ["cargo", "add", ..] => Plan::Trust,
        ["cargo", "run", "--release"] => Plan::Run("tenure".into()),
        // Done before everything else.
        ["cargo", "build", "--release"] => Plan::Trust,
        _ => Plan::Run(command.replace("cargo run --release -- ", "tenure ")),
    }
}

/// Where `cargo build --release` puts the binary: beside the directory that this binary was built
/// into.
fn binaries() -> PathBuf {
    let own = std::env::current_exe().unwrap_or_default();
    own.ancestors().nth(2).unwrap_or(Path::new("target")).join("release")
}

/// An empty directory, removed with the value.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> io::Result<Scratch> {
        for n in 0..1_000 {
            let name = format!("tenure-readme-{}-{n}", std::process::id());
            let path = std::env::temp_dir().join(name);
            match fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made.map(|()| Scratch(path)),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many commands of a block behave as written, and the first lines of the complaints about
    /// the others.
    fn run(block: &[&str]) -> (usize, Vec<String>) {
        run_in(&Surroundings::default(), block)
    }

    fn run_in(surroundings: &Surroundings, block: &[&str]) -> (usize, Vec<String>) {
        let page = format!("```console\n{}\n```\n", block.join("\n"));
        let commands = console::commands(&page).unwrap();
        let (passed, complaints) = run_page("page.md", &commands, surroundings).unwrap();
        let first_line = |text: &String| text.lines().next().unwrap_or_default().to_owned();
        (passed, complaints.iter().map(first_line).collect())
    }

    #[test]
    fn commands_of_a_page_share_a_directory_and_a_shell() {
        let block = [
            "$ echo one > file",
            "$ export WHAT=two && mkdir sub && cd sub",
            "$ cat ../file; echo $WHAT",
            "one",
            "two",
        ];
        assert_eq!(run(&block), (3, vec![]));
    }

    #[test]
    fn other_output_and_other_exit_codes_fail_and_the_rest_still_runs() {
        let block =
            ["$ echo one", "two", "$ false", "$ (exit 3)", "[exit 3]", "$ echo", "[exit 1]"];
        let complaints = ["page.md:2: $ echo one", "page.md:4: $ false", "page.md:7: $ echo"];
        assert_eq!(run(&block), (1, complaints.map(str::to_owned).to_vec()));
    }

    #[test]
    fn a_page_that_ends_its_shell_does_not_count_what_follows() {
        let complaints = vec!["page.md:3: $ exit 0".to_owned()];
        assert_eq!(run(&["$ true", "$ exit 0", "$ true"]), (1, complaints));
    }

    #[test]
    fn psql_finds_a_database_that_is_new_for_each_page() {
        let mut place = None;
        let server = Server::keep_or_start(&mut place, Wanted::Any).unwrap();
        let block = [
            "$ psql -qc 'CREATE TABLE page (n int)' && psql -qc 'INSERT INTO page VALUES (7)'",
            "$ psql -At \"$TENURE_TEST_POSTGRES\" -c 'SELECT n FROM page'",
            "7",
        ];
        for _ in 0..2 {
            let database = server.fresh_database().unwrap();
            let surroundings = Surroundings::new(Some(&database));
            assert_eq!(run_in(&surroundings, &block), (2, vec![]));
        }
    }

    #[test]
    fn our_own_commands_must_exist_and_are_not_run() {
        assert_eq!(plan("cargo xtask test"), Plan::Trust);
        assert!(matches!(plan("cargo xtask deploy"), Plan::Refuse(_)));
        assert_eq!(plan("git clone https://example.org/tenure && cd tenure"), Plan::Trust);
        assert_eq!(
            plan("cargo run --release -- jobs list | wc -l"),
            Plan::Run("tenure jobs list | wc -l".into())
        );
    }
}
