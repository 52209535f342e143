//! The changes that are made to an SQL text, one at a time.
//!
//! A removed condition stays in the text, as `(true OR (…))`: so the statement keeps its
//! parameters, and the names in the condition are still resolved.

use std::ops::Range;

use super::tokens::{Kind, Token, Unit};

/// One change of a file's text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// A description, without the file and the verb.
    pub(super) what: String,
    pub(super) range: Range<usize>,
    pub(super) replace: String,
    /// Whether it removes a lock, or a clause that keeps a lock from waiting.
    pub(super) is_lock: bool,
    /// The constant value that the condition in this range has now, if it is a condition.
    pub(super) constant: Option<bool>,
    /// The comparison that was changed from `<` to `<=` or the like, if one was.
    pub(super) edge: Option<Edge>,
}

/// A comparison that was changed from `<` to `<=` or the like: its result differs only where both
/// sides are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Edge {
    /// Where the comparison is.
    pub(super) range: Range<usize>,
    /// SQL that is true if both sides are equal.
    pub(super) equal: String,
}

/// How an engine writes what the changes need.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spelling {
    pub(super) yes: &'static str,
    pub(super) no: &'static str,
    /// Whether a statement must keep all of its parameters.
    pub(super) keeps_parameters: bool,
}

pub(super) const SQLITE: Spelling = Spelling { yes: "1", no: "0", keeps_parameters: true };
pub(super) const POSTGRES: Spelling =
    Spelling { yes: "true", no: "false", keeps_parameters: false };

/// Every change that can be made to this unit of `file`.
pub(super) fn changes(file: &'static str, unit: &Unit, spelling: Spelling) -> Vec<Change> {
    let assigned = assignments(&unit.tokens);
    let mut maker = Maker { file, tokens: &unit.tokens, spelling, made: Vec::new() };
    for at in 0..unit.tokens.len() {
        maker.conditions(at);
        maker.comparison(at, &assigned);
        maker.order(at);
        maker.limit(at);
        maker.lock(at);
    }
    for set in &assigned {
        maker.assignment(set);
    }
    maker.made
}

/// The keywords that end a clause.
const CLAUSES: [&str; 18] = [
    "GROUP",
    "ORDER",
    "LIMIT",
    "OFFSET",
    "FOR",
    "RETURNING",
    "UNION",
    "HAVING",
    "WINDOW",
    "LOOP",
    "INTO",
    "ON",
    "WHERE",
    "ROWS",
    "FROM",
    "THEN",
    "ELSE",
    "WHEN",
];
const JOINS: [&str; 4] = ["JOIN", "LEFT", "CROSS", "INNER"];

/// The words and signs, besides brackets, at which one side of a comparison begins or ends.
const SIDES: [&str; 26] = [
    "AND", "OR", "NOT", "IF", "ELSIF", "WHILE", "CASE", "SELECT", "RETURN", "BY", "DEFAULT", "AS",
    "END", "IS", "BETWEEN", "IN", ",", ";", ":=", "=>", "=", "<>", "<", "<=", ">", ">=",
];

struct Maker<'a> {
    file: &'static str,
    tokens: &'a [Token],
    spelling: Spelling,
    made: Vec<Change>,
}

/// One assignment of an UPDATE: its tokens, its place in the list, and the list's length.
struct Assignment {
    tokens: Range<usize>,
    place: usize,
    of: usize,
    /// The alias of the table, if it has one.
    alias: Option<&'static str>,
}

impl Maker<'_> {
    fn is(&self, at: usize, text: &str) -> bool {
        self.tokens.get(at).is_some_and(|token| token.is(text))
    }

    fn before(&self, at: usize, text: &str) -> bool {
        at > 0 && self.is(at - 1, text)
    }

    /// The text of these tokens.
    fn text(&self, tokens: &Range<usize>) -> &'static str {
        &self.file[self.span(tokens)]
    }

    fn span(&self, tokens: &Range<usize>) -> Range<usize> {
        self.tokens[tokens.start].at..self.tokens[tokens.end - 1].end()
    }

    fn make(&mut self, tokens: &Range<usize>, replace: String, what: String) {
        let range = self.span(tokens);
        self.made.push(Change { what, range, replace, is_lock: false, constant: None, edge: None });
    }

    /// Changes conditions: of WHERE, HAVING and ON; of IF, EXIT and CONTINUE; and of CASE.
    fn conditions(&mut self, at: usize) {
        let token = self.tokens[at];
        if token.kind == Kind::Text {
            return;
        }
        let from = at + 1;
        match token.text {
            "WHERE" | "HAVING" => {
                let range = from..end_of(self.tokens, from, &[&CLAUSES, &JOINS]);
                self.logic(&range, true);
            }
            "ON" if !self.is(from, "CONFLICT") && !self.before(at, "DISTINCT") => {
                let range = from..end_of(self.tokens, from, &[&CLAUSES, &JOINS]);
                if !range.is_empty() && !self.is(from, "true") {
                    self.logic(&range, true);
                }
            }
            "IF" | "ELSIF" if !self.before(at, "END") => {
                let range = from..end_of(self.tokens, from, &[&["THEN"]]);
                self.condition(&range);
            }
            "WHEN" if self.before(at, "EXIT") || self.before(at, "CONTINUE") => {
                let range = from..end_of(self.tokens, from, &[]);
                self.condition(&range);
            }
            // The WHEN of an exception handler names an error. It has no condition.
            "WHEN" if self.before(at, "EXCEPTION") || self.before(at, ";") => {}
            "WHEN" => {
                let range = from..end_of(self.tokens, from, &[&["THEN"]]);
                self.logic(&range, false);
            }
            _ => {}
        }
    }

    /// A condition as a whole, and its parts.
    fn condition(&mut self, range: &Range<usize>) {
        if range.is_empty() {
            return;
        }
        self.constant(range, true);
        self.constant(range, false);
        self.logic(range, false);
    }

    /// Changes the parts of a condition: each operand of AND is made true, each operand of OR is
    /// made false. If `alone` is set, a condition without parts is made true as a whole.
    fn logic(&mut self, range: &Range<usize>, alone: bool) {
        if range.is_empty() {
            return;
        }
        let choices = split(self.tokens, range, "OR");
        if choices.len() > 1 {
            for choice in &choices {
                self.constant(choice, false);
                self.logic(choice, false);
            }
            return;
        }
        let parts = split(self.tokens, range, "AND");
        for part in &parts {
            if parts.len() > 1 || alone {
                self.constant(part, true);
            }
            let inner = if self.is(part.start, "NOT") { part.start + 1 } else { part.start };
            if self.is(inner, "(") && closing(self.tokens, inner) == part.end - 1 {
                self.logic(&(inner + 1..part.end - 1), false);
            }
        }
    }

    fn constant(&mut self, range: &Range<usize>, value: bool) {
        let text = self.text(range);
        let (yes, no) = (self.spelling.yes, self.spelling.no);
        let (replace, word) = if value {
            (format!("({yes} OR ({text}))"), "true")
        } else {
            (format!("({no} AND ({text}))"), "false")
        };
        let what = format!("`{}` is {word}", short(text));
        if !self.made.iter().any(|made| made.range == self.span(range) && made.replace == replace) {
            self.make(range, replace, what);
            if let Some(made) = self.made.last_mut() {
                made.constant = Some(value);
            }
        }
    }

    /// Changes operators: inverts a comparison, or turns `<` into `<=`; adds or removes a NOT.
    fn comparison(&mut self, at: usize, assigned: &[Assignment]) {
        let token = self.tokens[at];
        if token.kind == Kind::Text || self.is_no_comparison(at, assigned) {
            return;
        }
        let next_is = |text| self.is(at + 1, text);
        let turned = match token.text {
            "<" => "<=",
            "<=" => "<",
            ">" => ">=",
            ">=" => ">",
            "=" => "<>",
            "<>" | "!=" => "=",
            "NULL" if self.before(at, "IS") => "NOT NULL",
            "NOT" if self.before(at, "IS") => "",
            "DISTINCT" if self.before(at, "IS") => "NOT DISTINCT",
            "NOT" if !next_is("NULL") => "",
            "IN" if next_is("(") && !self.before(at, "NOT") => "NOT IN",
            "BETWEEN" if !self.before(at, "NOT") && !self.before(at, "ROWS") => "NOT BETWEEN",
            _ => return,
        };
        let around = at.saturating_sub(4)..(at + 5).min(self.tokens.len());
        let before = if around.start < at { self.text(&(around.start..at)) } else { "" };
        let after = if at + 1 < around.end { self.text(&(at + 1..around.end)) } else { "" };
        let turned_to = if turned.is_empty() { "nothing" } else { turned };
        let what = format!(
            "`{}` turned to {turned_to} in `{} {} {}`",
            token.text,
            short(before),
            token.text,
            short(after)
        );
        self.make(&(at..at + 1), turned.to_owned(), what);
        let edge = if ["<", "<=", ">", ">="].contains(&token.text) { self.edge(at) } else { None };
        if let Some(made) = self.made.last_mut() {
            made.edge = edge;
        }
    }

    /// The comparison that has its operator here.
    fn edge(&self, at: usize) -> Option<Edge> {
        let (left, right) = (side(self.tokens, at, false), side(self.tokens, at, true));
        if left == at || right == at + 1 {
            return None;
        }
        // Join the tokens instead of copying the text: a comment in it would hide the rest of the
        // line.
        let words = |tokens: &[Token]| {
            let texts: Vec<&str> = tokens.iter().map(|token| token.text).collect();
            texts.join(" ")
        };
        let equal =
            format!("{} = {}", words(&self.tokens[left..at]), words(&self.tokens[at + 1..right]));
        Some(Edge { range: self.span(&(left..right)), equal })
    }

    /// Whether an operator is no comparison: in assignments, and in RAISE and GET DIAGNOSTICS.
    fn is_no_comparison(&self, at: usize, assigned: &[Assignment]) -> bool {
        if assigned.iter().any(|set| set.tokens.start + 1 == at) {
            return true;
        }
        let statement =
            self.tokens[..at].iter().rposition(|token| token.is(";") || token.is("THEN"));
        let begins = statement.map_or(0, |end| end + 1);
        let ours = &self.tokens[begins..at];
        self.tokens[at].is("=") && ours.iter().any(|it| it.is("RAISE") || it.is("DIAGNOSTICS"))
    }

    /// Drops ORDER BY, and reverses it.
    fn order(&mut self, at: usize) {
        if !self.is(at, "ORDER") || !self.is(at + 1, "BY") {
            return;
        }
        let keys = at + 2..end_of(self.tokens, at + 2, &[&CLAUSES]);
        if keys.is_empty() {
            return;
        }
        let text = self.text(&keys);
        self.make(&(at..keys.end), String::new(), format!("`ORDER BY {}` dropped", short(text)));
        let reversed: Vec<String> = split(self.tokens, &keys, ",")
            .iter()
            .map(|key| match self.text(key) {
                text if text.ends_with(" DESC") => text[..text.len() - " DESC".len()].to_owned(),
                text => format!("{text} DESC"),
            })
            .collect();
        self.make(&keys, reversed.join(", "), format!("`ORDER BY {}` reversed", short(text)));
    }

    /// Drops LIMIT, and raises it by one.
    fn limit(&mut self, at: usize) {
        if !self.is(at, "LIMIT") {
            return;
        }
        let most = at + 1..end_of(self.tokens, at + 1, &[&CLAUSES]);
        if most.is_empty() {
            return;
        }
        let text = self.text(&most);
        let what = format!("`LIMIT {}`", short(text));
        let dropped = if self.spelling.keeps_parameters {
            format!("LIMIT ({text}) + 1000000000")
        } else {
            String::new()
        };
        self.make(&(at..most.end), dropped, format!("{what} dropped"));
        self.make(&most, format!("({text}) + 1"), format!("{what} one more"));
    }

    /// Drops a lock, or lets it wait.
    fn lock(&mut self, at: usize) {
        let strengths: [&[&str]; 4] =
            [&["NO", "KEY", "UPDATE"], &["KEY", "SHARE"], &["UPDATE"], &["SHARE"]];
        let has = |words: &&&[&str]| words.iter().zip(at + 1..).all(|(word, at)| self.is(at, word));
        let Some(strength) = strengths.iter().find(has).filter(|_| self.is(at, "FOR")) else {
            return;
        };
        let mut end = at + 1 + strength.len();
        let skips = self.is(end, "SKIP") && self.is(end + 1, "LOCKED");
        end += if skips { 2 } else { 0 };
        let clause = short(self.text(&(at..end)));
        let begins = at.saturating_sub(5);
        let place = short(self.text(&(begins..at)));
        let range = self.span(&(at..end));
        let what = format!("lock: `{clause}` dropped after `{place}`");
        self.unlock(range, what);
        if skips {
            let range = self.span(&(end - 2..end));
            self.unlock(range, format!("lock: `SKIP LOCKED` dropped after `{place}`"));
        }
    }

    fn unlock(&mut self, range: Range<usize>, what: String) {
        let replace = String::new();
        let (is_lock, constant, edge) = (true, None, None);
        self.made.push(Change { what, range, replace, is_lock, constant, edge });
    }

    /// Drops an assignment; if it is the only one, assigns the column to itself.
    fn assignment(&mut self, set: &Assignment) {
        let column = self.tokens[set.tokens.start].text;
        let text = self.text(&set.tokens);
        let what = format!("`SET {}` dropped", short(text));
        if self.spelling.keeps_parameters {
            let value = self.text(&(set.tokens.start + 2..set.tokens.end));
            let kept = format!("{column} = CASE WHEN 1 THEN {column} ELSE ({value}) END");
            return self.make(&set.tokens, kept, what);
        }
        if set.of > 1 {
            // Drop it with the comma before it; if it is the first, with the comma after it.
            let with_comma = if set.place > 0 {
                set.tokens.start - 1..set.tokens.end
            } else {
                set.tokens.start..set.tokens.end + 1
            };
            return self.make(&with_comma, String::new(), what);
        }
        let kept = set.alias.map_or(column.to_owned(), |alias| format!("{alias}.{column}"));
        self.make(&set.tokens, format!("{column} = {kept}"), what);
    }
}

/// The assignments of all UPDATEs.
fn assignments(tokens: &[Token]) -> Vec<Assignment> {
    let mut found = Vec::new();
    let mut is_update = false;
    for (at, token) in tokens.iter().enumerate() {
        match token {
            token if token.is(";") => is_update = false,
            token if token.is("UPDATE") => {
                is_update = at == 0 || !tokens[at - 1].is("FOR") && !tokens[at - 1].is("KEY");
            }
            token if token.is("SET") && is_update => {
                is_update = false;
                let list = at + 1..end_of(tokens, at + 1, &[&CLAUSES]);
                let parts = split(tokens, &list, ",");
                let has_alias =
                    at > 2 && tokens[at - 1].kind == Kind::Word && !tokens[at - 2].is(".");
                let alias = has_alias.then(|| tokens[at - 1].text).filter(|it| *it != "UPDATE");
                let of = parts.len();
                for (place, part) in parts.into_iter().enumerate() {
                    if part.len() > 2 && tokens[part.start + 1].is("=") {
                        found.push(Assignment { tokens: part, place, of, alias });
                    }
                }
            }
            _ => {}
        }
    }
    found
}

/// Where the text that begins at `from` ends: at one of these words, a semicolon, the closing
/// bracket around it, or the end of the unit.
fn end_of(tokens: &[Token], from: usize, words: &[&[&str]]) -> usize {
    let (mut depth, mut cases) = (0_usize, 0_usize);
    for (at, token) in tokens.iter().enumerate().skip(from) {
        let is_word = |words: &&[&str]| words.iter().any(|word| token.is(word));
        match token.text {
            _ if token.kind == Kind::Text => {}
            "(" | "[" => depth += 1,
            ")" | "]" if depth == 0 => return at,
            ")" | "]" => depth -= 1,
            ";" => return at,
            "CASE" => cases += 1,
            "END" if cases > 0 => cases -= 1,
            "END" if depth == 0 => return at,
            // A comma continues a list, and ends a condition.
            "," if depth + cases == 0 && !words.is_empty() && !is_list(tokens, from) => return at,
            // `IS [NOT] DISTINCT FROM` is a comparison.
            "FROM" if at > 0 && tokens[at - 1].is("DISTINCT") => {}
            _ if depth == 0 && cases == 0 && words.iter().any(is_word) => return at,
            _ => {}
        }
    }
    tokens.len()
}

/// Where the left side of the comparison at `at` begins, or where its right side ends.
fn side(tokens: &[Token], at: usize, is_right: bool) -> usize {
    let (opens, closes) =
        if is_right { (["(", "["], [")", "]"]) } else { ([")", "]"], ["(", "["]) };
    let (mut depth, mut cases, mut edge) = (0_usize, 0_usize, at + usize::from(is_right));
    loop {
        let Some(next) = (if is_right { Some(edge) } else { edge.checked_sub(1) }) else {
            return edge;
        };
        let Some(token) = tokens.get(next) else { return edge };
        let is_one = |words: &[&str]| words.iter().any(|word| token.is(word));
        let (case, end) = if is_right { ("CASE", "END") } else { ("END", "CASE") };
        match () {
            () if is_one(&opens) => depth += 1,
            () if is_one(&closes) && depth == 0 => return edge,
            () if is_one(&closes) => depth -= 1,
            () if depth > 0 => {}
            () if token.is(case) => cases += 1,
            () if token.is(end) && cases > 0 => cases -= 1,
            () if cases > 0 => {}
            () if is_one(&SIDES) || is_one(&CLAUSES) || is_one(&JOINS) => return edge,
            () => {}
        }
        edge = if is_right { edge + 1 } else { next };
    }
}

/// Whether a list begins here: the keys of an ORDER BY or GROUP BY, or assignments.
fn is_list(tokens: &[Token], from: usize) -> bool {
    from > 0 && (tokens[from - 1].is("BY") || tokens[from - 1].is("SET"))
}

/// Where the bracket that opens at `from` closes.
fn closing(tokens: &[Token], from: usize) -> usize {
    end_of(tokens, from + 1, &[])
}

/// The parts of a range, split at this word. The AND of a BETWEEN does not split.
fn split(tokens: &[Token], range: &Range<usize>, word: &str) -> Vec<Range<usize>> {
    let mut parts = vec![range.clone()];
    let (mut depth, mut betweens) = (0_usize, 0_usize);
    for at in range.clone() {
        let token = &tokens[at];
        match token.text {
            _ if token.kind == Kind::Text => {}
            "(" | "[" | "CASE" => depth += 1,
            ")" | "]" | "END" => depth = depth.saturating_sub(1),
            "BETWEEN" if depth == 0 => betweens += 1,
            "AND" if depth == 0 && betweens > 0 => betweens -= 1,
            text if depth == 0 && text == word => {
                if let Some(last) = parts.last_mut() {
                    last.end = at;
                }
                parts.push(at + 1..range.end);
            }
            _ => {}
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

/// The text without the names that stand beside numbers, as in `2 /* running */`.
fn without_names(text: &str) -> String {
    let mut parts = text.split(" /*");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |code, part| code + part.split_once("*/").map_or("", |(_, rest)| rest))
}

/// The text in one line, and not too long.
fn short(text: &str) -> String {
    const MOST: usize = 72;
    let code = text.lines().map(|line| line.split(" -- ").next().unwrap_or_default());
    let words: Vec<&str> = code.flat_map(str::split_whitespace).collect();
    let line = without_names(&words.join(" "));
    match line.char_indices().nth(MOST) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tokens;
    use super::*;

    fn made(text: &'static str) -> Vec<String> {
        let unit = &tokens::statements(text)[0];
        let changed = |change: &Change| {
            let Range { start, end } = change.range;
            let whole = format!("{}{}{}", &text[..start], change.replace, &text[end..]);
            whole.split_whitespace().skip(2).collect::<Vec<_>>().join(" ")
        };
        changes(text, unit, POSTGRES).iter().map(changed).collect()
    }

    #[test]
    fn each_part_of_a_condition_is_taken_out_and_each_comparison_turned() {
        let text = "-- :x\nSELECT 1 FROM t WHERE a = 1 AND (b < 2 OR c)";
        assert_eq!(
            made(text),
            [
                "SELECT 1 FROM t WHERE (true OR (a = 1)) AND (b < 2 OR c)",
                "SELECT 1 FROM t WHERE a = 1 AND (true OR ((b < 2 OR c)))",
                "SELECT 1 FROM t WHERE a = 1 AND ((false AND (b < 2)) OR c)",
                "SELECT 1 FROM t WHERE a = 1 AND (b < 2 OR (false AND (c)))",
                "SELECT 1 FROM t WHERE a <> 1 AND (b < 2 OR c)",
                "SELECT 1 FROM t WHERE a = 1 AND (b <= 2 OR c)",
            ]
        );
    }

    #[test]
    fn the_sides_of_a_comparison_whose_edge_is_moved_are_known() {
        let text = "-- :x\nSELECT a + f(b, c) <= -- why\n CASE WHEN d > 1 THEN 2 END AND (e.f, g) > (1, 2) ORDER BY 1";
        let unit = &tokens::statements(text)[0];
        let made = changes(text, unit, POSTGRES);
        let edges: Vec<_> = made.iter().filter_map(|it| it.edge.as_ref()).collect();
        let equal: Vec<&str> = edges.iter().map(|edge| edge.equal.as_str()).collect();
        assert_eq!(
            equal,
            ["a + f ( b , c ) = CASE WHEN d > 1 THEN 2 END", "d = 1", "( e . f , g ) = ( 1 , 2 )"]
        );
        assert_eq!(&text[edges[2].range.clone()], "(e.f, g) > (1, 2)");
    }

    #[test]
    fn orders_limits_and_locks_are_taken_away() {
        let text = "-- :x\nSELECT a FROM t ORDER BY a, b DESC LIMIT 2 FOR UPDATE SKIP LOCKED";
        assert_eq!(
            made(text),
            [
                "SELECT a FROM t LIMIT 2 FOR UPDATE SKIP LOCKED",
                "SELECT a FROM t ORDER BY a DESC, b LIMIT 2 FOR UPDATE SKIP LOCKED",
                "SELECT a FROM t ORDER BY a, b DESC FOR UPDATE SKIP LOCKED",
                "SELECT a FROM t ORDER BY a, b DESC LIMIT (2) + 1 FOR UPDATE SKIP LOCKED",
                "SELECT a FROM t ORDER BY a, b DESC LIMIT 2",
                "SELECT a FROM t ORDER BY a, b DESC LIMIT 2 FOR UPDATE",
            ]
        );
    }

    #[test]
    fn assignments_are_dropped_and_are_no_comparisons() {
        let text =
            "-- :x\nUPDATE t j SET a = 1, b = CASE WHEN c = 1 THEN 2 END WHERE d BETWEEN 1 AND 2";
        assert_eq!(
            made(text),
            [
                "UPDATE t j SET a = 1, b = CASE WHEN c <> 1 THEN 2 END WHERE d BETWEEN 1 AND 2",
                "UPDATE t j SET a = 1, b = CASE WHEN c = 1 THEN 2 END WHERE (true OR (d BETWEEN 1 AND 2))",
                "UPDATE t j SET a = 1, b = CASE WHEN c = 1 THEN 2 END WHERE d NOT BETWEEN 1 AND 2",
                "UPDATE t j SET b = CASE WHEN c = 1 THEN 2 END WHERE d BETWEEN 1 AND 2",
                "UPDATE t j SET a = 1 WHERE d BETWEEN 1 AND 2",
            ]
        );
    }
}
