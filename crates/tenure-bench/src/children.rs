//! Worker processes: this same program, started again under a hidden argument. A child prints lines
//! on its standard output for the bench, and reads lines from its standard input. A child that
//! waits ends when that input is closed. One that drains ends when nothing is due any more.

use std::future::pending;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use tenure::engine::clock::monotonic;
use tenure::{Context, Tenure, Worker};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

use crate::jobs::{Hold, Runs, taught};
use crate::stand::within;

/// How this program is started again.
#[derive(Debug, Clone)]
pub struct Program {
    /// Its path.
    pub path: PathBuf,
    /// The hidden argument that leads to [`work`].
    pub word: &'static str,
}

/// The environment variable that names the store. Not an argument: the address may contain a
/// password, and arguments are visible to every user of the machine.
const PLACE: &str = "TENURE_DB";

const READY: &str = "ready";
const GO: &str = "go\n";
const DRAINED: &str = "drained";
const RAN: &str = "ran";
const STARTED: &str = "started";

/// A process that drains the store when it is told to.
const DRAIN: &str = "drain";
/// A process that starts a job and never ends it.
const HOLD: &str = "hold";

/// The bench's side of a child. Dropping it kills the child.
pub(crate) struct Child {
    process: tokio::process::Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts a process that will drain the store, and waits until it is ready to.
    pub(crate) async fn drain(
        program: &Program,
        url: &str,
        concurrency: usize,
        jobs: u64,
    ) -> Result<Child> {
        let words = [DRAIN.to_owned(), concurrency.to_string(), jobs.to_string()];
        let mut child = Child::start(program, url, &words)?;
        child.hear(READY).await?;
        Ok(child)
    }

    /// Starts a process that will start one job and never end it.
    pub(crate) async fn hold(program: &Program, url: &str) -> Result<Child> {
        let mut child = Child::start(program, url, &[HOLD.to_owned()])?;
        child.hear(READY).await?;
        Ok(child)
    }

    fn start(program: &Program, url: &str, words: &[String]) -> Result<Child> {
        let mut process = Command::new(&program.path)
            .arg(program.word)
            .args(words)
            .env(PLACE, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C goes to the bench, which ends its children itself.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start this program again as a worker")?;
        let input = process.stdin.take();
        let output = process.stdout.take().context("a worker process has no output")?;
        Ok(Child { process, input, output: BufReader::new(output).lines() })
    }

    /// Tells it to begin.
    pub(crate) async fn go(&mut self) -> Result<()> {
        let input = self.input.as_mut().context("a worker process was told to begin twice")?;
        input.write_all(GO.as_bytes()).await.context("a worker process has ended early")
    }

    /// Waits until the child has drained the store. Returns the time at which the child's last
    /// settlement was reported as committed, or `None` if other workers did all the work.
    pub(crate) async fn drained(&mut self) -> Result<Option<Instant>> {
        let line = self.hear(DRAINED).await?;
        let now = monotonic();
        let micros = line.split_whitespace().nth(1).map(str::parse).transpose();
        let micros = micros.context("a worker process does not say when it was done")?;
        Ok(micros.and_then(|micros| now.checked_sub(Duration::from_micros(micros))))
    }

    /// The numbers of the jobs that it ran.
    pub(crate) async fn ran(&mut self) -> Result<Vec<u64>> {
        let line = self.hear(RAN).await?;
        let numbers = line.split_whitespace().skip(1).map(str::parse);
        numbers.collect::<Result<_, _>>().context("a worker process does not say what it ran")
    }

    /// Waits until it has started the job.
    pub(crate) async fn started(&mut self) -> Result<()> {
        self.hear(STARTED).await.map(drop)
    }

    /// Kills it with -9.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.process.start_kill().context("a worker process cannot be killed")
    }

    /// Waits for a line that begins with this word.
    async fn hear(&mut self, word: &str) -> Result<String> {
        let line = within("a worker process", self.output.next_line()).await??;
        match line {
            Some(line) if line.split_whitespace().next() == Some(word) => Ok(line),
            Some(line) => bail!("a worker process says `{line}` instead of `{word}`"),
            None => bail!("a worker process has ended early; it says why above"),
        }
    }
}

/// The child's own side: does what the words say, until that is done or, while it waits, its input
/// is closed.
///
/// # Errors
/// If the words mean nothing, or the store cannot be used.
pub async fn work(url: &str, words: &[String]) -> Result<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let tenure = Tenure::options().open(url).await?;
    match words[..] {
        [DRAIN, concurrency, jobs] => drain(&tenure, concurrency.parse()?, jobs.parse()?).await,
        [HOLD] => hold(&tenure).await,
        _ => bail!("a worker process of a bench cannot make anything of {words:?}"),
    }
}

async fn drain(tenure: &Tenure, concurrency: usize, jobs: u64) -> Result<()> {
    let runs = Runs::new();
    runs.number(jobs);
    let worker = taught(Worker::new(tenure), &runs).concurrency(concurrency).drain();
    say(READY)?;
    let mut line = String::new();
    if BufReader::new(tokio::io::stdin()).read_line(&mut line).await? == 0 {
        return Ok(());
    }
    worker.run().await?;
    match runs.settled_at() {
        Some(at) => say(&format!("{DRAINED} {}", (monotonic() - at).as_micros()))?,
        None => say(DRAINED)?,
    }
    let mut ran = RAN.to_owned();
    for (n, count) in runs.counts().iter().enumerate() {
        (0..*count).for_each(|_| ran.push_str(&format!(" {n}")));
    }
    say(&ran)
}

async fn hold(tenure: &Tenure) -> Result<()> {
    let hold = async |_: Hold, _: Context| {
        // If the bench has died, nothing reads this line. The error does not matter: then the
        // input is closed too, so the function around this handler returns and the process ends.
        let _ = say(STARTED);
        pending().await
    };
    let worker = Worker::new(tenure).queues(["held"]).handle(hold);
    let running = worker.observe(|_| {}).start().await?;
    say(READY)?;
    let mut line = String::new();
    let _ = BufReader::new(tokio::io::stdin()).read_line(&mut line).await;
    drop(running);
    Ok(())
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).context("the bench has ended")
}
