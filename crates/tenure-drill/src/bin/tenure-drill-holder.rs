//! A worker that holds jobs and does nothing else, until its standard input is closed or it is
//! killed.
//!
//! Its arguments: a file or an address, how many jobs, the length of the lease in milliseconds, and
//! optionally the account book of a bank: a file. For each job it opens the effect `charge`,
//! appends the effect's key to that file, and never records the outcome. It registers, claims, and
//! renews as a worker does. Each line on standard output is a fact: `guarded ByLock`, `held JOB
//! TOKEN`, `charged KEY`, `ready N`, `renewed N` for each round, `lost JOB` for each job that was
//! taken away, and `broken …` for each call that failed.

#![forbid(unsafe_code)]

use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use tenure::Name;
use tenure::engine::clock::monotonic;
use tenure::engine::lease::{Fence, WorkerId};
use tenure::engine::ledger::{Act, Answer, EffectKey, Entry, effect_name};
use tenure::engine::store::{Claim, Registration, Renewed, Result, Store};
use tenure_drill::speakers::inside::{at_the_end, say};
use tenure_drill::workers::open;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let place = arguments.next().unwrap_or_default();
    let mut number = || arguments.next().and_then(|text| text.parse().ok()).unwrap_or(1);
    let (jobs, lease): (u64, _) = (number(), Duration::from_millis(number()));
    let bank = arguments.next();
    let worker = WorkerId::unique();
    let queues = vec![Name::default_queue()];

    let mut guard = open(&place)?;
    let known = Registration::new(worker.clone(), queues.clone());
    say(format!("guarded {:?}", guard.register(&known)?));
    let ask =
        Claim { queues, ..Claim::new(worker.clone(), usize::try_from(jobs).unwrap_or(1), lease) };
    let claimed = open(&place)?.claim(&ask)?;
    let mut held: Vec<Fence> =
        claimed.attempts.iter().map(|attempt| attempt.lease.fence()).collect();
    for fence in &held {
        say(format!("held {} {}", fence.job, fence.token));
    }
    if let Some(bank) = bank {
        charge(guard.as_mut(), &held, &bank)?;
    }
    say(format!("ready {}", held.len()));
    let (open, closed) = channel();
    at_the_end(move || drop(open));
    keep(guard.as_mut(), &mut held, lease, &closed);
    guard.retire(&worker)
}

/// Performs the effect of each job after writing its intent.
fn charge(store: &mut dyn Store, held: &[Fence], bank: &str) -> Result<()> {
    let installation = store.identity()?.installation;
    for fence in held {
        let name = effect_name("charge")?;
        let entry = Entry { fence: *fence, name: name.clone(), act: Act::Open };
        if store.ledger(&[entry])? == [Answer::Opened] {
            let key = EffectKey { installation, job: fence.job, effect: name };
            let mut book =
                std::fs::OpenOptions::new().append(true).create(true).open(bank).expect("the bank");
            writeln!(book, "{key}").expect("the bank writes it down");
            say(format!("charged {key}"));
        }
    }
    Ok(())
}

/// Renews the leases until standard input is closed.
fn keep(store: &mut dyn Store, held: &mut Vec<Fence>, lease: Duration, end: &Receiver<()>) {
    while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(Duration::ZERO) {
        match store.renew(held, lease) {
            Err(broken) => say(format!("broken {broken}")),
            Ok(answers) => {
                let mut lost = Vec::new();
                for (fence, answer) in held.iter().zip(&answers) {
                    if matches!(answer, Renewed::Stale(_) | Renewed::NotFound) {
                        say(format!("lost {}", fence.job));
                        lost.push(*fence);
                    }
                }
                held.retain(|fence| !lost.contains(fence));
                say(format!("renewed {}", held.len()));
            }
        }
        let until = monotonic() + lease / 3;
        // A wait returns early if something changes in the store. Waiting also keeps the guard
        // alive.
        while monotonic() < until
            && matches!(end.recv_timeout(Duration::ZERO), Err(RecvTimeoutError::Timeout))
        {
            let soon = until.min(monotonic() + Duration::from_millis(500));
            if let Err(broken) = store.wait(soon) {
                say(format!("broken {broken}"));
            }
        }
    }
}
