//! The proof: what Tenure promises, tried on every engine.
//!
//! 1. [`model`]: the specification, in plain maps. The real engines must agree with it in every answer and every state.
//! 2. [`conformance`]: the promises as cases, each written once against the port and run on every engine.
//! 3. [`differential`]: long random sequences on all engines in lockstep.
//! 4. [`explorer`]: every interleaving of a few workers' calls, with crashes and lost replies, checked against the
//!    invariants after each step; and [`mutants`], which it must kill.
//! 5. [`processes`]: real processes on one file, some of which are killed.
//! 6. [`holders`]: real workers that are killed, stopped and cut off.
//! 7. [`workers`]: real workers of the library, with handlers, under load and under attack. Both are [`speakers`].
//!    In [`stories`] they are told so that a person sees what happens.
//! 8. [`simulation`]: the worker's machines under a scheduler, with faults, from a seed.
//! 9. [`sessions`]: plain PostgreSQL sessions that call the SQL functions, as other languages do.
//! 10. [`disk`]: a disk that loses what was not flushed, and a file that others write.

// Denied but for one file, [`disk`]'s recorder, which stands between SQLite and its files.
#![deny(unsafe_code)]

pub mod conformance;
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
pub mod stories;
pub mod verdict;
pub mod workers;
