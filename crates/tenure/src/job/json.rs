//! JSON text that a store may keep: checked once when it comes in, then kept as it was written.
//!
//! Checked means: it is JSON, not nested too deeply, within its size limit, and every string in it
//! can be decoded and has no NUL, which PostgreSQL cannot store. This module does not interpret the
//! JSON.

mod finite;

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::Invalid;

/// Checked JSON text, byte for byte as its author wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Json(String);

impl Json {
    /// Checks `text`. `field` is what the error calls it ("args", "result"), `limit` is its largest
    /// size in bytes.
    ///
    /// ```
    /// use tenure::Json;
    ///
    /// assert!(Json::check("args", r#"{"to": "a@b.c"}"#, 1024).is_ok());
    /// assert!(Json::check("args", r#"{"to": "#, 1024).is_err());
    /// ```
    pub fn check(
        field: &'static str,
        text: impl Into<String>,
        limit: usize,
    ) -> Result<Json, Invalid> {
        let text = text.into();
        if text.len() > limit {
            return Err(Invalid::TooLarge { field, size: text.len(), limit });
        }
        let mut parser = serde_json::Deserializer::from_str(&text);
        let parsed = Storable.deserialize(&mut parser).and_then(|()| parser.end());
        match parsed {
            Ok(()) => Ok(Json(text)),
            Err(error) => Err(Invalid::NotJson { field, why: error.to_string() }),
        }
    }

    /// The JSON of a value, if a store may keep it. A number that is NaN or infinite is refused:
    /// JSON would silently turn it into `null`.
    ///
    /// ```
    /// use tenure::Json;
    ///
    /// assert_eq!(Json::of("result", &[1.5], 1024)?.as_str(), "[1.5]");
    /// assert!(Json::of("result", &f64::NAN, 1024).is_err());
    /// # Ok::<(), tenure::engine::job::Invalid>(())
    /// ```
    pub fn of(
        field: &'static str,
        value: &(impl Serialize + ?Sized),
        limit: usize,
    ) -> Result<Json, Invalid> {
        let not_json = |cause: serde_json::Error| {
            let why = cause.to_string();
            Invalid::NotJson { field, why }
        };
        let text = serde_json::to_string(value).map_err(not_json)?;
        if text.contains("null") {
            finite::check(value).map_err(not_json)?;
        }
        Json::check(field, text, limit)
    }

    /// Wraps text from our own store, which was checked when it was stored.
    pub(crate) fn trusted(text: String) -> Json {
        Json(text)
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same value in its canonical form: object keys sorted, no white space, the last of
    /// duplicate keys, numbers as written, strings minimally escaped.
    ///
    /// ```
    /// use tenure::Json;
    ///
    /// let json = Json::check("args", r#"{ "b": 1.50, "a": "\u0041", "b": 2.0 }"#, 1024)?;
    /// assert_eq!(json.canonical(), r#"{"a":"A","b":2.0}"#);
    /// # Ok::<(), tenure::engine::job::Invalid>(())
    /// ```
    pub fn canonical(&self) -> String {
        let mut out = String::with_capacity(self.0.len());
        write_canonical(self.0.trim_matches(JSON_SPACE), &mut out);
        out
    }
}

impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What two requests under one key must have in common: SHA-256 over the kind and the canonical
/// args.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// The fingerprint of a request. The NUL between kind and args cannot occur in either, so two
    /// different requests never hash the same input.
    pub fn of(kind: &str, args: &Json) -> Self {
        let mut hash = Sha256::new();
        hash.update(kind.as_bytes());
        hash.update([0]);
        hash.update(args.canonical().as_bytes());
        Fingerprint(hash.finalize().into())
    }
}

impl Serialize for Fingerprint {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use fmt::Write as _;
        let hex = self.0.iter().fold(String::with_capacity(64), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        serializer.serialize_str(&hex)
    }
}

const JSON_SPACE: [char; 4] = [' ', '\t', '\n', '\r'];

/// Appends `text`, one valid JSON value without surrounding space, in canonical form.
///
/// It parses one level at a time and keeps the raw text of the inner values, because only then do
/// numbers stay as written. The depth was limited when the text was checked.
fn write_canonical(text: &str, out: &mut String) {
    match text.as_bytes().first() {
        Some(b'{') => {
            let fields: BTreeMap<String, &RawValue> =
                serde_json::from_str(text).unwrap_or_default();
            write_list(out, ['{', '}'], fields, |(name, value), out| {
                write_string(&name, out);
                out.push(':');
                write_canonical(value.get(), out);
            });
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
            write_list(out, ['[', ']'], items, |value, out| write_canonical(value.get(), out));
        }
        Some(b'"') => write_string(&serde_json::from_str::<String>(text).unwrap_or_default(), out),
        _ => out.push_str(text),
    }
}

fn write_list<T>(
    out: &mut String,
    [open, close]: [char; 2],
    items: impl IntoIterator<Item = T>,
    mut write: impl FnMut(T, &mut String),
) {
    out.push(open);
    for (at, item) in items.into_iter().enumerate() {
        if at > 0 {
            out.push(',');
        }
        write(item, out);
    }
    out.push(close);
}

fn write_string(text: &str, out: &mut String) {
    // serde_json escapes exactly what JSON requires: the quote, the backslash and control
    // characters.
    out.push_str(&serde_json::to_string(text).unwrap_or_default());
}

/// Parses a whole JSON text and keeps nothing. serde_json itself refuses lone surrogates and more
/// than 128 levels.
struct Storable;

impl<'de> DeserializeSeed<'de> for Storable {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Storable {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        if text.contains('\0') {
            return Err(E::custom("a string contains \\u0000, which no store can keep"));
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Storable)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while fields.next_key_seed(Storable)?.is_some() {
            fields.next_value_seed(Storable)?;
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Json {
    /// Reads back what `Serialize` wrote: the text as a JSON string.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        let text = String::deserialize(deserializer)?;
        Json::check("json", text, usize::MAX).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        Json::check("args", text, 1 << 20).unwrap().canonical()
    }

    #[test]
    fn spelling_does_not_change_the_canonical_form() {
        for (text, expected) in [
            (" { } ", "{}"),
            ("[ 1 , [ ] , null ]", "[1,[],null]"),
            (r#"{"b":1,"a":2}"#, r#"{"a":2,"b":1}"#),
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
            (r#""\u00e9\/\n""#, "\"é/\\n\""),
            (r#"{"\u0061":{"z":1,"y":2}}"#, r#"{"a":{"y":2,"z":1}}"#),
        ] {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }

    #[test]
    fn numbers_stay_as_written() {
        for number in ["1.0", "1", "1e2", "100", "-0", "0.10", "123456789012345678901234567890"] {
            assert_eq!(canonical(number), number);
        }
    }

    #[test]
    fn text_that_a_store_cannot_keep_is_refused() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        for text in [
            "",
            "{",
            "nope",
            "{} {}",
            r#""\u0000""#,
            r#"{"\u0000":1}"#,
            r#""\ud800""#,
            "'a'",
            &deep,
        ] {
            let refused = Json::check("args", text, 1024);
            assert!(matches!(refused, Err(Invalid::NotJson { field: "args", .. })), "{text}");
        }
    }

    #[test]
    fn text_above_its_limit_is_refused_and_the_error_names_both_sizes() {
        let error = Json::check("result", format!("\"{}\"", "x".repeat(100)), 64).unwrap_err();
        assert_eq!(
            error.to_string(),
            "result is 102 bytes, above the limit of 64 bytes; store the data elsewhere and pass a reference to it"
        );
    }

    #[test]
    fn fingerprints_differ_by_kind_and_by_args_but_not_by_spelling() {
        let args = |text: &str| Json::check("args", text, 1024).unwrap();
        let one = Fingerprint::of("mail", &args(r#"{"a":1,"b":2}"#));
        assert_eq!(one, Fingerprint::of("mail", &args(r#"{ "b": 2, "a": 1 }"#)));
        assert_ne!(one, Fingerprint::of("post", &args(r#"{"a":1,"b":2}"#)));
        assert_ne!(one, Fingerprint::of("mail", &args(r#"{"a":1,"b":3}"#)));
    }
}
