//! Calls that are applied after their sender has given up on them: a packet that was held up, a
//! statement that the server began late. Their answers are dropped.

use std::time::Duration;

use tenure::JobId;
use tenure::engine::lease::{Fence, WorkerId};
use tenure::engine::ledger::Entry;
use tenure::engine::store::sqlite::Sqlite;
use tenure::engine::store::{Claim, Claimed, Operate, Result, Settlement, Work};

use super::books::Books;
use super::trace::Rare;

/// A call on its way.
pub(super) struct Underway {
    /// When it is applied.
    pub(super) at: Duration,
    pub(super) who: WorkerId,
    pub(super) call: Late,
}

/// What was called.
#[derive(Debug)]
pub(super) enum Late {
    Claim(Claim),
    Settle(Vec<Settlement>),
    SettleAndClaim(Vec<Settlement>, Claim),
    Renew(Vec<Fence>, Duration),
    Ledger(Vec<Entry>),
    Lapse(Vec<Fence>),
    Cancel(Vec<JobId>),
}

impl Late {
    /// The calls that can be late, by their names.
    pub(super) fn can_be(verb: &str) -> bool {
        matches!(
            verb,
            "claim" | "settle" | "settle_and_claim" | "renew" | "ledger" | "lapse" | "cancel"
        )
    }

    fn verb(&self) -> &'static str {
        match self {
            Late::Claim(_) => "claim",
            Late::Settle(_) => "settle",
            Late::SettleAndClaim(..) => "settle_and_claim",
            Late::Renew(..) => "renew",
            Late::Ledger(_) => "ledger",
            Late::Lapse(_) => "lapse",
            Late::Cancel(_) => "cancel",
        }
    }
}

impl Underway {
    /// Applies the call, and records the result in the books.
    pub(super) fn arrive(self, store: &mut Sqlite, books: &mut Books) {
        let Underway { who, call, .. } = self;
        books.count(Rare::LateCall);
        books.trace.tell(None, format!("{} of {who} arrives late", call.verb()));
        books.late = true;
        // The store itself is healthy; a refusal is an answer, not an error.
        apply(store, books, &who, &call).expect("the store answers");
        books.late = false;
    }
}

fn apply(store: &mut Sqlite, books: &mut Books, who: &WorkerId, call: &Late) -> Result<()> {
    match call {
        Late::Claim(ask) => {
            let answer = store.claim(ask)?;
            books.claim(who, ask, &answer);
            overlooked(books, &answer);
        }
        Late::Settle(settlements) => {
            let answers = store.settle(settlements)?;
            books.settle(who, settlements, &answers);
        }
        Late::SettleAndClaim(settlements, ask) => {
            let answers = store.settle_and_claim(settlements, ask)?;
            books.settle_and_claim(who, settlements, ask, &answers);
            overlooked(books, &answers.1);
        }
        Late::Renew(fences, length) => {
            let answers = store.renew(fences, *length)?;
            books.renew(who, fences, *length, &answers);
        }
        Late::Ledger(entries) => {
            let answers = store.ledger(entries)?;
            books.ledger(who, entries, &answers);
        }
        Late::Lapse(fences) => {
            let answers = store.lapse(fences)?;
            books.lapse(who, fences, &answers);
        }
        Late::Cancel(jobs) => {
            let answers = store.cancel(jobs)?;
            books.cancel(who, jobs, &answers);
        }
    }
    Ok(())
}

/// Notes that the worker does not know of the jobs it was just leased: the answer to a late call is
/// dropped.
fn overlooked(books: &mut Books, answer: &Claimed) {
    books.unheard(answer);
    if !answer.attempts.is_empty() {
        books.count(Rare::LateClaim);
    }
}
