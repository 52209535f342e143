//! Where args are read from: stdin as a whole, or a file or stdin line by line.
//!
//! Of each value, at most as much is kept in memory as a job's args may have. The rest is only
//! counted, so that the error can name the size.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, Result};
use tenure::engine::job::{Invalid, Json, Limits};

use super::check_args;
use crate::args::BadInput;
use crate::output::say;

/// Room for white space around args that are just within the limit.
const SLACK: usize = 1024;

/// Reads all of stdin, as one value of at most `limit` bytes.
pub(crate) fn all_of_stdin(field: &'static str, limit: usize) -> Result<String> {
    invite();
    let mut stdin = io::stdin().lock();
    let mut bytes = Vec::new();
    let keep = (limit + SLACK) as u64;
    let dropped = stdin
        .by_ref()
        .take(keep)
        .read_to_end(&mut bytes)
        .and_then(|_| io::copy(&mut stdin, &mut io::sink()))
        .context("cannot read stdin")?;
    let size = bytes.len() + usize::try_from(dropped).unwrap_or(usize::MAX);
    Ok(text(field, limit, &bytes, size)?)
}

/// Tells a person who typed `-` by mistake that the program waits for input.
fn invite() {
    if io::stdin().is_terminal() {
        say("reading from stdin; end with Ctrl-D");
    }
}

/// The text of `bytes`, which are the beginning of an input of this size.
fn text(field: &'static str, limit: usize, bytes: &[u8], size: usize) -> Result<String, BadInput> {
    if size > bytes.len() {
        return Err(BadInput(Invalid::TooLarge { field, size, limit }.to_string()));
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(_) => Err(BadInput(format!(
            "{field}: the text is not UTF-8; convert it first, for example with iconv"
        ))),
    }
}

/// A file or stdin, open for reading.
pub(super) struct Source {
    name: String,
    reader: BufReader<File>,
    /// Where reading began, if the source can be rewound.
    start: Option<u64>,
}

impl Source {
    /// Opens a file; `-` is stdin, which may be a file as well.
    pub(super) fn open(path: &Path) -> Result<Source> {
        let (name, file) = if path == Path::new("-") {
            invite();
            let stdin = io::stdin().as_fd().try_clone_to_owned().map(File::from);
            ("stdin".to_owned(), stdin)
        } else {
            (path.display().to_string(), File::open(path))
        };
        let unreadable = |cause| BadInput(format!("cannot read {name}: {cause}; check --file"));
        let mut file = file.map_err(unreadable)?;
        let kind = file.metadata().map_err(unreadable)?;
        if kind.is_dir() {
            return Err(BadInput(format!("{name} is a directory; name a file with --file")).into());
        }
        let start = if kind.is_file() { file.stream_position().ok() } else { None };
        Ok(Source { name, reader: BufReader::new(file), start })
    }

    pub(super) fn can_rewind(&self) -> bool {
        self.start.is_some()
    }

    /// Goes back to where reading began.
    pub(super) fn rewind(&mut self) -> Result<()> {
        let start = SeekFrom::Start(self.start.unwrap_or(0));
        let sought = self.reader.seek(start);
        sought.with_context(|| format!("cannot read {} again", self.name))?;
        Ok(())
    }
}

/// The args on each line that is not blank. An error names its line.
pub(super) struct Lines<'a> {
    source: &'a mut Source,
    number: u64,
}

impl<'a> Lines<'a> {
    pub(super) fn of(source: &'a mut Source) -> Lines<'a> {
        Lines { source, number: 0 }
    }
}

impl Iterator for Lines<'_> {
    type Item = Result<Json, BadInput>;

    fn next(&mut self) -> Option<Result<Json, BadInput>> {
        let mut bytes = Vec::new();
        let checked = loop {
            bytes.clear();
            self.number += 1;
            match read_line(&mut self.source.reader, &mut bytes) {
                Ok(0) => return None,
                Ok(_) if bytes.trim_ascii().is_empty() => {}
                Ok(size) => {
                    break text("args", Limits::default().args, &bytes, size).and_then(|text| {
                        check_args(text).map_err(|invalid| BadInput(invalid.to_string()))
                    });
                }
                Err(cause) => break Err(BadInput(format!("cannot be read: {cause}"))),
            }
        };
        let place =
            |BadInput(why)| BadInput(format!("{} line {}: {why}", self.source.name, self.number));
        Some(checked.map_err(place))
    }
}

/// Reads one line and returns its size, zero at the end. `kept` gets no more than a job may have.
fn read_line(reader: &mut impl BufRead, kept: &mut Vec<u8>) -> io::Result<usize> {
    let keep = Limits::default().args + SLACK;
    let mut size = 0;
    loop {
        let chunk = match reader.fill_buf() {
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => continue,
            chunk => chunk?,
        };
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let part = end.map_or(chunk.len(), |end| end + 1);
        kept.extend_from_slice(&chunk[..part.min(keep - kept.len())]);
        size += part;
        reader.consume(part);
        if part == 0 || end.is_some() {
            return Ok(size);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(mut text: &[u8]) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        loop {
            let mut kept = Vec::new();
            match read_line(&mut text, &mut kept).unwrap() {
                0 => return found,
                size => found.push((size, kept.len())),
            }
        }
    }

    #[test]
    fn a_line_ends_at_its_newline_or_with_the_file() {
        assert_eq!(lines(b"{}\n\n{}"), [(3, 3), (1, 1), (2, 2)]);
        assert_eq!(lines(b""), []);
    }

    #[test]
    fn a_line_above_the_limit_is_counted_but_not_kept() {
        let limit = Limits::default().args;
        let text = [vec![b'x'; 4 * limit], b"\n{}\n".to_vec()].concat();
        assert_eq!(lines(&text), [(4 * limit + 1, limit + SLACK), (3, 3)]);
    }
}
