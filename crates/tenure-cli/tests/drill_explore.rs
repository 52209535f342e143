//! `tenure drill explore`, as a user at a shell sees it: small scopes, and replayed schedules.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use shell::Shell;

const EXPLORE: [&str; 2] = ["drill", "explore"];

fn explore<'a>(more: &[&'a str]) -> Vec<&'a str> {
    EXPLORE.iter().chain(more).copied().collect()
}

#[test]
fn a_scope_is_gone_through_whole_and_told_in_two_tables() {
    let shell = Shell::new();
    let ran = shell.run(&explore(&["--scope", "progress"]));
    assert_eq!(ran.code, 0, "{ran:?}");
    let lines: Vec<_> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("SCOPE") && lines[0].ends_with("TIME"), "{lines:?}");
    assert!(lines[1].starts_with("progress "), "{lines:?}");
    assert_eq!(lines[2], "");
    assert!(lines[3].starts_with("INVARIANT  EVALUATED  PREMISE TRUE  progress"), "{lines:?}");
    assert!(ran.stderr.starts_with("progress: "), "it shows life: {ran:?}");
    assert!(!shell.path("tenure.db").exists(), "a drill leaves the default store alone");
}

#[test]
fn several_scopes_are_one_json_document() {
    let seen = Shell::new().json(&explore(&["--scope", "progress", "--scope", "guard"]));
    assert_eq!(seen["holds"], true);
    assert_eq!(seen["engine"], "sqlite");
    let scopes = seen["scopes"].as_array().unwrap();
    let names: Vec<_> = scopes.iter().map(|scope| scope["scope"].as_str().unwrap()).collect();
    assert_eq!(names, ["progress", "guard"]);
    for scope in scopes {
        assert!(scope["states"].as_u64().unwrap() > 500, "{scope}");
        assert!(scope["tally"]["I8"]["premise_true"].as_u64().unwrap() > 0, "{scope}");
    }
}

#[test]
fn a_schedule_is_repeated_step_by_step_in_words() {
    let codes = "A.claim,clock,clock,sweeper.overdue,sweeper.lapse,B.claim,A.settle.complete";
    let ran = Shell::new().run(&explore(&["--scope", "lease", "--replay", codes]));
    assert_eq!(ran.code, 0, "{ran:?}");
    let expected = "      second 0: job 1 queued, token 0
   1. Ann claims a job: gets job 1 under token 1
      second 0: job 1 running, token 1, held by ann until second 2
   2. the clock moves on by half a lease
      second 1: job 1 running, token 1, held by ann until second 2
   3. the clock moves on by half a lease
      second 2: job 1 running, token 1, held by ann until second 2
   4. the sweeper looks for leases that are over: sees job 1 under token 1
      second 2: job 1 running, token 1, held by ann until second 2
   5. the sweeper lapses job 1 under token 1: taken back, it is queued
      second 2: job 1 queued, token 2, 1 of 2 crashes
   6. Bob claims a job: gets job 1 under token 3
      second 2: job 1 running, token 3, held by bob until second 4, 1 of 2 crashes
   7. Ann settles: complete job 1 under token 1: refused, the job is running and its token 3
      second 2: job 1 running, token 3, held by bob until second 4, 1 of 2 crashes
Everything holds.
";
    assert_eq!(ran.stdout, expected);
    assert!(ran.stderr.contains("possible next: A.claim, B.renew"), "{ran:?}");
}

#[test]
fn a_lost_reply_and_a_bound_that_is_not_the_scopes_own_can_be_repeated() {
    let codes = "A.claim!reply,A.held,A.settle.complete!lost,A.settle.complete";
    let ran =
        Shell::new().run(&explore(&["--scope", "settle", "--losses", "2", "--replay", codes]));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("1. Ann claims a job; it is applied, but the reply is lost"));
    assert!(
        ran.stdout.contains("4. Ann settles: complete job 1 under token 1: heard, it is succeeded")
    );
}

#[test]
fn the_same_schedule_is_the_same_on_a_server() {
    let codes = "A.claim.2,clock,A.settle-and-claim.complete+complete";
    let words = |shell: &Shell| {
        let seen = shell.json(&explore(&["--scope", "batch", "--replay", codes]));
        assert!(seen["violation"].is_null(), "{seen}");
        seen["steps"].clone()
    };
    assert_eq!(words(&Shell::new()), words(&Shell::before_migrating()));
}

#[test]
fn a_step_that_is_not_possible_is_told_with_those_that_are() {
    let ran = Shell::new().run(&explore(&["--scope", "lease", "--replay", "clock,A.renew"]));
    ran.refused(2, "step 2, A.renew, is not possible there; possible are A.claim, B.claim, clock");
}

#[test]
fn what_was_not_gone_through_whole_is_not_called_proof() {
    let ran = Shell::new().run(&explore(&["--scope", "lease", "--max-states", "100"]));
    ran.refused(1, "no proof; narrow its bounds or raise --max-states");
}

#[test]
fn bounds_that_leave_an_invariant_untested_are_no_proof_either() {
    let ran = Shell::new().run(&explore(&["--scope", "lease", "--ticks", "0"]));
    ran.refused(1, "with these bounds lease never puts I8 to the test; widen them");
}

#[test]
fn a_scope_that_is_none_is_told_with_those_that_are() {
    Shell::new().run(&explore(&["--scope", "leese"])).refused(2, "there are lease, settle, ");
    let two = explore(&["--scope", "lease", "--scope", "settle", "--replay", "clock"]);
    Shell::new().run(&two).refused(2, "name the one scope");
}
