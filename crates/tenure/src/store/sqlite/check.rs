//! Checks stored data against the invariants.

use rusqlite::{Result, Row, ToSql, named_params};

use super::lapse::bound;
use super::tx::Tx;
use crate::inspect::{Checked, Rule, Wrong};
use crate::job::{JobId, Name, Tenant};
use crate::lifecycle::makes_suspect;
use crate::store::lane;

impl Tx<'_> {
    pub(super) fn check(&self, from: Option<JobId>, limit: usize) -> Result<Checked> {
        let first = from.map_or(i64::MIN, |id| id.0);
        let window: Vec<i64> = self.all(
            &self.sql.check.window,
            named_params! { ":first": first, ":limit": limit.saturating_add(1) },
            |row| row.get(0),
        )?;
        let next = window.get(limit).copied();
        let bounds = Window { first, last: next.map_or(i64::MAX, |next| next - 1) };
        let mut wrong = self.wrong_in(&bounds)?;
        wrong.sort();
        Ok(Checked { looked: window.len().min(limit), wrong, next: next.map(JobId) })
    }

    fn wrong_in(&self, window: &Window) -> Result<Vec<Wrong>> {
        let sql = &self.sql.check;
        let meta = self.meta()?;
        let over = self.noted_breaks()?.params(self.now - Rule::OVERDUE);
        let now = self.now.as_millis();
        let plain: [(Rule, &str); 7] = [
            (Rule::I9, &sql.twice),
            (Rule::I9, &sql.orphans),
            (Rule::I9, &sql.bare),
            (Rule::I3, &sql.succeeded),
            (Rule::Ledger, &sql.unfinished),
            (Rule::Ledger, &sql.ahead),
            (Rule::Keys, &sql.keys),
        ];
        let mut wrong = Vec::new();
        for (rule, sql) in plain {
            wrong.extend(self.wrong(rule, sql, window, &[])?);
        }
        let mut time = bound(&over);
        time.push((":now", &now));
        wrong.extend(self.wrong(Rule::I11, &sql.stuck, window, &time)?);
        wrong.extend(self.wrong(Rule::Epoch, &sql.epoch, window, &[(":epoch", &meta.epoch)])?);
        wrong.extend(self.wrong_lanes(window)?);
        Ok(wrong)
    }

    fn wrong(
        &self,
        rule: Rule,
        sql: &str,
        window: &Window,
        more: &[(&str, &dyn ToSql)],
    ) -> Result<Vec<Wrong>> {
        let mut params: Vec<(&str, &dyn ToSql)> =
            vec![(":first", &window.first), (":last", &window.last)];
        params.extend_from_slice(more);
        self.all(sql, params.as_slice(), |row| {
            Ok(Wrong { job: JobId(row.get(0)?), rule, what: row.get(1)? })
        })
    }

    fn wrong_lanes(&self, window: &Window) -> Result<Vec<Wrong>> {
        let bounds = named_params! { ":first": window.first, ":last": window.last };
        let lane = |row: &Row<'_>| {
            let (queue, tenant) = (Name::trusted(row.get(2)?), Tenant::trusted(row.get(3)?));
            let stands: i64 = row.get(1)?;
            // Whether a job that crashed often is a suspect is stored only in its lane: when its
            // handler returns, the job moves to another lane.
            let suspect = stands & lane::SUSPECT != 0 && makes_suspect(row.get(5)?, row.get(6)?);
            let right = lane::of_names(&queue, &tenant, &Name::trusted(row.get(4)?), suspect);
            Ok((stands != right).then_some((JobId(row.get(0)?), stands, right)))
        };
        let lanes = self.all(&self.sql.check.lanes, bounds, lane)?;
        let words = |(job, stands, right)| Wrong {
            job,
            rule: Rule::Lane,
            what: format!("it stands in lane {stands}, but its names and crashes give {right}"),
        };
        Ok(lanes.into_iter().flatten().map(words).collect())
    }
}

/// The jobs to check: all ids from the first to the last.
struct Window {
    first: i64,
    last: i64,
}
