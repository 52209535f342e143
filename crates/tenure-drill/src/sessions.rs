//! Plain sessions on PostgreSQL, as psql and other languages have them, without the library.
//!
//! A [`Lab`] is a database with the schema, its roles and a table for the tests. [`contend`] runs
//! many sessions on few jobs. Nothing here knows the port.

mod contend;
mod lab;

pub use self::contend::{Report, contend};
pub use self::lab::{Lab, code, fault};
