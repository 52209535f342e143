//! The tables in the documentation say what the code says.

use tenure::job::State;
use tenure::lifecycle::{Verb, attempt_counts};

/// The cells of a page's table rows whose first cell is code.
fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let section = page.split("\n## ").find(|section| section.starts_with(heading)).expect(heading);
    let cells =
        |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    section.lines().filter(|line| line.starts_with("| `")).map(cells).collect()
}

const LIFECYCLE: &str = include_str!("../../../docs/lifecycle.md");

#[test]
fn the_table_of_states_lists_every_state_in_order() {
    let listed: Vec<_> =
        rows(LIFECYCLE, "States").iter().map(|row| row[0].replace('`', "")).collect();
    assert_eq!(listed, State::ALL.map(|state| state.name().to_owned()));
}

#[test]
fn the_table_of_verbs_lists_every_verb_and_whether_its_attempt_counts() {
    let rows = rows(LIFECYCLE, "Verbs");
    let listed: Vec<_> = rows.iter().map(|row| row[0].replace('`', "")).collect();
    assert_eq!(listed, Verb::ALL.map(|verb| verb.name().to_owned()));
    for (row, verb) in rows.iter().zip(Verb::ALL) {
        let ends_an_attempt = matches!(row[3].as_str(), "yes" | "no");
        assert!(!ends_an_attempt || (row[3] == "yes") == attempt_counts(verb), "{verb}");
    }
}
