//! Tables in the pages that must agree with what a test has found, between `<!-- name -->` and
//! `<!-- /name -->`.
//!
//! They are compared line by line. With `TENURE_WRITE_PAGES=1` the rows are written into the page
//! instead, so that new figures take one command and a diff to read.

use std::fs;
use std::path::Path;

/// The page with the figures of the proof.
pub(crate) const PROOF: &str = "docs/proof.md";

/// Compares the table of this name, without its two heading lines, with these rows. Only rows of
/// the page for which `ours` returns true count.
pub(crate) fn says(page: &str, name: &str, ours: impl Fn(&str) -> bool, rows: &[String]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let (before, rest) = text.split_once(&begin).unwrap();
    let (table, after) = rest.split_once(&end).unwrap();
    let lines: Vec<&str> = table.lines().collect();
    let (heading, stated) = lines.split_at(2);
    let (stated, others): (Vec<&str>, Vec<&str>) = stated.iter().partition(|line| ours(line));
    if stated == rows {
        return;
    }
    if std::env::var_os("TENURE_WRITE_PAGES").is_none() {
        panic!("{page} should say, and will with TENURE_WRITE_PAGES=1:\n{}", rows.join("\n"));
    }
    let all = heading.iter().copied().chain(rows.iter().map(String::as_str)).chain(others);
    let table: String = all.map(|line| format!("{line}\n")).collect();
    fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
}

/// With thousands separators: 12,345.
pub(crate) fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    groups.map(|group| std::str::from_utf8(group).unwrap()).collect::<Vec<_>>().join(",")
}
