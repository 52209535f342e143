//! An order and its job in one transaction; then the handler's own writes and the end of its job in
//! another.
//!
//! On SQLite your tables are in the store's file: `cargo run -p tenure --example transactional`
//!
//! On PostgreSQL you use your own client. Give the URL as argument or in `TENURE_DB`, after `tenure
//! migrate up`: `cargo run -p tenure --features postgres --example transactional --
//! postgres://me@localhost/shop`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;

use serde::{Deserialize, Serialize};
use tenure::{Address, Filter, Job, State, Tenure};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

#[derive(Serialize, Deserialize)]
struct Ship {
    order: i64,
}

impl Job for Ship {
    const KIND: &'static str = "ship";
    type Output = i64;
}

#[tokio::main]
async fn main() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let temporary = directory.path().join("shop.db").display().to_string();
    let given = std::env::args().nth(1).or(std::env::var("TENURE_DB").ok());
    let url = given.unwrap_or(temporary);
    let address: Address = url.parse()?;
    let tenure = Tenure::open(&address).await?;
    #[cfg(feature = "postgres")]
    if address.server().is_some() {
        return on_postgres::shop(&tenure, &url).await;
    }
    on_sqlite::shop(&tenure).await
}

/// How many jobs wait to be run.
async fn waiting(tenure: &Tenure) -> Result<usize> {
    let queued = Filter { state: Some(State::Queued), ..Filter::default() };
    Ok(tenure.with_store(move |store| store.jobs(&queued, 1_000)).await?.len())
}

/// The closure runs on the store's own connection.
mod on_sqlite {
    use tenure::{Context, Fault, Tenure, Worker, sqlite};

    use super::{Result, Ship, waiting};

    async fn place_order(tenure: &Tenure, item: &'static str, stock: u32) -> tenure::Result<i64> {
        let jobs = tenure.clone();
        sqlite::transaction(tenure, move |tx| {
            tx.execute("INSERT INTO orders (item) VALUES (?1)", [item])?;
            let order = tx.last_insert_rowid();
            sqlite::enqueue(tx, jobs.enqueue(Ship { order }))?;
            // An error undoes the order, and the job with it.
            if stock > 0 { Ok(order) } else { Err(format!("no {item} in stock").into()) }
        })
        .await
    }

    /// The update and the end of the job are one commit. A handler that has lost the job to another
    /// worker makes neither.
    async fn ship(job: Ship, cx: Context) -> Result<i64, Fault> {
        sqlite::complete(&cx, move |tx| {
            tx.execute("UPDATE orders SET shipped = shipped + 1 WHERE id = ?1", [job.order])?;
            Ok(job.order)
        })
        .await
    }

    pub(super) async fn shop(tenure: &Tenure) -> Result<()> {
        const ORDERS: &str = "CREATE TABLE IF NOT EXISTS orders
            (id INTEGER PRIMARY KEY, item TEXT NOT NULL, shipped INTEGER NOT NULL DEFAULT 0)";
        sqlite::transaction(tenure, |tx| Ok(tx.execute_batch(ORDERS)?)).await?;

        let lamp = place_order(tenure, "lamp", 3).await?;
        println!("a lamp: orders {}, jobs {}", orders(tenure).await?, waiting(tenure).await?);
        let refused = place_order(tenure, "desk", 0).await.expect_err("there is none");
        println!("{refused}: orders {}, jobs {}", orders(tenure).await?, waiting(tenure).await?);

        Worker::new(tenure).handle(ship).drain().run().await?;
        let times = shipped(tenure, lamp).await?;
        println!("the lamp was shipped {times} time; jobs left: {}", waiting(tenure).await?);
        Ok(())
    }

    async fn orders(tenure: &Tenure) -> tenure::Result<i64> {
        let sql = "SELECT count(*) FROM orders";
        sqlite::transaction(tenure, |tx| Ok(tx.query_row(sql, [], |row| row.get(0))?)).await
    }

    async fn shipped(tenure: &Tenure, order: i64) -> tenure::Result<i64> {
        let sql = "SELECT shipped FROM orders WHERE id = ?1";
        sqlite::transaction(tenure, move |tx| Ok(tx.query_row(sql, [order], |row| row.get(0))?))
            .await
    }
}

/// Each call is one statement, on your own connection.
#[cfg(feature = "postgres")]
mod on_postgres {
    use tenure::postgres::tokio_postgres::{self, Client, NoTls};
    use tenure::{Context, Fault, Tenure, Worker, postgres};
    use tokio::sync::Mutex;

    use super::{Result, Ship, waiting};

    async fn connect(url: &str) -> Result<Client> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    async fn place_order(
        client: &mut Client,
        tenure: &Tenure,
        item: &str,
        stock: u32,
    ) -> Result<i64> {
        let tx = client.transaction().await?;
        let sql = "INSERT INTO orders (item) VALUES ($1) RETURNING id";
        let order = tx.query_one(sql, &[&item]).await?.get(0);
        postgres::enqueue(&tx, tenure.enqueue(Ship { order })).await?;
        if stock == 0 {
            // A transaction that is dropped is rolled back, and the job with it.
            return Err(format!("no {item} in stock").into());
        }
        tx.commit().await?;
        Ok(order)
    }

    /// The update and the end of the job are one commit. A handler that has lost the job to another
    /// worker makes neither.
    async fn ship(job: Ship, cx: Context) -> Result<i64, Fault> {
        let mut client = cx.state::<Mutex<Client>>().lock().await;
        let tx = client.transaction().await?;
        let sql = "UPDATE orders SET shipped = shipped + 1 WHERE id = $1";
        tx.execute(sql, &[&job.order]).await?;
        postgres::complete(&tx, &cx, &job.order).await?;
        tx.commit().await?;
        Ok(job.order)
    }

    pub(super) async fn shop(tenure: &Tenure, url: &str) -> Result<()> {
        const ORDERS: &str = "CREATE TABLE IF NOT EXISTS orders
            (id bigserial PRIMARY KEY, item text NOT NULL, shipped bigint NOT NULL DEFAULT 0)";
        let mut client = connect(url).await?;
        client.batch_execute(ORDERS).await?;

        let lamp = place_order(&mut client, tenure, "lamp", 3).await?;
        println!("a lamp: orders {}, jobs {}", orders(&client).await?, waiting(tenure).await?);
        let refused = place_order(&mut client, tenure, "desk", 0).await.expect_err("there is none");
        println!("{refused}: orders {}, jobs {}", orders(&client).await?, waiting(tenure).await?);

        let own = Mutex::new(connect(url).await?);
        Worker::new(tenure).handle(ship).state(own).drain().run().await?;
        let sql = "SELECT shipped FROM orders WHERE id = $1";
        let times: i64 = client.query_one(sql, &[&lamp]).await?.get(0);
        println!("the lamp was shipped {times} time; jobs left: {}", waiting(tenure).await?);
        Ok(())
    }

    async fn orders(client: &Client) -> Result<i64> {
        Ok(client.query_one("SELECT count(*) FROM orders", &[]).await?.get(0))
    }
}
