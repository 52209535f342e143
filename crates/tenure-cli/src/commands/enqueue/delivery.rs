//! Sends many jobs to the store in batches, counts them, and prints their ids as they are stored.

use anyhow::Result;
use indicatif::ProgressBar;
use tenure::engine::job::NewJob;
use tenure::engine::store::{Enqueued, Store, Verdict};
use tenure::json;

use crate::Answer;
use crate::log::Log;
use crate::output::{self, Output, say};

pub(super) struct Delivery<'a> {
    store: Box<dyn Store>,
    out: &'a mut Output,
    bar: ProgressBar,
    log: Log,
    /// The total number of jobs, if known.
    total: Option<u64>,
    stored: u64,
    /// The number of jobs in the batch that failed.
    failed: u64,
    /// Kept only if the answer is one document.
    verdicts: Vec<Verdict>,
}

impl<'a> Delivery<'a> {
    /// `total` is the total number of jobs, if known.
    pub(super) fn new(
        store: Box<dyn Store>,
        total: Option<u64>,
        out: &'a mut Output,
        log: Log,
    ) -> Self {
        let bar = output::progress(total, "enqueueing");
        Delivery { store, out, bar, log, total, stored: 0, failed: 0, verdicts: Vec::new() }
    }

    /// The number of jobs stored so far.
    pub(super) fn stored(&self) -> u64 {
        self.stored
    }

    /// Stores a batch, as a whole or not at all.
    pub(super) fn send(&mut self, jobs: &[NewJob]) -> Result<()> {
        if jobs.is_empty() {
            return Ok(());
        }
        let answers = match self.store.enqueue(jobs) {
            Ok(answers) => answers,
            Err(error) => {
                self.failed = jobs.len() as u64;
                let error = anyhow::Error::new(error);
                return Err(match self.sentence() {
                    Some(sentence) => error.context(sentence),
                    None => error,
                });
            }
        };
        self.log.enqueued(jobs, &answers);
        self.stored += answers.len() as u64;
        self.bar.set_position(self.stored);
        if self.out.is_json() {
            self.verdicts.extend(answers.into_iter().map(Verdict::Answered));
            return Ok(());
        }
        // The progress bar is suspended, so that ids on the same terminal do not overwrite it.
        let (bar, out) = (&self.bar, &mut *self.out);
        bar.suspend(|| {
            answers.into_iter().try_for_each(|answer| match answer {
                Enqueued::Created(id) | Enqueued::Existing(id) | Enqueued::Conflict(id) => {
                    out.line(&id.to_string())
                }
            })?;
            out.flush()
        })
    }

    /// The number of jobs after the batch that failed, if known.
    fn not_sent(&self) -> Option<u64> {
        self.total.map(|total| total.saturating_sub(self.stored + self.failed))
    }

    /// A summary, if a batch failed and was not the only one.
    fn sentence(&self) -> Option<String> {
        let (stored, failed) = (self.stored, self.failed);
        match self.not_sent() {
            Some(0) if stored == 0 => None,
            Some(0) => Some(format!("{stored} jobs were stored, and the last {failed} failed")),
            Some(n) => Some(format!(
                "{stored} jobs were stored, the next {failed} failed, and the last {n} were not sent"
            )),
            None => Some(format!(
                "{stored} jobs were stored, the next {failed} failed, and none after them was sent"
            )),
        }
    }

    /// Ends the answer, also after a failure: what was stored is reported in either case.
    pub(super) fn finish(mut self, sent: Result<()>) -> Result<Answer> {
        self.bar.finish_and_clear();
        if self.out.is_json() {
            if self.failed > 0 {
                let rest = [
                    (self.failed, Verdict::Failed),
                    (self.not_sent().unwrap_or(0), Verdict::NotSent),
                ];
                let verdicts =
                    rest.into_iter().flat_map(|(count, verdict)| (0..count).map(move |_| verdict));
                self.verdicts.extend(verdicts);
            }
            let views: Vec<_> = self.verdicts.iter().copied().map(json::verdict).collect();
            self.out.document(&views)?;
        }
        sent?;
        if self.stored == 0 {
            say("nothing was stored: there is no line with args");
        }
        Ok(Answer::Yes)
    }
}
