//! The limit with several connections at the same time, on PostgreSQL. With a single connection,
//! either the client waits for the server or the server for the client, so several connections
//! together do more.

use std::sync::{Arc, Barrier};
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use tenure::engine::clock::monotonic;

use super::{BATCH, Driver, insert, now, postgres};
use crate::ground::Ground;
use crate::stats::rate;

/// The args of a row.
const ARGS: &str = "{\"n\":123456}";

/// Rows claimed and moved a second by so many clients, a thousand in a commit. Blocks.
pub(crate) fn process_by(ground: &Arc<Ground>, clients: usize, rows: usize) -> Result<f64> {
    let work = |driver: &mut dyn Driver| {
        let mut done = 0;
        loop {
            let jobs = driver.claim(BATCH, now())?;
            if jobs.is_empty() {
                return Ok(done);
            }
            driver.complete(&jobs, now())?;
            done += jobs.len();
        }
    };
    crowd(ground, clients, rows, rows, work)
}

/// Rows inserted a second by so many clients, each in a commit of its own. Blocks.
pub(crate) fn insert_by(ground: &Arc<Ground>, clients: usize, rows: usize) -> Result<f64> {
    let each = rows / clients;
    let work = |driver: &mut dyn Driver| insert(driver, ARGS, each, 1).map(|_| each);
    crowd(ground, clients, 0, each * clients, work)
}

/// Makes tables with `filled` rows, and lets all clients work on them at once. The clients must do
/// `expected` rows together; returns how many of these they did each second.
fn crowd(
    ground: &Arc<Ground>,
    clients: usize,
    filled: usize,
    expected: usize,
    work: impl Fn(&mut dyn Driver) -> Result<usize> + Sync,
) -> Result<f64> {
    let site = ground.site();
    let mut first = postgres::create(&site.driver, site.schema())?;
    insert(&mut first, ARGS, filled / BATCH, BATCH)?;
    insert(&mut first, ARGS, filled % BATCH, 1)?;
    let mut drivers = Vec::new();
    for _ in 0..clients {
        drivers.push(postgres::connect(&site.driver, site.schema())?);
    }
    let (ready, work) = (Barrier::new(clients + 1), &work);
    let took = thread::scope(|scope| {
        let client = |mut driver| {
            let ready = &ready;
            scope.spawn(move || {
                ready.wait();
                work(&mut driver)
            })
        };
        let running: Vec<_> = drivers.into_iter().map(client).collect();
        ready.wait();
        let begin = monotonic();
        let mut done = 0;
        for client in running {
            done += client.join().map_err(|_| anyhow!("a client has panicked"))??;
        }
        ensure!(done == expected, "{done} of {expected} rows were done");
        anyhow::Ok(monotonic() - begin)
    });
    drop(first);
    ground.remove(&site)?;
    Ok(rate(expected as u64, took.context("measure plain SQL by several clients")?))
}
