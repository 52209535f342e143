//! What happens to a file before the power fails: calls that a seed decides, each with its answer
//! and the state after it.
//!
//! Two connections take turns. Another program (the stranger) keeps its own data in the same file:
//! it commits without a flush, and checkpoints the log whenever it likes. The same seed always
//! makes the same calls.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use tenure::drill::{Dump, Explorable};
use tenure::engine::clock::{Chance, Clock};
use tenure::engine::job::{JobId, Json, Key, Limits, Name, NewJob};
use tenure::engine::lease::{Fence, WorkerId};
use tenure::engine::ledger::{Act, Answer, Entry};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
use tenure::engine::store::{Claim, Enqueued, Operate, Settled, Settlement, Work};

use super::recorder::Recorder;
use super::tape::{Event, Tape};
use super::{FILE, Flush, WITNESS};
use crate::engines::START;

/// A tape, and the answers that the callers got meanwhile.
pub(super) struct History {
    pub(super) tape: Vec<Event>,
    /// In the order in which they began.
    pub(super) calls: Vec<Call>,
}

/// One call that was answered.
#[derive(Debug, Clone, Default)]
pub(super) struct Call {
    /// A description of the call.
    pub(super) what: String,
    /// The state after the call; none if other calls ran at the same time.
    pub(super) after: Option<Dump>,
    /// The jobs that were created, with the request for each.
    pub(super) created: Vec<(JobId, NewJob)>,
    /// The leases that were granted.
    pub(super) issued: Vec<Fence>,
    /// The jobs that the answer reported as ended.
    pub(super) ended: Vec<JobId>,
}

/// Opens a store in `directory`, with a clock that only the caller moves.
pub(super) fn open(directory: &Path, clock: &Clock) -> tenure::Result<Sqlite> {
    let options = StoreOptions { clock: clock.clone(), limits: Limits::default() };
    Sqlite::open(directory.join(FILE), &options)
}

/// Makes `length` calls of a seed, one after the other.
pub(super) fn calls(
    directory: &Path,
    seed: u64,
    length: usize,
    flush: Flush,
) -> io::Result<History> {
    let recorder = Recorder::start(directory)?;
    let tape = recorder.tape();
    let clock = Clock::manual(START);
    let store = open(directory, &clock).map_err(io::Error::other)?;
    flush.set(&store);
    let other = store.share().map_err(io::Error::other)?;
    let mut stores = [store, other];
    let stranger = Connection::open(directory.join(FILE)).map_err(io::Error::other)?;
    let mut author =
        Author { chance: Chance::seeded(seed), clock, fences: Vec::new(), open: BTreeSet::new() };
    let mut calls = vec![Call {
        what: "open".to_owned(),
        after: Some(stores[0].dump().map_err(io::Error::other)?),
        ..Call::default()
    }];
    answered(tape, 0, directory);
    stranger.execute_batch(STRANGER).map_err(io::Error::other)?;
    for at in 1..=length {
        let store = &mut stores[at % 2];
        let mut call = author.call(store).map_err(io::Error::other)?;
        call.after = Some(store.dump().map_err(io::Error::other)?);
        calls.push(call);
        answered(tape, at, directory);
        if let Some(sql) = author.stranger() {
            stranger.execute_batch(sql).map_err(io::Error::other)?;
        }
    }
    let tape = tape.take(); // before the connections are closed: a power cut gives them no chance to
    Ok(History { tape, calls })
}

/// Many concurrent callers that share commits. The order of their threads varies, so no seed
/// repeats it.
pub(super) fn crowd(
    directory: &Path,
    callers: usize,
    rounds: usize,
    flush: Flush,
) -> io::Result<History> {
    let recorder = Recorder::start(directory)?;
    let tape = recorder.tape();
    let store = open(directory, &Clock::manual(START)).map_err(io::Error::other)?;
    flush.set(&store);
    answered(tape, 0, directory);
    let heard = std::sync::Mutex::new(vec![Call { what: "open".to_owned(), ..Call::default() }]);
    let hear = |call: Call| {
        let mut heard = heard.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        heard.push(call);
        answered(tape, heard.len() - 1, directory);
    };
    std::thread::scope(|threads| -> tenure::Result<()> {
        let stores = (0..callers).map(|_| store.share()).collect::<Result<Vec<_>, _>>()?;
        let threads: Vec<_> = stores
            .into_iter()
            .enumerate()
            .map(|(me, store)| threads.spawn(move || live(store, me, rounds, hear)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
    .map_err(io::Error::other)?;
    let tape = tape.take();
    let calls = heard.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    Ok(History { tape, calls })
}

/// The jobs of one caller, in a queue of their own, from enqueue to their end.
fn live(mut store: Sqlite, me: usize, rounds: usize, hear: impl Fn(Call)) -> tenure::Result<()> {
    let queue = name(&format!("queue-{me}"));
    for _ in 0..rounds {
        let job = NewJob::new(name("mail"), json("{}")).queue(queue.clone());
        let answers = store.enqueue(std::slice::from_ref(&job))?;
        hear(Call {
            what: format!("{me}: enqueue"),
            created: created(&answers, &[job]),
            ..Call::default()
        });
        let claimed = store.claim(&claim(&format!("w{me}"), vec![queue.clone()], 1))?;
        let issued: Vec<_> = claimed.attempts.iter().map(|it| it.lease.fence()).collect();
        hear(Call { what: format!("{me}: claim"), issued: issued.clone(), ..Call::default() });
        let done = Outcome::Complete { result: None };
        let settlements: Vec<_> =
            issued.iter().map(|fence| Settlement::new(*fence, done.clone())).collect();
        let ended = ended(&settlements, &store.settle(&settlements)?);
        hear(Call { what: format!("{me}: settle"), ended, ..Call::default() });
    }
    Ok(())
}

/// Records an answer, and the witness's content at that time.
fn answered(tape: &Tape, call: usize, directory: &Path) {
    if let Ok(said) = std::fs::read(directory.join(WITNESS)) {
        tape.note(Event::Witness(said));
    }
    tape.note(Event::Answered(call));
}

/// The kind of job for which the user keeps a row with the job's id.
pub(super) const BESIDE: &str = "ship";

/// What the other program runs first. It does not wait for the disk at its commits.
const STRANGER: &str = "PRAGMA synchronous = NORMAL; CREATE TABLE notes (text TEXT)";

/// Makes up the calls.
struct Author {
    chance: Chance,
    clock: Clock,
    /// Jobs that are claimed and not settled.
    fences: Vec<Fence>,
    /// Jobs with an open effect whose outcome is not recorded yet.
    open: BTreeSet<JobId>,
}

impl Author {
    fn call(&mut self, store: &mut Sqlite) -> tenure::Result<Call> {
        self.clock.advance(Duration::from_millis(self.chance.below(900)));
        // Calls that need a lease are only made when there is one.
        match self.chance.below(if self.fences.is_empty() { 8 } else { 16 }) {
            0..3 => self.enqueue(store),
            3 => self.order(store),
            4..7 => self.claim(store),
            7 => {
                // The leases are over, and the jobs are claimed again.
                self.clock.advance(Duration::from_secs(60));
                self.claim(store)
            }
            8..11 => self.settle(store),
            11 | 12 => {
                store.renew(&self.fences, Duration::from_secs(40))?;
                Ok(Call { what: format!("renew {}", self.fences.len()), ..Call::default() })
            }
            13 => {
                let job = self.fences.remove(0).job;
                store.cancel(&[job])?;
                Ok(Call { what: "cancel 1".to_owned(), ended: vec![job], ..Call::default() })
            }
            _ => self.ledger(store),
        }
    }

    fn enqueue(&mut self, store: &mut Sqlite) -> tenure::Result<Call> {
        let jobs: Vec<_> = (0..1 + self.chance.below(3)).map(|_| self.job()).collect();
        let answers = store.enqueue(&jobs)?;
        let what = format!("enqueue {}", jobs.len());
        Ok(Call { what, created: created(&answers, &jobs), ..Call::default() })
    }

    fn job(&mut self) -> NewJob {
        let large = format!("\"{}\"", "x".repeat(5_000));
        let args = if self.chance.below(6) == 0 { &large } else { "{}" };
        let job = NewJob::new(name("mail"), json(args));
        match self.chance.below(3) {
            0 => {
                let key = format!("key-{}", self.chance.below(1_000));
                job.key(Key::check(key).expect("a valid key"))
            }
            _ => job,
        }
    }

    /// A job and a row of the user's, in one transaction.
    fn order(&mut self, store: &mut Sqlite) -> tenure::Result<Call> {
        let jobs = [NewJob::new(name(BESIDE), json("{}"))];
        let answers = store.transact(Duration::from_secs(60), |tx| {
            let answers = tx.enqueue(&jobs)?;
            for (id, _) in created(&answers, &jobs) {
                tx.execute("INSERT INTO notes VALUES (?1)", [id.0.to_string()])?;
            }
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(answers)
        })?;
        let created = created(&answers.expect("a row is written"), &jobs);
        Ok(Call { what: "enqueue 1 beside a row".to_owned(), created, ..Call::default() })
    }

    fn claim(&mut self, store: &mut Sqlite) -> tenure::Result<Call> {
        let n = 1 + self.chance.below(2) as usize;
        let claimed = store.claim(&claim("ann", vec![Name::default_queue()], n))?;
        let issued: Vec<_> = claimed.attempts.iter().map(|it| it.lease.fence()).collect();
        self.fences.retain(|held| claimed.lapsed.iter().all(|lapse| lapse.about.fence() != *held));
        self.fences.extend(&issued);
        Ok(Call { what: format!("claim {n}"), issued, ..Call::default() })
    }

    fn settle(&mut self, store: &mut Sqlite) -> tenure::Result<Call> {
        let count = self.fences.len().min(1 + self.chance.below(2) as usize);
        let mut settlements = Vec::new();
        for fence in self.fences.drain(..count) {
            let outcome = match self.chance.below(4) {
                0 => Outcome::Retry { after: Duration::ZERO, error: "it failed".into() },
                1 => Outcome::Park { reason: "ask Ann".into() },
                // A job with an open effect must not be completed: the outcome of the effect is
                // unknown.
                _ if self.open.contains(&fence.job) => Outcome::Park { reason: "ask Bob".into() },
                _ => Outcome::Complete { result: Some(json("7")) },
            };
            let then = if self.chance.below(4) == 0 { vec![follow_up()] } else { vec![] };
            settlements.push(Settlement { fence, outcome, then });
        }
        let answers = store.settle(&settlements)?;
        Ok(Call {
            what: format!("settle {count}"),
            ended: ended(&settlements, &answers),
            ..Call::default()
        })
    }

    /// Opens an effect, records the outcome of one, or records a step. Each is durable before it is
    /// answered.
    fn ledger(&mut self, store: &mut Sqlite) -> tenure::Result<Call> {
        let Some(fence) = self.fences.last().copied() else { return Ok(Call::default()) };
        let is_open = self.open.contains(&fence.job);
        let (effect, act) = match self.chance.below(3) {
            0 => ("load", Act::Remember { result: json("1") }),
            _ if is_open => ("charge", Act::Commit { result: json("2") }),
            _ => ("charge", Act::Open),
        };
        let what = format!("write to the ledger ({})", act.verb().name());
        match store.ledger(&[Entry { fence, name: name(effect), act }])?.as_slice() {
            [Answer::Opened | Answer::InDoubt(_)] => self.open.insert(fence.job),
            [Answer::Recorded] if effect == "charge" => self.open.remove(&fence.job),
            _ => false,
        };
        Ok(Call { what, ..Call::default() })
    }

    /// What the other program does next, if anything.
    fn stranger(&mut self) -> Option<&'static str> {
        match self.chance.below(8) {
            0 | 1 => Some("INSERT INTO notes VALUES ('it was here')"),
            2 => Some("PRAGMA wal_checkpoint(PASSIVE)"),
            3 => Some("PRAGMA wal_checkpoint(RESTART)"),
            4 => Some("PRAGMA wal_checkpoint(TRUNCATE)"),
            _ => None,
        }
    }
}

fn follow_up() -> NewJob {
    NewJob::new(name("follow"), json("{}"))
}

fn created(answers: &[Enqueued], jobs: &[NewJob]) -> Vec<(JobId, NewJob)> {
    let told = |(answer, job): (&Enqueued, &NewJob)| match answer {
        Enqueued::Created(id) => Some((*id, job.clone())),
        Enqueued::Existing(_) | Enqueued::Conflict(_) => None,
    };
    answers.iter().zip(jobs).filter_map(told).collect()
}

fn ended(settlements: &[Settlement], answers: &[Settled]) -> Vec<JobId> {
    let told = |(settlement, answer): (&Settlement, &Settled)| match answer {
        Settled::Applied(state) => state.has_ended().then_some(settlement.fence.job),
        Settled::Stale(_) | Settled::NotFound => None,
    };
    settlements.iter().zip(answers).filter_map(told).collect()
}

/// A claim with a lease of half a minute.
pub(super) fn claim(worker: &str, queues: Vec<Name>, n: usize) -> Claim {
    Claim {
        queues,
        ..Claim::new(
            WorkerId::check(worker).expect("a valid worker id"),
            n,
            Duration::from_secs(30),
        )
    }
}

pub(super) fn name(text: &str) -> Name {
    Name::check("name", text).expect("a valid name")
}

pub(super) fn json(text: &str) -> Json {
    Json::check("json", text, usize::MAX).expect("valid JSON")
}
