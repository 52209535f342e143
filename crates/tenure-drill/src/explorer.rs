//! Every interleaving of a few actors' calls on a real store, with crashes and lost replies.
//!
//! A state is the store's whole dump, what each actor knows, and the ghosts: facts about the
//! history that the code under test never sees. A transition is one real call. A call is a function
//! of the dump, so each pair of dump and call runs once, on the model and on the engine in
//! lockstep, and states that were seen are not gone through again: the search is exact and small.
//! After each step the [invariants](Invariant) are checked; the first violation ends the search,
//! and since the search is breadth-first, its schedule is a shortest one.

mod actors;
mod invariants;
mod scope;

use std::collections::HashMap;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use tenure::clock::Clock;
use tenure::drill::{Dump, Explorable, Patch};
use tenure::job::{JobId, Json, Name, NewJob, Progress};
use tenure::lease::Fence;
use tenure::ledger::{self, Entry, Resolution, effect_name};
use tenure::store::sqlite::{Options, Sqlite};
use tenure::store::{
    AsSeen, Attempt, Changed, Claim, Claimed, Cursor, Lapse, Lapsed, Registration, Renewed,
    Reported, Resolved, Settled, Settlement, postgres,
};

pub use self::actors::Ending;
use self::actors::{Actors, Doing, Loss, Move};
use self::invariants::Ghosts;
pub use self::invariants::Tally;
pub use self::scope::{SCOPES, Scope, WIDE_SCOPES};
use crate::differential::compare;
use crate::engines::START;
use crate::model::Model;
use crate::servers;
use crate::verdict::{Invariant, Violation};

/// What one exhaustive search has seen.
#[derive(Debug, Clone)]
pub struct Report {
    /// The scope's name.
    pub scope: &'static str,
    /// Distinct states.
    pub states: usize,
    /// Steps between them.
    pub transitions: usize,
    /// Real calls on each engine: distinct pairs of dump and call.
    pub calls: usize,
    /// How many different schedules the states stand for: paths from the beginning to an end.
    pub schedules: f64,
    /// How often each invariant was looked at, and how often it had something to say.
    pub tally: Tally,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { scope, states, transitions, calls, schedules, tally } = self;
        writeln!(
            f,
            "{scope}: {states} states, {transitions} transitions, {calls} calls, {schedules:.1e} schedules"
        )?;
        write!(f, "{tally}")
    }
}

/// Goes through all of `scope` on the model, SQLite and PostgreSQL in lockstep.
pub fn explore(scope: &Scope) -> Result<Report, Violation> {
    Search::new(scope, Engines::lockstep(scope)).run()
}

/// Goes through `scope` on a store whose SQL was patched. The model is left out: the invariants alone
/// must notice.
pub fn explore_patched(scope: &Scope, target: Patched) -> Result<Report, Violation> {
    Search::new(scope, Engines::patched(scope, target)).run()
}

/// A store that lacks something.
#[derive(Debug, Clone, Copy)]
pub enum Patched {
    /// In memory.
    Sqlite(&'static [Patch]),
    /// In a schema of its own.
    Postgres(&'static [Patch]),
}

/// One call of a store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Claim(u8),
    Held(u8),
    Renew(Fence),
    Progress(Fence),
    Settle(Fence, Ending),
    Overdue,
    Lapse(Vec<Fence>),
    Cancel,
    Requeue,
    Resume,
    Ledger(Fence, Doing),
    Resolve(Resolution),
    Register(u8),
    Vanished,
    Tick,
    /// A worker's lock is freed, whether or not its process has ended.
    Free(u8),
    /// The server starts again, and no lock survives it.
    Restart,
    /// Somebody makes a copy of the database: the store does not notice.
    Backup,
    /// The database goes back to the state of this number.
    GoBack(usize),
    /// Nothing reaches the store.
    Nothing,
}

/// Its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    Claimed(Claimed),
    Held(Vec<Attempt>),
    Renewed(Renewed),
    Reported(Reported),
    Settled(Settled),
    Overdue(Vec<Fence>),
    Lapsed(Vec<Lapsed>),
    Changed(Changed),
    Ledger(ledger::Answer),
    Resolved(Resolved),
    Vanished(Vec<Lapse>),
    Nothing,
}

/// How long a claim lasts, in ticks of the clock.
const LEASE: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_secs(1);

/// The stores under test, which all get the same calls.
struct Engines {
    stores: Vec<(Box<dyn Explorable>, Clock)>,
    start: Dump,
}

impl Engines {
    fn lockstep(scope: &Scope) -> Engines {
        let mut engines = Engines::patched(scope, Patched::Sqlite(&[]));
        let clock = Clock::manual(START);
        let model = Model::new(clock.clone(), tenure::job::Limits::default());
        engines.stores.insert(0, (Box::new(model), clock));
        let clock = Clock::manual(START);
        let mut server = servers::fresh("tenure", &clock, &postgres::Options::default())
            .expect("a fresh store opens");
        server.rehearse();
        engines.stores.push((Box::new(server), clock));
        engines
    }

    fn patched(scope: &Scope, target: Patched) -> Engines {
        let clock = Clock::manual(START);
        let store: Box<dyn Explorable> = match target {
            Patched::Sqlite(patches) => {
                let options = Options { clock: clock.clone(), ..Options::default() };
                Box::new(
                    Sqlite::in_memory_patched(&options, patches).expect("a store in memory opens"),
                )
            }
            Patched::Postgres(patches) => {
                let mut store = servers::patched(patches, &clock).expect("a patched store opens");
                store.rehearse();
                Box::new(store)
            }
        };
        Engines { stores: vec![(store, clock)], start: start(scope) }
    }

    /// Runs one call from one state. All engines must agree; what they agree on is returned. `backup`
    /// is the state that the database can go back to.
    fn call(
        &mut self,
        from: &Dump,
        call: &Call,
        backup: Option<&Dump>,
    ) -> Result<(Answer, Dump), String> {
        let mut agreed: Option<(Answer, Dump)> = None;
        for (store, clock) in &mut self.stores {
            store.load(from).map_err(|error| error.to_string())?;
            let answer = match backup {
                Some(backup) => store.go_back(backup).map(|()| Answer::Nothing),
                None => perform(store.as_mut(), clock, call),
            };
            let answer = answer.map_err(|error| error.to_string())?;
            let dump = store.dump().map_err(|error| error.to_string())?;
            match &agreed {
                None => agreed = Some((answer, dump)),
                Some((expected, _)) if *expected != answer => {
                    return Err(format!("the model answers {expected:?}, the engine {answer:?}"));
                }
                Some((_, state)) if *state != dump => {
                    return Err(format!("the states differ:\n{}", compare(state, &dump)));
                }
                Some(_) => {}
            }
        }
        agreed.ok_or_else(|| "no engine".into())
    }
}

/// The state in which a search begins: jobs in the queue, and nothing else.
fn start(scope: &Scope) -> Dump {
    let kind = Name::check("kind", "work").expect("a valid name");
    let args = Json::check("args", "{}", 10).expect("valid JSON");
    let job =
        NewJob::new(kind, args).max_attempts(scope.max_attempts).max_crashes(scope.max_crashes);
    let mut model = Model::new(Clock::manual(START), tenure::job::Limits::default());
    let store: &mut dyn tenure::store::Store = &mut model;
    store.enqueue(&vec![job; scope.jobs]).expect("enqueue answers");
    if scope.guard.is_some() {
        for at in 0..scope.workers {
            store.register(&registration(at as u8)).expect("register answers");
        }
    }
    model.dump().expect("dump answers")
}

fn registration(identity: u8) -> Registration {
    Registration { worker: worker(identity), queues: vec![Name::default_queue()], kinds: None }
}

fn worker(identity: u8) -> tenure::lease::WorkerId {
    tenure::lease::WorkerId::check(format!("worker-{identity}")).expect("a valid worker id")
}

fn claim(identity: u8) -> Claim {
    Claim {
        worker: worker(identity),
        queues: vec![Name::default_queue()],
        kinds: None,
        n: 1,
        lease: LEASE,
        cursor: Cursor::default(),
        grace: Duration::ZERO,
    }
}

fn perform(
    store: &mut dyn Explorable,
    clock: &Clock,
    call: &Call,
) -> tenure::store::Result<Answer> {
    // Operators are interested in the first job only.
    let first = JobId(1);
    Ok(match call {
        Call::Claim(identity) => Answer::Claimed(store.claim(&claim(*identity))?),
        Call::Held(identity) => Answer::Held(store.held(&worker(*identity))?),
        Call::Renew(fence) => Answer::Renewed(store.renew(&[*fence], LEASE)?[0]),
        Call::Progress(fence) => {
            let progress = Progress::new(0.5, "half-way");
            let report = tenure::store::Report { fence: *fence, progress };
            Answer::Reported(store.progress(&[report])?[0])
        }
        Call::Settle(fence, ending) => {
            Answer::Settled(store.settle(&[Settlement::new(*fence, ending.outcome())])?[0])
        }
        Call::Overdue => Answer::Overdue(store.overdue(10, Duration::ZERO)?),
        Call::Lapse(fences) => Answer::Lapsed(store.lapse(fences)?),
        Call::Cancel => Answer::Changed(store.cancel(&[first])?[0]),
        Call::Requeue => Answer::Changed(store.requeue(&[AsSeen::any(first)])?[0]),
        Call::Resume => Answer::Changed(store.resume(&[first])?[0]),
        Call::Ledger(fence, doing) => {
            let name = effect_name("charge").expect("a valid name");
            let entry = Entry { fence: *fence, name, act: doing.act() };
            Answer::Ledger(store.ledger(&[entry])?.remove(0))
        }
        Call::Resolve(how) => {
            let name = effect_name("charge").expect("a valid name");
            Answer::Resolved(store.resolve(first, &name, how)?)
        }
        Call::Register(identity) => {
            store.register(&registration(*identity))?;
            Answer::Nothing
        }
        Call::Vanished => Answer::Vanished(store.vanished(10)?),
        Call::Tick => {
            clock.advance(TICK);
            Answer::Nothing
        }
        Call::Free(identity) => {
            let gone = worker(*identity);
            surroundings(store, |state| state.held.retain(|held| *held != gone))?
        }
        Call::Restart => surroundings(store, |state| {
            state.started_at = state.now;
            state.held.clear();
        })?,
        Call::Backup | Call::GoBack(_) | Call::Nothing => Answer::Nothing,
    })
}

/// Something changes that is not the store's doing.
fn surroundings(
    store: &mut dyn Explorable,
    change: impl FnOnce(&mut Dump),
) -> tenure::store::Result<Answer> {
    let mut state = store.dump()?;
    change(&mut state);
    store.load(&state)?;
    Ok(Answer::Nothing)
}

/// A state of the search. The dump is kept once and named by its number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Node {
    dump: usize,
    actors: Actors,
    ghosts: Ghosts,
    /// The copy that the database can go back to, and what was true then.
    backup: Option<(usize, Ghosts)>,
}

/// Where a state was first reached from, and by which move.
struct Origin {
    parent: usize,
    step: Option<(usize, Move)>,
}

struct Search<'a> {
    scope: &'a Scope,
    engines: Engines,
    dumps: Vec<Dump>,
    dump_numbers: HashMap<u128, usize>,
    answers: HashMap<(usize, Call), (Answer, usize)>,
    origins: Vec<Origin>,
    tally: Tally,
}

impl<'a> Search<'a> {
    fn new(scope: &'a Scope, engines: Engines) -> Search<'a> {
        Search {
            scope,
            engines,
            dumps: Vec::new(),
            dump_numbers: HashMap::new(),
            answers: HashMap::new(),
            origins: Vec::new(),
            tally: Tally::default(),
        }
    }

    fn run(mut self) -> Result<Report, Violation> {
        let start = self.engines.start.clone();
        let dump = self.number(start);
        let (actors, ghosts) = (Actors::new(self.scope), Ghosts::new(self.scope.jobs));
        let first = Node { dump, actors, ghosts, backup: None };
        let mut seen = HashMap::from([(fingerprint(&first), 0)]);
        self.origins.push(Origin { parent: 0, step: None });
        let mut nodes = vec![first];
        let mut edges: Vec<Vec<usize>> = vec![];
        let mut at = 0;
        while at < nodes.len() {
            let node = nodes[at].clone();
            let mut next = Vec::new();
            let backup = node.backup.as_ref().map(|(dump, _)| *dump);
            for step in node.actors.moves(self.scope, backup) {
                let after = self.step(&node, &step).map_err(|(invariant, what)| {
                    self.violation(invariant, what, at, Some((node.dump, step.clone())))
                })?;
                let number = *seen.entry(fingerprint(&after)).or_insert_with(|| {
                    self.origins.push(Origin { parent: at, step: Some((node.dump, step)) });
                    nodes.push(after);
                    nodes.len() - 1
                });
                next.push(number);
            }
            edges.push(next);
            at += 1;
        }
        self.check_recovery(&nodes)?;
        Ok(Report {
            scope: self.scope.name,
            states: nodes.len(),
            transitions: edges.iter().map(Vec::len).sum(),
            calls: self.answers.len(),
            schedules: schedules(&edges),
            tally: self.tally,
        })
    }

    /// Makes one move and checks what came of it.
    fn step(&mut self, node: &Node, step: &Move) -> Result<Node, (Invariant, String)> {
        // A call that is lost on its way does not reach the store; one whose reply is lost does.
        let call = if step.loss == Some(Loss::Call) { Call::Nothing } else { step.call.clone() };
        let (answer, dump) = self.answer(node.dump, &call)?;
        let mut after = Node { dump, ..node.clone() };
        let ghost = node.actors.ghost(step);
        let (old, new) = (&self.dumps[node.dump], &self.dumps[dump]);
        match (&call, &node.backup) {
            (Call::Backup, _) => after.backup = Some((node.dump, node.ghosts.clone())),
            (Call::GoBack(_), Some((_, backup))) => after.ghosts = node.ghosts.back_to(backup),
            _ => after.ghosts.observe(old, new, &call, &answer, ghost, &mut self.tally)?,
        }
        after.actors.learn(step, &answer, &after.ghosts);
        Ok(after)
    }

    fn answer(&mut self, dump: usize, call: &Call) -> Result<(Answer, usize), (Invariant, String)> {
        if matches!(call, Call::Nothing | Call::Backup) {
            return Ok((Answer::Nothing, dump));
        }
        let asked = (dump, call.clone());
        if let Some(known) = self.answers.get(&asked) {
            return Ok(known.clone());
        }
        let from = self.dumps[dump].clone();
        let backup = if let Call::GoBack(number) = call { self.dumps.get(*number) } else { None };
        let called = self.engines.call(&from, call, backup);
        let (answer, after) = called.map_err(|what| (Invariant::Lockstep, what))?;
        let after = self.number(after);
        self.answers.insert(asked, (answer.clone(), after));
        Ok((answer, after))
    }

    fn number(&mut self, dump: Dump) -> usize {
        let next = self.dumps.len();
        let number = *self.dump_numbers.entry(fingerprint(&essence(&dump))).or_insert(next);
        if number == next {
            self.dumps.push(dump);
        }
        number
    }

    /// I11: from every state, once faults stop, an honest worker brings every job to its end within
    /// a bound.
    fn check_recovery(&mut self, nodes: &[Node]) -> Result<(), Violation> {
        const HEALER: u8 = 99;
        const ROUNDS: usize = 24;
        let mut healed = std::collections::HashSet::new();
        for (at, node) in nodes.iter().enumerate() {
            let mut dump = node.dump;
            for round in 0.. {
                let owed = self.dumps[dump].jobs.iter().any(|job| !job.state.has_ended());
                if !owed || !healed.insert(dump) {
                    break;
                }
                if round == ROUNDS {
                    let what = format!("a job is still owed after {ROUNDS} rounds without faults");
                    return Err(self.violation(Invariant::I11, what, at, None));
                }
                dump = self
                    .heal(dump, HEALER)
                    .map_err(|(invariant, what)| self.violation(invariant, what, at, None))?;
            }
            self.tally.count(Invariant::I11, true);
        }
        Ok(())
    }

    /// One round of honest work.
    fn heal(&mut self, dump: usize, healer: u8) -> Result<usize, (Invariant, String)> {
        let (_, dump) = self.answer(dump, &Call::Resume)?;
        let (answer, dump) = self.answer(dump, &Call::Claim(healer))?;
        match answer {
            Answer::Claimed(claimed) if !claimed.attempts.is_empty() => {
                let fence = claimed.attempts[0].lease.fence();
                Ok(self.answer(dump, &Call::Settle(fence, Ending::Complete))?.1)
            }
            _ => Ok(self.answer(dump, &Call::Tick)?.1),
        }
    }

    fn violation(
        &self,
        invariant: Invariant,
        what: String,
        at: usize,
        last: Option<(usize, Move)>,
    ) -> Violation {
        let mut steps: Vec<_> = last.into_iter().collect();
        let mut at = at;
        while let Some(step) = &self.origins[at].step {
            steps.push(step.clone());
            at = self.origins[at].parent;
        }
        let words = |(dump, step): &(usize, Move)| {
            let answer = self.answers.get(&(*dump, step.call.clone())).map(|(answer, _)| answer);
            step.words(answer)
        };
        let schedule = steps.iter().rev().map(words).collect();
        Violation { invariant, what, schedule, states: self.origins.len(), replay: None }
    }
}

/// What of a state can change an answer or an invariant. Of the timeline that is which calls were
/// heard and what they came to; when, by whom and in which words is for people.
fn essence(dump: &Dump) -> impl Hash {
    let heard = dump
        .timeline
        .iter()
        .map(|line| (line.job, line.token, line.verb, line.refused, line.became));
    let effects = dump.ledger.iter().map(|it| (it.job, it.standing, it.token));
    let guards = dump.workers.iter().map(|it| (it.worker.clone(), it.under, it.free_since));
    (
        (dump.now, dump.started_at, dump.epoch, dump.next_id),
        dump.jobs.clone(),
        heard.collect::<std::collections::BTreeSet<_>>(),
        effects.collect::<Vec<_>>(),
        guards.collect::<Vec<_>>(),
        dump.held.clone(),
    )
}

/// 128 bits of a state: enough that no two of a million share them by accident.
fn fingerprint(state: &impl Hash) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        state.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(1) << 64 | half(2)
}

/// How many paths lead from the first state to a state without a way on, with steps that change
/// nothing left out.
fn schedules(edges: &[Vec<usize>]) -> f64 {
    // States are numbered as they were found, but an edge may lead back: count in the order of a
    // depth-first search.
    let mut order = Vec::with_capacity(edges.len());
    let mut mark = vec![0_u8; edges.len()];
    let mut stack = vec![(0_usize, 0_usize)];
    mark[0] = 1;
    while let Some((node, at)) = stack.pop() {
        match edges[node].get(at) {
            Some(next) => {
                stack.push((node, at + 1));
                if mark[*next] == 0 {
                    mark[*next] = 1;
                    stack.push((*next, 0));
                }
            }
            None => order.push(node),
        }
    }
    let mut paths = vec![0.0_f64; edges.len()];
    let place: HashMap<usize, usize> =
        order.iter().enumerate().map(|(place, node)| (*node, place)).collect();
    for node in &order {
        let onward: Vec<_> =
            edges[*node].iter().filter(|next| place[*next] < place[node]).collect();
        paths[*node] =
            if onward.is_empty() { 1.0 } else { onward.iter().map(|next| paths[**next]).sum() };
    }
    paths[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules_are_the_paths_to_an_end_and_loops_do_not_count() {
        assert_eq!(schedules(&[vec![1, 2, 0], vec![3], vec![3, 1], vec![]]), 3.0);
    }
}
