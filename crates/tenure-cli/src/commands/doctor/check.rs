//! `tenure doctor --check`, the reconciler: goes through all jobs and checks what is stored against
//! the rules. It changes nothing, and should never find anything.

use std::collections::BTreeSet;

use anyhow::Result;
use indicatif::ProgressBar;
use tenure::engine::inspect::{Rule, Wrong};
use tenure::engine::job::BATCH_LIMIT;
use tenure::json;

use super::count;
use crate::output::{self, Output};
use crate::{Answer, Session};

pub(super) fn run(session: &mut Session) -> Result<Answer> {
    let mut store = session.open()?;
    let bar = output::progress(None, "checking");
    let mut from = None;
    let mut checked = 0;
    let mut wrong = 0;
    // Kept only if the answer is one document.
    let mut kept = Vec::new();
    let mut rules = BTreeSet::new();
    loop {
        let window = store.check(from, BATCH_LIMIT)?;
        checked += window.looked;
        bar.set_position(checked as u64);
        wrong += window.wrong.len();
        rules.extend(window.wrong.iter().map(|wrong| wrong.rule));
        if session.out.is_json() {
            kept.extend(window.wrong);
        } else {
            // Printed as it is found, so that a broken store of any size can be reported.
            tell(&window.wrong, &bar, &mut session.out)?;
        }
        from = window.next;
        if from.is_none() {
            break;
        }
    }
    bar.finish_and_clear();
    let jobs = count(checked, "job", "jobs");
    if session.out.is_json() {
        session.out.document(&json::checked(checked, &kept))?;
    } else if wrong == 0 {
        session.out.line(&format!("checked {jobs}, nothing is wrong"))?;
    }
    match wrong {
        0 => Ok(Answer::Yes),
        n => Ok(Answer::No(format!(
            "checked {jobs}, {} wrong; {}",
            count(n, "thing is", "things are"),
            next(&rules)
        ))),
    }
}

/// What the operator should do. A rule is usually broken because something else wrote to the
/// tables. Two rules can be broken without that: I11 if no worker runs, and Ledger if a handler
/// completed its job without recording the outcome of an effect.
fn next(rules: &BTreeSet<Rule>) -> String {
    let mut steps = Vec::new();
    if rules.iter().any(|rule| *rule != Rule::I11) {
        steps.push(
            "keep a copy of the store before anything else, see a job with: tenure jobs show ID, and find out who \
             wrote to the tables",
        );
    }
    if rules.contains(&Rule::I11) {
        steps.push("if no worker runs, start one: its next claim takes the jobs of i11 back");
    }
    if rules.contains(&Rule::Ledger) {
        steps
            .push("if a handler forgot an effect, decide about it: tenure effects list --in-doubt");
    }
    steps.join("; ")
}

fn tell(wrong: &[Wrong], bar: &ProgressBar, out: &mut Output) -> Result<()> {
    if wrong.is_empty() {
        return Ok(());
    }
    // The progress bar is suspended, so that lines on the same terminal do not overwrite it.
    bar.suspend(|| {
        for Wrong { job, rule, what } in wrong {
            out.line(&format!("job {job} breaks {}: {what}", rule.name()))?;
        }
        out.flush()
    })
}
