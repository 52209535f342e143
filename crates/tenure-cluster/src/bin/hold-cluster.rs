//! Starts a cluster, prints its data directory, and waits for the end of its input. A test kills it
//! meanwhile.

use std::io::{self, Write};

use tenure_cluster::{Binaries, Cluster, Error, Settings};

fn main() -> Result<(), Error> {
    let cluster = Cluster::start(&Binaries::find_or_install()?, &Settings::new())?;
    let mut out = io::stdout();
    // If the reader of this output is gone, the input ends too.
    let _ = writeln!(out, "{}", cluster.data_dir().display()).and_then(|()| out.flush());
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    Ok(())
}
