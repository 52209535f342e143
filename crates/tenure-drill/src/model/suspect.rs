//! Jobs that may have crashed their worker, as the specification has them.

use tenure::engine::job::{JobRecord, State};
use tenure::engine::lifecycle::CRASH_MEMORY;
use tenure::engine::store::SUSPICION;
use tenure::{Timestamp, WorkerId};

use super::Model;

impl Model {
    /// Whether a worker may take this suspect. If it holds other suspects, it may not if one of
    /// them started recently, or if the next crash would bury one of them or this one.
    pub(super) fn may_join(&self, suspect: &JobRecord, who: &WorkerId) -> bool {
        let is_alone = self.suspects_of(who).next().is_none();
        self.may_take_suspects(who) && (is_alone || !on_last_chance(suspect))
    }

    /// Whether a worker may take any suspect at all, given the suspects that it holds.
    pub(super) fn may_take_suspects(&self, who: &WorkerId) -> bool {
        let long_ago = self.now() - SUSPICION;
        self.suspects_of(who).all(|job| job.started_at <= Some(long_ago) && !on_last_chance(job))
    }

    /// The suspects that a worker holds.
    fn suspects_of<'a>(&'a self, who: &'a WorkerId) -> impl Iterator<Item = &'a JobRecord> {
        self.jobs.values().filter(move |job| {
            job.state == State::Running && job.worker.as_ref() == Some(who) && job.is_suspect
        })
    }
}

fn on_last_chance(job: &JobRecord) -> bool {
    job.crashes + 1 >= job.max_crashes
}

/// Counts a crash: the job's lease was over, or its worker vanished.
pub(super) fn crashed(job: &mut JobRecord, now: Timestamp) {
    job.crashes += 1;
    job.crashed_at = Some(now);
    job.is_suspect = has_enough(job);
}

/// Takes one crash back.
pub(super) fn did_not_crash(job: &mut JobRecord) {
    job.crashes = job.crashes.saturating_sub(1);
    job.crashed_at = job.crashed_at.filter(|_| job.crashes > 0);
    job.is_suspect &= has_enough(job);
}

/// The handler returned by itself and the job goes on. The job is no suspect any more, and its
/// crashes are forgotten if the last one is at least `CRASH_MEMORY` old.
pub(super) fn came_back(job: &mut JobRecord, now: Timestamp) {
    job.is_suspect = false;
    if job.crashed_at.is_none_or(|at| at + CRASH_MEMORY <= now) {
        (job.crashes, job.crashed_at) = (0, None);
    }
}

/// Whether a job has enough crashes to be a suspect: two, or one if `max_crashes` is at most three.
fn has_enough(job: &JobRecord) -> bool {
    match job.max_crashes {
        0..=3 => job.crashes >= 1,
        _ => job.crashes >= 2,
    }
}
