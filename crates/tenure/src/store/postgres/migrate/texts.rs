//! The texts that are installed: the migrations, each applied once, and the functions, installed as
//! a whole. The list of objects that must exist afterwards is read from the same texts.

use crate::store::migrate::{Applied, Migration, checksum};

/// The tables.
pub(super) const MIGRATIONS: [Migration; 2] = [
    Migration {
        version: 1,
        name: "first",
        min_client: 1,
        sql: include_str!("../../../../sql/postgres/schema/0001_first.sql"),
    },
    Migration {
        version: 2,
        name: "due",
        min_client: 1,
        sql: include_str!("../../../../sql/postgres/schema/0002_due.sql"),
    },
];

macro_rules! sql {
    ($($file:literal)+) => { [$(($file, include_str!(concat!("../../../../sql/postgres/", $file, ".sql")))),+] };
}

/// The files of functions, in an order in which each file finds what it uses.
pub(super) const FUNCTIONS: [(&str, &str); 25] = sql! {
    "base/installation" "base/time" "base/checks" "base/numbers" "base/epochs" "verbs/record" "base/moves" "verbs/enqueue" "verbs/lapse" "verbs/claim" "verbs/renew" "verbs/progress" "verbs/settle" "verbs/ledger"
    "verbs/operate" "verbs/look" "verbs/check" "single/enqueue" "single/claim" "single/settle" "single/fence" "single/ledger"
    "single/operate" "single/views"
    "plans"
};

/// The settings of the functions. A function that is replaced loses them.
#[cfg(feature = "drill")]
pub(super) const PLANS: &str = FUNCTIONS[FUNCTIONS.len() - 1].1;

/// One line for each release of the functions: its number and its checksum. The last line is this
/// binary's release.
const RELEASES: &str = include_str!("../../../../sql/postgres/releases.txt");

/// The number and checksum of each release, oldest first.
fn releases() -> Vec<(u32, &'static str)> {
    let release = |line: &'static str| {
        let (number, checksum) = line.split_once(' ')?;
        Some((number.parse().ok()?, checksum))
    };
    RELEASES.lines().filter_map(release).collect()
}

/// The texts that `up` installs.
pub(super) struct Functions {
    /// The text of each migration.
    pub(super) tables: Vec<String>,
    pub(super) files: Vec<String>,
    /// The checksum of the files. Another binary with other functions has another one.
    pub(super) checksum: String,
    /// The release of the functions. A newer release has a higher number.
    pub(super) release: u32,
}

impl Functions {
    /// This binary's texts, each passed through `edit`.
    pub(super) fn edited(edit: impl Fn(&str, &str) -> String) -> Functions {
        let files: Vec<_> = FUNCTIONS.iter().map(|(file, text)| edit(file, text)).collect();
        let checksum = checksum(&files.concat());
        let table =
            |step: &Migration| edit(&format!("schema/{:04}_{}", step.version, step.name), step.sql);
        let release = releases().last().map_or(0, |(number, _)| *number);
        Functions { tables: MIGRATIONS.iter().map(table).collect(), files, checksum, release }
    }

    /// This binary's texts.
    pub(super) fn own() -> Functions {
        Functions::edited(|_, text| text.to_owned())
    }
}

/// What the files of functions create, as sort and name, such as `function claim`. Two functions
/// with one name are listed twice.
pub(super) fn function_parts() -> Vec<String> {
    FUNCTIONS.iter().flat_map(|(_, text)| made_by(text)).collect()
}

/// The names of functions that are ours: of this release, and of earlier ones that it no longer
/// has.
pub(super) fn function_names() -> Vec<String> {
    const RETIRED: [&str; 1] = ["entries_read"];
    let own = function_parts();
    let own = own.iter().filter_map(|part| part.strip_prefix("function "));
    own.chain(RETIRED).map(str::to_owned).collect()
}

/// What the applied migrations have created.
pub(super) fn table_parts(applied: &[Applied]) -> Vec<String> {
    let is_applied = |step: &&Migration| applied.iter().any(|done| done.version == step.version);
    MIGRATIONS.iter().filter(is_applied).flat_map(|step| made_by(step.sql)).collect()
}

/// Everything that Tenure may have installed in a schema, whichever migrations were applied.
pub(super) fn all_parts() -> Vec<String> {
    MIGRATIONS.iter().flat_map(|step| made_by(step.sql)).chain(function_parts()).collect()
}

/// The parts of `wanted` that `found` lacks. A part that is wanted twice, as two functions of one
/// name are, must also be found twice.
pub(super) fn lacking(wanted: Vec<String>, found: &[String]) -> Vec<String> {
    let mut found = found.to_vec();
    let is_lacking = |part: &String| match found.iter().position(|other| other == part) {
        Some(place) => {
            found.swap_remove(place);
            false
        }
        None => true,
    };
    wanted.into_iter().filter(is_lacking).collect()
}

/// What these statements create.
pub(super) fn made_by(sql: &str) -> Vec<String> {
    const BEGINNINGS: [(&str, &str); 6] = [
        ("CREATE TABLE tenure.", "table"),
        ("CREATE SEQUENCE tenure.", "sequence"),
        ("SELECT tenure.put_type('", "type"),
        ("CREATE OR REPLACE VIEW tenure.", "view"),
        ("CREATE OR REPLACE FUNCTION tenure.", "function"),
        ("CREATE CONSTRAINT TRIGGER ", "trigger"),
    ];
    let part = |line: &str| {
        BEGINNINGS.iter().find_map(|(beginning, sort)| {
            let rest = line.trim_start().strip_prefix(beginning)?;
            let name = rest.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()?;
            Some(format!("{sort} {name}"))
        })
    };
    sql.lines().filter_map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_files_make_is_read_from_them() {
        let parts = all_parts();
        for part in [
            "table migrations",
            "table fences",
            "sequence job_id",
            "type claim_row",
            "view record",
            "view stats",
            "function claim_many",
            "function ms",
            "trigger fence",
        ] {
            assert!(parts.iter().any(|found| found == part), "{part}");
        }
        let made = |text: &str| {
            let types = text.matches("SELECT tenure.put_type(").count();
            let others = text.matches("CREATE INDEX").count() + text.matches("'CREATE ").count();
            text.matches("CREATE ").count() + types - others
        };
        let texts = MIGRATIONS.iter().map(|step| step.sql).chain(FUNCTIONS.map(|(_, text)| text));
        assert_eq!(texts.map(made).sum::<usize>(), parts.len(), "every CREATE is known");
    }

    /// An older binary leaves newer functions in place. It recognizes them by their release number.
    #[test]
    fn functions_that_have_changed_have_a_release_of_their_own() {
        let releases = releases();
        assert_eq!(
            releases.len(),
            RELEASES.lines().count(),
            "each line has a number and a checksum"
        );
        for ((number, checksum), expected) in releases.iter().zip(1..) {
            assert_eq!(*number, expected, "releases are counted from 1 without a gap");
            let same = releases.iter().filter(|(_, other)| other == checksum).count();
            assert_eq!(same, 1, "{checksum} is there twice");
        }
        let own = Functions::own();
        assert_eq!(
            releases.last().map(|(_, checksum)| *checksum),
            Some(own.checksum.as_str()),
            "the functions have changed: add the line `{} {}` to sql/postgres/releases.txt",
            own.release + 1,
            own.checksum
        );
    }

    #[test]
    fn of_two_functions_with_one_name_both_are_missed() {
        let names =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let wanted = || names(&["function ms", "function ms", "view job"]);
        assert_eq!(lacking(wanted(), &names(&["view job", "function ms"])), ["function ms"]);
        assert_eq!(lacking(wanted(), &wanted()), [""; 0]);
    }
}
