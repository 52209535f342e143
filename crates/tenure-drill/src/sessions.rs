//! Plain sessions on PostgreSQL, as psql and every other language have them: no library in between.
//!
//! A [`Lab`] is a database with the schema, its roles and a table of the tests' own. [`contend`] lets
//! many sessions loose on few jobs. Nothing here knows the port.

mod contend;
mod lab;

pub use self::contend::{Report, contend};
pub use self::lab::{Lab, code, fault};
