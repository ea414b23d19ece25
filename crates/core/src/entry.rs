//! All that is kept of a key.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};

use crate::{
    algorithm::{Limit, State, WindowState},
    policy::Policy,
    time::Timestamp,
};

/// What is in use of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Units in use, rounded up.
    pub used: u64,
    /// How many requests of cost 1 this limit would still pass at once.
    pub remaining: u32,
    /// The time until nothing is in use.
    pub reset_after: Duration,
}

/// States of limits. Most policies have one, which needs no memory of its own.
pub(crate) type States = SmallVec<[State; 1]>;

/// All state of a key, with the policy that it was written under.
///
/// Only [`apply`](crate::apply) makes one. Stores keep it as it is, or as bytes
/// ([`Entry::encode`](crate::Entry::encode)).
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub(crate) policy: Policy,
    /// As many as the policy has limits.
    pub(crate) states: States,
}

impl Entry {
    /// The entry of a key that was never used, for stores that keep bytes: no [`apply`](crate::apply) makes one.
    #[must_use]
    pub fn unused(policy: &Policy) -> Self {
        Self { policy: policy.clone(), states: smallvec![State::None; policy.limits().len()] }
    }

    /// The policy that the state was last written under.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Each limit of the policy with what is in use of it at `now`, in the order written.
    pub fn usage(&self, now: Timestamp) -> impl Iterator<Item = (&Limit, Usage)> {
        self.limits().map(move |(limit, state)| {
            let reset_after = Duration::from_micros(limit.reset_after(state, now));
            let usage = Usage {
                used: limit.used(state, now),
                remaining: limit.remaining(state, now),
                reset_after,
            };
            (limit, usage)
        })
    }

    /// How long the entry must be kept from `now` on; zero when it may be forgotten.
    ///
    /// This is the `reset_after` of its policy, and longer for a log that keeps events for a later
    /// rule (`keep`).
    #[must_use]
    pub fn lifetime(&self, now: Timestamp) -> Duration {
        let micros = self.limits().map(|(limit, state)| limit.lifetime(state, now)).max();
        Duration::from_micros(micros.unwrap_or(0))
    }

    /// The entry of a key that owes `debt` ticks at `now`, under a policy of one limit of the gcra
    /// family ([`Gcra::try_take`](crate::Gcra::try_take)); `None` under any other, and where nothing is
    /// owed.
    #[must_use]
    pub fn with_debt(policy: &Policy, now: Timestamp, debt: u128) -> Option<Self> {
        let state = policy.as_gcra()?.with_debt(now, debt)?;
        Some(Self { policy: policy.clone(), states: smallvec![State::Gcra(state)] })
    }

    /// What [`Entry::with_debt`] makes, in place.
    pub(crate) fn set_debt(&mut self, policy: &Policy, now: Timestamp, debt: u128) {
        if !self.policy.is(policy) {
            self.policy = policy.clone();
        }
        let state = policy.as_gcra().and_then(|gcra| gcra.with_debt(now, debt));
        self.states.clear();
        self.states.push(state.map_or(State::None, State::Gcra));
    }

    /// The ticks that the key owes at `now`, under a policy of one limit of the gcra family.
    #[must_use]
    pub fn debt(&self, now: Timestamp) -> Option<u128> {
        let gcra = self.policy.as_gcra()?;
        match self.states.first() {
            Some(State::Gcra(state)) => Some(gcra.debt(Some(state), now)),
            _ => Some(0),
        }
    }

    /// The entry of a key that has used so many units in a window that began at `start`, under a policy of
    /// one fixed window ([`FixedWindow::try_take`](crate::FixedWindow::try_take)); `None` under any other, and where
    /// nothing is used.
    #[must_use]
    pub fn with_window(policy: &Policy, start: Timestamp, used: u64) -> Option<Self> {
        policy.as_window().filter(|_| used > 0)?;
        let state = State::FixedWindow(WindowState { start: start.as_micros(), used });
        Some(Self { policy: policy.clone(), states: smallvec![state] })
    }

    /// When the window of the key began, and the units used in it, under a policy of one fixed window.
    #[must_use]
    pub fn window(&self) -> Option<(Timestamp, u64)> {
        match &self.states[..] {
            [State::FixedWindow(state)] => {
                Some((Timestamp::saturating_from_micros(state.start), state.used))
            }
            _ => None,
        }
    }

    /// The same entry under an equal policy, so that both are one object.
    #[must_use]
    pub fn under(self, policy: &Policy) -> Self {
        if self.policy == *policy { Self { policy: policy.clone(), ..self } } else { self }
    }

    /// Whether it grows with every request, up to its limit: a log does.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.policy.grows()
    }

    /// The bytes of each piece of memory that the entry holds, its policy aside: that is shared.
    pub fn allocations(&self) -> impl Iterator<Item = usize> {
        let capacity = if self.states.spilled() { self.states.capacity() } else { 0 };
        let states = capacity * size_of::<State>();
        std::iter::once(states).chain(self.states.iter().map(State::heap_size))
    }

    pub(crate) fn limits(&self) -> impl Iterator<Item = (&Limit, &State)> {
        self.policy.limits().iter().zip(&self.states)
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.states.iter().all(|state| *state == State::None)
    }
}
