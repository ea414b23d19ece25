//! Decisions of a store, with their source.

use std::{ops::Deref, slice, time::Duration};

use crate::{
    apply::first_greatest,
    decision::{Decision, Outcome, Retry},
};

/// The source of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store.
    Store,
    /// The denial cache: the store's last denial still applies.
    Cache,
    /// A lease of this process.
    Lease,
    /// [`OnError`](crate::OnError), because the store is unavailable.
    Fallback,
}

impl Source {
    /// All sources.
    pub const ALL: [Self; 4] = [Self::Store, Self::Cache, Self::Lease, Self::Fallback];

    /// Its name in logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Cache => "cache",
            Self::Lease => "lease",
            Self::Fallback => "fallback",
        }
    }
}

/// The answer to a [`Request`](crate::Request): the decision on its key, or on all of its keys, and the source of that.
/// Dereferences to the [`Decision`].
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The decision. On several keys, `remaining` is the least of all, `retry`, `reset_after` and `delay` are the
    /// greatest, and `limit` and `binding` are those of the binding key.
    pub decision: Decision,
    /// Its source; that of the binding key if several keys were taken one after the other.
    pub source: Source,
    /// The binding key, from 0, among the distinct keys: if denied, the one that takes longest to pass; if allowed, the
    /// one with the least remaining; among equals, the first.
    pub key: usize,
    /// The decisions on the keys, if there are several.
    several: Box<[Decision]>,
}

impl Answer {
    /// The answer with the decision on one key.
    #[inline]
    pub fn new(decision: Decision, source: Source) -> Self {
        Self { decision, source, key: 0, several: Box::default() }
    }

    /// The answer that combines the decisions on all keys: allowed if each is. `None` for no key.
    pub fn of_all(each: Vec<Decision>, source: Source) -> Option<Self> {
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
        let several = if each.len() > 1 { each.into_boxed_slice() } else { Box::default() };
        Some(Self { decision, source, key, several })
    }

    /// The decision on each key: allowed, or when it would be. If any is denied, none is charged.
    pub fn each(&self) -> &[Decision] {
        if self.several.is_empty() { slice::from_ref(&self.decision) } else { &self.several }
    }

    /// As [`of_all`](Self::of_all) with the decision of `each` on a key changed.
    pub fn map_each(self, each: impl FnMut((usize, Decision)) -> Decision) -> Self {
        let changed = self.each().iter().copied().enumerate().map(each).collect();
        Self::of_all(changed, self.source).expect("an answer is for at least one key")
    }

    /// Whether the request is allowed.
    #[must_use]
    pub const fn allowed(&self) -> bool {
        self.decision.allowed()
    }

    /// How long to delay the request; zero if denied.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        self.decision.delay()
    }

    /// When to try again; `None` if allowed.
    #[must_use]
    pub const fn retry(&self) -> Option<Retry> {
        self.decision.retry()
    }
}

/// A decision that the store made.
impl From<Decision> for Answer {
    #[inline]
    fn from(decision: Decision) -> Self {
        Self::new(decision, Source::Store)
    }
}

impl Deref for Answer {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.decision
    }
}
