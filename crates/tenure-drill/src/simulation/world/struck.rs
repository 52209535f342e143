//! How each fault befalls the run.

use std::time::Duration;

use tenure::drill::machines::Stage;
use tenure::drill::{Dump, Explorable};
use tenure::job::State;
use tenure::store::{AsSeen, Store};

use super::super::books::Copy;
use super::super::faults::Kind;
use super::{Fault, World};

impl World<'_> {
    pub(super) fn strike(&mut self, fault: Fault) {
        let Fault { number, kind, mut chance, .. } = fault;
        self.struck.push((number, kind));
        let lease = self.scenario().lease.as_millis() as u64;
        let place = usize::try_from(chance.below(self.workers.len() as u64)).unwrap_or(0);
        let mut length = |least: u64, most: u64| {
            Duration::from_millis(least + chance.below(most.saturating_sub(least)))
        };
        match kind {
            Kind::Call => self.shared.weather().calls += 1,
            Kind::Reply => self.shared.weather().replies += 1,
            Kind::Kill => self.kill(place, &format!("fault {number}")),
            Kind::Stall => self.stall(place, length(lease / 2, 3 * lease), number),
            Kind::End => {
                let finishes = length(0, 2).is_zero();
                self.ask_to_end(place, finishes, number);
            }
            Kind::Down => {
                let until = self.elapsed + length(100, 2 * lease);
                self.shared.weather().down_until = until;
                let mut books = self.shared.books();
                books.hindered = books.hindered.max(until);
                books.trace.tell(None, format!("fault {number}: the store is down"));
            }
            Kind::Jump => {
                let forward = !length(0, 4).is_zero();
                let by = if forward { length(lease / 4, 3 * lease) } else { length(0, lease / 2) };
                self.jump(by, forward, number);
            }
            Kind::Sleep => {
                let by = length(lease / 2, 3 * lease);
                self.elapsed += by;
                // Time has passed, but nobody's own clock has run: that is how it is noticed.
                self.clock.jump(by);
                self.advance(Duration::ZERO);
                let mut books = self.shared.books();
                (books.jumped, books.hindered) = (true, books.hindered.max(self.elapsed));
                books.trace.tell(None, format!("fault {number}: everything slept"));
            }
            Kind::Failover => {
                let after = 20 + chance.below(300);
                let dump = self.store.dump().expect("a copy");
                let copy = self.shared.books().copy();
                self.copies.push((self.turn + after, dump, copy));
            }
            Kind::Cancel => {
                if let Some(job) = self.any_job(&mut chance, |state| !state.has_ended()) {
                    // It may be lost; then nobody asks again.
                    let _ = self.person.cancel(&[job]);
                }
            }
            Kind::Requeue => {
                // Now and then of one that succeeded, which is refused.
                let any = chance.below(4) == 0;
                let wanted = |state: State| state.has_ended() && (any || state != State::Succeeded);
                if let Some(job) = self.any_job(&mut chance, wanted) {
                    let _ = self.person.requeue(&[AsSeen::any(job)]);
                }
            }
            Kind::Enqueue => self.enqueue_by_key(&mut chance),
        }
    }

    fn stall(&mut self, place: usize, length: Duration, number: u32) {
        let until = self.now() + length;
        let Some(worker) = &mut self.workers[place] else { return };
        worker.stalled = Some(until);
        let mut books = self.shared.books();
        books.trace.tell(None, format!("fault {number}: {} stands still", worker.id));
        let until = self.elapsed + length;
        books.hinder(&worker.id, until);
    }

    fn ask_to_end(&mut self, place: usize, finishes: bool, number: u32) {
        let Some(worker) = &self.workers[place] else { return };
        let stage = if finishes { Stage::Finishing } else { Stage::Releasing };
        worker.desk.advance(stage);
        let mut books = self.shared.books();
        books.trace.tell(None, format!("fault {number}: {} is to end: {stage:?}", worker.id));
        if !finishes {
            // What it stops is not renewed any more.
            books.hinder(&worker.id, Duration::MAX);
        }
    }

    fn jump(&mut self, by: Duration, forward: bool, number: u32) {
        let millis = i64::try_from(by.as_millis()).unwrap_or(0);
        if forward {
            self.clock.jump(by);
            self.ahead += millis;
        } else {
            self.ahead -= millis;
        }
        self.set_clocks();
        let words = if forward { "ahead" } else { "back" };
        let mut books = self.shared.books();
        (books.jumped, books.hindered) = (true, books.hindered.max(self.elapsed));
        books.trace.tell(None, format!("fault {number}: the store's clock is set {words}"));
    }

    /// The database is a copy from before. Other copies are of a time that is lost too.
    pub(super) fn go_back(&mut self, dump: &Dump, copy: Copy) {
        self.store.go_back(dump).expect("it goes back");
        self.copies.clear();
        self.set_clocks();
        let mut books = self.shared.books();
        books.hindered = books.hindered.max(self.elapsed);
        books.back_to(copy);
    }
}
