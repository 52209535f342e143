//! The process that starts a worker's commands, on its own: what is sent to it, and which processes
//! are left afterwards. The test plays the worker.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[allow(dead_code, reason = "the test needs the worker's part of it")]
#[path = "../src/commands/worker/messages.rs"]
mod messages;
mod process;

use std::io::{BufRead, BufReader, ErrorKind, PipeReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use messages::{Order, Report, farewell};
use process::Process;
use rustix::process::Signal;

/// A helper for a script.
struct Helper {
    child: Child,
    control: UnixStream,
}

impl Helper {
    fn start(script: &str) -> Helper {
        let (control, theirs) = UnixStream::pair().unwrap();
        let child = tenure(script).stdin(OwnedFd::from(theirs)).spawn().unwrap();
        Helper { child, control }
    }

    /// Hands a command over, without its order.
    fn hand_over(&self) -> Running {
        let (lifeline, theirs) = UnixStream::pair().unwrap();
        let (stdout, their_stdout) = std::io::pipe().unwrap();
        let null = std::fs::File::options().write(true).open("/dev/null").unwrap();
        let given = [theirs.as_fd(), their_stdout.as_fd(), null.as_fd()];
        messages::hand_over(&self.control, given).unwrap();
        Running { lifeline, stdout: BufReader::new(stdout) }
    }

    fn run(&self, environment: &[(&str, &str)]) -> Running {
        let mut running = self.hand_over();
        let order = Order::message("{}", environment.iter().copied());
        running.lifeline.write_all(&order).unwrap();
        running
    }

    fn process(&self) -> Process {
        Process::of(&self.child.id().to_string())
    }

    /// Its exit code, once it has no worker and no command any more.
    fn ends(self) -> Option<i32> {
        let Helper { mut child, control } = self;
        drop(control);
        child.wait().unwrap().code()
    }
}

/// A command, as the worker sees it.
struct Running {
    lifeline: UnixStream,
    stdout: BufReader<PipeReader>,
}

impl Running {
    /// The next line that the command writes.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line
    }

    /// The next report; none if the lifeline is closed.
    fn report(&mut self) -> Option<Report> {
        let mut report = [0; Report::LENGTH];
        match self.lifeline.read_exact(&mut report) {
            Ok(()) => Some(Report::parse(report).unwrap()),
            Err(cause) => {
                assert_eq!(cause.kind(), ErrorKind::UnexpectedEof);
                None
            }
        }
    }

    fn reports(mut self) -> Vec<Report> {
        std::iter::from_fn(|| self.report()).collect()
    }

    fn say_farewell(&mut self, patience_ms: u64) {
        self.lifeline.write_all(&farewell(Duration::from_millis(patience_ms))).unwrap();
    }
}

fn tenure(script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.args(["__helper", "--", "sh", "-c", script]);
    command
}

const WITH_A_CHILD: &str = "sleep 1000 & echo $$ $!; wait";
const ALONE: &str = "echo $$; exec sleep 1000";

#[test]
fn a_worker_that_hangs_up_takes_the_command_and_its_children_along() {
    let helper = Helper::start(WITH_A_CHILD);
    let mut running = helper.run(&[]);
    let processes = Process::all(&running.line());
    assert_eq!(processes.len(), 2);
    assert!(!processes.iter().any(Process::has_ended));
    drop(running);
    processes.iter().for_each(Process::ends);
    assert_eq!(helper.ends(), Some(0));
}

#[test]
fn a_worker_that_is_killed_takes_all_its_commands_and_their_children_along() {
    let helper = Helper::start(WITH_A_CHILD);
    let mut commands = [helper.run(&[]), helper.run(&[])];
    let processes: Vec<Process> =
        commands.iter_mut().flat_map(|running| Process::all(&running.line())).collect();
    // Two other processes hold the worker's ends of all sockets. They are killed with SIGKILL, as a
    // worker may be, so that they cannot clean up.
    let [first, second] = commands.map(|running| OwnedFd::from(running.lifeline));
    let hold = |stdin: OwnedFd, stdout: OwnedFd| {
        Command::new("sleep").arg("1000").stdin(stdin).stdout(stdout).spawn().unwrap()
    };
    let control = OwnedFd::from(helper.control);
    let null = std::fs::File::open("/dev/null").unwrap().into();
    let mut workers = [hold(first, second), hold(null, control)];
    assert!(!processes.iter().any(Process::has_ended));
    for worker in &mut workers {
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
    processes.iter().for_each(Process::ends);
    let mut child = helper.child;
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_command_that_is_given_up_leaves_the_others_alone() {
    let helper = Helper::start(ALONE);
    let mut commands = [helper.run(&[]), helper.run(&[])];
    let [first, second] = commands.each_mut().map(|running| Process::of(&running.line()));
    let [given_up, other] = commands;
    drop(given_up);
    first.ends();
    assert!(!second.has_ended());
    drop(other);
    second.ends();
    assert_eq!(helper.ends(), Some(0));
}

#[test]
fn a_helper_that_is_killed_at_once_with_its_worker_takes_the_command_along() {
    let mut helper = Helper::start(ALONE);
    let mut running = helper.run(&[]);
    let command = Process::of(&running.line());
    // The worker's ends stay open, so that only the helper's death can be the cause.
    helper.child.kill().unwrap();
    helper.child.wait().unwrap();
    command.ends();
}

#[test]
fn a_worker_that_hangs_up_in_the_middle_of_the_order_starts_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let started = dir.path().join("started");
    let helper = Helper::start(&format!("touch {}", started.display()));
    let mut running = helper.hand_over();
    let order = Order::message("{\"a\":1}", []);
    running.lifeline.write_all(&order[..order.len() - 1]).unwrap();
    drop(running);
    assert_eq!(helper.ends(), Some(0));
    assert!(!started.exists());
}

#[test]
fn the_worker_learns_of_the_order_of_the_group_and_of_the_end() {
    let helper = Helper::start("echo $$; exit $CODE");
    let mut running = helper.run(&[("CODE", "7")]);
    let group = running.line().trim().parse().unwrap();
    let reports = [Report::Heard, Report::Started(group), Report::Exited(7)];
    assert_eq!(running.reports(), reports);
    assert_eq!(helper.ends(), Some(0));
}

#[test]
fn a_command_that_is_asked_to_end_may_do_so_in_its_own_way() {
    let helper = Helper::start("trap 'exit 7' TERM; sleep 1000 & echo $$ $!; wait");
    let mut running = helper.run(&[]);
    let processes = Process::all(&running.line());
    running.say_farewell(60_000);
    assert_eq!(running.reports()[2..], [Report::Heard, Report::Exited(7)]);
    processes.iter().for_each(Process::ends);
}

#[test]
fn patience_is_kept_for_a_worker_that_has_left() {
    let helper = Helper::start(
        "trap 'echo ending; sleep 0.2; echo ended; exit 7' TERM; echo ready; while :; do sleep 0.01; done",
    );
    let mut running = helper.run(&[]);
    assert_eq!(running.line(), "ready\n");
    running.say_farewell(60_000);
    let Running { lifeline, mut stdout } = running;
    drop(lifeline);
    assert_eq!(helper.ends(), Some(0));
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "ending\nended\n");
}

#[test]
fn a_command_that_does_not_end_when_asked_is_killed() {
    let helper = Helper::start("trap '' TERM; echo $$; while :; do sleep 0.01; done");
    let mut running = helper.run(&[]);
    let command = Process::of(&running.line());
    running.say_farewell(100);
    assert_eq!(running.reports()[2..], [Report::Heard, Report::Killed(9)]);
    command.ends();
}

#[test]
fn a_command_hears_the_signals_that_its_helper_does_not() {
    let helper = Helper::start(ALONE);
    let mut running = helper.run(&[]);
    let command = Process::of(&running.line());
    for signal in [Signal::HUP, Signal::INT, Signal::TERM] {
        helper.process().signal(signal);
    }
    assert!(!command.has_ended());
    command.signal(Signal::INT);
    assert_eq!(running.reports()[2..], [Report::Killed(2)]);
    assert_eq!(helper.ends(), Some(0));
}

#[test]
fn helper_and_commands_do_not_share_a_process_group() {
    let helper = Helper::start(ALONE);
    let mut commands = [helper.run(&[]), helper.run(&[])];
    let [first, second] = commands.each_mut().map(|running| Process::of(&running.line()).group());
    let own = helper.process().group();
    assert!(first != second && first != own && second != own);
}

#[test]
fn a_command_has_no_descriptor_of_its_helper_or_of_other_commands() {
    let output = Command::new("ls").arg("/proc/self/fd").output().unwrap();
    let expected = String::from_utf8(output.stdout).unwrap();
    let helper = Helper::start("exec ls /proc/self/fd");
    for mut running in [helper.run(&[]), helper.run(&[]), helper.run(&[])] {
        let mut seen = String::new();
        running.stdout.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, expected);
    }
}

#[test]
fn a_helper_without_a_control_socket_ends() {
    let mut child = tenure("exit 3").stdin(Stdio::null()).spawn().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(126));
}

#[test]
fn help_and_completions_do_not_know_the_helper() {
    for args in [&["--help"][..], &["completions", "bash"]] {
        let shown = Command::new(env!("CARGO_BIN_EXE_tenure")).args(args).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.contains("enqueue") && !shown.contains("__helper"));
    }
}
