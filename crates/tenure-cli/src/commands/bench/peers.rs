//! `tenure bench peers`: the same work on other queues. This file decides where it runs and shows the
//! report; what is compared, and how, is in the crate `tenure-bench`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;
use tenure_bench::{
    Failure, Grounds, Mark, PEERS, PeerPlan, PeerReport, Program, Verdict, default_directory,
};

use super::show::{busy, spread};
use super::{How, WORK, until_stopped};
use crate::args::BadInput;
use crate::commands::worker::helper::this_program;
use crate::output::{Column, Output, Table};
use crate::target::Target;
use crate::time::show;
use crate::{Answer, Session};

/// The same work on other queues, beside Tenure and plain SQL, in the same rounds
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    /// Only this peer, `tenure` or `raw`; may be repeated
    #[arg(long, value_name = "PEER")]
    only: Vec<String>,

    /// List the peers, and measure nothing
    #[arg(long)]
    list: bool,

    /// Where peers are installed, once [default: target/peers, or the user's cache]
    #[arg(long, value_name = "DIRECTORY")]
    dir: Option<PathBuf>,

    #[command(flatten)]
    how: How,
}

const AFTER_HELP: &str = "\
Peers come from npm, PyPI and crates.io, Redis from this machine or from Debian. What cannot be
installed is reported, and the rest is measured. On PostgreSQL everything shares a throw-away server,
or the one that --db names: it makes databases of its own there, and removes them. Everything takes
three quarters of an hour, besides the first installation.";

pub(crate) fn run(args: &Args, session: &mut Session) -> Result<Answer> {
    if args.list {
        return list(&mut session.out);
    }
    let path = this_program().context("cannot find this program to start a worker")?;
    let nowhere = || BadInput("--dir: say where peers are to be installed".to_owned());
    let plan = PeerPlan {
        only: args.only.clone(),
        rounds: args.how.rounds(),
        quick: args.how.quick,
        directory: match &args.dir {
            Some(directory) => std::path::absolute(directory)?,
            None => default_directory().ok_or_else(nowhere)?,
        },
        program: Program { path, word: WORK },
    };
    plan.check().map_err(BadInput)?;
    let server = server(session)?;
    let drawing = args.how.drawing()?;
    session.out.say(&format!("peers are installed in {}", plan.directory.display()))?;
    let compared = until_stopped(
        || Grounds::prepare(server.clone()),
        async |grounds, progress| tenure_bench::compare(&plan, grounds, progress).await,
        Grounds::clear,
    )?;
    let Some(report) = compared else {
        return Ok(Answer::No("interrupted; what was made for the bench is removed".to_owned()));
    };
    self::report(&report, &mut session.out)?;
    if let Some(drawing) = drawing {
        drawing.end(&tenure_bench::draw_peers(&report))?;
    }
    Ok(Answer::Yes)
}

/// The server, if the user names one.
fn server(session: &Session) -> Result<Option<String>> {
    if session.db.is_none() {
        return Ok(None);
    }
    match session.target()? {
        Target::Server(_) => Ok(Some(session.url()?)),
        Target::File(_) => {
            let why = "--db: the peers need a server, or leave it out (and unset TENURE_DB)";
            Err(BadInput(why.to_owned()).into())
        }
    }
}

/// A line of the list.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    version: &'static str,
    store: &'static str,
    marks: &'static [Mark],
    finished: &'static str,
    fence: &'static str,
    durability: &'static str,
    settings: &'static str,
}

fn list(out: &mut Output) -> Result<Answer> {
    if out.is_json() {
        let lines = PEERS.iter().map(|peer| Listed {
            name: peer.name,
            version: peer.version(),
            store: peer.store.name(),
            marks: peer.marks,
            finished: peer.finished,
            fence: peer.fence,
            durability: peer.durability,
            settings: peer.settings,
        });
        out.document(&lines.collect::<Vec<_>>())?;
        return Ok(Answer::Yes);
    }
    let heads = ["PEER", "VERSION", "STORE", "MARKS", "FINISHED JOBS", "FENCE", "SETTINGS"];
    let mut table = Table::new(&heads.map(Column::Text));
    for peer in PEERS {
        table.row(vec![
            peer.name.to_owned(),
            peer.version().to_owned(),
            peer.store.name().to_owned(),
            peer.letters(),
            peer.finished.to_owned(),
            peer.fence.to_owned(),
            peer.settings.to_owned(),
        ]);
    }
    out.table(&table)?;
    legend(out)?;
    Ok(Answer::Yes)
}

/// Prints the report: the conditions, the figures, what went wrong, and the targets.
fn report(report: &PeerReport, out: &mut Output) -> Result<()> {
    if out.is_json() {
        return out.document(report);
    }
    let PeerReport { tenure, postgres, sqlite, machine, .. } = report;
    out.line(&format!("Tenure {tenure} and peers on {postgres} and {sqlite}; {machine}"))?;
    let rounds = if report.rounds == 1 { "round" } else { "rounds" };
    let took = Duration::from_secs_f64(report.took_s.max(0.001));
    out.line(&format!("{} {rounds} in {}", report.rounds, show(took)))?;
    if let Some(note) = busy(machine) {
        out.line(&note)?;
    }
    if report.quick {
        out.line("quick: the sizes are so small that the figures mean nothing")?;
    }
    out.line("")?;
    figures(report, out)?;
    legend(out)?;
    failures(&report.failures, out)?;
    out.line("")?;
    targets(&report.targets, out)
}

fn figures(report: &PeerReport, out: &mut Output) -> Result<()> {
    let mut table = Table::new(&[
        Column::Text("WORK"),
        Column::Text("STORE"),
        Column::Text("QUEUE"),
        Column::Number("MEDIAN"),
        Column::Text("UNIT"),
        Column::Number("SPREAD"),
        Column::Text("VERSION"),
        Column::Text("MARKS"),
        Column::Text("SETTINGS"),
    ]);
    for line in &report.lines {
        table.row(vec![
            line.work.to_owned(),
            line.store.to_owned(),
            line.subject.to_owned(),
            tenure_bench::shown(line.median, line.unit),
            line.unit.sign().to_owned(),
            spread(&line.values, line.spread),
            line.version.clone(),
            line.letters(),
            line.settings.clone(),
        ]);
    }
    out.table(&table)
}

/// Says what the marks mean.
fn legend(out: &mut Output) -> Result<()> {
    let meanings = Mark::ALL.map(|mark| format!("{} {}", mark.letter(), mark.legend()));
    meanings.iter().try_for_each(|meaning| out.line(meaning))
}

fn failures(failures: &[Failure], out: &mut Output) -> Result<()> {
    if failures.is_empty() {
        return Ok(());
    }
    out.line("")?;
    let heads = ["NOT MEASURED", "DOING", "WHY"];
    let mut table = Table::new(&heads.map(Column::Text));
    for failure in failures {
        table.row(vec![failure.peer.to_owned(), failure.doing.to_owned(), failure.why.clone()]);
    }
    out.table(&table)
}

fn targets(targets: &[Verdict], out: &mut Output) -> Result<()> {
    let mut table = Table::new(&[
        Column::Text("TARGET"),
        Column::Text("AGAINST"),
        Column::Text("WANTED"),
        Column::Number("MEASURED"),
        Column::Text("RESULT"),
    ]);
    for verdict in targets {
        table.row(vec![
            verdict.what.to_owned(),
            verdict.against.clone(),
            verdict.needs.clone(),
            verdict.shown.clone(),
            verdict.outcome.word().to_owned(),
        ]);
    }
    out.table(&table)
}
