//! The proof: what Tenure promises, tested on every engine.
//!
//! What is correct, and what must hold:
//! 1. [`model`]: the specification, in plain maps. The real engines must agree with it in every
//!    answer and every state.
//! 2. [`verdict`]: the invariants that all levels check, and what a violation looks like.
//! 3. [`conformance`]: the promises as test cases, each written once against the port and run on
//!    every engine.
//! 4. [`sql_api`]: the same for plain PostgreSQL sessions, without the library in between.
//! 5. [`differential`]: long random sequences on all engines in lockstep.
//! 6. [`damage`]: stores damaged on purpose. The check behind `tenure doctor --check` must find the
//!    damage.
//!
//! The four levels:
//! 1. [`explorer`]: every order of a few actors' calls, with crashes and lost replies, checked
//!    after each step.
//! 2. [`stepper`]: every order of the statements of a few PostgreSQL sessions. [`sessions`] runs
//!    many of them at once, unscheduled.
//! 3. [`simulation`]: the worker's machines under a scheduler, with faults, from a seed.
//! 4. [`workers`]: real workers of the library, with handlers, killed, stopped and cut off;
//!    [`holders`] hold jobs without handlers, and [`processes`] share one file. [`speakers`] starts
//!    and controls all these processes. [`stories`] runs them so that a person can watch what
//!    happens.
//!
//! Beside the levels: [`disk`], a disk that loses what was not flushed, and [`mutants`]: one
//! safeguard is taken out at a time, and a level must notice.

// Unsafe code is denied everywhere except in one file: [`disk`]'s recorder, which sits between
// SQLite and its files.
#![deny(unsafe_code)]

pub mod conformance;
pub mod damage;
pub mod differential;
pub mod disk;
pub mod engines;
pub mod explorer;
pub mod holders;
pub mod model;
pub mod mutants;
pub mod processes;
pub mod servers;
pub mod sessions;
pub mod simulation;
pub mod speakers;
pub mod sql_api;
pub mod stepper;
pub mod stories;
pub mod verdict;
pub mod workers;
