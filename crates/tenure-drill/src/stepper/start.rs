//! Where a case begins: a state that the verbs themselves have made, at a time that stands still.

/// A known state.
pub(super) struct Start {
    pub(super) name: &'static str,
    /// What is done there.
    sql: &'static str,
    /// The token that the holders of each session show.
    pub(super) tokens: [i64; 3],
}

impl Start {
    /// What leads there from an empty store: jobs have numbers from 1 on, and what comes later from 1001 on, so that it
    /// can be told apart.
    pub(super) fn whole(&self) -> String {
        let clock = "INSERT INTO tenure.clock (one, at) VALUES (1, 1000000000000);";
        let clock = if self.is_clocked() { clock } else { "" };
        format!(
            "{clock} SELECT setval('tenure.job_id', 1, false); {} SELECT setval('tenure.job_id', 1001, false);",
            self.sql
        )
    }

    /// Whether its time stands still.
    pub(super) fn is_clocked(&self) -> bool {
        self.name != "unclocked"
    }
}

/// The start of this name.
pub(super) fn named(name: &str) -> &'static Start {
    STARTS.iter().find(|start| start.name == name).expect("a start that is listed")
}

/// All of them. The order is that in which a pair of verbs looks for a place where both have something to do.
pub(super) const STARTS: [Start; 11] = [
    Start { name: "running", sql: RUNNING, tokens: [1; 3] },
    // The same, and its lease is over.
    Start { name: "over", sql: OVER, tokens: [1; 3] },
    // It was taken back, and somebody else has it: the first session does not know yet.
    Start { name: "taken", sql: TAKEN, tokens: [1, 3, 3] },
    Start { name: "queued", sql: QUEUED, tokens: [1; 3] },
    // It waits for a person, with an effect in doubt.
    Start { name: "parked", sql: PARKED, tokens: [1; 3] },
    // It was buried so long ago that it may be deleted.
    Start { name: "dead", sql: DEAD, tokens: [1; 3] },
    // It succeeded, likewise.
    Start { name: "ended", sql: ENDED, tokens: [1; 3] },
    // It is ready, and the key that it came with has expired.
    Start { name: "expired", sql: EXPIRED, tokens: [1; 3] },
    // Three jobs in one hand.
    Start { name: "three", sql: THREE, tokens: [1; 3] },
    // Several that are ready.
    Start { name: "many", sql: MANY, tokens: [1; 3] },
    // One that is ready, on the server's own clock.
    Start { name: "unclocked", sql: QUEUED, tokens: [1; 3] },
];

/// Job 1 is held by ann, who is known, and whose lock was seen free a second ago.
const RUNNING: &str = "SELECT tenure.enqueue('work');
    SELECT count(*) FROM tenure.claim_many('ann', '{default}', NULL, 1, 20000);
    SELECT tenure.register('ann', '{default}', NULL, true);
    UPDATE tenure.workers SET free_since = 999999999000;";

const OVER: &str = "SELECT tenure.enqueue('work');
    SELECT count(*) FROM tenure.claim_many('ann', '{default}', NULL, 1, 20000);
    UPDATE tenure.clock SET at = at + 20000;";

const TAKEN: &str = "SELECT tenure.enqueue('work');
    SELECT count(*) FROM tenure.claim_many('ann', '{default}', NULL, 1, 20000);
    SELECT tenure.effect_open(1, 1, 'pay');
    UPDATE tenure.clock SET at = at + 20000;
    SELECT count(*) FROM tenure.claim_many('bob', '{default}', NULL, 1, 20000);";

const QUEUED: &str = "SELECT tenure.enqueue('work');";

const EXPIRED: &str = "SELECT tenure.enqueue('work', key => 'k');
    UPDATE tenure.clock SET at = at + 86400000;";

const PARKED: &str = "SELECT tenure.enqueue('work');
    SELECT count(*) FROM tenure.claim_many('ann', '{default}', NULL, 1, 20000);
    SELECT tenure.effect_open(1, 1, 'pay');
    SELECT tenure.park(1, 1, 'in doubt');";

const DEAD: &str = "SELECT tenure.enqueue('work');
    SELECT count(*) FROM tenure.claim_many('ann', '{default}', NULL, 1, 20000);
    SELECT tenure.effect_open(1, 1, 'pay');
    SELECT tenure.bury(1, 1, 'never');
    UPDATE tenure.clock SET at = at + 31 * 86400000::bigint;";

const ENDED: &str = "SELECT tenure.enqueue('work');
    SELECT count(*) FROM tenure.claim_many('ann', '{default}', NULL, 1, 20000);
    SELECT tenure.effect_open(1, 1, 'pay');
    SELECT tenure.complete(1, 1);
    UPDATE tenure.clock SET at = at + 8 * 86400000::bigint;";

const THREE: &str = "SELECT tenure.enqueue('work') FROM generate_series(1, 3);
    SELECT count(*) FROM tenure.claim_many('ann', '{default}', NULL, 3, 20000);";

const MANY: &str = "SELECT tenure.enqueue('work') FROM generate_series(1, 16);";
