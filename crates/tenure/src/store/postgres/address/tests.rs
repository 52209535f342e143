//! Tests of parsing addresses, above all that a password is never shown.

use super::*;
use crate::clock::Chance;

fn read(text: &str) -> Result<ServerAddress> {
    ServerAddress::read(text, &|_| None)
}

#[track_caller]
fn refused(text: &str) -> String {
    let error = read(text).unwrap_err();
    assert!(error.is_invalid(), "{text}: {error:?}");
    error.to_string()
}

#[test]
fn both_spellings_say_the_same() {
    let url =
        read("postgresql://me:a%20b%27c@db.example:6543/shop?schema=my%20jobs&sslmode=require");
    let pairs = read(
        r"host=db.example port = 6543 user=me password='a b\'c' dbname=shop schema='my jobs' sslmode=require",
    );
    let (url, pairs) = (url.unwrap(), pairs.unwrap());
    for address in [&url, &pairs] {
        assert_eq!(address.to_string(), "postgres://me@db.example:6543/shop?schema=my%20jobs");
        assert_eq!(address.config().get_password(), Some(b"a b'c".as_slice()));
        assert_eq!(address.schema(), "my jobs");
        assert_eq!(address.encryption().mode, Mode::Require);
        assert_eq!(address.config().get_ssl_mode(), SslMode::Require);
    }
}

#[test]
fn what_is_shown_can_be_read_again() {
    for (given, shown) in [
        ("postgres://me@h", "postgres://me@h:5432/me"),
        ("postgres://h1:1,h2:2/d", "postgres://h1:1,h2:2/d"),
        ("postgres://me@[::1]:7/d", "postgres://me@[::1]:7/d"),
        ("postgres:///d?host=/run/pg&user=a%40b", "postgres://a%40b@/d?host=/run/pg"),
        (
            "postgres://me@%2Frun%2Fp%20g:7/d?schema=s",
            "postgres://me@/d?host=/run/p%20g&port=7&schema=s",
        ),
        (
            "host=/run/pg,h,::1 port=1,2,3 user=me",
            "postgres://me@/me?host=/run/pg,h,%3A%3A1&port=1,2,3",
        ),
        ("host=h user=me dbname='a/b'", "postgres://me@h:5432/a%2Fb"),
    ] {
        assert_eq!(read(given).unwrap().to_string(), shown);
        assert_eq!(read(shown).unwrap().to_string(), shown);
    }
}

#[test]
fn what_is_left_out_comes_from_the_environment_as_with_psql() {
    let environment = |name: &str| {
        let value = match name {
            "PGHOST" => "db.example",
            "PGPORT" => "6000",
            "PGUSER" => "env",
            "PGPASSWORD" => "hush",
            "PGDATABASE" => "shop",
            "PGSSLMODE" => "verify-full",
            _ => return None,
        };
        Some(value.to_owned())
    };
    let address = ServerAddress::read("postgres://", &environment).unwrap();
    assert_eq!(address.to_string(), "postgres://env@db.example:6000/shop");
    assert_eq!(address.config().get_password(), Some(b"hush".as_slice()));
    assert_eq!(address.encryption().mode, Mode::VerifyFull);
    let address =
        ServerAddress::read("postgres://me:own@h:1/d?sslmode=disable", &environment).unwrap();
    assert_eq!(address.to_string(), "postgres://me@h:1/d");
    assert_eq!(address.config().get_password(), Some(b"own".as_slice()));
    assert_eq!(address.encryption().mode, Mode::Disable);
}

#[test]
fn a_password_is_never_shown_however_it_was_written() {
    // Strings that occur nowhere else, joined by every character that has a meaning in some
    // notation.
    const PIECES: [&str; 3] = ["Zq7", "Xj8", "Wk9"];
    const BETWEEN: [&str; 18] = [
        "@", "/", "?", "=", "&", ":", "%", " ", "'", "\\", "#", ",", "[", "]", "%40", "%zz", "é",
        "://",
    ];
    let forms: [fn(&str) -> String; 8] = [
        |p| format!("postgres://me:{p}@h/db"),
        |p| format!("postgres://me:{p}@h:1/db?sslmode=never"),
        |p| format!("postgres://h/db?user=me&password={p}"),
        |p| format!("postgres://h/db?user=me&password={p}&port=many"),
        |p| format!("postgres://me:{}@h/db", split::encode(p)),
        |p| format!("host=h user=me password={p} dbname=db"),
        |p| format!("host=h user=me password='{p}' dbname=db"),
        |p| format!("password={p} schema=pg_catalog"),
    ];
    let mut chance = Chance::seeded(1);
    let mut pick = || {
        let count = 1 + chance.below(2);
        (0..count).map(|_| BETWEEN[chance.below(18) as usize]).collect::<String>()
    };
    let mut accepted = 0;
    for round in 0..20_000 {
        let password = format!("{}{}{}{}{}", PIECES[0], pick(), PIECES[1], pick(), PIECES[2]);
        let text = forms[round % forms.len()](&password);
        let environment = |name: &str| (name == "PGPASSWORD").then(|| password.clone());
        let said = match ServerAddress::read(&text, &environment) {
            Ok(address) => {
                accepted += 1;
                format!("{address} {address:?} {:?}", address.clone())
            }
            Err(error) => format!("{error} {error:?}"),
        };
        for piece in PIECES {
            assert!(!said.contains(piece), "{text}\n{said}");
        }
    }
    assert!(accepted > 5_000, "the forms must mostly be readable, only {accepted} were");
}

#[test]
fn a_password_with_an_at_sign_is_still_whole() {
    let address = read("postgres://me:p@ss@h/db").unwrap();
    assert_eq!(address.config().get_password(), Some(b"p@ss".as_slice()));
    let address = read("postgres://me@h/db?application_name=a@b").unwrap();
    assert_eq!(address.to_string(), "postgres://me@h:5432/db");
    assert!(refused("postgres://me:pa/ss@h/db").contains("%2F"));
}

#[test]
fn a_schema_is_a_name_that_needs_no_thought() {
    assert_eq!(read("host=h").unwrap().schema(), "tenure");
    for name in ["a", "_x", "Jobs-2", "my jobs", &"a".repeat(63)] {
        assert_eq!(read(&format!("host=h schema='{name}'")).unwrap().schema(), name);
    }
    for name in ["1a", "pg_jobs", "a\"b", "a.b", "ä", &"a".repeat(64), "-a", " a"] {
        assert!(refused(&format!("host=h schema='{name}'")).contains("1 to 63"), "{name}");
    }
}

#[test]
fn what_cannot_be_read_is_told_with_what_to_write() {
    assert!(refused("postgres://h:many/db").contains("port cannot be read; write a number"));
    assert!(refused("postgres://h/db?connect_timeout=1s").contains("whole seconds"));
    assert!(refused("postgres://h/db?tcp_user_timeout=1s").contains("whole milliseconds"));
    assert!(refused("postgres://h/db?sslmode=on").contains("verify-full"));
    assert!(refused("postgres://h/db?sslkey=k").contains("sslkey is not supported; leave it out"));
    assert!(refused("postgres://h/db?colour=red").contains("none of application_name"));
    assert!(refused("postgres://h1:1,h2:2,h3/db?port=1,2").contains("one port, or one each"));
    assert!(refused("tenure.db").contains("postgres://user@host/database"));
    assert!(refused("host='h").contains("no end"));
    assert!(refused("postgres://h/db?sslmode").contains("no ="));
    assert!(refused("host=/run,h sslmode=require").contains("only one sort"));
}

#[test]
fn a_socket_is_never_encrypted_and_a_lost_machine_is_noticed() {
    let address = read("host=/run/pg user=me sslmode=verify-full").unwrap();
    assert_eq!(address.config().get_ssl_mode(), SslMode::Disable);
    let address = read("host=h").unwrap();
    assert_eq!(address.config().get_ssl_mode(), SslMode::Prefer);
    assert_eq!(address.config().get_keepalives_idle(), Duration::from_secs(30));
    assert_eq!(address.config().get_tcp_user_timeout(), Some(&Duration::from_secs(30)));
    let address = read("host=h tcp_user_timeout=5000 keepalives_count=9").unwrap();
    assert_eq!(address.config().get_tcp_user_timeout(), Some(&Duration::from_secs(5)));
    assert_eq!(address.config().get_keepalives_retries(), Some(9));
}

/// An environment with these variables.
fn with<'a>(variables: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'a {
    move |name| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| (*value).to_owned())
    }
}

#[test]
fn a_numeric_address_is_the_host_and_the_environment_gives_only_the_rest() {
    let environment = with(&[("PGHOST", "elsewhere"), ("PGUSER", "env"), ("PGPORT", "6000")]);
    let address = ServerAddress::read("hostaddr=10.0.0.7", &environment).unwrap();
    assert_eq!(address.to_string(), "postgres://env@10.0.0.7:6000/env");
    assert!(refused("host=a,b hostaddr=10.0.0.1").contains("write one for each"));
    assert!(read("host=a,b hostaddr=10.0.0.1,10.0.0.2").is_ok());
}

#[test]
fn an_empty_variable_counts_as_not_set() {
    let address = ServerAddress::read("host=h user=me", &|_| Some(String::new())).unwrap();
    assert_eq!(address.to_string(), "postgres://me@h:5432/me");
}

#[test]
fn one_port_is_for_all_hosts_wherever_it_comes_from() {
    let shown = "postgres://me@h1:7,h2:7/d";
    assert_eq!(read("host=h1,h2 port=7 user=me dbname=d").unwrap().to_string(), shown);
    let environment = with(&[("PGPORT", "7")]);
    let address = ServerAddress::read("postgres://me@h1,h2/d", &environment).unwrap();
    assert_eq!(address.to_string(), shown);
}

#[test]
fn without_any_host_it_is_this_machine() {
    // No server has its socket there.
    assert_eq!(read("port=1 user=me").unwrap().to_string(), "postgres://me@localhost:1/me");
}

#[test]
fn the_usual_port_of_a_socket_is_not_shown() {
    let address = read("host=/run/pg port=5432 user=me").unwrap();
    assert_eq!(address.to_string(), "postgres://me@/me?host=/run/pg");
}

#[test]
fn a_quote_within_a_plain_value_is_a_part_of_it() {
    let address = read("host=h password=a'b user=me").unwrap();
    assert_eq!(address.config().get_password(), Some(b"a'b".as_slice()));
    assert_eq!(address.config().get_user(), Some("me"));
}

#[test]
fn a_percent_sign_needs_two_hex_digits_that_are_not_zero() {
    for wrong in ["%+1", "%00", "%0", "%", "%zz"] {
        assert!(refused(&format!("postgres://me:a{wrong}@h/d")).contains("hex digits"), "{wrong}");
    }
}

#[test]
fn what_the_address_says_about_the_connection_is_kept_and_the_rest_is_set() {
    let address = read("host=h").unwrap();
    let config = address.config();
    assert_eq!(config.get_application_name(), Some("tenure"));
    assert_eq!(config.get_keepalives_interval(), Some(Duration::from_secs(10)));
    assert_eq!(config.get_keepalives_retries(), Some(3));
    let said = "application_name=shop keepalives_idle=5 keepalives_interval=6 keepalives_count=7";
    let address = read(&format!("host=h {said}")).unwrap();
    let config = address.config();
    assert_eq!(config.get_application_name(), Some("shop"));
    assert_eq!(config.get_keepalives_idle(), Duration::from_secs(5));
    assert_eq!(config.get_keepalives_interval(), Some(Duration::from_secs(6)));
    assert_eq!(config.get_keepalives_retries(), Some(7));
}
