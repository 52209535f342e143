//! One PostgreSQL server with its data, from `initdb` to the removal of its directory.

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::account::Account;
use crate::address::Address;
use crate::binaries::Binaries;
use crate::directory;
use crate::error::{Error, answer, run};
use crate::faketime;
use crate::keeper::Keeper;
use crate::server::{self, Server};
use crate::settings::Settings;

/// The beginning of the log line by which a server reports that it is ready. A primary continues it
/// with "connections", a standby with "read-only connections".
const READY: &str = "database system is ready to accept";

/// Ends the server of a directory whose owner is gone. A frozen server must be woken to end, and a
/// server that waits for a silent client is killed after a while.
const STOP: &str = r#"server=$(sed 1q "$1/data/postmaster.pid") || server=
    if [ -n "$server" ]; then
        kill -CONT "$server"
        "$2" stop -D "$1/data" -m immediate -w -t 20 || kill -KILL "$server"
    fi"#;

/// How many free ports are tried: another process may take a port before the server does.
const PORTS_TRIED: u32 = 5;

/// A running PostgreSQL with a superuser `tenure` and a database `tenure`. It is stopped and its
/// directory removed when this value is dropped, or when the owning process ends in whatever way.
#[derive(Debug)]
pub struct Cluster {
    binaries: Binaries,
    account: Account,
    port: u16,
    tcp: bool,
    faketime: Option<PathBuf>,
    // Stopped before the keeper, which removes the directory, is dropped.
    server: Option<Server>,
    keeper: Keeper,
}

impl Cluster {
    /// Makes a new cluster in a directory of its own and starts it.
    ///
    /// # Errors
    /// If a program fails; the error has its output, or the server's log.
    pub fn start(binaries: &Binaries, settings: &Settings) -> Result<Cluster, Error> {
        let mut cluster = Cluster::prepare(binaries, settings.tcp)?;
        cluster.init()?;
        cluster.configure(settings)?;
        cluster.create_database()?;
        if settings.settable_clock {
            cluster.faketime = Some(faketime::library()?);
            cluster.set_clock(0)?;
        }
        cluster.launch()?;
        Ok(cluster)
    }

    /// The address of the database `tenure`, through the socket.
    pub fn url(&self) -> String {
        self.address().to_string()
    }

    /// The address of a database for a user, through the socket.
    pub fn url_as(&self, user: &str, database: &str) -> String {
        self.address().with_user(user).with_database(database).to_string()
    }

    /// The address of the database `tenure` over TCP, if the settings ask for it.
    pub fn tcp_url(&self) -> Option<String> {
        self.tcp.then(|| Address::new("127.0.0.1", self.port).to_string())
    }

    /// The address as a value.
    pub fn address(&self) -> Address {
        Address::new(self.socket_dir().display(), self.port)
    }

    /// The directory of the socket.
    pub fn socket_dir(&self) -> &Path {
        self.keeper.directory()
    }

    /// The port, which is part of the socket's name too.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of the data.
    pub fn data_dir(&self) -> PathBuf {
        self.keeper.directory().join("data")
    }

    /// The programs that it runs on.
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// What the server has logged so far.
    pub fn log(&self) -> String {
        if let Some(server) = &self.server {
            server.catch_up();
        }
        server::text(&self.log_file())
    }

    /// Runs SQL in the database `tenure` by `psql`, and returns its unaligned output: a line for
    /// each row, with `|` between the columns.
    ///
    /// # Errors
    /// If a statement fails, or `psql` cannot be found or fetched.
    pub fn psql(&self, sql: &str) -> Result<String, Error> {
        self.address().psql(sql)
    }

    /// Stops the server in order, disconnecting its clients, and starts it again.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restart(&mut self) -> Result<(), Error> {
        self.stop("INT")?;
        self.launch()
    }

    /// Stops the server like a crash: without a checkpoint, so that the next start has to recover.
    ///
    /// # Errors
    /// If it cannot be signalled.
    pub fn stop_immediately(&mut self) -> Result<(), Error> {
        self.stop("QUIT")
    }

    /// Starts the server again on the same data and the same address. Does nothing while it runs.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_again(&mut self) -> Result<(), Error> {
        if self.server.is_some() { Ok(()) } else { self.launch() }
    }

    /// Sets the server's clock to `seconds` ahead of the machine's, or behind it if negative.
    ///
    /// # Errors
    /// If the server was started without [`Settings::settable_clock`].
    pub fn set_clock(&self, seconds: i64) -> Result<(), Error> {
        if self.faketime.is_none() {
            return Err(Error::new("this server reads the machine's clock".to_owned()));
        }
        let file = self.clock_file();
        fs::write(&file, format!("{seconds:+}\n"))
            .and_then(|()| self.account.own(&file))
            .map_err(|error| Error::at("write", &file, &error))
    }

    /// A cluster without data.
    pub(crate) fn prepare(binaries: &Binaries, tcp: bool) -> Result<Cluster, Error> {
        let account = Account::of_servers()?;
        let directory = directory::create(account)?;
        let pg_ctl = binaries.directory().join("pg_ctl");
        let keeper = Keeper::start(account, &directory, STOP, &pg_ctl)?;
        let port = if tcp { free_port()? } else { 5432 };
        let (binaries, faketime) = (binaries.clone(), None);
        Ok(Cluster { binaries, account, port, tcp, faketime, server: None, keeper })
    }

    /// Starts the server on the existing data.
    pub(crate) fn launch(&mut self) -> Result<(), Error> {
        let first = !self.log_file().exists();
        let mut tried = 1;
        loop {
            match Server::start(self.postgres(), &self.log_file(), READY) {
                Ok(server) => {
                    self.server = Some(server);
                    return Ok(());
                }
                // Once other processes know the address it must not change.
                Err(_) if self.tcp && first && tried < PORTS_TRIED => {
                    self.port = free_port()?;
                    tried += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// A command for a program of this cluster, as the servers' user.
    pub(crate) fn program(&self, path: impl AsRef<Path>) -> Command {
        self.account.command(self.binaries.directory().join(path))
    }

    fn init(&self) -> Result<(), Error> {
        let init = |locale: &str| {
            let mut initdb = self.program("initdb");
            initdb.arg("-D").arg(self.data_dir()).args(["-U", "tenure", "-A", "trust"]);
            run(initdb.args(["-E", "UTF8", "--no-sync", locale])).map(drop)
        };
        // Not every machine has the first locale.
        init("--locale=C.UTF-8").or_else(|_| init("--locale=C"))
    }

    fn configure(&self, settings: &Settings) -> Result<(), Error> {
        let append = |name: &str, text: &str, keep: bool| {
            let path = self.data_dir().join(name);
            let mut options = fs::OpenOptions::new();
            let file = options.append(keep).write(true).truncate(!keep).open(&path);
            file.and_then(|mut file| file.write_all(text.as_bytes()))
                .map_err(|error| Error::at("write", &path, &error))
        };
        append("postgresql.conf", &settings.lines(), true)?;
        match &settings.hba {
            Some(lines) => append("pg_hba.conf", &(lines.join("\n") + "\n"), false),
            None => Ok(()),
        }
    }

    /// Creates the database before the server runs, because the fetched packages come without
    /// `psql`.
    fn create_database(&self) -> Result<(), Error> {
        let mut postgres = self.program("postgres");
        // `-F` turns fsync off: if the machine fails now, there is nothing to lose yet.
        postgres.args(["--single", "-F", "-D"]).arg(self.data_dir()).arg("postgres");
        postgres.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let output = postgres.spawn().and_then(|mut child| {
            if let Some(mut input) = child.stdin.take() {
                // If it does not read its input, its output tells why.
                let _ = input.write_all(b"CREATE DATABASE tenure;\n");
            }
            child.wait_with_output()
        });
        answer(&postgres, output).map(drop)
    }

    /// Settings for this location are given here and not in the files, which a standby copies.
    fn postgres(&self) -> Command {
        let mut postgres = self.program("postgres");
        postgres.arg("-D").arg(self.data_dir()).arg("-k").arg(self.socket_dir());
        postgres.args([
            "-p",
            &self.port.to_string(),
            "-h",
            if self.tcp { "127.0.0.1" } else { "" },
        ]);
        if let Some(library) = &self.faketime {
            // Only the wall clock is moved. The monotonic clock stays, so that timeouts keep their
            // length.
            postgres.env("LD_PRELOAD", library).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
            postgres
                .env("FAKETIME_TIMESTAMP_FILE", self.clock_file())
                .env("FAKETIME_NO_CACHE", "1");
        }
        postgres
    }

    fn stop(&mut self, signal: &str) -> Result<(), Error> {
        match self.server.take() {
            Some(mut server) => server.stop(self.account, signal),
            None => Ok(()),
        }
    }

    fn clock_file(&self) -> PathBuf {
        self.keeper.directory().join("clock")
    }

    fn log_file(&self) -> PathBuf {
        self.keeper.directory().join("log")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.stop("QUIT");
    }
}

/// A port that no process listens on at this moment.
fn free_port() -> Result<u16, Error> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    port.map(|address| address.port())
        .map_err(|error| Error::new(format!("cannot find a free port: {error}")))
}
