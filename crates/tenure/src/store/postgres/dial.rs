//! How a connection is made: within a time that holds for all of it, with the session's settings,
//! and again without what the other side refuses.
//!
//! **Settings go into the startup packet.** A `SET` after connecting would do on a connection of our
//! own. But through a pooler that lends sessions by the transaction it would stay behind in
//! somebody else's session, where our timeouts break off their long reports, and not hold in the
//! next session that we are lent. PgBouncer and its like refuse settings in the startup packet, or
//! drop them; either way nothing leaks. Where they are refused we connect without, and the timeouts
//! are then those of the pool: `ALTER ROLE … SET statement_timeout` gives it some.
//!
//! Among the settings is a mark that nobody else has. Who finds it again afterwards has a session of
//! its own, where prepared statements and LISTEN can be trusted.
//!
//! **The whole call has one timeout.** The driver's covers the socket alone, and a server or balancer
//! that accepts and then says nothing would hold a worker for ever. So the call is made on a thread
//! that lives until it is answered; a link has one such thread at most.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use postgres::config::SslMode;
use postgres::{Client, Config};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::address::Address;
use super::error;
use super::link::Timeouts;
use crate::clock;
use crate::store::Result;

/// Makes connections to one address.
pub(super) struct Dialer {
    plan: Plan,
    timeouts: Timeouts,
    /// A call that nobody has answered yet. It is waited for again rather than made twice.
    pending: Option<Receiver<Result<Line, postgres::Error>>>,
}

/// A connection that was just made.
pub(super) struct Line {
    pub(super) client: Client,
    /// What the session was marked with, unless the other side refused its settings.
    pub(super) mark: Option<String>,
}

/// All that a call needs.
#[derive(Clone)]
struct Plan {
    config: Config,
    tls: MakeRustlsConnect,
    settings: String,
    mark: Option<String>,
}

impl Dialer {
    pub(super) fn new(address: &Address, timeouts: Timeouts) -> Result<Dialer> {
        let mut config = address.config().clone();
        let connect = config.get_connect_timeout().copied().unwrap_or(timeouts.connect);
        config.connect_timeout(connect);
        let tls = address.encryption().connector(&address.to_string())?;
        let settings = settings(&timeouts);
        let timeouts = Timeouts { connect, ..timeouts };
        Ok(Dialer { plan: Plan { config, tls, settings, mark: None }, timeouts, pending: None })
    }

    /// Connects, or says why not.
    pub(super) fn dial(&mut self, address: &Address) -> Result<Line> {
        let patience = self.timeouts.connect;
        if let Some(pending) = self.pending.take() {
            match pending.recv_timeout(patience) {
                Ok(Ok(line)) => return Ok(line),
                Err(RecvTimeoutError::Timeout) => return self.go_on_waiting(pending, address),
                // How an old call failed says little about a new one.
                Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => {}
            }
        }
        let plan = Plan { mark: Some(clock::unique().to_string()), ..self.plan.clone() };
        let (answer, pending) = mpsc::sync_channel(1);
        let call = move || {
            // If nobody waits any more, the connection is closed here.
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
        address: &Address,
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
                // Those of the address come last, because the last one counts.
                let theirs = config.get_options().unwrap_or_default().to_owned();
                config.options(&format!("{} -c tenure.session={mark} {theirs}", self.settings));
            }
            match config.connect(self.tls.clone()) {
                Err(cause) if self.mark.is_some() && error::refuses_settings(&cause) => {
                    self.mark = None;
                }
                // Preferring means doing without, as with libpq, also when the server has TLS and
                // we cannot agree on it or may not log in over it.
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

/// What every session of ours needs, as the server's command line would have it.
fn settings(timeouts: &Timeouts) -> String {
    let millis = |length: Duration| clock::millis(length).to_string();
    [
        ("statement_timeout", millis(timeouts.statement)),
        ("lock_timeout", millis(timeouts.lock)),
        ("idle_in_transaction_session_timeout", millis(timeouts.idle_in_transaction)),
        // A worker that waits for work is idle by design.
        ("idle_session_timeout", "0".to_owned()),
        ("client_min_messages", "warning".to_owned()),
        // The statements are written for this level, whatever a role or database has by default.
        ("default_transaction_isolation", r"read\ committed".to_owned()),
    ]
    .map(|(name, value)| format!("-c {name}={value}"))
    .join(" ")
}

#[cfg(test)]
mod tests;
