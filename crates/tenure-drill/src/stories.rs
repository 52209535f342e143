//! Stories: what real workers do when the worst happens, as a person would demonstrate it to a
//! colleague.
//!
//! Each story sets up the danger on a store of its own, with real processes, and lets it happen.
//! The events that the processes report are the trace. Then the story checks each claim of its
//! verdict against the store, the trace, or a file in which handlers wrote down what they did. A
//! verdict is a pure function of what was seen, so tests can show that it fails when it should.

pub mod crash;
pub mod duplicate;
pub mod mid_apply;
pub mod outage;
pub mod poison;
pub mod race;
mod stage;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tenure::engine::store::{Error, Result};
use tenure::{Address, JobId, Token};

use self::stage::Stage;
use crate::workers::Program;

/// Where a story runs.
#[derive(Debug, Clone)]
pub struct Scene {
    /// The program that its processes run.
    pub program: Program,
    /// An empty store that nothing else uses.
    pub place: String,
    /// An empty directory that nothing else uses. Handlers wait here until a file appears (a gate),
    /// and write down here what they did (a bank's book).
    pub directory: PathBuf,
}

impl Scene {
    /// The name of the engine.
    pub fn engine(&self) -> &'static str {
        let is_server = |address: Address| address.server().is_some();
        if self.place.parse().is_ok_and(is_server) { "postgres" } else { "sqlite" }
    }
}

/// Where a story reports to while it runs.
pub trait Audience {
    /// Something happened.
    fn told(&mut self, told: &Told);
    /// How far long work has come.
    fn so_far(&mut self, text: &str);
    /// Whether the story should stop.
    fn has_left(&mut self) -> bool;
}

/// No audience.
impl Audience for () {
    fn told(&mut self, _: &Told) {}
    fn so_far(&mut self, _: &str) {}
    fn has_left(&mut self) -> bool {
        false
    }
}

/// What happened, which process reported it, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Told {
    /// Milliseconds since the story began.
    pub ms: u64,
    /// A worker's letter, or [`NARRATOR`].
    pub who: String,
    /// The event with all its fields.
    #[serde(flatten)]
    pub event: Value,
}

/// The reporter of what the story itself does.
pub const NARRATOR: &str = "-";
/// The event's name for that.
const NOTE: &str = "note";

impl Told {
    /// The event's name.
    pub fn name(&self) -> &str {
        self.text("event")
    }

    /// A text field, empty if there is none.
    pub fn text(&self, field: &str) -> &str {
        self.event[field].as_str().unwrap_or_default()
    }

    /// The job that the event is about.
    pub fn job(&self) -> Option<JobId> {
        JobId::parse(self.text("job")).ok()
    }

    /// The token of the attempt that the event is about.
    pub fn token(&self) -> Option<Token> {
        self.token_in("token")
    }

    fn token_in(&self, field: &str) -> Option<Token> {
        Token::parse(self.text(field)).ok()
    }

    /// Whether this is the event `name`, reported by `who`.
    pub fn is(&self, who: &str, name: &str) -> bool {
        self.who == who && self.name() == name
    }

    fn is_of(&self, who: &str, name: &str, job: JobId) -> bool {
        self.is(who, name) && self.job() == Some(job)
    }
}

/// Longer texts are cut: the JSON has them in full.
const WIDTH: usize = 100;

/// One line for people: when, who, what, and the fields that matter.
impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// These fields come first: which attempt, and what it is about.
        const FIRST: [&str; 8] =
            ["job", "token", "kind", "attempt", "verb", "stale_token", "current_token", "reason"];
        /// Omitted: the worker is already shown in front, and all jobs are in one queue of one
        /// tenant.
        const LEFT_OUT: [&str; 8] =
            ["event", "worker", "from", "queue", "tenant", "queues", "kinds", "concurrency"];
        let name = self.name();
        write!(f, "{:>9}  {:<2}  ", seconds(Duration::from_millis(self.ms)), self.who)?;
        if name == NOTE {
            return f.write_str(self.text("text"));
        }
        let rest = self.event.as_object().into_iter().flatten().map(|(field, _)| field.as_str());
        let rest = rest.filter(|field| !FIRST.contains(field) && !LEFT_OUT.contains(field));
        let mut fields = String::new();
        for field in FIRST.into_iter().chain(rest) {
            match &self.event[field] {
                Value::Null => {}
                Value::String(text) if !text.contains([' ', '\n', '"']) => {
                    fields += &format!(" {field}={text}");
                }
                Value::String(text) if text.chars().count() > WIDTH => {
                    let text: String = text.chars().take(WIDTH).collect();
                    fields += &format!(" {field}={:?}", format!("{text}…"));
                }
                value => fields += &format!(" {field}={value}"),
            }
        }
        if fields.is_empty() { f.write_str(name) } else { write!(f, "{name:<19}{fields}") }
    }
}

/// Something that must hold, and what was seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Claim {
    /// What must hold.
    pub claim: String,
    /// Whether it holds.
    pub held: bool,
    /// What was seen.
    pub seen: String,
}

impl Claim {
    fn new(claim: impl Into<String>, held: bool, seen: impl Into<String>) -> Claim {
        Claim { claim: claim.into(), held, seen: seen.into() }
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Claim { claim, held, seen } = self;
        write!(f, "{:<6}  {claim} ({seen})", if *held { "ok" } else { "FAILED" })
    }
}

/// The report of a story that has run.
#[derive(Debug, Clone, Serialize)]
pub struct Story {
    /// Its name.
    pub story: &'static str,
    /// The engine.
    pub engine: &'static str,
    /// The number of runs.
    pub runs: usize,
    /// The totals of many runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figures: Option<race::Figures>,
    /// The events. Of many runs, only of those that failed.
    pub trace: Vec<Told>,
    /// The claims.
    pub verdict: Vec<Claim>,
    /// Whether all of them hold.
    pub held: bool,
}

impl Story {
    fn new(story: &'static str, scene: &Scene, trace: Vec<Told>, verdict: Vec<Claim>) -> Story {
        let held = !verdict.is_empty() && verdict.iter().all(|claim| claim.held);
        Story { story, engine: scene.engine(), runs: 1, figures: None, trace, verdict, held }
    }
}

/// Why a story stopped early.
enum Halt {
    /// The store cannot be used.
    Store(Error),
    /// Something that should have happened did not.
    Stuck(String),
    /// The audience has left.
    Left,
}

impl From<Error> for Halt {
    fn from(error: Error) -> Halt {
        Halt::Store(error)
    }
}

type Go<T> = std::result::Result<T, Halt>;

/// Runs a story to its end. A wait that times out becomes a claim that does not hold, and so does a
/// story that was stopped early.
fn play(
    name: &'static str,
    scene: &Scene,
    audience: &mut dyn Audience,
    act: impl FnOnce(&mut Stage<'_>) -> Go<Vec<Claim>>,
) -> Result<Story> {
    let mut stage = Stage::new(scene, audience)?;
    let verdict = match act(&mut stage) {
        Ok(verdict) => verdict,
        Err(Halt::Store(error)) => return Err(error),
        Err(Halt::Stuck(what)) => vec![Claim::new("the story goes on", false, what)],
        Err(Halt::Left) => vec![Claim::new("the story is played to its end", false, "interrupted")],
    };
    Ok(Story::new(name, scene, stage.into_trace(), verdict))
}

/// A duration for people to read.
fn seconds(length: Duration) -> String {
    format!("{:.3} s", length.as_secs_f64())
}

fn times(n: usize) -> String {
    if n == 1 { "once".into() } else { format!("{n} times") }
}

/// A number with the singular or plural of its noun.
fn many(n: usize, one: &str, more: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { more })
}

/// A claim of every story: `check` finds nothing wrong in the store.
fn nothing_wrong(stage: &mut Stage<'_>) -> Go<Claim> {
    let wrong = stage.wrong()?;
    let seen = match wrong.first() {
        None => "all was checked".to_owned(),
        Some(first) => format!("{}, such as {}", wrong.len(), first.what),
    };
    Ok(Claim::new("nothing is stored that must not be", wrong.is_empty(), seen))
}
