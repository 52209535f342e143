//! Links from a Markdown page of the repository to another file of it. Links to other sites are not
//! checked.

use std::collections::BTreeSet;

use super::Finding;
use crate::markdown::{Piece, pieces};

/// The relative links of a page that lead nowhere.
pub(super) fn in_page(file: &str, text: &str, files: &BTreeSet<String>) -> Vec<Finding> {
    if !file.ends_with(".md") {
        return Vec::new();
    }
    let broken =
        targets(text).into_iter().filter(|(_, target)| !leads_somewhere(file, target, files));
    broken
        .map(|(line, target)| Finding {
            file: file.to_owned(),
            line,
            rule: format!("the link to {target} leads to no file of the repository"),
        })
        .collect()
}

/// The targets of a page's links, without the part after `#`. Links to other sites and within the
/// page are left out.
pub(super) fn targets(page: &str) -> Vec<(usize, &str)> {
    let mut targets = Vec::new();
    for piece in pieces(page) {
        let Piece::Prose { line, text } = piece else { continue };
        // Every second part is code. A link whose text is code still has its brackets outside.
        for part in text.split('`').step_by(2) {
            let inline = part.split("](").skip(1).filter_map(|rest| rest.split(')').next());
            let defined = part.strip_prefix('[').and_then(|rest| Some(rest.split_once("]: ")?.1));
            let found = inline.chain(defined).filter_map(path).map(|target| (line, target));
            targets.extend(found);
        }
    }
    targets
}

/// The path in a link's target: `page.md#part "title"` is `page.md`.
fn path(target: &str) -> Option<&str> {
    let target = target.split_whitespace().next()?;
    let target = target.trim_start_matches('<').trim_end_matches('>');
    let path = target.split('#').next()?;
    let elsewhere = target.contains("://") || target.starts_with("mailto:");
    (!elsewhere && !path.is_empty()).then_some(path)
}

fn leads_somewhere(file: &str, target: &str, files: &BTreeSet<String>) -> bool {
    let directory = file.rsplit_once('/').map_or("", |(directory, _)| directory);
    let start = if target.starts_with('/') { "" } else { directory };
    let mut path = Vec::new();
    for part in start.split('/').chain(target.split('/')) {
        match part {
            "" | "." => {}
            ".." if path.pop().is_none() => return false,
            ".." => {}
            part => path.push(part),
        }
    }
    let path = path.join("/");
    let within = format!("{path}/");
    path.is_empty() || files.contains(&path) || files.iter().any(|file| file.starts_with(&within))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(file: &str, page: &str) -> Vec<(usize, String)> {
        let files = ["README.md", "docs/lifecycle.md", "docs/decisions/0001-ids.md"];
        let files = files.map(str::to_owned).into();
        in_page(file, page, &files).into_iter().map(|found| (found.line, found.rule)).collect()
    }

    #[test]
    fn links_to_files_and_directories_of_the_repository_hold() {
        let page = "[a](docs/lifecycle.md#states) [b](docs/ 'all')
![c](./README.md) [`d`](<docs/lifecycle.md>)
[e]: docs/decisions/0001-ids.md
";
        assert_eq!(broken("README.md", page), []);
        assert_eq!(broken("docs/lifecycle.md", "[up](../README.md) [top](/README.md)"), []);
    }

    #[test]
    fn links_to_missing_files_are_found_on_their_line() {
        let lines = |page| broken("docs/lifecycle.md", page).into_iter().map(|found| found.0);
        assert!(lines("fine\n[a](lifecycle.md), [b](README.md)\n\n[c]: gone.md").eq([2, 4]));
        assert!(lines("[out](../../README.md)").eq([1]));
    }

    #[test]
    fn links_elsewhere_and_in_code_are_not_followed() {
        let page = "[a](https://example.org/x) [b](#part) [c](mailto:a@b.c) `[d](gone.md)`
```text
[e](gone.md)
```
";
        assert_eq!(broken("README.md", page), []);
    }
}
