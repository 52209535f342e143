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
    a_claim_that_reads_many_dead_entries_of_ready_jobs_marks_where_it_came_to,
    a_claim_that_reads_many_dead_entries_of_waiting_jobs_marks_the_time_once_nothing_is_due,
    a_claim_that_reads_many_dead_entries_of_leases_marks_the_first_that_is_pardoned,
    the_first_lane_of_a_group_belongs_to_it_and_to_no_round_before,
    a_queue_whose_due_jobs_lie_before_the_mark_has_no_share_of_what_becomes_ready,
    a_mark_is_made_for_more_than_ten_thousand_entries_and_used_in_proportion,
};

const NOW: i64 = START.as_millis();

/// The last job of a lane that the claim skips: its priority, its time and its id.
type Place = (i16, i64, i64);

/// The marks that a caller passes to its claim.
#[derive(Debug, Clone, Default)]
struct Marks {
    lanes: BTreeMap<i64, Place>,
    ready_until: Option<i64>,
    /// Where the mark is, and until when it counts.
    waiting: Option<(i64, i64)>,
    running: Option<(i64, i64)>,
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
struct Ask {
    queues: String,
    kinds: String,
    n: i32,
    cursor: i64,
    round: String,
}

impl Ask {
    fn of(n: i32) -> Ask {
        Ask { queues: "{default}".into(), kinds: "NULL".into(), n, cursor: 0, round: "NULL".into() }
    }
}

/// What a claim returns.
struct Answer {
    /// Every row except for the marks, as text.
    rows: Vec<String>,
    jobs: Vec<i64>,
    lapsed: Vec<i64>,
    due_ms: Option<i64>,
    marks: Option<Marks>,
    /// The place of each job that was claimed in a rehearsal.
    places: Vec<(i64, Place)>,
}

fn claim(session: &mut Client, ask: &Ask, marks: Option<&Marks>) -> Answer {
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
fn rehearse(session: &mut Client, before: &str, ask: &Ask, marks: Option<&Marks>) -> Answer {
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

/// Deletes what lies before these marks. Running jobs get a later lease instead, since running
/// suspects are counted.
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

            // The returned marks are behind every job that the claim took, and no further.
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

/// An old transaction, and 11,000 jobs that were inserted and deleted since it began. Dropping this
/// ends the transaction and vacuums their entries away.
struct Dead {
    old: Client,
    owner: Client,
}

impl Dead {
    /// Makes deleted jobs in this state, all with this time. The tables were never analysed.
    fn make(lab: &Lab, state: i16, at: i64) -> Dead {
        let (mut old, mut owner) = (lab.session(), lab.session());
        old.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM public.effects")
            .unwrap();
        let until = if state == 2 { at.to_string() } else { "NULL".into() };
        owner
            .batch_execute(&format!(
                "INSERT INTO tenure.jobs (id, state, lane, priority, run_at, token, attempt, max_attempts, crashes, max_crashes,
                     queue, tenant, kind, args, enqueued_at, lease_until)
                 SELECT -g, {state}, tenure.lane('default', '', 'work', false), -5, {at}, 0, 0, 6, 0, 5,
                        'default', '', 'work', '1', 0, {until}
                   FROM generate_series(1, 11000) g;
                 DELETE FROM tenure.jobs WHERE id < 0"
            ))
            .unwrap();
        Dead { old, owner }
    }
}

impl Drop for Dead {
    fn drop(&mut self) {
        // If this fails, a later claim still finds the dead entries, and its test fails.
        let _ended = self.old.batch_execute("ROLLBACK");
        let _swept = self.owner.batch_execute("VACUUM tenure.jobs");
    }
}

/// Whether a mark that was made after `scans` scans of the dead entries counts for a proportional
/// time, give or take what else was read.
fn is_in_proportion(until: i64, scans: i64) -> bool {
    (33 * scans..36 * scans + 25).contains(&(until - NOW))
}

fn enqueue(session: &mut Client, more: &str) -> i64 {
    session.query_one(&format!("SELECT tenure.enqueue('work'{more})"), &[]).unwrap().get(0)
}

/// A more urgent job that is enqueued before the mark waits for as long as the mark counts.
fn a_claim_that_reads_many_dead_entries_of_ready_jobs_marks_where_it_came_to() {
    let mut lab = Lab::new();
    let _dead = Dead::make(&lab, 0, NOW);
    let mut session = lab.session();
    let jobs: Vec<i64> = (0..4).map(|_| enqueue(&mut session, "")).collect();
    let none = rehearse(&mut session, "", &Ask { kinds: "'{play}'".into(), ..Ask::of(1) }, None);
    assert!(none.jobs.is_empty() && none.marks.is_none(), "what took nothing came to nowhere");
    let waiting = Marks { waiting: Some((NOW - 9, NOW + 9)), ..Marks::default() };
    let ask = Ask { kinds: "'{play}'".into(), ..Ask::of(1) };
    let none = rehearse(&mut session, "", &ask, Some(&waiting)).marks.unwrap();
    assert_eq!((none.ready_until, none.waiting), (None, waiting.waiting));

    let first = claim(&mut session, &Ask::of(2), None);
    assert_eq!(first.jobs, jobs[..2]);
    let marks = first.marks.unwrap();
    let until = marks.ready_until.unwrap();
    assert!(is_in_proportion(until, 2) || is_in_proportion(until, 3), "{marks:?}");
    let lane = lab.number("SELECT tenure.lane('default', '', 'work', false)");
    assert_eq!(marks.lanes, [(lane, (0, NOW, jobs[1]))].into());
    assert_eq!((marks.waiting, marks.running), (None, None));

    let urgent = enqueue(&mut session, ", priority => -1");
    let second = claim(&mut session, &Ask::of(1), Some(&marks));
    assert_eq!(second.jobs, [jobs[2]]);
    let marks = second.marks.unwrap();
    assert_eq!(
        (marks.ready_until, &marks.lanes),
        (Some(until), &[(lane, (0, NOW, jobs[2]))].into())
    );
    lab.advance(until - NOW - 1);
    assert_eq!(rehearse(&mut session, "", &Ask::of(1), Some(&marks)).jobs, [jobs[3]]);
    lab.advance(1);
    assert_eq!(claim(&mut session, &Ask::of(9), Some(&marks)).jobs, [urgent, jobs[3]]);
}

/// The mark is set only when no due job lies before it.
fn a_claim_that_reads_many_dead_entries_of_waiting_jobs_marks_the_time_once_nothing_is_due() {
    let mut lab = Lab::new();
    let _dead = Dead::make(&lab, 1, NOW - 5);
    let mut session = lab.session();
    let none = claim(&mut session, &Ask::of(0), None).marks.unwrap();
    let (from, until) = none.waiting.unwrap();
    assert_eq!(from, NOW);
    assert!((30..=100).contains(&(until - NOW)), "{none:?}");
    assert_eq!((none.ready_until, none.running), (None, None));

    session
        .batch_execute(
            "SELECT tenure.enqueue('work', delay => '5 ms') FROM generate_series(1, 150)",
        )
        .unwrap();
    lab.advance(5);
    let ready = "SELECT count(*) FROM tenure.jobs WHERE state = 0";
    let half = claim(&mut session, &Ask::of(0), None);
    assert!(half.marks.is_none_or(|marks| marks.waiting.is_none()), "some are due still");
    assert_eq!(lab.number(ready), 100);
    let rest = claim(&mut session, &Ask::of(0), None).marks.unwrap();
    assert_eq!(rest.waiting.map(|mark| mark.0), Some(NOW + 5));
    assert_eq!(lab.number(ready), 150);

    // With a mark no dead entry is read, and the mark stays where it is.
    lab.advance(10);
    let stayed = claim(&mut session, &Ask::of(0), Some(&none)).marks.unwrap();
    assert_eq!(stayed.waiting, Some((from, until)));
}

/// These leases would be over, but the server's start extends them: the mark must not be beyond
/// them.
fn a_claim_that_reads_many_dead_entries_of_leases_marks_the_first_that_is_pardoned() {
    let mut lab = Lab::new();
    let _dead = Dead::make(&lab, 2, NOW - 500);
    let mut session = lab.session();
    // A lease that is not over yet is beyond the mark.
    enqueue(&mut session, "");
    assert_eq!(claim(&mut session, &Ask::of(1), None).jobs.len(), 1);
    let none = claim(&mut session, &Ask::of(0), None).marks.unwrap();
    assert_eq!(none.running.map(|mark| mark.0), Some(NOW));
    assert!((30..=100).contains(&(none.running.unwrap().1 - NOW)), "{none:?}");
    assert_eq!((none.ready_until, none.waiting), (None, None));

    let jobs: Vec<i64> = (0..3).map(|_| enqueue(&mut session, "")).collect();
    assert_eq!(claim(&mut session, &Ask::of(3), None).jobs, jobs);
    let lease = format!("UPDATE tenure.jobs SET leased_at = {0}, started_at = {0}", NOW - 30_000);
    let mut owner = lab.session();
    for (job, over) in [(jobs[2], 30), (jobs[0], 20), (jobs[1], 10)] {
        owner
            .batch_execute(&format!("{lease}, lease_until = {} WHERE id = {job}", NOW - over))
            .unwrap();
    }
    owner.batch_execute(&format!("UPDATE tenure.clock SET started_at = {}", NOW - 29_990)).unwrap();
    let pardoned = claim(&mut session, &Ask::of(0), None);
    assert!(pardoned.lapsed.is_empty());
    let marks = pardoned.marks.unwrap();
    assert_eq!(marks.running.map(|mark| mark.0), Some(NOW - 30));
    // The mark does not pass a lease that ends exactly where the last mark was.
    let here = format!("UPDATE tenure.jobs SET lease_until = {} WHERE id = {}", NOW - 600, jobs[2]);
    owner.batch_execute(&here).unwrap();
    let last = Marks { running: Some((NOW - 600, NOW + 99)), ..Marks::default() };
    let again = claim(&mut session, &Ask::of(0), Some(&last)).marks.unwrap();
    assert_eq!(again.running, last.running);
    lab.advance(10);
    let over = claim(&mut session, &Ask::of(0), Some(&again));
    assert_eq!(over.lapsed, [jobs[2], jobs[0], jobs[1]], "in the order in which they were over");
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

fn a_mark_is_made_for_more_than_ten_thousand_entries_and_used_in_proportion() {
    let mut lab = Lab::new();
    let used = |dead: i64| format!("SELECT coalesce(tenure.mark_for({dead}), -1)");
    for (dead, ms) in [(0, -1), (10_000, -1), (10_001, 30), (1_000_000, 3_000)] {
        assert_eq!(lab.number(&used(dead)), ms, "{dead}");
    }
    // Too few entries to be worth a mark.
    let mut session = lab.session();
    enqueue(&mut session, "");
    let answer = claim(&mut session, &Ask::of(2), None);
    assert!(answer.jobs.len() == 1 && answer.marks.is_none() && answer.due_ms.is_none());
}
