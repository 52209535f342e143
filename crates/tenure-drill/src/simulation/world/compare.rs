//! At the end of a run, the store is compared with the books.
use tenure::engine::inspect::{Filter, Rule, Wrong};
use tenure::engine::job::{JobId, State};
use tenure::engine::lifecycle::Verb;
use tenure::engine::store::Look;

use super::super::orders::{self, ORDER};
use super::{Drive, World};
use crate::verdict::Invariant;

impl World<'_> {
    /// Compares the store with the books, at the end of a run.
    pub(in super::super) fn compare(&mut self) {
        if self.shared.books().wrong.is_some() {
            return;
        }
        self.compare_orders();
        if self.setup.drive == Drive::Steady {
            return self.compare_pruned();
        }
        let mut filter = Filter::default();
        let mut seen = 0;
        loop {
            let page = self.store.jobs(&filter, 1_000).expect("a page of jobs");
            let Some(last) = page.last() else { break };
            filter.before = Some(last.id);
            seen += page.len();
            let mut books = self.shared.books();
            for job in &page {
                let state = books.state(job.id);
                if state != Some(job.state) {
                    let what = format!("job {} is {}, not {state:?}", job.id, job.state);
                    books.fail(Invariant::I3, job.id, what);
                }
            }
        }
        let known = self.shared.books().jobs.len();
        if seen != known {
            let what = format!("{seen} jobs are there, and {known} were enqueued");
            self.shared.books().fail(Invariant::I9, JobId(0), what);
        }
        let mut from = None;
        loop {
            let checked = self.store.check(from, 1_000).expect("a check");
            // After a failover, what a claim wrote to the ledger may be missing, although the claim
            // itself is there.
            let went_back = self.shared.books().went_back > 0;
            let counts = |wrong: &&Wrong| !(went_back && wrong.rule == Rule::Ledger);
            if let Some(wrong) = checked.wrong.iter().find(counts) {
                self.shared.books().fail(broken_by(wrong.rule), wrong.job, wrong.what.clone());
            }
            from = checked.next;
            if from.is_none() {
                break;
            }
        }
    }

    /// Each order job's own row must be there if and only if the job succeeded, with the token
    /// under which it succeeded.
    fn compare_orders(&self) {
        let mut orders = orders::all(&self.store);
        let mut books = self.shared.books();
        let mut wrong = None;
        for (job, ghost) in books.jobs.iter().filter(|(_, ghost)| ghost.kind.as_str() == ORDER) {
            let done = ghost.claims.last().filter(|_| ghost.state == State::Succeeded);
            let expected = done.filter(|claim| claim.settled == Some(Verb::Complete));
            let expected: Vec<_> = expected.iter().map(|claim| claim.token).collect();
            let found = orders.remove(job).unwrap_or_default();
            if found != expected {
                let what = format!("job {job} is {}, with orders under {found:?}", ghost.state);
                wrong = wrong.or(Some((*job, format!("{what}, not {expected:?}"))));
            }
        }
        let stray = orders.keys().next().map(|job| (*job, format!("job {job} has an order")));
        if let Some((job, what)) = wrong.or(stray) {
            books.fail(Invariant::I3, job, what);
        }
    }

    /// All jobs ended long ago: none may be left.
    fn compare_pruned(&mut self) {
        let left = self.store.jobs(&Filter::default(), 1_000).expect("a page of jobs");
        if let Some(job) = left.first() {
            let what = format!("{} jobs are left, though their time is over", left.len());
            self.shared.books().fail(Invariant::Pruned, job.id, what);
        }
    }
}

/// The invariant that corresponds to a rule of the store's own check.
fn broken_by(rule: Rule) -> Invariant {
    match rule {
        Rule::I3 | Rule::Lane | Rule::Unknown(_) => Invariant::I3,
        Rule::I9 => Invariant::I9,
        Rule::I11 => Invariant::I11,
        Rule::Ledger => Invariant::I1,
        Rule::Keys => Invariant::I12,
        Rule::Epoch => Invariant::I2,
    }
}
