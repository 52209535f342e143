//! The state in which a case begins. It is made by calls of the verbs, mostly with a clock that
//! stands still.

/// A known state.
pub(super) struct Start {
    pub(super) name: &'static str,
    /// The statements that make it.
    sql: &'static str,
    /// The token that each session shows.
    pub(super) tokens: [i64; 3],
    /// State outside the tables of jobs, which is set again before each run.
    pub(super) beside: &'static str,
}

impl Start {
    /// The statements that make the start in an empty store. Its jobs have ids from 1 on, and later
    /// jobs from 1001 on, so that they can be told apart.
    pub(super) fn whole(&self) -> String {
        let clock = "INSERT INTO tenure.clock (one, at) VALUES (1, 1000000000000);";
        let clock = if self.is_clocked() { clock } else { "" };
        format!(
            "{clock} SELECT setval('tenure.job_id', 1, false); {} SELECT setval('tenure.job_id', 1001, false);",
            self.sql
        )
    }

    /// Whether its clock stands still.
    pub(super) fn is_clocked(&self) -> bool {
        self.name != "unclocked"
    }
}

/// The start of this name.
pub(super) fn named(name: &str) -> &'static Start {
    STARTS.iter().find(|start| start.name == name).expect("a start that is listed")
}

/// All starts. A pair of scripts is run in each start in which one of them has something to do. The
/// first in this order in which both have is the one that is run every day.
pub(super) const STARTS: [Start; 18] = [
    Start { name: "running", sql: RUNNING, tokens: [1; 3], beside: NOTHING },
    // Job 1 is running, and its lease is over.
    Start { name: "over", sql: OVER, tokens: [1; 3], beside: NOTHING },
    // Job 1 was taken back, and another worker holds it. The first session still shows the old
    // token.
    Start { name: "taken", sql: TAKEN, tokens: [1, 3, 3], beside: NOTHING },
    Start { name: "queued", sql: QUEUED, tokens: [1; 3], beside: NOTHING },
    // Job 1 is parked, with an effect in doubt.
    Start { name: "parked", sql: PARKED, tokens: [1; 3], beside: NOTHING },
    // Job 1 was buried, and its retention time is over. Its effect in doubt keeps it from being
    // pruned.
    Start { name: "dead", sql: DEAD, tokens: [1; 3], beside: NOTHING },
    // Job 1 succeeded, and its retention time is over. Its effect in doubt keeps it from being
    // pruned.
    Start { name: "ended", sql: ENDED, tokens: [1; 3], beside: NOTHING },
    // Job 1 is ready, and its idempotency key has expired.
    Start { name: "expired", sql: EXPIRED, tokens: [1; 3], beside: NOTHING },
    // Three jobs that one worker holds.
    Start { name: "three", sql: THREE, tokens: [1; 3], beside: NOTHING },
    // Several ready jobs.
    Start { name: "many", sql: MANY, tokens: [1; 3], beside: NOTHING },
    // One ready job, on the server's own clock.
    Start { name: "unclocked", sql: QUEUED, tokens: [1; 3], beside: NOTHING },
    // Job 1 was enqueued with a delay, and is due now.
    Start { name: "due", sql: DUE, tokens: [1; 3], beside: NOTHING },
    // Like `running`, but ann's lock has not been checked yet.
    Start { name: "unseen", sql: UNSEEN, tokens: [1; 3], beside: NOTHING },
    // Two sessions belong to a worker that was considered gone and lost job 1. The third session
    // holds the job.
    Start { name: "mistaken", sql: MISTAKEN, tokens: [1, 1, 3], beside: NOTHING },
    // Like `taken`, in a queue that deletes jobs when they succeed.
    Start { name: "forgetful", sql: FORGETFUL, tokens: [1, 3, 3], beside: NOTHING },
    // Job 1 is ready, in a database that has gone back, which is not noticed yet.
    Start { name: "moved", sql: QUEUED, tokens: [1; 3], beside: MOVED },
    // The lease of job 1 is over, but no worker could reach the store to renew it, which has
    // happened twice before.
    Start { name: "stalled", sql: OVER, tokens: [1; 3], beside: STALLED },
    // Like `dead`, without the effect in doubt.
    Start { name: "old", sql: OLD, tokens: [1; 3], beside: NOTHING },
];

const NOTHING: &str = "";

const MOVED: &str = "UPDATE tenure.meta m SET wal_timeline = m.wal_timeline + 1;";

const STALLED: &str =
    "SELECT setval('tenure.broke_before', 999999900000), setval('tenure.broke', 999999950000);
    SELECT setval('tenure.pulse', 999999990000);";

/// Ann holds job 1. She is registered, and her lock was seen free a second ago.
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

// There is also a worker without a lock, which has not registered for a day.
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
