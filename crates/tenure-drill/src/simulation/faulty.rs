//! A connection on which calls are lost: before they are applied, or afterwards, so that the caller
//! never gets the answer. The books (`books`) record the calls that are applied.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tenure::drill::Sealed;
use tenure::engine::inspect::{Current, QueueSettings};
use tenure::engine::job::{JobId, Name, NewJob, State};
use tenure::engine::lease::{Fence, WorkerId};
use tenure::engine::ledger::{Answer, Entry, Resolution};
use tenure::engine::lifecycle::{Next, Outcome, after_settling};
use tenure::engine::store::sqlite::Sqlite;
use tenure::engine::store::{
    AsSeen, Attempt, Beat, Changed, Claim, Claimed, Cursor, Enqueued, Error, Guarded, Lapse,
    Lapsed, Operate, Pruned, QueueChange, Registration, Renewed, Report, Reported, Resolved,
    Result, Settled, Settlement, Wake, Work,
};

use super::books::Books;
use super::late::{Late, Underway};
use super::orders;
use super::trace::Rare;
use super::workers::Flaw;

/// The faults that the next calls will meet.
#[derive(Default)]
pub(super) struct Weather {
    /// How many calls will be lost before they are applied, and how many replies will be lost.
    pub(super) calls: u32,
    pub(super) replies: u32,
    /// For each of the next calls that will be held up: how long after the call it is applied.
    pub(super) held_up: Vec<Duration>,
    /// The calls that are held up.
    pub(super) underway: Vec<Underway>,
    /// No call is answered until then.
    pub(super) down_until: Duration,
    /// Every write fails until then.
    pub(super) full_until: Duration,
    /// Workers that alone get no answers, and until when.
    pub(super) cut: BTreeMap<WorkerId, Duration>,
    /// The call with this number is lost, before or after it is applied.
    pub(super) nth: Option<(u64, When)>,
}

/// When a call is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The call is never applied.
    Before,
    /// The call is applied, but its reply is lost.
    After,
}

/// The fault that one call meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Lost(When),
    /// The call is applied this long after it was sent; its sender has given up on it.
    Late(Duration),
    /// The store cannot be reached, by this caller or by any.
    OutOfReach,
    /// The store cannot be written to.
    Full,
}

impl Weather {
    /// The fault that this call meets, if any. A fault is not spent on calls of the sweeper that no
    /// worker waits for.
    fn fate(&mut self, who: &WorkerId, verb: &str, number: u64, now: Duration) -> Option<Fate> {
        if let Some((_, when)) = self.nth.filter(|(nth, _)| *nth == number) {
            return Some(Fate::Lost(when));
        }
        if now < self.down_until || self.cut.get(who).is_some_and(|until| now < *until) {
            return Some(Fate::OutOfReach);
        }
        if now < self.full_until && !only_reads(verb) {
            return Some(Fate::Full);
        }
        if matches!(verb, "vanished" | "overdue" | "prune") {
            return None;
        }
        if Late::can_be(verb)
            && let Some(by) = self.held_up.pop()
        {
            Some(Fate::Late(by))
        } else if self.calls > 0 {
            self.calls -= 1;
            Some(Fate::Lost(When::Before))
        } else if self.replies > 0 {
            self.replies -= 1;
            Some(Fate::Lost(When::After))
        } else {
            None
        }
    }
}

/// Whether a full or read-only store still answers this call.
fn only_reads(verb: &str) -> bool {
    matches!(verb, "held" | "overdue" | "wait")
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

/// One caller's connection to the store that all share.
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
        late: impl FnOnce() -> Option<Late>,
    ) -> Result<T> {
        let fate = self.fate(verb);
        match fate {
            None | Some(Fate::Lost(When::After)) => {}
            Some(Fate::Lost(When::Before) | Fate::OutOfReach) => return Err(broken()),
            Some(Fate::Full) => return Err(self.full()),
            Some(Fate::Late(by)) => {
                let now = self.shared.books().trace.now;
                let who = self.who.clone();
                let underway = late().map(|call| Underway { at: now + by, who, call });
                self.shared.weather().underway.extend(underway);
                return Err(broken());
            }
        }
        let answer = self.on_its_clock(verb, call)?;
        note(&mut self.shared.books(), &self.who, &answer, fate.is_some());
        if fate.is_some() { Err(broken()) } else { Ok(answer) }
    }

    /// The fault that this call meets, recorded in the books.
    fn fate(&self, verb: &str) -> Option<Fate> {
        let mut books = self.shared.books();
        books.calls += 1;
        let (number, now) = (books.calls, books.trace.now);
        let fate = self.shared.weather().fate(&self.who, verb, number, now)?;
        let lost = match fate {
            Fate::Lost(When::Before) | Fate::OutOfReach => "the call is lost",
            Fate::Lost(When::After) => "the reply is lost",
            Fate::Late(_) => "the call is held up",
            Fate::Full => "the store cannot be written to",
        };
        let text = format!("{} asks to {verb}, and {lost}", self.who);
        match fate {
            // Only the hash gets this, and the call does not count as lost. The fault itself says
            // which lapses it excuses: `stand_still` if the store is down for all workers, `hinder`
            // if one worker is cut off.
            Fate::OutOfReach => books.trace.mix(&text),
            Fate::Full => {
                books.count(Rare::WriteFailed);
                books.trace.mix(&text);
            }
            Fate::Lost(_) | Fate::Late(_) => {
                if let Some(living) = books.workers.get_mut(&self.who) {
                    living.losses += 1;
                }
                books.trace.tell(None, text);
            }
        }
        Some(fate)
    }

    /// A full disk and a read-only file, in turns.
    fn full(&self) -> Error {
        let (problem, next) = if self.shared.books().calls.is_multiple_of(2) {
            ("the disk is full; nothing of this call was stored", "free some space and repeat it")
        } else {
            ("the file is read-only", "make it writable")
        };
        let target = "simulation".to_owned();
        Error::Unusable { target, problem: problem.to_owned(), next: next.to_owned() }
    }

    /// Completes a job together with a row of the handler's own, in one transaction, as
    /// `tenure::sqlite::complete` does.
    pub(super) fn commit(&mut self, fence: Fence) -> Result<Settled> {
        let done = Settlement::new(fence, Outcome::Complete { result: None });
        self.through(
            "commit",
            |store| orders::commit(store, &done),
            |books, who, answer, _| {
                books.settle(who, std::slice::from_ref(&done), std::slice::from_ref(answer));
            },
            || None,
        )
    }

    /// Runs a call by the store's clock; the mutant with `OwnClock` uses its own, which is ahead.
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

    /// The claim to send; the mutant with `CursorStands` begins every claim at the same place of
    /// the ring.
    fn asked(&self, ask: &Claim) -> Claim {
        let mut ask = ask.clone();
        if self.flaw == Some(Flaw::CursorStands) {
            ask.cursor = Cursor::default();
        }
        ask
    }

    /// For the mutant with `TakesSilenceForConsent`: the answers that it takes for given when none
    /// came.
    fn consent(&self, settlements: &[Settlement]) -> Option<Vec<Settled>> {
        (self.flaw == Some(Flaw::TakesSilenceForConsent)).then(|| {
            settlements.iter().map(|it| Settled::Applied(state_after(&it.outcome))).collect()
        })
    }
}

fn state_after(outcome: &Outcome) -> State {
    let counts = tenure::engine::lifecycle::Counts {
        attempt: 0,
        max_attempts: 1,
        crashes: 0,
        max_crashes: 1,
        retry: tenure::RetryPolicy::default(),
    };
    Next::state(after_settling(&counts, outcome))
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

/// Each call passes through the faults. The books record the calls under `noted`, and all of those
/// written by hand but `prune`; they do not record those under `plain`.
macro_rules! pass {
    (
        $part:ident
        noted { $($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)* }
        plain { $($look:ident($($what:ident: $of:ty),*) -> $seen:ty;)* }
        by hand { $($hand:tt)* }
    ) => {
        impl $part for Faulty {
            $(fn $name(&mut self, $($arg: $type),*) -> Result<$answer> {
                self.through(
                    stringify!($name),
                    |store| store.$name($($arg),*),
                    |books, who, answer, _| books.$name(who, $($arg,)* answer),
                    || None,
                )
            })*
            $(fn $look(&mut self, $($what: $of),*) -> Result<$seen> {
                self.through(stringify!($look), |store| store.$look($($what),*), |_, _, _, _| {}, || None)
            })*
            $($hand)*
        }
    };
}

pass! {
    Work
    noted {
        progress(reports: &[Report]) -> Vec<Reported>;
        vanished(limit: usize) -> Vec<Lapse>;
        overdue(limit: usize, grace: Duration) -> Vec<Fence>;
    }
    plain {
        enqueue(jobs: &[NewJob]) -> Vec<Enqueued>;
        register(worker: &Registration) -> Guarded;
        retire(worker: &WorkerId) -> ();
        current(jobs: &[JobId]) -> Vec<Option<Current>>;
        beat() -> Beat;
        wait(until: Instant) -> Wake;
    }
    by hand {
        fn renew(&mut self, fences: &[Fence], length: Duration) -> Result<Vec<Renewed>> {
            // The mutant with `RenewsFew` has a limit, and leaves the rest for the next round.
            let few = self.flaw == Some(Flaw::RenewsFew);
            let (now, later) = fences.split_at(if few { fences.len().min(16) } else { fences.len() });
            let answers = self.through(
                "renew",
                |store| store.renew(now, length),
                |books, who, answers, _| books.renew(who, now, length, answers),
                || Some(Late::Renew(fences.to_vec(), length)),
            );
            answers.map(|mut answers| {
                answers.extend(later.iter().map(|_| Renewed::Busy));
                answers
            })
        }

        fn ledger(&mut self, entries: &[Entry]) -> Result<Vec<Answer>> {
            self.through(
                "ledger",
                |store| store.ledger(entries),
                |books, who, answers, _| books.ledger(who, entries, answers),
                || Some(Late::Ledger(entries.to_vec())),
            )
        }

        fn lapse(&mut self, fences: &[Fence]) -> Result<Vec<Lapsed>> {
            self.through(
                "lapse",
                |store| store.lapse(fences),
                |books, who, answers, _| books.lapse(who, fences, answers),
                || Some(Late::Lapse(fences.to_vec())),
            )
        }

        fn prune(&mut self, limit: usize) -> Result<Pruned> {
            if self.flaw == Some(Flaw::NeverPrunes) {
                return Ok(Pruned { jobs: 0, keys: 0 });
            }
            self.through("prune", |store| store.prune(limit), |_, _, _, _| {}, || None)
        }

        fn claim(&mut self, ask: &Claim) -> Result<Claimed> {
            let ask = &self.asked(ask);
            self.through(
                "claim",
                |store| store.claim(ask),
                |books, who, claimed, lost| {
                    books.claim(who, ask, claimed);
                    if lost {
                        books.unheard(claimed);
                    } else {
                        books.served(who, claimed);
                    }
                },
                || Some(Late::Claim(ask.clone())),
            )
        }

        fn held(&mut self, worker: &WorkerId, request: Option<i64>) -> Result<Vec<Attempt>> {
            let is_forgotten = match self.flaw {
                Some(Flaw::ForgetsWhatItHolds) => true,
                // The mutant with `AsksOnce` asks the store only once about a claim; if it asks
                // again, the answer is that it holds nothing.
                Some(Flaw::AsksOnce) => request.is_some_and(|request| !self.shared.books().asks(&self.who, request)),
                _ => false,
            };
            if is_forgotten {
                return Ok(Vec::new());
            }
            self.through(
                "held",
                |store| store.held(worker, request),
                |books, who, held, lost| {
                    if !lost {
                        books.held(who, request, held);
                    }
                },
                || None,
            )
        }

        fn settle(&mut self, settlements: &[Settlement]) -> Result<Vec<Settled>> {
            let answer = self.through(
                "settle",
                |store| store.settle(settlements),
                |books, who, answers, _| books.settle(who, settlements, answers),
                || Some(Late::Settle(settlements.to_vec())),
            );
            answer.or_else(|error| self.consent(settlements).ok_or(error))
        }

        fn settle_and_claim(
            &mut self,
            settlements: &[Settlement],
            ask: &Claim,
        ) -> Result<(Vec<Settled>, Claimed)> {
            let ask = &self.asked(ask);
            let answer = self.through(
                "settle_and_claim",
                |store| store.settle_and_claim(settlements, ask),
                |books, who, answers, lost| {
                    books.settle_and_claim(who, settlements, ask, answers);
                    if lost {
                        books.unheard(&answers.1);
                    } else {
                        books.served(who, &answers.1);
                    }
                },
                || Some(Late::SettleAndClaim(settlements.to_vec(), ask.clone())),
            );
            let nothing =
                Claimed { attempts: vec![], lapsed: vec![], cursor: ask.cursor, next_due: None };
            answer.or_else(|error| {
                self.consent(settlements).map(|settled| (settled, nothing)).ok_or(error)
            })
        }
    }
}

pass! {
    Operate
    noted {
        requeue(jobs: &[AsSeen]) -> Vec<Changed>;
        resume(jobs: &[JobId]) -> Vec<Changed>;
        resolve(job: JobId, effect: &Name, how: &Resolution) -> Resolved;
    }
    plain {
        purge(jobs: &[AsSeen]) -> Vec<Changed>;
        configure(queue: &Name, change: &QueueChange) -> QueueSettings;
        raise_epoch(reason: &str) -> u32;
        set_guard_gap(gap: Duration) -> Duration;
    }
    by hand {
        fn cancel(&mut self, jobs: &[JobId]) -> Result<Vec<Changed>> {
            self.through(
                "cancel",
                |store| store.cancel(jobs),
                |books, who, answers, _| books.cancel(who, jobs, answers),
                || Some(Late::Cancel(jobs.to_vec())),
            )
        }
    }
}
