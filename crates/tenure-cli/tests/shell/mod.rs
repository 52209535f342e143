//! A user's shell: an empty directory, and the real binary run in it, with a store in a file there
//! or in a database of a server.

#![allow(dead_code, unused_macros, unused_imports, reason = "each test file uses what it needs")]

pub(crate) mod database;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tenure::Filter;
use tenure::engine::job::{JobId, JobRecord, Name};
use tenure::engine::lease::{Fence, WorkerId};
use tenure::engine::ledger::{Act, Answer, Entry};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::postgres::{self, Postgres};
use tenure::engine::store::sqlite::{self, Sqlite};
use tenure::engine::store::{Attempt, Claim, Cursor, Settled, Settlement, Store};

use self::database::Database;

pub(crate) struct Shell {
    dir: TempDir,
    /// The database, if the store is not a file in the directory.
    pub(crate) database: Option<Database>,
}

/// Makes two tests of each claim about a [`Shell`], one for each engine. A claim that is not listed
/// is dead code, which the lints reject.
macro_rules! on_both_engines {
    ($($claim:ident),+ $(,)?) => {
        mod sqlite {
            $(#[test] fn $claim() { super::$claim(&super::Shell::new()); })+
        }
        mod postgres {
            $(#[test] fn $claim() { super::$claim(&super::Shell::on_server()); })+
        }
    };
}
pub(crate) use on_both_engines;

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Shell {
    /// Without a store yet.
    pub(crate) fn new() -> Shell {
        Shell { dir: tempfile::tempdir().unwrap(), database: None }
    }

    /// With an empty store on a server.
    pub(crate) fn on_server() -> Shell {
        let shell = Shell::before_migrating();
        shell.ok(&["migrate", "up"]);
        shell
    }

    /// With an empty database on a server.
    pub(crate) fn before_migrating() -> Shell {
        Shell { database: Some(Database::lend()), ..Shell::new() }
    }

    /// The database on the server.
    pub(crate) fn database(&self) -> &Database {
        self.database.as_ref().unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The binary, ready to run.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
        command.args(args).current_dir(self.dir.path()).env_remove("TENURE_DB");
        if let Some(database) = &self.database {
            command.env("TENURE_DB", database.url());
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, b"")
    }

    pub(crate) fn run_with(&self, args: &[&str], stdin: &[u8]) -> Ran {
        let mut child = self.command(args).stdin(Stdio::piped()).spawn().unwrap();
        // A command that refuses its usage does not read its input.
        let _ = child.stdin.take().unwrap().write_all(stdin);
        Ran::of(child.wait_with_output().unwrap())
    }

    /// Runs a command that must succeed, and returns its stdout.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let ran = self.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
        ran.stdout
    }

    /// Runs a command that must succeed, and returns its JSON.
    pub(crate) fn json(&self, args: &[&str]) -> serde_json::Value {
        let args = [args, &["--json"]].concat();
        serde_json::from_str(&self.ok(&args)).unwrap()
    }

    /// The default store of this directory, through the library.
    pub(crate) fn store(&self) -> Box<dyn Store> {
        match &self.database {
            None => {
                let options = sqlite::StoreOptions::default();
                Box::new(Sqlite::open(self.path("tenure.db"), &options).unwrap())
            }
            Some(database) => {
                let address = postgres::ServerAddress::parse(&database.url()).unwrap();
                Box::new(Postgres::open(&address, &postgres::PostgresOptions::default()).unwrap())
            }
        }
    }

    /// All jobs of the default store; none if there is no store.
    pub(crate) fn jobs(&self) -> Vec<JobRecord> {
        if self.database.is_none() && !self.path("tenure.db").exists() {
            return Vec::new();
        }
        self.store().jobs(&Filter::default(), 1_000).unwrap()
    }

    /// Enqueues a job and settles its only attempt with this outcome.
    pub(crate) fn settled(&self, outcome: Outcome) -> JobId {
        let id = JobId::parse(self.ok(&["enqueue", "settled"]).trim()).unwrap();
        settle_next(&mut *self.store(), outcome);
        id
    }
}

impl Ran {
    pub(crate) fn of(output: std::process::Output) -> Ran {
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Asserts the exit code and the message.
    #[track_caller]
    pub(crate) fn refused(&self, code: i32, text: &str) {
        assert!(self.code == code && self.stderr.contains(text), "not {code} {text:?}: {self:?}");
    }
}

/// Claims up to `n` jobs of the default queue.
pub(crate) fn claim(store: &mut dyn Store, n: usize) -> Vec<Attempt> {
    claim_for(store, n, Duration::from_secs(60))
}

/// Claims up to `n` jobs of the default queue for this long.
pub(crate) fn claim_for(store: &mut dyn Store, n: usize, lease: Duration) -> Vec<Attempt> {
    let ask = Claim::new(WorkerId::unique(), n, lease);
    store.claim(&ask).unwrap().attempts
}

/// Makes one ledger entry for an effect or step.
pub(crate) fn ledger(store: &mut dyn Store, fence: Fence, name: &str, act: Act) -> Answer {
    let name = tenure::engine::ledger::effect_name(name).unwrap();
    store.ledger(&[Entry { fence, name, act }]).unwrap().remove(0)
}

/// Claims the next job of the default queue and settles it.
pub(crate) fn settle_next(store: &mut dyn Store, outcome: Outcome) {
    let fence = claim(store, 1)[0].lease.fence();
    let settled = store.settle(&[Settlement::new(fence, outcome)]).unwrap();
    assert!(matches!(settled[0], Settled::Applied(_)), "{settled:?}");
}
