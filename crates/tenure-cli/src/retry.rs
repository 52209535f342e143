//! Retry policies as people type and read them: `fixed:5s`, `exponential:1s..5m`, `list:1s,5s,1m`.
//! What is shown can be typed again. The library defines what a policy means.

use std::time::Duration;

use tenure::engine::job::{RETRY_LIMIT, RetryPolicy};

use crate::time::{duration, exact_millis, positive_duration};

const SHAPE: &str = "write fixed:5s, exponential:1s..5m or list:1s,5s,1m";

/// Parses a policy.
pub(crate) fn policy(text: &str) -> Result<RetryPolicy, String> {
    let Some((name, delays)) = text.split_once(':') else {
        return Err(format!("not a retry policy; {SHAPE}"));
    };
    let policy = match name {
        "fixed" => duration(delays).map(|delay| RetryPolicy::Fixed { ms: millis(delay) }),
        "exponential" => exponential(delays),
        "list" => list(delays),
        _ => return Err(format!("there is no retry policy {name:?}; {SHAPE}")),
    };
    policy.map_err(|why| format!("{name}: {why}"))
}

fn exponential(delays: &str) -> Result<RetryPolicy, String> {
    let Some((first, longest)) = delays.split_once("..") else {
        return Err(format!("needs its first and its longest delay; {SHAPE}"));
    };
    // Zero doubled is zero: the delays would never grow.
    let base = positive_duration(first).map_err(|why| format!("first delay: {why}"))?;
    let cap = positive_duration(longest).map_err(|why| format!("longest delay: {why}"))?;
    if base > cap {
        return Err(format!("the first delay is above the longest; write {longest}..{first}"));
    }
    Ok(RetryPolicy::Exponential { base_ms: millis(base), cap_ms: millis(cap) })
}

fn list(delays: &str) -> Result<RetryPolicy, String> {
    let each = |(n, text)| duration(text).map_err(|why| format!("delay {n}: {why}"));
    let delays: Vec<Duration> = (1..).zip(delays.split(',')).map(each).collect::<Result<_, _>>()?;
    if delays.len() > RETRY_LIMIT {
        let count = delays.len();
        return Err(format!("{count} delays, at most {RETRY_LIMIT}; the last one repeats"));
    }
    Ok(RetryPolicy::List { ms: delays.into_iter().map(millis).collect() })
}

fn millis(delay: Duration) -> u64 {
    u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)
}

/// The policy as it can be typed.
pub(crate) fn show(policy: &RetryPolicy) -> String {
    match policy {
        RetryPolicy::Fixed { ms } => format!("fixed:{}", exact_millis(*ms)),
        RetryPolicy::Exponential { base_ms, cap_ms } => {
            format!("exponential:{}..{}", exact_millis(*base_ms), exact_millis(*cap_ms))
        }
        RetryPolicy::List { ms } => {
            let delays: Vec<String> = ms.iter().copied().map(exact_millis).collect();
            format!("list:{}", delays.join(","))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_shown_as_it_is_typed() {
        for (text, meant) in [
            ("fixed:5s", RetryPolicy::Fixed { ms: 5_000 }),
            ("fixed:0ms", RetryPolicy::Fixed { ms: 0 }),
            ("exponential:1s..5m", RetryPolicy::DEFAULT),
            ("exponential:1s..1s", RetryPolicy::Exponential { base_ms: 1_000, cap_ms: 1_000 }),
            ("list:1s,5s,1m30s", RetryPolicy::list(&[1_000, 5_000, 90_000])),
            ("list:1s500ms", RetryPolicy::list(&[1_500])),
        ] {
            assert_eq!(policy(text).as_ref(), Ok(&meant));
            assert_eq!(show(&meant), text);
        }
    }

    #[test]
    fn what_is_no_policy_is_refused_with_the_next_step() {
        let long = format!("list:{}", ["1s"; RETRY_LIMIT + 1].join(","));
        for (text, reason) in [
            ("", "not a retry policy; write fixed:5s"),
            ("5s", "not a retry policy; write fixed:5s"),
            ("linear:5s", "there is no retry policy \"linear\"; write fixed:5s"),
            ("fixed:", "fixed: not a duration; write a whole number"),
            ("fixed:5", "fixed: 5 of what?"),
            ("fixed:-5s", "fixed: a duration cannot be negative"),
            ("exponential:1s", "exponential: needs its first and its longest delay; write fixed"),
            ("exponential:0s..5m", "exponential: first delay: zero is too short"),
            ("exponential:1s..x", "exponential: longest delay: not a duration"),
            ("exponential:5m..1s", "above the longest; write 1s..5m"),
            ("list:", "list: delay 1: not a duration"),
            ("list:1s,,2s", "list: delay 2: not a duration"),
            (&long, "list: 65 delays, at most 64; the last one repeats"),
        ] {
            let refused = policy(text).unwrap_err();
            assert!(refused.contains(reason), "{text:?}: {refused}");
        }
    }
}
