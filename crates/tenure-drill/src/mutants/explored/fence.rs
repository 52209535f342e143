//! Which calls may settle, renew and report: the token, the state, and the correct answer to a late
//! call.

use super::{Mutant, patch};
use crate::verdict::Invariant;

/// The fence of settlements on PostgreSQL: for the completions of a batch, and for other outcomes.
const BULK_FENCE: &str = "AND j.token = s.token AND j.state + 0 = 2\n            RETURNING s.n";
const FENCE: &str = "AND j.token = p_token AND j.state + 0 = 2; IF NOT FOUND THEN";

pub(super) const MUTANTS: [Mutant; 11] = [
    Mutant {
        name: "no token bump on claim",
        removed: "a claim leaves the job's token as it is",
        broken: &[Invariant::I2],
        scope: "lease",
        sqlite: &[patch(
            "claim",
            "token = max(token, :epoch << 40) + 1",
            "token = max(token, 1, :epoch << 40)",
        )],
        postgres: &[patch(
            "verbs/claim",
            "token = greatest(j.token, e) + 1,",
            "token = greatest(j.token, 1, e),",
        )],
    },
    Mutant {
        name: "fence without token",
        removed: "a settlement needs a running job, whatever its token",
        broken: &[Invariant::I7],
        scope: "lease",
        sqlite: &[patch(
            "record",
            "token = :token AND state = 2",
            "token != -:token AND state = 2",
        )],
        postgres: &[
            patch("verbs/settle", BULK_FENCE, "AND j.state + 0 = 2\n            RETURNING s.n"),
            patch("verbs/settle", FENCE, "AND j.state + 0 = 2; IF NOT FOUND THEN"),
        ],
    },
    Mutant {
        name: "fence without state",
        removed: "a settlement needs the job's token, whether or not the job is running",
        broken: &[Invariant::I4, Invariant::I10],
        scope: "settle",
        sqlite: &[patch("record", "token = :token AND state = 2", "token = :token")],
        postgres: &[
            patch("verbs/settle", BULK_FENCE, "AND j.token = s.token\n            RETURNING s.n"),
            patch("verbs/settle", FENCE, "AND j.token = p_token; IF NOT FOUND THEN"),
        ],
    },
    Mutant {
        name: "no fence",
        removed: "a settlement needs nothing but the job's id",
        broken: &[Invariant::I7],
        scope: "lease",
        sqlite: &[patch("record", "token = :token AND state = 2", "token != -:token")],
        postgres: &[
            patch("verbs/settle", BULK_FENCE, "RETURNING s.n"),
            patch("verbs/settle", FENCE, "; IF NOT FOUND THEN"),
        ],
    },
    Mutant {
        name: "row count ignored",
        removed: "a failure that changed no row is answered as if it had been heard",
        broken: &[Invariant::I7, Invariant::I10],
        scope: "lease",
        sqlite: &[patch(
            "settle",
            "token = :token AND verb = :verb AND refused = 0",
            "token = :token AND verb = :verb AND refused = 0\nUNION ALL SELECT 0 WHERE :verb = 'retry'",
        )],
        postgres: &[patch(
            "verbs/settle",
            "became := tenure.heard(p_job, p_token, p_verb);",
            "became := coalesce(tenure.heard(p_job, p_token, p_verb), CASE WHEN p_verb = 'retry' THEN 0 END);",
        )],
    },
    Mutant {
        name: "failure unfenced",
        removed: "who says that a job failed need not hold it",
        broken: &[Invariant::I7],
        scope: "lease",
        sqlite: &[],
        postgres: &[patch(
            "verbs/settle",
            FENCE,
            " AND (j.token = p_token OR p_verb IN ('retry', 'bury')) AND j.state + 0 = 2;
                IF NOT FOUND THEN",
        )],
    },
    Mutant {
        name: "completion not repeatable",
        removed: "a completed job does not tell who completed it",
        broken: &[Invariant::I10],
        scope: "settle",
        sqlite: &[patch(
            "settle",
            "SELECT token, state FROM tenure_done WHERE id = :job",
            "SELECT token + 1, state FROM tenure_done WHERE id = :job",
        )],
        postgres: &[patch(
            "verbs/settle",
            "CASE WHEN state = 4 AND token = p_token THEN 4 END",
            "NULL",
        )],
    },
    Mutant {
        name: "repeated settlement not recognised",
        removed: "the timeline is not asked whether a settlement was heard before",
        broken: &[Invariant::I10],
        scope: "settle",
        sqlite: &[patch(
            "settle",
            "token = :token AND verb = :verb AND refused = 0",
            "token = :token AND verb = :verb AND refused = 9",
        )],
        postgres: &[patch(
            "verbs/record",
            "l.token = p_token AND l.verb = p_verb AND l.refused = false",
            "l.token = p_token AND l.verb = p_verb AND l.refused IS NULL",
        )],
    },
    Mutant {
        name: "renewal unfenced",
        removed: "a renewal extends whatever lease the job has",
        broken: &[Invariant::I7],
        scope: "lease",
        sqlite: &[patch("renew", "token = :token AND state = 2", "token != -:token AND state = 2")],
        postgres: &[patch(
            "verbs/renew",
            "AND j.token = s.token AND j.state + 0 = 2\n               FOR NO KEY UPDATE",
            "AND j.state + 0 = 2\n               FOR NO KEY UPDATE",
        )],
    },
    Mutant {
        name: "progress unfenced",
        removed: "anybody tells how far a running job is",
        broken: &[Invariant::I7],
        scope: "progress",
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
        name: "epoch ignored",
        removed: "a database that has gone back goes on with the tokens it remembers",
        broken: &[Invariant::I2],
        scope: "failover",
        sqlite: &[patch(
            "claim",
            "token = max(token, :epoch << 40) + 1",
            "token = token + 1 + 0 * :epoch",
        )],
        postgres: &[patch(
            "base/epochs",
            "ELSE (tenure.raised(m.epoch, p_at) << 40) + tenure.salt() END",
            "ELSE m.floor END",
        )],
    },
];
