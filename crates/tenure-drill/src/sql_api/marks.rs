//! Marks: where a claim begins to read while an old transaction keeps index entries of deleted jobs
//! alive.

use std::collections::BTreeMap;

use postgres::{Client, Row};
use serde_json::{Value, json};
use tenure::engine::clock::Chance;

use super::{Case, sql_cases};
use crate::engines::START;
use crate::sessions::Lab;

pub(super) const CASES: &[Case] = sql_cases! {
    "claim":
    a_claim_with_marks_answers_as_if_all_before_them_were_not_there,
    a_claim_answers_only_marks_that_still_count,
    the_first_lane_of_a_group_belongs_to_it_and_to_no_round_before,
    a_queue_whose_due_jobs_lie_before_the_mark_has_no_share_of_what_becomes_ready,
};

pub(super) const NOW: i64 = START.as_millis();

/// A mark in one lane: the priority, time and id of a job. The claim skips this job and all jobs of
/// the lane before it.
pub(super) type Place = (i16, i64, i64);

/// The marks that a caller passes to its claim.
#[derive(Debug, Clone, Default)]
pub(super) struct Marks {
    pub(super) lanes: BTreeMap<i64, Place>,
    pub(super) ready_until: Option<i64>,
    /// Where the mark is, and until when it counts.
    pub(super) waiting: Option<(i64, i64)>,
    pub(super) running: Option<(i64, i64)>,
}

impl Marks {
    fn json(&self) -> Value {
        let (waiting_from, waiting_until) = self.waiting.unzip();
        let (running_from, running_until) = self.running.unzip();
        let places = self.lanes.values();
        let has_lanes = self.ready_until.is_some();
        json!({
            "waiting_from": waiting_from, "waiting_until": waiting_until,
            "running_from": running_from, "running_until": running_until, "ready_until": self.ready_until,
            "lanes": has_lanes.then(|| self.lanes.keys().collect::<Vec<_>>()),
            "priorities": has_lanes.then(|| places.clone().map(|place| place.0).collect::<Vec<_>>()),
            "run_at": has_lanes.then(|| places.clone().map(|place| place.1).collect::<Vec<_>>()),
            "ids": has_lanes.then(|| places.map(|place| place.2).collect::<Vec<_>>()),
        })
    }

    /// The marks that still count now.
    fn current(&self) -> Marks {
        let counts = |until: i64| until > NOW;
        let ready_until = self.ready_until.filter(|until| counts(*until));
        Marks {
            lanes: if ready_until.is_some() { self.lanes.clone() } else { BTreeMap::new() },
            ready_until,
            waiting: self.waiting.filter(|mark| counts(mark.1)),
            running: self.running.filter(|mark| counts(mark.1)),
        }
    }

    /// Parses the marks that a claim returns.
    fn read(text: &str) -> Marks {
        let value: Value = serde_json::from_str(text).unwrap();
        let number = |field: &str| value[field].as_i64();
        let list = |field: &str| -> Vec<i64> {
            value[field].as_array().unwrap().iter().map(|item| item.as_i64().unwrap()).collect()
        };
        let mut lanes = BTreeMap::new();
        if !value["lanes"].is_null() {
            let keys = list("lanes");
            assert!(keys.is_sorted(), "lanes are answered in order: {text}");
            let (priorities, times, ids) = (list("priorities"), list("run_at"), list("ids"));
            for (at, lane) in keys.into_iter().enumerate() {
                lanes.insert(lane, (priorities[at] as i16, times[at], ids[at]));
            }
        }
        let both = |from, until| number(until).map(|until| (number(from).unwrap(), until));
        Marks {
            lanes,
            ready_until: number("ready_until"),
            waiting: both("waiting_from", "waiting_until"),
            running: both("running_from", "running_until"),
        }
    }
}

/// The arguments of `claim_many`, as SQL.
pub(super) struct Ask {
    pub(super) queues: String,
    pub(super) kinds: String,
    pub(super) n: i32,
    pub(super) cursor: i64,
    pub(super) round: String,
}

impl Ask {
    pub(super) fn of(n: i32) -> Ask {
        Ask { queues: "{default}".into(), kinds: "NULL".into(), n, cursor: 0, round: "NULL".into() }
    }
}

/// What a claim returns.
pub(super) struct Answer {
    /// Every row except for the marks, as text.
    pub(super) rows: Vec<String>,
    pub(super) jobs: Vec<i64>,
    pub(super) lapsed: Vec<i64>,
    pub(super) due_ms: Option<i64>,
    pub(super) marks: Option<Marks>,
    /// The place of each job that was claimed in a rehearsal.
    pub(super) places: Vec<(i64, Place)>,
}

pub(super) fn claim(session: &mut Client, ask: &Ask, marks: Option<&Marks>) -> Answer {
    let sql = format!(
        "SELECT c.what, c.place, c.job, c.token, c.became, c.verdict, c.cursor, c.due_ms, c.marks
           FROM tenure.claim_many('ann', '{}', {}, {}, 30000, {}, $1, p_round => {})
                WITH ORDINALITY c ORDER BY c.what DESC, c.place, c.ordinality",
        ask.queues, ask.kinds, ask.n, ask.cursor, ask.round
    );
    let found = session.query(&sql, &[&marks.map(|marks| marks.json().to_string())]).unwrap();
    let (rows, places) = (vec![], vec![]);
    let mut answer =
        Answer { rows, jobs: vec![], lapsed: vec![], due_ms: None, marks: None, places };
    for row in found {
        let (what, place): (String, Option<i32>) = (row.get(0), row.get(1));
        let (job, token): (Option<i64>, Option<i64>) = (row.get(2), row.get(3));
        let (became, verdict): (Option<i16>, Option<String>) = (row.get(4), row.get(5));
        let (cursor, due_ms): (Option<i64>, Option<i64>) = (row.get(6), row.get(7));
        answer.rows.push(format!(
            "{what} {place:?} {job:?} {token:?} {became:?} {verdict:?} {cursor:?} {due_ms:?}"
        ));
        match what.as_str() {
            "claimed" => answer.jobs.extend(job),
            "lapsed" => answer.lapsed.extend(job),
            _ => {
                answer.due_ms = due_ms;
                answer.marks = row.get::<_, Option<String>>(8).map(|text| Marks::read(&text));
            }
        }
    }
    answer
}

/// A claim that is rolled back.
pub(super) fn rehearse(
    session: &mut Client,
    before: &str,
    ask: &Ask,
    marks: Option<&Marks>,
) -> Answer {
    session.batch_execute(&format!("BEGIN; {before}")).unwrap();
    let mut answer = claim(session, ask, marks);
    let taken = format!("{PLACES} WHERE id = ANY ($1)");
    answer.places = places(&session.query(&taken, &[&answer.jobs]).unwrap());
    session.batch_execute("ROLLBACK").unwrap();
    answer
}

const PLACES: &str = "SELECT lane, priority, run_at, id FROM tenure.jobs";

fn places(rows: &[Row]) -> Vec<(i64, Place)> {
    rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2), row.get(3)))).collect()
}

const QUEUES: [&str; 3] = ["default", "mail", "bulk"];
const KINDS: [&str; 6] = ["work", "play", "call", "mail", "sum", "log"];

/// Random jobs: ready, waiting and running, suspects among them. Jobs that are not ready yet get a
/// priority that puts them behind every mark.
fn furnish(session: &mut Client, chance: &mut Chance, jobs: u64, tenants: u64) {
    let mut rows = Vec::new();
    for id in 1..=jobs {
        let state = [0, 0, 0, 0, 0, 0, 1, 2, 2][chance.below(9) as usize];
        let suspect = chance.below(4) == 0;
        let priority = if state == 0 { chance.below(3) as i64 - 1 } else { 100 };
        let run_at = match state {
            1 => NOW - 2 + chance.below(5) as i64,
            _ => NOW - chance.below(5) as i64,
        };
        // With many tenants most jobs are of a kind that few claims ask for.
        let kind =
            KINDS[if tenants > 9 && chance.below(9) > 0 { 2 } else { chance.below(6) as usize }];
        let queue = QUEUES[if tenants > 9 { 0 } else { chance.below(3) as usize }];
        let tenant = chance.below(tenants);
        let lease = match state {
            2 => {
                let holder = if chance.below(8) == 0 { "ann" } else { "bob" };
                format!(
                    "'{holder}', {0}, {0}, 30000, {1}",
                    NOW - 30_000,
                    NOW - 2 + chance.below(5) as i64
                )
            }
            _ => "NULL, NULL, NULL, NULL, NULL".to_owned(),
        };
        let crashes = if suspect { 2 + chance.below(3) } else { 0 };
        rows.push(format!(
            "({id}, {state}, tenure.lane('{queue}', 't{tenant}', '{kind}', {suspect}), {priority}, {run_at}, {state}, {state}, 60, \
             {crashes}, 5, '{queue}', 't{tenant}', '{kind}', '1', {NOW}, {lease})"
        ));
    }
    session
        .batch_execute(&format!(
            "DELETE FROM tenure.jobs; DELETE FROM tenure.timeline;
             INSERT INTO tenure.jobs (id, state, lane, priority, run_at, token, attempt, max_attempts, crashes, max_crashes,
                 queue, tenant, kind, args, enqueued_at, worker, started_at, leased_at, lease_ms, lease_until) VALUES {}",
            rows.join(", ")
        ))
        .unwrap();
}

/// Random marks: behind some of the ready jobs, before all of them, and in lanes without any job.
fn some_marks(session: &mut Client, chance: &mut Chance, ready: &[(i64, Place)]) -> Marks {
    let until = |chance: &mut Chance| NOW + [0, 1, 1, 50][chance.below(4) as usize];
    let mut marks = Marks::default();
    if chance.below(5) > 0 {
        marks.ready_until = Some(until(chance));
        for (lane, place) in ready {
            match chance.below(15) {
                0 => marks.lanes.insert(*lane, (-9, 0, 0)),
                1..5 => marks.lanes.insert(*lane, *place),
                _ => None,
            };
        }
        for queue in QUEUES.into_iter().chain(["other"]) {
            let ask = "SELECT tenure.lane($1, $2, 'work', $3)";
            let who = format!("nobody{}", chance.below(9));
            let lane = session.query_one(ask, &[&queue, &who, &(chance.below(2) == 0)]);
            marks.lanes.insert(lane.unwrap().get(0), (1, NOW, 1));
        }
    }
    if chance.below(2) == 0 {
        marks.waiting = Some((NOW - 2 + chance.below(5) as i64, until(chance)));
    }
    if chance.below(2) == 0 {
        marks.running = Some((NOW - 2 + chance.below(4) as i64, until(chance)));
    }
    marks
}

/// Deletes what lies before these marks. Running jobs get a later lease instead, since a claim
/// counts the suspects that its worker runs.
fn without(marks: &Marks) -> String {
    let mut sql = String::new();
    for (lane, (priority, run_at, id)) in &marks.lanes {
        sql += &format!(
            "DELETE FROM tenure.jobs WHERE state = 0 AND lane = {lane} AND (priority, run_at, id) <= ({priority}, {run_at}, {id});"
        );
    }
    if let Some((from, _)) = marks.waiting {
        sql += &format!("DELETE FROM tenure.jobs WHERE state = 1 AND run_at < {from};");
    }
    if let Some((from, _)) = marks.running {
        sql += &format!(
            "UPDATE tenure.jobs SET lease_until = {} WHERE state = 2 AND lease_until < {from};",
            NOW + 99_999
        );
    }
    sql
}

fn some_ask(chance: &mut Chance, ready: &[(i64, Place)], many: bool) -> Ask {
    let some = |chance: &mut Chance, names: &[&str]| {
        let chosen: Vec<&str> = names.iter().copied().filter(|_| chance.below(2) == 0).collect();
        format!("{{{}}}", chosen.join(","))
    };
    let mut queues = some(chance, &QUEUES);
    if queues == "{}" || many {
        queues = "{default}".into();
    }
    let kinds = match chance.below(3) {
        0 => "NULL".into(),
        1 if many => "'{work}'".into(),
        _ => format!("'{}'", some(chance, &KINDS)),
    };
    let group = |chance: &mut Chance| {
        let lane = ready.get(chance.below(ready.len() as u64) as usize).map_or(0, |ready| ready.0);
        (lane & !(1 << 61)) >> 15
    };
    let cursor = if chance.below(3) == 0 { 0 } else { group(chance) };
    let round = match chance.below(3) {
        0 => "NULL".into(),
        1 => cursor.to_string(),
        _ => group(chance).to_string(),
    };
    let n = [0, 1, 1, 2, 3, 5, 9, 100][chance.below(8) as usize];
    Ask { queues, kinds, n, cursor, round }
}

/// Many states, many claims, and all kinds of marks.
fn a_claim_with_marks_answers_as_if_all_before_them_were_not_there() {
    let lab = Lab::new();
    let mut session = lab.session();
    let mut chance = Chance::seeded(6);
    for round in 0..8 {
        let many = round % 4 == 3;
        let (jobs, tenants) = if many { (400, 250) } else { (60, 3) };
        furnish(&mut session, &mut chance, jobs, tenants);
        let ready = session.query(&format!("{PLACES} WHERE state = 0 ORDER BY id"), &[]);
        let ready = places(&ready.unwrap());
        for _ in 0..15 {
            let ask = some_ask(&mut chance, &ready, many);
            let marks = some_marks(&mut session, &mut chance, &ready);
            let current = marks.current();
            let marked = rehearse(&mut session, "", &ask, Some(&marks));
            let bare = rehearse(&mut session, &without(&current), &ask, None);
            let asked = format!(
                "{} {} n {} from {} to {}",
                ask.queues, ask.kinds, ask.n, ask.cursor, ask.round
            );
            assert_eq!(marked.rows, bare.rows, "{asked} with {marks:?}");
            assert!(bare.marks.is_none(), "nothing is marked without need");

            // In each lane the returned mark is the caller's mark or the last job that the claim
            // took, whichever is further on.
            let mut expected = current;
            if expected.ready_until.is_some() {
                for (lane, place) in marked.places {
                    let mark = expected.lanes.entry(lane).or_insert(place);
                    *mark = place.max(*mark);
                }
            }
            let answered = marked.marks.unwrap_or_default();
            assert_eq!(answered.lanes, expected.lanes, "{asked} with {marks:?}");
            assert_eq!(answered.ready_until, expected.ready_until, "{asked} with {marks:?}");
            let others = (answered.waiting, answered.running);
            assert_eq!(others, (expected.waiting, expected.running), "{asked} with {marks:?}");
        }
    }
}

/// Each kind of mark by itself, and no mark at all.
fn a_claim_answers_only_marks_that_still_count() {
    let mut lab = Lab::new();
    let mut session = lab.session();
    let lane = lab.number("SELECT tenure.lane('default', '', 'work', false)");
    for until in [NOW - 1, NOW, NOW + 1] {
        let sorts = [
            Marks {
                lanes: [(lane, (0, 0, 0))].into(),
                ready_until: Some(until),
                ..Marks::default()
            },
            Marks { waiting: Some((NOW - 9, until)), ..Marks::default() },
            Marks { running: Some((NOW - 9, until)), ..Marks::default() },
        ];
        for marks in sorts {
            let answered = claim(&mut session, &Ask::of(1), Some(&marks)).marks;
            assert_eq!(answered.is_some(), until > NOW, "{marks:?}");
            if let Some(answered) = answered {
                let (lanes, ready) = (answered.lanes, answered.ready_until);
                assert_eq!((lanes, ready), (marks.lanes, marks.ready_until));
                assert_eq!((answered.waiting, answered.running), (marks.waiting, marks.running));
            }
        }
    }
    assert!(claim(&mut session, &Ask::of(1), None).marks.is_none());
}

/// With marks and without. The kind's name was found by search: the first 15 bits of its SHA-256
/// are zeros, so its lane is the first of its group.
fn the_first_lane_of_a_group_belongs_to_it_and_to_no_round_before() {
    let mut lab = Lab::new();
    let mut session = lab.session();
    session.batch_execute("SELECT tenure.enqueue('k5355', tenant => 'acme')").unwrap();
    let lane = lab.number("SELECT lane FROM tenure.jobs");
    assert_eq!(lane & 32_767, 0);
    let group = lane >> 15;
    let elsewhere = lab.number("SELECT tenure.lane('zzz', '', 'work', false)");
    let marks = [elsewhere, lane].map(|lane| {
        Some(Marks {
            lanes: [(lane, (-9, 0, 0))].into(),
            ready_until: Some(NOW + 9),
            ..Marks::default()
        })
    });
    for marks in marks.iter().chain([&None]) {
        for (cursor, round, jobs) in [
            (group - 1, "NULL".to_owned(), 1),
            (group, "NULL".to_owned(), 1),
            (group - 1, group.to_string(), 1),
            (group - 9, (group - 1).to_string(), 0),
            (group, (group + 9).to_string(), 0),
        ] {
            let ask = Ask { cursor, round, ..Ask::of(1) };
            let answer = rehearse(&mut session, "", &ask, marks.as_ref());
            assert_eq!(answer.jobs.len(), jobs, "from {cursor} to {} with {marks:?}", ask.round);
        }
    }
}

/// A queue whose first due job is exactly at the mark has a share.
fn a_queue_whose_due_jobs_lie_before_the_mark_has_no_share_of_what_becomes_ready() {
    for (from, shares) in [(NOW, 2), (NOW + 1, 1)] {
        let mut lab = Lab::new();
        let mut session = lab.session();
        let put = |queue: &str, n: i32, at: i64| {
            format!(
                "SELECT tenure.enqueue('work', queue => '{queue}', delay => ({at} - {NOW}) * interval '1 ms')
                   FROM generate_series(1, {n});"
            )
        };
        session.batch_execute("UPDATE tenure.clock SET at = at - 10").unwrap();
        let both = put("few", 1, NOW + 10) + &put("many", 150, NOW + 11);
        session.batch_execute(&both).unwrap();
        lab.advance(11);
        let marks = Marks { waiting: Some((from, NOW + 99)), ..Marks::default() };
        let ask = Ask { queues: "{few,many}".into(), ..Ask::of(0) };
        claim(&mut session, &ask, Some(&marks));
        let ready = "SELECT count(*) FROM tenure.jobs WHERE state = 0";
        assert_eq!(lab.number(ready), if shares == 2 { 51 } else { 100 }, "from {from}");
    }
}
