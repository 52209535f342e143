//! Real processes that hold jobs until a test kills them, stops them or cuts them off; and a sweep
//! that takes such jobs back.

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
    /// Whether the store notices the death of the process at once, by its guard.
    pub guarded: bool,
}

impl Holder {
    /// Starts `program`, the binary `tenure-drill-holder`, and returns once the process has made
    /// its one claim, of up to `jobs` jobs.
    pub fn start(program: &Path, place: &str, jobs: usize, lease: Duration) -> Holder {
        Holder::start_with(program, place, jobs, lease, None)
    }

    /// Like [`Holder::start`]. If `bank` is given, the process also opens an effect for each job
    /// and appends the effect's key to this file, as a bank would write down a payment.
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

/// Takes jobs back as a worker's sweeper does, until `enough` returns true, but not beyond `until`.
/// Returns the fences of the jobs that were taken back, and when.
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
