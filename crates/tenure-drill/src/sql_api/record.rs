//! The building blocks of the verbs: clocks, breaks, epochs, checks and timeline entries.

use postgres::Client;

use super::locks::{impatient, verdicts};
use super::{Case, Lease, as_each, claim_many, enqueue, running, sql_cases, state, take_over};
use crate::engines::START;
use crate::sessions::{Lab, fault};

pub(super) const CASES: &[Case] = sql_cases! {
    "record":
    the_server_runs_since_the_last_of_what_broke_it_that_is_not_in_the_future,
    a_test_clock_has_a_start_of_its_own,
    a_break_that_is_noted_for_later_is_none_yet,
    a_pulse_that_is_too_old_is_a_break_while_leases_are_out,
    a_lease_is_pardoned_once_from_the_latest_that_kept_its_holder_away,
    the_history_tells_migrations_in_order_and_the_functions_first,
    the_terms_tell_what_a_commit_waits_for_and_what_would_be_noticed,
    an_installation_that_has_said_off_raises_nothing,
    what_makes_no_sense_is_refused_by_every_call,
    a_database_is_here_if_all_that_it_remembers_is_so,
    an_epoch_begins_once_for_each_move_whatever_has_moved,
    a_claim_left_open_keeps_nobody_from_changing_the_installation,
    numbers_of_an_epoch_begin_elsewhere_in_each_server,
    a_worker_that_has_seen_more_of_the_log_is_a_witness_once,
    a_witness_is_believed_only_about_this_installation_and_its_own_epoch,
    what_is_being_deleted_at_this_moment_gets_no_line,
    a_job_that_is_locked_but_stays_gets_its_line_at_once,
    a_late_word_in_an_open_transaction_leaves_the_job_to_its_holder,
    a_call_without_a_token_leaves_no_line,
    a_refusal_tells_about_its_own_job_and_nothing_about_one_that_is_not_there,
};

const NOW: i64 = START.as_millis();

/// When the server started, or its statistics were discarded.
const SINCE: &str = "greatest(floor(extract(epoch FROM pg_postmaster_start_time()) * 1000)::bigint,
    floor(extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time()) * 1000)::bigint)";

fn the_server_runs_since_the_last_of_what_broke_it_that_is_not_in_the_future() {
    let mut lab = Lab::new();
    lab.run_clock();
    let since = lab.number(&format!("SELECT {SINCE}"));
    let steady = |t: i64| format!("SELECT tenure.steady_since({t})");
    assert_eq!(lab.number("SELECT tenure.started_ms()"), since);
    assert_eq!(lab.number(&steady(since)), since);
    let epoch = |number: i64, at: i64| {
        format!("INSERT INTO tenure.epochs VALUES ({number}, {at}, 'a test')")
    };
    for sql in [epoch(1, since + 10), epoch(2, since + 20)] {
        lab.owner().batch_execute(&sql).unwrap();
    }
    assert_eq!(lab.number("SELECT tenure.started_ms()"), since + 20, "the last epoch");
    for (t, then) in
        [(since + 20, since + 20), (since + 21, since + 20), (since + 19, since), (since - 1, 0)]
    {
        let told = lab.number(&steady(t));
        // For a time before `since`, the answer may be the older of the two sources of `SINCE`.
        assert!(told == then || t < since && told < since, "{told} and not {then}");
    }
}

fn a_test_clock_has_a_start_of_its_own() {
    let mut lab = Lab::new();
    lab.owner().batch_execute("INSERT INTO tenure.epochs VALUES (1, 7, 'a test')").unwrap();
    let late = 4_000_000_000_000_i64;
    assert_eq!(lab.number("SELECT tenure.started_ms()"), 0);
    assert_eq!(lab.number(&format!("SELECT tenure.steady_since({late})")), 0);
    lab.owner().batch_execute("UPDATE tenure.clock SET started_at = 5").unwrap();
    assert_eq!(lab.number("SELECT tenure.started_ms()"), 5);
    for (t, then) in [(4, 0), (5, 5), (late, 5)] {
        assert_eq!(lab.number(&format!("SELECT tenure.steady_since({t})")), then);
    }
}

/// After the clock was set back, a break may be noted at a time that has not come yet.
fn a_break_that_is_noted_for_later_is_none_yet() {
    let mut lab = Lab::new();
    lab.owner()
        .batch_execute(&format!(
            "SELECT setval('tenure.broke', {NOW}), setval('tenure.broke_before', {NOW} - 9)"
        ))
        .unwrap();
    for (t, then) in
        [(NOW - 10, "0 0"), (NOW - 9, "0 NOW-9"), (NOW - 1, "0 NOW-9"), (NOW, "NOW NOW-9")]
    {
        let told =
            lab.text(&format!("SELECT broke || ' ' || broke_before FROM tenure.noted_breaks({t})"));
        let then = then.replace("NOW-9", &(NOW - 9).to_string()).replace("NOW", &NOW.to_string());
        assert_eq!(told, then, "at {t}");
    }
}

/// A pulse older than three seconds is a break, unless the lease was granted or a break was noted
/// within that time.
fn a_pulse_that_is_too_old_is_a_break_while_leases_are_out() {
    let mut lab = Lab::new();
    let mut session = lab.session();
    running(&mut session);
    enqueue(&mut session, "work");
    for (pulse, broke, leased, is_break) in [
        (NOW - 3_001, 0, NOW - 3_001, true),
        (NOW - 3_000, 0, NOW - 3_001, false),
        (NOW - 3_001, 0, NOW - 3_000, false),
        (NOW - 9_999, NOW - 3_001, NOW - 9_999, true),
        (NOW - 9_999, NOW - 3_000, NOW - 9_999, false),
        (0, 0, NOW - 9_999, false),
        (1, 0, NOW - 9_999, true),
    ] {
        let set = format!(
            "UPDATE tenure.jobs SET leased_at = {leased} WHERE state = 2; SELECT setval('tenure.pulse', {pulse}),
             setval('tenure.broke', {broke}), setval('tenure.broke_before', 5)"
        );
        lab.owner().batch_execute(&set).unwrap();
        let (last, before) = if is_break { (NOW, broke) } else { (broke, 5) };
        let seen = "SELECT broke || ' ' || broke_before FROM tenure.last_breaks($1, $2)";
        let noted = "SELECT (SELECT last_value FROM tenure.broke) || ' ' || (SELECT last_value FROM tenure.broke_before)";
        for note in [false, true] {
            let told: String = lab.owner().query_one(seen, &[&NOW, &note]).unwrap().get(0);
            assert_eq!(
                told,
                format!("{last} {before}"),
                "pulse {pulse}, broke {broke}, leased {leased}"
            );
            let kept = if note { format!("{last} {before}") } else { format!("{broke} 5") };
            assert_eq!(lab.text(noted), kept, "pulse {pulse}, broke {broke}, leased {leased}");
        }
    }
    // No worker holds a job.
    lab.owner()
        .batch_execute("DELETE FROM tenure.jobs WHERE state = 2; SELECT setval('tenure.pulse', 1), setval('tenure.broke', 0)")
        .unwrap();
    assert_eq!(lab.number(&format!("SELECT broke FROM tenure.last_breaks({NOW})")), 0);
}

/// Tries every order of the lease's grant, the server's start and the last two breaks. A pardoned
/// lease has its whole length again, from the later of the start and the break that count for it.
fn a_lease_is_pardoned_once_from_the_latest_that_kept_its_holder_away() {
    let mut lab = Lab::new();
    let asked = "SELECT l, s, b, p, m, tenure.pardoned_until(l, 100, l, m, s, b, p)
        FROM generate_series(1::bigint, 4) l, generate_series(0::bigint, 5) s, generate_series(0::bigint, 5) b,
             generate_series(0::bigint, 5) p, unnest(ARRAY[NULL, 3]::bigint[]) m WHERE p <= b";
    let rows = lab.owner().query(asked, &[]).unwrap();
    assert!(rows.len() > 500);
    for row in rows {
        let [leased, started, broke, before]: [i64; 4] = [0, 1, 2, 3].map(|at| row.get(at));
        let max_runtime: Option<i64> = row.get(4);
        let by_start = (leased < started).then_some(started);
        let by_break = (before <= leased && leased < broke).then_some(broke);
        let pardoned = by_start.max(by_break).map_or(i64::MIN, |from| {
            max_runtime.map_or(from + 100, |most| (from + 100).min(leased + most))
        });
        let told: Option<i64> = row.get(5);
        assert_eq!(
            told,
            Some(pardoned),
            "granted {leased}, started {started}, broke {broke} and {before}"
        );
    }
}

fn the_history_tells_migrations_in_order_and_the_functions_first() {
    let mut lab = Lab::new();
    // As if a migration had been applied late.
    lab.owner()
        .batch_execute(
            "BEGIN; UPDATE tenure.meta SET functions = 'a', functions_at = 1;
             CREATE TEMPORARY TABLE moved ON COMMIT DROP AS SELECT * FROM tenure.migrations;
             DELETE FROM tenure.migrations; INSERT INTO tenure.migrations SELECT * FROM moved ORDER BY version DESC",
        )
        .unwrap();
    let versions = "SELECT string_agg(version::text, ' ') FROM tenure.history()";
    let all = lab.text(
        "SELECT '0 ' || string_agg(version::text, ' ' ORDER BY version) FROM tenure.migrations",
    );
    assert_eq!(lab.text(versions), all);
    lab.owner().batch_execute("UPDATE tenure.meta SET functions = NULL").unwrap();
    assert_eq!(lab.text(versions), all[2..]);
    lab.owner().batch_execute("ROLLBACK").unwrap();
}

fn the_terms_tell_what_a_commit_waits_for_and_what_would_be_noticed() {
    let mut lab = Lab::new();
    let owner = lab.owner();
    let mut terms = |set: &str| -> String {
        owner.batch_execute(&format!("BEGIN; {set}")).unwrap();
        let sql = "SELECT concat_ws(' ', durability, is_synced, tells_timeline, tells_system) FROM tenure.terms()";
        let told = owner.query_one(sql, &[]).unwrap().get(0);
        owner.batch_execute("ROLLBACK").unwrap();
        told
    };
    let off = "UPDATE tenure.meta SET durability = 'off'; SET LOCAL synchronous_commit =";
    assert_eq!(terms("SET LOCAL synchronous_commit = local"), "on t t t");
    assert_eq!(terms("SET LOCAL synchronous_commit = off"), "on t t t");
    assert_eq!(terms(&format!("{off} off")), "off f t t");
    assert_eq!(terms(&format!("{off} local")), "off t t t");
    assert_eq!(terms("UPDATE tenure.meta SET wal_timeline = 0"), "on t f t");
    assert_eq!(terms("UPDATE tenure.meta SET system = 0"), "on t t f");
}

fn an_installation_that_has_said_off_raises_nothing() {
    let mut lab = Lab::new();
    let mut session = lab.session();
    for (said, then) in [("on", "on"), ("off", "off")] {
        lab.owner()
            .batch_execute(&format!("UPDATE tenure.meta SET durability = '{said}'"))
            .unwrap();
        session
            .batch_execute("SET synchronous_commit = off; BEGIN; SELECT tenure.enqueue('work')")
            .unwrap();
        let setting: String = session.query_one("SHOW synchronous_commit", &[]).unwrap().get(0);
        assert_eq!(setting, then);
        session.batch_execute("ROLLBACK").unwrap();
    }
}

fn what_makes_no_sense_is_refused_by_every_call() {
    let lab = Lab::new();
    let mut session = lab.session();
    let claim = |worker: &str, n: &str, lease: &str, grace: &str| {
        format!(
            "SELECT tenure.claim_many({worker}, '{{default}}', NULL, {n}, {lease}, p_grace_ms => {grace})"
        )
    };
    let enqueue = |kinds: &str, more: &str| {
        format!(
            "SELECT tenure.enqueue_many({kinds}, array_fill('1'::json, ARRAY[cardinality({kinds}::text[])]){more})"
        )
    };
    for (field, sql) in [
        ("worker", claim("NULL", "1", "1", "0")),
        ("worker", claim("''", "1", "1", "0")),
        ("worker", claim("'a b'", "1", "1", "0")),
        ("worker", claim("repeat('a', 129)", "1", "1", "0")),
        ("batch", claim("'ann'", "NULL", "1", "0")),
        ("batch", claim("'ann'", "-1", "1", "0")),
        ("batch", claim("'ann'", "1001", "1", "0")),
        ("lease", claim("'ann'", "1", "NULL", "0")),
        ("lease", claim("'ann'", "1", "0", "0")),
        ("lease", claim("'ann'", "1", "86400001", "0")),
        ("grace", claim("'ann'", "1", "1", "NULL")),
        ("grace", claim("'ann'", "1", "1", "-1")),
        ("kind", enqueue("'{work,NULL}'", "")),
        ("kind", enqueue("'{work,A}'", "")),
        ("batch", enqueue("'{work,work}'", ", p_queues => '{mail}'")),
        ("batch", "SELECT tenure.enqueue_many('{work}', '{}')".into()),
        ("batch", "SELECT tenure.enqueue_many('{work}', NULL)".into()),
        ("batch", "SELECT tenure.hold_many(NULL, NULL)".into()),
        ("batch", "SELECT tenure.hold_many('{1}', NULL)".into()),
        ("batch", "SELECT tenure.hold_many('{1}', '{1,2}')".into()),
    ] {
        let refusal = fault(session.query(&sql, &[]));
        assert_eq!((refusal.code().code(), refusal.column()), ("TN003", Some(field)), "{sql}");
    }
    for sql in [
        claim("'!'", "0", "1", "0"),
        claim("repeat('~', 128)", "1000", "86400000", "9223372036854775807"),
        enqueue("'{work}'", ", p_queues => '{NULL}'"),
        "SELECT tenure.hold_many('{}', '{}')".into(),
    ] {
        session.query(&sql, &[]).unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
}

fn a_database_is_here_if_all_that_it_remembers_is_so() {
    let mut lab = Lab::new();
    for (timeline, system, table, is_here) in [
        ("wal_timeline", "system", "jobs_table", true),
        ("wal_timeline + 1", "system", "jobs_table", false),
        ("wal_timeline", "system + 1", "jobs_table", false),
        ("wal_timeline", "system", "jobs_table + 1", false),
        ("0", "system", "jobs_table", true),
        ("wal_timeline", "0", "jobs_table", true),
        ("0", "0", "jobs_table", true),
        ("0", "0", "jobs_table + 1", false),
        ("0", "system + 1", "jobs_table", false),
        ("wal_timeline + 1", "0", "jobs_table", false),
    ] {
        let sql = format!(
            "SELECT tenure.is_here(h.{timeline}, h.{system}, h.{table})::int::bigint FROM tenure.whereabouts() h"
        );
        let sql = sql.replace("h.0", "0");
        assert_eq!(lab.number(&sql), i64::from(is_here), "{timeline}, {system}, {table}");
    }
}

/// When an epoch begins, the store records where the database is, so the same move begins no second
/// epoch.
fn an_epoch_begins_once_for_each_move_whatever_has_moved() {
    const LEASE: &str = "SELECT max(token) >> 40 FROM tenure.claim('ann', n => 1)";
    let mut lab = Lab::new();
    let mut session = lab.session();
    let words = [
        ("wal_timeline", "the WAL timeline was "),
        ("system", "the server's system identifier was "),
        ("jobs_table", "the place of the jobs table was "),
    ];
    for (before, (column, told)) in words.into_iter().enumerate() {
        for _ in 0..3 {
            enqueue(&mut session, "work");
        }
        let token = |session: &mut Client| session.query_one(LEASE, &[]).unwrap().get::<_, i64>(0);
        lab.owner()
            .batch_execute(&format!("UPDATE tenure.meta SET {column} = {column} + 1"))
            .unwrap();
        let epoch = before as i64 + 1;
        assert_eq!([token(&mut session), token(&mut session)], [epoch, epoch], "{column}");
        assert_eq!(lab.number("SELECT count(*) FROM tenure.epochs"), epoch);
        let reason = lab.text("SELECT reason FROM tenure.epochs ORDER BY epoch DESC LIMIT 1");
        assert!(reason.starts_with(told) && !reason.contains(';'), "{reason}");
        assert_eq!(lab.number("SELECT floor >> 40 FROM tenure.meta"), epoch);
        assert_eq!(lab.number("SELECT epoch FROM tenure.meta"), epoch);
        assert_eq!(lab.number("SELECT count(*) FROM tenure.moved_from() m WHERE m IS NULL"), 1);
    }
    // All of them at once, reported in this order.
    lab.owner()
        .batch_execute("BEGIN; UPDATE tenure.meta SET jobs_table = 1, system = system + 1, wal_timeline = wal_timeline + 1")
        .unwrap();
    let reason = lab.text("SELECT tenure.moved_from()");
    let places = words.map(|(_, told)| reason.find(told).unwrap());
    assert!(places.is_sorted() && reason.matches("; ").count() == 2, "{reason}");
    // A database whose position was never recorded has not moved.
    lab.owner().batch_execute("UPDATE tenure.meta SET wal_timeline = NULL").unwrap();
    assert_eq!(lab.number("SELECT count(*) FROM tenure.moved_from() m WHERE m IS NULL"), 1);
    assert_eq!(lab.number("SELECT floor - tenure.floor_of_now(0) FROM tenure.meta"), 0);
    assert_eq!(lab.number("SELECT floor - tenure.floor_kept(0) FROM tenure.meta"), 0);
    lab.owner().batch_execute("ROLLBACK").unwrap();
}

/// A claim only reads the record of where the database is, also if it is still empty, and so does
/// not lock it.
fn a_claim_left_open_keeps_nobody_from_changing_the_installation() {
    for told in ["wal_timeline", "NULL"] {
        let mut lab = Lab::new();
        lab.owner()
            .batch_execute(&format!("UPDATE tenure.meta SET wal_timeline = {told}"))
            .unwrap();
        let (mut open, mut other) = (lab.session(), impatient(lab.session()));
        enqueue(&mut open, "work");
        open.batch_execute("BEGIN; SELECT tenure.claim('ann')").unwrap();
        other.batch_execute("SELECT tenure.set_guard_gap(5000)").unwrap();
        open.batch_execute("COMMIT").unwrap();
    }
}

fn numbers_of_an_epoch_begin_elsewhere_in_each_server() {
    let mut lab = Lab::new();
    assert_eq!(lab.number("SELECT tenure.salt()"), 0, "with a test clock they are counted");
    lab.run_clock();
    let salt = lab.number("SELECT tenure.salt()");
    assert!(salt > 0 && salt < 1 << 39, "{salt}");
    assert_eq!(lab.number("SELECT tenure.salt()"), salt);
}

const WITNESSED: &str =
    "SELECT tenure.witnessed(m.installation || ' SEEN', AT)::int::bigint FROM tenure.meta m";

fn witnessed(lab: &mut Lab, seen: &str, at: i64) -> bool {
    lab.number(&WITNESSED.replace("SEEN", seen).replace("AT", &at.to_string())) == 1
}

fn a_worker_that_has_seen_more_of_the_log_is_a_witness_once() {
    for (level, then) in [("off", "on"), ("local", "local")] {
        let mut lab = Lab::new();
        let lsn = "' || pg_current_wal_insert_lsn() || '";
        for seen in [format!("0 {lsn}"), "0 0/0".into()] {
            assert!(!witnessed(&mut lab, &seen, NOW), "not beyond where the log is");
        }
        lab.owner().batch_execute(&format!("SET synchronous_commit = {level}; BEGIN")).unwrap();
        assert!(witnessed(&mut lab, "0 FFFFFFFF/0", NOW));
        let setting = lab.text("SHOW synchronous_commit");
        lab.owner().batch_execute("COMMIT; RESET synchronous_commit").unwrap();
        assert_eq!(setting, then);
        assert_eq!(lab.number("SELECT epoch FROM tenure.meta"), 1);
        assert!(
            lab.text("SELECT reason FROM tenure.epochs")
                .starts_with("a worker has seen the write-ahead log at FFFFFFFF/0")
        );
        assert!(
            !witnessed(&mut lab, "0 FFFFFFFF/0", NOW),
            "the epoch is above the one that was seen"
        );
        assert!(!witnessed(&mut lab, "1 FFFFFFFF/0", NOW), "one in ten minutes");
    }
}

fn a_witness_is_believed_only_about_this_installation_and_its_own_epoch() {
    let mut lab = Lab::new();
    let late = 1_767_225_600_000 + 50 * 600_000;
    let other =
        format!("SELECT tenure.witnessed('{} 0 FFFFFFFF/0', {NOW})::int::bigint", "0".repeat(36));
    assert_eq!(lab.number(&other), 0, "another installation");
    for seen in
        ["x FFFFFFFF/0", "0 FFFFFFFF", "0 G/0", "0 1FFFFFFFF/0", "12345678 F/0", "0 F/0 0", ""]
    {
        assert!(!witnessed(&mut lab, seen, NOW), "{seen:?}");
    }
    assert_eq!(
        lab.number(&format!("SELECT coalesce(tenure.witnessed(NULL, {NOW})::int, 0)::bigint")),
        0
    );
    assert!(!witnessed(&mut lab, "50 FFFFFFFF/0", late), "an epoch that has not begun yet");
    lab.owner().batch_execute("BEGIN; UPDATE tenure.meta SET wal_timeline = 0").unwrap();
    assert!(!witnessed(&mut lab, "0 FFFFFFFF/0", NOW), "this server does not tell");
    assert_eq!(lab.number("SELECT count(*) FROM tenure.progress_of_server() p WHERE p IS NULL"), 1);
    lab.owner().batch_execute("ROLLBACK; BEGIN").unwrap();
    assert_eq!(
        lab.number(
            "SELECT count(*) FROM tenure.progress_of_server() p WHERE p ~ '^[0-9a-f-]{36} 0 '"
        ),
        1
    );
    lab.owner().batch_execute("UPDATE tenure.meta SET epoch = 3, floor = 3::bigint << 40").unwrap();
    assert!(!witnessed(&mut lab, "2 FFFFFFFF/0", late), "that was before this epoch");
    assert!(witnessed(&mut lab, "3 FFFFFFFF/0", late));
    assert_eq!(lab.number("SELECT epoch FROM tenure.meta"), 50);
    lab.owner().batch_execute("ROLLBACK").unwrap();
    assert_eq!(lab.number("SELECT count(*) FROM tenure.epochs"), 0);
}

const LINES: &str = "SELECT count(*) FROM tenure.event WHERE refused";

/// A late worker's lease, and the lease of the worker that has taken its job over.
fn late(lab: &mut Lab, session: &mut Client) -> (Lease, Lease) {
    let slow = running(session);
    let quick = take_over(lab, session);
    (slow, quick)
}

/// G2: a line about a refusal would outlive its job. The jobs beside it are not deleted.
fn what_is_being_deleted_at_this_moment_gets_no_line() {
    as_each(|lab, who| {
        let (mut stale, mut holder) = (impatient(who.session(lab)), who.session(lab));
        let mut owner = lab.session();
        // Purged, with another ended job beside it.
        let ended = running(&mut holder);
        holder.batch_execute(&ended.call("complete")).unwrap();
        let (slow, quick) = late(lab, &mut holder);
        holder.batch_execute(&quick.call("complete")).unwrap();
        enqueue(&mut holder, "other");
        owner
            .batch_execute(&format!(
                "BEGIN; SELECT tenure.purge_many('{{{}}}', '{{NULL}}')",
                slow.job
            ))
            .unwrap();
        assert_eq!(verdicts(&mut stale, "renew", &[slow], ", 300"), ["stale"]);
        owner.batch_execute("COMMIT").unwrap();
        assert_eq!(lab.number(LINES), 0);
        assert_eq!(verdicts(&mut stale, "renew", &[slow], ", 300"), ["not_found"]);
        assert_eq!(lab.number(LINES), 0, "it is gone");

        // Completed in a queue that deletes successes at once.
        owner
            .batch_execute(
                "DELETE FROM tenure.jobs; SELECT tenure.configure('default', p_keep_ms => 0)",
            )
            .unwrap();
        let (slow, quick) = late(lab, &mut holder);
        enqueue(&mut holder, "other");
        holder.batch_execute(&format!("BEGIN; {}", quick.call("complete"))).unwrap();
        assert_eq!(verdicts(&mut stale, "renew", &[slow], ", 300"), ["stale"]);
        holder.batch_execute("COMMIT").unwrap();
        assert_eq!(lab.number("SELECT count(*) FROM tenure.timeline"), 0);
    });
}

fn a_job_that_is_locked_but_stays_gets_its_line_at_once() {
    let kept = "SELECT tenure.configure('default', p_keep_ms => 1000)";
    let other_forgets = "SELECT tenure.configure('other', p_keep_ms => 0), tenure.enqueue('work', queue => 'other')";
    for set in ["", kept, other_forgets] {
        as_each(|lab, who| {
            lab.owner().batch_execute(set).unwrap();
            let (mut stale, mut holder) = (impatient(who.session(lab)), who.session(lab));
            let (slow, quick) = late(lab, &mut holder);
            holder.batch_execute(&format!("BEGIN; {}", quick.call("complete"))).unwrap();
            assert_eq!(verdicts(&mut stale, "renew", &[slow], ", 300"), ["stale"]);
            assert_eq!(lab.number(LINES), 1, "{set}");
            holder.batch_execute("COMMIT").unwrap();
            assert_eq!(state(lab, quick.job), "succeeded");
        });
    }
    // A job in a queue that deletes at once gets its entry too, if no session is completing it.
    let mut lab = Lab::new();
    lab.owner().batch_execute("SELECT tenure.configure('default', p_keep_ms => 0)").unwrap();
    let mut session = lab.session();
    let (slow, _) = late(&mut lab, &mut session);
    assert_eq!(verdicts(&mut session, "renew", &[slow], ", 300"), ["stale"]);
    assert_eq!(lab.number(LINES), 1);
}

/// A stale call checks whether to take the late worker's crash back before it locks anything, and
/// only for its own job.
fn a_late_word_in_an_open_transaction_leaves_the_job_to_its_holder() {
    as_each(|lab, who| {
        let (mut stale, mut holder) = (who.session(lab), impatient(who.session(lab)));
        enqueue(&mut holder, "one");
        enqueue(&mut holder, "two");
        let slow = claim_many(&mut holder, 2, 300);
        lab.advance(300);
        // The other job still waits for its next attempt.
        let quick = claim_many(&mut holder, 1, 300)[0];
        let slow = slow.into_iter().find(|lease| lease.job == quick.job).unwrap();
        stale.batch_execute("BEGIN").unwrap();
        assert_eq!(verdicts(&mut stale, "renew", &[slow], ", 300"), ["stale"]);
        assert_eq!(verdicts(&mut holder, "renew", &[quick], ", 300"), ["extended"]);
        stale.batch_execute("COMMIT").unwrap();
    });
}

fn a_call_without_a_token_leaves_no_line() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        running(&mut session);
        let sql = "SELECT verdict FROM tenure.settle_many('{1}', '{NULL}', '{bury}', '{0}', '{why}', '{NULL}')";
        assert_eq!(session.query_one(sql, &[]).unwrap().get::<_, String>(0), "stale");
        assert_eq!(lab.number(LINES), 0);
    });
}

/// Two jobs, each claimed by a different worker, under the same token number.
fn a_refusal_tells_about_its_own_job_and_nothing_about_one_that_is_not_there() {
    let mut lab = Lab::new();
    let mut session = lab.session();
    let mut jobs = Vec::new();
    for who in ["ann", "bob"] {
        enqueue(&mut session, who);
        let ask = "SELECT id, token FROM tenure.claim($1, kinds => ARRAY[$1], lease => '300 ms')";
        let row = session.query_one(ask, &[&who]).unwrap();
        jobs.push(Lease { job: row.get(0), token: row.get(1) });
    }
    lab.advance(300);
    assert_eq!(claim_many(&mut session, 9, 300).len(), 2);
    for lease in &jobs {
        assert_eq!(verdicts(&mut session, "renew", &[*lease], ", 300"), ["stale"]);
    }
    let told = "SELECT string_agg(concat_ws(' ', job, attempt, worker, note), ', ' ORDER BY job) FROM tenure.event WHERE refused";
    let note = "token_mismatch: the job's token is 3";
    assert_eq!(lab.text(told), format!("1 1 ann {note}, 2 1 bob {note}"));
    let gone = Lease { job: 77, token: 1 };
    let sql =
        "SELECT verdict FROM tenure.settle_many('{77}', '{1}', '{bury}', '{0}', '{why}', '{NULL}')";
    assert_eq!(session.query_one(sql, &[]).unwrap().get::<_, String>(0), "not_found");
    assert_eq!(verdicts(&mut session, "renew", &[gone], ", 300"), ["not_found"]);
    assert_eq!(lab.number(LINES), 2);
}
