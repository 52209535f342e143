//! The progress of a running job, as its holder reports it.
//!
//! Only people read it, so it must never make a call fail: a value out of range is brought into
//! range.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::shorten;

/// A note longer than this many bytes is cut, because it is displayed on one line with other
/// columns.
pub const PROGRESS_LIMIT: usize = 200;

/// The progress of a running job, as its holder reports it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Told")]
pub struct Progress {
    permille: u16,
    note: Option<String>,
}

impl Progress {
    /// 1,000 permille: everything is done.
    pub(crate) const WHOLE: u16 = 1_000;

    /// The fraction that is done, and a few words on what is being done. NaN counts as 0, and a
    /// value outside 0 to 1 is clamped.
    ///
    /// ```
    /// use tenure::Progress;
    ///
    /// assert_eq!(Progress::new(0.4, "embedding").to_string(), "40 % embedding");
    /// assert_eq!(Progress::new(7.0, None).to_string(), "100 %");
    /// ```
    pub fn new<'a>(fraction: f64, note: impl Into<Option<&'a str>>) -> Progress {
        // Rounded by hand, because SQL rounds halves differently. The cast turns NaN into 0.
        let permille = (fraction.clamp(0.0, 1.0) * f64::from(Progress::WHOLE) + 0.5).floor() as u16;
        Progress::bounded(permille, note.into())
    }

    fn bounded(permille: u16, note: Option<&str>) -> Progress {
        let cut = |note: &str| shorten(&note.replace('\0', "\u{fffd}"), PROGRESS_LIMIT);
        let note = note.filter(|note| !note.is_empty()).map(cut);
        Progress { permille: permille.min(Progress::WHOLE), note }
    }

    /// Progress as a store kept it.
    pub(crate) fn kept(permille: u16, note: Option<String>) -> Progress {
        Progress { permille, note }
    }

    /// How many thousandths are done.
    pub fn permille(&self) -> u16 {
        self.permille
    }

    /// What is being done.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }
}

/// Whole percents, rounded down, so that 100 % appears only when everything is done.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.permille / 10)?;
        self.note.iter().try_for_each(|note| write!(f, " {note}"))
    }
}

/// Progress from outside, not yet in bounds.
#[derive(Deserialize)]
struct Told {
    permille: u16,
    note: Option<String>,
}

impl From<Told> for Progress {
    fn from(told: Told) -> Progress {
        Progress::bounded(told.permille, told.note.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permille(fraction: f64) -> u16 {
        Progress::new(fraction, None).permille()
    }

    #[test]
    fn whatever_is_said_comes_to_something_between_nothing_and_all() {
        for nothing in [0.0, -0.0, -1.0, f64::NAN, -f64::NAN, f64::NEG_INFINITY, 0.000_49] {
            assert_eq!(permille(nothing), 0, "{nothing}");
        }
        for all in [1.0, 1.5, f64::MAX, f64::INFINITY, 0.999_5] {
            assert_eq!(permille(all), 1_000, "{all}");
        }
        assert_eq!([permille(0.4), permille(0.000_5), permille(1.0 / 3.0)], [400, 1, 333]);
    }

    #[test]
    fn a_note_is_cut_to_its_limit_and_can_be_stored() {
        let note = |text: &str| Progress::new(0.5, text).note().map(str::to_owned);
        assert_eq!(note(""), None);
        assert_eq!(note("a\0b").unwrap(), "a\u{fffd}b");
        let long = note(&"\0é".repeat(500)).unwrap();
        assert!(long.len() <= PROGRESS_LIMIT && long.ends_with('…'), "{long}");
    }

    #[test]
    fn what_comes_back_from_json_is_within_bounds() {
        let read = |text: &str| serde_json::from_str::<Progress>(text).unwrap();
        let progress = Progress::new(0.4, "embedding");
        assert_eq!(read(&serde_json::to_string(&progress).unwrap()), progress);
        assert_eq!(read(r#"{"permille":9999,"note":""}"#), Progress::new(1.0, None));
    }

    #[test]
    fn nobody_reads_that_all_is_done_before_it_is() {
        assert_eq!(Progress::new(0.999, None).to_string(), "99 %");
        assert_eq!(Progress::new(0.0, "begun").to_string(), "0 % begun");
    }
}
