//! `tenure drill explore`: every order of calls, on the real engines.

use anyhow::Result;

use crate::{Answer, Session};

/// Go through every order of calls, on the real engines
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args, _: &mut Session) -> Result<Answer> {
    Ok(Answer::No("not yet".into()))
}
