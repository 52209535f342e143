//! One run of a case. The caller decides which session is next, the server decides which session
//! waits, and the run records what was answered and committed.

use tenure::engine::clock::monotonic;

use super::bench::{Bench, CONTROL, Calm, Facts, PATIENCE};
use super::script::{About, Act, Script};
use super::{Answer, Case, Isolation, SESSIONS, letter};
use crate::verdict::Invariant;

/// The result of a run.
#[derive(Default)]
pub(super) struct Run {
    /// For each turn: the session whose turn it was, and the sessions that could have been next.
    pub(super) turns: Vec<(usize, Vec<usize>)>,
    /// What happened, in words.
    pub(super) told: Vec<String>,
    /// The answers to each session, statement by statement; `None` for a statement that was not
    /// sent.
    pub(super) answers: Vec<Vec<Option<Answer>>>,
    /// Which of the sessions called while another session's transaction was open.
    pub(super) overlapped: [bool; SESSIONS],
    /// The commits, in their order.
    pub(super) commits: Vec<Commit>,
    /// Everything that is stored at the end.
    pub(super) rows: Vec<String>,
    /// A fault that is wrong whatever the outcome is.
    pub(super) fault: Option<(Invariant, String)>,
    /// The script that promised not to wait, and waited.
    pub(super) waited: Option<&'static str>,
    pub(super) statements: u64,
    pub(super) waits: u64,
    pub(super) conflicts: u64,
    pub(super) refusals: u64,
}

/// A transaction that was committed.
pub(super) struct Commit {
    pub(super) session: usize,
    /// What each of its statements did, the answer, and the time at which the statement was sent.
    pub(super) did: Vec<(Act, Answer, i64)>,
    /// The committed state before this commit, and after it.
    pub(super) before: Facts,
    pub(super) after: Facts,
}

/// A statement as it is sent.
struct Sent {
    sql: String,
    act: Act,
    /// The index of the first statement of its transaction.
    began_at: usize,
}

/// The state of a session during a run.
struct Actor {
    script: Script,
    steps: Vec<Sent>,
    /// The next statement.
    next: usize,
    /// Whether one of its statements is not answered yet.
    asked: bool,
    /// Whether the session is paused inside a call.
    stopped: bool,
    /// Whether the session has an open transaction.
    open: bool,
    /// The session met a conflict, and will retry its transaction.
    again: bool,
    /// The session was refused.
    over: bool,
    did: Vec<(Act, Answer, i64)>,
}

impl Actor {
    fn can_go_on(&self) -> bool {
        !self.asked && !self.over && !self.again && self.next < self.steps.len()
    }
}

/// Runs a case.
struct Runner<'a> {
    bench: &'a mut Bench,
    actors: Vec<Actor>,
    is_clocked: bool,
    isolation: Isolation,
    facts: Facts,
    run: Run,
}

/// Runs these sessions of a case from its start. `choose` picks the next session. It gets the
/// sessions that lead to a new order, and all sessions that can go on.
pub(super) fn run(
    bench: &mut Bench,
    case: &Case,
    isolation: Isolation,
    back: &str,
    sessions: &[usize],
    mut choose: impl FnMut(&[usize], &[usize]) -> usize,
) -> Run {
    let mut runner = Runner::start(bench, case, isolation, back, sessions);
    loop {
        let (ready, able) = (runner.ready(), runner.able());
        if ready.is_empty() || runner.run.fault.is_some() {
            break;
        }
        let turn = choose(&ready, &able);
        runner.run.turns.push((turn, ready));
        runner.step(turn);
    }
    runner.finish();
    runner.run
}

/// The statements of a script. BEGIN touches nothing and is sent with the statement after it. Where
/// a transaction has one snapshot, a separate step takes it, so that the snapshot may be old.
fn expand(script: &Script, isolation: Isolation, token: i64, n: usize) -> Vec<Sent> {
    let level = isolation.of(script);
    let worker = letter(n).to_lowercase();
    let mut sent = Vec::new();
    let (mut begins, mut began_at) = (true, 0);
    for step in script.steps {
        let sql = step.written(token, &worker);
        let prefix = match (begins, level) {
            (false, _) => "",
            (true, None) => "BEGIN; ",
            (true, Some(level)) => {
                began_at = sent.len();
                let begin = format!("BEGIN ISOLATION LEVEL {level}; SELECT 1");
                sent.push(Sent { sql: begin, act: Act::Snapshot, began_at });
                ""
            }
        };
        if begins && level.is_none() {
            began_at = sent.len();
        }
        sent.push(Sent { sql: format!("{prefix}{sql}"), act: step.act, began_at });
        begins = step.act == Act::Commit;
    }
    sent
}

/// How many statements each of a script's transactions has.
pub(super) fn lengths(script: &Script, isolation: Isolation) -> Vec<usize> {
    let sent = expand(script, isolation, 0, 0);
    let mut lengths = Vec::new();
    for (at, it) in sent.iter().enumerate() {
        if it.act == Act::Commit {
            lengths.push(at + 1 - it.began_at);
        }
    }
    lengths
}

/// Runs two calls that each pause at a place inside, and returns whether each reached its place.
/// The first call runs to its place, the second to its own place or its end. Then the first call
/// ends, then the second.
pub(super) fn run_inside(
    bench: &mut Bench,
    case: &Case,
    back: &str,
    places: [usize; 2],
) -> (Run, [bool; 2]) {
    let mut runner = Runner::start(bench, case, Isolation::ReadCommitted, back, &[0, 1]);
    for (n, place) in places.into_iter().enumerate() {
        runner.bench.stop_at(n, place);
        runner.step(n);
        if runner.actors[n].stopped {
            runner.run.told.push(format!("{} stops inside, at place {place}", letter(n)));
        } else {
            runner.send_the_rest(n);
        }
    }
    let stopped = [runner.actors[0].stopped, runner.actors[1].stopped];
    for n in 0..places.len() {
        runner.bench.let_go(n);
        runner.actors[n].stopped = false;
        runner.settle(None);
        runner.send_the_rest(n);
    }
    (0..places.len()).for_each(|n| runner.send_the_rest(n));
    runner.finish();
    (0..places.len()).for_each(|n| runner.bench.stop_nowhere(n));
    (runner.run, stopped)
}

impl<'a> Runner<'a> {
    /// Puts all sessions at the beginning. Sessions that do not take part have nothing to do.
    fn start(
        bench: &'a mut Bench,
        case: &Case,
        isolation: Isolation,
        back: &str,
        sessions: &[usize],
    ) -> Runner<'a> {
        bench.restore(back);
        let actors: Vec<Actor> = (0..case.scripts.len())
            .map(|n| {
                let script = case.scripts[n];
                let taken = if sessions.contains(&n) { usize::MAX } else { 0 };
                let mut steps = expand(&script, isolation, case.start.tokens[n], n);
                steps.truncate(taken);
                Actor {
                    script,
                    steps,
                    next: 0,
                    asked: false,
                    stopped: false,
                    open: false,
                    again: false,
                    over: false,
                    did: vec![],
                }
            })
            .collect();
        let answers =
            actors.iter().map(|actor| actor.steps.iter().map(|_| None).collect()).collect();
        let facts = bench.facts();
        let run = Run { answers, ..Run::default() };
        Runner { bench, actors, is_clocked: case.start.is_clocked(), isolation, facts, run }
    }

    /// Sends the rest of a session's statements, unless it waits.
    fn send_the_rest(&mut self, n: usize) {
        while self.actors[n].can_go_on() && self.run.fault.is_none() {
            self.step(n);
        }
    }

    /// The sessions that can go on.
    fn able(&self) -> Vec<usize> {
        (0..self.actors.len()).filter(|n| self.actors[*n].can_go_on()).collect()
    }

    /// The sessions that may be next. Orders that differ only in the position of a statement that
    /// the other sessions cannot notice count as one. So a snapshot is taken only at the beginning
    /// or directly after the end of a transaction, and a user's own write is sent directly after
    /// the statement before it, or directly before the statement after it.
    fn ready(&self) -> Vec<usize> {
        if let Some((last, _)) =
            self.run.turns.last().filter(|(last, _)| self.actors[*last].can_go_on())
        {
            let Actor { steps, next, .. } = &self.actors[*last];
            let follows = steps[*next].act == Act::Write;
            let precedes =
                steps[next - 1].act == Act::Write && steps[next - 1].began_at == next - 1;
            if follows || precedes {
                return vec![*last];
            }
        }
        let is_look = |n: usize, at: usize| {
            self.actors[n].steps.get(at).is_some_and(|it| it.act == Act::Snapshot)
        };
        let (looks, mut ready): (Vec<usize>, Vec<usize>) =
            self.able().into_iter().partition(|n| is_look(*n, self.actors[*n].next));
        let last = self.run.turns.last().map(|(last, _)| *last);
        // If several sessions take a snapshot in a row, their order does not matter.
        let looked = last.filter(|last| is_look(*last, self.actors[*last].next.wrapping_sub(1)));
        if ready.is_empty() || last.is_none_or(|last| !self.actors[last].open) {
            ready.extend(looks.into_iter().filter(|n| looked.is_none_or(|last| last < *n)));
        }
        ready.sort_unstable();
        ready
    }

    /// Sends a session's next statement. Then takes in answers until every session that was sent a
    /// statement has answered or waits for another session.
    fn step(&mut self, n: usize) {
        let others_open = self.actors.iter().enumerate().any(|(at, it)| at != n && it.open);
        self.run.overlapped[n] |= others_open;
        let asked_at = if self.is_clocked { self.facts.now } else { self.bench.facts().now };
        let actor = &mut self.actors[n];
        let Sent { sql, act, .. } = &actor.steps[actor.next];
        let act = *act;
        self.bench.send(n, sql);
        self.run.told.push(format!("{}: {sql}", letter(n)));
        self.run.statements += 1;
        actor.did.push((act, Answer::Rows(vec![]), asked_at));
        actor.asked = true;
        actor.open |= act != Act::Snapshot;
        let before = self.run.told.len() - 1;
        self.settle(Some((n, before)));
    }

    /// Takes in answers until all sessions that were sent a statement have answered or wait.
    fn settle(&mut self, latest: Option<(usize, usize)>) {
        let mut is_stuck = self.take_in(latest);
        let deadline = monotonic() + PATIENCE;
        // If all sessions wait for each other, the server will detect the deadlock and end one of
        // them.
        while is_stuck && self.run.fault.is_none() {
            is_stuck = self.take_in(None);
            if monotonic() > deadline {
                self.run.fault = Some((Invariant::Deadlock, "all sessions wait".into()));
            }
        }
    }

    /// One round of `settle`. Returns whether all sessions wait now.
    fn take_in(&mut self, latest: Option<(usize, usize)>) -> bool {
        let asked: Vec<usize> = (0..self.actors.len()).filter(|n| self.actors[*n].asked).collect();
        let Some(Calm { answered, waiting }) = self.bench.calm(&asked) else {
            self.run.fault = Some((Invariant::Deadlock, "a statement was never answered".into()));
            return true;
        };
        for (n, answer) in answered {
            let line = latest.filter(|(who, _)| *who == n).map(|(_, line)| line);
            self.hear(n, &answer, line);
        }
        for (n, whom) in &waiting {
            if whom.contains(&CONTROL) {
                self.actors[*n].stopped = true;
                continue;
            }
            if let Some((_, line)) = latest.filter(|(who, _)| who == n) {
                let whom: Vec<String> = whom.iter().map(|it| letter(*it)).collect();
                self.run.told[line] += &format!(" → waits for {}", whom.join(" and "));
                self.run.waits += 1;
                if self.actors[*n].script.about == About::Passes {
                    self.run.waited = Some(self.actors[*n].script.name);
                }
            }
        }
        let has_stopped = waiting.iter().any(|(_, whom)| whom.contains(&CONTROL));
        !waiting.is_empty() && !has_stopped && !self.actors.iter().any(Actor::can_go_on)
    }

    /// Records the answer to a session.
    fn hear(&mut self, n: usize, answer: &Answer, line: Option<usize>) {
        let said = format!(" → {answer}");
        match line {
            Some(line) => self.run.told[line] += &said,
            None => self.run.told.push(format!("{} goes on{said}", letter(n))),
        }
        let actor = &mut self.actors[n];
        let at = actor.next;
        (actor.asked, actor.next) = (false, at + 1);
        let act = actor.steps[at].act;
        if let Some(done) = actor.did.last_mut() {
            done.1 = answer.clone();
        }
        self.run.answers[n][at] = Some(answer.clone());
        match answer {
            Answer::Rows(_) if act == Act::Commit => {
                actor.open = false;
                let did = std::mem::take(&mut actor.did);
                let before = std::mem::replace(&mut self.facts, self.bench.facts());
                self.run.commits.push(Commit {
                    session: n,
                    did,
                    before,
                    after: self.facts.clone(),
                });
            }
            Answer::Rows(_) => {}
            Answer::Refused(code) => {
                actor.open = false;
                actor.did.clear();
                match code.as_str() {
                    "TN001" | "TN002" | "TN003" | "TN004" => {
                        actor.over = true;
                        self.run.refusals += 1;
                    }
                    "40001" if self.isolation.of(&actor.script).is_some() => {
                        actor.again = true;
                        self.run.conflicts += 1;
                    }
                    "40P01" => {
                        let what = "sessions wait for each other in a circle".into();
                        self.run.fault = Some((Invariant::Deadlock, what));
                    }
                    other => {
                        let what = format!("{} fails with SQLSTATE {other}", actor.script.name);
                        self.run.fault = Some((Invariant::I10, what));
                    }
                }
            }
        }
    }

    /// A session that met a conflict retries, as 40001 asks. Then the stored rows are read.
    fn finish(&mut self) {
        for n in 0..self.actors.len() {
            if !self.actors[n].again || self.run.fault.is_some() {
                continue;
            }
            let actor = &mut self.actors[n];
            actor.again = false;
            actor.next = actor.steps[actor.next - 1].began_at;
            let next = actor.next;
            self.run.answers[n][next..].fill_with(|| None);
            self.run.told.push(format!("{} begins again", letter(n)));
            self.send_the_rest(n);
            if self.actors[n].again {
                let what =
                    format!("{} meets a conflict though it is alone", self.actors[n].script.name);
                self.run.fault = Some((Invariant::Serial, what));
            }
        }
        if self.run.fault.is_none() {
            self.run.rows = self.bench.rows();
            return;
        }
        self.run.fault_is_left_behind(self.bench, &self.actors);
    }
}

impl Run {
    /// Ends what is still open, so that the sessions are free for the next run.
    fn fault_is_left_behind(&mut self, bench: &mut Bench, actors: &[Actor]) {
        let (asked, idle): (Vec<usize>, Vec<usize>) =
            (0..actors.len()).partition(|n| actors[*n].asked);
        for n in idle {
            bench.send(n, "ROLLBACK");
            drop(bench.calm(&[n]));
        }
        // Once the other sessions have rolled back, a waiting session goes on.
        if bench.calm(&asked).is_some() {
            for n in asked {
                bench.send(n, "ROLLBACK");
                drop(bench.calm(&[n]));
            }
        }
    }
}
