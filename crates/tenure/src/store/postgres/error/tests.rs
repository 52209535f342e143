//! Tests of error messages. The errors are real ones, caused by a fake server.

use super::super::fake::{Answer, Fake, Tls};
use super::*;

fn refused(answer: Answer) -> Error {
    Fake::start(Tls::Lacks, answer).refusal("sslmode=disable")
}

#[test]
fn what_may_work_later_is_transient() {
    let codes: [(&str, Answer); 13] = [
        ("40001", |_| Some("40001")),
        ("40003", |_| Some("40003")),
        ("40P01", |_| Some("40P01")),
        ("55P03", |_| Some("55P03")),
        ("57014", |_| Some("57014")),
        ("57P01", |_| Some("57P01")),
        ("57P02", |_| Some("57P02")),
        ("57P03", |_| Some("57P03")),
        ("57P05", |_| Some("57P05")),
        ("25P03", |_| Some("25P03")),
        ("53300", |_| Some("53300")),
        ("08006", |_| Some("08006")),
        ("08P01", |_| Some("08P01")),
    ];
    for (code, answer) in codes {
        let error = refused(answer);
        assert!(error.is_transient(), "{code}: {error}");
        assert!(error.to_string().contains("; "), "{code} has no next step: {error}");
    }
}

#[test]
fn what_a_person_must_change_is_told_with_the_next_step() {
    let codes: [(&str, Answer, &str); 10] = [
        ("28P01", |_| Some("28P01"), "PGPASSWORD"),
        ("28000", |_| Some("28000"), "pg_hba.conf"),
        ("3D000", |_| Some("3D000"), "createdb"),
        ("25006", |_| Some("25006"), "address of the primary"),
        ("3F000", |_| Some("3F000"), "run: tenure migrate up"),
        ("42883", |_| Some("42883"), "run: tenure migrate up"),
        ("42P01", |_| Some("42P01"), "run: tenure migrate up"),
        ("42703", |_| Some("42703"), "run: tenure migrate up"),
        ("42704", |_| Some("42704"), "run: tenure migrate up"),
        ("53100", |_| Some("53100"), "free some space"),
    ];
    for (code, answer, word) in codes {
        let error = refused(answer);
        assert!(matches!(error, Error::Unusable { .. }), "{code}: {error:?}");
        let said = error.to_string();
        assert!(said.contains(word) && said.contains("as the test wants it"), "{code}: {said}");
    }
}

#[test]
fn a_missing_right_is_neither_an_outage_nor_a_store_that_is_of_no_use() {
    let error = refused(|_| Some("42501"));
    assert!(error.is_forbidden() && !error.is_transient(), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("this role may not connect (as the test wants it)"), "{said}");
    assert!(error.for_another().is_forbidden());
}

#[test]
fn a_request_that_makes_no_sense_names_what_is_wrong_with_it() {
    let error = refused(|_| Some("TN003"));
    assert!(error.is_invalid(), "{error:?}");
    assert_eq!(error.to_string(), "lease: as the test wants it");
}

#[test]
fn every_field_that_the_functions_name_is_known() {
    let sql = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/postgres");
    let files = ["base", "verbs", "single"]
        .into_iter()
        .flat_map(|name| std::fs::read_dir(sql.join(name)).unwrap());
    let texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
    let text = texts.collect::<Vec<_>>().concat();
    let mut named: Vec<&str> = ["invalid", "check_names", "check_json", "ms"]
        .iter()
        .flat_map(|call| text.split(&format!("tenure.{call}('")[..]).skip(1).collect::<Vec<_>>())
        .filter_map(|rest| rest.split('\'').next())
        .collect();
    named.sort_unstable();
    named.dedup();
    assert_eq!(named, FIELDS);
}

#[test]
fn a_hint_becomes_the_end_of_the_sentence() {
    assert_eq!(as_next_step("Use 0 for at once."), "use 0 for at once");
    assert_eq!(as_next_step(""), "");
}

#[test]
fn what_nobody_expects_keeps_its_words_and_its_code() {
    let error = refused(|_| Some("XX000"));
    assert!(matches!(error, Error::Engine { .. }), "{error:?}");
    assert!(error.to_string().contains("as the test wants it (SQLSTATE XX000)"), "{error}");
}

#[test]
fn a_server_that_is_not_there_may_come() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    for address in [
        format!("host=127.0.0.1 port={port} user=me"),
        format!("host=/nonexistent port={port} user=me"),
        format!("host=nobody.invalid port={port} user=me"),
    ] {
        let address = ServerAddress::read(&address, &|_| None).unwrap();
        let error = super::super::link::Link::open(&address, Default::default()).err().unwrap();
        assert!(error.is_transient(), "{error:?}");
        let said = error.to_string();
        assert!(said.contains("while trying to connect; check "), "{said}");
    }
}

#[test]
fn a_lost_connection_leaves_open_what_was_done_and_an_unreadable_answer_is_no_outage() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut config = postgres::Config::new();
    config.host("127.0.0.1").port(port).user("me");
    let Err(cause) = config.connect(postgres::NoTls) else { panic!("nothing listens there") };
    let error = from_postgres("there", "claim", cause);
    assert!(matches!(error, Error::Unavailable { .. }) && !error.did_nothing(), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("whether it was done is not known"), "{said}");

    let cause = "host=there no_such_word=1".parse::<postgres::Config>().unwrap_err();
    let error = from_postgres("there", "claim", cause);
    assert!(matches!(error, Error::Engine { .. }), "{error:?}");
}
