//! The names of steps and effects that an attempt has used. If a name were used twice, the second
//! call would silently get the result of the first. This module knows nothing of stores.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::job::Name;
use crate::ledger::effect_name;
use crate::lifecycle::Fault;

type Place = (&'static str, Name);

/// The names that one attempt has used, with what they name.
#[derive(Default)]
pub(super) struct Names(Mutex<BTreeMap<Place, Used>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Used {
    /// A call under this name is under way, or has succeeded.
    Taken,
    /// A call under this name ended, or was dropped, and this attempt does not know its outcome.
    Open,
}

impl Names {
    /// Takes a name that no other call of this attempt uses.
    pub(super) fn take(&self, what: &'static str, name: &str) -> Result<Taken<'_>, Fault> {
        let name = effect_name(name).map_err(Fault::fatal)?;
        match self.all().insert((what, name.clone()), Used::Taken) {
            Some(Used::Taken) => Err(Fault::fatal(format!(
                "the {what} {name} was used twice in one attempt; give each one a name of its own, such as {name}-2"
            ))),
            before => {
                Ok(Taken { names: self, what, name, is_open: before.is_some(), ends: Ends::Free })
            }
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Place, Used>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name while its call lasts. A call that fails, or whose future is dropped, frees the name, so
/// that a program may try again after a timeout of its own.
pub(super) struct Taken<'a> {
    names: &'a Names,
    what: &'static str,
    pub(super) name: Name,
    /// Whether an earlier call of this attempt ended without a known outcome.
    pub(super) is_open: bool,
    ends: Ends,
}

/// What happens to the name when its call ends.
#[derive(Clone, Copy)]
enum Ends {
    Free,
    Open,
    Kept,
}

impl Taken<'_> {
    /// From here on the call may have an outcome that this attempt does not learn.
    pub(super) fn leave_open(&mut self) {
        self.ends = Ends::Open;
    }

    /// The call certainly had no outcome.
    pub(super) fn free(&mut self) {
        self.ends = Ends::Free;
    }

    /// The call has succeeded: the name is used up.
    pub(super) fn keep(mut self) {
        self.ends = Ends::Kept;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let place = (self.what, self.name.clone());
        match self.ends {
            Ends::Kept => {}
            Ends::Free if !self.is_open => drop(self.names.all().remove(&place)),
            Ends::Free | Ends::Open => drop(self.names.all().insert(place, Used::Open)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_used_up_by_success_and_by_nothing_else() {
        let names = Names::default();
        let first = names.take("step", "a").unwrap();
        assert!(names.take("step", "a").is_err(), "it is under way");
        assert!(names.take("effect", "a").is_ok(), "this one is of another sort");
        drop(first);
        let second = names.take("step", "a").unwrap();
        assert!(!second.is_open);
        second.keep();
        assert!(names.take("step", "a").is_err());
        assert!(names.take("step", "a").is_err(), "also when asked again");
    }

    #[test]
    fn what_was_left_open_stays_so_until_it_succeeds() {
        let names = Names::default();
        names.take("step", "a").unwrap().leave_open();
        let again = names.take("step", "a").unwrap();
        assert!(again.is_open);
        drop(again);
        let again = names.take("step", "a").unwrap();
        assert!(again.is_open, "a call that came to nothing does not tell what came of the first");
    }
}
