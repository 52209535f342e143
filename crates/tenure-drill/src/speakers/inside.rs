//! The process's own side: it writes lines, and it ends when its standard input is closed.

use std::fmt::Display;
use std::io::{Read, Write};

/// Writes a line. If the reader is gone, the process ends.
pub fn say(line: impl Display) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Calls `then` when standard input is closed: by the parent process, or because the parent is
/// gone.
pub fn at_the_end(then: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        then();
    });
}
