//! `tenure drill mutants` through the binary: the matrix, and the list of mutants.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output};

fn drill(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(["drill", "mutants"]).args(arguments).output().unwrap()
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_matrix_tells_what_was_taken_out_and_what_noticed() {
    let told = drill(&["--only", "no token bump", "--of", "sqlite", "--schedules"]);
    assert_eq!(told.status.code(), Some(0), "{}", said(&told.stderr));
    let matrix = said(&told.stdout);
    let row = matrix.lines().find(|line| line.contains("explorer")).unwrap();
    for word in ["no token bump on claim", "sqlite", "a claim leaves the job's token", "I2"] {
        assert!(row.contains(word), "{row}");
    }
    assert!(matrix.contains("1. Ann claims a job"), "the schedule is shown: {matrix}");
}

#[test]
fn the_list_has_every_mutant_and_hunts_none() {
    let told = drill(&["--list", "--json"]);
    assert_eq!(told.status.code(), Some(0));
    let all: Vec<serde_json::Value> = serde_json::from_slice(&told.stdout).unwrap();
    assert!(all.len() > 80, "{}", all.len());
    assert!(all.iter().all(|it| !it["must_break"].as_array().unwrap().is_empty()));
}

#[test]
fn a_name_that_nobody_has_is_a_mistake_and_no_success() {
    let told = drill(&["--only", "no such mutant"]);
    assert_eq!(told.status.code(), Some(2));
    assert!(said(&told.stderr).contains("tenure drill mutants --list"));
}

#[test]
fn those_made_by_machine_are_told_by_engine_file_and_verb_and_a_part_of_them_by_its_number() {
    let names = |arguments: &[&str]| -> Vec<String> {
        let told = drill(&[&["--machine", "--list"], arguments].concat());
        assert_eq!(told.status.code(), Some(0), "{}", said(&told.stderr));
        said(&told.stdout).lines().map(str::to_owned).collect()
    };
    let all = names(&["--of", "sqlite", "--only", "record holds:"]);
    assert!(
        all.iter().any(|name| name == "sqlite record holds: `token = :token` is true"),
        "{all:#?}"
    );
    let (odd, even) =
        (names(&["--of", "sqlite", "--part", "1/2"]), names(&["--of", "sqlite", "--part", "2/2"]));
    assert_eq!(odd.len() + even.len(), names(&["--of", "sqlite"]).len());
    let wrong = drill(&["--machine", "--list", "--part", "3/2"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", said(&wrong.stderr));
}
