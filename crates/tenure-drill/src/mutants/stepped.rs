//! Safeguards whose absence shows between the statements of two or three PostgreSQL sessions: the
//! stepper looks for them, each in the case that shows it.

use tenure::drill::Patch;

use super::{Hunt, Level, Stock};
use crate::stepper::{Case, Isolation, PLANNERS, Setting, Stepper};
use crate::verdict::{Invariant, Violation};

/// A store with one safeguard missing, or a user who omits it.
struct Mutant {
    name: &'static str,
    /// What was removed.
    removed: &'static str,
    broken: &'static [Invariant],
    /// The case in which it shows: the starting state, and the script of each session.
    case: (&'static str, &'static [&'static str]),
    patches: &'static [Patch],
    /// True: the hunt pauses a call inside its SQL function, between two of the function's
    /// statements. False: the hunt only changes the order of the sessions' own statements.
    is_inside: bool,
}

/// All of them.
pub(super) fn hunts() -> impl Iterator<Item = Hunt> {
    MUTANTS.iter().map(|mutant| Hunt {
        mutant: mutant.name,
        removed: mutant.removed,
        level: Level::Stepper,
        stock: Stock::Postgres,
        broken: mutant.broken,
        run: Box::new(|| look_for(mutant)),
    })
}

fn look_for(mutant: &Mutant) -> Option<Violation> {
    let (start, scripts) = mutant.case;
    let case = Case::of(start, scripts);
    if mutant.is_inside {
        return Stepper::inside(mutant.patches).go_inside(&case).err();
    }
    let mut stepper = Stepper::patched(mutant.patches);
    (0..PLANNERS.len()).find_map(|planner| {
        let setting = Setting { isolation: Isolation::ReadCommitted, planner };
        stepper.go_through(&case, setting).err()
    })
}

const MUTANTS: [Mutant; 16] = [
    Mutant {
        name: "check-then-act",
        removed: "fence looks at the token once, and nobody looks again at COMMIT",
        broken: &[Invariant::I7],
        case: ("over", &["fence-write", "claim"]),
        patches: &[patch(
            "single/fence",
            "INSERT INTO tenure.fences (job_id, token) VALUES (job, token);",
            "",
        )],
        is_inside: false,
    },
    Mutant {
        name: "row count ignored",
        removed: "complete does not raise where the settlement was stale",
        broken: &[Invariant::I7],
        case: ("over", &["write-complete", "claim"]),
        patches: &[patch(
            "single/settle",
            "IF answer.verdict IN ('stale', 'not_found') THEN",
            "IF answer.verdict = 'invalid' THEN",
        )],
        is_inside: false,
    },
    Mutant {
        name: "repetition answered with yes",
        removed: "complete does not raise where an earlier transaction has completed the attempt",
        broken: &[Invariant::I7],
        case: ("over", &["complete-write", "complete-write"]),
        patches: &[patch(
            "single/settle",
            "ELSIF answer.verdict = 'repeated' AND NOT tenure.is_settled_here(p_job, p_token, p_verb) THEN",
            "ELSIF answer.verdict = 'invalid' THEN",
        )],
        is_inside: false,
    },
    Mutant {
        name: "effect in its own transaction before the fence",
        removed: "the user commits the write first, and then the completion",
        broken: &[Invariant::I1],
        case: ("over", &["write-then-complete", "take-over"]),
        patches: &[],
        is_inside: false,
    },
    Mutant {
        name: "FOR KEY SHARE gate",
        removed: "hold takes a lock that a takeover need not wait for",
        broken: &[Invariant::I7],
        case: ("over", &["hold-write", "claim"]),
        patches: &[
            patch(
                "single/fence",
                "AND j.token = hold.token AND j.state + 0 = 2\n       FOR NO KEY UPDATE;",
                "AND j.token = hold.token AND j.state + 0 = 2\n       FOR KEY SHARE;",
            ),
            patch(
                "verbs/claim",
                "ORDER BY r.lease_until, r.id LIMIT p_limit FOR UPDATE SKIP LOCKED",
                "ORDER BY r.lease_until, r.id LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED",
            ),
            patch(
                "verbs/claim",
                "LIMIT CASE WHEN l.suspect THEN 1 ELSE p_share END\n             FOR UPDATE SKIP LOCKED",
                "LIMIT CASE WHEN l.suspect THEN 1 ELSE p_share END\n             FOR NO KEY UPDATE SKIP LOCKED",
            ),
            patch(
                "verbs/lapse",
                "AND j.lease_until + 0 <= t\n       FOR UPDATE SKIP LOCKED",
                "AND j.lease_until + 0 <= t\n       FOR NO KEY UPDATE SKIP LOCKED",
            ),
        ],
        is_inside: false,
    },
    Mutant {
        name: "claim by IN (SELECT … LIMIT)",
        removed: "the pick is a subquery, which a plan may run again for each row",
        broken: &[Invariant::I10],
        case: ("many", &["claim-two", "claim-two"]),
        patches: &[patch(
            "verbs/claim",
            "WHERE j.ctid = p.spot AND j.id + 0 = p.id\n               AND j.state + 0 = 0",
            "WHERE p.place = 1 AND j.id IN (SELECT k.id FROM tenure.jobs k WHERE k.state = 0
                    LIMIT p_n FOR UPDATE SKIP LOCKED)",
        )],
        is_inside: false,
    },
    Mutant {
        name: "claim without re-check of the state",
        removed: "the pick takes no lock, and the update does not look at the state again",
        broken: &[Invariant::I6],
        case: ("queued", &["claim", "claim"]),
        patches: &[
            patch(
                "verbs/claim",
                "LIMIT CASE WHEN l.suspect THEN 1 ELSE p_share END\n             FOR UPDATE SKIP LOCKED) s),",
                "LIMIT CASE WHEN l.suspect THEN 1 ELSE p_share END) s),",
            ),
            patch(
                "verbs/claim",
                "WHERE j.ctid = p.spot AND j.id + 0 = p.id\n               AND j.state + 0 = 0",
                "WHERE j.id = p.id",
            ),
        ],
        is_inside: false,
    },
    Mutant {
        name: "unsorted batch locks",
        removed: "a batch takes its jobs in the order in which they were given",
        broken: &[Invariant::Deadlock],
        case: ("three", &["settle-up", "settle-down", "hold-middle"]),
        patches: &[patch(
            "verbs/settle",
            "WHERE u.verb = 'complete' ORDER BY u.id),",
            "WHERE u.verb = 'complete' ORDER BY u.n),",
        )],
        is_inside: false,
    },
    Mutant {
        name: "refusals of one job in any order",
        removed: "batches that settle a job more than once come at once, and wait for each other's lines",
        broken: &[Invariant::Deadlock],
        case: ("taken", &["late-up", "late-down", "late-middle"]),
        patches: &[patch(
            "verbs/settle",
            "PERFORM pg_advisory_xact_lock('tenure.jobs'::regclass::oid::int, 1);",
            "NULL;",
        )],
        is_inside: false,
    },
    Mutant {
        name: "refused renewals in any order",
        removed: "batches that renew a job under several lost tokens wait for each other's lines",
        broken: &[Invariant::Deadlock],
        case: ("taken", &["renew-up", "renew-down", "renew-middle"]),
        patches: &[patch("verbs/renew", "ORDER BY u.id, u.token, u.n", "ORDER BY u.id, u.n")],
        is_inside: false,
    },
    Mutant {
        name: "refused progress in any order",
        removed: "batches that report a job under several lost tokens wait for each other's lines",
        broken: &[Invariant::Deadlock],
        case: ("taken", &["progress-up", "progress-down", "progress-middle"]),
        patches: &[patch("verbs/progress", "ORDER BY u.id, u.token, u.n", "ORDER BY u.id, u.n")],
        is_inside: false,
    },
    Mutant {
        name: "now() for clock_timestamp()",
        removed: "the clock stands still while a transaction is open",
        broken: &[Invariant::I6],
        case: ("unclocked", &["late-claim", "claim"]),
        patches: &[patch(
            "base/time",
            "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint);",
            "floor(extract(epoch FROM now()) * 1000)::bigint);",
        )],
        is_inside: false,
    },
    Mutant {
        name: "key checked by SELECT, then INSERT",
        removed: "who looked and found the key free does not look at what came of the INSERT",
        broken: &[Invariant::I12],
        case: ("queued", &["enqueue", "enqueue"]),
        patches: &[patch("verbs/enqueue", "EXIT WHEN takers = taken;", "EXIT;")],
        is_inside: false,
    },
    Mutant {
        name: "renewal that waits",
        removed: "a renewal waits for whoever has the job locked",
        broken: &[Invariant::Prompt],
        case: ("running", &["renew", "hold-write"]),
        patches: &[patch(
            "verbs/renew",
            "FOR NO KEY UPDATE SKIP LOCKED) l),",
            "FOR NO KEY UPDATE) l),",
        )],
        is_inside: false,
    },
    Mutant {
        name: "lapse without a lock",
        removed: "the sweeper looks whether the lease is over, and takes the job back a moment later",
        broken: &[Invariant::I8],
        case: ("over", &["lapse", "renew"]),
        patches: &[patch(
            "verbs/lapse",
            "AND j.lease_until + 0 <= t\n       FOR UPDATE SKIP LOCKED;",
            "AND j.lease_until + 0 <= t;",
        )],
        is_inside: true,
    },
    Mutant {
        name: "settlement proves a fence that it did not pass",
        removed: "a stale settlement, a mere value to its caller, opens the way for the writes beside it",
        broken: &[Invariant::I7],
        case: ("over", &["fence-write-settle", "claim"]),
        patches: &[patch(
            "verbs/settle",
            "IF verdict = 'settled' AND current_setting('tenure_session.fenced', true) = 'yes' THEN",
            "IF current_setting('tenure_session.fenced', true) = 'yes' THEN",
        )],
        is_inside: false,
    },
];

const fn patch(file: &'static str, find: &'static str, replace: &'static str) -> Patch {
    Patch { file, find, replace }
}
