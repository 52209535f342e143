//! Stores that somebody has broken by writing to their tables, each in one way, and `tenure doctor --check`, which must
//! find it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use std::collections::BTreeSet;

use serde_json::json;
use shell::{Shell, claim, ledger, on_both_engines};
use tenure::inspect::Rule;
use tenure::job::Json;
use tenure::ledger::Act;
use tenure::lifecycle::Outcome;
use tenure::store::Settlement;

on_both_engines!(everything_that_must_not_be_is_found);

/// What was done to the store, the rule that is broken by it, the job, and what is said. `tenure_` stands for the place
/// of the tables.
struct Damage(&'static str, Rule, i64, &'static str);

/// Job 1 succeeded and has an effect and a step, job 2 is queued under a key, job 3 is queued.
const DAMAGES: &[Damage] = &[
    Damage(
        "INSERT INTO tenure_jobs (id, token, state, lane, run_at, enqueued_at, attempt, max_attempts, crashes,
                                  max_crashes, priority, queue, tenant, kind, args)
         SELECT 1, 1, state, lane, run_at, enqueued_at, attempt, max_attempts, crashes,
                max_crashes, priority, queue, tenant, kind, args
           FROM tenure_jobs WHERE id = 3",
        Rule::I9,
        1,
        "it is both owed and ended",
    ),
    Damage(
        "INSERT INTO tenure_payloads (job_id, args) VALUES (99, '1')",
        Rule::I9,
        99,
        "its payload is there, but the job is not",
    ),
    Damage(
        "INSERT INTO tenure_timeline (job_id, at, verb, refused, token, attempt, became)
         VALUES (99, 0, 'retry', FALSE, 1, 1, 1)",
        Rule::I9,
        99,
        "its timeline is there, but the job is not",
    ),
    Damage(
        "INSERT INTO tenure_ledger (job_id, effect, state, token, opened_at) VALUES (99, 'e', 0, 1, 0)",
        Rule::I9,
        99,
        "its effect is there, but the job is not",
    ),
    Damage(
        "INSERT INTO tenure_steps (job_id, step, token, at, result) VALUES (99, 's', 1, 0, '1')",
        Rule::I9,
        99,
        "its step is there, but the job is not",
    ),
    Damage("UPDATE tenure_jobs SET args = NULL WHERE id = 3", Rule::I9, 3, "its args are missing"),
    Damage(
        "INSERT INTO tenure_timeline (job_id, at, verb, refused, token, attempt, became)
         VALUES (1, 0, 'retry', FALSE, 2, 2, 1)",
        Rule::I3,
        1,
        "it succeeded under token 1, but retry happened under token 2",
    ),
    Damage("UPDATE tenure_done SET worker = NULL WHERE id = 1", Rule::I3, 1, "but nobody held it"),
    Damage(
        "UPDATE tenure_jobs SET state = 2, token = 1, attempt = 1, worker = 'ann', started_at = enqueued_at,
                leased_at = enqueued_at, lease_ms = 1000, lease_until = enqueued_at - 100000
          WHERE id = 3",
        Rule::I11,
        3,
        "and nobody takes it back",
    ),
    Damage(
        "UPDATE tenure_ledger SET state = 0, result = NULL WHERE job_id = 1",
        Rule::Ledger,
        1,
        "what became of its effect charge was never written",
    ),
    Damage(
        "UPDATE tenure_ledger SET token = 9 WHERE job_id = 1",
        Rule::Ledger,
        1,
        "its effect charge was written under token 9, above the job's own",
    ),
    Damage(
        "UPDATE tenure_steps SET token = 9 WHERE job_id = 1",
        Rule::Ledger,
        1,
        "its step load was written under token 9, above the job's own",
    ),
    Damage(
        "UPDATE tenure_keys SET job_id = 1 WHERE key = 'once'",
        Rule::Keys,
        2,
        "its key is remembered for the older job 1",
    ),
    Damage("UPDATE tenure_jobs SET lane = lane + 1 WHERE id = 3", Rule::Lane, 3, "its names and crashes give"),
    Damage("UPDATE tenure_jobs SET lane = lane | 2305843009213693952 WHERE id = 3", Rule::Lane, 3, "its names and crashes give"),
    Damage(
        "UPDATE tenure_jobs SET token = 5497558138880 WHERE id = 3",
        Rule::Epoch,
        3,
        "is from an epoch that has not begun",
    ),
    Damage(
        "UPDATE tenure_jobs SET id = 5497558138880 WHERE id = 3",
        Rule::Epoch,
        5_497_558_138_880,
        "is from an epoch that has not begun",
    ),
];

fn fill(shell: &Shell) {
    let json = |text: &str| Json::check("result", text, 100).unwrap();
    shell.ok(&["enqueue", "k"]);
    let mut store = shell.store();
    let fence = claim(&mut *store, 1)[0].lease.fence();
    ledger(&mut *store, fence, "charge", Act::Open);
    ledger(&mut *store, fence, "charge", Act::Commit { result: json("1") });
    ledger(&mut *store, fence, "load", Act::Remember { result: json("2") });
    let done = Outcome::Complete { result: None };
    store.settle(&[Settlement::new(fence, done)]).unwrap();
    shell.ok(&["enqueue", "k", "--key", "once"]);
    shell.ok(&["enqueue", "k"]);
    assert_eq!(shell.ok(&["doctor", "--check"]), "checked 3 jobs, nothing is wrong\n");
}

/// Writes to the tables as nobody should.
fn damage(shell: &Shell, sql: &str) {
    match &shell.database {
        Some(database) => database.execute(&sql.replace("tenure_", "tenure.")),
        None => {
            let file = rusqlite::Connection::open(shell.path("tenure.db")).unwrap();
            file.execute_batch(sql).unwrap();
        }
    }
}

fn everything_that_must_not_be_is_found(shell: &Shell) {
    let mut rules = BTreeSet::new();
    for Damage(sql, rule, job, what) in DAMAGES {
        let shell = if shell.database.is_some() { Shell::on_server() } else { Shell::new() };
        fill(&shell);
        damage(&shell, sql);
        let ran = shell.run(&["doctor", "--check", "--json"]);
        assert_eq!(ran.code, 1, "{sql}: {ran:?}");
        let found: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        let wrong = found["wrong"].as_array().unwrap();
        assert_eq!(wrong.len(), 1, "{sql}: {ran:?}");
        assert_eq!(wrong[0]["job"], json!(job.to_string()), "{sql}: {ran:?}");
        assert_eq!(wrong[0]["rule"], json!(rule.name()), "{sql}: {ran:?}");
        assert!(wrong[0]["what"].as_str().unwrap().contains(what), "{sql}: {ran:?}");
        rules.insert(*rule);

        let ran = shell.run(&["doctor", "--check"]);
        ran.refused(1, "1 thing is wrong");
        let line = format!("job {job} breaks {}: ", rule.name());
        assert!(ran.stdout.starts_with(&line) && ran.stdout.contains(what), "{sql}: {ran:?}");
    }
    assert_eq!(rules, BTreeSet::from(Rule::ALL), "a rule that nothing here breaks");
}
