//! Runs a program of another project to its end, with a time limit. When the caller drops the
//! future, the program and every process of its group are killed.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// How many bytes of a program's error output appear in an error.
const REPEATED: usize = 600;

/// A group of processes. All of them are killed when this value is dropped.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // This fails if no process of the group is left, which is what is wanted.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

/// Runs a command to its end, and returns its standard output.
///
/// # Errors
/// If it cannot be started, fails or takes too long. The error has the end of its error output.
pub(super) async fn output(mut command: Command, longest: Duration) -> Result<String> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Ctrl-C goes to the bench, which ends its children itself.
    command.process_group(0).kill_on_drop(true);
    let mut child = command.spawn().with_context(|| format!("cannot run {program}"))?;
    let leader = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let group = Group(leader);
    let (mut out, mut errors) = (Vec::new(), Vec::new());
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let ended = tokio::time::timeout(longest, async {
        let status = child.wait();
        // Wait until the program ends, not until its pipes are closed: a child that it leaves
        // behind would keep them open.
        tokio::pin!(status);
        let mut reading = std::pin::pin!(async {
            tokio::join!(all(stdout, &mut out), all(stderr, &mut errors));
        });
        let mut is_read = false;
        loop {
            tokio::select! {
                biased;
                () = &mut reading, if !is_read => is_read = true,
                status = &mut status => {
                    // The pipes have all that the program has written. Kill the rest of its group,
                    // which may hold the pipes open: then reading ends.
                    drop(group);
                    if !is_read {
                        reading.await;
                    }
                    return status;
                }
            }
        }
    })
    .await;
    let said = String::from_utf8_lossy(&errors).into_owned();
    let Ok(status) = ended else {
        bail!("it was not done after {} s{}", longest.as_secs(), tail(&said));
    };
    let status = status.with_context(|| format!("cannot wait for {program}"))?;
    if !status.success() {
        return Err(anyhow!("{program} failed ({status}){}", tail(&said)));
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// Reads to the end. An error is an end too: what was read before is what there is.
async fn all(from: Option<impl AsyncRead + Unpin>, into: &mut Vec<u8>) {
    if let Some(mut from) = from {
        let _ = from.read_to_end(into).await;
    }
}

/// The end of a text in one line, to be put after a sentence.
fn tail(said: &str) -> String {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let mut text = lines.join("; ");
    if text.len() > REPEATED {
        let from = text.len() - REPEATED;
        let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text = format!("…{}", &text[from..]);
    }
    if text.is_empty() { text } else { format!(": {text}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    const SOON: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn what_a_program_prints_is_returned_and_what_it_complains_about_is_repeated() {
        assert_eq!(output(shell("echo yes; echo no >&2"), SOON).await.unwrap(), "yes\n");
        let error = output(shell("echo yes; echo why >&2; exit 3"), SOON).await.unwrap_err();
        assert_eq!(error.to_string(), "sh failed (exit status: 3): why");
        let error = output(Command::new("no-such-program"), SOON).await.unwrap_err();
        assert_eq!(error.to_string(), "cannot run no-such-program");
    }

    #[tokio::test]
    async fn a_program_that_takes_too_long_is_ended_with_all_that_it_has_started() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        // Opening a pipe for writing waits until there is a reader, here for ever. A child of the
        // shell does it.
        let script = format!("mkfifo {0}; echo before >&2; (: > {0}) & wait", pipe.display());
        let error = output(shell(&script), Duration::from_millis(300)).await.unwrap_err();
        assert!(error.to_string().starts_with("it was not done after 0 s"), "{error}");
    }

    #[tokio::test]
    async fn a_program_that_leaves_a_process_behind_has_ended_nevertheless() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("pipe");
        let script = format!("mkfifo {0}; echo done; (: > {0}) & exit 0", pipe.display());
        assert_eq!(output(shell(&script), SOON).await.unwrap(), "done\n");
    }

    #[test]
    fn only_the_end_of_a_long_text_is_repeated_in_one_line() {
        assert_eq!(tail("a\n\n  b\n"), ": a; b");
        assert_eq!(tail("\n"), "");
        let long = tail(&"é".repeat(1_000));
        assert!(long.starts_with(": …é") && long.len() < REPEATED + 10, "{long}");
    }
}
