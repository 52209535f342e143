//! The handlers of the drill's workers, and their jobs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tenure::engine::clock::monotonic;
use tenure::{Context, Fault, Job, Worker};

use super::books::Books;

/// Appends a line with its job id and its token to a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Line {
    /// The file.
    pub file: PathBuf,
}

/// Charges a bank: an effect in the ledger, which appends its key to the bank's book. If in doubt,
/// it is sent again.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Account {
    /// The bank's book.
    pub bank: PathBuf,
    /// After charging, it waits until this file exists.
    pub gate: Option<PathBuf>,
}

/// Adds a row to a table of the user's own, in the commit that completes the job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Book {}

/// Kills its process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Poison {}

/// Waits until a file exists.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hold {
    /// The handler waits until this file exists.
    pub gate: PathBuf,
}

/// Blocks its thread.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spin {
    /// For how long.
    pub ms: u64,
}

/// Does nothing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Quick {}

/// Charges the bank. Its first attempt stalls before that, until a file exists.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Late {
    /// The handler waits until this file exists.
    pub gate: PathBuf,
    /// The bank's book.
    pub bank: PathBuf,
}

/// Remembers a step, charges the bank, and waits until a file exists.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Work {
    /// Gets a line each time the step runs.
    pub steps: PathBuf,
    /// The bank's book.
    pub bank: PathBuf,
    /// The file.
    pub gate: PathBuf,
}

/// Charges the bank, but gets the answer only when a file exists: until then it is between the call
/// and the record of its outcome.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Slow {
    /// The bank's book.
    pub bank: PathBuf,
    /// The file.
    pub gate: PathBuf,
    /// What to do in doubt.
    pub in_doubt: InDoubt,
}

/// What to do with an effect in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum InDoubt {
    /// Park the job: a person decides.
    Park,
    /// Send it again under the same key.
    Resend,
}

/// The name of every effect on the bank.
pub const CHARGE: &str = "charge";

macro_rules! kinds {
    ($($job:ident $kind:literal),+) => {
        $(impl Job for $job {
            const KIND: &'static str = $kind;
            type Output = ();
        })+
    };
}

kinds!(Line "line", Account "account", Book "book", Poison "poison", Hold "hold", Spin "spin", Quick "quick",
    Late "late", Work "work");

impl Job for Slow {
    const KIND: &'static str = "slow";
    type Output = String;
}

/// Gives a worker the handlers and their books.
pub fn taught(worker: Worker, books: Books) -> Worker {
    worker
        .state(books)
        .handle(line)
        .handle(account)
        .handle(book)
        .handle(poison)
        .handle(hold)
        .handle(spin)
        .handle(quick)
        .handle(late)
        .handle(work)
        .handle(slow)
}

async fn line(job: Line, cx: Context) -> Result<(), Fault> {
    append(&job.file, &format!("{} {}", cx.job(), cx.token()))
}

async fn account(job: Account, cx: Context) -> Result<(), Fault> {
    cx.effect("pay", |fx| async move { append(&job.bank, &fx.key()) }).resend().await?;
    match job.gate {
        Some(gate) => wait_at(&gate).await,
        None => Ok(()),
    }
}

async fn book(_: Book, cx: Context) -> Result<(), Fault> {
    cx.state::<Books>().enter(&cx).await
}

async fn poison(_: Poison, _: Context) -> Result<(), Fault> {
    std::process::abort()
}

async fn hold(job: Hold, _: Context) -> Result<(), Fault> {
    wait_at(&job.gate).await
}

async fn spin(job: Spin, _: Context) -> Result<(), Fault> {
    let until = monotonic() + Duration::from_millis(job.ms);
    while monotonic() < until {
        std::hint::spin_loop();
    }
    Ok(())
}

async fn quick(_: Quick, _: Context) -> Result<(), Fault> {
    Ok(())
}

async fn late(job: Late, cx: Context) -> Result<(), Fault> {
    if cx.attempt() == 1 {
        wait_at(&job.gate).await?;
    }
    cx.effect(CHARGE, |fx| async move { append(&job.bank, &fx.key()) }).await
}

async fn work(job: Work, cx: Context) -> Result<(), Fault> {
    cx.step("load", || async { append(&job.steps, "loaded") }).await?;
    cx.effect(CHARGE, |fx| async move { append(&job.bank, &fx.key()) }).resend().await?;
    wait_at(&job.gate).await
}

async fn slow(job: Slow, cx: Context) -> Result<String, Fault> {
    let call = |fx: tenure::Effect| async move {
        append(&job.bank, &fx.key())?;
        wait_at(&job.gate).await?;
        Ok("the bank's receipt".to_owned())
    };
    match job.in_doubt {
        InDoubt::Park => cx.effect(CHARGE, call).park().await,
        InDoubt::Resend => cx.effect(CHARGE, call).resend().await,
    }
}

async fn wait_at(gate: &Path) -> Result<(), Fault> {
    while !gate.exists() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Writes a whole line at once, so that lines of several processes do not mix.
fn append(file: &Path, line: &str) -> Result<(), Fault> {
    let open = std::fs::OpenOptions::new().append(true).create(true).open(file);
    open.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes())).map_err(Fault::retry)
}
