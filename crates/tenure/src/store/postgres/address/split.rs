//! Splits an address into settings, in both notations: a URL, and `key=value` pairs.
//!
//! Both notations are libpq's. Where libpq would read part of a password as something else, this
//! code refuses the address and says how to write it. No error repeats what was given.

use super::{Settings, bad};
use crate::store::Result;

/// The settings that the driver or Tenure understands, each with what to write for it.
const KNOWN: [(&str, &str); 21] = [
    ("application_name", "a name"),
    ("channel_binding", "disable, prefer or require"),
    ("connect_timeout", "whole seconds"),
    ("dbname", "a name"),
    ("host", "a host name, an address, or the directory of a socket"),
    ("hostaddr", "a numeric address such as 10.0.0.7"),
    ("keepalives", "0 or 1"),
    ("keepalives_idle", "whole seconds"),
    ("keepalives_interval", "whole seconds"),
    ("keepalives_retries", "a number"),
    ("load_balance_hosts", "disable or random"),
    ("options", "settings such as -c work_mem=8MB"),
    ("password", "text"),
    ("port", "a number up to 65535"),
    ("schema", "a name"),
    ("sslmode", "disable, prefer, require, verify-ca or verify-full"),
    ("sslnegotiation", "postgres or direct"),
    ("sslrootcert", "a file, or system"),
    ("target_session_attrs", "any, read-write or read-only"),
    ("tcp_user_timeout", "whole milliseconds"),
    ("user", "a name"),
];

/// The settings that libpq knows and Tenure does not. Only these are named in errors, because any
/// other word may be a piece of a password.
const FOREIGN: [&str; 18] = [
    "client_encoding",
    "fallback_application_name",
    "gssdelegation",
    "gssencmode",
    "gsslib",
    "krbsrvname",
    "passfile",
    "replication",
    "require_auth",
    "requirepeer",
    "service",
    "sslcert",
    "sslcertmode",
    "sslcompression",
    "sslcrl",
    "sslkey",
    "sslpassword",
    "sslsni",
];

const ESCAPES: &str =
    "in a user name or password, write @ as %40, : as %3A, / as %2F, ? as %3F and % as %25";

/// Splits either notation.
pub(super) fn settings(text: &str) -> Result<Settings> {
    let text = text.trim();
    let url = ["postgres://", "postgresql://"].iter().find_map(|scheme| text.strip_prefix(scheme));
    match url {
        Some(rest) => from_url(rest),
        None => from_pairs(text),
    }
}

/// What to write for a setting.
pub(super) fn expected(key: &str) -> &'static str {
    KNOWN.iter().find(|(known, _)| *known == key).map_or("something else", |(_, expected)| expected)
}

/// Percent-encodes everything but letters, digits and `-._~`.
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

fn from_url(rest: &str) -> Result<Settings> {
    let mut settings = Settings::new();
    let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
    // A slash in a password ends the authority early, and the rest of the password would be taken
    // for a database.
    if path.contains('@') {
        return Err(bad(ESCAPES));
    }
    // Split at the last @, since no host has one: then a password with an @ stays whole.
    let (login, hosts) =
        authority.rsplit_once('@').map_or((None, authority), |(login, hosts)| (Some(login), hosts));
    if let Some(login) = login {
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        settings.insert("user", decode(user)?);
        settings.insert("password", decode(password)?);
    }
    add_hosts(&mut settings, hosts)?;
    settings.insert("dbname", decode(path.strip_prefix('/').unwrap_or(path))?);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let Some((key, value)) = pair.split_once('=') else {
            return Err(bad(format!("a parameter after ? has no =; {ESCAPES}")));
        };
        settings.insert(known(&decode(key)?)?, decode(value)?);
    }
    Ok(settings)
}

fn add_hosts(settings: &mut Settings, list: &str) -> Result<()> {
    let mut hosts = Vec::new();
    let mut ports = Vec::new();
    for item in list.split(',') {
        let (host, port) = match item.strip_prefix('[').and_then(|item| item.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':').unwrap_or(port)),
            None => item.split_once(':').unwrap_or((item, "")),
        };
        hosts.push(decode(host)?);
        ports.push(decode(port)?);
    }
    settings.insert("host", hosts.join(","));
    // If no host has a port, leave the ports to PGPORT.
    if ports.iter().any(|port| !port.is_empty()) {
        settings.insert("port", ports.join(","));
    }
    Ok(())
}

fn decode(text: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let byte = after.get(..2).and_then(|hex| {
            let hex = std::str::from_utf8(hex).ok().filter(|hex| !hex.starts_with('+'))?;
            u8::from_str_radix(hex, 16).ok()
        });
        let Some(byte) = byte.filter(|byte| *byte != 0) else {
            return Err(bad(format!("a % is not followed by two hex digits; {ESCAPES}")));
        };
        bytes.push(byte);
        rest = &after[2..];
    }
    String::from_utf8(bytes).map_err(|_| bad("it is not UTF-8 after decoding its %; write UTF-8"))
}

fn from_pairs(text: &str) -> Result<Settings> {
    let mut settings = Settings::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some((key, after)) = rest.split_once('=') else {
            return Err(bad(
                "it is neither postgres://user@host/database nor host=… user=… dbname=…; write \
                 one of these, and a value with spaces in 'quotes'",
            ));
        };
        let (value, after) = value(after.trim_start())?;
        settings.insert(known(key.trim())?, value);
        rest = after.trim_start();
    }
    Ok(settings)
}

/// Reads one value, plain or quoted, in which `\` escapes the next character. Returns it and the
/// rest of the text.
fn value(text: &str) -> Result<(String, &str)> {
    let quoted = text.strip_prefix('\'');
    let body = quoted.unwrap_or(text);
    let mut value = String::new();
    let mut characters = body.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            '\'' if quoted.is_some() => return Ok((value, &body[at + 1..])),
            c if c.is_whitespace() && quoted.is_none() => return Ok((value, &body[at..])),
            c => value.push(c),
        }
    }
    match quoted {
        None => Ok((value, "")),
        Some(_) => Err(bad("a quoted value has no end; write \\' for a quote within it")),
    }
}

fn known(key: &str) -> Result<&'static str> {
    // libpq's name for the setting that the driver calls retries.
    let key = if key == "keepalives_count" { "keepalives_retries" } else { key };
    if let Some((known, _)) = KNOWN.iter().find(|(known, _)| *known == key) {
        return Ok(known);
    }
    if let Some(foreign) = FOREIGN.iter().find(|foreign| **foreign == key) {
        return Err(bad(format!("{foreign} is not supported; leave it out")));
    }
    let all = KNOWN.map(|(known, _)| known).join(" ");
    Err(bad(format!("it has a parameter that is none of {all}; {ESCAPES}")))
}
