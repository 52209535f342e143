//! The SQL of the verbs, read from `sql/sqlite/verbs`: each file has named statements, each under a
//! line `-- :name`.
//!
//! A test checks that each file and the list below name the same statements. Only `tenure-drill`
//! may load other text.

use std::collections::BTreeMap;

/// Reads one file of named statements. Lines above the first name are its header; comments are
/// dropped.
fn sections(text: &str) -> BTreeMap<&str, String> {
    let mut sections = BTreeMap::new();
    let mut current = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("-- :") {
            current = Some(name.trim());
            sections.insert(name.trim(), String::new());
        } else if let Some(section) = current.and_then(|name| sections.get_mut(name))
            && !line.starts_with("--")
        {
            section.push_str(line);
            section.push('\n');
        }
    }
    sections.values_mut().for_each(|sql: &mut String| sql.truncate(sql.trim_end().len()));
    sections
}

macro_rules! statements {
    ($($(#[$about:meta])* $file:ident { $($name:ident)+ })+) => {
        /// Every statement of the engine, by verb.
        #[derive(Debug)]
        pub(crate) struct Statements {
            $($(#[$about])* pub(crate) $file: $file,)+
        }

        $(
            #[derive(Debug)]
            #[allow(non_camel_case_types)]
            pub(crate) struct $file {
                $(pub(crate) $name: String,)+
            }
        )+

        impl Statements {
            /// The statements as the files have them.
            pub(crate) fn embedded() -> Statements {
                Statements::from_files(|_, text| text.to_owned())
            }

            /// The statements from files that were passed through `edit`.
            pub(crate) fn from_files(edit: impl Fn(&'static str, &'static str) -> String) -> Statements {
                let record = edit("record", RECORD);
                let record = sections(&record);
                Statements {
                    $($file: {
                        const TEXT: &str = include_str!(concat!("../../../sql/sqlite/verbs/", stringify!($file), ".sql"));
                        let text = edit(stringify!($file), TEXT);
                        let mut found = sections(&text);
                        let statements = $file {
                            $($name: {
                                let sql = found.remove(stringify!($name));
                                let sql = sql.unwrap_or_else(|| panic!("{}.sql has no statement {}", stringify!($file), stringify!($name)));
                                record.iter().fold(sql, |sql, (name, part)| sql.replace(&format!("{{{name}}}"), part))
                            },)+
                        };
                        assert!(found.is_empty(), "{}.sql has statements that nobody uses: {found:?}", stringify!($file));
                        statements
                    },)+
                }
            }
        }
    };
}

const RECORD: &str = include_str!("../../../sql/sqlite/verbs/record.sql");

statements! {
    enqueue { next_id set_next_id find_key remember_key store store_payload }
    claim { probe looks_over due promote meta paused holds_suspect next_lane pick take taken next_due held }
    renew { extend }
    progress { report }
    settle { fence put_back end complete remove current ended_by completed_by heard last_kept thin note forgetful }
    ledger { holds open find write has_open recall remember effects effects_in_doubt }
    lapse {
        overdue check of_worker workers guards register keep_guard retire looked counted_anew uncrash break_time forget_workers
        may_return pulse_of advance_pulse leased_before note_break
    }
    operate {
        live ended requeue remove_ended remove_payload remove_timeline remove_ledger remove_steps queue queues
        configure next_queue aged expire_keys identity raise set_guard_gap note_epoch epochs
    }
    check { window twice orphans bare succeeded stuck unfinished ahead keys epoch lanes }
    look { outcome timeline jobs_live jobs_ended jobs_dead overview_live overview_dead overview_recent leases }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_statement_that_the_engine_names_is_in_its_file_and_no_other() {
        let statements = Statements::embedded();
        assert!(statements.settle.fence.contains("token = :token AND state = 2"));
        assert!(statements.settle.complete.contains("token = :token AND state = 2"));
        assert!(statements.claim.held.contains("lease_until, NULL, NULL, reason"));
    }

    #[test]
    fn headers_and_comments_are_not_part_of_a_statement() {
        let found =
            sections("-- header\n\n-- why\n-- :one\nSELECT 1\n\n-- why\n-- :two\nSELECT 2\n");
        assert_eq!(found["one"], "SELECT 1");
        assert_eq!(found["two"], "SELECT 2");
    }
}
