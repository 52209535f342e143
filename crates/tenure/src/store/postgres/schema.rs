//! The schema of a store: the one place that puts its name into SQL.
//!
//! The SQL files say `tenure.`, so that they can be read and tried as they are. This file replaces
//! it by the schema's name, quoted.

use std::borrow::Cow;

use crate::job::{Invalid, shorten};

/// Why a name is refused; follows the name of the field.
pub(super) const NOT_A_NAME: &str = "is not a name that Tenure uses; write 1 to 63 of A-Z a-z 0-9 _ - and space, \
    beginning with a letter or _, and not with pg_";

/// Whether this can be the name of a schema.
pub(super) fn is_name(text: &str) -> bool {
    let begins = |c: char| c.is_ascii_alphabetic() || c == '_';
    let goes_on = |c: char| c.is_ascii_alphanumeric() || "_ -".contains(c);
    text.len() <= 63
        && text.starts_with(begins)
        && text.chars().all(goes_on)
        && !text.starts_with("pg_")
}

/// A schema's name, checked by [`is_name`].
#[derive(Debug, Clone)]
pub(crate) struct Schema {
    name: String,
    /// The name as written in SQL.
    quoted: String,
}

impl Schema {
    const USUAL: &'static str = "tenure";

    pub(super) fn new(name: &str) -> Schema {
        let quoted = if name == Schema::USUAL {
            name.to_owned()
        } else {
            format!("\"{}\"", name.replace('"', "\"\""))
        };
        Schema { name: name.to_owned(), quoted }
    }

    /// Like [`Schema::new`], for a name that is not checked yet.
    pub(crate) fn check(name: &str) -> Result<Schema, Invalid> {
        if is_name(name) {
            return Ok(Schema::new(name));
        }
        let why = format!("{:?} {NOT_A_NAME}", shorten(name, 80));
        Err(Invalid::Value { field: "schema", why })
    }

    /// The plain name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The name as written in SQL.
    pub(super) fn quoted(&self) -> &str {
        &self.quoted
    }

    /// `sql` with the name of this schema.
    pub(crate) fn apply<'a>(&self, sql: &'a str) -> Cow<'a, str> {
        if self.name == Schema::USUAL {
            return Cow::Borrowed(sql);
        }
        Cow::Owned(sql.replace("tenure.", &format!("{}.", self.quoted)))
    }

    /// The channel in which ready jobs are announced: the replacement of `tenure.`, without the
    /// dot.
    pub(super) fn channel(&self) -> &str {
        &self.quoted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_name_is_quoted_wherever_the_usual_one_stands() {
        let sql = "SELECT tenure.now() FROM tenure.jobs";
        assert_eq!(Schema::new("tenure").apply(sql), sql);
        assert_eq!(
            Schema::new("Job Queue").apply(sql),
            r#"SELECT "Job Queue".now() FROM "Job Queue".jobs"#
        );
    }
}
