//! What `tenure doctor` checks in a file and beside it. No job needs any of this to run.

use std::path::{Path, PathBuf};

use rusqlite::named_params;

use super::file::{beside, resolve};
use super::witness::Witness;
use super::writer::Urgency;
use super::{Sqlite, error, guard};
use crate::inspect::DueJobs;
use crate::job::Name;
use crate::store::Result;

/// The files that Tenure keeps beside a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beside {
    /// The witness file, which records the last commit of the database.
    pub witness: PathBuf,
    /// Whether the witness exists and belongs to this database. True before the first commit, when
    /// there is nothing to record.
    pub is_witnessed: bool,
    /// Why the witness cannot be written, if so.
    pub problem: Option<String>,
    /// The files of the workers' locks.
    pub guards: Vec<PathBuf>,
}

impl Sqlite {
    /// Jobs that are due and not yet claimed, by queue and kind.
    pub fn due(&self) -> Result<Vec<DueJobs>> {
        self.read("look for due jobs", |tx| {
            tx.all(
                include_str!("../../../sql/sqlite/due.sql"),
                named_params! { ":lanes": DueJobs::LANES, ":each": DueJobs::EACH, ":now": tx.now.as_millis() },
                |row| {
                    let (queue, kind) = (Name::trusted(row.get(0)?), Name::trusted(row.get(1)?));
                    Ok(DueJobs { queue, kind, jobs: row.get(2)? })
                },
            )
        })
    }

    /// The files beside the one that this store was opened from.
    pub fn beside(&self, path: impl AsRef<Path>) -> Result<Beside> {
        let failed = |cause| error::from_io(&self.writer.target, "look beside the file", cause);
        let path = resolve(path.as_ref());
        let witness = beside(&path, "-witness");
        let seen = if witness.exists() { Witness::open(&witness).read() } else { None };
        let (installation, beat): (String, i64) = self.read("look at the witness", |tx| {
            let sql = "SELECT installation, beat FROM tenure_meta";
            tx.connection.query_row(sql, [], |row| row.try_into())
        })?;
        // The writer runs this while this process has the turn (see `turn.rs`), so no other process
        // writes the witness meanwhile.
        let problem = self.writer.write("look at the witness", Urgency::Normal, |_| {
            Ok(self.writer.witness().and_then(|witness| {
                if seen.is_some() {
                    witness.rehearse();
                }
                witness.problem()
            }))
        })?;
        let is_witnessed = beat == 0 || seen.is_some_and(|seen| seen.installation == installation);
        let guards = guard::files(&path).map_err(failed)?;
        Ok(Beside { witness, is_witnessed, problem, guards })
    }
}

#[cfg(test)]
mod tests {
    use crate::store::{Registration, Work};
    use std::time::Duration;

    use super::*;
    use crate::clock::{Clock, Timestamp};
    use crate::job::{Json, NewJob, Tenant};
    use crate::lease::WorkerId;
    use crate::store::sqlite::StoreOptions;

    fn job(kind: &str) -> NewJob {
        let args = Json::check("args", "{}", 100).unwrap();
        NewJob::new(Name::check("kind", kind).unwrap(), args)
    }

    #[test]
    fn due_jobs_are_counted_by_queue_and_kind_over_all_tenants() {
        let clock = Clock::manual(Timestamp::from_millis(0));
        let options = StoreOptions { clock: clock.clone(), ..StoreOptions::default() };
        let mut store = Sqlite::in_memory(&options).unwrap();
        assert_eq!(store.due().unwrap(), []);
        let of = |tenant: &str| job("mail").tenant(Tenant::check(tenant).unwrap());
        store.enqueue(&[of("a"), of("b"), of("b"), job("report")]).unwrap();
        store.enqueue(&vec![job("many"); DueJobs::EACH + 1]).unwrap();
        store.enqueue(&[job("later").delay(Duration::from_secs(60))]).unwrap();
        let counted = |store: &Sqlite| -> Vec<(String, u64)> {
            store.due().unwrap().into_iter().map(|due| (due.kind.to_string(), due.jobs)).collect()
        };
        let all = [("many", DueJobs::EACH as u64), ("mail", 3), ("report", 1)];
        let mut all: Vec<_> = all.map(|(kind, jobs)| (kind.to_owned(), jobs)).to_vec();
        all.sort();
        assert_eq!(counted(&store), all);
        // It has not been promoted, but it is due.
        clock.advance(Duration::from_secs(60));
        assert!(counted(&store).contains(&("later".to_owned(), 1)));
    }

    #[test]
    fn the_witness_and_the_guards_are_found_beside_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("jobs.db");
        let mut store = Sqlite::open(&path, &StoreOptions::default()).unwrap();
        let look = |store: &Sqlite| store.beside(&path).unwrap();
        assert!(look(&store).is_witnessed && look(&store).guards.is_empty());
        let worker = WorkerId::check("ann").unwrap();
        let queues = vec![Name::default_queue()];
        store.register(&Registration::new(worker, queues)).unwrap();
        assert!(look(&store).is_witnessed);
        assert_eq!(look(&store).guards.len(), 1);
        std::fs::remove_file(look(&store).witness).unwrap();
        assert!(!look(&store).is_witnessed);
    }
}
