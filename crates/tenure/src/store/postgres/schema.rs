//! The schema that holds a store, by whatever name: the one place where the name gets into SQL.
//!
//! The files say `tenure.`, so that they can be read and tried as they are. Another name takes its
//! place here, quoted.

use std::borrow::Cow;

/// A schema's name. [`super::Address`] has checked it: letters, digits, `_`, `-` and spaces.
#[derive(Debug, Clone)]
pub(super) struct Schema {
    name: String,
    /// The name as SQL has it.
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

    /// The name as people spell it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The name as SQL has it.
    pub(super) fn quoted(&self) -> &str {
        &self.quoted
    }

    /// The text of `sql` for this schema.
    pub(super) fn apply<'a>(&self, sql: &'a str) -> Cow<'a, str> {
        if self.name == Schema::USUAL {
            return Cow::Borrowed(sql);
        }
        Cow::Owned(sql.replace("tenure.", &format!("{}.", self.quoted)))
    }

    /// The channel in which ready jobs are announced: what the text `tenure.` becomes, without its dot.
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
