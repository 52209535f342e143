//! Inside the functions: one call pauses between two of its statements while another goes on.
//!
//! At READ COMMITTED each statement of a function has its own snapshot, so a call sees what others
//! commit while it runs. The functions of a throw-away store get places to pause between their
//! statements. The first call pauses at one place. The second runs until it pauses at a place of
//! its own or ends. Then the first call ends, then the second. Every pair of places is run: these
//! are all orders with two changes of turn.

use super::bench::Bench;

/// The functions that read or write tables. Functions that only compute need no place to pause.
const TOUCHING: &str = "settle_and_claim walk pick lapse_over lapse_many lapse_one take_back put_back end_job note \
    settle_completions settle_others settle_one answer_late refuse is_kept current heard renew_many enqueue_many take_keys cancel_many \
    find forget requeue_many resume_many purge_many prune vanished refused take_crash_back promote progress_many hold_many \
    ledger_many ledger_one ledger_late ledger_heard resolve_effect raise_epoch floor_kept register \
    check_fence";

/// Waits at the chosen place, if one is set, until the control session releases its lock. Called by
/// `ASSERT`, which changes neither FOUND nor the row count.
const PAUSE: &str =
    "CREATE OR REPLACE FUNCTION public.drill_pause() RETURNS boolean LANGUAGE plpgsql AS $$
    DECLARE
        more int := nullif(current_setting('drill.more', true), '')::int;
    BEGIN
        IF more >= 0 THEN
            PERFORM set_config('drill.more', (more - 1)::text, false);
            IF more = 0 THEN
                PERFORM pg_advisory_lock(7464, current_setting('drill.seat')::int),
                        pg_advisory_unlock(7464, current_setting('drill.seat')::int);
            END IF;
        END IF;
        RETURN true;
    END $$";

/// Adds places to pause to the functions of a bench's store.
pub(super) fn instrument(bench: &mut Bench) {
    bench.run(PAUSE);
    let names: Vec<String> = TOUCHING.split_whitespace().map(|name| format!("'{name}'")).collect();
    let found = bench.ask(&format!(
        "SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang
          WHERE l.lanname = 'plpgsql' AND p.pronamespace = left('tenure.', -1)::regnamespace AND p.proname IN ({})",
        names.join(", ")
    ));
    assert_eq!(found.len(), names.len(), "each of these functions is there once");
    for function in found.iter().flatten() {
        bench.run(&with_places(function));
    }
}

/// The text of a function, with a place to pause after each statement that touches a table. After
/// other statements a pause would make no difference.
fn with_places(function: &str) -> String {
    const TABLES: [&str; 10] = [
        ".jobs",
        ".done",
        ".keys",
        ".timeline",
        ".queues",
        ".payloads",
        ".ledger",
        ".steps",
        ".workers",
        ".meta",
    ];
    let mut text = String::with_capacity(function.len() * 2);
    let (mut in_body, mut statement) = (false, String::new());
    for line in function.lines() {
        text += line;
        text.push('\n');
        let code = line.split("--").next().unwrap_or_default().trim();
        statement += code;
        statement.push(' ');
        let is_end = code.starts_with("END") || code.starts_with("RETURN;");
        if in_body
            && code.ends_with(';')
            && !is_end
            && TABLES.iter().any(|it| statement.contains(it))
        {
            text += "ASSERT public.drill_pause();\n";
        }
        in_body |= code == "BEGIN";
        if code.ends_with(';') || code == "BEGIN" {
            statement.clear();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::with_places;

    #[test]
    fn a_place_to_stop_is_after_each_statement_that_has_to_do_with_a_table() {
        let function = "DECLARE\n    was tenure.jobs;\nBEGIN\n    t := 1;\n    SELECT 1 FROM tenure.jobs\n      INTO t;\n    RETURN;\nEND";
        let placed = with_places(function);
        assert_eq!(placed.matches("drill_pause").count(), 1, "{placed}");
        assert!(placed.contains("INTO t;\nASSERT"), "{placed}");
    }
}
