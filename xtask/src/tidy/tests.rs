//! Each rule on a small text that breaks it, and on one that only seems to break it.

use super::*;

fn broken(file: &str, text: &str) -> Vec<usize> {
    in_text(file, text).into_iter().map(|finding| finding.line).collect()
}

fn set(files: &[&str]) -> BTreeSet<String> {
    files.iter().map(|file| (*file).to_owned()).collect()
}

#[test]
fn every_forbidden_word_is_found_on_its_line() {
    for ban in &BANS {
        for word in ban.words {
            let text = format!("//! Fine.\nfn main() {{ {word} }}\n");
            assert_eq!(broken("crates/tenure-cli/src/main.rs", &text), [2], "{word}");
        }
    }
}

#[test]
fn unfinished_words_are_forbidden_in_code_only() {
    let text = format!("-- {}\n", BANS[0].words[2]);
    assert_eq!(broken("crates/tenure/sql/sqlite/verbs/claim.sql", &text), [1]);
    assert_eq!(broken("docs/lifecycle.md", &text), []);
}

#[test]
fn only_the_commands_of_the_project_may_sleep() {
    let text = format!("//! Fine.\nstd::{}(second);\n", BANS[2].words[0]);
    assert_eq!(broken("crates/tenure-cli/tests/dev.rs", &text), [2]);
    assert_eq!(broken("xtask/src/run.rs", &text), []);
}

#[test]
fn only_the_commands_of_the_drill_reach_the_drill() {
    let text = format!("//! Fine.\nuse {}::mutants;\n", BANS[4].words[0]);
    assert_eq!(broken("crates/tenure-cli/src/commands/worker.rs", &text), [2]);
    assert_eq!(broken("crates/tenure-cli/src/commands/drill/mutants.rs", &text), []);
}

#[test]
fn paths_of_a_machine_are_found_and_parts_of_paths_are_not() {
    for path in MACHINE_PATHS {
        assert_eq!(broken("docs/a.md", &format!("fine\nopen {path}x\n")), [2]);
        assert_eq!(broken("docs/a.md", &format!("see example.org{path}x, docs{path}x\n")), []);
    }
}

#[test]
fn sql_reads_the_clock_of_the_project() {
    let file = "crates/tenure/sql/postgres/verbs/claim.sql";
    let text = "SELECT now();\n  AND run_at <= NOW ()\nVALUES (CURRENT_TIMESTAMP)\nx := pg_catalog.now();\n";
    assert_eq!(broken(file, text), [1, 2, 3, 4]);
    let fine = "-- never now(), never CURRENT_TIMESTAMP\nthe_time := tenure.now();\nSELECT is_now();\nSELECT :now;\n";
    assert_eq!(broken(file, fine), []);
}

#[test]
fn sql_names_its_columns() {
    let file = "crates/tenure/sql/sqlite/verbs/look.sql";
    assert_eq!(
        broken(file, "select   *\n  FROM a;\nSELECT count(*) FROM b; -- not SELECT *\n"),
        [1]
    );
}

#[test]
fn a_long_file_is_found() {
    let text = |lines| format!("//! Long.\n{}", "\n".repeat(lines - 1));
    assert_eq!(broken("crates/tenure/src/job.rs", &text(LONGEST)), []);
    assert_eq!(broken("crates/tenure/src/job.rs", &text(LONGEST + 1)), [LONGEST + 1]);
}

#[test]
fn a_module_begins_by_saying_what_it_is() {
    assert_eq!(broken("crates/tenure/src/store/row.rs", "use std::fmt;\n"), [1]);
    assert_eq!(broken("crates/tenure/src/store/row.rs", "//! Rows.\n"), []);
    assert_eq!(broken("crates/tenure/examples/hello.rs", "use std::fmt;\n"), []);
}

#[test]
fn engines_have_the_same_verbs_once_there_are_two() {
    let one =
        ["crates/tenure/sql/sqlite/verbs/claim.sql", "crates/tenure/sql/sqlite/verbs/renew.sql"];
    assert_eq!(in_tree(&set(&one)), []);
    let postgres = [
        "crates/tenure/sql/postgres/verbs/claim.sql",
        "crates/tenure/sql/postgres/verbs/fence.sql",
    ];
    let found = in_tree(&set(&[one, postgres].concat()));
    let found: Vec<_> = found.iter().map(|finding| finding.file.as_str()).collect();
    assert_eq!(
        found,
        ["crates/tenure/sql/sqlite/verbs/fence.sql", "crates/tenure/sql/postgres/verbs/renew.sql"]
    );
}

#[test]
fn a_decision_is_listed() {
    let files = set(&[DECISIONS, "docs/decisions/0001-ids.md", "docs/decisions/0002-moves.md"]);
    let found = unlisted_decisions("- [Ids](0001-ids.md)\n", &files);
    assert_eq!(found.len(), 1);
    assert!(found[0].rule.contains("0002-moves.md"));
}
