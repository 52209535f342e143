//! Which of PostgreSQL's functions call which, read from their texts.

use std::collections::{BTreeMap, BTreeSet};

use tenure::engine::store::postgres::Postgres;

use super::tokens::{self, Token};

/// By function, the functions that it calls.
pub(super) struct Reach {
    calls: BTreeMap<&'static str, BTreeSet<&'static str>>,
}

impl Reach {
    pub(super) fn new() -> Reach {
        let mut calls: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (_, text) in Postgres::texts() {
            for unit in tokens::functions(text) {
                let called = unit.tokens.windows(4).filter_map(called);
                calls.entry(unit.verb).or_default().extend(called);
            }
        }
        // No text shows this call: `fence` writes to the table of fences, whose trigger is
        // `check_fence`.
        calls.entry("fence").or_default().insert("check_fence");
        Reach { calls }
    }

    /// Whether a statement reaches a function, directly or through others.
    pub(super) fn comes_to(&self, sql: &str, function: &str) -> bool {
        let names = self.calls.keys().copied();
        self.lead_to(names.filter(|name| sql.contains(&format!("tenure.{name}("))), function)
    }

    /// Whether a function reaches another, directly or through others.
    pub(super) fn leads_to(&self, caller: &str, function: &str) -> bool {
        self.lead_to(self.calls.get(caller).into_iter().flatten().copied(), function)
            || caller == function
    }

    fn lead_to<'a>(&'a self, first: impl Iterator<Item = &'a str>, function: &str) -> bool {
        let mut known = BTreeSet::new();
        let mut next: Vec<&str> = first.collect();
        while let Some(name) = next.pop() {
            if known.insert(name) {
                next.extend(self.calls.get(name).into_iter().flatten());
            }
        }
        known.contains(function)
    }
}

/// The name in `tenure.name(`.
fn called(four: &[Token]) -> Option<&'static str> {
    let is_call = four[0].is("tenure") && four[1].is(".") && four[3].is("(");
    is_call.then_some(four[2].text)
}
