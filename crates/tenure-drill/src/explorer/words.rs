//! A schedule for people: each step in words, with a short code that repeats it.

use tenure::Timestamp;
use tenure::drill::Dump;
use tenure::engine::job::{JobRecord, State};
use tenure::engine::lease::{Fence, Stale};
use tenure::engine::ledger;
use tenure::engine::store::{
    Changed, Claimed, Enqueued, Lapse, Lapsed, Renewed, Reported, Resolved, Settled,
};

use super::actors::{Actor, Doing, Ending, Loss, Move};
use super::call::{Answer, Call, Jump, place, worker};
use crate::engines::START;

/// The codes and names of workers and callers.
const WORKERS: [(&str, &str); 4] = [("A", "Ann"), ("B", "Bob"), ("C", "Cleo"), ("D", "Dora")];
const CALLERS: [(&str, &str); 2] = [("P", "Pia"), ("Q", "Quinn")];

impl Move {
    /// A short code that identifies the step among all that are possible in a state.
    pub(crate) fn code(&self) -> String {
        let who = match self.actor {
            Actor::Worker(at) => WORKERS[at].0,
            Actor::Caller(at) => CALLERS[at].0,
            Actor::Sweeper => "sweeper",
            Actor::Operator => "operator",
            Actor::Clock => return "clock".into(),
            Actor::Fate => "fate",
        };
        let what = if self.dies { "dies".to_owned() } else { code(&self.call) };
        let loss = match self.loss {
            Some(Loss::Call) => "!lost",
            Some(Loss::Reply) => "!reply",
            Some(Loss::Down) => "!down",
            None => "",
        };
        format!("{who}.{what}{loss}")
    }

    /// The step in words, for a person who follows the schedule.
    pub(crate) fn words(&self, answer: Option<&Answer>) -> String {
        let who = match self.actor {
            Actor::Worker(at) => WORKERS[at].1,
            Actor::Caller(at) => CALLERS[at].1,
            Actor::Sweeper => "the sweeper",
            Actor::Operator => "an operator",
            Actor::Clock => "the clock",
            Actor::Fate => "",
        };
        let what = if self.dies { "dies and starts anew".to_owned() } else { act(&self.call) };
        let heard = match (self.loss, answer) {
            (Some(Loss::Call), _) => "; the call is lost on its way".to_owned(),
            (Some(Loss::Reply), _) => "; it is applied, but the reply is lost".to_owned(),
            (Some(Loss::Down), _) => "; the store is down".to_owned(),
            (None, answer) => {
                answer.and_then(said).map_or(String::new(), |said| format!(": {said}"))
            }
        };
        format!("{who} {what}{heard}").trim_start().to_owned()
    }
}

/// A call's part of the code.
fn code(call: &Call) -> String {
    let endings = |endings: &[(Fence, Ending)]| {
        let names: Vec<_> =
            endings.iter().map(|(_, ending)| ending.outcome().verb().name()).collect();
        names.join("+")
    };
    match call {
        Call::Enqueue(_) => "enqueue".into(),
        Call::Claim(_, 1) => "claim".into(),
        Call::Claim(_, n) => format!("claim.{n}"),
        Call::Held(_) => "held".into(),
        Call::Renew(_) => "renew".into(),
        Call::Progress(_) => "progress".into(),
        Call::Settle(ends) => format!("settle.{}", endings(ends)),
        Call::SettleAndClaim(ends, ..) => format!("settle-and-claim.{}", endings(ends)),
        Call::Overdue => "overdue".into(),
        Call::Lapse(_) => "lapse".into(),
        Call::Cancel => "cancel".into(),
        Call::Requeue => "requeue".into(),
        Call::Resume => "resume".into(),
        Call::Prune => "prune".into(),
        Call::Ledger(_, doing) => format!("effect.{}", doing_name(*doing)),
        Call::Resolve(how) => format!("resolve.{}", how.name()),
        Call::Register(_) => "register".into(),
        Call::Vanished => "vanished".into(),
        Call::Write(_) => "write".into(),
        Call::Tick => "tick".into(),
        Call::Jump(Jump::Ahead) => "jump".into(),
        Call::Jump(Jump::Noticed) => "jump.noticed".into(),
        Call::Jump(Jump::Back) => "jump.back".into(),
        Call::Free(identity) => format!("free.{}", WORKERS[place(*identity)].0),
        Call::Restart => "restart".into(),
        Call::Stall => "stall".into(),
        Call::Down => "down".into(),
        Call::Backup => "backup".into(),
        Call::GoBack(_) => "restore".into(),
        Call::Nothing => "nothing".into(),
    }
}

fn doing_name(doing: Doing) -> &'static str {
    match doing {
        Doing::Open => "open",
        Doing::Commit => "commit",
        Doing::Fail => "fail",
        Doing::FindOut => "happened",
        Doing::Resend => "resend",
    }
}

/// What is done, in words that follow the actor's name.
fn act(call: &Call) -> String {
    let endings = |endings: &[(Fence, Ending)]| {
        let end = |(fence, ending): &(Fence, Ending)| {
            format!("{} {}", ending.outcome().verb(), shown(fence))
        };
        endings.iter().map(end).collect::<Vec<_>>().join(", ")
    };
    match call {
        Call::Enqueue(wish) => format!("enqueues a job under the key, with amount {wish}"),
        Call::Claim(_, 1) => "claims a job".into(),
        Call::Claim(_, n) => format!("claims up to {n} jobs"),
        Call::Held(_) => "asks what it holds".into(),
        Call::Renew(fences) => format!("renews {}", all(fences)),
        Call::Progress(fence) => format!("tells how far it is with {}", shown(fence)),
        Call::Settle(ends) => format!("settles: {}", endings(ends)),
        Call::SettleAndClaim(ends, _, n) => {
            format!("settles and claims up to {n} in one call: {}", endings(ends))
        }
        Call::Overdue => "looks for leases that are over".into(),
        Call::Lapse(fences) => format!("lapses {}", all(fences)),
        Call::Cancel => "cancels job 1".into(),
        Call::Requeue => "requeues job 1".into(),
        Call::Resume => "resumes job 1".into(),
        Call::Prune => "prunes".into(),
        Call::Ledger(fence, Doing::Open) => format!("opens the effect of {}", shown(fence)),
        Call::Ledger(fence, Doing::Commit) => format!("commits the effect of {}", shown(fence)),
        Call::Ledger(fence, Doing::Fail) => {
            format!("says that the effect of {} failed", shown(fence))
        }
        Call::Ledger(fence, Doing::FindOut) => {
            format!("has found out that the effect of {} has happened", shown(fence))
        }
        Call::Ledger(fence, Doing::Resend) => {
            format!("will send the effect of {} again", shown(fence))
        }
        Call::Resolve(how) => format!("resolves the effect of job 1: {}", how.name()),
        Call::Register(_) => "takes its lock".into(),
        Call::Vanished => "looks for workers that are gone".into(),
        Call::Write(fence) => format!("writes to an outside system, for {}", shown(fence)),
        Call::Tick => "moves on by half a lease".into(),
        Call::Jump(Jump::Ahead) => format!("the store's clock jumps ahead by {} s", Jump::AHEAD),
        Call::Jump(Jump::Noticed) => {
            format!("the store's clock jumps ahead by {} s, and the store notices", Jump::AHEAD)
        }
        Call::Jump(Jump::Back) => format!("the store's clock jumps back by {} s", Jump::BACK),
        Call::Free(identity) => format!("the lock of {} is freed", worker(*identity).as_str()),
        Call::Restart => "the server starts again".into(),
        Call::Stall => {
            format!("no call reaches the store for {} s, and its pulse tells", Jump::AHEAD)
        }
        Call::Down => "the store goes down for the length of a lease".into(),
        Call::Backup => "somebody makes a copy of the database".into(),
        Call::GoBack(_) => "somebody restores the copy".into(),
        Call::Nothing => "nothing happens".into(),
    }
}

fn shown(fence: &Fence) -> String {
    format!("job {} under token {}", fence.job, fence.token)
}

fn all(fences: &[Fence]) -> String {
    fences.iter().map(shown).collect::<Vec<_>>().join(", ")
}

/// The answer in words.
pub(super) fn said(answer: &Answer) -> Option<String> {
    let each = |answers: Vec<String>| answers.join(", ");
    Some(match answer {
        Answer::Nothing => return None,
        Answer::Enqueued(said) => enqueued(said),
        Answer::Claimed(said) => claimed(said),
        Answer::Held(held) if held.is_empty() => "nothing".into(),
        Answer::Held(held) => each(held.iter().map(|it| shown(&it.lease.fence())).collect()),
        Answer::Renewed(said) => each(said.iter().map(renewed).collect()),
        Answer::Reported(Reported::Noted) => "noted".into(),
        Answer::Reported(Reported::Stale(stale)) => refused(stale),
        Answer::Reported(Reported::NotFound) => "there is no such job".into(),
        Answer::Reported(Reported::Busy) => "busy".into(),
        Answer::Settled(said) => each(said.iter().map(settled).collect()),
        Answer::SettledAndClaimed(ends, said) => {
            let ends = each(ends.iter().map(settled).collect());
            format!("{ends}; {}", claimed(said))
        }
        Answer::Overdue(seen) if seen.is_empty() => "sees none".into(),
        Answer::Overdue(seen) => format!("sees {}", all(seen)),
        Answer::Lapsed(said) => each(said.iter().map(lapsed).collect()),
        Answer::Changed(Changed::Applied) => "done".into(),
        Answer::Changed(Changed::Refused(state)) => format!("not possible, it is {state}"),
        Answer::Changed(Changed::NotFound) => "there is no such job".into(),
        Answer::Pruned(pruned) => {
            format!("{} jobs and {} keys are deleted", pruned.jobs, pruned.keys)
        }
        Answer::Ledger(said) => ledger_said(said),
        Answer::Resolved(said) => resolved(said),
        Answer::Vanished(lapses) if lapses.is_empty() => "takes nothing back".into(),
        Answer::Vanished(lapses) => taken_back(lapses),
    })
}

pub(super) fn enqueued(said: &Enqueued) -> String {
    match said {
        Enqueued::Created(job) => format!("stored as job {job}"),
        Enqueued::Existing(job) => format!("job {job} is this request already"),
        Enqueued::Conflict(job) => format!("a conflict: job {job} has the key for another request"),
    }
}

fn claimed(claimed: &Claimed) -> String {
    let got: Vec<_> = claimed.attempts.iter().map(|it| shown(&it.lease.fence())).collect();
    let got =
        if got.is_empty() { "gets nothing".into() } else { format!("gets {}", got.join(", ")) };
    match claimed.lapsed.as_slice() {
        [] => got,
        lapses => format!("{}, and {got}", taken_back(lapses)),
    }
}

fn taken_back(lapses: &[Lapse]) -> String {
    let one = |lapse: &Lapse| {
        format!(
            "takes back {} from {}, now {}",
            shown(&lapse.about.fence()),
            lapse.worker.as_str(),
            lapse.became
        )
    };
    lapses.iter().map(one).collect::<Vec<_>>().join(", ")
}

fn renewed(said: &Renewed) -> String {
    match said {
        Renewed::Extended(until) => format!("the lease holds until second {}", second(*until)),
        Renewed::Stale(stale) => refused(stale),
        Renewed::NotFound => "there is no such job".into(),
        Renewed::Busy => "busy".into(),
    }
}

fn settled(said: &Settled) -> String {
    match said {
        Settled::Applied(state) => format!("heard, it is {state}"),
        Settled::Stale(stale) => refused(stale),
        Settled::NotFound => "there is no such job".into(),
    }
}

fn refused(stale: &Stale) -> String {
    let Stale { current, state, .. } = stale;
    format!("refused, the job is {state} and its token {current}")
}

fn lapsed(said: &Lapsed) -> String {
    match said {
        Lapsed::TakenBack(lapse) => format!("taken back, it is {}", lapse.became),
        Lapsed::LeftAlone => "left alone".into(),
        Lapsed::Busy => "busy".into(),
    }
}

fn ledger_said(said: &ledger::Answer) -> String {
    match said {
        ledger::Answer::Opened => "it may go on and do it".into(),
        ledger::Answer::Committed(_) => "it has happened already".into(),
        ledger::Answer::Decided(_) => "a person decided that it has happened".into(),
        ledger::Answer::InDoubt(doubt) => format!("in doubt since token {}", doubt.token),
        ledger::Answer::Recorded => "written".into(),
        ledger::Answer::Remembered(_) => "remembered".into(),
        ledger::Answer::Unknown => "nothing is remembered".into(),
        ledger::Answer::NotAllowed(Some(standing)) => format!("no, it is {}", standing.name()),
        ledger::Answer::NotAllowed(None) => "no, there is no such effect".into(),
        ledger::Answer::Stale(stale) => refused(stale),
        ledger::Answer::NotFound => "there is no such job".into(),
    }
}

fn resolved(said: &Resolved) -> String {
    match said {
        Resolved::Applied(state) => format!("done, the job is {state}"),
        Resolved::NotInDoubt(standing) => format!("it is not in doubt but {}", standing.name()),
        Resolved::Running => "its holder decides".into(),
        Resolved::Succeeded => "the job has succeeded".into(),
        Resolved::NoSuchEffect => "there is no such effect".into(),
        Resolved::NotFound => "there is no such job".into(),
    }
}

/// A state in words: each job with its state, token, holder and the end of its lease, and each
/// effect.
pub(super) fn state(state: &Dump) -> String {
    let jobs: Vec<_> = state.jobs.iter().map(job).collect();
    let effects = state.ledger.iter().map(|effect| {
        format!(
            "effect of job {} {} under token {}",
            effect.job,
            effect.standing.name(),
            effect.token
        )
    });
    let all: Vec<_> = jobs.into_iter().chain(effects).collect();
    let all = if all.is_empty() { "no jobs".to_owned() } else { all.join("; ") };
    format!("second {}: {all}", second(state.now))
}

/// A job in words.
pub(super) fn job(job: &JobRecord) -> String {
    let mut words = format!("job {} {}, token {}", job.id, job.state, job.token);
    if let (State::Running, Some(worker)) = (job.state, &job.worker) {
        words.push_str(&format!(", held by {}", worker.as_str()));
    }
    if let Some(until) = job.lease_until {
        words.push_str(&format!(" until second {}", second(until)));
    }
    if job.waiting {
        words.push_str(&format!(", due at second {}", second(job.run_at)));
    }
    if job.crashes > 0 {
        words.push_str(&format!(", {} of {} crashes", job.crashes, job.max_crashes));
    }
    words
}

/// Times are shown in seconds since the beginning.
pub(super) fn second(at: Timestamp) -> i64 {
    (at.as_millis() - START.as_millis()) / 1_000
}
