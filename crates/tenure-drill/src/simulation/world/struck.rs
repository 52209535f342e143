//! How each fault affects the run.
use std::time::Duration;
use tenure::engine::store::{AsSeen, Operate};

use tenure::drill::Explorable;
use tenure::drill::machines::Stage;
use tenure::{State, WorkerId};

use super::super::books::Living;
use super::super::faults::Kind;
use super::super::late::Underway;
use super::super::orders;
use super::super::trace::Rare;
use super::{Backup, Cut, Fault, World};

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
            Kind::Late => {
                // A held-up call is applied either soon, so that it crosses its sender's next call,
                // or long after the sender has gone on.
                let most = if length(0, 2).is_zero() { 200 } else { 2 * lease };
                let by = length(10, most);
                self.shared.weather().held_up.push(by);
            }
            Kind::Cut => self.cut(place, length(lease / 2, 3 * lease), number),
            Kind::Down => {
                let until = self.elapsed + length(100, 2 * lease);
                self.shared.weather().down_until = until;
                self.stand_still(until);
                let mut books = self.shared.books();
                books.trace.tell(None, format!("fault {number}: the store is down"));
            }
            Kind::Freeze => self.freeze(length(lease, 10 * lease), number),
            Kind::Full => {
                let until = self.elapsed + length(100, 2 * lease);
                self.shared.weather().full_until = until;
                self.stand_still(until);
                let mut books = self.shared.books();
                books.trace.tell(None, format!("fault {number}: the store cannot be written to"));
            }
            Kind::Jump => {
                let forward = !length(0, 3).is_zero();
                let by = if forward { length(lease / 4, 3 * lease) } else { length(0, 2 * lease) };
                self.jump(by, forward, number);
            }
            Kind::Sleep => {
                let by = length(lease / 2, 3 * lease);
                self.elapsed += by;
                self.still_until = self.still_until.max(Some(self.elapsed));
                self.shared.books().disturb(Some(self.elapsed));
                // The store's clock goes on, but not the monotonic clock that it is compared with:
                // by that difference the store notices the sleep.
                self.clock.jump(by);
                self.advance(Duration::ZERO);
                let mut books = self.shared.books();
                books.jumped = true;
                books.trace.tell(None, format!("fault {number}: everything slept"));
            }
            Kind::Failover => {
                let after = 20 + chance.below(300);
                let turn = self.turn + after;
                let dump = self.store.dump().expect("a copy");
                let books = self.shared.books().copy();
                let (last_order, pulse) = (orders::last(&self.store), orders::pulse(&self.store));
                self.copies.push(Backup { turn, dump, books, last_order, pulse });
            }
            Kind::Cancel => {
                let running = chance.below(2) == 0;
                let wanted =
                    |state: State| !state.has_ended() && (state == State::Running) == running;
                if let Some(job) = self.any_job(&mut chance, wanted) {
                    // The call may be lost. The person does not repeat it.
                    let _ = self.person.cancel(&[job]);
                }
            }
            Kind::Requeue => {
                // Sometimes choose among the succeeded jobs too: their requeue is refused.
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

    /// Cuts one worker off from the store. When its leases are over, other workers may take its
    /// jobs.
    fn cut(&mut self, place: usize, length: Duration, number: u32) {
        let (since, until) = (self.elapsed, self.elapsed + length);
        let Some(worker) = &self.workers[place] else { return };
        let who = worker.id.clone();
        self.shared.weather().cut.insert(who.clone(), until);
        let mut books = self.shared.books();
        books.trace.tell(None, format!("fault {number}: {who} is cut off"));
        books.hinder(&who, until);
        if let Some(living) = books.workers.get_mut(&who) {
            living.cut_until = until;
        }
        let disturbances = books.disturbances;
        self.cuts.push(Cut { who, since, until, disturbances });
    }

    /// Ends the cuts that are over. If a worker was cut off for longer than a lease, while another
    /// worker could reach the store all the time, the first must have lost its jobs.
    pub(super) fn end_cuts(&mut self) {
        const GRACE: Duration = Duration::from_secs(5);
        let over: Vec<Cut> = self.cuts.extract_if(.., |cut| cut.until <= self.elapsed).collect();
        for Cut { who, since, until, disturbances } in over {
            let mut books = self.shared.books();
            let steady = |(other, living): (&WorkerId, &Living)| {
                *other != who && living.since <= since && living.hindered <= since
            };
            let others = books.workers.iter().any(steady);
            let long = until - since > self.setup.scenario.lease + GRACE;
            let calm = books.disturbances == disturbances
                && self.still_until.is_none_or(|still| still <= since);
            if others && long && calm {
                books.was_cut_off(&who, since);
            }
        }
    }

    /// Applies calls that were held up, once the store answers again.
    pub(super) fn deliver(&mut self) {
        let mut weather = self.shared.weather();
        if self.elapsed < weather.down_until.max(weather.full_until) {
            return;
        }
        let due: Vec<Underway> =
            weather.underway.extract_if(.., |call| call.at <= self.elapsed).collect();
        drop(weather);
        for call in due {
            call.arrive(&mut self.store, &mut self.shared.books());
        }
    }

    /// The store stands still for all workers. If it has a pulse by then, it notices the stall, and
    /// no lease may lapse because of the stall. But a lease is extended only once: after a second
    /// stall within one lease, lapses are excused.
    fn stand_still(&mut self, until: Duration) {
        let lease = self.scenario().lease;
        let first = self.still_until.is_none_or(|last| self.elapsed > last + lease);
        self.still_until = self.still_until.max(Some(until));
        let pardoned = first && orders::pulse(&self.store) > 0;
        self.shared.books().disturb((!pardoned).then_some(until));
    }

    /// The store keeps all calls waiting for a long time, and no caller gives up; then all go on at
    /// once. No clock has jumped: only the gap in the pulse shows the stall.
    fn freeze(&mut self, length: Duration, number: u32) {
        let busy = self.shared.books().is_anybody_at_work();
        self.stand_still(self.elapsed + length);
        self.advance(length);
        let mut books = self.shared.books();
        if busy {
            books.count(Rare::StoreStalled);
        }
        books.trace.tell(None, format!("fault {number}: the store has kept all waiting"));
    }

    fn ask_to_end(&mut self, place: usize, finishes: bool, number: u32) {
        let Some(worker) = &self.workers[place] else { return };
        let stage = if finishes { Stage::Finishing } else { Stage::Releasing };
        worker.desk.advance(stage);
        let mut books = self.shared.books();
        books.trace.tell(None, format!("fault {number}: {} is to end: {stage:?}", worker.id));
        if !finishes {
            // From here on the worker does not renew the jobs that it stops.
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
        books.jumped = true;
        self.still_until = self.still_until.max(Some(self.elapsed));
        books.disturb(Some(self.elapsed));
        if by > self.setup.scenario.lease {
            books.count(if forward { Rare::ClockAhead } else { Rare::ClockBack });
        }
        books.trace.tell(None, format!("fault {number}: the store's clock is set {words}"));
    }

    /// The database becomes an earlier copy. All other copies are dropped, because they may have
    /// been made in the time that is undone.
    pub(super) fn go_back(&mut self, backup: Backup) {
        self.store.go_back(&backup.dump).expect("it goes back");
        orders::back_to(&self.store, backup.last_order);
        orders::set_pulse(&self.store, backup.pulse);
        self.copies.clear();
        self.set_clocks();
        let mut books = self.shared.books();
        self.still_until = self.still_until.max(Some(self.elapsed));
        books.disturb(Some(self.elapsed));
        books.back_to(backup.books);
    }
}
