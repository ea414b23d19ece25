//! A second, deliberately naive implementation of the semantics.
//!
//! It is not meant to be fast: times and rates are exact rationals, every formula is written as in SEMANTICS.md, and
//! answers are checked against their definitions. It shares no code and no type with the implementations that it
//! tests.

mod ahead;
mod algorithms;
mod answer;
mod calendar;
mod decide;
mod entry;
mod exact;
#[cfg(test)]
mod hold_tests;
mod holds;
mod migrate;
#[cfg(test)]
mod tests;
mod text;

use std::collections::HashMap;

use num_traits::Zero;

use self::ahead::{ahead, all_pass};
use self::algorithms::Limit;
pub use self::answer::{Answer, HoldOp, Op};
use self::decide::{After, allowed, decide, deny};
use self::entry::Entry;
use self::exact::{Q, q};
use self::holds::Hold;

/// The limits of a policy.
#[derive(Debug)]
pub(crate) struct ParsedPolicy(Vec<Limit>);

impl ParsedPolicy {
    /// Reads one to eight limits, joined by commas.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let limits: Vec<Limit> = text.split(',').map(Limit::parse).collect::<Result<_, _>>()?;
        if limits.len() > 8 {
            return Err(format!("{} limits, at most 8 make a policy", limits.len()));
        }
        Ok(Self(limits))
    }
}

/// Keys and their states.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    entries: HashMap<Vec<u8>, Entry>,
}

impl Oracle {
    /// An oracle without keys.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies one operation to one key.
    ///
    /// # Errors
    ///
    /// An invalid policy; an operation that the policy does not support; a time beyond the calendar.
    pub fn apply(
        &mut self,
        key: &[u8],
        policy: &str,
        now_us: u64,
        op: Op,
        cost: u32,
    ) -> Result<Answer, String> {
        self.apply_parsed(key, &ParsedPolicy::parse(policy)?, now_us, op, cost)
    }

    /// The same under a policy that was parsed before.
    pub(crate) fn apply_parsed(
        &mut self,
        key: &[u8],
        ParsedPolicy(limits): &ParsedPolicy,
        now_us: u64,
        op: Op,
        cost: u32,
    ) -> Result<Answer, String> {
        if matches!(op, Op::Reserve { .. }) && !limits.iter().all(|l| l.properties().can_reserve) {
            return Err("reserve needs limits of the gcra family or queues".to_owned());
        }
        if !matches!(op, Op::Peek | Op::Reset | Op::RecordDenial)
            && limits.iter().any(Limit::counts_holds)
        {
            return Err("use hold".to_owned());
        }
        let now = &q(now_us);
        let mut entry = self.entry(key, limits, now_us)?;
        let current = entry.states(limits, now);
        let (answer, after) = decide(limits, &current, &entry.ledger, now, op, &q(cost));
        if !matches!(after, After::Unchanged) {
            entry.store(limits, after, now);
            self.put(key, entry);
        }
        Ok(answer)
    }

    /// Applies one operation to the hold `id` of one key.
    ///
    /// # Errors
    ///
    /// An invalid policy, id or lifetime; a policy with a queue; a ledger that is full; a time beyond the calendar.
    pub fn apply_hold(
        &mut self,
        key: &[u8],
        id: &[u8],
        policy: &str,
        now_us: u64,
        op: HoldOp,
    ) -> Result<Answer, String> {
        self.apply_hold_parsed(key, id, &ParsedPolicy::parse(policy)?, now_us, op)
    }

    /// The same under a policy that was parsed before.
    pub(crate) fn apply_hold_parsed(
        &mut self,
        key: &[u8],
        id: &[u8],
        ParsedPolicy(limits): &ParsedPolicy,
        now_us: u64,
        op: HoldOp,
    ) -> Result<Answer, String> {
        holds::check(id, limits)?;
        let now = &q(now_us);
        let expires = match op {
            HoldOp::Hold { ttl_us, .. } | HoldOp::Renew { ttl_us } => {
                now + holds::lifetime(ttl_us, limits)?
            }
            HoldOp::Settle { .. } => now.clone(),
        };
        let mut entry = self.entry(key, limits, now_us)?;
        let mut current = entry.states(limits, now);
        let as_it_stands = ahead(limits, &current, &entry.ledger, now);
        let found = entry.ledger.find(id);
        let after = match (op, found) {
            (HoldOp::Hold { cost, .. }, found) if cost == 0 || found.is_some() => {
                return Ok(allowed(&as_it_stands, &Q::zero()));
            }
            (HoldOp::Hold { cost, .. }, _) if !all_pass(&as_it_stands, &q(cost)) => {
                let (answer, after) = deny(limits, &current, &entry.ledger, now, &q(cost));
                entry.store(limits, after, now);
                self.put(key, entry);
                return Ok(answer);
            }
            (HoldOp::Hold { cost, .. }, _) => {
                if entry.ledger.0.len() == holds::MAX_HOLDS {
                    return Err("too many open holds".to_owned());
                }
                let metered = !limits.iter().all(Limit::counts_holds);
                entry.ledger.0.push(Hold { id: id.to_vec(), units: q(cost), expires, metered });
                After::Recorded(vec![None; limits.len()])
            }
            (HoldOp::Settle { .. } | HoldOp::Renew { .. }, None) => {
                let answer = allowed(&as_it_stands, &Q::zero());
                return Ok(Answer { allowed: false, retry_after_us: None, ..answer });
            }
            (HoldOp::Renew { .. }, Some(index)) => {
                entry.ledger.0[index].expires = expires;
                After::Recorded(vec![None; limits.len()])
            }
            (HoldOp::Settle { used }, Some(index)) => {
                let hold = entry.ledger.0.remove(index);
                let used = used.map_or(hold.units, q);
                if !hold.metered || used.is_zero() {
                    After::Recorded(vec![None; limits.len()])
                } else if limits.iter().all(Limit::counts_holds) {
                    entry.charge(now, &used);
                    After::Recorded(vec![None; limits.len()])
                } else {
                    let charged =
                        limits.iter().zip(&current).map(|(l, s)| l.charged(s, now, &used));
                    current = charged.collect();
                    After::All(current.clone())
                }
            }
        };
        let answer = allowed(&ahead(limits, &current, &entry.ledger, now), &Q::zero());
        entry.store(limits, after, now);
        self.put(key, entry);
        Ok(answer)
    }

    /// All state of a key, after the holds that have expired at `now` are applied.
    fn entry(&self, key: &[u8], limits: &[Limit], now_us: u64) -> Result<Entry, String> {
        let mut entry = self.entries.get(key).cloned().unwrap_or_default();
        let mut limits = limits.iter().chain(&entry.limits);
        if now_us > calendar::MAX_TIME_US && limits.any(|limit| limit.properties().period.is_none())
        {
            return Err(format!("{now_us}us is later than the calendar reaches"));
        }
        entry.expire(&q(now_us));
        Ok(entry)
    }

    fn put(&mut self, key: &[u8], entry: Entry) {
        if entry.is_unused() {
            self.entries.remove(key);
        } else {
            self.entries.insert(key.to_vec(), entry);
        }
    }
}
