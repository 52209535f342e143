//! The PostgreSQL that a drill runs on: the one that `--db` names, or a throw-away one that is
//! started for it.

use anyhow::{Context, Result};
use tenure_cluster::{Binaries, Cluster, Settings};
use tenure_drill::servers;

use crate::Session;
use crate::target::Target;

/// A server, for as long as this value lives.
pub(crate) struct Server {
    url: String,
    /// A server that we started, and stop with this value.
    cluster: Option<Cluster>,
}

impl Server {
    /// The server that `--db` names, or else a throw-away one of this machine's PostgreSQL. All
    /// drills of this process run on it.
    pub(crate) fn find(session: &mut Session) -> Result<Server> {
        let named = session.db.as_ref().filter(|_| is_server(session));
        let server = match named.and_then(|db| db.to_str()) {
            Some(url) => Server { url: url.to_owned(), cluster: None },
            None => Server::start(session)?,
        };
        servers::check(&server.url)?;
        servers::choose(&server.url);
        Ok(server)
    }

    fn start(session: &mut Session) -> Result<Server> {
        let binaries = Binaries::find().map_err(anyhow::Error::new).context(
            "a drill on PostgreSQL needs a server: name one with --db postgres://… \
             (it makes databases of its own there), or install PostgreSQL on this machine",
        )?;
        session.out.say(&format!("starting a throw-away PostgreSQL {}", binaries.version()))?;
        let cluster = Cluster::start(&binaries, &Settings::new()).map_err(anyhow::Error::new)?;
        Ok(Server { url: cluster.url(), cluster: Some(cluster) })
    }

    /// Its address, for a role that may create databases.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The server itself, if it is ours to stop.
    pub(crate) fn cluster(&mut self) -> Option<&mut Cluster> {
        self.cluster.as_mut()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.cluster.is_none() {
            servers::clean_up();
        }
    }
}

/// Whether `--db` names a server. A file is ignored: a drill makes its own.
pub(crate) fn is_server(session: &Session) -> bool {
    matches!(session.target(), Ok(Target::Server(_)))
}
