//! Claims about wake-ups, against a real server.

use super::super::address::Address;
use super::super::link::Timeouts;
use super::*;

fn open() -> Link {
    let given = std::env::var("TENURE_TEST_POSTGRES");
    let given = given.expect("set TENURE_TEST_POSTGRES or run cargo xtask test");
    Link::open(&Address::parse(&given).unwrap(), Timeouts::default()).unwrap()
}

fn say(speaker: &mut Link, channel: &str, payload: &str) {
    let said = format!("NOTIFY \"{channel}\", '{payload}'");
    speaker.run("notify", |session| session.batch(&said)).unwrap();
}

fn soon() -> Instant {
    clock::monotonic() + Duration::from_secs(20)
}

fn heard(channel: &str, payloads: &[&str]) -> Heard {
    let notice =
        |payload: &&str| Notice { channel: channel.to_owned(), payload: (*payload).to_owned() };
    Heard::Notices(payloads.iter().map(notice).collect())
}

#[test]
fn a_wait_ends_when_something_is_said_or_the_time_is_up() {
    let (mut link, mut speaker) = (open(), open());
    link.listen("tenure test A").unwrap();
    assert!(link.hears());
    let brief = clock::monotonic() + Duration::from_millis(50);
    assert_eq!(link.wait(brief).unwrap(), Heard::Nothing);
    assert!(clock::monotonic() >= brief);
    let speaking = std::thread::spawn(move || say(&mut speaker, "tenure test A", "mail"));
    assert_eq!(link.wait(soon()).unwrap(), heard("tenure test A", &["mail"]));
    speaking.join().unwrap();
}

#[test]
fn what_is_said_during_calls_is_heard_by_the_next_wait_each_thing_once() {
    let (mut link, mut speaker) = (open(), open());
    link.listen("tenure_test_b").unwrap();
    for payload in ["x", "y", "x", "x"] {
        say(&mut speaker, "tenure_test_b", payload);
    }
    for _ in 0..2 {
        link.run("ask", |session| session.query("SELECT 1", &[])).unwrap();
    }
    assert_eq!(link.wait(clock::monotonic()).unwrap(), heard("tenure_test_b", &["x", "y"]));
    assert_eq!(link.wait(clock::monotonic()).unwrap(), Heard::Nothing);
}

#[test]
fn a_lost_connection_ends_the_wait_and_listening_goes_on_in_the_next_one() {
    let (mut link, mut speaker) = (open(), open());
    link.listen("tenure_test_c").unwrap();
    let pid = |link: &mut Link| -> i32 {
        link.run("ask", |session| session.query_one("SELECT pg_backend_pid()", &[])?.try_get(0))
            .unwrap()
    };
    let before = pid(&mut link);
    let kill = std::thread::spawn(move || {
        let sql = format!("SELECT pg_terminate_backend({before}, 10000)");
        speaker.run("kill", |session| session.query(&sql, &[])).unwrap();
        speaker
    });
    assert_eq!(link.wait(soon()).unwrap(), Heard::Gap);
    let mut speaker = kill.join().unwrap();
    // What was said until the next connection is lost, so that one is a reason to look, too.
    assert_eq!(link.wait(soon()).unwrap(), Heard::Gap);
    assert_ne!(pid(&mut link), before);
    say(&mut speaker, "tenure_test_c", "again");
    assert_eq!(link.wait(soon()).unwrap(), heard("tenure_test_c", &["again"]));
}

#[test]
fn a_channel_may_have_any_name_and_is_listened_to_once() {
    assert_eq!(listen("a\"b c"), "LISTEN \"a\"\"b c\";");
    let mut link = open();
    for _ in 0..2 {
        link.listen("tenure_test_d").unwrap();
    }
    assert_eq!(link.ears.channels.len(), 1);
}
