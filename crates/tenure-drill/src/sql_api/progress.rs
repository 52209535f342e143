//! A job's progress, as psql and other languages report and see it.

use tenure::engine::job::{PROGRESS_LIMIT, Progress, shorten};

use super::{Case, as_each, running, sql_cases, take_over};
use crate::sessions::{Lab, fault};

pub(super) const CASES: &[Case] = sql_cases! {
    "progress":
    what_a_holder_tells_is_in_the_view_until_the_next_claim_or_the_end,
    a_stale_word_takes_its_transaction_down_and_leaves_a_trace_by_refused,
    a_stale_word_in_a_list_is_an_answer_and_a_line_in_the_timeline,
    a_word_about_a_job_that_is_being_settled_does_not_wait_and_is_not_noted,
    a_fraction_comes_to_the_same_thousandths_in_sql,
    a_note_is_cut_at_the_same_place_in_sql,
    a_word_that_tells_no_fraction_is_refused,
};

/// The progress of job 1, as the view shows it.
fn seen(lab: &mut Lab) -> (Option<f64>, Option<String>) {
    let row = lab.owner().query_one("SELECT progress, progress_note FROM tenure.job", &[]).unwrap();
    (row.get(0), row.get(1))
}

fn what_a_holder_tells_is_in_the_view_until_the_next_claim_or_the_end() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let lease = running(&mut session);
        assert_eq!(seen(lab), (None, None));
        let noted = session.query_one(&lease.call_with("progress", ", 0.4, 'embedding'"), &[]);
        assert!(noted.unwrap().get::<_, bool>(0));
        assert_eq!(seen(lab), (Some(0.4), Some("embedding".into())));
        session.batch_execute(&lease.call_with("progress", ", fraction => 0.5")).unwrap();
        assert_eq!(seen(lab), (Some(0.5), None));
        session.batch_execute(&lease.call_with("progress", ", 0.6, 'storing'")).unwrap();
        let next = take_over(lab, &mut session);
        assert_eq!(seen(lab), (None, None));
        session.batch_execute(&next.call_with("progress", ", 1")).unwrap();
        session.batch_execute(&next.call("complete")).unwrap();
        assert_eq!(seen(lab), (None, None));
    });
}

fn a_stale_word_takes_its_transaction_down_and_leaves_a_trace_by_refused() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let slow = running(&mut session);
        let quick = take_over(lab, &mut session);
        session.batch_execute(&quick.call_with("progress", ", 0.2")).unwrap();
        let late = format!("BEGIN; {}; {}", slow.effect(), slow.call_with("progress", ", 0.9"));
        let refusal = fault(session.batch_execute(&late));
        assert_eq!(refusal.code().code(), "TN001");
        assert_eq!(refusal.message(), "progress refused: token 1 is not the right to job 1");
        session.batch_execute("ROLLBACK").unwrap();
        assert_eq!((super::effects(lab), seen(lab).0), (0, Some(0.2)));
        session.batch_execute(&slow.call_with("refused", ", 'progress'")).unwrap();
        let trace = "SELECT string_agg(verb || ' ' || token, ', ') FROM tenure.event WHERE refused";
        assert_eq!(lab.text(trace), format!("progress {}", slow.token));
    });
}

/// `progress_many` raises no error for a stale token, so it writes the line of the timeline itself.
fn a_stale_word_in_a_list_is_an_answer_and_a_line_in_the_timeline() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let slow = running(&mut session);
        let quick = take_over(lab, &mut session);
        let ask = "SELECT verdict, token FROM tenure.progress_many($1, $2, '{900,100,200,1}', '{late,a,b,c}') ORDER BY n";
        let (jobs, tokens) = (
            vec![slow.job, quick.job, quick.job, 77],
            vec![slow.token, quick.token, quick.token, 1],
        );
        let rows = session.query(ask, &[&jobs, &tokens]).unwrap();
        let answers: Vec<(String, Option<i64>)> =
            rows.iter().map(|row| (row.get(0), row.get(1))).collect();
        let plain = |verdict: &str| (verdict.to_owned(), None);
        let stale = ("stale".to_owned(), Some(quick.token));
        assert_eq!(answers, [stale, plain("noted"), plain("noted"), plain("not_found")]);
        assert_eq!(seen(lab), (Some(0.2), Some("b".into())), "the last counts");
        let lines = "SELECT count(*) FROM tenure.event WHERE refused AND verb = 'progress'";
        assert_eq!(lab.number(lines), 1);
    });
}

/// The report does not wait for the transaction that settles the job, and writes nothing.
fn a_word_about_a_job_that_is_being_settled_does_not_wait_and_is_not_noted() {
    as_each(|lab, who| {
        let (mut user, mut other) = (who.session(lab), who.session(lab));
        other.batch_execute("SET lock_timeout = '1s'").unwrap();
        let lease = running(&mut user);
        user.batch_execute(&format!("BEGIN; {}", lease.call("complete"))).unwrap();
        let word = lease.call_with("progress", ", 0.9");
        assert!(!other.query_one(&word, &[]).unwrap().get::<_, bool>(0), "busy");
        user.batch_execute("ROLLBACK").unwrap();
        assert_eq!(seen(lab), (None, None));
        assert!(other.query_one(&word, &[]).unwrap().get::<_, bool>(0));
        assert_eq!(seen(lab).0, Some(0.9));
    });
}

fn a_fraction_comes_to_the_same_thousandths_in_sql() {
    let mut lab = Lab::new();
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0, 5e-324, f64::MAX, 1.0 / 3.0];
    // Halves of a thousandth, and the floats next to them.
    let halves = (0..=1_000).map(|n| (f64::from(n) + 0.5) / 1_000.0);
    let beside = halves.flat_map(|half| [half.next_down(), half, half.next_up()]);
    let fractions: Vec<f64> = odd.into_iter().chain(beside).collect();
    let ask = "SELECT array_agg(tenure.permille(f) ORDER BY n) FROM unnest($1::float8[]) WITH ORDINALITY u(f, n)";
    let sql: Vec<i16> = lab.owner().query_one(ask, &[&fractions]).unwrap().get(0);
    let library = fractions.iter().map(|fraction| Progress::new(*fraction, None).permille());
    for ((fraction, sql), library) in fractions.iter().zip(sql).zip(library) {
        assert_eq!(sql.unsigned_abs(), library, "{fraction:?}");
    }
}

fn a_note_is_cut_at_the_same_place_in_sql() {
    let mut lab = Lab::new();
    for piece in ["x", "é", "…", "🦀", "x🦀"] {
        for n in [0, 1, 48, 49, 50, 51, 66, 67, 98, 99, 100, 101, 196, 197, 199, 200, 201, 4_000] {
            let text = piece.repeat(n);
            let most = PROGRESS_LIMIT as i32;
            let sql = "SELECT tenure.shorten($1, $2)";
            let cut: String = lab.owner().query_one(sql, &[&text, &most]).unwrap().get(0);
            assert_eq!(cut, shorten(&text, PROGRESS_LIMIT), "{n} of {piece}");
        }
    }
}

fn a_word_that_tells_no_fraction_is_refused() {
    as_each(|lab, who| {
        let mut session = who.session(lab);
        let lease = running(&mut session);
        let refusal = fault(session.batch_execute(&lease.call_with("progress", ", NULL, 'half'")));
        assert_eq!((refusal.code().code(), refusal.column()), ("TN003", Some("fraction")));
        assert_eq!(seen(lab), (None, None));
    });
}
