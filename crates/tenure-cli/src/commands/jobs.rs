//! `tenure jobs`: finding jobs, and operations on jobs by id.

mod list;
mod show;
mod wait;

use anyhow::Result;
use tenure::JobId;
use tenure::engine::store::AsSeen;

pub(crate) use self::list::{Limit, newest};
use super::changes::{self, Operation};
use crate::args::{self, distinct};
use crate::{Answer, Session};

/// List jobs, look at one, wait for it, cancel, requeue or resume it
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    List(list::Args),
    Show(show::Args),
    Wait(wait::Args),
    /// End jobs that have not ended; a running job's worker learns of it at its next call
    Cancel(Ids),
    /// Queue dead or cancelled jobs again, with their attempts and crashes counted from zero
    Requeue(Ids),
    /// Queue parked jobs again
    Resume(Ids),
}

#[derive(clap::Args)]
pub(crate) struct Ids {
    /// The jobs
    #[arg(required = true, value_name = "ID", value_parser = args::job_id)]
    ids: Vec<JobId>,
}

pub(crate) fn run(command: &Command, session: &mut Session) -> Result<Answer> {
    match command {
        Command::List(args) => list::run(args, session),
        Command::Show(args) => show::run(args, session),
        Command::Wait(args) => wait::run(args, session),
        Command::Cancel(ids) => operate(Operation::Cancel, ids, session),
        Command::Requeue(ids) => operate(Operation::Requeue, ids, session),
        Command::Resume(ids) => operate(Operation::Resume, ids, session),
    }
}

fn operate(operation: Operation, Ids { ids }: &Ids, session: &mut Session) -> Result<Answer> {
    let mut store = session.open()?;
    let answers = changes::in_batches(
        &distinct(ids),
        |id| id,
        |part| match operation {
            Operation::Cancel => store.cancel(part),
            Operation::Resume => store.resume(part),
            _ => store.requeue(&part.iter().map(|job| as_it_is(*job)).collect::<Vec<_>>()),
        },
    )?;
    changes::report(operation, &answers, &mut session.out)
}

/// An operator who names a job means its current state, whatever its token is.
fn as_it_is(job: JobId) -> AsSeen {
    AsSeen::any(job)
}
