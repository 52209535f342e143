//! The table of peers: what each is, where its jobs are, and what a reader must know before comparing
//! figures. `tenure bench peers --list` prints it, and a test compares it with docs/benchmarks.md.

use serde::Serialize;

/// One other queue, and its adapter.
pub struct Peer {
    /// Its name in its registry, for `--only`.
    pub name: &'static str,
    /// The language of its adapter.
    pub language: Language,
    /// Where it keeps its jobs.
    pub store: Store,
    /// What it leaves out.
    pub marks: &'static [Mark],
    /// What becomes of a job that has succeeded.
    pub finished: &'static str,
    /// What is checked before a completion is accepted.
    pub fence: &'static str,
    /// When a job that was enqueued survives a crash of the server.
    pub durability: &'static str,
    /// How it is set up.
    pub settings: &'static str,
    /// The number of jobs of a large measure is divided by this: more than 1 for a slow peer.
    pub(crate) part: u64,
    /// The package whose version counts, as its manifest names it.
    pub(crate) package: &'static str,
    /// The name of the file with the exact versions, and its text.
    pub(crate) manifest: (&'static str, &'static str),
    /// The text of the adapter.
    pub(crate) program: &'static str,
}

/// In what an adapter is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Language {
    /// Installed by npm.
    Node,
    /// Installed by pip.
    Python,
    /// Built by cargo.
    Rust,
}

impl Language {
    /// The directory of its adapters.
    pub(super) fn directory(self) -> &'static str {
        match self {
            Language::Node => "node",
            Language::Python => "python",
            Language::Rust => "rust",
        }
    }

    /// What its adapters share: the name of the file, and its text.
    pub(super) fn harness(self) -> (&'static str, &'static str) {
        match self {
            Language::Node => ("harness.mjs", include_str!("../../peers/node/harness.mjs")),
            Language::Python => ("harness.py", include_str!("../../peers/python/harness.py")),
            Language::Rust => ("harness.rs", include_str!("../../peers/rust/harness.rs")),
        }
    }

    /// The name of an adapter's program.
    pub(super) fn program(self) -> &'static str {
        match self {
            Language::Node => "peer.mjs",
            Language::Python => "peer.py",
            Language::Rust => "main.rs",
        }
    }
}

/// Where jobs are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Store {
    /// The same server as Tenure's, in a database of the peer's own.
    Postgres,
    /// A file.
    Sqlite,
    /// A server of the peer's own.
    Redis {
        /// The lines of its configuration.
        settings: &'static [(&'static str, &'static str)],
    },
}

impl Store {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Store::Postgres => "PostgreSQL",
            Store::Sqlite => "SQLite",
            Store::Redis { .. } => "Redis",
        }
    }
}

/// What a peer leaves out that Tenure does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// The finished job is gone.
    Deletes,
    /// A worker that was taken for dead can complete a job that another one runs by now.
    Unfenced,
    /// A crash of the server may lose jobs that were enqueued.
    Volatile,
}

impl Mark {
    /// All of them, in the order of the legend.
    pub const ALL: [Mark; 3] = [Mark::Deletes, Mark::Unfenced, Mark::Volatile];

    /// The letter in the table.
    pub fn letter(self) -> &'static str {
        match self {
            Mark::Deletes => "D",
            Mark::Unfenced => "F",
            Mark::Volatile => "P",
        }
    }

    /// What the letter means.
    pub fn legend(self) -> &'static str {
        match self {
            Mark::Deletes => "deletes finished jobs",
            Mark::Unfenced => "no fence: a late worker may complete a job that another one runs",
            Mark::Volatile => "not persistent: a crash of the server may lose enqueued jobs",
        }
    }
}

/// As BullMQ's documentation recommends for production: Redis writes its log to the disk once a
/// second.
const EVERY_SECOND: &[(&str, &str)] =
    &[("appendonly", "yes"), ("appendfsync", "everysec"), ("maxmemory-policy", "noeviction")];

/// In memory alone.
const IN_MEMORY: &[(&str, &str)] = &[("appendonly", "no"), ("save", "\"\"")];

const COMMIT: &str = "each enqueue is a commit";

/// The files of an adapter.
macro_rules! files {
    ($directory:literal, $manifest:literal) => {
        ($manifest, include_str!(concat!("../../peers/", $directory, "/", $manifest)))
    };
}

/// All peers, in the order in which they run.
pub static PEERS: &[Peer] = &[
    Peer {
        name: "graphile-worker",
        language: Language::Node,
        store: Store::Postgres,
        marks: &[Mark::Deletes, Mark::Unfenced],
        finished: "deleted",
        fence: "none on success",
        durability: COMMIT,
        settings: "24 jobs at a time, local queue of 500, completions in batches",
        part: 1,
        package: "graphile-worker",
        manifest: files!("node/graphile-worker", "package.json"),
        program: include_str!("../../peers/node/graphile-worker/peer.mjs"),
    },
    Peer {
        name: "pg-boss",
        language: Language::Node,
        store: Store::Postgres,
        marks: &[],
        finished: "kept for 7 days",
        fence: "the number of the attempt",
        durability: COMMIT,
        settings: "batches of 1,000, the next at once after a full one, partition, notify",
        part: 1,
        package: "pg-boss",
        manifest: files!("node/pg-boss", "package.json"),
        program: include_str!("../../peers/node/pg-boss/peer.mjs"),
    },
    Peer {
        name: "bullmq",
        language: Language::Node,
        store: Store::Redis { settings: EVERY_SECOND },
        marks: &[Mark::Volatile],
        finished: "kept",
        fence: "the token of the lock",
        durability: "the log is flushed once a second",
        settings: "concurrency 100; Redis with appendonly yes, appendfsync everysec",
        part: 1,
        package: "bullmq",
        manifest: files!("node/bullmq", "package.json"),
        program: include_str!("../../peers/node/bullmq/peer.mjs"),
    },
    Peer {
        name: "procrastinate",
        language: Language::Python,
        store: Store::Postgres,
        marks: &[Mark::Unfenced],
        finished: "kept",
        fence: "the state only",
        durability: COMMIT,
        settings: "concurrency 20, asynchronous, listens",
        part: 10,
        package: "procrastinate",
        manifest: files!("python/procrastinate", "requirements.txt"),
        program: include_str!("../../peers/python/procrastinate/peer.py"),
    },
    Peer {
        name: "pgqueuer",
        language: Language::Python,
        store: Store::Postgres,
        marks: &[Mark::Deletes, Mark::Unfenced],
        finished: "deleted; a line in a log without the payload",
        fence: "none",
        durability: COMMIT,
        settings: "batches of 1,000, asyncpg, uvloop",
        part: 1,
        package: "pgqueuer",
        manifest: files!("python/pgqueuer", "requirements.txt"),
        program: include_str!("../../peers/python/pgqueuer/peer.py"),
    },
    Peer {
        name: "celery",
        language: Language::Python,
        store: Store::Redis { settings: IN_MEMORY },
        marks: &[Mark::Deletes, Mark::Unfenced, Mark::Volatile],
        finished: "deleted before it runs",
        fence: "none: a job whose worker dies is lost",
        durability: "in memory",
        settings: "prefork, a process for each core, prefetch 150, no results; Redis in memory",
        part: 10,
        package: "celery",
        manifest: files!("python/celery", "requirements.txt"),
        program: include_str!("../../peers/python/celery/peer.py"),
    },
    Peer {
        name: "huey",
        language: Language::Python,
        store: Store::Sqlite,
        marks: &[Mark::Deletes, Mark::Unfenced],
        finished: "deleted before it runs",
        fence: "none: a job whose worker dies is lost",
        durability: "each enqueue is a commit, WAL, synchronous FULL",
        settings: "SqliteHuey, 1 worker thread, results off",
        part: 1,
        package: "huey",
        manifest: files!("python/huey", "requirements.txt"),
        program: include_str!("../../peers/python/huey/peer.py"),
    },
    Peer {
        name: "graphile_worker",
        language: Language::Rust,
        store: Store::Postgres,
        marks: &[Mark::Deletes, Mark::Unfenced],
        finished: "deleted",
        fence: "none on success",
        durability: COMMIT,
        settings: "concurrency 100, local queue of 1,000, completions in batches",
        part: 1,
        package: "graphile_worker",
        manifest: files!("rust/graphile_worker", "Cargo.toml"),
        program: include_str!("../../peers/rust/graphile_worker/main.rs"),
    },
    Peer {
        name: "apalis",
        language: Language::Rust,
        store: Store::Postgres,
        marks: &[Mark::Unfenced],
        finished: "kept",
        fence: "the name of the worker, which can be used again",
        durability: COMMIT,
        settings: "apalis-postgres, batches of 1,000, concurrency 1,000, pubsub",
        part: 1,
        package: "apalis-postgres",
        manifest: files!("rust/apalis", "Cargo.toml"),
        program: include_str!("../../peers/rust/apalis/main.rs"),
    },
    Peer {
        name: "awa",
        language: Language::Rust,
        store: Store::Postgres,
        marks: &[],
        finished: "kept",
        fence: "the claim",
        durability: COMMIT,
        settings: "1,000 workers, jobs without deadline, bulk by COPY",
        part: 1,
        package: "awa",
        manifest: files!("rust/awa", "Cargo.toml"),
        program: include_str!("../../peers/rust/awa/main.rs"),
    },
];

impl Peer {
    /// The version that its manifest names.
    pub fn version(&self) -> &'static str {
        pinned(self.language, self.manifest.1, self.package).unwrap_or("?")
    }

    /// The letters of its marks.
    pub fn letters(&self) -> String {
        letters(self.marks)
    }
}

/// The letters of marks, for a table.
pub(super) fn letters(marks: &[Mark]) -> String {
    marks.iter().map(|mark| mark.letter()).collect::<Vec<_>>().join(" ")
}

/// The exact version of a package in a manifest.
fn pinned<'a>(language: Language, manifest: &'a str, package: &str) -> Option<&'a str> {
    versions(language, manifest).find(|(name, _)| *name == package).map(|(_, version)| version)
}

/// The packages that a manifest names, each with its version.
pub(super) fn versions(language: Language, manifest: &str) -> impl Iterator<Item = (&str, &str)> {
    manifest.lines().filter_map(move |line| match language {
        Language::Node => {
            let (name, version) = line.trim().trim_end_matches(',').split_once("\": \"")?;
            let (name, version) = (name.strip_prefix('"')?, version.strip_suffix('"')?);
            version
                .starts_with(|c: char| c.is_ascii_digit() || "^~*<>=".contains(c))
                .then_some((name, version))
        }
        Language::Python => {
            let (name, version) = line.split_once("==")?;
            Some((name.split('[').next()?, version))
        }
        Language::Rust => {
            let (name, rest) = line.split_once(" = ")?;
            let version = rest.split('"').find(|part| part.starts_with('='))?;
            Some((name, &version[1..]))
        }
    })
}
