//! The options of a job that a program enqueues.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::num::NonZeroU16;
use std::pin::Pin;
use std::time::Duration;

use serde::Serialize;

use super::{Handle, Tenure, kind};
use crate::clock::Timestamp;
use crate::job::{DELAY_LIMIT, Invalid, Json, Key, Name, NewJob, RetryPolicy, Tenant};
use crate::store::Result;

/// A job that is about to be enqueued. Awaiting it stores it; an invalid option is an error then.
#[must_use = "nothing is enqueued until this is awaited"]
pub struct Enqueue<T> {
    tenure: Tenure,
    job: Result<NewJob, Invalid>,
    output: PhantomData<fn() -> T>,
}

impl<T> Enqueue<T> {
    pub(super) fn new(
        tenure: &Tenure,
        name: &str,
        queue: &str,
        args: &impl Serialize,
    ) -> Enqueue<T> {
        let job = || {
            let args = Json::of("args", args, tenure.0.options.limits.args)?;
            Ok(NewJob::new(kind(name)?, args).queue(Name::check("queue", queue)?))
        };
        Enqueue { tenure: tenure.clone(), job: job(), output: PhantomData }
    }

    fn with(mut self, change: impl FnOnce(NewJob) -> Result<NewJob, Invalid>) -> Enqueue<T> {
        self.job = self.job.and_then(change);
        self
    }

    /// The queue that it waits in.
    pub fn queue(self, queue: impl AsRef<str>) -> Enqueue<T> {
        self.with(|job| Ok(job.queue(Name::check("queue", queue.as_ref())?)))
    }

    /// The tenant that it belongs to. Tenants take turns, however many jobs one of them has.
    pub fn tenant(self, tenant: impl AsRef<str>) -> Enqueue<T> {
        self.with(|job| Ok(job.tenant(Tenant::check(tenant.as_ref())?)))
    }

    /// Enqueues at most once under this key, for 24 hours: a second request gets the first one's
    /// job.
    pub fn key(self, key: impl AsRef<str>) -> Enqueue<T> {
        self.with(|job| Ok(job.key(Key::check(key.as_ref())?)))
    }

    /// Like [`Enqueue::key`], for another length of time.
    pub fn key_for(self, key: impl AsRef<str>, window: Duration) -> Enqueue<T> {
        self.with(|job| Ok(job.key(Key::check(key.as_ref())?.window(window))))
    }

    /// Lower numbers run first.
    pub fn priority(self, priority: i16) -> Enqueue<T> {
        self.with(|job| Ok(job.priority(priority)))
    }

    /// Due after this delay, at most 100 years.
    pub fn delay(self, delay: Duration) -> Enqueue<T> {
        self.with(|job| {
            if delay > DELAY_LIMIT {
                let why = format!("{delay:?} is longer than 100 years; choose a shorter one");
                return Err(Invalid::Value { field: "delay", why });
            }
            Ok(job.delay(delay))
        })
    }

    /// Due at this time.
    pub fn at(self, time: impl Into<Timestamp>) -> Enqueue<T> {
        self.with(|job| Ok(job.at(time.into())))
    }

    /// How many attempts it has; at least one.
    pub fn max_attempts(self, attempts: u16) -> Enqueue<T> {
        self.with(|job| Ok(job.max_attempts(at_least_one("max_attempts", attempts)?)))
    }

    /// After how many crashes the job is buried. An attempt has crashed if its lease was over or
    /// its worker vanished.
    pub fn max_crashes(self, crashes: u16) -> Enqueue<T> {
        self.with(|job| Ok(job.max_crashes(at_least_one("max_crashes", crashes)?)))
    }

    /// The delays between tries.
    pub fn retry(self, retry: RetryPolicy) -> Enqueue<T> {
        self.with(|job| Ok(job.retry(retry)))
    }

    /// How long one attempt may take; then its handler is stopped.
    pub fn max_runtime(self, limit: Duration) -> Enqueue<T> {
        self.with(|job| Ok(job.max_runtime(limit)))
    }

    /// A tag to find it by. A job has up to 16.
    pub fn tag(self, tag: impl AsRef<str>) -> Enqueue<T> {
        self.with(|job| {
            let mut tags = job.extras.tags.clone();
            tags.push(Name::check("tag", tag.as_ref())?);
            job.tags(tags)
        })
    }

    /// The trace that it continues, such as a W3C `traceparent`.
    pub fn trace(self, trace: impl AsRef<str>) -> Enqueue<T> {
        self.with(|job| job.trace(trace.as_ref()))
    }

    pub(crate) fn into_parts(self) -> Result<(Tenure, NewJob)> {
        Ok((self.tenure, self.job?))
    }

    /// The job, for a caller that enqueues it in another way, such as in a transaction of its own.
    pub fn build(self) -> Result<NewJob> {
        Ok(self.job?)
    }
}

fn at_least_one(field: &'static str, number: u16) -> Result<NonZeroU16, Invalid> {
    NonZeroU16::new(number).ok_or(Invalid::Value { field, why: "at least 1".into() })
}

impl<T: 'static> IntoFuture for Enqueue<T> {
    type Output = Result<Handle<T>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        let Enqueue { tenure, job, .. } = self;
        Box::pin(async move {
            let job = job?;
            let answers = tenure.0.link.enqueue(vec![job.clone()]).await?;
            match answers.first() {
                Some(answer) => tenure.enqueued(&job, *answer),
                None => Err(Invalid::Batch { size: 0 }.into()),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::Job;

    #[derive(Serialize, Deserialize)]
    struct Patient;

    impl Job for Patient {
        const KIND: &'static str = "patient";
        const RETRY: RetryPolicy = RetryPolicy::list(&[1_000, 60_000]);
        type Output = ();
    }

    #[tokio::test]
    async fn a_job_is_stored_with_the_retries_of_its_type_unless_it_is_enqueued_with_others() {
        let tenure = Tenure::open("sqlite::memory:").await.unwrap();
        let retries = async |enqueue: Enqueue<()>| {
            let id = enqueue.await.unwrap().id();
            tenure.job(id).await.unwrap().unwrap().job.retry
        };
        assert_eq!(retries(tenure.enqueue(Patient)).await, Patient::RETRY);
        let fixed = RetryPolicy::Fixed { ms: 7 };
        assert_eq!(retries(tenure.enqueue(Patient).retry(fixed.clone())).await, fixed);
    }

    #[tokio::test]
    async fn a_delay_that_nobody_lives_to_see_and_args_that_json_cannot_express_are_refused() {
        let tenure = Tenure::open("sqlite::memory:").await.unwrap();
        assert!(tenure.enqueue(Patient).delay(DELAY_LIMIT).await.is_ok());
        let error = tenure.enqueue(Patient).delay(Duration::MAX).await.unwrap_err();
        assert!(error.is_invalid(), "{error}");
        let told = error.to_string();
        assert!(told.ends_with("is longer than 100 years; choose a shorter one"), "{told}");
        let error = tenure.enqueue_kind("resize", &[f64::INFINITY]).await.unwrap_err();
        let told = "args cannot be stored as JSON: a number is inf, which JSON cannot say; use \
                    null or a text instead";
        assert_eq!(error.to_string(), told);
    }
}
