//! Splits an SQL text into tokens (a string is one token, comments are dropped), and into units: one
//! for each named statement on SQLite, one for each function or view on PostgreSQL.

use std::ops::Range;

/// What a piece of text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A keyword, a name, a number or a parameter.
    Word,
    /// A string in quotes.
    Text,
    /// An operator or a bracket.
    Sign,
    /// The start or end marker of a body in dollar quotes.
    Dollar,
}

/// A piece of an SQL text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) text: &'static str,
    /// Where it begins in the file.
    pub(super) at: usize,
}

impl Token {
    pub(super) fn end(&self) -> usize {
        self.at + self.text.len()
    }

    pub(super) fn is(&self, text: &str) -> bool {
        self.kind != Kind::Text && self.text == text
    }
}

/// A statement of SQLite or a function of PostgreSQL.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) verb: &'static str,
    pub(super) tokens: Vec<Token>,
}

/// Operators of more than one character, the longest first.
const SIGNS: [&str; 18] = [
    "->>", "#>>", "!~*", "<=", ">=", "<>", "!=", "<<", ">>", "||", "::", ":=", "=>", "->", "#>",
    "!~", "~*", "..",
];

/// The tokens of a text that begins at `from` in its file.
pub(super) fn tokens(text: &'static str, from: usize) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let first = rest.chars().next().unwrap_or(' ');
        let (kind, length) = match first {
            _ if first.is_whitespace() => {
                at += first.len_utf8();
                continue;
            }
            '-' if rest.starts_with("--") => {
                at += rest.find('\n').unwrap_or(rest.len());
                continue;
            }
            '/' if rest.starts_with("/*") => {
                at += rest.find("*/").map_or(rest.len(), |end| end + 2);
                continue;
            }
            '\'' => (Kind::Text, quoted(rest, '\'', false)),
            'E' if rest.starts_with("E'") => (Kind::Text, 1 + quoted(&rest[1..], '\'', true)),
            '"' => (Kind::Word, quoted(rest, '"', false)),
            '$' => (Kind::Dollar, rest[1..].find('$').map_or(1, |end| end + 2)),
            '{' => (Kind::Word, rest.find('}').map_or(1, |end| end + 1)),
            ':' if rest[1..].starts_with(|c: char| c.is_ascii_lowercase()) => {
                (Kind::Word, 1 + word(&rest[1..]))
            }
            _ if is_part_of_word(first) => (Kind::Word, word(rest)),
            _ => match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                Some(sign) => (Kind::Sign, sign.len()),
                None => (Kind::Sign, first.len_utf8()),
            },
        };
        tokens.push(Token { kind, text: &rest[..length], at: from + at });
        at += length;
    }
    tokens
}

fn is_part_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn word(text: &str) -> usize {
    text.find(|c| !is_part_of_word(c)).unwrap_or(text.len())
}

/// The length of the quoted text at the beginning. A doubled quote is part of it.
fn quoted(text: &str, quote: char, escapes: bool) -> usize {
    let mut letters = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = letters.next() {
        if escapes && c == '\\' {
            letters.next();
        } else if c == quote {
            if letters.peek().is_some_and(|(_, next)| *next == quote) {
                letters.next();
            } else {
                return at + c.len_utf8();
            }
        }
    }
    text.len()
}

/// The statements of an SQLite file: each follows a line `-- :name`.
pub(super) fn statements(text: &'static str) -> Vec<Unit> {
    let mut starts: Vec<(&'static str, Range<usize>)> = Vec::new();
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if let Some(name) = line.strip_prefix("-- :") {
            if let Some((_, range)) = starts.last_mut() {
                range.end = at;
            }
            starts.push((name.trim(), at + line.len()..text.len()));
        }
        at += line.len();
    }
    let unit = |(verb, range): (&'static str, Range<usize>)| Unit {
        verb,
        tokens: tokens(&text[range.clone()], range.start),
    };
    starts.into_iter().map(unit).collect()
}

/// The functions and views of a PostgreSQL file.
pub(super) fn functions(text: &'static str) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let mut verb = "do";
    // The token that ends the current body or view; `None` outside of bodies and views.
    let mut until: Option<&str> = None;
    let all = tokens(text, 0);
    for (n, token) in all.iter().enumerate() {
        let is_end = match until {
            None => {
                let named = (token.is("FUNCTION") || token.is("VIEW"))
                    && all.get(n + 2).is_some_and(|it| it.is("."));
                if named && n > 0 && !all[n - 1].is("EXECUTE") {
                    verb = all.get(n + 3).map_or(verb, |name| name.text);
                }
                let begins = token.kind == Kind::Dollar || named && token.is("VIEW");
                if begins {
                    until = Some(if token.is("VIEW") { ";" } else { token.text });
                    units.push(Unit { verb, tokens: vec![] });
                    verb = "do";
                }
                continue;
            }
            Some(end) => token.is(end),
        };
        if is_end {
            until = None;
        } else if let Some(unit) = units.last_mut() {
            unit.tokens.push(*token);
        }
    }
    units
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &'static str) -> Vec<&'static str> {
        tokens(text, 0).iter().map(|token| token.text).collect()
    }

    #[test]
    fn strings_and_comments_hide_what_is_in_them() {
        let found = texts("a <= 'it''s; WHERE' -- AND b\n AND \"C\" || E'\\'x' = :now::int");
        assert_eq!(
            found,
            [
                "a",
                "<=",
                "'it''s; WHERE'",
                "AND",
                "\"C\"",
                "||",
                "E'\\'x'",
                "=",
                ":now",
                "::",
                "int"
            ]
        );
    }

    #[test]
    fn a_file_of_sqlites_falls_into_its_statements() {
        let units = statements("-- top\n-- :one\nSELECT 1\n-- why\n-- :two\nSELECT {over}\n");
        let told: Vec<_> = units
            .iter()
            .map(|it| (it.verb, it.tokens.iter().map(|token| token.text).collect::<Vec<_>>()))
            .collect();
        assert_eq!(told, [("one", vec!["SELECT", "1"]), ("two", vec!["SELECT", "{over}"])]);
    }

    #[test]
    fn a_file_of_postgresqls_falls_into_its_functions_and_views() {
        let units = functions(
            "CREATE OR REPLACE FUNCTION tenure.f(a int) RETURNS int SET x = y AS $$ SELECT a $$;\n\
             DO $$ BEGIN NULL; END $$;\nCREATE OR REPLACE VIEW tenure.v AS SELECT 1;",
        );
        let told: Vec<_> = units.iter().map(|it| (it.verb, it.tokens.len())).collect();
        assert_eq!(told, [("f", 2), ("do", 4), ("v", 6)]);
    }
}
