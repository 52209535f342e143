//! The library's modules use each other in one direction, so that each can be read without those
//! above it.

use super::Finding;

/// The modules of the library, from the ground up. Each may use those before it.
const ORDER: [&str; 19] = [
    "clock",
    "job",
    "lease",
    "record",
    "lifecycle",
    "ledger",
    "inspect",
    "telemetry",
    "store",
    "json",
    "desk",
    "client",
    "handler",
    "sqlite",
    "postgres",
    "worker",
    "testing",
    "drill",
    "engine",
];

/// Parts of a module that must not use each other.
const APART: [(&str, &str); 2] =
    [("store/sqlite", "store::postgres"), ("store/postgres", "store::sqlite")];

const LIBRARY: &str = "crates/tenure/src/";

/// The lines of a file that use a module above its own. Comments may name any module, and so may
/// unit tests, which come last in a file.
pub(super) fn in_file(file: &str, text: &str) -> Vec<Finding> {
    let Some(path) = file.strip_prefix(LIBRARY).filter(|path| path.ends_with(".rs")) else {
        return Vec::new();
    };
    let is_test = path.contains("/tests/") || path.ends_with("/tests.rs");
    if path == "lib.rs" || is_test {
        return Vec::new();
    }
    let module = path.split('/').next().unwrap_or(path).trim_end_matches(".rs");
    let finding = |index: usize, rule| Finding { file: file.to_owned(), line: index + 1, rule };
    let Some(height) = height(module) else {
        let rule = format!(
            "`{module}` has no place in the order of modules: xtask/src/tidy/directions.rs"
        );
        return vec![finding(0, rule)];
    };
    let product = text.lines().enumerate().take_while(|(_, line)| *line != "#[cfg(test)]");
    let mut found = Vec::new();
    for (index, line) in product {
        let code = line.split_once("//").map_or(line, |(code, _)| code);
        for used in code.split("crate::").skip(1) {
            let name: String =
                used.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            if used.starts_with('{') {
                found.push(finding(index, "name one module in each `use crate::…`".into()));
            }
            if self::height(&name).is_some_and(|used| used > height) {
                found.push(finding(
                    index,
                    format!("`{module}` must not use `{name}`: it is above it"),
                ));
            }
            for (part, other) in APART {
                if path.starts_with(part) && used.starts_with(other) {
                    found.push(finding(index, format!("`{part}` must not use `{other}`")));
                }
            }
        }
    }
    found
}

fn height(module: &str) -> Option<usize> {
    ORDER.iter().position(|name| *name == module)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(path: &str, text: &str) -> Vec<usize> {
        in_file(&format!("{LIBRARY}{path}"), text).iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn a_module_uses_only_those_below_it() {
        let text = "use crate::clock::Moment;\nuse crate::job::Name;\n";
        assert_eq!(broken("desk/hold.rs", text), []);
        let text = "use crate::worker::Plan;\nfn f(it: crate::client::Tenure) {}\n";
        assert_eq!(broken("desk.rs", text), [1, 2]);
        assert_eq!(broken("worker/build.rs", text), []);
        assert_eq!(broken("desk.rs", "use crate::{job::Name, worker::Plan};\n"), [1]);
        let comment =
            "/// See [`Plan`](crate::worker::Plan).\n#[cfg(test)]\nuse crate::worker::Plan;\n";
        assert_eq!(broken("desk.rs", comment), []);
    }

    #[test]
    fn the_engines_do_not_use_each_other() {
        let text = "use crate::store::postgres::row;\n";
        assert_eq!(broken("store/sqlite/claim.rs", text), [1]);
        assert_eq!(broken("store/place.rs", text), []);
    }

    #[test]
    fn a_new_module_must_take_a_place_in_the_order() {
        assert_eq!(broken("meters.rs", ""), [1]);
        assert_eq!(broken("lib.rs", "pub use self::worker::Worker;\n"), []);
    }
}
