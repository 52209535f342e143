//! A second server that follows the first.

use crate::cluster::Cluster;
use crate::error::{Error, run};

impl Cluster {
    /// A hot standby of this server, made by `pg_basebackup`. Returns once it accepts connections.
    /// It replays what the primary commits, a moment later.
    ///
    /// # Errors
    /// If the copy cannot be made, or the standby does not start.
    pub fn standby(&self) -> Result<Cluster, Error> {
        let mut standby = Cluster::prepare(self.binaries(), self.tcp_url().is_some())?;
        let copy = self.binaries().client("pg_basebackup")?;
        let mut copy = self.program(copy);
        copy.envs(self.address().variables()).env_remove("PGDATABASE");
        copy.arg("-D").arg(standby.data_dir());
        run(copy.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]))?;
        standby.launch()?;
        Ok(standby)
    }
}
