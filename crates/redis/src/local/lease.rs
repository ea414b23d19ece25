//! Leases: for a key with much traffic, the process takes chunks from the store, and allows requests from them.
//!
//! A chunk is taken as a whole before any of it is used, and is used within `lease_lifetime` (l). Let A(s, t) be what the
//! policy promises for an interval. What is spent in [s, t] was taken in [s - l, t]; with n processes that hold chunks of up to
//! k units, at most min(A(s, t) + n k, A(s - l, t)) are. No unit of a fixed window is spent after its end.
//!
//! The first chunk has the cost of its request. Chunks double while they are used up in time, to at most the
//! chunk of the policy and half of the remaining units: a cold key is taken one by one, and a nearly exhausted key
//! is not taken as a whole.
//!
//! The unspent units of a chunk that has ended are refunded, once, as far as every limit still counts them: units that a limit
//! has forgotten were admitted elsewhere, and a refund would admit them twice. Other units are forfeited. If another policy
//! replaces that of the lease, all of them are, unless both forget units at the same rate. How long a limit counts the units
//! ([`LeaseTerms`](crate::lease_terms::LeaseTerms)):
//!
//! - *The gcra family* forgets them as the debt drains. No decision tells the debt, because the open holds of the key, of any
//!   process, count in all of its numbers. Therefore a lease counts the debt of its own chunks, as the limit that drains first
//!   would without other requests: the debt in the store is at least that, and the unspent units are the newest part of it.
//! - *Logs, counters and buckets that are refilled in steps* take a refund off their newest units. These may be units of others, which
//!   then count as early as ours, and in a chain of such refunds earlier still. Their units are forfeited.
//! - *Fixed windows* forget them at the end of the window. When the window of a chunk ends is read from the entry, since open
//!   holds make `reset_after` longer; if the window may have begun after the chunk was taken, the chunk is forfeited.
//!
//! Requests use the oldest units first, and a request takes the next chunk only if its cost is more than the unspent units.
//! Therefore all unspent units are of the newest chunk.
//!
//! Refunds and resets by the application lower what is owed when they begin and when they end, because the store applies them
//! at some time in between. `model` compares refunds of unspent units with a key whose unspent units were never taken.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ahash::RandomState;
use sluicegate_core::{
    Answer, Decision, Entry, Outcome, Policy, Source, Timestamp, as_micros, reached,
};

use super::sync::{AtomicBool, AtomicUsize, Lock, Ordering};
use crate::PlannedPolicy;

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

type LeaseMap = HashMap<Box<[u8]>, Lease, RandomState>;

#[derive(Debug)]
struct Lease {
    policy: PlannedPolicy,
    left: u32,
    /// When the unspent units expire.
    until: Timestamp,
    /// The size of the next chunk.
    next: u32,
    /// When the debt of the chunks, without units that were returned, has drained.
    owed_until: Timestamp,
    /// When the window of the newest chunk ends, and a refund must have arrived.
    window_end: Timestamp,
    /// Units of the newest chunk that the application has not refunded since.
    chunk: u64,
    last: Decision,
    decided_at: Timestamp,
    removals: Removals,
    /// How often the store has denied a request for units.
    denials: u64,
    /// Held by the request that takes the next chunk.
    refill_lock: Arc<tokio::sync::Mutex<()>>,
    #[cfg(debug_assertions)]
    units: Units,
}

/// Units of a lease since it was made, for a check.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug, Default)]
struct Units {
    taken: u64,
    used: u64,
    /// Returned to the store, or lost.
    gone: u64,
}

/// Removals of debt by operations of the application, under all policies of the lease.
#[derive(Clone, Copy, Debug, Default)]
struct Removals {
    resets: u64,
    refunded_units: u64,
}

/// A request for a chunk that is about to be sent. The store may apply it before operations that remove debt and that begin
/// later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RefillToken {
    pub(crate) sent: Timestamp,
    removals: Removals,
    /// How often the store had denied a request for units before.
    pub(crate) denials: u64,
}

/// Unspent units of a lease that has ended.
#[derive(Debug)]
pub(crate) struct UnspentLease {
    pub(crate) key: Box<[u8]>,
    pub(crate) policy: PlannedPolicy,
    pub(crate) left: u32,
    owed_until: Timestamp,
    window_end: Timestamp,
    chunk: u64,
}

/// A chunk that the store has granted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chunk {
    pub(crate) units: u32,
    /// Of which its request uses these at once.
    pub(crate) cost: u32,
    pub(crate) decision: Decision,
    /// When its window ends, by the clock of this process: in the past if that is not known, and never without windows.
    pub(crate) window_end: Timestamp,
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
        if let Some(lease) = shard.get_mut(key) {
            if lease.policy.number != policy.number {
                reached!(LeaseEndsWithItsPolicy if lease.left > 0);
                // At another rate, the debt that this lease counts may have drained in the store.
                let is_owed = lease.policy.terms.is_like(&policy.terms);
                *expired = lease.unspent(key).map(|it| if is_owed { it } else { it.forfeited() });
                *lease = Lease {
                    removals: lease.removals,
                    denials: lease.denials,
                    ..Lease::new(policy, Arc::clone(&lease.refill_lock))
                };
            } else if now >= lease.until {
                reached!(LeaseExpiresBeforeTake if lease.left > 0);
                *expired = lease.unspent(key);
                lease.left = 0;
                let is_known = lease.window_end > Timestamp::EPOCH;
                if policy.terms.window.is_some() && is_known && now >= lease.window_end {
                    // A chunk that opens a window is forfeited: nothing shows that it is in that one.
                    lease.next = 1;
                }
            }
            return match lease.left.checked_sub(cost) {
                Some(left) => {
                    debug_assert!(cost == 0 || now < lease.until, "a unit is used after its time");
                    lease.left = left;
                    #[cfg(debug_assertions)]
                    {
                        lease.units.used += u64::from(cost);
                        lease.check();
                    }
                    LeaseOutcome::Taken(lease.answer(now))
                }
                None => lease.refill(lease.next.max(cost), now),
            };
        }
        if key.len() > MAX_KEY || self.count.load(Ordering::Relaxed) >= self.max_leases {
            reached!(TooManyLeases);
            return LeaseOutcome::Full;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let lease = Lease::new(policy, Arc::default());
        let refill = lease.refill(cost, now);
        let other = shard.insert(key.into(), lease);
        debug_assert!(other.is_none(), "a key has two leases");
        debug_assert!(self.count.load(Ordering::Relaxed) >= shard.len(), "a lease is not counted");
        refill
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
        let RefillToken { sent, removals, .. } = token;
        let Chunk { units, cost, decision, window_end } = chunk;
        let is_current = |lease: &&mut Lease| {
            lease.policy.number == policy.number && lease.removals.resets == removals.resets
        };
        let mut shard = self.shard(key).lock();
        debug_assert!(cost <= units, "a request uses more than its chunk");
        let Some(lease) = shard.get_mut(key).filter(is_current) else {
            reached!(ChunkIsLost if units > cost);
            return units - cost;
        };
        debug_assert!(lease.left < cost, "a chunk is taken while units are left for the request");
        let lost = if now >= lease.until { std::mem::take(&mut lease.left) } else { 0 };
        reached!(UnitsExpireDuringRefill if lost > 0);
        #[cfg(debug_assertions)]
        {
            lease.units.taken += u64::from(units);
            lease.units.used += u64::from(cost);
            lease.units.gone += u64::from(lost);
        }
        let terms = &policy.terms;
        // This request uses all units of the previous chunk, because they are less than its cost.
        lease.until = (sent + self.lifetime).min(window_end);
        lease.window_end = window_end;
        lease.left = lease.left.saturating_add(units - cost);
        lease.next =
            units.saturating_mul(2).min(decision.remaining / 2).clamp(1, policy.settings.lease);
        if units > cost && now >= window_end {
            lease.next = 1;
        }
        let owed_until = lease.owed_until.max(sent) + terms.drain_time(units.into());
        // Others may have refunded.
        lease.owed_until = owed_until.min(sent + decision.reset_after);
        lease.chunk = units.into();
        let refunded = lease.removals.refunded_units.saturating_sub(removals.refunded_units);
        if refunded > 0 {
            reached!(RefundDuringRefill);
            // The store may have refunded these units after it granted the chunk.
            lease.lower_debt(refunded);
        }
        (lease.last, lease.decided_at) = (decision, now);
        debug_assert!(lease.left < units, "unspent units are of an older chunk");
        #[cfg(debug_assertions)]
        lease.check();
        lost
    }

    /// Resets the size of chunks, because the store has denied a request for units.
    pub(crate) fn denied(&self, key: &[u8]) {
        if let Some(lease) = self.shard(key).lock().get_mut(key) {
            reached!(ChunkIsDenied);
            lease.next = 1;
            lease.denials += 1;
        }
    }

    /// Subtracts units that the application refunds from the debt of the lease, because the lease must not return that debt
    /// again. Runs before and after the refund: the store may grant a chunk in between.
    pub(crate) fn refunded(&self, key: &[u8], units: u32) {
        if let Some(lease) = self.shard(key).lock().get_mut(key) {
            lease.removals.refunded_units += u64::from(units);
            lease.lower_debt(units.into());
        }
    }

    /// Clears the lease of a key that is reset, which has returned its units too. Returns their number. A chunk that was
    /// requested before is lost. Runs before and after the reset: the store may grant a chunk in between.
    pub(crate) fn forget(&self, key: &[u8]) -> u32 {
        let mut shard = self.shard(key).lock();
        let Some(lease) = shard.get_mut(key) else { return 0 };
        lease.removals.resets += 1;
        lease.owed_until = Timestamp::EPOCH;
        reached!(LeaseIsReset if lease.left > 0);
        #[cfg(debug_assertions)]
        {
            lease.units.gone += u64::from(lease.left);
        }
        std::mem::take(&mut lease.left)
    }

    /// Takes the unspent units of leases that have expired by `now` (of all, for `None`), and drops leases that no
    /// request uses.
    pub(crate) fn expired(&self, now: Option<Timestamp>) -> Vec<UnspentLease> {
        let mut all = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|key, lease| {
                if now.is_some_and(|now| now < lease.until) {
                    return true;
                }
                all.extend(lease.unspent(key));
                let is_refilling = Arc::strong_count(&lease.refill_lock) > 1;
                if !is_refilling {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                }
                lease.left = 0;
                lease.next = 1;
                #[cfg(debug_assertions)]
                lease.check();
                reached!(LeaseIsRefilledWhileItExpires if is_refilling);
                is_refilling
            });
        }
        all
    }
}

impl Lease {
    fn new(policy: &PlannedPolicy, refill_lock: Arc<tokio::sync::Mutex<()>>) -> Self {
        let never = Timestamp::EPOCH;
        Self {
            policy: policy.clone(),
            left: 0,
            until: never,
            next: 1,
            owed_until: never,
            window_end: never,
            chunk: 0,
            last: policy.plan.unused_decision,
            decided_at: never,
            removals: Removals::default(),
            denials: 0,
            refill_lock,
            #[cfg(debug_assertions)]
            units: Units::default(),
        }
    }

    /// Checks that every unit that was taken is used, left or gone.
    #[cfg(debug_assertions)]
    fn check(&self) {
        let Units { taken, used, gone } = self.units;
        assert_eq!(taken, used + gone + u64::from(self.left), "units of a lease");
    }

    fn refill(&self, units: u32, now: Timestamp) -> LeaseOutcome {
        let token = RefillToken { sent: now, removals: self.removals, denials: self.denials };
        LeaseOutcome::Refill(Arc::clone(&self.refill_lock), units, token)
    }

    /// Subtracts `units` that the store refunds, rounded up.
    fn lower_debt(&mut self, units: u64) {
        let drained_in = as_micros(self.policy.terms.drain_time(units)).saturating_add(1);
        let rest = self.owed_until.as_micros().saturating_sub(drained_in);
        self.owed_until = Timestamp::saturating_from_micros(rest);
        self.chunk = self.chunk.saturating_sub(units);
    }

    /// The unspent units, which no longer count as debt, because they may be refunded.
    fn unspent(&mut self, key: &[u8]) -> Option<UnspentLease> {
        if self.left == 0 {
            return None;
        }
        let (left, policy) = (self.left, self.policy.clone());
        let Self { owed_until, window_end, chunk, .. } = *self;
        self.lower_debt(left.into());
        #[cfg(debug_assertions)]
        {
            self.units.gone += u64::from(left);
        }
        Some(UnspentLease { key: key.into(), policy, left, owed_until, window_end, chunk })
    }

    /// The last decision of the store, with the unspent units added.
    fn answer(&self, now: Timestamp) -> Answer {
        let reset_after = self.last.reset_after.saturating_sub(now.since(self.decided_at));
        let remaining = self.last.remaining.saturating_add(self.left).min(self.last.limit);
        let outcome = Outcome::Allow { delay: Duration::ZERO };
        let decision = Decision { outcome, remaining, reset_after, ..self.last };
        Answer::new(decision, Source::Lease)
    }
}

impl UnspentLease {
    /// The same units, of which none is owed.
    fn forfeited(self) -> Self {
        Self { window_end: Timestamp::EPOCH, ..self }
    }

    /// Number of units that are still owed, and may be refunded, if the refund arrives within `late`.
    pub(crate) fn owed(&self, now: Timestamp, late: Duration) -> u32 {
        let terms = &self.policy.terms;
        let then = now + late;
        if terms.forfeits || then > self.window_end {
            return 0;
        }
        // The unspent units are part of the newest chunk, and the application may have refunded that.
        let of_windows = if terms.window.is_some() { self.chunk } else { u64::MAX };
        let debt = as_micros(self.owed_until.since(then));
        let owed = of_windows.min(terms.drained_units(debt)).min(self.left.into());
        u32::try_from(owed).unwrap_or(self.left)
    }
}

/// When the window of a chunk ends, by the clock of the process: the chunk was sent at `sent`, and the entry was asked for at
/// `asked` and read at `read`. The store had the time `by_store` as it read it. `None` if the window may have begun after the
/// chunk was taken.
pub(crate) fn window_end(
    entry: &Entry,
    policy: &Policy,
    by_store: Timestamp,
    [sent, asked, read]: [Timestamp; 3],
) -> Option<Timestamp> {
    let (start, end) = entry.common_window(by_store).filter(|_| entry.policy() == policy)?;
    // The clock of the process may run slower than that of the store, by less than a thousandth.
    let (elapsed, left) = (read.since(sent), end.since(by_store));
    let is_known = start + elapsed + elapsed / 1000 <= by_store;
    is_known.then(|| asked + (left - left / 1000))
}

#[cfg(shuttle)]
mod schedules;

#[cfg(test)]
mod fleet;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
