//! When a claim makes marks: after it has read more than 10,000 index entries of deleted jobs (dead
//! entries). `marks.rs` says what a mark is.

use std::collections::BTreeMap;

use postgres::Client;

use super::marks::{Ask, Marks, NOW, Place, claim, rehearse};
use super::{Case, sql_cases};
use crate::sessions::Lab;

pub(super) const CASES: &[Case] = sql_cases! {
    "claim":
    a_claim_that_reads_many_dead_entries_of_ready_jobs_marks_where_it_came_to,
    a_claim_that_reads_many_dead_entries_of_waiting_jobs_marks_the_time_once_nothing_is_due,
    a_claim_that_reads_many_dead_entries_of_leases_marks_the_first_that_is_pardoned,
    marks_count_once_more_where_a_claim_that_found_them_in_its_way_has_seen_all_there_is,
    a_mark_is_made_for_more_than_ten_thousand_entries_and_used_in_proportion,
};

/// An old transaction, and 11,000 jobs that were inserted and deleted since it began. Dropping this
/// ends the transaction and vacuums their entries away.
struct Dead {
    old: Client,
    owner: Client,
}

impl Dead {
    /// Makes deleted jobs in this state, all with this time. If `analysed`, the planner knows that
    /// no job is left; otherwise the tables were never analysed.
    fn make(lab: &Lab, state: i16, at: i64, analysed: bool) -> Dead {
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
        if analysed {
            owner.batch_execute("ANALYZE tenure.jobs").unwrap();
        }
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

/// Whether a mark counts for the right time: in proportion to the `scans` scans of the dead entries
/// before it, give or take what else was read.
fn is_in_proportion(until: i64, scans: i64) -> bool {
    (33 * scans..36 * scans + 25).contains(&(until - NOW))
}

fn enqueue(session: &mut Client, more: &str) -> i64 {
    session.query_one(&format!("SELECT tenure.enqueue('work'{more})"), &[]).unwrap().get(0)
}

/// A claim marks the place up to which it has read dead entries. The job that is enqueued with a
/// more urgent priority stands before that place, so claims skip it until the mark has expired.
fn a_claim_that_reads_many_dead_entries_of_ready_jobs_marks_where_it_came_to() {
    [false, true].into_iter().for_each(marks_of_ready_jobs);
}

fn marks_of_ready_jobs(analysed: bool) {
    let mut lab = Lab::new();
    let _dead = Dead::make(&lab, 0, NOW, analysed);
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
    [false, true].into_iter().for_each(marks_of_waiting_jobs);
}

fn marks_of_waiting_jobs(analysed: bool) {
    let mut lab = Lab::new();
    let _dead = Dead::make(&lab, 1, NOW - 5, analysed);
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

/// These leases look over, but the server started after they were granted, so each gets its length
/// again. The mark must not pass the first of them: a later claim has to find it.
fn a_claim_that_reads_many_dead_entries_of_leases_marks_the_first_that_is_pardoned() {
    [false, true].into_iter().for_each(marks_of_running_jobs);
}

fn marks_of_running_jobs(analysed: bool) {
    let mut lab = Lab::new();
    let _dead = Dead::make(&lab, 2, NOW - 500, analysed);
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

/// Marks whose time is over count once more if a claim has read the dead entries again, and all
/// that lies behind them. This holds in its queues and kinds, and for suspects if the claim may
/// take one.
fn marks_count_once_more_where_a_claim_that_found_them_in_its_way_has_seen_all_there_is() {
    let lab = Lab::new();
    let _dead = Dead::make(&lab, 0, NOW, false);
    let mut session = lab.session();
    let mut lane = |queue: &str, kind: &str, suspect: bool| -> i64 {
        let ask = "SELECT tenure.lane($1, '', $2, $3)";
        session.query_one(ask, &[&queue, &kind, &suspect]).unwrap().get(0)
    };
    let (work, play) = (lane("default", "work", false), lane("default", "play", false));
    let (mail, suspect) = (lane("mail", "work", false), lane("default", "work", true));
    let place = (0, NOW, 9);
    let lanes = [work, play, mail, suspect].map(|lane| (lane, place)).into();
    let old = Marks { lanes, ready_until: Some(NOW), ..Marks::default() };
    let mut again = |queues: &str, kinds: &str, before: &str| {
        let (queues, kinds) = (queues.to_owned(), kinds.to_owned());
        let ask = Ask { queues, kinds, ..Ask::of(1) };
        rehearse(&mut session, before, &ask, Some(&old)).marks.unwrap_or_default()
    };
    for (queues, kinds, marked) in [
        ("{default}", "NULL", vec![work, play, suspect]),
        ("{default,mail}", "NULL", vec![work, play, mail, suspect]),
        ("{default}", "'{work}'", vec![work, suspect]),
        ("{default}", "'{call}'", vec![]),
        ("{mail}", "NULL", vec![]),
    ] {
        let marks = again(queues, kinds, "");
        let expected: BTreeMap<i64, Place> = marked.into_iter().map(|lane| (lane, place)).collect();
        assert_eq!(marks.lanes, expected, "{queues} {kinds}");
        let counts = |until| is_in_proportion(until, 1);
        assert_eq!(marks.ready_until.is_some_and(counts), !expected.is_empty(), "{marks:?}");
    }

    // Ann holds a suspect, so her claims pass suspects by.
    let holds = format!(
        "INSERT INTO tenure.jobs (id, state, lane, priority, run_at, token, attempt, max_attempts, crashes, max_crashes,
             queue, tenant, kind, args, enqueued_at, worker, started_at, leased_at, lease_ms, lease_until)
         VALUES (1, 2, {suspect}, 0, {NOW}, 1, 1, 60, 2, 5, 'default', '', 'work', '1', {NOW}, 'ann', {NOW}, {NOW}, 30000, {NOW} + 30000)"
    );
    let marks = again("{default}", "NULL", &holds);
    assert_eq!(marks.lanes, [(work, place), (play, place)].into());

    // A claim that got as many jobs as it asked for has not seen all there is. It marks only where
    // it came to.
    let urgent = enqueue(&mut session, ", priority => -1");
    let last = enqueue(&mut session, ", priority => 1");
    let full = claim(&mut session, &Ask::of(1), Some(&old));
    assert_eq!(full.jobs, [urgent]);
    assert_eq!(full.marks.unwrap().lanes, [(work, (-1, NOW, urgent))].into());
    let rest = claim(&mut session, &Ask::of(2), Some(&old));
    assert_eq!(rest.jobs, [last]);
    let expected = [(work, (1, NOW, last)), (play, place), (suspect, place)];
    assert_eq!(rest.marks.unwrap().lanes, expected.into());
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
