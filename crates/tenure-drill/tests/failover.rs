//! Databases that really go back in time: a promoted replica, a restored dump, a restored file.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::path::Path;
use std::time::Duration;

use tenure::drill::Patch;
use tenure::job::{JobId, Json, Name, NewJob};
use tenure::lease::{Fence, WorkerId};
use tenure::lifecycle::Outcome;
use tenure::store::postgres::{self, Address, Migrations, Postgres, Roles};
use tenure::store::sqlite::{Options, Sqlite};
use tenure::store::{Claim, Cursor, Enqueued, Settled, Settlement, Store};
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
    let ask = Claim {
        worker: WorkerId::unique(),
        queues: vec![Name::default_queue()],
        kinds: None,
        n: 1,
        lease: Duration::from_millis(1),
        cursor: Cursor::default(),
        grace: Duration::ZERO,
    };
    // A lease of a millisecond is over at once, but a server's clock may need a moment to say so.
    let until = tenure::clock::monotonic() + Duration::from_secs(30);
    while tenure::clock::monotonic() < until {
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

/// What happened before the copy was made, and what was lost with it.
struct Past {
    before: Fence,
    lost: Fence,
    lost_id: JobId,
}

/// The same for every way back: nothing that was ever given out is given out again, and all who hold something from
/// before are refused.
fn assert_noticed(store: &mut dyn Store, past: &Past) {
    let id = put(store);
    assert!(id > past.lost_id, "{id} was given out before");
    // A server that was elsewhere gives every lease its length again, so the new job may come first.
    let mut taken = take(store);
    while taken.job != past.before.job {
        assert!(matches!(settle(store, taken), Settled::Yes(_)));
        taken = take(store);
    }
    assert!(taken.token > past.lost.token, "{taken:?} after {:?}", past.lost);
    for old in [past.before, past.lost] {
        assert!(matches!(settle(store, old), Settled::Stale(_)), "{old:?}");
    }
    assert!(matches!(settle(store, taken), Settled::Yes(_)));
    let identity = store.identity().unwrap();
    assert_eq!(identity.raises.len(), 1, "{identity:?}");
    assert_eq!(identity.raises[0].epoch, identity.epoch);
    assert!(store.check(None, 1_000).unwrap().wrong.is_empty());
}

/// A job is claimed; then `copy` is made; then what will be lost happens.
fn live(store: &mut dyn Store, copy: impl FnOnce()) -> Past {
    put(store);
    let before = take(store);
    copy();
    let lost = take(store);
    assert_eq!(lost.job, before.job);
    Past { before, lost, lost_id: put(store) }
}

// ── SQLite
// ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────────

fn open(file: &Path) -> Sqlite {
    Sqlite::open(file, &Options::default()).unwrap()
}

/// A copy of the database alone, in a state that it was in: as `sqlite3 jobs.db ".backup copy.db"` makes it.
fn back_up(file: &Path, copy: &Path) {
    let connection = rusqlite::Connection::open(file).unwrap();
    connection.execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
}

/// Puts the copy where the file was, as people do: the log of the old one must go.
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

/// As `sqlite3 jobs.db ".restore copy.db"` does it, under the feet of a process that has the file open.
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

/// Two processes write and read; the witness follows both.
#[test]
fn the_witness_is_never_ahead_of_the_file_whoever_writes() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("jobs.db");
    let writer = Path::new(env!("CARGO_BIN_EXE_tenure-drill-writer"));
    let seen = tenure_drill::processes::contend(writer, &file, 20, 1).unwrap();
    assert!(seen.lost.is_empty());
    assert_eq!(open(&file).identity().unwrap().epoch, 0);
}

// ── PostgreSQL
// ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────

fn connect(cluster: &Cluster, database: &str) -> Postgres {
    let url = cluster.url_as("tenure", database);
    Postgres::open(&Address::parse(&url).unwrap(), &postgres::Options::default()).unwrap()
}

fn cluster() -> Cluster {
    Cluster::start(&Binaries::find_or_install().unwrap(), &Settings::new()).unwrap()
}

fn migrate(cluster: &Cluster) {
    Migrations::connect(&Address::parse(&cluster.url()).unwrap())
        .unwrap()
        .up(Roles::Leave)
        .unwrap();
}

/// A standby that has all that happened before, is cut off, and then promoted.
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

/// The mutant that the promotion kills: the checkpoint's timeline lags behind after a promotion.
#[test]
fn a_timeline_that_is_read_from_the_checkpoint_is_not_enough() {
    const LAGS: [Patch; 1] = [Patch {
        file: "verbs/record",
        find: "('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint",
        replace: "(SELECT c.timeline_id FROM pg_control_checkpoint() c)::bigint",
    }];
    let primary = cluster();
    Postgres::install_patched(&Address::parse(&primary.url()).unwrap(), &LAGS).unwrap();
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

/// A copy has everything of the original, down to the numbers of its tables.
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
