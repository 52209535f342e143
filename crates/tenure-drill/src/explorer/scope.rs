//! How much is explored: named scopes, each small enough to be gone through whole.

use std::num::NonZeroU16;

use super::actors::Ending;

/// The bounds of one search. Each number is a budget for the whole schedule.
#[derive(Debug, Clone, Copy)]
pub struct Scope {
    /// What reports call it.
    pub name: &'static str,
    /// Workers that claim, renew, settle and stall.
    pub workers: usize,
    /// Jobs in the queue at the beginning.
    pub jobs: usize,
    /// How often the clock moves on by half a lease.
    pub ticks: u8,
    /// How often a worker's process dies.
    pub crashes: u8,
    /// How often a call or its reply is lost.
    pub losses: u8,
    /// How often an attempt is given back, which would otherwise go on for ever.
    pub give_backs: u8,
    /// How often an operator cancels, and how often one requeues.
    pub operations: u8,
    /// Whether holders renew.
    pub renewals: bool,
    /// Whether holders tell how far they have come.
    pub reports: bool,
    /// Whether each attempt does something that must not happen twice.
    pub effects: bool,
    /// Whether workers are guarded, so that their deaths are noticed; and how often a living worker's
    /// lock is freed all the same.
    pub guard: Option<u8>,
    /// How often the server starts again.
    pub restarts: u8,
    /// How often the database goes back to an earlier state.
    pub failovers: u8,
    /// How attempts may end.
    pub endings: &'static [Ending],
    /// The job's limits.
    pub max_attempts: NonZeroU16,
    /// The job's limits.
    pub max_crashes: NonZeroU16,
}

const fn limit(n: u16) -> NonZeroU16 {
    match NonZeroU16::new(n) {
        Some(n) => n,
        None => panic!("a limit is positive"),
    }
}

/// The scopes of the daily test.
pub const SCOPES: [Scope; 7] = [
    LEASE,
    Scope {
        name: "settle",
        ticks: 2,
        losses: 1,
        give_backs: 1,
        renewals: false,
        endings: &[
            Ending::Complete,
            Ending::Retry,
            Ending::Snooze,
            Ending::Release,
            Ending::Bury,
            Ending::Park,
        ],
        max_attempts: limit(2),
        max_crashes: limit(3),
        ..LEASE
    },
    Scope {
        name: "operate",
        ticks: 2,
        crashes: 0,
        give_backs: 1,
        operations: 1,
        renewals: false,
        endings: &[Ending::Complete, Ending::Release, Ending::Bury],
        max_attempts: limit(2),
        ..LEASE
    },
    Scope {
        name: "effects",
        ticks: 2,
        crashes: 0,
        losses: 1,
        give_backs: 1,
        renewals: false,
        effects: true,
        endings: &[Ending::Complete, Ending::Park],
        max_attempts: limit(2),
        max_crashes: limit(3),
        ..LEASE
    },
    Scope {
        name: "failover",
        ticks: 2,
        crashes: 0,
        give_backs: 1,
        renewals: false,
        failovers: 1,
        endings: &[Ending::Complete, Ending::Release],
        max_attempts: limit(2),
        ..LEASE
    },
    Scope {
        name: "guard",
        ticks: 2,
        crashes: 0,
        renewals: false,
        guard: Some(1),
        restarts: 1,
        endings: &[Ending::Complete],
        max_crashes: limit(3),
        ..LEASE
    },
    Scope {
        name: "progress",
        ticks: 2,
        crashes: 0,
        losses: 1,
        renewals: false,
        reports: true,
        endings: &[Ending::Complete, Ending::Retry],
        max_attempts: limit(2),
        ..LEASE
    },
];

const LEASE: Scope = Scope {
    name: "lease",
    workers: 2,
    jobs: 1,
    ticks: 4,
    crashes: 1,
    losses: 0,
    give_backs: 0,
    operations: 0,
    renewals: true,
    reports: false,
    effects: false,
    guard: None,
    restarts: 0,
    failovers: 0,
    endings: &[Ending::Complete, Ending::Retry],
    max_attempts: limit(3),
    max_crashes: limit(2),
};

/// Wider scopes, for the long proof.
pub const WIDE_SCOPES: [Scope; 5] = [
    Scope { name: "settle, two losses", losses: 2, ..SCOPES[1] },
    Scope { name: "operate, with renewals", renewals: true, ..SCOPES[2] },
    Scope { name: "operate, with losses", losses: 1, ..SCOPES[2] },
    Scope { name: "guard, with renewals", renewals: true, ..SCOPES[5] },
    Scope {
        name: "two jobs",
        jobs: 2,
        ticks: 3,
        crashes: 1,
        renewals: false,
        max_attempts: limit(2),
        ..SCOPES[0]
    },
];
