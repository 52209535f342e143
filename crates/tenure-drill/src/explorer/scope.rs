//! How much is explored: named scopes, each small enough for a complete search.
//!
//! All faults and operations combined would be too many states. So a scope allows a few of them,
//! limits in a budget how often each may happen, and names the invariants that it must test: an
//! invariant whose premise was never true was not tested.

use std::num::NonZeroU16;

use super::actors::Ending;
use crate::verdict::Invariant::{self, I1, I2, I3, I4, I5, I6, I7, I8, I9, I10, I11, I12, I16};

/// The bounds of one search. A number of faults or operations is a budget for the whole schedule.
#[derive(Debug, Clone, Copy)]
pub struct Scope {
    /// The name in reports and on the command line.
    pub name: &'static str,
    /// What the scope is about, in one line.
    pub about: &'static str,
    /// Workers that claim, renew, settle and stall.
    pub workers: u8,
    /// Jobs in the queue at the beginning.
    pub jobs: u8,
    /// How often the clock advances by half a lease.
    pub ticks: u8,
    /// How often a worker's process dies.
    pub crashes: u8,
    /// How often a call or its reply is lost.
    pub losses: u8,
    /// How often an attempt is given back; without a limit that could go on forever.
    pub give_backs: u8,
    /// How often an operator cancels, and how often an operator requeues.
    pub operations: u8,
    /// How often the server restarts.
    pub restarts: u8,
    /// How often no call reaches the store for longer than a lease.
    pub stalls: u8,
    /// How often the database goes back to an earlier state.
    pub failovers: u8,
    /// How often the store is down for a lease's length.
    pub outages: u8,
    /// How often the store's clock jumps.
    pub jumps: u8,
    /// How often each of two callers enqueues under the same key.
    pub enqueues: u8,
    /// How many jobs a worker that holds none may claim at once.
    pub claims: &'static [u8],
    /// Whether holders renew.
    pub renewals: bool,
    /// Whether holders report progress.
    pub reports: bool,
    /// Whether holders write, under their token, to a system outside the store that refuses lower
    /// tokens.
    pub writes: bool,
    /// Whether holders settle and claim in one call.
    pub in_one_call: bool,
    /// Whether each attempt has an effect that must not happen twice.
    pub effects: bool,
    /// Whether each worker holds a lock that ends with its process, so that its death is noticed.
    /// If so, the number says how often the lock of a living worker is freed anyway.
    pub guard: Option<u8>,
    /// How attempts may end.
    pub endings: &'static [Ending],
    /// How many attempts the job may have.
    pub max_attempts: NonZeroU16,
    /// How many crashes the job may have.
    pub max_crashes: NonZeroU16,
    /// The invariants whose premise must be true at least once.
    pub tests: &'static [Invariant],
}

/// A bound that can be changed, with its name on the command line.
pub type Bound = (&'static str, fn(&mut Scope) -> &mut u8);

/// All bounds.
pub const BOUNDS: [Bound; 13] = [
    ("workers", |scope| &mut scope.workers),
    ("jobs", |scope| &mut scope.jobs),
    ("ticks", |scope| &mut scope.ticks),
    ("crashes", |scope| &mut scope.crashes),
    ("losses", |scope| &mut scope.losses),
    ("give-backs", |scope| &mut scope.give_backs),
    ("operations", |scope| &mut scope.operations),
    ("restarts", |scope| &mut scope.restarts),
    ("stalls", |scope| &mut scope.stalls),
    ("failovers", |scope| &mut scope.failovers),
    ("outages", |scope| &mut scope.outages),
    ("jumps", |scope| &mut scope.jumps),
    ("enqueues", |scope| &mut scope.enqueues),
];

impl Scope {
    /// The scope of this name.
    pub fn named(name: &str) -> Option<Scope> {
        SCOPES.iter().chain(&WIDE_SCOPES).find(|scope| scope.name == name).copied()
    }

    /// Sets a bound by its name. Returns whether there is such a bound.
    pub fn set(&mut self, bound: &str, to: u8) -> bool {
        let named = BOUNDS.iter().find(|(name, _)| *name == bound);
        named.map(|(_, field)| *field(self) = to).is_some()
    }

    /// The command line options that give exactly this scope.
    pub fn options(&self) -> String {
        let mut options = format!("--scope {}", self.name);
        let (mut ours, mut theirs) = (*self, Scope::named(self.name).unwrap_or(*self));
        for (name, field) in BOUNDS {
            let set = *field(&mut ours);
            if set != *field(&mut theirs) {
                options.push_str(&format!(" --{name} {set}"));
            }
        }
        options
    }
}

const fn limit(n: u16) -> NonZeroU16 {
    match NonZeroU16::new(n) {
        Some(n) => n,
        None => panic!("a limit is positive"),
    }
}

/// The scopes of the daily test.
pub const SCOPES: [Scope; 13] = [
    LEASE, SETTLE, EFFECTS, OPERATE, BATCH, FAILOVER, GUARD, PROGRESS, KEYS, OUTAGE, CLOCK, STALL,
    CROWD,
];

/// One job whose holders renew, stall and die.
const LEASE: Scope = Scope {
    name: "lease",
    about: "claims, renewals, lapses and deaths",
    workers: 2,
    jobs: 1,
    ticks: 4,
    crashes: 1,
    losses: 0,
    give_backs: 0,
    operations: 0,
    restarts: 0,
    stalls: 0,
    failovers: 0,
    outages: 0,
    jumps: 0,
    enqueues: 0,
    claims: &[1],
    renewals: true,
    reports: false,
    writes: false,
    in_one_call: false,
    effects: false,
    guard: None,
    endings: &[Ending::Complete, Ending::Retry],
    max_attempts: limit(3),
    max_crashes: limit(2),
    tests: &[I1, I2, I3, I4, I5, I6, I7, I8, I9, I10, I11],
};

const SETTLE: Scope = Scope {
    name: "settle",
    about: "all ways to end an attempt, with calls and replies that are lost",
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
};

const EFFECTS: Scope = Scope {
    name: "effects",
    about: "something that must not happen twice: intent, outcome and doubt",
    ticks: 2,
    crashes: 0,
    losses: 1,
    give_backs: 1,
    renewals: false,
    effects: true,
    endings: &[Ending::Complete, Ending::Park],
    max_attempts: limit(2),
    max_crashes: limit(4),
    ..LEASE
};

const OPERATE: Scope = Scope {
    name: "operate",
    about: "an operator cancels and requeues, workers release",
    ticks: 2,
    crashes: 0,
    give_backs: 1,
    operations: 1,
    renewals: false,
    endings: &[Ending::Complete, Ending::Release, Ending::Bury],
    max_attempts: limit(2),
    ..LEASE
};

const BATCH: Scope = Scope {
    name: "batch",
    about: "two jobs in one claim, one renewal, one settlement, one lapse",
    jobs: 2,
    ticks: 2,
    crashes: 0,
    claims: &[1, 2],
    in_one_call: true,
    max_attempts: limit(2),
    ..LEASE
};

const FAILOVER: Scope = Scope {
    name: "failover",
    about: "the database goes back to an earlier state; an outside system does not",
    ticks: 2,
    crashes: 0,
    give_backs: 1,
    renewals: false,
    writes: true,
    failovers: 1,
    endings: &[Ending::Complete, Ending::Release],
    max_attempts: limit(2),
    tests: &[I1, I2, I3, I4, I5, I6, I7, I8, I9, I10, I11, I16],
    ..LEASE
};

const GUARD: Scope = Scope {
    name: "guard",
    about: "workers whose locks tell of their deaths, and a server that starts again",
    ticks: 2,
    crashes: 0,
    renewals: false,
    guard: Some(1),
    restarts: 1,
    endings: &[Ending::Complete],
    max_crashes: limit(3),
    ..LEASE
};

const PROGRESS: Scope = Scope {
    name: "progress",
    about: "holders tell how far they are",
    ticks: 2,
    crashes: 0,
    losses: 1,
    renewals: false,
    reports: true,
    endings: &[Ending::Complete, Ending::Retry],
    max_attempts: limit(2),
    ..LEASE
};

const KEYS: Scope = Scope {
    name: "keys",
    about: "two callers under one key, with other args, lost replies and an end of its window",
    workers: 1,
    jobs: 0,
    ticks: 3,
    crashes: 0,
    losses: 1,
    renewals: false,
    enqueues: 2,
    endings: &[Ending::Complete],
    max_attempts: limit(2),
    tests: &[I1, I3, I4, I5, I6, I7, I8, I9, I10, I11, I12],
    ..LEASE
};

const OUTAGE: Scope = Scope {
    name: "outage",
    about: "the store is down for a lease's length, and may start again",
    ticks: 3,
    crashes: 0,
    restarts: 1,
    outages: 1,
    endings: &[Ending::Complete],
    max_attempts: limit(2),
    ..LEASE
};

const CLOCK: Scope = Scope {
    name: "clock",
    about: "the store's clock jumps ahead, noticed or not, or back",
    ticks: 3,
    crashes: 0,
    jumps: 1,
    writes: true,
    max_attempts: limit(2),
    tests: &[I1, I2, I3, I4, I5, I6, I7, I8, I9, I10, I11, I16],
    ..LEASE
};

const STALL: Scope = Scope {
    name: "stall",
    about: "no call reaches the store for longer than a lease, twice, and the pulse tells",
    ticks: 3,
    crashes: 1,
    stalls: 2,
    guard: Some(0),
    endings: &[Ending::Complete],
    max_attempts: limit(2),
    max_crashes: limit(3),
    ..LEASE
};

const CROWD: Scope =
    Scope { name: "crowd", about: "three workers and one job", workers: 3, ..LEASE };

/// Wider scopes, for `cargo xtask prove`.
pub const WIDE_SCOPES: [Scope; 6] = [
    Scope { name: "settle-lossy", about: "settle, with two losses", losses: 2, ..SETTLE },
    Scope { name: "operate-renewing", about: "operate, with renewals", renewals: true, ..OPERATE },
    Scope { name: "operate-lossy", about: "operate, with a loss", losses: 1, ..OPERATE },
    Scope { name: "guard-renewing", about: "guard, with renewals", renewals: true, ..GUARD },
    Scope { name: "batch-lossy", about: "batch, with a loss", losses: 1, ..BATCH },
    Scope {
        name: "pairs",
        about: "lease, with two jobs",
        jobs: 2,
        ticks: 3,
        renewals: false,
        max_attempts: limit(2),
        ..LEASE
    },
];
