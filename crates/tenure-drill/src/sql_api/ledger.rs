//! A payment that must not happen twice, in plain SQL.

use postgres::Client;

use super::{Case, Lease, as_each, claim_many, enqueue, running, sql_cases, state, take_over};
use crate::sessions::{Lab, fault};

pub(super) const CASES: &[Case] = sql_cases! {
    "ledger":
    an_effect_happens_once_and_every_later_attempt_gets_what_came_back,
    what_is_in_doubt_is_sent_again_under_the_same_key,
    what_is_in_doubt_is_parked_and_a_person_decides,
    what_a_person_decided_is_corrected_until_an_attempt_opens_it,
    a_zombie_neither_opens_nor_commits_and_a_trace_can_be_left,
    what_the_ledger_does_not_allow_is_said_with_a_hint,
    a_step_is_remembered_as_it_was_first,
    an_open_transaction_keeps_a_second_intent_waiting,
    a_completion_with_an_old_snapshot_leaves_no_effect_behind,
    what_the_ledger_cannot_be_asked_is_refused,
    a_late_entry_in_an_open_transaction_is_in_nobodys_way,
    the_view_tells_what_is_in_doubt_of_each_job_by_itself,
    a_persons_word_that_cannot_be_kept_is_refused,
};

/// What `effect_open` returns: the answer, the result, and the key for the outside service.
fn open(session: &mut Client, lease: Lease) -> (String, Option<String>, String) {
    let sql = "SELECT answer, result::text, key FROM tenure.effect_open($1, $2, 'charge')";
    let row = session.query_one(sql, &[&lease.job, &lease.token]).unwrap();
    (row.get(0), row.get(1), row.get(2))
}

fn refused(session: &mut Client, sql: &str) -> (String, String) {
    let error = fault(session.batch_execute(sql));
    (error.code().code().to_owned(), error.message().to_owned())
}

/// The worker dies between the outside call and the record of its outcome.
fn in_doubt(lab: &mut Lab, session: &mut Client) -> (Lease, Lease, String) {
    let first = running(session);
    let (answer, result, key) = open(session, first);
    assert_eq!((answer.as_str(), result), ("opened", None));
    let second = take_over(lab, session);
    let (answer, result, again) = open(session, second);
    assert_eq!((answer.as_str(), result), ("in_doubt", None));
    assert_eq!(again, key, "every attempt has the same key for the outside");
    (first, second, key)
}

fn an_effect_happens_once_and_every_later_attempt_gets_what_came_back() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let first = running(&mut session);
        let (answer, _, key) = open(&mut session, first);
        assert_eq!(answer, "opened");
        let installation = lab.text("SELECT replace(installation::text, '-', '') FROM tenure.meta");
        assert_eq!(key, format!("{installation}/0/{}/charge", first.job));
        for _ in 0..2 {
            session
                .batch_execute(&first.call_with("effect_commit", r#", 'charge', '{"id":7}'"#))
                .unwrap();
        }
        let second = take_over(lab, &mut session);
        let (answer, result, _) = open(&mut session, second);
        assert_eq!((answer.as_str(), result.as_deref()), ("committed", Some(r#"{"id":7}"#)));
        session.batch_execute(&second.call("complete")).unwrap();
    });
}

fn what_is_in_doubt_is_sent_again_under_the_same_key() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let (_, second, key) = in_doubt(lab, &mut session);
        let resend = second.call_with("effect_settle", ", 'charge', resend => true");
        session.batch_execute(&resend).unwrap();
        let (answer, _, again) = open(&mut session, second);
        assert_eq!((answer.as_str(), again), ("opened", key));
        session.batch_execute(&second.call_with("effect_commit", ", 'charge', '42'")).unwrap();
        let effect =
            "SELECT state || ' ' || in_doubt || ' ' || token || ' ' || result FROM tenure.effect";
        assert_eq!(lab.text(effect), format!("committed false {} 42", second.token));
    });
}

fn what_is_in_doubt_is_parked_and_a_person_decides() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let (_, second, key) = in_doubt(lab, &mut session);
        let held = "SELECT tenure.effect_resolve(1, 'charge', resend => true)";
        assert_eq!(
            refused(lab.owner(), held),
            ("TN003".into(), "job: job 1 is running, and its holder decides".into())
        );
        session.batch_execute(&second.call_with("park", ", 'was the card charged?'")).unwrap();
        assert_eq!(lab.text("SELECT state || ' ' || in_doubt FROM tenure.effect"), "open true");
        let both = "SELECT tenure.effect_resolve(1, 'charge', committed => '1', resend => true)";
        assert_eq!(refused(lab.owner(), both).0, "TN003");
        for _ in 0..2 {
            assert_eq!(lab.text(held), "queued");
        }
        let third = super::claim(&mut session, 300);
        let (answer, _, again) = open(&mut session, third);
        assert_eq!((answer.as_str(), again), ("opened", key));
        let note = "SELECT note FROM tenure.event WHERE verb = 'resume'";
        assert_eq!(lab.text(note), "effect charge resolved: resend");
    });
}

fn what_a_person_decided_is_corrected_until_an_attempt_opens_it() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let (_, second, _) = in_doubt(lab, &mut session);
        session.batch_execute(&second.call_with("park", ", 'was the card charged?'")).unwrap();
        let decide = |value: &str| {
            format!("SELECT tenure.effect_resolve(1, 'charge', committed => '{value}')")
        };
        for value in [r#"{"receipt":"r-1"}"#, r#""r-1""#, r#""r-1""#] {
            assert_eq!(lab.text(&decide(value)), "queued");
        }
        let third = super::claim(&mut session, 300);
        let (answer, result, _) = open(&mut session, third);
        assert_eq!((answer.as_str(), result.as_deref()), ("committed", Some(r#""r-1""#)));
        let (answer, result, _) = open(&mut session, third);
        assert_eq!(
            (answer.as_str(), result.as_deref()),
            ("committed", Some(r#""r-1""#)),
            "asked again"
        );
        session.batch_execute(&third.call_with("park", ", 'something else'")).unwrap();
        assert_eq!(lab.text(&decide(r#""r-1""#)), "parked", "that is what stands");
        assert_eq!(
            refused(lab.owner(), &decide(r#""r-2""#)),
            (
                "TN003".into(),
                "effect: effect charge of job 1 is committed, and so not in doubt".into()
            )
        );
        assert_eq!(
            lab.text("SELECT result::text || ' ' || note FROM tenure.effect"),
            r#""r-1" a person decided"#
        );
    });
}

fn a_zombie_neither_opens_nor_commits_and_a_trace_can_be_left() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let (first, second, _) = in_doubt(lab, &mut session);
        for (verb, more) in [
            ("effect_open", ", 'refund'"),
            ("effect_commit", ", 'charge', '42'"),
            ("effect_fail", ", 'charge', 'no'"),
            ("step_get", ", 'total'"),
            ("step_put", ", 'total', '3'"),
        ] {
            let error = fault(session.batch_execute(&first.call_with(verb, more)));
            assert_eq!(error.code().code(), "TN001", "{verb}");
            assert!(error.message().starts_with(&format!("{verb} refused: token 1")), "{error}");
            session.batch_execute(&first.call_with("refused", &format!(", '{verb}'"))).unwrap();
        }
        let verbs = "SELECT string_agg(verb, ' ' ORDER BY seq) FROM tenure.event WHERE refused";
        assert_eq!(lab.text(verbs), "effect_open effect_commit effect_fail step_get step_put");
        assert_eq!(lab.number("SELECT count(*) FROM tenure.ledger"), 1);
        assert_eq!(open(&mut session, second).0, "in_doubt", "nothing has changed");
    });
}

fn what_the_ledger_does_not_allow_is_said_with_a_hint() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let lease = running(&mut session);
        let (code, words) =
            refused(&mut session, &lease.call_with("effect_commit", ", 'charge', '42'"));
        assert_eq!(
            (code.as_str(), words.as_str()),
            ("TN003", "effect: job 1 has no effect charge")
        );
        open(&mut session, lease);
        for (call, more) in [
            ("effect_commit", ", 'charge', NULL"),
            ("effect_commit", r#", 'charge', '"\u0000"'"#),
            ("effect_settle", ", 'charge'"),
            ("effect_settle", ", 'charge', committed => '42'"),
            ("effect_open", ", 'No Name'"),
            ("step_put", ", 'total', NULL"),
        ] {
            let (code, words) = refused(&mut session, &lease.call_with(call, more));
            assert_eq!(code, "TN003", "{call}{more}: {words}");
        }
        session.batch_execute(&lease.call_with("effect_fail", ", 'charge', 'declined'")).unwrap();
        assert_eq!(lab.text("SELECT state || ' ' || note FROM tenure.effect"), "failed declined");
        assert_eq!(open(&mut session, lease).0, "opened", "what did not happen may be tried again");
    });
}

fn a_step_is_remembered_as_it_was_first() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let first = running(&mut session);
        let ask = |session: &mut Client, sql: &str| -> Option<String> {
            session.query_one(&sql.replace("SELECT ", "SELECT ("), &[]).unwrap().get(0)
        };
        let get = |lease: Lease| lease.call_with("step_get", ", 'total'") + ")::text";
        let put = |lease: Lease, what: &str| {
            lease.call_with("step_put", &format!(", 'total', '{what}'")) + ")::text"
        };
        assert_eq!(ask(&mut session, &get(first)), None);
        assert_eq!(ask(&mut session, &put(first, "3")).as_deref(), Some("3"));
        let second = take_over(lab, &mut session);
        assert_eq!(ask(&mut session, &get(second)).as_deref(), Some("3"));
        assert_eq!(ask(&mut session, &put(second, "4")).as_deref(), Some("3"));
        session.batch_execute(&second.call("complete")).unwrap();
        assert_eq!(state(lab, first.job), "succeeded");
        assert_eq!(
            lab.number("SELECT count(*) FROM tenure.check(NULL, 10) WHERE rule IS NOT NULL"),
            0
        );
    });
}

/// Two sessions open the same effect at once under one token. Both pass the fence, one after the
/// other. The table's constraint, not an earlier read, sees to it that there is one intent.
fn an_open_transaction_keeps_a_second_intent_waiting() {
    let mut lab = Lab::new();
    let (mut one, mut other) = (lab.session(), lab.session());
    let lease = running(&mut one);
    one.batch_execute("BEGIN").unwrap();
    open(&mut one, lease);
    let pid: i32 = other.query_one("SELECT pg_backend_pid()", &[]).unwrap().get(0);
    let second = std::thread::spawn(move || open(&mut other, lease).0);
    lab.wait_until_blocked(pid);
    one.batch_execute("COMMIT").unwrap();
    assert_eq!(second.join().unwrap(), "opened");
    assert_eq!(lab.number("SELECT count(*) FROM tenure.ledger"), 1);
}

/// The completion's snapshot does not show effects that were written since, so the completion could
/// not delete them with the job. It leaves the job to `prune`, which deletes all.
fn a_completion_with_an_old_snapshot_leaves_no_effect_behind() {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let mut lab = Lab::new();
        lab.owner().batch_execute("SELECT tenure.configure('default', p_keep_ms => 0)").unwrap();
        let (mut old, mut session) = (lab.session(), lab.session());
        let lease = running(&mut session);
        old.batch_execute(&format!("BEGIN ISOLATION LEVEL {level}; SELECT 1 FROM tenure.job"))
            .unwrap();
        assert_eq!(open(&mut session, lease).0, "opened");
        session.batch_execute(&lease.call_with("effect_commit", ", 'charge', '1'")).unwrap();
        session.batch_execute(&lease.call_with("step_put", ", 'load', '2'")).unwrap();
        old.batch_execute(&lease.call("complete")).unwrap();
        old.batch_execute("COMMIT").unwrap();
        let wrong = "SELECT count(*) FROM tenure.check(NULL, 10) WHERE rule IS NOT NULL";
        assert_eq!(
            (state(&mut lab, lease.job).as_str(), lab.number(wrong)),
            ("succeeded", 0),
            "{level}"
        );
        lab.owner().batch_execute("SELECT tenure.prune(10)").unwrap();
        assert_eq!(
            lab.number("SELECT count(*) FROM tenure.ledger")
                + lab.number("SELECT count(*) FROM tenure.steps"),
            0
        );
    }
}

fn what_the_ledger_cannot_be_asked_is_refused() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let lease = running(&mut session);
        for verb in ["NULL", "'complete'", "''"] {
            let call = format!(
                "SELECT tenure.ledger_many('{{{}}}', '{{{}}}', ARRAY[{verb}]::text[], '{{pay}}', ARRAY['1'::json], '{{NULL}}')",
                lease.job, lease.token
            );
            let error = fault(session.batch_execute(&call));
            assert_eq!((error.code().code(), error.column()), ("TN003", Some("verb")), "{verb}");
        }
        assert_eq!(open(&mut session, lease).0, "opened", "this it can be asked");
    });
}

/// A call under a stale token is refused and locks no job: neither one that another worker runs,
/// nor one that waits for its next attempt.
fn a_late_entry_in_an_open_transaction_is_in_nobodys_way() {
    as_each(|lab, who| {
        let (mut late, mut other) = (who.session(lab), who.session(lab));
        let ask = |lease: Lease| {
            format!(
                "BEGIN; SELECT tenure.ledger_many('{{{}}}', '{{{}}}', '{{effect_open}}', '{{pay}}', ARRAY[NULL::json], '{{NULL}}')",
                lease.job, lease.token
            )
        };
        let slow = running(&mut other);
        let quick = take_over(lab, &mut other);
        late.batch_execute(&ask(slow)).unwrap();
        let renew =
            "SELECT verdict FROM tenure.renew_many(ARRAY[$1::bigint], ARRAY[$2::bigint], 300)";
        let verdict = other.query_one(renew, &[&quick.job, &quick.token]).unwrap();
        assert_eq!(verdict.get::<_, String>(0), "extended");
        late.batch_execute("ROLLBACK").unwrap();

        other.batch_execute(&quick.call_with("snooze", ", '0 s'")).unwrap();
        late.batch_execute(&ask(quick)).unwrap();
        assert_eq!(super::claim(&mut other, 300).job, quick.job);
        late.batch_execute("ROLLBACK").unwrap();
    });
}

/// Two jobs under the same token number: one is parked with its effect open, and the other's holder
/// is still working on its effect.
fn the_view_tells_what_is_in_doubt_of_each_job_by_itself() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        enqueue(&mut session, "one");
        enqueue(&mut session, "two");
        let leases = claim_many(&mut session, 2, 300);
        assert_eq!(leases[0].token, leases[1].token, "tokens are numbers of one job");
        for lease in &leases {
            open(&mut session, *lease);
        }
        let view =
            "SELECT string_agg(job || ' ' || in_doubt, ', ' ORDER BY job) FROM tenure.effect";
        assert_eq!(lab.text(view), "1 false, 2 false");
        session.batch_execute(&leases[0].call_with("park", ", 'later'")).unwrap();
        assert_eq!(lab.text(view), "1 true, 2 false");
        take_over(lab, &mut session);
        assert_eq!(lab.text(view), "1 true, 2 true");
    });
}

fn a_persons_word_that_cannot_be_kept_is_refused() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let (_, second, _) = in_doubt(lab, &mut session);
        session.batch_execute(&second.call_with("park", ", 'was the card charged?'")).unwrap();
        let word = r#"SELECT tenure.effect_resolve(1, 'charge', committed => '"\u0000"')"#;
        let refusal = fault(lab.owner().batch_execute(word));
        assert_eq!((refusal.code().code(), refusal.column()), ("TN003", Some("committed")));
        assert_eq!(state(lab, second.job), "parked");
    });
}
