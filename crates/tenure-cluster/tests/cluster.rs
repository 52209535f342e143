//! What the other tests rely on when they ask for a server.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use tenure_cluster::{Binaries, Cluster, PgBouncer, Settings};

fn start(settings: &Settings) -> Cluster {
    Cluster::start(&Binaries::find_or_install().unwrap(), settings).unwrap()
}

fn server_pid(data: &Path) -> u32 {
    let file = fs::read_to_string(data.join("postmaster.pid")).unwrap();
    file.lines().next().unwrap().parse().unwrap()
}

#[test]
fn a_cluster_is_durable_not_root_and_gone_when_dropped() {
    let cluster = start(&Settings::new().config("application_name", "it's us"));
    assert_eq!(cluster.psql("SELECT current_user, current_database()").unwrap(), "tenure|tenure");
    assert_eq!(cluster.psql("SHOW fsync; SHOW synchronous_commit").unwrap(), "on\non");
    assert_eq!(cluster.psql("SHOW server_encoding; SHOW max_connections").unwrap(), "UTF8\n100");
    assert_eq!(cluster.psql("SHOW listen_addresses").unwrap(), "");
    assert!(cluster.psql("SELECT oops").unwrap_err().to_string().contains("oops"));
    assert!(cluster.log().contains("oops"));

    let pid = server_pid(&cluster.data_dir());
    assert_ne!(fs::metadata(format!("/proc/{pid}")).unwrap().uid(), 0);

    let directory = cluster.socket_dir().to_owned();
    drop(cluster);
    assert!(!directory.exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn what_was_committed_outlives_a_crash_and_the_address_stays() {
    let mut cluster = start(&Settings::new().tcp().max_connections(20));
    let url = cluster.tcp_url().unwrap();
    cluster.psql("CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)").unwrap();
    cluster.stop_immediately().unwrap();
    assert!(cluster.psql("SELECT 1").is_err());
    cluster.start_again().unwrap();
    assert!(cluster.log().contains("was not properly shut down"));
    cluster.restart().unwrap();
    assert_eq!(cluster.psql("SELECT n FROM kept; SHOW max_connections").unwrap(), "1\n20");
    assert_eq!(cluster.tcp_url().unwrap(), url);
    assert!(std::net::TcpStream::connect(("127.0.0.1", cluster.port())).is_ok());
}

#[test]
fn a_line_of_the_configuration_that_makes_no_sense_is_shown() {
    let settings = Settings::new().config("no_such_setting", "1");
    let error = Cluster::start(&Binaries::find_or_install().unwrap(), &settings).unwrap_err();
    assert!(error.to_string().contains("no_such_setting"), "{error}");
}

#[test]
fn a_standby_follows_and_refuses_writes() {
    let primary = start(&Settings::new());
    primary.psql("CREATE TABLE seen (n int)").unwrap();
    let standby = primary.standby().unwrap();
    assert_eq!(standby.psql("SELECT pg_is_in_recovery(), count(*) FROM seen").unwrap(), "t|0");
    let refused = standby.psql("INSERT INTO seen VALUES (1)").unwrap_err().to_string();
    assert!(refused.contains("read-only"), "{refused}");
    // The primary answers only once the standby shows the change.
    let sync = "ALTER SYSTEM SET synchronous_standby_names = '*';
        ALTER SYSTEM SET synchronous_commit = 'remote_apply'; SELECT pg_reload_conf()";
    primary.psql(sync).unwrap();
    primary.psql("INSERT INTO seen VALUES (1)").unwrap();
    assert_eq!(standby.psql("SELECT n FROM seen").unwrap(), "1");
}

#[test]
fn a_pool_hands_over_connections_after_each_transaction() {
    let cluster = start(&Settings::new());
    let pool = PgBouncer::start(&cluster).unwrap();
    let who = pool.address().psql("SELECT current_user, current_database()");
    assert_eq!(who.unwrap(), "tenure|tenure", "{}", pool.log());
    let console = pool.address().with_user("pgbouncer").with_database("pgbouncer");
    let config = console.psql("SHOW CONFIG").unwrap();
    assert!(config.contains("pool_mode|transaction|"), "{config}");
    drop(pool);
    assert_eq!(cluster.psql("SELECT 1").unwrap(), "1");
}

#[test]
fn a_cluster_whose_process_is_killed_is_gone_too() {
    let mut holder = Command::new(env!("CARGO_BIN_EXE_hold-cluster"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut data = String::new();
    BufReader::new(holder.stdout.as_mut().unwrap()).read_line(&mut data).unwrap();
    let data = Path::new(data.trim_end());
    // A process that has ended but is not reaped yet has no executable any more.
    let program = format!("/proc/{}/exe", server_pid(data));
    assert!(Path::new(&program).exists());

    // The standard library's kill is SIGKILL, which a process cannot catch.
    holder.kill().unwrap();
    holder.wait().unwrap();

    assert!(gone(&data.join("postmaster.pid")));
    assert!(gone(Path::new(&program)));
    assert!(gone(data.parent().unwrap()));
}

/// Whether a path disappears within a minute.
fn gone(path: &Path) -> bool {
    let script = "while test -e \"$1\"; do sleep 0.05; done";
    let mut wait = Command::new("timeout");
    wait.args(["60", "sh", "-c", script, "sh"]).arg(path);
    wait.status().unwrap().success()
}
