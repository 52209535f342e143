//! Stores that a person has broken by writing to their tables, each in one way. The reconciler (the
//! check behind `tenure doctor --check`) reads a store in windows of some jobs each. It must find
//! the damage exactly once: in the window of the damaged job, and in no other.

use std::time::Duration;

use tenure::engine::inspect::Rule;
use tenure::engine::job::{Key, Name, NewJob};
use tenure::engine::lease::{Fence, Token};
use tenure::engine::ledger::{Act, Entry, effect_name};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::{Settlement, Store};

use crate::conformance::{ask, complete, job, json, retry};

/// One way to break what [`fill`] makes.
#[derive(Debug)]
pub struct Damage {
    /// The statement that does the damage on SQLite. On PostgreSQL, `tenure_` is replaced by the
    /// schema, `tenure.`.
    pub sql: &'static str,
    /// The rule that is broken.
    pub rule: Rule,
    /// The job that breaks it.
    pub job: i64,
    /// Words that the finding must contain.
    pub words: &'static str,
}

const fn damage(rule: Rule, job: i64, words: &'static str, sql: &'static str) -> Damage {
    Damage { sql, rule, job, words }
}

/// All kinds of damage; every rule is broken by some.
pub const DAMAGES: &[Damage] = &[
    damage(
        Rule::I9,
        1,
        "it is both owed and ended",
        "INSERT INTO tenure_jobs (id, token, state, lane, run_at, enqueued_at, attempt, max_attempts, crashes,
                                  max_crashes, priority, queue, tenant, kind, args)
         SELECT 1, 1, state, lane, run_at, enqueued_at, attempt, max_attempts, crashes,
                max_crashes, priority, queue, tenant, kind, args
           FROM tenure_jobs WHERE id = 4",
    ),
    damage(
        Rule::I9,
        99,
        "its payload is there, but the job is not",
        "INSERT INTO tenure_payloads (job_id, args) VALUES (99, '1')",
    ),
    damage(
        Rule::I9,
        99,
        "its timeline is there, but the job is not",
        "INSERT INTO tenure_timeline (job_id, at, verb, refused, token, attempt, became)
         VALUES (99, 0, 'retry', FALSE, 1, 1, 1)",
    ),
    damage(
        Rule::I9,
        99,
        "its effect is there, but the job is not",
        "INSERT INTO tenure_ledger (job_id, effect, state, token, opened_at) VALUES (99, 'e', 0, 1, 0)",
    ),
    damage(
        Rule::I9,
        99,
        "its step is there, but the job is not",
        "INSERT INTO tenure_steps (job_id, step, token, at, result) VALUES (99, 's', 1, 0, '1')",
    ),
    damage(
        Rule::I9,
        0,
        "its payload is there, but the job is not",
        "INSERT INTO tenure_payloads (job_id, args) VALUES (0, '1')",
    ),
    damage(Rule::I9, 4, "its args are missing", "UPDATE tenure_jobs SET args = NULL WHERE id = 4"),
    damage(Rule::I9, 1, "its args are missing", "UPDATE tenure_done SET args = NULL WHERE id = 1"),
    damage(Rule::I9, 5, "its args are missing", "DELETE FROM tenure_payloads WHERE job_id = 5"),
    damage(Rule::I9, 2, "its args are missing", "DELETE FROM tenure_payloads WHERE job_id = 2"),
    damage(
        Rule::I3,
        1,
        "it succeeded under token 1, but retry happened under token 2",
        "INSERT INTO tenure_timeline (job_id, at, verb, refused, token, attempt, became)
         VALUES (1, 0, 'retry', FALSE, 2, 2, 1)",
    ),
    damage(
        Rule::I3,
        2,
        "it succeeded under token 2, but snooze happened under token 2",
        "INSERT INTO tenure_timeline (job_id, at, verb, refused, token, attempt, became)
         VALUES (2, 0, 'snooze', FALSE, 2, 2, 1)",
    ),
    damage(
        Rule::I3,
        1,
        "but nobody held it",
        "UPDATE tenure_done SET worker = NULL WHERE id = 1",
    ),
    damage(
        Rule::I3,
        1,
        "but nobody held it",
        "UPDATE tenure_done SET started_at = NULL WHERE id = 1",
    ),
    damage(
        Rule::I11,
        4,
        "and nobody takes it back",
        "UPDATE tenure_jobs SET state = 2, token = 1, attempt = 1, worker = 'ann', started_at = enqueued_at,
                leased_at = enqueued_at, lease_ms = 1000, lease_until = enqueued_at - 100000
          WHERE id = 4",
    ),
    damage(
        Rule::Ledger,
        1,
        "what became of its effect charge was never written",
        "UPDATE tenure_ledger SET state = 0, result = NULL WHERE job_id = 1",
    ),
    damage(
        Rule::Ledger,
        1,
        "its effect charge was written under token 9, above the job's own",
        "UPDATE tenure_ledger SET token = 9 WHERE job_id = 1",
    ),
    damage(
        Rule::Ledger,
        1,
        "its step load was written under token 9, above the job's own",
        "UPDATE tenure_steps SET token = 9 WHERE job_id = 1",
    ),
    damage(
        Rule::Keys,
        3,
        "its key is remembered for the older job 1",
        "UPDATE tenure_keys SET job_id = 1 WHERE key = 'third'",
    ),
    damage(
        Rule::Keys,
        2,
        "its key is remembered for the older job 1",
        "UPDATE tenure_keys SET job_id = 1 WHERE key = 'second'",
    ),
    damage(
        Rule::Lane,
        4,
        "its names and crashes give",
        "UPDATE tenure_jobs SET lane = lane + 1 WHERE id = 4",
    ),
    damage(
        Rule::Lane,
        4,
        "its names and crashes give",
        "UPDATE tenure_jobs SET lane = lane | 2305843009213693952 WHERE id = 4",
    ),
    damage(
        Rule::Epoch,
        4,
        "is from an epoch that has not begun",
        "UPDATE tenure_jobs SET token = 5497558138880 WHERE id = 4",
    ),
    damage(
        Rule::Epoch,
        1,
        "is from an epoch that has not begun",
        "UPDATE tenure_done SET token = 5497558138880 WHERE id = 1",
    ),
    damage(
        Rule::Epoch,
        5_497_558_138_880,
        "is from an epoch that has not begun",
        "UPDATE tenure_jobs SET id = 5497558138880 WHERE id = 4",
    ),
];

/// Fills an empty store. Job 1 has succeeded with an effect and a step; a second settlement of it,
/// under a token that was never issued, was refused. Job 2 has succeeded under a key, with large
/// args, at its second attempt. Job 3 is queued under a key, job 4 without one, and job 5 with
/// large args.
///
/// # Panics
///
/// If a call of the store fails.
pub fn fill(store: &mut dyn Store) {
    let large = || NewJob::new(work(), json(&format!("\"{}\"", "x".repeat(3_000))));
    let key = |text: &str| Key::check(text).expect("a valid key");
    let put = |store: &mut dyn Store, job: NewJob| store.enqueue(&[job]).expect("enqueue answers");
    put(store, job("work"));
    let fence = take(store);
    for (name, act) in [
        ("charge", Act::Open),
        ("charge", Act::Commit { result: json("1") }),
        ("load", Act::Remember { result: json("2") }),
    ] {
        let name = effect_name(name).expect("a valid name");
        store.ledger(&[Entry { fence, name, act }]).expect("ledger answers");
    }
    settle(store, fence, complete());
    settle(store, Fence { token: Token(77), ..fence }, complete());
    put(store, large().key(key("second")));
    for outcome in [retry(Duration::ZERO), complete()] {
        let fence = take(store);
        settle(store, fence, outcome);
    }
    put(store, job("work").key(key("third")));
    put(store, job("work"));
    put(store, large());
}

fn work() -> Name {
    Name::check("kind", "work").expect("a valid name")
}

fn take(store: &mut dyn Store) -> Fence {
    store.claim(&ask("ann", 1)).expect("claim answers").attempts[0].lease.fence()
}

fn settle(store: &mut dyn Store, fence: Fence, outcome: Outcome) {
    store.settle(&[Settlement::new(fence, outcome)]).expect("settle answers");
}

/// The findings in one window of the check, each as job, rule and words; and the job at which the
/// next window begins.
pub type Seen = (Vec<(i64, String, String)>, Option<i64>);

/// Checks a whole store three times, in windows of 1, 2 and 1,000 jobs. Each time the check must
/// find `damage` exactly once, and nothing else; without damage, it must find nothing.
///
/// # Panics
///
/// If the check finds anything else.
pub fn look_through(damage: Option<&Damage>, mut check: impl FnMut(Option<i64>, usize) -> Seen) {
    for size in [1, 2, 1_000] {
        let (mut found, mut from) = (Vec::new(), None);
        for windows in 1.. {
            assert!(windows < 100, "the windows come to an end");
            let (wrong, next) = check(from, size);
            found.extend(wrong);
            if next.is_none() {
                break;
            }
            from = next;
        }
        let Some(Damage { sql, rule, job, words }) = damage else {
            assert_eq!(found, [], "nothing is wrong, in windows of {size}");
            continue;
        };
        let is_it = |(id, name, what): &(i64, String, String)| {
            id == job && name == rule.name() && what.contains(words)
        };
        assert!(found.len() == 1 && is_it(&found[0]), "{sql}, in windows of {size}: {found:?}");
    }
}

/// Like [`look_through`], for any store of the port.
pub(crate) fn look_through_store(damage: Option<&Damage>, store: &mut dyn Store) {
    look_through(damage, |from, size| {
        let checked = store.check(from.map(tenure::JobId), size).expect("check answers");
        let wrong = checked.wrong.into_iter();
        let told = wrong.map(|wrong| (wrong.job.0, wrong.rule.name().to_owned(), wrong.what));
        (told.collect(), checked.next.map(|next| next.0))
    });
}
