//! The directory of one server: its data, its socket and its log, below a short name.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::account::Account;
use crate::error::Error;

/// The system allows about 100 bytes for the path of a socket, and the socket's own name needs some
/// of them.
const LONGEST: usize = 60;

/// Makes a new directory that belongs to the servers' user and is closed to all others.
pub(crate) fn create(account: Account) -> Result<PathBuf, Error> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let parent = parent(account);
    loop {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("tenure-{}-{n}", process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            // Left behind by an earlier process with the same id.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                made.and_then(|()| account.own(&path))
                    .map_err(|error| Error::at("make the directory", &path, &error))?;
                return Ok(path);
            }
        }
    }
}

/// The temporary directory, unless its name is too long or the servers' user cannot write there.
fn parent(account: Account) -> PathBuf {
    let chosen = std::env::temp_dir();
    let short = chosen.is_absolute() && chosen.as_os_str().len() <= LONGEST;
    if short && account.may("-w", &chosen) { chosen } else { Path::new("/tmp").to_owned() }
}
