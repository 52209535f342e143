//! Tests that a schedule that a search found can be replayed, and that merging states hides
//! nothing.

use std::collections::BTreeSet;

use tenure::drill::Patch;

use super::replay::replay_on;
use super::*;

/// A mutant: the sweeper lapses the jobs it has seen, without checking again that the lease is
/// over.
const NO_RECHECK: &[Patch] = &[Patch {
    file: "lapse",
    find: ":token AND state = 2 AND {over}",
    replace: ":token AND state = 2 AND ({over} OR true)",
}];

fn named(name: &str) -> Scope {
    Scope::named(name).expect("there is such a scope")
}

fn hunt(merging: Merging) -> Found {
    let stores = Lockstep::patched(Patched::Sqlite(NO_RECHECK)).expect("it opens");
    let found = search(&named("lease"), stores, merging, usize::MAX, &mut |_| {});
    *found.expect_err("it is noticed")
}

#[test]
fn a_schedule_that_was_found_repeats_exactly_by_its_codes() {
    let found = hunt(Merging::Alike);
    assert_eq!(found.broken.0, Invariant::I8);
    let codes: Vec<_> = found.steps.iter().map(|(code, _)| code.as_str()).collect();
    let stores = Lockstep::patched(Patched::Sqlite(NO_RECHECK)).expect("it opens");
    let again = replay_on(&named("lease"), stores, &codes, None).expect("every step is possible");
    let words = |steps: &[Step]| steps.iter().map(|step| step.words.clone()).collect::<Vec<_>>();
    let told: Vec<_> = found.steps.iter().map(|(_, words)| words.clone()).collect();
    assert_eq!(words(&again.steps), told);
    let seen = again.violation.expect("it is noticed again");
    assert_eq!((seen.invariant, seen.what), found.broken);
}

#[test]
fn a_store_that_leaves_the_model_is_told_by_the_invariant_it_breaks() {
    let stores = Lockstep::patched_beside_the_model(NO_RECHECK).expect("it opens");
    let found = search(&named("lease"), stores, Merging::Alike, usize::MAX, &mut |_| {});
    let (beside, alone) = (*found.expect_err("it is noticed"), hunt(Merging::Alike));
    assert_eq!((beside.broken, beside.steps), (alone.broken, alone.steps));
}

#[test]
fn a_store_that_breaks_no_invariant_but_leaves_the_model_is_told_in_words() {
    const SHORT_OF_A_JOB: &[Patch] = &[Patch {
        file: "claim",
        find: "   AND state = 0",
        replace: "   AND state = 0 AND crashes = 0",
    }];
    let stores = Lockstep::patched_beside_the_model(SHORT_OF_A_JOB).expect("it opens");
    let found = search(&named("lease"), stores, Merging::Alike, usize::MAX, &mut |_| {});
    let (invariant, what) = found.expect_err("it is noticed").broken;
    assert_eq!(invariant, Invariant::Lockstep);
    assert!(what.starts_with("the model answers \"") && what.contains("SQLite \""), "{what}");
}

#[test]
fn a_sound_store_goes_through_the_schedule_that_breaks_another() {
    let found = hunt(Merging::Alike);
    let codes: Vec<_> = found.steps.iter().map(|(code, _)| code.as_str()).collect();
    let again = replay(&named("lease"), Engines::Sqlite, &codes).expect("every step is possible");
    assert!(again.violation.is_none(), "{:?}", again.violation);
    assert_eq!(again.steps.len(), codes.len());
}

#[test]
fn what_is_not_possible_is_told_with_what_is() {
    let codes = ["A.claim", "A.settle.snooze"];
    let Err(Unplayable::Impossible { at, code, possible }) =
        replay(&named("lease"), Engines::Sqlite, &codes)
    else {
        panic!("it was possible")
    };
    assert_eq!((at, code.as_str()), (2, "A.settle.snooze"));
    let expected = ["A.renew", "A.settle.complete", "A.settle.retry", "A.dies", "B.claim", "clock"];
    assert!(expected.iter().all(|code| possible.iter().any(|it| it == code)), "{possible:?}");
}

#[test]
fn taking_workers_for_one_another_finds_the_same_and_only_shrinks_the_search() {
    let (merged, apart) = (hunt(Merging::Alike), hunt(Merging::Essence));
    assert_eq!((merged.broken.0, merged.steps.len()), (apart.broken.0, apart.steps.len()));
    assert!(merged.states < apart.states, "{} and {}", merged.states, apart.states);
    for name in ["progress", "guard", "crowd"] {
        let scope = Scope { ticks: 2, ..named(name) };
        let go = |merging| {
            let ways = Ways { merging, ..Ways::on(Engines::Sqlite) };
            explore(&scope, ways, &mut |_| {}).expect("it holds")
        };
        let (merged, apart) = (go(Merging::Alike), go(Merging::Essence));
        let orders: usize = (1..=usize::from(scope.workers)).product();
        assert!(merged.states < apart.states && apart.states <= merged.states * orders);
        assert_eq!(merged.schedules, apart.schedules, "{name}: the same schedules are covered");
    }
}

/// The details that `Merging::Essence` ignores make no difference: with every text and time of the
/// dump compared, the search finds the same.
#[test]
fn telling_all_dumps_apart_finds_the_same_in_more_states() {
    let (merged, apart) = (hunt(Merging::Alike), hunt(Merging::Nothing));
    assert_eq!((merged.broken.0, merged.steps.len()), (apart.broken.0, apart.steps.len()));
    let scope = named("progress");
    let go = |merging| {
        let ways = Ways { merging, ..Ways::on(Engines::Sqlite) };
        explore(&scope, ways, &mut |_| {}).expect("it holds")
    };
    let (merged, apart) = (go(Merging::Essence), go(Merging::Nothing));
    assert!(merged.states < apart.states, "{} and {}", merged.states, apart.states);
    assert_eq!(merged.vacuous, apart.vacuous);
}

#[test]
fn no_two_moves_that_are_possible_at_once_have_the_same_code() {
    for scope in SCOPES.iter().chain(&WIDE_SCOPES) {
        let stores = Lockstep::new(Engines::Sqlite).expect("it opens");
        let mut search = Search::new(scope, stores, Merging::Alike);
        let mut nodes = vec![search.first()];
        for at in 0..400 {
            let Some(node) = nodes.get(at).cloned() else { break };
            let moves = search.moves(&node);
            let codes: BTreeSet<_> = moves.iter().map(actors::Move::code).collect();
            assert_eq!(codes.len(), moves.len(), "{}: {codes:?}", scope.name);
            nodes.extend(
                moves.iter().filter_map(|step| search.step(&node, step).ok()).map(|it| it.0),
            );
        }
    }
}

#[test]
fn the_options_of_a_scope_name_the_bounds_that_are_not_its_own() {
    let mut scope = named("lease");
    assert_eq!(scope.options(), "--scope lease");
    assert!(scope.set("ticks", 6) && scope.set("give-backs", 1) && !scope.set("tick", 1));
    assert_eq!(scope.options(), "--scope lease --ticks 6 --give-backs 1");
}

#[test]
fn a_search_that_gives_up_does_not_pass_for_a_whole_one() {
    let ways = Ways { most: 100, ..Ways::on(Engines::Sqlite) };
    let report = explore(&named("lease"), ways, &mut |_| {}).expect("it holds so far");
    assert!(!report.whole && report.states < 200, "{report}");
}
