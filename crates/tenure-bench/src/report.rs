//! The report: every figure with what is needed to judge it, and the three answers that people ask
//! for first.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::limit::Limit;
use crate::machine::Machine;
use crate::measures::{Measure, Reading, Unit};
use crate::stand::Account;
use crate::stats::{median, spread, whole};

/// The result of a run. `tenure bench --json` prints it.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The version of Tenure.
    pub tenure: &'static str,
    /// The engine and its version.
    pub engine: String,
    /// When a commit counts as done.
    pub durability: String,
    /// The machine.
    pub machine: Machine,
    /// How often everything was measured.
    pub rounds: u32,
    /// Whether the sizes were so small that the figures mean nothing.
    pub quick: bool,
    /// How long the run took, in seconds.
    pub took_s: f64,
    /// The three answers.
    pub summary: Summary,
    /// All figures, in the order of the table of measures.
    pub figures: Vec<Figure>,
    /// What the machine can do at all.
    pub limits: Vec<Own>,
}

/// A limit of the machine itself: plain SQL by the driver alone.
#[derive(Debug, Serialize)]
pub struct Own {
    /// The name, as figures refer to it.
    pub name: &'static str,
    /// What was measured.
    pub what: &'static str,
    /// Of the values.
    pub unit: Unit,
    /// One value for each round.
    pub values: Vec<f64>,
    /// The middle one.
    pub median: f64,
    /// From the smallest to the largest, as a fraction of the median.
    pub spread: f64,
}

/// One figure.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// Its measure, and which of its values.
    pub name: String,
    /// The measure's name, as `--only` takes it.
    pub measure: &'static str,
    /// Of the values.
    pub unit: Unit,
    /// One value for each round.
    pub values: Vec<f64>,
    /// The middle one.
    pub median: f64,
    /// From the smallest to the largest, as a fraction of the median.
    pub spread: f64,
    /// What the machine can do at all.
    pub limit: Option<Of>,
    /// Sizes and options.
    pub settings: String,
    /// Version, engine, durability and machine, so that a figure that is quoted has them.
    pub on: String,
}

/// A limit, and how close the figure is to it.
#[derive(Debug, Serialize)]
pub struct Of {
    /// Its name among the limits.
    pub name: &'static str,
    /// Its median, in the unit of the figure.
    pub value: f64,
    /// How close the figure is to the limit: 1 is as fast as the driver alone. For times it is the
    /// limit's time divided by the figure.
    pub fraction: f64,
}

/// The answers to what people ask first. `None` was not measured.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// The best of one worker or four.
    pub noop_jobs_per_second: Option<f64>,
    /// Which measure that is.
    pub noop_measure: Option<&'static str>,
    /// From enqueue to result.
    pub p99_ms_at_40000_a_day: Option<f64>,
    /// From enqueue to result.
    pub p99_ms_at_2000_a_second: Option<f64>,
    /// How many jobs all measures of all rounds enqueued.
    pub jobs_enqueued: u64,
    /// How many succeeded after exactly one run of their handler.
    pub jobs_run_once: u64,
    /// How many were left in the queue on purpose. None of these ran.
    pub jobs_left: u64,
}

/// Under what the figures hold.
pub(crate) struct Conditions {
    pub(crate) engine: String,
    pub(crate) durability: String,
    pub(crate) machine: Machine,
}

/// What was read so far.
#[derive(Default)]
pub(crate) struct Rounds {
    limits: BTreeMap<Limit, Vec<f64>>,
    readings: Vec<(&'static Measure, Vec<Reading>)>,
    account: Account,
}

impl Rounds {
    pub(crate) fn limits(&mut self, limits: BTreeMap<Limit, f64>) {
        for (limit, value) in limits {
            self.limits.entry(limit).or_default().push(value);
        }
    }

    pub(crate) fn readings(&mut self, measure: &'static Measure, readings: Vec<Reading>) {
        self.readings.push((measure, readings));
    }

    pub(crate) fn account(&mut self, account: Account) {
        self.account.enqueued += account.enqueued;
        self.account.once += account.once;
        self.account.left += account.left;
    }

    /// The figures: for each measure and part, in the order of the first round.
    fn figures(&self, on: &str) -> Vec<Figure> {
        let mut figures: Vec<Figure> = Vec::new();
        for (measure, readings) in &self.readings {
            for reading in readings {
                let name = format!("{} {}", measure.name, reading.part);
                let name = name.trim_end();
                if let Some(figure) = figures.iter_mut().find(|figure| figure.name == name) {
                    figure.values.push(reading.value);
                    continue;
                }
                figures.push(Figure {
                    name: name.to_owned(),
                    measure: measure.name,
                    unit: reading.unit,
                    values: vec![reading.value],
                    median: 0.0,
                    spread: 0.0,
                    limit: reading.limit.and_then(|limit| self.of(limit)),
                    settings: reading.settings.clone(),
                    on: on.to_owned(),
                });
            }
        }
        for figure in &mut figures {
            figure.median = median(&figure.values);
            figure.spread = spread(&figure.values);
            if let Some(of) = &mut figure.limit {
                of.fraction = if figure.unit.less_is_better() {
                    of.value / figure.median
                } else {
                    figure.median / of.value
                };
            }
        }
        figures
    }

    /// The limits, in their own order.
    fn own(&self) -> Vec<Own> {
        let own = |(limit, values): (&Limit, &Vec<f64>)| Own {
            name: limit.name(),
            what: limit.what(),
            unit: limit.unit(),
            values: values.clone(),
            median: median(values),
            spread: spread(values),
        };
        self.limits.iter().map(own).collect()
    }

    fn of(&self, limit: Limit) -> Option<Of> {
        let value = median(self.limits.get(&limit)?);
        Some(Of { name: limit.name(), value, fraction: 0.0 })
    }
}

impl Report {
    pub(crate) fn of(
        conditions: Conditions,
        (rounds, quick): (u32, bool),
        read: &Rounds,
        took: Duration,
    ) -> Report {
        let Conditions { engine, durability, machine } = conditions;
        let tenure = env!("CARGO_PKG_VERSION");
        let on = format!("Tenure {tenure} on {engine} ({durability}); {machine}");
        let (figures, limits) = (read.figures(&on), read.own());
        let summary = Summary::of(&figures, read.account);
        let took_s = took.as_secs_f64();
        Report {
            tenure,
            engine,
            durability,
            machine,
            rounds,
            quick,
            took_s,
            summary,
            figures,
            limits,
        }
    }

    /// Version, engine, durability and machine in one line.
    pub fn on(&self) -> String {
        let Report { tenure, engine, durability, machine, .. } = self;
        format!("Tenure {tenure} on {engine} ({durability}); {machine}")
    }
}

impl Summary {
    fn of(figures: &[Figure], account: Account) -> Summary {
        let is_noop = |figure: &&Figure| figure.measure.starts_with("process_");
        let faster = |a: &&Figure, b: &&Figure| a.median.total_cmp(&b.median);
        let best = figures.iter().filter(is_noop).max_by(faster);
        let named = |name: &str| {
            figures.iter().find(|figure| figure.name == name).map(|figure| figure.median)
        };
        Summary {
            noop_jobs_per_second: best.map(|figure| figure.median),
            noop_measure: best.map(|figure| figure.measure),
            p99_ms_at_40000_a_day: named("steady_day p99"),
            p99_ms_at_2000_a_second: named("steady_2000 p99"),
            jobs_enqueued: account.enqueued,
            jobs_run_once: account.once,
            jobs_left: account.left,
        }
    }

    /// The three lines.
    pub fn lines(&self) -> [String; 3] {
        let not = || "not measured".to_owned();
        let rate = self.noop_jobs_per_second.map_or_else(not, |rate| shown(rate, Unit::Rate));
        let by = self.noop_measure.map(|name| format!(" ({name})")).unwrap_or_default();
        let ms = |value: Option<f64>| {
            value.map_or_else(not, |ms| format!("{} ms", shown(ms, Unit::Millis)))
        };
        let (enqueued, once) = (whole(self.jobs_enqueued), whole(self.jobs_run_once));
        let left = match self.jobs_left {
            0 => String::new(),
            n => format!("; {} were left in the queue on purpose, and none of them ran", whole(n)),
        };
        [
            format!("no-op jobs a second: {rate}{by}"),
            format!(
                "p99 from enqueue to result: {} at 40,000 jobs a day, {} at 2,000 a second",
                ms(self.p99_ms_at_40000_a_day),
                ms(self.p99_ms_at_2000_a_second),
            ),
            format!("ran to their end exactly once: {once} of {enqueued} jobs{left}"),
        ]
    }
}

/// A value as people read it: whole jobs, and three digits of a time.
pub fn shown(value: f64, unit: Unit) -> String {
    match unit {
        _ if !value.is_finite() => "-".to_owned(),
        Unit::Rate | Unit::Renewals | Unit::Jobs => whole(value.round() as u64),
        Unit::Millis if value < 10.0 => format!("{value:.2}"),
        Unit::Millis if value < 100.0 => format!("{value:.1}"),
        Unit::Millis => whole(value.round() as u64),
    }
}

/// A report with made-up values, for tests of what is drawn from it.
#[cfg(test)]
pub(crate) fn sample(engine: crate::measures::Engine) -> Report {
    let reading = |part, unit, value, limit| Reading {
        part,
        unit,
        value,
        limit: Some(limit),
        settings: "5 jobs".into(),
    };
    let mut read = Rounds::default();
    let (process, day) = (Measure::named("process_100"), Measure::named("steady_day"));
    for round in [1.0, 3.0, 2.0] {
        read.limits([(Limit::Process, 4_000.0 * round), (Limit::Through99, round)].into());
        let rate = reading("", Unit::Rate, 1_000.0 * round, Limit::Process);
        read.readings(process.unwrap(), vec![rate]);
        let p99 = reading("p99", Unit::Millis, 10.0, Limit::Through99);
        read.readings(day.unwrap(), vec![p99]);
        read.account(Account { enqueued: 3, once: 2, left: 1 });
    }
    let conditions = Conditions {
        engine: format!("{engine:?} <1>"),
        durability: "WAL & FULL".into(),
        machine: Machine { cores: 2, cpu: "\"CPU\"".into(), kernel: "Linux".into(), load: None },
    };
    Report::of(conditions, (3, false), &read, Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measures::Engine;

    #[test]
    fn a_figure_is_the_median_of_its_rounds_beside_the_median_of_its_limit() {
        let report = sample(Engine::Sqlite);
        assert_eq!(report.figures.len(), 2);
        let rate = &report.figures[0];
        assert_eq!((rate.name.as_str(), rate.median, rate.spread), ("process_100", 2_000.0, 1.0));
        assert_eq!(rate.values, [1_000.0, 3_000.0, 2_000.0]);
        assert_eq!(rate.limit.as_ref().unwrap().fraction, 0.25);
        let time = &report.figures[1];
        assert_eq!(time.name, "steady_day p99");
        assert_eq!(time.limit.as_ref().unwrap().fraction, 0.2, "2 of 10 ms are the machine's own");
        assert_eq!((report.limits.len(), report.limits[0].median), (2, 8_000.0));
        assert!(time.on.contains("Sqlite <1> (WAL & FULL); 2 cores of"), "{}", time.on);
    }

    #[test]
    fn the_summary_answers_in_three_lines_what_was_measured() {
        let [jobs, p99, once] = sample(Engine::Sqlite).summary.lines();
        assert_eq!(jobs, "no-op jobs a second: 2,000 (process_100)");
        let expected = "10.0 ms at 40,000 jobs a day, not measured at 2,000 a second";
        assert_eq!(p99, format!("p99 from enqueue to result: {expected}"));
        let left = "3 were left in the queue on purpose, and none of them ran";
        assert_eq!(once, format!("ran to their end exactly once: 6 of 9 jobs; {left}"));
    }

    #[test]
    fn values_are_shown_with_as_many_digits_as_mean_something() {
        assert_eq!(shown(1_234_567.4, Unit::Rate), "1,234,567");
        assert_eq!(shown(0.123, Unit::Millis), "0.12");
        assert_eq!(shown(12.34, Unit::Millis), "12.3");
        assert_eq!(shown(1_234.5, Unit::Millis), "1,235");
        assert_eq!(shown(f64::NAN, Unit::Millis), "-");
    }
}
