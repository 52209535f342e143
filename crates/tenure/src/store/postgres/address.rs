//! The address of a server, as given to `--db`: parsed once, and never shown with its password.
//!
//! The text is split here, and the driver gets only settings that it knows, one by one. The
//! driver's parser of URLs is not used: it takes an `@` anywhere for the end of the password, and
//! its errors repeat what they could not parse, which may be a password. Nothing here connects.

mod split;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use postgres::Config;
use postgres::config::{Host, SslMode};

use super::schema;
use super::tls::{Encryption, Mode};
use crate::job::Invalid;
use crate::store::{Error, Result};

/// The schema, if the address names none.
const SCHEMA: &str = "tenure";

/// The environment variables for settings that the address leaves out, as with psql.
const ENVIRONMENT: [(&str, &str); 7] = [
    ("PGHOST", "host"),
    ("PGPORT", "port"),
    ("PGUSER", "user"),
    ("PGPASSWORD", "password"),
    ("PGDATABASE", "dbname"),
    ("PGSSLMODE", "sslmode"),
    ("PGSSLROOTCERT", "sslrootcert"),
];

/// Where a local server has its socket by default.
const SOCKETS: [&str; 2] = ["/var/run/postgresql", "/tmp"];

type Settings = BTreeMap<&'static str, String>;

/// The address of a PostgreSQL database, and the user to connect as.
///
/// An address prints without its password, however that was given:
///
/// ```
/// use tenure::engine::store::postgres::ServerAddress;
///
/// let address = ServerAddress::parse("postgres://app:secret@db.example/shop?schema=jobs")?;
/// assert_eq!(address.to_string(), "postgres://app@db.example:5432/shop?schema=jobs");
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone)]
pub struct ServerAddress {
    config: Config,
    encryption: Encryption,
    schema: String,
    shown: String,
}

impl ServerAddress {
    /// Parses `postgres://user:password@host:port/database?…` or `host=… user=… …`. A missing
    /// setting comes from `PGHOST`, `PGPORT`, `PGUSER`, `PGPASSWORD`, `PGDATABASE`, `PGSSLMODE` or
    /// `PGSSLROOTCERT`, and otherwise has the same default as in psql.
    pub fn parse(text: &str) -> Result<ServerAddress> {
        ServerAddress::read(text, &|name| std::env::var(name).ok())
    }

    /// The schema that holds the tables: the parameter `schema`, or `tenure`.
    pub fn schema(&self) -> &str {
        &self.schema
    }

    /// The driver's configuration, without the session's settings.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn encryption(&self) -> &Encryption {
        &self.encryption
    }

    pub(super) fn has_password(&self) -> bool {
        self.config.get_password().is_some()
    }

    /// Like [`ServerAddress::parse`], with another environment, for tests.
    pub(super) fn read(
        text: &str,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<ServerAddress> {
        let mut settings = split::settings(text)?;
        // As in libpq, an empty setting counts as not given.
        settings.retain(|_, value| !value.is_empty());
        for (variable, key) in ENVIRONMENT {
            let is_given =
                settings.contains_key(key) || key == "host" && settings.contains_key("hostaddr");
            if let Some(value) =
                environment(variable).filter(|value| !is_given && !value.is_empty())
            {
                settings.insert(key, value);
            }
        }
        let schema = checked_schema(settings.remove("schema"))?;
        let encryption = Encryption::choose(
            settings.remove("sslmode").as_deref(),
            settings.remove("sslrootcert").as_deref(),
        )?;
        let mut config = configure(settings)?;
        set_encryption(&mut config, &encryption)?;
        let shown = show(&config, &schema);
        Ok(ServerAddress { config, encryption, schema, shown })
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl fmt::Debug for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerAddress").field(&self.shown).finish()
    }
}

/// The error for a bad address. Repeats nothing of it: what looks like a mistake may be a password.
fn bad(why: impl Into<String>) -> Error {
    Invalid::Value { field: "db", why: why.into() }.into()
}

fn checked_schema(given: Option<String>) -> Result<String> {
    let schema = given.unwrap_or_else(|| SCHEMA.to_owned());
    if schema::is_name(&schema) {
        Ok(schema)
    } else {
        Err(bad(format!("schema {}", schema::NOT_A_NAME)))
    }
}

/// Has the driver parse each setting separately, so that the error can name the one that is
/// refused.
fn configure(mut settings: Settings) -> Result<Config> {
    let user_timeout = settings.remove("tcp_user_timeout");
    if !settings.contains_key("host") {
        let port = settings.get("port").map_or("5432", String::as_str);
        let host = settings.get("hostaddr").cloned().unwrap_or_else(|| default_host(port));
        settings.insert("host", host);
    }
    let mut known = String::new();
    for (key, value) in settings {
        let value = value.replace('\\', r"\\").replace('\'', r"\'");
        let pair = format!("{key}='{value}' ");
        if pair.parse::<Config>().is_err() {
            return Err(bad(format!("{key} cannot be read; write {}", split::expected(key))));
        }
        known.push_str(&pair);
    }
    let mut config = known
        .parse::<Config>()
        .map_err(|_| bad("it cannot be read; write postgres://user@host/database"))?;
    let (hosts, ports) = (config.get_hosts().len(), config.get_ports().len());
    if ports > 1 && ports != hosts {
        return Err(bad("there are more or fewer ports than hosts; write one port, or one each"));
    }
    if !config.get_hostaddrs().is_empty() && config.get_hostaddrs().len() != hosts {
        return Err(bad("there are more or fewer hostaddrs than hosts; write one for each"));
    }
    if config.get_application_name().is_none() {
        config.application_name("tenure");
    }
    set_patience(&mut config, user_timeout.as_deref())?;
    Ok(config)
}

/// Sets timeouts so that a machine that is gone is noticed within a minute; with the driver's
/// defaults that takes hours.
fn set_patience(config: &mut Config, user_timeout: Option<&str>) -> Result<()> {
    let driver = Config::new();
    if config.get_keepalives_idle() == driver.get_keepalives_idle() {
        config.keepalives_idle(Duration::from_secs(30));
    }
    if config.get_keepalives_interval().is_none() {
        config.keepalives_interval(Duration::from_secs(10));
    }
    if config.get_keepalives_retries().is_none() {
        config.keepalives_retries(3);
    }
    // In milliseconds, as in libpq; the driver would take the same number for seconds.
    let millis = user_timeout.unwrap_or("30000").parse().map_err(|_| {
        bad(format!(
            "tcp_user_timeout cannot be read; write {}",
            split::expected("tcp_user_timeout")
        ))
    })?;
    config.tcp_user_timeout(Duration::from_millis(millis));
    Ok(())
}

/// Sets the driver's mode, of which it has three. What must be verified is in the TLS connector.
fn set_encryption(config: &mut Config, encryption: &Encryption) -> Result<()> {
    let is_socket = |host: &Host| matches!(host, Host::Unix(_));
    let sockets = config.get_hosts().iter().filter(|host| is_socket(host)).count();
    let must_encrypt = encryption.mode >= Mode::Require;
    if must_encrypt && sockets > 0 && sockets < config.get_hosts().len() {
        return Err(bad(
            "a socket is never encrypted, and the other hosts must be; name only one sort",
        ));
    }
    // As in libpq, a local socket never uses TLS, whatever the mode says.
    config.ssl_mode(match encryption.mode {
        _ if sockets == config.get_hosts().len() => SslMode::Disable,
        Mode::Disable => SslMode::Disable,
        Mode::Prefer => SslMode::Prefer,
        Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
    });
    Ok(())
}

fn default_host(port: &str) -> String {
    let has_socket = |dir: &&str| Path::new(dir).join(format!(".s.PGSQL.{port}")).exists();
    SOCKETS.into_iter().find(has_socket).unwrap_or("localhost").to_owned()
}

/// The address without its secrets. It can be parsed again. psql accepts it too, unless it has the
/// parameter `schema`.
fn show(config: &Config, schema: &str) -> String {
    let user = config.get_user().map_or_else(String::new, |user| split::encode(user) + "@");
    let database =
        config.get_dbname().or(config.get_user()).map_or_else(String::new, split::encode);
    let (hosts, mut settings) = show_hosts(config);
    if schema != SCHEMA {
        settings.push(format!("schema={}", split::encode(schema)));
    }
    let mark = if settings.is_empty() { "" } else { "?" };
    format!("postgres://{user}{hosts}/{database}{mark}{}", settings.join("&"))
}

/// The part between `@` and `/`, and the parameters after `?`. The directory of a socket goes to
/// the parameters, where its slashes stay readable: as a host it would be `%2Frun%2Fpostgresql`.
fn show_hosts(config: &Config) -> (String, Vec<String>) {
    let has_socket = config.get_hosts().iter().any(|host| matches!(host, Host::Unix(_)));
    let names = config.get_hosts().iter().map(|host| match host {
        Host::Unix(dir) => split::encode(&dir.to_string_lossy()).replace("%2F", "/"),
        Host::Tcp(host) if host.contains(':') && !has_socket => format!("[{host}]"),
        Host::Tcp(host) => split::encode(host),
    });
    let listed = |items: Vec<String>| items.join(",");
    let ports = config.get_ports();
    if !has_socket {
        let port = |index: usize| ports.get(index).or(ports.first()).unwrap_or(&5432);
        let places = names.enumerate().map(|(index, name)| format!("{name}:{}", port(index)));
        return (listed(places.collect()), Vec::new());
    }
    let mut settings = vec![format!("host={}", listed(names.collect()))];
    if ports.iter().any(|port| *port != 5432) {
        settings.push(format!("port={}", listed(ports.iter().map(u16::to_string).collect())));
    }
    (String::new(), settings)
}

#[cfg(test)]
mod tests;
