//! What the doctor reports about the content of a store, as a user at a shell sees it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use std::fs;
use std::time::Duration;

use serde_json::json;
use shell::{Shell, claim, claim_for, ledger, on_both_engines, settle_next};
use tenure::engine::job::{JobId, Name};
use tenure::engine::lease::{WorkerId, epoch_of};
use tenure::engine::ledger::Act;
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::{Registration, Settlement};

on_both_engines!(
    doctor_says_that_all_is_well_or_what_to_do,
    doctor_sees_a_lease_that_is_over,
    due_jobs_need_a_living_worker_for_their_queue_and_kind,
    a_kind_that_somebody_runs_has_a_worker,
    a_worker_that_is_gone_is_named,
    effects_in_doubt_wait_for_a_person_unless_their_jobs_go_on,
    a_raised_epoch_says_what_follows_and_is_remembered,
    the_guard_gap_is_an_option_of_the_installation,
    a_sound_store_of_any_size_is_found_sound,
);

/// One finding of the doctor: whether it is well, and its text.
fn line(shell: &Shell, check: &str) -> (bool, String) {
    let ran = shell.run(&["doctor", "--json"]);
    let findings: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    let all_well = findings.as_array().unwrap().iter().all(|finding| finding["ok"] == json!(true));
    assert_eq!(ran.code, i32::from(!all_well), "{ran:?}");
    let named = |finding: &&serde_json::Value| finding["check"] == json!(check);
    let finding = findings.as_array().unwrap().iter().find(named).unwrap();
    let next = finding["next"].as_str().map(|next| format!("; {next}")).unwrap_or_default();
    (finding["ok"] == json!(true), format!("{}{next}", finding["found"].as_str().unwrap()))
}

#[track_caller]
fn is_well(shell: &Shell, check: &str, says: &str) {
    let (ok, said) = line(shell, check);
    assert!(ok && said.contains(says), "{check} is not well with {says:?}: {said}");
}

#[track_caller]
fn is_ill(shell: &Shell, check: &str, says: &[&str]) {
    let (ok, said) = line(shell, check);
    assert!(!ok && says.iter().all(|part| said.contains(part)), "{check} is not {says:?}: {said}");
}

fn the_guard_gap_is_an_option_of_the_installation(shell: &Shell) {
    is_well(shell, "guard gap", "a worker whose lock is free for 300ms counts as gone");
    let said = shell.ok(&["doctor", "--guard-gap", "5s"]);
    assert_eq!(said, "the guard gap was 300ms and is now 5s\n");
    is_well(shell, "guard gap", "free for 5s");
    let said = shell.json(&["doctor", "--guard-gap", "1500ms"]);
    assert_eq!(said, json!({"was_ms": 5_000, "guard_gap_ms": 1_500}));
    for nonsense in ["299ms", "61s", "0s"] {
        let ran = shell.run(&["doctor", "--guard-gap", nonsense]);
        ran.refused(2, "is outside 300 ms to 60 s");
    }
    shell.run(&["doctor", "--guard-gap", "soon"]).refused(2, "--guard-gap");
    shell.run(&["doctor", "--guard-gap", "1s", "--check"]).refused(2, "cannot be used with");
    is_well(shell, "guard gap", "free for 1.5s");
}

fn worker(name: &str, kinds: Option<&str>) -> Registration {
    let kind = |kind: &str| vec![Name::check("kind", kind).unwrap()];
    Registration {
        kinds: kinds.map(kind),
        ..Registration::new(WorkerId::check(name).unwrap(), vec![Name::default_queue()])
    }
}

fn doctor_says_that_all_is_well_or_what_to_do(shell: &Shell) {
    let well = shell.run(&["doctor"]);
    assert_eq!(well.code, 0, "{well:?}");
    assert!(well.stdout.lines().skip(1).all(|line| line.contains("  ok  ")), "{well:?}");

    shell.ok(&["enqueue", "k"]);
    settle_next(&mut *shell.store(), Outcome::Bury { reason: "no".into() });
    shell.ok(&["queues", "pause", "mail"]);
    let ill = shell.run(&["doctor"]);
    assert_eq!(ill.code, 1, "{ill:?}");
    for next in ["tenure dead list", "tenure queues resume mail"] {
        assert!(ill.stdout.contains(next), "{next}: {ill:?}");
    }
}

fn doctor_sees_a_lease_that_is_over(shell: &Shell) {
    shell.ok(&["enqueue", "k"]);
    let mut store = shell.store();
    assert_eq!(claim_for(&mut *store, 1, Duration::from_millis(1)).len(), 1);
    while store.overdue(1, Duration::ZERO).unwrap().is_empty() {}
    is_ill(shell, "leases", &["1 lease is overdue", "tenure jobs show 1"]);
}

// ── workers ──────────────────────────────────────────────────────────────────────────────────────

fn due_jobs_need_a_living_worker_for_their_queue_and_kind(shell: &Shell) {
    is_well(shell, "kinds", "nothing is due");
    is_well(shell, "workers", "none has made itself known");
    shell.ok(&["enqueue", "mail", "--tenant", "a"]);
    shell.ok(&["enqueue", "mail", "--tenant", "b"]);
    shell.ok(&["enqueue", "report"]);
    shell.ok(&["enqueue", "later", "--delay", "1h"]);
    let next = "tenure jobs list --queue default --kind";
    is_ill(shell, "kinds", &["2 jobs of kind mail in queue default", "(and 1 more kind)", next]);
    let (mut ann, mut bob) = (shell.store(), shell.store());
    ann.register(&worker("ann", Some("mail"))).unwrap();
    is_well(shell, "workers", "1 alive");
    is_ill(shell, "kinds", &["1 job of kind report in queue default is due", next]);
    bob.register(&worker("bob", None)).unwrap();
    is_well(shell, "workers", "2 alive");
    is_well(shell, "kinds", "all that are due have workers");

    shell.ok(&["enqueue", "mail", "--queue", "slow"]);
    is_ill(shell, "kinds", &["1 job of kind mail in queue slow is due"]);
    shell.ok(&["queues", "pause", "slow"]);
    is_well(shell, "kinds", "all that are due have workers");
}

fn a_kind_that_somebody_runs_has_a_worker(shell: &Shell) {
    shell.ok(&["enqueue", "k", "--count", "2"]);
    is_ill(shell, "kinds", &["2 jobs of kind k"]);
    let mut store = shell.store();
    assert_eq!(claim(&mut *store, 1).len(), 1);
    is_well(shell, "kinds", "all that are due have workers");
}

fn a_worker_that_is_gone_is_named(shell: &Shell) {
    let mut store = shell.store();
    store.register(&worker("ann", None)).unwrap();
    drop(store);
    let mut store = shell.store();
    while store.workers().unwrap()[0].is_alive != Some(false) {}
    is_ill(shell, "workers", &["0 alive, 1 gone and not swept yet, such as ann", "start one"]);
    store.retire(&worker("ann", None).worker).unwrap();
    is_well(shell, "workers", "none has made itself known");
}

// ── what happened ────────────────────────────────────────────────────────────────────────────────

fn effects_in_doubt_wait_for_a_person_unless_their_jobs_go_on(shell: &Shell) {
    is_well(shell, "effects", "none is in doubt");
    let mut store = shell.store();
    let mut leave = |outcome: Outcome| {
        shell.ok(&["enqueue", "pay"]);
        let fence = claim(&mut *store, 1)[0].lease.fence();
        ledger(&mut *store, fence, "charge", Act::Open);
        store.settle(&[Settlement::new(fence, outcome)]).unwrap();
    };
    leave(Outcome::Retry { after: Duration::from_secs(3_600), error: "timeout".into() });
    is_well(shell, "effects", "1 in doubt, and their jobs go on and decide");
    leave(Outcome::Park { reason: "in doubt".into() });
    let says = ["1 effect is in doubt, such as charge of job 2", "tenure effects list --in-doubt"];
    is_ill(shell, "effects", &says);
}

// ── epochs ───────────────────────────────────────────────────────────────────────────────────────

fn a_raised_epoch_says_what_follows_and_is_remembered(shell: &Shell) {
    is_well(shell, "epoch", "0: it has never gone back in time");
    let raised = shell.run(&["doctor", "--raise-epoch", "--reason", "snapshot of Monday"]);
    assert_eq!(raised.code, 0, "{raised:?}");
    let epoch = shell.store().identity().unwrap().epoch;
    assert_eq!(raised.stdout, format!("the epoch was 0 and is now {epoch}\n"));
    assert!(raised.stderr.contains("every token and every job id is above"), "{raised:?}");
    is_well(shell, "epoch", "it may have gone back in time once");
    is_well(shell, "epoch", "snapshot of Monday");
    let id = JobId::parse(shell.ok(&["enqueue", "k"]).trim()).unwrap();
    assert_eq!(epoch_of(id.0), epoch);

    let again = shell.json(&["doctor", "--raise-epoch"]);
    assert_eq!(again["was"], json!(epoch));
    assert!(again["epoch"].as_u64().unwrap() > u64::from(epoch), "{again}");
    is_well(shell, "epoch", "2 times, the last time now: an operator said so");
}

#[test]
fn a_file_that_was_restored_is_noticed_and_the_doctor_says_why() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "k"]);
    fs::copy(shell.path("tenure.db"), shell.path("backup.db")).unwrap();
    shell.ok(&["enqueue", "k"]);
    fs::copy(shell.path("backup.db"), shell.path("tenure.db")).unwrap();
    is_well(&shell, "epoch", "the file is older than the witness beside it");
    is_well(&shell, "witness", "tenure.db-witness is there");
}

#[test]
fn the_files_beside_a_store_are_named() {
    let shell = Shell::new();
    shell.ok(&["enqueue", "k"]);
    is_well(&shell, "witness", "no worker has left a guard file");
    let mut store = shell.store();
    store.register(&worker("ann", None)).unwrap();
    is_well(&shell, "witness", "and the guard file tenure.db-guard-");
    store.register(&worker("bob", None)).unwrap();
    is_well(&shell, "witness", "and 2 guard files, such as tenure.db-guard-");
    is_well(&shell, "notifications", "processes look for each other's changes");
    is_well(&shell, "clock", "this machine's own");
}

// ── the reconciler ───────────────────────────────────────────────────────────────────────────────

fn a_sound_store_of_any_size_is_found_sound(shell: &Shell) {
    assert_eq!(shell.ok(&["doctor", "--check"]), "checked 0 jobs, nothing is wrong\n");
    shell.ok(&["enqueue", "k"]);
    assert_eq!(shell.ok(&["doctor", "--check"]), "checked 1 job, nothing is wrong\n");
    shell.settled(Outcome::Complete { result: None });
    shell.ok(&["enqueue", "k", "--count", "2500"]);
    assert_eq!(shell.ok(&["doctor", "--check"]), "checked 2502 jobs, nothing is wrong\n");
    assert_eq!(shell.json(&["doctor", "--check"]), json!({"checked": 2502, "wrong": []}));
}
