//! What people do during a run: they enqueue jobs, resume parked jobs, and resolve the effects in
//! doubt.

use std::num::NonZeroU16;
use std::time::Duration;

use tenure::engine::clock::Chance;
use tenure::engine::job::{JobId, Key, Name, NewJob, RetryPolicy, State, Tenant};
use tenure::engine::store::{Enqueued, Look, Operate, QueueChange, Work};
use tenure::{EffectFilter, Resolution};

use super::super::books::RETRY;
use super::super::handlers::{FICKLE, KINDS, LONG, POISON, effect, json};
use super::{Drive, World};

/// How long ended jobs are kept in the run that checks whether old jobs are deleted.
const KEPT: Duration = Duration::from_secs(60);

impl World<'_> {
    /// Enqueues all jobs of the beginning.
    pub(super) fn enqueue_all(&mut self) {
        // A random sequence of its own, so that the jobs of a smaller scenario are the first jobs
        // of a larger one.
        let mut chance = Chance::seeded(self.chance.bits());
        let drive = self.setup.drive;
        let all: Vec<(&str, Tenant)> = (0..self.scenario().jobs)
            .map(|at| match drive {
                Drive::Mixture => (any_kind(&mut chance), any_tenant(&mut chance)),
                Drive::Only(kind) => (kind, Tenant::default()),
                Drive::Poisoned(poisons) if at < poisons => (POISON, Tenant::default()),
                Drive::Poisoned(_) => (LONG, Tenant::default()),
                Drive::Steady => ("work", Tenant::default()),
            })
            .collect();
        if drive == Drive::Steady {
            return self.let_them_come(all.len(), &mut chance);
        }
        for part in all.chunks(1_000) {
            let new = |(kind, tenant): &(&str, Tenant)| new_job(kind, "{}").tenant(tenant.clone());
            let answers = self.store.enqueue(&part.iter().map(new).collect::<Vec<_>>());
            let mut books = self.shared.books();
            for ((kind, tenant), answer) in part.iter().zip(answers.expect("they are enqueued")) {
                books.enqueue((&name(kind), tenant), None, answer);
            }
        }
    }

    /// Lets jobs arrive one at a time, with so much time in between that the workers are idle.
    /// Ended jobs are kept for a minute.
    fn let_them_come(&mut self, count: usize, chance: &mut Chance) {
        let keep = Some(KEPT);
        let change = QueueChange { keep, keep_dead: keep, ..QueueChange::default() };
        self.store.configure(&Name::default_queue(), &change).expect("it is set");
        let mut at = Duration::ZERO;
        self.arrivals = (0..count)
            .map(|_| {
                at += Duration::from_millis(2_000 + chance.below(4_000));
                at
            })
            .collect();
        // The run goes on long enough for the sweepers to prune twice.
        self.linger = at + KEPT + Duration::from_secs(130);
    }

    /// Enqueues the job that is due to arrive, and notifies every worker.
    pub(super) fn arrive(&mut self) {
        if self.arrivals.front().is_none_or(|at| *at > self.elapsed) {
            return;
        }
        self.arrivals.pop_front();
        let job = new_job("work", "{}");
        let answers = self.store.enqueue(&[job]).expect("it is enqueued");
        let mut books = self.shared.books();
        for answer in answers {
            books.enqueue((&name("work"), &Tenant::default()), None, answer);
            if let Enqueued::Created(job) = answer {
                let now = books.trace.now;
                books.told.insert(job, now);
            }
        }
        drop(books);
        self.workers.iter().flatten().for_each(|worker| worker.desk.poke());
    }

    /// A caller enqueues under one of a few keys, often with other args, and sometimes twice.
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
                let whose = (&name(kind), &Tenant::default());
                books.enqueue(whose, Some((&key, print)), *answer);
            });
        }
        // Chance decides which workers are notified; the others find the job by themselves.
        let workers = self.workers.iter().flatten();
        workers.filter(|_| chance.below(2) == 0).for_each(|worker| worker.desk.poke());
    }

    /// A random job in such a state.
    pub(super) fn any_job(&self, chance: &mut Chance, is: impl Fn(State) -> bool) -> Option<JobId> {
        let books = self.shared.books();
        let from = books.jobs.keys().nth(chance.below(books.jobs.len() as u64) as usize)?;
        let found = books.jobs.range(*from..).chain(books.jobs.range(..*from));
        found.into_iter().find(|(_, ghost)| is(ghost.state)).map(|(job, _)| *job)
    }

    /// A person decides about parked jobs: an effect in doubt is looked up and resolved, and other
    /// jobs are resumed.
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
                // If the call is lost, the job stays parked, and a later turn decides again.
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

/// Most jobs belong to one tenant.
fn any_tenant(chance: &mut Chance) -> Tenant {
    let name = match chance.below(100) {
        0..70 => "",
        70..90 => "ann",
        90..97 => "bob",
        _ => "cid",
    };
    Tenant::check(name).expect("a tenant")
}

fn new_job(kind: &str, args: &str) -> NewJob {
    let number = |count| NonZeroU16::new(count).expect("not zero");
    let retry = RetryPolicy::Exponential { base_ms: RETRY.0, cap_ms: RETRY.1 };
    let job = NewJob::new(name(kind), json(args)).retry(retry);
    match kind {
        "fragile" => job.max_attempts(number(3)).max_crashes(number(50)),
        POISON | FICKLE | LONG => job.max_attempts(number(50)),
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
