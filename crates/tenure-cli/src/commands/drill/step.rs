//! `tenure drill step`: every order of statements, in sessions of PostgreSQL.

use anyhow::Result;

use crate::{Answer, Session};

/// Go through every order of statements, in sessions of PostgreSQL
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args, _: &mut Session) -> Result<Answer> {
    Ok(Answer::No("not yet".into()))
}
