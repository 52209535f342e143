//! Databases that really go back in time: a promoted replica, a restored dump, a restored file.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tenure::drill::Patch;
use tenure::engine::job::{JobId, Json, Name, NewJob};
use tenure::engine::lease::{Fence, WorkerId};
use tenure::engine::lifecycle::Outcome;
use tenure::engine::store::postgres::{self, Migrations, Postgres, Roles, ServerAddress};
use tenure::engine::store::sqlite::{Sqlite, StoreOptions};
use tenure::engine::store::{Claim, Enqueued, Look, Settled, Settlement, Store, Work};
use tenure_cluster::{Binaries, Cluster, Settings};

fn put(store: &mut dyn Store) -> JobId {
    let job =
        NewJob::new(Name::check("kind", "work").unwrap(), Json::check("args", "{}", 9).unwrap());
    match store.enqueue(&[job]).unwrap()[..] {
        [Enqueued::Created(id)] => id,
        ref other => panic!("{other:?}"),
    }
}

fn take(store: &mut dyn Store) -> Fence {
    let ask = Claim::new(WorkerId::unique(), 1, Duration::from_millis(1));
    // A lease of a millisecond is over at once, but the server's clock may need a moment to reach
    // that time.
    let until = tenure::engine::clock::monotonic() + Duration::from_secs(30);
    while tenure::engine::clock::monotonic() < until {
        if let Some(attempt) = store.claim(&ask).unwrap().attempts.first() {
            return attempt.lease.fence();
        }
    }
    panic!("nothing to claim")
}

fn settle(store: &mut dyn Store, fence: Fence) -> Settled {
    let done = Outcome::Complete { result: None };
    store.settle(&[Settlement::new(fence, done)]).unwrap()[0]
}

/// A lease from before the copy was made, and a lease and a job from after it, which the copy does
/// not have.
struct Past {
    before: Fence,
    lost: Fence,
    lost_id: JobId,
}

/// What must hold after every way back in time: no number is issued twice, and every holder of a
/// lease from before is refused.
fn assert_noticed(store: &mut dyn Store, past: &Past) {
    let id = put(store);
    assert!(id > past.lost_id, "{id} was given out before");
    // After some of the moves each lease gets its length again, so the new job may be claimed
    // first.
    let mut taken = take(store);
    while taken.job != past.before.job {
        assert!(matches!(settle(store, taken), Settled::Applied(_)));
        taken = take(store);
    }
    assert!(taken.token > past.lost.token, "{taken:?} after {:?}", past.lost);
    for old in [past.before, past.lost] {
        assert!(matches!(settle(store, old), Settled::Stale(_)), "{old:?}");
    }
    assert!(matches!(settle(store, taken), Settled::Applied(_)));
    let identity = store.identity().unwrap();
    assert_eq!(identity.raises.len(), 1, "{identity:?}");
    assert_eq!(identity.raises[0].epoch, identity.epoch);
    assert!(store.check(None, 1_000).unwrap().wrong.is_empty());
}

/// A job is claimed; then `copy` is made; then work happens that will be lost.
fn live(store: &mut dyn Store, copy: impl FnOnce()) -> Past {
    put(store);
    let before = take(store);
    copy();
    let lost = take(store);
    assert_eq!(lost.job, before.job);
    Past { before, lost, lost_id: put(store) }
}

// ── SQLite ───────────────────────────────────────────────────────────────────────────────────────

fn open(file: &Path) -> Sqlite {
    Sqlite::open(file, &StoreOptions::default()).unwrap()
}

/// A consistent copy of the database file alone, as `sqlite3 jobs.db ".backup copy.db"` makes it.
fn back_up(file: &Path, copy: &Path) {
    let connection = rusqlite::Connection::open(file).unwrap();
    connection.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
}

/// Puts the copy in the file's place, as an operator does: the log of the old file must go.
fn restore(copy: &Path, file: &Path) {
    for suffix in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{suffix}", file.display()));
    }
    std::fs::copy(copy, file).unwrap();
}

#[test]
fn yesterdays_copy_of_a_file_is_noticed_when_it_is_restored() {
    let directory = tempfile::tempdir().unwrap();
    let (file, copy) = (directory.path().join("jobs.db"), directory.path().join("copy.db"));
    let past = live(&mut open(&file), || back_up(&file, &copy));
    restore(&copy, &file);
    assert_noticed(&mut open(&file), &past);
}

#[test]
fn a_copy_that_is_restored_a_second_time_is_noticed_a_second_time() {
    let directory = tempfile::tempdir().unwrap();
    let (file, copy) = (directory.path().join("jobs.db"), directory.path().join("copy.db"));
    let past = live(&mut open(&file), || back_up(&file, &copy));
    restore(&copy, &file);
    let mut store = open(&file);
    let (first_id, first) = (put(&mut store), take(&mut store));
    drop(store);
    restore(&copy, &file);
    let lost = Past { lost: first, lost_id: first_id, ..past };
    assert_noticed(&mut open(&file), &lost);
}

#[test]
fn a_copy_that_is_opened_elsewhere_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let (file, copy) = (directory.path().join("jobs.db"), directory.path().join("elsewhere.db"));
    let past = live(&mut open(&file), || back_up(&file, &copy));
    assert_noticed(&mut open(&copy), &past);
}

#[test]
fn a_file_that_is_opened_again_and_again_stays_in_its_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jobs.db");
    for _ in 0..5 {
        let mut store = open(&file);
        put(&mut store);
        take(&mut store);
        assert_eq!(store.identity().unwrap().epoch, 0);
    }
}

/// As `sqlite3 jobs.db ".restore copy.db"` does it, while a process has the file open.
#[test]
fn a_copy_that_is_restored_into_an_open_file_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let (file, copy) = (directory.path().join("jobs.db"), directory.path().join("copy.db"));
    let mut store = open(&file);
    let past = live(&mut store, || back_up(&file, &copy));
    let mut target = rusqlite::Connection::open(&file).unwrap();
    let source = rusqlite::Connection::open(&copy).unwrap();
    let backup = rusqlite::backup::Backup::new(&source, &mut target).unwrap();
    assert_eq!(backup.step(-1).unwrap(), rusqlite::backup::StepResult::Done);
    drop(backup);
    assert_noticed(&mut store, &past);
}

/// Two processes write throughout, and a third is killed again and again. The witness follows all
/// of them.
#[test]
fn the_witness_is_never_ahead_of_the_file_whoever_writes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jobs.db");
    let writer = Path::new(env!("CARGO_BIN_EXE_tenure-drill-writer"));
    let seen = tenure_drill::processes::contend(writer, &file, 20, 1).unwrap();
    assert!(seen.lost.is_empty());
    assert_eq!(open(&file).identity().unwrap().epoch, 0);
}

// ── PostgreSQL ───────────────────────────────────────────────────────────────────────────────────

fn connect(cluster: &Cluster, database: &str) -> Postgres {
    let url = cluster.url_as("tenure", database);
    Postgres::open(&ServerAddress::parse(&url).unwrap(), &postgres::PostgresOptions::default())
        .unwrap()
}

fn cluster() -> Cluster {
    Cluster::start(&Binaries::find_or_install().unwrap(), &Settings::new()).unwrap()
}

fn migrate(cluster: &Cluster) {
    Migrations::connect(&ServerAddress::parse(&cluster.url()).unwrap())
        .unwrap()
        .up(Roles::Leave)
        .unwrap();
}

/// The tokens of one job that three workers got, with a crash of the server after each answer. By
/// then the server has flushed only what a commit waited for (`wal_writer_delay`).
fn tokens_through_crashes(patches: &[Patch]) -> Vec<i64> {
    let settings = Settings::new().config("wal_writer_delay", "10s");
    let mut cluster = Cluster::start(&Binaries::find_or_install().unwrap(), &settings).unwrap();
    Postgres::install_patched(&ServerAddress::parse(&cluster.url()).unwrap(), patches).unwrap();
    let job = put(&mut connect(&cluster, "tenure"));
    cluster.psql("ALTER ROLE tenure SET synchronous_commit = off").unwrap();
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let fence = take(&mut connect(&cluster, "tenure"));
        assert_eq!(fence.job, job);
        tokens.push(fence.token.0);
        cluster.stop_immediately().unwrap();
        cluster.start_again().unwrap();
    }
    tokens
}

/// G1, G3: a role whose setting does not wait for the disk is made to wait.
#[test]
fn a_crash_forgets_no_claim_that_was_answered_whatever_the_role_says() {
    let tokens = tokens_through_crashes(&[]);
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
}

/// The mutant that the crash kills: the functions do not raise the role's setting.
#[test]
fn a_claim_that_does_not_wait_for_the_disk_is_forgotten() {
    const LAZY: [Patch; 1] = [Patch {
        file: "base/installation",
        find: "PERFORM set_config('synchronous_commit', 'on', true) FROM tenure.meta m WHERE m.durability = 'on';",
        replace: "NULL;",
    }];
    let tokens = tokens_through_crashes(&LAZY);
    assert!(
        !tokens.is_sorted_by(|earlier, later| earlier < later),
        "this mutant should have given out a token twice, or the proof proves nothing: {tokens:?}"
    );
}

/// Repeats the beat until the server answers, as a worker's sweeper does.
fn beat(worker: &mut Postgres) {
    let until = tenure::engine::clock::monotonic() + Duration::from_secs(30);
    while let Err(error) = worker.beat() {
        assert!(tenure::engine::clock::monotonic() < until, "{error}");
    }
}

fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(done.success());
}

/// A snapshot of a server's disk has the same system identifier and the same timeline. Only the
/// position in the log shows the difference.
#[test]
fn a_server_that_was_put_back_to_a_snapshot_is_noticed_by_what_a_worker_has_seen() {
    let mut cluster = cluster();
    migrate(&cluster);
    let directory = tempfile::tempdir().unwrap();
    let snapshot = directory.path().join("data");
    let mut worker = connect(&cluster, "tenure");
    put(&mut worker);
    let before = take(&mut worker);
    cluster.stop_immediately().unwrap();
    copy(&cluster.data_dir(), &snapshot);
    cluster.start_again().unwrap();
    beat(&mut worker);
    let (lost, lost_id) = (take(&mut worker), put(&mut worker));
    let past = Past { before, lost, lost_id };
    beat(&mut worker);
    cluster.stop_immediately().unwrap();
    std::fs::remove_dir_all(cluster.data_dir()).unwrap();
    copy(&snapshot, &cluster.data_dir());
    cluster.start_again().unwrap();
    beat(&mut worker);
    let mut store = connect(&cluster, "tenure");
    assert_noticed(&mut store, &past);
    let raises = store.identity().unwrap().raises;
    assert!(raises[0].reason.contains("write-ahead log"), "{raises:?}");
    // The worker's further beats begin no further epoch.
    for _ in 0..3 {
        beat(&mut worker);
    }
    assert_eq!(store.identity().unwrap().raises, raises);
}

/// The epoch of a store whose worker has read the log position before each of three crashes of the
/// server, which lost some of its log.
fn epoch_after_crashes(patches: &[Patch]) -> u32 {
    let settings = Settings::new().config("wal_writer_delay", "10s");
    let mut cluster = Cluster::start(&Binaries::find_or_install().unwrap(), &settings).unwrap();
    Postgres::install_patched(&ServerAddress::parse(&cluster.url()).unwrap(), patches).unwrap();
    let mut worker = connect(&cluster, "tenure");
    for _ in 0..3 {
        beat(&mut worker);
        put(&mut worker);
        take(&mut worker);
        // Nothing waits until this is on disk.
        let unflushed = "SELECT pg_logical_emit_message(false, 'tenure', repeat('x', 100000))";
        cluster.psql(unflushed).unwrap();
        beat(&mut worker);
        cluster.stop_immediately().unwrap();
        cluster.start_again().unwrap();
        beat(&mut worker);
    }
    worker.identity().unwrap().epoch
}

#[test]
fn a_crash_that_loses_what_was_not_on_disk_begins_no_epoch() {
    assert_eq!(epoch_after_crashes(&[]), 0);
}

/// The mutant that the crash kills: workers are given a log position that is not on disk yet.
#[test]
fn a_worker_that_has_seen_what_was_not_on_disk_accuses_a_server_that_only_crashed() {
    const HASTY: [Patch; 1] = [Patch {
        file: "base/epochs",
        find: "pg_current_wal_flush_lsn()",
        replace: "pg_current_wal_insert_lsn()",
    }];
    assert!(epoch_after_crashes(&HASTY) > 0, "this mutant should have been noticed");
}

/// A standby that has everything from before the copy and nothing after it. It is cut off, and then
/// promoted.
fn promoted(primary: &Cluster) -> (Cluster, Past) {
    let mut standby = None;
    let past = live(&mut connect(primary, "tenure"), || {
        let follower = primary.standby().unwrap();
        follower.psql("ALTER SYSTEM SET primary_conninfo = ''").unwrap();
        follower.psql("SELECT pg_reload_conf()").unwrap();
        let alone = "SELECT count(*) FROM pg_stat_wal_receiver";
        while follower.psql(alone).unwrap() != "0" {}
        standby = Some(follower);
    });
    let standby = standby.unwrap();
    assert_eq!(standby.psql("SELECT pg_promote()").unwrap(), "t");
    (standby, past)
}

#[test]
fn a_promoted_asynchronous_replica_is_noticed() {
    let primary = cluster();
    migrate(&primary);
    let (standby, past) = promoted(&primary);
    assert_noticed(&mut connect(&standby, "tenure"), &past);
    let reason = connect(&standby, "tenure").identity().unwrap().raises.remove(0).reason;
    assert!(reason.contains("timeline"), "{reason}");
}

/// What two replicas issue that do not know of each other and are promoted within ten minutes: a
/// token for the job that both have, and an id.
fn issued_by_two_replicas(patches: &[Patch]) -> [(Fence, JobId); 2] {
    let primary = cluster();
    Postgres::install_patched(&ServerAddress::parse(&primary.url()).unwrap(), patches).unwrap();
    let job = put(&mut connect(&primary, "tenure"));
    let standbys = [(); 2].map(|()| {
        let follower = primary.standby().unwrap();
        follower.psql("ALTER SYSTEM SET primary_conninfo = ''").unwrap();
        follower.psql("SELECT pg_reload_conf()").unwrap();
        follower
    });
    drop(primary);
    let issued = standbys.map(|standby| {
        assert_eq!(standby.psql("SELECT pg_promote()").unwrap(), "t");
        let mut store = connect(&standby, "tenure");
        let (taken, id) = (take(&mut store), put(&mut store));
        assert_eq!(taken.job, job);
        (taken, id, store.identity().unwrap().epoch)
    });
    let [(first, first_id, epoch), (second, second_id, again)] = issued;
    assert!(epoch > 0 && again.abs_diff(epoch) <= 1, "the second came too late to prove anything");
    [(first, first_id), (second, second_id)]
}

/// I2: no (job, token) is issued twice, and no id.
#[test]
fn a_second_failover_to_a_replica_that_never_saw_the_first_repeats_no_number() {
    let [(first, first_id), (second, second_id)] = issued_by_two_replicas(&[]);
    assert_ne!(first, second);
    assert_ne!(first_id, second_id);
}

/// The mutant that the second failover kills: both replicas begin the numbers of their epoch at the
/// same place.
#[test]
fn an_epoch_alone_is_not_enough_for_two_replicas() {
    const UNSALTED: [Patch; 1] = [Patch {
        file: "base/epochs",
        find: "RETURN hashtextextended(extract(epoch FROM pg_postmaster_start_time()) || ' ' || tenure.place_of_jobs(), 0) & 549755813887;",
        replace: "RETURN 0;",
    }];
    // An epoch's number contains the time in units of ten minutes. If a unit ends between the two
    // promotions, the numbers differ even so; that does not happen twice in a row.
    let repeats = (0..2).any(|_| {
        let [first, second] = issued_by_two_replicas(&UNSALTED);
        first == second
    });
    assert!(
        repeats,
        "this mutant should have issued the same numbers, or the proof proves nothing"
    );
}

/// The same for one dump that is restored twice within ten minutes.
#[test]
fn a_dump_that_is_restored_a_second_time_repeats_no_number() {
    let primary = cluster();
    migrate(&primary);
    put(&mut connect(&primary, "tenure"));
    let dump = dump_of(&primary);
    let issued = [(); 2].map(|()| {
        primary.psql("DROP SCHEMA tenure CASCADE").unwrap();
        load_into(&primary, "tenure", &dump);
        let mut store = connect(&primary, "tenure");
        (take(&mut store), put(&mut store))
    });
    let [(first, first_id), (second, second_id)] = issued;
    assert_eq!(first.job, second.job, "the job that both have");
    assert_ne!(first.token, second.token);
    assert_ne!(first_id, second_id);
}

/// The mutant that the promotion kills: the checkpoint's timeline lags behind after a promotion.
#[test]
fn a_timeline_that_is_read_from_the_checkpoint_is_not_enough() {
    const LAGS: [Patch; 1] = [Patch {
        file: "base/epochs",
        find: "('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint",
        replace: "(SELECT c.timeline_id FROM pg_control_checkpoint() c)::bigint",
    }];
    let primary = cluster();
    Postgres::install_patched(&ServerAddress::parse(&primary.url()).unwrap(), &LAGS).unwrap();
    let (standby, past) = promoted(&primary);
    let mut store = connect(&standby, "tenure");
    let (id, fence) = (put(&mut store), take(&mut store));
    assert!(
        id <= past.lost_id || fence.token <= past.lost.token,
        "this mutant should have given out {:?} and {} again, or the proof proves nothing",
        past.lost,
        past.lost_id
    );
}

#[test]
fn a_dump_that_is_restored_into_the_same_server_is_noticed() {
    let primary = cluster();
    migrate(&primary);
    let mut dump = String::new();
    let past = live(&mut connect(&primary, "tenure"), || dump = dump_of(&primary));
    primary.psql("DROP SCHEMA tenure CASCADE").unwrap();
    load_into(&primary, "tenure", &dump);
    assert_noticed(&mut connect(&primary, "tenure"), &past);
}

#[test]
fn a_dump_that_is_restored_into_another_server_is_noticed() {
    let (primary, other) = (cluster(), cluster());
    migrate(&primary);
    let mut dump = String::new();
    let past = live(&mut connect(&primary, "tenure"), || dump = dump_of(&primary));
    load_into(&other, "tenure", &dump);
    assert_noticed(&mut connect(&other, "tenure"), &past);
}

/// A copy has everything of the original, including the OIDs of its tables.
#[test]
fn a_copy_of_the_database_that_takes_its_place_is_noticed() {
    let primary = cluster();
    migrate(&primary);
    let anew = |sql: &str| primary.address().with_database("postgres").psql(sql).unwrap();
    let mut store = connect(&primary, "tenure");
    put(&mut store);
    let before = take(&mut store);
    drop(store);
    anew("CREATE DATABASE copy TEMPLATE tenure");
    let mut store = connect(&primary, "tenure");
    let lost = take(&mut store);
    let past = Past { before, lost, lost_id: put(&mut store) };
    drop(store);
    anew("DROP DATABASE tenure");
    anew("ALTER DATABASE copy RENAME TO tenure");
    assert_noticed(&mut connect(&primary, "tenure"), &past);
}

fn dump_of(cluster: &Cluster) -> String {
    let program = cluster.binaries().client("pg_dump").unwrap();
    let mut command = std::process::Command::new(program);
    command.envs(cluster.address().variables()).args(["--schema=tenure", "tenure"]);
    let dumped = command.output().unwrap();
    assert!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
    String::from_utf8(dumped.stdout).unwrap()
}

fn load_into(cluster: &Cluster, database: &str, dump: &str) {
    use std::io::Write;
    let program = cluster.binaries().client("psql").unwrap();
    let mut command = std::process::Command::new(program);
    command.envs(cluster.address().variables()).args(["-q", "-v", "ON_ERROR_STOP=1", database]);
    let mut loading = command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    loading.stdin.take().unwrap().write_all(dump.as_bytes()).unwrap();
    assert!(loading.wait().unwrap().success());
}
