//! A process of the drill: a worker of the library with the drill's handlers, or somebody who enqueues. The place of the store
//! is in its environment; what it is to do is in its arguments, which [`tenure_drill::workers::process`] reads.

#![forbid(unsafe_code)]

use tenure::store::Result;
use tenure_drill::workers::process;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    process::run(&std::env::var(process::PLACE).expect("the place of a store"), &words)
}
