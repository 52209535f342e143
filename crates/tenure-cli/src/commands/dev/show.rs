//! What `tenure dev` shows.

use std::time::Duration;

use anyhow::Result;
use tenure::Tenure;
use tenure::engine::inspect::Overview;

use super::QUEUE;
use crate::output::say;
use crate::{Answer, Session};

pub(super) fn welcome(store: &str) {
    say(&format!("tenure dev: sample jobs in the queue {QUEUE} of {store}; Ctrl-C ends it"));
    let try_next = "\
try in another terminal:
tenure stats                               all queues at a glance
tenure jobs list --queue dev               what there is; tenure jobs show ID tells a job's story
tenure enqueue quick '{\"n\":7}' --queue dev  a job of your own
tenure dead list                           what was buried, and why
kill -9 PROCESS                            a worker: its jobs run elsewhere within a second";
    say(try_next);
}

/// Shows a line of counts once a second, if they have changed, until it is cancelled.
pub(super) async fn counts(tenure: &Tenure) -> Result<()> {
    let mut rhythm = tokio::time::interval(Duration::from_secs(1));
    let mut shown = String::new();
    loop {
        rhythm.tick().await;
        let line = match tenure.with_store(|store| store.overview()).await {
            Ok(overview) => line(&overview),
            Err(error) if error.is_transient() => format!("the store does not answer: {error}"),
            Err(error) => return Err(error.into()),
        };
        if line != shown {
            say(&line);
            shown = line;
        }
    }
}

fn line(overview: &Overview) -> String {
    let of_dev = overview.lines.iter().filter(|line| line.queue.as_str() == QUEUE);
    let sum = of_dev.fold([0; 6], |sum, line| {
        let of = [
            line.ready,
            line.waiting,
            line.running,
            line.dead,
            line.succeeded_last_minute,
            line.died_last_minute,
        ];
        std::array::from_fn(|at| sum[at] + of[at])
    });
    let [ready, waiting, running, dead, succeeded, _] = sum;
    format!(
        "── ready {ready:<4} waiting {waiting:<4} running {running:<4} dead {dead:<4} succeeded in the last minute {succeeded}"
    )
}

/// Shows what is left at the end.
pub(super) async fn farewell(tenure: &Tenure, session: &mut Session) -> Result<Answer> {
    let overview = tenure.with_store(|store| store.overview()).await?;
    session.out.line(&line(&overview))?;
    session.out.line("what is not done is kept: start `tenure dev` again, and it goes on")?;
    Ok(Answer::Yes)
}
