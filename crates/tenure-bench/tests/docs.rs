//! The table of measures in the documentation agrees with the code.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use tenure_bench::{ALL, Engine};

const PAGE: &str = include_str!("../../../docs/benchmarks.md");

#[test]
fn the_page_lists_every_measure_with_its_line_and_engines() {
    let section = PAGE.split("\n## ").find(|section| section.starts_with("Measures")).unwrap();
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect()
    };
    let rows = section.lines().filter(|line| line.starts_with("| `")).map(cells);
    let on = |engines: &[Engine]| match engines.contains(&Engine::Sqlite) {
        true => "both",
        false => "PostgreSQL",
    };
    let expected = ALL
        .iter()
        .map(|it| vec![it.name.to_owned(), it.what.to_owned(), on(it.engines).to_owned()]);
    assert_eq!(rows.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}
