//! The SQL API as other languages use it: plain sessions, no library in between. The page that describes it is
//! docs/sql-api.md.

#![allow(clippy::unwrap_used, reason = "a test panics where it fails")]

mod agree;
mod check;
mod crowd;
mod durable;
mod edges;
mod enqueue;
mod epoch;
mod fence;
mod guard;
mod isolation;
mod jsons;
mod lease;
mod ledger;
mod locks;
mod moved;
mod notices;
mod page;
mod progress;
mod pulse;
mod repeat;
mod roles;

use postgres::Client;
use tenure_drill::sessions::Lab;

/// Who calls. What holds for the owner must hold for a role that may execute functions and nothing else.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Who {
    Owner,
    Worker,
}

impl Who {
    const ALL: [Who; 2] = [Who::Owner, Who::Worker];

    fn session(self, lab: &Lab) -> Client {
        match self {
            Who::Owner => lab.session(),
            Who::Worker => lab.session_as("worker"),
        }
    }
}

/// Tells the same story as the owner and as a worker, each in an empty database.
fn as_each(story: impl Fn(&mut Lab, Who)) {
    for who in Who::ALL {
        eprintln!("as {who:?}");
        story(&mut Lab::new(), who);
    }
}

/// A job and the right to it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Lease {
    job: i64,
    token: i64,
}

impl Lease {
    /// `complete(7, 3)`, as SQL has it.
    fn call(self, verb: &str) -> String {
        self.call_with(verb, "")
    }

    /// The same, with more arguments.
    fn call_with(self, verb: &str, more: &str) -> String {
        format!("SELECT tenure.{verb}({}, {}{more})", self.job, self.token)
    }

    /// A write of the user's own.
    fn effect(self) -> String {
        format!("INSERT INTO public.effects VALUES ({}, {}, 'mine')", self.job, self.token)
    }
}

fn enqueue(session: &mut Client, kind: &str) -> i64 {
    session.query_one("SELECT tenure.enqueue($1)", &[&kind]).unwrap().get(0)
}

/// What a claim of up to `n` jobs with a lease of so many milliseconds gets.
fn claim_many(session: &mut Client, n: i32, lease_ms: i64) -> Vec<Lease> {
    let ask = "SELECT id, token FROM tenure.claim('ann', n => $1, lease => $2 * interval '1 ms')";
    let rows = session.query(ask, &[&n, &(lease_ms as f64)]).unwrap();
    rows.iter().map(|row| Lease { job: row.get(0), token: row.get(1) }).collect()
}

/// Claims the one job that is due.
fn claim(session: &mut Client, lease_ms: i64) -> Lease {
    let leases = claim_many(session, 9, lease_ms);
    assert_eq!(leases.len(), 1, "one job is due");
    leases[0]
}

/// A running job with a lease of 300 ms.
fn running(session: &mut Client) -> Lease {
    enqueue(session, "work");
    claim(session, 300)
}

/// Takes a job over, as somebody else does once its lease is over.
fn take_over(lab: &mut Lab, session: &mut Client) -> Lease {
    lab.advance(300);
    claim(session, 300)
}

/// The job's state, as the view tells it.
fn state(lab: &mut Lab, job: i64) -> String {
    lab.text(&format!("SELECT state FROM tenure.job WHERE id = {job}"))
}

/// How many writes of the user's own were committed.
fn effects(lab: &mut Lab) -> i64 {
    lab.number("SELECT count(*) FROM public.effects")
}
