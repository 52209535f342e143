//! What was done to files, in order, and what a power cut leaves of it. Pure: chance comes in as an
//! argument.
//!
//! A disk guarantees nothing that was not flushed. Of the writes to a file since its last flush,
//! the disk may have kept none, the first part, or any sectors. A directory has the names of its
//! last flush, or those of now.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tenure::engine::clock::Chance;

/// One event. All threads share one order.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// A file was opened, and exists from now on.
    Opened(String),
    Wrote {
        file: String,
        at: usize,
        bytes: Vec<u8>,
    },
    Truncated {
        file: String,
        to: usize,
    },
    Flushed(String),
    Deleted(String),
    FlushedDirectory,
    /// The content that was read from the witness. A witness is never flushed.
    Witness(Vec<u8>),
    /// The call with this number was answered.
    Answered(usize),
}

impl Event {
    /// A description, for a schedule.
    pub(super) fn describe(&self) -> String {
        match self {
            Event::Opened(file) => format!("{file} is opened"),
            Event::Wrote { file, at, bytes } => {
                format!("{} bytes are written to {file} at {at}", bytes.len())
            }
            Event::Truncated { file, to } => format!("{file} is cut to {to} bytes"),
            Event::Flushed(file) => format!("{file} is flushed"),
            Event::Deleted(file) => format!("{file} is deleted"),
            Event::FlushedDirectory => "the directory is flushed".to_owned(),
            Event::Witness(_) => "the witness is written".to_owned(),
            Event::Answered(call) => format!("call {call} is answered"),
        }
    }
}

/// Records events.
#[derive(Debug, Default)]
pub(super) struct Tape(Mutex<Vec<Event>>);

impl Tape {
    pub(super) fn note(&self, event: Event) {
        self.events().push(event);
    }

    /// Takes all events so far. The tape is empty afterwards.
    pub(super) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.events())
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a power cut takes of the unflushed data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// All of it.
    Everything,
    /// Everything from some point on, which may be in the middle of a write.
    Tail,
    /// Any sectors.
    Scattered,
}

impl Loss {
    pub(super) const ALL: [Loss; 3] = [Loss::Everything, Loss::Tail, Loss::Scattered];

    /// A description, for a schedule.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Loss::Everything => "nothing that was not flushed is left",
            Loss::Tail => "of what was not flushed the first part is left",
            Loss::Scattered => "of what was not flushed some sectors are left",
        }
    }
}

/// The unit that disks write as a whole.
const SECTOR: usize = 512;

/// The files' contents, by name.
pub(super) type Files = BTreeMap<String, Vec<u8>>;

/// A disk, as far as the tape was played.
#[derive(Debug, Default)]
pub(super) struct Disk {
    /// All files that ever existed, including several under one name.
    files: Vec<File>,
    /// The directory as programs see it, and as it was flushed last.
    names: BTreeMap<String, usize>,
    flushed_names: BTreeMap<String, usize>,
    /// The contents that the witness has had, oldest first.
    witness: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
struct File {
    flushed: Vec<u8>,
    pending: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

impl Disk {
    /// A disk on which all of this is flushed.
    pub(super) fn holding(files: &Files, witness: &str) -> Disk {
        let mut disk = Disk::default();
        for (name, bytes) in files {
            if name == witness {
                disk.witness.push(bytes.clone());
            } else {
                disk.file(name).flushed.clone_from(bytes);
            }
        }
        disk.flushed_names.clone_from(&disk.names);
        disk
    }

    /// Plays one event. Returns whether a cut that loses everything unflushed is worth a try after
    /// it: the event changed what is left (a flush), or what must be left (an answer).
    pub(super) fn play(&mut self, event: &Event) -> bool {
        match event {
            Event::Opened(name) => {
                self.file(name);
                false
            }
            Event::Wrote { file, at, bytes } => {
                self.file(file).pending.push(Change::Write(*at, bytes.clone()));
                false
            }
            Event::Truncated { file, to } => {
                self.file(file).pending.push(Change::Truncate(*to));
                false
            }
            Event::Flushed(name) => {
                let file = self.file(name);
                let pending = std::mem::take(&mut file.pending);
                pending.iter().for_each(|change| apply(change, &mut file.flushed));
                !pending.is_empty()
            }
            Event::Deleted(name) => {
                self.names.remove(name);
                false
            }
            Event::FlushedDirectory => {
                self.flushed_names.clone_from(&self.names);
                true
            }
            Event::Witness(said) => {
                self.witness.push(said.clone());
                true
            }
            Event::Answered(_) => true,
        }
    }

    /// The files after the power is back; `witness` is the name of the witness file.
    pub(super) fn after_power_cut(&self, loss: Loss, witness: &str, chance: &mut Chance) -> Files {
        let names = match loss {
            Loss::Everything => &self.flushed_names,
            Loss::Tail | Loss::Scattered if chance.below(2) == 0 => &self.names,
            Loss::Tail | Loss::Scattered => &self.flushed_names,
        };
        let mut found: Files = names
            .iter()
            .map(|(name, file)| (name.clone(), self.files[*file].after(loss, chance)))
            .collect();
        if let Some(said) = self.witness_after(chance) {
            found.insert(witness.to_owned(), said);
        }
        found
    }

    /// The content of the witness file after a power cut; `None` if there is no file. The file is
    /// never flushed, so it may have its last content or an earlier one, be empty, or hold zeros.
    fn witness_after(&self, chance: &mut Chance) -> Option<Vec<u8>> {
        let last = self.witness.last()?;
        match chance.below(5) {
            0 => None,
            1 => Some(Vec::new()),
            2 => Some(vec![0; last.len()]),
            3 => Some(last.clone()),
            _ => self.witness.get(chance.below(self.witness.len() as u64) as usize).cloned(),
        }
    }

    /// What programs read before a power cut.
    #[cfg(test)]
    pub(super) fn as_seen(&self, name: &str) -> Option<Vec<u8>> {
        let file = &self.files[*self.names.get(name)?];
        let mut seen = file.flushed.clone();
        file.pending.iter().for_each(|change| apply(change, &mut seen));
        Some(seen)
    }

    fn file(&mut self, name: &str) -> &mut File {
        let at = *self.names.entry(name.to_owned()).or_insert_with(|| {
            self.files.push(File::default());
            self.files.len() - 1
        });
        &mut self.files[at]
    }
}

impl File {
    fn after(&self, loss: Loss, chance: &mut Chance) -> Vec<u8> {
        let mut found = self.flushed.clone();
        match loss {
            Loss::Everything => {}
            Loss::Tail => {
                let whole = chance.below(self.pending.len() as u64 + 1) as usize;
                self.pending[..whole].iter().for_each(|change| apply(change, &mut found));
                if let Some(Change::Write(at, bytes)) = self.pending.get(whole) {
                    let sectors = sectors(*at, bytes);
                    let kept = chance.below(sectors.len() as u64) as usize;
                    sectors[..kept].iter().for_each(|(at, bytes)| write(*at, bytes, &mut found));
                }
            }
            Loss::Scattered => {
                for change in &self.pending {
                    match change {
                        Change::Write(at, bytes) => sectors(*at, bytes)
                            .into_iter()
                            .filter(|_| chance.below(2) == 0)
                            .for_each(|(at, bytes)| write(at, bytes, &mut found)),
                        Change::Truncate(_) if chance.below(2) == 0 => apply(change, &mut found),
                        Change::Truncate(_) => {}
                    }
                }
            }
        }
        found
    }
}

fn apply(change: &Change, to: &mut Vec<u8>) {
    match change {
        Change::Write(at, bytes) => write(*at, bytes, to),
        Change::Truncate(size) => to.truncate(*size),
    }
}

/// Writes at an offset. If the file ends before the offset, zeros fill the gap.
fn write(at: usize, bytes: &[u8], to: &mut Vec<u8>) {
    to.resize(to.len().max(at + bytes.len()), 0);
    to[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Splits a write into the sectors that a disk keeps or loses.
fn sectors(at: usize, bytes: &[u8]) -> Vec<(usize, &[u8])> {
    let mut parts = Vec::new();
    let (mut at, mut rest) = (at, bytes);
    while !rest.is_empty() {
        let (part, more) = rest.split_at((SECTOR - at % SECTOR).min(rest.len()));
        parts.push((at, part));
        (at, rest) = (at + part.len(), more);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrote(at: usize, bytes: &[u8]) -> Event {
        Event::Wrote { file: "a".into(), at, bytes: bytes.to_vec() }
    }

    fn found(events: &[Event], loss: Loss, seed: u64) -> Files {
        let mut disk = Disk::default();
        for event in events {
            disk.play(event);
        }
        disk.after_power_cut(loss, "witness", &mut Chance::seeded(seed))
    }

    #[test]
    fn what_was_flushed_is_left_and_nothing_else() {
        let flushed = Event::Flushed("a".into());
        let events = [wrote(0, b"one"), flushed, Event::FlushedDirectory, wrote(3, b"two")];
        assert_eq!(found(&events, Loss::Everything, 1)["a"], b"one");
    }

    #[test]
    fn a_file_is_gone_until_its_directory_was_flushed() {
        let events = [wrote(0, b"one"), Event::Flushed("a".into())];
        assert!(found(&events, Loss::Everything, 1).is_empty());
    }

    #[test]
    fn a_deleted_file_is_back_until_its_directory_was_flushed_again() {
        let mut events = vec![wrote(0, b"one"), Event::Flushed("a".into())];
        events.extend([Event::FlushedDirectory, Event::Deleted("a".into()), wrote(0, b"new")]);
        assert_eq!(found(&events, Loss::Everything, 1)["a"], b"one");
        events.extend([Event::Flushed("a".into()), Event::FlushedDirectory]);
        assert_eq!(found(&events, Loss::Everything, 1)["a"], b"new");
    }

    #[test]
    fn a_write_is_torn_at_sectors_and_nowhere_else() {
        let events = [Event::FlushedDirectory, wrote(500, &[7; 1_000])];
        let sizes: std::collections::BTreeSet<_> = (0..200)
            .filter_map(|seed| found(&events, Loss::Tail, seed).get("a").map(Vec::len))
            .collect();
        assert_eq!(sizes.into_iter().collect::<Vec<_>>(), [0, 512, 1_024, 1_500]);
    }
}
