//! Effects: at most once per key, and written by the job's holder only.

use super::{Mutant, patch};
use crate::verdict::Invariant;

pub(super) const MUTANTS: [Mutant; 3] = [
    Mutant {
        name: "ledger keyed by token",
        removed: "each attempt has a row of its own for the effect",
        broken: &[Invariant::I1],
        scope: "effects",
        sqlite: &[
            patch(
                "schema/0001_first",
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
                "schema/0001_first",
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
        removed: "the ledger takes any number of rows for one effect",
        broken: &[Invariant::I1],
        scope: "effects",
        sqlite: &[
            patch(
                "schema/0001_first",
                ",\n    PRIMARY KEY (job_id, effect)\n) STRICT, WITHOUT ROWID",
                "\n) STRICT",
            ),
            patch("ledger", "\nON CONFLICT (job_id, effect) DO NOTHING", ""),
        ],
        postgres: &[
            patch("schema/0001_first", ",\n    PRIMARY KEY (job_id, effect)", ""),
            patch("verbs/ledger", "\n        ON CONFLICT (job_id, effect) DO NOTHING", ""),
        ],
    },
    Mutant {
        name: "effect written before the fence",
        removed: "what an attempt says of its effect is written whether or not it holds the job",
        broken: &[Invariant::I7],
        scope: "effects",
        sqlite: &[patch("ledger", "token = :token AND state = 2", "token != -:token")],
        postgres: &[patch(
            "verbs/ledger",
            "\n        AND j.token = p_token AND j.state + 0 = 2;",
            ";",
        )],
    },
];
