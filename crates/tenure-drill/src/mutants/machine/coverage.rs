//! Which functions of PostgreSQL's each case calls, as the server counts them. A case that never calls a function can
//! say nothing about a mutant of it, and most functions are called by few cases.

use std::collections::{BTreeMap, BTreeSet};

use tenure::store::postgres::Postgres;

use super::reach::Reach;
use super::tokens;
use crate::sessions::Lab;
use crate::workers::fleet::Calls;
use crate::{conformance, servers, sql_api};

/// By case, in the order of the suites, the functions that were called.
pub(super) struct Coverage {
    suite: Vec<BTreeSet<String>>,
    sql_api: Vec<BTreeSet<String>>,
    reach: Reach,
    /// The language of each function. Those in plain SQL are not counted where the server writes them into their callers.
    languages: BTreeMap<&'static str, &'static str>,
}

impl Coverage {
    /// Runs every case of the suite on stores that `make` opens, and every case of the SQL API, each alone.
    pub(super) fn measure(make: &dyn Fn() -> super::hunter::Stand) -> Coverage {
        let mut calls = Calls::count(&servers::address(&servers::database(), "tenure"));
        let suite = conformance::cases().into_iter().map(|case| {
            let (store, clock) = make();
            // The session must end: only then the server has counted all of its calls.
            drop(case.run_on(store, clock));
            calls.since()
        });
        let suite = suite.collect();
        let lab = Lab::new();
        let mut calls = Calls::count(&servers::address(lab.database(), "tenure"));
        // The cases find this lab: the oldest that is free is lent first.
        drop(lab);
        let sql_api = sql_api::cases().into_iter().map(|case| {
            (case.run)();
            calls.since()
        });
        let texts = Postgres::texts().into_iter();
        let languages = texts.flat_map(|(_, text)| languages(text)).collect();
        Coverage { sql_api: sql_api.collect(), suite, reach: Reach::new(), languages }
    }

    /// Whether the case at this place of the suite comes to a function.
    pub(super) fn suite_calls(&self, at: usize, function: &str) -> bool {
        self.comes_to(&self.suite[at], function)
    }

    /// The same for a case of the SQL API.
    pub(super) fn sql_api_calls(&self, at: usize, function: &str) -> bool {
        self.comes_to(&self.sql_api[at], function)
    }

    fn comes_to(&self, called: &BTreeSet<String>, function: &str) -> bool {
        match self.languages.get(function) {
            Some(&"plpgsql") => called.contains(function),
            Some(_) => called.iter().any(|caller| self.reach.leads_to(caller, function)),
            // A view, which any statement may read.
            None => true,
        }
    }
}

/// The functions of a file, each with its language.
fn languages(text: &'static str) -> Vec<(&'static str, &'static str)> {
    let mut found = Vec::new();
    let mut name = None;
    for five in tokens::tokens(text, 0).windows(5) {
        if five[1].is("FUNCTION") && five[0].is("REPLACE") && five[3].is(".") {
            name = Some(five[4].text);
        }
        if five[0].is("LANGUAGE") {
            found.extend(name.take().map(|name| (name, five[1].text)));
        }
    }
    found
}
