//! `tenure drill race` and the other stories: what real workers do when the worst happens.

use anyhow::Result;

use crate::{Answer, Session};

/// Two workers, one job: the first stalls, the second takes over, the first wakes up
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn race(_: &Args, _: &mut Session) -> Result<Answer> {
    Ok(Answer::No("not yet".into()))
}
