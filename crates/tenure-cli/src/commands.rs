//! The commands, one file each. All have the same shape: the arguments, then `run`.

#[cfg(feature = "bench")]
pub(crate) mod bench;
pub(crate) mod changes;
pub(crate) mod completions;
pub(crate) mod dead;
pub(crate) mod dev;
pub(crate) mod doctor;
#[cfg(feature = "drill")]
pub(crate) mod drill;
pub(crate) mod effects;
pub(crate) mod enqueue;
pub(crate) mod jobs;
pub(crate) mod migrate;
pub(crate) mod producer;
pub(crate) mod queues;
pub(crate) mod stats;
pub(crate) mod worker;
