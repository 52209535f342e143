//! The machines on threads: each has its own thread and its own connection.
//!
//! This is all that production adds to the machines: it opens connections, reads the time, and
//! rests between steps.

use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Crew, Desk, Dispatcher, NextStep, Plan, Relief, Renewer, Sweeper};
use crate::clock::{self, Moment};
use crate::desk::Stage;
use crate::store::{Result, Wake, Work};
use crate::telemetry::Exit;

/// Makes a connection.
pub(crate) type Connect<'a> = &'a mut dyn FnMut() -> Result<Box<dyn Work>>;

/// The threads of one worker.
pub(crate) struct Threads {
    dispatcher: JoinHandle<Exit>,
    others: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts a worker at this desk. All its connections are opened first, so that a worker that
    /// cannot start fails here.
    pub(crate) fn start(
        plan: &Arc<Plan>,
        desk: &Arc<Desk>,
        mut crew: impl Crew + Send + 'static,
        connect: Connect<'_>,
    ) -> Result<Threads> {
        let now = Moment::now();
        let mut stores = [connect()?, connect()?, connect()?];
        let relieving = if plan.relief > 0 { Some(connect()?) } else { None };
        // The guard is in place before the first job is claimed.
        let mut renewer = Renewer::new(Arc::clone(plan), Arc::clone(desk));
        renewer.register(stores[0].as_mut())?;
        plan.tell_started();
        let [renewing, sweeping, dispatching] = stores;
        let mut sweeper = Sweeper::new(Arc::clone(plan), Arc::clone(desk), now);
        let other_crew = crew.another();
        let dispatcher = Dispatcher::new(Arc::clone(plan), Arc::clone(desk), crew, now);
        let (at_renewing, at_sweeping, at_dispatching) =
            (Arc::clone(desk), Arc::clone(desk), Arc::clone(desk));
        let mut others = vec![
            spawn("tenure-renew", move || keep(&mut renewer, renewing, &at_renewing)),
            spawn("tenure-sweep", move || {
                let mut store = sweeping;
                while let Some(until) = rest(sweeper.step(store.as_mut(), Moment::now())) {
                    at_sweeping.rest_unless_staged(until.since(Moment::now()));
                }
            }),
        ];
        if let Some(store) = relieving {
            let mut relief = Relief::new(Arc::clone(plan), Arc::clone(desk), other_crew);
            let (desk, mut store) = (Arc::clone(desk), store);
            others.push(spawn("tenure-relief", move || {
                // If this thread panics, the worker gives back its jobs and ends. Otherwise it
                // would wait for the attempts that the relief has taken.
                let _release = AtTheEnd(&desk, Stage::Releasing);
                while desk.rest_of_relief() {
                    relief.step(store.as_mut(), Moment::now());
                }
            }));
        }
        let dispatcher =
            spawn("tenure-dispatch", move || dispatch(dispatcher, dispatching, &at_dispatching));
        Ok(Threads { dispatcher, others })
    }

    /// Waits until the worker has ended, and returns why.
    pub(crate) fn join(self) -> Exit {
        let exit = self.dispatcher.join().unwrap_or(Exit::Error);
        for thread in self.others {
            // Even if this thread panicked, the worker has ended.
            let _ = thread.join();
        }
        exit
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    thread::Builder::new().name(name.into()).spawn(work).expect("the system has a thread for us")
}

fn rest(next: NextStep) -> Option<Moment> {
    match next {
        NextStep::Again => Some(Moment::default()),
        NextStep::At(at) => Some(at),
        NextStep::Done => None,
    }
}

fn dispatch<C: Crew>(mut dispatcher: Dispatcher<C>, mut store: Box<dyn Work>, desk: &Desk) -> Exit {
    // Even if the dispatcher panics, the other threads end with it.
    let _over = AtTheEnd(desk, Stage::Over);
    let mut began = Moment::now();
    while let Some(until) = rest(dispatcher.step(store.as_mut(), began)) {
        let ended = Moment::now();
        dispatcher.took(ended.since(began), ended);
        let left = until.since(ended);
        if !left.is_zero() {
            desk.rest(left);
        }
        began = Moment::now();
    }
    dispatcher.exit().unwrap_or(Exit::Error)
}

struct AtTheEnd<'a>(&'a Desk, Stage);

impl Drop for AtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.advance(self.1);
    }
}

/// Between its rounds the renewer waits for changes in the store, which may be work for the
/// dispatcher.
fn keep(renewer: &mut Renewer, mut store: Box<dyn Work>, desk: &Desk) {
    /// The longest wait: short, so that the renewer notices soon that the worker must end.
    /// `AT_THE_END` applies if the worker drains or is ending already.
    const LONGEST: Duration = Duration::from_millis(250);
    const AT_THE_END: Duration = Duration::from_millis(20);
    // When this thread ends, nothing renews the leases, so no job may continue.
    let _release = AtTheEnd(desk, Stage::Releasing);
    while let Some(until) = rest(renewer.step(store.as_mut(), Moment::now())) {
        let longest = if renewer.may_end_soon() { AT_THE_END } else { LONGEST };
        let left = until.since(Moment::now()).min(longest);
        if left.is_zero() {
            continue;
        }
        match store.wait(clock::monotonic() + left) {
            Ok(Wake::Changed) => desk.poke(),
            Ok(Wake::TimedOut) => {}
            Err(error) => {
                renewer.unheard(&error);
                desk.rest_unless_staged(left.min(Duration::from_millis(50)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::store::{Attempt, Look};
    use std::sync::Mutex;

    use super::*;
    use crate::desk::{Hold, Returned};
    use crate::job::{Json, Name, NewJob};
    use crate::lease::WorkerId;
    use crate::lifecycle::Outcome;
    use crate::store::sqlite::{Sqlite, StoreOptions};
    use crate::telemetry::{Fact, Observer};

    /// Runs nothing, and reports each job as done.
    struct Idle(Arc<Desk>);

    impl Crew for Idle {
        fn another(&mut self) -> Idle {
            Idle(Arc::clone(&self.0))
        }

        fn start(&mut self, _: Attempt, hold: Arc<Hold>) {
            let done = Returned::Settle(Outcome::Complete { result: None });
            self.0.returned(hold.fence, done, Moment::now());
        }
    }

    #[test]
    fn the_machines_that_are_simulated_run_on_threads_and_do_every_job_once() {
        let mut store = Sqlite::in_memory(&StoreOptions::default()).unwrap();
        let kind = Name::check("kind", "work").unwrap();
        let job = NewJob::new(kind, Json::check("args", "{}", 10).unwrap());
        store.enqueue(&vec![job; 1_000]).unwrap();
        let succeeded: Arc<Mutex<Vec<_>>> = Arc::default();
        let workers: Vec<Threads> = (0..5)
            .map(|_| {
                let seen = Arc::clone(&succeeded);
                let observer = Observer::new(move |event| {
                    if let Fact::JobSucceeded { .. } = event.fact {
                        seen.lock().unwrap().extend(event.job());
                    }
                });
                let plan = Arc::new(Plan {
                    slots: 8,
                    drain: true,
                    observer,
                    ..Plan::new(WorkerId::unique())
                });
                let desk = Arc::new(Desk::new(plan.slots));
                let mut connect = || Ok(Box::new(store.share()?) as Box<dyn Work>);
                Threads::start(&plan, &desk, Idle(Arc::clone(&desk)), &mut connect).unwrap()
            })
            .collect();
        for worker in workers {
            assert_eq!(worker.join(), Exit::Drained);
        }
        let mut done = std::mem::take(&mut *succeeded.lock().unwrap());
        assert_eq!(done.len(), 1_000, "each is told once");
        done.sort_unstable();
        done.dedup();
        assert_eq!(done.len(), 1_000, "and they are all different");
        assert!(store.workers().unwrap().is_empty(), "each has said good-bye");
    }
}
