//! Stores that were broken by writing to their tables, each in one way. `tenure doctor --check`
//! must find what is wrong in each.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use std::collections::BTreeSet;

use serde_json::json;
use shell::{Shell, on_both_engines};
use tenure::engine::inspect::Rule;
use tenure_drill::damage::{self, DAMAGES, Damage};

on_both_engines!(everything_that_must_not_be_is_found);

fn fill(shell: &Shell) {
    damage::fill(&mut *shell.store());
    assert_eq!(shell.ok(&["doctor", "--check"]), "checked 5 jobs, nothing is wrong\n");
}

/// Writes to the tables directly, which no user should do.
fn break_it(shell: &Shell, sql: &str) {
    match &shell.database {
        Some(database) => database.execute(&sql.replace("tenure_", "tenure.")),
        None => {
            let file = rusqlite::Connection::open(shell.path("tenure.db")).unwrap();
            file.execute_batch(sql).unwrap();
        }
    }
}

fn everything_that_must_not_be_is_found(shell: &Shell) {
    let mut rules = BTreeSet::new();
    for Damage { sql, rule, job, words: what } in DAMAGES {
        let shell = if shell.database.is_some() { Shell::on_server() } else { Shell::new() };
        fill(&shell);
        break_it(&shell, sql);
        let ran = shell.run(&["doctor", "--check", "--json"]);
        assert_eq!(ran.code, 1, "{sql}: {ran:?}");
        let found: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        let wrong = found["wrong"].as_array().unwrap();
        assert_eq!(wrong.len(), 1, "{sql}: {ran:?}");
        assert_eq!(wrong[0]["job"], json!(job.to_string()), "{sql}: {ran:?}");
        assert_eq!(wrong[0]["rule"], json!(rule.name()), "{sql}: {ran:?}");
        assert!(wrong[0]["what"].as_str().unwrap().contains(what), "{sql}: {ran:?}");
        rules.insert(*rule);

        let ran = shell.run(&["doctor", "--check"]);
        ran.refused(1, "1 thing is wrong");
        let line = format!("job {job} breaks {}: ", rule.name());
        assert!(ran.stdout.starts_with(&line) && ran.stdout.contains(what), "{sql}: {ran:?}");
    }
    assert_eq!(rules, BTreeSet::from(Rule::ALL), "a rule that nothing here breaks");
}
