//! Times and durations as people type and read them: the only parser and the only formatter of
//! durations.

use std::time::Duration;

use tenure::engine::clock::{Clock, Timestamp};

const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// A longer duration is a typo.
const LONGEST: Duration = Duration::from_millis(36_500 * 86_400_000);

const SHAPE: &str =
    "write a whole number and a unit, such as 500ms, 5s, 10m, 2h or 7d, or several: 1h30m";

/// Parses a duration such as `500ms`, `5s`, `10m`, `2h`, `7d` or `1h30m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    if text.starts_with('-') {
        return Err(format!("a duration cannot be negative; {SHAPE}"));
    }
    let millis = millis(text)?;
    match Duration::from_millis(millis) {
        length if length > LONGEST => {
            Err("longer than 100 years; choose a shorter duration".to_owned())
        }
        length => Ok(length),
    }
}

/// The same, but not zero.
pub(crate) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err(format!("zero is too short; {SHAPE}")),
        length => Ok(length),
    }
}

fn millis(text: &str) -> Result<u64, String> {
    let not_a_duration = || format!("not a duration; {SHAPE}");
    let mut total = 0_u64;
    let mut rest = text;
    loop {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        if number.is_empty() {
            return Err(not_a_duration());
        }
        if unit.is_empty() {
            return Err(format!("{number} of what? {SHAPE}"));
        }
        let (_, length) =
            UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(not_a_duration)?;
        // What exceeds 64 bits is too long anyway.
        let part = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*length));
        total = part.and_then(|part| total.checked_add(part)).unwrap_or(u64::MAX);
        if tail.is_empty() || total == u64::MAX {
            return Ok(total);
        }
        rest = tail;
    }
}

/// A duration in its two largest units: `7d`, `3h 5m`, `850ms`.
pub(crate) fn show(length: Duration) -> String {
    let millis = u64::try_from(length.as_millis()).unwrap_or(u64::MAX);
    let place = UNITS.iter().rposition(|(_, unit)| millis >= *unit).unwrap_or(0);
    let (name, unit) = UNITS[place];
    let whole = format!("{}{name}", millis / unit);
    // Milliseconds beside seconds only distract a person.
    let finer = place.checked_sub(1).filter(|finer| *finer > 0).map(|finer| UNITS[finer]);
    match finer.map(|(name, finer)| (millis % unit / finer, name)) {
        Some((part, name)) if part > 0 => format!("{whole} {part}{name}"),
        _ => whole,
    }
}

/// The same for a number of milliseconds from the store.
pub(crate) fn show_millis(millis: i64) -> String {
    show(Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
}

/// A number of milliseconds in all its units, as [`duration`] parses them: `1h30m`, `1s500ms`.
pub(crate) fn exact_millis(millis: u64) -> String {
    let mut rest = millis;
    let mut text = String::new();
    for (name, unit) in UNITS.iter().rev() {
        if rest >= *unit {
            text.push_str(&format!("{}{name}", rest / unit));
            rest %= unit;
        }
    }
    if text.is_empty() { "0ms".to_owned() } else { text }
}

/// The time now, for a person who reads "3m ago". It decides nothing: the store decides what is
/// due.
pub(crate) fn now() -> Timestamp {
    Clock::system().now()
}

/// How far a time is from `now`: `3m 2s ago`, `in 5m`, `now`.
pub(crate) fn relative(at: Timestamp, now: Timestamp) -> String {
    const SECOND: Duration = Duration::from_secs(1);
    let (past, future) = (now.since(at), at.since(now));
    match (past < SECOND, future < SECOND) {
        (true, true) => "now".to_owned(),
        (false, _) => format!("{} ago", show(past)),
        (_, false) => format!("in {}", show(future)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, millis) in [
            ("0s", 0),
            ("500ms", 500),
            ("5s", 5_000),
            ("10m", 600_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
            ("1h30m", 5_400_000),
            ("007s", 7_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "not a duration"),
            ("-5s", "negative"),
            ("5", "5 of what?"),
            ("1h30", "30 of what?"),
            ("s", "not a duration"),
            ("5 s", "not a duration"),
            ("5.5s", "not a duration"),
            ("5S", "not a duration"),
            ("5µs", "not a duration"),
            ("٥s", "not a duration"),
            ("+5s", "not a duration"),
            ("soon", "not a duration"),
            ("36501d", "100 years"),
            ("99999999999999999999999999d", "100 years"),
            ("99999999999999999d", "100 years"),
        ] {
            let refused = duration(text).unwrap_err();
            assert!(refused.contains(reason), "{text:?}: {refused}");
        }
        assert!(positive_duration("0ms").is_err());
    }

    #[test]
    fn durations_are_shown_in_their_two_largest_units() {
        for (millis, text) in [
            (0, "0ms"),
            (850, "850ms"),
            (1_850, "1s"),
            (60_000, "1m"),
            (185_000, "3m 5s"),
            (11_100_000, "3h 5m"),
            (86_400_000, "1d"),
            (604_800_000 + 3_600_000, "7d 1h"),
        ] {
            assert_eq!(show(Duration::from_millis(millis)), text);
        }
    }

    #[test]
    fn a_moment_is_told_from_where_the_reader_stands() {
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1_000);
        assert_eq!(relative(at(10), at(10)), "now");
        assert_eq!(relative(at(10), at(75)), "1m 5s ago");
        assert_eq!(relative(at(75), at(10)), "in 1m 5s");
    }
}
