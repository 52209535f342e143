//! Each test changes one thing in what a story has seen into something that must not be seen, and
//! compares which claims of the verdict no longer hold.
use serde_json::{Value, json};
use tenure::Timestamp;
use tenure::engine::inspect::{EffectView, JobDetail, TimelineEntry};
use tenure::engine::job::{JobId, Json, Name, NewJob, State};
use tenure::engine::lease::{Token, WorkerId};
use tenure::engine::ledger::{EffectRecord, Standing, effect_name};
use tenure::engine::lifecycle::Verb;
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
use tenure::engine::store::{Enqueued, Look, Work};

use super::{Claim, Told, crash, duplicate, mid_apply, outage, poison, race};

const JOB: i64 = 1;

/// A job from a real store, changed to have this state, token, crashes and timeline.
fn detail(state: State, token: i64, crashes: u16, timeline: &[TimelineEntry]) -> JobDetail {
    let mut store = Sqlite::in_memory(&StoreOptions::default()).unwrap();
    let args = Json::check("args", "{}", 10).unwrap();
    let new = NewJob::new(Name::check("kind", "late").unwrap(), args);
    let Enqueued::Created(id) = store.enqueue(&[new]).unwrap()[0] else { panic!("not stored") };
    let mut found = store.job(id).unwrap().unwrap();
    (found.job.state, found.job.token, found.job.crashes) = (state, Token(token), crashes);
    found.timeline = timeline.to_vec();
    found
}

fn entry(verb: Verb, token: i64, worker: &str, after_ms: i64) -> TimelineEntry {
    TimelineEntry {
        job: JobId(JOB),
        at: Timestamp::from_millis(after_ms),
        verb,
        refused: false,
        token: Token(token),
        attempt: 1,
        worker: Some(WorkerId::check(worker).unwrap()),
        from: Some(Timestamp::from_millis(0)),
        became: State::Queued,
        note: None,
        earlier: 0,
    }
}

fn effect(token: i64, standing: Standing) -> EffectView {
    EffectView {
        effect: EffectRecord {
            job: JobId(JOB),
            name: effect_name("charge").unwrap(),
            standing,
            token: Token(token),
            opened_at: Timestamp::from_millis(0),
            ended_at: None,
            result: None,
            note: None,
        },
        in_doubt: false,
        state: State::Succeeded,
        kind: Name::check("kind", "late").unwrap(),
        tenant: Default::default(),
    }
}

fn told(who: &str, event: Value) -> Told {
    Told { ms: 0, who: who.into(), event }
}

fn of_job(who: &str, name: &str, token: &str) -> Told {
    told(who, json!({ "event": name, "job": "1", "token": token }))
}

/// The indexes of the claims that do not hold.
fn broken(verdict: &[Claim]) -> Vec<usize> {
    (0..verdict.len()).filter(|at| !verdict[*at].held).collect()
}

/// A race as it should be.
fn good_race() -> race::Seen {
    let refused = json!({
        "event": "stale_write_blocked", "job": "1", "token": "1", "verb": "effect_open",
        "stale_token": "1", "current_token": "3", "reason": "token_mismatch",
    });
    race::Seen {
        detail: detail(State::Succeeded, 3, 1, &[entry(Verb::Lapse, 1, "a", 1_000)]),
        effects: vec![effect(3, Standing::Committed)],
        calls: 1,
        trace: vec![
            of_job("A", "lease_acquired", "1"),
            of_job("A", "execution_started", "1"),
            of_job("B", "lease_acquired", "3"),
            of_job("B", "execution_started", "3"),
            told("A", refused),
            told("A", json!({ "event": "worker_exit", "reason": "stale" })),
            told("B", json!({ "event": "worker_exit", "reason": "drained" })),
        ],
    }
}

/// The indexes of the claims that do not hold after this change.
fn race_with(change: impl FnOnce(&mut race::Seen)) -> Vec<usize> {
    let mut seen = good_race();
    change(&mut seen);
    broken(&race::verdict(&seen))
}

#[test]
fn a_race_is_lost_by_every_single_thing_that_may_not_be() {
    const TAKEOVER: usize = 0;
    const LEASE: usize = 1;
    const REFUSED: usize = 2;
    const ONE_ENTRY: usize = 3;
    const ONE_TOKEN: usize = 4;
    const ONE_CALL: usize = 5;
    const SUCCEEDED: usize = 6;
    const ORDER: usize = 7;
    assert_eq!(race_with(|_| {}), [0; 0]);
    let same_token = |seen: &mut race::Seen| seen.trace[2].event["token"] = json!("1");
    assert_eq!(race_with(same_token), [TAKEOVER, REFUSED, ONE_TOKEN]);
    let too_early =
        |seen: &mut race::Seen| seen.detail.timeline[0].at = Timestamp::from_millis(999);
    assert_eq!(race_with(too_early), [LEASE]);
    assert_eq!(race_with(|seen| seen.detail.timeline.clear()), [LEASE]);
    let other_reason =
        |seen: &mut race::Seen| seen.trace[4].event["reason"] = json!("lease_expired");
    assert_eq!(race_with(other_reason), [REFUSED, ORDER]);
    let not_refused = |seen: &mut race::Seen| drop(seen.trace.remove(4));
    assert_eq!(race_with(not_refused), [REFUSED, ORDER]);
    let twice = |seen: &mut race::Seen| seen.effects.push(effect(3, Standing::Committed));
    assert_eq!(race_with(twice), [ONE_ENTRY]);
    let stale_too = |seen: &mut race::Seen| seen.effects.push(effect(1, Standing::Committed));
    assert_eq!(race_with(stale_too), [ONE_ENTRY, ONE_TOKEN]);
    let only_intent = |seen: &mut race::Seen| seen.effects[0] = effect(3, Standing::Open);
    assert_eq!(race_with(only_intent), [ONE_ENTRY]);
    assert_eq!(race_with(|seen| seen.detail.job.token = Token(1)), [ONE_TOKEN]);
    assert_eq!(race_with(|seen| seen.calls = 2), [ONE_CALL]);
    assert_eq!(race_with(|seen| seen.detail.job.state = State::Queued), [SUCCEEDED]);
    assert_eq!(race_with(|seen| seen.trace.swap(5, 6)), [ORDER]);
    let content = |seen: &mut race::Seen| seen.trace[5].event["reason"] = json!("drained");
    assert_eq!(race_with(content), [ORDER]);
}

#[test]
fn of_many_races_one_that_is_lost_is_enough() {
    let good = race::verdict(&good_race());
    let bad = race::verdict(&race::Seen { calls: 2, ..good_race() });
    assert_eq!(broken(&race::sum(&[good.clone(), good.clone()])), [0; 0]);
    let sum = race::sum(&[good.clone(), bad, good]);
    assert_eq!(broken(&sum), [5]);
    assert_eq!(sum[5].seen, "in 2 of 3, but once: 2 times");
    assert_eq!(race::sum(&[]), [], "and none at all proves nothing");
}

#[test]
fn a_crash_that_waits_for_the_lease_or_repeats_something_is_noticed() {
    let second = std::time::Duration::from_secs(1);
    let with = |change: fn(&mut crash::Seen)| {
        let mut seen = crash::Seen {
            detail: detail(State::Succeeded, 3, 1, &[entry(Verb::Vanish, 1, "a", 500)]),
            effects: vec![effect(1, Standing::Committed)],
            killed_ms: 100,
            taken: of_job("B", "execution_started", "3"),
            steps: 1,
            calls: 1,
        };
        seen.taken.ms = 900;
        change(&mut seen);
        broken(&crash::verdict(&seen, second))
    };
    assert_eq!(with(|_| {}), [0; 0]);
    assert_eq!(with(|seen| seen.taken.ms = 1_101), [0]);
    assert_eq!(with(|seen| seen.detail.timeline[0].verb = Verb::Lapse), [1]);
    assert_eq!(with(|seen| seen.detail.job.token = Token(5)), [2]);
    assert_eq!(with(|seen| seen.steps = 2), [3]);
    assert_eq!(with(|seen| seen.calls = 2), [4]);
    assert_eq!(with(|seen| seen.effects[0].effect.standing = Standing::Open), [4]);
    assert_eq!(with(|seen| seen.detail.job.state = State::Running), [5]);
}

#[test]
fn a_second_job_under_one_key_is_noticed() {
    let answers = |verdicts: &[&str]| -> Vec<Told> {
        let answer = |verdict: &&str| {
            told("A", json!({ "event": "submitted", "verdict": verdict, "job": "1" }))
        };
        verdicts.iter().map(answer).collect()
    };
    let (made, known, other) = ("created", "existing", "conflict");
    let with = |change: fn(&mut duplicate::Seen)| {
        let mut seen = duplicate::Seen {
            in_turn: answers(&[made, known, other]),
            same: answers(&[made, known, known, known, known, known, known, known]),
            mixed: answers(&[made, known, known, known, other, other, other, other]),
            stored: 3,
        };
        change(&mut seen);
        broken(&duplicate::verdict(&seen))
    };
    assert_eq!(with(|_| {}), [0; 0]);
    assert_eq!(with(|seen| seen.in_turn[2].event["verdict"] = json!("existing")), [0]);
    assert_eq!(with(|seen| seen.in_turn[1].event["job"] = json!("2")), [0]);
    assert_eq!(with(|seen| seen.same[1].event["verdict"] = json!("created")), [1]);
    assert_eq!(with(|seen| seen.same[7].event["job"] = json!("2")), [1]);
    assert_eq!(with(|seen| seen.mixed[7].event["verdict"] = json!("existing")), [2]);
    assert_eq!(with(|seen| seen.stored = 4), [3]);
}

#[test]
fn an_effect_that_is_guessed_at_is_noticed() {
    let seen = |book: &[&str]| mid_apply::Seen {
        detail: detail(State::Succeeded, 4, 1, &[]),
        effects: vec![effect(3, Standing::Committed)],
        book: book.iter().map(|key| (*key).to_owned()).collect(),
    };
    let with = |change: fn(&mut mid_apply::Parked, &mut mid_apply::Seen)| {
        let mut first = mid_apply::Parked { doubted: true, waited: true, seen: seen(&["k1"]) };
        let mut second = seen(&["k2", "k2"]);
        change(&mut first, &mut second);
        broken(&mid_apply::verdict(&first, &second))
    };
    assert_eq!(with(|_, _| {}), [0; 0]);
    assert_eq!(with(|first, _| first.doubted = false), [0]);
    assert_eq!(with(|first, _| first.waited = false), [1]);
    assert_eq!(with(|first, _| first.seen.effects.clear()), [2]);
    assert_eq!(with(|first, _| first.seen.book.push("k1".into())), [3]);
    assert_eq!(with(|_, second| second.book[1] = "k3".into()), [4]);
    assert_eq!(with(|_, second| second.detail.job.state = State::Parked), [5]);
}

#[test]
fn an_outage_that_loses_doubles_or_hides_something_is_noticed() {
    let with = |change: fn(&mut outage::Seen)| {
        let done = || detail(State::Succeeded, 1, 0, &[]);
        let mut trace = vec![
            told("A", json!({ "event": "store_lost" })),
            told("A", json!({ "event": "store_back" })),
        ];
        trace.extend((0..6).map(|_| of_job("A", "job_succeeded", "1")));
        let mut seen = outage::Seen {
            jobs: (0..6).map(|_| done()).collect(),
            effects: 6,
            book: (0..6).map(|n| format!("k{n}")).collect(),
            trace,
        };
        change(&mut seen);
        broken(&outage::verdict(&seen))
    };
    assert_eq!(with(|_| {}), [0; 0]);
    assert_eq!(with(|seen| drop(seen.trace.drain(..2))), [0]);
    assert_eq!(with(|seen| drop(seen.trace.remove(1))), [1]);
    assert_eq!(with(|seen| seen.jobs[3].job.state = State::Queued), [2]);
    assert_eq!(with(|seen| seen.effects = 7), [3]);
    assert_eq!(with(|seen| seen.book[5] = "k0".into()), [3]);
    assert_eq!(with(|seen| drop(seen.trace.pop())), [4]);
}

#[test]
fn a_poison_that_spreads_or_goes_on_is_noticed() {
    let with = |change: fn(&mut poison::Seen)| {
        let evidence = ["a", "b", "c", "d", "e"].map(|worker| entry(Verb::Vanish, 1, worker, 500));
        let mut seen = poison::Seen {
            poison: detail(State::Dead, 10, 5, &evidence),
            others: (0..5).map(|_| detail(State::Succeeded, 3, 1, &[])).collect(),
            deaths: 5,
        };
        change(&mut seen);
        broken(&poison::verdict(&seen))
    };
    assert_eq!(with(|_| {}), [0; 0]);
    assert_eq!(with(|seen| seen.poison.job.state = State::Queued), [0]);
    assert_eq!(with(|seen| seen.poison.job.crashes = 4), [0]);
    assert_eq!(with(|seen| drop(seen.poison.timeline.pop())), [1]);
    assert_eq!(with(|seen| seen.deaths = 6), [2]);
    assert_eq!(with(|seen| seen.others[2].job.state = State::Dead), [3]);
    assert_eq!(with(|seen| seen.others[2].job.crashes = 3), [4]);
}

#[test]
fn an_event_is_one_line_with_what_matters_first() {
    let refusal = &good_race().trace[4];
    assert_eq!(
        refusal.to_string(),
        "  0.000 s  A   stale_write_blocked job=1 token=1 verb=effect_open stale_token=1 current_token=3 \
         reason=token_mismatch"
    );
    assert_eq!(
        told("B", json!({ "event": "store_back" })).to_string(),
        "  0.000 s  B   store_back"
    );
    assert_eq!(
        told("-", json!({ "event": "note", "text": "it rains" })).to_string(),
        "  0.000 s  -   it rains"
    );
}
