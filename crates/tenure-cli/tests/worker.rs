//! `tenure worker`, from the claim of a job to its end: real workers, real commands, and what is
//! left when they are stopped or killed.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod process;
mod shell;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Child;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use process::Process;
use rustix::process::Signal;
use serde_json::Value;
use shell::{Shell, on_both_engines};
use tenure::JobDetail;
use tenure::engine::clock::monotonic;
use tenure::engine::job::{JobId, Json, Name, NewJob, RetryPolicy, State};
use tenure::engine::lifecycle::Verb;
use tenure::engine::store::Enqueued;

on_both_engines!(
    a_command_gets_its_job_and_its_json_is_the_result,
    exit_code_65_buries_and_any_other_is_tried_again_under_the_same_key,
    a_worker_that_is_asked_to_end_lets_its_job_finish_and_takes_no_other,
    after_its_grace_a_job_is_given_back_and_its_processes_are_gone,
    a_second_interrupt_gives_jobs_back_at_once,
    a_killed_worker_leaves_nothing_behind_and_another_runs_its_job,
    a_killed_helper_costs_its_jobs_an_attempt_and_the_worker_has_another,
    a_worker_that_is_killed_at_once_with_its_helper_leaves_no_command,
    a_worker_that_is_killed_while_its_helper_is_stopped_leaves_nothing_behind,
    events_as_json_carry_job_token_and_worker,
    two_workers_with_the_same_settings_share_the_work,
    a_kind_that_nobody_asked_for_stays_queued,
    a_worker_that_drains_says_what_it_left_in_a_paused_queue,
);

/// Longer than a busy machine needs, and shorter than the grace periods that no test should wait
/// for.
const PATIENCE: Duration = Duration::from_secs(20);

/// Writes its process ids to a file, and waits for ever with a child of its own.
const HANGS: &str = "sleep 1000 & echo $PPID $$ $! >pids.new; mv pids.new pids; wait";

/// A running worker, and its stderr.
struct Worker {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Worker {
    fn start(shell: &Shell, args: &[&str]) -> Worker {
        let mut child = shell.command(args).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).all(|line| tell.send(line).is_ok())
        });
        Worker { child, lines, seen: Vec::new() }
    }

    /// Waits until it prints this.
    fn says(&mut self, text: &str) {
        let until = monotonic() + PATIENCE;
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(monotonic())) {
            let found = line.contains(text);
            self.seen.push(line);
            if found {
                return;
            }
        }
        panic!("it never said {text:?}, but: {:#?}", self.seen);
    }

    fn process(&self) -> Process {
        Process::of(&self.child.id().to_string())
    }

    fn signal(&self, signal: Signal) {
        self.process().signal(signal);
    }

    /// Its exit code, once it has ended by itself.
    fn ends(&mut self) -> Option<i32> {
        self.process().ends();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for something that a command or a worker does.
#[track_caller]
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let end: Instant = monotonic() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(monotonic() < end, "waited in vain for {what}");
        // Not in a tight loop: the processes that are waited for need the processor.
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// The processes that a command has written down: its helper, itself, its child.
fn noted(shell: &Shell) -> Vec<Process> {
    let line = until("the command to start", || fs::read_to_string(shell.path("pids")).ok());
    Process::all(&line)
}

/// The command lines of processes whose working directory is this shell's.
fn who_is_left(shell: &Shell) -> Vec<String> {
    let home = shell.path("").canonicalize().unwrap();
    let here = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        // A process that has just ended cannot be read any more.
        let is_here = fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd == home);
        is_here.then(|| fs::read_to_string(path.join("cmdline")).unwrap_or_default())
    });
    here.collect()
}

fn enqueue(shell: &Shell, kind: &str) -> JobId {
    JobId::parse(shell.ok(&["enqueue", kind]).trim()).unwrap()
}

fn detail(shell: &Shell, id: JobId) -> JobDetail {
    shell.store().job(id).unwrap().unwrap()
}

/// Asserts that the job was given back, and that its attempt does not count.
fn assert_given_back(shell: &Shell, id: JobId) {
    let found = detail(shell, id);
    assert_eq!((found.job.state, found.job.attempt), (State::Queued, 0), "{found:?}");
    assert_eq!(found.timeline.last().unwrap().verb, Verb::Release, "{found:?}");
}

fn a_command_gets_its_job_and_its_json_is_the_result(shell: &Shell) {
    let args = "{\"to\": \"é\",  \"n\": 1.50}";
    let enqueued = shell.ok(&["enqueue", "mail", args, "--queue", "out", "--tenant", "ann"]);
    let id = JobId::parse(enqueued.trim()).unwrap();
    let script = "cat >args; env >env; echo some words >&2; echo '{\"sent\": [1, 2]}'";
    shell.ok(&["worker", "--drain", "--queue", "out", "--", "sh", "-c", script]);
    assert_eq!(fs::read_to_string(shell.path("args")).unwrap(), args);
    let env = fs::read_to_string(shell.path("env")).unwrap();
    let env: BTreeMap<&str, &str> = env.lines().filter_map(|line| line.split_once('=')).collect();
    let found = detail(shell, id).job;
    for (name, value) in [
        ("TENURE_JOB_ID", id.to_string()),
        ("TENURE_TOKEN", found.token.to_string()),
        ("TENURE_ATTEMPT", "1".into()),
        ("TENURE_KIND", "mail".into()),
        ("TENURE_QUEUE", "out".into()),
        ("TENURE_TENANT", "ann".into()),
    ] {
        assert_eq!(env.get(name), Some(&value.as_str()), "{name}");
    }
    let installation = shell.store().identity().unwrap().installation.simple();
    assert_eq!(env["TENURE_KEY"], format!("{installation}/0/{id}/command"));
    // A command that enqueues more jobs finds the same store.
    match &shell.database {
        Some(database) => assert_eq!(env["TENURE_DB"], database.url()),
        None => assert_eq!(shell.path(env["TENURE_DB"]), shell.path("tenure.db")),
    }
    assert_eq!(found.state, State::Succeeded);
    assert_eq!(found.result.unwrap().as_str(), "{\"sent\": [1, 2]}");
}

fn exit_code_65_buries_and_any_other_is_tried_again_under_the_same_key(shell: &Shell) {
    let new = |kind: &str| {
        let args = Json::check("args", "{}", 10).unwrap();
        NewJob::new(Name::check("kind", kind).unwrap(), args).retry(RetryPolicy::Fixed { ms: 1 })
    };
    let mut store = shell.store();
    let stored = store.enqueue(&[new("wrong"), new("flaky")]).unwrap();
    let [Enqueued::Created(wrong), Enqueued::Created(flaky)] = stored[..] else {
        panic!("{stored:?}")
    };
    let script = "echo $TENURE_KEY >>keys-$TENURE_KIND; echo one >&2; echo two >&2
        [ $TENURE_KIND = wrong ] && exit 65
        [ $TENURE_ATTEMPT = 1 ] && exit 3
        echo $TENURE_ATTEMPT";
    let mut worker = Worker::start(shell, &["worker", "--", "sh", "-c", script]);
    let found = until("both to end", || {
        let found = [wrong, flaky].map(|id| store.job(id).unwrap().unwrap());
        found.iter().all(|found| found.job.state.has_ended()).then_some(found)
    });
    worker.signal(Signal::TERM);
    assert_eq!(worker.ends(), Some(0));
    let [wrong, flaky] = found;
    assert_eq!((wrong.job.state, wrong.job.attempt), (State::Dead, 1), "{wrong:?}");
    assert_eq!(wrong.job.reason.as_deref(), Some("exit code 65: one\ntwo"));
    assert_eq!((flaky.job.state, flaky.job.attempt), (State::Succeeded, 2), "{flaky:?}");
    assert_eq!(flaky.job.result.unwrap().as_str(), "2");
    let [retry] = &flaky.timeline[..] else { panic!("{:?}", flaky.timeline) };
    assert_eq!((retry.verb, retry.note.as_deref()), (Verb::Retry, Some("exit code 3: one\ntwo")));
    let keys = fs::read_to_string(shell.path("keys-flaky")).unwrap();
    let keys: Vec<&str> = keys.lines().collect();
    assert!(keys.len() == 2 && keys[0] == keys[1], "{keys:?}");
    let other = fs::read_to_string(shell.path("keys-wrong")).unwrap();
    assert_ne!(other.trim(), keys[0], "each job has its own");
}

fn a_worker_that_is_asked_to_end_lets_its_job_finish_and_takes_no_other(shell: &Shell) {
    let first = enqueue(shell, "slow");
    let script = "touch started; while [ ! -e gate ]; do sleep 0.01; done; echo 7";
    let mut worker = Worker::start(shell, &["worker", "--", "sh", "-c", script]);
    until("the command to start", || shell.path("started").exists().then_some(()));
    worker.signal(Signal::TERM);
    worker.says("stopping: jobs may finish");
    let second = enqueue(shell, "slow");
    fs::write(shell.path("gate"), "").unwrap();
    assert_eq!(worker.ends(), Some(0));
    let found = detail(shell, first);
    assert_eq!((found.job.state, found.timeline.len()), (State::Succeeded, 0), "{found:?}");
    assert_eq!(found.job.result.unwrap().as_str(), "7");
    let found = detail(shell, second);
    assert_eq!((found.job.state, found.job.token.0), (State::Queued, 0), "{found:?}");
}

fn after_its_grace_a_job_is_given_back_and_its_processes_are_gone(shell: &Shell) {
    let id = enqueue(shell, "hung");
    let args = ["worker", "--grace", "300ms", "--", "sh", "-c", HANGS];
    let mut worker = Worker::start(shell, &args);
    let processes = noted(shell);
    worker.signal(Signal::TERM);
    assert_eq!(worker.ends(), Some(0));
    assert_given_back(shell, id);
    processes.iter().for_each(Process::ends);
}

fn a_second_interrupt_gives_jobs_back_at_once(shell: &Shell) {
    let id = enqueue(shell, "hung");
    // A grace period longer than any wait of the test.
    let args = ["worker", "--grace", "10m", "--", "sh", "-c", HANGS];
    let mut worker = Worker::start(shell, &args);
    let processes = noted(shell);
    worker.signal(Signal::INT);
    worker.says("once more to give them back at once");
    assert!(!worker.process().has_ended());
    worker.signal(Signal::INT);
    assert_eq!(worker.ends(), Some(0));
    assert_given_back(shell, id);
    processes.iter().for_each(Process::ends);
}

fn a_killed_worker_leaves_nothing_behind_and_another_runs_its_job(shell: &Shell) {
    let id = enqueue(shell, "hung");
    // The second attempt is quick.
    let script = format!("[ -e pids ] && {{ echo $TENURE_ATTEMPT; exit; }}; {HANGS}");
    // The lease keeps the job for longer than any wait of the test.
    let args = ["worker", "--lease", "10m", "--", "sh", "-c", &script];
    let mut worker = Worker::start(shell, &args);
    let processes = noted(shell);
    // The commands that the script ran to write the file may still exist for a moment.
    until("the worker, its helper, the command and its child to be left", || {
        (who_is_left(shell).len() == 4).then_some(())
    });
    worker.signal(Signal::KILL);
    assert_eq!(worker.ends(), None);
    processes.iter().for_each(Process::ends);
    until("all processes to go", || who_is_left(shell).is_empty().then_some(()));
    let mut heir = Worker::start(shell, &args);
    let found = until("the job to be done", || {
        let found = detail(shell, id);
        (found.job.state == State::Succeeded).then_some(found)
    });
    assert_eq!((found.job.crashes, found.job.result.unwrap().as_str()), (1, "2"));
    heir.signal(Signal::TERM);
    assert_eq!(heir.ends(), Some(0));
}

fn a_killed_helper_costs_its_jobs_an_attempt_and_the_worker_has_another(shell: &Shell) {
    let id = JobId::parse(shell.ok(&["enqueue", "hung", "--retry", "fixed:1ms"]).trim()).unwrap();
    let script = format!("[ -e pids ] && {{ echo $TENURE_ATTEMPT; exit; }}; {HANGS}");
    let mut worker = Worker::start(shell, &["worker", "--", "sh", "-c", &script]);
    let processes = noted(shell);
    processes[0].signal(Signal::KILL);
    processes.iter().for_each(Process::ends);
    let found = until("the job to be done", || {
        let found = detail(shell, id);
        (found.job.state == State::Succeeded).then_some(found)
    });
    assert_eq!((found.job.crashes, found.job.result.unwrap().as_str()), (0, "2"));
    let [retry] = &found.timeline[..] else { panic!("{:?}", found.timeline) };
    let note = retry.note.as_deref().unwrap();
    assert!(note.starts_with("tenure __helper ended before it (signal: 9"), "{note}");
    worker.signal(Signal::TERM);
    assert_eq!(worker.ends(), Some(0));
}

fn a_worker_that_is_killed_at_once_with_its_helper_leaves_no_command(shell: &Shell) {
    enqueue(shell, "hung");
    // The command starts no child: with worker and helper dead, nothing would end the child.
    let script = "echo $PPID $$ >pids.new; mv pids.new pids; exec sleep 1000";
    let mut worker = Worker::start(shell, &["worker", "--", "sh", "-c", script]);
    let processes = noted(shell);
    // Both are stopped first, so that neither can do anything about the death of the other.
    let both = [worker.process(), Process::of(&processes[0].id())];
    both.iter().for_each(|process| process.signal(Signal::STOP));
    both.iter().for_each(|process| process.signal(Signal::KILL));
    assert_eq!(worker.ends(), None);
    processes.iter().for_each(Process::ends);
}

fn a_worker_that_is_killed_while_its_helper_is_stopped_leaves_nothing_behind(shell: &Shell) {
    enqueue(shell, "hung");
    let mut worker = Worker::start(shell, &["worker", "--", "sh", "-c", HANGS]);
    let processes = noted(shell);
    processes[0].signal(Signal::STOP);
    worker.signal(Signal::KILL);
    assert_eq!(worker.ends(), None);
    processes.iter().for_each(Process::ends);
}

fn events_as_json_carry_job_token_and_worker(shell: &Shell) {
    let [good, bad] = ["good", "bad"].map(|kind| enqueue(shell, kind));
    let script = "echo some words >&2; [ $TENURE_KIND = good ] || exit 65";
    let args = ["--log", "json", "worker", "--", "sh", "-c", script];
    let mut worker = Worker::start(shell, &args);
    until("both to end", || {
        let ended = |id| detail(shell, id).job.state.has_ended();
        (ended(good) && ended(bad)).then_some(())
    });
    worker.signal(Signal::TERM);
    worker.says("worker_exit");
    assert_eq!(worker.ends(), Some(0));
    let parse = |line: &String| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
    let events: Vec<Value> = worker.seen.iter().map(parse).collect();
    let id = events[0]["worker"].as_str().unwrap();
    assert!(events.iter().all(|event| event["worker"] == id && event["at"].is_string()));
    let of = |job: JobId| {
        let of_job = events.iter().filter(move |event| event["job"] == job.to_string());
        of_job.map(|event| (event["event"].as_str().unwrap(), event["token"].as_str().unwrap()))
    };
    let told = |job: JobId, last: &'static str| {
        let token = detail(shell, job).job.token.to_string();
        let expected = ["lease_acquired", "execution_started", last].map(|name| (name, &*token));
        assert_eq!(of(job).collect::<Vec<_>>(), expected);
    };
    told(good, "job_succeeded");
    told(bad, "job_dead");
    let names: Vec<&str> = events
        .iter()
        .filter(|event| event["job"].is_null())
        .map(|e| e["event"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["worker_started", "worker_exit"]);
}

fn two_workers_with_the_same_settings_share_the_work(shell: &Shell) {
    // Each command waits until the other runs as well.
    let script = "touch at-$TENURE_JOB_ID; while [ $(ls at-* | wc -l) -lt 2 ]; do sleep 0.01; done";
    let args = ["worker", "--concurrency", "1", "--", "sh", "-c", script];
    let mut workers = [0, 1].map(|_| Worker::start(shell, &args));
    let jobs = [0, 1].map(|_| enqueue(shell, "both"));
    let by = until("both to end", || {
        let found = jobs.map(|id| detail(shell, id).job);
        let done = found.iter().all(|job| job.state == State::Succeeded);
        done.then(|| found.map(|job| job.worker.unwrap()))
    });
    assert_ne!(by[0], by[1]);
    for worker in &mut workers {
        worker.signal(Signal::TERM);
        assert_eq!(worker.ends(), Some(0));
    }
}

fn a_kind_that_nobody_asked_for_stays_queued(shell: &Shell) {
    let [mine, other] = ["mine", "other"].map(|kind| enqueue(shell, kind));
    shell.ok(&["worker", "--drain", "--kind", "other", "--", "true"]);
    assert_eq!(detail(shell, other).job.state, State::Succeeded);
    let found = detail(shell, mine).job;
    assert_eq!((found.state, found.token.0), (State::Queued, 0), "nobody has touched it");
}

#[test]
fn a_command_that_does_not_exist_is_refused_before_any_job_is_taken() {
    let shell = Shell::new();
    let ran = shell.run(&["worker", "--drain", "--", "no-such-program"]);
    ran.refused(2, "no program in PATH is called no-such-program");
    assert!(!shell.path("tenure.db").exists(), "nothing was opened");
    shell.run(&["worker", "--drain"]).refused(2, "<COMMAND>");
}

fn a_worker_that_drains_says_what_it_left_in_a_paused_queue(shell: &Shell) {
    for queue in ["mail", "post"] {
        shell.ok(&["enqueue", "k", "--queue", queue, "--count", "2"]);
        shell.ok(&["queues", "pause", queue]);
    }
    shell.ok(&["enqueue", "k", "--queue", "mail", "--delay", "2h"]);
    let drain = |options: &[&str]| {
        let ran = shell.run(&[&["worker", "--drain"], options, &["--", "true"]].concat());
        assert_eq!(ran.code, 0, "{ran:?}");
        let said = |line: &&str| line.contains("paused");
        ran.stderr.lines().filter(said).map(str::to_owned).collect::<Vec<_>>()
    };
    let line = "queue mail is paused, and 2 due jobs are left in it; resume it with: tenure \
                queues resume mail";
    assert_eq!(drain(&["--queue", "mail", "--queue", "default"]), [line]);
    assert_eq!(drain(&["--queue", "mail", "--log", "json"]), [""; 0], "every line is an event");
    assert_eq!(drain(&[]), [""; 0], "it does not work from them");
    shell.ok(&["queues", "resume", "mail"]);
    assert_eq!(drain(&["--queue", "mail"]), [""; 0]);
}
