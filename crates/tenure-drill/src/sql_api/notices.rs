//! Which notifications are sent, and which are omitted. They are hints: nothing relies on them.

use std::time::Duration;

use postgres::Client;
use postgres::fallible_iterator::FallibleIterator;
use tenure::engine::store::postgres::{Migrations, Roles, ServerAddress};

use super::{Case, sql_cases};
use crate::servers;
use crate::sessions::Lab;

pub(super) const CASES: &[Case] = sql_cases! {
    "notices":
    each_schema_of_a_database_is_announced_by_itself,
    a_setting_that_is_nonsense_silences_nobody,
    a_transaction_that_enqueues_in_quiet_can_be_prepared,
    a_job_whose_time_has_come_is_announced_once,
    what_comes_due_is_announced_in_each_beat_of_the_pulse_and_not_in_between,
    a_queue_is_announced_when_it_is_no_longer_paused,
    a_job_that_is_given_back_is_announced_and_one_that_waits_is_not,
    the_more_workers_there_are_the_later_a_session_announces_a_queue_again,
};

/// The notifications that a session has received so far: channels and queues. The session notifies
/// itself last, so that all earlier notifications have arrived.
fn heard(listener: &mut Client) -> Vec<(String, String)> {
    listener.batch_execute("LISTEN the_end; NOTIFY the_end").unwrap();
    let mut all = Vec::new();
    let mut notices = listener.notifications();
    let mut notices = notices.timeout_iter(Duration::from_secs(30));
    while let Some(notice) = notices.next().unwrap() {
        if notice.channel() == "the_end" {
            return all;
        }
        all.push((notice.channel().to_owned(), notice.payload().to_owned()));
    }
    panic!("the session does not hear itself")
}

fn notice(channel: &str) -> (String, String) {
    (channel.to_owned(), "default".to_owned())
}

/// A session that enqueues into two schemas wakes the workers of both; within one schema it does
/// not repeat a notification at once.
fn each_schema_of_a_database_is_announced_by_itself() {
    const OTHER: &str = "Other jobs-2";
    let mut lab = Lab::new();
    // Removes what an earlier failed run has left.
    lab.owner().batch_execute(&format!("DROP SCHEMA IF EXISTS \"{OTHER}\" CASCADE")).unwrap();
    let address = ServerAddress::parse(&servers::address(lab.database(), OTHER)).unwrap();
    Migrations::connect(&address).unwrap().up(Roles::Leave).unwrap();
    let (mut listener, mut session) = (lab.session(), lab.session());
    // A schema name that must be quoted is also quoted in the channel's name.
    let channel = format!("\"{OTHER}\"");
    listener.batch_execute(&format!("LISTEN tenure; LISTEN \"\"{channel}\"\"")).unwrap();
    session
        .batch_execute(&format!(
            "INSERT INTO \"{OTHER}\".clock SELECT one, at FROM tenure.clock ON CONFLICT (one) DO UPDATE SET at = excluded.at"
        ))
        .unwrap();
    for call in [
        "SELECT tenure.enqueue('work')".to_owned(),
        "SELECT tenure.enqueue('work')".to_owned(),
        format!("SELECT \"{OTHER}\".enqueue('work')"),
        format!("SELECT \"{OTHER}\".enqueue('work')"),
        "SELECT tenure.enqueue('work')".to_owned(),
    ] {
        session.batch_execute(&call).unwrap();
    }
    assert_eq!(heard(&mut listener), [notice("tenure"), notice(&channel), notice("tenure")]);
    session.batch_execute(&format!("DROP SCHEMA \"{OTHER}\" CASCADE")).unwrap();
}

/// The session's setting may contain anything, so the function does not trust it.
fn a_setting_that_is_nonsense_silences_nobody() {
    let lab = Lab::new();
    let (mut listener, mut session) = (lab.session(), lab.session());
    listener.batch_execute("LISTEN tenure").unwrap();
    for nonsense in [
        "",
        " ",
        "default",
        "1 default tenure",
        "x default tenure",
        "99999999999999999999 default tenure",
    ] {
        session
            .batch_execute(&format!(
                "SET tenure_session.announced = '{nonsense}'; SELECT tenure.enqueue('work')"
            ))
            .unwrap_or_else(|error| panic!("{nonsense:?}: {error}"));
        assert_eq!(heard(&mut listener), [notice("tenure")], "{nonsense:?}");
    }
}

fn a_transaction_that_enqueues_in_quiet_can_be_prepared() {
    let mut lab = Lab::new();
    let mut session = lab.session();
    let prepares = session.query_one("SHOW max_prepared_transactions", &[]).unwrap();
    assert_ne!(
        prepares.get::<_, &str>(0),
        "0",
        "the server of the tests lets transactions be prepared"
    );
    let mut listener = lab.session();
    listener.batch_execute("LISTEN tenure").unwrap();
    session
        .batch_execute(
            "BEGIN; SET LOCAL tenure_session.quiet = 'on'; SELECT tenure.enqueue('work'); PREPARE TRANSACTION 'quiet'",
        )
        .unwrap();
    assert_eq!(lab.number("SELECT count(*) FROM tenure.job"), 0);
    session.batch_execute("COMMIT PREPARED 'quiet'").unwrap();
    assert_eq!(lab.number("SELECT count(*) FROM tenure.job"), 1);
    assert_eq!(heard(&mut listener), []);
    // Only that transaction was quiet.
    session.batch_execute("SELECT tenure.enqueue('work')").unwrap();
    assert_eq!(heard(&mut listener), [notice("tenure")]);
}

/// The next beat of any worker announces the job, even if no claim ever takes it.
fn a_job_whose_time_has_come_is_announced_once() {
    let mut lab = Lab::new();
    let (mut listener, mut session) = (lab.session(), lab.session_as("worker"));
    listener.batch_execute("LISTEN tenure").unwrap();
    let later = "SELECT tenure.enqueue('work', delay => interval '3 s'), tenure.enqueue('work', queue => 'other', delay => interval '9 s')";
    lab.owner().batch_execute(later).unwrap();
    let mut told = Vec::new();
    for _ in 0..12 {
        lab.advance(1_000);
        session.batch_execute("SELECT tenure.beat()").unwrap();
        told.push(heard(&mut listener).into_iter().map(|(_, queue)| queue).collect::<Vec<_>>());
    }
    let queues = told.iter().map(|queues| queues.join(" ")).collect::<Vec<_>>();
    assert_eq!(queues, ["", "", "default", "", "", "", "", "", "other", "", "", ""]);
}

/// The first beat half a second after the last announcement announces what has come due since;
/// beats before that announce nothing.
fn what_comes_due_is_announced_in_each_beat_of_the_pulse_and_not_in_between() {
    let mut lab = Lab::new();
    let mut listener = lab.session();
    let mut sessions = [lab.session_as("worker"), lab.session_as("worker")];
    lab.owner()
        .batch_execute(
            "SELECT tenure.enqueue('work', queue => 'first', delay => interval '1 s'),
                    tenure.enqueue('work', queue => 'second', delay => interval '1.2 s'),
                    tenure.enqueue('work', queue => 'ready')",
        )
        .unwrap();
    listener.batch_execute("LISTEN tenure").unwrap();
    let mut beat = |lab: &mut Lab, by: usize, after_ms: i64| {
        lab.advance(after_ms);
        sessions[by].batch_execute("SELECT tenure.beat()").unwrap();
        let told: Vec<_> = heard(&mut listener).into_iter().map(|(_, queue)| queue).collect();
        told.join(" ")
    };
    assert_eq!(beat(&mut lab, 0, 1_000), "first", "what was ready before has been announced");
    assert_eq!(beat(&mut lab, 1, 0), "", "somebody else has announced it");
    assert_eq!(beat(&mut lab, 1, 499), "");
    assert_eq!(beat(&mut lab, 0, 1), "second");
}

fn a_queue_is_announced_when_it_is_no_longer_paused() {
    let mut lab = Lab::new();
    let mut listener = lab.session();
    listener.batch_execute("LISTEN tenure").unwrap();
    for (change, told) in [
        ("p_pause => true", vec![]),
        ("p_keep_ms => 1", vec![]),
        ("p_pause => false", vec![notice("tenure")]),
    ] {
        lab.owner()
            .batch_execute(&format!("SELECT tenure.configure('default', {change})"))
            .unwrap();
        assert_eq!(heard(&mut listener), told, "{change}");
    }
}

/// Each notification wakes all workers, so a session sends fewer of them where there are many.
fn the_more_workers_there_are_the_later_a_session_announces_a_queue_again() {
    let mut lab = Lab::new();
    let (mut listener, mut session) = (lab.session(), lab.session());
    listener.batch_execute("LISTEN tenure").unwrap();
    for (workers, silent_ms) in [(0, 2), (10, 2), (14, 2), (15, 3), (100, 20), (250, 50), (300, 50)]
    {
        lab.owner()
            .batch_execute(&format!(
                "INSERT INTO tenure.workers (worker, under, taken_at, takings, guarded, queues)
                 SELECT 'w' || n, 0, 0, 1, true, 'default' FROM generate_series(1, {workers}) n
                     ON CONFLICT DO NOTHING"
            ))
            .unwrap();
        let mut enqueue = |lab: &mut Lab, after_ms: i64| {
            lab.advance(after_ms);
            session.batch_execute("SELECT tenure.enqueue('work')").unwrap();
            heard(&mut listener).len()
        };
        assert_eq!(enqueue(&mut lab, 3_600_000), 1);
        let told = [enqueue(&mut lab, 0), enqueue(&mut lab, silent_ms), enqueue(&mut lab, 1)];
        assert_eq!(told, [0, 0, 1], "{workers} workers");
        assert_eq!(enqueue(&mut lab, -1_000), 1, "a clock that was set back silences nobody");
    }
}

/// Another worker may have a free slot for it.
fn a_job_that_is_given_back_is_announced_and_one_that_waits_is_not() {
    let mut lab = Lab::new();
    let mut session = lab.session();
    session.batch_execute("SELECT tenure.enqueue('work')").unwrap();
    let mut listener = lab.session();
    listener.batch_execute("LISTEN tenure").unwrap();
    for (end, expected) in [
        ("tenure.snooze(id, token, '1 h')", vec![]),
        ("tenure.release(id, token)", vec![notice("tenure")]),
    ] {
        // Long enough after this session's last notification.
        lab.advance(3_600_000);
        let ended = format!("SELECT {end} FROM tenure.claim('ann')");
        assert_eq!(session.query(&ended, &[]).unwrap().len(), 1, "{end}");
        assert_eq!(heard(&mut listener), expected, "{end}");
    }
}
