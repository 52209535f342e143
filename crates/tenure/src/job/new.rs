//! A job to enqueue, and its options.

use std::num::NonZeroU16;
use std::time::Duration;

use super::{Extras, Fingerprint, Invalid, JobId, Json, Name, RetryPolicy, Tenant};
use crate::clock::Timestamp;

/// A job to enqueue.
///
/// ```
/// use std::time::Duration;
/// use tenure::engine::job::{Json, Key, Limits, Name, NewJob};
///
/// let kind = Name::check("kind", "send_email")?;
/// let args = Json::check("args", r#"{"to":"a@b.c"}"#, Limits::default().args)?;
/// let job = NewJob::new(kind, args)
///     .queue(Name::check("queue", "mail")?)
///     .key(Key::check("welcome-7")?)
///     .delay(Duration::from_secs(5));
/// # Ok::<(), tenure::engine::job::Invalid>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewJob {
    pub(crate) kind: Name,
    pub(crate) args: Json,
    pub(crate) queue: Name,
    pub(crate) tenant: Tenant,
    pub(crate) priority: i16,
    pub(crate) due: Due,
    pub(crate) max_attempts: NonZeroU16,
    pub(crate) max_crashes: NonZeroU16,
    pub(crate) retry: RetryPolicy,
    pub(crate) max_runtime: Option<Duration>,
    pub(crate) key: Option<Key>,
    pub(crate) extras: Extras,
    pub(crate) parent: Option<JobId>,
}

impl NewJob {
    /// One try and five retries.
    pub const MAX_ATTEMPTS: NonZeroU16 = NonZeroU16::new(6).unwrap();
    /// A job is buried at its fifth crash. With this limit, it is a suspect from its second crash
    /// on.
    pub const MAX_CRASHES: NonZeroU16 = NonZeroU16::new(5).unwrap();

    /// A job due at once in the default queue, with the default retries.
    pub fn new(kind: Name, args: Json) -> NewJob {
        NewJob {
            kind,
            args,
            queue: Name::default_queue(),
            tenant: Tenant::default(),
            priority: 0,
            due: Due::Now,
            max_attempts: NewJob::MAX_ATTEMPTS,
            max_crashes: NewJob::MAX_CRASHES,
            retry: RetryPolicy::default(),
            max_runtime: None,
            key: None,
            extras: Extras::default(),
            parent: None,
        }
    }

    /// The queue it waits in.
    pub fn queue(self, queue: Name) -> NewJob {
        NewJob { queue, ..self }
    }

    /// The tenant that it belongs to.
    pub fn tenant(self, tenant: Tenant) -> NewJob {
        NewJob { tenant, ..self }
    }

    /// Lower numbers run first.
    pub fn priority(self, priority: i16) -> NewJob {
        NewJob { priority, ..self }
    }

    /// Due after this long.
    pub fn delay(self, delay: Duration) -> NewJob {
        NewJob { due: Due::In(delay), ..self }
    }

    /// Due at this time.
    pub fn at(self, time: Timestamp) -> NewJob {
        NewJob { due: Due::At(time), ..self }
    }

    /// How often it may be tried.
    pub fn max_attempts(self, max_attempts: NonZeroU16) -> NewJob {
        NewJob { max_attempts, ..self }
    }

    /// How many crashes it may cause or suffer.
    pub fn max_crashes(self, max_crashes: NonZeroU16) -> NewJob {
        NewJob { max_crashes, ..self }
    }

    /// The delays between tries.
    pub fn retry(self, retry: RetryPolicy) -> NewJob {
        NewJob { retry, ..self }
    }

    /// How long one attempt may hold its lease, renewals included.
    pub fn max_runtime(self, limit: Duration) -> NewJob {
        NewJob { max_runtime: Some(limit.max(Duration::from_millis(1))), ..self }
    }

    /// Enqueue at most once under this key.
    pub fn key(self, key: Key) -> NewJob {
        NewJob { key: Some(key), ..self }
    }

    /// The trace this job continues, such as a W3C `traceparent`: up to 512 printable ASCII
    /// characters.
    pub fn trace(self, trace: impl Into<String>) -> Result<NewJob, Invalid> {
        let trace = trace.into();
        Extras::check_trace(&trace)?;
        Ok(NewJob { extras: Extras { trace: Some(trace), ..self.extras }, ..self })
    }

    /// Up to 16 tags to find it by.
    pub fn tags(self, tags: Vec<Name>) -> Result<NewJob, Invalid> {
        Extras::check_tags(&tags)?;
        Ok(NewJob { extras: Extras { tags, ..self.extras }, ..self })
    }

    /// The fingerprint that is compared if another request uses the same key.
    pub fn fingerprint(&self) -> Fingerprint {
        let given = self.key.as_ref().and_then(|key| key.fingerprint);
        given.unwrap_or_else(|| Fingerprint::of(self.kind.as_str(), &self.args))
    }
}

/// When a job is due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Due {
    /// At once.
    #[default]
    Now,
    /// After this long, counted from the store's clock at enqueue.
    In(Duration),
    /// At this time on the store's clock.
    At(Timestamp),
}

/// An idempotency key: within its window, a second request under it gets the first one's job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    text: String,
    /// How long the key is remembered.
    pub window: Duration,
    /// What a second request must match; computed from the kind and args unless given.
    pub fingerprint: Option<Fingerprint>,
}

impl Key {
    /// How long a key is remembered unless the caller sets another time.
    pub const WINDOW: Duration = Duration::from_secs(24 * 60 * 60);

    /// Checks a key: 1 to 255 bytes without control characters.
    pub fn check(text: impl Into<String>) -> Result<Key, Invalid> {
        let text = text.into();
        if (1..=255).contains(&text.len()) && !text.chars().any(char::is_control) {
            Ok(Key { text, window: Key::WINDOW, fingerprint: None })
        } else {
            Err(Invalid::Value {
                field: "key",
                why: "a key has 1 to 255 bytes and no control characters".into(),
            })
        }
    }

    /// Sets how long the key is remembered.
    pub fn window(self, window: Duration) -> Key {
        Key { window, ..self }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}
