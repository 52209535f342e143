//! Look: reads jobs, queues, leases and counts.

use std::collections::BTreeMap;
use std::time::Duration;

use rusqlite::{Result, named_params};

use super::tx::Tx;
use super::{Sqlite, row};
use crate::clock::millis;
use crate::inspect::{
    Checked, Current, EffectFilter, EffectView, Filter, Identity, JobDetail, JobOutcome, LeaseView,
    Overview, OverviewLine, QueueSettings, WorkerView,
};
use crate::job::{JobId, Json, Key, Name, State, Tenant};
use crate::lease::Token;
use crate::record::JobRecord;
use crate::store::{self, Look, check_batch};

impl Look for Sqlite {
    fn outcome(&mut self, id: JobId) -> store::Result<Option<JobOutcome>> {
        self.read("look for the outcome of a job", |tx| tx.outcome(id))
    }

    fn job(&mut self, id: JobId) -> store::Result<Option<JobDetail>> {
        self.read("look at a job", |tx| tx.job(id))
    }

    fn jobs(&mut self, filter: &Filter, limit: usize) -> store::Result<Vec<JobRecord>> {
        check_batch(limit)?;
        self.read("list jobs", |tx| tx.jobs(filter, limit))
    }

    fn overview(&mut self) -> store::Result<Overview> {
        self.read("count jobs", |tx| tx.overview())
    }

    fn leases(&mut self, limit: usize) -> store::Result<Vec<LeaseView>> {
        check_batch(limit)?;
        self.read("list leases", |tx| tx.leases(limit))
    }

    fn queues(&mut self) -> store::Result<Vec<QueueSettings>> {
        self.read("list queues", |tx| tx.queues())
    }

    fn effects(&mut self, filter: &EffectFilter, limit: usize) -> store::Result<Vec<EffectView>> {
        check_batch(limit)?;
        self.read("list effects", |tx| tx.effects(filter, limit))
    }

    fn workers(&mut self) -> store::Result<Vec<WorkerView>> {
        self.read("list workers", |tx| tx.workers(&self.guards))
    }

    fn guard_gap(&mut self) -> store::Result<Duration> {
        self.read("look at the guard gap", |tx| Ok(tx.meta()?.guard_gap))
    }

    fn identity(&mut self) -> store::Result<Identity> {
        self.read("look at the epoch", |tx| tx.identity())
    }

    fn check(&mut self, from: Option<JobId>, limit: usize) -> store::Result<Checked> {
        check_batch(limit)?;
        self.read("check the store", |tx| tx.check(from, limit))
    }
}

impl Tx<'_> {
    pub(super) fn stands(&self, id: JobId) -> Result<Option<Current>> {
        self.one(&self.sql.settle.current, named_params! { ":job": id.0 }, |row| {
            Ok(Current { token: Token(row.get(0)?), state: row::state(row.get(1)?)?.0 })
        })
    }

    pub(super) fn outcome(&self, id: JobId) -> Result<Option<JobOutcome>> {
        self.one(&self.sql.look.outcome, named_params! { ":job": id.0 }, |row| {
            Ok(JobOutcome {
                state: row::state(row.get(0)?)?.0,
                result: row.get::<_, Option<String>>(1)?.map(Json::trusted),
                reason: row.get(2)?,
            })
        })
    }

    pub(super) fn job(&self, id: JobId) -> Result<Option<JobDetail>> {
        let Some(job) = self.find(id)? else { return Ok(None) };
        let timeline =
            self.all(&self.sql.look.timeline, named_params! { ":job": id.0 }, row::timeline_entry)?;
        Ok(Some(JobDetail { job, timeline }))
    }

    pub(super) fn jobs(&self, filter: &Filter, limit: usize) -> Result<Vec<JobRecord>> {
        let look = &self.sql.look;
        let sources: &[&String] = match filter.state {
            None => &[&look.jobs_live, &look.jobs_ended],
            Some(State::Dead) => &[&look.jobs_dead],
            Some(state) if state.has_ended() => &[&look.jobs_ended],
            Some(_) => &[&look.jobs_live],
        };
        let mut page = Vec::new();
        for sql in sources {
            page.extend(self.page(sql, filter, limit)?);
        }
        page.sort_by_key(|job| std::cmp::Reverse(job.id));
        page.truncate(limit);
        Ok(page)
    }

    fn page(&self, sql: &str, filter: &Filter, limit: usize) -> Result<Vec<JobRecord>> {
        let mut statement = self.connection.prepare_cached(sql)?;
        let before = filter.before.map_or(i64::MAX, |id| id.0);
        // To the statement, the number of `waiting` means all queued jobs, ready or waiting.
        let state = filter.state.map(|state| row::code(state, true));
        let names = |name: &Option<Name>| name.as_ref().map(|name| name.as_str().to_owned());
        let tenant = filter.tenant.as_ref().map(Tenant::as_str);
        let mut bind =
            |name: &str, value: &dyn rusqlite::ToSql| match statement.parameter_index(name)? {
                Some(at) => statement.raw_bind_parameter(at, value),
                None => Ok(()), // the page of dead jobs has its state in the text
            };
        bind(":before", &before)?;
        bind(":state", &state)?;
        bind(":queue", &names(&filter.queue))?;
        bind(":tenant", &tenant)?;
        bind(":kind", &names(&filter.kind))?;
        bind(":tag", &names(&filter.tag))?;
        bind(":key", &filter.key.as_ref().map(Key::as_str))?;
        bind(":limit", &limit)?;
        statement.raw_query().mapped(row::record).collect()
    }

    pub(super) fn overview(&self) -> Result<Overview> {
        let mut lines = Lines::default();
        let look = &self.sql.look;
        let live: Vec<(String, String, i64, u64, i64)> =
            self.all(&look.overview_live, named_params! { ":now": self.now.as_millis() }, |row| {
                row.try_into()
            })?;
        for (queue, tenant, code, count, oldest) in live {
            let line = lines.of(queue, tenant);
            match row::state(code)? {
                (State::Queued, true) => line.waiting = count,
                (State::Running, _) => line.running = count,
                (State::Parked, _) => line.parked = count,
                _ => {
                    line.ready = count;
                    line.oldest_wait_ms = Some(millis(self.now.since(row::time(oldest))));
                }
            }
        }
        let dead: Vec<(String, String, u64)> =
            self.all(&look.overview_dead, [], |row| row.try_into())?;
        for (queue, tenant, count) in dead {
            lines.of(queue, tenant).dead = count;
        }
        for queue in self.queues_with_history()? {
            for (tenant, count) in self.ended_lately(&queue, State::Succeeded)? {
                lines.of(queue.to_string(), tenant).succeeded_last_minute = count;
            }
            for (tenant, count) in self.ended_lately(&queue, State::Dead)? {
                lines.of(queue.to_string(), tenant).died_last_minute = count;
            }
        }
        Ok(Overview { at: self.now, lines: lines.0.into_values().collect() })
    }

    fn ended_lately(&self, queue: &Name, state: State) -> Result<Vec<(String, u64)>> {
        let after = self.now - OverviewLine::WINDOW;
        self.all(
            &self.sql.look.overview_recent,
            named_params! {
                ":queue": queue.as_str(), ":state": row::code(state, false), ":after": after.as_millis(),
            },
            |row| row.try_into(),
        )
    }

    pub(super) fn leases(&self, limit: usize) -> Result<Vec<LeaseView>> {
        self.all(&self.sql.look.leases, named_params! { ":limit": limit }, row::lease_view)
    }

    pub(super) fn queues(&self) -> Result<Vec<QueueSettings>> {
        self.all(&self.sql.operate.queues, [], row::queue_settings)
    }
}

/// The lines of an overview while they are collected.
#[derive(Default)]
struct Lines(BTreeMap<(Name, Tenant), OverviewLine>);

impl Lines {
    fn of(&mut self, queue: String, tenant: String) -> &mut OverviewLine {
        let (queue, tenant) = (Name::trusted(queue), Tenant::trusted(tenant));
        let empty = || OverviewLine::empty(queue.clone(), tenant.clone());
        self.0.entry((queue.clone(), tenant.clone())).or_insert_with(empty)
    }
}
