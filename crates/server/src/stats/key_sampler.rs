//! Latencies, and samples of requested keys while they are needed.
//!
//! Latency is always counted, for the history: one counter per batch. Keys are sampled while the dashboard has
//! viewers or keys are listed: all keys at low load, otherwise about [`SAMPLES_PER_SECOND`].
//!
//! One worker writes a sampler; the dashboard reads it once a second.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use sluicegate_core::Decision;

use super::{
    cause::Cause,
    counter::Counter,
    heavy_hitters::{FadedTime, HeavyHitters, UNIT},
};

/// Keys that are sampled per second, about.
const SAMPLES_PER_SECOND: u64 = 2048;
/// Largest number of keys per sample.
const MAX_SAMPLE_RATE: u64 = 1 << 14;
/// Buckets of the latency histogram: four for each power of two, up to 67 s.
const BUCKETS: usize = 26 * 4;

/// Samples keys of one protocol on one worker, and counts latencies.
#[derive(Debug)]
pub(crate) struct KeySampler {
    /// Whether the samples are read.
    on: AtomicBool,
    /// Whether keys are sampled.
    keys: AtomicBool,
    /// Decisions until the next sample.
    countdown: AtomicU64,
    /// Keys per sample.
    sample_rate: AtomicU64,
    /// State of a pseudorandom generator.
    random: AtomicU64,
    samples: Mutex<KeySamples>,
    latency: [Counter; BUCKETS],
}

/// The sampled keys.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeySamples {
    pub(crate) all: HeavyHitters,
    pub(crate) denied: HeavyHitters,
    pub(crate) span: FadedTime,
}

impl Default for KeySampler {
    fn default() -> Self {
        Self {
            on: AtomicBool::new(false),
            keys: AtomicBool::new(false),
            countdown: AtomicU64::new(0),
            sample_rate: AtomicU64::new(1),
            random: AtomicU64::new(0x9e37_79b9_7f4a_7c15),
            samples: Mutex::default(),
            latency: std::array::from_fn(|_| Counter::default()),
        }
    }
}

impl KeySampler {
    /// This sampler, while it is read.
    #[inline]
    pub(crate) fn active(&self) -> Option<&Self> {
        self.on.load(Relaxed).then_some(self)
    }

    /// Records a decision while the sampler is read.
    #[inline]
    pub(crate) fn note(&self, key: &[u8], decision: &Decision, cause: Cause<'_>) {
        if let Some(sampler) = self.active() {
            sampler.decided(key, decision, cause);
        }
    }

    /// Records a decision.
    #[inline]
    pub(crate) fn decided(&self, key: &[u8], decision: &Decision, cause: Cause<'_>) {
        // One thread writes, so that no update is lost between load and store.
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
        // A random distance of the same mean, because a fixed one could follow a pattern of the requests.
        let random = self.random.load(Relaxed).wrapping_mul(6_364_136_223_846_793_005);
        let random = random.wrapping_add(1_442_695_040_888_963_407);
        self.random.store(random, Relaxed);
        self.countdown.store((random >> 33) % (2 * every - 1), Relaxed);
        let mut samples = self.samples.lock();
        samples.all.add(key, every * UNIT, None);
        let denier = cause.denier(decision);
        if denier.is_some() {
            samples.denied.add(key, every * UNIT, denier);
        }
    }

    /// Records that `decisions` of a batch took `micros`.
    pub(crate) fn answered(&self, decisions: usize, micros: u64) {
        if decisions > 0 {
            self.latency[bucket(micros)].add_many(decisions as u64);
        }
    }

    /// Starts sampling with empty samples. `keys`: whether keys are sampled.
    pub(crate) fn start(&self, keys: bool) {
        self.keys.store(keys, Relaxed);
        *self.samples.lock() = KeySamples::default();
        self.sample_rate.store(1, Relaxed);
        self.countdown.store(0, Relaxed);
        self.on.store(true, Relaxed);
    }

    /// Stops sampling.
    pub(crate) fn stop(&self) {
        self.on.store(false, Relaxed);
    }

    /// The samples. Since the last call `micros` have passed, in which the worker made `decisions`.
    pub(crate) fn read(&self, micros: u64, decisions: u64) -> KeySamples {
        let every = (decisions.saturating_mul(1_000_000) / micros.max(1)) / SAMPLES_PER_SECOND;
        self.sample_rate.store(every.next_power_of_two().clamp(1, MAX_SAMPLE_RATE), Relaxed);
        let mut samples = self.samples.lock();
        samples.span.pass(micros);
        let read = samples.clone();
        samples.all.fade();
        samples.denied.fade();
        samples.span.fade();
        read
    }

    /// Keys per sample.
    pub(crate) fn sample_rate(&self) -> u64 {
        self.sample_rate.load(Relaxed)
    }

    /// Adds the latencies since the start to `into`.
    pub(crate) fn add_latency(&self, into: &mut LatencyHistogram) {
        for (sum, counter) in into.0.iter_mut().zip(&self.latency) {
            *sum += counter.count();
        }
    }
}

/// Counts of decisions by latency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LatencyHistogram([u64; BUCKETS]);

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl LatencyHistogram {
    /// The difference to `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self(std::array::from_fn(|place| self.0[place].saturating_sub(before.0[place])))
    }

    /// The `part` of 1000 quantile in microseconds; `None`: there were no decisions.
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

/// The bucket of a latency.
fn bucket(micros: u64) -> usize {
    // The two bits after the leading one select one of four steps.
    if micros < 4 {
        return 0;
    }
    let power = micros.ilog2();
    let step = (micros >> (power - 2)) & 3;
    let place = u64::from(power - 2) * 4 + step;
    usize::try_from(place).map_or(BUCKETS - 1, |place| (place + 1).min(BUCKETS - 1))
}

/// The upper bound of a bucket, in microseconds.
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
    fn bucket_bound_is_within_a_quarter_of_the_latency() {
        for micros in (0..5_000).chain([1 << 20, (1 << 24) + 17, 60_000_000]) {
            let upper = bound(bucket(micros));
            assert!(upper >= micros, "{micros}: {upper}");
            assert!(upper <= (micros + micros / 4).max(4), "{micros}: {upper}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn histogram_quantiles_are_bucket_bounds() {
        let sampler = KeySampler::default();
        let (mut before, mut after) = (LatencyHistogram::default(), LatencyHistogram::default());
        sampler.answered(10, 1_000);
        sampler.add_latency(&mut before);
        assert_eq!(after.quantile(500), None);
        sampler.answered(98, 10);
        sampler.answered(2, 100);
        sampler.answered(0, 9_999);
        sampler.add_latency(&mut after);
        let took = after.since(&before);
        assert_eq!(
            [500, 980, 990].map(|part| took.quantile(part)),
            [Some(11), Some(11), Some(111)]
        );
    }

    #[test]
    fn sampler_without_keys_records_none() {
        let sampler = KeySampler::default();
        assert!(sampler.active().is_none());
        sampler.start(false);
        let policy = "gcra:1/1s".parse().unwrap();
        sampler.active().unwrap().decided(b"a", &decision(true), Cause::policy(&policy));
        let read = sampler.read(1_000_000, 1);
        assert!(HeavyHitters::top(&[read.all], 9).is_empty());
    }

    #[test]
    fn sampler_at_high_rate_estimates_all_decisions() {
        let (sampler, policy) = (KeySampler::default(), "gcra:1/1s".parse().unwrap());
        sampler.start(true);
        // At a high rate, only some keys are sampled.
        drop(sampler.read(1_000_000, 400 * SAMPLES_PER_SECOND));
        assert_eq!(sampler.sample_rate(), 512);
        for turn in 0..1_000_000_u64 {
            let key: &[u8] = if turn.is_multiple_of(4) { b"often" } else { b"more" };
            let decision = decision(!turn.is_multiple_of(4));
            sampler.decided(key, &decision, Cause { rule: Some("login"), policy: &policy });
        }
        let read = sampler.read(1_000_000, 1_000_000);
        let upper = HeavyHitters::top(&[read.denied], 1);
        assert_eq!(&*upper[0].key, b"often");
        let denier = upper[0].denier.as_ref().unwrap().to_denied_by();
        let denier = serde_json::to_string(&denier).unwrap();
        assert_eq!(denier, r#"{"rule":"login","limit":"gcra:1/1s"}"#);
        let share = upper[0].count / UNIT;
        println!("figure: of 250000 decisions, one in 512 looked at, {share} are upper");
        assert!((200_000..300_000).contains(&share), "{share}");
        sampler.stop();
        assert!(sampler.active().is_none());
    }
}
