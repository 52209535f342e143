//! Which changes a source text has, and the text that contains them.

use super::*;
use crate::edits;

fn whats(source: &str) -> Vec<String> {
    changes(source).unwrap().into_iter().map(|it| format!("{}: {}", it.function, it.what)).collect()
}

/// The text with only those changes whose description contains `words`, all with the switch 7.
fn rewritten(source: &str, words: &str) -> String {
    let all = changes(source).unwrap();
    let chosen: Vec<_> = all.iter().filter(|it| it.what.contains(words)).collect();
    assert!(!chosen.is_empty(), "{words} in {:?}", whats(source));
    let mutants: Vec<_> = chosen.iter().map(|it| (7, it.edits.as_slice())).collect();
    edits::apply(source, &mutants).text.replace("crate::mutated(7)", "on()")
}

#[test]
fn every_part_of_a_condition_is_changed() {
    let source = "fn f(a: u8, b: bool) { if a < 3 && !b { g(); } }";
    let expected = [
        "f: returns at once",
        "f: `a < 3 && !b` is true",
        "f: `a < 3 && !b` is false",
        "f: `&&` turned to || in `a < 3 && !b`",
        "f: `a < 3` is true",
        "f: `!b` is true",
        "f: `<` turned to <= in `a < 3`",
        "f: `!` left out of `!b`",
        "f: `g();` left out",
    ];
    assert_eq!(whats(source), expected);
}

#[test]
fn a_switch_stands_before_each_change() {
    let source = "fn f(a: u8, b: bool) { if a < 3 && !b { g(); } }";
    let changed = |words| rewritten(source, words).replace("fn f(a: u8, b: bool) ", "");
    assert_eq!(changed("at once"), "{ if on() { return; } if a < 3 && !b { g(); } }");
    assert_eq!(changed("!b` is true"), "{ if (on() || (a < 3 && (on() || (!b)))) { g(); } }");
    assert_eq!(changed("!b` is false"), "{ if (!on() && (a < 3 && !b)) { g(); } }");
    assert_eq!(changed("`&&`"), "{ if (if (a < 3 ) != on() { !b } else { on() }) { g(); } }");
    let less = "{ if (match (&(a ), &( 3)) { (left, right) => \
                if on() { left <= right } else { left < right } }) && !b { g(); } }";
    assert_eq!(changed("`<`"), less);
    assert_eq!(changed("`!`"), "{ if a < 3 && (on() != (!b)) { g(); } }");
    assert_eq!(changed("left out").matches("if !on() { g(); }").count(), 1);
}

#[test]
fn all_changes_together_are_still_a_program_with_the_same_lines() {
    let source = r#"
impl<T: Copy> Desk<T> {
    fn take(&mut self, n: usize) -> Result<Option<u8>> {
        // A comment that is not copied.
        if let Some(x) = self.first() && x > 1 || n == 2 {}
        while let Some(x) = self.next()
            && x.is_due()
        {
            self.left -= 1;
            self.all.retain(|it| it.key() == x + 1 + n);
        }
        match self.kind {
            Kind::A if self.left >= 2 => self.stop()?,
            Kind::B => self.go = true,
            _ => {}
        }
        let _ = self.tell("two
 lines");
        Ok(Some(if !self.dry { 1 } else { 2 }))
    }
}
"#;
    // A condition with `let` may not contain `||`.
    let source = source.replace(" || n == 2", "");
    let all = changes(&source).unwrap();
    let numbered: Vec<_> = (1..).zip(all.iter().map(|it| it.edits.as_slice())).collect();
    let edited = edits::apply(&source, &numbered);
    syn::parse_file(&edited.text).unwrap_or_else(|error| panic!("{error} in {}", edited.text));
    assert_eq!(edited.text.lines().count(), source.lines().count());
    assert_eq!(edited.places.len(), all.len());
    let names = whats(&source);
    for what in [
        "Desk::take: returns `Ok(None)` at once",
        "Desk::take: `if let Some(x) = self.first() && x > 1` does not match",
        "Desk::take: `x > 1` is true",
        "Desk::take: `while let Some(x) = self.next() && x.is_due()` does not match",
        "Desk::take: `x.is_due()` is true",
        "Desk::take: `self.left -= 1;` left out",
        "Desk::take: `-=` turned to += in `self.left -= 1;`",
        "Desk::take: `it.key() == x + 1 + n` is false",
        "Desk::take: `+` turned to - in `x + 1 + n`",
        "Desk::take: `+` turned to - in `x + 1`",
        "Desk::take: `self.left >= 2` is true",
        "Desk::take: `self.stop()?` left out",
        "Desk::take: `self.go = true` left out",
        "Desk::take: `let _ = self.tell(\"two lines\");` left out",
        "Desk::take: `!self.dry` is false",
    ] {
        assert!(names.contains(&what.to_owned()), "{what} in {names:#?}");
    }
}

#[test]
fn each_alternative_of_a_pattern_that_is_asked_for_is_left_out() {
    let source = "fn f(a: A) -> X { g(matches!(a.b(), A::X | A::Y { .. } if a.c)) }";
    let expected = "fn f(a: A) -> X { g((matches!(a.b(), A::X | A::Y { .. } if a.c) \
                    && !(on() && matches!(a . b (), A :: X)))) }";
    assert_eq!(rewritten(source, "`A::X` left out of"), expected);
    assert_eq!(whats(source).len(), 2);
}

#[test]
fn tests_constants_and_what_is_printed_are_left_alone() {
    let source = r#"
const N: usize = 1 + 2;
const fn two() -> u8 { 1 + 1 }
impl fmt::Display for X { fn fmt(&self) -> bool { self.a < 2 } }
#[cfg(feature = "drill")]
fn drilled() { go(); }
fn f() -> [u8; 2 + 1] {
    #[cfg(feature = "drill")]
    if self.blind { return 1; }
    assert!(1 < 2);
    X { #[cfg(feature = "drill")] a: 1 + 1, b: [0; 2 + 1] }
}
#[cfg(test)]
mod tests { fn g() { go(); } }
"#;
    assert_eq!(whats(source), [""; 0]);
    let modules = "#[cfg(test)] mod tests; mod more; #[cfg(feature = \"drill\")] mod drill;";
    assert_eq!(modules_left_alone(modules).unwrap(), ["tests", "drill"]);
}

#[test]
fn a_body_that_is_the_simple_value_already_has_no_such_mutant() {
    assert_eq!(whats("fn f() -> Option<u8> { None }"), [""; 0]);
    assert_eq!(whats("fn f() {}"), [""; 0]);
    assert_eq!(whats("fn f() -> bool { true }"), ["f: returns `false` at once"]);
}

#[test]
fn names_are_short_and_on_one_line() {
    assert_eq!(short("a\n  // why\n  .b(`c`)"), "a .b('c')");
    assert_eq!(short(&"x".repeat(200)).chars().count(), SHORT);
}
