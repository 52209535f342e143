//! The list of measures and the report, for people and for programs.

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use tenure_bench::{ALL, Engine, Figure, Machine, Own, Report, shown};

use crate::Answer;
use crate::output::{Column, Output, Table};
use crate::time::show;

/// A line of the list.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    engines: &'static [Engine],
    what: &'static str,
}

/// Lists the measures.
pub(super) fn list(out: &mut Output) -> Result<Answer> {
    if out.is_json() {
        let lines =
            ALL.iter().map(|it| Listed { name: it.name, engines: it.engines, what: it.what });
        out.document(&lines.collect::<Vec<_>>())?;
        return Ok(Answer::Yes);
    }
    let mut table = Table::new(&[Column::Text("NAME"), Column::Text("ON"), Column::Text("WHAT")]);
    for measure in ALL {
        let on = if measure.engines.contains(&Engine::Sqlite) { "both" } else { "PostgreSQL" };
        table.row(vec![measure.name.to_owned(), on.to_owned(), measure.what.to_owned()]);
    }
    out.table(&table)?;
    Ok(Answer::Yes)
}

/// Prints the report: the conditions, the figures, the limits, and the three answers of the
/// summary.
pub(super) fn report(report: &Report, out: &mut Output) -> Result<()> {
    if out.is_json() {
        return out.document(report);
    }
    out.line(&report.on())?;
    let rounds = if report.rounds == 1 { "round" } else { "rounds" };
    let took = Duration::from_secs_f64(report.took_s.max(0.001));
    out.line(&format!("{} {rounds} in {}", report.rounds, show(took)))?;
    if let Some(note) = busy(&report.machine) {
        out.line(&note)?;
    }
    if report.quick {
        out.line("quick: the sizes are so small that the figures mean nothing")?;
    }
    out.line("")?;
    let mut table = Table::new(&[
        Column::Text("FIGURE"),
        Column::Number("MEDIAN"),
        Column::Text("UNIT"),
        Column::Number("SPREAD"),
        Column::Number("FRACTION"),
        Column::Text("OF LIMIT"),
        Column::Text("SETTINGS"),
    ]);
    report.figures.iter().for_each(|figure| table.row(row(figure)));
    out.table(&table)?;
    out.line("")?;
    limits(&report.limits, out)?;
    report.summary.lines().iter().try_for_each(|line| out.line(line))
}

fn row(figure: &Figure) -> Vec<String> {
    let (fraction, of) = match &figure.limit {
        Some(of) => (percent(of.fraction), of.name.to_owned()),
        None => (String::new(), String::new()),
    };
    vec![
        figure.name.clone(),
        shown(figure.median, figure.unit),
        figure.unit.sign().to_owned(),
        spread(&figure.values, figure.spread),
        fraction,
        of,
        figure.settings.clone(),
    ]
}

/// Prints what the machine can do at all.
fn limits(limits: &[Own], out: &mut Output) -> Result<()> {
    if limits.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&[
        Column::Text("LIMIT"),
        Column::Number("MEDIAN"),
        Column::Text("UNIT"),
        Column::Number("SPREAD"),
        Column::Text("PLAIN SQL BY THE DRIVER ALONE"),
    ]);
    for limit in limits {
        table.row(vec![
            limit.name.to_owned(),
            shown(limit.median, limit.unit),
            limit.unit.sign().to_owned(),
            spread(&limit.values, limit.spread),
            limit.what.to_owned(),
        ]);
    }
    out.table(&table)?;
    out.line("")
}

fn percent(part: f64) -> String {
    format!("{:.0} %", part * 100.0)
}

/// One round has no spread.
pub(super) fn spread(values: &[f64], spread: f64) -> String {
    if values.len() > 1 { percent(spread) } else { String::new() }
}

/// A note if other work was running at the start, because that makes every figure worse.
pub(super) fn busy(machine: &Machine) -> Option<String> {
    const IDLE: f64 = 0.5;
    let load = machine.load.filter(|load| *load > IDLE)?;
    Some(format!("other work was running at the start (load {load:.1}): figures are worse for it"))
}
