//! The stores under test. All get the same calls, and must agree in every answer and every state.

use tenure::drill::{Dump, Explorable, Patch};
use tenure::engine::clock::Clock;
use tenure::engine::job::{Json, Limits, NewJob};
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
use tenure::engine::store::{Error, Result, Work, postgres};

use super::call::{Answer, Call, identity, kind, perform, registration};
use super::scope::Scope;
use super::words;
use crate::differential::compare;
use crate::engines::START;
use crate::model::Model;
use crate::servers;

/// Which stores are explored. The model always comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engines {
    /// The model and SQLite.
    Sqlite,
    /// The model and PostgreSQL.
    Postgres,
    /// All three.
    Both,
}

impl Engines {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Engines::Sqlite => "sqlite",
            Engines::Postgres => "postgres",
            Engines::Both => "both",
        }
    }
}

/// A store with patched SQL, which lacks a safeguard.
#[derive(Debug, Clone, Copy)]
pub enum Patched {
    /// In memory.
    Sqlite(&'static [Patch]),
    /// In a schema of its own.
    Postgres(&'static [Patch]),
}

/// One store with its clock, and the name by which differences refer to it.
struct Stand {
    name: &'static str,
    store: Box<dyn Explorable>,
    clock: Clock,
}

/// The stores, side by side.
pub(super) struct Lockstep {
    stands: Vec<Stand>,
}

impl Lockstep {
    pub(super) fn new(engines: Engines) -> Result<Lockstep> {
        let clock = Clock::manual(START);
        let model = Model::new(clock.clone(), Limits::default());
        let mut stands = vec![Stand { name: "the model", store: Box::new(model), clock }];
        if engines != Engines::Postgres {
            stands.push(Stand::sqlite(&[])?);
        }
        if engines != Engines::Sqlite {
            let clock = Clock::manual(START);
            let mut server =
                servers::fresh("tenure", &clock, &postgres::PostgresOptions::default())?;
            server.rehearse();
            stands.push(Stand { name: "PostgreSQL", store: Box::new(server), clock });
        }
        Ok(Lockstep { stands })
    }

    /// The caller's store beside the model.
    pub(super) fn beside_the_model(
        name: &'static str,
        store: Box<dyn Explorable>,
        clock: Clock,
    ) -> Lockstep {
        let own = Clock::manual(START);
        let model = Box::new(Model::new(own.clone(), Limits::default()));
        let model = Stand { name: "the model", store: model, clock: own };
        Lockstep { stands: vec![model, Stand { name, store, clock }] }
    }

    /// A patched store beside the model.
    #[cfg(test)]
    pub(super) fn patched_beside_the_model(patches: &[Patch]) -> Result<Lockstep> {
        let mut both = Lockstep::new(Engines::Sqlite)?;
        both.stands[1] = Stand::sqlite(patches)?;
        Ok(both)
    }

    /// A patched store without the model: the invariants alone must notice the patch.
    pub(super) fn patched(target: Patched) -> Result<Lockstep> {
        let stand = match target {
            Patched::Sqlite(patches) => Stand::sqlite(patches)?,
            Patched::Postgres(patches) => {
                let clock = Clock::manual(START);
                let mut store = servers::patched(patches, &clock)?;
                store.rehearse();
                Stand { name: "PostgreSQL", store: Box::new(store), clock }
            }
        };
        Ok(Lockstep { stands: vec![stand] })
    }

    /// Runs one call from one state on all stores. Returns the answer and the state that all agree
    /// on. `backup` is the state that the database can go back to.
    pub(super) fn call(
        &mut self,
        from: &Dump,
        call: &Call,
        backup: Option<&Dump>,
    ) -> std::result::Result<(Answer, Dump), Box<Apart>> {
        let mut agreed: Option<(&str, Answer, Dump)> = None;
        for Stand { name, store, clock } in &mut self.stands {
            let failed = |error: Error| {
                Box::new(Apart { what: format!("{name} fails: {error}"), heard: None })
            };
            store.load(from).map_err(failed)?;
            let answer = match backup {
                Some(backup) => store.go_back(backup).map(|()| Answer::Nothing),
                None => perform(store.as_mut(), clock, call),
            };
            let answer = answer.map_err(failed)?;
            let state = store.dump().map_err(failed)?;
            let what = match &agreed {
                None => {
                    agreed = Some((name, answer, state));
                    continue;
                }
                Some((first, expected, _)) if *expected != answer => {
                    difference((first, expected), (name, &answer))
                }
                Some((first, _, expected)) if *expected != state => {
                    let differences = compare(expected, &state);
                    format!("the states of {first} and {name} differ:\n{differences}")
                }
                Some(_) => continue,
            };
            return Err(Box::new(Apart { what, heard: Some((answer, state)) }));
        }
        let nothing = || Apart { what: "there is no store".into(), heard: None };
        let (_, answer, state) = agreed.ok_or_else(nothing)?;
        Ok((answer, state))
    }
}

/// Stores that disagree, or one that fails.
pub(super) struct Apart {
    pub(super) what: String,
    /// The answer and the state of the store that differs.
    pub(super) heard: Option<(Answer, Dump)>,
}

/// The two answers in words, or with every detail if the words are the same.
fn difference((first, expected): (&str, &Answer), (name, answer): (&str, &Answer)) -> String {
    let said = |answer| words::said(answer).unwrap_or_else(|| "nothing".into());
    let (theirs, ours) = (said(expected), said(answer));
    if theirs == ours {
        format!("{first} answers {expected:?}, and {name} {answer:?}")
    } else {
        format!("{first} answers \"{theirs}\", and {name} \"{ours}\"")
    }
}

impl Stand {
    fn sqlite(patches: &[Patch]) -> Result<Stand> {
        let clock = Clock::manual(START);
        let options = StoreOptions { clock: clock.clone(), ..StoreOptions::default() };
        let store = Sqlite::in_memory_patched(&options, patches)?;
        Ok(Stand { name: "SQLite", store: Box::new(store), clock })
    }
}

/// The state in which a search begins: jobs in the queue, guarded workers, and nothing else.
pub(super) fn beginning(scope: &Scope) -> Dump {
    let args = Json::check("args", "{}", 10).expect("valid JSON");
    let job =
        NewJob::new(kind(), args).max_attempts(scope.max_attempts).max_crashes(scope.max_crashes);
    let mut model = Model::new(Clock::manual(START), Limits::default());
    model.enqueue(&vec![job; usize::from(scope.jobs)]).expect("the model stores jobs");
    if scope.guard.is_some() {
        for at in 0..usize::from(scope.workers) {
            model.register(&registration(identity(at, 0))).expect("the model registers workers");
        }
    }
    model.dump().expect("the model tells its state")
}
