//! Cache of the last replies of the store: denials that still apply, and the usage of keys.
//!
//! A denial applies to its policy and cost. One with `retry_after` applies until that time, counted from when the
//! command was sent. Other takes let a key pass earlier in one case: units are held, and no window is open. The denial then
//! names the end of a window that begins when a hold expires; a take begins that window earlier, and it still lasts a
//! period. Therefore a denial by a limit whose window begins with use applies for at most a period.
//!
//! Refunds, resets, charges and other policies may let a key pass at any time. Those of this process drop the cached
//! denials, also for commands in flight; those of other processes take effect here after `max_denial_cache` at the latest.
//!
//! Bounded by two generations: when the young one is full, it replaces the old one. Keys are stored as a randomly
//! keyed hash of 128 bits, because clients choose the length of keys.

use std::{collections::HashMap, time::Duration};

use ahash::RandomState;
use parking_lot::Mutex;
use sluicegate_core::{Answer, Decision, Outcome, Retry, Source, Timestamp, as_micros, reached};
use smallvec::SmallVec;

use crate::FallbackPolicy;

const SHARDS: usize = 16;
/// Maximum number of denials per key, each of another cost.
const MAX_COSTS: usize = 4;

/// The last replies by key.
#[derive(Debug)]
pub struct DenialCache {
    shards: Box<[Mutex<Shard>]>,
    hashers: [RandomState; 2],
    /// Maximum number of keys per generation of a shard.
    capacity: usize,
    max_age: Duration,
}

#[derive(Debug, Default)]
struct Shard {
    /// Incremented when an entry is dropped because it is obsolete.
    epoch: u64,
    young: HashMap<KeyHash, Entry, RandomState>,
    old: HashMap<KeyHash, Entry, RandomState>,
}

/// Hash of a key. Two keys collide with a probability of 2^-128.
type KeyHash = [u64; 2];

#[derive(Clone, Debug)]
struct Entry {
    /// Number of the prepared policy.
    policy: u64,
    denials: SmallVec<[Denial; 1]>,
    last: Option<LastUsage>,
}

/// A denial that applies until `until`.
#[derive(Clone, Copy, Debug)]
struct Denial {
    cost: u32,
    /// End of the denial, from the time at which the command was sent.
    until: Timestamp,
    /// When the request passes, from the time of the reply, so that a client is never early. `None` if it never
    /// passes.
    passes: Option<Timestamp>,
    resets: Timestamp,
    limit: u32,
    binding: usize,
}

/// Usage of a key in the last reply, under any policy.
#[derive(Clone, Copy, Debug)]
struct LastUsage {
    at: Timestamp,
    used: u32,
    reset_after: Duration,
    /// Whether the usage drains evenly.
    drains: bool,
    /// Index of the limit that `used` is about.
    binding: usize,
}

/// Usage in the last reply of the store that has not drained since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReportedUsage {
    pub(crate) used: u32,
    /// Index of the limit in the policy of that request.
    pub(crate) binding: usize,
    /// The time until nothing is in use.
    pub(crate) reset_after: Duration,
}

/// Drops the denials of a key when it is dropped: the future of an operation may be dropped after the command was sent, and
/// the operation is applied nevertheless.
#[derive(Debug)]
#[must_use = "the denials are dropped when this is"]
pub struct ForgetOnDrop<'a> {
    denials: &'a DenialCache,
    key: KeyHash,
}

impl Drop for ForgetOnDrop<'_> {
    fn drop(&mut self) {
        reached!(DenialsAreForgottenAtTheEnd);
        self.denials.shard(self.key).lock().forget(self.key);
    }
}

/// A command in flight. Its reply is not recorded if the entry became obsolete in the meantime.
#[derive(Clone, Copy, Debug)]
pub struct QueryToken {
    sent: Timestamp,
    epoch: u64,
}

impl DenialCache {
    /// A cache of up to `keys` keys, whose denials apply for up to `max_age`. The hashers have keys of their own.
    #[must_use]
    pub fn new(keys: usize, max_age: Duration, hashers: [RandomState; 2]) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hashers,
            capacity: (keys / SHARDS / 2).max(1),
            max_age,
        }
    }

    fn hash(&self, key: &[u8]) -> KeyHash {
        [self.hashers[0].hash_one(key), self.hashers[1].hash_one(key)]
    }

    fn shard(&self, hash: KeyHash) -> &Mutex<Shard> {
        &self.shards[usize::try_from(hash[0] % SHARDS as u64).unwrap_or_default()]
    }

    /// The denial of `cost` that still applies.
    #[must_use]
    pub fn denied(
        &self,
        key: &[u8],
        policy: &FallbackPolicy,
        cost: u32,
        now: Timestamp,
    ) -> Option<Answer> {
        if !policy.is_cached {
            return None;
        }
        let key = self.hash(key);
        let shard = self.shard(key).lock();
        let entry = shard.find(key).filter(|entry| entry.policy == policy.number)?;
        let denial = entry.denials.iter().find(|it| it.cost == cost && now < it.until)?;
        debug_assert!(
            denial.passes.is_none_or(|passes| now < passes),
            "a cached denial outlives that of the store"
        );
        reached!(DenialIsFromCache);
        let decision = Decision {
            outcome: Outcome::Deny {
                retry: denial.passes.map_or(Retry::Never, |passes| Retry::After(passes.since(now))),
            },
            limit: denial.limit,
            remaining: 0,
            reset_after: denial.resets.since(now),
            binding: denial.binding,
        };
        Some(Answer::new(decision, Source::Cache))
    }

    /// Registers a command that is about to be sent.
    #[must_use]
    pub fn begin_query(&self, key: &[u8], now: Timestamp) -> QueryToken {
        QueryToken { sent: now, epoch: self.shard(self.hash(key)).lock().epoch }
    }

    /// Records the reply to a take of `cost` units, or to another operation (`cost` 0).
    pub fn record(
        &self,
        key: &[u8],
        policy: &FallbackPolicy,
        cost: u32,
        token: QueryToken,
        now: Timestamp,
        decision: &Decision,
    ) {
        let denial = match decision.outcome {
            Outcome::Deny { retry } if policy.is_cached && cost > 0 => {
                let wait = match retry {
                    Retry::After(wait) => Some(wait),
                    Retry::Never => None,
                };
                let limit = policy.policy.limits().get(decision.binding);
                let period = limit.filter(|it| it.begins_with_use()).map(|it| it.rate().1);
                let applies = wait.map(|wait| period.map_or(wait, |period| wait.min(period)));
                reached!(CachedDenialEndsWithPeriod if applies < wait);
                Some(Denial {
                    cost,
                    until: token.sent + applies.map_or(self.max_age, |span| span.min(self.max_age)),
                    passes: wait.map(|wait| now + wait),
                    resets: now + decision.reset_after,
                    limit: decision.limit,
                    binding: decision.binding,
                })
            }
            _ => None,
        };
        let last = policy.local.is_some().then(|| LastUsage {
            at: now,
            used: decision.limit.saturating_sub(decision.remaining),
            reset_after: decision.reset_after,
            drains: policy.policy.can_reserve(),
            binding: decision.binding,
        });
        debug_assert!(
            denial.is_none_or(|it| it.until <= token.sent + self.max_age),
            "cached too long"
        );
        let key = self.hash(key);
        let mut shard = self.shard(key).lock();
        debug_assert!(token.epoch <= shard.epoch, "a command of a later epoch");
        let found = shard.find(key);
        let other = found.is_some_and(|entry| entry.policy != policy.number);
        if shard.epoch != token.epoch || denial.is_none() && last.is_none() {
            reached!(DenialComesTooLate if shard.epoch != token.epoch && denial.is_some());
            if other {
                reached!(DenialsOfOtherPolicyAreForgotten);
                // Another policy has changed the state, and the denied request may pass.
                shard.remove(key);
            }
            return;
        }
        let fresh = || Entry { policy: policy.number, denials: SmallVec::new(), last: None };
        let mut entry = found.filter(|_| !other).cloned().unwrap_or_else(fresh);
        if let Some(denial) = denial {
            entry.denials.retain(|it| it.cost != cost && now < it.until);
            entry.denials.truncate(MAX_COSTS - 1);
            entry.denials.push(denial);
            debug_assert!(entry.denials.len() <= MAX_COSTS, "too many denials of a key");
            debug_assert_eq!(entry.denials.iter().filter(|it| it.cost == cost).count(), 1);
        }
        debug_assert_eq!(entry.policy, policy.number, "a denial under another policy");
        entry.last = last;
        shard.insert(key, entry, self.capacity);
        debug_assert!(shard.young.len() <= self.capacity && shard.old.len() <= self.capacity);
    }

    /// Drops denials of a key, because an operation may let it pass earlier. Keeps its usage.
    pub fn forget(&self, key: &[u8]) {
        let key = self.hash(key);
        self.shard(key).lock().forget(key);
    }

    /// [Forgets](Self::forget) the denials of a key that are cached until the guard is dropped.
    pub fn forget_on_drop(&self, key: &[u8]) -> ForgetOnDrop<'_> {
        ForgetOnDrop { denials: self, key: self.hash(key) }
    }

    /// Drops denials and usage of a key that was reset.
    pub fn reset(&self, key: &[u8]) {
        let key = self.hash(key);
        self.shard(key).lock().remove(key);
    }

    /// Passes the usage in the last reply to `count`, once, because the fallback counts it from then on. `count`
    /// runs under the lock of the key, before another request for it is decided.
    pub(crate) fn take_usage(&self, key: &[u8], now: Timestamp, count: impl FnOnce(ReportedUsage)) {
        let key = self.hash(key);
        let mut shard = self.shard(key).lock();
        let Some(last) = shard.find_mut(key).and_then(|entry| entry.last.take()) else { return };
        let (elapsed, reset) = (as_micros(now.since(last.at)), as_micros(last.reset_after));
        if elapsed >= reset {
            return;
        }
        let used = u128::from(last.used);
        let used = if last.drains {
            (used * u128::from(reset - elapsed)).div_ceil(u128::from(reset))
        } else {
            used
        };
        let used = u32::try_from(used).unwrap_or(u32::MAX);
        debug_assert!(used <= last.used, "usage grows by itself");
        reached!(FallbackCountsReportedUsage if used > 0);
        let reset_after = Duration::from_micros(reset - elapsed);
        count(ReportedUsage { used, binding: last.binding, reset_after });
    }
}

impl Shard {
    fn find(&self, key: KeyHash) -> Option<&Entry> {
        self.young.get(&key).or_else(|| self.old.get(&key))
    }

    fn find_mut(&mut self, key: KeyHash) -> Option<&mut Entry> {
        self.young.get_mut(&key).or_else(|| self.old.get_mut(&key))
    }

    fn insert(&mut self, key: KeyHash, entry: Entry, capacity: usize) {
        if let Some(entry_of_key) = self.young.get_mut(&key) {
            *entry_of_key = entry;
            return;
        }
        self.old.remove(&key);
        if self.young.len() >= capacity {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, entry);
        debug_assert!(!self.old.contains_key(&key), "a key is in both generations");
    }

    fn forget(&mut self, key: KeyHash) {
        match self.find_mut(key) {
            Some(entry) if entry.last.is_some() => {
                reached!(DenialsAreForgottenButNotUsage if !entry.denials.is_empty());
                entry.denials.clear();
                self.epoch += 1;
            }
            _ => self.remove(key),
        }
        debug_assert!(self.find(key).is_none_or(|entry| entry.denials.is_empty()));
    }

    fn remove(&mut self, key: KeyHash) {
        self.epoch += 1;
        if !self.young.is_empty() || !self.old.is_empty() {
            self.young.remove(&key);
            self.old.remove(&key);
        }
        debug_assert!(self.find(key).is_none(), "a key that was forgotten stays");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_core::{OnError, Operation, PreparedPolicy, Share, apply};

    fn at(micros: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_micros(micros)
    }

    fn planned(policy: &str) -> FallbackPolicy {
        FallbackPolicy::new(&policy.parse().unwrap())
    }

    fn denial(policy: &str, cost: u32) -> Decision {
        let policy = policy.parse().unwrap();
        let mut entry = None;
        let _ = apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Charge(cost)).unwrap();
        apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Take(cost)).unwrap()
    }

    fn cache() -> DenialCache {
        DenialCache::new(1000, Duration::from_secs(1), [RandomState::new(), RandomState::new()])
    }

    #[test]
    fn denied_applies_from_sending_for_its_policy_and_cost() {
        let (cache, policy) = (cache(), planned("gcra:10/1s:burst=1"));
        let token = cache.begin_query(b"k", at(1000));
        cache.record(b"k", &policy, 1, token, at(4000), &denial("gcra:10/1s:burst=1", 1));

        let answer = cache.denied(b"k", &policy, 1, at(5000)).unwrap();
        // `retry_after` starts at the time of the reply, so that the client is not early.
        assert_eq!(answer.to_integers(), [0, 1, 0, 99_000, 99_000, 0, 0]);
        assert_eq!(answer.source, Source::Cache);
        assert!(cache.denied(b"k", &policy, 1, at(100_999)).is_some());
        assert!(cache.denied(b"k", &policy, 1, at(101_000)).is_none());
        assert!(cache.denied(b"k", &policy, 2, at(5000)).is_none());
        assert!(cache.denied(b"K", &policy, 1, at(5000)).is_none());
        let other = planned("gcra:10/1s:burst=1");
        assert!(cache.denied(b"k", &other, 1, at(5000)).is_none());
    }

    #[test]
    fn denied_never_passing_lasts_for_the_maximum_age() {
        let (cache, policy) = (cache(), planned("gcra:10/1s:burst=1"));
        let token = cache.begin_query(b"k", at(1000));
        cache.record(b"k", &policy, 2, token, at(4000), &denial("gcra:10/1s:burst=1", 2));
        let answer = cache.denied(b"k", &policy, 2, at(1_000_999)).unwrap();
        assert_eq!(answer.retry(), Some(Retry::Never));
        assert!(cache.denied(b"k", &policy, 1, at(5000)).is_none(), "another cost may pass");
        assert!(cache.denied(b"k", &policy, 2, at(1_001_000)).is_none());
    }

    #[test]
    fn denied_long_denial_ends_at_the_maximum_age() {
        let (cache, policy) = (cache(), planned("fixed-window:1/1h"));
        cache.record(
            b"k",
            &policy,
            1,
            cache.begin_query(b"k", at(0)),
            at(0),
            &denial("fixed-window:1/1h", 1),
        );
        assert!(cache.denied(b"k", &policy, 1, at(999_999)).is_some());
        assert!(cache.denied(b"k", &policy, 1, at(1_000_000)).is_none());
    }

    #[test]
    fn denied_while_units_are_held_lasts_a_period() {
        for text in ["fixed-window:5/500ms", "token-bucket:5/500ms:refill=interval"] {
            let policy = planned(text);
            let mut entry = None;
            let hold =
                Operation::Hold { id: b"id", cost: 5, ttl: Some(Duration::from_millis(400)) };
            let _ = apply(&policy.policy, &mut entry, at(0), hold).unwrap();
            let denied = apply(&policy.policy, &mut entry, at(0), Operation::Take(1)).unwrap();
            assert_eq!(denied.retry(), Some(Retry::After(Duration::from_millis(900))));
            let mut passes = entry.clone();
            let _ = apply(&policy.policy, &mut passes, at(1), Operation::Charge(1)).unwrap();
            let earlier =
                apply(&policy.policy, &mut passes, at(500_001), Operation::Peek(1)).unwrap();
            assert!(earlier.allowed(), "{text}");

            let cache = cache();
            cache.record(b"k", &policy, 1, cache.begin_query(b"k", at(0)), at(0), &denied);
            assert!(cache.denied(b"k", &policy, 1, at(499_999)).is_some());
            assert!(cache.denied(b"k", &policy, 1, at(500_000)).is_none(), "{text}");
        }
    }

    #[test]
    fn forget_drops_denials_of_commands_in_flight() {
        let (cache, policy) = (cache(), planned("gcra:10/1s:burst=1"));
        let denied = denial("gcra:10/1s:burst=1", 1);
        cache.record(b"k", &policy, 1, cache.begin_query(b"k", at(0)), at(0), &denied);
        cache.forget(b"k");
        assert!(cache.denied(b"k", &policy, 1, at(1)).is_none());
        let token = cache.begin_query(b"k", at(0));
        cache.forget(b"k");
        cache.record(b"k", &policy, 1, token, at(0), &denied);
        assert!(cache.denied(b"k", &policy, 1, at(1)).is_none());
        // An answer under another policy.
        cache.record(b"k", &policy, 1, cache.begin_query(b"k", at(0)), at(0), &denied);
        let other = planned("gcra:20/1s:burst=1");
        let allowed = Decision { outcome: Outcome::Allow { delay: Duration::ZERO }, ..denied };
        cache.record(b"k", &other, 1, cache.begin_query(b"k", at(1)), at(1), &allowed);
        assert!(cache.denied(b"k", &policy, 1, at(2)).is_none());
    }

    #[test]
    fn denied_count_all_is_never_cached() {
        let (cache, policy) = (cache(), planned("fixed-window:1/1h:count=all"));
        let denied = denial("fixed-window:1/1h:count=all", 1);
        cache.record(b"k", &policy, 1, cache.begin_query(b"k", at(0)), at(0), &denied);
        assert!(cache.denied(b"k", &policy, 1, at(1)).is_none());
    }

    #[test]
    fn record_many_keys_is_bounded() {
        let (cache, policy) = (cache(), planned("gcra:10/1s:burst=1"));
        let denied = denial("gcra:10/1s:burst=1", 1);
        for key in 0..100_000_u32 {
            let key = key.to_le_bytes();
            cache.record(&key, &policy, 1, cache.begin_query(&key, at(0)), at(0), &denied);
        }
        let size = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            shard.young.len() + shard.old.len()
        };
        let keys: usize = cache.shards.iter().map(size).sum();
        assert!(keys <= 1000, "{keys}");
        assert!(cache.denied(&99_999_u32.to_le_bytes(), &policy, 1, at(1)).is_some());
    }

    #[test]
    fn take_usage_drains_like_its_algorithm() {
        let cache = cache();
        let on_error = OnError::Local(Share::ALL);
        for (text, after, used) in [
            ("gcra:10/1s", 250_000, 5),
            ("fixed-window:10/1s", 250_000, 5),
            ("gcra:10/1s", 500_000, 0),
        ] {
            let policy =
                FallbackPolicy::new(&text.parse::<PreparedPolicy>().unwrap().on_error(on_error));
            let mut entry = None;
            let decision = apply(&policy.policy, &mut entry, at(0), Operation::Take(5)).unwrap();
            cache.record(b"k", &policy, 5, cache.begin_query(b"k", at(0)), at(0), &decision);
            let expected = if policy.policy.as_gcra().is_some() && used > 0 { 3 } else { used };
            let reported = |cache: &DenialCache| {
                let mut actual = None;
                cache.take_usage(b"k", at(after), |it| actual = Some(it.used));
                actual
            };
            assert_eq!(reported(&cache).unwrap_or(0), expected, "{policy:?}");
            assert_eq!(reported(&cache), None, "it is reported once");
        }
    }
}
