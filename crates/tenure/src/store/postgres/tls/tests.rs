//! Tests of the modes, with real handshakes against a fake server.

use super::super::fake::{Fake, Tls, certificate};
use super::*;

/// A server whose refusal tells whether the call was encrypted.
fn server(tls: Tls) -> Fake {
    Fake::start(tls, |call| Some(if call.is_encrypted { "57P03" } else { "53300" }))
}

#[track_caller]
fn expect(server: &Fake, settings: &str, word: &str) {
    let said = server.refusal(settings).to_string();
    assert!(said.contains(word), "{settings}: {said}");
}

const ENCRYPTED: &str = "starting or stopping";
const PLAIN: &str = "no connection left";

#[test]
fn modes_and_roots_mean_what_they_mean_to_libpq() {
    let mode = |mode: Option<&str>, root| Encryption::choose(mode, root).map(|chosen| chosen.mode);
    assert_eq!(mode(None, None).unwrap(), Mode::Prefer);
    assert_eq!(mode(Some("allow"), None).unwrap(), Mode::Prefer);
    assert_eq!(mode(Some("disable"), Some("ca.crt")).unwrap(), Mode::Disable);
    assert_eq!(mode(Some("require"), None).unwrap(), Mode::Require);
    assert_eq!(mode(Some("require"), Some("ca.crt")).unwrap(), Mode::VerifyCa);
    assert_eq!(mode(Some("verify-ca"), None).unwrap(), Mode::VerifyCa);
    assert_eq!(mode(Some("verify-full"), Some("ca.crt")).unwrap(), Mode::VerifyFull);
    assert_eq!(mode(None, Some("system")).unwrap(), Mode::VerifyFull);
    for weak in ["disable", "prefer", "require", "verify-ca"] {
        assert!(mode(Some(weak), Some("system")).unwrap_err().is_invalid(), "{weak}");
    }
    assert!(mode(Some("VERIFY-FULL"), None).unwrap_err().to_string().contains("verify-full"));
}

#[test]
fn a_server_with_tls_is_used_with_it_unless_that_is_disabled() {
    let server = server(Tls::Has);
    expect(&server, "sslmode=disable", PLAIN);
    expect(&server, "sslmode=allow", ENCRYPTED);
    expect(&server, "sslmode=prefer", ENCRYPTED);
    expect(&server, "sslmode=require", ENCRYPTED);
}

#[test]
fn a_server_without_tls_is_used_only_where_that_is_allowed() {
    let server = server(Tls::Lacks);
    expect(&server, "sslmode=disable", PLAIN);
    expect(&server, "sslmode=prefer", PLAIN);
    for mode in ["require", "verify-ca", "verify-full"] {
        expect(&server, &format!("sslmode={mode} password=x"), "check that the server has TLS");
    }
}

#[test]
fn a_certificate_must_be_signed_by_a_root_where_that_is_asked_for() {
    let server = server(Tls::Has);
    let root = format!("sslrootcert='{}'", certificate("ca.crt").display());
    for mode in ["require", "verify-ca", "verify-full"] {
        expect(&server, &format!("sslmode={mode} {root}"), ENCRYPTED);
    }
    // The machine's own roots have not signed it.
    for mode in ["verify-ca", "verify-full"] {
        expect(&server, &format!("sslmode={mode}"), "sslrootcert");
    }
}

#[test]
fn a_certificate_must_be_made_out_for_the_host_only_in_verify_full() {
    let server = server(Tls::Has);
    let root = format!("sslrootcert='{}'", certificate("ca.crt").display());
    let elsewhere = "host=db.example hostaddr=127.0.0.1";
    expect(&server, &format!("{elsewhere} sslmode=verify-ca {root}"), ENCRYPTED);
    expect(&server, &format!("{elsewhere} sslmode=verify-full {root}"), "alternative names");
    expect(&server, &format!("host=localhost sslmode=verify-full {root}"), ENCRYPTED);
    // Without a host name, the numeric address is the name to check.
    let numeric = "hostaddr=127.0.0.1";
    expect(&server, &format!("{numeric} sslmode=verify-full {root}"), ENCRYPTED);
}

#[test]
fn roots_that_cannot_be_read_are_told_before_anything_is_sent() {
    let server = server(Tls::Has);
    let missing = certificate("nobody.crt").display().to_string();
    expect(&server, &format!("sslmode=verify-full sslrootcert='{missing}'"), "cannot be read");
    let key = certificate("server.key").display().to_string();
    expect(&server, &format!("sslmode=verify-ca sslrootcert='{key}'"), "no certificate in");
    assert!(server.calls().is_empty());
}

#[test]
fn the_handshake_names_the_protocol_as_a_direct_one_needs_it() {
    let server = server(Tls::Has);
    expect(&server, "sslmode=require", ENCRYPTED);
    assert_eq!(server.calls()[0].protocol.as_deref(), Some(b"postgresql".as_slice()));
}
