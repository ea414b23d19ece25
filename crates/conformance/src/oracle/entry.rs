//! All state of a key: the limits that it is stored with, their states, and the open holds.

use super::decide::After;
use super::exact::Q;
use super::holds::Ledger;
use super::limit::Limit;
use super::machine::State;
use super::migrate::migrate;

/// All state of a key. An unused key has no state and no hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    /// The limits of the policy that the key is stored with, without `concurrency` limits, which have no state.
    pub(super) limits: Vec<Limit>,
    pub(super) states: Vec<Option<State>>,
    pub(super) ledger: Ledger,
}

impl Entry {
    /// Applies the holds that have expired: each metered one is charged at the time of its expiry, under the policy
    /// that the key is stored with.
    pub(super) fn expire(&mut self, now: &Q) {
        for hold in self.ledger.expire(now) {
            if hold.metered {
                self.charge(&hold.expires, &hold.units);
            }
        }
    }

    /// Charges the limits that the key is stored with.
    pub(super) fn charge(&mut self, now: &Q, units: &Q) {
        for (limit, state) in self.limits.iter().zip(&mut self.states) {
            let charged = limit.charged(&limit.at(state.as_ref(), now), now, units);
            *state = limit.stored(charged, now);
        }
    }

    /// The states at `now` under the limits of a request, after a change of policy.
    pub(super) fn states(&self, limits: &[Limit], now: &Q) -> Vec<State> {
        let own = with_state(limits);
        let mut states = if self.is_under(&own) {
            let pairs = own.iter().zip(&self.states);
            pairs.map(|(limit, state)| limit.at(state.as_ref(), now)).collect()
        } else {
            migrate(&self.limits, &self.states, &own, now)
        }
        .into_iter();
        let mut one = |limit: &Limit| {
            let state = if limit.is_concurrency() { None } else { states.next() };
            state.unwrap_or_else(|| limit.machine().unused(now))
        };
        limits.iter().map(&mut one).collect()
    }

    /// Stores the states after an operation under `limits`. Without limits other than `concurrency`, the stored
    /// states do not change.
    pub(super) fn store(&mut self, limits: &[Limit], after: After, now: &Q) {
        let own = with_state(limits);
        match after {
            After::Reset => *self = Self::default(),
            After::Unchanged => {}
            _ if own.is_empty() => {}
            After::All(states) => {
                let pairs = limits.iter().zip(states).filter(|(limit, _)| !limit.is_concurrency());
                self.states = pairs.map(|(limit, state)| limit.stored(state, now)).collect();
                self.limits = own;
            }
            After::Recorded(recorded) => {
                // A migrated state is stored in any case. Otherwise a limit that recorded nothing keeps its state,
                // even with a time later than `now`.
                let migrated = (!self.is_under(&own)).then(|| self.states(limits, now));
                let stored = std::mem::take(&mut self.states);
                let mut kept = stored.into_iter();
                let mut states = Vec::new();
                for (index, recorded) in recorded.into_iter().enumerate() {
                    let limit = &limits[index];
                    if limit.is_concurrency() {
                        continue;
                    }
                    let kept = kept.next().flatten();
                    let migrated = migrated.as_ref().map(|states| states[index].clone());
                    states.push(match recorded.or(migrated) {
                        Some(state) => limit.stored(state, now),
                        None => kept,
                    });
                }
                (self.limits, self.states) = (own, states);
            }
        }
    }

    pub(super) fn is_unused(&self) -> bool {
        self.ledger.0.is_empty() && self.states.iter().all(Option::is_none)
    }

    /// Whether the key is stored with these limits in this order, apart from names and explicit defaults.
    fn is_under(&self, limits: &[Limit]) -> bool {
        self.limits.len() == limits.len()
            && self.limits.iter().zip(limits).all(|(a, b)| a.identical(b))
    }
}

/// The limits that have a state.
fn with_state(limits: &[Limit]) -> Vec<Limit> {
    limits.iter().filter(|limit| !limit.is_concurrency()).cloned().collect()
}
