//! The tables of measures, peers and targets in the documentation agree with the code.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use tenure_bench::{ALL, Engine, PEERS, targets};

const PAGE: &str = include_str!("../../../docs/benchmarks.md");

/// The rows of the table below a heading, without backticks.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let (_, rest) = PAGE.split_once(&format!("\n{heading}\n")).unwrap();
    let table = rest.lines().skip_while(|line| !line.starts_with('|'));
    let table = table.take_while(|line| line.starts_with('|'));
    // After the head and the line below it.
    let cells = |line: &str| {
        line.trim_matches('|').split('|').map(|cell| cell.trim().replace('`', "")).collect()
    };
    table.skip(2).map(cells).collect()
}

#[test]
fn the_page_lists_every_measure_with_its_line_and_engines() {
    let on = |engines: &[Engine]| match engines.contains(&Engine::Sqlite) {
        true => "both",
        false => "PostgreSQL",
    };
    let expected = ALL
        .iter()
        .map(|it| vec![it.name.to_owned(), it.what.to_owned(), on(it.engines).to_owned()]);
    assert_eq!(rows("## Measures"), expected.collect::<Vec<_>>());
}

#[test]
fn the_page_lists_every_peer_with_its_version_and_what_it_leaves_out() {
    let expected = PEERS.iter().map(|it| {
        let (name, letters) = (it.name, it.letters());
        let name = if letters.is_empty() { name.to_owned() } else { format!("{name} ({letters})") };
        let rest =
            [it.version(), it.store.name(), it.finished, it.fence, it.durability, it.settings];
        [name].into_iter().chain(rest.map(str::to_owned)).collect()
    });
    assert_eq!(rows("### Peers"), expected.collect::<Vec<Vec<_>>>());
}

#[test]
fn the_page_lists_every_target() {
    let expected = targets().into_iter().map(|it| vec![it.what.to_owned(), it.against, it.needs]);
    assert_eq!(rows("### Targets"), expected.collect::<Vec<_>>());
}
