//! What an operator does to one job, in plain SQL.

use super::{Case, Lease, claim, enqueue, sql_cases};
use crate::sessions::{Lab, fault};

pub(super) const CASES: &[Case] = sql_cases! {
    "operate":
    what_is_done_to_one_job_answers_its_state,
    what_cannot_be_done_to_a_job_is_refused_with_its_state,
};

fn what_is_done_to_one_job_answers_its_state() {
    let mut lab = Lab::new();
    let job = enqueue(lab.owner(), "work");
    let call = |verb: &str| format!("SELECT tenure.{verb}({job})");
    for _ in 0..2 {
        assert_eq!(lab.text(&call("cancel")), "cancelled");
    }
    assert_eq!(lab.text(&call("requeue")), "queued");
    let lease = claim(lab.owner(), 300);
    lab.owner().batch_execute(&lease.call_with("park", ", 'later'")).unwrap();
    for _ in 0..2 {
        assert_eq!(lab.text(&call("resume")), "queued");
    }
}

fn what_cannot_be_done_to_a_job_is_refused_with_its_state() {
    let mut lab = Lab::new();
    let ended = enqueue(lab.owner(), "work");
    let Lease { job, token } = claim(lab.owner(), 300);
    lab.owner().batch_execute(&format!("SELECT tenure.complete({job}, {token})")).unwrap();
    let queued = enqueue(lab.owner(), "work");
    for (verb, job, words) in [
        ("cancel", ended.to_string(), "job 1 is succeeded; cancel is not possible"),
        ("requeue", ended.to_string(), "job 1 is succeeded; requeue is not possible"),
        ("requeue", queued.to_string(), "job 2 is queued; requeue is not possible"),
        ("resume", queued.to_string(), "job 2 is queued; resume is not possible"),
        ("cancel", "404".to_owned(), "there is no job 404, or no longer"),
        ("requeue", "404".to_owned(), "there is no job 404, or no longer"),
        ("resume", "NULL".to_owned(), "there is no job NULL, or no longer"),
    ] {
        let refusal = fault(lab.owner().batch_execute(&format!("SELECT tenure.{verb}({job})")));
        assert_eq!(
            (refusal.code().code(), refusal.column()),
            ("TN003", Some("job")),
            "{verb} {job}"
        );
        assert_eq!(refusal.message(), format!("job: {words}"));
    }
    assert_eq!(lab.text(&format!("SELECT tenure.cancel({queued})")), "cancelled");
}
