//! Where a case begins: a state that the verbs themselves have made, at a time that stands still.

/// A known state.
pub(super) struct Start {
    pub(super) name: &'static str,
    /// What is done there.
    sql: &'static str,
    /// The token that the holders of each session show.
    pub(super) tokens: [i64; 3],
    /// What is not in the tables of jobs, and is set again before each run.
    pub(super) beside: &'static str,
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
pub(super) const STARTS: [Start; 18] = [
    Start { name: "running", sql: RUNNING, tokens: [1; 3], beside: NOTHING },
    // The same, and its lease is over.
    Start { name: "over", sql: OVER, tokens: [1; 3], beside: NOTHING },
    // It was taken back, and somebody else has it: the first session does not know yet.
    Start { name: "taken", sql: TAKEN, tokens: [1, 3, 3], beside: NOTHING },
    Start { name: "queued", sql: QUEUED, tokens: [1; 3], beside: NOTHING },
    // It waits for a person, with an effect in doubt.
    Start { name: "parked", sql: PARKED, tokens: [1; 3], beside: NOTHING },
    // It was buried so long ago that it may be deleted.
    Start { name: "dead", sql: DEAD, tokens: [1; 3], beside: NOTHING },
    // It succeeded, likewise.
    Start { name: "ended", sql: ENDED, tokens: [1; 3], beside: NOTHING },
    // It is ready, and the key that it came with has expired.
    Start { name: "expired", sql: EXPIRED, tokens: [1; 3], beside: NOTHING },
    // Three jobs in one hand.
    Start { name: "three", sql: THREE, tokens: [1; 3], beside: NOTHING },
    // Several that are ready.
    Start { name: "many", sql: MANY, tokens: [1; 3], beside: NOTHING },
    // One that is ready, on the server's own clock.
    Start { name: "unclocked", sql: QUEUED, tokens: [1; 3], beside: NOTHING },
    // It was for later, and its time has come.
    Start { name: "due", sql: DUE, tokens: [1; 3], beside: NOTHING },
    // Like the first, but ann's lock has not been looked at yet.
    Start { name: "unseen", sql: UNSEEN, tokens: [1; 3], beside: NOTHING },
    // It was taken from two sessions' worker as from one that is gone, and the third has it.
    Start { name: "mistaken", sql: MISTAKEN, tokens: [1, 1, 3], beside: NOTHING },
    // Like the one that was taken, in a queue that deletes what has succeeded.
    Start { name: "forgetful", sql: FORGETFUL, tokens: [1, 3, 3], beside: NOTHING },
    // It is ready, in a database that has gone back and nobody has noticed.
    Start { name: "moved", sql: QUEUED, tokens: [1; 3], beside: MOVED },
    // Its lease is over, but nobody was there to renew it, as happened twice before.
    Start { name: "stalled", sql: OVER, tokens: [1; 3], beside: STALLED },
    // Like the one that was buried, without an effect that would keep it from being deleted.
    Start { name: "old", sql: OLD, tokens: [1; 3], beside: NOTHING },
];

const NOTHING: &str = "";

const MOVED: &str = "UPDATE tenure.meta m SET wal_timeline = m.wal_timeline + 1;";

const STALLED: &str =
    "SELECT setval('tenure.broke_before', 999999900000), setval('tenure.broke', 999999950000);
    SELECT setval('tenure.pulse', 999999990000);";

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

const DUE: &str = "SELECT tenure.enqueue('work', delay => '1 s');
    UPDATE tenure.clock SET at = at + 1000;";

const UNSEEN: &str = "SELECT tenure.enqueue('work');
    SELECT count(*) FROM tenure.claim_many('ann', '{default}', NULL, 1, 20000);
    SELECT tenure.register('ann', '{default}', NULL, true);";

const MISTAKEN: &str = "SELECT tenure.enqueue('work');
    SELECT count(*) FROM tenure.claim_many('ann', '{default}', NULL, 1, 20000);
    SELECT tenure.register('ann', '{default}', NULL, true);
    UPDATE tenure.workers SET free_since = 999999999000;
    SELECT count(*) FROM tenure.vanished(10);
    SELECT count(*) FROM tenure.claim_many('bob', '{default}', NULL, 1, 20000);";

const FORGETFUL: &str = "SELECT tenure.enqueue('work');
    SELECT tenure.configure('default', p_keep_ms => 0);
    SELECT count(*) FROM tenure.claim_many('ann', '{default}', NULL, 1, 20000);
    UPDATE tenure.clock SET at = at + 20000;
    SELECT count(*) FROM tenure.claim_many('bob', '{default}', NULL, 1, 20000);";

// Beside it a worker that could not be looked at, and was not heard of since.
const EXPIRED: &str = "SELECT tenure.enqueue('work', key => 'k');
    SELECT tenure.register('ann', '{default}', NULL, false);
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

const OLD: &str = "SELECT tenure.enqueue('work');
    SELECT count(*) FROM tenure.claim_many('ann', '{default}', NULL, 1, 20000);
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
