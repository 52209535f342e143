//! Computes how many jobs the producer should have enqueued by a given time. This file reads no
//! clock; the caller passes the time.

use std::num::NonZeroU32;
use std::time::Duration;

/// A steady rate per second. A producer that falls behind by more than a second, because the store
/// was slow or unreachable, does not make up for it in one burst: the rhythm starts again from
/// there.
pub(super) struct Rhythm {
    rate: u64,
    begin: Duration,
    before: u64,
}

/// The shortest pause. Jobs that become due within it are sent together, because each call costs a
/// commit.
const SHORTEST: Duration = Duration::from_millis(20);

impl Rhythm {
    pub(super) fn new(rate: NonZeroU32) -> Rhythm {
        Rhythm { rate: rate.get().into(), begin: Duration::ZERO, before: 0 }
    }

    /// How many are due, after `done` of them.
    pub(super) fn due(&mut self, elapsed: Duration, done: u64) -> u64 {
        let due = self.expected(elapsed).saturating_sub(done);
        if due <= self.rate.max(1) {
            return due;
        }
        self.begin = elapsed;
        self.before = done;
        1
    }

    /// How long until the next one is due.
    pub(super) fn pause(&self, elapsed: Duration, done: u64) -> Duration {
        let nth = done.saturating_sub(self.before);
        let at = self.begin + Duration::from_secs_f64(nth as f64 / self.rate as f64);
        match at.saturating_sub(elapsed) {
            Duration::ZERO => Duration::ZERO,
            pause => pause.max(SHORTEST),
        }
    }

    /// How many there should be by now. The first is due at once.
    fn expected(&self, elapsed: Duration) -> u64 {
        let micros = elapsed.saturating_sub(self.begin).as_micros();
        let whole = micros * u128::from(self.rate) / 1_000_000;
        self.before + u64::try_from(whole).unwrap_or(u64::MAX - 1 - self.before) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn rhythm(rate: u32) -> Rhythm {
        Rhythm::new(NonZeroU32::new(rate).unwrap())
    }

    #[test]
    fn ten_a_second_come_one_by_one() {
        let mut rhythm = rhythm(10);
        assert_eq!(rhythm.due(ms(0), 0), 1);
        assert_eq!(rhythm.due(ms(99), 1), 0);
        assert_eq!(rhythm.pause(ms(40), 1), ms(60));
        assert_eq!(rhythm.due(ms(100), 1), 1);
    }

    #[test]
    fn many_a_second_come_together() {
        let mut rhythm = rhythm(10_000);
        assert_eq!(rhythm.due(ms(0), 0), 1);
        assert_eq!(rhythm.pause(ms(0), 1), SHORTEST);
        assert_eq!(rhythm.due(ms(20), 1), 200);
    }

    #[test]
    fn what_was_missed_in_a_long_break_is_not_made_up_for() {
        let mut rhythm = rhythm(10);
        assert_eq!(rhythm.due(ms(900), 0), 10);
        assert_eq!(rhythm.due(ms(60_000), 10), 1);
        assert_eq!(rhythm.due(ms(60_050), 11), 0);
        assert_eq!(rhythm.pause(ms(60_050), 11), ms(50));
        assert_eq!(rhythm.due(ms(60_100), 11), 1);
    }

    #[test]
    fn whoever_is_late_does_not_wait() {
        assert_eq!(rhythm(10).pause(ms(500), 2), Duration::ZERO);
    }
}
