//! Real worker processes that hold jobs, to be killed, stopped and cut off; and the sweeper that watches them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tenure::clock::monotonic;
use tenure::lease::{Fence, Token};
use tenure::store::{Lapse, Lapsed, Result, Store};

/// A process that holds jobs.
#[derive(Debug)]
pub struct Holder {
    process: Child,
    lines: Receiver<String>,
    /// What it holds.
    pub held: Vec<Fence>,
    /// Whether its death will be noticed at once.
    pub guarded: bool,
}

impl Holder {
    /// Starts `program`, the binary `tenure-drill-holder`, and returns once it holds what it could get.
    pub fn start(program: &Path, place: &str, jobs: usize, lease: Duration) -> Holder {
        Holder::start_with(program, place, jobs, lease, None)
    }

    /// The same, and it charges a bank that keeps this book once for each job.
    pub fn start_with(
        program: &Path,
        place: &str,
        jobs: usize,
        lease: Duration,
        bank: Option<&Path>,
    ) -> Holder {
        let mut process = Command::new(program)
            .args([place, &jobs.to_string(), &lease.as_millis().to_string()])
            .args(bank)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the holder starts");
        let output = BufReader::new(process.stdout.take().expect("its output"));
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            // It ends with the process, or when nobody wants to know any more.
            output.lines().map_while(std::result::Result::ok).all(|line| tell.send(line).is_ok())
        });
        let mut holder = Holder { process, lines, held: Vec::new(), guarded: false };
        while let Ok(line) = holder.lines.recv() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["guarded", verdict] => holder.guarded = verdict == "Yes",
                ["held", job, token] => holder.held.push(Fence {
                    job: tenure::job::JobId::parse(job).expect("a job"),
                    token: Token::parse(token).expect("a token"),
                }),
                ["ready", _] => break,
                _ => {}
            }
        }
        holder
    }

    /// The number of its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Kills it with -9.
    pub fn kill(&mut self) {
        self.process.kill().expect("kill -9");
        self.process.wait().expect("it is gone");
    }

    /// Sends it a signal, such as `STOP`.
    pub fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// What it has said since somebody last asked.
    pub fn said(&self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// Waits until it says a line that begins so, and tells what it said on the way.
    pub fn hear(&self, beginning: &str) -> Vec<String> {
        let mut heard = Vec::new();
        while let Ok(line) = self.lines.recv_timeout(Duration::from_secs(60)) {
            let done = line.starts_with(beginning);
            heard.push(line);
            if done {
                return heard;
            }
        }
        panic!("it never said {beginning}: {heard:?}");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sweeps as a worker does, until `enough` or `until`, and tells what was taken back on the way, and when.
pub fn sweep(
    store: &mut dyn Store,
    until: Instant,
    mut enough: impl FnMut(&[(Instant, Fence)]) -> bool,
) -> Result<Vec<(Instant, Fence)>> {
    const PAUSE: Duration = Duration::from_millis(250);
    let mut taken = Vec::new();
    while monotonic() < until && !enough(&taken) {
        let gone: Vec<Lapse> = store.vanished(1_000)?;
        taken.extend(gone.iter().map(|lapse| (monotonic(), lapse.fence)));
        let over = store.overdue(1_000, Duration::ZERO)?;
        for (fence, answer) in over.iter().zip(store.lapse(&over)?) {
            if matches!(answer, Lapsed::Yes(_)) {
                taken.push((monotonic(), *fence));
            }
        }
        let next = monotonic() + PAUSE;
        while monotonic() < next {
            store.wait(next)?;
        }
    }
    Ok(taken)
}
