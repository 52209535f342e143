//! The limit on PostgreSQL, in a schema of its own, with the server's settings; each commit waits
//! for the disk, as in a store.

use anyhow::Result;
use postgres::{Client, NoTls, Statement};

use super::{Driver, section};

pub(super) const SQL: &str = include_str!("../../sql/postgres.sql");

struct Postgres {
    client: Client,
    insert: Statement,
    claim: Statement,
    complete: Statement,
}

/// Makes the schema and its tables, and a connection to them.
pub(super) fn create(url: &str, schema: &str) -> Result<impl Driver + use<>> {
    let mut client = Client::connect(url, NoTls)?;
    client.batch_execute(&format!("CREATE SCHEMA {schema}; SET search_path = {schema}"))?;
    client.batch_execute(section(SQL, "schema")?)?;
    connect(url, schema)
}

/// A further connection to tables that are there.
pub(super) fn connect(url: &str, schema: &str) -> Result<impl Driver + use<>> {
    let mut client = Client::connect(url, NoTls)?;
    client.batch_execute(&format!("SET search_path = {schema}; SET synchronous_commit = on"))?;
    let insert = client.prepare(section(SQL, "insert")?)?;
    let claim = client.prepare(section(SQL, "claim")?)?;
    let complete = client.prepare(section(SQL, "complete")?)?;
    Ok(Postgres { client, insert, claim, complete })
}

impl Driver for Postgres {
    fn insert(&mut self, args: &[String], now: i64) -> Result<()> {
        self.client.execute(&self.insert, &[&args, &now])?;
        Ok(())
    }

    fn claim(&mut self, most: usize, now: i64) -> Result<Vec<i64>> {
        let rows = self.client.query(&self.claim, &[&(most as i64), &now])?;
        // The driver has fetched the args of each row, as a worker has to.
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    fn complete(&mut self, jobs: &[i64], now: i64) -> Result<()> {
        self.client.execute(&self.complete, &[&jobs, &now])?;
        Ok(())
    }
}
