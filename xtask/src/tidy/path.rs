//! How much a reader must read to follow a job from its enqueueing to its end on SQLite. The list
//! of files is in ARCHITECTURE.md. The check keeps it short.

use std::path::Path;
use std::{fmt, fs};

use super::Finding;

/// The page that lists the files, and the lines around the list.
pub(super) const PAGE: &str = "ARCHITECTURE.md";
const BEGINS: &str = "<!-- the path of a job -->";
const ENDS: &str = "<!-- its end -->";

const MOST_FILES: usize = 15;
const MOST_LINES: usize = 3_500;

/// The length of the path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Length {
    files: usize,
    lines: usize,
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Length { files, lines } = self;
        write!(f, "from enqueue to done on SQLite: {files} files, {lines} lines without unit tests")
    }
}

/// Measures the path that a page gives, or says what is wrong with it.
pub(super) fn measure(page: &str, root: &Path) -> Result<Length, Finding> {
    let wrong = |rule: String| Finding { file: PAGE.into(), line: 1, rule };
    let Some(list) = between(page) else {
        return Err(wrong(format!("no list between `{BEGINS}` and `{ENDS}`")));
    };
    let mut length = Length { files: 0, lines: 0 };
    for (_, file) in super::links::targets(list) {
        let Ok(text) = fs::read_to_string(root.join(file)) else {
            return Err(wrong(format!("{file} is on the path of a job, and cannot be read")));
        };
        length.files += 1;
        length.lines += lines(&text);
    }
    if length.files == 0 || length.files > MOST_FILES || length.lines > MOST_LINES {
        let most = format!("at most {MOST_FILES} files and {MOST_LINES} lines");
        return Err(wrong(format!("{length}; {most} are allowed: what can a reader do without?")));
    }
    Ok(length)
}

fn between(page: &str) -> Option<&str> {
    Some(page.split_once(BEGINS)?.1.split_once(ENDS)?.0)
}

fn lines(text: &str) -> usize {
    text.lines().take_while(|line| *line != "#[cfg(test)]").count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> std::path::PathBuf {
        crate::root()
    }

    fn page(list: &str) -> String {
        format!("before [x](nothing.rs)\n{BEGINS}\n{list}\n{ENDS}\nafter [y](nothing.rs)\n")
    }

    #[test]
    fn the_path_is_what_the_page_lists() {
        let found = measure(&page("1. [tidy](xtask/src/tidy.rs)"), &root()).unwrap();
        assert_eq!(found.files, 1);
        assert!(found.lines > 100 && found.lines < 600, "{found}");
        assert_eq!(lines("a\nb\n#[cfg(test)]\nmod tests;\n"), 2);
    }

    #[test]
    fn a_path_that_is_too_long_or_leads_nowhere_is_found() {
        let rule = |list: &str| measure(&page(list), &root()).unwrap_err().rule;
        assert!(rule("").contains("at most 15 files"));
        assert!(rule("[a](xtask/src/nothing.rs)").contains("cannot be read"));
        assert!(rule(&"[a](xtask/src/tidy.rs) ".repeat(16)).contains("16 files"));
        assert!(measure("no list", &root()).unwrap_err().rule.contains("no list"));
    }
}
