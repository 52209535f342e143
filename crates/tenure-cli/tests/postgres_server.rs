//! Servers that cannot be used: each error is distinct, names the next step, and contains no
//! password.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use shell::Shell;
use tenure_cluster::{Binaries, Cluster, PgBouncer, Settings};

const SECRET: &str = "hunter2";

/// Runs commands that read, write, examine and migrate on an address, and asserts how each is
/// refused.
#[track_caller]
fn refuses(shell: &Shell, db: &str, says: &str) {
    let db = db.replace("PASSWORD", SECRET);
    for args in
        [&["stats"][..], &["enqueue", "k"], &["doctor"], &["migrate", "up"], &["migrate", "status"]]
    {
        let ran = shell.run(&[&["--db", &db], args].concat());
        ran.refused(3, says);
        assert!(ran.stderr.contains("; ") && ran.stdout.is_empty(), "no next step: {ran:?}");
        assert!(!ran.stderr.contains(SECRET), "{ran:?}");
    }
}

#[test]
fn a_server_that_is_not_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let shell = Shell::new();
    let check = "check that the server runs, and host and port of the address";
    refuses(&shell, &format!("postgres://me:PASSWORD@127.0.0.1:{port}/d"), check);
    refuses(&shell, "postgres://me:PASSWORD@/d?host=/nowhere", check);
    refuses(
        &shell,
        "postgres://me:PASSWORD@nobody.invalid/d",
        "check host and port of the address",
    );
}

#[test]
fn a_server_that_says_nothing_is_given_up_on() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let db = format!("postgres://me:PASSWORD@127.0.0.1:{port}/d?connect_timeout=1");
    refuses(
        &Shell::new(),
        &db,
        "no answer within 1s while trying to connect; check that the server is well",
    );
}

#[test]
fn a_database_that_does_not_exist() {
    let shell = Shell::before_migrating();
    let name = shell.database().value("current_database()");
    let db = shell.database().url().replace(&name, "no_such_database");
    refuses(&shell, &db, "create it with `createdb`, or correct the address");
}

#[test]
fn a_wrong_password_or_none() {
    let hba = ["local all tenure trust", "local all all scram-sha-256"];
    let settings = Settings::new().hba(hba);
    let cluster = Cluster::start(&Binaries::find_or_install().unwrap(), &settings).unwrap();
    cluster.psql("CREATE ROLE ann LOGIN PASSWORD 'right'").unwrap();
    let (shell, dir) = (Shell::new(), cluster.socket_dir().display());
    let at = |who: &str| format!("postgres://{who}@/tenure?host={dir}");
    refuses(
        &shell,
        &at("ann:PASSWORD"),
        "check user and password (in the address, or PGUSER and PGPASSWORD)",
    );
    refuses(&shell, &at("ann"), "give a password in the address or as PGPASSWORD");
    refuses(&shell, &at("bob:PASSWORD"), "the server did not let us in");
    shell.run(&["--db", &at("ann:right"), "stats"]).refused(3, "make it with: tenure migrate up");
    let mut from_environment = shell.command(&["stats"]);
    from_environment.env("TENURE_DB", at("ann")).env("PGPASSWORD", "right");
    shell::Ran::of(from_environment.output().unwrap())
        .refused(3, "make it with: tenure migrate up");
}

#[test]
fn a_replica_can_be_read_and_says_where_to_write() {
    let settings = Settings::new();
    let primary = Cluster::start(&Binaries::find_or_install().unwrap(), &settings).unwrap();
    let shell = Shell::new();
    refuses_writes_before(&shell, &primary.standby().unwrap());
    shell.ok(&["--db", &primary.url(), "migrate", "up"]);
    shell.ok(&["--db", &primary.url(), "enqueue", "k"]);

    let standby = primary.standby().unwrap();
    let replica = standby.url();
    assert!(shell.ok(&["--db", &replica, "stats"]).contains("default"));
    shell.ok(&["--db", &replica, "jobs", "show", "1"]);
    shell.ok(&["--db", &replica, "migrate", "up"]);
    let next = "use the address of the primary, or add target_session_attrs=read-write to it";
    for args in [&["enqueue", "k"][..], &["jobs", "cancel", "1"], &["queues", "pause", "q"]] {
        shell.run(&[&["--db", &replica], args].concat()).refused(3, next);
    }
    let doctor = shell.run(&["--db", &replica, "doctor"]);
    assert!(
        doctor.code == 1 && doctor.stdout.contains("refused: the server is a replica"),
        "{doctor:?}"
    );
    assert!(doctor.stdout.contains(next), "{doctor:?}");
}

fn refuses_writes_before(shell: &Shell, replica: &Cluster) {
    shell
        .run(&["--db", &replica.url(), "migrate", "up"])
        .refused(3, "the server only reads, as a replica does");
}

#[test]
fn doctor_sees_a_session_that_cannot_write() {
    let shell = Shell::on_server();
    let read_only = with_setting(&shell, "default_transaction_read_only=on");
    let ran = shell.run(&["--db", &read_only, "doctor"]);
    assert!(ran.code == 1 && ran.stdout.contains("refused: the session is read-only"), "{ran:?}");
    shell.run(&["--db", &read_only, "enqueue", "k"]).refused(3, "the server only reads");
}

/// The address, with a setting for the session.
fn with_setting(shell: &Shell, setting: &str) -> String {
    shell.database().url_with(&format!("options=-c%20{}", setting.replace('=', "%3D")))
}

#[test]
fn commits_wait_for_the_disk_until_the_installation_says_otherwise_and_doctor_tells() {
    let shell = Shell::on_server();
    let lazy = with_setting(&shell, "synchronous_commit=off");
    let commits = |db: &str| {
        let ran = shell.run(&["--db", db, "doctor", "--json"]);
        let findings: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        let found = findings.as_array().unwrap().iter().find(|it| it["check"] == "commits");
        (found.unwrap()["ok"] == true, found.unwrap()["found"].as_str().unwrap().to_owned())
    };
    let waits = (true, "on disk before they are acknowledged".to_owned());
    assert_eq!(commits(&lazy), waits);
    let said = shell.ok(&["doctor", "--durability", "off"]);
    assert_eq!(said, "durability was on and is now off\n");
    let (ok, found) = commits(&lazy);
    assert!(!ok && found.contains("acknowledged before they are on disk"), "{found}");
    let (ok, found) = commits(&shell.database().url());
    assert!(ok && found.contains("unless a session or role says otherwise"), "{found}");
    let said = shell.json(&["doctor", "--durability", "on"]);
    assert_eq!(said, serde_json::json!({"was": "off", "durability": "on"}));
    assert_eq!(commits(&lazy), waits);

    shell.run(&["doctor", "--durability", "maybe"]).refused(2, "possible values: on, off");
    let both = shell.run(&["doctor", "--durability", "off", "--check"]);
    both.refused(2, "cannot be used with");
    let file = Shell::new();
    file.run(&["doctor", "--durability", "off"]).refused(2, "a file always waits for the disk");
}

#[test]
fn through_a_pooler_everything_works_and_doctor_says_so() {
    let binaries = Binaries::find_or_install().unwrap();
    let cluster = Cluster::start(&binaries, &Settings::new()).unwrap();
    let pooler = PgBouncer::start(&cluster).unwrap();
    let (shell, db) = (Shell::new(), pooler.url());
    let ok = |args: &[&str]| shell.ok(&[&["--db", &db], args].concat());
    ok(&["migrate", "up", "--roles"]);
    assert_eq!(ok(&["enqueue", "k", "--key", "once"]), "1\n");
    assert_eq!(ok(&["enqueue", "k", "--key", "once"]), "1\n");
    assert_eq!(ok(&["jobs", "cancel", "1"]), "job 1 cancelled\n");
    assert!(ok(&["doctor"]).contains("through a pooler"));
    assert!(ok(&["migrate", "down", "--yes"]).contains("with 0 live and 1 ended jobs"));
}

#[test]
fn doctor_tells_what_the_store_rests_on() {
    let shell = Shell::on_server();
    let findings = shell.json(&["doctor"]);
    let checks: Vec<&str> = findings
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["check"].as_str().unwrap())
        .collect();
    let expected = [
        "store",
        "postgresql",
        "session",
        "writes",
        "rights",
        "commits",
        "failover",
        "notifications",
        "transactions",
        "vacuum",
        "clock",
        "schema",
        "epoch",
        "workers",
        "guard gap",
        "kinds",
        "queues",
        "leases",
        "effects",
        "dead",
    ];
    assert_eq!(checks, expected);
    let text = shell.ok(&["doctor"]);
    for part in [
        "direct: workers are woken",
        "arrive within ",
        "none is open for long",
        "0 dead rows beside 0 live ones in jobs",
        "the server's, which alone counts, and this machine's agree",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_server_that_is_too_old() {
    let port = old_server();
    let db = format!("postgres://me:PASSWORD@127.0.0.1:{port}/d?sslmode=disable");
    refuses(
        &Shell::new(),
        &db,
        "PostgreSQL 12.22 is too old; 15 or newer is needed; upgrade the server",
    );
}

/// A fake server of an old version: it accepts every connection and answers the first query.
fn old_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // The thread ends with the test's process. A caller that hangs up is not an error.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = stream.and_then(|mut stream| answer(&mut stream));
        }
    });
    port
}

fn answer(stream: &mut TcpStream) -> io::Result<()> {
    message(stream, 0)?;
    let let_in = [said(b'R', &[0; 4]), said(b'Z', b"I")].concat();
    stream.write_all(&let_in)?;
    // The query is parsed, bound, described and executed, and ends with a sync.
    while message(stream, 1)? != b'S' {}
    let columns: [(&str, u32, &[u8]); 6] = [
        ("version_number", 23, &120_022_u32.to_be_bytes()),
        ("version", 25, b"12.22"),
        ("encoding", 25, b"UTF8"),
        ("is_replica", 16, &[0]),
        ("is_read_only", 16, &[0]),
        ("mark", 25, b""),
    ];
    let (mut description, mut row) = (vec![0, 6], vec![0, 6]);
    for (name, kind, value) in columns {
        description.extend_from_slice(name.as_bytes());
        // The end of the name, no table and no column, the type, any size, no modifier, binary.
        description.extend_from_slice(&[0; 7]);
        description.extend_from_slice(&kind.to_be_bytes());
        description.extend_from_slice(&[255, 255, 255, 255, 255, 255, 0, 1]);
        row.extend_from_slice(&(value.len() as u32).to_be_bytes());
        row.extend_from_slice(value);
    }
    let answers = [
        said(b'1', b""),
        said(b'2', b""),
        said(b't', &[0, 0]),
        said(b'T', &description),
        said(b'D', &row),
        said(b'C', b"SELECT 1\0"),
        said(b'Z', b"I"),
    ];
    stream.write_all(&answers.concat())?;
    // Until the caller hangs up.
    io::copy(stream, &mut io::sink()).map(drop)
}

/// Reads a message to its end, and returns its type. `sort` is the length of the type: 0 in the
/// first message of a connection, which has no type, and 1 in all others.
fn message(stream: &mut TcpStream, sort: usize) -> io::Result<u8> {
    let mut head = [0; 5];
    stream.read_exact(&mut head[..4 + sort])?;
    let mut length = [0; 4];
    length.copy_from_slice(&head[sort..4 + sort]);
    io::copy(&mut stream.take(u64::from(u32::from_be_bytes(length)) - 4), &mut io::sink())?;
    Ok(head[0])
}

fn said(sort: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32 + 4).to_be_bytes();
    [&[sort], &length[..], body].concat()
}
