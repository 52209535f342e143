//! What people do while it runs: they enqueue, and decide what waits for them.

use std::num::NonZeroU16;
use std::time::Duration;

use tenure::clock::Chance;
use tenure::inspect::EffectFilter;
use tenure::job::{JobId, Key, Name, NewJob, RetryPolicy, State};
use tenure::ledger::Resolution;
use tenure::store::Store;

use super::super::handlers::{KINDS, effect, json};
use super::World;

impl World<'_> {
    /// All that there is to do from the beginning.
    pub(super) fn enqueue_all(&mut self) {
        // Its own chance, so that fewer jobs are the first of many.
        let mut chance = Chance::seeded(self.chance.bits());
        let kinds: Vec<&str> = (0..self.scenario().jobs)
            .map(|_| {
                let any = any_kind(&mut chance);
                self.setup.kind.unwrap_or(any)
            })
            .collect();
        for kinds in kinds.chunks(1_000) {
            let jobs: Vec<NewJob> = kinds.iter().map(|kind| new_job(kind, "{}")).collect();
            let answers = self.store.enqueue(&jobs).expect("they are enqueued");
            let mut books = self.shared.books();
            for (kind, answer) in kinds.iter().zip(answers) {
                books.enqueue(&name(kind), None, answer);
            }
        }
    }

    /// Somebody enqueues under one of a few keys, often for something else, and again when the reply is lost.
    pub(super) fn enqueue_by_key(&mut self, chance: &mut Chance) {
        let number = chance.below(3);
        let key = format!("key-{number}");
        let (kind, _) = KINDS[usize::try_from(number).unwrap_or(0) % 5];
        let args = format!(r#"{{"n":{}}}"#, chance.below(2));
        let job = new_job(kind, &args).key(Key::check(key.clone()).expect("a key"));
        for _ in 0..1 + chance.below(2) {
            let answers = self.store.enqueue(std::slice::from_ref(&job)).expect("it is enqueued");
            let print = job.fingerprint();
            let mut books = self.shared.books();
            answers.iter().for_each(|answer| {
                books.enqueue(&name(kind), Some((&key, print)), *answer);
            });
        }
        // Who is told of it is up to chance; the others find it in their own time.
        let workers = self.workers.iter().flatten();
        workers.filter(|_| chance.below(2) == 0).for_each(|worker| worker.desk.poke());
    }

    /// A job in such a state.
    pub(super) fn any_job(&self, chance: &mut Chance, is: impl Fn(State) -> bool) -> Option<JobId> {
        let books = self.shared.books();
        let from = books.jobs.keys().nth(chance.below(books.jobs.len() as u64) as usize)?;
        let found = books.jobs.range(*from..).chain(books.jobs.range(..*from));
        found.into_iter().find(|(_, ghost)| is(ghost.state)).map(|(job, _)| *job)
    }

    /// A person looks at what waits for one: what is in doubt is looked up, and the rest goes on.
    pub(super) fn people_decide(&mut self) {
        let parked: Vec<JobId> = self.shared.books().parked.iter().copied().collect();
        for job in parked {
            let filter = EffectFilter { in_doubt: true, job: Some(job), before: None };
            let doubts = self.store.effects(&filter, 10).expect("the effects in doubt");
            if doubts.is_empty() {
                let _ = self.person.resume(&[job]);
            } else {
                let name = effect();
                let happened = self.shared.books().witness.has(job, &name);
                let how = if happened {
                    Resolution::Committed { result: json("3") }
                } else {
                    Resolution::Resend
                };
                // Whether it was heard or not, the next look tells.
                let _ = self.person.resolve(job, &name, &how);
            }
        }
    }
}

fn any_kind(chance: &mut Chance) -> &'static str {
    let mut throw = chance.below(100);
    for (kind, share) in KINDS {
        if throw < share {
            return kind;
        }
        throw -= share;
    }
    KINDS[0].0
}

fn new_job(kind: &str, args: &str) -> NewJob {
    let number = |count| NonZeroU16::new(count).expect("not zero");
    let retry = RetryPolicy::Exponential { base_ms: 200, cap_ms: 5_000 };
    let job = NewJob::new(name(kind), json(args)).retry(retry);
    match kind {
        "fragile" => job.max_attempts(number(3)).max_crashes(number(50)),
        "poison" => job.max_attempts(number(50)),
        "timed" => job
            .max_attempts(number(50))
            .max_crashes(number(50))
            .max_runtime(Duration::from_millis(1_500)),
        _ => job.max_attempts(number(50)).max_crashes(number(50)),
    }
}

fn name(kind: &str) -> Name {
    Name::check("kind", kind).expect("a name")
}
