//! `tenure jobs wait`: blocks until a job has ended, and answers with its result.

use std::time::{Duration, Instant};

use anyhow::Result;
use tenure::engine::clock;
use tenure::engine::inspect::JobOutcome;
use tenure::engine::job::{JobId, State};
use tenure::engine::store::{Store, Wake};
use tenure::json;

use super::changes;
use crate::args;
use crate::output::say;
use crate::time::{duration, show};
use crate::{Answer, Session};

/// Wait until a job has ended, and print its result
#[derive(clap::Args)]
#[command(after_help = "\
Exits with 0 if the job succeeded, with 1 if it is dead or cancelled or the time is up.

Example:
  tenure jobs wait $(tenure enqueue summarise '{\"doc\":7}') --timeout 30s")]
pub(crate) struct Args {
    /// The job
    #[arg(value_parser = args::job_id)]
    id: JobId,

    /// Give up after this long, such as 30s; without it, wait for ever
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    timeout: Option<Duration>,
}

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    let mut store = session.open()?;
    let Some(first) = store.outcome(args.id)? else {
        return Ok(Answer::No(changes::unknown(args.id)));
    };
    if !first.state.has_ended() {
        say(&format!("waiting for job {}, which is {}", args.id, first.state));
    }
    match until_ended(&mut *store, args)? {
        Waited::Ended(outcome) => answer(args.id, &outcome, &mut *store, session),
        Waited::TimedOut(state) => Ok(Answer::No(format!(
            "job {} is still {state} after {}; see it with: tenure jobs show {}",
            args.id,
            show(args.timeout.unwrap_or_default()),
            args.id
        ))),
        Waited::Gone => Ok(Answer::No(format!(
            "job {} was deleted while waiting for it: it was purged, or its queue keeps no succeeded \
             jobs; see: tenure queues list",
            args.id
        ))),
    }
}

enum Waited {
    Ended(JobOutcome),
    TimedOut(State),
    Gone,
}

/// Reads the job and waits for a change, in turns. A change between the two ends the wait at once,
/// so none is missed.
fn until_ended(store: &mut dyn Store, args: &Args) -> Result<Waited> {
    /// The length of one wait if there is no timeout; a wait may return spuriously.
    const LONG: Duration = Duration::from_secs(60 * 60);
    let start = clock::monotonic();
    let deadline: Option<Instant> = args.timeout.and_then(|timeout| start.checked_add(timeout));
    loop {
        let Some(outcome) = store.outcome(args.id)? else { return Ok(Waited::Gone) };
        if outcome.state.has_ended() {
            return Ok(Waited::Ended(outcome));
        }
        let until = deadline.unwrap_or_else(|| clock::monotonic() + LONG);
        if store.wait(until)? == Wake::TimedOut && deadline.is_some() {
            return Ok(Waited::TimedOut(outcome.state));
        }
    }
}

/// The result needs only the right to wait. The whole job, as JSON, needs a reader's right.
fn answer(
    id: JobId,
    outcome: &JobOutcome,
    store: &mut dyn Store,
    session: &mut Session,
) -> Result<Answer> {
    let JobOutcome { state, result, reason } = outcome;
    if session.out.is_json() {
        let Some(found) = store.job(id)? else {
            return Ok(Answer::No(changes::unknown(id)));
        };
        session.out.document(&json::job(&found.job))?;
    } else if *state == State::Succeeded {
        // A job may succeed without a result. A program that reads the answer gets JSON then too.
        session.out.json_text(result.as_ref().map_or("null", |result| result.as_str()))?;
    }
    if *state == State::Succeeded {
        return Ok(Answer::Yes);
    }
    let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    Ok(Answer::No(format!(
        "job {id} is {state}{reason}; queue it again with: tenure jobs requeue {id}"
    )))
}
