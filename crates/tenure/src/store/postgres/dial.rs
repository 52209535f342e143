//! Makes connections: with one timeout for the whole dial, with the session's settings, and again
//! without the settings or without TLS, if the other side refuses them.
//!
//! **Settings go into the startup packet.** A `SET` after connecting would work on a direct
//! connection. But a pooler that lends sessions per transaction would give the changed session to
//! another client next, whose long reports our timeouts would abort, and our own next session would
//! lack the settings. PgBouncer and similar poolers refuse settings in the startup packet, or drop
//! them; either way no other client gets them. If they are refused, this module connects without
//! them, and the timeouts are then those of the pool: `ALTER ROLE … SET statement_timeout` sets
//! one.
//!
//! One of the settings is a unique mark. If the session has it after connecting, the session is
//! direct, so that prepared statements and LISTEN can be used.
//!
//! **The whole dial has one timeout.** The driver's timeout covers only the connection of the
//! socket. So a server or balancer that accepts and then sends nothing would block a worker for
//! ever. Therefore each dial runs on a thread that lives until the dial ends; a link has at most
//! one such thread.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use postgres::config::SslMode;
use postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::address::ServerAddress;
use super::error;
use super::link::Timeouts;
use crate::clock;
use crate::store::Result;

/// Makes connections to one address.
pub(super) struct Dialer {
    plan: Plan,
    timeouts: Timeouts,
    /// A dial that has not ended yet. The next call waits for it again instead of making
    /// another one.
    pending: Option<Receiver<Result<Line, postgres::Error>>>,
}

/// A connection that was just made.
pub(super) struct Line {
    pub(super) client: Client,
    /// The mark of the session, unless the other side refused its settings.
    pub(super) mark: Option<String>,
}

/// All that a dial needs.
#[derive(Clone)]
struct Plan {
    config: Config,
    tls: MakeRustlsConnect,
    settings: String,
    mark: Option<String>,
}

impl Dialer {
    pub(super) fn new(address: &ServerAddress, timeouts: Timeouts) -> Result<Dialer> {
        let mut config = address.config().clone();
        let connect = config.get_connect_timeout().copied().unwrap_or(timeouts.connect);
        config.connect_timeout(connect);
        let tls = address.encryption().connector(&address.to_string())?;
        let settings = settings(&timeouts);
        let timeouts = Timeouts { connect, ..timeouts };
        Ok(Dialer { plan: Plan { config, tls, settings, mark: None }, timeouts, pending: None })
    }

    /// Connects, or returns why it failed.
    pub(super) fn dial(&mut self, address: &ServerAddress) -> Result<Line> {
        let patience = self.timeouts.connect;
        if let Some(pending) = self.pending.take() {
            match pending.recv_timeout(patience) {
                Ok(Ok(line)) => return Ok(line),
                Err(RecvTimeoutError::Timeout) => return self.go_on_waiting(pending, address),
                // An old failure says little about a new dial.
                Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => {}
            }
        }
        let plan = Plan { mark: Some(clock::unique().to_string()), ..self.plan.clone() };
        let (answer, pending) = mpsc::sync_channel(1);
        let call = move || {
            // If the caller has given up waiting, this closes the connection.
            let _ = answer.send(plan.call());
        };
        thread::Builder::new()
            .name("tenure-dial".into())
            .spawn(call)
            .map_err(|cause| error::no_thread(address, cause))?;
        match pending.recv_timeout(patience) {
            Ok(Ok(line)) => Ok(line),
            Ok(Err(cause)) => Err(error::from_connecting(address, cause)),
            Err(RecvTimeoutError::Timeout) => self.go_on_waiting(pending, address),
            Err(cause @ RecvTimeoutError::Disconnected) => Err(error::no_thread(address, cause)),
        }
    }

    fn go_on_waiting(
        &mut self,
        pending: Receiver<Result<Line, postgres::Error>>,
        address: &ServerAddress,
    ) -> Result<Line> {
        self.pending = Some(pending);
        Err(error::silent(address, self.timeouts.connect))
    }
}

impl Plan {
    fn call(mut self) -> Result<Line, postgres::Error> {
        loop {
            let mut config = self.config.clone();
            if let Some(mark) = &self.mark {
                // The options of the address come last, because the last value counts.
                let theirs = config.get_options().unwrap_or_default().to_owned();
                config.options(&format!("{} -c tenure.session={mark} {theirs}", self.settings));
            }
            match config.connect(self.tls.clone()) {
                Err(cause) if self.mark.is_some() && error::refuses_settings(&cause) => {
                    self.mark = None;
                }
                // With `prefer`, connect without TLS if it fails, as libpq does: also if the server
                // has TLS but the handshake fails, or the login over TLS is refused.
                Err(cause) if self.prefers_tls() && error::is_about_tls(&cause) => {
                    self.config.ssl_mode(SslMode::Disable);
                }
                Err(cause) => return Err(cause),
                Ok(client) => return Ok(Line { client, mark: self.mark }),
            }
        }
    }

    fn prefers_tls(&self) -> bool {
        self.config.get_ssl_mode() == SslMode::Prefer
    }
}

/// The settings of every session, in the form of the server's command line.
fn settings(timeouts: &Timeouts) -> String {
    let millis = |length: Duration| clock::millis(length).to_string();
    [
        ("statement_timeout", millis(timeouts.statement)),
        ("lock_timeout", millis(timeouts.lock)),
        ("idle_in_transaction_session_timeout", millis(timeouts.idle_in_transaction)),
        // A worker that waits for work is idle, and must not be disconnected for it.
        ("idle_session_timeout", "0".to_owned()),
        ("client_min_messages", "warning".to_owned()),
        // The statements are written for this level, whatever the default of the role or database
        // is.
        ("default_transaction_isolation", r"read\ committed".to_owned()),
    ]
    .map(|(name, value)| format!("-c {name}={value}"))
    .join(" ")
}

#[cfg(test)]
mod tests;
