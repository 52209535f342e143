//! The hunt: for each mutant the tests that reach it run, the likeliest and quickest first, until
//! one fails.
//!
//! A failure counts if the same test passes on the unchanged library. If the test fails there too,
//! an earlier mutant may have left something behind on the server that tests share. Then the
//! databases on that server are dropped.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::mutants::Mutant;
use crate::process::{Ended, now};
use crate::say;
use crate::suite::{Settings, Slot, Test, lock};
use crate::survivors::End;

/// For how long a test that passed on the unchanged library is trusted.
const TRUSTED: Duration = Duration::from_secs(300);

/// Files whose tests are in another crate: how the file's path begins, and how the names of its
/// tests begin.
const TESTED_BY: [(&str, &str); 4] = [
    ("store/postgres/migrate", "tenure-cli::postgres_schema"),
    ("store/postgres/migrate/replace", "tenure-drill::versions"),
    ("store/postgres/health", "tenure-cli::doctor"),
    ("store/sqlite/health", "tenure-cli::doctor"),
];

/// The result for a mutant.
pub(crate) struct Fate {
    /// The mutant's name.
    pub(crate) name: String,
    /// How it ended.
    pub(crate) end: End,
    /// How long that took.
    pub(crate) took: Duration,
    /// How many tests ran.
    pub(crate) tests: usize,
}

/// Hunts these, and reports each as it ends.
pub(crate) fn hunt(
    mutants: Vec<Mutant>,
    tests: &[Test],
    Settings { jobs, limit }: Settings,
    tell: &(dyn Fn(&Fate) -> Result<()> + Sync),
) -> Result<Vec<Fate>> {
    let by_mutant = by_mutant(tests);
    let hunt = Hunt {
        tests,
        depths: depths(&mutants, &by_mutant),
        by_mutant,
        limit,
        queue: Mutex::new(mutants.into()),
        kills: Mutex::default(),
        passed: Mutex::default(),
    };
    let fates = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let work = || -> Result<()> {
            let slot = Slot::new()?;
            while let Some(mutant) = hunt.next() {
                let fate = hunt.one(&mutant, &slot)?;
                tell(&fate)?;
                lock(&fates).push(fate);
            }
            Ok(())
        };
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        let join = |it: thread::ScopedJoinHandle<'_, Result<()>>| {
            it.join().unwrap_or_else(|thrown| std::panic::resume_unwind(thrown))
        };
        workers.into_iter().try_for_each(join)
    })?;
    Ok(fates.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// The indexes of the tests that reach each mutant, the quickest first.
fn by_mutant(tests: &[Test]) -> BTreeMap<u32, Vec<usize>> {
    let mut by_mutant: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, test) in tests.iter().enumerate() {
        for number in &test.reached {
            by_mutant.entry(*number).or_default().push(at);
        }
    }
    by_mutant
}

/// How many mutants of a function each test reaches, by function.
fn depths(
    mutants: &[Mutant],
    by_mutant: &BTreeMap<u32, Vec<usize>>,
) -> BTreeMap<String, BTreeMap<usize, u32>> {
    let mut depths: BTreeMap<String, BTreeMap<usize, u32>> = BTreeMap::new();
    for mutant in mutants {
        let of_function = depths.entry(mutant.function.clone()).or_default();
        for at in by_mutant.get(&mutant.number).into_iter().flatten() {
            *of_function.entry(*at).or_default() += 1;
        }
    }
    depths
}

struct Hunt<'a> {
    tests: &'a [Test],
    /// How many mutants of each function a test reaches.
    depths: BTreeMap<String, BTreeMap<usize, u32>>,
    by_mutant: BTreeMap<u32, Vec<usize>>,
    limit: Duration,
    queue: Mutex<VecDeque<Mutant>>,
    /// How often each test has noticed a mutant of a function or of a file.
    kills: Mutex<BTreeMap<(String, usize), u32>>,
    /// When each test last passed on the unchanged library.
    passed: Mutex<BTreeMap<usize, Instant>>,
}

impl Hunt<'_> {
    fn next(&self) -> Option<Mutant> {
        lock(&self.queue).pop_front()
    }

    fn one(&self, mutant: &Mutant, slot: &Slot) -> Result<Fate> {
        let began = now();
        let mut ran = 0;
        let end = match self.by_mutant.get(&mutant.number) {
            None => End::NotReached,
            Some(candidates) => self.ask(mutant, candidates, slot, &mut ran)?,
        };
        slot.clean()?;
        Ok(Fate { name: mutant.name.clone(), end, took: now() - began, tests: ran })
    }

    fn ask(
        &self,
        mutant: &Mutant,
        candidates: &[usize],
        slot: &Slot,
        ran: &mut usize,
    ) -> Result<End> {
        let mut spent = Duration::ZERO;
        for at in self.order(mutant, candidates) {
            let Some(test) = self.tests.get(at) else { continue };
            if spent + test.took > self.limit {
                continue;
            }
            let limit = (test.took * 5).max(Duration::from_secs(5));
            let (ended, took) = test.run(Some(mutant.number), limit, slot)?;
            (spent, *ran) = (spent + took, *ran + 1);
            let said = match ended {
                Ended::Passed => continue,
                Ended::Failed(said) => said,
                Ended::OutOfTime => "time limit".to_owned(),
            };
            let is_slow = said == "time limit";
            if self.passes_as_it_is(at, limit, is_slow, slot)? {
                self.note_kill(mutant, at);
                return Ok(End::Killed { by: test.id.clone(), said });
            }
        }
        Ok(End::Survived)
    }

    /// The order in which the tests run: the quickest first. A test's time counts less if the test
    /// has noticed mutants of the same function or file, or is one of the file's own. It counts
    /// more if other tests reach more of the function's mutants.
    fn order(&self, mutant: &Mutant, candidates: &[usize]) -> Vec<usize> {
        let kills = lock(&self.kills);
        let noticed =
            |place: &str, at: usize| kills.get(&(place.to_owned(), at)).copied().unwrap_or(0);
        let module = format!("tenure {}::", mutant.file.trim_end_matches(".rs").replace('/', "::"));
        let elsewhere = TESTED_BY.iter().filter(|(file, _)| mutant.file.starts_with(file));
        let own: Vec<&str> = elsewhere.map(|(_, tests)| *tests).chain([module.as_str()]).collect();
        let is_own = |at: usize| {
            self.tests.get(at).is_some_and(|test| own.iter().any(|own| test.id.starts_with(own)))
        };
        let depths = self.depths.get(&mutant.function);
        let depth = |at: usize| depths.and_then(|it| it.get(&at)).copied().unwrap_or(0);
        let deepest = candidates.iter().map(|at| depth(*at)).max().unwrap_or(0);
        let mut order: Vec<(u128, usize)> = candidates
            .iter()
            .filter_map(|at| {
                let took = self.tests.get(*at)?.took.as_micros() + 10_000;
                let (near, far) = (noticed(&mutant.function, *at), noticed(&mutant.file, *at));
                let shallow = 1 + u128::from(8 * (deepest - depth(*at)) / deepest.max(1));
                let own = if is_own(*at) { 100 } else { 1 };
                Some((took * shallow / own / u128::from(1 + 8 * near + 2 * far), *at))
            })
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, at)| at).collect()
    }

    fn note_kill(&self, mutant: &Mutant, at: usize) {
        let mut kills = lock(&self.kills);
        for place in [&mutant.function, &mutant.file] {
            *kills.entry((place.clone(), at)).or_default() += 1;
        }
    }

    fn passes_as_it_is(
        &self,
        at: usize,
        limit: Duration,
        is_slow: bool,
        slot: &Slot,
    ) -> Result<bool> {
        let Some(test) = self.tests.get(at) else { return Ok(false) };
        let last = lock(&self.passed).get(&at).copied();
        if !is_slow && last.is_some_and(|last| now() - last < TRUSTED) {
            return Ok(true);
        }
        slot.clean()?;
        let (ended, _) = test.run(None, limit, slot)?;
        if ended == Ended::Passed {
            lock(&self.passed).insert(at, now());
            return Ok(true);
        }
        say(format_args!("{} fails on the library as it is: {ended:?}", test.id));
        drop_databases();
        lock(&self.passed).clear();
        Ok(false)
    }
}

/// Drops the databases that tests keep on the server, so that they make new ones.
fn drop_databases() {
    let Ok(url) = std::env::var("TENURE_TEST_POSTGRES") else { return };
    let dropped = tenure_cluster::Address::parse(&url).and_then(|server| {
        let names = "SELECT datname FROM pg_database WHERE datname LIKE 'tenure\\_%'";
        for name in server.psql(names)?.split_whitespace() {
            server.psql(&format!("DROP DATABASE IF EXISTS \"{name}\" WITH (FORCE)"))?;
        }
        Ok(())
    });
    if let Err(error) = dropped {
        say(format_args!("cannot drop the databases of the tests: {error}"));
    }
}
