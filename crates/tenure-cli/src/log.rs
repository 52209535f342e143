//! Events on stderr: one line each, for people or for programs.

use std::io::{self, Write};

use serde::Serialize;
use tenure::engine::clock::{Clock, Timestamp};
use tenure::engine::job::NewJob;
use tenure::engine::store::Enqueued;
use tenure::engine::telemetry::{Event, Level, Observer};

use crate::output::{harmless, harmless_json};

/// How events are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// A line for people
    Text,
    /// One JSON object a line
    Json,
}

/// From which level on events are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Least {
    /// Also renewals
    Debug,
    /// The story
    Info,
    /// Refusals, crashes, retries, deaths
    Warn,
}

/// Which events are logged, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Log {
    pub(crate) format: Format,
    pub(crate) least: Least,
}

#[derive(Serialize)]
struct Line<'a> {
    at: String,
    level: &'static str,
    #[serde(flatten)]
    event: &'a Event,
}

impl Log {
    /// An observer that writes events to stderr.
    pub(crate) fn observer(self) -> Observer {
        let clock = Clock::system();
        Observer::new(move |event| {
            if event.fact.level() >= self.least.level() {
                // If stderr is closed, there is nowhere to report that.
                let _ = writeln!(io::stderr().lock(), "{}", self.line(event, clock.now()));
            }
        })
    }

    /// Logs stored jobs for programs; people see the answer itself.
    pub(crate) fn enqueued(self, jobs: &[NewJob], answers: &[Enqueued]) {
        if self.format == Format::Text {
            return;
        }
        let observer = self.observer();
        for (job, answer) in jobs.iter().zip(answers) {
            if let Enqueued::Created(id) = answer {
                observer.enqueued(*id, job);
            }
        }
    }

    fn line(self, event: &Event, now: Timestamp) -> String {
        let level = match event.fact.level() {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
        };
        let at = now.to_string();
        match self.format {
            Format::Json => {
                let line = serde_json::to_string(&Line { at, level, event }).unwrap_or_default();
                harmless_json(&line)
            }
            // The time of day is enough for a screen.
            Format::Text => {
                let time = at.get(11..23).unwrap_or(&at);
                harmless(&format!("{time} {level:<5} {event}"))
            }
        }
    }
}

impl Least {
    fn level(self) -> Level {
        match self {
            Least::Debug => Level::Debug,
            Least::Info => Level::Info,
            Least::Warn => Level::Warn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure::engine::lease::WorkerId;
    use tenure::engine::telemetry::Fact;

    #[test]
    fn a_line_of_the_log_cannot_command_the_terminal() {
        let error = "\x1b[2J\u{9b}31m\u{202e}";
        let lost = Fact::StoreLost { error: error.into() };
        let event = Event::of_worker(&WorkerId::unique(), lost);
        for format in [Format::Text, Format::Json] {
            let line = Log { format, least: Least::Info }.line(&event, Timestamp::from_millis(0));
            assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line:?}");
            if format == Format::Json {
                let read: serde_json::Value = serde_json::from_str(&line).unwrap();
                assert_eq!(read["error"], error);
            }
        }
    }
}
