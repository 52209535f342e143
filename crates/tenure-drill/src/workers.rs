//! Real workers of the library, each in a process of its own, that are killed, stopped and cut off
//! while they work.
//!
//! A [`process`] runs a worker with the handlers of [`kinds`] and writes each event as a line of
//! JSON. This module starts such processes, reads their events, and waits for what becomes of their
//! jobs. [`attack`] and [`takeover`] run daily at a small size and in the long proof at full size.
//! The cost of idle workers is measured with a [`fleet`].

pub mod attack;
pub mod books;
pub mod fleet;
pub mod kinds;
pub mod process;
pub mod takeover;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tenure::engine::clock::monotonic;
use tenure::engine::inspect::{EffectFilter, EffectView, Wrong};
use tenure::engine::job::{JobId, Json, Name, NewJob, State};
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
use tenure::engine::store::{Enqueued, Store};
use tenure::{Address, Job, Token};

use crate::servers;
use crate::speakers::{PATIENCE, Speaker};

/// How a worker is set up.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The length of its leases.
    pub lease: Duration,
    /// How many jobs it runs at a time.
    pub concurrency: usize,
    /// How many threads its handlers share.
    pub threads: usize,
    /// The queue it works on.
    pub queue: String,
    /// Whether it renews and checks its leases.
    pub care: Care,
    /// How it ends when it is asked to.
    pub end: End,
}

/// Whether a worker renews and checks its leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Care {
    /// As every worker does.
    Usual,
    /// It neither renews its leases nor checks whether they are over, like a process that was
    /// suspended and does not know it.
    Stalled,
}

/// How a worker ends when its standard input is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It claims nothing more, and lets running jobs finish.
    Shutdown,
    /// It ends when nothing is due and nothing runs.
    Drain,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            lease: Duration::from_secs(30),
            concurrency: 16,
            threads: 2,
            queue: "default".into(),
            care: Care::Usual,
            end: End::Shutdown,
        }
    }
}

/// The program that a process of the drill runs, and its first argument.
#[derive(Debug, Clone)]
pub struct Program {
    /// Its path.
    pub path: PathBuf,
    /// The argument that selects the drill's process in the binary `tenure`; none for
    /// `tenure-drill-worker`.
    pub word: Option<&'static str>,
}

impl Program {
    /// The binary `tenure-drill-worker`.
    pub fn itself(path: &Path) -> Program {
        Program { path: path.to_owned(), word: None }
    }

    /// A command with these arguments, ready to start. It gets its own process group, so that
    /// Ctrl-C in the drill's terminal does not end it first.
    pub fn command(&self, place: &str, words: &[String]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(self.word).args(words).env(process::PLACE, place).process_group(0);
        command
    }
}

/// An event that a worker reported, and when it was received.
#[derive(Debug, Clone)]
pub struct Event {
    /// When it was received.
    pub at: Instant,
    /// The event's name.
    pub name: String,
    /// The job.
    pub job: Option<JobId>,
    /// The token of the attempt that the event is about.
    pub token: Option<Token>,
    /// All fields.
    pub all: Value,
}

impl Event {
    /// Parses a line. A line that a kill cut off yields nothing.
    fn parse(at: Instant, line: &str) -> Option<Event> {
        let all: Value = serde_json::from_str(line).ok()?;
        let text = |name: &str| all[name].as_str();
        Some(Event {
            at,
            name: text("event")?.to_owned(),
            job: text("job").and_then(|job| JobId::parse(job).ok()),
            token: text("token").and_then(|token| Token::parse(token).ok()),
            all,
        })
    }

    /// Whether this is the event `name` about this job.
    pub fn is(&self, name: &str, job: JobId) -> bool {
        self.name == name && self.job == Some(job)
    }
}

/// A worker process.
#[derive(Debug)]
pub struct Worker {
    speaker: Speaker,
    /// The events read so far.
    pub events: Vec<Event>,
}

impl Worker {
    /// Starts a worker, and returns once it works.
    pub fn start(program: &Program, place: &str, setup: &Setup) -> Worker {
        let mut worker = Worker::launch(program, place, &process::words(setup));
        worker.hear("that it has started", |event| event.name == "worker_started");
        worker
    }

    /// Starts a process with these arguments.
    pub fn launch(program: &Program, place: &str, words: &[String]) -> Worker {
        let speaker = Speaker::start(&mut program.command(place, words));
        Worker { speaker, events: Vec::new() }
    }

    /// Waits for a new event for which `is` returns true.
    pub fn hear(&mut self, what: &str, is: impl Fn(&Event) -> bool) -> Event {
        let until = monotonic() + PATIENCE;
        while let Some((at, line)) = self.speaker.next(until) {
            if let Some(event) = Event::parse(at, &line) {
                self.events.push(event.clone());
                if is(&event) {
                    return event;
                }
            }
        }
        panic!("a worker never said {what}; it said: {}", Last(&self.events));
    }

    /// Waits until it reports that a handler was called for this job.
    pub fn starts(&mut self, job: JobId) -> Event {
        self.hear(&format!("that job {job} has started"), |event| {
            event.is("execution_started", job)
        })
    }

    /// Reads the events that it has reported up to now.
    pub fn catch_up(&mut self) {
        while let Some((at, line)) = self.speaker.next(monotonic()) {
            self.events.extend(Event::parse(at, &line));
        }
    }

    /// Kills it, and reads its last events.
    pub fn kill(&mut self) {
        self.speaker.kill();
        self.listen_to_the_end();
    }

    /// Asks it to end, waits until it has, and reads its last events.
    pub fn end(&mut self) {
        let how = self.speaker.end();
        self.listen_to_the_end();
        assert!(how.success(), "{how}; it said: {}", Last(&self.events));
    }

    fn listen_to_the_end(&mut self) {
        while let Some((at, line)) = self.speaker.next(monotonic() + PATIENCE) {
            self.events.extend(Event::parse(at, &line));
        }
    }

    /// The processor time of its process, over all threads.
    pub fn cpu(&self) -> Duration {
        // Fields 14 and 15 of the file. Counting begins after the name, which may contain spaces. A
        // tick is a hundredth of a second.
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it lives");
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks: u64 =
            fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        Duration::from_millis(ticks * 10)
    }
}

impl Deref for Worker {
    type Target = Speaker;

    fn deref(&self) -> &Speaker {
        &self.speaker
    }
}

impl DerefMut for Worker {
    fn deref_mut(&mut self) -> &mut Speaker {
        &mut self.speaker
    }
}

/// The last events, for the message of a wait that timed out.
struct Last<'a>(&'a [Event]);

impl fmt::Display for Last<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = &self.0[self.0.len().saturating_sub(20)..];
        last.iter().try_for_each(|event| write!(f, "\n  {}", event.all))
    }
}

/// A store, and workers for it.
pub struct Bench {
    /// Its place.
    pub place: String,
    /// The test's own connection.
    pub store: Box<dyn Store>,
    /// For files that handlers write.
    pub directory: PathBuf,
    program: Program,
}

impl Bench {
    /// An empty file in `directory`; `program` is the binary `tenure-drill-worker`.
    pub fn sqlite(program: &Path, directory: &Path) -> Bench {
        let file = directory.join("jobs.db");
        let place = file.to_str().expect("a name that can be written").to_owned();
        let store = Box::new(Sqlite::open(&file, &StoreOptions::default()).expect("a new file"));
        Bench { place, store, directory: directory.to_owned(), program: Program::itself(program) }
    }

    /// An empty schema in a database of this thread's own.
    pub fn postgres(program: &Path, directory: &Path) -> Bench {
        let place = servers::unclocked("workers").expect("an empty schema");
        Bench::on_server(program, directory, place)
    }

    /// A store that exists already.
    pub fn on_server(program: &Path, directory: &Path, place: String) -> Bench {
        let store = open(&place).expect("it answers");
        Bench { place, store, directory: directory.to_owned(), program: Program::itself(program) }
    }

    /// A worker process.
    pub fn worker(&self, setup: &Setup) -> Worker {
        Worker::start(&self.program, &self.place, setup)
    }

    /// A file that handlers write, or a gate that they wait for.
    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Enqueues these jobs, and returns their ids in the same order.
    pub fn put(&mut self, jobs: &[NewJob]) -> Vec<JobId> {
        let stored = jobs.chunks(1_000).flat_map(|part| self.store.enqueue(part).expect("stored"));
        let created = stored.map(|answer| match answer {
            Enqueued::Created(id) => id,
            other => panic!("{other:?}"),
        });
        created.collect()
    }

    /// Waits until all jobs have ended.
    pub fn finish(&mut self) {
        self.until("all jobs to end", |bench| bench.owed() == 0);
    }

    /// How many jobs have not ended.
    pub fn owed(&mut self) -> u64 {
        let lines = self.store.overview().expect("it answers").lines;
        lines.iter().map(|line| line.ready + line.waiting + line.running + line.parked).sum()
    }

    /// Waits for something that another process does.
    pub fn until(&mut self, what: &str, mut is: impl FnMut(&mut Bench) -> bool) {
        let end = monotonic() + PATIENCE;
        while !is(self) {
            let overview = self.store.overview().expect("it answers");
            assert!(monotonic() < end, "waited in vain for {what}: {overview:?}");
            // Returns early when something changes in the store, which may be what is waited for.
            self.store.wait(monotonic() + Duration::from_millis(20)).expect("it answers");
        }
    }

    /// Lets time pass in which something must not happen, or which a promise is about.
    pub fn let_pass(&mut self, length: Duration) {
        let end = monotonic() + length;
        while monotonic() < end {
            self.store.wait(end).expect("it answers");
        }
    }

    /// Asserts that a job has ended in this state; returns its token and its crashes.
    pub fn ended(&mut self, id: JobId, state: State) -> (Token, u16) {
        let found = self.store.job(id).expect("it answers").expect("it is kept");
        assert_eq!(found.job.state, state, "{found:?}");
        (found.job.token, found.job.crashes)
    }

    /// All effects in the ledger.
    pub fn effects(&mut self) -> Vec<EffectView> {
        let mut filter = EffectFilter::default();
        let mut all: Vec<EffectView> = Vec::new();
        loop {
            let page = self.store.effects(&filter, 1_000).expect("it answers");
            let Some(last) = page.last() else { return all };
            filter.before = Some(last.effect.job);
            all.extend(page);
        }
    }

    /// Everything that `check` finds wrong in the store.
    pub fn wrong(&mut self) -> Vec<Wrong> {
        let (mut from, mut wrong) = (None, Vec::new());
        loop {
            let checked = self.store.check(from, 1_000).expect("it answers");
            wrong.extend(checked.wrong);
            from = checked.next;
            if from.is_none() {
                return wrong;
            }
        }
    }
}

/// A connection to the store at this place.
pub fn open(place: &str) -> tenure::Result<Box<dyn Store>> {
    place.parse::<Address>()?.open()
}

/// A job for one of the handlers in [`kinds`].
pub fn job<J: Job>(job: &J) -> NewJob {
    let args = serde_json::to_string(job).expect("args are JSON");
    let args = Json::check("args", args, 10_000).expect("args are JSON");
    NewJob::new(Name::check("kind", J::KIND).expect("a name"), args)
}

/// The lines of a file that handlers append to; none if the file does not exist.
pub fn lines(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}
