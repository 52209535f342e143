//! The progress of a bench on the terminal: a bar for all measures, and one for the jobs of the
//! present one.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tenure_bench::Progress;

const OFTEN: Duration = Duration::from_millis(100);

/// Draws until the future is dropped. Without a terminal it only waits.
pub(super) async fn draw(progress: &Progress) {
    if !io::stderr().is_terminal() {
        return std::future::pending().await;
    }
    let both = Bars::new();
    let mut beat = tokio::time::interval(OFTEN);
    loop {
        beat.tick().await;
        both.show(progress);
    }
}

/// Cleared when dropped, so that the report has the screen to itself.
struct Bars {
    all: MultiProgress,
    measures: ProgressBar,
    jobs: ProgressBar,
}

impl Bars {
    fn new() -> Bars {
        let all = MultiProgress::new();
        let bar = |template| {
            let style = ProgressStyle::with_template(template).map(|it| it.progress_chars("=> "));
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            all.add(ProgressBar::new(0).with_style(style))
        };
        let measures = bar("measures [{bar:30}] {pos}/{len}  {elapsed} so far");
        let jobs = bar("jobs     [{bar:30}] {human_pos}/{human_len}  {msg}");
        Bars { all, measures, jobs }
    }

    fn show(&self, progress: &Progress) {
        let (step, steps) = progress.steps();
        self.measures.set_length(steps);
        self.measures.set_position(step);
        let (done, of) = progress.jobs();
        // A bar of no length would be drawn as a full one.
        self.jobs.set_length(of.max(1));
        self.jobs.set_position(done);
        self.jobs.set_message(progress.doing());
    }
}

impl Drop for Bars {
    fn drop(&mut self) {
        self.measures.finish_and_clear();
        self.jobs.finish_and_clear();
        // If the terminal is gone, there is nothing to clear.
        let _ = self.all.clear();
    }
}
