//! What this project wants to reach in comparison with its peers, and whether a run has reached it.

use serde::Serialize;

use super::report::{Line, Subject, Work};
use super::table::Store;
use crate::measures::Unit;
use crate::report::shown;

/// With what a figure of Tenure is compared.
#[derive(Debug, Clone, Copy)]
enum Against {
    /// The best peer on the same store, in the same work.
    Best,
    /// Plain SQL, in the same work.
    Raw,
    /// Another work of Tenure itself.
    Own(Work),
    /// A number of its own.
    Number,
}

/// One row of the table.
struct Target {
    what: &'static str,
    figure: (Store, Subject, Work),
    against: Against,
    needs: f64,
}

const fn target(
    what: &'static str,
    figure: (Store, Subject, Work),
    against: Against,
    needs: f64,
) -> Target {
    Target { what, figure, against, needs }
}

/// All rows.
#[rustfmt::skip]
const TARGETS: [Target; 17] = {
    use Against::{Best, Number, Own, Raw};
    use Store::{Postgres, Sqlite};
    use Subject::{Default, NoHistory, Tuned};
    use Work::{EnqueueBulk, EnqueueOne, EnqueueSixteen, EnqueueSixteenKeys, Pickup50, Pickup99, Process};
    [
        target("PostgreSQL, process, default", (Postgres, Default, Process), Best, 1.1),
        target("PostgreSQL, process, default", (Postgres, Default, Process), Raw, 0.7),
        target("PostgreSQL, process, tuned", (Postgres, Tuned, Process), Best, 1.2),
        target("PostgreSQL, process, tuned", (Postgres, Tuned, Process), Raw, 0.75),
        target("PostgreSQL, process, no history", (Postgres, NoHistory, Process), Best, 1.5),
        target("PostgreSQL, enqueue in bulk", (Postgres, Default, EnqueueBulk), Best, 2.0),
        target("PostgreSQL, enqueue, 1 caller", (Postgres, Default, EnqueueOne), Best, 1.3),
        target("PostgreSQL, enqueue, 16 callers", (Postgres, Default, EnqueueSixteen), Best, 8.0),
        target("PostgreSQL, enqueue, 16 callers", (Postgres, Default, EnqueueSixteen), Raw, 0.75),
        target("PostgreSQL, enqueue, 16 callers with keys", (Postgres, Default, EnqueueSixteenKeys), Own(EnqueueSixteen), 0.8),
        target("PostgreSQL, idle pick-up p50", (Postgres, Default, Pickup50), Best, 0.8),
        target("PostgreSQL, idle pick-up p99", (Postgres, Default, Pickup99), Best, 0.8),
        target("SQLite, process, default", (Sqlite, Default, Process), Number, 30_000.0),
        target("SQLite, process, tuned", (Sqlite, Tuned, Process), Number, 60_000.0),
        target("SQLite, process, tuned", (Sqlite, Tuned, Process), Raw, 0.7),
        target("SQLite, process, tuned", (Sqlite, Tuned, Process), Best, 15.0),
        target("SQLite, enqueue, 1 caller", (Sqlite, Default, EnqueueOne), Best, 1.0),
    ]
};

/// Whether a target was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was.
    Pass,
    /// It was not.
    Miss,
    /// One of the two figures is missing.
    NotMeasured,
}

impl Outcome {
    /// In words.
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Pass => "pass",
            Outcome::Miss => "MISS",
            Outcome::NotMeasured => "not measured",
        }
    }
}

/// A target, and what was measured.
#[derive(Debug, Serialize)]
pub struct Verdict {
    /// Which figure of Tenure.
    pub what: &'static str,
    /// What it is compared with, such as the name of the best peer.
    pub against: String,
    /// What is wanted, such as `>= 1.1`.
    pub needs: String,
    /// The ratio of the two, or the figure itself.
    pub measured: Option<f64>,
    /// The same for people.
    pub shown: String,
    /// Whether it was reached.
    pub outcome: Outcome,
}

/// All targets, before anything is measured.
pub fn targets() -> Vec<Verdict> {
    judge(&[])
}

/// Compares the figures with the targets.
pub(super) fn judge(lines: &[Line]) -> Vec<Verdict> {
    TARGETS.iter().map(|target| target.judge(lines)).collect()
}

impl Target {
    fn judge(&self, lines: &[Line]) -> Verdict {
        let (store, subject, work) = self.figure;
        let of = |subject, work| lines.iter().find(|line| line.key == (work, store, subject));
        let other = match self.against {
            Against::Best => best(lines, work, store),
            Against::Raw => of(Subject::Raw, work),
            Against::Own(work) => of(subject, work),
            Against::Number => None,
        };
        let figure = of(subject, work).map(|line| line.median);
        let (measured, against) = match (self.against, other) {
            (Against::Number, _) => (figure, "a fixed number".to_owned()),
            (_, Some(other)) => {
                let name = match self.against {
                    Against::Own(_) => other.work.to_owned(),
                    _ => format!("{}, {}", other.subject, shown(other.median, other.unit)),
                };
                (figure.map(|figure| figure / other.median), name)
            }
            (Against::Best, None) => (None, "the best peer".to_owned()),
            (Against::Own(work), None) => (None, work.name().to_owned()),
            (_, None) => (None, Subject::Raw.name().to_owned()),
        };
        let measured = measured.filter(|ratio| ratio.is_finite());
        let less_is_better = work.unit().less_is_better();
        let is_reached = |it: f64| if less_is_better { it <= self.needs } else { it >= self.needs };
        let number = |value: f64| match self.against {
            Against::Number => shown(value, Unit::Rate),
            _ => format!("{value:.2}"),
        };
        Verdict {
            what: self.what,
            against,
            needs: format!("{} {}", if less_is_better { "<=" } else { ">=" }, number(self.needs)),
            measured,
            shown: measured.map(number).unwrap_or_default(),
            outcome: match measured.map(is_reached) {
                Some(true) => Outcome::Pass,
                Some(false) => Outcome::Miss,
                None => Outcome::NotMeasured,
            },
        }
    }
}

/// The best line of a peer. Lines are sorted, the best first.
fn best(lines: &[Line], work: Work, store: Store) -> Option<&Line> {
    lines
        .iter()
        .find(|line| matches!(line.key, (it, at, Subject::Peer(_)) if it == work && at == store))
}
