//! `tenure effects resolve`: an operator has asked the outside system, and says how to treat an
//! effect in doubt.

use anyhow::Result;
use clap::ArgGroup;
use tenure::engine::job::{BATCH_LIMIT, Invalid, JobId, Json, Limits, Name, State, shorten};
use tenure::engine::ledger::{EffectRecord, Resolution, Standing};
use tenure::engine::store::Resolved;
use tenure::{EffectFilter, json};

use super::changes;
use crate::args::{self, BadInput};
use crate::commands::enqueue::all_of_stdin;
use crate::{Answer, Session};

/// Say how an effect in doubt is to be taken
#[derive(clap::Args)]
#[group(skip)]
#[command(group(ArgGroup::new("how").required(true).args(["committed", "resend"])))]
#[command(after_help = "\
A parked job with no other effect in doubt is queued again. A decision can be corrected
until an attempt has gone on with it.

Examples:
  tenure effects resolve 7 charge --committed '{\"receipt\":\"r-42\"}'
  tenure effects resolve 7 charge --resend")]
pub(crate) struct Args {
    /// The job
    #[arg(value_parser = args::job_id)]
    job: JobId,

    /// The effect's name within the job
    #[arg(value_parser = args::effect)]
    effect: Name,

    /// It happened, and this came back, as JSON; - reads it from stdin
    #[arg(long, value_name = "JSON", allow_hyphen_values = true)]
    committed: Option<String>,

    /// Send it again under the same key, for the other side to tell that it is the same
    #[arg(long)]
    resend: bool,
}

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    let Args { job, effect, .. } = args;
    let how = resolution(args)?;
    let mut store = session.open()?;
    let resolved = store.resolve(*job, effect, &how)?;
    let stands = match resolved {
        Resolved::NotInDoubt(_) => {
            let only = EffectFilter { job: Some(*job), ..EffectFilter::default() };
            let found = store.effects(&only, BATCH_LIMIT)?;
            found.into_iter().map(|view| view.effect).find(|found| found.name == *effect)
        }
        _ => None,
    };
    if session.out.is_json() {
        session.out.document(&json::resolved(*job, effect, resolved))?;
    }
    match answer(*job, effect, &how, resolved).map_err(|why| with_what_stands(why, stands.as_ref()))
    {
        Ok(words) if !session.out.is_json() => session.out.line(&words)?,
        Ok(_) => {}
        Err(why) => return Ok(Answer::No(why)),
    }
    Ok(Answer::Yes)
}

fn resolution(args: &Args) -> Result<Resolution> {
    let limit = Limits::default().result;
    let text = match args.committed.as_deref() {
        None => return Ok(Resolution::Resend),
        Some("-") => all_of_stdin("result", limit)?,
        Some(text) => text.to_owned(),
    };
    let result = Json::check("result", text, limit).map_err(|invalid| match invalid {
        Invalid::NotJson { .. } => {
            let shape =
                "what came back is one JSON value, such as '{\"receipt\":\"r-42\"}' or null";
            BadInput(format!("--committed: {invalid}; {shape}"))
        }
        _ => BadInput(format!("--committed: {invalid}")),
    })?;
    Ok(Resolution::Committed { result })
}

/// What was done, or why not, and what to do next.
fn answer(
    job: JobId,
    effect: &Name,
    how: &Resolution,
    resolved: Resolved,
) -> Result<String, String> {
    match resolved {
        Resolved::Applied(state) => {
            let taken = match how {
                Resolution::Committed { .. } => "counts as committed",
                Resolution::Resend => "will be sent again",
            };
            Ok(format!("effect {effect} of job {job} {taken}; {}", next(job, state)))
        }
        Resolved::NotInDoubt(standing) => Err(format!(
            "effect {effect} of job {job} is not in doubt: {}",
            match standing {
                Standing::Committed => "it is committed, and that is final",
                Standing::Failed => "it failed, and the job's next attempt opens it again",
                Standing::Resend => "it will be sent again by the job's next attempt",
                Standing::Open => "its outcome is on its way",
            }
        )),
        Resolved::Running => Err(format!(
            "job {job} is running, so its holder decides about effect {effect}; wait for it with: \
             tenure jobs wait {job}; or take it away with: tenure jobs cancel {job}"
        )),
        Resolved::Succeeded => Err(format!(
            "job {job} has succeeded, so nobody would send effect {effect} again; if it happened, say so with: \
             tenure effects resolve {job} {effect} --committed JSON"
        )),
        Resolved::NoSuchEffect => Err(format!(
            "job {job} has no effect {effect}; see what it has with: tenure effects list --job {job}"
        )),
        Resolved::NotFound => Err(changes::unknown(job)),
    }
}

/// The refusal, with what is in the ledger instead.
fn with_what_stands(why: String, stands: Option<&EffectRecord>) -> String {
    let Some(effect) = stands else { return why };
    let who = if effect.is_decided() {
        format!(
            "a person decided it, and the attempt with token {} has gone on with it",
            effect.token
        )
    } else {
        format!("the attempt with token {} wrote it", effect.token)
    };
    match &effect.result {
        Some(result) => format!("{why}; what stands is {}: {who}", shorten(result.as_str(), 200)),
        None => format!("{why}; {who}"),
    }
}

/// What this means for the job.
fn next(job: JobId, state: State) -> String {
    match state {
        State::Queued => format!("job {job} is queued, and its next attempt goes on from there"),
        State::Parked => format!(
            "job {job} stays parked; see whether another effect is in doubt with: \
             tenure effects list --job {job}; if none is: tenure jobs resume {job}"
        ),
        State::Running => format!("job {job} is {state}"),
        State::Succeeded => format!("job {job} is {state}, and has no next attempt"),
        State::Dead | State::Cancelled => {
            format!("job {job} is {state}; to let it go on: tenure jobs requeue {job}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_has_words_and_a_next_step() {
        let effect = tenure::engine::ledger::effect_name("charge").unwrap();
        let said = |resolved| answer(JobId(7), &effect, &Resolution::Resend, resolved);
        for state in State::ALL {
            let words = said(Resolved::Applied(state)).unwrap();
            assert!(
                words.contains("will be sent again") && words.contains(state.name()),
                "{words}"
            );
        }
        for standing in Standing::ALL {
            assert!(said(Resolved::NotInDoubt(standing)).unwrap_err().contains("not in doubt: it"));
        }
        assert!(said(Resolved::Succeeded).unwrap_err().contains("--committed JSON"));
        assert!(said(Resolved::Running).unwrap_err().contains("tenure jobs cancel 7"));
        assert!(said(Resolved::NoSuchEffect).unwrap_err().contains("tenure effects list --job 7"));
        assert!(said(Resolved::NotFound).unwrap_err().contains("tenure jobs list"));
    }
}
