//! Measures Tenure itself and plain SQL for the comparison, with the measures and limits of `tenure
//! bench`. Only "no history" and several clients at once are added here.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tenure::Name;
use tenure::engine::store::QueueChange;

use super::report::{Found, Subject, Work};
use super::{Grounds, PeerPlan, RAW, TENURE};
use crate::ground::Ground;
use crate::limit::{Limit, insert_by, process_by};
use crate::measures::{Engine, Measure};
use crate::progress::Progress;
use crate::run::{limit_of, one};
use crate::stand::{Stand, blocking};
use crate::stats::{rate, whole};

/// One thing to measure in each round.
pub(super) struct Own {
    pub(super) name: &'static str,
    engine: Engine,
    kind: Kind,
}

enum Kind {
    /// A measure of `tenure bench`, and what its figures are here.
    Measure(&'static str, Subject, Parts),
    /// No-op jobs that are deleted as they succeed.
    NoHistory,
    /// Plain SQL.
    Raw,
}

/// Which work of the comparison each part of a measure's readings is.
type Parts = &'static [(&'static str, Work)];

/// Everything that is not a peer, on both engines.
pub(super) fn all(plan: &PeerPlan) -> Vec<Own> {
    const MEASURES: [(&str, Subject, Parts); 7] = [
        ("process_default", Subject::Default, &[("", Work::Process)]),
        ("process_1000", Subject::Tuned, &[("", Work::Process)]),
        ("enqueue_bulk", Subject::Default, &[("", Work::EnqueueBulk)]),
        ("enqueue_1", Subject::Default, &[("", Work::EnqueueOne)]),
        ("enqueue_16", Subject::Default, &[("", Work::EnqueueSixteen)]),
        ("enqueue_16_keys", Subject::Default, &[("", Work::EnqueueSixteenKeys)]),
        ("idle_pickup", Subject::Default, &[("p50", Work::Pickup50), ("p99", Work::Pickup99)]),
    ];
    let mut all = Vec::new();
    for engine in [Engine::Postgres, Engine::Sqlite] {
        if plan.has(RAW) {
            all.push(Own { name: "plain SQL", engine, kind: Kind::Raw });
        }
        if plan.has(TENURE) {
            all.extend(MEASURES.into_iter().map(|(name, subject, parts)| Own {
                name,
                engine,
                kind: Kind::Measure(name, subject, parts),
            }));
            all.push(Own { name: "no history", engine, kind: Kind::NoHistory });
        }
    }
    all
}

impl Own {
    /// Measures once.
    pub(super) async fn measure(
        &self,
        plan: &PeerPlan,
        grounds: &Grounds,
        progress: &Arc<Progress>,
    ) -> Result<Vec<Found>> {
        let ground = match self.engine {
            Engine::Postgres => &grounds.postgres,
            Engine::Sqlite => &grounds.sqlite,
        };
        match self.kind {
            Kind::Raw => raw(self.engine, ground, plan.quick).await,
            Kind::NoHistory => {
                let stand = Stand::make(ground, &plan.program, plan.quick, progress).await?;
                let found = no_history(&stand, self.engine).await?;
                stand.remove().await?;
                Ok(vec![found])
            }
            Kind::Measure(name, subject, parts) => {
                let measure = Measure::named(name).context("no such measure")?;
                let (readings, _) =
                    one(measure, &plan.program, plan.quick, ground, progress).await?;
                let part = |reading: &crate::measures::Reading| {
                    let (_, work) = parts.iter().find(|(part, _)| *part == reading.part)?;
                    let settings = reading.settings.clone();
                    Some(Found::own(subject, self.engine, *work, reading.value, settings))
                };
                Ok(readings.iter().filter_map(part).collect())
            }
        }
    }
}

/// The tuned worker, on a queue that keeps no job that has succeeded.
async fn no_history(stand: &Stand, engine: Engine) -> Result<Found> {
    let change = QueueChange { keep: Some(Duration::ZERO), ..QueueChange::default() };
    let queue = Name::default_queue();
    stand.tenure.with_store(move |store| store.configure(&queue, &change)).await?;
    let jobs = stand.size(100_000, 2_000);
    stand.warm_up().await?;
    stand.fill(jobs).await?;
    let took = stand.drain(stand.worker().concurrency(1_000)).await?;
    let counts = stand.runs.counts();
    let once = counts.iter().filter(|count| **count == 1).count();
    ensure!(once == counts.len(), "of {} jobs, {once} ran exactly once", counts.len());
    let overview = stand.tenure.with_store(|store| store.overview()).await?;
    let left: u64 = overview
        .lines
        .iter()
        .map(|line| line.ready + line.waiting + line.running + line.parked + line.dead)
        .sum();
    ensure!(left == 0, "{left} jobs are left, but all have succeeded");
    let settings = format!("{} jobs, concurrency 1,000, keep 0s", whole(jobs));
    Ok(Found::own(Subject::NoHistory, engine, Work::Process, rate(jobs, took), settings))
}

/// The same work as plain SQL.
async fn raw(engine: Engine, ground: &Arc<Ground>, quick: bool) -> Result<Vec<Found>> {
    const CLIENTS: usize = 2;
    const CALLERS: usize = 16;
    let limits = [Limit::Process, Limit::Insert, Limit::InsertSingly];
    let found = limit_of(ground, &limits, quick).await?;
    let raw = |work, value, settings: &str| {
        Found::own(Subject::Raw, engine, work, value, settings.to_owned())
    };
    let named = |limit| found.get(&limit).copied().unwrap_or(f64::NAN);
    let mut raws = vec![
        raw(Work::EnqueueBulk, named(Limit::Insert), "1 client, 1,000 in each commit"),
        raw(Work::EnqueueOne, named(Limit::InsertSingly), "1 client, 1 in each commit"),
    ];
    if engine == Engine::Sqlite {
        let moves = "claims and moves of whole sets, 1,000 in each commit";
        raws.push(raw(Work::Process, named(Limit::Process), moves));
        return Ok(raws);
    }
    let (rows, singles) = if quick { (4_000, 160) } else { (100_000, 16_000) };
    let there = Arc::clone(ground);
    let process = blocking(move || process_by(&there, CLIENTS, rows)).await?;
    raws.push(raw(
        Work::Process,
        process,
        "2 clients, claims with SKIP LOCKED, moves, 1,000 in each commit",
    ));
    let there = Arc::clone(ground);
    let singly = blocking(move || insert_by(&there, CALLERS, singles)).await?;
    raws.push(raw(Work::EnqueueSixteen, singly, "16 clients, 1 in each commit"));
    Ok(raws)
}
