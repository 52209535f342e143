//! What a person may write for a store, and what is refused.

use std::os::unix::ffi::OsStrExt;

use super::*;

fn parse(text: &str) -> Result<Address> {
    text.parse()
}

fn file(text: &str) -> PathBuf {
    parse(text).unwrap().file().unwrap().to_owned()
}

#[test]
fn a_file_has_several_spellings() {
    assert_eq!(file("a.db"), Path::new("a.db"));
    assert_eq!(file("./dir/a.db"), Path::new("./dir/a.db"));
    assert_eq!(file("sqlite:a.db"), Path::new("a.db"));
    assert_eq!(file("sqlite://a/b.db"), Path::new("a/b.db"));
    assert_eq!(file("sqlite:///a/b.db"), Path::new("/a/b.db"));
    assert_eq!(file("postgres.db"), Path::new("postgres.db"));
    assert_eq!(parse("sqlite:a.db").unwrap().to_string(), "a.db");
}

#[test]
fn a_name_that_is_not_utf_8_is_a_file() {
    let name = OsStr::from_bytes(b"a\xff.db");
    assert_eq!(Address::try_from(name).unwrap().file(), Some(Path::new(name)));
    let server = OsStr::from_bytes(b"postgres://me:secret\xff@h/d");
    let problem = Address::try_from(server).unwrap_err().to_string();
    assert!(problem.contains("not UTF-8") && !problem.contains("secret"), "{problem}");
}

#[test]
fn a_store_in_memory_is_no_file() {
    for text in ["sqlite::memory:", ":memory:"] {
        let address = parse(text).unwrap();
        assert_eq!(address.file(), None);
        assert_eq!(address.to_string(), "sqlite::memory:");
        assert!(address.open().unwrap().overview().unwrap().lines.is_empty());
    }
}

#[cfg(feature = "postgres")]
#[test]
fn a_server_has_several_spellings_and_its_password_is_not_shown() {
    for text in [
        "postgres://me:secret@h:1/d?schema=jobs",
        "postgresql://me:secret@h:1/d?schema=jobs",
        "host=h port=1 user=me password=secret dbname=d schema=jobs",
    ] {
        let address = parse(text).unwrap();
        assert_eq!(address.to_string(), "postgres://me@h:1/d?schema=jobs", "{text}");
        assert_eq!(address.server().unwrap().schema(), "jobs");
        assert!(!format!("{address:?}").contains("secret"), "{text}");
    }
}

#[test]
fn what_is_meant_as_a_server_is_never_taken_for_a_file_nor_repeated() {
    for text in [
        "postgres:/me:secret@h/d",
        "postgres:me:secret@h/d",
        "Postgres://me:secret@h/d",
        "POSTGRESQL:secret",
        "user=me secret",
        "postgres://me:secret@h:port/d",
        "postgres://me:secret@h/d?nonsense=secret",
        "http://me:secret@h/",
        "me:secret@h://d",
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.is_invalid(), "{text}: {error}");
        assert!(!format!("{error} {error:?}").contains("secret"), "{text}: {error}");
    }
}

#[test]
fn what_names_no_store_is_refused_with_the_next_step() {
    for (text, says) in [
        ("", "names no file; give it one, such as tenure.db"),
        ("sqlite:", "names no file"),
        ("sqlite://", "names no file"),
        ("mysql://host/db", "mysql:// is no store of Tenure's; name a file, or write sqlite:FILE"),
        ("sqlite:a://b", "a:// is no store of Tenure's"),
        ("http://host", "over HTTP yet; name its file, or write postgres://…"),
        ("HTTPS://host", "over HTTP yet"),
    ] {
        let problem = parse(text).unwrap_err().to_string();
        assert!(problem.starts_with("db: ") && problem.contains(says), "{text:?}: {problem}");
    }
}

#[test]
fn a_path_is_a_file_and_one_that_looks_like_an_address_is_neither_opened_nor_shown() {
    assert_eq!(Address::from(Path::new("sqlite:a.db")).file(), Some(Path::new("sqlite:a.db")));
    for path in ["postgres://me:secret@h/d", "mysql://me:secret@h/d"] {
        let address = Address::from(PathBuf::from(path));
        let problem = address.open().err().unwrap();
        assert!(problem.is_invalid(), "{problem}");
        assert!(!format!("{problem} {address} {address:?}").contains("secret"), "{problem}");
    }
}
