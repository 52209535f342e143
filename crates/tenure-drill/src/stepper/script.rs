//! What a session does, statement by statement: one verb in its own transaction, or a user's own
//! transaction.
//!
//! In a statement, `:t` is the token that its session shows, and `:w` its worker's name. The job is
//! 1.

/// What a session does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Script {
    /// The name of the script in the name of a case.
    pub(super) name: &'static str,
    pub(super) steps: &'static [Step],
    pub(super) about: About,
    /// The starts in which it changes something, as opposed to being refused.
    pub(super) acts_in: &'static [&'static str],
}

/// The kind of script, and what it promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum About {
    /// Waits for the session that has locked its rows.
    Waits,
    /// Promises not to wait: locked rows are passed by.
    Passes,
    /// A user's own transaction.
    Users,
}

/// One statement, and what the judge checks about it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub(super) act: Act,
    pub(super) sql: &'static str,
}

impl Step {
    /// The text of the statement, for a session with this token and this worker's name.
    pub(super) fn written(&self, token: i64, worker: &str) -> String {
        let sql = self.sql.replace(":t", &token.to_string()).replace(":w", worker);
        sql.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// What a statement does, as far as the judge needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Nothing that is checked by itself.
    Other,
    /// Claims at most this many jobs: rows of what, job, token.
    Claim(usize),
    /// A write that only the holder of job 1 may make. If it was applied, the first cell of the
    /// first row is one of these words.
    Holder(&'static [&'static str]),
    /// Holds job 1, or raises.
    Hold,
    /// A user's own write on behalf of the holder of job 1.
    Write,
    /// Takes a job back: the first cell is `taken_back` if it did.
    Lapse,
    /// Enqueues a job under the key `k`, and returns its id.
    Enqueue,
    /// Begins a transaction that has one snapshot, and takes it.
    Snapshot,
    /// Ends the transaction. The next statement begins another.
    Commit,
}

const COMMIT: Step = Step { act: Act::Commit, sql: "COMMIT" };

const fn step(act: Act, sql: &'static str) -> Step {
    Step { act, sql }
}

/// The starts in which a worker holds job 1 and may settle it.
const HELD: &[&str] = &["running", "over", "taken"];
const LIVE: &[&str] = &["running", "over", "taken", "queued", "parked"];
const KEYED: &[&str] =
    &["running", "over", "taken", "queued", "parked", "dead", "ended", "expired"];
const DONE: &[&str] = &["dead", "ended"];

/// The script of this name.
pub(super) fn named(name: &str) -> Script {
    let all = SCRIPTS.iter().chain(&EXTRA);
    *all.clone().find(|script| script.name == name).unwrap_or_else(|| panic!("no script {name}"))
}

macro_rules! verb {
    ($name:literal, $about:ident, $acts_in:expr, $act:expr, $sql:literal) => {
        Script {
            name: $name,
            steps: &[step($act, $sql), COMMIT],
            about: About::$about,
            acts_in: $acts_in,
        }
    };
}

/// The verbs, and what users do in their own transactions. Each is paired with each.
pub(super) const SCRIPTS: [Script; 34] = [
    verb!("enqueue", Waits, KEYED, Act::Enqueue, "SELECT tenure.enqueue('work', key => 'k')"),
    verb!(
        "enqueue-other", Waits, KEYED, Act::Other,
        "SELECT tenure.enqueue('other', key => 'k')"
    ),
    verb!(
        "claim", Passes, &["over", "queued"], Act::Claim(1),
        "SELECT what, job, token, lease_until FROM tenure.claim_many(':w', '{default}', NULL, 1, 20000) WHERE what <> 'next'"
    ),
    verb!(
        "complete", Waits, HELD, Act::Holder(&["settled"]),
        "SELECT verdict, became, token, state FROM tenure.settle_many('{1}', '{:t}', '{complete}', '{0}', '{NULL}', '{NULL}')"
    ),
    verb!(
        "retry", Waits, HELD, Act::Holder(&["settled"]),
        "SELECT verdict, became, token, state FROM tenure.settle_many('{1}', '{:t}', '{retry}', '{0}', '{no}', '{NULL}')"
    ),
    verb!(
        "snooze", Waits, HELD, Act::Holder(&["settled"]),
        "SELECT verdict, became, token, state FROM tenure.settle_many('{1}', '{:t}', '{snooze}', '{9}', '{NULL}', '{NULL}')"
    ),
    verb!(
        "release", Waits, HELD, Act::Holder(&["settled"]),
        "SELECT verdict, became, token, state FROM tenure.settle_many('{1}', '{:t}', '{release}', '{0}', '{NULL}', '{NULL}')"
    ),
    verb!(
        "park", Waits, HELD, Act::Holder(&["settled"]),
        "SELECT verdict, became, token, state FROM tenure.settle_many('{1}', '{:t}', '{park}', '{0}', '{later}', '{NULL}')"
    ),
    verb!(
        "bury", Waits, HELD, Act::Holder(&["settled"]),
        "SELECT verdict, became, token, state FROM tenure.settle_many('{1}', '{:t}', '{bury}', '{0}', '{never}', '{NULL}')"
    ),
    verb!(
        "fail", Waits, HELD, Act::Other,
        "SELECT tenure.fail(1, :t, 'no', '0 s')"
    ),
    verb!(
        "settle-and-claim", Waits, HELD, Act::Holder(&["settled"]),
        "SELECT coalesce(verdict, what), job, token FROM tenure.settle_and_claim('{1}', '{:t}', '{retry}', '{0}', '{no}', '{NULL}',
         ':w', '{default}', NULL, 1, 20000) WHERE what <> 'next'"
    ),
    verb!(
        "renew", Passes, HELD, Act::Holder(&["extended"]),
        "SELECT verdict, lease_until, token, state FROM tenure.renew_many('{1}', '{:t}', 50000)"
    ),
    verb!(
        "progress", Passes, HELD, Act::Holder(&["noted"]),
        "SELECT verdict, token, state FROM tenure.progress_many('{1}', '{:t}', '{500}', '{half by :w}')"
    ),
    verb!(
        "open-effect", Waits, &["running", "over"], Act::Holder(&["opened"]),
        "SELECT verdict, token, state FROM tenure.ledger_many('{1}', '{:t}', '{effect_open}', '{pay}', '{NULL}', '{NULL}')"
    ),
    verb!(
        "commit-effect", Waits, &["running", "over"], Act::Holder(&["recorded"]),
        "SELECT verdict, token, state FROM tenure.ledger_many('{1,1}', '{:t,:t}', '{effect_open,effect_commit}', '{pay,pay}',
         ARRAY[NULL, 'null'::json], '{NULL,NULL}') ORDER BY n DESC"
    ),
    verb!(
        "remember-step", Waits, HELD, Act::Holder(&["remembered"]),
        "SELECT verdict, result, token, state FROM tenure.ledger_many('{1}', '{:t}', '{step_put}', '{look}',
         ARRAY['\":w\"'::json], '{NULL}')"
    ),
    verb!(
        "lapse", Passes, &["over"], Act::Lapse,
        "SELECT verdict, (lapsed).became FROM tenure.lapse_many('{1}', '{:t}')"
    ),
    verb!(
        "vanished", Passes, &["running"], Act::Other,
        "SELECT job, token, worker, became FROM tenure.vanished(10)"
    ),
    verb!(
        "register", Waits, &["running"], Act::Other,
        "SELECT tenure.register('ann', '{default}', NULL, true)"
    ),
    verb!(
        "retire", Waits, &["running"], Act::Other,
        "SELECT tenure.retire('ann')"
    ),
    verb!(
        "cancel", Waits, LIVE, Act::Other,
        "SELECT verdict, state FROM tenure.cancel_many('{1}')"
    ),
    verb!(
        "requeue", Waits, &["dead", "old"], Act::Other,
        "SELECT verdict, state FROM tenure.requeue_many('{1}', '{NULL}')"
    ),
    verb!(
        "resume", Waits, &["parked"], Act::Other,
        "SELECT verdict, state FROM tenure.resume_many('{1}')"
    ),
    verb!(
        "resolve", Waits, &["parked", "dead", "ended"], Act::Other,
        "SELECT verdict, state, standing FROM tenure.resolve_effect(1, 'pay', '\"yes\"')"
    ),
    verb!(
        "purge", Waits, &["dead", "ended", "old"], Act::Other,
        "SELECT verdict, state FROM tenure.purge_many('{1}', '{NULL}')"
    ),
    verb!("prune", Passes, &["old", "expired"], Act::Other, "SELECT jobs, keys FROM tenure.prune(10)"),
    verb!(
        "pause", Waits, &["queued"], Act::Other,
        "SELECT paused_at, keep_ms FROM tenure.configure('default', p_pause => true)"
    ),
    verb!(
        "raise-epoch", Waits, LIVE, Act::Other,
        "SELECT epoch FROM tenure.raise_epoch('a drill')"
    ),
    verb!(
        "refused", Waits, DONE, Act::Other,
        "SELECT tenure.refused(1, :t, 'complete')"
    ),
    Script {
        name: "fence-write",
        steps: &[step(Act::Other, "SELECT tenure.fence(1, :t)"), WRITE, COMMIT],
        about: About::Users,
        acts_in: HELD,
    },
    Script {
        name: "hold-write",
        steps: &[step(Act::Hold, "SELECT tenure.hold(1, :t)"), WRITE, COMMIT],
        about: About::Users,
        acts_in: HELD,
    },
    Script {
        name: "hold-write-complete",
        steps: &[step(Act::Hold, "SELECT tenure.hold(1, :t)"), ONCE, COMPLETE, COMMIT],
        about: About::Users,
        acts_in: HELD,
    },
    Script {
        name: "write-complete",
        steps: &[ONCE, COMPLETE, COMMIT],
        about: About::Users,
        acts_in: HELD,
    },
    Script {
        name: "fence-write-complete",
        steps: &[step(Act::Other, "SELECT tenure.fence(1, :t)"), ONCE, COMPLETE, COMMIT],
        about: About::Users,
        acts_in: HELD,
    },
];

/// A write that may happen more than once in an attempt, and one that belongs to the completion.
const WRITE: Step = step(Act::Write, "INSERT INTO public.writes VALUES (1, :t, 'on the way')");
const ONCE: Step = step(Act::Write, "INSERT INTO public.writes VALUES (1, :t, 'once')");
const COMPLETE: Step = step(Act::Other, "SELECT tenure.complete(1, :t)");

/// Scripts that only some cases have.
pub(super) const EXTRA: [Script; 29] = [
    // A worker that takes job 1 over, and does all of it.
    Script {
        name: "take-over",
        steps: &[
            step(
                Act::Claim(1),
                "SELECT what, job, token, lease_until FROM tenure.claim_many(':w', '{default}', NULL, 1, 20000) WHERE what <> 'next'",
            ),
            COMMIT,
            step(Act::Other, "INSERT INTO public.writes SELECT 1, 3, 'once' FROM tenure.jobs WHERE id = 1 AND token = 3"),
            step(Act::Other, "SELECT verdict FROM tenure.settle_many('{1}', '{3}', '{complete}', '{0}', '{NULL}', '{NULL}')"),
            COMMIT,
        ],
        about: About::Waits,
        acts_in: &["over"],
    },
    // A user that commits the write first, and then the completion.
    Script {
        name: "write-then-complete",
        steps: &[
            step(Act::Other, "INSERT INTO public.writes VALUES (1, :t, 'once')"),
            COMMIT,
            COMPLETE,
            COMMIT,
        ],
        about: About::Users,
        acts_in: &["over"],
    },
    // A user that completes first and then writes, and sends both again after a lost answer to
    // COMMIT.
    Script {
        name: "complete-write",
        steps: &[COMPLETE, ONCE, COMMIT],
        about: About::Users,
        acts_in: HELD,
    },
    // What a worker does with a job that has a follow-up: it holds the job, enqueues the follow-up
    // if it does hold the job, and settles.
    Script {
        name: "follow",
        steps: &[
            step(Act::Other, "SELECT set_config('drill.held', CAST(count(*) AS text), true) FROM tenure.hold_many('{1}', '{:t}')"),
            step(Act::Other, "SELECT tenure.enqueue('after') WHERE current_setting('drill.held') = '1'"),
            step(
                Act::Holder(&["settled"]),
                "SELECT verdict, became, token, state FROM tenure.settle_many('{1}', '{:t}', '{complete}', '{0}', '{NULL}', '{NULL}')",
            ),
            COMMIT,
        ],
        about: About::Waits,
        acts_in: HELD,
    },
    // A user that settles by `settle_many`, and does not check its answer.
    Script {
        name: "fence-write-settle",
        steps: &[
            step(Act::Other, "SELECT tenure.fence(1, :t)"),
            WRITE,
            step(Act::Other, "SELECT verdict FROM tenure.settle_many('{1}', '{:t}', '{retry}', '{0}', '{no}', '{NULL}')"),
            COMMIT,
        ],
        about: About::Users,
        acts_in: &["over"],
    },
    // Three jobs in one order, and in the reverse order.
    verb!(
        "settle-up", Waits, &["three"], Act::Other,
        "SELECT verdict, became, token, state FROM tenure.settle_many('{1,2,3}', '{1,1,1}', '{complete,complete,complete}',
         '{0,0,0}', '{NULL,NULL,NULL}', '{NULL,NULL,NULL}') ORDER BY n"
    ),
    verb!(
        "settle-down", Waits, &["three"], Act::Other,
        "SELECT verdict, became, token, state FROM tenure.settle_many('{3,2,1}', '{1,1,1}', '{complete,complete,complete}',
         '{0,0,0}', '{NULL,NULL,NULL}', '{NULL,NULL,NULL}') ORDER BY n"
    ),
    verb!(
        "mixed-up", Waits, &["three"], Act::Other,
        "SELECT verdict, became, token, state FROM tenure.settle_many('{1,2,3}', '{1,1,1}', '{retry,complete,bury}',
         '{0,0,0}', '{no,NULL,no}', '{NULL,NULL,NULL}') ORDER BY n"
    ),
    verb!(
        "effects-down", Waits, &["three"], Act::Other,
        "SELECT verdict, token, state FROM tenure.ledger_many('{3,2,1}', '{1,1,1}',
         '{effect_open,effect_open,effect_open}', '{pay,pay,pay}', '{NULL,NULL,NULL}', '{NULL,NULL,NULL}') ORDER BY n"
    ),
    verb!(
        "cancel-down", Waits, &["three"], Act::Other,
        "SELECT verdict, state FROM tenure.cancel_many('{3,2,1}') ORDER BY n"
    ),
    // One job three times, by a worker that has lost it: each write is refused, and leaves a
    // timeline line.
    verb!(
        "late-up", Waits, &["taken"], Act::Other,
        "SELECT verdict, token FROM tenure.settle_many('{1,1,1}', '{1,1,1}', '{retry,snooze,release}',
         '{0,0,0}', '{no,NULL,NULL}', '{NULL,NULL,NULL}') ORDER BY n"
    ),
    verb!(
        "late-down", Waits, &["taken"], Act::Other,
        "SELECT verdict, token FROM tenure.settle_many('{1,1,1}', '{1,1,1}', '{release,snooze,retry}',
         '{0,0,0}', '{NULL,NULL,no}', '{NULL,NULL,NULL}') ORDER BY n"
    ),
    verb!(
        "late-middle", Waits, &["taken"], Act::Other,
        "SELECT verdict, token FROM tenure.settle_many('{1}', '{1}', '{snooze}', '{0}', '{NULL}', '{NULL}')"
    ),
    // One job under three tokens, none of which holds it.
    verb!(
        "renew-up", Waits, &["taken"], Act::Other,
        "SELECT verdict, token FROM tenure.renew_many('{1,1,1}', '{0,1,2}', 20000) ORDER BY n"
    ),
    verb!(
        "renew-down", Waits, &["taken"], Act::Other,
        "SELECT verdict, token FROM tenure.renew_many('{1,1,1}', '{2,1,0}', 20000) ORDER BY n"
    ),
    verb!(
        "renew-middle", Waits, &["taken"], Act::Other,
        "SELECT verdict, token FROM tenure.renew_many('{1}', '{1}', 20000)"
    ),
    verb!(
        "progress-up", Waits, &["taken"], Act::Other,
        "SELECT verdict, token FROM tenure.progress_many('{1,1,1}', '{0,1,2}', '{1,1,1}', '{NULL,NULL,NULL}') ORDER BY n"
    ),
    verb!(
        "progress-down", Waits, &["taken"], Act::Other,
        "SELECT verdict, token FROM tenure.progress_many('{1,1,1}', '{2,1,0}', '{1,1,1}', '{NULL,NULL,NULL}') ORDER BY n"
    ),
    verb!(
        "progress-middle", Waits, &["taken"], Act::Other,
        "SELECT verdict, token FROM tenure.progress_many('{1}', '{1}', '{1}', '{NULL}')"
    ),
    // What settle-and-claim amounts to if it does not claim.
    verb!(
        "settle-only", Waits, &[], Act::Other,
        "SELECT verdict, NULL, token FROM tenure.settle_many('{1}', '{:t}', '{retry}', '{0}', '{no}', '{NULL}')"
    ),
    // A user that holds the middle job of both batches.
    Script {
        name: "hold-middle",
        steps: &[step(Act::Other, "SELECT tenure.hold(2, 1)"), COMMIT],
        about: About::Users,
        acts_in: &["three"],
    },
    // Keys in one order, and in the reverse order.
    verb!(
        "keys-up", Waits, &["queued"], Act::Other,
        "SELECT verdict, job FROM tenure.enqueue_many('{work,work}', '{\"{}\",\"{}\"}', p_keys => '{a,b}',
         p_fingerprints => array_fill(tenure.fingerprint('work', '{}'), '{2}')) ORDER BY n"
    ),
    verb!(
        "keys-down", Waits, &["queued"], Act::Other,
        "SELECT verdict, job FROM tenure.enqueue_many('{work,work}', '{\"{}\",\"{}\"}', p_keys => '{b,a}',
         p_fingerprints => array_fill(tenure.fingerprint('work', '{}'), '{2}')) ORDER BY n"
    ),
    verb!(
        "claim-two", Passes, &["many"], Act::Claim(2),
        "SELECT what, job, token, lease_until FROM tenure.claim_many(':w', '{default}', NULL, 2, 20000) WHERE what <> 'next'"
    ),
    verb!(
        "gap-second", Waits, &["queued"], Act::Other,
        "SELECT was FROM tenure.set_guard_gap(1000)"
    ),
    verb!(
        "gap-two-seconds", Waits, &["queued"], Act::Other,
        "SELECT was FROM tenure.set_guard_gap(2000)"
    ),
    // A worker that has seen a later position of the server's log than the server has now.
    verb!(
        "witness", Passes, &["queued"], Act::Other,
        "SELECT tenure.witnessed(m.installation || ' 0 FFFFFFFF/0', tenure.clock_ms()) FROM tenure.meta m"
    ),
    // Not an operation of Tenure, but a race on purpose: it counts rows and inserts the count,
    // without a lock. Two sessions that do this at once can both insert 0, which no serial order
    // does. A test uses it to show that the stepper reports such an outcome (`cases::planted`).
    verb!(
        "planted", Waits, &["queued"], Act::Other,
        "INSERT INTO public.writes SELECT 1, count(*), 'planted' FROM public.writes"
    ),
    // A transaction that began two seconds before it claims, with a lease of two seconds. If the
    // lease counted from that beginning, it would be over at once.
    Script {
        name: "late-claim",
        steps: &[
            step(Act::Other, "DO $$ BEGIN WHILE clock_timestamp() < transaction_timestamp() + interval '2 s' LOOP END LOOP; END $$"),
            step(
                Act::Claim(1),
                "SELECT what, job, token, lease_until FROM tenure.claim_many(':w', '{default}', NULL, 1, 2000) WHERE what <> 'next'",
            ),
            COMMIT,
        ],
        about: About::Waits,
        acts_in: &["unclocked"],
    },
];
