//! Data that travels with a job and changes nothing about how it runs: the trace that it continues,
//! and tags to find it by.
//!
//! A store keeps it as one JSON value (NULL if empty). No statement bases a decision on it; only a
//! list of jobs can be filtered by a tag. So another such value needs one more field here, and no
//! change of a table or a function.

use serde::{Deserialize, Serialize};

use super::{Invalid, Name};

/// Data that travels with a job and changes nothing about how it runs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Extras {
    /// The trace that the job continues, such as a W3C `traceparent`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<String>,
    /// Tags to find the job by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Name>,
}

impl Extras {
    /// Up to 512 printable ASCII characters.
    pub(super) fn check_trace(trace: &str) -> Result<(), Invalid> {
        if trace.len() <= 512 && trace.bytes().all(|c| (b' '..=b'~').contains(&c)) {
            return Ok(());
        }
        let why = "a trace has up to 512 printable ASCII characters".into();
        Err(Invalid::Value { field: "trace", why })
    }

    /// Up to 16 tags.
    pub(super) fn check_tags(tags: &[Name]) -> Result<(), Invalid> {
        match tags.len() {
            0..=16 => Ok(()),
            many => Err(Invalid::Value { field: "tags", why: format!("{many} tags, at most 16") }),
        }
    }

    /// The column's value; `None` if there is nothing to store.
    pub(crate) fn column(&self) -> Option<String> {
        if *self == Extras::default() { None } else { serde_json::to_string(self).ok() }
    }

    /// Reads the column's value. Fields of a newer release are ignored. A value that cannot be read
    /// counts as empty, since the job runs all the same.
    pub(crate) fn read(column: Option<&str>) -> Extras {
        column.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_kept_as_nothing() {
        assert_eq!(Extras::default().column(), None);
        assert_eq!(Extras::read(None), Extras::default());
    }

    #[test]
    fn what_is_kept_is_read_again_and_what_is_not_known_is_left_out() {
        let tag = Name::check("tag", "red").unwrap();
        let extras = Extras { trace: Some("00-ab-cd-01".into()), tags: vec![tag] };
        let column = extras.column().unwrap();
        assert_eq!(column, r#"{"trace":"00-ab-cd-01","tags":["red"]}"#);
        assert_eq!(Extras::read(Some(&column)), extras);
        let newer = r#"{"trace":"00-ab-cd-01","tags":["red"],"colour":{"r":1}}"#;
        assert_eq!(Extras::read(Some(newer)), extras);
        assert_eq!(Extras::read(Some("[1]")), Extras::default());
    }
}
