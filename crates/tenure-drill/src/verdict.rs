//! The invariants, and what a violation looks like. All levels of the proof check the same
//! invariants.

use std::any::Any;
use std::fmt;

use serde::Serialize;

/// The message of a panic.
pub(crate) fn said(thrown: &(dyn Any + Send)) -> String {
    let text = thrown.downcast_ref::<String>().cloned();
    text.or_else(|| thrown.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default()
}

/// What must hold in every state and after every step. `docs/proof.md` defines each one exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Invariant {
    /// A job succeeds at most once since its last requeue, and the ledger has at most one committed
    /// entry for each effect of a job.
    I1,
    /// A later claim has a larger token.
    I2,
    /// A job is succeeded only if its last claim completed it.
    I3,
    /// A job that has ended does not change, except by a requeue, which raises the token.
    I4,
    /// The starts and crashes of a job are bounded.
    I5,
    /// A job is taken from its holder only when its lease is over, its process is gone, or it was
    /// given back or cancelled.
    I6,
    /// Every write that the store accepts comes from the latest claim.
    I7,
    /// A lapse affects only the latest claim, and only when its lease is over or its process is
    /// gone.
    I8,
    /// Every acknowledged job is in the store, once.
    I9,
    /// An answer is true, also when the call is repeated.
    I10,
    /// Once faults stop, every job reaches its end.
    I11,
    /// The same key within its window gives the same job, never none; with other args it is a
    /// conflict.
    I12,
    /// An outside system that keeps the highest fence it has seen never accepts a lower one.
    I16,
    /// The engines agree with the model.
    #[serde(rename = "lockstep")]
    Lockstep,
    /// The outcome of concurrent sessions equals the outcome of running them one after the other,
    /// in some order.
    #[serde(rename = "serial order")]
    Serial,
    /// No two calls wait for each other in a circle.
    #[serde(rename = "no deadlock")]
    Deadlock,
    /// A call that promises not to wait for other sessions does not wait.
    #[serde(rename = "no waiting")]
    Prompt,
    /// Every tenant with a due job is served within one round of a worker's claims.
    #[serde(rename = "fair turns")]
    Fair,
    /// The delays before retries lie within the bounds of their jitter, and are not all equal.
    #[serde(rename = "spread retries")]
    Spread,
    /// A job that has ended is deleted when its retention time is over.
    #[serde(rename = "old jobs go")]
    Pruned,
    /// A worker that is notified of a job and has room for it starts the job at once.
    #[serde(rename = "prompt start")]
    Told,
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Invariant::Lockstep => "lockstep",
            Invariant::Serial => "serial order",
            Invariant::Deadlock => "no deadlock",
            Invariant::Prompt => "no waiting",
            Invariant::Fair => "fair turns",
            Invariant::Spread => "spread retries",
            Invariant::Pruned => "old jobs go",
            Invariant::Told => "prompt start",
            Invariant::I1 => "I1",
            Invariant::I2 => "I2",
            Invariant::I3 => "I3",
            Invariant::I4 => "I4",
            Invariant::I5 => "I5",
            Invariant::I6 => "I6",
            Invariant::I7 => "I7",
            Invariant::I8 => "I8",
            Invariant::I9 => "I9",
            Invariant::I10 => "I10",
            Invariant::I11 => "I11",
            Invariant::I12 => "I12",
            Invariant::I16 => "I16",
        })
    }
}

/// A schedule that violates an invariant.
#[derive(Clone, Serialize)]
pub struct Violation {
    /// The invariant that does not hold.
    pub invariant: Invariant,
    /// What was seen.
    pub what: String,
    /// The steps that lead to the violation, in words.
    pub schedule: Vec<String>,
    /// How many states, schedules or runs had been checked by then.
    pub states: usize,
    /// The arguments of `tenure` that repeat exactly this schedule, if a command can.
    pub replay: Option<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { invariant, what, schedule, states, replay } = self;
        writeln!(f, "{invariant} does not hold: {what} (after {states})")?;
        for (at, step) in schedule.iter().enumerate() {
            writeln!(f, "{:4}. {step}", at + 1)?;
        }
        match replay {
            Some(arguments) => writeln!(f, "Repeat it with: tenure {arguments}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
