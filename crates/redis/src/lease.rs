//! The leases of a process, by key ([`Lease`]). `model` compares refunds of unspent units with a key whose unspent units were
//! never taken.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ahash::RandomState;
use sluicegate_core::{
    Answer, Chunk, Lease, LeaseStep, RefillToken, Source, Timestamp, Unspent, reached,
};

use crate::{
    PlannedPolicy,
    sync::{AtomicBool, AtomicUsize, Lock, Ordering},
};

const SHARDS: usize = 16;
/// Maximum length of a leased key, because a lease stores its key for the refund.
const MAX_KEY: usize = 512;

/// All leases of a process.
#[derive(Debug)]
pub(crate) struct Leases {
    shards: Box<[Lock<LeaseMap>]>,
    hasher: RandomState,
    count: AtomicUsize,
    max_leases: usize,
    pub(crate) lifetime: Duration,
    /// Whether a task refunds expired leases.
    pub(crate) has_keeper: AtomicBool,
}

type LeaseMap = HashMap<Box<[u8]>, LeasedKey, RandomState>;

/// A key with its lease.
#[derive(Debug)]
struct LeasedKey {
    policy: PlannedPolicy,
    lease: Lease,
    /// Held by the request that takes the next chunk.
    refill_lock: Arc<tokio::sync::Mutex<()>>,
}

/// Unspent units of a lease that has ended.
#[derive(Debug)]
pub(crate) struct UnspentLease {
    pub(crate) key: Box<[u8]>,
    pub(crate) policy: PlannedPolicy,
    pub(crate) unspent: Unspent,
}

/// Result of a take from a lease.
#[derive(Debug)]
pub(crate) enum LeaseOutcome {
    /// Allowed.
    Taken(Answer),
    /// The caller must take this many units from the store, while it holds the lock.
    Refill(Arc<tokio::sync::Mutex<()>>, u32, RefillToken),
    /// There are too many leases, or the key is too long.
    Full,
}

impl Leases {
    pub(crate) fn new(max_leases: usize, lifetime: Duration, hasher: RandomState) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Lock::new(LeaseMap::with_hasher(hasher.clone()))).collect(),
            hasher,
            count: AtomicUsize::new(0),
            max_leases,
            lifetime,
            has_keeper: AtomicBool::new(false),
        }
    }

    fn shard(&self, key: &[u8]) -> &Lock<LeaseMap> {
        let hash = self.hasher.hash_one(key);
        &self.shards[usize::try_from(hash).unwrap_or_default() % SHARDS]
    }

    /// Hands out `cost` units, or returns the units to request from the store. Units that have expired are added to
    /// `expired`.
    pub(crate) fn take(
        &self,
        key: &[u8],
        policy: &PlannedPolicy,
        cost: u32,
        now: Timestamp,
        expired: &mut Option<UnspentLease>,
    ) -> LeaseOutcome {
        let mut shard = self.shard(key).lock();
        if let Some(leased) = shard.get_mut(key) {
            if leased.policy.number != policy.number {
                let old = std::mem::replace(&mut leased.policy, policy.clone());
                let unspent = leased.lease.change(policy.terms);
                *expired =
                    unspent.map(|unspent| UnspentLease { key: key.into(), policy: old, unspent });
            }
            return leased.take(key, cost, now, expired);
        }
        if key.len() > MAX_KEY || self.count.load(Ordering::Relaxed) >= self.max_leases {
            reached!(TooManyLeases);
            return LeaseOutcome::Full;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let (lease, refill_lock) = (Lease::new(policy.terms), Arc::default());
        let mut leased = LeasedKey { policy: policy.clone(), lease, refill_lock };
        let outcome = leased.take(key, cost, now, expired);
        let other = shard.insert(key.into(), leased);
        debug_assert!(other.is_none(), "a key has two leases");
        debug_assert!(self.count.load(Ordering::Relaxed) >= shard.len(), "a lease is not counted");
        outcome
    }

    /// Hands out `cost` units, if the lease has as many under this policy.
    #[inline]
    pub(crate) fn spend(
        &self,
        key: &[u8],
        policy: &PlannedPolicy,
        cost: u32,
        now: Timestamp,
    ) -> Option<Answer> {
        let mut shard = self.shard(key).lock();
        let leased = shard.get_mut(key).filter(|it| it.policy.number == policy.number)?;
        leased.lease.spend(cost, now).map(|decision| Answer::new(decision, Source::Lease))
    }

    /// Adds a chunk that the store has granted. Returns the number of units that are lost, because the lease has another
    /// policy by now, was reset or does not exist.
    pub(crate) fn granted(
        &self,
        key: &[u8],
        policy: &PlannedPolicy,
        chunk: Chunk,
        (token, now): (RefillToken, Timestamp),
    ) -> u32 {
        let mut shard = self.shard(key).lock();
        let is_current = |leased: &&mut LeasedKey| leased.policy.number == policy.number;
        match shard.get_mut(key).filter(is_current) {
            Some(leased) => leased.lease.granted(chunk, token, now, self.lifetime),
            None => {
                reached!(ChunkIsLost if chunk.units > chunk.cost);
                chunk.units - chunk.cost
            }
        }
    }

    /// The store has denied a request for units.
    pub(crate) fn denied(&self, key: &[u8]) {
        if let Some(leased) = self.shard(key).lock().get_mut(key) {
            leased.lease.denied();
        }
    }

    /// The application refunds units. Runs before and after the refund.
    pub(crate) fn refunded(&self, key: &[u8], units: u32) {
        if let Some(leased) = self.shard(key).lock().get_mut(key) {
            leased.lease.refunded(units);
        }
    }

    /// The store has refunded units, and still counts `used`. Returns the number of unspent units that were among them.
    pub(crate) fn refund_replied(&self, key: &[u8], used: u32) -> u32 {
        let mut shard = self.shard(key).lock();
        shard.get_mut(key).map_or(0, |leased| leased.lease.refund_replied(used))
    }

    /// The key is reset. Returns the number of unspent units. Runs before and after the reset.
    pub(crate) fn forget(&self, key: &[u8]) -> u32 {
        let mut shard = self.shard(key).lock();
        shard.get_mut(key).map_or(0, |leased| leased.lease.reset())
    }

    /// Takes the unspent units of leases that have expired by `now` (of all, for `None`), and drops leases that no
    /// request uses.
    pub(crate) fn expired(&self, now: Option<Timestamp>) -> Vec<UnspentLease> {
        let mut all = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|key, leased| {
                if now.is_some_and(|now| !leased.lease.is_over(now)) {
                    return true;
                }
                let unspent = leased.lease.end();
                all.extend(unspent.map(|unspent| UnspentLease {
                    key: key.clone(),
                    policy: leased.policy.clone(),
                    unspent,
                }));
                let is_refilling = Arc::strong_count(&leased.refill_lock) > 1;
                if !is_refilling {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                }
                reached!(LeaseIsRefilledWhileItExpires if is_refilling);
                is_refilling
            });
        }
        all
    }
}

impl LeasedKey {
    fn take(
        &mut self,
        key: &[u8],
        cost: u32,
        now: Timestamp,
        expired: &mut Option<UnspentLease>,
    ) -> LeaseOutcome {
        let mut over = None;
        let step = self.lease.take(cost, now, &mut over);
        if let Some(unspent) = over {
            *expired = Some(UnspentLease { key: key.into(), policy: self.policy.clone(), unspent });
        }
        match step {
            LeaseStep::Taken(decision) => LeaseOutcome::Taken(Answer::new(decision, Source::Lease)),
            LeaseStep::Refill(units, token) => {
                LeaseOutcome::Refill(Arc::clone(&self.refill_lock), units, token)
            }
        }
    }
}

#[cfg(shuttle)]
mod schedules;

#[cfg(test)]
mod fleet;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
