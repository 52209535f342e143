//! The list of accepted survivors, each with its reason, and the result of a run compared with the
//! list.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, ensure};

/// Why a survivor is accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// No caller can tell the difference.
    Equivalent,
    /// Only time, space or the order of work differ, which is not promised.
    OnlyCost,
    /// It should be noticed, and is not yet.
    NotYetTested,
}

const REASONS: [(Reason, &str); 3] = [
    (Reason::Equivalent, "equivalent"),
    (Reason::OnlyCost, "only cost"),
    (Reason::NotYetTested, "not yet tested"),
];

/// The list: each name is followed by its reason in words.
const SURVIVORS: &str = include_str!("../survivors.txt");

/// The accepted survivors, by name.
pub(crate) fn listed() -> Result<BTreeMap<&'static str, Reason>> {
    parse(SURVIVORS)
}

fn parse(text: &str) -> Result<BTreeMap<&str, Reason>> {
    let mut listed = BTreeMap::new();
    let mut name = None;
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let Some(words) = line.strip_prefix("    ") else {
            ensure!(name.replace(line).is_none(), "a survivor without a reason before {line:?}");
            continue;
        };
        let reason = REASONS.iter().find(|(_, word)| words.starts_with(word));
        let (reason, _) = reason.with_context(|| format!("no reason that is known: {words:?}"))?;
        let name = name.take().with_context(|| format!("a reason for no mutant: {words:?}"))?;
        ensure!(listed.insert(name, *reason).is_none(), "{name:?} is listed twice");
    }
    ensure!(name.is_none(), "a survivor without a reason at the end");
    Ok(listed)
}

/// The result of a hunt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// Which test noticed, and its message.
    Killed { by: String, said: String },
    /// No test noticed.
    Survived,
    /// No test reaches the changed code.
    NotReached,
}

/// The totals of a run.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    all: usize,
    killed: usize,
    not_reached: usize,
    equivalent: usize,
    only_cost: usize,
    not_yet_tested: usize,
    /// Survivors that are not listed.
    pub(crate) unlisted: Vec<String>,
    /// Listed mutants that no longer survive.
    pub(crate) dead: Vec<String>,
}

impl Figures {
    /// Counts one result, and compares it with the list.
    pub(crate) fn count(&mut self, name: &str, end: &End, listed: &BTreeMap<&str, Reason>) {
        self.all += 1;
        let reason = listed.get(name);
        if let End::Killed { .. } = end {
            self.killed += 1;
            if reason.is_some() {
                self.dead.push(name.to_owned());
            }
            return;
        }
        self.not_reached += usize::from(*end == End::NotReached);
        match reason {
            Some(Reason::Equivalent) => self.equivalent += 1,
            Some(Reason::OnlyCost) => self.only_cost += 1,
            Some(Reason::NotYetTested) => self.not_yet_tested += 1,
            None => self.unlisted.push(name.to_owned()),
        }
    }

    /// The share of the noticeable mutants that were killed, in thousandths.
    fn permille(&self) -> usize {
        let could = self.all - self.equivalent - self.only_cost;
        (self.killed * 1_000).checked_div(could).unwrap_or(1_000)
    }

    /// Whether the run agrees with the list.
    pub(crate) fn agree(&self) -> bool {
        self.unlisted.is_empty() && self.dead.is_empty()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figures {
            all,
            killed,
            not_reached,
            equivalent,
            only_cost,
            not_yet_tested,
            unlisted,
            ..
        } = self;
        let (whole, tenth) = (self.permille() / 10, self.permille() % 10);
        write!(
            f,
            "{all} mutants: {killed} killed, {equivalent} equivalent, {only_cost} only cost, {not_yet_tested} not yet \
             tested, {} not listed ({not_reached} of all survivors not reached by any test); {whole}.{tenth} % of \
             those that could be noticed",
            unlisted.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_agrees_with_a_list_that_has_its_survivors_and_no_others() {
        let listed =
            parse("# words\na: x\n    equivalent: why\nb: y\n    not yet tested: why\n").unwrap();
        let mut figures = Figures::default();
        let killed = End::Killed { by: "t".into(), said: "no".into() };
        figures.count("a: x", &End::Survived, &listed);
        figures.count("b: y", &End::NotReached, &listed);
        figures.count("c: z", &killed, &listed);
        assert!(figures.agree());
        assert_eq!(figures.permille(), 500);
        figures.count("d: u", &End::Survived, &listed);
        assert_eq!(figures.unlisted, ["d: u"]);
        let mut figures = Figures::default();
        figures.count("a: x", &killed, &listed);
        assert_eq!(figures.dead, ["a: x"]);
    }

    #[test]
    fn a_list_without_reasons_is_refused() {
        for text in ["a\nb\n    equivalent: why", "a", "    equivalent: why", "a\n    perhaps: why"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("a\n    equivalent: b\na\n    equivalent: c").is_err());
    }
}
