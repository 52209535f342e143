//! A store in a schema of a database server: PostgreSQL. Opening makes nothing there; `migrate up` does.

use anyhow::Result;
use tenure::store::Store;
use tenure::store::migrate::Status;
use tenure::store::postgres::{Address, Facts, Migrations, Options, Postgres, Roles};

use super::Removable;
use crate::commands::doctor::Finding;

pub(super) fn open(address: &Address) -> Result<Box<dyn Store>> {
    Ok(Box::new(Postgres::open(address, &Options::default())?))
}

pub(super) fn status(address: &Address) -> Result<Vec<Status>> {
    Ok(Migrations::connect(address)?.status()?)
}

pub(super) fn migrate_up(address: &Address, roles: Roles) -> Result<()> {
    Ok(Migrations::connect(address)?.up(roles)?)
}

pub(super) fn grants(address: &Address) -> String {
    Migrations::grants(address)
}

pub(super) fn removable(address: &Address) -> Result<Removable> {
    let contents = Migrations::connect(address)?.contents()?;
    Ok(contents.map_or(Removable::Nothing, Removable::Store))
}

pub(super) fn migrate_down(address: &Address) -> Result<()> {
    Ok(Migrations::connect(address)?.down()?)
}

pub(super) fn examine(address: &Address) -> Result<Vec<Finding>> {
    let store = Postgres::open(address, &Options::default())?;
    Ok(findings(store.facts()))
}

fn findings(facts: &Facts) -> Vec<Finding> {
    // Nothing is wrong with a pooler, but who wonders why a worker is slow to wake should know.
    let session = if facts.is_direct {
        "direct: workers are woken, and timeouts hold"
    } else {
        "through a pooler: workers look for work instead of being woken, and timeouts are the pool's"
    };
    let writes = if facts.is_replica {
        let next = "use the address of the primary, or add target_session_attrs=read-write to it";
        Finding::ill("writes", "refused: the server is a replica", next)
    } else if facts.is_read_only {
        let next = "look for default_transaction_read_only in the settings of role and database";
        Finding::ill("writes", "refused: the session is read-only", next)
    } else {
        Finding::well("writes", "possible")
    };
    let commits = if facts.is_synced {
        Finding::well("commits", "on disk before they are acknowledged")
    } else {
        let next = "set fsync and synchronous_commit to on, or a power cut loses jobs";
        Finding::ill("commits", "acknowledged before they are on disk", next)
    };
    vec![
        Finding::well("postgresql", &facts.version),
        Finding::well("session", session),
        writes,
        commits,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(change: impl FnOnce(&mut Facts)) -> Vec<&'static str> {
        let mut facts = Facts {
            version: "15.6".into(),
            version_number: 150_006,
            encoding: "UTF8".into(),
            is_replica: false,
            is_read_only: false,
            is_synced: true,
            is_direct: true,
        };
        change(&mut facts);
        findings(&facts).iter().filter(|finding| !finding.ok).map(|finding| finding.check).collect()
    }

    #[test]
    fn what_the_promises_rest_on_is_looked_at() {
        assert_eq!(verdicts(|_| {}), [""; 0]);
        assert_eq!(verdicts(|facts| facts.is_direct = false), [""; 0]);
        assert_eq!(verdicts(|facts| facts.is_synced = false), ["commits"]);
        assert_eq!(verdicts(|facts| facts.is_read_only = true), ["writes"]);
        assert_eq!(verdicts(|facts| facts.is_replica = true), ["writes"]);
    }
}
