//! `tenure effects`: the effects of jobs, and how an operator resolves those in doubt.

mod list;
mod resolve;

use anyhow::Result;

pub(crate) use self::list::{of_job, table};
use super::changes;
use crate::{Answer, Session};

/// List what jobs did to the world, and decide where it is in doubt
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    List(list::Args),
    Resolve(resolve::Args),
}

pub(crate) fn run(command: &Command, session: &mut Session) -> Result<Answer> {
    match command {
        Command::List(args) => list::run(args, session),
        Command::Resolve(args) => resolve::run(args, session),
    }
}
