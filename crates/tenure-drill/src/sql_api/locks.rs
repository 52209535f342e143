//! Which calls wait for which: an open transaction delays no session that does not need its jobs.

use std::thread;

use postgres::Client;

use super::{Case, Lease, as_each, claim_many, effects, enqueue, sql_cases};
use crate::sessions::{Lab, code};

pub(super) const CASES: &[Case] = sql_cases! {
    "locks":
    an_open_settlement_makes_its_own_job_busy_and_delays_no_other,
    the_first_job_of_a_tenant_in_an_open_transaction_blocks_nobody,
    a_second_request_under_a_key_waits_and_gets_the_first_ones_job,
    a_second_request_under_a_key_gets_a_job_of_its_own_when_the_first_rolls_back,
    batches_of_keys_in_opposite_order_do_not_deadlock,
    batches_of_jobs_in_opposite_order_do_not_deadlock,
    calls_of_different_kinds_take_the_same_jobs_in_one_order,
    batches_of_refusals_in_opposite_order_do_not_deadlock,
    a_job_that_is_requeued_meanwhile_is_found_where_it_is_then,
    batches_that_share_keys_wait_for_each_other_and_agree_on_the_jobs,
    a_job_that_was_enqueued_in_a_transaction_is_there_with_its_commit_and_not_before,
    a_refusal_in_an_open_transaction_does_not_delay_the_holder,
    a_claim_left_open_keeps_no_due_job_of_another_queue_from_others,
};

/// Makes a session that would have to wait fail instead, so that a test reports it and does not
/// hang.
pub(super) fn impatient(mut session: Client) -> Client {
    session.batch_execute("SET lock_timeout = '1s'").unwrap();
    session
}

pub(super) fn pid(session: &mut Client) -> i32 {
    session.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0)
}

/// The verdicts of a function that takes a batch, in the order of these leases.
pub(super) fn verdicts(
    session: &mut Client,
    verb: &str,
    leases: &[Lease],
    more: &str,
) -> Vec<String> {
    let jobs: Vec<i64> = leases.iter().map(|lease| lease.job).collect();
    let tokens: Vec<i64> = leases.iter().map(|lease| lease.token).collect();
    let ask = format!("SELECT verdict FROM tenure.{verb}_many($1, $2{more}) ORDER BY n");
    let rows = session.query(&ask, &[&jobs, &tokens]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Both `complete` and `hold` lock their job until their transaction ends.
fn an_open_settlement_makes_its_own_job_busy_and_delays_no_other() {
    for verb in ["complete", "hold"] {
        as_each(|lab, who| {
            let (mut user, mut other) = (who.session(lab), impatient(who.session(lab)));
            for kind in ["one", "two", "three"] {
                enqueue(&mut user, kind);
            }
            let leases = claim_many(&mut user, 3, 300);
            user.batch_execute(&format!("BEGIN; {}", leases[1].call(verb))).unwrap();

            let renewed = verdicts(&mut other, "renew", &leases, ", 300");
            assert_eq!(renewed, ["extended", "busy", "extended"], "{verb}");
            lab.advance(300);
            let lapsed = verdicts(&mut other, "lapse", &leases[1..], "");
            assert_eq!(lapsed, ["busy", "taken_back"], "{verb}");
            let taken = claim_many(&mut other, 3, 300);
            assert_eq!(taken.len(), 2, "{verb}: the others are free");
            assert!(taken.iter().all(|lease| lease.job != leases[1].job), "{verb}: {taken:?}");
            // `renew`, for one job, raises no error if the job is busy: it returns the current
            // lease.
            other.batch_execute(&leases[1].call("renew")).unwrap();

            user.batch_execute(&format!("{}; COMMIT", leases[1].call("complete"))).unwrap();
            let renewed = verdicts(&mut other, "renew", &leases[1..2], ", 300");
            assert_eq!(renewed, ["stale"], "{verb}");
        });
    }
}

/// G1: `enqueue` writes no row that tenants or queues share.
fn the_first_job_of_a_tenant_in_an_open_transaction_blocks_nobody() {
    as_each(|lab, who| {
        let (mut user, mut other) = (who.session(lab), impatient(who.session(lab)));
        let job = "SELECT tenure.enqueue('work', tenant => 'new', queue => 'new')";
        user.batch_execute(&format!("BEGIN; {job}")).unwrap();
        other.batch_execute(job).unwrap();
        enqueue(&mut other, "work");
        let claim = "SELECT id FROM tenure.claim('ann', '{new,default}', 10)";
        assert_eq!(other.query(claim, &[]).unwrap().len(), 2, "all that is committed");
        user.batch_execute("COMMIT").unwrap();
        assert_eq!(other.query(claim, &[]).unwrap().len(), 1, "and now the rest");
    });
}

/// Two sessions send the same request under one key, and the first has not committed yet.
fn race_for_a_key(lab: &mut Lab, mut first: Client, mut second: Client, end: &str) -> (i64, i64) {
    let ask = "SELECT tenure.enqueue('work', key => 'k')";
    first.batch_execute("BEGIN").unwrap();
    let winner: i64 = first.query_one(ask, &[]).unwrap().get(0);
    let waits = pid(&mut second);
    let asked = thread::spawn(move || second.query_one(ask, &[]).map(|row| row.get(0)));
    lab.wait_until_blocked(waits);
    first.batch_execute(end).unwrap();
    (winner, asked.join().unwrap().unwrap())
}

/// I12: the second request gets the same job, never none.
fn a_second_request_under_a_key_waits_and_gets_the_first_ones_job() {
    as_each(|lab, who| {
        let (first, second) = (who.session(lab), who.session(lab));
        let (winner, answer) = race_for_a_key(lab, first, second, "COMMIT");
        assert_eq!(answer, winner);
        assert_eq!(lab.number("SELECT count(*) FROM tenure.job"), 1);
    });
}

fn a_second_request_under_a_key_gets_a_job_of_its_own_when_the_first_rolls_back() {
    as_each(|lab, who| {
        let (first, second) = (who.session(lab), who.session(lab));
        let (winner, answer) = race_for_a_key(lab, first, second, "ROLLBACK");
        assert_ne!(answer, winner);
        assert_eq!(lab.number("SELECT min(id) FROM tenure.job"), answer);
        assert_eq!(lab.number("SELECT count(*) FROM tenure.job"), 1);
    });
}

/// A batch takes its keys in an order of its own, whatever the order of its arguments.
fn batches_of_keys_in_opposite_order_do_not_deadlock() {
    as_each(|lab, who| {
        let batch = |descending: bool| {
            let order = if descending { "DESC" } else { "ASC" };
            format!(
                "SELECT count(*) FROM tenure.enqueue_many(array_fill('work'::text, ARRAY[200]), array_fill('{{}}'::json, ARRAY[200]),
                 p_keys => ARRAY(SELECT 'k' || n FROM generate_series(1, 200) n ORDER BY n {order}),
                 p_options => array_fill('{{\"key_window_ms\":0}}'::json, ARRAY[200]),
                 p_fingerprints => array_fill(tenure.fingerprint('work', '{{}}'), ARRAY[200]))"
            )
        };
        let run = |mut session: Client, sql: String| {
            move || (0..20).try_for_each(|_| session.batch_execute(&sql)).map_err(|e| code(&e))
        };
        let up = thread::spawn(run(who.session(lab), batch(false)));
        let down = thread::spawn(run(who.session(lab), batch(true)));
        assert_eq!((up.join().unwrap(), down.join().unwrap()), (Ok(()), Ok(())));
        let jobs = lab.number("SELECT count(*) FROM tenure.job");
        assert_eq!(jobs, 2 * 20 * 200, "a key that is remembered for no time wins nothing");
    });
}

/// Calls that wait for rows lock them in the order of their ids, whatever the order of their
/// arguments. A third session keeps both waiting in the middle of their lists: if each locked the
/// rows in the order of its own list, they would deadlock.
fn batches_of_jobs_in_opposite_order_do_not_deadlock() {
    let mut lab = Lab::new();
    let mut owner = lab.session();
    let enqueue = "SELECT tenure.enqueue_many(array_fill('work'::text, ARRAY[9]), array_fill('{}'::json, ARRAY[9]))";
    for [first, second] in
        [["complete"; 2], ["snooze"; 2], ["park", "bury"], ["complete", "release"]]
    {
        owner.batch_execute(enqueue).unwrap();
        let leases = claim_many(&mut owner, 9, 60_000);
        let backwards: Vec<Lease> = leases.iter().rev().copied().collect();
        let pair = [settle(&leases, first), settle(&backwards, second)];
        assert_eq!(both(&mut lab, "jobs", pair), [Ok(()), Ok(())], "{first} and {second}");
        owner.batch_execute("DELETE FROM tenure.jobs; DELETE FROM tenure.done").unwrap();
    }
    owner.batch_execute(enqueue).unwrap();
    let ids = |order: &str| format!("ARRAY(SELECT id FROM tenure.job ORDER BY id {order})");
    let cancel = ["ASC", "DESC"].map(|order| format!("SELECT tenure.cancel_many({})", ids(order)));
    assert_eq!(both(&mut lab, "jobs", cancel), [Ok(()), Ok(())], "cancel");
    let none = "array_fill(NULL::bigint, ARRAY[9])";
    let requeue = |order| format!("SELECT tenure.requeue_many({}, {none})", ids(order));
    assert_eq!(both(&mut lab, "done", ["ASC", "DESC"].map(requeue)), [Ok(()), Ok(())], "requeue");
    assert_eq!(lab.number("SELECT count(*) FROM tenure.job WHERE state = 'queued'"), 9);
}

/// The jobs and the tokens of these leases, as two SQL arrays.
fn lists(leases: &[Lease]) -> String {
    let list = |of: fn(&Lease) -> i64| {
        leases.iter().map(|l| of(l).to_string()).collect::<Vec<_>>().join(",")
    };
    format!("'{{{}}}', '{{{}}}'", list(|lease| lease.job), list(|lease| lease.token))
}

/// A batch that settles all these attempts with this verb.
fn settle(leases: &[Lease], verb: &str) -> String {
    let n = leases.len();
    format!(
        "SELECT tenure.settle_many({}, array_fill('{verb}'::text, ARRAY[{n}]), array_fill(0::bigint, ARRAY[{n}]),
         array_fill(NULL::text, ARRAY[{n}]), array_fill(NULL::json, ARRAY[{n}]))",
        lists(leases)
    )
}

/// A call on the jobs of these leases, in this order.
type Call<'a> = &'a dyn Fn(&[Lease]) -> String;

/// A batch that opens an effect of each job.
fn open_effects(leases: &[Lease]) -> String {
    let n = leases.len();
    format!(
        "SELECT tenure.ledger_many({}, array_fill('effect_open'::text, ARRAY[{n}]), array_fill('pay'::text, ARRAY[{n}]),
         array_fill(NULL::json, ARRAY[{n}]), array_fill(NULL::text, ARRAY[{n}]))",
        lists(leases)
    )
}

/// Two calls of different kinds could deadlock although each always locks in an order of its own:
/// both must have the same order. The first call lists the jobs by id, the second both ways.
fn calls_of_different_kinds_take_the_same_jobs_in_one_order() {
    let mut lab = Lab::new();
    let mut owner = lab.session();
    let enqueue = "SELECT tenure.enqueue_many(array_fill('work'::text, ARRAY[9]), array_fill('{}'::json, ARRAY[9]))";
    let ids = |of: &[Lease]| {
        let ids: Vec<_> = of.iter().map(|lease| lease.job.to_string()).collect();
        format!("'{{{}}}'", ids.join(","))
    };
    let none = "array_fill(NULL::bigint, ARRAY[9])";
    let cancel = |of: &[Lease]| format!("SELECT tenure.cancel_many({})", ids(of));
    let resume = |of: &[Lease]| format!("SELECT tenure.resume_many({})", ids(of));
    let requeue = |of: &[Lease]| format!("SELECT tenure.requeue_many({}, {none})", ids(of));
    let purge = |of: &[Lease]| format!("SELECT tenure.purge_many({}, {none})", ids(of));
    let hold = |of: &[Lease]| format!("SELECT tenure.hold_many({})", lists(of));
    let complete = |of: &[Lease]| settle(of, "complete");
    let bury = |of: &[Lease]| settle(of, "bury");
    let pairs: [(&str, &str, Call<'_>, Call<'_>); 7] = [
        ("", "jobs", &complete, &cancel),
        ("", "jobs", &complete, &open_effects),
        ("", "jobs", &complete, &hold),
        ("", "jobs", &complete, &bury),
        ("park", "jobs", &cancel, &resume),
        ("bury", "done", &requeue, &purge),
        ("bury", "done", &purge, &requeue),
    ];
    for (before, table, first, second) in pairs {
        for backwards in [false, true] {
            owner.batch_execute(enqueue).unwrap();
            let leases = claim_many(&mut owner, 9, 60_000);
            if !before.is_empty() {
                owner.batch_execute(&settle(&leases, before)).unwrap();
            }
            let mut others = leases.clone();
            if backwards {
                others.reverse();
            }
            let pair = [first(&leases), second(&others)];
            let what = format!("{} and {}", pair[0], pair[1]);
            assert_eq!(both(&mut lab, table, pair), [Ok(()), Ok(())], "{what}");
            owner.batch_execute("DELETE FROM tenure.jobs; DELETE FROM tenure.done").unwrap();
        }
    }
}

/// A refusal writes a line into the timeline. A session that writes the same line waits for the
/// transaction that wrote it first. A third session has written the line in the middle of both
/// batches.
fn batches_of_refusals_in_opposite_order_do_not_deadlock() {
    let mut lab = Lab::new();
    let mut owner = lab.session();
    let job = enqueue(&mut owner, "late");
    owner.batch_execute(&format!("SELECT tenure.cancel({job})")).unwrap();
    for kind in ["one", "two"] {
        enqueue(&mut owner, kind);
    }
    let held = claim_many(&mut owner, 2, 60_000);
    let late = [7, 8, 9].map(|token| Lease { job, token });
    let renew = |of: &[Lease]| format!("SELECT tenure.renew_many({}, 300)", lists(of));
    let progress = |of: &[Lease]| {
        format!("SELECT tenure.progress_many({}, '{{1,1,1,1}}', '{{a,a,a,a}}')", lists(of))
    };
    let calls: [(&str, Call<'_>); 3] =
        [("renew", &renew), ("progress", &progress), ("effect_open", &open_effects)];
    for (verb, call) in calls {
        let [up, down] = [late, [late[2], late[1], late[0]]];
        let batches = [[&held[..1], &up[..]].concat(), [&held[1..], &down[..]].concat()];
        let middle = late[1].call_with("refused", &format!(", '{verb}'"));
        let ended = behind(&mut lab, &middle, batches.map(|batch| call(&batch)));
        assert_eq!(ended, [Ok(()), Ok(())], "{verb}");
    }
}

/// `cancel` looks for the job among the pending jobs and then among the ended ones, where it waits
/// for the `requeue`. Then it must look among the pending ones once more.
fn a_job_that_is_requeued_meanwhile_is_found_where_it_is_then() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let lease = super::running(&mut session);
        session.batch_execute(&lease.call_with("bury", ", 'no'")).unwrap();
        let (mut one, mut other) = (lab.session(), lab.session());
        one.batch_execute(&format!("BEGIN; SELECT tenure.requeue({})", lease.job)).unwrap();
        let waits = pid(&mut other);
        let cancel = format!("SELECT tenure.cancel({})", lease.job);
        let cancelled = thread::spawn(move || other.query_one(&cancel, &[]).map(|row| row.get(0)));
        lab.wait_until_blocked(waits);
        one.batch_execute("COMMIT").unwrap();
        assert_eq!(
            cancelled.join().unwrap().map_err(|error| code(&error)),
            Ok("cancelled".to_owned())
        );
    });
}

/// Runs both statements while the fifth job is locked, unlocks it when both wait, and returns how
/// each ended.
fn both(lab: &mut Lab, table: &str, statements: [String; 2]) -> [Result<(), String>; 2] {
    let fifth = format!(
        "SELECT 1 FROM tenure.{table} WHERE id = (SELECT id FROM tenure.{table} ORDER BY id OFFSET 4 LIMIT 1)"
    );
    behind(lab, &format!("{fifth} FOR UPDATE"), statements)
}

/// Runs both statements behind an open transaction that has run `first`, ends it when both wait,
/// and returns how each ended.
fn behind(lab: &mut Lab, first: &str, statements: [String; 2]) -> [Result<(), String>; 2] {
    let mut lock = lab.session();
    lock.batch_execute(&format!("BEGIN; {first}")).unwrap();
    let threads = statements.map(|sql| {
        let mut session = lab.session();
        let waits = pid(&mut session);
        let thread =
            thread::spawn(move || session.batch_execute(&sql).map_err(|error| code(&error)));
        lab.wait_until_blocked(waits);
        thread
    });
    lock.batch_execute("ROLLBACK").unwrap();
    threads.map(|thread| thread.join().unwrap())
}

/// Here the keys are remembered. The second batch lists them backwards, waits for the first one's
/// transaction, and gets the first one's jobs.
fn batches_that_share_keys_wait_for_each_other_and_agree_on_the_jobs() {
    as_each(|lab, who| {
        let ask = |keys: &str| {
            format!(
                "SELECT string_agg(job::text, ' ' ORDER BY n) FROM tenure.enqueue_many('{{a,a,a}}', ARRAY['1', '1', '1']::json[],
                 p_keys => '{keys}', p_fingerprints => array_fill(tenure.fingerprint('a', '1'), ARRAY[3]))"
            )
        };
        let (mut first, mut second) = (who.session(lab), who.session(lab));
        first.batch_execute("BEGIN").unwrap();
        let one: String = first.query_one(&ask("{x,y,z}"), &[]).unwrap().get(0);
        let waits = pid(&mut second);
        let backwards = ask("{z,y,x}");
        let other = thread::spawn(move || second.query_one(&backwards, &[]).map(|row| row.get(0)));
        lab.wait_until_blocked(waits);
        first.batch_execute("COMMIT").unwrap();
        let two: String = other.join().unwrap().unwrap();
        assert_eq!(two.split(' ').rev().collect::<Vec<_>>(), one.split(' ').collect::<Vec<_>>());
        assert_eq!(lab.number("SELECT count(*) FROM tenure.job"), 3);
    });
}

/// The user's own rows and the job become visible together, or not at all.
fn a_job_that_was_enqueued_in_a_transaction_is_there_with_its_commit_and_not_before() {
    as_each(|lab, who| {
        let (mut user, mut worker) = (who.session(lab), who.session(lab));
        let both = "BEGIN; INSERT INTO public.effects VALUES (1, 1, 'order'); SELECT tenure.enqueue('ship')";
        user.batch_execute(&format!("{both}; ROLLBACK")).unwrap();
        assert_eq!((effects(lab), claim_many(&mut worker, 1, 300)), (0, vec![]));
        user.batch_execute(both).unwrap();
        assert_eq!(claim_many(&mut worker, 1, 300), [], "not yet");
        user.batch_execute("COMMIT").unwrap();
        assert_eq!((effects(lab), claim_many(&mut worker, 1, 300).len()), (1, 1));
    });
}

/// A stale worker's renewal was refused in a transaction that is still open. The holder does not
/// wait for it, and the line about the refusal is kept.
fn a_refusal_in_an_open_transaction_does_not_delay_the_holder() {
    as_each(|lab, who| {
        let (mut stale, mut holder) = (who.session(lab), impatient(who.session(lab)));
        enqueue(&mut holder, "work");
        let slow = claim_many(&mut holder, 1, 300)[0];
        lab.advance(300);
        let lease = claim_many(&mut holder, 1, 300)[0];
        stale.batch_execute("BEGIN").unwrap();
        assert_eq!(verdicts(&mut stale, "renew", &[slow], ", 300"), ["stale"]);
        assert_eq!(verdicts(&mut holder, "renew", &[lease], ", 300"), ["extended"]);
        holder.batch_execute(&lease.call("complete")).unwrap();
        stale.batch_execute("COMMIT").unwrap();
        assert_eq!(
            lab.number("SELECT count(*) FROM tenure.event WHERE refused AND verb = 'renew'"),
            1
        );
    });
}

/// The claim has made due jobs ready and keeps them locked: at most 100, and only those of its own
/// queue.
fn a_claim_left_open_keeps_no_due_job_of_another_queue_from_others() {
    as_each(|lab, who| {
        let (mut open, mut other) = (who.session(lab), impatient(who.session(lab)));
        lab.owner()
            .batch_execute(
                "SELECT tenure.enqueue('work', queue => 'mine', delay => interval '1 s') FROM generate_series(1, 150);
                 SELECT tenure.enqueue('work', delay => interval '1 s')",
            )
            .unwrap();
        lab.advance(1_000);
        open.batch_execute("BEGIN; SELECT id FROM tenure.claim('bob', queues => '{mine}')")
            .unwrap();
        assert_eq!(claim_many(&mut other, 10, 300).len(), 1, "from its own queue");
        let of_mine = "SELECT count(*) FROM tenure.claim('eve', queues => '{mine}', n => 1000)";
        let got: i64 = other.query_one(of_mine, &[]).unwrap().get(0);
        assert_eq!(got, 50, "the open claim has made 100 ready");
        open.batch_execute("ROLLBACK").unwrap();
    });
}
