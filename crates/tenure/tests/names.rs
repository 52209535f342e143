//! The names at the root of the crate are a promise: a file lists them, and a change of one shows in
//! a diff of that file.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

/// What `lib.rs` makes public at the root, sorted: the names it re-exports, and its modules.
fn at_the_root() -> Vec<String> {
    let lib = include_str!("../src/lib.rs");
    let code: Vec<&str> = lib.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    let mut names = Vec::new();
    for item in code.split(';').map(str::trim) {
        let item = item.rsplit("\n\n").next().unwrap_or(item);
        let item = item.lines().last().map_or(item, |last| {
            if last.trim_start().starts_with("pub ") { last.trim() } else { item }
        });
        if let Some(module) = item.strip_prefix("pub mod ") {
            names.push(format!("mod {module}"));
        } else if let Some(used) = item.strip_prefix("pub use self::") {
            let (_, last) = used.rsplit_once("::").unwrap();
            let used = used.split_once('{').map_or(last, |(_, list)| list.trim_end_matches('}'));
            let each = used.split(',').map(str::trim).filter(|name| !name.is_empty());
            names.extend(each.map(str::to_owned));
        }
    }
    names.sort();
    names
}

#[test]
fn the_names_at_the_root_are_those_of_the_list() {
    let listed: Vec<&str> = include_str!("names.txt").lines().collect();
    let found = at_the_root();
    assert_eq!(found, listed, "crates/tenure/tests/names.txt is to be changed on purpose");
    let types = found.iter().filter(|name| !name.starts_with("mod ")).count();
    assert!((25..=40).contains(&types), "{types} names at the root");
}
