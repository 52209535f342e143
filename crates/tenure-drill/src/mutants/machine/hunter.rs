//! Runs the checks against a mutant: the suite, the model in lockstep, the explorer, the cases of
//! the SQL API, and concurrent sessions, the cheapest first. The first check that notices ends the
//! hunt.

use std::panic::{self, AssertUnwindSafe};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use tenure::Result;
use tenure::drill::{Dump, Explorable, Patch};
use tenure::engine::clock::{Clock, millis, monotonic};
use tenure::engine::store::postgres::{self, Postgres, ServerAddress, Timeouts};
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};

use super::alone;
use super::coverage::{Coverage, Of};
use super::reach::Reach;
use super::{End, Fate, Mutant};
use crate::conformance::{self, Case};
use crate::engines::START;
use crate::explorer::{SCOPES, Scope, explore_beside_the_model};
use crate::mutants::Stock;
use crate::sessions::Lab;
use crate::stepper::{self, Isolation, Setting, Stepper};
use crate::verdict::said;
use crate::{differential, servers, sql_api};

/// If the hunt for one mutant takes longer than this, the mutant hangs, and counts as noticed.
const LIMIT: Duration = Duration::from_secs(200);

/// The limit for an unchanged engine. There every case runs, and on PostgreSQL twice: with probes
/// and without.
const WHOLE: Duration = Duration::from_secs(1_800);

/// A store in memory that is used for longer than this counts as hanging. Normally none is used for
/// longer than about two seconds.
const HANGS: Duration = Duration::from_secs(30);

/// How many random sequences run beside the model, in memory and on a server.
const SEEDS: u64 = 4;
const SEEDS_ON_A_SERVER: u64 = 2;

/// For how long concurrent sessions hunt one mutant.
const STEPPING: Duration = Duration::from_secs(150);

/// Hunts these one after the other and reports each. First it runs the checks on the unchanged SQL
/// of each engine from which one of these mutants is made. An engine of which only locks are
/// changed is left out: `step` compares with the unchanged store itself.
///
/// # Panics
///
/// If a check notices something about an unchanged engine.
pub fn hunt(mutants: &[Mutant], tell: &mut dyn FnMut(&Fate)) -> Vec<Fate> {
    let is_of = |stock| mutants.iter().any(|mutant| mutant.stock == stock && !mutant.is_lock);
    let engines = [Stock::Sqlite, Stock::Postgres].into_iter().filter(|stock| is_of(*stock));
    let before = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let mut pack = Pack { hunter: None, coverage: Arc::default() };
    let wholes: Vec<Fate> = engines.map(|stock| pack.hunt(&Mutant::none(stock))).collect();
    let is_whole = wholes.iter().all(|fate| fate.end == End::Survived);
    let mut hunt = |mutant| {
        let fate = pack.hunt(mutant);
        tell(&fate);
        fate
    };
    let fates = mutants.iter().take_while(|_| is_whole).map(&mut hunt).collect();
    panic::set_hook(before);
    assert!(is_whole, "what is not changed must not be noticed: {wholes:?}");
    fates
}

/// Hunters, one at a time: a new one replaces a hunter that hangs or fails.
struct Pack {
    hunter: Option<(Sender<Mutant>, Receiver<End>)>,
    /// What each case calls; measured when the first mutant of PostgreSQL is hunted.
    coverage: Arc<OnceLock<Coverage>>,
}

impl Pack {
    fn hunt(&mut self, mutant: &Mutant) -> Fate {
        let began = monotonic();
        let (ask, answers) =
            self.hunter.take().unwrap_or_else(|| employ(Arc::clone(&self.coverage)));
        let asked = ask.send(mutant.clone());
        let limit = if mutant.is_whole() { WHOLE } else { LIMIT };
        let end = match answers.recv_timeout(limit) {
            Ok(end) if asked.is_ok() => {
                self.hunter = Some((ask, answers));
                end
            }
            Err(RecvTimeoutError::Timeout) => End::Killed("time limit".into()),
            // The hunter's thread has ended: its own fault, which says nothing about the mutant.
            _ => End::Invalid("the hunter failed".into()),
        };
        Fate { mutant: mutant.name.clone(), end, took_ms: millis(monotonic() - began) }
    }
}

/// Starts a hunter on a thread of its own, which can be abandoned with a mutant that hangs.
fn employ(coverage: Arc<OnceLock<Coverage>>) -> (Sender<Mutant>, Receiver<End>) {
    let (ask, asked) = channel::<Mutant>();
    let (tell, answers) = channel();
    thread::spawn(move || {
        let mut hunter = Hunter::new(coverage);
        for mutant in asked {
            if tell.send(hunter.hunt(&mutant)).is_err() {
                return;
            }
        }
    });
    (ask, answers)
}

struct Hunter {
    suite: Vec<Tried<Case>>,
    sql_api: Vec<Tried<sql_api::Case>>,
    /// The database of the SQL API's cases, if all functions in it are known to be unchanged.
    lab: Option<String>,
    reach: Reach,
    coverage: Arc<OnceLock<Coverage>>,
    /// Where the functions are installed for the library's cases; none before that.
    installed: Option<ServerAddress>,
    /// Whether one of these functions may still be a mutant's.
    spoiled: bool,
    /// An open store on these functions, which the next case uses. Its session has compiled the
    /// functions, and compiling them takes longer than most cases.
    kept: Option<Stand>,
}

/// A case, how many mutants it was the first to notice, and how long it took last time. Cases with
/// many kills run first; among equals, the fast ones.
struct Tried<C> {
    case: C,
    kills: usize,
    took: Duration,
}

impl<C> Tried<C> {
    fn none_yet(case: C) -> Tried<C> {
        Tried { case, kills: 0, took: Duration::ZERO }
    }
}

/// The indexes of these cases, in the order in which they run. Cases of the mutant's own chapter
/// come first.
fn order<C>(cases: &[Tried<C>], is_own: impl Fn(&C) -> bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..cases.len()).collect();
    order.sort_by_key(|at| {
        let Tried { case, kills, took } = &cases[*at];
        (!is_own(case), usize::MAX - kills, *took)
    });
    order
}

/// A store to hunt in, and its clock.
pub(super) type Stand = (Box<dyn Explorable>, Clock);

impl Hunter {
    fn new(coverage: Arc<OnceLock<Coverage>>) -> Hunter {
        Hunter {
            coverage,
            suite: conformance::cases().into_iter().map(Tried::none_yet).collect(),
            sql_api: sql_api::cases().into_iter().map(Tried::none_yet).collect(),
            lab: None,
            reach: Reach::new(),
            installed: None,
            spoiled: true,
            kept: None,
        }
    }

    fn hunt(&mut self, mutant: &Mutant) -> End {
        let patches = [mutant.patch];
        match mutant.stock {
            Stock::Sqlite => {
                self.kept = None;
                let mut alone = alone::cases().filter(|case| case.file == mutant.file);
                let noticed = alone.find_map(|case| {
                    let what = attempt(|| {
                        (case.run)(&mut || in_memory(&patches));
                        None
                    })?;
                    Some(end(case.name, &what))
                });
                let make = || sqlite(&patches);
                let noticed = noticed.or_else(|| self.try_suite(mutant, &make));
                noticed.or_else(|| self.play(mutant, &make)).unwrap_or(End::Survived)
            }
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
        let changed = whole.replace(mutant.patch.find, mutant.patch.replace);
        let Some(address) = self.install() else {
            return End::Invalid("the functions cannot be installed".into());
        };
        if self.coverage.get().is_none() {
            match Coverage::measure(&address, &|| postgres(&address), &plays(mutant.stock)) {
                Ok(coverage) => drop(self.coverage.set(coverage)),
                Err(error) => return End::Invalid(format!("no probes: {error}")),
            }
        }
        // First the cases of the suite, then those of the SQL API, then random sequences and the
        // explorer. Cases that cannot notice the mutant are left out.
        let end =
            self.call(&address, whole, &changed, |hunter, make| hunter.try_suite(mutant, make));
        let end = end.or_else(|| self.ask(mutant, whole, &changed));
        let end = end.or_else(|| {
            self.call(&address, whole, &changed, |hunter, make| hunter.play(mutant, make))
        });
        end.unwrap_or(End::Survived)
    }

    /// Installs the unchanged functions if necessary, and returns where they are.
    fn install(&mut self) -> Option<ServerAddress> {
        if self.spoiled {
            self.kept = None;
            self.installed = servers::install_mutant(&[]).ok();
            self.spoiled = false;
        }
        self.installed.clone()
    }

    /// What the library notices when it calls the changed functions.
    fn call(
        &mut self,
        address: &ServerAddress,
        whole: &str,
        changed: &str,
        look: impl FnOnce(&mut Hunter, &dyn Fn() -> Stand) -> Option<End>,
    ) -> Option<End> {
        if let Err(error) = Postgres::replace_functions(address, changed) {
            return Some(End::Invalid(error.to_string()));
        }
        let end = look(self, &|| postgres(address));
        self.spoiled = Postgres::replace_functions(address, whole).is_err();
        end
    }

    /// What the cases of the SQL API notice, with plain sessions. A failure counts if the same case
    /// passes on the unchanged functions.
    fn ask(&mut self, mutant: &Mutant, whole: &str, changed: &str) -> Option<End> {
        let lab = Lab::new();
        let (database, address) = (lab.database().to_owned(), lab.address());
        // Dropping the lab frees its database. The cases will use it: a lab takes the oldest free
        // database.
        drop(lab);
        if self.lab.as_ref() != Some(&database) {
            let texts = Postgres::texts().into_iter();
            let installed: Result<Vec<()>> =
                texts.map(|(_, text)| Postgres::replace_functions(&address, text)).collect();
            installed.expect("the functions as they are can be installed");
        }
        self.lab = None;
        let found = self.ask_in(mutant, &address, whole, changed);
        self.lab = Some(database);
        found.unwrap_or_else(|error| Some(End::Invalid(error.to_string())))
    }

    /// Like `ask`, in a database whose other functions are unchanged. At the end, puts the
    /// unchanged functions back.
    fn ask_in(
        &mut self,
        mutant: &Mutant,
        address: &ServerAddress,
        whole: &str,
        changed: &str,
    ) -> Result<Option<End>> {
        let mut order = order(&self.sql_api, |case| case.chapter == chapter_of(mutant));
        order.retain(|at| self.may_notice(Of::SqlApi(*at), mutant));
        order.sort_by_key(|at| self.coverage.get().is_some_and(|it| it.restores(*at)));
        let mut left = order.into_iter();
        loop {
            Postgres::replace_functions(address, changed)?;
            let noticed = left.find_map(|at| {
                let (tried, began) = (&mut self.sql_api[at], monotonic());
                let noticed = try_sql(&tried.case);
                tried.took = monotonic() - began;
                noticed.map(|what| (at, what))
            });
            Postgres::replace_functions(address, whole).expect("the functions can be put back");
            let Some((at, what)) = noticed else { return Ok(None) };
            let Tried { case, kills, .. } = &mut self.sql_api[at];
            if try_sql(case).is_none() {
                *kills += 1;
                return Ok(Some(end(&format!("SQL API, {}", case.name), &what)));
            }
        }
    }

    /// Runs the cases of the suite that may notice the mutant, those about its file first.
    fn try_suite(&mut self, mutant: &Mutant, make: &dyn Fn() -> Stand) -> Option<End> {
        let chapter = chapter_of(mutant);
        let mut order = order(&self.suite, |case| case.chapter == chapter);
        order.retain(|at| self.may_notice(Of::Suite(*at), mutant));
        for at in order {
            let (case, began) = (self.suite[at].case, monotonic());
            let (store, clock) = self.kept.take().unwrap_or_else(make);
            let mut passed = None;
            let noticed = attempt(|| {
                passed = Some(case.run_on(store, clock.clone()));
                None
            });
            if mutant.stock == Stock::Postgres {
                self.kept = passed.and_then(|store| emptied(store, clock));
            }
            self.suite[at].took = monotonic() - began;
            if let Some(what) = noticed {
                self.suite[at].kills += 1;
                return Some(end(&format!("suite, {}", case.name), &what));
            }
        }
        None
    }

    /// Whether a case or a play may notice a mutant; true if nothing was measured.
    fn may_notice(&self, of: Of<'_>, mutant: &Mutant) -> bool {
        let coverage = self.coverage.get().filter(|_| mutant.stock == Stock::Postgres);
        coverage.is_none_or(|coverage| coverage.may_notice(of, mutant))
    }

    /// Random sequences beside the model, and the explorer.
    fn play(&mut self, mutant: &Mutant, make: &dyn Fn() -> Stand) -> Option<End> {
        // Drop the kept store: its open transaction would block other stores.
        self.kept = None;
        let chapter = chapter_of(mutant);
        let is_for = |play: &Play| play.scope.is_none_or(|scope| is_about(scope, chapter));
        let mut plays = plays(mutant.stock).into_iter().filter(is_for);
        plays.find_map(|play| {
            if !self.may_notice(Of::Play(&play.name), mutant) {
                return None;
            }
            let what = attempt(|| (play.run)(make()))?;
            Some(end(&play.name, &what))
        })
    }

    /// Hunts with concurrent sessions whose scripts reach the function. First come the chosen
    /// cases, then cases that pause inside functions, then the daily cases. What a case finds
    /// counts if the same case finds nothing in the unchanged store.
    fn step(&mut self, mutant: &Mutant, patches: &[Patch]) -> End {
        // The stepper installs its own functions.
        (self.spoiled, self.kept) = (true, None);
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
            // The case also fails without the change, so it proves nothing; the daily test reports
            // it.
            if first_noticed([case].into_iter(), is_inside, &[]).is_some() {
                return End::Survived;
            }
            let level = if is_inside { "stepper inside" } else { "stepper" };
            return end(&format!("{level}, {}", case.name), &what);
        }
        End::Survived
    }
}

/// The first of these cases that notices something about a store with these patches, and its
/// message.
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

fn try_sql(case: &sql_api::Case) -> Option<String> {
    attempt(|| {
        (case.run)();
        None
    })
}

/// The chapter of the suites that is about the mutant's file. The files of `base`, which all verbs
/// use, are tested by the chapter `record`.
fn chapter_of(mutant: &Mutant) -> &'static str {
    match mutant.file.split_once('/') {
        Some(("base", _)) => "record",
        Some((_, name)) => name,
        None => mutant.file,
    }
}

/// A random sequence beside the model, or a scope of the explorer. Each run makes the same calls.
pub(super) struct Play {
    pub(super) name: String,
    /// The scope, if it is one.
    scope: Option<&'static str>,
    /// Returns what it notices.
    pub(super) run: Box<dyn Fn(Stand) -> Option<String>>,
}

/// All plays. A server gets fewer sequences and fewer states, because each call takes longer there.
fn plays(stock: Stock) -> Vec<Play> {
    let (seeds, most) =
        if stock == Stock::Postgres { (SEEDS_ON_A_SERVER, 100) } else { (SEEDS, 300) };
    let sequences = (1..=seeds).map(|seed| Play {
        name: format!("lockstep, seed {seed}"),
        scope: None,
        run: Box::new(move |stand| differential::beside_the_model(seed, 250, stand)),
    });
    let scopes = SCOPES.iter().map(|scope| Play {
        name: format!("explorer, {}", scope.name),
        scope: Some(scope.name),
        run: Box::new(move |stand| explore(scope, stand, most)),
    });
    sequences.chain(scopes).collect()
}

/// Whether the actors of a scope make the calls that this chapter is about.
fn is_about(scope: &str, chapter: &str) -> bool {
    let scopes: &[&str] = match chapter {
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
    scopes.contains(&scope)
}

/// Runs a check. Returns what the check reports about the store, or the message of its panic.
pub(super) fn attempt(look: impl FnOnce() -> Option<String>) -> Option<String> {
    panic::catch_unwind(AssertUnwindSafe(look)).unwrap_or_else(|thrown| Some(said(&*thrown)))
}

fn explore(scope: &Scope, stand: Stand, most: usize) -> Option<String> {
    explore_beside_the_model(scope, "the mutant", stand, most).err().map(|it| it.what)
}

/// The end of a mutant that a check noticed. It is killed, unless the database cannot parse the
/// changed statement: then it is no valid mutant.
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
    // What the server and SQLite report about an interrupted statement.
    let hangs = what.contains("OperationInterrupted") || what.contains("SqlState(E57014)");
    End::Killed(if hangs { "time limit".to_owned() } else { by.to_owned() })
}

fn sqlite(patches: &[Patch]) -> Stand {
    let (store, clock) = in_memory(patches);
    (Box::new(store), clock)
}

fn in_memory(patches: &[Patch]) -> (Sqlite, Clock) {
    let clock = Clock::manual(START);
    let options = StoreOptions { clock: clock.clone(), ..StoreOptions::default() };
    let store = Sqlite::in_memory_patched(&options, patches).expect("a store in memory opens");
    // A mutant may make the library repeat short statements for ever, so a limit for one statement
    // would not do. The handler looks at the clock every few instructions, and interrupts the
    // statement after the deadline.
    let deadline = monotonic() + HANGS;
    store.with_connection(|connection| {
        let watched = connection.progress_handler(20, Some(move || monotonic() > deadline));
        watched.expect("a handler can be set");
    });
    (store, clock)
}

/// A store on these functions that commits nothing. It interrupts statements that hang.
fn postgres(address: &ServerAddress) -> Stand {
    let clock = Clock::manual(START);
    let timeouts = Timeouts { statement: HANGS / 2, ..Timeouts::default() };
    let options = postgres::PostgresOptions { timeouts, ..postgres::PostgresOptions::default() };
    let mut store =
        Postgres::with_test_clock(address, &options, clock.clone()).expect("a store opens");
    store.rehearse();
    emptied(Box::new(store), clock).expect("a store can be emptied")
}

fn emptied(mut store: Box<dyn Explorable>, clock: Clock) -> Option<Stand> {
    clock.set(START);
    store.load(&Dump::empty(START)).is_ok().then_some((store, clock))
}
