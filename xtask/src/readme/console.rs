//! The content of a console block: commands after `$ `, and under each its output.
//!
//! `…` stands for any text within a line, and for any number of lines if it stands alone. A command
//! without output under it may print anything. It must succeed, unless a last line `[exit N]` gives
//! its exit code.

use crate::markdown::{Piece, pieces};

/// A command of a page, and what the page says happens.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub(super) line: usize,
    pub(super) text: String,
    output: Vec<String>,
    exit: i32,
}

/// What really happened.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Happened {
    pub(super) output: Vec<String>,
    pub(super) exit: i32,
}

/// The commands in the console blocks of a page, in order.
pub(super) fn commands(page: &str) -> Result<Vec<Command>, String> {
    let mut commands = Vec::new();
    for piece in pieces(page) {
        if let Piece::Block { line, language: "console", body } = piece {
            commands.extend(in_block(line, &body)?);
        }
    }
    Ok(commands)
}

fn in_block(first: usize, body: &[&str]) -> Result<Vec<Command>, String> {
    let mut commands: Vec<Command> = Vec::new();
    let mut lines = (first..).zip(body);
    while let Some((line, text)) = lines.next() {
        if let Some(start) = text.strip_prefix("$ ") {
            let mut text = start.to_owned();
            while text.ends_with('\\')
                && let Some((_, more)) = lines.next()
            {
                text = format!("{text}\n{more}");
            }
            commands.push(Command { line, text, output: Vec::new(), exit: 0 });
        } else if let Some(command) = commands.last_mut() {
            command.output.push((*text).to_owned());
        } else if !text.is_empty() && !text.starts_with('#') {
            return Err(format!("line {line}: output without a command; commands begin with `$ `"));
        }
    }
    commands.iter_mut().for_each(Command::take_exit);
    Ok(commands)
}

impl Command {
    fn take_exit(&mut self) {
        trim_end(&mut self.output);
        let exit =
            self.output.last().and_then(|last| last.strip_prefix("[exit ")?.strip_suffix(']'));
        if let Some(exit) = exit.and_then(|number| number.parse().ok()) {
            self.exit = exit;
            self.output.pop();
            trim_end(&mut self.output);
        }
    }

    /// What is wrong with what happened, if anything.
    pub(super) fn complaint(&self, happened: &Happened) -> Option<String> {
        let mut complaints = Vec::new();
        let mut got = happened.output.clone();
        trim_end(&mut got);
        let printed_as_written = self.output.is_empty() || lines_match(&self.output, &got);
        if !printed_as_written {
            complaints.push(difference(&self.output, &got));
        }
        if self.exit != happened.exit {
            complaints
                .push(format!("  expected [exit {}], got [exit {}]", self.exit, happened.exit));
            if printed_as_written {
                complaints.extend(got.iter().map(|line| format!("    {line}")));
            }
        }
        (!complaints.is_empty()).then(|| complaints.join("\n"))
    }
}

fn trim_end(lines: &mut Vec<String>) {
    while lines.last().is_some_and(|line| line.trim().is_empty()) {
        lines.pop();
    }
}

fn lines_match(expected: &[String], got: &[String]) -> bool {
    match expected.split_first() {
        None => got.is_empty(),
        Some((first, rest)) if first.trim() == "…" => {
            (0..=got.len()).any(|skipped| lines_match(rest, &got[skipped..]))
        }
        Some((first, rest)) => got
            .split_first()
            .is_some_and(|(line, more)| line_matches(first, line) && lines_match(rest, more)),
    }
}

/// Whether a line is as expected. Trailing white space is ignored.
fn line_matches(expected: &str, got: &str) -> bool {
    let (expected, got) = (expected.trim_end(), got.trim_end());
    let Some((start, rest)) = expected.split_once('…') else { return expected == got };
    let Some(mut got) = got.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('…').collect();
    let end = parts.pop().unwrap_or_default();
    // The earliest match of each part leaves the most text for those after it.
    for part in parts {
        match got.split_once(part) {
            Some((_, after)) => got = after,
            None => return false,
        }
    }
    got.ends_with(end)
}

/// Expected and actual output, marked with - and +. Lines that agree at the beginning and at the
/// end appear once, without a mark.
fn difference(expected: &[String], got: &[String]) -> String {
    let agree = |(a, b): &(&String, &String)| a.trim() != "…" && line_matches(a, b);
    let before = expected.iter().zip(got).take_while(agree).count();
    let (expected, got_rest) = (&expected[before..], &got[before..]);
    let after = expected.iter().rev().zip(got_rest.iter().rev()).take_while(agree).count();
    let (lost, come) = (&expected[..expected.len() - after], &got_rest[..got_rest.len() - after]);
    let mark = |mark: &'static str| move |line: &String| format!("  {mark} {line}");
    let lines = (got[..before].iter().map(mark(" ")))
        .chain(lost.iter().map(mark("-")))
        .chain(come.iter().map(mark("+")))
        .chain(got[got.len() - after..].iter().map(mark(" ")));
    let lines: Vec<String> = lines.collect();
    format!("  - expected, + got\n{}", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(block: &str) -> Command {
        let mut commands = commands(&format!("```console\n{block}\n```\n")).unwrap();
        assert_eq!(commands.len(), 1);
        commands.remove(0)
    }

    fn printed(output: &str) -> Happened {
        Happened { output: output.lines().map(str::to_owned).collect(), exit: 0 }
    }

    fn matches(expected: &str, output: &str) -> bool {
        one(&format!("$ x\n{expected}")).complaint(&printed(output)).is_none()
    }

    #[test]
    fn a_block_holds_commands_and_their_output() {
        let page = "# Tenure
```console
# in one terminal
$ tenure enqueue hello \\
    --args '{}'
job 1

$ tenure stats
```
```sh
$ not ours
```
";
        let commands = commands(page).unwrap();
        let seen: Vec<_> =
            commands.iter().map(|c| (c.line, c.text.as_str(), c.output.len())).collect();
        assert_eq!(
            seen,
            [(4, "tenure enqueue hello \\\n    --args '{}'", 1), (8, "tenure stats", 0)]
        );
    }

    #[test]
    fn output_without_a_command_is_a_mistake_of_the_page() {
        assert!(commands("```console\ntenure stats\n```\n").unwrap_err().contains("line 2"));
    }

    #[test]
    fn a_command_without_output_may_print_anything() {
        assert_eq!(one("$ x\n").complaint(&printed("a\nb")), None);
    }

    #[test]
    fn an_ellipsis_stands_for_text_within_a_line() {
        assert!(matches("job …", "job 1042"));
        assert!(matches("job … in …, … ms", "job 7 in default, 12 ms"));
        assert!(matches("…!", "!!"));
        assert!(!matches("job …!", "job"));
        assert!(!matches("a…a", "a"));
        assert!(!matches("job 1", "job 10"));
    }

    #[test]
    fn an_ellipsis_alone_stands_for_lines() {
        assert!(matches("a\n…\nd", "a\nb\nc\nd"));
        assert!(matches("a\n…\nd", "a\nd"));
        assert!(matches("…", ""));
        assert!(!matches("a\n…\nd", "a\nb"));
        assert!(!matches("a", "a\nb"));
    }

    #[test]
    fn a_command_ends_as_it_says() {
        let failing = one("$ x\nno job 9\n[exit 1]");
        let happened = Happened { exit: 1, ..printed("no job 9") };
        assert_eq!(failing.complaint(&happened), None);
        assert!(
            failing
                .complaint(&printed("no job 9"))
                .unwrap()
                .contains("expected [exit 1], got [exit 0]")
        );
        let any = one("$ x");
        assert!(any.complaint(&happened).unwrap().contains("no job 9"));
    }

    #[test]
    fn a_difference_shows_both_sides_and_what_agrees() {
        let complaint =
            one("$ x\nsame …\nold\nend").complaint(&printed("same 1\nnew\nend")).unwrap();
        assert_eq!(complaint, "  - expected, + got\n    same 1\n  - old\n  + new\n    end");
    }
}
