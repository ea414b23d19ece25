//! All state of a key: the limits that it is stored with, their states, and the open holds.

use super::algorithms::{Limit, State};
use super::decide::After;
use super::exact::Q;
use super::holds::Ledger;
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
            let charged = limit.charged(&limit.state_at(state.as_ref(), now), now, units);
            *state = limit.stored(&charged, now);
        }
    }

    /// The states at `now` under the limits of a request, after a change of policy.
    pub(super) fn states(&self, limits: &[Limit], now: &Q) -> Vec<State> {
        let own = with_state(limits);
        let mut states = if self.limits == own {
            let pairs = own.iter().zip(&self.states);
            pairs.map(|(limit, state)| limit.state_at(state.as_ref(), now)).collect()
        } else {
            migrate(&self.limits, &self.states, &own, now)
        }
        .into_iter();
        let mut one = |limit: &Limit| {
            let state = if limit.counts_holds() { None } else { states.next() };
            state.unwrap_or_else(|| limit.unused(now))
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
                let pairs = limits.iter().zip(states).filter(|(limit, _)| !limit.counts_holds());
                self.states = pairs.map(|(limit, state)| limit.stored(&state, now)).collect();
                self.limits = own;
            }
            After::Recorded(recorded) => {
                // A migrated state is stored in any case. Otherwise a limit that recorded nothing keeps its state,
                // even with a time later than `now`.
                let migrated = (self.limits != own).then(|| self.states(limits, now));
                let stored = std::mem::take(&mut self.states);
                let mut kept = stored.into_iter();
                let mut states = Vec::new();
                for (index, recorded) in recorded.into_iter().enumerate() {
                    let limit = &limits[index];
                    if limit.counts_holds() {
                        continue;
                    }
                    let kept = kept.next().flatten();
                    let migrated = migrated.as_ref().map(|states| states[index].clone());
                    states.push(match recorded.or(migrated) {
                        Some(state) => limit.stored(&state, now),
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
}

/// The limits that have a state.
fn with_state(limits: &[Limit]) -> Vec<Limit> {
    limits.iter().filter(|limit| !limit.counts_holds()).cloned().collect()
}
