//! Time and chance, and the only place that asks the machine for either.
//!
//! Everything else takes them as arguments or holds a [`Clock`], so that a test can control the
//! time and a seed can repeat a run. A lint forbids `SystemTime::now` and similar calls elsewhere.

use std::fmt;
use std::ops::{Add, Sub};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A point in time on the store's clock, to the millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The latest time that can still be printed: close to the end of the year 9999.
    pub const MAX: Timestamp = Timestamp(253_402_207_200_000);

    /// Milliseconds since 1970-01-01 UTC.
    pub const fn from_millis(millis: i64) -> Self {
        Timestamp(millis)
    }

    /// Milliseconds since 1970-01-01 UTC.
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// The time from `earlier` until this time; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl From<SystemTime> for Timestamp {
    /// To the millisecond; a time before 1970 is negative.
    fn from(time: SystemTime) -> Timestamp {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Timestamp(millis(after)),
            Err(before) => Timestamp(millis(before.duration()).saturating_neg()),
        }
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    /// Stops at [`Timestamp::MAX`]: a delay of a million years makes a job that never runs, not a
    /// crash.
    fn add(self, length: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(millis(length))).min(Timestamp::MAX)
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Timestamp;

    fn sub(self, length: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(millis(length)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(time) => write!(f, "{time:.3}"),
            Err(_) => write!(f, "{} ms", self.0),
        }
    }
}

/// A duration in whole milliseconds, the unit in which every store keeps time.
pub fn millis(length: Duration) -> i64 {
    i64::try_from(length.as_millis()).unwrap_or(i64::MAX)
}

/// The clock of a store on this machine. Clones share one source.
#[derive(Debug, Clone)]
pub struct Clock(Source);

#[derive(Debug, Clone)]
enum Source {
    /// When the first clock of this process was created, by the wall clock and by the monotonic
    /// clock.
    System { wall: Timestamp, monotonic: Instant },
    /// The time in milliseconds, and how many of them were added by [`Clock::jump`].
    Manual(Arc<(AtomicI64, AtomicI64)>),
}

impl Clock {
    /// The machine's wall clock.
    pub fn system() -> Self {
        // One starting point for all clocks: clocks created before and after a jump must agree on
        // it.
        static BEGINNING: OnceLock<(Timestamp, Instant)> = OnceLock::new();
        let (wall, monotonic) = *BEGINNING.get_or_init(|| (wall(), monotonic()));
        Clock(Source::System { wall, monotonic })
    }

    /// A clock that stands still until it is moved.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tenure::engine::clock::{Clock, Timestamp};
    ///
    /// let clock = Clock::manual(Timestamp::from_millis(1_000));
    /// clock.advance(Duration::from_secs(2));
    /// assert_eq!(clock.now(), Timestamp::from_millis(3_000));
    /// ```
    pub fn manual(start: Timestamp) -> Self {
        Clock(Source::Manual(Arc::new((AtomicI64::new(start.0), AtomicI64::new(0)))))
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::Manual(time) => Timestamp(time.0.load(Ordering::SeqCst)),
            Source::System { .. } => wall(),
        }
    }

    /// By how many milliseconds this clock has run ahead of the monotonic clock since the first
    /// clock of this process was created: it was set forward, or the machine was suspended.
    pub fn ahead(&self) -> i64 {
        match &self.0 {
            Source::Manual(time) => time.1.load(Ordering::SeqCst),
            Source::System { wall: start, monotonic: since } => {
                (wall().0 - start.0) - millis(monotonic() - *since)
            }
        }
    }

    /// Moves a manual clock forward. The system clock moves by itself and ignores this.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(time) = &self.0 {
            time.0.fetch_add(millis(by), Ordering::SeqCst);
        }
    }

    /// Sets a manual clock forward while no time passes, as when a machine wakes from sleep.
    pub fn jump(&self, by: Duration) {
        if let Source::Manual(time) = &self.0 {
            time.0.fetch_add(millis(by), Ordering::SeqCst);
            time.1.fetch_add(millis(by), Ordering::SeqCst);
        }
    }

    /// Sets a manual clock, also backwards, as on a restored machine.
    pub fn set(&self, to: Timestamp) {
        if let Source::Manual(time) = &self.0 {
            time.0.store(to.0, Ordering::SeqCst);
        }
    }
}

/// The machine's wall clock.
#[expect(clippy::disallowed_methods, reason = "this is the place")]
fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(millis(since))
}

/// The monotonic clock, for deadlines of this process. It never decides which worker owns a job.
#[expect(clippy::disallowed_methods, reason = "this is the place")]
pub fn monotonic() -> Instant {
    Instant::now()
}

/// A point in time on a clock of this machine that cannot be set and that keeps running while the
/// machine is suspended. A worker uses it to know how long it may trust a lease that it cannot
/// renew. It never decides which worker owns a job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// This long after the clock's start: for a caller that makes up its own time.
    pub const fn after_start(length: Duration) -> Moment {
        Moment(length)
    }

    /// Now. Unlike [`monotonic`], it counts the time that the machine was suspended.
    pub fn now() -> Moment {
        #[cfg(target_os = "linux")]
        let clock = rustix::time::ClockId::Boottime;
        // On other systems the monotonic clock itself keeps running while the machine is suspended.
        #[cfg(not(target_os = "linux"))]
        let clock = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(clock);
        Moment(time.try_into().unwrap_or_default())
    }

    /// The time from `earlier` until this moment; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, length: Duration) -> Moment {
        Moment(self.0.saturating_add(length))
    }
}

/// A random id that no other process start will ever have.
#[expect(clippy::disallowed_methods, reason = "this is the place")]
pub fn unique() -> uuid::Uuid {
    uuid::Uuid::new_v4()
}

/// A fraction in `[0, 1)` as 32 bits, so that a delay computed from it is the same on every
/// machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jitter(pub u32);

/// A random generator: with a given seed where a run must be repeatable, otherwise seeded by the
/// machine.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// The same seed gives the same sequence, on every platform.
    pub fn seeded(seed: u64) -> Self {
        Chance(seed)
    }

    /// A generator that cannot be repeated.
    pub fn system() -> Self {
        let (high, low) = unique().as_u64_pair();
        Chance(high ^ low)
    }

    /// The next 64 bits (SplitMix64).
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`; zero when `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of a plain remainder is below 2^-32 for any bound we use.
        self.bits().checked_rem(bound).unwrap_or(0)
    }

    /// The next jitter.
    pub fn jitter(&mut self) -> Jitter {
        Jitter((self.bits() >> 32) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_prints_as_utc_to_the_millisecond() {
        assert_eq!(Timestamp::from_millis(1_500).to_string(), "1970-01-01T00:00:01.500Z");
        assert_eq!(Timestamp::MAX.to_string(), "9999-12-30T22:00:00.000Z");
    }

    #[test]
    fn time_stops_at_its_end_instead_of_overflowing() {
        assert_eq!(Timestamp::from_millis(0) + Duration::MAX, Timestamp::MAX);
        assert_eq!(Timestamp::from_millis(5).since(Timestamp::from_millis(9)), Duration::ZERO);
    }

    #[test]
    fn clocks_that_are_made_before_and_after_a_jump_have_one_beginning() {
        let beginning = |clock: Clock| match clock.0 {
            Source::System { wall, monotonic } => Some((wall, monotonic)),
            Source::Manual(_) => None,
        };
        assert_eq!(beginning(Clock::system()), beginning(Clock::system()));
    }

    #[test]
    fn the_same_seed_repeats_the_same_chance() {
        let draw = |seed| {
            let mut chance = Chance::seeded(seed);
            (0..3).map(|_| chance.bits()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        // Known values of SplitMix64, so that seeds never change their meaning.
        assert_eq!(draw(0)[0], 0xE220_A839_7B1D_CDAF);
    }
}
