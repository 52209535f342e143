//! Where a story runs: a store that is made for it and removed after it, however it ends.

use anyhow::{Context, Result};
use tempfile::TempDir;
use tenure::Error;
use tenure::engine::store::postgres::{Migrations, Roles, ServerAddress};
use tenure_cluster::Cluster;
use tenure_drill::servers;
use tenure_drill::stories::Scene;
use tenure_drill::stories::outage::{CutOff, Locked, Outage};
use tenure_drill::workers::Program;

use super::{On, WORK};
use crate::Session;
use crate::commands::drill::server::{Server, is_server};
use crate::commands::worker::helper::this_program;
use crate::output::say;
use crate::target::Target;

/// These names distinguish a story's store from a user's.
const FILE: &str = "drill.db";
const SCHEMA: &str = "drill_";

/// Whether this is the store of a story.
pub(super) fn is_of_a_story(target: &Target) -> bool {
    match target {
        Target::File(file) => file.file_name().is_some_and(|name| name == FILE),
        Target::Server(address) => address.schema().starts_with(SCHEMA),
    }
}

/// A store that nothing else uses. Dropping it removes it.
pub(super) struct Ground {
    pub(super) scene: Scene,
    /// Its name for people.
    pub(super) name: String,
    /// The server's address without the parameter `schema`, which the driver does not know. None
    /// for a file.
    url: Option<String>,
    // Dropped in this order.
    _schema: Option<Schema>,
    server: Option<Server>,
    _directory: TempDir,
}

impl Ground {
    /// On the server that `--db` names, on one that is started for it, or in a file.
    pub(super) fn prepare(on: &On, session: &mut Session) -> Result<Ground> {
        let directory = tempfile::tempdir().context("a story needs a temporary directory")?;
        let program = this_program().context("cannot find this program to start a worker")?;
        let program = Program { path: program, word: Some(WORK) };
        let scene = |place| Scene { program, place, directory: directory.path().to_owned() };
        if !is_server(session) && !on.postgres {
            let scene = scene(directory.path().join(FILE).display().to_string());
            let name = "SQLite".to_owned();
            return Ok(Ground {
                scene,
                name,
                url: None,
                _schema: None,
                server: None,
                _directory: directory,
            });
        }
        let server = if is_server(session) { None } else { Some(Server::find(session)?) };
        let url =
            server.as_ref().map_or_else(|| session.url(), |ours| Ok(ours.url().to_owned()))?;
        let schema = format!("{SCHEMA}{}", tenure::engine::clock::unique().simple());
        let scene = scene(servers::in_schema(&url, &schema));
        let goes_with_its_server = server.is_some();
        let address = ServerAddress::parse(&scene.place)?;
        let made = Schema::make(address, goes_with_its_server)?;
        Ok(Ground {
            scene,
            name: format!("PostgreSQL, in the schema {schema}"),
            url: Some(servers::in_no_schema(&url)),
            _schema: Some(made),
            server,
            _directory: directory,
        })
    }

    /// The option to run the same again.
    pub(super) fn on(&self) -> &'static str {
        match (&self.server, &self.url) {
            (Some(_), _) => " --postgres",
            (None, Some(_)) => " --db postgres://…",
            (None, None) => "",
        }
    }

    /// How its database is made unreachable.
    pub(super) fn outage(&mut self) -> Result<Box<dyn Outage + '_>> {
        Ok(match (self.server.as_mut().and_then(Server::cluster), &self.url) {
            (Some(cluster), _) => Box::new(Stopped(cluster)),
            (None, Some(url)) => Box::new(CutOff::from_server(url)?),
            (None, None) => Box::new(Locked::file(&self.scene)),
        })
    }
}

/// A story's own schema. Dropping it removes it.
struct Schema {
    address: ServerAddress,
    /// Whether the server is thrown away too, and may be down by then.
    goes_with_its_server: bool,
}

impl Schema {
    /// The `Schema` value exists before the schema in the database does, so that dropping it also
    /// removes a half-made schema. It does not exist before the server has answered: then there is
    /// nothing to remove.
    fn make(address: ServerAddress, goes_with_its_server: bool) -> Result<Schema> {
        let mut migrations = Migrations::connect(&address)?;
        let schema = Schema { address, goes_with_its_server };
        migrations.up(Roles::Leave)?;
        Ok(schema)
    }
}

impl Drop for Schema {
    fn drop(&mut self) {
        if self.goes_with_its_server {
            return;
        }
        let gone = Migrations::connect(&self.address).and_then(|mut migrations| migrations.down());
        if let Err(error) = gone {
            let name = self.address.schema();
            say(&format!(
                "the schema {name} could not be removed: {error}; DROP SCHEMA {name} CASCADE"
            ));
        }
    }
}

/// Our own server is stopped immediately, as by a power cut, and started again.
struct Stopped<'a>(&'a mut Cluster);

impl Outage for Stopped<'_> {
    fn what(&self) -> String {
        "the server is stopped at once, as by a power cut".into()
    }

    fn begin(&mut self) -> tenure::Result<()> {
        let stopped = self.0.stop_immediately();
        stopped.map_err(|cause| Error::Engine { doing: "stop the server", source: cause.into() })
    }

    fn end(&mut self) -> tenure::Result<()> {
        let started = self.0.start_again();
        started.map_err(|cause| Error::Engine { doing: "start the server", source: cause.into() })
    }
}
