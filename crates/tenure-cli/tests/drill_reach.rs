//! Only the drill can use a store that lacks a safeguard: no flag, address or variable of any other
//! command leads to one.
//!
//! That no other command's code even names the drill is a house rule, which `cargo xtask tidy`
//! checks.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;
use std::process::Command;

/// The output of this binary, whatever its exit code.
fn said(arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let said = Command::new(env!("CARGO_BIN_EXE_tenure"))
        .args(arguments)
        .current_dir(directory.path())
        .env_remove("TENURE_DB")
        .output()
        .unwrap();
    String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned()
}

/// The subcommands, as the help lists them.
fn commands(of: &[&str]) -> Vec<String> {
    let help = said(&[of, &["--help"]].concat());
    let listed = help.split("Commands:").nth(1).unwrap_or_default();
    let listed = listed.lines().skip(1).take_while(|line| line.starts_with("  "));
    let name = |line: &str| line.split_whitespace().next().map(str::to_owned);
    listed.filter(|line| !line.starts_with("   ")).filter_map(name).collect()
}

#[test]
fn no_option_of_any_other_command_speaks_of_mutants() {
    let top: Vec<String> = commands(&[]).into_iter().filter(|it| it != "help").collect();
    assert!(top.contains(&"drill".to_owned()) && top.contains(&"worker".to_owned()), "{top:?}");
    for command in top.iter().filter(|it| *it != "drill") {
        let mut pages = vec![said(&[command, "--help"])];
        pages.extend(commands(&[command]).iter().map(|below| said(&[command, below, "--help"])));
        for page in pages {
            for word in ["mutant", "patch", "safeguard", "unfenced", "renewal off"] {
                assert!(!page.to_lowercase().contains(word), "{command} --help: {page}");
            }
        }
    }
}

#[test]
fn an_address_cannot_ask_for_less() {
    for parameter in ["mutant=no%20fence", "patch=settle", "drill=1", "clock=test"] {
        let url = format!("postgres://127.0.0.1:1/none?{parameter}");
        let answer = said(&["stats", "--db", &url]);
        assert!(answer.contains("it has a parameter that is none of"), "{parameter}: {answer}");
    }
}

/// Every file that reads the environment, and why that is harmless.
const READERS: [&str; 3] = [
    // TENURE_DB, through clap.
    "tenure-cli/src/main.rs",
    // The PATH, to find a user's command.
    "tenure-cli/src/commands/worker/command.rs",
    // What every PostgreSQL client reads: PGHOST and the like.
    "tenure/src/store/postgres/address.rs",
];

#[test]
fn no_other_variable_is_read() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut readers = Vec::new();
    for source in ["tenure/src", "tenure-cli/src"] {
        collect(&crates.join(source), &mut |file, text| {
            // What follows is for tests.
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let name = file.strip_prefix(crates).unwrap().to_str().unwrap().to_owned();
            let reads = code.contains("env::var") || code.contains("env = \"");
            let is_test = name.ends_with("tests.rs") || name.contains("/tests/");
            if reads && !is_test && !name.contains("/commands/drill") {
                readers.push(name);
            }
        });
    }
    readers.sort();
    let mut expected = READERS.to_vec();
    expected.sort_unstable();
    assert_eq!(readers, expected, "who reads a variable is listed here, with the reason");
}

fn collect(directory: &Path, hear: &mut dyn FnMut(&Path, &str)) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, hear);
        } else if path.extension().is_some_and(|it| it == "rs") {
            hear(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}
