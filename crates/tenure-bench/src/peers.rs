//! `tenure bench peers`: the same work on other queues, beside Tenure and plain SQL, in the same
//! rounds.
//!
//! Each peer has an adapter, a small program in its own language. This binary contains the files of
//! all adapters (`peers/` of this crate). An adapter is written into a directory, installed there
//! once from the registry of its language, and started for each measure (`process.rs`). It answers
//! with one line of JSON (`answer.rs`). A peer that cannot be installed, fails or loses a job is
//! reported, and the run goes on. This module knows nothing of how a peer works.

mod answer;
mod install;
mod ours;
mod process;
pub(crate) mod report;
mod table;
mod targets;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use tenure::engine::clock::monotonic;
use tenure_cluster::{Address, Redis};
use tokio::process::Command;

use self::answer::{RUNS, Run};
use self::install::Start;
use self::report::{Found, Rounds};
use crate::children::Program;
use crate::ground::{Ground, On};
use crate::progress::Progress;
use crate::run::conditions;
use crate::stand::blocking;

pub use self::install::default_directory;
pub use self::report::{Failure, Line, PeerReport};
pub use self::table::{Language, Mark, PEERS, Peer, Store};
pub use self::targets::{Outcome, Verdict, targets};

/// Tenure itself, as `--only` names it.
pub const TENURE: &str = "tenure";

/// Plain SQL by the driver alone, as `--only` names it.
pub const RAW: &str = "raw";

/// What is compared, how often, and where the peers are installed.
#[derive(Debug, Clone)]
pub struct PeerPlan {
    /// Names of peers, [`TENURE`] or [`RAW`]; all if empty.
    pub only: Vec<String>,
    /// How often everything is measured.
    pub rounds: u32,
    /// Small sizes, to see that everything works. The figures mean nothing.
    pub quick: bool,
    /// Where peers are installed. It is kept, so that the next run need not install them again.
    pub directory: PathBuf,
    /// How worker processes of Tenure are started.
    pub program: Program,
}

impl PeerPlan {
    /// Refuses a name that means nothing.
    ///
    /// # Errors
    /// If there is no such peer: the text says what to do.
    pub fn check(&self) -> Result<(), String> {
        let is_known = |name: &&String| {
            [TENURE, RAW].contains(&name.as_str()) || PEERS.iter().any(|peer| peer.name == **name)
        };
        match self.only.iter().find(|name| !is_known(name)) {
            Some(name) => {
                Err(format!("there is no peer {name:?}; `tenure bench peers --list` shows them"))
            }
            None => Ok(()),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

/// Where the stores of both engines are.
pub struct Grounds {
    pub(crate) postgres: Arc<Ground>,
    pub(crate) sqlite: Arc<Ground>,
}

impl Grounds {
    /// Prepares a database of this server, or a throw-away server, and a directory for SQLite.
    ///
    /// # Errors
    /// If one of them cannot be made; the error says what to do.
    pub fn prepare(server: Option<String>) -> Result<Grounds> {
        let on = server.map_or(On::Installed, On::Server);
        Ok(Grounds {
            sqlite: Arc::new(Ground::prepare(&On::Temporary)?),
            postgres: Arc::new(Ground::prepare(&on)?),
        })
    }

    /// Removes everything at once, even if a thread that was left behind still uses this value.
    pub fn clear(&self) {
        self.sqlite.clear();
        self.postgres.clear();
    }
}

/// Measures everything. Dropping the future ends it and every process that it has started.
///
/// # Errors
/// If Tenure or plain SQL fails. What happens to a peer is in the report.
pub async fn compare(
    plan: &PeerPlan,
    grounds: &Grounds,
    progress: &Arc<Progress>,
) -> Result<PeerReport> {
    let begin = monotonic();
    let peers: Vec<&'static Peer> = PEERS.iter().filter(|peer| plan.has(peer.name)).collect();
    let runs = peers.len() * RUNS.len() + ours::all(plan).len();
    progress.plan(runs as u64 * u64::from(plan.rounds) + peers.len() as u64);
    let on_postgres = conditions(&grounds.postgres).await?;
    let on_sqlite = conditions(&grounds.sqlite).await?;
    let mut rounds = Rounds::default();
    let mut installed = Vec::new();
    for peer in peers {
        progress.begin(format!("installing {}", peer.name));
        match install::install(peer, &plan.directory).await {
            Ok(start) => installed.push((peer, start)),
            Err(error) => rounds.failed(peer, "install", &error),
        }
        progress.end();
    }
    in_rounds(plan, grounds, progress, &installed, &mut rounds).await?;
    let took = monotonic() - begin;
    Ok(PeerReport::of(on_postgres, &on_sqlite, (plan.rounds, plan.quick), rounds, took))
}

/// Everything once, then everything again.
async fn in_rounds(
    plan: &PeerPlan,
    grounds: &Grounds,
    progress: &Arc<Progress>,
    installed: &[(&'static Peer, Start)],
    rounds: &mut Rounds,
) -> Result<()> {
    let ours = ours::all(plan);
    for round in 1..=plan.rounds {
        let doing = |what: &str| format!("{what}, round {round} of {}", plan.rounds);
        for own in &ours {
            progress.begin(doing(own.name));
            let found = own.measure(plan, grounds, progress).await;
            rounds.found(found.with_context(|| own.name)?);
            progress.end();
        }
        for (peer, start) in installed {
            for run in RUNS {
                progress.begin(doing(&format!("{} {}", peer.name, run.name())));
                if !rounds.has_failed(peer, run.name()) {
                    match one(peer, run, start, plan, grounds).await {
                        Ok(found) => rounds.found(found),
                        Err(error) => rounds.failed(peer, run.name(), &error),
                    }
                }
                progress.end();
            }
        }
    }
    Ok(())
}

/// One measure of one peer, once, on a database, a server or a file of its own.
async fn one(
    peer: &'static Peer,
    run: Run,
    start: &Start,
    plan: &PeerPlan,
    grounds: &Grounds,
) -> Result<Vec<Found>> {
    let (jobs, warm_up) = run.sizes(peer, plan.quick);
    let mut start = start.command(run.name(), jobs, warm_up);
    let said = match peer.store {
        Store::Postgres => {
            let ground = Arc::clone(&grounds.postgres);
            let url = blocking(move || ground.lend()).await?;
            let address = Address::parse(&url).map_err(|error| anyhow!("--db: {error}"))?;
            start.envs(address.variables());
            let said = answer_of(start).await;
            let ground = Arc::clone(&grounds.postgres);
            let take_back = move || {
                ground.take_back(&url);
                Ok(())
            };
            blocking(take_back).await?;
            said
        }
        Store::Redis { settings } => {
            let started = blocking(move || Redis::start(settings).map_err(anyhow::Error::new));
            let redis = started.await.context("its server")?;
            start.env("PEER_REDIS", redis.socket());
            let said = answer_of(start).await;
            let end = move || {
                drop(redis);
                Ok(())
            };
            blocking(end).await?;
            said
        }
        Store::Sqlite => {
            let site = grounds.sqlite.site();
            start.env("PEER_FILE", Path::new(&site.driver).join("peer.db"));
            let said = answer_of(start).await;
            grounds.sqlite.remove(&site)?;
            said
        }
    };
    let answer = answer::read(&said?, run, jobs + warm_up)?;
    Ok(Found::of_peer(peer, run, &answer, jobs))
}

async fn answer_of(start: Command) -> Result<String> {
    /// The slowest peer needs a minute for the largest measure.
    const LONGEST: Duration = Duration::from_secs(300);
    process::output(start, LONGEST).await
}

#[cfg(test)]
mod tests;
