//! How a job gets in.

use std::num::NonZeroU16;
use std::time::Duration;

use postgres::Row;
use postgres::types::Type;

use super::row::{self, JsonText};
use super::schema::Schema;
use super::session::{Param, Session};
use crate::clock::millis;
use crate::job::{Due, Fingerprint, JobId, Limits, Name, NewJob, Tenant};
use crate::store::{Enqueued, row as spelling};

/// Sends jobs and reads the answers.
pub(super) fn enqueue(
    session: &mut Session,
    schema: &Schema,
    jobs: &[NewJob],
) -> Result<Vec<Enqueued>, postgres::Error> {
    enqueue_within(session, schema, jobs, None)
}

/// The same with a limit for how long it waits for each lock.
pub(super) fn enqueue_within(
    session: &mut Session,
    schema: &Schema,
    jobs: &[NewJob],
    wait: Option<Duration>,
) -> Result<Vec<Enqueued>, postgres::Error> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let lists = Lists::of(jobs);
    let rows = session.query_within(&schema.apply(Lists::SQL), &lists.params(), wait)?;
    lists.answers(&rows)
}

/// What is sent for a batch of jobs: one list for each thing that may be said of a job. A list in which nothing is said
/// is not sent. A user's own transaction sends the same, over a connection of another kind.
pub(crate) struct Lists<'a> {
    kinds: Vec<&'a str>,
    args: Vec<JsonText<&'a str>>,
    queues: Said<&'a str>,
    tenants: Said<&'a str>,
    priorities: Said<i16>,
    run_at: Said<i64>,
    delays: Said<i64>,
    max_attempts: Said<i32>,
    max_crashes: Said<i32>,
    retries: Said<JsonText<String>>,
    max_runtimes: Said<i64>,
    keys: Said<&'a str>,
    windows: Said<i64>,
    fingerprints: Said<Fingerprint>,
    traces: Said<&'a str>,
    tags: Said<String>,
    parents: Said<i64>,
    /// How large args may be, where some are larger than usual: the library has checked them by limits of its own.
    args_limit: Option<i32>,
}

/// What is said of each job, if anything is said of any.
type Said<T> = Option<Vec<Option<T>>>;

impl<'a> Lists<'a> {
    /// The call, with the lists as its parameters.
    pub(crate) const SQL: &'static str = "SELECT n, verdict, job FROM tenure.enqueue_many(\
        $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)";

    /// What these jobs say that is not usual.
    pub(crate) fn of(jobs: &'a [NewJob]) -> Lists<'a> {
        let queue = Name::default_queue();
        Lists {
            kinds: jobs.iter().map(|job| job.kind.as_str()).collect(),
            args: jobs.iter().map(|job| JsonText(job.args.as_str())).collect(),
            queues: list(jobs, |job| (job.queue != queue).then_some(job.queue.as_str())),
            tenants: list(jobs, |job| {
                (job.tenant != Tenant::default()).then_some(job.tenant.as_str())
            }),
            priorities: list(jobs, |job| (job.priority != 0).then_some(job.priority)),
            run_at: list(jobs, |job| match job.due {
                Due::At(time) => Some(time.as_millis()),
                Due::Now | Due::In(_) => None,
            }),
            delays: list(jobs, |job| match job.due {
                Due::In(delay) => Some(millis(delay)),
                Due::Now | Due::At(_) => None,
            }),
            max_attempts: list(jobs, |job| count(job.max_attempts, NewJob::MAX_ATTEMPTS)),
            max_crashes: list(jobs, |job| count(job.max_crashes, NewJob::MAX_CRASHES)),
            retries: list(jobs, |job| spelling::retry_column(&job.retry).map(JsonText)),
            max_runtimes: list(jobs, |job| job.max_runtime.map(millis)),
            keys: list(jobs, |job| job.key.as_ref().map(|key| key.as_str())),
            windows: list(jobs, |job| job.key.as_ref().map(|key| millis(key.window))),
            fingerprints: list(jobs, |job| job.key.as_ref().map(|_| job.fingerprint())),
            traces: list(jobs, |job| job.trace.as_deref()),
            tags: list(jobs, |job| spelling::tags_column(&job.tags)),
            parents: list(jobs, |job| job.parent.map(|parent| parent.0)),
            args_limit: jobs
                .iter()
                .map(|job| job.args.as_str().len())
                .max()
                .filter(|largest| *largest > Limits::default().args)
                .map(|largest| i32::try_from(largest).unwrap_or(i32::MAX)),
        }
    }

    /// The lists in the order of the call.
    pub(crate) fn params(&self) -> [Param<'_>; 18] {
        [
            (&self.kinds, Type::TEXT_ARRAY),
            (&self.args, Type::JSON_ARRAY),
            (&self.queues, Type::TEXT_ARRAY),
            (&self.tenants, Type::TEXT_ARRAY),
            (&self.priorities, Type::INT2_ARRAY),
            (&self.run_at, Type::INT8_ARRAY),
            (&self.delays, Type::INT8_ARRAY),
            (&self.max_attempts, Type::INT4_ARRAY),
            (&self.max_crashes, Type::INT4_ARRAY),
            (&self.retries, Type::JSON_ARRAY),
            (&self.max_runtimes, Type::INT8_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.windows, Type::INT8_ARRAY),
            (&self.fingerprints, Type::BYTEA_ARRAY),
            (&self.traces, Type::TEXT_ARRAY),
            (&self.tags, Type::TEXT_ARRAY),
            (&self.parents, Type::INT8_ARRAY),
            (&self.args_limit, Type::INT4),
        ]
    }

    /// What the call answers to each job.
    pub(crate) fn answers(&self, rows: &[Row]) -> Result<Vec<Enqueued>, postgres::Error> {
        let mut answers = vec![Enqueued::Created(JobId(0)); self.kinds.len()];
        for row in rows {
            let job = row.try_get("job")?;
            answers[row::place(row, "n")?] = match row.try_get("verdict")? {
                "created" => Enqueued::Created(job),
                "existing" => Enqueued::Existing(job),
                _ => Enqueued::Conflict(job),
            };
        }
        Ok(answers)
    }
}

/// What is said of each job, or nothing at all if nothing is said of any.
fn list<'a, T>(jobs: &'a [NewJob], of: impl Fn(&'a NewJob) -> Option<T>) -> Said<T> {
    let list: Vec<_> = jobs.iter().map(of).collect();
    if list.iter().all(Option::is_none) { None } else { Some(list) }
}

/// A count that is not the usual one.
fn count(count: NonZeroU16, usual: NonZeroU16) -> Option<i32> {
    (count != usual).then_some(i32::from(count.get()))
}
