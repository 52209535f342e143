//! A disk that loses what was not flushed, and a file that other programs write.
//!
//! A killed process loses nothing that it has written: the operating system keeps it. A power cut
//! loses what was not flushed. So everything that SQLite does to its files is recorded
//! (`recorder`), once, while calls are made and answered (`history`). Then the power fails after
//! every single write and flush. What a disk may have kept by then (`tape`) is put into an empty
//! directory. The store is opened there, and compared with what had been answered (`aftermath`;
//! guarantees G1 and G3).
//!
//! Tenure does not own its file alone either: any program may write to it at any moment
//! (`strangers`), or put another file in its place (`replaced`).

mod aftermath;
mod history;
mod recorder;
mod replaced;
mod strangers;
mod tape;

use std::fmt;

use serde::Serialize;
use tenure::engine::clock::Chance;
use tenure::engine::store::sqlite::Sqlite;

pub(crate) use self::replaced::{Looks, replace};
pub use self::strangers::Encounters;
pub(crate) use self::strangers::{Begin, meet};

use self::aftermath::{Known, look};
use self::history::History;
use self::tape::{Disk, Event, Files, Loss};
use crate::verdict::{Invariant, Violation};

/// The result of one seed.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The seed. None for concurrent callers that share commits: no seed decides their order.
    pub seed: Option<u64>,
    /// How many calls were answered.
    pub calls: usize,
    /// How many events the tape has: the power can fail after each.
    pub points: usize,
    /// How often the power failed, with more or less of the unflushed data lost.
    pub cuts: usize,
    /// How many of these cuts came while the file was being opened after an earlier cut.
    pub again: usize,
    /// After how many cuts the call that was not answered yet had been applied, as a whole.
    pub under_way: usize,
    /// After how many cuts the store took itself for an older copy and began a new epoch, because
    /// its witness was lost or ahead of the file.
    pub new_epochs: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { seed, calls, points, cuts, again, under_way, new_epochs } = self;
        match seed {
            Some(seed) => write!(f, "seed {seed}: ")?,
            None => write!(f, "callers at once: ")?,
        }
        write!(
            f,
            "{calls} calls, {points} points, {cuts} power cuts, {again} of them at the opening after another; \
             {new_epochs} began a new epoch"
        )?;
        match seed {
            Some(_) => write!(f, ", {under_way} kept the call under way"),
            None => Ok(()),
        }
    }
}

/// Runs the calls of a seed, with a power cut after every write and flush.
pub fn run(seed: u64) -> Result<Report, Violation> {
    survive(&record(seed, Flush::Full), Some(seed), &mut Err)
}

/// Repeats one of the power cuts of [`run`]. A report without cuts means that there is no such
/// point.
pub fn replay(seed: u64, point: usize) -> Result<Report, Violation> {
    let only = |at: usize| at == point;
    cut(&record(seed, Flush::Full), Some(seed), &only, &mut Err)
}

/// Like [`run`], with concurrent callers that share commits.
pub fn run_crowd() -> Result<Report, Violation> {
    survive(&record_crowd(Flush::Full), None, &mut Err)
}

/// Another program writes to the file, at every moment of every kind of call.
pub fn run_strangers() -> Result<Encounters, Violation> {
    meet(Begin::Immediate)
}

/// A copy takes the place of the file, at every moment of every kind of call. Returns how many
/// calls failed because of it.
pub fn run_replaced() -> Result<usize, Violation> {
    replace(Looks::Yes)
}

/// What a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    /// The log is flushed to disk.
    Full,
    /// The log is written. It is flushed before a checkpoint moves it into the database.
    Normal,
    /// Nothing.
    Off,
}

impl Flush {
    fn set(self, store: &Sqlite) {
        let word = match self {
            Flush::Full => return, // as the library sets it
            Flush::Normal => "NORMAL",
            Flush::Off => "OFF",
        };
        store
            .with_connection(|connection| connection.pragma_update(None, "synchronous", word))
            .expect("a setting is set");
    }
}

/// The first violation of `wanted` by a store that flushes less than the library does.
pub(crate) fn first_broken(seed: u64, flush: Flush, wanted: Invariant) -> Option<Violation> {
    let mut on_violation = |violation: Violation| match violation.invariant == wanted {
        // No replay: no command line opens a store with this flushing.
        true => Err(Violation { replay: None, ..violation }),
        false => Ok(()),
    };
    survive(&record(seed, flush), Some(seed), &mut on_violation).err()
}

/// How many calls a seed makes. They cause about a thousand writes.
const CALLS: usize = 40;
const CALLERS: usize = 4;

/// The names in a store's directory.
const FILE: &str = "jobs.db";
const WITNESS: &str = "jobs.db-witness";

fn record(seed: u64, flush: Flush) -> History {
    let directory = tempfile::tempdir().expect("a temporary directory");
    history::calls(directory.path(), seed, CALLS, flush).expect("calls are answered")
}

fn record_crowd(flush: Flush) -> History {
    let directory = tempfile::tempdir().expect("a temporary directory");
    history::crowd(directory.path(), CALLERS, 4, flush).expect("calls are answered")
}

/// What to do about a violation: continue, or end with it.
type OnViolation<'a> = &'a mut dyn FnMut(Violation) -> Result<(), Violation>;

fn survive(
    history: &History,
    seed: Option<u64>,
    on_violation: OnViolation<'_>,
) -> Result<Report, Violation> {
    cut(history, seed, &|_| true, on_violation)
}

/// Plays the tape, and lets the power fail after each point for which `here` is true.
fn cut(
    history: &History,
    seed: Option<u64>,
    here: &dyn Fn(usize) -> bool,
    on_violation: OnViolation<'_>,
) -> Result<Report, Violation> {
    let mut trial = Trial::new(history, seed, on_violation);
    let mut disk = Disk::default();
    let mut answered = Vec::new();
    for (at, event) in history.tape.iter().enumerate() {
        let is_new = disk.play(event);
        if let Event::Answered(call) = event {
            answered.push(*call);
        }
        if !here(at) {
            continue;
        }
        let known = known(history, &answered);
        // A cut that loses everything unflushed is tried only after an event that changes what is
        // left (a flush), or what must be left (an answer).
        let losses = Loss::ALL.iter().filter(|loss| match loss {
            Loss::Everything => is_new,
            Loss::Tail => at % 2 == 0,
            Loss::Scattered => at % 2 == 1,
        });
        for loss in losses {
            let number = seed.unwrap_or(0) << 32 | (at as u64) << 2 | *loss as u64;
            let mut chance = Chance::seeded(number);
            let files = disk.after_power_cut(*loss, WITNESS, &mut chance);
            let story = || schedule(history, at, *loss);
            let opening = trial.open(&files, &known, at, &story)?;
            if at % AGAIN == 0 && known.is_open() {
                trial.cut_again(&files, &opening, &known, at, &story, &mut chance)?;
            }
        }
    }
    Ok(trial.report)
}

/// At every 61st point the power fails a second time, while the store opens the file. Opening moves
/// the log into the database, and may begin a new epoch. Points before the store was first open are
/// left out: the tape itself has cuts during the creation of the store.
const AGAIN: usize = 61;

/// One history, and the results of its cuts so far.
struct Trial<'a> {
    place: tempfile::TempDir,
    report: Report,
    on_violation: OnViolation<'a>,
}

impl<'a> Trial<'a> {
    fn new(history: &History, seed: Option<u64>, on_violation: OnViolation<'a>) -> Trial<'a> {
        let (calls, points) = (history.calls.len() - 1, history.tape.len());
        let report = Report { seed, calls, points, cuts: 0, again: 0, under_way: 0, new_epochs: 0 };
        let place = tempfile::tempdir().expect("a temporary directory");
        Trial { place, report, on_violation }
    }

    /// Opens a store on the files that a cut has left, and checks it. Returns what the opening did
    /// to the files.
    fn open(
        &mut self,
        files: &Files,
        known: &Known<'_>,
        at: usize,
        story: &dyn Fn() -> Vec<String>,
    ) -> Result<Vec<Event>, Violation> {
        let directory = self.place.path().join("cut");
        std::fs::create_dir(&directory).expect("a directory is made");
        let found = look(&directory, files, known).expect("files are written");
        std::fs::remove_dir_all(&directory).expect("a directory is removed");
        let report = &mut self.report;
        report.cuts += 1;
        report.under_way += usize::from(found.under_way);
        report.new_epochs += usize::from(found.new_epoch);
        for (invariant, what) in found.wrong {
            let replay = report.seed.map(|seed| format!("drill disk --seed {seed} --point {at}"));
            let (schedule, states) = (story(), report.cuts);
            (self.on_violation)(Violation { invariant, what, schedule, states, replay })?;
        }
        Ok(found.opening)
    }

    /// The power fails a second time, after each write and flush of the opening.
    fn cut_again(
        &mut self,
        files: &Files,
        opening: &[Event],
        known: &Known<'_>,
        at: usize,
        story: &dyn Fn() -> Vec<String>,
        chance: &mut Chance,
    ) -> Result<(), Violation> {
        let mut disk = Disk::holding(files, WITNESS);
        for (second, event) in opening.iter().enumerate() {
            disk.play(event);
            let loss = Loss::ALL[second % Loss::ALL.len()];
            let found = disk.after_power_cut(loss, WITNESS, chance);
            let story = || {
                let mut lines = story();
                lines.extend(opening[..=second].iter().map(Event::describe));
                lines.push(format!("the power fails again: {}", loss.describe()));
                lines
            };
            self.open(&found, known, at, &story)?;
            self.report.again += 1;
        }
        Ok(())
    }
}

fn known<'a>(history: &'a History, answered: &[usize]) -> Known<'a> {
    let last = answered.last().map_or(0, |last| *last);
    let states = [last, last + 1];
    Known {
        answered: answered.iter().map(|call| &history.calls[*call]).collect(),
        states: states.iter().filter_map(|at| history.calls.get(*at)?.after.as_ref()).collect(),
    }
}

/// The calls up to the cut, and the last file events before it.
fn schedule(history: &History, at: usize, loss: Loss) -> Vec<String> {
    const LAST: usize = 6;
    let answered = history.tape[..=at].iter().filter_map(|event| match event {
        Event::Answered(call) => Some(&history.calls[*call].what),
        _ => None,
    });
    let mut lines: Vec<_> = answered.map(|what| format!("{what}: answered")).collect();
    let from = (at + 1).saturating_sub(LAST);
    lines.extend(history.tape[from..=at].iter().map(Event::describe));
    lines.push(format!("the power fails after point {at}: {}", loss.describe()));
    lines
}
