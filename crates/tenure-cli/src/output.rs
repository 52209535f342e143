//! The place that writes to stdout and stderr. Only events (`log.rs`) and progress bars are written
//! elsewhere.
//!
//! Text from a store may come from anywhere: an error message may contain escape sequences that
//! repaint a terminal. So every line passes [`harmless`] here, and JSON passes a filter of its own.
//! No command has to think of that.

mod table;

use std::io::{self, BufWriter, ErrorKind, IsTerminal, Stdout, Write};

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

pub(crate) use self::table::{Column, Table};

/// Where answers go.
pub(crate) struct Output {
    json: bool,
    stdout: BufWriter<Stdout>,
    /// The reader has closed the pipe, as `head` does when it has seen enough. Then no answer is
    /// written, but the command still does its work.
    closed: bool,
}

impl Output {
    /// Answers for people, or for programs.
    pub(crate) fn new(json: bool) -> Output {
        Output { json, stdout: BufWriter::new(io::stdout()), closed: false }
    }

    /// Whether the answer is for a program.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// One line of an answer for people.
    pub(crate) fn line(&mut self, text: &str) -> Result<()> {
        let mut line = harmless(text);
        line.push('\n');
        self.put(line.as_bytes())
    }

    /// Rows under their headings.
    pub(crate) fn table(&mut self, table: &Table) -> Result<()> {
        table.lines().iter().try_for_each(|line| self.line(line))
    }

    /// One whole answer for programs.
    pub(crate) fn document(&mut self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(value).context("cannot write the answer as JSON")?;
        self.json_text(&text)
    }

    /// JSON text from the store.
    pub(crate) fn json_text(&mut self, text: &str) -> Result<()> {
        let mut text = harmless_json(text);
        text.push('\n');
        self.put(text.as_bytes())
    }

    /// Bytes that this program produced itself.
    pub(crate) fn verbatim(&mut self, bytes: &[u8]) -> Result<()> {
        self.put(bytes)
    }

    /// Prints a message about the answer so far. The answer is written out first, because on a
    /// terminal both are on the same screen.
    pub(crate) fn say(&mut self, text: &str) -> Result<()> {
        self.flush()?;
        say(text);
        Ok(())
    }

    /// Writes out what is buffered.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.closed {
            return Ok(());
        }
        let flushed = self.stdout.flush();
        self.noticing_a_closed_pipe(flushed)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        if self.closed {
            return Ok(());
        }
        let written = self.stdout.write_all(bytes);
        self.noticing_a_closed_pipe(written)
    }

    fn noticing_a_closed_pipe(&mut self, result: io::Result<()>) -> Result<()> {
        match result {
            Err(cause) if cause.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(())
            }
            other => other.context("cannot write the answer to stdout"),
        }
    }
}

/// Prints a message to stderr. Further lines are indented, so that a text from the store cannot
/// look like a message of this program.
pub(crate) fn say(text: &str) {
    let lines: Vec<String> = text.lines().map(harmless).collect();
    // If stderr is closed, there is nowhere to report that.
    let _ = writeln!(io::stderr().lock(), "{}", lines.join("\n  "));
}

/// Prints help, or what is wrong with the usage. A usage error repeats the user's arguments, so it
/// passes the same filter, line by line; help contains only our own text and keeps its style.
pub(crate) fn usage(error: &clap::Error) {
    if error.use_stderr() {
        let text = error.render().to_string();
        text.trim_end().lines().for_each(say);
    } else {
        // A closed pipe is not a failure.
        let _ = error.print();
    }
}

/// A progress bar for long work, drawn on stderr if a person is there to see it. `None`: the total
/// is unknown.
pub(crate) fn progress(total: Option<u64>, doing: &'static str) -> ProgressBar {
    const LONG: u64 = tenure::engine::job::BATCH_LIMIT as u64;
    if !io::stderr().is_terminal() || total.is_some_and(|total| total <= LONG) {
        return ProgressBar::hidden();
    }
    let (bar, template) = match total {
        Some(total) => {
            (ProgressBar::new(total), "{msg} [{bar:30}] {human_pos}/{human_len}  {eta} left")
        }
        None => (ProgressBar::no_length(), "{msg} {human_pos}"),
    };
    let style = ProgressStyle::with_template(template).map(|style| style.progress_chars("=> "));
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_message(doing)
}

/// The text with every character escaped that a terminal would interpret instead of show.
pub(crate) fn harmless(text: &str) -> String {
    escape(text, |c| c.escape_default().to_string())
}

/// The same for JSON, whose value does not change: such characters occur only within its strings,
/// except for the white space between values.
pub(crate) fn harmless_json(text: &str) -> String {
    escape(text, |c| match c {
        '\n' | '\t' => c.to_string(),
        '\r' => " ".to_owned(),
        c => format!("\\u{:04x}", u32::from(c)),
    })
}

fn escape(text: &str, replace: impl Fn(char) -> String) -> String {
    if !text.contains(is_obeyed) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_obeyed(c) { out.push_str(&replace(c)) } else { out.push(c) }
    }
    out
}

/// Whether a terminal obeys this character: a control character, or one that changes the direction
/// or the line of what follows.
fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{feff}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_would_move_the_cursor_or_turn_the_line_is_shown_instead() {
        let hostile = "a\x1b[31m\u{9b}2J\r\n\u{202e}b\x07é";
        assert_eq!(harmless(hostile), "a\\u{1b}[31m\\u{9b}2J\\r\\n\\u{202e}b\\u{7}é");
        assert_eq!(harmless("plain – text"), "plain – text");
    }

    #[test]
    fn hostile_json_keeps_its_value() {
        let json = "[\"\u{9b}31m\u{202e}\",\r\n1]";
        let safe = harmless_json(json);
        assert!(safe.chars().all(|c| c == '\n' || !is_obeyed(c)), "{safe:?}");
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&safe), value(json));
    }
}
