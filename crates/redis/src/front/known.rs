//! What the last answers of the store said: denials that still stand, and what a key has used.
//!
//! A denial that says never stands for its rule and cost. One with `retry_after` stands until that time, counted from when the question was sent: in no
//! state machine does time alone, or another's taking, make a key pass earlier. Refunds, resets, charges
//! and other rules may; what this process asks of that kind forgets what was known, also for questions
//! that are under way meanwhile, and what others ask is noticed after `max_denial_cache` at the latest.
//!
//! Bounded: two generations, and when the young one is full, it becomes the old one, which is dropped. Keys are known by
//! a hash of 128 bits that is keyed at random, because a client chooses how long they are.

use std::{collections::HashMap, time::Duration};

use ahash::RandomState;
use parking_lot::Mutex;
use sluicegate_core::{Decision, Outcome, Retry, Timestamp};
use smallvec::SmallVec;

use crate::{Answer, Rule, Source};

const SHARDS: usize = 16;
/// Costs of a key whose denials are known at a time.
const COSTS: usize = 4;

/// What the last answers said, by key.
#[derive(Debug)]
pub(crate) struct Known {
    shards: Box<[Mutex<Shard>]>,
    hashers: [RandomState; 2],
    /// Keys of a generation of a shard.
    room: usize,
    longest: Duration,
}

#[derive(Debug, Default)]
struct Shard {
    /// Grows when something is forgotten on purpose.
    epoch: u64,
    young: HashMap<KeyHash, Entry, RandomState>,
    old: HashMap<KeyHash, Entry, RandomState>,
}

/// What a key is known by: two keys have the same with a probability of 2^-128.
type KeyHash = [u64; 2];

#[derive(Clone, Debug)]
struct Entry {
    /// The rule that it was asked under.
    rule: u64,
    denials: SmallVec<[Denial; 1]>,
    last: Option<Last>,
}

/// A denial that stands.
#[derive(Clone, Copy, Debug)]
struct Denial {
    cost: u32,
    /// Until then, by the time at which the question was sent.
    until: Timestamp,
    /// The same by the time at which the answer came: who waits so long is not too early. `None`: it never
    /// passes.
    passes: Option<Timestamp>,
    resets: Timestamp,
    limit: u32,
    binding: usize,
}

/// What a key had used, under whichever rule it was asked about.
#[derive(Clone, Copy, Debug)]
struct Last {
    at: Timestamp,
    used: u32,
    reset_after: Duration,
    /// Whether what is in use drains evenly.
    drains: bool,
    /// Index of the limit that `used` is about.
    binding: usize,
}

/// Usage that the store reported, as far as it has not drained since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reported {
    pub(crate) used: u32,
    /// Index of the limit in the policy that was asked under.
    pub(crate) binding: usize,
}

/// A question that is under way: what is learned from its answer is no more than it can say.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    sent: Timestamp,
    epoch: u64,
}

impl Known {
    pub(crate) fn new(keys: usize, longest: Duration) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hashers: [RandomState::new(), RandomState::new()],
            room: (keys / SHARDS / 2).max(1),
            longest,
        }
    }

    fn hash(&self, key: &[u8]) -> KeyHash {
        [self.hashers[0].hash_one(key), self.hashers[1].hash_one(key)]
    }

    fn shard(&self, hash: KeyHash) -> &Mutex<Shard> {
        &self.shards[usize::try_from(hash[0] % SHARDS as u64).unwrap_or_default()]
    }

    /// The denial of `cost` that still stands.
    pub(crate) fn denied(
        &self,
        key: &[u8],
        rule: &Rule,
        cost: u32,
        now: Timestamp,
    ) -> Option<Answer> {
        if !rule.is_cached() {
            return None;
        }
        let key = self.hash(key);
        let shard = self.shard(key).lock();
        let entry = shard.find(key).filter(|entry| entry.rule == rule.number())?;
        let denial = entry.denials.iter().find(|it| it.cost == cost && now < it.until)?;
        let after = |then: Timestamp| {
            Duration::from_micros(then.as_micros().saturating_sub(now.as_micros()))
        };
        let decision = Decision {
            outcome: Outcome::Deny {
                retry: denial.passes.map_or(Retry::Never, |passes| Retry::After(after(passes))),
            },
            limit: denial.limit,
            remaining: 0,
            reset_after: after(denial.resets),
            binding: denial.binding,
        };
        Some(Answer { decision, source: Source::Cache })
    }

    /// A question is sent.
    pub(crate) fn asked(&self, key: &[u8], now: Timestamp) -> Asked {
        Asked { sent: now, epoch: self.shard(self.hash(key)).lock().epoch }
    }

    /// The answer came, to a take of `cost` units or (0) to another operation.
    pub(crate) fn learn(
        &self,
        key: &[u8],
        rule: &Rule,
        cost: u32,
        asked: Asked,
        now: Timestamp,
        decision: &Decision,
    ) {
        let denial = match decision.outcome {
            Outcome::Deny { retry } if rule.is_cached() && cost > 0 => {
                let wait = match retry {
                    Retry::After(wait) => Some(wait),
                    Retry::Never => None,
                };
                Some(Denial {
                    cost,
                    until: asked.sent + wait.map_or(self.longest, |wait| wait.min(self.longest)),
                    passes: wait.map(|wait| now + wait),
                    resets: now + decision.reset_after,
                    limit: decision.limit,
                    binding: decision.binding,
                })
            }
            _ => None,
        };
        let last = rule.is_remembered().then(|| Last {
            at: now,
            used: decision.limit.saturating_sub(decision.remaining),
            reset_after: decision.reset_after,
            drains: rule.policy().can_reserve(),
            binding: decision.binding,
        });
        let key = self.hash(key);
        let mut shard = self.shard(key).lock();
        if shard.epoch != asked.epoch {
            return;
        }
        let known = shard.find(key);
        let other = known.is_some_and(|entry| entry.rule != rule.number());
        if denial.is_none() && last.is_none() {
            if other {
                // Under another rule the state is another, and what was denied may pass.
                shard.remove(key);
            }
            return;
        }
        let fresh = || Entry { rule: rule.number(), denials: SmallVec::new(), last: None };
        let mut entry = known.filter(|_| !other).cloned().unwrap_or_else(fresh);
        if let Some(denial) = denial {
            entry.denials.retain(|it| it.cost != cost && now < it.until);
            entry.denials.truncate(COSTS - 1);
            entry.denials.push(denial);
        }
        entry.last = last;
        shard.insert(key, entry, self.room);
    }

    /// Something is asked, or was answered, that may make the key pass earlier. Its usage stays known.
    pub(crate) fn forget(&self, key: &[u8]) {
        let key = self.hash(key);
        self.shard(key).lock().forget(key);
    }

    /// The key is reset, and has used nothing.
    pub(crate) fn reset(&self, key: &[u8]) {
        let key = self.hash(key);
        self.shard(key).lock().remove(key);
    }

    /// Hands what the last answer said of the key's usage to `count`, once: it is counted elsewhere from
    /// then on. `count` runs under the lock of the key, before another request for it is decided.
    pub(crate) fn take_used(&self, key: &[u8], now: Timestamp, count: impl FnOnce(Reported)) {
        let key = self.hash(key);
        let mut shard = self.shard(key).lock();
        let Some(last) = shard.find_mut(key).and_then(|entry| entry.last.take()) else { return };
        let elapsed = now.as_micros().saturating_sub(last.at.as_micros());
        let reset = u64::try_from(last.reset_after.as_micros()).unwrap_or(u64::MAX);
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
        count(Reported { used, binding: last.binding });
    }
}

impl Shard {
    fn find(&self, key: KeyHash) -> Option<&Entry> {
        self.young.get(&key).or_else(|| self.old.get(&key))
    }

    fn find_mut(&mut self, key: KeyHash) -> Option<&mut Entry> {
        self.young.get_mut(&key).or_else(|| self.old.get_mut(&key))
    }

    fn insert(&mut self, key: KeyHash, entry: Entry, room: usize) {
        if let Some(known) = self.young.get_mut(&key) {
            *known = entry;
            return;
        }
        self.old.remove(&key);
        if self.young.len() >= room {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, entry);
    }

    fn forget(&mut self, key: KeyHash) {
        match self.find_mut(key) {
            Some(entry) if entry.last.is_some() => {
                entry.denials.clear();
                self.epoch += 1;
            }
            _ => self.remove(key),
        }
    }

    fn remove(&mut self, key: KeyHash) {
        self.epoch += 1;
        if !self.young.is_empty() || !self.old.is_empty() {
            self.young.remove(&key);
            self.old.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_core::{Operation, apply};

    fn at(micros: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_micros(micros)
    }

    fn denial(policy: &str, cost: u32) -> Decision {
        let policy = policy.parse().unwrap();
        let mut entry = None;
        let _ = apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Charge(cost)).unwrap();
        apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Take(cost)).unwrap()
    }

    fn known() -> Known {
        Known::new(1000, Duration::from_secs(1))
    }

    #[test]
    fn a_denial_stands_from_when_the_question_was_sent_for_its_rule_and_cost() {
        let (known, rule) = (known(), "gcra:10/1s:burst=1".parse().unwrap());
        let asked = known.asked(b"k", at(1000));
        known.learn(b"k", &rule, 1, asked, at(4000), &denial("gcra:10/1s:burst=1", 1));

        let answer = known.denied(b"k", &rule, 1, at(5000)).unwrap();
        // It is told what to wait by when the answer came, so as not to be too early.
        assert_eq!(answer.to_integers(), [0, 1, 0, 99_000, 99_000, 0, 0]);
        assert_eq!(answer.source, Source::Cache);
        assert!(known.denied(b"k", &rule, 1, at(100_999)).is_some());
        assert!(known.denied(b"k", &rule, 1, at(101_000)).is_none());
        assert!(known.denied(b"k", &rule, 2, at(5000)).is_none());
        assert!(known.denied(b"K", &rule, 1, at(5000)).is_none());
        let other = "gcra:10/1s:burst=1".parse().unwrap();
        assert!(known.denied(b"k", &other, 1, at(5000)).is_none());
    }

    #[test]
    fn what_never_passes_is_denied_again_for_as_long_as_any() {
        let (known, rule) = (known(), "gcra:10/1s:burst=1".parse().unwrap());
        let asked = known.asked(b"k", at(1000));
        known.learn(b"k", &rule, 2, asked, at(4000), &denial("gcra:10/1s:burst=1", 2));
        let answer = known.denied(b"k", &rule, 2, at(1_000_999)).unwrap();
        assert_eq!(answer.retry(), Some(Retry::Never));
        assert!(known.denied(b"k", &rule, 1, at(5000)).is_none(), "another cost may pass");
        assert!(known.denied(b"k", &rule, 2, at(1_001_000)).is_none());
    }

    #[test]
    fn it_stands_no_longer_than_the_bound() {
        let (known, rule) = (known(), "fixed-window:1/1h".parse().unwrap());
        known.learn(
            b"k",
            &rule,
            1,
            known.asked(b"k", at(0)),
            at(0),
            &denial("fixed-window:1/1h", 1),
        );
        assert!(known.denied(b"k", &rule, 1, at(999_999)).is_some());
        assert!(known.denied(b"k", &rule, 1, at(1_000_000)).is_none());
    }

    #[test]
    fn what_may_change_it_forgets_it_even_while_it_is_under_way() {
        let (known, rule) = (known(), "gcra:10/1s:burst=1".parse().unwrap());
        let denied = denial("gcra:10/1s:burst=1", 1);
        known.learn(b"k", &rule, 1, known.asked(b"k", at(0)), at(0), &denied);
        known.forget(b"k");
        assert!(known.denied(b"k", &rule, 1, at(1)).is_none());
        let asked = known.asked(b"k", at(0));
        known.forget(b"k");
        known.learn(b"k", &rule, 1, asked, at(0), &denied);
        assert!(known.denied(b"k", &rule, 1, at(1)).is_none());
        // An answer under another rule.
        known.learn(b"k", &rule, 1, known.asked(b"k", at(0)), at(0), &denied);
        let other: Rule = "gcra:20/1s:burst=1".parse().unwrap();
        let allowed = Decision { outcome: Outcome::Allow { delay: Duration::ZERO }, ..denied };
        known.learn(b"k", &other, 1, known.asked(b"k", at(1)), at(1), &allowed);
        assert!(known.denied(b"k", &rule, 1, at(2)).is_none());
    }

    #[test]
    fn denials_that_count_are_asked_each_time() {
        let (known, rule) = (known(), "fixed-window:1/1h:count=all".parse().unwrap());
        let denied = denial("fixed-window:1/1h:count=all", 1);
        known.learn(b"k", &rule, 1, known.asked(b"k", at(0)), at(0), &denied);
        assert!(known.denied(b"k", &rule, 1, at(1)).is_none());
    }

    #[test]
    fn it_is_bounded() {
        let (known, rule) = (known(), "gcra:10/1s:burst=1".parse().unwrap());
        let denied = denial("gcra:10/1s:burst=1", 1);
        for key in 0..100_000_u32 {
            let key = key.to_le_bytes();
            known.learn(&key, &rule, 1, known.asked(&key, at(0)), at(0), &denied);
        }
        let size = |shard: &Mutex<Shard>| {
            let shard = shard.lock();
            shard.young.len() + shard.old.len()
        };
        let keys: usize = known.shards.iter().map(size).sum();
        assert!(keys <= 1000, "{keys}");
        assert!(known.denied(&99_999_u32.to_le_bytes(), &rule, 1, at(1)).is_some());
    }

    #[test]
    fn what_was_used_drains_as_its_machine_does() {
        let known = known();
        let on_error = crate::OnError::Local(crate::Share::ALL);
        for (policy, after, used) in [
            ("gcra:10/1s", 250_000, 5),
            ("fixed-window:10/1s", 250_000, 5),
            ("gcra:10/1s", 500_000, 0),
        ] {
            let rule = policy.parse::<Rule>().unwrap().on_error(on_error);
            let mut entry = None;
            let policy = rule.policy();
            let decision = apply(policy, &mut entry, at(0), Operation::Take(5)).unwrap();
            known.learn(b"k", &rule, 5, known.asked(b"k", at(0)), at(0), &decision);
            let expected = if policy.as_gcra().is_some() && used > 0 { 3 } else { used };
            let reported = |known: &Known| {
                let mut told = None;
                known.take_used(b"k", at(after), |it| told = Some(it.used));
                told
            };
            assert_eq!(reported(&known).unwrap_or(0), expected, "{rule:?}");
            assert_eq!(reported(&known), None, "it is told once");
        }
    }
}
