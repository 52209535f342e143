//! Names that a newer release has written and this one does not know.
//!
//! Old and new binaries share a store during an upgrade. If an old binary only displays a name,
//! such as the verb of a line in a timeline, it shows the name as the newer release wrote it. If it
//! would have to act on it, the migration's `min_client` keeps the old binary from using the store.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::job::shorten;

/// A name that this release does not know. Two with the same text are equal.
///
/// It is a small value that can be copied. Its text is kept for as long as the process runs, so the
/// number of names is limited: beyond the limit, all are called `unknown`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnknownName(&'static str);

/// The most names that are kept. A newer release adds a handful.
const MOST: usize = 256;
/// The longest name in bytes.
const LONGEST: usize = 64;

static KEPT: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

impl UnknownName {
    pub(crate) fn new(text: &str) -> UnknownName {
        let text = shorten(text, LONGEST);
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.get(text.as_str()) {
            return UnknownName(known);
        }
        if kept.len() == MOST {
            return UnknownName("unknown");
        }
        let text: &'static str = Box::leak(text.into_boxed_str());
        kept.insert(text);
        UnknownName(text)
    }

    /// The name as the newer release spells it.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Debug for UnknownName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspect::Rule;
    use crate::lifecycle::Verb;

    #[test]
    fn an_unknown_name_keeps_its_text_and_equals_itself() {
        let (one, again) = (Verb::named("teleport"), Verb::named("teleport"));
        assert_eq!(one, again);
        assert_ne!(one, Verb::named("levitate"));
        assert_eq!((one.name(), one.to_string().as_str()), ("teleport", "teleport"));
        let text = serde_json::to_string(&one).unwrap();
        assert_eq!(text, "\"teleport\"");
        assert_eq!(serde_json::from_str::<Verb>(&text).unwrap(), one);
        assert_eq!(serde_json::to_string(&Rule::named("i99")).unwrap(), "\"i99\"");
        // It is kept as long as the process runs, so its size is limited.
        assert!(Verb::named(&"x".repeat(10_000)).name().len() <= LONGEST);
    }

    #[test]
    fn a_known_name_is_never_taken_for_an_unknown_one() {
        for verb in Verb::ALL {
            assert_eq!(Verb::named(verb.name()), verb);
            let text = serde_json::to_string(&verb).unwrap();
            assert_eq!(text, format!("\"{}\"", verb.name()));
            assert_eq!(serde_json::from_str::<Verb>(&text).unwrap(), verb);
        }
        for rule in Rule::ALL {
            assert_eq!(Rule::named(rule.name()), rule);
            assert_eq!(serde_json::to_string(&rule).unwrap(), format!("\"{}\"", rule.name()));
        }
    }
}
