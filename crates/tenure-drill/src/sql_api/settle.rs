//! Settlements from plain sessions: what they lock, what they prove, and what is refused.

use std::thread;

use postgres::Client;

use super::locks::{impatient, pid, verdicts};
use super::{
    Case, Lease, as_each, claim_many, effects, enqueue, running, sql_cases, state, take_over,
};
use crate::sessions::{Lab, code, fault};

pub(super) const CASES: &[Case] = sql_cases! {
    "settle":
    a_settlement_is_on_disk_before_it_is_answered_whatever_the_session_says,
    a_settlement_that_makes_no_sense_is_refused_with_its_field,
    each_result_and_each_note_of_a_batch_is_looked_at,
    of_two_settlements_of_one_attempt_the_first_to_commit_is_heard,
    a_settlement_in_an_open_transaction_locks_its_own_job_only,
    a_refused_settlement_in_an_open_transaction_keeps_the_holder_from_nothing,
    a_repeated_settlement_in_an_open_transaction_keeps_nobody_from_claiming_the_job,
    settlements_and_holds_of_jobs_in_opposite_order_do_not_deadlock,
    settlements_that_are_refused_in_opposite_order_do_not_deadlock,
    a_batch_with_a_job_in_it_twice_waits_for_another_such_batch_and_no_other_does,
    an_effect_that_is_opened_at_the_moment_of_its_jobs_completion_is_not_forgotten,
    a_snapshot_that_may_be_too_old_leaves_a_success_to_pruning,
    each_settlement_of_a_batch_proves_its_own_fence_and_no_other,
    only_the_holder_is_told_what_did_not_follow,
};

fn settle(leases: &[Lease], verbs: &str) -> String {
    let each = |of: fn(&Lease) -> i64| {
        leases.iter().map(of).map(|n| n.to_string()).collect::<Vec<_>>().join(",")
    };
    let n = leases.len();
    format!(
        "tenure.settle_many('{{{}}}', '{{{}}}', '{verbs}', array_fill(0::bigint, ARRAY[{n}]), array_fill('why'::text, ARRAY[{n}]),
         array_fill(NULL::json, ARRAY[{n}]))",
        each(|lease| lease.job),
        each(|lease| lease.token)
    )
}

/// The verdicts of a batch, in its order.
fn told(session: &mut Client, leases: &[Lease], verbs: &str) -> String {
    let sql = format!("SELECT string_agg(verdict, ' ' ORDER BY n) FROM {}", settle(leases, verbs));
    session.query_one(&sql, &[]).unwrap().get(0)
}

/// Two running jobs.
fn two(session: &mut Client) -> [Lease; 2] {
    enqueue(session, "work");
    enqueue(session, "work");
    let leases = claim_many(session, 2, 300);
    [leases[0], leases[1]]
}

fn a_settlement_is_on_disk_before_it_is_answered_whatever_the_session_says() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let lease = running(&mut session);
        for (level, then) in [("off", "on"), ("local", "local"), ("remote_write", "remote_write")] {
            session.batch_execute(&format!("SET synchronous_commit = {level}; BEGIN")).unwrap();
            assert_eq!(told(&mut session, &[lease], "{complete}"), "settled");
            let setting: String = session.query_one("SHOW synchronous_commit", &[]).unwrap().get(0);
            assert_eq!(setting, then, "{level}");
            session.batch_execute("ROLLBACK").unwrap();
        }
    });
}

fn a_settlement_that_makes_no_sense_is_refused_with_its_field() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let lease = running(&mut session);
        let call = |verb: &str, after: &str| {
            format!(
                "SELECT verdict FROM tenure.settle_many('{{{}}}', '{{{}}}', '{{{verb}}}', '{{{after}}}', '{{NULL}}', '{{NULL}}')",
                lease.job, lease.token
            )
        };
        for (field, verb, after) in [
            ("verb", "NULL", "0"),
            ("verb", "finish", "0"),
            ("verb", "\"\"", "0"),
            ("after", "retry", "-1"),
            ("after", "retry", "NULL"),
            ("after", "snooze", "-1"),
            ("after", "snooze", "NULL"),
        ] {
            let refusal = fault(session.query(&call(verb, after), &[]));
            assert_eq!(
                (refusal.code().code(), refusal.column()),
                ("TN003", Some(field)),
                "{verb} {after}"
            );
        }
        assert_eq!(state(lab, lease.job), "running");
        // A settlement that does not wait needs no delay.
        for (verb, after) in [
            ("release", "NULL"),
            ("bury", "-1"),
            ("park", "NULL"),
            ("complete", "-1"),
            ("snooze", "0"),
        ] {
            session.batch_execute("BEGIN").unwrap();
            let answer: String = session.query_one(&call(verb, after), &[]).unwrap().get(0);
            assert_eq!(answer, "settled", "{verb} {after}");
            session.batch_execute("ROLLBACK").unwrap();
        }
    });
}

/// Results have the limits of args, and long notes are cut.
fn each_result_and_each_note_of_a_batch_is_looked_at() {
    let mut lab = Lab::new();
    let mut session = lab.session();
    let [one, two] = two(&mut session);
    let call = |verbs: &str, notes: &str, results: &str| {
        format!(
            "SELECT tenure.settle_many('{{{},{}}}', '{{{},{}}}', '{verbs}', '{{0,0}}', {notes}, {results})",
            one.job, two.job, one.token, two.token
        )
    };
    let deep = |n: usize| format!("(repeat('[', {n}) || repeat(']', {n}))::json");
    for result in [deep(128), r#"'"\u0000"'::json"#.into(), r#"'["\ud800"]'::json"#.into()] {
        let sql =
            call("{complete,complete}", "'{NULL,NULL}'", &format!("ARRAY['1'::json, {result}]"));
        let refusal = fault(session.query(&sql, &[]));
        assert_eq!(
            (refusal.code().code(), refusal.column()),
            ("TN003", Some("result")),
            "{result}"
        );
    }
    let notes = "ARRAY[repeat('é', 9000), 'brief']";
    session.query(&call("{park,park}", notes, "'{NULL,NULL}'"), &[]).unwrap();
    let told =
        "SELECT string_agg(length(reason) || left(reason, 5), ' ' ORDER BY id) FROM tenure.jobs";
    assert_eq!(lab.text(told), "8192ééééé 5brief");
}

/// I3: the second waits, and is then refused as stale.
fn of_two_settlements_of_one_attempt_the_first_to_commit_is_heard() {
    for [first, second] in
        [["snooze", "bury"], ["bury", "release"], ["release", "complete"], ["park", "retry"]]
    {
        // The second session sends its settlement alone, twice in a batch, or beside that of another
        // job: three code paths.
        for shape in [&[0][..], &[0, 0], &[0, 1]] {
            as_each(|lab, who| {
                let (mut one, mut other) = (who.session(lab), who.session(lab));
                let leases = two(&mut one);
                let lease = leases[0];
                one.batch_execute("BEGIN").unwrap();
                assert_eq!(told(&mut one, &[lease], &format!("{{{first}}}")), "settled");
                let waits = pid(&mut other);
                let verbs = format!("{{{}}}", vec![second; shape.len()].join(","));
                let batch: Vec<Lease> = shape.iter().map(|place| leases[*place]).collect();
                let asked = thread::spawn(move || told(&mut other, &batch, &verbs));
                lab.wait_until_blocked(waits);
                let after = one.batch_execute("COMMIT").map(|()| state(lab, lease.job)).unwrap();
                let verdict = |place| if place == 0 { "stale" } else { "settled" };
                let expected: Vec<_> = shape.iter().map(|place| verdict(*place)).collect();
                let about = format!("{second} after {first}, jobs {shape:?}");
                assert_eq!(asked.join().unwrap(), expected.join(" "), "{about}");
                assert_eq!(state(lab, lease.job), after, "{about}");
            });
        }
    }
}

fn a_settlement_in_an_open_transaction_locks_its_own_job_only() {
    for verb in ["complete", "snooze", "bury"] {
        as_each(|lab, who| {
            let (mut open, mut other) = (who.session(lab), impatient(who.session(lab)));
            let [mine, others] = two(&mut open);
            assert_eq!(mine.token, others.token);
            open.batch_execute("BEGIN").unwrap();
            assert_eq!(told(&mut open, &[mine], &format!("{{{verb}}}")), "settled");
            assert_eq!(
                verdicts(&mut other, "renew", &[mine, others], ", 300"),
                ["busy", "extended"],
                "{verb}"
            );
            assert_eq!(told(&mut other, &[others], "{snooze}"), "settled");
            open.batch_execute("COMMIT").unwrap();
        });
    }
}

fn a_refused_settlement_in_an_open_transaction_keeps_the_holder_from_nothing() {
    as_each(|lab, who| {
        let (mut stale, mut holder) = (who.session(lab), impatient(who.session(lab)));
        let slow = running(&mut stale);
        let quick = take_over(lab, &mut holder);
        stale.batch_execute("BEGIN").unwrap();
        assert_eq!(told(&mut stale, &[slow], "{bury}"), "stale");
        assert_eq!(told(&mut stale, &[slow, slow], "{complete,complete}"), "stale stale");
        assert_eq!(verdicts(&mut holder, "renew", &[quick], ", 300"), ["extended"]);
        assert_eq!(told(&mut holder, &[quick], "{snooze}"), "settled");
        stale.batch_execute("COMMIT").unwrap();
    });
}

fn a_repeated_settlement_in_an_open_transaction_keeps_nobody_from_claiming_the_job() {
    as_each(|lab, who| {
        let (mut open, mut other) = (who.session(lab), impatient(who.session(lab)));
        let lease = running(&mut open);
        assert_eq!(told(&mut open, &[lease], "{snooze}"), "settled");
        open.batch_execute("BEGIN").unwrap();
        assert_eq!(told(&mut open, &[lease], "{snooze}"), "repeated");
        assert_eq!(claim_many(&mut other, 1, 300).len(), 1);
        open.batch_execute("COMMIT").unwrap();
    });
}

/// Runs both statements behind an open transaction, ends it when both wait, and returns how each
/// ended.
fn behind(lab: &mut Lab, mut open: Client, statements: [String; 2]) -> [Result<(), String>; 2] {
    let threads = statements.map(|sql| {
        let mut session = lab.session();
        let waits = pid(&mut session);
        let ended = move || session.batch_execute(&sql).map_err(|error| code(&error));
        let thread = thread::spawn(ended);
        lab.wait_until_blocked(waits);
        thread
    });
    open.batch_execute("COMMIT").unwrap();
    threads.map(|thread| thread.join().unwrap())
}

/// A third session has locked the job in the middle. If each locked the jobs in the order of its
/// own list, they would deadlock.
fn settlements_and_holds_of_jobs_in_opposite_order_do_not_deadlock() {
    let mut lab = Lab::new();
    let mut owner = lab.session();
    for [first, second] in [
        ["complete"; 2],
        ["snooze"; 2],
        ["complete", "snooze"],
        ["hold"; 2],
        ["complete", "hold"],
        ["hold", "snooze"],
    ] {
        owner
            .batch_execute(
                "DELETE FROM tenure.jobs; SELECT tenure.enqueue('work') FROM generate_series(1, 9)",
            )
            .unwrap();
        let mut leases = claim_many(&mut owner, 9, 300);
        let mut call = |verb: &str| {
            let verbs = format!("{{{}}}", [verb; 9].join(","));
            let settle = settle(&leases, &verbs);
            let lists = settle.split(", '{").take(2).collect::<Vec<_>>().join(", '{");
            leases.reverse();
            match verb {
                "hold" => format!("SELECT {})", lists.replace("settle_many", "hold_many")),
                _ => format!("SELECT {settle}"),
            }
        };
        let pair = [call(first), call(second)];
        let mut lock = lab.session();
        let middle = leases[4].job;
        lock.batch_execute(&format!(
            "BEGIN; SELECT 1 FROM tenure.jobs WHERE id = {middle} FOR UPDATE"
        ))
        .unwrap();
        assert_eq!(behind(&mut lab, lock, pair), [Ok(()), Ok(())], "{first} and {second}");
    }
}

/// Both wait in the middle of their lists for a timeline entry that a third session is about to
/// write. If each had already written an entry that the other wants too, they would deadlock.
fn settlements_that_are_refused_in_opposite_order_do_not_deadlock() {
    let lists: [fn(i64, i64) -> Lease; 2] = [
        // One entry for each of nine jobs, and nine entries for one job.
        |n, _| Lease { job: n, token: 7 },
        |n, first| Lease { job: first, token: 70 + n },
    ];
    for list in lists {
        let mut lab = Lab::new();
        let mut third = lab.session();
        for _ in 0..9 {
            enqueue(&mut third, "work");
        }
        let mut stale: Vec<Lease> = (1..=9).map(|n| list(n, 1)).collect();
        third.batch_execute("BEGIN").unwrap();
        assert_eq!(told(&mut third, &stale[4..5], "{bury}"), "stale");
        let verbs = format!("{{{}}}", ["bury"; 9].join(","));
        let forwards = format!("SELECT {}", settle(&stale, &verbs));
        stale.reverse();
        let backwards = format!("SELECT {}", settle(&stale, &verbs));
        assert_eq!(behind(&mut lab, third, [forwards, backwards]), [Ok(()), Ok(())]);
        assert_eq!(lab.number("SELECT count(*) FROM tenure.event WHERE refused"), 9);
    }
}

/// Two batches that each list a job more than once could write lines about that job in opposite
/// orders, and deadlock. So such batches come one by one; others need not.
fn a_batch_with_a_job_in_it_twice_waits_for_another_such_batch_and_no_other_does() {
    as_each(|lab, who| {
        let (mut open, mut other) = (who.session(lab), who.session(lab));
        let [one, two] = two(&mut open);
        open.batch_execute("BEGIN").unwrap();
        assert_eq!(told(&mut open, &[one, one], "{snooze,snooze}"), "settled repeated");
        let waits = pid(&mut other);
        let asked =
            thread::spawn(move || (told(&mut other, &[two, two], "{complete,snooze}"), other));
        lab.wait_until_blocked(waits);
        open.batch_execute("COMMIT").unwrap();
        let (answer, mut other) = asked.join().unwrap();
        assert_eq!(answer, "settled stale", "the first of a batch is heard first");

        let [one, two] = self::two(&mut open);
        open.batch_execute("BEGIN").unwrap();
        assert_eq!(told(&mut open, &[one], "{snooze}"), "settled");
        other.batch_execute("SET lock_timeout = '1s'").unwrap();
        assert_eq!(told(&mut other, &[two, two], "{snooze,snooze}"), "settled repeated");
        open.batch_execute("ROLLBACK").unwrap();
    });
}

/// I9: the completion fails with 40001. Retried, it keeps the job, whose effect is in doubt.
fn an_effect_that_is_opened_at_the_moment_of_its_jobs_completion_is_not_forgotten() {
    let mut lab = Lab::new();
    let (mut one, mut other) = (lab.session(), lab.session());
    lab.owner().batch_execute("SELECT tenure.configure('default', p_keep_ms => 0)").unwrap();
    let [lease, second] = two(&mut one);
    one.batch_execute(&format!("BEGIN; {}", lease.call_with("effect_open", ", 'pay'"))).unwrap();
    let waits = pid(&mut other);
    let complete = format!("SELECT {}", settle(&[lease], "{complete}"));
    let asked = thread::spawn(move || (other.batch_execute(&complete), other));
    lab.wait_until_blocked(waits);
    one.batch_execute("COMMIT").unwrap();
    let (answer, mut other) = asked.join().unwrap();
    assert_eq!(fault(answer).code().code(), "40001");
    assert_eq!(state(&mut lab, lease.job), "running");
    // An effect of one job does not concern another job.
    assert_eq!(told(&mut other, &[second], "{complete}"), "settled");
    assert_eq!(lab.number("SELECT count(*) FROM tenure.job"), 1, "that one is forgotten");
    assert_eq!(told(&mut other, &[lease], "{complete}"), "settled");
    assert_eq!(state(&mut lab, lease.job), "succeeded", "the intent must not go with its job");
    assert_eq!(lab.number("SELECT count(*) FROM tenure.ledger"), 1);
}

/// At REPEATABLE READ and above, the snapshot may not show the job's last effect. If the completion
/// deleted the job, that effect would be left behind.
fn a_snapshot_that_may_be_too_old_leaves_a_success_to_pruning() {
    let mut lab = Lab::new();
    let mut session = lab.session();
    lab.owner().batch_execute("SELECT tenure.configure('default', p_keep_ms => 0)").unwrap();
    for (level, kept) in [
        ("READ COMMITTED", 0),
        ("READ UNCOMMITTED", 0),
        ("REPEATABLE READ", 1),
        ("SERIALIZABLE", 1),
    ] {
        for times in [1, 2] {
            let lease = running(&mut session);
            session.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}")).unwrap();
            let verbs = format!("{{{}}}", vec!["complete"; times].join(","));
            assert!(told(&mut session, &vec![lease; times], &verbs).starts_with("settled"));
            session.batch_execute("COMMIT").unwrap();
            let there = format!("SELECT count(*) FROM tenure.job WHERE id = {}", lease.job);
            assert_eq!(lab.number(&there), kept, "{level}");
        }
    }
}

/// `settle_many` returns `stale` as a value and raises no error. A stale settlement proves no
/// fence, so the COMMIT fails.
fn each_settlement_of_a_batch_proves_its_own_fence_and_no_other() {
    for (verbs, stale) in [
        ("{complete,complete}", 0),
        ("{complete,complete}", 1),
        ("{snooze,bury}", 0),
        ("{snooze,bury}", 1),
    ] {
        as_each(|lab, who| {
            let (mut first, mut second) = (who.session(lab), who.session(lab));
            let leases = two(&mut first);
            let fences = format!("BEGIN; {}; {}", leases[0].call("fence"), leases[1].call("fence"));
            let write = format!("{fences}; {}", leases[0].effect());
            first.batch_execute(&write).unwrap();
            assert_eq!(told(&mut first, &leases, verbs), "settled settled");
            first.batch_execute("SET CONSTRAINTS ALL IMMEDIATE; ROLLBACK").unwrap();

            first.batch_execute(&write).unwrap();
            // Another worker has taken over one of the two meanwhile.
            let lost = leases[stale];
            second.batch_execute(&lost.call("release")).unwrap();
            assert_eq!(claim_many(&mut second, 1, 300)[0].job, lost.job);
            let verdicts = told(&mut first, &leases, verbs);
            assert_eq!(verdicts.matches("settled").count(), 1, "{verdicts}");
            let refusal = fault(first.batch_execute("COMMIT"));
            assert!(
                refusal.message().ends_with(&format!("job {}", lost.job)),
                "{verbs}: {refusal}"
            );
            assert_eq!(effects(lab), 0);
        });
    }
}

fn only_the_holder_is_told_what_did_not_follow() {
    let mut lab = Lab::new();
    let mut session = lab.session();
    let slow = running(&mut session);
    let quick = take_over(&mut lab, &mut session);
    let other = running(&mut session);
    let call = |job: i64, token: i64| {
        format!("SELECT tenure.follow_refused({job}, {token}, 'next not enqueued')")
    };
    let lines = "SELECT count(*) FROM tenure.event WHERE verb = 'follow'";
    session.batch_execute(&call(slow.job, slow.token)).unwrap();
    session.batch_execute(&call(99, quick.token)).unwrap();
    assert_eq!(lab.number(lines), 0);
    session.batch_execute(&call(quick.job, quick.token)).unwrap();
    let told = lab.text("SELECT string_agg(job || ' ' || token || ' ' || note, ',') FROM tenure.event WHERE verb = 'follow'");
    assert_eq!(told, format!("{} {} next not enqueued", quick.job, quick.token));
    session.batch_execute(&other.call_with("snooze", ", '1 s'")).unwrap();
    session.batch_execute(&call(other.job, other.token)).unwrap();
    assert_eq!(lab.number(lines), 1, "it runs no more");
}
