//! When a job may be taken back, from whom, and what becomes of it.

use super::{Mutant, TELLS_WORKERS_APART, patch};
use crate::verdict::Invariant;

/// Reads a job as the library does, but with limits on attempts and crashes that are never reached.
const WITHOUT_LIMITS: &str = "SELECT id, state, queue, tenant, kind, coalesce(args, (SELECT p.args FROM tenure_payloads p WHERE p.job_id = id)),
priority, run_at, token, attempt, 9999, crashes, 9999, retry, max_runtime, key, extras, parent,
enqueued_at, worker, started_at, leased_at, lease_ms, lease_until, NULL, NULL, reason, progress, progress_note,
crashed_at, lane & 2305843009213693952 <> 0, returns_until, request FROM tenure_jobs WHERE id = :job";

pub(super) const MUTANTS: [Mutant; 10] = [
    Mutant {
        name: "lapse by id only",
        removed: "the sweeper takes back the job that it has seen, whoever has it and until when",
        broken: &[Invariant::I8],
        scope: "lease",
        sqlite: &[
            patch("lapse", "token = :token AND state = 2", "token != -:token AND state = 2"),
            patch(
                "lapse",
                ":token AND state = 2 AND {over}",
                ":token AND state = 2 AND ({over} OR true)",
            ),
        ],
        postgres: &[patch(
            "verbs/lapse",
            "AND j.token = p_token AND j.state + 0 = 2\n       AND j.lease_until + 0 <= t\n       FOR UPDATE",
            "AND j.state + 0 = 2\n       FOR UPDATE",
        )],
    },
    Mutant {
        name: "lapse without token",
        removed: "the sweeper takes back any attempt that is over, not the one that it has seen",
        broken: &[Invariant::I8],
        scope: "lease",
        sqlite: &[patch("lapse", "token = :token AND state = 2", "token != -:token AND state = 2")],
        postgres: &[patch(
            "verbs/lapse",
            "AND j.token = p_token AND j.state + 0 = 2\n       AND j.lease_until + 0 <= t\n       FOR UPDATE",
            "AND j.state + 0 = 2\n       AND j.lease_until + 0 <= t\n       FOR UPDATE",
        )],
    },
    Mutant {
        name: "lapse without re-check of the lease",
        removed: "the sweeper believes what it has seen, though the lease may have been renewed since",
        broken: &[Invariant::I8],
        scope: "lease",
        sqlite: &[patch(
            "lapse",
            ":token AND state = 2 AND {over}",
            ":token AND state = 2 AND ({over} OR true)",
        )],
        postgres: &[patch(
            "verbs/lapse",
            "AND j.lease_until + 0 <= t\n       FOR UPDATE",
            "FOR UPDATE",
        )],
    },
    Mutant {
        name: TELLS_WORKERS_APART,
        removed: "a lease ends by its holder's clock, and Bob's runs ahead",
        broken: &[Invariant::I6, Invariant::I8],
        scope: "lease",
        sqlite: &[
            patch(
                "claim",
                "WHERE state = 2 AND lease_until <= :over",
                "WHERE state = 2 AND lease_until - 1000 * (worker = 'bob') <= :over",
            ),
            patch(
                "record",
                "lease_until <= :over",
                "lease_until - 1000 * (worker = 'bob') <= :over",
            ),
        ],
        postgres: &[
            patch(
                "verbs/lapse",
                "AND j.lease_until <= late) THEN",
                "AND j.lease_until - 1000 * (j.worker = 'bob')::int <= late) THEN",
            ),
            patch(
                "verbs/lapse",
                "AND j.lease_until <= late\n                    AND tenure",
                "AND j.lease_until - 1000 * (j.worker = 'bob')::int <= late\n                    AND tenure",
            ),
            patch(
                "verbs/lapse",
                "AND j.lease_until + 0 <= t\n       FOR UPDATE",
                "AND j.lease_until - 1000 * (j.worker = 'bob')::int <= t\n       FOR UPDATE",
            ),
            patch(
                "verbs/claim",
                "AND r.lease_until >= known.running_from AND r.lease_until <= late), s.alone,",
                "AND r.lease_until - 1000 * (r.worker = 'bob')::int <= late), s.alone,",
            ),
            patch(
                "verbs/claim",
                "AND r.lease_until >= p_from AND r.lease_until <= late\n               AND tenure",
                "AND r.lease_until - 1000 * (r.worker = 'bob')::int <= late\n               AND tenure",
            ),
        ],
    },
    Mutant {
        name: "no cap in the sweeper",
        removed: "a job that is taken back is queued again, however often it was",
        broken: &[Invariant::I5],
        scope: "settle",
        sqlite: &[patch("lapse", "SELECT {live} FROM tenure_jobs WHERE id = :job", WITHOUT_LIMITS)],
        postgres: &[patch("verbs/lapse", "    IF buried THEN", "    IF false THEN")],
    },
    Mutant {
        name: "capped job never finished",
        removed: "the sweeper leaves a job alone that has no attempt left",
        broken: &[Invariant::I11],
        scope: "settle",
        sqlite: &[patch(
            "lapse",
            ":token AND state = 2 AND {over}",
            ":token AND state = 2 AND {over} AND attempt < max_attempts",
        )],
        postgres: &[
            patch(
                "verbs/lapse",
                "AND j.lease_until + 0 <= t\n       FOR UPDATE",
                "AND j.lease_until + 0 <= t AND j.attempt < j.max_attempts\n       FOR UPDATE",
            ),
            patch(
                "verbs/claim",
                "AND r.lease_until >= p_from AND r.lease_until <= late\n               AND tenure",
                "AND r.lease_until <= late AND r.attempt < r.max_attempts\n               AND tenure",
            ),
        ],
    },
    Mutant {
        name: "freed lock without the server's start",
        removed: "a lock that is free tells of a death, though a restart has freed it",
        broken: &[Invariant::I8],
        scope: "guard",
        sqlite: &[patch(
            "lapse",
            "guarded AND under = :since FROM",
            "guarded AND :since IS NOT NULL FROM",
        )],
        postgres: &[patch(
            "verbs/lapse",
            "ELSE w.guarded AND w.under = s END",
            "ELSE w.guarded END",
        )],
    },
    Mutant {
        name: "no brake",
        removed: "leases go on ending while the server stands still",
        broken: &[Invariant::I8],
        scope: "guard",
        sqlite: &[patch("record", "(leased_at >= :since AND", "(leased_at != -:since AND")],
        postgres: &[patch("base/time", "WHEN leased_at >= started AND (", "WHEN (")],
    },
    Mutant {
        name: "no pardon after a stall",
        removed: "leases go on ending while no call reaches the store",
        broken: &[Invariant::I8],
        scope: "stall",
        sqlite: &[patch("record", "(leased_at >= :broke OR", "(leased_at != -:broke OR")],
        postgres: &[patch(
            "base/time",
            "(leased_at >= broke OR leased_at < broke_before) THEN",
            "true THEN",
        )],
    },
    Mutant {
        name: "freed lock believed at once after a stall",
        removed: "a lock that is free tells of a death, though its worker has not come back yet",
        broken: &[Invariant::I8],
        scope: "stall",
        sqlite: &[],
        postgres: &[patch(
            "verbs/lapse",
            "        gap_ms := greatest(gap_ms, 5000);",
            "        gap_ms := 300;",
        )],
    },
];
