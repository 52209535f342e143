//! Whether the store has gone back in time, as after a restore, and how an operator reports that it
//! has.

use anyhow::Result;
use tenure::engine::lease::first_of;
use tenure::engine::store::Store;
use tenure::{Timestamp, json};

use super::Finding;
use crate::time::relative;
use crate::{Answer, Session};

pub(super) fn look(store: &mut dyn Store, now: Timestamp) -> Result<Finding> {
    let identity = store.identity()?;
    let epoch = identity.epoch;
    let Some(last) = identity.raises.last() else {
        return Ok(Finding::well("epoch", format!("{epoch}: it has never gone back in time")));
    };
    let times = match identity.raises.len() {
        1 => "it may have gone back in time once,".to_owned(),
        n => format!("it may have gone back in time {n} times, the last time"),
    };
    let when = relative(last.at, now);
    Ok(Finding::well("epoch", format!("{epoch}: {times} {when}: {}", last.reason)))
}

/// A reason that is not empty.
pub(super) fn reason(text: &str) -> Result<String, String> {
    match text.trim() {
        "" => Err("say why, or leave it out".into()),
        text if text.len() > 500 => Err("say it in 500 bytes".into()),
        text => Ok(text.to_owned()),
    }
}

/// Begins a new epoch.
pub(super) fn raise(reason: &str, session: &mut Session) -> Result<Answer> {
    let mut store = session.open()?;
    let was = store.identity()?.epoch;
    let epoch = store.raise_epoch(reason)?;
    if session.out.is_json() {
        session.out.document(&json::raised(was, epoch, reason))?;
        return Ok(Answer::Yes);
    }
    session.out.line(&format!("the epoch was {was} and is now {epoch}"))?;
    session.out.say(&format!(
        "from now on every token and every job id is above {}, and so above all that were issued before; \
         attempts that are running go on, and settle under the tokens they have",
        first_of(epoch)
    ))?;
    Ok(Answer::Yes)
}
