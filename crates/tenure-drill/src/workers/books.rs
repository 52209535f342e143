//! A table of the user's own beside the jobs, to which each job adds one row in the commit that completes it.
//!
//! It has no unique constraint on purpose: nothing but the fence keeps a second row out.

use tenure::postgres::tokio_postgres::{self, Client, NoTls};
use tenure::sqlite::Sqlite;
use tenure::{Context, Fault, postgres};
use tokio::sync::Mutex;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS drill_book (job bigint, token bigint)";

/// The way to the table that a worker process has.
pub enum Books {
    /// By the store's own writer.
    Embedded,
    /// By a connection of the handlers' own, which is made when the first needs it.
    Server(String, Box<Mutex<Option<Client>>>),
}

impl Books {
    /// The books of a store.
    pub fn of(place: &str) -> Books {
        if is_server(place) {
            Books::Server(plain(place).to_owned(), Box::default())
        } else {
            Books::Embedded
        }
    }

    /// Adds the row and completes the job, both or neither.
    pub async fn enter(&self, cx: &Context) -> Result<(), Fault> {
        let (job, token) = (cx.job().0, cx.token().0);
        match self {
            Books::Embedded => {
                let enter = move |tx: &tenure::sqlite::Transaction<'_>| {
                    tx.execute("INSERT INTO drill_book VALUES (?1, ?2)", [job, token])?;
                    Ok(())
                };
                cx.commit(enter).await
            }
            Books::Server(server, client) => {
                let mut client = client.lock().await;
                if client.is_none() {
                    let (made, connection) = tokio_postgres::connect(server, NoTls).await?;
                    tokio::spawn(connection);
                    *client = Some(made);
                }
                let Some(client) = client.as_mut() else { return Ok(()) };
                let tx = client.transaction().await?;
                tx.execute("INSERT INTO drill_book VALUES ($1, $2)", &[&job, &token]).await?;
                postgres::complete(&tx, cx, &()).await?;
                Ok(tx.commit().await?)
            }
        }
    }
}

/// Makes the table, empty.
pub fn make(place: &str) {
    let make = format!("{TABLE}; DELETE FROM drill_book");
    if is_server(place) {
        connect(place).batch_execute(&make).expect("a table");
    } else {
        let mut store = Sqlite::open(place, &tenure::sqlite::Options::default()).expect("it opens");
        let limit = tenure::sqlite::LIMIT;
        store.transact(limit, |tx| tx.execute_batch(&make)).expect("it answers").expect("a table");
    }
}

/// How many rows there are, and of how many jobs.
pub fn count(place: &str) -> (i64, i64) {
    const COUNT: &str = "SELECT count(*), count(DISTINCT job) FROM drill_book";
    if is_server(place) {
        let row = connect(place).query_one(COUNT, &[]).expect("a count");
        return (row.get(0), row.get(1));
    }
    let mut store = Sqlite::open(place, &tenure::sqlite::Options::default()).expect("it opens");
    let count = store.transact(tenure::sqlite::LIMIT, |tx| {
        tx.query_row(COUNT, [], |row| Ok((row.get(0)?, row.get(1)?)))
    });
    count.expect("it answers").expect("a count")
}

fn connect(place: &str) -> ::postgres::Client {
    ::postgres::Client::connect(plain(place), ::postgres::NoTls).expect("a connection")
}

fn is_server(place: &str) -> bool {
    place.starts_with("postgres")
}

/// The address without what only Tenure understands, which comes last.
fn plain(place: &str) -> &str {
    let end = place.find("&schema=").or(place.find("?schema=")).unwrap_or(place.len());
    &place[..end]
}
