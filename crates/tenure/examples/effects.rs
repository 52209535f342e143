//! Payments that must not be made twice. A worker's process dies after three charges and before
//! their outcomes are recorded, so it is unknown whether the bank has charged. Each payment has
//! chosen what happens then: `resend`, `verify` or `park`.
//!
//! `cargo run -p tenure --example effects`
#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

use serde::{Deserialize, Serialize};
use tenure::engine::ledger::EffectKey;
use tenure::engine::store::Store;
use tenure::{Context, EffectFilter, Fact, Fault, Job, Json, Limits, Resolution, Tenure, Worker};
use tokio::sync::{Barrier, mpsc};

#[derive(Serialize, Deserialize)]
struct Pay {
    cents: u32,
    in_doubt: InDoubt,
}

#[derive(Serialize, Deserialize, Clone, Copy, Debug)]
enum InDoubt {
    Resend,
    Verify,
    Park,
}

impl Job for Pay {
    const KIND: &'static str = "pay";
    type Output = String;
}

/// The intent is written before the bank is called, and the outcome after. For an attempt that
/// finds an intent without an outcome, the effect is in doubt, and the attempt does what the
/// payment has chosen.
async fn pay(job: Pay, cx: Context) -> Result<String, Fault> {
    let (bank, power_cut) = (cx.state::<Bank>(), cx.state::<Option<Barrier>>());
    let charge = cx.effect("charge", |fx| async move {
        let receipt = bank.charge(&fx.key(), job.cents)?;
        if let Some(all_charged) = power_cut {
            all_charged.wait().await;
            exit(9); // the power fails: nothing is recorded, unwound or given back
        }
        Ok(receipt)
    });
    match job.in_doubt {
        // The same request under the same key: a bank that knows the key does not charge again.
        InDoubt::Resend => charge.resend().await,
        // A query instead, which charges nothing: for a bank that can be asked.
        InDoubt::Verify => charge.verify(|key| async move { Ok(bank.find(&key)?) }).await,
        // For a bank that offers neither: a person checks, and decides.
        InDoubt::Park => charge.park().await,
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    if let Some(directory) = std::env::args().nth(1) {
        return work_until_the_power_fails(Path::new(&directory)).await;
    }
    let directory = tempfile::tempdir()?;
    let (tenure, bank) = open(directory.path()).await?;
    let [resend, verify, park] = [InDoubt::Resend, InDoubt::Verify, InDoubt::Park];
    let resent = tenure.enqueue(Pay { cents: 100, in_doubt: resend }).await?;
    let verified = tenure.enqueue(Pay { cents: 200, in_doubt: verify }).await?;
    let parked = tenure.enqueue(Pay { cents: 300, in_doubt: park }).await?;

    let died = Command::new(std::env::current_exe()?).arg(directory.path()).status()?;
    println!("a worker charged three payments and died ({died}) before it recorded one");
    println!("  at the bank: {}", bank.summary()?);

    let (tell, mut parkings) = mpsc::unbounded_channel();
    let worker = Worker::new(&tenure).handle(pay).state(bank.clone()).state(None::<Barrier>);
    let worker = worker.observe(move |event| {
        if let Fact::JobParked { reason, .. } = &event.fact {
            let _ = tell.send(reason.clone()); // the receiver may be gone at the end
        }
    });
    let worker = worker.start().await?;
    println!("resend: {}", resent.wait().await?);
    println!("verify: {}", verified.wait().await?);
    println!("park: {}", parkings.recv().await.unwrap_or_default());
    println!("  at the bank: {}", bank.summary()?);

    decide(&tenure, &bank).await?;
    println!("park, once a person had decided: {}", parked.wait().await?);
    println!("  at the bank: {}", bank.summary()?);
    worker.shut_down().await;
    Ok(())
}

/// What a person does with `tenure effects list` and `tenure effects resolve`.
async fn decide(tenure: &Tenure, bank: &Bank) -> Result<(), Box<dyn Error>> {
    let in_doubt = EffectFilter { in_doubt: true, ..EffectFilter::default() };
    let doubts = tenure.with_store(move |store| store.effects(&in_doubt, 10)).await?;
    let installation = tenure.with_store(|store| store.identity()).await?.installation;
    for doubt in doubts.into_iter().map(|view| view.effect) {
        let key = EffectKey { installation, job: doubt.job, effect: doubt.name.clone() };
        let how = match bank.find(&key.to_string())? {
            Some(receipt) => {
                let result = serde_json::to_string(&receipt)?;
                let result = Json::check("result", result, Limits::default().result)?;
                Resolution::Committed { result }
            }
            None => Resolution::Resend,
        };
        let (job, word) = (doubt.job, how.name());
        let resolve = move |store: &mut dyn Store| store.resolve(job, &doubt.name, &how);
        let answer = tenure.with_store(resolve).await?;
        println!("a person looked, and resolved job {job} as {word}: {answer:?}");
    }
    Ok(())
}

/// The first worker: it lives until all three payments are charged.
async fn work_until_the_power_fails(directory: &Path) -> Result<(), Box<dyn Error>> {
    let (tenure, bank) = open(directory).await?;
    let worker = Worker::new(&tenure).handle(pay).state(bank).state(Some(Barrier::new(3)));
    worker.run().await?;
    Ok(())
}

async fn open(directory: &Path) -> Result<(Tenure, Bank), Box<dyn Error>> {
    let tenure = Tenure::open(&directory.join("tenure.db").display().to_string()).await?;
    Ok((tenure, Bank(directory.join("bank"))))
}

/// A bank that both processes use: its book has a line for each request. It charges once for each
/// key.
#[derive(Clone)]
struct Bank(PathBuf);

impl Bank {
    fn charge(&self, key: &str, cents: u32) -> io::Result<String> {
        let word = if self.receipt(key)?.is_some() { "repeated" } else { "charged" };
        self.write(&format!("{word} {key} {cents}"))?;
        Ok(receipt(cents))
    }

    fn find(&self, key: &str) -> io::Result<Option<String>> {
        self.write(&format!("asked {key}"))?;
        self.receipt(key)
    }

    fn receipt(&self, key: &str) -> io::Result<Option<String>> {
        let charged = format!("charged {key} ");
        Ok(self.read()?.lines().find_map(|line| line.strip_prefix(&charged)).map(receipt))
    }

    fn summary(&self) -> io::Result<String> {
        let book = self.read()?;
        let count = |word| book.lines().filter(|line| line.starts_with(word)).count();
        let (charged, repeated, asked) = (count("charged"), count("repeated"), count("asked"));
        let requests = charged + repeated;
        Ok(format!("requests to charge: {requests}, questions: {asked}, charges made: {charged}"))
    }

    fn read(&self) -> io::Result<String> {
        if self.0.exists() { fs::read_to_string(&self.0) } else { Ok(String::new()) }
    }

    fn write(&self, line: &str) -> io::Result<()> {
        let mut book = OpenOptions::new().create(true).append(true).open(&self.0)?;
        book.write_all(format!("{line}\n").as_bytes())
    }
}

fn receipt(cents: impl Display) -> String {
    format!("receipt for {cents} cents")
}
