//! The rules of retries and crashes exist twice: in lifecycle.rs for the library, and in SQL for
//! all other clients. One table of cases checks that both decide alike.

use std::time::Duration;

use tenure::engine::clock::{Jitter, Timestamp};
use tenure::engine::job::{RetryPolicy, State};
use tenure::engine::lifecycle::{
    Again, CRASH_MEMORY, Counts, Next, Outcome, Verb, after_lapse, after_settling, attempt_counts,
    crashes_after_return, is_own_return, makes_suspect, retry_delay,
};

use super::{Case, sql_cases};
use crate::engines::START;
use crate::sessions::Lab;

pub(super) const CASES: &[Case] = sql_cases! {
    "agree":
    the_delay_before_a_retry_is_the_same_in_sql,
    a_lapse_becomes_the_same_in_sql,
    a_settlement_becomes_the_same_in_sql,
};

/// The policies as library values. SQL gets their JSON.
fn policies() -> Vec<RetryPolicy> {
    let exponential = |base_ms, cap_ms| RetryPolicy::Exponential { base_ms, cap_ms };
    let end = Timestamp::MAX.as_millis().unsigned_abs();
    vec![
        RetryPolicy::default(),
        exponential(0, 0),
        exponential(0, 300_000),
        exponential(1, u64::MAX),
        exponential(7, 1_000),
        exponential(1_000, 1),
        exponential(u64::MAX, u64::MAX),
        exponential(u64::MAX, 5),
        exponential(i64::MAX.unsigned_abs(), u64::MAX),
        exponential(1 << 62, u64::MAX),
        exponential((1 << 62) + 1, u64::MAX),
        exponential(end, end),
        exponential(end * 2 + 1, u64::MAX),
        RetryPolicy::Fixed { ms: 0 },
        RetryPolicy::Fixed { ms: 70 },
        RetryPolicy::Fixed { ms: u64::MAX },
        RetryPolicy::list(&[5]),
        RetryPolicy::list(&[100, 0, 300]),
        RetryPolicy::List { ms: (1..=64).collect() },
        RetryPolicy::list(&[u64::MAX, 1]),
    ]
}

fn spelled(policy: &RetryPolicy) -> String {
    serde_json::to_string(policy).unwrap()
}

/// Caps a delay at the largest timestamp: added to a clock, a longer delay makes no difference.
fn bounded(ms: u128) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).min(Timestamp::MAX.as_millis())
}

fn the_delay_before_a_retry_is_the_same_in_sql() {
    let mut lab = Lab::new();
    let failures = [0, 1, 2, 3, 4, 10, 31, 32, 33, 52, 53, 62, 63, 64, 65, 66, 1_000, u16::MAX];
    let jitters = [0, 1, u32::MAX / 2, 1 << 31, u32::MAX];
    let ask = "SELECT least(tenure.retry_delay($1::text::json, $2, $3), tenure.end_of_time())";
    let ask = lab.owner().prepare(ask).unwrap();
    let mut cases = 0;
    for policy in policies() {
        let json = spelled(&policy);
        for failures in failures {
            for jitter in jitters {
                let arguments: [&(dyn postgres::types::ToSql + Sync); 3] =
                    [&json, &i32::from(failures), &i64::from(jitter)];
                let sql: i64 = lab.owner().query_one(&ask, &arguments).unwrap().get(0);
                let library = retry_delay(&policy, failures, Jitter(jitter)).as_millis();
                assert_eq!(sql, bounded(library), "{json} after {failures} with {jitter}");
                cases += 1;
            }
        }
        let accepted: bool = lab
            .owner()
            .query_one("SELECT tenure.is_retry_policy($1::text::json)", &[&json])
            .unwrap()
            .get(0);
        assert!(accepted, "{json}");
    }
    assert_eq!(cases, 20 * 18 * 5);
    // A missing policy means the default policy.
    let none = "SELECT tenure.retry_delay(NULL, 3, 4294967295)";
    assert_eq!(lab.number(none), 3_999);
}

/// Jobs with different numbers of attempts and crashes already used up.
fn all_counts() -> Vec<Counts> {
    let mut all_counts = Vec::new();
    for retry in policies() {
        for (attempt, max_attempts) in
            [(1, 1), (1, 6), (5, 6), (6, 6), (u16::MAX, u16::MAX), (64, 70)]
        {
            for (crashes, max_crashes) in
                [(0, 1), (0, 2), (0, 3), (1, 3), (2, 3), (0, 4), (1, 4), (63, 99), (98, 99)]
            {
                all_counts.push(Counts {
                    attempt,
                    max_attempts,
                    crashes,
                    max_crashes,
                    retry: retry.clone(),
                });
            }
        }
    }
    all_counts
}

/// A database with one running job, claimed at `START` under token 1 and due since one second
/// before that. Its lease of one millisecond has just ended.
fn lab() -> Lab {
    let mut lab = Lab::new();
    lab.owner()
        .batch_execute(
            "SELECT tenure.enqueue('work', run_at => tenure.now() - interval '1 s');
             SELECT * FROM tenure.claim('ann', lease => '1 ms')",
        )
        .unwrap();
    lab.advance(1);
    lab
}

/// What became of a job.
#[derive(Debug, PartialEq)]
struct Became {
    state: String,
    /// After `START`, in milliseconds.
    run_at: i64,
    attempt: i32,
    crashes: i32,
    suspect: bool,
    note: Option<String>,
}

/// Gives the job these counts (a suspect if it has crashed), makes a call, returns what became
/// of the job, and rolls everything back. The last crash was `ago` before `START`, the time of the
/// claim.
fn rehearse(lab: &mut Lab, counts: &Counts, ago: Duration, call: &str) -> Became {
    let n = |n: u16| i32::from(n);
    let (attempt, max_attempts) = (n(counts.attempt), n(counts.max_attempts));
    let (crashes, max_crashes) = (n(counts.crashes), n(counts.max_crashes));
    let retry = spelled(&counts.retry);
    let mut undone = lab.owner().transaction().unwrap();
    let crashed_at = (counts.crashes > 0).then_some((START - ago).as_millis());
    let sql = "UPDATE tenure.jobs SET attempt = $1, max_attempts = $2, crashes = $3, max_crashes = $4, retry = $5::text::json, \
               crashed_at = $6, lane = tenure.lane(queue, tenant, kind, $3 > 0)";
    undone
        .execute(sql, &[&attempt, &max_attempts, &crashes, &max_crashes, &retry, &crashed_at])
        .unwrap();
    undone.batch_execute(&format!("SELECT tenure.{call}")).unwrap();
    let sql = "SELECT tenure.state_name(state), run_at - $1, attempt, crashes, suspect, (SELECT note FROM tenure.timeline) FROM tenure.record";
    let row = undone.query_one(sql, &[&START.as_millis()]).unwrap();
    Became {
        state: row.get(0),
        run_at: row.get(1),
        attempt: row.get(2),
        crashes: row.get(3),
        suspect: row.get(4),
        note: row.get(5),
    }
}

/// When a job with this next move is due, in milliseconds after `START`. The calls are made one
/// millisecond after `START`.
fn due(next: Next) -> i64 {
    let end = Timestamp::MAX.as_millis() - START.as_millis();
    match next {
        Next::Queue(Again::In(delay)) => bounded(delay.as_millis()).saturating_add(1).min(end),
        // The job keeps its old `run_at`, also if it has ended or is parked.
        Next::Queue(Again::AsBefore) | Next::Park | Next::End(_) => -1_000,
    }
}

fn a_lapse_becomes_the_same_in_sql() {
    let mut lab = lab();
    for counts in all_counts() {
        let (next, why) = after_lapse(&counts, Verb::Lapse);
        let expected = Became {
            state: next.state().name().into(),
            run_at: due(next),
            attempt: counts.attempt.into(),
            crashes: i32::from(counts.crashes) + 1,
            suspect: next.state() == State::Queued
                && makes_suspect(counts.crashes + 1, counts.max_crashes),
            note: Some(why.into()),
        };
        assert_eq!(
            rehearse(&mut lab, &counts, Duration::ZERO, "lapse_many('{1}', '{1}')"),
            expected,
            "{counts:?}"
        );
    }
}

/// The calls of the functions for one job, and the library's outcome that corresponds to each.
fn outcomes(counts: &Counts) -> Vec<(&'static str, Outcome)> {
    let after = Duration::from_millis(1_234);
    let error = String::from("why");
    let own = retry_delay(&counts.retry, counts.attempt, Jitter(0));
    vec![
        ("complete(1, 1)", Outcome::Complete { result: None }),
        ("fail(1, 1, 'why', '1234 ms')", Outcome::Retry { after, error: error.clone() }),
        ("fail(1, 1, 'why')", Outcome::Retry { after: own, error: error.clone() }),
        ("snooze(1, 1, '1234 ms')", Outcome::Snooze { after }),
        ("release(1, 1)", Outcome::Release),
        ("bury(1, 1, 'why')", Outcome::Bury { reason: error.clone() }),
        ("park(1, 1, 'why')", Outcome::Park { reason: error }),
    ]
}

fn a_settlement_becomes_the_same_in_sql() {
    let mut lab = lab();
    // The job was claimed a millisecond ago. A job with one crash is tried twice: while the crash
    // still counts, and when it no longer does.
    let ages = |it: &Counts| match it.crashes {
        1 => vec![CRASH_MEMORY - Duration::from_millis(2), CRASH_MEMORY],
        _ => vec![Duration::ZERO],
    };
    let aged = |it: Counts| ages(&it).into_iter().map(move |ago| (it.clone(), ago));
    for (counts, ago) in all_counts().into_iter().flat_map(aged) {
        for (call, outcome) in outcomes(&counts) {
            let next = after_settling(&counts, &outcome);
            let mut became = rehearse(&mut lab, &counts, ago, call);
            let goes_on = !next.state().has_ended();
            let forgives = goes_on && is_own_return(outcome.verb());
            let (crashes, crashed_at) = (counts.crashes, Some(START - ago));
            let left = crashes_after_return(crashes, crashed_at, START + Duration::from_millis(1));
            let expected = Became {
                state: next.state().name().into(),
                run_at: due(next),
                attempt: i32::from(counts.attempt) - i32::from(!attempt_counts(outcome.verb())),
                crashes: if forgives { left } else { crashes }.into(),
                suspect: crashes > 0 && goes_on && !is_own_return(outcome.verb()),
                note: outcome.note(),
            };
            if next.state() == State::Queued && call == "fail(1, 1, 'why')" {
                // The server draws its own jitter: the time is between no jitter and full jitter.
                let most = retry_delay(&counts.retry, counts.attempt, Jitter(u32::MAX));
                let most = due(Next::Queue(Again::In(most)));
                assert!(
                    (expected.run_at..=most).contains(&became.run_at),
                    "{became:?} for {counts:?}"
                );
                became.run_at = expected.run_at;
            }
            assert_eq!(became, expected, "{call}: {counts:?}");
        }
    }
}
