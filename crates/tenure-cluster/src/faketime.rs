//! The library that gives a server another clock than the machine's.

use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::{apt, fetch};

/// The library, from the machine or unpacked from Debian's package.
pub(crate) fn library() -> Result<PathBuf, Error> {
    if let Some(found) = below(Path::new("/")) {
        return Ok(found);
    }
    let unpacked = fetch::unpacked("libfaketime", |place| apt::unpack("libfaketime", place))
        .map_err(|error| Error::new(format!("no libfaketime here: install it. {error}")))?;
    below(&unpacked).ok_or_else(|| {
        let place = unpacked.display();
        Error::new(format!("no libfaketime in {place}; remove it to fetch the package again"))
    })
}

fn below(root: &Path) -> Option<PathBuf> {
    let libraries = apt::libraries(root).into_iter();
    libraries.map(|it| it.join("faketime/libfaketimeMT.so.1")).find(|it| it.exists())
}
