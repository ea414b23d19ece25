//! Counters of Envoy's quota service.

use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_core::Timestamp;

/// Maximum number of domains without a rule that are remembered, so that each is logged once, and of bytes of one.
const MAX_DOMAINS: usize = 1000;
const MAX_DOMAIN: usize = 256;
/// Shortest time between two lines of the log about late buckets.
const LATE_LOG_EVERY: Duration = Duration::from_secs(60);

/// Counters of Envoy's quota service.
#[derive(Debug, Default)]
pub(crate) struct QuotaStats {
    /// Streams and buckets now.
    pub(crate) streams: Present,
    pub(crate) buckets: Present,
    /// Messages of Envoys, and reports of buckets in them.
    pub(crate) messages: Total,
    pub(crate) reports: Total,
    /// Reports of buckets that no rule applies to.
    pub(crate) without_rule: Total,
    /// Reports of buckets whose key is too long.
    pub(crate) long_keys: Total,
    /// Buckets that were abandoned because they were idle.
    pub(crate) abandoned: Total,
    /// Streams and buckets above the maximum, and turns without a share because all slots of a limit are taken.
    pub(crate) rejected_streams: Total,
    pub(crate) rejected_buckets: Total,
    pub(crate) rejected_shares: Total,
    /// Streams that ended with an error of the client.
    pub(crate) invalid: Total,
    /// Operations that the store has not answered.
    pub(crate) failed_operations: Total,
    /// Buckets that got their turn too late, or whose turn took too long.
    pub(crate) late: Total,
    /// Domains without a rule that were logged, and when late buckets were logged last.
    logged: Mutex<BTreeSet<String>>,
    late_logged: Mutex<Option<Timestamp>>,
}

/// A number of things that exist now.
#[derive(Debug, Default)]
pub(crate) struct Present(AtomicUsize);

impl Present {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds one, unless there are `max`.
    pub(crate) fn try_add(&self, max: usize) -> bool {
        let fits = |count| (count < max).then_some(count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    pub(crate) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number of events, which only grows.
#[derive(Debug, Default)]
pub(crate) struct Total(AtomicU64);

impl Total {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts so many events.
    fn add_many(&self, count: usize) {
        self.0.fetch_add(u64::try_from(count).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl QuotaStats {
    /// `late` buckets may have been without an assignment, because the store is too slow: they are counted, and logged once a
    /// minute at most.
    pub(crate) fn late(&self, late: usize, now: Timestamp) {
        if late == 0 {
            return;
        }
        self.late.add_many(late);
        let mut logged = self.late_logged.lock();
        if logged.is_none_or(|at| now >= at + LATE_LOG_EVERY) {
            *logged = Some(now);
            tracing::warn!(
                buckets = self.buckets.count(),
                late = self.late.count(),
                "the store is too slow for the buckets of quotas: some are assigned late, or not at all"
            );
        }
    }

    /// No rule applies to a bucket of `domain`: it is counted, and logged once for each domain.
    pub(crate) fn no_rule(&self, domain: &str) {
        self.without_rule.add();
        let domain = &domain[..domain.floor_char_boundary(MAX_DOMAIN)];
        let mut logged = self.logged.lock();
        if logged.len() < MAX_DOMAINS && !logged.contains(domain) {
            logged.insert(domain.to_owned());
            tracing::warn!(domain, "no rule with `quota` applies to a bucket of the domain");
        }
    }
}
