//! Command line arguments, turned into checked values: names, ids, states, times. The library has
//! every rule; this file only applies it to the command line.

use std::fmt;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use tenure::engine::job::{Invalid, JobId, Key, Name, State, Tenant};
use tenure::engine::ledger::effect_name;
use tenure::{Filter, Timestamp};

/// Invalid input, and what would be valid.
#[derive(Debug)]
pub(crate) struct BadInput(pub(crate) String);

impl fmt::Display for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

/// Which jobs to show.
#[derive(clap::Args)]
pub(crate) struct Only {
    /// Only in this queue
    #[arg(long, value_name = "NAME", value_parser = queue)]
    pub(crate) queue: Option<Name>,

    /// Only of this tenant; '' for jobs without one
    #[arg(long, value_name = "NAME", value_parser = tenant)]
    pub(crate) tenant: Option<Tenant>,

    /// Only of this kind
    #[arg(long, value_name = "NAME", value_parser = kind)]
    pub(crate) kind: Option<Name>,
}

impl Only {
    /// The same filter for the store.
    pub(crate) fn filter(&self, state: Option<State>) -> Filter {
        Filter {
            state,
            queue: self.queue.clone(),
            tenant: self.tenant.clone(),
            kind: self.kind.clone(),
            ..Filter::default()
        }
    }

    /// Whether it excludes nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_none() && self.tenant.is_none() && self.kind.is_none()
    }
}

pub(crate) fn kind(text: &str) -> Result<Name, Invalid> {
    Name::check("kind", text)
}

pub(crate) fn queue(text: &str) -> Result<Name, Invalid> {
    Name::check("queue", text)
}

pub(crate) fn tag(text: &str) -> Result<Name, Invalid> {
    Name::check("tag", text)
}

pub(crate) fn key(text: &str) -> Result<Key, Invalid> {
    Key::check(text)
}

pub(crate) fn effect(text: &str) -> Result<Name, Invalid> {
    effect_name(text)
}

pub(crate) fn tenant(text: &str) -> Result<Tenant, Invalid> {
    Tenant::check(text)
}

pub(crate) fn job_id(text: &str) -> Result<JobId, Invalid> {
    JobId::parse(text)
}

/// A state by its name. The names are listed, so that help and completions can show them.
pub(crate) fn state() -> impl TypedValueParser<Value = State> {
    PossibleValuesParser::new(State::ALL.map(State::name)).try_map(|name| name.parse::<State>())
}

/// A time with its offset from UTC, so that it means the same on every machine.
pub(crate) fn moment(text: &str) -> Result<Timestamp, String> {
    let parsed: Result<jiff::Timestamp, _> = text.parse();
    match parsed {
        Ok(time) => Ok(Timestamp::from_millis(time.as_millisecond())),
        Err(_) => Err("write it as RFC 3339 with an offset from UTC, such as \
             2030-01-31T08:00:00Z or 2030-01-31T09:00:00+01:00"
            .into()),
    }
}

/// Each id once, in the order given: a job that is named twice gets one operation.
pub(crate) fn distinct(ids: &[JobId]) -> Vec<JobId> {
    let mut seen = std::collections::BTreeSet::new();
    ids.iter().copied().filter(|id| seen.insert(*id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_needs_a_date_a_time_and_an_offset() {
        assert_eq!(moment("1970-01-01T00:00:01.5Z"), Ok(Timestamp::from_millis(1_500)));
        assert_eq!(moment("1970-01-01T01:00:00+01:00"), Ok(Timestamp::from_millis(0)));
        for text in ["", "tomorrow", "2030-01-31", "2030-01-31T08:00:00", "2030-13-01T00:00:00Z"] {
            assert!(moment(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn an_id_that_is_named_twice_is_asked_for_once() {
        let ids = [JobId(3), JobId(1), JobId(3)];
        assert_eq!(distinct(&ids), [JobId(3), JobId(1)]);
    }
}
