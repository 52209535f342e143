//! Which jobs are suspects, for how long, and what becomes of their crashes.
//!
//! On SQLite the library decides most of this in Rust. There a patch falsifies what the library
//! writes. It tells the cases apart by what the library changes: a lapse changes the crashes, a
//! release the token, and a handler's return neither.

use super::{Mutant, patch};
use crate::verdict::Invariant;

pub(super) const MUTANTS: [Mutant; 4] = [
    Mutant {
        name: "suspicion outlives a return",
        removed: "a suspect stays one, though its handler came back",
        broken: &[Invariant::I5],
        scope: "settle",
        sqlite: &[patch("settle", "lane = :lane,", "lane = :lane | (lane & 2305843009213693952),")],
        postgres: &[patch(
            "verbs/settle",
            "suspect := p_verb = 'release' AND tenure.is_suspect(was.lane);",
            "suspect := tenure.is_suspect(was.lane);",
        )],
    },
    Mutant {
        name: "release ends the suspicion",
        removed: "a suspect that its worker gives back is none any more",
        broken: &[Invariant::I5],
        scope: "settle",
        sqlite: &[patch(
            "settle",
            "lane = :lane,",
            "lane = CASE WHEN :crashes = crashes THEN :lane & ~2305843009213693952 ELSE :lane END,",
        )],
        postgres: &[patch(
            "verbs/settle",
            "suspect := p_verb = 'release' AND tenure.is_suspect(was.lane);",
            "suspect := false;",
        )],
    },
    Mutant {
        name: "crashes forgotten at once",
        removed: "a handler that comes back clears its crashes, however young they are",
        broken: &[Invariant::I5],
        scope: "settle",
        sqlite: &[patch(
            "settle",
            "crashes = :crashes,",
            "crashes = CASE WHEN :token = token THEN 0 ELSE :crashes END,",
        )],
        postgres: &[patch(
            "verbs/settle",
            "p_verb = 'release' OR was.crashed_at > t - tenure.crash_memory()",
            "p_verb = 'release'",
        )],
    },
    Mutant {
        name: "suspect from the first crash on",
        removed: "each crash makes a suspect, also the first of a job with many to lose",
        broken: &[Invariant::I5],
        scope: "effects",
        sqlite: &[patch("settle", "lane = :lane,", "lane = :lane | ((:crashes > crashes) << 61),")],
        postgres: &[patch(
            "base/numbers",
            "crashes >= CASE WHEN max_crashes > 3 THEN 2 ELSE 1 END",
            "crashes >= 1",
        )],
    },
];
