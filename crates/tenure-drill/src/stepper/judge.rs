//! Which outcomes of concurrent sessions are allowed: those of the same scripts run one after the
//! other, in some order, on the same server. And what must not be committed in any order.
//!
//! In five ways the promise is weaker than that, and only in these:
//!
//! - Calls that promise not to wait skip locked rows. While another session's transaction is open,
//!   these count as calls that were not made: a call that answered `busy`, a claim or a sweep that
//!   found nothing, and a `prune` that deleted nothing. The caller calls again; meanwhile no other
//!   session can take what is locked.
//! - `settle_and_claim` is a settlement and a claim. If the claim found nothing while another
//!   session's transaction was open, the call counts as the settlement alone.
//! - A user's transaction that was refused has left nothing. Which of its statements was refused,
//!   and what the earlier ones answered, is not part of the outcome: `fence` may succeed, and
//!   COMMIT fail.
//! - A timeline line about a refusal records what was seen at that moment, and is written without
//!   waiting for a session that has the job locked: the line may be missing. But there is no line
//!   about a call that is refused in no order.
//! - At REPEATABLE READ, `purge` and `prune` do not see a line about a refusal that is younger than
//!   their snapshot, and leave it behind. The library calls them at READ COMMITTED, and no other
//!   caller is expected to call them.

use std::collections::BTreeMap;

use super::bench::{Bench, Fact};
use super::run::{Commit, Run, lengths, run};
use super::script::{self, About, Act, Script, Step};
use super::{Answer, Case, Isolation};
use crate::verdict::Invariant;

/// The invariant that a run breaks, and how.
type Fault = (Invariant, String);

/// Serial order: the session of each transaction in turn; `true` if its `settle_and_claim` counts
/// as the settlement alone.
type Order = Vec<(usize, bool)>;

/// Caches the outcomes of the serial orders of a case.
#[derive(Default)]
pub(super) struct Judge {
    serial: BTreeMap<Order, Outcome>,
}

/// The outcome of a run: the answers by session, and everything that is stored. New jobs are
/// numbered in the order in which they appear, because gaps in the ids are not part of the outcome.
struct Outcome {
    answers: Vec<Vec<String>>,
    /// The SQLSTATE with which a user's own transaction was refused.
    refused: Vec<Option<String>>,
    rows: Vec<String>,
    /// Timeline lines about refusals: job, token and verb.
    lines: Vec<String>,
}

impl Judge {
    /// Whether a run is correct. If it is, returns whether a call that skipped locked rows had to
    /// be left out of the serial order, in whole or in part.
    pub(super) fn judge(
        &mut self,
        bench: &mut Bench,
        case: &Case,
        isolation: Isolation,
        back: &str,
        seen: &Run,
    ) -> Result<bool, Fault> {
        if let Some(fault) = &seen.fault {
            return Err(fault.clone());
        }
        check_commits(case, seen)?;
        check_rows(seen)?;
        if let Some(who) = seen.waited {
            return Err((
                Invariant::Prompt,
                format!("{who} promises to wait for nobody, and waits"),
            ));
        }
        let outcome = Outcome::of(case, seen);
        let mut near: Option<String> = None;
        for order in orders(case, seen) {
            let passed_by = order.len() < case.scripts.iter().flat_map(transactions).count()
                || order.iter().any(|(_, less)| *less);
            if !self.serial.contains_key(&order) {
                let alone = alone(bench, case, isolation, back, &order);
                if let Some((_, what)) = &alone.fault {
                    return Err((Invariant::Serial, format!("one after the other, {what}")));
                }
                self.serial.insert(order.clone(), Outcome::of(case, &alone));
            }
            let blind = isolation == Isolation::RepeatableRead
                && case.scripts.iter().any(|script| matches!(script.name, "purge" | "prune"));
            match differs(&outcome, &self.serial[&order], &order, blind) {
                None => return Ok(passed_by),
                Some(difference) => near = near.or(Some(difference)),
            }
        }
        let near = near.unwrap_or_default();
        Err((
            Invariant::Serial,
            format!("no order of these sessions comes to this; the nearest differs: {near}"),
        ))
    }
}

/// Runs sessions one after the other.
fn alone(bench: &mut Bench, case: &Case, isolation: Isolation, back: &str, order: &Order) -> Run {
    let mut case = case.clone();
    for (n, less) in order {
        if *less {
            case.scripts[*n] = script::named("settle-only");
        }
    }
    let sessions: Vec<usize> = order.iter().map(|(n, _)| *n).collect();
    let mut turns = Vec::new();
    for (at, n) in sessions.iter().enumerate() {
        let before = sessions[..at].iter().filter(|it| *it == n).count();
        let statements = lengths(&case.scripts[*n], isolation)[before];
        turns.extend(std::iter::repeat_n(*n, statements));
    }
    let mut turns = turns.into_iter();
    run(bench, &case, isolation, back, &sessions, |ready, _| {
        // A session that was refused has no more turns.
        turns.find(|turn| ready.contains(turn)).unwrap_or(ready[0])
    })
}

/// Every serial order of all sessions, and then of all but some of those whose call may have
/// skipped locked rows.
fn orders(case: &Case, seen: &Run) -> Vec<Order> {
    let all: Vec<usize> = (0..case.scripts.len()).collect();
    let passed: Vec<usize> =
        all.iter().copied().filter(|n| was_passed_by(case, seen, *n)).collect();
    let mut orders = Vec::new();
    for left_out in 0..1_u32 << passed.len() {
        let is_out = |n: &usize| {
            passed.iter().position(|it| it == n).is_some_and(|at| left_out >> at & 1 == 1)
        };
        let is_smaller = |n: usize| case.scripts[n].name == "settle-and-claim";
        let taking_part: Order = all
            .iter()
            .filter(|n| !is_out(n) || is_smaller(**n))
            .flat_map(|n| transactions(&case.scripts[*n]).map(|_| (*n, is_out(n))))
            .collect();
        permutations(&taking_part, &mut vec![], &mut orders);
    }
    orders
}

fn transactions(script: &Script) -> impl Iterator<Item = &Step> {
    script.steps.iter().filter(|step| step.act == Act::Commit)
}

fn permutations(rest: &[(usize, bool)], begun: &mut Order, found: &mut Vec<Order>) {
    if rest.is_empty() {
        found.push(begun.clone());
    }
    for at in 0..rest.len() {
        // Transactions of one session keep their own order.
        if rest[..at].contains(&rest[at]) {
            continue;
        }
        let mut others = rest.to_vec();
        begun.push(others.remove(at));
        permutations(&others, begun, found);
        begun.pop();
    }
}

/// Whether a session's call may have skipped locked rows: it found nothing, and another session's
/// transaction was open.
fn was_passed_by(case: &Case, seen: &Run, n: usize) -> bool {
    let script = &case.scripts[n];
    // The answer to the statement before the COMMIT.
    let said = seen.answers[n].iter().rev().nth(1).and_then(Option::as_ref);
    let Some(Answer::Rows(rows)) = said else { return false };
    let word = |at: usize| rows.first().and_then(|row| row.get(at)).map_or("", String::as_str);
    let found_nothing = match script.name {
        "settle-and-claim" => rows.iter().all(|row| row[0] != "claimed"),
        _ if script.about != About::Passes => false,
        "prune" => (word(0), word(1)) == ("0", "0"),
        _ => rows.is_empty() || word(0) == "busy",
    };
    found_nothing && seen.overlapped[n]
}

impl Outcome {
    fn of(case: &Case, seen: &Run) -> Outcome {
        let mut known = BTreeMap::new();
        let text = |answer: &Option<Answer>, known: &mut BTreeMap<u64, usize>| match answer {
            Some(answer) => renumbered(&answer.to_string(), known),
            None => "not sent".to_owned(),
        };
        let answers = seen
            .answers
            .iter()
            .map(|session| session.iter().map(|answer| text(answer, &mut known)).collect())
            .collect();
        let refused = seen
            .answers
            .iter()
            .zip(&case.scripts)
            .map(|(answers, script)| refusal(answers).filter(|_| script.about == About::Users));
        let refused = refused.collect();
        let (lines, rows): (Vec<&String>, Vec<&String>) =
            seen.rows.iter().partition(|row| row.contains(REFUSED) && row.starts_with("timeline "));
        let lines = lines.into_iter().map(|line| about(line)).collect();
        let mut rows: Vec<String> =
            rows.into_iter().map(|row| renumbered(row, &mut known)).collect();
        rows.sort();
        Outcome { answers, refused, rows, lines }
    }
}

const REFUSED: &str = "\"refused\": true";

/// The SQLSTATE with which a session was refused. A job that is already done is refused with one
/// code by `complete` and with another by a fence: both count as the same.
fn refusal(session: &[Option<Answer>]) -> Option<String> {
    session.iter().find_map(|answer| match answer {
        Some(Answer::Refused(code)) if code == "TN004" => Some("TN001".to_owned()),
        Some(Answer::Refused(code)) => Some(code.clone()),
        _ => None,
    })
}

/// The call that a timeline line is about: its job, token and verb.
fn about(line: &str) -> String {
    let fields = ["job_id", "token", "verb"].map(|field| {
        let rest = line.split_once(&format!("\"{field}\": ")).map_or("", |(_, rest)| rest);
        rest.split([',', '}']).next().unwrap_or_default()
    });
    fields.join(" ")
}

/// The text, with the ids of new jobs replaced by the order in which they appeared.
fn renumbered(text: &str, known: &mut BTreeMap<u64, usize>) -> String {
    const NEW: std::ops::Range<u64> = 1_001..1_900;
    let mut said = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let end = rest[at..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |n| at + n);
        let (before, number) = (&rest[..at], &rest[at..end]);
        said += before;
        match number.parse::<u64>() {
            // Digits after a decimal point are a part of a second, not a job.
            Ok(id) if NEW.contains(&id) && !before.ends_with('.') => {
                let next = known.len() + 1;
                said += &format!("new-{}", known.entry(id).or_insert(next));
            }
            _ => said += number,
        }
        rest = &rest[end..];
    }
    said + rest
}

/// How an outcome differs from that of a serial order, in words. The answers of sessions that are
/// left out are not compared.
fn differs(seen: &Outcome, serial: &Outcome, order: &Order, blind: bool) -> Option<String> {
    for (n, less) in order {
        let both_refused = seen.refused[*n].is_some() && seen.refused[*n] == serial.refused[*n];
        // A call that counts as the settlement alone answers less.
        if seen.answers[*n] != serial.answers[*n] && !less && !both_refused {
            let (one, other) = (seen.answers[*n].join("; "), serial.answers[*n].join("; "));
            return Some(format!("{} was answered {one} instead of {other}", super::letter(*n)));
        }
    }
    let unheard = seen.lines.iter().find(|line| !serial.lines.contains(line));
    if let Some(line) = unheard.filter(|_| !blind) {
        return Some(format!("there is a line about a refusal of {line}"));
    }
    let lacking = serial.rows.iter().find(|row| !seen.rows.contains(row));
    let beyond = seen.rows.iter().find(|row| !serial.rows.contains(row));
    match (lacking, beyond) {
        (None, None) if seen.rows.len() == serial.rows.len() => None,
        (None, None) => Some("a row is there more often".into()),
        (lacking, beyond) => {
            let word = |row: Option<&String>| row.map_or("nothing".to_owned(), Clone::clone);
            Some(format!("stored is {} instead of {}", word(beyond), word(lacking)))
        }
    }
}

/// Checks what each transaction may commit, given what was committed before it.
fn check_commits(case: &Case, seen: &Run) -> Result<(), Fault> {
    // Until when each claim of this run is valid, counted from the time at which it was sent.
    let mut granted: BTreeMap<i64, i64> = BTreeMap::new();
    for commit in &seen.commits {
        let token = case.start.tokens[commit.session];
        let who = super::letter(commit.session);
        for (job, after) in &commit.after.jobs {
            let before = commit.before.jobs.get(job);
            if before.is_some_and(|before| before.token > after.token) {
                return Err((
                    Invariant::I2,
                    format!("the token of job {job} falls to {}", after.token),
                ));
            }
        }
        for (act, answer, asked_at) in &commit.did {
            let Answer::Rows(rows) = answer else { continue };
            let word = rows.first().and_then(|row| row.first()).map_or("", String::as_str);
            match act {
                Act::Claim(n) => {
                    let claimed = rows.iter().filter(|row| row[0] == "claimed");
                    if claimed.clone().count() > *n {
                        let what = format!("{who} asked for {n} and claimed {}", claimed.count());
                        return Err((Invariant::I10, what));
                    }
                    for job in claimed.filter_map(|row| row[1].parse().ok()) {
                        check_claim(commit, job, &granted, &who)?;
                        let lease = commit.after.jobs.get(&job).map_or(0, |it| it.lease_ms);
                        granted.insert(job, asked_at + lease);
                    }
                }
                Act::Holder(words) if words.contains(&word) => holds(commit, token, &who)?,
                Act::Hold | Act::Write => holds(commit, token, &who)?,
                Act::Lapse if word == "taken_back" => {
                    let over = |it: &Fact| it.token == token && it.lease_until <= commit.before.now;
                    if !commit.before.jobs.get(&1).is_some_and(over) {
                        return Err((
                            Invariant::I8,
                            format!("{who} took back a job whose lease was not over"),
                        ));
                    }
                }
                _ => {}
            }
        }
    }
    Ok(())
}

const RUNNING: i64 = 2;

/// I6: the holder keeps the job until its lease is over.
fn check_claim(
    commit: &Commit,
    job: i64,
    granted: &BTreeMap<i64, i64>,
    who: &str,
) -> Result<(), Fault> {
    let Some(before) = commit.before.jobs.get(&job).filter(|it| it.state == RUNNING) else {
        return Ok(());
    };
    let until = granted.get(&job).map_or(before.lease_until, |it| before.lease_until.max(*it));
    if commit.after.now < until {
        let left = until - commit.after.now;
        let what = format!(
            "{who} claimed job {job}, which is held under token {} for {left} ms more",
            before.token
        );
        return Err((Invariant::I6, what));
    }
    Ok(())
}

/// I7: a write that is accepted and committed comes from the latest claim.
fn holds(commit: &Commit, token: i64, who: &str) -> Result<(), Fault> {
    let held = |it: &Fact| it.token == token && it.state == RUNNING;
    if commit.before.jobs.get(&1).is_some_and(held) {
        return Ok(());
    }
    let now = commit.before.jobs.get(&1);
    let now = now
        .map_or("gone".to_owned(), |it| format!("in state {} under token {}", it.state, it.token));
    Err((Invariant::I7, format!("{who} committed under token {token}, and job 1 was {now}")))
}

/// Checks what may be stored at the end.
fn check_rows(seen: &Run) -> Result<(), Fault> {
    let once =
        seen.rows.iter().filter(|row| row.starts_with("write ") && row.contains("once")).count();
    if once > 1 {
        return Err((
            Invariant::I1,
            format!("what belongs to one completion was written {once} times"),
        ));
    }
    let mut keyed: Vec<&str> = Vec::new();
    for (act, answer, _) in seen.commits.iter().flat_map(|commit| &commit.did) {
        if let (Act::Enqueue, Answer::Rows(rows)) = (act, answer) {
            keyed.extend(rows.iter().flatten().map(String::as_str));
        }
    }
    keyed.sort_unstable();
    keyed.dedup();
    if keyed.len() > 1 {
        return Err((
            Invariant::I12,
            format!("one key stands for the jobs {}", keyed.join(" and ")),
        ));
    }
    Ok(())
}
