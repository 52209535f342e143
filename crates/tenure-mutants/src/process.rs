//! Processes with a time limit, and the clock that times them.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// How a process ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It succeeded.
    Passed,
    /// It failed, with this output.
    Failed(String),
    /// It was killed after its time limit.
    OutOfTime,
}

/// Runs a command to its end, but not for longer than this. Processes that it leaves behind are
/// killed. Its output goes to a file.
pub(crate) fn run(
    command: &mut Command,
    limit: Duration,
    output: &Path,
) -> io::Result<(Ended, Duration)> {
    let began = now();
    let file = File::create(output)?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let mut child = command.process_group(0).spawn()?;
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (tell, told) = channel();
    let waits = thread::spawn(move || {
        let _ = tell.send(child.wait());
    });
    let in_time = told.recv_timeout(limit);
    if let Some(group) = group {
        // Usually no process is left there.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = waits.join();
    let ended = match in_time {
        Err(_) => Ended::OutOfTime,
        Ok(Ok(status)) if status.success() => Ended::Passed,
        Ok(Ok(_)) => Ended::Failed(said(&fs::read(output)?)),
        Ok(Err(error)) => return Err(error),
    };
    Ok((ended, now() - began))
}

/// The first panic in the output of a test, on one line.
fn said(output: &[u8]) -> String {
    let output = String::from_utf8_lossy(output);
    let mut lines = output.lines().skip_while(|line| !line.contains("panicked at"));
    let panic: Vec<&str> = lines.by_ref().take(4).collect();
    let words = if panic.is_empty() { output.lines().rev().take(3).collect() } else { panic };
    let line = words.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(300).collect()
}

/// The only clock here.
#[expect(clippy::disallowed_methods, reason = "it times tests for people, and no job sees it")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bash(script: &str, limit: Duration) -> Ended {
        let output = tempfile::NamedTempFile::new().unwrap();
        run(Command::new("bash").args(["-c", script]), limit, output.path()).unwrap().0
    }

    #[test]
    fn a_process_passes_fails_or_is_out_of_time() {
        let long = Duration::from_secs(60);
        assert_eq!(bash("true", long), Ended::Passed);
        let failed = bash("echo; echo thread x panicked at y; echo why; exit 3", long);
        assert_eq!(failed, Ended::Failed("thread x panicked at y why".into()));
        assert_eq!(bash("sleep 60", Duration::from_millis(50)), Ended::OutOfTime);
    }

    #[test]
    fn what_a_process_has_started_ends_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let path = pipe.clone();
        // The pipe ends when the last process that could write to it is gone.
        let reads = thread::spawn(move || fs::read(path).unwrap());
        let script = format!("exec 3> {}; sleep 600 & echo started >&3", pipe.display());
        assert_eq!(bash(&script, Duration::from_secs(60)), Ended::Passed);
        assert_eq!(reads.join().unwrap(), b"started\n");
    }
}
