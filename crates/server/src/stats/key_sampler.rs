//! What a worker notes for the dashboard, and only while somebody looks at it.
//!
//! Counters that are kept anyway tell how much is decided; what is noted here besides is how long answers take,
//! and which keys are requested. Latency is always counted, for the history: that is one counter a batch.
//! While there are viewers, keys are sampled: every one where little is decided, else one in so many
//! that about [`SAMPLES_PER_SECOND`] a second are looked at.
//!
//! A watch is written by its worker; a frame of the dashboard reads it, once a second.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use sluicegate_core::{Decision, Timestamp};

use super::{
    cause::Cause,
    counter::Counter,
    sketch::{Sketch, Span, UNIT},
};

/// As many keys a second as are looked at on one worker, about.
const SAMPLES_PER_SECOND: u64 = 2048;
/// One in so many keys at the least.
const MAX_SAMPLE_RATE: u64 = 1 << 14;
/// Bounds of the histogram of answers: four to each power of two, up to 67 s.
const BOUNDS: usize = 26 * 4;

/// What one worker notes.
#[derive(Debug)]
pub(crate) struct KeySampler {
    /// Whether somebody looks.
    on: AtomicBool,
    /// Whether keys are noted.
    keys: AtomicBool,
    /// How many decisions go by before the next key is looked at.
    countdown: AtomicU64,
    /// One key in so many is looked at.
    sample_rate: AtomicU64,
    /// Numbers that look random.
    random: AtomicU64,
    sketches: Mutex<Sketches>,
    latency: [Counter; BOUNDS],
}

/// The keys that are asked about.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sketches {
    pub(crate) all: Sketch,
    pub(crate) denied: Sketch,
    pub(crate) span: Span,
}

impl Default for KeySampler {
    fn default() -> Self {
        Self {
            on: AtomicBool::new(false),
            keys: AtomicBool::new(false),
            countdown: AtomicU64::new(0),
            sample_rate: AtomicU64::new(1),
            random: AtomicU64::new(0x9e37_79b9_7f4a_7c15),
            sketches: Mutex::default(),
            latency: std::array::from_fn(|_| Counter::default()),
        }
    }
}

impl KeySampler {
    /// This, while somebody looks.
    #[inline]
    pub(crate) fn active(&self) -> Option<&Self> {
        self.on.load(Relaxed).then_some(self)
    }

    /// Notes a decision, if somebody looks.
    #[inline]
    pub(crate) fn note(&self, key: &[u8], decision: &Decision, cause: Cause<'_>) {
        if let Some(sampler) = self.active() {
            sampler.decided(key, decision, cause);
        }
    }

    /// Notes a decision.
    #[inline]
    pub(crate) fn decided(&self, key: &[u8], decision: &Decision, cause: Cause<'_>) {
        // One thread writes, so nothing is lost between the two.
        match self.countdown.load(Relaxed) {
            0 => self.sample(key, decision, cause),
            left => self.countdown.store(left - 1, Relaxed),
        }
    }

    #[cold]
    fn sample(&self, key: &[u8], decision: &Decision, cause: Cause<'_>) {
        if !self.keys.load(Relaxed) {
            return self.countdown.store(u64::MAX, Relaxed);
        }
        let every = self.sample_rate.load(Relaxed);
        // Not each n-th, which a pattern may hit or miss: as many on the average.
        let random = self.random.load(Relaxed).wrapping_mul(6_364_136_223_846_793_005);
        let random = random.wrapping_add(1_442_695_040_888_963_407);
        self.random.store(random, Relaxed);
        self.countdown.store((random >> 33) % (2 * every - 1), Relaxed);
        let mut sketches = self.sketches.lock();
        sketches.all.add(key, every * UNIT, None);
        let denier = cause.denier(decision);
        if denier.is_some() {
            sketches.denied.add(key, every * UNIT, denier);
        }
    }

    /// Notes that `decisions` which were asked at `since` are answered at `now`.
    pub(crate) fn answered(&self, decisions: usize, since: Timestamp, now: Timestamp) {
        if decisions > 0 {
            let micros = now.as_micros().saturating_sub(since.as_micros());
            self.latency[place(micros)].add_many(decisions as u64);
        }
    }

    /// Somebody begins to look: what was noted before is gone. `keys`: whether they are noted.
    pub(crate) fn start(&self, keys: bool) {
        self.keys.store(keys, Relaxed);
        *self.sketches.lock() = Sketches::default();
        self.sample_rate.store(1, Relaxed);
        self.countdown.store(0, Relaxed);
        self.on.store(true, Relaxed);
    }

    /// Nobody looks any more.
    pub(crate) fn stop(&self) {
        self.on.store(false, Relaxed);
    }

    /// What was noted, `micros` after this was asked last, in which the worker made so many
    /// `decisions`.
    pub(crate) fn read(&self, micros: u64, decisions: u64) -> Sketches {
        let every = (decisions.saturating_mul(1_000_000) / micros.max(1)) / SAMPLES_PER_SECOND;
        self.sample_rate.store(every.next_power_of_two().clamp(1, MAX_SAMPLE_RATE), Relaxed);
        let mut sketches = self.sketches.lock();
        sketches.span.pass(micros);
        let read = sketches.clone();
        sketches.all.fade();
        sketches.denied.fade();
        sketches.span.fade();
        read
    }

    /// One key in so many is looked at.
    pub(crate) fn sample_rate(&self) -> u64 {
        self.sample_rate.load(Relaxed)
    }

    /// How many decisions took how long, since the start.
    pub(crate) fn add_latency(&self, into: &mut LatencyHistogram) {
        for (sum, counter) in into.0.iter_mut().zip(&self.latency) {
            *sum += counter.count();
        }
    }
}

/// How many decisions took how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LatencyHistogram([u64; BOUNDS]);

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self([0; BOUNDS])
    }
}

impl LatencyHistogram {
    /// Those that are not in `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self(std::array::from_fn(|place| self.0[place].saturating_sub(before.0[place])))
    }

    /// The time in microseconds within which `part` of 1000 were answered; `None`: there were none.
    pub(crate) fn quantile(&self, part: u64) -> Option<u64> {
        let total: u64 = self.0.iter().sum();
        let wanted = (total * part).div_ceil(1000).max(1);
        let mut sum = 0;
        let found = self.0.iter().position(|count| {
            sum += count;
            sum >= wanted
        });
        found.map(bound)
    }
}

/// Where a time is counted.
fn place(micros: u64) -> usize {
    // Four steps to each power of two: the two bits behind the first tell which.
    if micros < 4 {
        return 0;
    }
    let power = micros.ilog2();
    let step = (micros >> (power - 2)) & 3;
    let place = u64::from(power - 2) * 4 + step;
    usize::try_from(place).map_or(BOUNDS - 1, |place| (place + 1).min(BOUNDS - 1))
}

/// The longest time that is counted at `place`.
fn bound(place: usize) -> u64 {
    let Some(place) = place.checked_sub(1) else { return 3 };
    let (power, step) = (place / 4, place as u64 % 4);
    ((4 + step + 1) << power) - 1
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluicegate_core::{Outcome, Retry};

    use super::*;

    fn decision(allowed: bool) -> Decision {
        let outcome = if allowed {
            Outcome::Allow { delay: Duration::ZERO }
        } else {
            Outcome::Deny { retry: Retry::After(Duration::from_secs(1)) }
        };
        Decision { outcome, limit: 1, remaining: 0, reset_after: Duration::ZERO, binding: 0 }
    }

    #[test]
    fn a_time_is_counted_within_a_quarter_of_itself() {
        for micros in (0..5_000).chain([1 << 20, (1 << 24) + 17, 60_000_000]) {
            let told = bound(place(micros));
            assert!(told >= micros, "{micros}: {told}");
            assert!(told <= (micros + micros / 4).max(4), "{micros}: {told}");
        }
        assert_eq!(place(u64::MAX), BOUNDS - 1);
    }

    #[test]
    fn quantiles() {
        let sampler = KeySampler::default();
        let at = |micros| Timestamp::from_micros(micros).unwrap();
        let (mut before, mut after) = (LatencyHistogram::default(), LatencyHistogram::default());
        sampler.answered(10, at(0), at(1_000));
        sampler.add_latency(&mut before);
        assert_eq!(after.quantile(500), None);
        sampler.answered(98, at(0), at(10));
        sampler.answered(2, at(0), at(100));
        sampler.answered(0, at(0), at(9_999));
        sampler.add_latency(&mut after);
        let took = after.since(&before);
        assert_eq!(
            [500, 980, 990].map(|part| took.quantile(part)),
            [Some(11), Some(11), Some(111)]
        );
    }

    #[test]
    fn nothing_is_noted_of_keys_where_they_are_off() {
        let sampler = KeySampler::default();
        assert!(sampler.active().is_none());
        sampler.start(false);
        let policy = "gcra:1/1s".parse().unwrap();
        sampler.active().unwrap().decided(b"a", &decision(true), Cause::policy(&policy));
        let read = sampler.read(1_000_000, 1);
        assert!(Sketch::top(&[read.all], 9).is_empty());
    }

    #[test]
    fn samples_tell_of_all() {
        let (sampler, policy) = (KeySampler::default(), "gcra:1/1s".parse().unwrap());
        sampler.start(true);
        // Many a second: from now on they are sampled.
        drop(sampler.read(1_000_000, 400 * SAMPLES_PER_SECOND));
        assert_eq!(sampler.sample_rate(), 512);
        for turn in 0..1_000_000_u64 {
            let key: &[u8] = if turn.is_multiple_of(4) { b"often" } else { b"more" };
            let decision = decision(!turn.is_multiple_of(4));
            sampler.decided(key, &decision, Cause { rule: Some("login"), policy: &policy });
        }
        let read = sampler.read(1_000_000, 1_000_000);
        let told = Sketch::top(&[read.denied], 1);
        assert_eq!(&*told[0].key, b"often");
        let denier = told[0].denier.as_ref().unwrap().shown();
        let denier = serde_json::to_string(&denier).unwrap();
        assert_eq!(denier, r#"{"rule":"login","limit":"gcra:1/1s"}"#);
        let share = told[0].count / UNIT;
        println!("figure: of 250000 decisions, one in 512 looked at, {share} are told");
        assert!((200_000..300_000).contains(&share), "{share}");
        sampler.stop();
        assert!(sampler.active().is_none());
    }
}
