//! A connection on which calls are lost: before they are applied, or after, when the caller never hears the
//! answer. Whatever is applied is in the books.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tenure::drill::Sealed;
use tenure::inspect::{
    Checked, EffectFilter, EffectView, Filter, Identity, JobDetail, LeaseView, Overview,
    QueueSettings, WorkerView,
};
use tenure::job::{JobId, JobRecord, Name, NewJob, State};
use tenure::lease::{Fence, WorkerId};
use tenure::ledger::{Answer, Entry, Resolution};
use tenure::lifecycle::{Next, Outcome, after_settling};
use tenure::store::sqlite::Sqlite;
use tenure::store::{
    AsSeen, Attempt, Changed, Claim, Claimed, Enqueued, Error, Guarded, Lapse, Lapsed, Pruned,
    QueueChange, Registration, Renewed, Report, Reported, Resolved, Result, Settled, Settlement,
    Store, Wake,
};

use super::books::Books;
use super::workers::Flaw;

/// What becomes of the next calls.
#[derive(Debug, Default)]
pub(super) struct Weather {
    /// How many calls will be lost before they are applied, and how many replies.
    pub(super) calls: u32,
    pub(super) replies: u32,
    /// Nobody is answered until then.
    pub(super) down_until: Duration,
    /// This call of all calls is lost, before or after it is applied.
    pub(super) nth: Option<(u64, When)>,
}

/// When a call is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// It is never applied.
    Before,
    /// It is applied, and its reply is lost.
    After,
}

impl Weather {
    /// Whether this call is lost, and when. A look that nobody waits for is a waste of a fault.
    fn fate(&mut self, verb: &str, number: u64, now: Duration) -> Option<When> {
        if let Some((_, when)) = self.nth.filter(|(nth, _)| *nth == number) {
            return Some(when);
        }
        if now < self.down_until {
            return Some(When::Before);
        }
        if matches!(verb, "vanished" | "overdue" | "prune") {
            return None;
        }
        if self.calls > 0 {
            self.calls -= 1;
            Some(When::Before)
        } else if self.replies > 0 {
            self.replies -= 1;
            Some(When::After)
        } else {
            None
        }
    }
}

/// What all connections share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) weather: Arc<Mutex<Weather>>,
    pub(super) books: Arc<Mutex<Books>>,
}

impl Shared {
    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("one thread")
    }

    pub(super) fn weather(&self) -> MutexGuard<'_, Weather> {
        self.weather.lock().expect("one thread")
    }
}

/// One connection of somebody to the store that all share.
pub(super) struct Faulty {
    pub(super) store: Sqlite,
    pub(super) shared: Shared,
    pub(super) who: WorkerId,
    pub(super) flaw: Option<Flaw>,
}

impl Faulty {
    fn through<T>(
        &mut self,
        verb: &'static str,
        call: impl FnOnce(&mut Sqlite) -> Result<T>,
        note: impl FnOnce(&mut Books, &WorkerId, &T, bool),
    ) -> Result<T> {
        let fate = {
            let mut books = self.shared.books();
            books.calls += 1;
            let (number, now) = (books.calls, books.trace.now);
            let mut weather = self.shared.weather();
            let fate = weather.fate(verb, number, now);
            if let Some(when) = fate {
                if let Some(living) = books.workers.get_mut(&self.who) {
                    living.losses += 1;
                }
                let lost = if when == When::Before { "call" } else { "reply" };
                let text = format!("{} asks to {verb}, and the {lost} is lost", self.who);
                // While the store is down that is no news.
                if now < weather.down_until {
                    books.trace.mix(&text);
                } else {
                    books.trace.tell(None, text);
                }
            }
            fate
        };
        if fate == Some(When::Before) {
            return Err(broken());
        }
        let answer = self.on_its_clock(verb, call)?;
        note(&mut self.shared.books(), &self.who, &answer, fate.is_some());
        if fate.is_some() { Err(broken()) } else { Ok(answer) }
    }

    /// The store's clock decides; but for a mutant that believes its own, which is ahead.
    fn on_its_clock<T>(
        &mut self,
        verb: &str,
        call: impl FnOnce(&mut Sqlite) -> Result<T>,
    ) -> Result<T> {
        let takes_back = matches!(verb, "claim" | "settle_and_claim" | "overdue" | "lapse");
        if self.flaw != Some(Flaw::OwnClock) || !takes_back {
            return call(&mut self.store);
        }
        let clock = self.shared.books().clock.clone();
        let now = clock.now();
        clock.set(now + Duration::from_secs(8));
        let answer = call(&mut self.store);
        clock.set(now);
        answer
    }

    /// A mutant that takes silence for consent.
    fn consent(&self, settlements: &[Settlement]) -> Option<Vec<Settled>> {
        (self.flaw == Some(Flaw::TakesSilenceForConsent))
            .then(|| settlements.iter().map(|it| Settled::Yes(state_after(&it.outcome))).collect())
    }
}

fn state_after(outcome: &Outcome) -> State {
    let standing = tenure::lifecycle::Standing {
        attempt: 0,
        max_attempts: 1,
        crashes: 0,
        max_crashes: 1,
        retry: tenure::job::RetryPolicy::default(),
    };
    Next::state(after_settling(&standing, outcome))
}

fn broken() -> Error {
    Error::Unavailable {
        doing: "call",
        target: "simulation".into(),
        problem: "the connection broke".into(),
        next: "try again".into(),
        source: "a fault".into(),
    }
}

impl Sealed for Faulty {}

/// Each call passes through the weather; what may change a job, or tells of one, is in the books.
macro_rules! pass {
    (
        noted { $($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)* }
        plain { $($look:ident($($what:ident: $of:ty),*) -> $seen:ty;)* }
        by hand { $($hand:tt)* }
    ) => {
        impl Store for Faulty {
            $(fn $name(&mut self, $($arg: $type),*) -> Result<$answer> {
                self.through(
                    stringify!($name),
                    |store| store.$name($($arg),*),
                    |books, who, answer, _| books.$name(who, $($arg,)* answer),
                )
            })*
            $(fn $look(&mut self, $($what: $of),*) -> Result<$seen> {
                self.through(stringify!($look), |store| store.$look($($what),*), |_, _, _, _| {})
            })*
            $($hand)*
        }
    };
}

pass! {
    noted {
        renew(fences: &[Fence], length: Duration) -> Vec<Renewed>;
        progress(reports: &[Report]) -> Vec<Reported>;
        ledger(entries: &[Entry]) -> Vec<Answer>;
        vanished(limit: usize) -> Vec<Lapse>;
        overdue(limit: usize, grace: Duration) -> Vec<Fence>;
        lapse(fences: &[Fence]) -> Vec<Lapsed>;
        cancel(jobs: &[JobId]) -> Vec<Changed>;
        requeue(jobs: &[AsSeen]) -> Vec<Changed>;
        resume(jobs: &[JobId]) -> Vec<Changed>;
        resolve(job: JobId, effect: &Name, how: &Resolution) -> Resolved;
    }
    plain {
        enqueue(jobs: &[NewJob]) -> Vec<Enqueued>;
        register(worker: &Registration) -> Guarded;
        retire(worker: &WorkerId) -> ();
        purge(jobs: &[AsSeen]) -> Vec<Changed>;
        configure(queue: &Name, change: &QueueChange) -> QueueSettings;
        raise_epoch(reason: &str) -> u32;
        prune(limit: usize) -> Pruned;
        job(id: JobId) -> Option<JobDetail>;
        jobs(filter: &Filter, limit: usize) -> Vec<JobRecord>;
        overview() -> Overview;
        leases(limit: usize) -> Vec<LeaseView>;
        queues() -> Vec<QueueSettings>;
        effects(filter: &EffectFilter, limit: usize) -> Vec<EffectView>;
        workers() -> Vec<WorkerView>;
        identity() -> Identity;
        check(from: Option<JobId>, limit: usize) -> Checked;
        wait(until: Instant) -> Wake;
    }
    by hand {
        fn claim(&mut self, ask: &Claim) -> Result<Claimed> {
            self.through("claim", |store| store.claim(ask), |books, who, claimed, lost| {
                books.claim(who, ask, claimed);
                if lost {
                    books.unheard(claimed);
                }
            })
        }

        fn held(&mut self, worker: &WorkerId) -> Result<Vec<Attempt>> {
            if self.flaw == Some(Flaw::ForgetsWhatItHolds) {
                return Ok(Vec::new());
            }
            self.through("held", |store| store.held(worker), |books, who, held, lost| {
                if !lost {
                    books.held(who, worker, held);
                }
            })
        }

        fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
            let answer = self.through(
                "settle",
                |store| store.settle(settlements),
                |books, who, answers, _| books.settle(who, settlements, answers),
            );
            answer.or_else(|error| self.consent(settlements).ok_or(error))
        }

        fn settle_and_claim(
            &mut self,
            settlements: &[Settlement],
            ask: &Claim,
        ) -> Result<(Vec<Settled>, Claimed)> {
            let answer = self.through(
                "settle_and_claim",
                |store| store.settle_and_claim(settlements, ask),
                |books, who, answers, lost| {
                    books.settle_and_claim(who, settlements, ask, answers);
                    if lost {
                        books.unheard(&answers.1);
                    }
                },
            );
            let nothing =
                Claimed { attempts: vec![], lapsed: vec![], cursor: ask.cursor, next_due: None };
            answer.or_else(|error| {
                self.consent(settlements).map(|settled| (settled, nothing)).ok_or(error)
            })
        }
    }
}
