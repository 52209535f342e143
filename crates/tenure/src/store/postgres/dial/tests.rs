//! Tests of connecting, against a fake server.

use std::time::Duration;

use super::super::fake::{Fake, Tls};
use super::*;
use crate::store::Error;

fn marked(startup: &str) -> bool {
    startup.contains("tenure.session=")
}

#[test]
fn the_session_is_marked_and_has_its_settings_from_the_start() {
    let server = Fake::start(Tls::Lacks, |_| Some("57P03"));
    let refused = server.refusal("options='-c work_mem=8MB'");
    assert!(refused.is_transient(), "{refused}");
    let calls = server.calls();
    assert_eq!(calls.len(), 1);
    let startup = &calls[0].startup;
    for part in ["statement_timeout=60000", "lock_timeout=10000", "application_name\0tenure"] {
        assert!(startup.contains(part), "{part}: {startup}");
    }
    assert!(marked(startup), "{startup}");
    // The last value counts, so the options of the address must come after ours.
    assert!(startup.find("work_mem") > startup.find("statement_timeout"), "{startup}");
}

#[test]
fn a_pooler_that_refuses_settings_is_called_again_without_them() {
    for code in ["08P01", "0A000"] {
        let answer: super::super::fake::Answer = match code {
            "08P01" => |call| Some(if marked(&call.startup) { "08P01" } else { "53300" }),
            _ => |call| Some(if marked(&call.startup) { "0A000" } else { "53300" }),
        };
        let server = Fake::start(Tls::Lacks, answer);
        let said = server.refusal("").to_string();
        assert!(said.contains("no connection left"), "{said}");
        assert_eq!(server.calls().len(), 2);
    }
}

#[test]
fn preferring_tls_means_doing_without_where_it_fails() {
    let server =
        Fake::start(Tls::Botches, |call| Some(if call.is_encrypted { "57P03" } else { "53300" }));
    let said = server.refusal("").to_string();
    assert!(said.contains("no connection left"), "{said}");
    let said = server.refusal("sslmode=require").to_string();
    assert!(said.contains("TLS was not accepted"), "{said}");
}

#[test]
fn preferring_tls_means_doing_without_where_nobody_may_log_in_over_it() {
    let server =
        Fake::start(Tls::Has, |call| Some(if call.is_encrypted { "28000" } else { "53300" }));
    let said = server.refusal("").to_string();
    assert!(said.contains("no connection left"), "{said}");
    let said = server.refusal("sslmode=require").to_string();
    assert!(said.contains("did not let us in"), "{said}");
}

#[test]
fn a_server_that_accepts_and_says_nothing_is_given_up_on_and_not_called_twice() {
    let server = Fake::start(Tls::Lacks, |_| None);
    let address = server.address("sslmode=disable");
    let connect = Duration::from_millis(100);
    let mut dialer = Dialer::new(&address, Timeouts { connect, ..Timeouts::default() }).unwrap();
    for _ in 0..3 {
        let silent = dialer.dial(&address).err().unwrap();
        assert!(matches!(silent, Error::Unavailable { .. }), "{silent}");
        assert!(silent.to_string().contains("no answer within 100ms"), "{silent}");
    }
    assert_eq!(server.calls().len(), 1);
}

#[test]
fn a_timeout_in_the_address_comes_first() {
    let server = Fake::start(Tls::Lacks, |_| None);
    let address = server.address("connect_timeout=7");
    let dialer = Dialer::new(&address, Timeouts::default()).unwrap();
    assert_eq!(dialer.timeouts.connect, Duration::from_secs(7));
}

#[test]
fn without_a_timeout_in_the_address_each_host_gets_that_of_the_store() {
    let server = Fake::start(Tls::Lacks, |_| None);
    let connect = Duration::from_millis(300);
    let timeouts = Timeouts { connect, ..Timeouts::default() };
    let dialer = Dialer::new(&server.address(""), timeouts).unwrap();
    assert_eq!(dialer.plan.config.get_connect_timeout(), Some(&connect));
}

#[test]
fn a_login_that_fails_for_want_of_a_password_asks_for_one() {
    let server = Fake::start(Tls::Lacks, |_| Some("53300"));
    let said = server.refusal("sslmode=require").to_string();
    assert!(said.contains("give a password"), "{said}");
    let said = server.refusal("sslmode=require password=x").to_string();
    assert!(said.contains("or use sslmode=prefer"), "{said}");
}
