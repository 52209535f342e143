//! The switches of the mutants, compiled into the changed copy of the library: which one is on, and
//! which a test has reached.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Above the number of every mutant.
const MOST: usize = 1 << 16;

struct Setting {
    /// The mutant that is on; 0 if none is.
    on: u32,
    reached: Option<Reached>,
}

/// Writes the numbers of the switches that are reached to a file; each process writes each number
/// once.
struct Reached {
    seen: Vec<AtomicBool>,
    file: File,
}

static SETTING: LazyLock<Setting> = LazyLock::new(|| Setting {
    on: std::env::var("TENURE_MUTANT").ok().and_then(|it| it.parse().ok()).unwrap_or(0),
    reached: std::env::var_os("TENURE_MUTANTS_REACHED").and_then(|path| {
        let file = OpenOptions::new().create(true).append(true).open(path).ok()?;
        Some(Reached { seen: (0..MOST).map(|_| AtomicBool::new(false)).collect(), file })
    }),
});

/// Whether this mutant is on.
pub(crate) fn mutated(number: u32) -> bool {
    let setting = &*SETTING;
    if let Some(reached) = &setting.reached {
        reached.note(number);
    }
    number == setting.on
}

impl Reached {
    fn note(&self, number: u32) {
        let seen = usize::try_from(number).ok().and_then(|at| self.seen.get(at));
        if seen.is_some_and(|seen| !seen.swap(true, Ordering::Relaxed)) {
            // One write for each line: processes share the file, and may be killed.
            let _ = (&self.file).write_all(format!("{number}\n").as_bytes());
        }
    }
}
