//! One decision on several keys: a user, the tenant that it belongs to, and everybody.
//!
//! It is what one policy of all their limits would decide on one key: all are evaluated at the same
//! time; it is allowed if every one allows; otherwise none is charged, but limits with `count=all`
//! record, also those of a key that would itself have allowed.

use std::time::Duration;

use crate::{
    apply::{Key, first_greatest},
    decision::{Decision, Outcome, Retry},
    entry::Entry,
    policy::Policy,
    time::Timestamp,
};

/// The most keys of one decision.
pub const MAX_KEYS_PER_TAKE: usize = 8;

/// One of several keys that are asked together.
#[derive(Debug)]
pub struct EntryTake<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// What is kept of the key.
    pub entry: &'a mut Option<Entry>,
    /// Units asked for: `0..=u32::MAX`. Of 0 it always allows, and nothing is stored.
    pub cost: u32,
}

/// What was decided about several keys together.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultiKeyDecision {
    /// The decision: `remaining` is the least of all keys, `retry`, `reset_after` and `delay` the
    /// greatest; `limit` and `binding` are those of the key that binds.
    pub decision: Decision,
    /// Which key binds, from 0: denied, the one that takes longest to pass; allowed, the one with the
    /// least remaining; of equals the first.
    pub key: usize,
    /// How each key stands: allowed, or when it would be. Where any is denied none is charged.
    pub each: Vec<Decision>,
}

impl MultiKeyDecision {
    /// What follows from how each key stands. `None` for no key.
    #[must_use]
    pub fn of(each: Vec<Decision>) -> Option<Self> {
        let wait = |it: &Decision| it.retry().unwrap_or(Retry::NOW);
        let (longest, delay, remaining, reset_after) = (
            each.iter().map(wait).max()?,
            each.iter().map(Decision::delay).max()?,
            each.iter().map(|it| it.remaining).min()?,
            each.iter().map(|it| it.reset_after).max()?,
        );
        let allowed = each.iter().all(Decision::allowed);
        let key = if allowed {
            first_greatest(each.iter().map(|it| u32::MAX - it.remaining))
        } else {
            first_greatest(each.iter().map(wait))
        };
        let outcome =
            if allowed { Outcome::Allow { delay } } else { Outcome::Deny { retry: longest } };
        let Decision { limit, binding, .. } = *each.get(key)?;
        let decision = Decision { outcome, limit, remaining, reset_after, binding };
        Some(Self { decision, key, each })
    }
}

/// Takes from several keys at `now`: from all of them or from none. The entries must be of different
/// keys. `None` for no key.
///
/// ```
/// use sluicegate_core::{EntryTake, Policy, Timestamp, take_multi_key};
///
/// let [user, tenant]: [Policy; 2] = ["gcra:5/1m".parse()?, "fixed-window:6/1h".parse()?];
/// let (mut anna, mut ben, mut acme) = (None, None, None);
/// let mut take = |entry: &mut _, cost| {
///     let parts = &mut [
///         EntryTake { policy: &user, entry, cost },
///         EntryTake { policy: &tenant, entry: &mut acme, cost },
///     ];
///     take_multi_key(parts, Timestamp::EPOCH).expect("two keys")
/// };
/// assert!(take(&mut anna, 4).decision.allowed());
/// let denied = take(&mut anna, 2);
/// assert_eq!((denied.key, denied.decision.remaining), (0, 1), "her own limit binds");
/// // What was denied has cost the tenant nothing.
/// assert!(take(&mut ben, 2).decision.allowed());
/// assert_eq!(take(&mut ben, 1).key, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn take_multi_key(parts: &mut [EntryTake<'_>], now: Timestamp) -> Option<MultiKeyDecision> {
    decide(parts, now, |key, cost, allowed| match (cost, allowed) {
        (0, _) => {}
        (_, true) => {
            key.charge(cost);
        }
        (_, false) => key.note_denial(cost),
    })
}

/// What [`take_multi_key`] would answer, storing nothing: a denial as if it was not recorded.
pub fn peek_multi_key(parts: &mut [EntryTake<'_>], now: Timestamp) -> Option<MultiKeyDecision> {
    decide(parts, now, |_, _, _| {})
}

/// The decision on all keys. `store` is called for each, with its cost and whether all are allowed.
fn decide(
    parts: &mut [EntryTake<'_>],
    now: Timestamp,
    store: impl Fn(&mut Key<'_>, u32, bool),
) -> Option<MultiKeyDecision> {
    let key = |part| {
        let EntryTake { policy, entry, cost }: &mut EntryTake<'_> = part;
        (Key::new(policy, entry, now), *cost)
    };
    let mut keys: Vec<_> = parts.iter_mut().map(key).collect();
    let outcomes = outcomes(&keys);
    let each = keys.iter_mut().enumerate().map(|(index, (key, cost))| {
        store(key, *cost, outcomes.is_some());
        stands(key, *cost, outcomes.as_ref().map(|outcomes| outcomes[index]))
    });
    let each = each.collect();
    MultiKeyDecision::of(each)
}

/// What each key would be told, if every one allows.
fn outcomes(keys: &[(Key<'_>, u32)]) -> Option<Vec<Outcome>> {
    let outcome = |(key, cost): &(Key<'_>, u32)| match cost {
        0 => Some(Outcome::Allow { delay: Duration::ZERO }),
        cost => Some(key.outcome(*cost)).filter(|it| matches!(it, Outcome::Allow { .. })),
    };
    keys.iter().map(outcome).collect()
}

/// How a key stands: `allowed` with all others, or not charged since one denies.
fn stands(key: &Key<'_>, cost: u32, allowed: Option<Outcome>) -> Decision {
    match allowed {
        _ if cost == 0 => key.answer(),
        Some(outcome) => key.decision(outcome, cost),
        None => match key.wait(cost) {
            Retry::NOW => key.decision(Outcome::Allow { delay: Duration::ZERO }, cost),
            retry => key.decision(Outcome::Deny { retry }, cost),
        },
    }
}
