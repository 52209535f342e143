//! The arithmetic of the report, and how it writes whole numbers. Pure: numbers in, a number out.

use std::time::Duration;

/// The middle value; between the two middle values if there is an even number. NaN without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        odd if odd % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The value that `percent` of all values do not exceed (nearest rank): with fewer than a hundred
/// values, the 99th percentile is the largest. NaN without values.
pub(crate) fn percentile(values: &[f64], percent: f64) -> f64 {
    let sorted = sorted(values);
    // The subtraction makes up for rounding errors. Without it the 99.9th percentile of 1,000
    // values could be the 1,000th value, and it is the 999th.
    let rank = (percent / 100.0 * sorted.len() as f64 - 1e-9).ceil() as usize;
    match sorted.len() {
        0 => f64::NAN,
        n => sorted[rank.clamp(1, n) - 1],
    }
}

/// The distance between the smallest and the largest value, as a fraction of the median. Zero with
/// one value.
pub(crate) fn spread(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    match (sorted.first(), sorted.last()) {
        (Some(first), Some(last)) if last > first => (last - first) / median(values),
        _ => 0.0,
    }
}

/// How many a second.
pub(crate) fn rate(jobs: u64, took: Duration) -> f64 {
    jobs as f64 / took.as_secs_f64().max(1e-9)
}

/// In milliseconds, with their fraction.
pub(crate) fn millis(length: Duration) -> f64 {
    length.as_secs_f64() * 1_000.0
}

/// With a comma for each thousand.
pub(crate) fn whole(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_whatever_the_order() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[7.0]), 7.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_percentile_is_a_value_that_was_measured() {
        let values: Vec<f64> = (1..=1_000).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 50.0), 500.0);
        assert_eq!(percentile(&values, 99.0), 990.0);
        assert_eq!(percentile(&values, 99.9), 999.0);
        assert_eq!(percentile(&values, 100.0), 1_000.0);
        assert_eq!(percentile(&values, 0.0), 1.0);
        assert!(percentile(&[], 50.0).is_nan());
    }

    #[test]
    fn of_fewer_than_a_hundred_values_the_99th_percentile_is_the_largest() {
        let values: Vec<f64> = (1..=50).map(f64::from).collect();
        assert_eq!(percentile(&values, 99.0), 50.0);
    }

    #[test]
    fn the_spread_is_relative_to_the_median() {
        assert_eq!(spread(&[90.0, 100.0, 110.0]), 0.2);
        assert_eq!(spread(&[5.0]), 0.0);
        assert_eq!(spread(&[0.0, 0.0]), 0.0);
        assert_eq!(spread(&[]), 0.0);
    }

    #[test]
    fn thousands_are_told_apart() {
        assert_eq!([whole(0), whole(999), whole(1_000)], ["0", "999", "1,000"]);
        assert_eq!(whole(1_234_567), "1,234,567");
    }

    #[test]
    fn a_rate_is_finite_even_if_no_time_has_passed() {
        assert_eq!(rate(500, Duration::from_millis(250)), 2_000.0);
        assert!(rate(1, Duration::ZERO).is_finite());
    }
}
