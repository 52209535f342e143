//! How long a worker's lock must have been free before its process counts as gone: how an operator
//! sets this for a whole installation, and how it is shown.

use std::time::Duration;

use anyhow::Result;
use tenure::engine::store::Store;
use tenure::json;

use super::Finding;
use crate::{Answer, Session};

pub(super) fn set(gap: Duration, session: &mut Session) -> Result<Answer> {
    let was = session.open()?.set_guard_gap(gap)?;
    if session.out.is_json() {
        session.out.document(&json::guard_gap(was, gap))?;
        return Ok(Answer::Yes);
    }
    session.out.line(&format!("the guard gap was {was:?} and is now {gap:?}"))?;
    Ok(Answer::Yes)
}

pub(super) fn look(store: &mut dyn Store) -> Result<Finding> {
    let gap = store.guard_gap()?;
    let found =
        format!("a worker whose lock is free for {gap:?} counts as gone, whatever its lease");
    Ok(Finding::well("guard gap", found))
}
