//! Progress: records how far a job is, under its token.

use rusqlite::{Result, named_params};

use super::renew::in_one_order;
use super::tx::Tx;
use crate::lifecycle::Verb;
use crate::store::row::progress_columns;
use crate::store::{Report, Reported};

impl Tx<'_> {
    pub(super) fn progress(&self, reports: &[Report]) -> Result<Vec<Reported>> {
        in_one_order(reports, |report| report.fence, |report| self.progress_one(report))
    }

    fn progress_one(&self, Report { fence, progress }: &Report) -> Result<Reported> {
        let (permille, note) = progress_columns(Some(progress));
        let noted = self.run(
            &self.sql.progress.report,
            named_params! {
                ":job": fence.job.0, ":token": fence.token.0, ":permille": permille, ":note": note,
            },
        )?;
        if noted > 0 {
            return Ok(Reported::Noted);
        }
        match self.current(*fence)? {
            None => Ok(Reported::NotFound),
            Some(stale) => {
                self.refuse(&stale, Verb::Progress)?;
                Ok(Reported::Stale(stale))
            }
        }
    }
}
