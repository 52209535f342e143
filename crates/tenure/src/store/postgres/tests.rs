//! Tests of the engine: what it keeps between calls, and what it refuses.

pub(super) mod lent;

use self::lent::{Lent, address, ask, cut, job, name, pid, registration, worker};
use super::link::Timeouts;
use super::*;
use crate::inspect::{EffectFilter, Filter};
use crate::job::{BATCH_LIMIT, Invalid, Progress};
use crate::lease::Token;
use crate::lifecycle::Outcome;
use crate::store::Error;
use crate::store::Look;

#[test]
fn a_wait_grows_from_five_milliseconds_to_a_second() {
    let mut patience = Patience::default();
    let pauses: Vec<_> = (0..8).map(|_| patience.next_pause(false).as_millis()).collect();
    assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 1_000, 1_000]);
}

#[test]
fn a_worker_is_told_to_look_once_more_after_a_notification() {
    let mut patience = Patience::default();
    let pauses: Vec<_> = (0..3).map(|_| patience.next_pause(true).as_millis()).collect();
    assert_eq!(pauses, [60, 1_000, 1_000]);
}

fn claimed(attempts: Vec<Attempt>) -> Claimed {
    Claimed { attempts, lapsed: vec![], cursor: ask().cursor, next_due: None }
}

#[test]
fn a_claim_that_finds_jobs_makes_the_next_wait_short_and_one_that_finds_none_does_not() {
    let lent = Lent::new();
    let mut store = lent.store();
    store.patience.in_vain = 3;
    store.claim(&ask()).unwrap();
    store.settle_and_claim(&[], &ask()).unwrap();
    store.patience.found(&claimed(vec![]));
    assert_eq!(store.patience.in_vain, 3);
    store.enqueue(&[job("own"), job("own")]).unwrap();
    assert_eq!(store.claim(&ask()).unwrap().attempts.len(), 1);
    assert_eq!(store.patience.in_vain, 0);
    store.patience.in_vain = 3;
    assert_eq!(store.settle_and_claim(&[], &ask()).unwrap().1.attempts.len(), 1);
    assert_eq!(store.patience.in_vain, 0);
}

#[test]
fn shorter_waits_do_not_put_off_a_workers_first_look() {
    let lent = Lent::new();
    let mut store = lent.store();
    store.register(&registration()).unwrap();
    store.patience = Patience::default();
    // The first wait begins to listen. A new connection would be reported as a change, so wait
    // until nothing is reported.
    while store.wait(clock::monotonic()).unwrap() == Wake::Changed {}
    store.patience = Patience::default();
    let begun = clock::monotonic();
    let brief = || clock::monotonic() + Duration::from_millis(10);
    let mut waits = 0;
    while store.wait(brief()).unwrap() == Wake::TimedOut {
        waits += 1;
        assert!(waits < 1_000, "it never looks");
    }
    assert!(begun.elapsed() >= Patience::UNANNOUNCED, "{:?}", begun.elapsed());
    assert_eq!((store.patience.in_vain, store.patience.unannounced), (1, None));
    assert_eq!(store.wait(brief()).unwrap(), Wake::TimedOut, "the next look is later");
}

#[test]
fn a_store_without_a_schema_is_not_opened() {
    let nowhere = address(&[("schema", "tenure_test_nowhere")]);
    let refused = Postgres::open(&nowhere, &PostgresOptions::default()).err().unwrap().to_string();
    assert!(refused.contains("tenure migrate up"), "{refused}");
    assert!(refused.contains(&nowhere.to_string()), "{refused}");
}

/// A store whose every call to the server fails.
fn nowhere() -> Postgres {
    Postgres {
        link: Link::open(&address(&[]), Timeouts::default()).unwrap(),
        schema: Schema::new("tenure_test_nowhere"),
        limits: Limits::default(),
        marks: None,
        seen: None,
        patience: Patience::default(),
        lock_wait: None,
        #[cfg(feature = "drill")]
        rehearsal: Rehearsal::default(),
    }
}

#[test]
fn too_large_a_batch_never_reaches_the_server() {
    const MANY: usize = BATCH_LIMIT + 1;
    let mut store = nowhere();
    let fence = Fence { job: JobId(1), token: Token(1) };
    let (fences, jobs) = (vec![fence; MANY], vec![JobId(1); MANY]);
    let seen = vec![AsSeen { job: JobId(1), if_token: None }; MANY];
    let reports = vec![Report { fence, progress: Progress::new(0.5, None) }; MANY];
    let settlements = vec![Settlement::new(fence, Outcome::Release); MANY];
    let minute = Duration::from_secs(60);
    let answers = [
        store.claim(&Claim { n: MANY, ..ask() }).err(),
        store.renew(&fences, minute).err(),
        store.progress(&reports).err(),
        store.settle(&settlements).err(),
        store.settle_and_claim(&settlements, &ask()).err(),
        store.settle_and_claim(&[], &Claim { n: MANY, ..ask() }).err(),
        store.vanished(MANY).err(),
        store.overdue(MANY, minute).err(),
        store.lapse(&fences).err(),
        store.cancel(&jobs).err(),
        store.requeue(&seen).err(),
        store.resume(&jobs).err(),
        store.purge(&seen).err(),
        store.prune(MANY).err(),
        store.current(&jobs).err(),
        store.jobs(&Filter::default(), MANY).err(),
        store.leases(MANY).err(),
        store.effects(&EffectFilter::default(), MANY).err(),
        store.check(None, MANY).err(),
    ];
    for (at, answer) in answers.iter().enumerate() {
        let is_refused =
            matches!(answer, Some(Error::Invalid(Invalid::Batch { size })) if *size == MANY);
        assert!(is_refused, "the {at}th: {answer:?}");
    }
}

#[test]
fn a_lease_or_a_gap_that_no_store_allows_never_reaches_the_server() {
    let mut store = nowhere();
    let gap = store.set_guard_gap(Duration::ZERO).unwrap_err();
    assert!(gap.to_string().contains("is outside 300 ms to 60 s"), "{gap}");
    let lease = store.renew(&[], Duration::ZERO).unwrap_err();
    assert!(lease.to_string().contains("is outside 1 ms to 24 h"), "{lease}");
}

#[test]
fn a_settlement_that_claims_enqueues_what_follows_in_the_same_transaction() {
    let lent = Lent::new();
    let mut store = lent.store();
    store.enqueue(&[job("own")]).unwrap();
    let first = store.claim(&ask()).unwrap().attempts.remove(0);
    let done = Settlement {
        then: vec![job("own"), job("other")],
        ..Settlement::new(first.lease.fence(), Outcome::Complete { result: None })
    };
    let (settled, claimed) = store.settle_and_claim(&[done], &ask()).unwrap();
    assert!(matches!(settled[..], [Settled::Applied(_)]), "{settled:?}");
    // The claim already sees it.
    assert_eq!(claimed.attempts.len(), 1);
    let jobs = store.jobs(&Filter::default(), 10).unwrap();
    assert_eq!(jobs.iter().filter(|job| job.queue == name("other")).count(), 1, "{jobs:?}");
}

#[test]
fn a_refusal_in_a_users_own_transaction_is_noted_in_the_timeline() {
    let lent = Lent::new();
    let mut store = lent.store();
    store.enqueue(&[job("own")]).unwrap();
    let late = store.claim(&ask()).unwrap().attempts.remove(0).lease.fence();
    store.settle(&[Settlement::new(late, Outcome::Release)]).unwrap();
    assert_eq!(store.claim(&ask()).unwrap().attempts.len(), 1);
    store.refused(late, Verb::Complete).unwrap();
    let timeline = store.job(late.job).unwrap().unwrap().timeline;
    let noted = timeline.iter().filter(|entry| entry.refused && entry.token == late.token);
    assert_eq!(noted.count(), 1, "{timeline:?}");
}

#[test]
fn a_worker_that_has_retired_is_not_registered_by_the_next_session() {
    let lent = Lent::new();
    let mut store = lent.store();
    assert_eq!(store.register(&registration()).unwrap(), Guarded::ByLock);
    store.retire(&worker()).unwrap();
    cut(&mut store.link);
    assert!(store.workers().is_err(), "the session has ended");
    assert!(store.workers().unwrap().is_empty());
}

#[test]
fn a_beat_remembers_how_far_the_server_was() {
    let lent = Lent::new();
    let mut store = lent.store();
    assert_eq!(store.seen, None);
    store.beat().unwrap();
    assert!(store.seen.is_some());
}

/// Lets another session announce a queue, and makes calls on the store's connection so that the
/// notification arrives.
fn announce(lent: &Lent, store: &mut Postgres, queue: &str) {
    let said = format!("NOTIFY \"{}\", '{queue}'", lent.schema().channel().replace('"', "\"\""));
    lent.alter(&said);
    for _ in 0..2 {
        pid(&mut store.link);
    }
}

#[test]
fn a_wait_ends_for_a_queue_that_its_worker_serves_and_for_no_other() {
    let lent = Lent::new();
    let mut store = lent.store();
    store.register(&registration()).unwrap();
    let brief = || clock::monotonic() + Duration::from_millis(30);
    store.patience.in_vain = 5;
    assert_eq!(store.wait(brief()).unwrap(), Wake::TimedOut);
    announce(&lent, &mut store, "other");
    assert_eq!(store.wait(brief()).unwrap(), Wake::TimedOut);
    assert_eq!(store.patience.in_vain, 7);
    announce(&lent, &mut store, "own");
    assert_eq!(store.wait(brief()).unwrap(), Wake::Changed);
    assert_eq!(store.patience.in_vain, 0, "the next pause is short again");
}

#[test]
fn a_worker_that_lost_its_session_before_it_waits_has_a_new_one_and_looks() {
    let lent = Lent::new();
    let mut store = lent.store();
    store.register(&registration()).unwrap();
    cut(&mut store.link);
    assert_eq!(store.wait(clock::monotonic()).unwrap(), Wake::Changed);
    assert!(store.link.is_connected());
    assert_eq!(lent.registrations(), 2);
}

#[test]
fn a_wait_that_cannot_listen_says_why() {
    let lent = Lent::new();
    let mut store = lent.store();
    cut(&mut store.link);
    // This connection guards no worker, so it is in no hurry to connect again.
    let lost = store.wait(clock::monotonic()).unwrap_err();
    assert!(lost.is_transient() && !store.link.is_connected(), "{lost}");
    // The session works, but the name of the channel cannot be sent.
    store.schema = Schema::new("a\0b");
    pid(&mut store.link);
    let refused = store.wait(clock::monotonic()).unwrap_err();
    assert!(!refused.is_transient() && store.link.is_connected(), "{refused}");
}
