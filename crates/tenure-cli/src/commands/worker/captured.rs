//! What is kept of a command's output. A command may write without end, so what is kept has a
//! limit, and the rest is counted or dropped.

use serde::de::IgnoredAny;
use tenure::Json;

/// Which part of stdout is the result, if it is JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ResultFrom {
    /// All of stdout
    Stdout,
    /// Its last line that is not blank; what comes before may be anything
    LastLine,
}

/// What a command wrote to stdout: its result, if it is JSON.
pub(crate) struct Stdout {
    from: ResultFrom,
    /// All of it, or the current line.
    text: Text,
    /// The last complete line that was not blank, if the result is a line.
    last_line: Option<Text>,
}

/// The result in stdout.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Result(Json),
    /// Nothing but white space was written.
    Nothing,
    /// It is not JSON, so there is no result.
    NotJson,
    /// The output is above the limit, and the part that was kept may be the beginning of JSON.
    TooLarge {
        size: usize,
    },
}

impl Stdout {
    pub(crate) fn new(from: ResultFrom, limit: usize) -> Stdout {
        Stdout { from, text: Text::new(limit), last_line: None }
    }

    pub(crate) fn take(&mut self, bytes: &[u8]) {
        if self.from == ResultFrom::Stdout {
            return self.text.take(bytes);
        }
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.text.take(part);
            if part.ends_with(b"\n") && !self.text.is_blank() {
                let next = Text::new(self.text.limit);
                self.last_line = Some(std::mem::replace(&mut self.text, next));
            }
        }
    }

    pub(crate) fn finish(self) -> Output {
        match self.last_line {
            Some(line) if self.text.is_blank() => line.finish(),
            _ => self.text.finish(),
        }
    }
}

/// The beginning of a text of any length.
struct Text {
    limit: usize,
    /// From the first byte that is not white space, up to the limit.
    begin: Vec<u8>,
    /// The number of bytes since then.
    seen: usize,
    /// The same, without trailing white space.
    size: usize,
}

impl Text {
    fn new(limit: usize) -> Text {
        Text { limit, begin: Vec::new(), seen: 0, size: 0 }
    }

    fn is_blank(&self) -> bool {
        self.size == 0
    }

    fn take(&mut self, mut bytes: &[u8]) {
        if self.seen == 0 {
            bytes = bytes.trim_ascii_start();
        }
        if let Some(last) = bytes.iter().rposition(|byte| !byte.is_ascii_whitespace()) {
            self.size = self.seen + last + 1;
        }
        self.seen += bytes.len();
        let room = self.limit.saturating_sub(self.begin.len());
        self.begin.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn finish(mut self) -> Output {
        if self.is_blank() {
            return Output::Nothing;
        }
        if self.size > self.limit {
            let size = self.size;
            return if self.begins_as_json() { Output::TooLarge { size } } else { Output::NotJson };
        }
        self.begin.truncate(self.size);
        let json = String::from_utf8(self.begin).ok();
        match json.and_then(|text| Json::check("result", text, self.limit).ok()) {
            Some(json) => Output::Result(json),
            None => Output::NotJson,
        }
    }

    /// Whether the kept part may be the beginning of a longer JSON text.
    fn begins_as_json(&self) -> bool {
        match serde_json::from_slice::<IgnoredAny>(&self.begin) {
            // Of the complete JSON values, only a number may continue.
            Ok(_) => self.begin.last().is_some_and(u8::is_ascii_digit),
            Err(error) => error.is_eof(),
        }
    }
}

/// What a command wrote to stderr: its end becomes the error, and each line is shown as it arrives.
pub(crate) struct Stderr<Show> {
    end: Vec<u8>,
    line: Vec<u8>,
    show: Show,
}

/// This much of the end of stderr becomes the error.
pub(crate) const END: usize = 4 * 1024;
/// Longer lines are shown in parts.
const LINE: usize = 4 * 1024;

impl<Show: FnMut(&str)> Stderr<Show> {
    pub(crate) fn new(show: Show) -> Stderr<Show> {
        Stderr { end: Vec::new(), line: Vec::new(), show }
    }

    pub(crate) fn take(&mut self, bytes: &[u8]) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") || self.line.len() >= LINE {
                self.show_line();
            }
        }
        self.end.extend_from_slice(bytes);
        // One byte more is kept, to show whether something was cut off.
        let beyond = self.end.len().saturating_sub(END + 1);
        self.end.drain(..beyond);
    }

    /// The end of it, beginning with a whole character.
    pub(crate) fn finish(mut self) -> String {
        if !self.line.is_empty() {
            self.show_line();
        }
        let mut end = self.end.as_slice();
        if end.len() > END {
            end = &end[1..];
            let inside = end.iter().take(3).take_while(|byte| **byte & 0b1100_0000 == 0b1000_0000);
            end = &end[inside.count()..];
        }
        String::from_utf8_lossy(end).trim().to_owned()
    }

    fn show_line(&mut self) {
        let line = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        (self.show)(&String::from_utf8_lossy(line));
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(limit: usize, pieces: &[&str]) -> Output {
        output_from(ResultFrom::Stdout, limit, pieces)
    }

    fn output_from(from: ResultFrom, limit: usize, pieces: &[&str]) -> Output {
        let mut stdout = Stdout::new(from, limit);
        pieces.iter().for_each(|piece| stdout.take(piece.as_bytes()));
        stdout.finish()
    }

    fn result(text: &str) -> Output {
        Output::Result(Json::check("result", text, 1024).unwrap())
    }

    #[test]
    fn space_around_a_result_is_no_part_of_it_and_does_not_count() {
        assert_eq!(output(9, &["\n ", " {\"a\":", " 1} ", "\n\n"]), result("{\"a\": 1}"));
        assert_eq!(output(8, &["{\"a\": 1}\n"]), result("{\"a\": 1}"));
        assert_eq!(output(7, &["{\"a\": 1}\n"]), Output::TooLarge { size: 8 });
    }

    #[test]
    fn what_is_not_json_is_no_result() {
        for text in ["done", "{\"a\":1}\n{\"a\":2}\n", "{", "\"\\u0000\""] {
            assert_eq!(output(1024, &[text]), Output::NotJson, "{text:?}");
        }
        let mut stdout = Stdout::new(ResultFrom::Stdout, 1024);
        stdout.take(b"\"\xff\"");
        assert_eq!(stdout.finish(), Output::NotJson);
    }

    #[test]
    fn a_command_that_writes_nothing_has_not_written_something_else_than_json() {
        for from in [ResultFrom::Stdout, ResultFrom::LastLine] {
            assert_eq!(output_from(from, 1024, &[]), Output::Nothing);
            assert_eq!(output_from(from, 1024, &[" \n", "\n"]), Output::Nothing);
        }
    }

    #[test]
    fn the_last_line_that_is_not_blank_is_the_result_whatever_comes_before() {
        let last_line = |pieces: &[&str]| output_from(ResultFrom::LastLine, 20, pieces);
        assert_eq!(last_line(&["a log\n{\"a\"", ": 1}\n"]), result("{\"a\": 1}"));
        assert_eq!(last_line(&["a log\n[1", "]\r", "\n \n\n"]), result("[1]"));
        assert_eq!(last_line(&["no end of line\n", " 7 "]), result("7"));
        assert_eq!(last_line(&["a longer line than can be kept\n", "null\n"]), result("null"));
        assert_eq!(last_line(&["[1]\n", "done\n"]), Output::NotJson);
        assert_eq!(last_line(&["log\n[1,2,3,4,5,6,7,8,9,10]\n"]), Output::TooLarge { size: 22 });
    }

    #[test]
    fn a_long_log_is_no_result_but_long_json_is_one_too_large() {
        for log in ["this is a log\n", "null and void\n", "{}\n", "1 2 3\n"] {
            assert_eq!(output(64, &[log; 100]), Output::NotJson, "{log}");
        }
        for (begin, rest, size) in [("[1", ",1", 202), ("7", "7", 101), ("\"é", "é", 203)] {
            let mut pieces = vec![begin];
            pieces.extend([rest; 100]);
            assert_eq!(output(64, &pieces), Output::TooLarge { size }, "{begin}");
        }
        // A value that is complete at the limit cannot continue after it.
        assert_eq!(output(2, &["{}{}"]), Output::NotJson);
    }

    #[test]
    fn output_without_end_is_counted_and_not_kept() {
        let mut stdout = Stdout::new(ResultFrom::LastLine, 10);
        let mut stderr = Stderr::new(|_: &str| ());
        for _ in 0..1_000 {
            stdout.take(&[b'7'; 8192]);
            stderr.take(&[b'7'; 8192]);
        }
        assert!(stdout.text.begin.capacity() < 100 && stderr.end.capacity() < 10 * END);
        assert!(stderr.line.capacity() < 10 * LINE);
        assert_eq!(stdout.finish(), Output::TooLarge { size: 8_192_000 });
        assert_eq!(stderr.finish().len(), END);
    }

    #[test]
    fn the_error_is_the_end_of_stderr_from_a_whole_character_on() {
        let mut stderr = Stderr::new(|_: &str| ());
        stderr.take("first\n".as_bytes());
        stderr.take("é".repeat(END).as_bytes());
        stderr.take(b"x\xff\n");
        let error = stderr.finish();
        assert!(error.starts_with('é') && error.ends_with("éx\u{fffd}"), "{error}");
        assert!(error.len() <= END + 2, "{}", error.len());
        let mut short = Stderr::new(|_: &str| ());
        short.take(b"  no such file\n");
        assert_eq!(short.finish(), "no such file");
    }

    #[test]
    fn lines_are_shown_as_they_become_whole() {
        let mut shown = Vec::new();
        let mut stderr = Stderr::new(|line: &str| shown.push(line.to_owned()));
        for piece in ["one\r\nt", "wo\n\nthr", "ee"] {
            stderr.take(piece.as_bytes());
        }
        stderr.finish();
        assert_eq!(shown, ["one", "two", "", "three"]);
    }
}
