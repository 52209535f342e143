//! The user that servers run as. PostgreSQL refuses to run as root, so root starts it as `nobody`.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::error::{Error, run};

/// The user that servers run as: ourselves, unless we are root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Account {
    Own,
    Nobody { user: u32, group: u32 },
}

impl Account {
    pub(crate) fn of_servers() -> Result<Account, Error> {
        if !is_root() {
            return Ok(Account::Own);
        }
        let accounts = fs::read_to_string("/etc/passwd")
            .map_err(|error| Error::at("read", Path::new("/etc/passwd"), &error))?;
        let nobody = accounts.lines().find_map(nobody).ok_or_else(|| {
            Error::new(
                "there is no user `nobody`, and PostgreSQL cannot run as root: be an ordinary user",
            )
        })?;
        Ok(nobody)
    }

    /// A command as this user, in a directory that every user can read, with English messages, and
    /// without settings for another server.
    pub(crate) fn command(self, program: impl AsRef<OsStr>) -> Command {
        let mut command = without_settings(program);
        command.current_dir("/").env("LC_ALL", "C");
        if let Account::Nobody { user, group } = self {
            // Setting the user also clears the supplementary groups.
            command.uid(user).gid(group);
        }
        command
    }

    /// Whether `test -x path`, or another such test, is true for this user.
    pub(crate) fn may(self, question: &str, path: &Path) -> bool {
        let mut command = self.command("sh");
        command.args(["-c", "test \"$1\" \"$2\"", "sh", question]).arg(path);
        let status = command.stdin(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Makes this user the owner of a file.
    pub(crate) fn own(self, path: &Path) -> io::Result<()> {
        match self {
            Account::Own => Ok(()),
            Account::Nobody { user, group } => chown(path, Some(user), Some(group)),
        }
    }
}

fn nobody(line: &str) -> Option<Account> {
    let mut fields = line.strip_prefix("nobody:")?.split(':').skip(1);
    let user = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    Some(Account::Nobody { user, group })
}

pub(crate) fn is_root() -> bool {
    static ROOT: OnceLock<bool> = OnceLock::new();
    *ROOT.get_or_init(|| run(Command::new("id").arg("-u")).is_ok_and(|id| id == "0"))
}

/// A command without the environment's settings for other PostgreSQL servers.
pub(crate) fn without_settings(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_found_by_name() {
        let line = "nobody:x:65534:65533:nobody:/nonexistent:/usr/sbin/nologin";
        assert_eq!(nobody(line), Some(Account::Nobody { user: 65534, group: 65533 }));
        assert_eq!(nobody("nobody2:x:1:1::/:/bin/sh"), None);
    }
}
