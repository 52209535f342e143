//! The database becomes unreachable in the middle of jobs, and comes back. Workers notice, continue
//! what they are running, and settle it when the store answers again. Nothing is lost, and nothing
//! is done twice.

use std::collections::BTreeSet;
use std::time::Duration;

use postgres::{Client, NoTls};
use tenure::State;
use tenure::engine::inspect::{EffectView, JobDetail};
use tenure::engine::ledger::Standing;
use tenure::engine::store::{Error, Result};
use tenure::sqlite::rusqlite::Connection;

use super::{Audience, Claim, Scene, Story, Told, nothing_wrong, play, seconds};
use crate::workers::kinds::Account;
use crate::workers::{Setup, job, lines};

/// The story's name.
pub const NAME: &str = "outage";
/// How long the database is unreachable, at least.
const LENGTH: Duration = Duration::from_secs(2);
const JOBS: usize = 6;

/// Something that makes a database unreachable.
pub trait Outage {
    /// What is done, for people to read.
    fn what(&self) -> String;
    /// The application name that the workers' sessions need, if any.
    fn session(&self) -> Option<&str> {
        None
    }
    /// Makes the database unreachable.
    ///
    /// # Errors
    /// If that could not be done.
    fn begin(&mut self) -> Result<()>;
    /// Called again and again during the outage.
    ///
    /// # Errors
    /// If the database could not be kept unreachable.
    fn go_on(&mut self) -> Result<()> {
        Ok(())
    }
    /// Ends the outage.
    ///
    /// # Errors
    /// If the database could not be made reachable again.
    fn end(&mut self) -> Result<()>;
}

/// Runs the story.
pub fn once(scene: &Scene, outage: &mut dyn Outage, audience: &mut dyn Audience) -> Result<Story> {
    play(NAME, scene, audience, |stage| {
        if let Some(name) = outage.session() {
            let sign = if stage.place.contains('?') { '&' } else { '?' };
            stage.place = format!("{}{sign}application_name={name}", stage.place);
        }
        let (bank, gate) = (stage.file("bank"), stage.file("gate"));
        let setup = Setup { concurrency: 2, ..Setup::default() };
        stage.enter("A", &setup)?;
        stage.enter("B", &setup)?;
        let pay = job(&Account { bank: bank.clone(), gate: Some(gate.clone()) });
        let jobs = stage.put(&vec![pay; JOBS])?;
        stage.until("four jobs to have paid", |stage| {
            let effects = stage.store.effects(&Default::default(), 100)?;
            let is_paid = |view: &&EffectView| view.effect.standing == Standing::Committed;
            Ok(effects.iter().filter(is_paid).count() == 4)
        })?;
        stage.note("four of six jobs have paid and work on, two are queued");
        stage.note(&outage.what());
        outage.begin()?;
        // The jobs end now, while the store is unreachable, and must be settled later.
        stage.open(&gate)?;
        let begun = tenure::engine::clock::monotonic();
        stage.until("a worker to notice", |stage| {
            outage.go_on()?;
            let noticed = stage.trace.iter().any(|told| told.name() == "store_lost");
            Ok(noticed && begun.elapsed() >= LENGTH)
        })?;
        outage.end()?;
        stage.note(&format!("the database is back after {}", seconds(begun.elapsed())));
        stage.until_all(&jobs, State::Succeeded)?;
        stage.end("A")?;
        stage.end("B")?;
        let mut seen = Seen { jobs: Vec::new(), effects: 0, book: lines(&bank), trace: Vec::new() };
        for id in jobs {
            seen.jobs.push(stage.job(id)?);
            seen.effects += stage.effects(id)?.len();
        }
        seen.trace.clone_from(&stage.trace);
        let mut claims = verdict(&seen);
        claims.push(nothing_wrong(stage)?);
        Ok(claims)
    })
}

/// What the verdict is based on.
pub(super) struct Seen {
    pub(super) jobs: Vec<JobDetail>,
    /// How many entries the ledger has.
    pub(super) effects: usize,
    /// The bank's book: the key of each call.
    pub(super) book: Vec<String>,
    pub(super) trace: Vec<Told>,
}

pub(super) fn verdict(seen: &Seen) -> Vec<Claim> {
    let count = |name: &str| seen.trace.iter().filter(|told| told.name() == name).count();
    let done = seen.jobs.iter().filter(|found| found.job.state == State::Succeeded).count();
    let keys = seen.book.iter().collect::<BTreeSet<_>>().len();
    let who = |name: &str| -> Vec<&str> {
        let mut who: Vec<&str> = seen
            .trace
            .iter()
            .filter(|told| told.name() == name)
            .map(|told| told.who.as_str())
            .collect();
        who.sort_unstable();
        who.dedup();
        who
    };
    let (lost, back) = (who("store_lost"), who("store_back"));
    let by = |who: &[&str]| match who {
        [] => "by nobody".to_owned(),
        who => format!("by {}", who.join(" and ")),
    };
    vec![
        Claim::new("it was noticed, and told as store_lost", !lost.is_empty(), by(&lost)),
        Claim::new("and each who did told its end as store_back", lost == back, by(&back)),
        Claim::new(
            "nothing is lost: every job succeeded",
            done == JOBS,
            format!("{done} of {}", seen.jobs.len()),
        ),
        Claim::new(
            "nothing is done twice: one entry in the ledger and one key at the bank for each job",
            (seen.effects, keys) == (JOBS, JOBS),
            format!("{} entries, {keys} keys", seen.effects),
        ),
        Claim::new(
            "each job's success is told once",
            count("job_succeeded") == JOBS,
            format!("{} told", count("job_succeeded")),
        ),
    ]
}

/// Another program holds the file locked, as a backup or an operator's shell may.
pub struct Locked {
    file: String,
    connection: Option<Connection>,
}

impl Locked {
    /// An outage that locks this scene's file.
    pub fn file(scene: &Scene) -> Locked {
        Locked { file: scene.place.clone(), connection: None }
    }
}

impl Outage for Locked {
    fn what(&self) -> String {
        "another program locks the file, for longer than the 5 s that a worker waits for it".into()
    }

    fn begin(&mut self) -> Result<()> {
        let failed = |cause| Error::Engine { doing: "lock the file", source: Box::new(cause) };
        let connection = Connection::open(&self.file).map_err(failed)?;
        connection.busy_timeout(Duration::from_secs(5)).map_err(failed)?;
        connection.execute_batch("BEGIN IMMEDIATE").map_err(failed)?;
        self.connection = Some(connection);
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        // The lock ends with the connection.
        drop(self.connection.take());
        Ok(())
    }
}

/// The server keeps running, because it is not ours; but each of the workers' sessions is
/// terminated as soon as it appears.
pub struct CutOff {
    client: Client,
    name: String,
}

impl CutOff {
    /// An outage of this server's sessions.
    ///
    /// # Errors
    /// If the server does not answer without TLS.
    pub fn from_server(server: &str) -> Result<CutOff> {
        let client = Client::connect(server, NoTls).map_err(|cause| Error::Unusable {
            target: "the server".into(),
            problem: cause.to_string(),
            next: "an outage is played on a server that answers without TLS; or use --postgres, which starts one".into(),
        })?;
        Ok(CutOff { client, name: format!("drill-{}", tenure::engine::clock::unique().simple()) })
    }

    fn cut(&mut self) -> Result<()> {
        let cut =
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
        let failed = |cause| Error::Engine { doing: "end sessions", source: Box::new(cause) };
        self.client.query(cut, &[&self.name]).map_err(failed)?;
        Ok(())
    }
}

impl Outage for CutOff {
    fn what(&self) -> String {
        let length = LENGTH.as_secs();
        format!(
            "the server is not ours to stop: for {length} s it ends every session of the workers as soon as there is one"
        )
    }

    fn session(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn begin(&mut self) -> Result<()> {
        self.cut()
    }

    fn go_on(&mut self) -> Result<()> {
        self.cut()
    }

    fn end(&mut self) -> Result<()> {
        Ok(())
    }
}
