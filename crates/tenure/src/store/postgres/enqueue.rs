//! Enqueue: stores jobs.

use std::num::NonZeroU16;
use std::time::Duration;

use postgres::Row;
use postgres::types::Type;
use serde::Serialize;

use super::row::{self, JsonText};
use super::schema::Schema;
use super::session::{Param, Session};
use crate::clock::millis;
use crate::job::{Due, Fingerprint, JobId, Key, Limits, Name, NewJob, RetryPolicy, Tenant};
use crate::store::Enqueued;

/// Sends jobs and reads the answers.
pub(super) fn enqueue(
    session: &mut Session,
    schema: &Schema,
    jobs: &[NewJob],
) -> Result<Vec<Enqueued>, postgres::Error> {
    enqueue_within(session, schema, jobs, None)
}

/// Like [`enqueue`], with a limit for how long it waits for each lock.
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

/// The parameters for a batch of jobs: one list for each option that most jobs set, and one for the
/// options that few jobs set. A list without any value is sent as NULL. A user's own transaction
/// sends the same lists, over its own connection.
pub(crate) struct Lists<'a> {
    kinds: Vec<&'a str>,
    args: Vec<JsonText<&'a str>>,
    queues: Said<&'a str>,
    tenants: Said<&'a str>,
    keys: Said<&'a str>,
    fingerprints: Said<Fingerprint>,
    options: Said<JsonText<String>>,
    extras: Said<JsonText<String>>,
    /// The size limit of args, if some exceed the default: the library has checked them against its
    /// own limits.
    args_limit: Option<i32>,
}

/// One value per job; `None` if no job has a value.
type Said<T> = Option<Vec<Option<T>>>;

/// The options of a job that differ from the defaults: the type `tenure.job_options`.
#[derive(Default, PartialEq, Serialize)]
struct Asked<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_crashes: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<&'a RetryPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_runtime_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key_window_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<i64>,
}

impl Asked<'_> {
    fn of(job: &NewJob) -> Asked<'_> {
        let (run_at, delay_ms) = match job.due {
            Due::Now => (None, None),
            Due::At(time) => (Some(time.as_millis()), None),
            Due::In(delay) => (None, Some(millis(delay))),
        };
        let window = job.key.as_ref().map(|key| key.window);
        Asked {
            priority: (job.priority != 0).then_some(job.priority),
            run_at,
            delay_ms,
            max_attempts: count(job.max_attempts, NewJob::MAX_ATTEMPTS),
            max_crashes: count(job.max_crashes, NewJob::MAX_CRASHES),
            retry: (job.retry != RetryPolicy::default()).then_some(&job.retry),
            max_runtime_ms: job.max_runtime.map(millis),
            key_window_ms: window.filter(|window| *window != Key::WINDOW).map(millis),
            parent: job.parent.map(|parent| parent.0),
        }
    }

    fn json(&self) -> Option<JsonText<String>> {
        if *self == Asked::default() {
            None
        } else {
            serde_json::to_string(self).ok().map(JsonText)
        }
    }
}

impl<'a> Lists<'a> {
    /// The call, with the lists as its parameters.
    pub(crate) const SQL: &'static str = "SELECT n, verdict, job \
        FROM tenure.enqueue_many($1, $2, $3, $4, $5, $6, $7, $8, $9)";

    /// The lists for these jobs, with only the values that differ from the defaults.
    pub(crate) fn of(jobs: &'a [NewJob]) -> Lists<'a> {
        let queue = Name::default_queue();
        Lists {
            kinds: jobs.iter().map(|job| job.kind.as_str()).collect(),
            args: jobs.iter().map(|job| JsonText(job.args.as_str())).collect(),
            queues: list(jobs, |job| (job.queue != queue).then_some(job.queue.as_str())),
            tenants: list(jobs, |job| {
                (job.tenant != Tenant::default()).then_some(job.tenant.as_str())
            }),
            keys: list(jobs, |job| job.key.as_ref().map(|key| key.as_str())),
            fingerprints: list(jobs, |job| job.key.as_ref().map(|_| job.fingerprint())),
            options: list(jobs, |job| Asked::of(job).json()),
            extras: list(jobs, |job| job.extras.column().map(JsonText)),
            args_limit: jobs
                .iter()
                .map(|job| job.args.as_str().len())
                .max()
                .filter(|largest| *largest > Limits::default().args)
                .map(|largest| i32::try_from(largest).unwrap_or(i32::MAX)),
        }
    }

    /// The lists in the order of the call's parameters.
    pub(crate) fn params(&self) -> [Param<'_>; 9] {
        [
            (&self.kinds, Type::TEXT_ARRAY),
            (&self.args, Type::JSON_ARRAY),
            (&self.queues, Type::TEXT_ARRAY),
            (&self.tenants, Type::TEXT_ARRAY),
            (&self.keys, Type::TEXT_ARRAY),
            (&self.fingerprints, Type::BYTEA_ARRAY),
            (&self.options, Type::JSON_ARRAY),
            (&self.extras, Type::JSON_ARRAY),
            (&self.args_limit, Type::INT4),
        ]
    }

    /// The answer to each job.
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

/// One value per job, or `None` if no job has a value.
fn list<'a, T>(jobs: &'a [NewJob], of: impl Fn(&'a NewJob) -> Option<T>) -> Said<T> {
    let list: Vec<_> = jobs.iter().map(of).collect();
    if list.iter().all(Option::is_none) { None } else { Some(list) }
}

/// A count, if it differs from the default.
fn count(count: NonZeroU16, usual: NonZeroU16) -> Option<u16> {
    (count != usual).then_some(count.get())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Json;

    fn job(args: usize) -> NewJob {
        let args = Json::check("args", format!("\"{}\"", "x".repeat(args - 2)), args).unwrap();
        NewJob::new(Name::check("kind", "work").unwrap(), args)
    }

    fn options(jobs: &[NewJob]) -> Vec<Option<String>> {
        let said = Lists::of(jobs).options.unwrap_or_default();
        said.into_iter().map(|one| one.map(|JsonText(text)| text)).collect()
    }

    #[test]
    fn what_is_as_usual_is_not_sent() {
        let plain = [job(9), job(9)];
        let lists = Lists::of(&plain);
        assert!(lists.queues.is_none() && lists.tenants.is_none() && lists.extras.is_none());
        assert!(lists.keys.is_none() && lists.fingerprints.is_none());
        assert_eq!(options(&plain), []);
        let usual = Key::check("k").unwrap();
        let brief = usual.clone().window(Duration::from_secs(1));
        let three = [job(9), job(9).key(usual), job(9).key(brief).priority(3)];
        let kept = Lists::of(&three).keys;
        assert_eq!(kept, Some(vec![None, Some("k"), Some("k")]));
        let said = r#"{"priority":3,"key_window_ms":1000}"#.to_owned();
        assert_eq!(options(&three), [None, None, Some(said)]);
    }

    #[test]
    fn the_limit_of_args_is_raised_to_the_largest_that_the_library_has_allowed() {
        let usual = Limits::default().args;
        assert_eq!(Lists::of(&[job(9), job(usual)]).args_limit, None);
        let more = i32::try_from(usual).unwrap() + 1;
        assert_eq!(Lists::of(&[job(9), job(usual + 1), job(usual)]).args_limit, Some(more));
    }
}
