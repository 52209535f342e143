//! The cases: every pair of scripts in each start where at least one of them acts, and chosen cases
//! beyond the pairs.

use super::script::{self, SCRIPTS, Script};
use super::start::{self, STARTS, Start};

/// A known state, and the scripts of two or three sessions in it.
#[derive(Clone)]
pub struct Case {
    /// The start and the scripts: `over/claim+fence-write`.
    pub name: String,
    pub(super) start: &'static Start,
    pub(super) scripts: Vec<Script>,
    /// Whether the case is run every day: a pair in the first of its starts, or a case beyond the
    /// pairs.
    pub is_first: bool,
}

impl Case {
    fn new(start: &'static Start, scripts: &[Script], is_first: bool) -> Case {
        let names: Vec<&str> = scripts.iter().map(|script| script.name).collect();
        let name = format!("{}/{}", start.name, names.join("+"));
        Case { name, start, scripts: scripts.to_vec(), is_first }
    }

    /// A case from the names of its start and scripts.
    pub(crate) fn of(start: &str, scripts: &[&str]) -> Case {
        let scripts: Vec<Script> = scripts.iter().map(|name| script::named(name)).collect();
        Case::new(start::named(start), &scripts, true)
    }

    /// The same case with the sessions in reverse order.
    pub(super) fn turned(&self) -> Case {
        let mut scripts = self.scripts.clone();
        scripts.reverse();
        Case::new(self.start, &scripts, false)
    }

    /// The statements that its sessions send, without COMMIT.
    pub(crate) fn statements(&self) -> impl Iterator<Item = &'static str> {
        self.scripts.iter().flat_map(|script| script.steps.iter().map(|step| step.sql))
    }

    /// Whether the case is a pair; otherwise it is a triple, which has many more orders.
    pub fn is_pair(&self) -> bool {
        self.scripts.len() == 2
    }

    /// Whether the case has both users' own transactions and calls of workers.
    pub fn is_mixed(&self) -> bool {
        let users = |script: &Script| script.about == script::About::Users;
        self.scripts.iter().any(users) && !self.scripts.iter().all(users)
    }
}

/// All cases.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    for (at, first) in SCRIPTS.iter().enumerate() {
        for second in &SCRIPTS[at..] {
            pair(&mut all, first, second);
        }
    }
    all.extend(chosen());
    all
}

/// The cases beyond the pairs.
pub fn chosen() -> Vec<Case> {
    CHOSEN.iter().map(|(start, scripts)| Case::of(start, scripts)).collect()
}

/// The case of this name.
pub fn find(name: &str) -> Option<Case> {
    cases().into_iter().find(|case| case.name == name)
}

/// The pairs whose calls are paused inside.
pub fn inside() -> Vec<Case> {
    const PAIRS: [(&str, [&str; 2]); 35] = [
        ("queued", ["enqueue", "enqueue"]),
        ("expired", ["enqueue", "enqueue"]),
        ("queued", ["claim", "claim"]),
        ("over", ["claim", "claim"]),
        ("over", ["claim", "complete"]),
        ("over", ["claim", "lapse"]),
        ("over", ["lapse", "renew"]),
        ("over", ["claim", "renew"]),
        ("over", ["claim", "fail"]),
        ("running", ["complete", "cancel"]),
        ("running", ["complete", "renew"]),
        ("running", ["retry", "cancel"]),
        ("running", ["vanished", "renew"]),
        ("taken", ["complete", "complete"]),
        ("parked", ["resume", "cancel"]),
        ("dead", ["requeue", "purge"]),
        ("dead", ["requeue", "refused"]),
        ("dead", ["refused", "purge"]),
        ("old", ["renew", "prune"]),
        ("old", ["requeue", "prune"]),
        ("over", ["fence-write", "claim"]),
        ("over", ["fence-write", "lapse"]),
        ("due", ["claim", "claim"]),
        ("due", ["claim", "cancel"]),
        ("over", ["open-effect", "claim"]),
        ("running", ["commit-effect", "cancel"]),
        ("running", ["remember-step", "cancel"]),
        ("running", ["vanished", "register"]),
        ("running", ["progress", "cancel"]),
        ("mistaken", ["renew", "retry"]),
        ("forgetful", ["renew", "complete"]),
        ("parked", ["resolve", "cancel"]),
        ("dead", ["resolve", "purge"]),
        ("expired", ["enqueue", "prune"]),
        ("queued", ["raise-epoch", "raise-epoch"]),
    ];
    PAIRS.iter().map(|(start, scripts)| Case::of(start, scripts)).collect()
}

/// A case that is not part of the proof: its outcome equals no serial order, and the stepper must
/// report that.
pub fn planted() -> Case {
    Case::of("queued", &["planted", "planted"])
}

/// Each script twice, in every start where it claims to act.
pub(super) fn alone() -> Vec<Case> {
    let all =
        SCRIPTS.iter().flat_map(|script| script.acts_in.iter().map(move |start| (script, *start)));
    all.map(|(script, start)| Case::new(start::named(start), &[*script; 2], false)).collect()
}

/// A pair, in every start where one of the scripts acts; starts where both act come first.
fn pair(all: &mut Vec<Case>, first: &Script, second: &Script) {
    let acts = |script: &Script, start: &Start| script.acts_in.contains(&start.name);
    let mut starts: Vec<&'static Start> =
        STARTS.iter().filter(|start| acts(first, start) || acts(second, start)).collect();
    starts.sort_by_key(|start| !(acts(first, start) && acts(second, start)));
    for (n, start) in starts.into_iter().enumerate() {
        all.push(Case::new(start, &[*first, *second], n == 0));
        // Where the sessions show different tokens, it matters which session runs which script.
        if start.tokens[0] != start.tokens[1] && first.name != second.name {
            all.push(Case::new(start, &[*second, *first], false));
        }
    }
}

/// Cases beyond the pairs.
const CHOSEN: [(&str, &[&str]); 42] = [
    // Batches in opposite orders, most with a third session in the middle; and three equal
    // sessions.
    ("three", &["settle-up", "settle-down", "hold-middle"]),
    ("three", &["mixed-up", "settle-down", "hold-middle"]),
    ("three", &["effects-down", "settle-up", "hold-middle"]),
    ("three", &["cancel-down", "mixed-up", "hold-middle"]),
    ("taken", &["late-up", "late-down", "late-middle"]),
    ("taken", &["renew-up", "renew-down", "renew-middle"]),
    ("taken", &["progress-up", "progress-down", "progress-middle"]),
    ("queued", &["keys-up", "keys-down"]),
    ("queued", &["enqueue", "enqueue", "enqueue"]),
    ("queued", &["claim", "claim", "claim"]),
    ("many", &["claim-two", "claim-two", "claim-two"]),
    // A user's transaction, and other sessions that try to take its job.
    ("over", &["fence-write", "lapse", "claim"]),
    ("over", &["write-complete", "lapse", "claim"]),
    ("over", &["hold-write-complete", "renew", "claim"]),
    ("over", &["fence-write-settle", "claim"]),
    ("over", &["complete-write", "complete-write"]),
    ("over", &["write-complete", "take-over"]),
    ("over", &["fence-write-complete", "take-over"]),
    ("over", &["hold-write-complete", "take-over"]),
    ("over", &["complete", "renew", "lapse"]),
    ("running", &["complete", "cancel", "renew"]),
    ("running", &["vanished", "register", "complete"]),
    ("taken", &["fence-write", "write-complete", "cancel"]),
    ("parked", &["resume", "resolve", "cancel"]),
    ("dead", &["requeue", "purge", "prune"]),
    ("old", &["requeue", "purge", "prune"]),
    // A follow-up job is enqueued before its job is settled, in one transaction.
    ("over", &["follow", "claim"]),
    ("running", &["follow", "cancel"]),
    ("running", &["follow", "renew"]),
    // A waiting job that has become due, and sessions that promote or end it.
    ("due", &["claim", "claim"]),
    ("due", &["claim", "cancel"]),
    // A worker whose lock is seen free for the first time.
    ("unseen", &["vanished", "register"]),
    ("unseen", &["vanished", "retire"]),
    // A worker that was considered gone comes back with two calls at once.
    ("mistaken", &["renew", "progress"]),
    // A refused write to a job that is deleted as soon as it succeeds.
    ("forgetful", &["renew", "complete"]),
    // A worker that has not registered for a long time, and registers now.
    ("expired", &["prune", "register"]),
    // One session records a new epoch, and the others go on.
    ("moved", &["claim", "claim"]),
    ("moved", &["claim", "raise-epoch"]),
    // The same for a break in time.
    ("stalled", &["claim", "claim"]),
    // Two workers have noticed that the server was restored from an older copy, and one of them
    // begins the epoch.
    ("queued", &["witness", "witness"]),
    ("queued", &["witness", "raise-epoch"]),
    // Two operators, each of whom gets the previous value.
    ("queued", &["gap-second", "gap-two-seconds"]),
];
