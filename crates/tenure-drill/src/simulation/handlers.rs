//! The handlers of the simulation: what a job does between its claim and its end, one call at a
//! time, so that anything can happen in between.
//!
//! The handlers behave as the context of a real handler does: they begin no effect while the lease
//! cannot be trusted, repeat a call that the store does not answer, and stop when the store
//! refuses.

use std::sync::Arc;
use std::time::Duration;

use tenure::drill::machines::{Cause, Committed, Desk, Hold, Returned, decide};
use tenure::engine::clock::{Chance, Jitter, Moment};
use tenure::engine::job::{Json, Name, Progress};
use tenure::engine::ledger::{Act, Answer, Entry, Resolution};
use tenure::engine::lifecycle::{Counts, Fault};
use tenure::engine::store::{Attempt, Report, Reported, Settled, Work};

use super::faulty::Faulty;
use super::orders::ORDER;
use super::trace::Rare;
use super::workers::Flaw;

/// The kinds of jobs, each with its share in percent.
pub(super) const KINDS: [(&str, u64); 9] = [
    // Takes its time, and sometimes fails.
    ("work", 44),
    // Remembers a step.
    ("step", 8),
    // Has an effect. If that is in doubt, the job parks for a person.
    ("pay", 11),
    // Has an effect. If that is in doubt, the handler sends it again.
    ("mail", 11),
    // Has an effect. If that is in doubt, the handler asks the other side.
    ("wire", 11),
    // Ends in a transaction of its own, with a row of its own.
    (ORDER, 6),
    // Fails so often that its attempts may run out.
    ("fragile", 5),
    // Has a short maximum runtime.
    ("timed", 3),
    // Kills its worker.
    (POISON, 1),
];

/// A kind that is not in the mixture: by chance it snoozes or kills its worker.
pub(super) const FICKLE: &str = "fickle";
/// A kind that is not in the mixture: it runs for several leases.
pub(super) const LONG: &str = "long";
/// A kind that kills its worker.
pub(super) const POISON: &str = "poison";

/// A handler at work.
pub(super) struct Running {
    /// When it goes on.
    pub(super) at: Moment,
    hold: Arc<Hold>,
    /// The number of the claim in the books. The handler only passes it on to them.
    number: u64,
    kind: Name,
    place: Place,
    /// It ignores the request to stop.
    deaf: bool,
    /// The answer of the other side gets lost.
    unanswered: bool,
    /// The other side rejects the effect.
    turned_down: bool,
    /// How long the effect takes to arrive.
    way: Duration,
    /// How long its work takes.
    work: Duration,
    counts: Counts,
    /// What it returns.
    answer: Result<Option<Json>, Fault>,
    jitter: Jitter,
    /// At its end it kills its process.
    kills: bool,
    pause: Duration,
}

/// How far a handler is.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Begin,
    Recall,
    Remember,
    Open,
    Resolve(Resolution),
    Send,
    Arrive,
    Fail,
    Commit,
    Work,
    End,
}

/// The result of a step.
pub(super) enum Did {
    /// It goes on later.
    Goes,
    /// It has returned.
    Returned(Returned),
    /// It killed its process.
    Died,
}

impl Running {
    /// A job starts.
    pub(super) fn new(
        attempt: &Attempt,
        hold: Arc<Hold>,
        number: u64,
        chance: &mut Chance,
        (quiet, flaw): (bool, Option<Flaw>),
        now: Moment,
    ) -> Running {
        let fragile = attempt.kind.as_str() == "fragile";
        let millis = match chance.below(100) {
            _ if attempt.kind.as_str() == LONG => 15_000 + chance.below(15_000),
            0..80 => 1 + chance.below(50),
            80..96 => chance.below(2_000),
            // Up to 40 s, which may be longer than a lease: then the job depends on renewals.
            _ if !quiet => chance.below(40_000),
            _ => 1,
        };
        let fault = match chance.below(100) {
            _ if quiet => None,
            0..70 if fragile => Some(Fault::Retry { error: "it failed".into() }),
            0..88 => None,
            88..96 => Some(Fault::Retry { error: "it failed".into() }),
            96..98 => Some(Fault::RetryAfter {
                after: Duration::from_millis(chance.below(3_000)),
                error: "429".into(),
            }),
            _ => Some(Fault::Snooze { after: Duration::from_millis(chance.below(1_000)) }),
        };
        // A fickle job snoozes or kills, and never succeeds.
        let fickle = attempt.kind.as_str() == FICKLE;
        let fault = match fault {
            _ if fickle => {
                Some(Fault::Snooze { after: Duration::from_millis(chance.below(1_000)) })
            }
            fault => fault,
        };
        let kills = attempt.kind.as_str() == POISON || fickle && chance.below(2) == 0;
        let jitter = match &fault {
            Some(_) => chance.jitter(),
            None => Jitter(0),
        };
        // The mutant with `NoJitter` has no jitter.
        let jitter = if flaw == Some(Flaw::NoJitter) { Jitter(0) } else { jitter };
        // In one case out of ten, the effect may take longer to arrive than the lease lasts.
        let slow = !quiet && chance.below(10) == 0;
        let way = Duration::from_millis(1 + chance.below(if slow { 20_000 } else { 60 }));
        let work = Duration::from_millis(millis);
        // A part of the work is done before the first call, the rest later.
        let head = work * u32::try_from(chance.below(100)).unwrap_or(0) / 100;
        Running {
            at: now + head,
            hold,
            number,
            kind: attempt.kind.clone(),
            place: Place::Begin,
            deaf: chance.below(20) == 0,
            unanswered: !quiet && chance.below(12) == 0,
            turned_down: !quiet && chance.below(15) == 0,
            way,
            work: work - head,
            counts: attempt.counts(),
            answer: fault.map_or(Ok(None), Err),
            jitter,
            kills,
            pause: Duration::from_millis(20),
        }
    }

    /// Whether it goes on now.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        self.at <= now || self.is_stopping()
    }

    /// Whether the handler is stopping. Not while an effect is on its way: what was sent cannot be
    /// recalled.
    fn is_stopping(&self) -> bool {
        !self.deaf && self.place != Place::Arrive && self.hold.stopped_for().is_some()
    }

    /// Its lease.
    pub(super) fn hold(&self) -> &Hold {
        &self.hold
    }

    /// Takes one step.
    pub(super) fn step(&mut self, line: &mut Faulty, desk: &Desk, now: Moment) -> Did {
        let ignores = line.flaw == Some(Flaw::IgnoresRefusal);
        if self.is_stopping() && !ignores {
            return self.ended(None, None);
        }
        // Do not begin an effect while the lease is not trusted.
        let begins = matches!(self.place, Place::Open | Place::Send);
        if begins && !self.hold.is_trusted(now) && !ignores {
            self.at = now + Duration::from_millis(50);
            return Did::Goes;
        }
        let (name, step) = (effect(), step());
        let has_effect = matches!(self.kind.as_str(), "pay" | "mail" | "wire");
        match self.place.clone() {
            Place::Begin => {
                let first = if has_effect || self.kind.as_str() == "step" {
                    Place::Recall
                } else {
                    Place::Work
                };
                let report =
                    Report { fence: self.hold.fence, progress: Progress::new(0.5, "half") };
                // The report is sent once. If it is lost, the handler goes on; only a refusal stops
                // it.
                match line.progress(&[report]).as_deref() {
                    Ok([Reported::Stale(_) | Reported::NotFound]) if !ignores => {
                        return self.lost(desk);
                    }
                    _ => self.go(first, now),
                }
            }
            Place::Recall => match self.ask(line, &step, Act::Recall, now) {
                Some(Answer::Remembered(_)) => self.after_step(has_effect, now),
                Some(Answer::Unknown) => self.go(Place::Remember, now),
                Some(_) if !ignores => return self.lost(desk),
                Some(_) => self.after_step(has_effect, now),
                None => {}
            },
            Place::Remember => {
                let result = json(&self.hold.fence.token.to_string());
                match self.ask(line, &step, Act::Remember { result }, now) {
                    Some(Answer::Stale(_) | Answer::NotFound) if !ignores => {
                        return self.lost(desk);
                    }
                    Some(_) => self.after_step(has_effect, now),
                    None => {}
                }
            }
            Place::Open => match self.ask(line, &name, Act::Open, now) {
                Some(Answer::Opened) if self.turned_down => self.go(Place::Fail, now),
                Some(Answer::Opened) => self.go(Place::Send, now),
                Some(Answer::Committed(_)) => self.go(Place::Work, now),
                Some(Answer::Decided(result)) => {
                    self.go(Place::Resolve(Resolution::Committed { result }), now);
                }
                Some(Answer::InDoubt(_)) => self.doubt(line, &name, now),
                Some(_) if ignores => self.go(Place::Send, now),
                Some(_) => return self.lost(desk),
                None => {}
            },
            Place::Resolve(how) => {
                let next = match &how {
                    Resolution::Resend => Place::Send,
                    Resolution::Committed { .. } => Place::Work,
                };
                match self.ask(line, &name, Act::Resolve(how), now) {
                    Some(Answer::Recorded) => self.go(next, now),
                    Some(Answer::NotAllowed(_)) => self.unexpected(now),
                    Some(_) => return self.lost(desk),
                    None => {}
                }
            }
            Place::Send => {
                self.place = Place::Arrive;
                self.at = now + self.way;
            }
            Place::Arrive => {
                let mut books = line.shared.books();
                let accepted = books.send(&line.who, self.hold.fence, &name, self.number);
                drop(books);
                if !accepted || self.unanswered {
                    self.fails("the other side does not answer");
                    self.go(Place::End, now);
                } else {
                    self.go(Place::Commit, now);
                }
            }
            Place::Fail => {
                match self.ask(line, &name, Act::Fail { error: "not wanted".into() }, now) {
                    Some(Answer::Recorded) => {
                        self.fails("the other side does not want it");
                        self.go(Place::End, now);
                    }
                    Some(Answer::NotAllowed(_)) => self.unexpected(now),
                    Some(_) => return self.lost(desk),
                    None => {}
                }
            }
            Place::Commit => match self.ask(line, &name, Act::Commit { result: json("1") }, now) {
                Some(Answer::Recorded) => self.go(Place::Work, now),
                Some(Answer::NotAllowed(_)) => self.unexpected(now),
                Some(_) => return self.lost(desk),
                None => {}
            },
            Place::Work => {
                self.place = Place::End;
                self.at = now + self.work;
            }
            Place::End if self.kills => return Did::Died,
            Place::End if self.commits() => return self.commit(line, desk),
            Place::End => return self.ended(Some(self.answer.clone()), None),
        }
        Did::Goes
    }

    /// Whether the handler completes its job itself, together with a row of its own.
    fn commits(&self) -> bool {
        self.kind.as_str() == ORDER && self.answer.is_ok()
    }

    /// Completes the job in the handler's own transaction. If the store does not answer, the
    /// handler either fails, or returns, and the worker looks the outcome up.
    fn commit(&self, line: &mut Faulty, desk: &Desk) -> Did {
        match line.commit(self.hold.fence) {
            Ok(Settled::Applied(_)) => {
                line.shared.books().count(Rare::CommittedByHandler);
                self.ended(Some(Ok(None)), Some(Committed::Yes))
            }
            Ok(Settled::Stale(_) | Settled::NotFound) => self.lost(desk),
            Err(_) if self.turned_down => {
                self.ended(Some(Err(failure("the store did not answer"))), None)
            }
            Err(_) => {
                line.shared.books().count(Rare::CommitLookedUp);
                self.ended(Some(Ok(None)), Some(Committed::Perhaps))
            }
        }
    }

    /// The handler has returned this answer, or was stopped without one. The worker's own code
    /// (`decide`) says what becomes of the attempt.
    fn ended(
        &self,
        answer: Option<Result<Option<Json>, Fault>>,
        committed: Option<Committed>,
    ) -> Did {
        let stopped = self.hold.stopped_for();
        Did::Returned(decide(&self.counts, answer, committed, stopped, self.jitter))
    }

    fn go(&mut self, place: Place, now: Moment) {
        self.place = place;
        self.pause = Duration::from_millis(20);
        self.at = now + Duration::from_micros(500);
    }

    fn after_step(&mut self, has_effect: bool, now: Moment) {
        self.go(if has_effect { Place::Open } else { Place::Work }, now);
    }

    /// An earlier attempt may have done the effect. The kind of the job decides what the handler
    /// does about that.
    fn doubt(&mut self, line: &Faulty, name: &Name, now: Moment) {
        let mut books = line.shared.books();
        let next = match self.kind.as_str() {
            "mail" => Place::Resolve(Resolution::Resend),
            "wire" => {
                books.count(Rare::Verified);
                if books.witness.has(self.hold.fence.job, name) {
                    Place::Resolve(Resolution::Committed { result: json("2") })
                } else {
                    Place::Resolve(Resolution::Resend)
                }
            }
            _ => {
                self.answer = Err(Fault::Park { reason: "the effect is in doubt".into() });
                Place::End
            }
        };
        drop(books);
        self.go(next, now);
    }

    fn fails(&mut self, error: &str) {
        self.answer = Err(failure(error));
    }

    /// The ledger has forgotten what was written to it, which happens after a failover. Bury the
    /// job, so that a person looks at it.
    fn unexpected(&mut self, now: Moment) {
        self.answer = Err(Fault::Fatal { error: "the ledger does not allow it".into() });
        self.go(Place::End, now);
    }

    /// The store has refused: another worker holds the job, or it has ended.
    fn lost(&self, desk: &Desk) -> Did {
        desk.lose(self.hold.fence, Cause::Lost);
        Did::Returned(Returned::Lost)
    }

    /// Calls the ledger. If the store does not answer, tries again later.
    fn ask(&mut self, line: &mut Faulty, name: &Name, act: Act, now: Moment) -> Option<Answer> {
        let entry = Entry { fence: self.hold.fence, name: name.clone(), act };
        match line.ledger(&[entry]) {
            Ok(mut answers) => answers.pop(),
            Err(_) => {
                self.at = now + self.pause;
                self.pause = (self.pause * 2).min(Duration::from_secs(1));
                None
            }
        }
    }
}

fn failure(error: &str) -> Fault {
    Fault::RetryAfter { after: Duration::from_millis(300), error: error.to_owned() }
}

/// The name of the effect that some jobs have.
pub(super) fn effect() -> Name {
    Name::check("effect", "charge").expect("a name")
}

fn step() -> Name {
    Name::check("step", "load").expect("a name")
}

pub(super) fn json(text: &str) -> Json {
    Json::check("json", text, 100).expect("JSON")
}
