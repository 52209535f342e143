//! When a job may be claimed, how many at a time and how often, and what its old tokens may still
//! do.

use super::{Mutant, patch};
use crate::verdict::Invariant;

pub(super) const MUTANTS: [Mutant; 9] = [
    Mutant {
        name: "claim ignores the lease",
        removed: "a claim takes running jobs as well as queued ones",
        broken: &[Invariant::I6],
        scope: "lease",
        sqlite: &[
            patch(
                "claim",
                "WHERE state = 0 AND lane >= :from",
                "WHERE state IN (0, 2) AND lane >= :from",
            ),
            patch(
                "claim",
                "WHERE state = 0 AND lane = :lane",
                "WHERE state IN (0, 2) AND lane = :lane",
            ),
            patch("claim", "   AND state = 0", "   AND state IN (0, 2)"),
        ],
        postgres: &[
            patch(
                "verbs/claim",
                "WHERE j.state = 0 AND j.lane >= l.low AND j.lane < l.high",
                "WHERE j.state IN (0, 2) AND j.lane >= l.low AND j.lane < l.high",
            ),
            patch(
                "verbs/claim",
                "WHERE j.state = 0 AND j.lane = l.lane",
                "WHERE j.state IN (0, 2) AND j.lane = l.lane",
            ),
            patch("verbs/claim", "AND j.state + 0 = 0", "AND j.state + 0 IN (0, 2)"),
        ],
    },
    Mutant {
        name: "limit in a subquery",
        removed: "a claim updates the rows of `IN (SELECT … LIMIT n)`, which a nested loop looks for again and again",
        broken: &[Invariant::I10],
        scope: "batch",
        sqlite: &[],
        postgres: &[
            patch(
                "verbs/claim",
                "              FROM unnest(picked.jobs, picked.spots) WITH ORDINALITY p(id, spot, place)\n             WHERE j.ctid = p.spot AND j.id + 0 = p.id\n               AND j.state + 0 = 0",
                "             WHERE j.state = 0 AND j.id IN (SELECT q.id FROM tenure.jobs q WHERE q.state = 0\n                                             ORDER BY q.id LIMIT room FOR UPDATE SKIP LOCKED)",
            ),
            patch("verbs/claim", "cardinality(ours) + p.place::int", "cardinality(ours) + 1"),
            patch(
                "plans",
                "'SET enable_hashjoin = off SET enable_mergejoin = off'), ('{enqueue_many",
                "'SET enable_hashjoin = off SET enable_mergejoin = off SET enable_hashagg = off '
                 'SET enable_sort = off SET enable_material = off'), ('{enqueue_many",
            ),
        ],
    },
    Mutant {
        name: "attempts counted at failure",
        removed: "an attempt counts when it fails, not when it begins",
        broken: &[Invariant::I5],
        scope: "lease",
        sqlite: &[
            patch("claim", "attempt = attempt + 1,", "attempt = attempt,"),
            // Settlements and lapses share this statement. A lapse raises `crashes`, and most
            // settlements leave it as it is. So this adds one in those settlements only.
            patch("settle", "attempt = :attempt,", "attempt = :attempt + (crashes = :crashes),"),
        ],
        postgres: &[
            patch("verbs/claim", "attempt = j.attempt + 1,", "attempt = j.attempt,"),
            patch(
                "base/moves",
                "attempt = p_attempt,",
                "attempt = p_attempt + (j.crashes = p_crashes)::int,",
            ),
        ],
    },
    Mutant {
        name: "lapse without bump",
        removed: "a job that is taken back keeps its token",
        broken: &[Invariant::I7],
        scope: "lease",
        sqlite: &[
            patch(
                "settle",
                "       token = :token,\n       attempt",
                "       token = CASE WHEN :crashes > crashes THEN token ELSE :token END,\n       attempt",
            ),
            patch(
                "record",
                "SELECT id, :state, priority, run_at, coalesce(:ends_under, token), attempt",
                "SELECT id, :state, priority, run_at, CASE WHEN :crashes > crashes THEN token ELSE coalesce(:ends_under, token) END, attempt",
            ),
        ],
        postgres: &[
            patch(
                "verbs/lapse",
                "became, tenure.next_token(was.token, e), was.crashes + 1",
                "became, was.token, was.crashes + 1",
            ),
            patch(
                "verbs/lapse",
                "due, tenure.next_token(was.token, e), was.attempt",
                "due, was.token, was.attempt",
            ),
        ],
    },
    Mutant {
        name: "release without bump",
        removed: "a job that is given back keeps its token",
        broken: &[Invariant::I7],
        scope: "settle",
        sqlite: &[patch(
            "settle",
            "       token = :token,\n       attempt",
            "       token = CASE WHEN :crashes = crashes THEN token ELSE :token END,\n       attempt",
        )],
        postgres: &[patch(
            "verbs/settle",
            "was.run_at, tenure.next_token(was.token, e), tries",
            "was.run_at, was.token, tries",
        )],
    },
    Mutant {
        name: "cancel without bump",
        removed: "a job that is cancelled keeps its token",
        broken: &[Invariant::I7],
        scope: "operate",
        sqlite: &[patch(
            "record",
            "SELECT id, :state, priority, run_at, coalesce(:ends_under, token), attempt",
            "SELECT id, :state, priority, run_at, CASE WHEN :state = 6 THEN token ELSE coalesce(:ends_under, token) END, attempt",
        )],
        postgres: &[patch(
            "verbs/operate",
            "6::smallint, tenure.next_token(was.token, e), was.crashes",
            "6::smallint, was.token, was.crashes",
        )],
    },
    Mutant {
        name: "requeue without bump",
        removed: "a job that is requeued keeps its token",
        broken: &[Invariant::I7],
        scope: "operate",
        sqlite: &[patch(
            "operate",
            "SELECT id, 0, :lane, priority, :now, :token, 0",
            "SELECT id, 0, :lane, priority, :now, token + 0 * :token, 0",
        )],
        postgres: &[patch(
            "verbs/operate",
            "tenure.as_queued(a.was, tenure.next_token((a.was).token, e), t)",
            "tenure.as_queued(a.was, (a.was).token, t)",
        )],
    },
    Mutant {
        name: "key forgotten",
        removed: "an enqueue does not look whether its key is taken",
        broken: &[Invariant::I12],
        scope: "keys",
        sqlite: &[patch("enqueue", "   AND expires_at > :now", "   AND expires_at < -:now")],
        postgres: &[
            patch("verbs/enqueue", "AND k.expires_at > t LIMIT 1", "AND k.expires_at < -t LIMIT 1"),
            patch("verbs/enqueue", "             WHERE k.expires_at <= t\n", ""),
        ],
    },
    Mutant {
        name: "key without fingerprint",
        removed: "whoever comes under a key that is taken gets its job, whatever the args",
        broken: &[Invariant::I12],
        scope: "keys",
        sqlite: &[],
        postgres: &[patch(
            "verbs/enqueue",
            "WHEN coalesce(o.mark, p_fingerprints[o.first]) = o.fingerprint",
            "WHEN coalesce(o.mark, p_fingerprints[o.first]) IS NOT NULL",
        )],
    },
];
