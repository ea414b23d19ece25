//! Leases: a key that is asked for again and again is asked for in chunks, which are handed out here.
//!
//! A chunk is taken whole before any of it is used, and lasts for `lease_lifetime` (ℓ). So with n
//! processes that hold chunks of up to c units, what they admit in [s, t] was taken in [s - ℓ, t]: at
//! most `B + r(t - s) + min(n c, r ℓ)`, and `r` in the long run.
//!
//! Chunks begin with what is asked for, and double while they are used up in time, to at most the rule's
//! and half of what the store says remains: so a cold key is asked for one by one, and a key that is
//! nearly exhausted is not asked for more than there is.
//!
//! What is left of a chunk when its time is over goes back, once, as far as it is still owed: that part
//! of the key's debt which has drained meanwhile was given to somebody else already, and to give it back
//! would be to give it twice. The last chunk of a key is the newest part of its debt, so that what is
//! owed of it after `e` is what is owed in all, less `e`. What cannot be given back is forfeited.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ahash::RandomState;
use sluicegate_core::{Decision, Outcome, Timestamp};

use super::sync::{AtomicBool, AtomicUsize, Lock, Ordering};
use crate::{Answer, Rule, Source};

const SHARDS: usize = 16;
/// Keys above this length are asked for one by one: a lease keeps its key, to give back what is left.
const MAX_KEY: usize = 512;

/// All leases of a process.
#[derive(Debug)]
pub(crate) struct Leases {
    shards: Box<[Lock<Held>]>,
    hasher: RandomState,
    count: AtomicUsize,
    most: usize,
    lifetime: Duration,
    /// Whether somebody looks after those that are over.
    pub(crate) kept: AtomicBool,
}

type Held = HashMap<Box<[u8]>, Lease, RandomState>;

#[derive(Debug)]
struct Lease {
    rule: Rule,
    left: u32,
    /// Until when what is left may be used.
    until: Timestamp,
    /// The size of the next chunk.
    next: u32,
    /// When all that was owed after the last chunk has drained.
    owed_until: Timestamp,
    told: Decision,
    told_at: Timestamp,
    /// Whoever holds it asks for the next chunk.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// Units to give back.
#[derive(Debug)]
pub(crate) struct Leftover {
    pub(crate) key: Box<[u8]>,
    pub(crate) rule: Rule,
    pub(crate) left: u32,
    owed_until: Timestamp,
}

/// What a lease says to a take.
#[derive(Debug)]
pub(crate) enum Handed {
    /// It is allowed.
    Out(Answer),
    /// The store is to be asked: by whoever holds the turn, for so many units.
    Ask(Arc<tokio::sync::Mutex<()>>, u32),
    /// There are too many leases, or the key is too long for one.
    Full,
}

impl Leases {
    pub(crate) fn new(most: usize, lifetime: Duration) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Lock::default()).collect(),
            hasher: RandomState::new(),
            count: AtomicUsize::new(0),
            most,
            lifetime,
            kept: AtomicBool::new(false),
        }
    }

    pub(crate) const fn lifetime(&self) -> Duration {
        self.lifetime
    }

    fn shard(&self, key: &[u8]) -> &Lock<Held> {
        let hash = self.hasher.hash_one(key);
        &self.shards[usize::try_from(hash).unwrap_or_default() % SHARDS]
    }

    /// Hands `cost` units out, or says what is to be asked for. What cannot be used any more is put
    /// into `over`.
    pub(crate) fn hand_out(
        &self,
        key: &[u8],
        rule: &Rule,
        cost: u32,
        now: Timestamp,
        over: &mut Option<Leftover>,
    ) -> Handed {
        let mut shard = self.shard(key).lock();
        if let Some(lease) = shard.get_mut(key) {
            if lease.rule.number() != rule.number() || now >= lease.until {
                *over = lease.leftover(key);
                lease.left = 0;
            }
            if lease.rule.number() != rule.number() {
                *lease = Lease::new(rule, Arc::clone(&lease.turn));
            }
            return match lease.left.checked_sub(cost) {
                Some(left) => {
                    lease.left = left;
                    Handed::Out(lease.answer(now))
                }
                None => Handed::Ask(Arc::clone(&lease.turn), lease.next.max(cost)),
            };
        }
        if key.len() > MAX_KEY || self.count.load(Ordering::Relaxed) >= self.most {
            return Handed::Full;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let lease = Lease::new(rule, Arc::default());
        let turn = Arc::clone(&lease.turn);
        shard.insert(key.into(), lease);
        Handed::Ask(turn, cost)
    }

    /// The store has granted a chunk, of which `cost` units are used at once. How many units are lost,
    /// because the lease has another rule by now, or is no more.
    pub(crate) fn granted(
        &self,
        key: &[u8],
        rule: &Rule,
        (chunk, cost): (u32, u32),
        (sent, now): (Timestamp, Timestamp),
        decision: &Decision,
    ) -> u32 {
        let mut shard = self.shard(key).lock();
        let Some(lease) = shard.get_mut(key).filter(|it| it.rule.number() == rule.number()) else {
            return chunk - cost;
        };
        // What was left of the chunk before keeps its end.
        let mut lost = 0;
        if lease.left == 0 || now >= lease.until {
            lost = std::mem::take(&mut lease.left);
            lease.until = sent + self.lifetime;
        }
        lease.left = lease.left.saturating_add(chunk - cost);
        lease.next = chunk.saturating_mul(2).min(decision.remaining / 2).clamp(1, rule.chunk());
        lease.owed_until = sent + decision.reset_after;
        (lease.told, lease.told_at) = (*decision, now);
        lost
    }

    /// The store has not granted a chunk.
    pub(crate) fn denied(&self, key: &[u8]) {
        if let Some(lease) = self.shard(key).lock().get_mut(key) {
            lease.next = 1;
        }
    }

    /// Forgets the lease of a key that is reset: what is left of it was given back with all the rest.
    pub(crate) fn forget(&self, key: &[u8]) -> u32 {
        let lease =
            self.shard(key).lock().get_mut(key).map(|lease| std::mem::take(&mut lease.left));
        lease.unwrap_or_default()
    }

    /// Takes out what is left of leases that are over (of all, for `None`), and drops those that were
    /// not used in their last life.
    pub(crate) fn over(&self, now: Option<Timestamp>) -> Vec<Leftover> {
        let mut all = Vec::new();
        for shard in &self.shards {
            shard.lock().retain(|key, lease| {
                if now.is_some_and(|now| now < lease.until) {
                    return true;
                }
                all.extend(lease.leftover(key));
                let asked = Arc::strong_count(&lease.turn) > 1;
                if !asked {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                }
                lease.left = 0;
                lease.next = 1;
                asked
            });
        }
        all
    }
}

impl Lease {
    fn new(rule: &Rule, turn: Arc<tokio::sync::Mutex<()>>) -> Self {
        let told = Decision {
            outcome: Outcome::Allow { delay: Duration::ZERO },
            limit: 0,
            remaining: 0,
            reset_after: Duration::ZERO,
            binding: 0,
        };
        let (until, next) = (Timestamp::EPOCH, 1);
        let rule = rule.clone();
        Self { rule, left: 0, until, next, owed_until: until, told, told_at: until, turn }
    }

    fn leftover(&self, key: &[u8]) -> Option<Leftover> {
        let rule = self.rule.clone();
        let leftover =
            Leftover { key: key.into(), rule, left: self.left, owed_until: self.owed_until };
        (self.left > 0).then_some(leftover)
    }

    /// What the store said last, with what is left here.
    fn answer(&self, now: Timestamp) -> Answer {
        let elapsed = now.as_micros().saturating_sub(self.told_at.as_micros());
        let reset_after = self.told.reset_after.saturating_sub(Duration::from_micros(elapsed));
        let remaining = self.told.remaining.saturating_add(self.left).min(self.told.limit);
        let outcome = Outcome::Allow { delay: Duration::ZERO };
        let decision = Decision { outcome, remaining, reset_after, ..self.told };
        Answer { decision, source: Source::Lease }
    }
}

impl Leftover {
    /// How many units are still owed, and so may go back, if the store hears of it within `late`.
    pub(crate) fn owed(&self, now: Timestamp, late: Duration) -> u32 {
        let Some(gcra) = self.rule.policy().as_gcra() else { return 0 };
        let then = (now + late).as_micros();
        let owed = u128::from(self.owed_until.as_micros().saturating_sub(then));
        let units = owed * u128::from(gcra.limit()) / gcra.period().as_micros().max(1);
        u32::try_from(units).unwrap_or(u32::MAX).min(self.left)
    }
}

#[cfg(shuttle)]
mod schedules;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_millis(millis)
    }

    fn told(remaining: u32, reset_after: u64) -> Decision {
        Decision {
            outcome: Outcome::Allow { delay: Duration::ZERO },
            limit: 1000,
            remaining,
            reset_after: Duration::from_millis(reset_after),
            binding: 0,
        }
    }

    fn ask(leases: &Leases, rule: &Rule, cost: u32, now: Timestamp) -> Result<Answer, u32> {
        match leases.hand_out(b"k", rule, cost, now, &mut None) {
            Handed::Out(answer) => Ok(answer),
            Handed::Ask(_, chunk) => Err(chunk),
            Handed::Full => Err(0),
        }
    }

    #[test]
    fn chunks_double_and_are_handed_out() {
        let leases = Leases::new(10, Duration::from_secs(1));
        let rule = "gcra:1000/1s".parse::<Rule>().unwrap().lease(8).unwrap();
        let mut chunks = Vec::new();
        let mut handed = 0;
        for _ in 0..40 {
            match ask(&leases, &rule, 1, at(10)) {
                Err(chunk) => {
                    chunks.push(chunk);
                    let _ =
                        leases.granted(b"k", &rule, (chunk, 1), (at(10), at(10)), &told(900, 100));
                }
                Ok(answer) => {
                    assert!(answer.allowed() && answer.source == Source::Lease);
                    handed += 1;
                }
            }
        }
        assert_eq!(chunks, [1, 2, 4, 8, 8, 8, 8, 8]);
        assert_eq!(handed, 32);
    }

    #[test]
    fn what_is_left_ends_with_its_time_and_goes_back_as_far_as_it_is_owed() {
        let leases = Leases::new(10, Duration::from_secs(1));
        let rule = "gcra:1000/1s".parse::<Rule>().unwrap().lease(100).unwrap();
        assert_eq!(ask(&leases, &rule, 1, at(0)).unwrap_err(), 1);
        let _ = leases.granted(b"k", &rule, (100, 1), (at(0), at(5)), &told(0, 1050));
        assert_eq!(ask(&leases, &rule, 9, at(5)).unwrap().remaining, 90);
        assert!(leases.over(Some(at(999))).is_empty());
        let mut over = None;
        leases.hand_out(b"k", &rule, 1, at(1000), &mut over);
        let over = over.unwrap();
        // 50 ms of debt are left, of which 15 may pass until the store hears of it.
        assert_eq!((over.left, over.owed(at(1000), Duration::from_millis(15))), (90, 35));
        assert!(leases.over(None).is_empty());
    }

    #[test]
    fn there_are_never_too_many() {
        let leases = Leases::new(2, Duration::from_secs(1));
        let rule = "gcra:1000/1s".parse::<Rule>().unwrap().lease(100).unwrap();
        for key in [b"a", b"b"] {
            assert!(matches!(leases.hand_out(key, &rule, 1, at(0), &mut None), Handed::Ask(..)));
        }
        assert!(matches!(leases.hand_out(b"c", &rule, 1, at(0), &mut None), Handed::Full));
        assert!(leases.over(Some(at(2000))).is_empty());
        assert!(matches!(leases.hand_out(b"c", &rule, 1, at(0), &mut None), Handed::Ask(..)));
    }

    #[test]
    fn a_key_that_is_nearly_exhausted_is_asked_for_little() {
        let leases = Leases::new(2, Duration::from_secs(1));
        let rule = "gcra:1000/1s".parse::<Rule>().unwrap().lease(100).unwrap();
        let _ = ask(&leases, &rule, 1, at(0));
        let _ = leases.granted(b"k", &rule, (64, 64), (at(0), at(0)), &told(10, 990));
        assert_eq!(ask(&leases, &rule, 1, at(0)).unwrap_err(), 5);
        leases.denied(b"k");
        assert_eq!(ask(&leases, &rule, 1, at(0)).unwrap_err(), 1);
    }
}
