//! A store in a schema of a database server: PostgreSQL. Opening creates nothing there; `migrate
//! up` does.

use std::time::Duration;

use anyhow::Result;
use tenure::engine::inspect::DueJobs;
use tenure::engine::store::migrate::Status;
use tenure::engine::store::postgres::{
    Brought, Durability, Health, Holder, Migrations, Newer, OpenTransaction, Postgres,
    PostgresOptions, Rights, Roles, Rows, ServerAddress, ServerFacts, Terms,
};

use super::Removable;
use crate::commands::doctor::{Examined, Finding, allowed};
use crate::time::{now, relative, show};

pub(super) fn status(address: &ServerAddress) -> Result<Vec<Status>> {
    Ok(Migrations::connect(address)?.status()?)
}

pub(super) fn migrate_up(address: &ServerAddress, roles: Roles, newer: Newer) -> Result<Brought> {
    Ok(Migrations::connect(address)?.bring(roles, newer)?)
}

pub(super) fn grants(address: &ServerAddress) -> String {
    Migrations::grants(address)
}

pub(super) fn removable(address: &ServerAddress) -> Result<Removable> {
    let contents = Migrations::connect(address)?.contents()?;
    Ok(contents.map_or(Removable::Nothing, Removable::Store))
}

pub(super) fn migrate_down(address: &ServerAddress) -> Result<()> {
    Ok(Migrations::connect(address)?.down()?)
}

/// Sets whether commits wait for the disk, and returns the previous setting.
pub(super) fn set_durability(
    address: &ServerAddress,
    durability: Durability,
) -> Result<Durability> {
    let mut store = Postgres::open(address, &PostgresOptions::default())?;
    let was = store.terms()?.durability;
    store.set_durability(durability)?;
    Ok(was)
}

pub(super) fn due(address: &ServerAddress) -> Result<Option<Vec<DueJobs>>> {
    Ok(Postgres::open(address, &PostgresOptions::default())?.due()?)
}

pub(super) fn examine(address: &ServerAddress) -> Result<Examined> {
    let mut store = Postgres::open(address, &PostgresOptions::default())?;
    let facts = store.facts().clone();
    let mut findings = findings(&facts);
    findings.push(rights(&store.rights()?));
    match allowed(store.terms().map_err(Into::into))? {
        Some(terms) => findings.extend([commits(terms), failover(terms)]),
        None => findings.push(Finding::well("commits", "not looked at: this role may not")),
    }
    findings.push(match (facts.is_direct, facts.is_replica) {
        (false, _) => Finding::well(NOTIFICATIONS, "none through a pooler: workers look for work"),
        (_, true) => Finding::well(NOTIFICATIONS, "none on a replica, where nobody works"),
        _ => notifications(store.notify(address, PATIENCE)?),
    });
    let Health { oldest, hidden, jobs, ahead_ms, uncertain } = store.health()?;
    findings.push(transactions(oldest.as_ref(), hidden));
    findings.push(vacuum(jobs));
    findings.push(clock(ahead_ms, uncertain));
    Ok(Examined { findings, due: store.due()? })
}

/// What this role lacks for its purpose.
fn rights(rights: &Rights) -> Finding {
    let Rights { role, owner, .. } = rights;
    if rights.is_owner {
        return Finding::well("rights", "the owner's: this role may do everything");
    }
    let parts = rights.parts();
    let lacks = parts.iter().find(|part| !rights.missing(**part).is_empty());
    if let Some(part) = lacks {
        let missing = rights.missing(*part).join(", ");
        let found = format!("as a {}, the role {role} may not call {missing}", part.name());
        return Finding::ill("rights", found, format!("have {owner} run: {}", rights.grant(*part)));
    }
    let names: Vec<_> = parts.iter().map(|part| part.name()).collect();
    if names.is_empty() {
        let found =
            format!("the role {role} may do nothing that a worker, an enqueuer or a reader does");
        let next = format!("have {owner} give it the rights that `tenure migrate up` prints");
        return Finding::ill("rights", found, next);
    }
    Finding::well("rights", format!("the role {role} has all of {}", names.join(" and ")))
}

const NOTIFICATIONS: &str = "notifications";
/// A notification should arrive within this time.
const PATIENCE: Duration = Duration::from_secs(2);
/// A transaction may be open for this long.
const LONG: Duration = Duration::from_secs(5 * 60);
/// This many dead rows do not matter.
const FEW: i64 = 10_000;
/// Clocks may differ by this much.
const DRIFT: Duration = Duration::from_secs(1);

fn notifications(took: Option<Duration>) -> Finding {
    match took {
        Some(took) => {
            let took = show(took.max(Duration::from_millis(1)));
            Finding::well(NOTIFICATIONS, format!("arrive within {took}"))
        }
        None => {
            let found = format!("none arrived within {}", show(PATIENCE));
            let next =
                "look for what is between here and the server; workers look for work meanwhile";
            Finding::ill(NOTIFICATIONS, found, next)
        }
    }
}

fn transactions(oldest: Option<&OpenTransaction>, hidden: u64) -> Finding {
    let hidden = match hidden {
        0 => String::new(),
        n => format!(" (this role cannot look into {n} sessions of others)"),
    };
    let Some(OpenTransaction { holder, age }) = oldest else {
        return Finding::well("transactions", format!("none is open for long{hidden}"));
    };
    let open = format!("the oldest has been open for {}", show(*age));
    if *age <= LONG {
        return Finding::well("transactions", format!("{open}{hidden}"));
    }
    let (who, end) = match holder {
        Holder::Session { pid, name, state } => (
            format!("by {name} (process {pid}, {state})"),
            format!("SELECT pg_terminate_backend({pid})"),
        ),
        Holder::Prepared { name } => {
            (format!("prepared as {name}"), format!("ROLLBACK PREPARED '{name}'"))
        }
    };
    let next =
        format!("until it ends, dead rows stay and claims get slower; if nobody needs it: {end}");
    Finding::ill("transactions", format!("{open}, {who}{hidden}"), next)
}

fn vacuum(jobs: Option<Rows>) -> Finding {
    let Some(Rows { live, dead, vacuumed_at }) = jobs else {
        return Finding::well("vacuum", "the server has counted no rows yet");
    };
    let last = match vacuumed_at {
        Some(at) => format!("autovacuum came {}", relative(at, now())),
        None => "autovacuum has not come yet".to_owned(),
    };
    let found = format!("{dead} dead rows beside {live} live ones in jobs, {last}");
    if dead > FEW && dead > live {
        let next =
            "end old transactions, and see that autovacuum is on; at once: VACUUM the table jobs";
        return Finding::ill("vacuum", found, next);
    }
    Finding::well("vacuum", found)
}

fn clock(ahead_ms: i64, uncertain: Duration) -> Finding {
    let drift = Duration::from_millis(ahead_ms.unsigned_abs());
    let side = if ahead_ms < 0 { "behind" } else { "ahead of" };
    let surely = drift.saturating_sub(uncertain);
    if surely > DRIFT {
        let found = format!("the server's is {} {side} this machine's", show(drift));
        let next =
            "set one of them, for those who read logs: for jobs only the server's clock counts";
        return Finding::ill("clock", found, next);
    }
    Finding::well("clock", "the server's, which alone counts, and this machine's agree")
}

fn findings(facts: &ServerFacts) -> Vec<Finding> {
    // Nothing is wrong with a pooler, but an operator who wonders why a worker wakes slowly should
    // know.
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
    vec![Finding::well("postgresql", &facts.version), Finding::well("session", session), writes]
}

/// What Tenure notices of a failover or a restored dump. Always well, because nothing can be
/// repaired here; but those who run the server should know it.
fn failover(Terms { tells_timeline, tells_system, .. }: Terms) -> Finding {
    let found = match (tells_timeline, tells_system) {
        (true, true) => "noticed, and so is a restored dump",
        (true, false) => {
            "noticed, but not a dump from another server, which does not tell its system identifier; after a restore: \
             tenure doctor --raise-epoch"
        }
        (false, true) => {
            "not noticed: the server does not tell its WAL timeline; after a failover that may have lost something: \
             tenure doctor --raise-epoch"
        }
        (false, false) => {
            "not noticed, nor is a dump from another server: this one tells neither its WAL timeline nor its system \
             identifier; after either: tenure doctor --raise-epoch"
        }
    };
    Finding::well("failover", found)
}

fn commits(Terms { durability, is_synced, .. }: Terms) -> Finding {
    match (durability, is_synced) {
        (Durability::On, true) => Finding::well("commits", "on disk before they are acknowledged"),
        (Durability::On, false) => {
            let next = "set fsync to on, or a power cut loses jobs";
            Finding::ill("commits", "acknowledged before they are on disk", next)
        }
        (Durability::Off, true) => {
            let found = "on disk before they are acknowledged, unless a session or role says otherwise, as this \
                         installation lets them";
            Finding::well("commits", found)
        }
        (Durability::Off, false) => {
            let found = "acknowledged before they are on disk, as this installation lets sessions and roles say";
            let next = "a crash of the server loses jobs and may issue a token twice; if that must not be: tenure \
                        doctor --durability on, with fsync on";
            Finding::ill("commits", found, next)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(change: impl FnOnce(&mut ServerFacts)) -> Vec<&'static str> {
        let mut facts = ServerFacts {
            version: "15.6".into(),
            version_number: 150_006,
            encoding: "UTF8".into(),
            is_replica: false,
            is_read_only: false,
            is_direct: true,
        };
        change(&mut facts);
        findings(&facts).iter().filter(|finding| !finding.ok).map(|finding| finding.check).collect()
    }

    #[test]
    fn what_the_promises_rest_on_is_looked_at() {
        assert_eq!(verdicts(|_| {}), [""; 0]);
        assert_eq!(verdicts(|facts| facts.is_direct = false), [""; 0]);
        assert_eq!(verdicts(|facts| facts.is_read_only = true), ["writes"]);
        assert_eq!(verdicts(|facts| facts.is_replica = true), ["writes"]);
    }

    #[test]
    fn commits_that_do_not_wait_for_the_disk_are_something_to_do() {
        for durability in [Durability::On, Durability::Off] {
            let terms = |is_synced| Terms {
                durability,
                is_synced,
                tells_timeline: true,
                tells_system: true,
            };
            assert!(commits(terms(true)).ok && !commits(terms(false)).ok);
            assert!(failover(terms(true)).found.starts_with("noticed"));
            let blind = failover(Terms { tells_timeline: false, ..terms(true) });
            assert!(blind.ok && blind.found.contains("--raise-epoch"), "{blind:?}");
        }
    }

    fn oldest(age: Duration, holder: Holder) -> Finding {
        transactions(Some(&OpenTransaction { holder, age }), 0)
    }

    #[test]
    fn a_transaction_that_is_open_for_long_is_named_with_what_ends_it() {
        let state = "idle in transaction".to_owned();
        let session = || Holder::Session { pid: 7, name: "app psql".into(), state: state.clone() };
        assert!(transactions(None, 2).found.contains("cannot look into 2 sessions"));
        assert!(oldest(LONG, session()).ok);
        let minute = Duration::from_secs(60);
        let old = format!("{:?}", oldest(LONG + minute, session()));
        assert!(old.contains("open for 6m, by app psql (process 7, idle in transaction)"), "{old}");
        assert!(old.contains("pg_terminate_backend(7)"), "{old}");
        let prepared = oldest(LONG + minute, Holder::Prepared { name: "x".into() });
        assert!(format!("{prepared:?}").contains("ROLLBACK PREPARED 'x'"));
    }

    #[test]
    fn dead_rows_count_when_they_are_many_and_more_than_the_living() {
        let is_well = |live, dead| vacuum(Some(Rows { live, dead, vacuumed_at: None })).ok;
        assert!(is_well(0, 10_000) && is_well(20_000, 20_000) && vacuum(None).ok);
        assert!(!is_well(10_000, 10_001));
    }

    #[test]
    fn clocks_may_differ_by_a_second_and_what_the_way_takes() {
        let ms = Duration::from_millis;
        assert!(clock(1_000, ms(0)).ok && clock(-1_400, ms(400)).ok);
        assert!(clock(1_001, ms(0)).found.contains("1s ahead of this machine's"));
        assert!(clock(-5_000, ms(400)).found.contains("5s behind this machine's"));
        assert!(!clock(1_401, ms(400)).ok);
    }
}
