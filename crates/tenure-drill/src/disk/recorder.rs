//! Stands between SQLite and its files: records everything that SQLite does to the files of a
//! directory, in order, on a tape.
//!
//! SQLite reaches its files through tables of C functions (a VFS, and one table for each open
//! file), so this is the only file of the drill with unsafe code. It is kept small: the tables are
//! copies of SQLite's own in which six functions are replaced. The new functions call SQLite's and
//! record what was done. Only `xSync` does not call SQLite's: the tape knows what would be on disk,
//! and the machine stays on. Locks, shared memory and all reads are left to SQLite.
//!
//! The recorder becomes the process's default VFS, because a store is opened by a path alone. It
//! passes files outside of recorded directories on to SQLite's own VFS. This file knows nothing of
//! jobs, nor of what a power cut does.

#![allow(unsafe_code, reason = "SQLite's files are only reachable through its C interface")]

use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, PoisonError};

use rusqlite::ffi;

use super::tape::{Event, Tape};

/// Records what happens to the database files of one directory, until it is dropped.
pub(super) struct Recorder {
    directory: PathBuf,
    tape: Arc<Tape>,
}

impl Recorder {
    /// Starts to record. Covers every file that is opened from now on.
    pub(super) fn start(directory: &Path) -> io::Result<Recorder> {
        install();
        let directory = directory.canonicalize()?;
        let tape = Arc::new(Tape::default());
        locked(&TAPES).insert(directory.clone(), Arc::clone(&tape));
        Ok(Recorder { directory, tape })
    }

    /// The tape that it writes.
    pub(super) fn tape(&self) -> &Tape {
        &self.tape
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        locked(&TAPES).remove(&self.directory);
    }
}

/// The tapes that are recording, by directory.
static TAPES: Mutex<BTreeMap<PathBuf, Arc<Tape>>> = Mutex::new(BTreeMap::new());

/// The open files of recorded directories, by the address of SQLite's file object.
static FILES: LazyLock<Mutex<HashMap<usize, Handle>>> = LazyLock::new(Mutex::default);

/// SQLite's own VFS.
static BELOW: AtomicPtr<ffi::sqlite3_vfs> = AtomicPtr::new(std::ptr::null_mut());

struct Handle {
    name: String,
    tape: Arc<Tape>,
    /// Whether the next flush of this file also flushes its directory. SQLite does that with the
    /// first flush of a journal or a log that it may have created.
    flushes_directory: bool,
    /// SQLite's own functions for this file.
    below: ffi::sqlite3_io_methods,
    /// The functions that replace them. SQLite keeps their address until the file is closed.
    _ours: Box<ffi::sqlite3_io_methods>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers the recorder's table of file functions (a VFS) as SQLite's default. The recorder
/// passes calls on to SQLite's own VFS. This happens once per process and is never undone.
fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: a null name asks for the default, which the bundled SQLite always has.
        let below = unsafe { ffi::sqlite3_vfs_find(std::ptr::null()) };
        assert!(!below.is_null(), "SQLite has no way to open files");
        BELOW.store(below, Ordering::SeqCst);
        // SAFETY: SQLite keeps the table that `below` points to for ever. The table is plain data
        // that may be copied, and the copy has the `pAppData` that SQLite's own functions in it
        // need.
        let mut ours = Box::new(unsafe { *below });
        ours.pNext = std::ptr::null_mut();
        ours.zName = c"tenure-drill".as_ptr();
        ours.xOpen = Some(x_open);
        ours.xDelete = Some(x_delete);
        // SAFETY: the table is complete and leaked, so that SQLite may keep it for ever.
        let registered = unsafe { ffi::sqlite3_vfs_register(Box::leak(ours), 1) };
        assert_eq!(registered, ffi::SQLITE_OK, "SQLite refuses the recorder");
    });
}

/// The tape for a path, and the file's name; none if its directory is not recorded.
///
/// # Safety
/// `path` is null or a C string, as SQLite passes it.
unsafe fn recorded(path: *const c_char) -> Option<(Arc<Tape>, String)> {
    if path.is_null() {
        return None; // a temporary file
    }
    // SAFETY: by the contract above.
    let path = Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes()));
    let tape = locked(&TAPES).get(path.parent()?).cloned()?;
    Some((tape, path.file_name()?.to_str()?.to_owned()))
}

unsafe extern "C" fn x_open(
    _: *mut ffi::sqlite3_vfs,
    path: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    const LOGS: c_int = ffi::SQLITE_OPEN_WAL | ffi::SQLITE_OPEN_MAIN_JOURNAL;
    let below = BELOW.load(Ordering::SeqCst);
    // SAFETY: `below` is SQLite's own table, and the arguments are passed on as they came.
    let code = unsafe {
        match (*below).xOpen {
            Some(open) => open(below, path, file, flags, out),
            None => ffi::SQLITE_CANTOPEN,
        }
    };
    // SAFETY: SQLite passes a C string or null.
    let Some((tape, name)) = (unsafe { recorded(path) }) else { return code };
    if code != ffi::SQLITE_OK {
        return code;
    }
    // SAFETY: the file was opened just now, so its functions are there, and are plain data.
    let methods = unsafe { *(*file).pMethods };
    let ours = Box::new(ffi::sqlite3_io_methods {
        xClose: Some(x_close),
        xWrite: Some(x_write),
        xTruncate: Some(x_truncate),
        xSync: Some(x_sync),
        ..methods
    });
    // SAFETY: `ours` stays where it is, in its box, until the file is closed.
    unsafe { (*file).pMethods = &raw const *ours };
    tape.note(Event::Opened(name.clone()));
    let flushes_directory = flags & LOGS != 0 && flags & ffi::SQLITE_OPEN_CREATE != 0;
    let handle = Handle { name, tape, flushes_directory, below: methods, _ours: ours };
    locked(&FILES).insert(file as usize, handle);
    code
}

unsafe extern "C" fn x_delete(
    _: *mut ffi::sqlite3_vfs,
    path: *const c_char,
    flush: c_int,
) -> c_int {
    let below = BELOW.load(Ordering::SeqCst);
    // SAFETY: as in `x_open`. The directory need not be flushed really: the power fails only on the
    // tape.
    let (code, recorded) = unsafe {
        let recorded = recorded(path);
        let flush = if recorded.is_some() { 0 } else { flush };
        let code = match (*below).xDelete {
            Some(delete) => delete(below, path, flush),
            None => ffi::SQLITE_IOERR_DELETE,
        };
        (code, recorded)
    };
    if let (ffi::SQLITE_OK, Some((tape, name))) = (code, recorded) {
        tape.note(Event::Deleted(name));
        if flush != 0 {
            tape.note(Event::FlushedDirectory);
        }
    }
    code
}

unsafe extern "C" fn x_close(file: *mut ffi::sqlite3_file) -> c_int {
    let handle = locked(&FILES).remove(&(file as usize));
    let Some(close) = handle.as_ref().and_then(|handle| handle.below.xClose) else {
        return ffi::SQLITE_IOERR_CLOSE;
    };
    // SAFETY: the function is SQLite's own for this file, and `handle` keeps ours until it has
    // returned.
    unsafe { close(file) }
}

/// SQLite's own functions for a file, its tape and its name.
fn handle(file: *mut ffi::sqlite3_file) -> Option<(ffi::sqlite3_io_methods, Arc<Tape>, String)> {
    let files = locked(&FILES);
    let handle = files.get(&(file as usize))?;
    Some((handle.below, Arc::clone(&handle.tape), handle.name.clone()))
}

unsafe extern "C" fn x_write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    length: c_int,
    at: ffi::sqlite3_int64,
) -> c_int {
    let Some((below, tape, name)) = handle(file) else { return ffi::SQLITE_IOERR_WRITE };
    let (Some(write), Ok(size)) = (below.xWrite, usize::try_from(length)) else {
        return ffi::SQLITE_IOERR_WRITE;
    };
    // SAFETY: the function is SQLite's own for this file, and the arguments are passed on as they
    // came.
    let code = unsafe { write(file, from, length, at) };
    if code == ffi::SQLITE_OK {
        // SAFETY: SQLite has `length` bytes there for the time of this call.
        let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), size) }.to_vec();
        tape.note(Event::Wrote { file: name, at: usize::try_from(at).unwrap_or(0), bytes });
    }
    code
}

unsafe extern "C" fn x_truncate(file: *mut ffi::sqlite3_file, to: ffi::sqlite3_int64) -> c_int {
    let Some((below, tape, name)) = handle(file) else { return ffi::SQLITE_IOERR_TRUNCATE };
    let Some(truncate) = below.xTruncate else { return ffi::SQLITE_IOERR_TRUNCATE };
    // SAFETY: the function is SQLite's own for this file, and the arguments are passed on as they
    // came.
    let code = unsafe { truncate(file, to) };
    if code == ffi::SQLITE_OK {
        tape.note(Event::Truncated { file: name, to: usize::try_from(to).unwrap_or(0) });
    }
    code
}

unsafe extern "C" fn x_sync(file: *mut ffi::sqlite3_file, _: c_int) -> c_int {
    let mut files = locked(&FILES);
    let Some(handle) = files.get_mut(&(file as usize)) else { return ffi::SQLITE_IOERR_FSYNC };
    handle.tape.note(Event::Flushed(handle.name.clone()));
    if std::mem::take(&mut handle.flushes_directory) {
        handle.tape.note(Event::FlushedDirectory);
    }
    ffi::SQLITE_OK
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::super::tape::Disk;
    use super::*;

    #[test]
    fn the_tape_tells_what_is_in_the_files() {
        let directory = tempfile::tempdir().unwrap();
        let recorder = Recorder::start(directory.path()).unwrap();
        let connection = Connection::open(directory.path().join("a.db")).unwrap();
        let mut disk = Disk::default();
        let mut flushes = 0;
        for sql in [
            "CREATE TABLE t (x)",
            "PRAGMA journal_mode = WAL",
            "INSERT INTO t VALUES (randomblob(20000))",
            "PRAGMA wal_checkpoint(TRUNCATE)",
            "INSERT INTO t VALUES (randomblob(9000))",
            "DELETE FROM t; VACUUM",
        ] {
            connection.execute_batch(sql).unwrap();
            for event in recorder.tape().take() {
                disk.play(&event);
                flushes += usize::from(matches!(event, Event::Flushed(_)));
            }
            for name in ["a.db", "a.db-wal", "a.db-journal"] {
                let there = std::fs::read(directory.path().join(name)).ok();
                assert!(disk.as_seen(name) == there, "{name} after {sql}");
            }
        }
        assert!(flushes > 5, "{flushes}");
    }

    #[test]
    fn nothing_is_noted_of_other_directories() {
        let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let recorder = Recorder::start(ours.path()).unwrap();
        let connection = Connection::open(theirs.path().join("a.db")).unwrap();
        connection.execute_batch("CREATE TABLE t (x)").unwrap();
        assert!(recorder.tape().take().is_empty());
    }
}
