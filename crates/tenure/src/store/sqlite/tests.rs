//! Tests of what only this engine promises: which calls need no lock and write nothing, how a claim
//! walks the ring, and what is left of workers that are gone.

use std::num::NonZeroU16;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::clock::Timestamp;
use crate::inspect::EffectFilter;
use crate::job::{BATCH_LIMIT, Json, Key, State, Tenant};
use crate::lifecycle::{CRASH_MEMORY, Outcome};
use crate::record::JobRecord;
use crate::store::Look;
use crate::store::{GROUP_LIMIT, GUARD_GAP, PASS_LIMIT, STALL, lane};

const LEASE: Duration = Duration::from_secs(30);

/// A store in a file, whose clock the test moves.
struct Place {
    store: Sqlite,
    clock: Clock,
    file: PathBuf,
    options: StoreOptions,
    _directory: TempDir,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("jobs.db");
        let clock = Clock::manual(Timestamp::from_millis(1_000_000_000_000));
        let options = StoreOptions { clock: clock.clone(), ..StoreOptions::default() };
        let store = Sqlite::open(&file, &options).unwrap();
        Place { store, clock, file, options, _directory: directory }
    }

    fn put(&mut self, job: NewJob) -> JobId {
        match self.store.enqueue(&[job]).unwrap()[..] {
            [Enqueued::Created(id)] => id,
            ref other => panic!("{other:?}"),
        }
    }

    fn take(&mut self, who: &str) -> Fence {
        self.store.claim(&ask(who, 1)).unwrap().attempts[0].lease.fence()
    }

    fn record(&mut self, job: JobId) -> JobRecord {
        self.store.job(job).unwrap().unwrap().job
    }

    /// Runs calls while another program holds the lock for writing.
    fn while_locked<T>(&mut self, calls: impl FnOnce(&mut Sqlite) -> Result<T>) -> T {
        let other = Connection::open(&self.file).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        calls(&mut self.store).unwrap()
    }

    /// Whether calls commit something that would wake other connections.
    fn writes(&mut self, calls: impl FnOnce(&mut Sqlite)) -> bool {
        let mut other = self.store.share().unwrap();
        other.wait(clock::monotonic()).unwrap();
        calls(&mut self.store);
        other.wait(clock::monotonic()).unwrap() == Wake::Changed
    }

    fn number(&self, sql: &str) -> i64 {
        Connection::open(&self.file).unwrap().query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

fn name(text: &str) -> Name {
    Name::check("name", text).unwrap()
}

fn worker(text: &str) -> WorkerId {
    WorkerId::check(text).unwrap()
}

fn job(kind: &str) -> NewJob {
    NewJob::new(name(kind), Json::check("args", "{}", 10).unwrap())
}

fn of(tenant: &str, kind: &str) -> NewJob {
    job(kind).tenant(Tenant::check(tenant).unwrap())
}

fn ask(who: &str, n: usize) -> Claim {
    Claim { cursor: crate::store::Cursor::default(), ..Claim::new(worker(who), n, LEASE) }
}

fn only(kind: &str, n: usize) -> Claim {
    Claim { kinds: Some(vec![name(kind)]), ..ask("ann", n) }
}

fn group(tenant: &str) -> i64 {
    lane::group_of_names(&Name::default_queue(), &Tenant::check(tenant).unwrap())
}

/// Tenants in the order in which claims visit them.
fn tenants(n: usize) -> Vec<String> {
    let mut all: Vec<_> = (0..n).map(|n| format!("t{n}")).collect();
    all.sort_by_key(|tenant| group(tenant));
    all
}

fn settlement(fence: Fence, outcome: Outcome, then: Vec<NewJob>) -> Settlement {
    Settlement { fence, outcome, then }
}

#[test]
fn a_claim_that_finds_nothing_needs_no_lock() {
    let mut place = Place::new();
    let nothing = place.while_locked(|store| store.claim(&ask("ann", 1)));
    assert!(nothing.attempts.is_empty());
    place.put(job("other"));
    place.put(job("later").delay(Duration::from_secs(60)));
    let nothing = place.while_locked(|store| store.claim(&ask("ann", 0)));
    assert_eq!((nothing.attempts.len(), nothing.next_due), (0, None));
    let nothing = place.while_locked(|store| store.claim(&only("work", 1)));
    assert_eq!(nothing.next_due, Some(Duration::from_secs(60)));
}

#[test]
fn a_claim_that_may_lapse_nothing_needs_no_lock() {
    let mut place = Place::new();
    place.put(job("work"));
    let fence = place.take("ann");
    place.clock.advance(LEASE);
    let patient = Claim { grace: Duration::from_secs(5), ..ask("bob", 1) };
    assert!(place.while_locked(|store| store.claim(&patient)).lapsed.is_empty());
    // After a jump of the clock, the lease runs for its whole length again, although by its own
    // time it is over.
    place.clock.jump(Duration::from_secs(3_600));
    assert!(place.store.overdue(9, Duration::ZERO).unwrap().is_empty());
    assert!(place.while_locked(|store| store.claim(&ask("bob", 1))).lapsed.is_empty());
    place.clock.advance(LEASE);
    assert_eq!(place.store.overdue(9, Duration::ZERO).unwrap(), [fence]);
}

#[test]
fn a_stall_is_noted_only_by_a_claim_that_finds_a_lease_over() {
    let mut place = Place::new();
    place.put(job("work"));
    place.take("ann");
    place.clock.advance(Duration::from_millis(1));
    assert!(place.store.beat().unwrap().leads);
    place.clock.advance(STALL + Duration::from_secs(1));
    assert!(place.while_locked(|store| store.claim(&ask("bob", 1))).attempts.is_empty());
    place.put(job("work"));
    place.take("bob");
    assert_eq!(place.number("SELECT broke FROM tenure_meta"), 0);
    place.clock.advance(LEASE);
    place.store.claim(&ask("bob", 1)).unwrap();
    assert_eq!(place.number("SELECT broke FROM tenure_meta"), place.clock.now().as_millis());
}

#[test]
fn a_pulse_that_is_as_old_as_a_stall_is_none_yet() {
    let mut place = Place::new();
    place.put(job("work"));
    let ask = Claim { lease: Duration::from_secs(1), ..ask("ann", 1) };
    let fence = place.store.claim(&ask).unwrap().attempts[0].lease.fence();
    place.clock.advance(Duration::from_secs(1));
    place.store.beat().unwrap();
    place.clock.advance(STALL);
    assert_eq!(place.store.overdue(9, Duration::ZERO).unwrap(), [fence]);
    place.clock.advance(Duration::from_millis(1));
    assert!(place.store.overdue(9, Duration::ZERO).unwrap().is_empty());
}

#[test]
fn a_jump_of_the_clock_is_noted_before_anything_is_taken_back() {
    type Call = fn(&mut Sqlite, Fence) -> usize;
    let calls: [Call; 4] = [
        |store, _| store.overdue(9, Duration::ZERO).unwrap().len(),
        |store, fence| usize::from(store.lapse(&[fence]).unwrap() != [Lapsed::LeftAlone]),
        |store, _| store.settle_and_claim(&[], &ask("bob", 1)).unwrap().1.lapsed.len(),
        |store, _| store.vanished(9).unwrap().len(),
    ];
    for call in calls {
        let mut place = Place::new();
        place.put(job("work"));
        let fence = place.take("ann");
        place.clock.jump(Duration::from_secs(3_600));
        assert_eq!(call(&mut place.store, fence), 0);
        let now = place.clock.now().as_millis();
        assert_eq!(place.number("SELECT steady_since FROM tenure_meta"), now);
    }
    let mut place = Place::new();
    place.clock.jump(Duration::from_secs(3_600));
    place.store.beat().unwrap();
    let now = place.clock.now().as_millis();
    assert_eq!(place.number("SELECT steady_since FROM tenure_meta"), now);
}

#[test]
fn calls_that_change_nothing_wake_nobody() {
    let mut place = Place::new();
    let keyed = job("work").key(Key::check("k").unwrap());
    place.put(keyed.clone());
    let fence = place.take("ann");
    assert!(!place.writes(|store| drop(store.enqueue(&[keyed]).unwrap())));
    assert!(!place.writes(|store| drop(store.lapse(&[fence]).unwrap())));
    assert!(place.writes(|store| drop(store.enqueue(&[job("work")]).unwrap())));
}

#[test]
fn a_claim_with_settlements_has_seen_what_was_there() {
    let mut place = Place::new();
    let mut other = Sqlite::open(&place.file, &place.options).unwrap();
    other.enqueue(&[job("work")]).unwrap();
    place.store.settle_and_claim(&[], &only("nothing", 1)).unwrap();
    assert_eq!(place.store.wait(clock::monotonic()).unwrap(), Wake::TimedOut);
}

#[test]
fn requests_beyond_the_limits_are_refused_everywhere() {
    let mut place = Place::new();
    place.put(job("work"));
    let fence = place.take("ann");
    let large = Json::trusted(format!("\"{}\"", "x".repeat(Limits::default().result)));
    let too_large = settlement(fence, Outcome::Complete { result: Some(large) }, vec![]);
    let store = &mut place.store;
    let refused = |answer: Result<()>| matches!(answer, Err(crate::store::Error::Invalid(_)));
    let settle = std::slice::from_ref(&too_large);
    assert!(refused(store.settle_and_claim(settle, &ask("ann", 1)).map(drop)));
    let inside = store.transact(Duration::from_secs(5), |tx| tx.settle(&too_large).map(drop));
    assert!(refused(inside.unwrap()));
    assert!(refused(store.leases(BATCH_LIMIT + 1).map(drop)));
    assert!(refused(store.effects(&EffectFilter::default(), BATCH_LIMIT + 1).map(drop)));
    assert_eq!(place.record(fence.job).state, State::Running);
}

#[test]
fn a_claim_takes_no_more_than_it_asked_for_and_shares_it_between_tenants() {
    let mut place = Place::new();
    let all = tenants(2);
    for tenant in &all {
        place.store.enqueue(&vec![of(tenant, "work"); 3]).unwrap();
    }
    assert_eq!(place.store.claim(&ask("ann", 3)).unwrap().attempts.len(), 3);
}

#[test]
fn a_claim_serves_only_so_many_tenants_at_a_time() {
    let mut place = Place::new();
    for tenant in tenants(GROUP_LIMIT + 1) {
        place.store.enqueue(&vec![of(&tenant, "work"); 2]).unwrap();
    }
    let claimed = place.store.claim(&ask("ann", GROUP_LIMIT + 1)).unwrap();
    let jobs: Vec<_> = claimed.attempts.iter().map(|taken| taken.lease.fence().job).collect();
    let served: std::collections::BTreeSet<_> =
        jobs.into_iter().map(|job| place.record(job).tenant).collect();
    assert_eq!(served.len(), (GROUP_LIMIT + 1).div_ceil(2));
}

#[test]
fn the_next_claim_goes_on_after_the_last_tenant_that_gave_a_job() {
    let mut place = Place::new();
    let all = tenants(3);
    place.store.enqueue(&[of(&all[0], "work"), of(&all[0], "work")]).unwrap();
    place.store.enqueue(&[of(&all[1], "work"), of(&all[2], "work")]).unwrap();
    let from = crate::store::Cursor::after(group(&all[0]) - 1);
    let claimed = place.store.claim(&Claim { cursor: from, ..ask("ann", 6) }).unwrap();
    assert_eq!(claimed.attempts.len(), 4);
    assert_eq!(claimed.cursor, crate::store::Cursor::after(group(&all[2])));
}

#[test]
fn a_round_of_one_tenant_finds_its_job() {
    let mut place = Place::new();
    place.put(of("a", "work"));
    let cursor = crate::store::Cursor { group: group("a") - 1, round: Some(group("a")) };
    let claimed = place.store.claim(&Claim { cursor, ..ask("ann", 1) }).unwrap();
    assert_eq!(claimed.attempts.len(), 1);
}

#[test]
fn a_claim_that_has_passed_enough_stops_there_unless_it_is_full_or_its_round_is_over() {
    let mut place = Place::new();
    let all = tenants(2);
    // Kinds whose lanes do not collide.
    let mut lanes = std::collections::BTreeSet::from([lane::kind(&name("work"))]);
    let kinds = (0..).map(|n| format!("k{n}")).filter(|kind| lanes.insert(lane::kind(&name(kind))));
    let others: Vec<_> = kinds.take(PASS_LIMIT).map(|kind| of(&all[0], &kind)).collect();
    place.store.enqueue(&others).unwrap();
    place.put(of(&all[1], "work"));
    let start = group(&all[0]) - 1;
    let cursor = crate::store::Cursor::after(start);
    let midway = place.store.claim(&Claim { cursor, ..only("work", 1) }).unwrap();
    assert_eq!(midway.attempts.len(), 0);
    let next = crate::store::Cursor { group: group(&all[0]), round: Some(start) };
    assert_eq!(midway.cursor, next);
    // The claim reaches `PASS_LIMIT` in the last group of its round.
    let cursor = crate::store::Cursor { group: start, round: Some(group(&all[0])) };
    let over = place.store.claim(&Claim { cursor, ..only("work", 1) }).unwrap();
    assert!(over.attempts.is_empty() && !over.cursor.is_midway());
    // The claim reaches `PASS_LIMIT` in a group that also gives it all the jobs that it wants.
    place.put(of(&all[0], "work"));
    let cursor = crate::store::Cursor::after(start);
    let full = place.store.claim(&Claim { cursor, ..only("work", 1) }).unwrap();
    assert_eq!(full.attempts.len(), 1);
    assert_eq!(full.cursor, crate::store::Cursor::after(group(&all[0])));
}

#[test]
fn a_worker_with_a_suspect_takes_a_job_that_may_not_crash_at_all() {
    let mut place = Place::new();
    place.put(job("work").max_crashes(NonZeroU16::new(3).unwrap()));
    let fence = place.take("ann");
    place.clock.advance(LEASE);
    place.store.lapse(&[fence]).unwrap();
    place.clock.advance(Duration::from_secs(3_600));
    assert_eq!(place.take("bob").job, fence.job);
    let once = place.put(job("once").max_crashes(NonZeroU16::MIN));
    assert_eq!(place.take("bob").job, once);
}

#[test]
fn only_large_args_are_kept_apart() {
    let mut place = Place::new();
    let sized = |size: usize| {
        let args = Json::trusted(format!("\"{}\"", "x".repeat(size - 2)));
        NewJob::new(name("work"), args)
    };
    place.put(sized(2 * 1024));
    assert_eq!(place.number("SELECT count(*) FROM tenure_payloads"), 0);
    place.put(sized(2 * 1024 + 1));
    assert_eq!(place.number("SELECT count(*) FROM tenure_payloads"), 1);
}

#[test]
fn a_worker_may_return_after_its_lease_but_not_after_it_vanished_or_ran_out_of_time() {
    let mut place = Place::new();
    let long = place.put(job("work").max_runtime(Duration::from_secs(600)));
    let fence = place.take("ann");
    place.clock.advance(LEASE);
    place.store.lapse(&[fence]).unwrap();
    let until = place.clock.now() + LEASE;
    assert_eq!(place.record(long).returns_until, Some(until));
    place.store.cancel(&[long]).unwrap();

    let gone = place.put(job("work"));
    let mut dying = place.store.share().unwrap();
    dying.register(&registration("bob")).unwrap();
    place.take("bob");
    drop(dying);
    place.store.vanished(9).unwrap();
    place.clock.advance(GUARD_GAP);
    assert_eq!(place.store.vanished(9).unwrap().len(), 1);
    let record = place.record(gone);
    assert_eq!((record.state, record.returns_until), (State::Queued, None));
}

fn registration(who: &str) -> Registration {
    Registration::new(worker(who), vec![Name::default_queue()])
}

#[test]
fn workers_that_are_gone_lose_no_more_jobs_than_asked_for_and_then_leave_nothing_behind() {
    let mut place = Place::new();
    let mut dying = place.store.share().unwrap();
    for who in ["ann", "bob"] {
        dying.register(&registration(who)).unwrap();
        place.put(job("work"));
        place.take(who);
    }
    let path = place.file.clone();
    let guards = |store: &Sqlite| store.beside(&path).unwrap().guards.len();
    assert!(place.while_locked(|store| store.vanished(9)).is_empty(), "a look needs no lock");
    drop(dying);
    place.store.vanished(9).unwrap();
    place.clock.advance(GUARD_GAP);
    assert_eq!(guards(&place.store), 2);
    assert_eq!(place.store.vanished(1).unwrap().len(), 1);
    assert_eq!((place.store.workers().unwrap().len(), guards(&place.store)), (1, 1));
    assert_eq!(place.store.vanished(1).unwrap().len(), 1);
    assert_eq!((place.store.workers().unwrap().len(), guards(&place.store)), (0, 0));
}

#[test]
fn a_job_that_is_settled_twice_in_one_batch_is_followed_once() {
    let mut place = Place::new();
    place.put(job("work"));
    let fence = place.take("ann");
    let end = settlement(fence, Outcome::Complete { result: None }, vec![job("next")]);
    place.store.settle(&[end.clone(), end]).unwrap();
    assert_eq!(place.number("SELECT count(*) FROM tenure_jobs"), 1);
}

#[test]
fn a_job_that_has_ended_keeps_the_count_of_its_crashes() {
    let mut place = Place::new();
    let id = place.put(job("work"));
    let fence = place.take("ann");
    place.clock.advance(LEASE);
    place.store.lapse(&[fence]).unwrap();
    place.clock.advance(CRASH_MEMORY + Duration::from_secs(60));
    let fence = place.take("ann");
    let end = settlement(fence, Outcome::Bury { reason: "no".into() }, vec![]);
    place.store.settle(&[end]).unwrap();
    let record = place.record(id);
    assert_eq!((record.state, record.crashes), (State::Dead, 1));
}

#[test]
fn lock_files_are_swept_only_when_nothing_is_left_to_prune() {
    let mut place = Place::new();
    let left = super::file::beside(&place.file, "-guard-left");
    std::fs::write(&left, "").unwrap();
    for _ in 0..2 {
        let id = place.put(job("work"));
        place.store.cancel(&[id]).unwrap();
    }
    place.clock.advance(Duration::from_secs(366 * 86_400));
    assert_eq!(place.store.prune(2).unwrap().jobs, 2);
    assert!(left.exists());
    assert_eq!(place.store.prune(2).unwrap().jobs, 0);
    assert!(!left.exists());
}

#[test]
fn what_was_read_from_a_file_that_was_moved_away_is_not_told() {
    let mut place = Place::new();
    std::fs::rename(&place.file, place.file.with_file_name("aside.db")).unwrap();
    assert!(matches!(place.store.overview(), Err(crate::store::Error::Unusable { .. })));
}
