//! A process of the drill: a worker of the library with the drill's handlers, or a client that
//! enqueues. The place of the store is in its environment; [`tenure_drill::workers::process`] reads
//! its arguments.

#![forbid(unsafe_code)]

use tenure::Result;
use tenure_drill::workers::process;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    process::run(&std::env::var(process::PLACE).expect("the place of a store"), &words)
}
