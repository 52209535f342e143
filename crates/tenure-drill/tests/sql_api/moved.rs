//! Servers that restart, are promoted, or are behind a pooler: what a test database can only
//! imitate.

use tenure::engine::store::postgres::{
    Migrations, Postgres, PostgresOptions, Roles, ServerAddress,
};
use tenure::engine::store::{Guarded, Look, Registration, Work};
use tenure::{Name, WorkerId};
use tenure_cluster::{Binaries, Cluster, PgBouncer, Settings};
use tenure_drill::sql_api::{Case, sql_cases};

pub(crate) const CASES: &[Case] = sql_cases! {
    "moved":
    a_promoted_standby_issues_numbers_that_the_primary_never_did,
    a_restart_of_the_server_gives_every_lease_its_length_again,
    through_a_pooler_a_worker_is_known_and_not_guarded,
    a_server_that_does_not_tell_its_timeline_is_used_and_the_rest_is_compared,
};

fn server() -> Cluster {
    let cluster = Cluster::start(&Binaries::find().unwrap(), &Settings::new()).unwrap();
    Migrations::connect(&address(&cluster.url())).unwrap().up(Roles::Leave).unwrap();
    cluster
}

fn address(url: &str) -> ServerAddress {
    ServerAddress::parse(url).unwrap()
}

fn ask(cluster: &Cluster, sql: &str) -> String {
    cluster.psql(sql).unwrap().trim().to_owned()
}

fn a_promoted_standby_issues_numbers_that_the_primary_never_did() {
    let primary = server();
    assert_eq!(ask(&primary, "SELECT tenure.enqueue('work')"), "1");
    let standby = primary.standby().unwrap();
    let mut store = Postgres::open(&address(&standby.url()), &PostgresOptions::default()).unwrap();
    assert_eq!(store.identity().unwrap().epoch, 0, "it can be looked at before");
    assert!(store.check(None, 10).unwrap().wrong.is_empty());
    assert_eq!(ask(&standby, "SELECT pg_promote()"), "t");
    let identity = store.identity().unwrap();
    assert!(identity.epoch > 0);
    assert_eq!(identity.raises[0].reason, "the WAL timeline was 1 and is 2");
    let id: i64 = ask(&standby, "SELECT tenure.enqueue('work')").parse().unwrap();
    let epoch: i64 =
        ask(&standby, "SELECT max(token) >> 40 FROM tenure.claim('ann', n => 9)").parse().unwrap();
    assert_eq!((id >> 40, epoch), (i64::from(identity.epoch), i64::from(identity.epoch)));
    assert_eq!(
        ask(&primary, "SELECT epoch FROM tenure.identity()"),
        "0",
        "where nothing has happened"
    );
}

fn a_restart_of_the_server_gives_every_lease_its_length_again() {
    let mut cluster = server();
    ask(&cluster, "SELECT tenure.enqueue('work')");
    ask(&cluster, "SELECT id FROM tenure.claim('ann', lease => '1 hour')");
    ask(&cluster, "UPDATE tenure.jobs SET lease_until = lease_until - 3600000");
    assert_eq!(ask(&cluster, "SELECT count(*) FROM tenure.overdue(10)"), "1");
    cluster.stop_immediately().unwrap();
    cluster.start_again().unwrap();
    assert_eq!(ask(&cluster, "SELECT count(*) FROM tenure.overdue(10)"), "0");
    assert_eq!(ask(&cluster, "SELECT count(*) FROM tenure.claim('bob')"), "0");
    assert_eq!(ask(&cluster, "SELECT epoch FROM tenure.identity()"), "0", "it is where it was");
}

fn through_a_pooler_a_worker_is_known_and_not_guarded() {
    let cluster = server();
    let pooler = PgBouncer::start(&cluster).unwrap();
    let mut store = Postgres::open(&address(&pooler.url()), &PostgresOptions::default()).unwrap();
    let worker = WorkerId::check("ann").unwrap();
    let known = Registration::new(worker, vec![Name::default_queue()]);
    assert_eq!(store.register(&known).unwrap(), Guarded::ByLeaseAlone);
    assert_eq!(store.workers().unwrap()[0].is_alive, None);
}

/// As on some managed servers: the function exists, but raises an error.
fn a_server_that_does_not_tell_its_timeline_is_used_and_the_rest_is_compared() {
    let cluster = Cluster::start(&Binaries::find().unwrap(), &Settings::new()).unwrap();
    ask(
        &cluster,
        "CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE tenure TO app;
         REVOKE EXECUTE ON FUNCTION pg_current_wal_lsn() FROM PUBLIC",
    );
    let url = cluster.url_as("app", "tenure");
    let app = cluster.address().with_user("app");
    let ask = |sql: &str| app.psql(sql).unwrap().trim().to_owned();
    Migrations::connect(&address(&url)).unwrap().up(Roles::Leave).unwrap();
    assert_eq!(ask("SELECT tenure.enqueue('work')"), "1");
    assert_eq!(ask("SELECT id, token FROM tenure.claim('ann')"), "1|1");
    ask("SELECT tenure.complete(1, 1)");
    let mut store = Postgres::open(&address(&url), &PostgresOptions::default()).unwrap();
    let terms = store.terms().unwrap();
    assert!(!terms.tells_timeline && terms.tells_system && terms.is_synced, "{terms:?}");
    assert_eq!(store.identity().unwrap().epoch, 0);

    // A dump from a server that reported its timeline, restored where this is not possible.
    ask("UPDATE tenure.meta SET system = system + 1, wal_timeline = 7");
    let id: i64 = ask("SELECT tenure.enqueue('work')").parse().unwrap();
    let epoch = store.identity().unwrap().epoch;
    assert!(epoch > 0);
    assert_eq!(id >> 40, i64::from(epoch));
    assert_eq!(ask("SELECT token >> 40 FROM tenure.claim('ann')"), epoch.to_string());
    // The store records that it does not know the timeline (0), and does not compare it any more.
    assert_eq!(ask("SELECT epoch, wal_timeline FROM tenure.meta"), format!("{epoch}|0"));
    assert_eq!(store.identity().unwrap().epoch, epoch);
    ask("SELECT tenure.enqueue('work')");
}
