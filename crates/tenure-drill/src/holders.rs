//! Real worker processes that hold jobs, to be killed, stopped and cut off; and the sweeper that
//! watches them.

use std::ops::{Deref, DerefMut};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tenure::engine::clock::monotonic;
use tenure::engine::lease::{Fence, Token};
use tenure::engine::store::{Lapse, Lapsed, Result, Store};

use crate::speakers::{PATIENCE, Speaker};

/// A process that holds jobs.
#[derive(Debug)]
pub struct Holder {
    speaker: Speaker,
    /// What it holds.
    pub held: Vec<Fence>,
    /// Whether its death is noticed at once, by the guard.
    pub guarded: bool,
}

impl Holder {
    /// Starts `program`, the binary `tenure-drill-holder`, and returns once it has claimed what it
    /// could.
    pub fn start(program: &Path, place: &str, jobs: usize, lease: Duration) -> Holder {
        Holder::start_with(program, place, jobs, lease, None)
    }

    /// The same; the process also charges a bank, with this file as its book, once for each job.
    pub fn start_with(
        program: &Path,
        place: &str,
        jobs: usize,
        lease: Duration,
        bank: Option<&Path>,
    ) -> Holder {
        let speaker = Speaker::start(
            Command::new(program)
                .args([place, &jobs.to_string(), &lease.as_millis().to_string()])
                .args(bank),
        );
        let mut holder = Holder { speaker, held: Vec::new(), guarded: false };
        while let Some((_, line)) = holder.next(monotonic() + PATIENCE) {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["guarded", verdict] => holder.guarded = verdict == "ByLock",
                ["held", job, token] => holder.held.push(Fence {
                    job: tenure::JobId::parse(job).expect("a job"),
                    token: Token::parse(token).expect("a token"),
                }),
                ["ready", _] => break,
                _ => {}
            }
        }
        holder
    }
}

impl Deref for Holder {
    type Target = Speaker;

    fn deref(&self) -> &Speaker {
        &self.speaker
    }
}

impl DerefMut for Holder {
    fn deref_mut(&mut self) -> &mut Speaker {
        &mut self.speaker
    }
}

/// Sweeps as a worker does, until `enough` or `until`. Returns what was taken back, and when.
pub fn sweep(
    store: &mut dyn Store,
    until: Instant,
    mut enough: impl FnMut(&[(Instant, Fence)]) -> bool,
) -> Result<Vec<(Instant, Fence)>> {
    const PAUSE: Duration = Duration::from_millis(250);
    let mut taken = Vec::new();
    while monotonic() < until && !enough(&taken) {
        let gone: Vec<Lapse> = store.vanished(1_000)?;
        taken.extend(gone.iter().map(|lapse| (monotonic(), lapse.about.fence())));
        let over = store.overdue(1_000, Duration::ZERO)?;
        for (fence, answer) in over.iter().zip(store.lapse(&over)?) {
            if matches!(answer, Lapsed::TakenBack(_)) {
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
