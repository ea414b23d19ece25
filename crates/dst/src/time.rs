//! Virtual time, and the clocks of hosts.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use sluicegate_core::Timestamp;
use tokio::time::Instant;

use crate::random::Random;

/// The time of clocks at the start of a run, in microseconds since the Unix epoch.
pub(crate) const START: u64 = 1_700_000_000_000_000;
/// When windows of calendars end after it: a day in UTC and in New York, a week, a month in Berlin.
const WINDOW_ENDS: [u64; 4] =
    [1_700_006_400_000_000, 1_700_024_400_000_000, 1_700_438_400_000_000, 1_701_385_200_000_000];

/// The virtual time of a run. It moves in milliseconds, as tokio's timers do.
#[derive(Clone, Debug)]
pub(crate) struct VirtualTime {
    start: Instant,
    /// The millisecond of the last reading of any clock, and the readings in it.
    last: Arc<Mutex<(u64, u64)>>,
}

impl VirtualTime {
    /// Time zero is now.
    pub(crate) fn start() -> Self {
        Self { start: Instant::now(), last: Arc::default() }
    }

    /// Milliseconds since the start.
    pub(crate) fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The moment `millis` milliseconds after the start.
    pub(crate) fn at(&self, millis: u64) -> Instant {
        self.start + Duration::from_millis(millis)
    }

    /// Microseconds since the last millisecond. They pass with each reading of a clock, on all clocks alike: otherwise,
    /// time would pass faster on one that is read more often.
    fn part(&self) -> i64 {
        let (millis, mut last) = (self.millis(), self.last.lock());
        last.1 = if last.0 == millis { last.1 + 1 } else { 0 };
        last.0 = millis;
        (last.1 * 3).min(990).cast_signed()
    }
}

/// The clock of a host: it differs from the others, runs faster or slower, and may be set. Between two milliseconds of
/// virtual time, each reading is a little later than the one before, whichever clock that was.
#[derive(Debug)]
pub(crate) struct HostClock {
    time: VirtualTime,
    /// Its drift, in parts per million.
    drift: i64,
    state: Mutex<ClockState>,
}

#[derive(Debug)]
struct ClockState {
    /// Its time at the start, in microseconds.
    start: i64,
    /// The microseconds of the last reading since a millisecond.
    part: i64,
    /// The last reading.
    latest: Timestamp,
    /// From and until when it stands still, in milliseconds.
    stopped: Option<(u64, u64)>,
}

/// What a clock shows at the start of a run. Clocks are up to five minutes apart; at some, a window of a calendar ends during
/// the run.
pub(crate) fn start_of_clock(random: &Random) -> u64 {
    match random.chance(20) {
        true => random.pick(&WINDOW_ENDS) - random.below(8_000_000),
        false => START + random.below(600_000_000),
    }
}

impl HostClock {
    pub(crate) fn new(time: &VirtualTime, random: &Random) -> Self {
        let start = start_of_clock(random);
        let state = ClockState {
            start: start.cast_signed(),
            part: 0,
            latest: Timestamp::EPOCH,
            stopped: None,
        };
        // Up to 200 parts per million off.
        let drift = random.below(401).cast_signed() - 200;
        Self { time: time.clone(), drift, state: Mutex::new(state) }
    }

    /// The clocks of the nodes of a cluster. They differ by milliseconds, or by up to three seconds.
    pub(crate) fn of_cluster(time: &VirtualTime, random: &Random, nodes: usize) -> Vec<Self> {
        let first = Self::new(time, random);
        let apart = *random.pick(&[5_000, 50_000, 3_000_000]);
        let start = first.state.lock().start;
        let other = |_| {
            let start = start + random.below(apart).cast_signed();
            let state =
                Mutex::new(ClockState { start, part: 0, latest: Timestamp::EPOCH, stopped: None });
            Self { time: time.clone(), drift: random.below(401).cast_signed() - 200, state }
        };
        (0..nodes).map(other).collect()
    }

    /// Its time.
    pub(crate) fn now(&self) -> Timestamp {
        let mut state = self.state.lock();
        let millis = self.moment(&mut state);
        if state.stopped.is_none() {
            state.part = self.time.part();
        }
        let micros = state.start + self.elapsed(millis) + state.part;
        state.latest = Timestamp::saturating_from_micros(u64::try_from(micros).unwrap_or_default());
        state.latest
    }

    /// The last reading, which no earlier one exceeds if it was never set.
    pub(crate) fn latest(&self) -> Timestamp {
        self.state.lock().latest
    }

    /// The earliest time that the next reading can be, if it was never set.
    pub(crate) fn next(&self) -> Timestamp {
        let state = self.state.lock();
        let micros = state.start + self.elapsed(self.time.millis());
        let begin = Timestamp::saturating_from_micros(u64::try_from(micros).unwrap_or_default());
        begin.max(state.latest)
    }

    /// The moment that it shows: that at which it stopped, or now.
    fn moment(&self, state: &mut ClockState) -> u64 {
        let now = self.time.millis();
        match state.stopped {
            Some((from, until)) if now < until => from,
            Some((from, until)) => {
                state.start -= self.elapsed(until) - self.elapsed(from);
                state.stopped = None;
                now
            }
            None => now,
        }
    }

    /// Microseconds that pass on it within these milliseconds of virtual time from the start.
    const fn elapsed(&self, millis: u64) -> i64 {
        let millis = millis.cast_signed();
        millis * 1000 + millis * self.drift / 1000
    }

    /// It stands still for so long, and goes on from there.
    pub(crate) fn stop(&self, millis: u64) {
        let mut state = self.state.lock();
        let from = self.moment(&mut state);
        let until = state.stopped.map_or(0, |it| it.1).max(self.time.millis() + millis);
        state.stopped = Some((from, until));
    }

    /// Sets it forward, or back.
    pub(crate) fn step(&self, millis: i64) {
        self.state.lock().start += millis * 1000;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clock_that_stops_goes_on_from_there() {
        let time = VirtualTime::start();
        let clock = HostClock::new(&time, &Random::new(7, "clock"));
        let wait = |millis| tokio::time::advance(Duration::from_millis(millis));
        wait(1000).await;
        let stopped = clock.now().as_micros();
        clock.stop(500);
        wait(400).await;
        clock.stop(200);
        wait(199).await;
        assert!((stopped..stopped + 990).contains(&clock.now().as_micros()));
        wait(1001).await;
        // It has run for a second, up to 200 parts per million too fast or too slow.
        assert!((999_800..1_000_900).contains(&(clock.now().as_micros() - stopped)));
    }
}
