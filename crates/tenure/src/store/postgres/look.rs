//! Look: reads jobs, queues, leases and counts.

use std::time::Duration;

use postgres::types::Type;

use super::schema::Schema;
use super::session::{Isolation, Session};
use super::{Postgres, ledger, row};
use crate::clock::Timestamp;
use crate::inspect::{
    Checked, Current, EffectFilter, EffectView, Filter, Identity, JobDetail, JobOutcome, LeaseView,
    Overview, OverviewLine, QueueSettings, Raise, WorkerView, Wrong,
};
use crate::job::{JobId, Key, Name, Tenant};
use crate::record::JobRecord;
use crate::store::{self, Look, check_batch, row as spelling};

impl Look for Postgres {
    fn outcome(&mut self, id: JobId) -> store::Result<Option<JobOutcome>> {
        self.call("look for the outcome of a job", |session, schema| outcome(session, schema, id))
    }

    fn job(&mut self, id: JobId) -> store::Result<Option<JobDetail>> {
        // In one snapshot, so that the job and its timeline match.
        self.transact("look at a job", Isolation::Snapshot, |session, schema| {
            job(session, schema, id)
        })
    }

    fn jobs(&mut self, filter: &Filter, limit: usize) -> store::Result<Vec<JobRecord>> {
        check_batch(limit)?;
        self.call("list jobs", |session, schema| jobs(session, schema, filter, limit))
    }

    fn overview(&mut self) -> store::Result<Overview> {
        self.call("count jobs", overview)
    }

    fn leases(&mut self, limit: usize) -> store::Result<Vec<LeaseView>> {
        check_batch(limit)?;
        self.call("list leases", |session, schema| leases(session, schema, limit))
    }

    fn queues(&mut self) -> store::Result<Vec<QueueSettings>> {
        self.call("list queues", queues)
    }

    fn effects(&mut self, filter: &EffectFilter, limit: usize) -> store::Result<Vec<EffectView>> {
        check_batch(limit)?;
        self.call("list effects", |session, schema| ledger::effects(session, schema, filter, limit))
    }

    fn workers(&mut self) -> store::Result<Vec<WorkerView>> {
        self.call("list workers", workers)
    }

    fn guard_gap(&mut self) -> store::Result<Duration> {
        self.call("look at the guard gap", guard_gap)
    }

    fn identity(&mut self) -> store::Result<Identity> {
        self.call("look at the epoch", identity)
    }

    fn check(&mut self, from: Option<JobId>, limit: usize) -> store::Result<Checked> {
        check_batch(limit)?;
        self.call("check the store", |session, schema| check(session, schema, from, limit))
    }
}

pub(super) fn current(
    session: &mut Session,
    schema: &Schema,
    jobs: &[JobId],
) -> Result<Vec<Option<Current>>, postgres::Error> {
    const CURRENT: &str = "SELECT n, token, state FROM tenure.current_many($1)";
    let ids: Vec<i64> = jobs.iter().map(|job| job.0).collect();
    let mut found = vec![None; jobs.len()];
    for row in &session.query(&schema.apply(CURRENT), &[(&ids, Type::INT8_ARRAY)])? {
        let row::Stage(state, _) = row.try_get("state")?;
        if let Some(place) = found.get_mut(row::place(row, "n")?) {
            *place = Some(Current { token: row.try_get("token")?, state });
        }
    }
    Ok(found)
}

pub(super) fn outcome(
    session: &mut Session,
    schema: &Schema,
    id: JobId,
) -> Result<Option<JobOutcome>, postgres::Error> {
    const OUTCOME: &str = "SELECT state, result, reason FROM tenure.outcome($1)";
    let rows = session.query(&schema.apply(OUTCOME), &[(&id.0, Type::INT8)])?;
    let Some(row) = rows.first() else { return Ok(None) };
    let (result, reason) = (row.try_get("result")?, row.try_get("reason")?);
    Ok(Some(JobOutcome { state: row.try_get("state")?, result, reason }))
}

pub(super) fn job(
    session: &mut Session,
    schema: &Schema,
    id: JobId,
) -> Result<Option<JobDetail>, postgres::Error> {
    const JOB: &str = row::select_record!("tenure.look_at($1)");
    const TIMELINE: &str = "SELECT job, at, verb, refused, token, attempt, worker, began, became, note, earlier \
        FROM tenure.timeline_of($1)";
    let rows = session.query(&schema.apply(JOB), &[(&id.0, Type::INT8)])?;
    let Some(found) = rows.first() else { return Ok(None) };
    let job = row::record(found)?;
    let lines = session.query(&schema.apply(TIMELINE), &[(&id.0, Type::INT8)])?;
    let timeline = lines.iter().map(row::timeline_entry).collect::<Result<_, _>>()?;
    Ok(Some(JobDetail { job, timeline }))
}

pub(super) fn jobs(
    session: &mut Session,
    schema: &Schema,
    filter: &Filter,
    limit: usize,
) -> Result<Vec<JobRecord>, postgres::Error> {
    const PAGE: &str = row::select_record!("tenure.page($1, $2, $3, $4, $5, $6, $7, $8)");
    // To the function, the number of `waiting` means all queued jobs, ready or waiting.
    let state = filter.state.map(|state| spelling::code(state, true));
    let rows = session.query(
        &schema.apply(PAGE),
        &[
            (&state, Type::INT2),
            (&filter.queue.as_ref().map(Name::as_str), Type::TEXT),
            (&filter.tenant.as_ref().map(Tenant::as_str), Type::TEXT),
            (&filter.kind.as_ref().map(Name::as_str), Type::TEXT),
            (&filter.before.map_or(i64::MAX, |id| id.0), Type::INT8),
            (&i32::try_from(limit).unwrap_or(i32::MAX), Type::INT4),
            (&filter.tag.as_ref().map(Name::as_str), Type::TEXT),
            (&filter.key.as_ref().map(Key::as_str), Type::TEXT),
        ],
    )?;
    rows.iter().map(row::record).collect()
}

pub(super) fn overview(
    session: &mut Session,
    schema: &Schema,
) -> Result<Overview, postgres::Error> {
    // Returns the time even if there is no queue.
    const OVERVIEW: &str = "SELECT coalesce(o.at, (extract(epoch FROM tenure.now()) * 1000)::bigint) AS at, o.queue, o.tenant, o.ready, \
        o.waiting, o.running, o.parked, o.dead, o.oldest_wait_ms, o.succeeded_last_minute, o.died_last_minute \
        FROM (SELECT 1) one LEFT JOIN tenure.overview() o ON true";
    let mut at = Timestamp::from_millis(0);
    let mut lines: Vec<OverviewLine> = Vec::new();
    for row in &session.query(&schema.apply(OVERVIEW), &[])? {
        at = row.try_get("at")?;
        if row.try_get::<_, Option<&str>>("queue")?.is_some() {
            lines.push(row::overview_line(row)?);
        }
    }
    Ok(Overview { at, lines })
}

pub(super) fn leases(
    session: &mut Session,
    schema: &Schema,
    limit: usize,
) -> Result<Vec<LeaseView>, postgres::Error> {
    const LEASES: &str =
        "SELECT job, kind, token, worker, started_at, lease_until FROM tenure.leases($1)";
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let rows = session.query(&schema.apply(LEASES), &[(&limit, Type::INT4)])?;
    rows.iter().map(row::lease_view).collect()
}

pub(super) fn queues(
    session: &mut Session,
    schema: &Schema,
) -> Result<Vec<QueueSettings>, postgres::Error> {
    const QUEUES: &str =
        "SELECT queue, paused_at, keep_ms, keep_dead_ms FROM tenure.queue_settings()";
    let rows = session.query(&schema.apply(QUEUES), &[])?;
    rows.iter().map(row::queue_settings).collect()
}

pub(super) fn workers(
    session: &mut Session,
    schema: &Schema,
) -> Result<Vec<WorkerView>, postgres::Error> {
    const WORKERS: &str =
        "SELECT worker, queues, kinds, taken_at, is_alive FROM tenure.known_workers()";
    let rows = session.query(&schema.apply(WORKERS), &[])?;
    rows.iter().map(row::worker_view).collect()
}

pub(super) fn guard_gap(
    session: &mut Session,
    schema: &Schema,
) -> Result<Duration, postgres::Error> {
    const GAP: &str = "SELECT tenure.guard_gap() AS gap_ms";
    row::gap(&session.query_one(&schema.apply(GAP), &[])?)
}

pub(super) fn identity(
    session: &mut Session,
    schema: &Schema,
) -> Result<Identity, postgres::Error> {
    const IDENTITY: &str =
        "SELECT installation, epoch, raised_to, at, reason FROM tenure.identity()";
    let mut identity = Identity { installation: uuid::Uuid::nil(), epoch: 0, raises: vec![] };
    for row in &session.query(&schema.apply(IDENTITY), &[])? {
        let installation: &str = row.try_get("installation")?;
        identity.installation = installation.parse().unwrap_or_default();
        identity.epoch = row::epoch(row, "epoch")?;
        if row.try_get::<_, Option<i64>>("raised_to")?.is_some() {
            let (epoch, at) = (row::epoch(row, "raised_to")?, row.try_get("at")?);
            identity.raises.push(Raise { epoch, at, reason: row.try_get("reason")? });
        }
    }
    Ok(identity)
}

pub(super) fn check(
    session: &mut Session,
    schema: &Schema,
    from: Option<JobId>,
    limit: usize,
) -> Result<Checked, postgres::Error> {
    const CHECK: &str = "SELECT job, rule, what, looked, next FROM tenure.check($1, $2)";
    let limit = i32::try_from(limit).unwrap_or(i32::MAX);
    let from = from.map(|job| job.0);
    let rows = session.query(&schema.apply(CHECK), &[(&from, Type::INT8), (&limit, Type::INT4)])?;
    let mut checked = Checked { looked: 0, wrong: vec![], next: None };
    for row in &rows {
        if let Some(rule) = row.try_get("rule")? {
            checked.wrong.push(Wrong {
                job: row.try_get("job")?,
                rule,
                what: row.try_get("what")?,
            });
        } else {
            checked.looked = usize::try_from(row.try_get::<_, i32>("looked")?).unwrap_or(0);
            checked.next = row.try_get("next")?;
        }
    }
    checked.wrong.sort();
    Ok(checked)
}
