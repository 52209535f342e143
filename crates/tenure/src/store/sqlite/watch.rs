//! Protects the store while a user's own SQL runs on its connection.
//!
//! All callers that write share the connection, so a user's SQL must leave it as it was: in the
//! transaction that was begun for it, with its settings, and within its time. SQLite calls the
//! hooks of this file before it ends the transaction or changes a setting, and regularly while a
//! statement runs. The hooks refuse the statement or interrupt it.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rusqlite::hooks::{AuthAction, AuthContext, Authorization, TransactionOperation};
use rusqlite::{Connection, Result};

use crate::clock;

/// How many steps SQLite takes between two checks of the time: some microseconds.
const STEPS: i32 = 1_000;

/// The PRAGMAs that a user may give a value: they only read, they belong to the user's own data, or
/// their effect ends with the transaction. All others belong to the store.
const HARMLESS: [&str; 13] = [
    "application_id",
    "defer_foreign_keys",
    "foreign_key_check",
    "foreign_key_list",
    "index_info",
    "index_list",
    "index_xinfo",
    "integrity_check",
    "quick_check",
    "table_info",
    "table_list",
    "table_xinfo",
    "user_version",
];

/// Watches one connection.
#[derive(Debug, Default)]
pub(super) struct Watch {
    seen: Arc<Seen>,
    /// Whether the authorizer is installed. Installing it again would make SQLite prepare every
    /// statement again.
    is_known: AtomicBool,
}

/// What the hooks have seen since the watch began.
#[derive(Debug, Default)]
struct Seen {
    is_on: AtomicBool,
    /// Whether the transaction was rolled back.
    has_ended: AtomicBool,
    /// The first forbidden action, as SQL.
    tried: Mutex<Option<String>>,
}

impl Watch {
    /// Watches the connection until the returned value is dropped. Interrupts a statement that runs
    /// at the deadline.
    pub(super) fn over<'a>(
        &self,
        connection: &'a mut Connection,
        deadline: Option<Instant>,
    ) -> Result<Watched<'a>> {
        if !self.is_known.load(Ordering::SeqCst) {
            let seen = Arc::clone(&self.seen);
            connection.authorizer(Some(move |asked: AuthContext<'_>| seen.answer(&asked)))?;
            self.is_known.store(true, Ordering::SeqCst);
        }
        // From here on, dropping this value removes the hooks that follow.
        let watched = Watched { connection, seen: Arc::clone(&self.seen), deadline };
        *watched.seen.tried() = None;
        watched.seen.has_ended.store(false, Ordering::SeqCst);
        watched.seen.is_on.store(true, Ordering::SeqCst);
        // After a rollback each statement would be a transaction of its own. This hook prevents
        // each such commit.
        watched.connection.commit_hook(Some(|| true))?;
        let seen = Arc::clone(&self.seen);
        let note = move || seen.has_ended.store(true, Ordering::SeqCst);
        watched.connection.rollback_hook(Some(note))?;
        if let Some(deadline) = deadline {
            let is_late = move || clock::monotonic() >= deadline;
            watched.connection.progress_handler(STEPS, Some(is_late))?;
        }
        Ok(watched)
    }
}

/// A connection that is watched over.
pub(super) struct Watched<'a> {
    connection: &'a mut Connection,
    seen: Arc<Seen>,
    deadline: Option<Instant>,
}

impl Watched<'_> {
    /// The first forbidden action, if one was tried.
    pub(super) fn tried(&self) -> Option<String> {
        self.seen.tried().clone()
    }

    /// Whether the deadline has passed.
    pub(super) fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| clock::monotonic() >= deadline)
    }

    /// Whether the transaction in which the watch began has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.seen.has_ended.load(Ordering::SeqCst) || self.connection.is_autocommit()
    }
}

impl Deref for Watched<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        // These fail only on a connection that rusqlite does not own.
        let _ = self.connection.progress_handler(0, None::<fn() -> bool>);
        let _ = self.connection.commit_hook(None::<fn() -> bool>);
        let _ = self.connection.rollback_hook(None::<fn()>);
        self.seen.is_on.store(false, Ordering::SeqCst);
    }
}

impl Seen {
    /// The authorizer's answer when SQLite asks whether a statement may be prepared.
    fn answer(&self, asked: &AuthContext<'_>) -> Authorization {
        if !self.is_on.load(Ordering::SeqCst) {
            return Authorization::Allow;
        }
        let Some(forbidden) = forbidden(&asked.action) else { return Authorization::Allow };
        self.tried().get_or_insert(forbidden);
        Authorization::Deny
    }

    fn tried(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.tried.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The action as SQL, if a user's transaction may not do it.
fn forbidden(action: &AuthAction<'_>) -> Option<String> {
    match *action {
        AuthAction::Transaction { operation } => Some(
            match operation {
                TransactionOperation::Begin => "BEGIN",
                TransactionOperation::Rollback => "ROLLBACK",
                _ => "COMMIT",
            }
            .to_owned(),
        ),
        AuthAction::Attach { .. } => Some("ATTACH".to_owned()),
        AuthAction::Detach { .. } => Some("DETACH".to_owned()),
        AuthAction::Pragma { pragma_name, pragma_value: Some(_) } => {
            let name = pragma_name.to_ascii_lowercase();
            (!HARMLESS.contains(&name.as_str())).then(|| format!("PRAGMA {name}"))
        }
        // A temporary table or view with such a name would hide Tenure's own table from all later
        // users of the connection, and a temporary trigger would run in their transactions. A
        // virtual table can be temporary too.
        AuthAction::CreateTempTable { table_name: name }
        | AuthAction::CreateTempView { view_name: name }
        | AuthAction::CreateTempTrigger { table_name: name, .. }
        | AuthAction::CreateVtable { table_name: name, .. }
            if name.to_ascii_lowercase().starts_with("tenure_") =>
        {
            Some(format!("CREATE … {name}"))
        }
        _ => None,
    }
}
