//! Tests of wake-ups, against a real server.

use super::super::link::Timeouts;
use super::super::tests::lent::{address, cut, pid};
use super::*;

fn open() -> Link {
    Link::open(&address(&[]), Timeouts::default()).unwrap()
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
    assert_eq!(link.wait(soon()).unwrap(), heard("tenure_test_b", &["x", "y"]));
    assert_eq!(link.wait(clock::monotonic()).unwrap(), Heard::Nothing);
}

#[test]
fn a_lost_connection_ends_the_wait_and_listening_goes_on_in_the_next_one() {
    let (mut link, mut speaker) = (open(), open());
    link.listen("tenure_test_c").unwrap();
    let before = pid(&mut link);
    let kill = std::thread::spawn(move || {
        let sql = format!("SELECT pg_terminate_backend({before}, 10000)");
        speaker.run("kill", |session| session.query(&sql, &[])).unwrap();
        speaker
    });
    assert_eq!(link.wait(soon()).unwrap(), Heard::Gap);
    let mut speaker = kill.join().unwrap();
    // What was sent before the next connection is lost, so that connection is a reason to look,
    // too.
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

#[test]
fn several_channels_are_all_listened_to() {
    let (mut link, mut speaker) = (open(), open());
    for channel in ["tenure_test_e", "tenure_test_f"] {
        link.listen(channel).unwrap();
        say(&mut speaker, channel, "mail");
        assert_eq!(link.wait(soon()).unwrap(), heard(channel, &["mail"]));
    }
}

#[test]
fn what_was_heard_before_a_gap_is_not_told_after_it() {
    let (mut link, mut speaker) = (open(), open());
    link.listen("tenure_test_g").unwrap();
    say(&mut speaker, "tenure_test_g", "before");
    for _ in 0..2 {
        pid(&mut link);
    }
    assert!(!link.ears.heard.is_empty());
    cut(&mut link);
    link.run("ask", |session| session.query("SELECT 1", &[])).unwrap_err();
    assert_eq!(link.wait(soon()).unwrap(), Heard::Gap);
    assert_eq!(link.wait(clock::monotonic()).unwrap(), Heard::Nothing);
}
