//! The rounds of a run. Rounds are interleaved: every measure once, then every measure again, so
//! that a machine that gets slower for a while does so for all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
use tenure::engine::clock::monotonic;

use crate::children::Program;
use crate::ground::Ground;
use crate::limit::{self, Limit};
use crate::machine::Machine;
use crate::measures::{ALL, Engine, Measure, Reading};
use crate::progress::Progress;
use crate::report::{Conditions, Report, Rounds};
use crate::stand::{Account, Stand, blocking};

/// What is measured, and how often.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Which measures.
    pub choice: Choice,
    /// How often each.
    pub rounds: u32,
    /// Small sizes, to see that everything works. The figures mean nothing.
    pub quick: bool,
    /// How worker processes are started.
    pub program: Program,
}

/// Which measures.
#[derive(Debug, Clone)]
pub enum Choice {
    /// All that the engine has.
    All,
    /// These, by their names.
    Only(Vec<String>),
}

impl Choice {
    /// The measures, in the order of the table.
    ///
    /// # Errors
    /// If a name is unknown or means nothing on this engine: the text says what to do.
    pub fn on(&self, engine: Engine) -> Result<Vec<&'static Measure>, String> {
        let has = |measure: &&Measure| measure.engines.contains(&engine);
        let Choice::Only(names) = self else {
            return Ok(ALL.iter().filter(has).collect());
        };
        for name in names {
            let Some(measure) = Measure::named(name) else {
                return Err(format!(
                    "there is no measure {name:?}; `tenure bench --list` shows them"
                ));
            };
            if !has(&measure) {
                return Err(format!(
                    "{name} means something on PostgreSQL only; add --postgres, or --db postgres://…"
                ));
            }
        }
        let is_named = |measure: &&Measure| names.iter().any(|name| name == measure.name);
        Ok(ALL.iter().filter(is_named).collect())
    }
}

/// Measures everything. Dropping the future ends the run. Dropping `ground` removes what was made.
///
/// # Errors
/// If a store cannot be used, or a job did not run exactly once.
pub async fn run(plan: &Plan, ground: &Arc<Ground>, progress: &Arc<Progress>) -> Result<Report> {
    let begin = monotonic();
    let measures = plan.choice.on(ground.engine()).map_err(anyhow::Error::msg)?;
    let limits: Vec<Limit> = measures.iter().flat_map(|it| it.limits.iter().copied()).collect();
    progress.plan((measures.len() as u64 + 1) * u64::from(plan.rounds));
    progress.begin("preparing".to_owned());
    let mut read = Rounds::default();
    let conditions = conditions(ground).await?;
    for round in 1..=plan.rounds {
        let doing = |what: &str| match plan.rounds {
            1 => what.to_owned(),
            rounds => format!("{what}, round {round} of {rounds}"),
        };
        progress.begin(doing("the machine's own limit"));
        read.limits(limit_of(ground, &limits, plan.quick).await?);
        progress.end();
        for measure in &measures {
            progress.begin(doing(measure.name));
            let once = one(measure, &plan.program, plan.quick, ground, progress).await;
            let (readings, account) = once.with_context(|| measure.name)?;
            read.readings(measure, readings);
            read.account(account);
            progress.end();
        }
    }
    let rounds = (plan.rounds, plan.quick);
    Ok(Report::of(conditions, rounds, &read, monotonic() - begin))
}

pub(crate) async fn conditions(ground: &Arc<Ground>) -> Result<Conditions> {
    let there = Arc::clone(ground);
    let terms = move || {
        let site = there.store()?;
        let terms = there.terms(&site);
        there.remove(&site)?;
        terms
    };
    let (engine, durability) = blocking(terms).await?;
    Ok(Conditions { engine, durability, machine: Machine::here() })
}

pub(crate) async fn limit_of(
    ground: &Arc<Ground>,
    limits: &[Limit],
    quick: bool,
) -> Result<BTreeMap<Limit, f64>> {
    let (there, limits) = (Arc::clone(ground), limits.to_vec());
    blocking(move || limit::measure(&there, &limits, quick)).await
}

/// One measure, once, on a store of its own.
pub(crate) async fn one(
    measure: &'static Measure,
    program: &Program,
    quick: bool,
    ground: &Arc<Ground>,
    progress: &Arc<Progress>,
) -> Result<(Vec<Reading>, Account)> {
    let stand = Stand::make(ground, program, quick, progress).await?;
    let readings = (measure.run)(&stand).await?;
    let account = stand.account(measure.leaves).await?;
    stand.remove().await?;
    Ok((readings, account))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(choice: &Choice, engine: Engine) -> Result<Vec<&'static str>, String> {
        Ok(choice.on(engine)?.iter().map(|measure| measure.name).collect())
    }

    #[test]
    fn all_are_those_that_the_engine_has_and_some_come_in_the_order_of_the_table() {
        let on_sqlite = names(&Choice::All, Engine::Sqlite).unwrap();
        assert!(!on_sqlite.contains(&"horizon_busy") && on_sqlite.contains(&"process_100"));
        assert_eq!(names(&Choice::All, Engine::Postgres).unwrap().len(), ALL.len());
        let some = Choice::Only(vec!["process_100".into(), "enqueue_1".into()]);
        assert_eq!(names(&some, Engine::Sqlite).unwrap(), ["enqueue_1", "process_100"]);
    }

    #[test]
    fn a_measure_that_cannot_be_is_refused_with_what_to_do() {
        let choice = |name: &str| Choice::Only(vec![name.to_owned()]);
        let error = names(&choice("proces"), Engine::Sqlite).unwrap_err();
        assert_eq!(error, "there is no measure \"proces\"; `tenure bench --list` shows them");
        let error = names(&choice("horizon_idle"), Engine::Sqlite).unwrap_err();
        assert!(error.contains("add --postgres"), "{error}");
    }
}
