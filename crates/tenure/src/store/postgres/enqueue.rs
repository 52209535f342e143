//! How a job gets in.

use postgres::types::Type;

use super::row::{self, JsonText};
use super::schema::Schema;
use super::session::Session;
use crate::clock::millis;
use crate::job::{Due, Fingerprint, JobId, NewJob};
use crate::store::{Enqueued, row as spelling};

const ENQUEUE: &str = "SELECT n, verdict, job FROM tenure.enqueue_many(\
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)";

/// One list for each thing that may be said of a job. A list in which nothing is said is not sent.
pub(super) fn enqueue(
    session: &mut Session,
    schema: &Schema,
    jobs: &[NewJob],
) -> Result<Vec<Enqueued>, postgres::Error> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let kinds: Vec<_> = jobs.iter().map(|job| job.kind.as_str()).collect();
    let args: Vec<_> = jobs.iter().map(|job| JsonText(job.args.as_str())).collect();
    let usual = NewJob::new(jobs[0].kind.clone(), jobs[0].args.clone());
    let queues = list(jobs, |job| (job.queue != usual.queue).then_some(job.queue.as_str()));
    let tenants = list(jobs, |job| (job.tenant != usual.tenant).then_some(job.tenant.as_str()));
    let priorities = list(jobs, |job| (job.priority != usual.priority).then_some(job.priority));
    let run_at = list(jobs, |job| match job.due {
        Due::At(time) => Some(time.as_millis()),
        Due::Now | Due::In(_) => None,
    });
    let delays = list(jobs, |job| match job.due {
        Due::In(delay) => Some(millis(delay)),
        Due::Now | Due::At(_) => None,
    });
    let max_attempts = list(jobs, |job| {
        (job.max_attempts != usual.max_attempts).then_some(i32::from(job.max_attempts.get()))
    });
    let max_crashes = list(jobs, |job| {
        (job.max_crashes != usual.max_crashes).then_some(i32::from(job.max_crashes.get()))
    });
    let retries: Vec<_> = jobs.iter().map(|job| spelling::retry_column(&job.retry)).collect();
    let retries = said(retries.iter().map(|retry| retry.as_deref().map(JsonText)).collect());
    let max_runtimes = list(jobs, |job| job.max_runtime.map(millis));
    let keys = list(jobs, |job| job.key.as_ref().map(|key| key.as_str()));
    let windows = list(jobs, |job| job.key.as_ref().map(|key| millis(key.window)));
    let fingerprints: Option<Vec<Option<Fingerprint>>> =
        list(jobs, |job| job.key.as_ref().map(|_| job.fingerprint()));
    let traces = list(jobs, |job| job.trace.as_deref());
    let tags = said(jobs.iter().map(|job| spelling::tags_column(&job.tags)).collect());
    let parents = list(jobs, |job| job.parent.map(|parent| parent.0));
    let rows = session.query(
        &schema.apply(ENQUEUE),
        &[
            (&kinds, Type::TEXT_ARRAY),
            (&args, Type::JSON_ARRAY),
            (&queues, Type::TEXT_ARRAY),
            (&tenants, Type::TEXT_ARRAY),
            (&priorities, Type::INT2_ARRAY),
            (&run_at, Type::INT8_ARRAY),
            (&delays, Type::INT8_ARRAY),
            (&max_attempts, Type::INT4_ARRAY),
            (&max_crashes, Type::INT4_ARRAY),
            (&retries, Type::JSON_ARRAY),
            (&max_runtimes, Type::INT8_ARRAY),
            (&keys, Type::TEXT_ARRAY),
            (&windows, Type::INT8_ARRAY),
            (&fingerprints, Type::BYTEA_ARRAY),
            (&traces, Type::TEXT_ARRAY),
            (&tags, Type::TEXT_ARRAY),
            (&parents, Type::INT8_ARRAY),
        ],
    )?;
    let mut answers = vec![Enqueued::Created(JobId(0)); jobs.len()];
    for row in &rows {
        let job = row.try_get("job")?;
        answers[row::place(row, "n")?] = match row.try_get("verdict")? {
            "created" => Enqueued::Created(job),
            "existing" => Enqueued::Existing(job),
            _ => Enqueued::Conflict(job),
        };
    }
    Ok(answers)
}

/// What is said of each job, or nothing at all if nothing is said of any.
fn list<'a, T>(jobs: &'a [NewJob], of: impl Fn(&'a NewJob) -> Option<T>) -> Option<Vec<Option<T>>> {
    said(jobs.iter().map(of).collect())
}

fn said<T>(list: Vec<Option<T>>) -> Option<Vec<Option<T>>> {
    if list.iter().all(Option::is_none) { None } else { Some(list) }
}
