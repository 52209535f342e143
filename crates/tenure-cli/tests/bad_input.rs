//! What commands refuse: with which exit code and message, and that nothing is half done.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod shell;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use shell::{Shell, on_both_engines};

on_both_engines!(
    bad_input_is_refused_in_clear_words_and_changes_nothing,
    a_bad_line_in_a_file_stores_nothing,
    a_bad_line_in_a_pipe_says_how_many_were_stored_before_it,
    an_operation_on_several_jobs_does_what_is_possible_and_says_what_is_not,
    deleting_all_dead_jobs_is_asked_for_twice,
);

struct Case {
    name: &'static str,
    args: &'static [&'static str],
    stdin: &'static [u8],
    code: i32,
    says: &'static str,
}

/// A case without input on stdin.
const fn case(
    name: &'static str,
    args: &'static [&'static str],
    code: i32,
    says: &'static str,
) -> Case {
    Case { name, args, stdin: b"", code, says }
}

const LONG_NAME: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// Each case runs in a store where job 1 is stored under the key `taken`.
const CASES: &[Case] = &[
    case("a kind with capitals", &["enqueue", "Kind"], 2, "kind \"Kind\" is not a valid name"),
    case("an empty kind", &["enqueue", ""], 2, "kind \"\" is not a valid name"),
    case("a kind of 64 bytes", &["enqueue", LONG_NAME], 2, "is not a valid name"),
    case("a kind that is SQL", &["enqueue", "a'; DROP TABLE tenure_jobs"], 2, "not a valid name"),
    case("a queue with a space", &["enqueue", "k", "--queue", "a b"], 2, "queue \"a b\" is not"),
    case("a tenant with a slash", &["enqueue", "k", "--tenant", "a/b"], 2, "tenant \"a/b\" is not"),
    case("a tag with an accent", &["enqueue", "k", "--tag", "é"], 2, "tag \"é\" is not"),
    case("a tag to look for", &["jobs", "list", "--tag", "é"], 2, "tag \"é\" is not"),
    case("a key to look for", &["jobs", "list", "--key", ""], 2, "a key has 1 to 255 bytes"),
    case("a filter by a bad queue", &["jobs", "list", "--queue", "A"], 2, "queue \"A\" is not"),
    case(
        "seventeen tags",
        &[
            "enqueue", "k", "--tag=a", "--tag=b", "--tag=c", "--tag=d", "--tag=e", "--tag=f",
            "--tag=g", "--tag=h", "--tag=i", "--tag=j", "--tag=k", "--tag=l", "--tag=m", "--tag=n",
            "--tag=o", "--tag=p", "--tag=q",
        ],
        2,
        "17 tags, at most 16",
    ),
    case("args that are not JSON", &["enqueue", "k", "to=me"], 2, "args cannot be stored as JSON"),
    case("args with a NUL", &["enqueue", "k", r#"{"a":"\u0000"}"#], 2, "contains \\u0000"),
    case("two values as args", &["enqueue", "k", "{} {}"], 2, "args cannot be stored as JSON"),
    case("no args on stdin", &["enqueue", "k", "-"], 2, "args cannot be stored as JSON"),
    Case {
        name: "args on stdin that are not UTF-8",
        args: &["enqueue", "k", "-"],
        stdin: b"\"\xff\"",
        code: 2,
        says: "not UTF-8",
    },
    Case {
        name: "args above the limit",
        args: &["enqueue", "k", "-"],
        stdin: &[b'1'; 300_000],
        code: 2,
        says: "args is 300000 bytes, above the limit of 262144 bytes",
    },
    case("an empty key", &["enqueue", "k", "--key", ""], 2, "1 to 255 bytes"),
    case("a key with a newline", &["enqueue", "k", "--key", "a\nb"], 2, "no control characters"),
    case("a negative delay", &["enqueue", "k", "--delay", "-5s"], 2, "cannot be negative"),
    case("a delay without a unit", &["enqueue", "k", "--delay", "5"], 2, "5 of what?"),
    case("a delay that is nonsense", &["enqueue", "k", "--delay", "soon"], 2, "not a duration"),
    case("a delay beyond all time", &["enqueue", "k", "--delay", "99999999d"], 2, "100 years"),
    case("a time that is nonsense", &["enqueue", "k", "--at", "noon"], 2, "RFC 3339"),
    case(
        "a time without its zone",
        &["enqueue", "k", "--at", "2030-01-01T00:00:00"],
        2,
        "RFC 3339",
    ),
    case(
        "a delay and a time",
        &["enqueue", "k", "--delay", "5s", "--at", "2030-01-01T00:00:00Z"],
        2,
        "cannot be used with",
    ),
    case(
        "a delay where a retry policy belongs",
        &["enqueue", "k", "--retry", "5s"],
        2,
        "not a retry policy; write fixed:5s, exponential:1s..5m or list:1s,5s,1m",
    ),
    case(
        "a lease that a busy worker could not keep",
        &["worker", "--drain", "--lease", "1ms", "--", "true"],
        2,
        "with 1ms a worker that is merely busy loses its jobs; use 1 s or more",
    ),
    case("no attempts", &["enqueue", "k", "--max-attempts", "0"], 2, "--max-attempts"),
    case("no runtime", &["enqueue", "k", "--max-runtime", "0s"], 2, "zero is too short"),
    case("no copies", &["enqueue", "k", "--count", "0"], 2, "--count"),
    case(
        "copies under one key",
        &["enqueue", "k", "--count", "2", "--key", "a"],
        2,
        "cannot be used with",
    ),
    case(
        "a key that belongs to another request",
        &["enqueue", "k", r#"{"other":true}"#, "--key", "taken"],
        1,
        "this key belongs to job 1",
    ),
    case("an option that does not exist", &["enqueue", "k", "--quue", "m"], 2, "'--queue'"),
    case("a command that does not exist", &["enqueu", "k"], 2, "unrecognized subcommand"),
    case("no command", &[], 2, "Usage:"),
    case("an id that is not a number", &["jobs", "show", "one"], 2, "is not a job id"),
    case("an id of zero", &["jobs", "cancel", "0"], 2, "is not a job id"),
    case("an id above 64 bits", &["jobs", "wait", "99999999999999999999"], 2, "is not a job id"),
    case("an unknown job to show", &["jobs", "show", "99"], 1, "there is no job 99"),
    case("an unknown job to cancel", &["jobs", "cancel", "99"], 1, "there is no job 99"),
    case("an unknown job to requeue", &["jobs", "requeue", "99"], 1, "there is no job 99"),
    case("an unknown job to resume", &["jobs", "resume", "99"], 1, "there is no job 99"),
    case("an unknown job to wait for", &["jobs", "wait", "99"], 1, "there is no job 99"),
    case("an unknown job to purge", &["dead", "purge", "99"], 1, "there is no job 99"),
    case("a queued job to requeue", &["jobs", "requeue", "1"], 1, "job 1 is queued already"),
    case("a queued job to resume", &["jobs", "resume", "1"], 1, "job 1 is queued, not parked"),
    case("a live job to purge", &["dead", "purge", "1"], 1, "job 1 is queued, not dead"),
    case("a live job among the dead", &["dead", "requeue", "1"], 1, "job 1 is queued, not dead"),
    case("a purge of nothing", &["dead", "purge"], 2, "which dead jobs? name their ids, narrow"),
    case(
        "a requeue of nothing",
        &["dead", "requeue"],
        2,
        "--queue, --tenant or --kind, or say --all",
    ),
    case("a purge of all and of some", &["dead", "purge", "--all", "1"], 2, "cannot be used with"),
    case(
        "a filter beside ids",
        &["dead", "requeue", "1", "--kind", "k"],
        2,
        "use them without ids",
    ),
    case("a list of nothing", &["jobs", "list", "--limit", "0"], 2, "--limit"),
    case("a list of an unknown state", &["jobs", "list", "--state", "done"], 2, "possible values"),
    case("a setting of nothing", &["queues", "set", "q"], 2, "--keep"),
    case("a negative time of keeping", &["queues", "set", "q", "--keep", "-1d"], 2, "negative"),
    case("a bad queue to pause", &["queues", "pause", "Q"], 2, "queue \"Q\" is not"),
    case(
        "an unknown job to decide about",
        &["effects", "resolve", "99", "e", "--resend"],
        1,
        "no job 99",
    ),
    case(
        "an effect that is not there",
        &["effects", "resolve", "1", "e", "--resend"],
        1,
        "has no effect e",
    ),
    case("a decision about nothing", &["effects", "resolve", "1", "--resend"], 2, "<EFFECT>"),
    case("no decision", &["effects", "resolve", "1", "e"], 2, "<--committed <JSON>|--resend>"),
    case(
        "two decisions",
        &["effects", "resolve", "1", "e", "--resend", "--committed", "1"],
        2,
        "cannot be used with",
    ),
    case(
        "a result that is not JSON",
        &["effects", "resolve", "1", "e", "--committed", "r-42"],
        2,
        "--committed: result cannot be stored as JSON",
    ),
    case("a bad effect", &["effects", "resolve", "1", "E", "--resend"], 2, "effect \"E\" is not"),
    case("a list of no effects", &["effects", "list", "--limit", "0"], 2, "--limit"),
    case("a list of too many effects", &["effects", "list", "--limit", "1001"], 2, "--limit"),
    case(
        "a check and a new epoch",
        &["doctor", "--check", "--raise-epoch"],
        2,
        "cannot be used with",
    ),
    case("a reason for nothing", &["doctor", "--reason", "because"], 2, "--raise-epoch"),
    case("no reason", &["doctor", "--raise-epoch", "--reason", " "], 2, "say why, or leave it out"),
    case("an unknown shell", &["completions", "csh"], 2, "possible values"),
    case(
        "a file of lines that is not there",
        &["enqueue", "k", "--file", "no"],
        2,
        "cannot read no",
    ),
    case("a directory of lines", &["enqueue", "k", "--file", "."], 2, "is a directory"),
    case("lines and args", &["enqueue", "k", "{}", "--file", "-"], 2, "cannot be used with"),
    case("lines and a key", &["enqueue", "k", "--key=a", "--file=-"], 2, "cannot be used with"),
    case("a store in memory", &["--db", ":memory:", "enqueue", "k"], 2, "name a file"),
    case("a store without a name", &["--db", "", "enqueue", "k"], 2, "names no file"),
    case("a store of another kind", &["--db", "mysql://h/d", "enqueue", "k"], 2, "no store of"),
    case("a store over HTTP", &["--db", "http://h/", "enqueue", "k"], 2, "over HTTP yet"),
    case(
        "a server with a bad port",
        &["--db", "postgres://h:port/d", "stats"],
        2,
        "db: port cannot be read",
    ),
    case(
        "a server with one slash",
        &["--db", "postgres:/h/d", "stats"],
        2,
        "postgres://user@host/database",
    ),
    case("an unknown setting", &["--db", "postgresql://h/d?colour=red", "stats"], 2, "db: "),
    case(
        "an unknown mode of TLS",
        &["--db", "postgres://h/d?sslmode=yes", "stats"],
        2,
        "db: sslmode",
    ),
    case(
        "a bad schema name",
        &["--db", "postgres://h/d?schema=a.b", "stats"],
        2,
        "db: schema is not a name",
    ),
    case(
        "a schema of the server's",
        &["--db", "postgres://h/d?schema=pg_x", "stats"],
        2,
        "not with pg_",
    ),
];

fn bad_input_is_refused_in_clear_words_and_changes_nothing(shell: &Shell) {
    assert_eq!(shell.ok(&["enqueue", "k", "--key", "taken"]), "1\n");
    let before = shell.jobs();
    let mut wrong = Vec::new();
    for case in CASES {
        let ran = shell.run_with(case.args, case.stdin);
        if ran.code != case.code || !ran.stderr.contains(case.says) || !ran.stdout.is_empty() {
            wrong.push(format!("{}: wanted {} {:?}, got {ran:?}", case.name, case.code, case.says));
        }
        if shell.jobs() != before {
            wrong.push(format!("{}: the jobs have changed", case.name));
            break;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(before.len(), 1);
    assert_eq!(shell.json(&["queues", "list"]).as_array().unwrap().len(), 1);
}

#[test]
fn bad_input_does_not_even_create_a_store() {
    let shell = Shell::new();
    for case in CASES.iter().filter(|case| case.code == 2) {
        shell.run_with(case.args, case.stdin);
    }
    assert_eq!(names_in(&shell), [""; 0]);
}

fn a_bad_line_in_a_file_stores_nothing(shell: &Shell) {
    shell.ok(&["enqueue", "first"]);
    let mut lines = vec!["{\"n\":1}"; 2_500];
    lines[1_700] = "{\"n\":";
    fs::write(shell.path("lines"), lines.join("\n")).unwrap();
    let ran = shell.run(&["enqueue", "k", "--file", "lines"]);
    ran.refused(2, "lines line 1701: args cannot be stored as JSON");
    ran.refused(2, "nothing was stored");
    // The same file on stdin can be read twice as well.
    let file = fs::File::open(shell.path("lines")).unwrap();
    let ran = shell.command(&["enqueue", "k", "--file", "-"]).stdin(file).output().unwrap();
    shell::Ran::of(ran).refused(2, "stdin line 1701");
    assert_eq!(shell.jobs().len(), 1);
}

fn a_bad_line_in_a_pipe_says_how_many_were_stored_before_it(shell: &Shell) {
    let ran = shell.run_with(&["enqueue", "k", "--file", "-"], b"{}\n\n[1]\nnope\n{}\n");
    ran.refused(2, "stdin line 4: args cannot be stored as JSON");
    ran.refused(2, "2 jobs before it were stored");
    assert_eq!(ran.stdout, "1\n2\n");
    assert_eq!(shell.jobs().len(), 2);
}

fn an_operation_on_several_jobs_does_what_is_possible_and_says_what_is_not(shell: &Shell) {
    shell.ok(&["enqueue", "k", "--count", "2"]);
    let ran = shell.run(&["jobs", "cancel", "1", "99", "2"]);
    ran.refused(1, "there is no job 99");
    ran.refused(1, "1 of 3 jobs were not cancelled");
    assert_eq!(ran.stdout, "job 1 cancelled\njob 2 cancelled\n");
}

fn deleting_all_dead_jobs_is_asked_for_twice(shell: &Shell) {
    shell.settled(tenure::engine::lifecycle::Outcome::Bury { reason: "no".into() });
    for which in [&["--all"][..], &["--queue", "default"]] {
        let purge = [&["dead", "purge"], which].concat();
        shell.run(&purge).refused(2, "delete 1 dead job for good");
    }
    assert_eq!(shell.jobs().len(), 1);
}

/// Commands that read, write or migrate: all must refuse a file that is not Tenure's.
const OPENERS: [&[&str]; 4] =
    [&["stats"], &["enqueue", "k"], &["jobs", "list", "--json"], &["doctor"]];

/// Runs every opener on `file`, and asserts that each is refused and leaves the directory
/// unchanged.
#[track_caller]
fn refuses(shell: &Shell, file: &str, says: &str) {
    let path = shell.path(file);
    let before = (names_in(shell), fs::read(&path).ok());
    for args in OPENERS {
        let ran = shell.run(&[&["--db", file], args].concat());
        ran.refused(3, says);
        assert_eq!(ran.stdout, "", "{args:?}");
        let after = (names_in(shell), fs::read(&path).ok());
        assert!(before == after, "{args:?} has changed the file or its directory: {:?}", after.0);
    }
}

fn names_in(shell: &Shell) -> Vec<String> {
    let entries = fs::read_dir(shell.path("")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn rusqlite(path: &Path, sql: &str) {
    rusqlite::Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

#[test]
fn a_file_that_is_not_a_database_is_left_alone() {
    let shell = Shell::new();
    fs::write(shell.path("letter.txt"), "Dear reader, this is not a database.").unwrap();
    refuses(&shell, "letter.txt", "this file is not a SQLite database");
    shell.run(&["--db", "letter.txt", "migrate", "up"]).refused(3, "not a SQLite database");
    shell.run(&["--db", "letter.txt", "migrate", "status"]).refused(3, "not a SQLite database");
}

#[test]
fn a_database_of_somebody_else_is_left_alone() {
    let shell = Shell::new();
    rusqlite(&shell.path("books.db"), "CREATE TABLE books (x); INSERT INTO books VALUES (1);");
    refuses(&shell, "books.db", "not one of Tenure's");
    refuses(&shell, "books.db", "books.db migrate up");
    shell.ok(&["--db", "books.db", "migrate", "status"]);
    refuses(&shell, "books.db", "not one of Tenure's");
}

#[test]
fn a_database_of_somebody_else_that_has_a_log_is_left_alone() {
    let shell = Shell::new();
    rusqlite(&shell.path("books.db"), "PRAGMA journal_mode = WAL; CREATE TABLE books (x);");
    let before = fs::read(shell.path("books.db")).unwrap();
    shell.run(&["--db", "books.db", "stats"]).refused(3, "not one of Tenure's");
    assert!(fs::read(shell.path("books.db")).unwrap() == before);
}

#[test]
fn a_directory_is_no_store() {
    let shell = Shell::new();
    fs::create_dir(shell.path("folder")).unwrap();
    refuses(&shell, "folder", "this is a directory");
}

#[test]
fn a_file_in_a_directory_that_does_not_exist_is_no_store() {
    let shell = Shell::new();
    refuses(&shell, "nowhere/tenure.db", "create its directory first");
}

#[test]
fn a_read_only_file_is_refused_for_root_too() {
    let shell = Shell::new();
    shell.ok(&["--db", "sealed.db", "enqueue", "k"]);
    let path = shell.path("sealed.db");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    refuses(&shell, "sealed.db", "the file is read-only");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(shell.json(&["--db", "sealed.db", "jobs", "list"]).as_array().unwrap().len(), 1);
}

#[test]
fn a_schema_from_the_future_is_left_alone() {
    let shell = Shell::new();
    shell.ok(&["--db", "next.db", "enqueue", "k"]);
    rusqlite(&shell.path("next.db"), "UPDATE tenure_migrations SET min_client = 99");
    refuses(&shell, "next.db", "needs a newer tenure");
    shell.run(&["--db", "next.db", "migrate", "up"]).refused(3, "upgrade this binary");
}

#[test]
fn a_schema_that_was_made_from_another_text_is_left_alone() {
    let shell = Shell::new();
    shell.ok(&["--db", "other.db", "enqueue", "k"]);
    rusqlite(&shell.path("other.db"), "UPDATE tenure_migrations SET checksum = 'of another text'");
    let words = "its migration 1 (first) differs from this binary's; use the binary that this store was made with";
    refuses(&shell, "other.db", words);
    for args in [&["migrate", "up"][..], &["worker", "--drain", "--", "cat"], &["dev"]] {
        shell.run(&[&["--db", "other.db"], args].concat()).refused(3, words);
    }
    assert!(shell.ok(&["--db", "other.db", "migrate", "status"]).contains("differs"));
}

#[test]
fn a_damaged_database_is_refused() {
    let shell = Shell::new();
    let bytes = [b"SQLite format 3\0".as_slice(), &[0xAA; 5_000]].concat();
    fs::write(shell.path("broken.db"), &bytes).unwrap();
    let ran = shell.run(&["--db", "broken.db", "stats"]);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(fs::read(shell.path("broken.db")).unwrap() == bytes);
}
