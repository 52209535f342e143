//! Edits of a source text, and the text that they make together.
//!
//! An edit puts text around a range, or replaces it. Ranges nest as the syntax does, so that one
//! text contains all mutants of a file, each behind its own switch. No edit adds or removes a line.

use std::collections::BTreeSet;
use std::ops::Range;

/// Stands for the switch of the mutant in the text of an edit.
pub(crate) const SWITCH: &str = "§";

/// One edit. Outer edits are made before inner ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Edit {
    /// Puts text around a range.
    Wrap { range: Range<usize>, open: String, close: String },
    /// Replaces a range that no other edit touches.
    Replace { range: Range<usize>, text: String },
}

/// A text with edits.
#[derive(Debug, Default)]
pub(crate) struct Edited {
    /// The text.
    pub(crate) text: String,
    /// Where each mutant's edits are in it, by number.
    pub(crate) places: Vec<(u32, Range<usize>)>,
}

/// The order of insertions at the same position: closing before opening; closing inner before
/// outer, opening outer before inner.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Close(std::cmp::Reverse<usize>),
    Open(usize),
}

struct Piece {
    at: usize,
    rank: Rank,
    /// Where the replaced text ends; the same position if nothing is replaced.
    end: usize,
    text: String,
    mutant: u32,
}

/// Applies the edits of all these mutants.
pub(crate) fn apply(source: &str, mutants: &[(u32, &[Edit])]) -> Edited {
    let mut pieces = Vec::new();
    let mut order = 0;
    for (mutant, edits) in mutants {
        let switch = format!("crate::mutated({mutant})");
        for edit in *edits {
            order += 1;
            let mut piece = |at, rank, end, text: &str| {
                let text = text.replace(SWITCH, &switch);
                pieces.push(Piece { at, rank, end, text, mutant: *mutant });
            };
            match edit {
                Edit::Wrap { range, open, close } => {
                    piece(range.start, Rank::Open(order), range.start, open);
                    piece(range.end, Rank::Close(std::cmp::Reverse(order)), range.end, close);
                }
                Edit::Replace { range, text } => {
                    piece(range.start, Rank::Open(order), range.end, text);
                }
            }
        }
    }
    pieces.sort_by(|one, other| (one.at, &one.rank).cmp(&(other.at, &other.rank)));
    join(source, &pieces)
}

fn join(source: &str, pieces: &[Piece]) -> Edited {
    let mut edited = Edited::default();
    let mut copied = 0;
    let mut spans: std::collections::BTreeMap<u32, Range<usize>> = Default::default();
    for piece in pieces {
        edited.text.push_str(source.get(copied..piece.at).unwrap_or_default());
        let start = edited.text.len();
        edited.text.push_str(&piece.text);
        copied = piece.end.max(copied);
        let span = spans.entry(piece.mutant).or_insert(start..start);
        span.end = edited.text.len();
    }
    edited.text.push_str(source.get(copied..).unwrap_or_default());
    edited.places = spans.into_iter().collect();
    edited
}

impl Edited {
    /// The mutants at the place of a compiler error: those of the smallest edit around it.
    pub(crate) fn blamed(&self, error: &Range<usize>) -> BTreeSet<u32> {
        let around = |place: &Range<usize>| place.start <= error.start && error.end <= place.end;
        let smallest = self
            .places
            .iter()
            .filter(|(_, place)| around(place))
            .map(|(_, place)| place.len())
            .min();
        let is_blamed = |place: &Range<usize>| around(place) && Some(place.len()) == smallest;
        self.places
            .iter()
            .filter(|(_, place)| is_blamed(place))
            .map(|(mutant, _)| *mutant)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrap(range: Range<usize>, open: &str, close: &str) -> Edit {
        Edit::Wrap { range, open: open.into(), close: close.into() }
    }

    #[test]
    fn edits_nest_in_the_order_in_which_they_were_made() {
        let outer = [wrap(0..5, "(§ || (", "))")];
        let inner = [wrap(0..5, "((", ") != §)")];
        let left = [wrap(0..1, "[", "]")];
        let right = [wrap(4..5, "<", ">"), Edit::Replace { range: 2..3, text: "+".into() }];
        let edited = apply("a b c", &[(1, &outer), (2, &inner), (3, &left), (4, &right)]);
        let expected = "(crate::mutated(1) || ((([a] + <c>) != crate::mutated(2))))";
        assert_eq!(edited.text, expected);
    }

    #[test]
    fn an_error_is_blamed_on_the_smallest_edit_around_it() {
        let outer = [wrap(0..9, "{ ", " }")];
        let inner = [wrap(4..5, "(", ")")];
        let edited = apply("one two x", &[(1, &outer), (2, &inner)]);
        assert_eq!(edited.text, "{ one (t)wo x }");
        assert_eq!(edited.blamed(&(6..8)), BTreeSet::from([2]));
        assert_eq!(edited.blamed(&(6..12)), BTreeSet::from([1]));
        assert_eq!(edited.blamed(&(0..40)), BTreeSet::new());
    }
}
