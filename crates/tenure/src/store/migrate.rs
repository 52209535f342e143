//! The schema and its versions, the same idea on every engine.
//!
//! Migrations are numbered files in the binary. A store records which were applied, with their
//! checksums, and for each the oldest binary that can still work with it. So old and new binaries
//! can share a store while an upgrade rolls out.

use sha2::{Digest, Sha256};

use crate::clock::Timestamp;

/// The level of this binary: it refuses a store that demands a higher one (`min_client`). Both
/// engines share this number. It rises only with a migration that older binaries cannot work with.
pub const CLIENT: u32 = 1;

/// One step of the schema.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// Its number; they are applied in order.
    pub version: u32,
    /// What it brings.
    pub name: &'static str,
    /// The oldest [`CLIENT`] that can work with a store that has it.
    pub min_client: u32,
    /// The statements.
    pub sql: &'static str,
}

impl Migration {
    /// The checksum of its statements. It shows whether an applied migration has the same text as
    /// this binary's.
    pub fn checksum(&self) -> String {
        checksum(self.sql)
    }
}

/// A short hash of a text.
pub(crate) fn checksum(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A migration and where a store stands with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Its number.
    pub version: u32,
    /// What it brings.
    pub name: String,
    /// Where the store stands.
    pub standing: MigrationState,
}

/// Where a store stands with one migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationState {
    /// Applied then.
    Applied(Timestamp),
    /// Applied then, but from another text than this binary has.
    Differs(Timestamp),
    /// Applied then, by a newer binary; this one can still work with the store.
    Newer(Timestamp),
    /// Applied then, by a newer binary; this one is too old for the store.
    NeedsUpgrade(Timestamp),
    /// Not applied yet.
    Pending,
}

impl MigrationState {
    /// The name, as every layer spells it.
    pub fn name(self) -> &'static str {
        match self {
            MigrationState::Applied(_) => "applied",
            MigrationState::Differs(_) => "differs",
            MigrationState::Newer(_) => "newer",
            MigrationState::NeedsUpgrade(_) => "needs_upgrade",
            MigrationState::Pending => "pending",
        }
    }

    /// When it was applied, if it was.
    pub fn at(self) -> Option<Timestamp> {
        match self {
            MigrationState::Applied(at)
            | MigrationState::Differs(at)
            | MigrationState::Newer(at)
            | MigrationState::NeedsUpgrade(at) => Some(at),
            MigrationState::Pending => None,
        }
    }
}

/// A migration as a store remembers it.
#[derive(Debug, Clone)]
pub(crate) struct Applied {
    pub(crate) version: u32,
    pub(crate) name: String,
    pub(crate) checksum: String,
    pub(crate) min_client: u32,
    pub(crate) applied_at: Timestamp,
}

/// What is wrong with a store from before the first version.
pub(crate) const FROM_BEFORE: &str = "it was made by a tenure from before the first version of the schema, and no migration leads on from there";

/// Whether a store was made before the first version of the schema. Such a store records its first
/// migration under the name `kernel`.
pub(crate) fn is_from_before(applied: &[Applied]) -> bool {
    applied.iter().any(|applied| applied.version == 1 && applied.name == "kernel")
}

/// Why something is not done, and what to do instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) problem: String,
    pub(crate) next: String,
}

impl Refusal {
    pub(crate) fn new(problem: impl Into<String>, next: impl Into<String>) -> Refusal {
        Refusal { problem: problem.into(), next: next.into() }
    }
}

/// Refuses a store whose tables this binary does not know: they need a newer binary, or they were
/// made from another text. Otherwise a statement could fail later on a missing column, or do the
/// wrong thing without an error.
pub(crate) fn check_known(migrations: &[Migration], applied: &[Applied]) -> Result<(), Refusal> {
    let newest = applied.iter().max_by_key(|applied| applied.min_client);
    if let Some(Applied { version, name, .. }) = newest.filter(|newest| newest.min_client > CLIENT)
    {
        return Err(Refusal::new(
            format!("its migration {version} ({name}) needs a newer tenure than this one"),
            "upgrade this binary; nothing was changed",
        ));
    }
    let differs = |status: &Status| matches!(status.standing, MigrationState::Differs(_));
    match compare(migrations, applied).into_iter().find(differs) {
        None => Ok(()),
        Some(Status { version, name, .. }) => Err(Refusal::new(
            format!("its migration {version} ({name}) differs from this binary's"),
            "use the binary that this store was made with; nothing was changed",
        )),
    }
}

/// Compares what a store remembers with what this binary has.
pub(crate) fn compare(migrations: &[Migration], applied: &[Applied]) -> Vec<Status> {
    let known = migrations.iter().map(|migration| {
        let standing = match applied.iter().find(|applied| applied.version == migration.version) {
            None => MigrationState::Pending,
            Some(applied) if applied.checksum == migration.checksum() => {
                MigrationState::Applied(applied.applied_at)
            }
            Some(applied) => MigrationState::Differs(applied.applied_at),
        };
        Status { version: migration.version, name: migration.name.to_owned(), standing }
    });
    let newest = migrations.last().map_or(0, |migration| migration.version);
    let newer = applied.iter().filter(|applied| applied.version > newest).map(|applied| Status {
        version: applied.version,
        name: applied.name.clone(),
        standing: if applied.min_client > CLIENT {
            MigrationState::NeedsUpgrade(applied.applied_at)
        } else {
            MigrationState::Newer(applied.applied_at)
        },
    });
    known.chain(newer).collect()
}
