//! Many jobs on their way into the store: sent in parts, counted, and their ids printed as they are
//! stored.

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use tenure::job::NewJob;
use tenure::store::Store;

use super::View;
use crate::Answer;
use crate::log::Log;
use crate::output::{self, Output, say};

pub(super) struct Delivery<'a> {
    store: Box<dyn Store>,
    out: &'a mut Output,
    bar: ProgressBar,
    log: Log,
    stored: u64,
    /// Kept only where the answer is one document.
    views: Vec<View>,
}

impl<'a> Delivery<'a> {
    /// `total` is how many there will be, where that is known.
    pub(super) fn new(
        store: Box<dyn Store>,
        total: Option<u64>,
        out: &'a mut Output,
        log: Log,
    ) -> Self {
        let bar = output::progress(total, "enqueueing");
        Delivery { store, out, bar, log, stored: 0, views: Vec::new() }
    }

    /// How many were stored so far.
    pub(super) fn stored(&self) -> u64 {
        self.stored
    }

    /// Stores a part, whole or not at all.
    pub(super) fn send(&mut self, jobs: &[NewJob]) -> Result<()> {
        if jobs.is_empty() {
            return Ok(());
        }
        let answers = self.store.enqueue(jobs).map_err(anyhow::Error::new);
        let answers = match self.stored {
            0 => answers?,
            n => answers.with_context(|| format!("after {n} jobs were stored"))?,
        };
        self.log.enqueued(jobs, &answers);
        self.stored += answers.len() as u64;
        self.bar.set_position(self.stored);
        let views = answers.into_iter().map(View::of);
        if self.out.is_json() {
            self.views.extend(views);
            return Ok(());
        }
        // The bar makes room, so that ids on the same terminal do not run into it.
        let (bar, out) = (&self.bar, &mut *self.out);
        bar.suspend(|| {
            views.into_iter().try_for_each(|view| out.line(&view.id.to_string()))?;
            out.flush()
        })
    }

    /// Ends the answer, also after a failure: what was stored is told either way.
    pub(super) fn finish(self, sent: Result<()>) -> Result<Answer> {
        self.bar.finish_and_clear();
        if self.out.is_json() {
            self.out.document(&self.views)?;
        }
        sent?;
        if self.stored == 0 {
            say("nothing was stored: there is no line with args");
        }
        Ok(Answer::Yes)
    }
}
