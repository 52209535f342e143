//! Ends a server when its owner cannot. A test may be killed at any time, and then no destructor
//! runs: so a small shell waits at the other end of a pipe, which the system closes however this
//! process ends.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};

use crate::account::Account;
use crate::error::Error;

/// Stops the server of a directory and removes the directory when dropped, or when this process
/// ends.
#[derive(Debug)]
pub(crate) struct Keeper {
    child: Child,
    pipe: Option<ChildStdin>,
    directory: PathBuf,
}

impl Keeper {
    /// Watches over a directory. `stop` is a line of shell that ends its server; it gets the
    /// directory as `$1` and `program` as `$2`.
    pub(crate) fn start(
        account: Account,
        directory: &Path,
        stop: &str,
        program: &Path,
    ) -> Result<Keeper, Error> {
        // A signal ends only the loop: the shell still runs the commands after it.
        let script = format!(
            "trap : HUP INT TERM\nwhile read -r _; do :; done\n{stop}\nexec rm -rf -- \"$1\""
        );
        let mut command = account.command("sh");
        command.args(["-c", &script, "sh"]).args([directory, program]);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // A process group of its own, which Ctrl-C at a terminal does not reach. Ctrl-C ends this
        // process, and the closed pipe then ends the shell's loop.
        command.process_group(0);
        let mut child = command.spawn().map_err(|error| {
            let _ = fs::remove_dir_all(directory);
            Error::new(format!("cannot start a shell that watches over the server: {error}"))
        })?;
        let pipe = child.stdin.take();
        Ok(Keeper { child, pipe, directory: directory.to_owned() })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = self.child.wait();
        // The shell may have been killed.
        let _ = fs::remove_dir_all(&self.directory);
    }
}
