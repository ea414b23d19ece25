//! A model of Envoy 1.40: its buckets, as its filter for quotas keeps them. The numbers of the tests are those of the table of
//! behaviours in ADR 52.

use std::collections::BTreeMap;

use sluicegate_server::simulation::SimulatedAction;

/// The time between reports, in milliseconds.
const CYCLE: u64 = 5_000;

/// The identity of a bucket.
pub(super) type BucketId = BTreeMap<String, String>;

/// Reports of a message: each bucket with the requests that it allowed and denied.
pub(super) type Reports = Vec<(BucketId, u64, u64)>;

/// One Envoy.
#[derive(Debug, Default)]
pub(super) struct Envoy {
    pub(super) buckets: BTreeMap<BucketId, Bucket>,
    /// When it reports next, in milliseconds; `None` before its first request.
    next_report: Option<u64>,
}

/// A bucket, which denies everything while nothing is assigned.
#[derive(Debug, Default)]
pub(super) struct Bucket {
    allowed: u64,
    denied: u64,
    tokens: Option<Tokens>,
    /// When its assignment expires, in milliseconds.
    expires: u64,
}

/// A token bucket, filled continuously.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tokens {
    pub(super) max: u32,
    pub(super) per_fill: u32,
    /// In seconds.
    pub(super) interval: u32,
    /// The tokens now, in parts of [`Tokens::scale`].
    level: u64,
    /// The millisecond of `level`.
    at: u64,
}

impl Tokens {
    fn full(max: u32, per_fill: u32, interval: u32, at: u64) -> Self {
        let level = u64::from(max) * Self::scale(interval);
        Self { max, per_fill, interval, level, at }
    }

    /// Parts of a token: those of one token per fill that come in a millisecond are one.
    fn scale(interval: u32) -> u64 {
        u64::from(interval) * 1000
    }

    fn fill(&mut self, now: u64) {
        let most = u64::from(self.max) * Self::scale(self.interval);
        let filled = self.level + (now - self.at) * u64::from(self.per_fill);
        (self.level, self.at) = (filled.min(most), now);
    }

    /// Takes up to `count` tokens.
    fn take(&mut self, count: u64, now: u64) -> u64 {
        self.fill(now);
        let scale = Self::scale(self.interval);
        let taken = count.min(self.level / scale);
        self.level -= taken * scale;
        taken
    }
}

impl Envoy {
    /// `count` requests for a bucket. Returns those that pass, and whether the bucket is new, which is reported at once.
    pub(super) fn request(&mut self, id: &BucketId, count: u64, now: u64) -> (u64, bool) {
        let is_new = !self.buckets.contains_key(id);
        if is_new {
            self.next_report.get_or_insert(now + CYCLE);
        }
        let bucket = self.buckets.entry(id.clone()).or_default();
        bucket.expire(now);
        let allowed = bucket.tokens.as_mut().map_or(0, |tokens| tokens.take(count, now));
        bucket.allowed += allowed;
        bucket.denied += count - allowed;
        (allowed, is_new)
    }

    /// The first report of a bucket.
    pub(super) fn first_report(&mut self, id: &BucketId) -> Reports {
        self.buckets.get_mut(id).map(|bucket| bucket.report(id)).into_iter().collect()
    }

    /// The reports of all buckets, if it is time for them.
    pub(super) fn reports(&mut self, now: u64) -> Option<Reports> {
        let next = self.next_report.as_mut().filter(|at| **at <= now)?;
        *next += CYCLE;
        Some(self.buckets.iter_mut().map(|(id, bucket)| bucket.report(id)).collect())
    }

    /// Takes an action. Returns the tokens of the bucket if it begins full.
    pub(super) fn act(&mut self, action: &SimulatedAction, now: u64) -> Option<u32> {
        let Some([max, per_fill, interval, lasts]) = action.assignment else {
            self.buckets.remove(&action.bucket);
            return None;
        };
        // An answer for a bucket that it does not have is ignored.
        let bucket = self.buckets.get_mut(&action.bucket)?;
        bucket.expire(now);
        let before = bucket.tokens;
        bucket.expires = now + u64::from(lasts) * 1000;
        let Some(mut old) = before else {
            bucket.tokens = Some(Tokens::full(max, per_fill, interval, now));
            return Some(max);
        };
        // A change of the interval alone is ignored, because only its nanoseconds are compared.
        if (old.max, old.per_fill) != (max, per_fill) {
            old.fill(now);
            let full = u128::from(old.max) * u128::from(Tokens::scale(old.interval));
            let most = u128::from(max) * u128::from(Tokens::scale(interval));
            let level = u64::try_from(u128::from(old.level) * most / full).unwrap_or(u64::MAX);
            bucket.tokens = Some(Tokens { max, per_fill, interval, level, at: now });
        }
        None
    }

    /// The token bucket of a bucket, while its assignment is in force.
    pub(super) fn assigned(&self, id: &BucketId, now: u64) -> Option<Tokens> {
        let bucket = self.buckets.get(id)?;
        bucket.tokens.filter(|_| now < bucket.expires)
    }
}

impl Bucket {
    fn expire(&mut self, now: u64) {
        if now >= self.expires {
            self.tokens = None;
        }
    }

    fn report(&mut self, id: &BucketId) -> (BucketId, u64, u64) {
        let report = (id.clone(), self.allowed, self.denied);
        (self.allowed, self.denied) = (0, 0);
        report
    }
}
