//! The stage of a story: its store, its processes under their letters, and the trace of their
//! events.
//!
//! Every wait names what it waits for. If it times out, the story ends with a claim that does not
//! hold.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use tenure::engine::clock::monotonic;
use tenure::engine::inspect::{EffectFilter, EffectView, JobDetail, Wrong};
use tenure::engine::job::{JobId, NewJob, State};
use tenure::engine::store::{Enqueued, Result, Store};

use super::{Audience, Go, Halt, NARRATOR, NOTE, Scene, Told};
use crate::speakers::PATIENCE;
use crate::workers::{self, Care, Event, Setup, Worker, process};

pub(super) struct Stage<'a> {
    scene: &'a Scene,
    audience: &'a mut dyn Audience,
    /// The story's own connection.
    pub(super) store: Box<dyn Store>,
    cast: Vec<(String, Worker)>,
    /// The letters of the processes that do not renew, because the story switched that off.
    stalled: Vec<String>,
    begun: Instant,
    pub(super) trace: Vec<Told>,
    /// The place of the store, as its processes are given it.
    pub(super) place: String,
}

impl<'a> Stage<'a> {
    pub(super) fn new(scene: &'a Scene, audience: &'a mut dyn Audience) -> Result<Stage<'a>> {
        let store = workers::open(&scene.place)?;
        Ok(Stage {
            scene,
            audience,
            store,
            cast: Vec::new(),
            stalled: Vec::new(),
            begun: monotonic(),
            trace: Vec::new(),
            place: scene.place.clone(),
        })
    }

    pub(super) fn into_trace(self) -> Vec<Told> {
        self.trace.into_iter().filter(|told| !is_quiet(told)).collect()
    }

    /// A file beside the store: a gate, which is closed while the file does not exist, or a book in
    /// which handlers write down what they did.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.scene.directory.join(name)
    }

    /// Opens a gate.
    pub(super) fn open(&mut self, gate: &PathBuf) -> Go<()> {
        let broken = |cause: std::io::Error| Halt::Stuck(format!("{}: {cause}", gate.display()));
        std::fs::write(gate, "").map_err(broken)
    }

    // ── the processes

    /// Starts a worker and waits until it works.
    pub(super) fn enter(&mut self, who: &str, setup: &Setup) -> Go<()> {
        self.launch(who, &process::words(setup));
        if setup.care == Care::Stalled {
            self.stalled.push(who.to_owned());
        }
        let started =
            |stage: &Stage<'_>| stage.trace.iter().any(|told| told.is(who, "worker_started"));
        self.until(&format!("{who} to start"), |stage| {
            let is_over = stage.has_ended(who);
            stage.listen();
            Ok(started(stage) || is_over)
        })?;
        if started(self) {
            return Ok(());
        }
        Err(Halt::Stuck(format!("{who} ended before it could work; it says why on stderr")))
    }

    /// Starts a process with these arguments.
    pub(super) fn launch(&mut self, who: &str, words: &[String]) {
        let worker = Worker::launch(&self.scene.program, &self.place, words);
        self.cast.push((who.to_owned(), worker));
    }

    /// Kills the process with -9, and returns when.
    pub(super) fn kill(&mut self, who: &str) -> u64 {
        let pid = self.member(who).pid();
        self.member(who).kill();
        // The events that it reported before its death come first in the trace.
        self.listen();
        self.note(&format!("kill -9 {pid}, which is {who}"));
        self.ms(monotonic())
    }

    /// Whether the process has ended by itself.
    pub(super) fn has_ended(&mut self, who: &str) -> bool {
        self.member(who).has_ended()
    }

    /// Asks the process to end, and waits until it reports why it did.
    pub(super) fn end(&mut self, who: &str) -> Go<Told> {
        self.member(who).close();
        let exit = self.hear(who, "worker_exit")?;
        self.member(who).end();
        Ok(exit)
    }

    fn member(&mut self, who: &str) -> &mut Worker {
        let found = self.cast.iter_mut().find(|(name, _)| name == who);
        &mut found.expect("somebody who has entered").1
    }

    // ── the trace

    /// Adds what the story itself does to the trace.
    pub(super) fn note(&mut self, text: &str) {
        let ms = self.ms(monotonic());
        self.tell(Told { ms, who: NARRATOR.into(), event: json!({ "event": NOTE, "text": text }) });
    }

    pub(super) fn so_far(&mut self, text: &str) {
        self.audience.so_far(text);
    }

    fn tell(&mut self, told: Told) {
        if !is_quiet(&told) {
            self.audience.told(&told);
        }
        self.trace.push(told);
    }

    fn ms(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.begun).as_millis()).unwrap_or(u64::MAX)
    }

    /// Adds the new events of all processes to the trace, in the order in which they were received.
    pub(super) fn listen(&mut self) {
        let mut heard: Vec<(Instant, Told)> = Vec::new();
        for (who, worker) in &mut self.cast {
            worker.catch_up();
            let pid = worker.pid();
            for Event { at, name, mut all, .. } in worker.events.drain(..) {
                if name == "worker_started" {
                    all["process"] = pid.into();
                }
                heard.push((at, Told { ms: 0, who: who.clone(), event: all }));
            }
        }
        heard.sort_by_key(|(at, _)| *at);
        for (at, mut told) in heard {
            told.ms = self.ms(at);
            if self.is_forced(&told) {
                told.event["forced"] = true.into();
            }
            self.tell(told);
        }
    }

    /// Whether a lease ended only because the story had switched its holder's renewals off.
    fn is_forced(&self, told: &Told) -> bool {
        let is_stalled =
            |one: &&Told| one.name() == "worker_started" && self.stalled.contains(&one.who);
        let mut stalled = self.trace.iter().filter(is_stalled);
        told.name() == "lease_lapsed" && stalled.any(|one| one.text("worker") == told.text("from"))
    }

    // ── waiting

    /// Waits until `is` returns true. If the store is unreachable for the moment, tries again.
    pub(super) fn until(
        &mut self,
        what: &str,
        mut is: impl FnMut(&mut Stage<'_>) -> Result<bool>,
    ) -> Go<()> {
        let end = monotonic() + PATIENCE;
        loop {
            self.listen();
            match is(self) {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(error.into()),
            }
            if self.audience.has_left() {
                return Err(Halt::Left);
            }
            if monotonic() >= end {
                return Err(Halt::Stuck(format!("waited {PATIENCE:?} in vain for {what}")));
            }
            // Does not wait for a change of the store: the condition may depend on events or files.
            rest(Duration::from_millis(5));
        }
    }

    /// Waits until the process reports this event for the first time.
    pub(super) fn hear(&mut self, who: &str, name: &str) -> Go<Told> {
        self.heard(&format!("{name} from {who}"), |told| told.is(who, name))
    }

    /// Waits until the process reports this event about this job for the first time.
    pub(super) fn hear_of(&mut self, who: &str, name: &str, job: JobId) -> Go<Told> {
        let what = format!("{name} of job {job} from {who}");
        self.heard(&what, |told| told.is_of(who, name, job))
    }

    fn heard(&mut self, what: &str, is: impl Fn(&Told) -> bool) -> Go<Told> {
        self.until(what, |stage| Ok(stage.trace.iter().any(&is)))?;
        let found = self.trace.iter().find(|told| is(told)).cloned();
        found.ok_or_else(|| Halt::Stuck(what.to_owned()))
    }

    /// Waits until all these jobs are in this state.
    pub(super) fn until_all(&mut self, jobs: &[JobId], state: State) -> Go<()> {
        let mut left = jobs.to_vec();
        self.until(&format!("{} jobs to be {}", jobs.len(), state.name()), |stage| {
            while let Some(id) = left.last() {
                let found = stage.store.job(*id)?;
                if found.is_none_or(|found| found.job.state != state) {
                    return Ok(false);
                }
                left.pop();
            }
            Ok(true)
        })
    }

    /// Waits until that moment.
    pub(super) fn until_ms(&mut self, ms: u64) -> Go<()> {
        self.until("time to pass", |stage| Ok(stage.ms(monotonic()) >= ms))
    }

    // ── the store

    pub(super) fn put(&mut self, jobs: &[NewJob]) -> Go<Vec<JobId>> {
        let created = self.store.enqueue(jobs)?.into_iter().map(|answer| match answer {
            Enqueued::Created(id) => Ok(id),
            other => Err(Halt::Stuck(format!("a job was not stored: {other:?}"))),
        });
        created.collect()
    }

    /// A job and its timeline.
    pub(super) fn job(&mut self, id: JobId) -> Go<JobDetail> {
        let found = self.store.job(id)?;
        found.ok_or_else(|| Halt::Stuck(format!("job {id} is not in the store any more")))
    }

    /// The effects of a job.
    pub(super) fn effects(&mut self, id: JobId) -> Go<Vec<EffectView>> {
        let filter = EffectFilter { job: Some(id), ..EffectFilter::default() };
        Ok(self.store.effects(&filter, 100)?)
    }

    /// Everything that `check` finds wrong in the store.
    pub(super) fn wrong(&mut self) -> Go<Vec<Wrong>> {
        let (mut from, mut wrong) = (None, Vec::new());
        loop {
            let checked = self.store.check(from, 1_000)?;
            wrong.extend(checked.wrong);
            from = checked.next;
            if from.is_none() {
                return Ok(wrong);
            }
        }
    }
}

/// Events that are not worth showing.
fn is_quiet(told: &Told) -> bool {
    ["lease_renewed", process::SUBMITTER_READY].contains(&told.name())
}

/// Pauses, so that other processes can do something.
fn rest(length: Duration) {
    std::thread::park_timeout(length);
}
