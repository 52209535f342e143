//! The only error of this crate. A test can only show it, so it is a text.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// What could not be done, and what the programs printed.
pub struct Error(String);

impl Error {
    pub(crate) fn new(text: impl Into<String>) -> Error {
        Error(text.into())
    }

    /// An error of the file system.
    pub(crate) fn at(doing: &str, path: &Path, error: &io::Error) -> Error {
        Error(format!("cannot {doing} {}: {error}", path.display()))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// Tests call `unwrap`, which prints `Debug`. Escaped line ends would make a log unreadable.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// Runs a command to its end and returns its stdout, or an error with everything it printed.
pub(crate) fn run(command: &mut Command) -> Result<String, Error> {
    let output = command.stdin(Stdio::null()).output();
    answer(command, output)
}

/// The output of a command that has ended.
pub(crate) fn answer(command: &Command, output: io::Result<Output>) -> Result<String, Error> {
    let program = command.get_program().to_string_lossy();
    let output = output.map_err(|error| Error(format!("cannot run {program}: {error}")))?;
    let printed = String::from_utf8_lossy(&output.stdout).trim_end().to_owned();
    if output.status.success() {
        return Ok(printed);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
    Err(Error(format!(
        "{program} {} failed ({}):\n{printed}\n{}",
        words.join(" "),
        output.status,
        said.trim_end()
    )))
}
