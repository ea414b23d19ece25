//! Keys that an operator has blocked: this server denies their requests until the block expires.
//!
//! Invariants:
//! - while no key is blocked, a request pays one relaxed load;
//! - at most [`MAX_BLOCKS`] keys are blocked, each of at most [`MAX_BLOCKED_KEY`] bytes;
//! - a block denies only operations that cost units: charges, refunds and resets have their usual effect;
//! - blocks are in the memory of this server alone: other servers of its store, and this one after a
//!   restart, have none.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use sluicegate_core::{Decision, Operation, Outcome, Policy, Retry, Timestamp};

/// Maximum number of blocked keys at a time.
pub(crate) const MAX_BLOCKS: usize = 1000;
/// Longest key that can be blocked, in bytes.
pub(crate) const MAX_BLOCKED_KEY: usize = 4096;

type Keys = HashMap<Arc<[u8]>, Block, ahash::RandomState>;

/// The blocked keys.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    /// Whether there may be blocks.
    is_used: AtomicBool,
    keys: ArcSwap<Keys>,
    /// The number of the last block. Changes are made under its lock.
    last_id: Mutex<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    id: u64,
    until: Timestamp,
}

/// A block, as lists show it.
#[derive(Clone, Debug)]
pub(crate) struct BlockedKey {
    pub(crate) id: u64,
    pub(crate) key: Arc<[u8]>,
    pub(crate) remaining: Duration,
}

/// Why a key cannot be blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BlockError {
    #[error("too many blocked keys (limit {MAX_BLOCKS}): unblock one first")]
    Full,
    #[error("invalid key of {0} bytes: expected at most {MAX_BLOCKED_KEY} bytes to block it")]
    Length(usize),
}

impl Blocks {
    /// Whether there may be any block.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// How long `key` remains blocked.
    #[inline]
    pub(crate) fn remaining(&self, key: &[u8], now: Timestamp) -> Option<Duration> {
        if self.is_used() { self.find(key, now) } else { None }
    }

    #[cold]
    fn find(&self, key: &[u8], now: Timestamp) -> Option<Duration> {
        self.keys.load().get(key).and_then(|block| until(now, block.until))
    }

    /// The denial of `operation` on `key`, if a block denies it.
    #[inline]
    pub(crate) fn denial(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
        now: Timestamp,
    ) -> Option<Decision> {
        let remaining = self.remaining(key, now)?;
        let cost = match operation {
            Operation::Take(cost) | Operation::Peek(cost) => cost,
            Operation::Reserve { cost, .. } | Operation::Hold { cost, .. } => cost,
            Operation::Charge(_) | Operation::Refund(_) | Operation::Reset => return None,
            Operation::Settle { .. } | Operation::Renew { .. } => return None,
        };
        (cost > 0).then(|| Decision {
            outcome: Outcome::Deny { retry: Retry::After(remaining) },
            limit: policy.limits().first().map_or(0, sluicegate_core::Limit::capacity),
            remaining: 0,
            reset_after: remaining,
            binding: 0,
        })
    }

    /// Blocks `key` for `duration` from `now`, and replaces its block if it has one. Returns the number of the block.
    pub(crate) fn block(
        &self,
        key: &[u8],
        duration: Duration,
        now: Timestamp,
    ) -> Result<u64, BlockError> {
        if key.len() > MAX_BLOCKED_KEY {
            return Err(BlockError::Length(key.len()));
        }
        let mut last_id = self.last_id.lock();
        let mut keys = live(&self.keys.load(), now);
        if keys.len() >= MAX_BLOCKS && !keys.contains_key(key) {
            return Err(BlockError::Full);
        }
        *last_id += 1;
        keys.insert(key.into(), Block { id: *last_id, until: now + duration });
        self.keys.store(Arc::new(keys));
        self.is_used.store(true, Ordering::Relaxed);
        Ok(*last_id)
    }

    /// The key of the block with this number.
    pub(crate) fn key_of(&self, id: u64) -> Option<Arc<[u8]>> {
        let keys = self.keys.load();
        keys.iter().find(|(_, block)| block.id == id).map(|(key, _)| Arc::clone(key))
    }

    /// Removes the block of `key`. Whether there was one.
    pub(crate) fn unblock(&self, key: &[u8], now: Timestamp) -> bool {
        let _changing = self.last_id.lock();
        let mut keys = live(&self.keys.load(), now);
        let existed = keys.remove(key).is_some();
        self.replace(keys);
        existed
    }

    /// Removes expired blocks.
    pub(crate) fn expire(&self, now: Timestamp) {
        if !self.is_used() {
            return;
        }
        let _changing = self.last_id.lock();
        let before = self.keys.load();
        let keys = live(&before, now);
        if keys.len() < before.len() || keys.is_empty() {
            self.replace(keys);
        }
    }

    fn replace(&self, keys: Keys) {
        self.is_used.store(!keys.is_empty(), Ordering::Relaxed);
        self.keys.store(Arc::new(keys));
    }

    /// The blocks, the next one to expire first.
    pub(crate) fn list(&self, now: Timestamp) -> Vec<BlockedKey> {
        let keys = self.keys.load();
        let listed = keys.iter().filter_map(|(key, block)| {
            let remaining = until(now, block.until)?;
            Some(BlockedKey { id: block.id, key: Arc::clone(key), remaining })
        });
        let mut listed: Vec<_> = listed.collect();
        listed.sort_unstable_by_key(|it| (it.remaining, it.id));
        listed
    }
}

/// The blocks that have not expired.
fn live(keys: &Keys, now: Timestamp) -> Keys {
    let live = keys.iter().filter(|(_, block)| block.until > now);
    live.map(|(key, block)| (Arc::clone(key), *block)).collect()
}

/// The time from `now` to `then`; `None` if that is past.
fn until(now: Timestamp, then: Timestamp) -> Option<Duration> {
    Some(then.since(now)).filter(|left| !left.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000).unwrap()
    }

    #[test]
    fn denial_blocked_key_costs_units_until_it_expires() {
        let (blocks, policy) = (Blocks::default(), "gcra:30/1m:burst=5".parse().unwrap());
        assert!(blocks.denial(b"a", &policy, Operation::Take(1), at(0)).is_none());
        blocks.block(b"a", Duration::from_secs(60), at(0)).unwrap();
        let denial = blocks.denial(b"a", &policy, Operation::Take(1), at(18)).unwrap();
        assert_eq!(denial.to_integers(), [0, 5, 0, 42_000_000, 42_000_000, 0, 0]);
        let max_wait = Duration::from_secs(1);
        for (operation, is_denied) in [
            (Operation::Peek(1), true),
            (Operation::Reserve { cost: 2, max_wait }, true),
            (Operation::Take(0), false),
            (Operation::Charge(1), false),
            (Operation::Refund(1), false),
            (Operation::Reset, false),
        ] {
            let denial = blocks.denial(b"a", &policy, operation, at(18));
            assert_eq!(denial.is_some(), is_denied, "{operation:?}");
        }
        assert!(blocks.denial(b"b", &policy, Operation::Take(1), at(18)).is_none());
        assert!(blocks.denial(b"a", &policy, Operation::Take(1), at(60)).is_none());
        assert!(blocks.is_used());
        blocks.expire(at(60));
        assert!(!blocks.is_used());
    }

    #[test]
    fn block_is_bounded_replaced_and_removed() {
        let blocks = Blocks::default();
        let minute = Duration::from_secs(60);
        for number in 0..MAX_BLOCKS as u64 {
            assert_eq!(blocks.block(&number.to_le_bytes(), minute, at(0)), Ok(number + 1));
        }
        assert_eq!(blocks.block(b"more", minute, at(0)), Err(BlockError::Full));
        let key = 7_u64.to_le_bytes();
        let id = blocks.block(&key, minute * 2, at(30)).unwrap();
        assert_eq!(blocks.list(at(30)).last().unwrap().id, id);
        assert_eq!(blocks.key_of(id).as_deref(), Some(&key[..]));
        assert!(blocks.unblock(&key, at(30)) && !blocks.unblock(&key, at(30)));
        assert_eq!(blocks.block(b"more", minute, at(30)), Ok(id + 1));
        // Expired blocks free their places.
        assert_eq!(blocks.list(at(61)).len(), 1);
        assert!(blocks.block(b"later", minute, at(61)).is_ok());
        let long = [b'x'; MAX_BLOCKED_KEY + 1];
        assert_eq!(blocks.block(&long, minute, at(61)), Err(BlockError::Length(long.len())));
    }
}
