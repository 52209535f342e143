//! `tenure drill`: the proof, for everyone to watch and to repeat.
//!
//! The stories stall, kill and cut off real workers. `explore` and `step` try every order of calls
//! and of statements, `simulate` runs workers from a seed, and in `disk` the power fails. `mutants`
//! removes one safeguard at a time, and a check must notice it. A drill never touches a user's
//! store: it makes its own, in a temporary directory or in a schema or databases of its own on the
//! server that `--db` names, and removes them.

mod disk;
mod explore;
mod mutants;
mod server;
mod simulate;
mod step;
pub(crate) mod stories;

use anyhow::Result;

use crate::{Answer, Session};

/// Watch the promises being proved, and repeat it
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Race(stories::Race),
    Crash(stories::Crash),
    Duplicate(stories::Duplicate),
    Outage(stories::Outage),
    MidApply(stories::MidApply),
    Poison(stories::Poison),
    Explore(explore::Args),
    Step(step::Args),
    Simulate(simulate::Args),
    Disk(disk::Args),
    Mutants(mutants::Args),
}

pub(crate) fn run(command: &Command, session: &mut Session) -> Result<Answer> {
    match command {
        Command::Race(args) => stories::race(args, session),
        Command::Crash(args) => stories::crash(args, session),
        Command::Duplicate(args) => stories::duplicate(args, session),
        Command::Outage(args) => stories::outage(args, session),
        Command::MidApply(args) => stories::mid_apply(args, session),
        Command::Poison(args) => stories::poison(args, session),
        Command::Explore(args) => explore::run(args, session),
        Command::Step(args) => step::run(args, session),
        Command::Simulate(args) => simulate::run(args, session),
        Command::Disk(args) => disk::run(args, session),
        Command::Mutants(args) => mutants::run(args, session),
    }
}
