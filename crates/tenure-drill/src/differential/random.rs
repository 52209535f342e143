//! Random steps: a seed always gives the same ones.

use std::num::NonZeroU16;
use std::time::Duration;

use tenure::engine::clock::Chance;
use tenure::engine::job::{JobId, Json, Key, Name, NewJob, Progress, RetryPolicy, State, Tenant};
use tenure::engine::ledger::{Act, Resolution};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::{Claim, Pause, QueueChange};
use tenure::{Filter, WorkerId};

use super::{Query, Step};

impl Step {
    pub(super) fn random(chance: &mut Chance) -> Step {
        let at = |chance: &mut Chance| chance.below(1_000) as usize;
        match chance.below(174) {
            0..15 => Step::Pass(
                one_of(chance, &[1, 300, 500, 1_000, 5_000, 20_000, 61_000, 90_000_000])
                    .into_duration(),
            ),
            15..33 => Step::Enqueue((0..1 + chance.below(4)).map(|_| random_job(chance)).collect()),
            33..55 => Step::Claim(random_claim(chance)),
            55..57 => Step::Held(random_worker(chance), one_of(chance, &[None, Some(0), Some(1)])),
            57..62 => Step::Renew(
                (0..2).map(|_| at(chance)).collect(),
                one_of(chance, &[10, 5_000, 30_000]).into_duration(),
            ),
            62..76 => {
                Step::Settle((0..1 + chance.below(3)).map(|_| random_settlement(chance)).collect())
            }
            76..79 => {
                Step::SettleAndClaim(at(chance), random_outcome(chance), random_claim(chance))
            }
            79..82 => {
                let grace = one_of(chance, &[0_u64, 0, 2_000]).into_duration();
                Step::Sweep(chance.below(5) as usize, grace)
            }
            82..84 => Step::Lapse((0..2).map(|_| at(chance)).collect()),
            84..87 => Step::Cancel(at(chance)),
            87..90 => Step::Requeue(at(chance), (chance.below(2) == 0).then(|| at(chance))),
            90..92 => Step::Resume(at(chance)),
            92..93 => Step::Purge(at(chance), (chance.below(3) == 0).then(|| at(chance))),
            93..95 => Step::Configure(random_queue(chance), random_change(chance)),
            95..96 => Step::Prune(chance.below(6) as usize),
            96..98 => Step::Look(Query::Page(random_filter(chance), chance.below(5) as usize)),
            98 => Step::Look(Query::Leases(chance.below(5) as usize)),
            99 => Step::Look(Query::Overview),
            100..126 => random_ledger(chance),
            126..128 => Step::Resolve(at(chance), random_effect(chance), random_resolution(chance)),
            128 => Step::Look(Query::Effects(chance.below(2) == 0, chance.below(5) as usize)),
            129..135 => Step::Register(random_worker(chance)),
            135 => Step::Retire(random_worker(chance)),
            136..142 => Step::Die(random_worker(chance), chance.below(2) == 0),
            142..146 => Step::Vanish(one_of(chance, &[0, 1, 1_000])),
            146 if chance.below(3) == 0 => {
                Step::GuardGap(one_of(chance, &[0_u64, 300, 1_000, 60_000, 60_001]).into_duration())
            }
            146 => Step::Restart,
            147 => Step::Backup,
            148 => Step::GoBack,
            149..154 => Step::Look(Query::Check(1 + chance.below(20) as usize)),
            154..158 => Step::Beat,
            158..168 => Step::Decide(random_effect(chance), random_resolution(chance)),
            _ => Step::Progress((0..1 + chance.below(4)).map(|_| random_report(chance)).collect()),
        }
    }
}

trait IntoDuration {
    fn into_duration(self) -> Duration;
}

impl IntoDuration for u64 {
    fn into_duration(self) -> Duration {
        Duration::from_millis(self)
    }
}

fn one_of<T: Clone>(chance: &mut Chance, items: &[T]) -> T {
    items[chance.below(items.len() as u64) as usize].clone()
}

fn name(text: &str) -> Name {
    Name::check("name", text).expect("a valid name")
}

fn random_queue(chance: &mut Chance) -> Name {
    name(one_of(chance, &["default", "default", "bulk", "slow"]))
}

fn random_kind(chance: &mut Chance) -> Name {
    name(one_of(chance, &["mail", "copy", "sum"]))
}

fn random_tenant(chance: &mut Chance) -> Tenant {
    Tenant::check(one_of(chance, &["", "", "acme", "zeta", "t1", "t2"])).expect("a valid tenant")
}

fn random_worker(chance: &mut Chance) -> WorkerId {
    WorkerId::check(one_of(chance, &["ann", "bob", "cid"])).expect("a valid worker id")
}

fn random_job(chance: &mut Chance) -> NewJob {
    let large = format!("\"{}\"", "x".repeat(2_100));
    let is_keyed = chance.below(3) == 0;
    // Many keyed jobs are alike. Otherwise a repeated request would hardly ever occur.
    let (kind, args) = if is_keyed && chance.below(2) == 0 {
        (name("mail"), one_of(chance, &["{}", "{ }"]).to_owned())
    } else {
        let args = one_of(chance, &["{}", "{ }", "[1,2]", r#"{"a":1}"#, &large]).to_owned();
        (random_kind(chance), args)
    };
    let json = Json::check("args", args, usize::MAX).expect("valid JSON");
    let mut job = NewJob::new(kind, json).queue(random_queue(chance)).tenant(random_tenant(chance));
    let priority = one_of(chance, &[0, 0, 0, -1, 5]);
    job = job.priority(priority);
    if chance.below(4) == 0 {
        job = job.delay(one_of(chance, &[1_u64, 900, 30_000]).into_duration());
    }
    if is_keyed {
        let window = one_of(chance, &[5_000_u64, 86_400_000]).into_duration();
        job = job.key(key(one_of(chance, &["k1", "k2", "k3", "k4"])).window(window));
    }
    if chance.below(3) == 0 {
        let few = one_of(chance, &[1, 2, 9]);
        job = job.max_attempts(NonZeroU16::new(few).unwrap_or(NewJob::MAX_ATTEMPTS));
    }
    if chance.below(4) == 0 {
        job = job
            .max_crashes(NonZeroU16::new(one_of(chance, &[1, 5])).unwrap_or(NewJob::MAX_CRASHES));
    }
    if chance.below(4) == 0 {
        job = job.max_runtime(one_of(chance, &[3_000_u64, 40_000]).into_duration());
    }
    if chance.below(3) == 0 {
        job = job.retry(one_of(
            chance,
            &[RetryPolicy::Fixed { ms: 700 }, RetryPolicy::list(&[10, 20_000])],
        ));
    }
    // The priority decides the tags, because it is drawn already: one more draw would change the
    // sequences of all seeds.
    let tags = match priority {
        0 => vec![],
        5 => vec![name("red")],
        _ => vec![name("blue"), name("red")],
    };
    job.tags(tags).expect("a few tags")
}

fn random_claim(chance: &mut Chance) -> Claim {
    let queues = (0..1 + chance.below(3)).map(|_| random_queue(chance)).collect();
    let kinds = (chance.below(3) == 0)
        .then(|| (0..1 + chance.below(2)).map(|_| random_kind(chance)).collect());
    Claim {
        queues,
        kinds,
        grace: one_of(chance, &[0_u64, 0, 0, 3_000]).into_duration(),
        request: one_of(chance, &[0, 1]),
        suspects: chance.below(4) > 0,
        ..Claim::new(
            random_worker(chance),
            one_of(chance, &[1, 1, 2, 5, 12]),
            one_of(chance, &[800_u64, 5_000, 30_000]).into_duration(),
        )
    }
}

fn random_outcome(chance: &mut Chance) -> Outcome {
    match chance.below(8) {
        0..3 => Outcome::Complete {
            result: (chance.below(2) == 0).then(|| Json::check("result", "7", 9).expect("JSON")),
        },
        3 => Outcome::Retry {
            after: one_of(chance, &[0_u64, 700, 9_000]).into_duration(),
            error: "it failed".into(),
        },
        4 => Outcome::Snooze { after: one_of(chance, &[0_u64, 2_000]).into_duration() },
        5 => Outcome::Release,
        6 => Outcome::Bury { reason: "hopeless".into() },
        _ => Outcome::Park { reason: "ask Ann".into() },
    }
}

fn random_settlement(chance: &mut Chance) -> (usize, Outcome, Vec<NewJob>) {
    let then = if chance.below(5) == 0 { vec![random_job(chance)] } else { vec![] };
    (chance.below(1_000) as usize, random_outcome(chance), then)
}

/// A report about one of the last eight attempts, most of which still run. Two reports of one call
/// may be about the same job.
fn random_report(chance: &mut Chance) -> (usize, Progress) {
    let fraction = one_of(chance, &[0.0, 0.25, 1.0, -3.0, f64::NAN, f64::INFINITY]);
    let long = "é\0".repeat(150);
    let note = one_of(chance, &[None, Some(""), Some("embedding"), Some(&long)]);
    (chance.below(8) as usize, Progress::new(fraction, note))
}

fn random_change(chance: &mut Chance) -> QueueChange {
    // Resume more often than pause, or all queues would end up paused.
    let pause =
        one_of(chance, &[None, Some(Pause::Pause), Some(Pause::Resume), Some(Pause::Resume)]);
    let keep =
        one_of(chance, &[None, None, Some(0_u64), Some(60_000)]).map(IntoDuration::into_duration);
    let keep_dead = one_of(chance, &[None, Some(60_000_u64)]).map(IntoDuration::into_duration);
    QueueChange { pause, keep, keep_dead }
}

fn key(text: &str) -> Key {
    Key::check(text).expect("a valid key")
}

fn random_filter(chance: &mut Chance) -> Filter {
    let filter = Filter {
        state: one_of(
            chance,
            &[
                None,
                Some(State::Queued),
                Some(State::Dead),
                Some(State::Succeeded),
                Some(State::Running),
            ],
        ),
        queue: (chance.below(3) == 0).then(|| random_queue(chance)),
        tenant: (chance.below(3) == 0).then(|| random_tenant(chance)),
        kind: (chance.below(3) == 0).then(|| random_kind(chance)),
        before: (chance.below(2) == 0).then(|| JobId(1 + chance.below(60) as i64)),
        ..Filter::default()
    };
    // The job id in `before` decides, because it is drawn already, as for the tags of a job: one
    // more draw would change the sequences of all seeds.
    match filter.before {
        Some(JobId(id)) if id % 4 == 0 => Filter { tag: Some(name("red")), ..filter },
        Some(JobId(id)) if id % 4 == 1 => Filter { tag: Some(name("blue")), ..filter },
        Some(JobId(id)) if id % 4 == 2 => Filter { key: Some(key("k1")), ..filter },
        _ => filter,
    }
}

fn random_effect(chance: &mut Chance) -> Name {
    name(one_of(chance, &["charge", "mail"]))
}

fn random_result(chance: &mut Chance) -> Json {
    Json::check("result", one_of(chance, &["1", "[2]", "{\"a\":3}"]), 99).expect("JSON")
}

fn random_resolution(chance: &mut Chance) -> Resolution {
    match chance.below(3) {
        0 => Resolution::Resend,
        _ => Resolution::Committed { result: random_result(chance) },
    }
}

/// One of the last four attempts opens an effect and writes more about it; then one of the last
/// eight writes about any effect. Most of these attempts still run.
fn random_ledger(chance: &mut Chance) -> Step {
    let (at, effect) = (chance.below(4) as usize, random_effect(chance));
    let mut entries = vec![(at, effect.clone(), Act::Open)];
    entries.extend((0..chance.below(4)).map(|_| (at, effect.clone(), random_act(chance))));
    entries.push((chance.below(8) as usize, random_effect(chance), random_act(chance)));
    Step::Ledger(entries)
}

fn random_act(chance: &mut Chance) -> Act {
    match chance.below(12) {
        0..5 => Act::Open,
        5..8 => Act::Commit { result: random_result(chance) },
        8 => Act::Fail { error: "it failed".into() },
        9 => Act::Resolve(random_resolution(chance)),
        10 => Act::Recall,
        _ => Act::Remember { result: random_result(chance) },
    }
}
