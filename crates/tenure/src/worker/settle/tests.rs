//! The settler alone, with a store that fails on demand.

mod told;

use std::sync::Mutex;
use std::time::Instant;

use super::*;
use crate::clock::{Clock, Timestamp};
use crate::inspect::Current;
use crate::job::{Invalid, Json, Limits, Name, NewJob, Tenant};
use crate::lease::{Token, WorkerId};
use crate::ledger::{Answer, Entry};
use crate::record::About;
use crate::store::sealed::Sealed;
use crate::store::sqlite::{Sqlite, StoreOptions};
use crate::store::{
    Attempt, Beat, Claim, Claimed, Enqueued, Guarded, Lapse, Lapsed, Look, Operate, Pruned,
    Registration, Report, Reported, Wake,
};
use crate::telemetry::Observer;

/// The first attempt of this job.
fn ended(job: i64) -> Ended {
    ended_as(
        Fence { job: JobId(job), token: Token(1) },
        Returned::Settle(Outcome::Complete { result: None }),
    )
}

/// An attempt that ran for 7 ms and ended in this way.
fn ended_as(fence: Fence, returned: Returned) -> Ended {
    let about = About {
        job: fence.job,
        token: fence.token,
        kind: Name::check("kind", "work").unwrap(),
        queue: Name::default_queue(),
        tenant: Tenant::default(),
        attempt: 1,
        trace: None,
    };
    Ended { about: Arc::new(about), returned, ran: Duration::from_millis(7), was_sent: false }
}

#[test]
fn what_was_locked_is_never_more_than_one_call_takes_together_with_the_rest() {
    let full = BATCH_LIMIT as i64;
    let mut settler = Settler {
        pending: (1..full).map(ended).collect(),
        locked: vec![ended(full), ended(full + 1)],
        ..Settler::default()
    };
    let mut store = Sqlite::in_memory(&StoreOptions::default()).unwrap();
    settler.pass_by_locked(&mut store, Duration::from_secs(1), Moment::now()).unwrap();
    assert_eq!((settler.pending.len(), settler.locked.len()), (BATCH_LIMIT, 1));
}

/// A store with one job, and the reported events.
struct Bench {
    clock: Clock,
    store: Sqlite,
    told: Arc<Mutex<Vec<&'static str>>>,
    plan: Arc<Plan>,
    desk: Desk,
}

const LEASE: Duration = Duration::from_secs(30);

fn ask(who: &str) -> Claim {
    Claim::new(WorkerId::check(who).unwrap(), 1, LEASE)
}

impl Bench {
    fn new() -> Bench {
        let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
        let options = StoreOptions { clock: clock.clone(), limits: Limits::default() };
        let mut store = Sqlite::in_memory(&options).unwrap();
        let kind = Name::check("kind", "work").unwrap();
        store.enqueue(&[NewJob::new(kind, Json::check("args", "{}", 10).unwrap())]).unwrap();
        let told: Arc<Mutex<Vec<&str>>> = Arc::default();
        let seen = Arc::clone(&told);
        let plan = Plan {
            observer: Observer::new(move |event| seen.lock().unwrap().push(event.fact.name())),
            ..Plan::new(WorkerId::check("ann").unwrap())
        };
        Bench { clock, store, told, plan: Arc::new(plan), desk: Desk::new(1) }
    }

    /// Claims the job.
    fn take(&mut self, who: &str) -> Fence {
        self.store.claim(&ask(who)).unwrap().attempts.remove(0).lease.fence()
    }

    fn complete(&mut self, fence: Fence) {
        let outcome = Outcome::Complete { result: None };
        let answers = self.store.settle(&[Settlement::new(fence, outcome)]).unwrap();
        assert_eq!(answers, [Settled::Applied(State::Succeeded)]);
    }

    /// Lets Ann's settler settle an attempt that ended in this way, and returns the reported
    /// events.
    fn settle(&mut self, fence: Fence, returned: Returned) -> Vec<&'static str> {
        let ended = vec![ended_as(fence, returned)];
        let mut settler = match ended[0].returned {
            Returned::PerhapsCommitted => Settler { unknown: ended, ..Settler::default() },
            _ => Settler { pending: ended, ..Settler::default() },
        };
        let now = Moment::after_start(Duration::from_secs(1_000));
        settler.look_up(&mut self.store, &self.plan, &self.desk, now).unwrap();
        let settlements = settler.settlements(&self.plan, &self.desk);
        let answers = self.store.settle(&settlements).unwrap();
        settler.heard(&answers, &self.plan, &self.desk);
        self.told.lock().unwrap().drain(..).collect()
    }
}

#[test]
fn a_job_that_its_handler_has_perhaps_completed_is_told_as_a_success_only_if_it_has() {
    let mut bench = Bench::new();
    let ours = bench.take("ann");
    bench.clock.advance(LEASE);
    let theirs = bench.take("bob");
    assert!(theirs.job == ours.job && theirs.token > ours.token);
    bench.complete(theirs);
    let told = bench.settle(ours, Returned::PerhapsCommitted);
    assert_eq!(told, [""; 0], "another holder has completed it");
    // The same question about the holder that completed it.
    assert_eq!(bench.settle(theirs, Returned::PerhapsCommitted), ["job_succeeded"]);
}

#[test]
fn a_settlement_that_finds_its_job_cancelled_tells_that_and_no_blocked_write() {
    for returned in
        [Returned::Settle(Outcome::Complete { result: None }), Returned::PerhapsCommitted]
    {
        let mut bench = Bench::new();
        let fence = bench.take("ann");
        bench.store.cancel(&[fence.job]).unwrap();
        assert_eq!(bench.settle(fence, returned), ["job_cancelled"]);
    }
}

#[test]
fn a_settlement_that_finds_its_job_taken_over_tells_of_a_blocked_write() {
    let mut bench = Bench::new();
    let ours = bench.take("ann");
    bench.clock.advance(LEASE);
    let theirs = bench.take("bob");
    let done = || Returned::Settle(Outcome::Complete { result: None });
    assert_eq!(bench.settle(ours, done()), ["stale_write_blocked"]);
    bench.complete(theirs);
    assert_eq!(bench.settle(ours, done()), ["stale_write_blocked"]);
}

/// A store that fails with these errors first, and records its calls. It answers the renewal of a
/// job in `locked` with `Busy`.
struct Frail {
    store: Sqlite,
    fails: Vec<Error>,
    locked: Vec<JobId>,
    calls: Vec<&'static str>,
}

impl Frail {
    fn new(store: Sqlite) -> Frail {
        Frail { store, fails: Vec::new(), locked: Vec::new(), calls: Vec::new() }
    }

    fn called(&mut self, call: &'static str) -> Result<()> {
        self.calls.push(call);
        if self.fails.is_empty() { Ok(()) } else { Err(self.fails.remove(0)) }
    }

    /// The calls since the last look.
    fn calls(&mut self) -> Vec<&'static str> {
        std::mem::take(&mut self.calls)
    }
}

impl Sealed for Frail {}

macro_rules! pass {
    ($($name:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        impl Work for Frail {
            $(fn $name(&mut self, $($arg: $type),*) -> Result<$answer> {
                self.called(stringify!($name))?;
                self.store.$name($($arg),*)
            })*

            fn renew(&mut self, fences: &[Fence], length: Duration) -> Result<Vec<Renewed>> {
                self.called("renew")?;
                let mut answers = self.store.renew(fences, length)?;
                for (fence, answer) in fences.iter().zip(&mut answers) {
                    if self.locked.contains(&fence.job) {
                        *answer = Renewed::Busy;
                    }
                }
                Ok(answers)
            }
        }
    };
}

pass! {
    enqueue(jobs: &[NewJob]) -> Vec<Enqueued>;
    claim(ask: &Claim) -> Claimed;
    held(worker: &WorkerId, request: Option<i64>) -> Vec<Attempt>;
    progress(reports: &[Report]) -> Vec<Reported>;
    settle(settlements: &[Settlement]) -> Vec<Settled>;
    settle_and_claim(settlements: &[Settlement], ask: &Claim) -> (Vec<Settled>, Claimed);
    ledger(entries: &[Entry]) -> Vec<Answer>;
    register(worker: &Registration) -> Guarded;
    retire(worker: &WorkerId) -> ();
    vanished(limit: usize) -> Vec<Lapse>;
    beat() -> Beat;
    overdue(limit: usize, grace: Duration) -> Vec<Fence>;
    lapse(fences: &[Fence]) -> Vec<Lapsed>;
    prune(limit: usize) -> Pruned;
    current(jobs: &[JobId]) -> Vec<Option<Current>>;
    wait(until: Instant) -> Wake;
}

fn busy() -> Error {
    Error::Busy { doing: "settle", target: "the store".into(), source: "a lock".into() }
}

fn forbidden() -> Error {
    let [target, problem, next] = ["the store", "it may not", "grant it"].map(String::from);
    Error::Forbidden { target, problem, next }
}

fn at(millis: u64) -> Moment {
    Moment::after_start(Duration::from_secs(1_000) + Duration::from_millis(millis))
}

fn settle(outcome: Outcome) -> Returned {
    Returned::Settle(outcome)
}

impl Bench {
    /// Ann holds so many jobs.
    fn holding(n: usize) -> (Frail, Bench, Vec<Fence>) {
        let mut bench = Bench::new();
        let kind = Name::check("kind", "work").unwrap();
        let job = NewJob::new(kind, Json::check("args", "{}", 10).unwrap());
        bench.store.enqueue(&vec![job; n - 1]).unwrap();
        let ask = Claim { n, ..ask("ann") };
        let attempts = bench.store.claim(&ask).unwrap().attempts;
        let hold = |attempt| bench.desk.hold(attempt, at(0), LEASE).unwrap().fence;
        let fences: Vec<Fence> = attempts.iter().map(hold).collect();
        assert_eq!(fences.len(), n);
        (Frail::new(bench.store.share().unwrap()), bench, fences)
    }

    /// The jobs that Ann's desk still holds.
    fn held(&self) -> usize {
        self.desk.take(&mut Vec::new(), at(0)).held
    }

    fn states(&mut self, fences: &[Fence]) -> Vec<State> {
        let state = |fence: &Fence| self.store.job(fence.job).unwrap().unwrap().job.state;
        fences.iter().map(state).collect()
    }

    /// Sends what is pending, as the dispatcher does.
    fn send(&mut self, settler: &mut Settler, store: &mut Frail) -> Result<()> {
        let settlements = settler.settlements(&self.plan, &self.desk);
        let answers = store.settle(&settlements)?;
        settler.heard(&answers, &self.plan, &self.desk);
        Ok(())
    }
}

#[test]
fn a_settler_gathers_what_is_to_settle_and_what_is_to_ask_and_forgets_what_is_lost() {
    let (_, bench, fences) = Bench::holding(3);
    let mut settler = Settler::default();
    settler.gather(&bench.desk, at(0));
    assert!(settler.is_empty() && !settler.has_pending() && !settler.is_ready(at(0)));
    bench.desk.returned(fences[0], Returned::Lost, at(1));
    settler.gather(&bench.desk, at(1));
    assert!(settler.is_empty() && !settler.has_pending());
    assert_eq!(bench.held(), 2);
    bench.desk.returned(fences[1], Returned::PerhapsCommitted, at(2));
    settler.gather(&bench.desk, at(2));
    assert!(!settler.is_empty() && !settler.has_pending(), "it is only asked about");
    assert!(settler.is_ready(at(2)));
    assert_eq!(settler.pending.len(), 0);
    bench.desk.returned(fences[2], settle(Outcome::Release), at(3));
    settler.gather(&bench.desk, at(3));
    assert!(settler.has_pending() && settler.is_ready(at(3)));
    assert_eq!((settler.pending.len(), settler.unknown.len()), (1, 1));
    assert_eq!((settler.pending.len(), bench.held()), (1, 2));
}

#[test]
fn a_settler_is_empty_only_if_nothing_is_pending_locked_or_unknown() {
    let one = || vec![ended(1)];
    assert!(Settler::default().is_empty());
    let pending = Settler { pending: one(), ..Settler::default() };
    assert!(!pending.is_empty() && pending.next_look().is_none());
    let (look_at_locked, look_up_at) = (at(20), at(10));
    let mut settler = Settler { locked: one(), look_at_locked, look_up_at, ..Settler::default() };
    assert!(!settler.is_empty() && !settler.is_ready(at(19)) && settler.is_ready(at(20)));
    assert_eq!(settler.next_look(), Some(at(20)));
    settler.unknown = one();
    assert_eq!(settler.next_look(), Some(at(10)));
    settler.locked.clear();
    assert!(!settler.is_empty() && !settler.is_ready(at(9)) && settler.is_ready(at(10)));
}

#[test]
fn a_job_whose_row_is_locked_holds_up_no_other_and_is_tried_again_after_a_pause() {
    let (mut store, mut bench, fences) = Bench::holding(2);
    let mut settler = Settler::default();
    for fence in &fences {
        bench.desk.returned(*fence, settle(Outcome::Complete { result: None }), at(0));
    }
    settler.gather(&bench.desk, at(0));
    settler.pass_by_locked(&mut store, LEASE, at(0)).unwrap();
    assert_eq!(store.calls(), [""; 0], "nothing is asked as long as no call has met a lock");
    settler.unheard(&forbidden(), &mut store);
    settler.pass_by_locked(&mut store, LEASE, at(1)).unwrap();
    assert_eq!(store.calls(), [""; 0], "nor after another error");

    store.locked = vec![fences[0].job];
    settler.unheard(&busy(), &mut store);
    settler.pass_by_locked(&mut store, LEASE, at(2)).unwrap();
    assert_eq!(store.calls(), ["renew"]);
    assert_eq!((settler.pending.len(), settler.next_look()), (1, Some(at(502))));
    bench.send(&mut settler, &mut store).unwrap();
    assert_eq!(bench.states(&fences), [State::Running, State::Succeeded]);
    assert_eq!(store.calls(), ["settle"]);

    settler.pass_by_locked(&mut store, LEASE, at(501)).unwrap();
    assert_eq!((settler.pending.len(), settler.next_look()), (0, Some(at(502))));
    assert_eq!(store.calls(), [""; 0], "there is nothing to ask yet");
    settler.pass_by_locked(&mut store, LEASE, at(502)).unwrap();
    assert_eq!(store.calls(), ["renew"], "a settlement would wait for the lock");
    assert_eq!((settler.pending.len(), settler.next_look()), (0, Some(at(1_002))));

    store.locked.clear();
    settler.pass_by_locked(&mut store, LEASE, at(1_002)).unwrap();
    assert_eq!((store.calls(), settler.pending.len()), (vec!["renew"], 1));
    settler.pass_by_locked(&mut store, LEASE, at(1_003)).unwrap();
    assert_eq!(store.calls(), [""; 0], "no lock is left");
    bench.send(&mut settler, &mut store).unwrap();
    assert_eq!(bench.states(&fences), [State::Succeeded; 2]);
    assert!(settler.is_empty() && bench.held() == 0);
}

/// Lets the settler ask about what is unknown, and returns the number of calls and the reported
/// events.
fn look_up(
    settler: &mut Settler,
    store: &mut Frail,
    bench: &Bench,
    now: Moment,
) -> (usize, Vec<&'static str>) {
    settler.look_up(store, &bench.plan, &bench.desk, now).unwrap();
    (store.calls().len(), bench.told.lock().unwrap().drain(..).collect())
}

#[test]
fn a_question_that_the_store_does_not_answer_is_repeated_after_a_pause_and_told_once() {
    let (mut store, mut bench, fences) = Bench::holding(1);
    let mut settler = Settler::default();
    for round in [0, 10_000] {
        bench.desk.returned(fences[0], Returned::PerhapsCommitted, at(round));
        settler.gather(&bench.desk, at(round));
        if round > 0 {
            settler.unknown.push(ended_as(fences[0], Returned::PerhapsCommitted));
        }
        store.fails = vec![busy(), busy(), busy()];
        let mut asks = |now| look_up(&mut settler, &mut store, &bench, at(round + now));
        assert_eq!(asks(0), (1, vec![]));
        assert_eq!(asks(499), (0, vec![]), "it pauses");
        assert_eq!(asks(500), (1, vec!["store_caution"]), "these jobs wait");
        assert_eq!(asks(1_000), (1, vec![]), "told once");
        if round == 0 {
            bench.complete(fences[0]);
        }
        assert_eq!(look_up(&mut settler, &mut store, &bench, at(round + 1_500)).0, 1);
        assert!(settler.is_empty() && bench.held() == 0);
    }
}

#[test]
fn what_another_worker_has_taken_over_is_forgotten() {
    for cancelled in [false, true] {
        let (mut store, mut bench, fences) = Bench::holding(1);
        bench.desk.returned(fences[0], Returned::PerhapsCommitted, at(0));
        let mut settler = Settler::default();
        settler.gather(&bench.desk, at(0));
        if cancelled {
            bench.store.cancel(&[fences[0].job]).unwrap();
        } else {
            bench.clock.advance(LEASE);
            bench.take("bob");
        }
        let told = if cancelled { vec!["job_cancelled"] } else { vec![] };
        assert_eq!(look_up(&mut settler, &mut store, &bench, at(1)), (1, told));
        assert!(settler.is_empty() && bench.held() == 0);
    }
}

#[test]
fn a_worker_that_may_not_ask_how_its_jobs_ended_gives_them_up() {
    let (mut store, bench, fences) = Bench::holding(1);
    let mut settler = Settler::default();
    settler.abandon(&bench.desk);
    assert!(!settler.has_abandoned, "there was nothing to give up");
    bench.desk.returned(fences[0], Returned::PerhapsCommitted, at(0));
    settler.gather(&bench.desk, at(0));
    store.fails = vec![forbidden()];
    let error = settler.look_up(&mut store, &bench.plan, &bench.desk, at(0)).unwrap_err();
    assert!(error.is_forbidden());
    settler.abandon(&bench.desk);
    assert!(settler.has_abandoned && settler.is_empty() && bench.held() == 0);
}

#[test]
fn a_settlement_that_finds_no_job_is_a_success_only_if_it_was_sent_before() {
    let (mut store, mut bench, mut fences) = Bench::holding(3);
    let done = || settle(Outcome::Complete { result: None });
    let mut settler = Settler::default();
    let gone = vec![Settled::NotFound; 2];
    for fence in &fences[..2] {
        bench.desk.returned(*fence, done(), at(0));
    }
    settler.gather(&bench.desk, at(0));
    settler.pending[0].was_sent = true;
    settler.heard(&gone, &bench.plan, &bench.desk);
    assert_eq!(bench.told.lock().unwrap().drain(..).collect::<Vec<_>>(), ["job_succeeded"]);
    assert_eq!((settler.refused, bench.held()), (1, 1));

    let last = fences.pop().unwrap();
    bench.desk.returned(last, done(), at(1));
    settler.gather(&bench.desk, at(1));
    store.fails = vec![busy()];
    let error = bench.send(&mut settler, &mut store).unwrap_err();
    settler.unheard(&error, &mut store);
    assert_eq!(settler.pending.len(), 1, "nothing is dropped while an answer is outstanding");
    settler.heard(&gone[..1], &bench.plan, &bench.desk);
    assert_eq!(bench.told.lock().unwrap().drain(..).collect::<Vec<_>>(), ["job_succeeded"]);
    assert_eq!((settler.refused, bench.held()), (1, 0));

    settler.pending = vec![ended(last.job.0)];
    settler.heard(&gone[..1], &bench.plan, &bench.desk);
    assert_eq!(settler.refused, 2, "this one was not sent before");
    assert!(bench.told.lock().unwrap().is_empty());
}

#[test]
fn a_refused_settlement_is_counted() {
    let (mut store, mut bench, fences) = Bench::holding(1);
    bench.clock.advance(LEASE);
    bench.take("bob");
    bench.desk.returned(fences[0], settle(Outcome::Complete { result: None }), at(0));
    let mut settler = Settler::default();
    settler.gather(&bench.desk, at(0));
    bench.send(&mut settler, &mut store).unwrap();
    assert_eq!((settler.refused, bench.held()), (1, 0));
}

#[test]
fn a_settlement_that_the_store_can_never_accept_buries_its_job_and_harms_no_other() {
    let (mut store, mut bench, fences) = Bench::holding(3);
    let large = format!("\"{}\"", "x".repeat(Limits::default().result));
    let large = Json::check("result", large, usize::MAX).unwrap();
    let outcomes = [
        Outcome::Complete { result: None },
        Outcome::Complete { result: Some(large) },
        Outcome::Park { reason: "later".into() },
    ];
    for (fence, outcome) in fences.iter().zip(outcomes) {
        bench.desk.returned(*fence, settle(outcome), at(0));
    }
    let mut settler = Settler::default();
    settler.gather(&bench.desk, at(0));
    let error = bench.send(&mut settler, &mut store).unwrap_err();
    assert!(error.is_invalid());
    settler.unheard(&error, &mut store);
    bench.send(&mut settler, &mut store).unwrap();
    assert_eq!(bench.states(&fences), [State::Succeeded, State::Dead, State::Parked]);
    let told: Vec<_> = bench.told.lock().unwrap().drain(..).collect();
    assert_eq!(told, ["job_succeeded", "job_dead", "job_parked"]);
    let dead = bench.store.job(fences[1].job).unwrap().unwrap().job;
    assert!(format!("{dead:?}").contains("above the limit"), "{dead:?}");
}

/// The batch was invalid. Sent alone, this settlement fails for another reason, so it is not the
/// invalid one.
#[test]
fn a_settlement_that_fails_for_another_reason_buries_nothing() {
    let (mut store, mut bench, fences) = Bench::holding(1);
    bench.desk.returned(fences[0], settle(Outcome::Complete { result: None }), at(0));
    let mut settler = Settler::default();
    settler.gather(&bench.desk, at(0));
    store.fails = vec![busy()];
    let invalid: Error = Invalid::Batch { size: BATCH_LIMIT + 1 }.into();
    settler.unheard(&invalid, &mut store);
    bench.send(&mut settler, &mut store).unwrap();
    assert_eq!(bench.states(&fences), [State::Succeeded]);
}
