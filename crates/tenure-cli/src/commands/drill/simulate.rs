//! `tenure drill simulate`: the worker's machines, from a seed.

use anyhow::Result;

use crate::{Answer, Session};

/// Run the worker's machines from a seed, with faults
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args, _: &mut Session) -> Result<Answer> {
    Ok(Answer::No("not yet".into()))
}
