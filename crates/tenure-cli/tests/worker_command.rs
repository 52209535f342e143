//! A command for one job, run as a worker runs it: the worker's own code, with the real binary as
//! the helper.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod process;

/// The sources of the binary, which has no library to import from.
#[path = "../src"]
mod binary {
    #![allow(dead_code, unused_imports, reason = "the tests need a part of it")]

    pub(crate) mod args;
    pub(crate) mod commands {
        pub(crate) mod worker {
            pub(crate) mod captured;
            pub(crate) mod command;
            pub(crate) mod helper;
            pub(crate) mod keeper;
            pub(crate) mod lifeline;
            pub(crate) mod messages;
        }
    }
}

use std::ffi::OsString;
use std::future::pending;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs};

use binary::args;
use binary::commands::worker::captured::ResultFrom;
use binary::commands::worker::command::{Assignment, Finished, Program};
use process::Process;
use rustix::process::{Signal, getpgrp};
use tempfile::TempDir;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const LIMIT: usize = 1024;

/// Nothing here may hang for so long.
const HANGS: Duration = Duration::from_secs(30);

fn program(words: &[&str]) -> Program {
    let words = words.iter().map(OsString::from).collect();
    Program::find_with(words, env!("CARGO_BIN_EXE_tenure").into(), HANGS).unwrap()
}

fn script(script: &str) -> Program {
    program(&["sh", "-c", script])
}

fn assignment(args: &str) -> Assignment {
    Assignment { args: args.into(), environment: Vec::new(), result_limit: LIMIT }
}

async fn run(text: &str) -> Finished {
    within(script(text).run(&assignment("{}"), unseen, pending())).await
}

/// For tests that do not look at stderr.
fn unseen(_: &str) {}

/// Awaits a future with a timeout: nothing here may hang.
async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(HANGS, future).await.expect("it hangs")
}

fn done(result: Option<&str>) -> Finished {
    let json = |text: &str| tenure::Json::check("result", text, LIMIT).unwrap();
    Finished::Done { result: result.map(json) }
}

fn failed(error: &str) -> Finished {
    Finished::Failed { error: error.into() }
}

/// A running command, and its stderr line by line.
struct Background {
    task: tokio::task::JoinHandle<Finished>,
    lines: UnboundedReceiver<String>,
}

impl Background {
    fn start(program: Program) -> Background {
        Background::of(&Arc::new(program))
    }

    /// One of several commands of a program, and so of a helper.
    fn of(program: &Arc<Program>) -> Background {
        Background::until(program, pending())
    }

    fn until(
        program: &Arc<Program>,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> Background {
        let program = Arc::clone(program);
        let (sender, lines) = unbounded_channel();
        let show = move |line: &str| sender.send(line.to_owned()).unwrap_or_default();
        let task = tokio::spawn(async move { program.run(&assignment("{}"), show, stop).await });
        Background { task, lines }
    }

    /// The error of a command that must fail.
    async fn fails(self) -> String {
        match within(self.task).await.unwrap() {
            Finished::Failed { error } => error,
            other => panic!("it cannot succeed: {other:?}"),
        }
    }

    async fn line(&mut self) -> String {
        within(self.lines.recv()).await.expect("it has ended")
    }

    /// Waits for this line. Shells may print lines of their own in between.
    async fn says(&mut self, text: &str) {
        while self.line().await != text {}
    }
}

// ── input and output ─────────────────────────────────────────────────────────────────────────────

#[tokio::test]
async fn args_come_in_on_stdin_and_json_on_stdout_is_the_result() {
    let echoed =
        within(program(&["cat"]).run(&assignment("{\"to\": \"é\"}"), unseen, pending())).await;
    assert_eq!(echoed, done(Some("{\"to\": \"é\"}")));
    assert_eq!(run("printf '\\n [1,\\n2] \\n\\n'").await, done(Some("[1,\n2]")));
}

#[tokio::test]
async fn stdout_that_is_not_json_is_no_result() {
    assert_eq!(run("echo all done").await, Finished::NotJson);
    assert_eq!(run("true").await, done(None));
}

#[tokio::test]
async fn a_command_that_logs_to_stdout_may_have_its_result_in_the_last_line() {
    let program = script("echo begun; echo '{\"n\":7}'").result(ResultFrom::LastLine);
    let finished = within(program.run(&assignment("{}"), unseen, pending())).await;
    assert_eq!(finished, done(Some("{\"n\":7}")));
}

#[tokio::test]
async fn a_command_knows_its_job_by_its_environment() {
    let environment = vec![("TENURE_JOB", "7".to_owned())];
    let job = Assignment { environment, ..assignment("{}") };
    assert_eq!(
        within(script("echo $TENURE_JOB").run(&job, unseen, pending())).await,
        done(Some("7"))
    );
}

#[tokio::test]
async fn exit_code_65_is_fatal_and_any_other_is_a_failure_with_the_end_of_stderr() {
    let fatal = run("echo no such address >&2; exit 65").await;
    assert_eq!(fatal, Finished::Fatal { error: "exit code 65: no such address".into() });
    assert_eq!(run("echo '{}'; echo oh >&2; exit 3").await, failed("exit code 3: oh"));
    assert_eq!(run("exit 1").await, failed("exit code 1"));
    // A shell uses this code for a command that was killed. Here it is only an exit code.
    assert_eq!(run("exit 137").await, failed("exit code 137"));
}

#[tokio::test]
async fn a_command_that_is_killed_says_by_what() {
    assert_eq!(run("echo oh >&2; kill -9 $$").await, failed("killed by signal 9 (KILL): oh"));
    assert_eq!(run("kill -SEGV $$").await, failed("killed by signal 11 (SEGV)"));
}

#[tokio::test]
async fn args_that_nobody_reads_hold_nobody_up() {
    let args = format!("\"{}\"", "x".repeat(256 * 1024));
    for text in ["true", "exec <&-; echo 1 >/dev/null", "head -c 10 >/dev/null"] {
        assert_eq!(
            within(script(text).run(&assignment(&args), unseen, pending())).await,
            done(None),
            "{text}"
        );
    }
    let counted = within(script("wc -c").run(&assignment(&args), unseen, pending())).await;
    assert_eq!(counted, done(Some(&args.len().to_string())));
}

#[tokio::test]
async fn output_of_any_length_is_read_and_only_its_due_part_kept() {
    let log =
        run("yes 'a log' | head -c 20000000; yes oh | head -c 30000000 >&2; echo end >&2; exit 3");
    let Finished::Failed { error } = log.await else { panic!("it failed") };
    assert!(error.starts_with("exit code 3: ") && error.ends_with("oh\nend"), "{error}");
    assert!(error.len() < 5_000, "{}", error.len());
    let long = run("printf '['; yes '1,' | head -c 3000000; printf '1]\\n'").await;
    assert_eq!(long, Finished::TooLarge { size: 3_000_003, limit: LIMIT });
    assert_eq!(run("yes 'a log' | head -c 20000000").await, Finished::NotJson);
}

#[tokio::test]
async fn what_a_command_complains_of_is_shown_as_it_comes() {
    let mut command = Background::start(script("echo one >&2; echo two >&2; cat; exec sleep 1000"));
    assert_eq!((command.line().await, command.line().await), ("one".into(), "two".into()));
    command.task.abort();
}

// ── what cannot be run ───────────────────────────────────────────────────────────────────────────

#[tokio::test]
async fn a_command_that_vanished_since_the_start_is_a_failure_that_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("resize");
    let write = |mode| {
        fs::write(&path, "#!/no/such/shell\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    };
    write(0o755);
    let program = program(&[path.to_str().unwrap()]);
    let error = async |code: u8| {
        let Finished::Failed { error } =
            within(program.run(&assignment("{}"), unseen, pending())).await
        else {
            panic!("it cannot succeed")
        };
        let text = format!("exit code {code}: cannot run {}: ", path.display());
        assert!(error.starts_with(&text), "{error}");
        error
    };
    assert!(error(127).await.contains("No such file"));
    write(0o644);
    assert!(error(126).await.contains("Permission denied"));
    fs::remove_file(&path).unwrap();
    assert!(error(127).await.contains("No such file"));
}

#[tokio::test]
async fn a_command_that_cannot_be_found_is_refused_at_the_start() {
    let refused = Program::find(vec!["no-such-program".into()]).err().unwrap();
    assert!(refused.is::<args::BadInput>(), "{refused}");
    assert!(refused.to_string().contains("no program in PATH is called no-such-program"));
}

#[tokio::test]
async fn a_helper_that_cannot_be_started_is_a_failure_that_says_so() {
    let helper = "/no/such/tenure".into();
    let program = Program::find_with(vec!["true".into()], helper, HANGS).unwrap();
    let Finished::Failed { error } = program.run(&assignment("{}"), unseen, pending()).await else {
        panic!("it cannot succeed")
    };
    assert!(error.starts_with("cannot run true: No such file"), "{error}");
}

// ── which processes are left ─────────────────────────────────────────────────────────────────────

#[tokio::test]
async fn what_a_command_left_behind_ends_with_it_and_holds_nobody_up() {
    let gate = Gate::new();
    let text = format!("sleep 1000 & echo $! >&2; read _ <{gate}; echo 5");
    let mut command = Background::start(script(&text));
    let child = Process::of(&command.line().await);
    assert!(!child.has_ended());
    gate.open();
    assert_eq!(within(command.task).await.unwrap(), done(Some("5")));
    child.ends();
}

#[tokio::test]
async fn what_left_the_group_of_a_command_holds_nobody_up() {
    let gate = Gate::new();
    let text = format!("setsid sh -c 'echo $$ >&2; exec sleep 1000' & read _ <{gate}; echo 5");
    let mut command = Background::start(script(&text));
    let child = Process::of(&command.line().await);
    gate.open();
    assert_eq!(within(command.task).await.unwrap(), done(Some("5")));
    // The process left the command's group, so the helper must not end it, although it holds stdout
    // open.
    assert!(!child.has_ended());
    child.signal(Signal::KILL);
}

#[tokio::test]
async fn an_attempt_that_is_given_up_ends_with_all_that_it_started() {
    let mut command = Background::start(script("sleep 1000 & echo $PPID $$ $! >&2; wait"));
    let processes = Process::all(&command.line().await);
    assert_eq!(processes.len(), 3);
    // Otherwise Ctrl-C in the worker's terminal would reach them.
    assert!(processes.iter().all(|process| process.group() != getpgrp()));
    command.task.abort();
    tokio::task::spawn_blocking(move || processes.iter().for_each(Process::ends)).await.unwrap();
}

#[tokio::test]
async fn a_command_that_is_given_up_may_still_say_something() {
    let text = "trap 'echo ending >&2; sleep 0.1; echo ended >&2; exit' TERM; echo ready >&2; \
                while :; do sleep 0.01; done";
    let mut command = Background::start(script(text));
    command.says("ready").await;
    command.task.abort();
    command.says("ending").await;
    command.says("ended").await;
}

#[tokio::test]
async fn a_command_that_does_not_end_when_given_up_is_killed() {
    let text = "trap '' TERM; echo $$ >&2; while :; do sleep 0.01; done";
    let mut command = Background::start(script(text).patience(Duration::from_millis(100)));
    let process = Process::of(&command.line().await);
    command.task.abort();
    tokio::task::spawn_blocking(move || process.ends()).await.unwrap();
}

#[test]
fn a_command_that_is_given_up_ends_even_if_the_runtime_is_gone() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut command = runtime.block_on(async {
        Background::start(
            script("trap '' TERM; echo $$ >&2; while :; do sleep 0.01; done")
                .patience(Duration::from_millis(100)),
        )
    });
    let process = Process::of(&runtime.block_on(command.line()));
    runtime.shutdown_background();
    process.ends();
}

/// Waits until all of them have ended, without blocking the runtime.
async fn end(processes: Vec<Process>) {
    tokio::task::spawn_blocking(move || processes.iter().for_each(Process::ends)).await.unwrap();
}

#[tokio::test]
async fn all_commands_of_a_helper_that_is_killed_fail_and_nothing_survives_it() {
    let text = "sleep 1000 & echo $PPID $$ $! >&2; wait";
    let program = Arc::new(script(text));
    let mut commands = [(); 3].map(|()| Background::of(&program));
    let mut processes = Vec::new();
    for command in &mut commands {
        processes.extend(Process::all(&command.line().await));
    }
    assert_eq!(processes.len(), 9);
    processes[0].signal(Signal::KILL);
    for command in commands {
        let error = command.fails().await;
        assert!(error.starts_with("tenure __helper ended before it (signal: 9"), "{error}");
    }
    end(processes).await;
    // The next command has a new helper.
    let mut next = Background::of(&program);
    let processes = Process::all(&next.line().await);
    assert!(!processes.iter().any(Process::has_ended));
    next.task.abort();
    drop(program);
    end(processes).await;
}

#[tokio::test]
async fn a_helper_that_was_killed_while_it_was_idle_costs_no_attempt() {
    let program = Arc::new(script("echo $PPID >&2"));
    let mut before: Option<Process> = None;
    for _ in 0..3 {
        let mut command = Background::of(&program);
        let helper = Process::of(&command.line().await);
        assert_eq!(within(command.task).await.unwrap(), done(None));
        assert!(before.is_none_or(|before| before.has_ended()));
        helper.signal(Signal::KILL);
        helper.ends();
        before = Some(helper);
    }
}

#[tokio::test]
async fn a_helper_that_is_silent_is_replaced_and_nothing_survives_it() {
    let words = ["sh", "-c", "echo $PPID $$ >&2; exec sleep 1000"].map(OsString::from);
    let silence = Duration::from_millis(500);
    let program =
        Program::find_with(words.into(), env!("CARGO_BIN_EXE_tenure").into(), silence).unwrap();
    let program = Arc::new(program);
    let mut first = Background::of(&program);
    let processes = Process::all(&first.line().await);
    processes[0].signal(Signal::STOP);
    // The stopped helper cannot start this command, and cannot report the end of the first one.
    let second = Background::of(&program);
    for command in [first, second] {
        let error = command.fails().await;
        assert!(error.starts_with("tenure __helper ended before it (signal: 9"), "{error}");
    }
    end(processes).await;
    let mut third = Background::of(&program);
    end_by_stopping(&program, Process::all(&third.line().await), third).await;
}

/// A helper that is stopped does not end a command. The worker then kills the helper and its
/// commands.
async fn end_by_stopping(program: &Arc<Program>, processes: Vec<Process>, running: Background) {
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut next = Background::until(program, async { stopped.await.unwrap_or_default() });
    let mut all = Process::all(&next.line().await);
    processes[0].signal(Signal::STOP);
    stop.send(()).unwrap();
    for command in [next, running] {
        let error = command.fails().await;
        assert!(error.starts_with("tenure __helper ended before it (signal: 9"), "{error}");
    }
    all.extend(processes);
    end(all).await;
}

#[tokio::test]
async fn a_command_that_floods_its_output_holds_up_no_other() {
    let directory = TempDir::new().unwrap();
    let text = format!(
        "if mkdir {}/first 2>/dev/null; then echo flood >&2; exec cat /dev/zero; fi; echo 7",
        directory.path().display()
    );
    let program = Arc::new(script(&text));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut flood = Background::until(&program, async { stopped.await.unwrap_or_default() });
    assert_eq!(flood.line().await, "flood");
    for _ in 0..4 {
        for other in [(); 15].map(|()| Background::of(&program)) {
            assert_eq!(within(other.task).await.unwrap(), done(Some("7")));
        }
    }
    assert!(!flood.task.is_finished());
    stop.send(()).unwrap();
    assert_eq!(flood.fails().await, "killed by signal 15 (TERM): flood");
}

/// A FIFO that a command reads from: the command waits there until the gate is opened.
struct Gate(TempDir);

impl Gate {
    fn new() -> Gate {
        let gate = Gate(tempfile::tempdir().unwrap());
        let made = std::process::Command::new("mkfifo").arg(gate.to_string()).status();
        assert!(made.unwrap().success());
        gate
    }

    fn open(&self) {
        fs::write(self.to_string(), "\n").unwrap();
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.path().join("gate").display())
    }
}

#[tokio::test]
async fn a_command_that_is_to_stop_is_waited_for() {
    // The command takes a while to end, and writes a file at the very end.
    let directory = TempDir::new().unwrap();
    let said = directory.path().join("said");
    let text = format!(
        "trap 'sleep 0.3; echo ended > {0}; exit 9' TERM; echo begun > {0}.begun; while :; do sleep 0.05; done",
        said.display()
    );
    let begun = format!("{}.begun", said.display());
    let stop = async move {
        while !fs::exists(&begun).unwrap() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let finished = within(script(&text).run(&assignment("{}"), unseen, stop)).await;
    assert!(
        matches!(&finished, Finished::Failed { error } if error.starts_with("exit code 9")),
        "{finished:?}"
    );
    assert_eq!(fs::read_to_string(said).unwrap(), "ended\n", "before that, nobody else may begin");
}
