//! Safeguards whose absence shows in the order of whole calls: the explorer looks for them.
//!
//! A mutant is a patch of an engine's SQL files. On SQLite a comparison that is taken out is replaced by one that is
//! always true, `x != -:x`, so that the statement keeps its parameters.

use tenure::drill::Patch;

use super::{Hunt, Level, Stock};
use crate::explorer::{Patched, SCOPES, Scope, explore_patched};
use crate::verdict::{Invariant, Violation};

/// A store with one safeguard missing.
#[derive(Debug, Clone, Copy)]
struct Mutant {
    name: &'static str,
    broken: &'static [Invariant],
    /// The scope in which it is looked for; all of them, in order, if none is named.
    scope: Option<&'static str>,
    sqlite: &'static [Patch],
    postgres: &'static [Patch],
}

/// All of them, of both engines.
pub(super) fn hunts() -> impl Iterator<Item = Hunt> {
    MUTANTS.iter().flat_map(|mutant| {
        [
            hunt(mutant, Stock::Sqlite, || on_sqlite(mutant).map(|(_, violation)| violation)),
            hunt(mutant, Stock::Postgres, || on_postgres(mutant)),
        ]
    })
}

fn hunt(
    mutant: &Mutant,
    stock: Stock,
    run: impl Fn() -> Option<Violation> + Send + Sync + 'static,
) -> Hunt {
    let Mutant { name, broken, .. } = *mutant;
    Hunt { mutant: name, removed: name, level: Level::Explorer, stock, broken, run: Box::new(run) }
}

/// What the mutant of this name takes out of SQLite's files.
pub(super) fn sqlite(name: &str) -> &'static [Patch] {
    let mutant = MUTANTS.iter().find(|mutant| mutant.name == name);
    mutant.expect("a mutant of the explorer's").sqlite
}

/// Goes through the scopes until something kills it.
fn on_sqlite(mutant: &Mutant) -> Option<(&'static Scope, Violation)> {
    let named = |scope: &&Scope| mutant.scope.is_none_or(|name| name == scope.name);
    let noticed = |scope| {
        let violation = explore_patched(scope, Patched::Sqlite(mutant.sqlite)).err()?;
        Some((scope, violation))
    };
    SCOPES.iter().filter(named).find_map(noticed)
}

/// A server takes its time, so there it is only looked for where the same one of SQLite was found.
fn on_postgres(mutant: &Mutant) -> Option<Violation> {
    let (scope, _) = on_sqlite(mutant)?;
    explore_patched(scope, Patched::Postgres(mutant.postgres)).err()
}

/// The fence on PostgreSQL, for completions and for the rest.
const BULK_FENCE: &str = "AND j.token = s.token AND j.state + 0 = 2\n            RETURNING s.n";
const FENCE: &str = "AND j.token = p_token AND j.state + 0 = 2\n       FOR UPDATE;";

const MUTANTS: [Mutant; 16] = [
    Mutant {
        name: "no token bump on claim",
        broken: &[Invariant::I2],
        scope: None,
        sqlite: &[patch(
            "claim",
            "token = max(token, :epoch << 40) + 1",
            "token = max(token, 1, :epoch << 40)",
        )],
        postgres: &[patch(
            "verbs/claim",
            "token = greatest(j.token, e << 40) + 1,",
            "token = greatest(j.token, 1, e << 40),",
        )],
    },
    Mutant {
        name: "fence without token",
        broken: &[Invariant::I7],
        scope: None,
        sqlite: &[patch(
            "settle",
            "token = :token AND state = 2",
            "token != -:token AND state = 2",
        )],
        postgres: &[
            patch("verbs/settle", BULK_FENCE, "AND j.state + 0 = 2\n            RETURNING s.n"),
            patch("verbs/settle", FENCE, "AND j.state + 0 = 2\n       FOR UPDATE;"),
        ],
    },
    Mutant {
        name: "fence without state",
        broken: &[Invariant::I4, Invariant::I10],
        scope: None,
        sqlite: &[patch("settle", "token = :token AND state = 2", "token = :token")],
        postgres: &[
            patch("verbs/settle", BULK_FENCE, "AND j.token = s.token\n            RETURNING s.n"),
            patch("verbs/settle", FENCE, "AND j.token = p_token\n       FOR UPDATE;"),
        ],
    },
    Mutant {
        name: "no fence",
        broken: &[Invariant::I7, Invariant::I10],
        scope: None,
        sqlite: &[patch("settle", "token = :token AND state = 2", "token != -:token")],
        postgres: &[
            patch("verbs/settle", BULK_FENCE, "RETURNING s.n"),
            patch("verbs/settle", FENCE, "FOR UPDATE;"),
        ],
    },
    Mutant {
        name: "lapse without re-check of the lease",
        broken: &[Invariant::I8],
        scope: None,
        sqlite: &[patch("lapse", "   AND lease_until <= :now", "   AND lease_until != -:now")],
        postgres: &[patch(
            "verbs/lapse",
            "AND j.lease_until + 0 <= t\n       FOR UPDATE",
            "FOR UPDATE",
        )],
    },
    Mutant {
        name: "lapse by id only",
        broken: &[Invariant::I8],
        scope: None,
        sqlite: &[
            patch("lapse", "token = :token AND state = 2", "token != -:token AND state = 2"),
            patch("lapse", "   AND lease_until <= :now", "   AND lease_until != -:now"),
        ],
        postgres: &[patch(
            "verbs/lapse",
            "AND j.token = p_token AND j.state + 0 = 2\n       AND j.lease_until + 0 <= t\n       FOR UPDATE",
            "AND j.state + 0 = 2\n       FOR UPDATE",
        )],
    },
    Mutant {
        name: "renewal unfenced",
        broken: &[Invariant::I7],
        scope: None,
        sqlite: &[patch("renew", "token = :token AND state = 2", "token != -:token AND state = 2")],
        postgres: &[patch(
            "verbs/renew",
            "AND j.token = s.token AND j.state + 0 = 2\n               FOR NO KEY UPDATE",
            "AND j.state + 0 = 2\n               FOR NO KEY UPDATE",
        )],
    },
    Mutant {
        name: "progress unfenced",
        broken: &[Invariant::I7],
        scope: Some("progress"),
        sqlite: &[patch(
            "progress",
            "token = :token AND state = 2",
            "token != -:token AND state = 2",
        )],
        postgres: &[patch(
            "verbs/progress",
            "AND j.token = s.token AND j.state + 0 = 2\n               FOR NO KEY UPDATE",
            "AND j.state + 0 = 2\n               FOR NO KEY UPDATE",
        )],
    },
    Mutant {
        name: "attempts counted at failure",
        broken: &[Invariant::I5],
        scope: None,
        sqlite: &[
            patch("claim", "attempt = attempt + 1,", "attempt = attempt,"),
            // A lapse changes the crashes, so this counts settlements only.
            patch("settle", "attempt = :attempt,", "attempt = :attempt + (crashes = :crashes),"),
        ],
        postgres: &[
            patch("verbs/claim", "attempt = j.attempt + 1,", "attempt = j.attempt,"),
            patch(
                "verbs/record",
                "attempt = p_attempt,",
                "attempt = p_attempt + (j.crashes = p_crashes)::int,",
            ),
        ],
    },
    Mutant {
        name: "repeated settlement not recognised",
        broken: &[Invariant::I10],
        scope: None,
        sqlite: &[patch("settle", "verb = :verb AND refused = 0", "verb = :verb AND refused = 9")],
        postgres: &[patch(
            "verbs/record",
            "l.verb = p_verb AND l.refused = false",
            "l.verb = p_verb AND l.refused IS NULL",
        )],
    },
    Mutant {
        name: "ledger keyed by token",
        broken: &[Invariant::I1],
        scope: Some("effects"),
        sqlite: &[
            patch(
                "schema/0002_ledger",
                "PRIMARY KEY (job_id, effect)",
                "PRIMARY KEY (job_id, effect, token)",
            ),
            patch(
                "ledger",
                "ON CONFLICT (job_id, effect) DO",
                "ON CONFLICT (job_id, effect, token) DO",
            ),
            patch(
                "ledger",
                "note\n  FROM tenure_ledger\n WHERE job_id = :job AND effect = :effect",
                "note\n  FROM tenure_ledger\n WHERE job_id = :job AND effect = :effect ORDER BY token DESC",
            ),
        ],
        postgres: &[
            patch(
                "schema/0002_ledger",
                "PRIMARY KEY (job_id, effect)",
                "PRIMARY KEY (job_id, effect, token)",
            ),
            patch(
                "verbs/ledger",
                "ON CONFLICT (job_id, effect) DO",
                "ON CONFLICT (job_id, effect, token) DO",
            ),
        ],
    },
    Mutant {
        name: "unique constraint dropped",
        broken: &[Invariant::I1],
        scope: Some("effects"),
        sqlite: &[
            patch(
                "schema/0002_ledger",
                ",\n    PRIMARY KEY (job_id, effect)\n) STRICT, WITHOUT ROWID",
                "\n) STRICT",
            ),
            patch("ledger", "\nON CONFLICT (job_id, effect) DO NOTHING", ""),
        ],
        postgres: &[
            patch("schema/0002_ledger", ",\n    PRIMARY KEY (job_id, effect)", ""),
            patch("verbs/ledger", "\n        ON CONFLICT (job_id, effect) DO NOTHING", ""),
        ],
    },
    Mutant {
        name: "effect written before the fence",
        broken: &[Invariant::I7],
        scope: Some("effects"),
        sqlite: &[patch("ledger", "token = :token AND state = 2", "token != -:token")],
        postgres: &[patch(
            "verbs/ledger",
            "AND j.token = p_token AND j.state + 0 = 2\n        FOR NO KEY UPDATE;",
            "FOR NO KEY UPDATE;",
        )],
    },
    Mutant {
        name: "epoch ignored",
        broken: &[Invariant::I2],
        scope: Some("failover"),
        sqlite: &[patch(
            "claim",
            "token = max(token, :epoch << 40) + 1",
            "token = token + 1 + 0 * :epoch",
        )],
        postgres: &[patch(
            "verbs/record",
            "ELSE tenure.raised(m.epoch, p_at) END",
            "ELSE m.epoch END",
        )],
    },
    Mutant {
        name: "freed lock without the server's start",
        broken: &[Invariant::I8],
        scope: Some("guard"),
        sqlite: &[patch(
            "lapse",
            "guarded AND under = :since\n",
            "guarded AND :since IS NOT NULL\n",
        )],
        postgres: &[patch(
            "verbs/lapse",
            "ELSE w.guarded AND w.under = s END",
            "ELSE w.guarded END",
        )],
    },
    Mutant {
        name: "no brake",
        broken: &[Invariant::I8],
        scope: Some("guard"),
        sqlite: &[
            patch("claim", "(leased_at >= :since", "(leased_at != -:since"),
            patch(
                "lapse",
                "   AND (leased_at >= :since\n        OR min(",
                "   AND (leased_at != -:since OR min(",
            ),
            patch(
                "lapse",
                "   AND (leased_at >= :since OR min(",
                "   AND (leased_at != -:since OR min(",
            ),
        ],
        postgres: &[patch("verbs/record", "WHEN leased_at >= server_start THEN", "WHEN true THEN")],
    },
];

const fn patch(file: &'static str, find: &'static str, replace: &'static str) -> Patch {
    Patch { file, find, replace }
}
