//! What such a process does on its own side: it says lines, and it ends with its standard input.

use std::fmt::Display;
use std::io::{Read, Write};

/// Says a line. When nobody listens any more, the process ends.
pub fn say(line: impl Display) {
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

/// Calls this when standard input is closed: by whoever started the process, or because they are gone.
pub fn at_the_end(then: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        then();
    });
}
