//! The settings of a test's server.

/// How a cluster is set up. The default is a server on a Unix socket that trusts every client.
#[derive(Debug, Clone)]
pub struct Settings {
    pub(crate) config: Vec<(String, String)>,
    pub(crate) hba: Option<Vec<String>>,
    pub(crate) tcp: bool,
    pub(crate) settable_clock: bool,
    pub(crate) max_connections: u32,
}

impl Settings {
    /// The default.
    pub fn new() -> Settings {
        Settings {
            config: Vec::new(),
            hba: None,
            tcp: false,
            settable_clock: false,
            max_connections: 100,
        }
    }

    /// Adds a line to `postgresql.conf`. A setting about logging must keep the log on standard
    /// error.
    #[must_use]
    pub fn config(mut self, name: &str, value: &str) -> Settings {
        self.config.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Replaces the lines of `pg_hba.conf`. Without one that lets `tenure` in through the socket,
    /// [`Cluster::psql`] does not work, and without one for replication [`Cluster::standby`] does
    /// not.
    ///
    /// [`Cluster::psql`]: crate::Cluster::psql
    /// [`Cluster::standby`]: crate::Cluster::standby
    #[must_use]
    pub fn hba<'a>(mut self, lines: impl IntoIterator<Item = &'a str>) -> Settings {
        self.hba = Some(lines.into_iter().map(str::to_owned).collect());
        self
    }

    /// Listens on a free port of the loopback address as well.
    #[must_use]
    pub fn tcp(mut self) -> Settings {
        self.tcp = true;
        self
    }

    /// The server reads a clock that [`Cluster::set_clock`] sets, by libfaketime.
    ///
    /// [`Cluster::set_clock`]: crate::Cluster::set_clock
    #[must_use]
    pub fn settable_clock(mut self) -> Settings {
        self.settable_clock = true;
        self
    }

    /// How many connections the server accepts; the default is 100.
    #[must_use]
    pub fn max_connections(mut self, max_connections: u32) -> Settings {
        self.max_connections = max_connections;
        self
    }

    /// The lines for `postgresql.conf`. If a name occurs twice, the last one counts.
    pub(crate) fn lines(&self) -> String {
        let mut lines = format!(
            "\nlc_messages = 'C'\nmax_connections = {}\nmax_prepared_transactions = 9\n",
            self.max_connections
        );
        for (name, value) in &self.config {
            lines += &format!("{name} = '{}'\n", value.replace('\'', "''"));
        }
        lines
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings::new()
    }
}
