//! The figures as a picture: a bar for each, a mark where the machine's limit is, and the
//! conditions below. Plain SVG, which any browser shows, and which needs no script and no font.

use std::fmt::Write;

use crate::measures::Unit;
use crate::peers::{Mark, PeerReport};
use crate::report::{Figure, Of, Report, shown};

const WIDTH: f64 = 1040.0;
/// Where the bars begin.
const LEFT: f64 = 190.0;
/// Where the longest bar ends; the value stands beyond it.
const RIGHT: f64 = 700.0;
const ROW: f64 = 22.0;
const BAR: f64 = 13.0;

/// A group of bars that share a scale.
struct Panel<'a> {
    title: String,
    colour: &'static str,
    bars: Vec<Bar<'a>>,
}

/// One figure.
struct Bar<'a> {
    name: String,
    value: f64,
    caption: String,
    limit: Option<&'a Of>,
}

const RATES: &str = "#2f6f9f";
const TIMES: &str = "#b5651d";

/// Draws a report. Bars are logarithmic: the figures of one run span a factor of a thousand.
pub fn draw(report: &Report) -> String {
    let panel = |title: &str, colour, units: &[Unit]| {
        let figures = report.figures.iter().filter(|figure| units.contains(&figure.unit));
        let bars = figures.map(|figure| Bar {
            name: figure.name.clone(),
            value: figure.median,
            caption: caption(figure),
            limit: figure.limit.as_ref(),
        });
        Panel { title: title.to_owned(), colour, bars: bars.collect() }
    };
    let panels = [
        panel("Each second (longer is better)", RATES, &[Unit::Rate, Unit::Renewals]),
        panel("Milliseconds (shorter is better)", TIMES, &[Unit::Millis]),
        panel("Jobs (fewer is better)", TIMES, &[Unit::Jobs]),
    ];
    let mark = "Mark: the same work as plain SQL by the driver alone.".to_owned();
    let foot = [mark, conditions(report), report.machine.to_string()];
    page(&format!("tenure bench on {}", report.engine), &report.summary.lines(), &panels, &foot)
}

/// Draws a comparison: a panel for each work.
pub fn draw_peers(report: &PeerReport) -> String {
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for line in &report.lines {
        let (colour, better) =
            if line.unit.less_is_better() { (TIMES, "shorter") } else { (RATES, "longer") };
        let title =
            format!("{}, {}, {} ({better} is better)", line.work, line.store, line.unit.sign());
        let letters = line.letters();
        let mut caption = counted(line.median, line.unit, &line.values, line.spread);
        if !letters.is_empty() {
            let _ = write!(caption, ", {letters}");
        }
        let name = format!("{} {}", line.subject, line.version).trim_end().to_owned();
        let bar = Bar { name, value: line.median, caption, limit: None };
        match panels.last_mut().filter(|panel| panel.title == title) {
            Some(panel) => panel.bars.push(bar),
            None => panels.push(Panel { title, colour, bars: vec![bar] }),
        }
    }
    let marks = Mark::ALL.map(|mark| format!("{}: {}", mark.letter(), mark.legend()));
    let on = format!("{}; {}; {}", report.postgres, report.sqlite, report.machine);
    let rounds = rounds(report.quick, report.rounds);
    let title = format!("Tenure {} and its peers", report.tenure);
    page(&title, &[on, rounds], &panels, &marks)
}

/// A whole picture: lines of text, panels, and lines of text.
fn page(title: &str, head: &[String], panels: &[Panel<'_>], foot: &[String]) -> String {
    let mut body = String::new();
    let mut y = 34.0;
    text(&mut body, 20.0, y, "bold 17px", "start", title);
    for line in head {
        y += 20.0;
        text(&mut body, 20.0, y, "13px", "start", line);
    }
    for panel in panels.iter().filter(|panel| !panel.bars.is_empty()) {
        y = draw_panel(&mut body, y + 36.0, panel);
    }
    y += 9.0;
    for line in foot {
        y += 17.0;
        text(&mut body, 20.0, y, "12px", "start", line);
    }
    let height = y + 20.0;
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

fn conditions(report: &Report) -> String {
    let rounds = rounds(report.quick, report.rounds);
    format!("Tenure {}, {} ({}), {rounds}", report.tenure, report.engine, report.durability)
}

fn rounds(quick: bool, rounds: u32) -> String {
    match (quick, rounds) {
        (true, _) => "quick: the figures mean nothing".to_owned(),
        (false, 1) => "one round".to_owned(),
        (false, rounds) => format!("median of {rounds} rounds"),
    }
}

/// Draws one panel, and returns where the next thing goes.
fn draw_panel(body: &mut String, top: f64, panel: &Panel<'_>) -> f64 {
    text(body, 20.0, top, "bold 14px", "start", &panel.title);
    let limits = panel.bars.iter().filter_map(|bar| bar.limit.map(|of| of.value));
    let values = panel.bars.iter().map(|bar| bar.value).chain(limits);
    let scale = Scale::of(&values.collect::<Vec<_>>());
    let first = top + 14.0;
    let end = first + ROW * panel.bars.len() as f64;
    for (at, label) in scale.decades() {
        line(body, at, first, end, "#dddddd", 1.0);
        text(body, at, end + 13.0, "10px", "middle", &label);
    }
    for (row, bar) in panel.bars.iter().enumerate() {
        let y = first + ROW * row as f64 + 4.0;
        text(body, LEFT - 8.0, y + BAR - 2.0, "12px", "end", &bar.name);
        let end = scale.at(bar.value);
        let (width, colour) = (end - LEFT, panel.colour);
        // Writing to a text cannot fail.
        let _ = writeln!(
            body,
            "<rect x=\"{LEFT}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>"
        );
        let mut beyond = end;
        if let Some(of) = bar.limit {
            let at = scale.at(of.value);
            line(body, at, y - 2.0, y + BAR + 2.0, "#222222", 2.0);
            beyond = beyond.max(at);
        }
        text(body, beyond + 8.0, y + BAR - 2.0, "12px", "start", &bar.caption);
    }
    end + 18.0
}

/// The value in words: with its unit, its spread, and its fraction of the limit.
fn caption(figure: &Figure) -> String {
    let mut words = counted(figure.median, figure.unit, &figure.values, figure.spread);
    if let Some(of) = &figure.limit {
        let _ = write!(words, ", {:.0} % of the limit", of.fraction * 100.0);
    }
    words
}

/// The value with its unit and its spread.
fn counted(median: f64, unit: Unit, values: &[f64], spread: f64) -> String {
    let mut words = format!("{} {}", shown(median, unit), unit.sign());
    if values.len() > 1 {
        let _ = write!(words, ", spread {:.0} %", spread * 100.0);
    }
    words
}

/// From a value to a place, by its logarithm.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// Whole powers of ten around the values.
    fn of(values: &[f64]) -> Scale {
        let logs = values.iter().filter(|it| it.is_finite() && **it > 0.0).map(|it| it.log10());
        let (low, high) = logs.fold((f64::MAX, f64::MIN), |(low, high), log| {
            (low.min(log.floor()), high.max(log.ceil()))
        });
        if low > high {
            Scale { low: 0.0, high: 1.0 }
        } else {
            Scale { low, high: high.max(low + 1.0) }
        }
    }

    fn at(&self, value: f64) -> f64 {
        let log = if value.is_finite() && value > 0.0 { value.log10() } else { self.low };
        let part = ((log - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
        LEFT + (RIGHT - LEFT) * part
    }

    /// The powers of ten, and where they are.
    fn decades(&self) -> Vec<(f64, String)> {
        let powers = self.low as i32..=self.high as i32;
        let mark = |power: i32| {
            let value = 10_f64.powi(power);
            let label = match power {
                0.. => shown(value, Unit::Rate),
                _ => format!("{value}"),
            };
            (self.at(value), label)
        };
        powers.map(mark).collect()
    }
}

fn line(body: &mut String, x: f64, from: f64, to: f64, colour: &str, width: f64) {
    let _ = writeln!(
        body,
        "<line x1=\"{x:.1}\" y1=\"{from:.1}\" x2=\"{x:.1}\" y2=\"{to:.1}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>"
    );
}

fn text(body: &mut String, x: f64, y: f64, font: &str, anchor: &str, words: &str) {
    let words = escape(words);
    let _ = writeln!(
        body,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" style=\"font:{font} sans-serif\" text-anchor=\"{anchor}\" fill=\"#222222\">{words}</text>"
    );
}

/// Text that XML would read as markup.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measures::Engine;
    use crate::report::sample;

    /// Checks that tags close in order and that no text has markup, and returns all text.
    fn read(svg: &str) -> Vec<String> {
        let (mut open, mut texts) = (Vec::new(), Vec::new());
        let rest = svg.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n").unwrap();
        for part in rest.split('<').skip(1) {
            let (tag, text) = part.split_once('>').unwrap();
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            let name = tag.trim_matches('/').split_whitespace().next().unwrap();
            match (tag.starts_with('/'), tag.ends_with('/')) {
                (true, _) => assert_eq!(open.pop(), Some(name)),
                (false, false) => open.push(name),
                (false, true) => {}
            }
            if !text.trim().is_empty() {
                texts.push(text.to_owned());
            }
        }
        assert!(open.is_empty(), "{open:?}");
        for text in &texts {
            for part in text.split('&').skip(1) {
                let is_known = ["lt;", "gt;", "amp;", "quot;", "apos;"];
                assert!(is_known.iter().any(|entity| part.starts_with(entity)), "{text}");
            }
        }
        texts
    }

    #[test]
    fn the_picture_is_well_formed_and_shows_every_figure_with_its_conditions() {
        let report = sample(Engine::Sqlite);
        let svg = draw(&report);
        let texts = read(&svg);
        for figure in &report.figures {
            assert!(texts.contains(&figure.name), "{}: {texts:?}", figure.name);
        }
        let expected = "2,000 jobs/s, spread 100 %, 25 % of the limit";
        assert!(texts.iter().any(|text| text == expected), "{texts:?}");
        assert!(texts.iter().any(|text| text.contains("WAL &amp; FULL")), "{texts:?}");
        assert!(texts.iter().any(|text| text.contains("Sqlite &lt;1&gt;")), "{texts:?}");
        assert!(texts.iter().any(|text| text.contains("&quot;CPU&quot;")), "{texts:?}");
    }

    #[test]
    fn the_picture_of_a_comparison_has_a_panel_for_each_work_and_the_marks() {
        let report = crate::peers::report::sample(&sample(Engine::Sqlite).machine);
        let svg = draw_peers(&report);
        let texts = read(&svg);
        let has = |text: &str| assert!(texts.iter().any(|it| it == text), "{text}: {texts:?}");
        has("process, PostgreSQL, jobs/s (longer is better)");
        has("idle_pickup p50, PostgreSQL, ms (shorter is better)");
        has("1,000 jobs/s, D F");
        has("D: deletes finished jobs");
        assert!(
            texts.iter().any(|it| it.contains("SQLite &lt;3&gt; (WAL &amp; FULL)")),
            "{texts:?}"
        );
    }

    #[test]
    fn no_text_can_become_markup() {
        assert_eq!(escape("<a b=\"c\">&'\u{1b}"), "&lt;a b=&quot;c&quot;&gt;&amp;&apos; ");
    }

    #[test]
    fn a_scale_spans_its_values_whatever_they_are() {
        let scale = Scale::of(&[0.5, 700.0]);
        assert_eq!((scale.at(0.1), scale.at(1_000.0)), (LEFT, RIGHT));
        let labels: Vec<String> = scale.decades().into_iter().map(|(_, label)| label).collect();
        assert_eq!(labels, ["0.1", "1", "10", "100", "1,000"]);
        for values in [&[][..], &[f64::NAN], &[0.0], &[1.0]] {
            let scale = Scale::of(values);
            assert!(scale.at(1.0).is_finite() && scale.at(f64::NAN).is_finite(), "{values:?}");
        }
    }
}
