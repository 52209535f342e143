//! `tenure drill disk` through the binary: runs that hold, and points that do not exist.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::{Command, Output};

fn drill(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(["drill", "disk"]).args(arguments).output().unwrap()
}

#[test]
fn a_power_cut_at_one_point_is_repeated_and_told_as_json() {
    let said = drill(&["--seed", "1", "--point", "100", "--json"]);
    assert_eq!(said.status.code(), Some(0));
    let told: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(told["held"], true);
    assert_eq!(told["power_cuts"][0]["seed"], 1);
    assert!(told["power_cuts"][0]["cuts"].as_u64().unwrap() > 0, "{told}");
}

#[test]
fn a_point_that_is_not_there_proves_nothing() {
    let said = drill(&["--seed", "1", "--point", "99999"]);
    assert_eq!(said.status.code(), Some(2));
    let why = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(why.contains("--point: seed 1 has only"), "{why}");
}
