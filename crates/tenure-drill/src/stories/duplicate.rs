//! The same job is submitted twice under one key: by a client that did not receive the answer, and
//! by many clients at once. It is stored once. The same key with other args is a conflict, and
//! nothing is stored.

use std::collections::BTreeMap;

use tenure::{Filter, Result};

use super::stage::Stage;
use super::{Audience, Claim, Go, Scene, Story, Told, nothing_wrong, play};
use crate::workers::process::{SUBMITTED, SUBMITTER_READY};

/// The story's name.
pub const NAME: &str = "duplicate";
/// How many clients submit at the same moment.
const CROWD: usize = 8;
const ARGS: &str = r#"{"cents":700}"#;
const OTHER_ARGS: &str = r#"{"cents":900}"#;

/// Runs the story.
pub fn once(scene: &Scene, audience: &mut dyn Audience) -> Result<Story> {
    play(NAME, scene, audience, |stage| {
        stage.note(
            "one after the other, under the key order-7: twice the same, then with other args",
        );
        let mut in_turn = Vec::new();
        for (who, args) in [("A", ARGS), ("B", ARGS), ("C", OTHER_ARGS)] {
            in_turn.extend(submit(stage, "order-7", &[(who.to_owned(), args)])?);
        }
        let names = |letter: char| move |n| format!("{letter}{n}");
        stage.note("eight processes in the same moment, under the key order-8");
        let same: Vec<_> = (1..=CROWD).map(names('D')).map(|who| (who, ARGS)).collect();
        let same = submit(stage, "order-8", &same)?;
        stage.note("eight more under the key order-9, half of them with other args");
        let args = |n: usize| if n.is_multiple_of(2) { ARGS } else { OTHER_ARGS };
        let mixed: Vec<_> = (1..=CROWD).map(|n| (names('E')(n), args(n))).collect();
        let mixed = submit(stage, "order-9", &mixed)?;
        let stored = stage.store.jobs(&Filter::default(), 100)?.len();
        let mut claims = verdict(&Seen { in_turn, same, mixed, stored });
        claims.push(nothing_wrong(stage)?);
        Ok(claims)
    })
}

/// Submits each from a process of its own. All processes wait until the last is ready. Returns
/// their answers.
fn submit(stage: &mut Stage<'_>, key: &str, all: &[(String, &str)]) -> Go<Vec<Told>> {
    let gate = stage.file(&format!("gate-{}", all[0].0));
    for (who, args) in all {
        let words = ["submit", "pay", args, key, &gate.display().to_string()].map(str::to_owned);
        stage.launch(who, &words);
    }
    for (who, _) in all {
        stage.hear(who, SUBMITTER_READY)?;
    }
    stage.open(&gate)?;
    all.iter().map(|(who, _)| stage.hear(who, SUBMITTED)).collect()
}

/// What the verdict is based on: the answer to each submission.
pub(super) struct Seen {
    pub(super) in_turn: Vec<Told>,
    pub(super) same: Vec<Told>,
    pub(super) mixed: Vec<Told>,
    /// How many jobs the store has.
    pub(super) stored: usize,
}

pub(super) fn verdict(seen: &Seen) -> Vec<Claim> {
    let in_turn: Vec<&str> = seen.in_turn.iter().map(|told| told.text("verdict")).collect();
    let same = counts(&seen.same);
    let mixed = counts(&seen.mixed);
    let half = CROWD / 2;
    let of_one = |answers: &[Told]| {
        let first = answers.first().and_then(Told::job);
        first.is_some() && answers.iter().all(|told| told.job() == first)
    };
    vec![
        Claim::new(
            "the same key is the same job, and with other args a conflict",
            in_turn == ["created", "existing", "conflict"] && of_one(&seen.in_turn),
            in_turn.join(", "),
        ),
        Claim::new(
            format!("of {CROWD} at once exactly one is created, and all are told of that job"),
            same == BTreeMap::from([("created", 1), ("existing", CROWD - 1)]) && of_one(&seen.same),
            show(&same),
        ),
        Claim::new(
            "of two requests under one key one is stored, and the other is a conflict for each who made it",
            mixed == BTreeMap::from([("conflict", half), ("created", 1), ("existing", half - 1)])
                && of_one(&seen.mixed),
            show(&mixed),
        ),
        Claim::new(
            "three keys are three jobs",
            seen.stored == 3,
            format!("{} in the store", seen.stored),
        ),
    ]
}

fn counts(answers: &[Told]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for told in answers {
        *counts.entry(told.text("verdict")).or_default() += 1;
    }
    counts
}

fn show(counts: &BTreeMap<&str, usize>) -> String {
    counts.iter().map(|(verdict, n)| format!("{n} {verdict}")).collect::<Vec<_>>().join(", ")
}
