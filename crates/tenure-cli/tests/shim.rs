//! The process between a worker and a command, on its own: what is sent to it, and which processes
//! are left afterwards.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod process;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdout, Command, Stdio};

use process::Process;
use rustix::process::Signal;

/// A shim that runs a script. The test plays its worker.
struct Shim {
    child: Child,
    worker: UnixStream,
    stdout: BufReader<ChildStdout>,
}

impl Shim {
    fn start(script: &str) -> Shim {
        let (mut worker, theirs) = UnixStream::pair().unwrap();
        let mut child = tenure(script).stdin(OwnedFd::from(theirs)).spawn().unwrap();
        worker.write_all(&greeting("{}")).unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Shim { child, worker, stdout }
    }

    /// The next line that the command writes.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    fn say_farewell(&mut self, patience_ms: u32) {
        self.worker.write_all(&patience_ms.to_be_bytes()).unwrap();
    }

    /// The last report of the shim.
    fn report(mut self) -> String {
        let mut said = String::new();
        self.worker.read_to_string(&mut said).unwrap();
        self.child.wait().unwrap();
        let last = said.lines().last();
        last.unwrap_or_default().to_owned()
    }
}

fn tenure(script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(["__run", "--", "sh", "-c", script]);
    // A shell prints a message about processes that were killed below it.
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

fn greeting(args: &str) -> Vec<u8> {
    [&(args.len() as u64).to_be_bytes(), args.as_bytes()].concat()
}

const WITH_A_CHILD: &str = "sleep 1000 & echo $$ $!; wait";

#[test]
fn a_worker_that_hangs_up_takes_the_command_and_its_children_along() {
    let mut shim = Shim::start(WITH_A_CHILD);
    let processes = Process::all(&shim.line());
    assert_eq!(processes.len(), 2);
    assert!(!processes.iter().any(Process::has_ended));
    drop(shim.worker);
    processes.iter().for_each(Process::ends);
    assert_eq!(shim.child.wait().unwrap().code(), Some(128 + 9));
}

#[test]
fn a_worker_that_is_killed_takes_the_command_and_its_children_along() {
    let mut shim = Shim::start(WITH_A_CHILD);
    let processes = Process::all(&shim.line());
    // Another process holds the worker's end, and is killed so that it cannot clean up.
    let mut worker =
        Command::new("sleep").arg("1000").stdout(OwnedFd::from(shim.worker)).spawn().unwrap();
    assert!(!processes.iter().any(Process::has_ended));
    worker.kill().unwrap();
    worker.wait().unwrap();
    processes.iter().for_each(Process::ends);
    shim.child.wait().unwrap();
}

#[test]
fn a_shim_that_is_killed_at_once_with_its_worker_takes_the_command_along() {
    let mut shim = Shim::start("echo $$; exec sleep 1000");
    let command = Process::of(&shim.line());
    // The worker's end stays open, so that only the shim's death can be the cause.
    shim.child.kill().unwrap();
    shim.child.wait().unwrap();
    command.ends();
}

#[test]
fn a_worker_that_hangs_up_in_the_middle_of_the_args_starts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut worker, theirs) = UnixStream::pair().unwrap();
    let mut shim = tenure("touch started")
        .current_dir(dir.path())
        .stdin(OwnedFd::from(theirs))
        .spawn()
        .unwrap();
    let greeting = greeting("{\"a\":1}");
    worker.write_all(&greeting[..greeting.len() - 1]).unwrap();
    drop(worker);
    assert_eq!(shim.wait().unwrap().code(), Some(126));
    assert!(!dir.path().join("started").exists());
}

#[test]
fn a_command_that_is_asked_to_end_may_do_so_in_its_own_way() {
    let mut shim = Shim::start("trap 'exit 7' TERM; sleep 1000 & echo $$ $!; wait");
    let processes = Process::all(&shim.line());
    shim.say_farewell(60_000);
    assert_eq!(shim.report(), "exited 7");
    processes.iter().for_each(Process::ends);
}

#[test]
fn patience_is_kept_for_a_worker_that_has_left() {
    let mut shim = Shim::start(
        "trap 'echo ending; sleep 0.2; echo ended; exit 7' TERM; echo ready; while :; do sleep 0.01; done",
    );
    assert_eq!(shim.line(), "ready\n");
    shim.say_farewell(60_000);
    drop(shim.worker);
    let mut rest = String::new();
    shim.stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "ending\nended\n");
    assert_eq!(shim.child.wait().unwrap().code(), Some(7));
}

#[test]
fn a_command_that_does_not_end_when_asked_is_killed() {
    let mut shim = Shim::start("trap '' TERM; echo $$; while :; do sleep 0.01; done");
    let command = Process::of(&shim.line());
    shim.say_farewell(100);
    assert_eq!(shim.report(), "killed 9");
    command.ends();
}

#[test]
fn a_command_hears_the_signals_that_its_shim_does_not() {
    let mut shim = Shim::start("echo $$; exec sleep 1000");
    let command = Process::of(&shim.line());
    let process = Process::of(&shim.child.id().to_string());
    for signal in [Signal::HUP, Signal::INT, Signal::TERM] {
        process.signal(signal);
    }
    assert!(!command.has_ended());
    command.signal(Signal::INT);
    assert_eq!(shim.report(), "killed 2");
}

#[test]
fn shim_and_command_do_not_share_a_process_group() {
    let mut shim = Shim::start("echo $$; exec sleep 1000");
    let command = Process::of(&shim.line());
    let process = Process::of(&shim.child.id().to_string());
    assert_ne!(command.group(), process.group());
    drop(shim.worker);
    assert_eq!(shim.child.wait().unwrap().code(), Some(128 + 9));
}

#[test]
fn a_shim_on_a_plain_pipe_passes_the_exit_code_on() {
    let mut child = tenure("exit 3").stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&greeting("{}")).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
    // Held open until here: the command ended by itself.
    drop(stdin);
}

#[test]
fn help_and_completions_do_not_know_the_shim() {
    for args in [&["--help"][..], &["completions", "bash"]] {
        let shown = Command::new(env!("CARGO_BIN_EXE_tenure")).args(args).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.contains("enqueue") && !shown.contains("__run") && !shown.contains("__exec"));
    }
}
