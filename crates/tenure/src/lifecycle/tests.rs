//! The decisions, as tables of cases.

use super::*;

fn counts(attempt: u16, crashes: u16) -> Counts {
    Counts { attempt, max_attempts: 3, crashes, max_crashes: 3, retry: RetryPolicy::default() }
}

fn delays(policy: &RetryPolicy, jitter: u32) -> Vec<u64> {
    let delay = |n| retry_delay(policy, n, Jitter(jitter)).as_millis() as u64;
    (1..=6).map(delay).collect()
}

#[test]
fn the_default_policy_doubles_from_a_second_to_five_minutes_and_at_least_half_is_certain() {
    let policy = RetryPolicy::default();
    assert_eq!(delays(&policy, 0), [500, 1_000, 2_000, 4_000, 8_000, 16_000]);
    assert_eq!(delays(&policy, u32::MAX), [999, 1_999, 3_999, 7_999, 15_999, 31_999]);
    assert_eq!(retry_delay(&policy, 500, Jitter(0)), Duration::from_secs(150));
}

#[test]
fn no_delay_stays_none_however_often_it_is_doubled() {
    let policy = RetryPolicy::Exponential { base_ms: 0, cap_ms: 300_000 };
    for failures in [1, 64, 65, 66, 1_000] {
        assert_eq!(retry_delay(&policy, failures, Jitter(u32::MAX)), Duration::ZERO, "{failures}");
    }
}

#[test]
fn a_fixed_delay_and_a_list_are_exact_and_the_list_repeats_its_last() {
    assert_eq!(delays(&RetryPolicy::Fixed { ms: 70 }, 9), [70; 6]);
    let list = RetryPolicy::list(&[1_000, 2_000, 4_000]);
    assert_eq!(delays(&list, 9), [1_000, 2_000, 4_000, 4_000, 4_000, 4_000]);
}

#[test]
fn a_first_crash_is_due_at_once_and_later_ones_back_off() {
    assert_eq!(after_lapse(&counts(1, 0), Verb::Lapse).0, Next::Queue(Again::AsBefore));
    assert_eq!(
        after_lapse(&counts(1, 1), Verb::Lapse).0,
        Next::Queue(Again::In(Duration::from_secs(1)))
    );
}

#[test]
fn a_crash_that_uses_up_attempts_or_crashes_buries() {
    assert_eq!(after_lapse(&counts(3, 0), Verb::Lapse).0, Next::End(State::Dead));
    assert_eq!(after_lapse(&counts(1, 2), Verb::Lapse).0, Next::End(State::Dead));
}

#[test]
fn a_job_is_a_suspect_from_its_second_crash_on_or_from_its_first_if_it_has_few_to_lose() {
    let first = |max| (1..=max).find(|crashes| makes_suspect(*crashes, max));
    assert_eq!([1, 2, 3].map(first), [Some(1); 3]);
    assert_eq!([4, 5, 50, u16::MAX].map(first), [Some(2); 4]);
    assert!(!makes_suspect(0, 1));
}

#[test]
fn a_release_is_no_return_and_what_ends_a_handler_is() {
    let own = Verb::ALL.into_iter().filter(|verb| is_own_return(*verb)).collect::<Vec<_>>();
    assert_eq!(own, [Verb::Complete, Verb::Retry, Verb::Snooze, Verb::Bury, Verb::Park]);
}

#[test]
fn crashes_count_until_the_last_of_them_is_an_hour_old() {
    let at = Timestamp::from_millis(5_000);
    let left = |after| crashes_after_return(3, Some(at), at + after);
    assert_eq!(left(Duration::ZERO), 3);
    assert_eq!(left(CRASH_MEMORY - Duration::from_millis(1)), 3);
    assert_eq!(left(CRASH_MEMORY), 0);
    assert_eq!(crashes_after_return(0, None, at), 0);
}

#[test]
fn waiting_does_not_count_and_failing_does() {
    let counted = Verb::ALL.into_iter().filter(|verb| !attempt_counts(*verb)).collect::<Vec<_>>();
    assert_eq!(counted, [Verb::Snooze, Verb::Release, Verb::Park]);
}

#[test]
fn a_fault_becomes_the_settlement_that_it_asks_for() {
    let settle = |fault| after_fault(&counts(1, 0), fault, Jitter(0));
    let after = Duration::from_secs(9);
    let error = || "no".to_owned();
    assert_eq!(
        settle(Fault::Retry { error: error() }),
        Outcome::Retry { after: Duration::from_millis(500), error: error() }
    );
    assert_eq!(
        settle(Fault::RetryAfter { after, error: error() }),
        Outcome::Retry { after, error: error() }
    );
    assert_eq!(settle(Fault::Fatal { error: error() }), Outcome::Bury { reason: error() });
    assert_eq!(settle(Fault::Snooze { after }), Outcome::Snooze { after });
    assert_eq!(settle(Fault::Park { reason: error() }), Outcome::Park { reason: error() });
}

#[test]
fn an_error_becomes_a_fault_with_all_its_causes_each_said_once() {
    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Failed(&'static str, #[source] Option<Box<Failed>>);
    let because = |text, cause| Failed(text, Some(Box::new(cause)));
    let refused = || Failed("refused", None);
    assert_eq!(Fault::from(refused()), Fault::retry("refused"));
    let chain = because("cannot pay", because("cannot connect", refused()));
    assert_eq!(Fault::from(chain), Fault::retry("cannot pay: cannot connect: refused"));
    let repeats = because("cannot connect: refused", refused());
    assert_eq!(Fault::from(repeats), Fault::retry("cannot connect: refused"));
}

#[test]
fn an_error_text_is_cut_and_cleaned_so_that_it_cannot_fail_a_settlement() {
    let note = Outcome::Bury { reason: format!("\0{}", "é".repeat(ERROR_LIMIT)) }.note().unwrap();
    assert!(note.len() <= ERROR_LIMIT && !note.contains('\0'));
}

#[test]
fn a_fault_says_in_words_what_is_to_become_of_the_job() {
    let after = Duration::from_secs(5);
    for (fault, told) in [
        (Fault::retry("no answer"), "retry: no answer"),
        (Fault::retry_after(after, "busy"), "retry after 5s: busy"),
        (Fault::fatal("no such address"), "fatal: no such address"),
        (Fault::snooze(after), "put off for 5s"),
        (Fault::park("ask Ann"), "park: ask Ann"),
    ] {
        assert_eq!(format!("{fault:?}"), told);
    }
}
