//! `tenure completions`: what a shell needs to complete commands and options.

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::{Answer, Cli, Session};

/// Print the completions of a shell
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  tenure completions bash > ~/.local/share/bash-completion/completions/tenure
  tenure completions fish > ~/.config/fish/completions/tenure.fish")]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    // Into memory first: the generator panics when its writer fails, and a pipe may be closed.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tenure", &mut script);
    session.out.verbatim(&script)?;
    Ok(Answer::Yes)
}
