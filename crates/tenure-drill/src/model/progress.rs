//! Progress of jobs: the holder's last report.

use tenure::engine::job::JobRecord;
use tenure::engine::lifecycle::Verb;
use tenure::engine::store::{Report, Reported};

use super::Model;

impl Model {
    pub(super) fn progress_one(&mut self, Report { fence, progress }: &Report) -> Reported {
        match self.holds(*fence) {
            Some(job) => {
                self.jobs.insert(job.id, JobRecord { progress: Some(progress.clone()), ..job });
                Reported::Noted
            }
            None => self.refuse(*fence, Verb::Progress).map_or(Reported::NotFound, Reported::Stale),
        }
    }
}
