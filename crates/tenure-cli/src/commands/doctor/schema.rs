//! Whether the store's schema matches this binary.

use tenure::engine::store::migrate::{MigrationState, Status};

use super::Finding;

pub(super) fn look(status: &[Status]) -> Finding {
    let mut version = 0;
    for Status { version: number, name, standing } in status {
        match standing {
            MigrationState::Applied(_) => version = *number,
            MigrationState::Pending => {
                let found = format!("migration {number} ({name}) is pending");
                return Finding::ill("schema", found, "apply it with: tenure migrate up");
            }
            MigrationState::Differs(_) => {
                let found = format!("migration {number} ({name}) differs from this binary's");
                let next = "use the binary that this store was made with, or if this one is newer: \
                            tenure migrate up";
                return Finding::ill("schema", found, next);
            }
            MigrationState::Newer(_) | MigrationState::NeedsUpgrade(_) => {
                let found = format!("migration {number} ({name}) is newer than this binary");
                return Finding::ill("schema", found, "upgrade tenure here too");
            }
        }
    }
    Finding::well("schema", format!("version {version}, up to date"))
}
