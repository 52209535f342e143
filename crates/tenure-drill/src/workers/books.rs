//! A table of the user's own beside the jobs, to which each job adds one row in the commit that
//! completes it.
//!
//! It deliberately has no unique constraint: only the fence prevents a second row.

use tenure::postgres::tokio_postgres::{self, Client, NoTls};
use tenure::sqlite::Sqlite;
use tenure::{Context, Fault, postgres};
use tokio::sync::Mutex;

/// The table on PostgreSQL. The test servers have a user with the name of the jobs' schema, and a
/// table without a schema would be created there.
const ON_SERVER: &str = "public.drill_book";
const IN_FILE: &str = "drill_book";

/// How a worker process reaches the table.
pub enum Books {
    /// Through the store's own writer.
    Embedded,
    /// Through the handlers' own connection, which the first handler that needs it opens.
    Server(String, Box<Mutex<Option<Client>>>),
}

impl Books {
    /// The books of this store.
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
                    let enter = format!("INSERT INTO {IN_FILE} VALUES (?1, ?2)");
                    tx.execute(&enter, [job, token])?;
                    Ok(())
                };
                tenure::sqlite::complete(cx, enter).await
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
                let enter = format!("INSERT INTO {ON_SERVER} VALUES ($1, $2)");
                tx.execute(&enter, &[&job, &token]).await?;
                postgres::complete(&tx, cx, &()).await?;
                Ok(tx.commit().await?)
            }
        }
    }
}

/// Creates the table, or empties it.
pub fn make(place: &str) {
    let make = |table: &str| {
        let create = "CREATE TABLE IF NOT EXISTS";
        format!("{create} {table} (job bigint, token bigint); DELETE FROM {table}")
    };
    if is_server(place) {
        connect(place).batch_execute(&make(ON_SERVER)).expect("a table");
    } else {
        let make = make(IN_FILE);
        let mut store =
            Sqlite::open(place, &tenure::sqlite::StoreOptions::default()).expect("it opens");
        let limit = tenure::sqlite::LIMIT;
        store.transact(limit, |tx| tx.execute_batch(&make)).expect("it answers").expect("a table");
    }
}

/// The number of rows, and of distinct jobs.
pub fn count(place: &str) -> (i64, i64) {
    let count = |table: &str| format!("SELECT count(*), count(DISTINCT job) FROM {table}");
    if is_server(place) {
        let row = connect(place).query_one(&count(ON_SERVER), &[]).expect("a count");
        return (row.get(0), row.get(1));
    }
    let mut store =
        Sqlite::open(place, &tenure::sqlite::StoreOptions::default()).expect("it opens");
    let count = store.transact(tenure::sqlite::LIMIT, |tx| {
        tx.query_row(&count(IN_FILE), [], |row| Ok((row.get(0)?, row.get(1)?)))
    });
    count.expect("it answers").expect("a count")
}

fn connect(place: &str) -> ::postgres::Client {
    ::postgres::Client::connect(plain(place), ::postgres::NoTls).expect("a connection")
}

fn is_server(place: &str) -> bool {
    place.starts_with("postgres")
}

/// The address without the schema, which only Tenure understands and which comes last.
fn plain(place: &str) -> &str {
    let end = place.find("&schema=").or(place.find("?schema=")).unwrap_or(place.len());
    &place[..end]
}
