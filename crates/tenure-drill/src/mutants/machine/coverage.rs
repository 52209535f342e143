//! What each case reaches in PostgreSQL's functions: which functions it calls, by the server's own
//! counts, and which conditions held in them, by the probes. A case that does not reach a mutant
//! cannot notice it.

use std::collections::{BTreeMap, BTreeSet};

use tenure::Result;
use tenure::engine::store::postgres::{Postgres, ServerAddress};

use super::hunter::{Play, Stand, attempt};
use super::probes::{Flag, Meter, Probes};
use super::reach::Reach;
use super::{Mutant, tokens};
use crate::sessions::Lab;
use crate::workers::fleet::Calls;
use crate::{conformance, servers, sql_api};

/// What each case calls, and which conditions held in it.
pub(super) struct Coverage {
    suite: Vec<Seen>,
    sql_api: Vec<Seen>,
    /// Random sequences and scopes of the explorer, by name.
    plays: BTreeMap<String, Seen>,
    probes: Probes,
    reach: Reach,
    /// The language of each function. The server does not count functions in plain SQL where it
    /// inlines them.
    languages: BTreeMap<&'static str, &'static str>,
}

/// What was seen while one case ran.
#[derive(Default)]
struct Seen {
    /// Whether the case failed on the functions with probes. Then nothing is known about it.
    failed: bool,
    /// Whether the case itself installs the unchanged functions. That removes the probes, or a
    /// mutant.
    restores: bool,
    called: BTreeSet<String>,
    flags: BTreeSet<Flag>,
}

impl Seen {
    /// What one case reached. The server does not count calls that fail, so the functions whose
    /// probe has counted are added.
    fn of(
        failed: bool,
        mut called: BTreeSet<String>,
        flags: BTreeSet<Flag>,
        probes: &Probes,
    ) -> Seen {
        called.extend(probes.called(&flags));
        Seen { failed, restores: false, called, flags }
    }
}

/// Something that may notice a mutant.
#[derive(Clone, Copy)]
pub(super) enum Of<'a> {
    /// The case at this index of the suite.
    Suite(usize),
    /// The case at this index of the SQL API.
    SqlApi(usize),
    /// A random sequence, or a scope of the explorer.
    Play(&'a str),
}

impl Coverage {
    /// Runs every case of the suite and every play on the store at `address`, and every case of the
    /// SQL API, each alone.
    pub(super) fn measure(
        address: &ServerAddress,
        make: &dyn Fn() -> Stand,
        plays: &[Play],
    ) -> Result<Coverage> {
        let probes = Probes::of(&super::all());
        let database = servers::database();
        probes.install(address)?;
        let mut calls = Calls::count(&servers::address(&database, "tenure"));
        let mut meter = Meter::new(&database, servers::MUTANT);
        let mut run = |run: &dyn Fn(Stand)| {
            let failed = attempt(|| {
                let (store, clock) = make();
                run((store, clock));
                None
            });
            Seen::of(failed.is_some(), calls.since(), meter.since(), &probes)
        };
        let cases = conformance::cases().into_iter();
        // Drop the store at the end of each case: only when its session has ended has the server
        // counted all of the session's calls.
        let suite =
            cases.map(|case| run(&|(store, clock)| drop(case.run_on(store, clock)))).collect();
        let plays = plays.iter().map(|play| {
            let go = |stand| assert_eq!((play.run)(stand), None, "{}", play.name);
            (play.name.clone(), run(&go))
        });
        let plays = plays.collect();
        probes.remove(address)?;
        let lab = Lab::new();
        let (database, address) = (lab.database().to_owned(), lab.address());
        // Dropping the lab frees its database. The cases will use it: a lab takes the oldest free
        // database.
        drop(lab);
        probes.install(&address)?;
        let mut calls = Calls::count(&servers::address(&database, "tenure"));
        let mut meter = Meter::new(&database, "tenure");
        let functions = meter.functions();
        let mut sql_api = Vec::new();
        for case in sql_api::cases() {
            let failed = attempt(|| {
                (case.run)();
                None
            });
            // Read the calls first. That waits until the sessions of the case have ended; then the
            // probes have counted everything too.
            let called = calls.since();
            let seen = Seen::of(failed.is_some(), called, meter.since(), &probes);
            let restores = meter.functions() < functions;
            if restores {
                probes.put_in(&address)?;
            }
            sql_api.push(Seen { restores, ..seen });
        }
        probes.remove(&address)?;
        let texts = Postgres::texts().into_iter();
        let languages = texts.flat_map(|(_, text)| languages(text)).collect();
        Ok(Coverage { sql_api, suite, plays, probes, reach: Reach::new(), languages })
    }

    /// Whether a case of the SQL API installs the unchanged functions. Cases that run after it
    /// would not meet the mutant.
    pub(super) fn restores(&self, at: usize) -> bool {
        self.sql_api.get(at).is_some_and(|seen| seen.restores)
    }

    /// Whether this case may notice a mutant: it reached the mutant's function, and there the
    /// condition had the value that the mutant changes. True if that is not known.
    pub(super) fn may_notice(&self, of: Of<'_>, mutant: &Mutant) -> bool {
        let seen = match of {
            Of::Suite(at) => self.suite.get(at),
            Of::SqlApi(at) => self.sql_api.get(at),
            Of::Play(name) => self.plays.get(name),
        };
        let Some(seen) = seen.filter(|seen| !seen.failed && !seen.restores) else { return true };
        match self.probes.needed(mutant) {
            Some(flag) => seen.flags.contains(&flag),
            None => self.comes_to(&seen.called, mutant.verb),
        }
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
