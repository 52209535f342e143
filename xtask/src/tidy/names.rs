//! No two public types of the library share a name, so that a name in a message, a page or an
//! answer of a search means one thing.

use super::Finding;

const LIBRARY: &str = "crates/tenure/src/";

/// The public types that were found so far: the name of each, and where it stands.
#[derive(Debug, Default)]
pub(super) struct Types(Vec<(String, String)>);

impl Types {
    /// Adds the types of a file, and reports those whose name is another one's too.
    pub(super) fn read(&mut self, file: &str, text: &str) -> Vec<Finding> {
        if !file.starts_with(LIBRARY) || !file.ends_with(".rs") {
            return Vec::new();
        }
        let mut findings = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let Some(name) = name_of(line) else { continue };
            if let Some((_, elsewhere)) = self.0.iter().find(|(other, _)| other == name) {
                let rule = format!("`{name}` is a public type of {elsewhere} too: rename one");
                findings.push(Finding { file: file.to_owned(), line: at + 1, rule });
            }
            self.0.push((name.to_owned(), file.to_owned()));
        }
        findings
    }
}

/// The name of the public type that this line declares.
fn name_of(line: &str) -> Option<&str> {
    let declared = line.trim_start().strip_prefix("pub ")?;
    let kinds = ["struct ", "enum ", "trait ", "union "];
    let rest = kinds.iter().find_map(|kind| declared.strip_prefix(kind))?;
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_public_type_of_a_name_is_found_and_says_where_the_first_is() {
        let mut types = Types::default();
        let text = "pub struct Lease<'a> {\n}\npub(crate) struct Held;\npub enum State {}\n";
        assert_eq!(types.read("crates/tenure/src/lease.rs", text), []);
        assert_eq!(types.read("crates/tenure-drill/src/lease.rs", text), []);
        let found =
            types.read("crates/tenure/src/job.rs", "pub struct Held;\n    pub trait State {\n");
        let told: Vec<String> = found.iter().map(ToString::to_string).collect();
        let expected = "crates/tenure/src/job.rs:2: `State` is a public type of \
             crates/tenure/src/lease.rs too: rename one";
        assert_eq!(told, [expected]);
    }
}
