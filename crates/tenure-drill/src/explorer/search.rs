//! The search itself: every move from every state, each state once.
//!
//! A state is the store's whole dump, what each actor knows, and the ghosts. A call is a function
//! of the dump, so each pair of dump and call runs once. Workers are alike: two states that differ
//! only in which worker is which count as one, and the search goes on from the one it reached
//! first. So every schedule it reports was really run.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use tenure::WorkerId;
use tenure::drill::Dump;

use super::Merging;
use super::actors::{Actors, Ending, Move};
use super::call::{Answer, Call, HEALER, identity, worker};
use super::invariants::{Broken, Ghosts, Seen, Tally};
use super::lockstep::{Apart, Lockstep, beginning};
use super::scope::Scope;
use crate::verdict::Invariant;

/// A state of the search. Each dump is kept once and referred to by its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) dump: usize,
    pub(super) actors: Actors,
    ghosts: Ghosts,
    /// The copy that the database can go back to, and the ghosts at that time.
    backup: Option<(usize, Ghosts)>,
}

/// From which state and by which move a state was first reached.
struct Origin {
    parent: usize,
    step: Option<(usize, Move)>,
}

/// The states and transitions that a search has found.
pub(super) struct Graph {
    pub(super) states: usize,
    pub(super) edges: Vec<Vec<usize>>,
    /// Whether the search covered the whole scope.
    pub(super) whole: bool,
}

/// A schedule that breaks an invariant.
pub(super) struct Found {
    pub(super) broken: Broken,
    pub(super) steps: Vec<(String, String)>,
    pub(super) states: usize,
}

/// A permutation of the workers: the place that each worker takes, and the names that change.
struct Renaming {
    places: Vec<usize>,
    names: HashMap<WorkerId, WorkerId>,
}

pub(super) struct Search<'a> {
    scope: &'a Scope,
    stores: Lockstep,
    dumps: Vec<Dump>,
    /// For each dump, its fingerprints, one for each permutation of the workers' names: states that
    /// differ only in which worker is which count as one.
    prints: Vec<Vec<u128>>,
    numbers: HashMap<u128, usize>,
    answers: HashMap<(usize, Call), (Answer, usize)>,
    origins: Vec<Origin>,
    /// Dumps from which every job is known to reach its end.
    healed: HashSet<usize>,
    renamings: Vec<Renaming>,
    /// Compare whole dumps, not only the parts that `essence` keeps.
    whole: bool,
    pub(super) tally: Tally,
}

impl<'a> Search<'a> {
    /// A search that merges states as `merging` says.
    pub(super) fn new(scope: &'a Scope, stores: Lockstep, merging: Merging) -> Search<'a> {
        Search {
            scope,
            stores,
            dumps: Vec::new(),
            prints: Vec::new(),
            numbers: HashMap::new(),
            answers: HashMap::new(),
            origins: Vec::new(),
            healed: HashSet::new(),
            renamings: renamings(scope, merging == Merging::Alike),
            whole: merging == Merging::Nothing,
            tally: Tally::default(),
        }
    }

    /// The first state of the search.
    pub(super) fn first(&mut self) -> Node {
        let dump = self.number(beginning(self.scope));
        let (actors, ghosts) = (Actors::new(self.scope), Ghosts::new(self.scope.jobs));
        Node { dump, actors, ghosts, backup: None }
    }

    /// Explores all states, breadth first, up to `most`. Calls `tell` from time to time with the
    /// number of states so far.
    pub(super) fn run(
        &mut self,
        most: usize,
        tell: &mut dyn FnMut(usize),
    ) -> Result<Graph, Box<Found>> {
        const TELL_AFTER: usize = 5_000;
        let first = self.first();
        let mut seen = HashMap::from([(self.fingerprint(&first), 0)]);
        self.origins.push(Origin { parent: 0, step: None });
        let mut nodes = vec![first];
        let mut edges: Vec<Vec<usize>> = vec![];
        let mut at = 0;
        while at < nodes.len() && nodes.len() <= most {
            let node = nodes[at].clone();
            self.check_recovery(node.dump).map_err(|broken| self.found(broken, at, None))?;
            let mut next = Vec::new();
            for step in self.moves(&node) {
                let after = match self.step(&node, &step) {
                    Ok((after, _)) => after,
                    Err(broken) => return Err(self.found(broken, at, Some((node.dump, step)))),
                };
                let print = self.fingerprint(&after);
                let number = *seen.entry(print).or_insert_with(|| {
                    self.origins.push(Origin { parent: at, step: Some((node.dump, step)) });
                    nodes.push(after);
                    nodes.len() - 1
                });
                next.push(number);
            }
            edges.push(next);
            at += 1;
            if at.is_multiple_of(TELL_AFTER) {
                tell(nodes.len());
            }
        }
        Ok(Graph { states: nodes.len(), edges, whole: at == nodes.len() })
    }

    /// How many real calls each store has received.
    pub(super) fn calls(&self) -> usize {
        self.answers.len()
    }

    pub(super) fn dump(&self, node: &Node) -> &Dump {
        &self.dumps[node.dump]
    }

    /// Every possible next move.
    pub(super) fn moves(&self, node: &Node) -> Vec<Move> {
        node.actors.moves(self.scope, node.backup.as_ref().map(|(dump, _)| *dump))
    }

    /// Makes one move and checks its result.
    pub(super) fn step(&mut self, node: &Node, step: &Move) -> Result<(Node, Answer), Broken> {
        let call = step.arriving();
        let (answer, dump, apart) = match self.answer(node.dump, &call).map_err(|apart| *apart) {
            Ok((answer, dump)) => (answer, dump, None),
            Err(Apart { what, heard: None }) => return Err((Invariant::Lockstep, what)),
            // Check the invariants on the differing answer first: a broken invariant explains what
            // is wrong better than a difference does.
            Err(Apart { what, heard: Some((answer, state)) }) => {
                let dump = self.number(state);
                self.answers.insert((node.dump, call.clone()), (answer.clone(), dump));
                (answer, dump, Some(what))
            }
        };
        let mut after = Node { dump, ..node.clone() };
        let rights = node.actors.rights(step);
        let (old, new) = (&self.dumps[node.dump], &self.dumps[dump]);
        let seen = Seen { old, new, call: &call, answer: &answer, rights: &rights };
        match (&call, &node.backup) {
            (Call::Backup, _) => after.backup = Some((node.dump, node.ghosts.clone())),
            (Call::GoBack(_), Some((_, backup))) => after.ghosts = node.ghosts.back_to(backup),
            _ => after.ghosts.observe(&seen, &mut self.tally)?,
        }
        if let Some(what) = apart {
            return Err((Invariant::Lockstep, what));
        }
        after.actors.learn(step, &answer, &after.ghosts);
        Ok((after, answer))
    }

    /// The answer to a move that was made from this state, and the state after it.
    pub(super) fn heard(&self, node: &Node, step: &Move) -> Option<(Answer, &Dump)> {
        let (answer, after) = self.answers.get(&(node.dump, step.arriving()))?;
        Some((answer.clone(), &self.dumps[*after]))
    }

    fn answer(&mut self, dump: usize, call: &Call) -> Result<(Answer, usize), Box<Apart>> {
        if call.is_outside() {
            return Ok((Answer::Nothing, dump));
        }
        let asked = (dump, call.clone());
        if let Some(known) = self.answers.get(&asked) {
            return Ok(known.clone());
        }
        let backup = if let Call::GoBack(number) = call { self.dumps.get(*number) } else { None };
        let (answer, after) = self.stores.call(&self.dumps[dump], call, backup)?;
        let after = self.number(after);
        self.answers.insert(asked, (answer.clone(), after));
        Ok((answer, after))
    }

    fn number(&mut self, dump: Dump) -> usize {
        let print = |renaming: &Renaming| {
            if self.whole {
                fingerprint(&dump)
            } else {
                fingerprint(&essence(&dump, &renaming.names))
            }
        };
        let prints: Vec<_> = self.renamings.iter().map(print).collect();
        let next = self.dumps.len();
        // The first renaming changes nothing.
        let number = *self.numbers.entry(prints[0]).or_insert(next);
        if number == next {
            self.dumps.push(dump);
            self.prints.push(prints);
        }
        number
    }

    /// A number that is the same for states that differ only in which worker is which.
    fn fingerprint(&self, node: &Node) -> u128 {
        let renamed = self.renamings.iter().enumerate().map(|(at, renaming)| {
            let backup =
                node.backup.as_ref().map(|(dump, ghosts)| (self.prints[*dump][at], ghosts));
            let actors = node.actors.renamed(&renaming.places);
            fingerprint(&(self.prints[node.dump][at], actors, &node.ghosts, backup))
        });
        renamed.min().unwrap_or_default()
    }

    /// I11: once faults stop, a healthy worker brings every job to its end within a bound.
    pub(super) fn check_recovery(&mut self, mut dump: usize) -> Result<(), Broken> {
        const ROUNDS: usize = 24;
        let mut way = Vec::new();
        while self.dumps[dump].jobs.iter().any(|job| !job.state.has_ended())
            && !self.healed.contains(&dump)
        {
            if way.len() == ROUNDS {
                let what = format!("a job is still owed after {ROUNDS} rounds without faults");
                return Err((Invariant::I11, what));
            }
            way.push(dump);
            dump = self.heal(dump).map_err(|apart| (Invariant::Lockstep, apart.what))?;
        }
        self.healed.extend(way);
        self.tally.count(Invariant::I11, true);
        Ok(())
    }

    /// One round of work by the healthy worker.
    fn heal(&mut self, dump: usize) -> Result<usize, Box<Apart>> {
        let (_, dump) = self.answer(dump, &Call::Resume)?;
        let (answer, dump) = self.answer(dump, &Call::Claim(HEALER, 1))?;
        match answer {
            Answer::Claimed(claimed) if !claimed.attempts.is_empty() => {
                let fence = claimed.attempts[0].lease.fence();
                Ok(self.answer(dump, &Call::Settle(vec![(fence, Ending::Complete)]))?.1)
            }
            _ => Ok(self.answer(dump, &Call::Tick)?.1),
        }
    }

    /// The schedule that leads to what is broken: the code and the words of each step.
    fn found(&self, broken: Broken, at: usize, last: Option<(usize, Move)>) -> Box<Found> {
        let mut steps: Vec<_> = last.into_iter().collect();
        let mut at = at;
        while let Some(step) = &self.origins[at].step {
            steps.push(step.clone());
            at = self.origins[at].parent;
        }
        let told = |(dump, step): &(usize, Move)| {
            let answer = self.answers.get(&(*dump, step.arriving())).map(|(answer, _)| answer);
            (step.code(), step.words(answer))
        };
        let steps = steps.iter().rev().map(told).collect();
        Box::new(Found { broken, steps, states: self.origins.len() })
    }
}

/// All renamings of the workers, starting with the one that changes nothing; only that one if
/// states are not merged.
fn renamings(scope: &Scope, merging: bool) -> Vec<Renaming> {
    let workers = usize::from(scope.workers);
    let mut orders: Vec<Vec<usize>> = vec![(0..workers).collect()];
    if merging {
        orders = vec![vec![]];
        for place in 0..workers {
            // The last position first, so that the first order is the one that changes nothing.
            let longer = |order: &Vec<usize>| {
                let order = order.clone();
                (0..=order.len()).rev().map(move |at| {
                    let mut order = order.clone();
                    order.insert(at, place);
                    order
                })
            };
            orders = orders.iter().flat_map(longer).collect();
        }
    }
    let renaming = |places: Vec<usize>| {
        let starts = 0..=scope.crashes;
        let renamed = |start: u8| {
            let one = |(from, to): (usize, &usize)| {
                (worker(identity(from, start)), worker(identity(*to, start)))
            };
            places.iter().enumerate().map(one).collect::<Vec<_>>()
        };
        let names = starts.flat_map(renamed).filter(|(from, to)| from != to).collect();
        Renaming { places, names }
    };
    orders.into_iter().map(renaming).collect()
}

/// The parts of a state that can change an answer or an invariant, with the workers renamed. Of a
/// line of the timeline these are the job, the token, the verb, whether it was refused, and what
/// the job became; the time, the worker and the note are only read by people.
fn essence(dump: &Dump, names: &HashMap<WorkerId, WorkerId>) -> impl Hash + use<> {
    let named = |worker: &WorkerId| names.get(worker).unwrap_or(worker).clone();
    let mut jobs = dump.jobs.clone();
    jobs.iter_mut().for_each(|job| job.worker = job.worker.as_ref().map(named));
    let heard = dump
        .timeline
        .iter()
        .map(|line| (line.job, line.token, line.verb, line.refused, line.became));
    let effects = dump.ledger.iter().map(|it| (it.job, it.standing, it.token));
    let guards = dump.workers.iter().map(|it| (named(&it.worker), it.under, it.free_since));
    (
        (dump.now, dump.started_at, dump.broke, dump.broke_before, dump.epoch, dump.next_id),
        jobs,
        heard.collect::<BTreeSet<_>>(),
        effects.collect::<Vec<_>>(),
        guards.collect::<BTreeSet<_>>(),
        dump.held.iter().map(named).collect::<BTreeSet<_>>(),
        dump.keys.clone(),
    )
}

/// A 128-bit fingerprint of a state: enough that no two of a million collide by accident.
fn fingerprint(state: &impl Hash) -> u128 {
    let half = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        state.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(1) << 64 | half(2)
}

/// How many paths lead from the first state to a state from which no step leads on. Steps that lead
/// back to a state of the path, or to the same state, are not followed.
pub(super) fn schedules(edges: &[Vec<usize>]) -> f64 {
    // States are numbered in the order they were found, so an edge may lead to a lower number. So
    // count in the order of a depth-first search.
    let none = vec![];
    let onward = |node: usize| edges.get(node).unwrap_or(&none);
    let most = edges.iter().flatten().max().map_or(1, |last| (last + 1).max(edges.len()));
    let mut order = Vec::with_capacity(most);
    let mut met = vec![false; most];
    let mut stack = vec![(0_usize, 0_usize)];
    met[0] = true;
    while let Some((node, at)) = stack.pop() {
        match onward(node).get(at) {
            Some(next) => {
                stack.push((node, at + 1));
                if !met[*next] {
                    met[*next] = true;
                    stack.push((*next, 0));
                }
            }
            None => order.push(node),
        }
    }
    let mut place = vec![0; most];
    order.iter().enumerate().for_each(|(at, node)| place[*node] = at);
    let mut paths = vec![0.0_f64; most];
    for node in &order {
        let further = onward(*node).iter().filter(|next| place[**next] < place[*node]);
        let sum: f64 = further.map(|next| paths[*next]).sum();
        paths[*node] = if sum == 0.0 { 1.0 } else { sum };
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

    #[test]
    fn three_workers_can_be_renamed_in_six_ways_and_the_first_is_none() {
        let scope = Scope::named("crowd").expect("there is such a scope");
        let all = renamings(&scope, true);
        let places: BTreeSet<_> = all.iter().map(|renaming| renaming.places.clone()).collect();
        assert_eq!((all.len(), places.len()), (6, 6));
        assert_eq!((all[0].places.as_slice(), all[0].names.len()), ([0, 1, 2].as_slice(), 0));
    }
}
