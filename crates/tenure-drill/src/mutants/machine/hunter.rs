//! What looks for a mutant: the suite, the model in lockstep, the explorer, and sessions side by side, the cheapest first.
//! The first that notices ends the hunt.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use tenure::clock::{Clock, millis, monotonic};
use tenure::drill::{Dump, Explorable, Patch};
use tenure::store::postgres::{self, Address, Postgres};
use tenure::store::sqlite::{Options, Sqlite};

use super::reach::Reach;
use super::{End, Fate, Mutant};
use crate::conformance::{self, Case};
use crate::engines::START;
use crate::explorer::{SCOPES, Scope, explore_beside_the_model};
use crate::mutants::Stock;
use crate::stepper::{self, Isolation, Setting, Stepper};
use crate::{differential, servers};

/// How long a hunt may go on without an end before the mutant counts as noticed: it hangs.
const LIMIT: Duration = Duration::from_secs(400);

/// How long one store in memory is used before it counts as hanging.
const HANGS: Duration = Duration::from_secs(120);

/// How many random sequences are played beside the model.
const SEEDS: u64 = 4;

/// How long sessions side by side may look for one mutant.
const STEPPING: Duration = Duration::from_secs(150);

/// Hunts these, one after the other, and tells of each. Before the first of an engine the engine as it is comes by.
///
/// # Panics
///
/// If something is noticed about an engine as it is.
pub fn hunt(mutants: &[Mutant], tell: &mut dyn FnMut(&Fate)) -> Vec<Fate> {
    let is_of = |stock| mutants.iter().any(|mutant| mutant.stock == stock && !mutant.is_lock);
    let engines = [Stock::Sqlite, Stock::Postgres].into_iter().filter(|stock| is_of(*stock));
    let wholes: Vec<Mutant> = engines.map(Mutant::none).collect();
    for fate in hunt_all(&wholes, &mut |_| ()) {
        assert_eq!(fate.end, End::Survived, "{} must not be noticed", fate.mutant);
    }
    hunt_all(mutants, tell)
}

fn hunt_all(mutants: &[Mutant], tell: &mut dyn FnMut(&Fate)) -> Vec<Fate> {
    let before = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let mut fates = Vec::with_capacity(mutants.len());
    let mut hunter = None;
    for mutant in mutants {
        let began = monotonic();
        let (ask, answers) = hunter.take().unwrap_or_else(employ);
        let asked = ask.send(mutant.clone());
        let end = match answers.recv_timeout(LIMIT) {
            Ok(end) if asked.is_ok() => {
                hunter = Some((ask, answers));
                end
            }
            Err(RecvTimeoutError::Timeout) => End::Killed("time limit".into()),
            _ => End::Killed("the hunter fell".into()),
        };
        let fate = Fate { mutant: mutant.name.clone(), end, took_ms: millis(monotonic() - began) };
        tell(&fate);
        fates.push(fate);
    }
    panic::set_hook(before);
    fates
}

/// A hunter on a thread of its own, which can be left behind with a mutant that hangs.
fn employ() -> (Sender<Mutant>, Receiver<End>) {
    let (ask, asked) = channel::<Mutant>();
    let (tell, answers) = channel();
    thread::spawn(move || {
        let mut hunter = Hunter::new();
        for mutant in asked {
            if tell.send(hunter.hunt(&mutant)).is_err() {
                return;
            }
        }
    });
    (ask, answers)
}

struct Hunter {
    /// Each with how often it was the one that noticed: those come first.
    cases: Vec<(Case, usize)>,
    reach: Reach,
    /// Where the functions are, once they are installed, and whose are not as they should be.
    installed: Option<Address>,
    spoiled: bool,
}

/// A store to hunt in, and its clock.
type Stand = (Box<dyn Explorable>, Clock);

impl Hunter {
    fn new() -> Hunter {
        let cases = conformance::cases().into_iter().map(|case| (case, 0)).collect();
        Hunter { cases, reach: Reach::new(), installed: None, spoiled: true }
    }

    fn hunt(&mut self, mutant: &Mutant) -> End {
        let patches = [mutant.patch];
        match mutant.stock {
            Stock::Sqlite => self.look(mutant, &|| sqlite(&patches)),
            Stock::Postgres => self.hunt_on_postgres(mutant, &patches),
            Stock::Worker => End::Invalid("no SQL".into()),
        }
    }

    fn hunt_on_postgres(&mut self, mutant: &Mutant, patches: &[Patch]) -> End {
        if mutant.is_lock {
            return self.step(mutant, patches);
        }
        let text = Postgres::texts().into_iter().find(|(file, _)| *file == mutant.file);
        let Some((_, whole)) = text else { return End::Invalid("no such file".into()) };
        if self.spoiled {
            self.installed = servers::install_mutant(&[]).ok();
            self.spoiled = false;
        }
        let Some(address) = self.installed.clone() else {
            return End::Invalid("the functions cannot be installed".into());
        };
        let replaced = whole.replace(mutant.patch.find, mutant.patch.replace);
        if let Err(error) = Postgres::replace_functions(&address, &replaced) {
            return End::Invalid(error.to_string());
        }
        let end = self.look(mutant, &|| postgres(&address));
        self.spoiled = Postgres::replace_functions(&address, whole).is_err();
        end
    }

    /// The suite, the chapter of the mutant's file first; then the model in lockstep; then the explorer.
    fn look(&mut self, mutant: &Mutant, make: &dyn Fn() -> Stand) -> End {
        let chapter = mutant.file.rsplit('/').next().unwrap_or_default();
        let mut order: Vec<usize> = (0..self.cases.len()).collect();
        order.sort_by_key(|at| {
            let (case, kills) = &self.cases[*at];
            (case.chapter != chapter, usize::MAX - kills)
        });
        for at in order {
            let case = self.cases[at].0;
            let noticed = attempt(|| {
                let (store, clock) = make();
                case.run_on(store, clock);
                None
            });
            if let Some(what) = noticed {
                self.cases[at].1 += 1;
                return end(&format!("suite, {}", case.name), &what);
            }
        }
        for seed in 1..=SEEDS {
            if let Some(what) = attempt(|| differential::beside_the_model(seed, 250, make())) {
                return end(&format!("lockstep, seed {seed}"), &what);
            }
        }
        let most = if mutant.stock == Stock::Sqlite { 300 } else { 100 };
        for scope in scopes(chapter) {
            let explored = attempt(|| explore(scope, make(), most));
            if let Some(what) = explored {
                return end(&format!("explorer, {}", scope.name), &what);
            }
        }
        End::Survived
    }

    /// Sessions side by side: those whose scripts come to the function. First the chosen cases, then inside of calls, then
    /// all pairs. What a case says counts if it says nothing about the store as it is.
    fn step(&mut self, mutant: &Mutant, patches: &[Patch]) -> End {
        // The stepper installs its own.
        self.spoiled = true;
        let deadline = monotonic() + STEPPING;
        let touches = |sql: &str| self.reach.comes_to(sql, mutant.verb);
        let touching = |case: &stepper::Case| case.statements().filter(|sql| touches(sql)).count();
        let daily = stepper::cases().into_iter().filter(|case| case.is_first).collect();
        let rounds =
            [(false, stepper::chosen_cases()), (true, stepper::inside_cases()), (false, daily)];
        for (is_inside, cases) in rounds {
            let mut cases: Vec<_> = cases.into_iter().filter(|case| touching(case) > 0).collect();
            cases.sort_by_key(|case| usize::MAX - touching(case));
            let cases = cases.iter().take_while(|_| monotonic() < deadline);
            let Some((case, what)) = first_noticed(cases, is_inside, patches) else { continue };
            // Then it proves nothing, and the daily test tells of it.
            if first_noticed([case].into_iter(), is_inside, &[]).is_some() {
                return End::Survived;
            }
            let level = if is_inside { "stepper inside" } else { "stepper" };
            return end(&format!("{level}, {}", case.name), &what);
        }
        End::Survived
    }
}

/// The first of these cases that notices something about a store that lacks this, and what.
fn first_noticed<'a>(
    mut cases: impl Iterator<Item = &'a stepper::Case>,
    is_inside: bool,
    patches: &[Patch],
) -> Option<(&'a stepper::Case, String)> {
    let setting = Setting { isolation: Isolation::ReadCommitted, planner: 0 };
    let mut stepper = if is_inside { Stepper::inside(patches) } else { Stepper::patched(patches) };
    cases.find_map(|case| {
        let noticed = attempt(|| {
            let went =
                if is_inside { stepper.go_inside(case) } else { stepper.go_through(case, setting) };
            went.err().map(|broken| format!("{}: {}", broken.invariant, broken.what))
        });
        noticed.map(|what| (case, what))
    })
}

/// The scopes whose actors call what is in this file.
fn scopes(chapter: &str) -> impl Iterator<Item = &'static Scope> {
    let names: &[&str] = match chapter {
        "claim" => &["batch", "lease"],
        "enqueue" => &["keys"],
        "lapse" => &["guard", "stall"],
        "ledger" => &["effects"],
        "operate" => &["operate"],
        "progress" => &["progress"],
        "record" => &["lease", "failover"],
        "renew" => &["lease"],
        "settle" => &["settle"],
        _ => &[],
    };
    SCOPES.iter().filter(|scope| names.contains(&scope.name))
}

/// What is said against a store, or what is said where the store fails.
fn attempt(look: impl FnOnce() -> Option<String>) -> Option<String> {
    panic::catch_unwind(AssertUnwindSafe(look)).unwrap_or_else(|thrown| Some(said(&*thrown)))
}

fn said(thrown: &(dyn Any + Send)) -> String {
    let text = thrown.downcast_ref::<String>().cloned();
    text.or_else(|| thrown.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default()
}

fn explore(scope: &Scope, stand: Stand, most: usize) -> Option<String> {
    explore_beside_the_model(scope, "the mutant", stand, most).err().map(|it| it.what)
}

/// Killed, unless the database says that it cannot read the statement: then it is no mutant.
fn end(by: &str, what: &str) -> End {
    const UNREADABLE: [&str; 8] = [
        "SqlState(E42",
        "SQLSTATE 42",
        "no such column",
        "syntax error",
        "no such function",
        "misuse of aggregate",
        "InvalidParameterName",
        "ambiguous column",
    ];
    if UNREADABLE.iter().any(|words| what.contains(words)) {
        let line = what.lines().next().unwrap_or_default();
        return End::Invalid(line.chars().take(400).collect());
    }
    // What the server and SQLite say of a statement that was broken off.
    let hangs = what.contains("OperationInterrupted") || what.contains("SqlState(E57014)");
    End::Killed(if hangs { "time limit".to_owned() } else { by.to_owned() })
}

fn sqlite(patches: &[Patch]) -> Stand {
    let clock = Clock::manual(START);
    let options = Options { clock: clock.clone(), ..Options::default() };
    let store = Sqlite::in_memory_patched(&options, patches).expect("a store in memory opens");
    // A loop that never ends sends statements for ever.
    let deadline = monotonic() + HANGS;
    store.with_connection(|connection| {
        let watched = connection.progress_handler(1_000, Some(move || monotonic() > deadline));
        watched.expect("a handler can be set");
    });
    (Box::new(store), clock)
}

/// Nothing that is done to it is committed.
fn postgres(address: &Address) -> Stand {
    let clock = Clock::manual(START);
    let options = postgres::Options::default();
    let mut store =
        Postgres::with_test_clock(address, &options, clock.clone()).expect("a store opens");
    store.rehearse();
    store.load(&Dump::empty(START)).expect("a store can be emptied");
    (Box::new(store), clock)
}
