//! Checks of the features that the library adds to its store: waits, permits and shapers.

use std::time::Duration;

use sluicegate_core::{Answer, PreparedPolicy, Retry, Source, Timestamp};

use super::{
    checks::{CLOCK_ERROR, Checks, TIMER_RESOLUTION_MS},
    key_state::CheckedKey,
};
use crate::meter::Fraction;

/// A request that has waited.
#[derive(Debug)]
pub(crate) struct FinishedWait<'a> {
    pub(crate) process: usize,
    pub(crate) key: &'a [u8],
    /// In milliseconds: how long it might wait, when it was sent, and for how long its process was paused since then.
    pub(crate) timeout: u64,
    pub(crate) sent: u64,
    pub(crate) paused: u64,
    /// Whether it waited for a hold, and whether it has a time of departure.
    pub(crate) is_hold: bool,
    pub(crate) departs: bool,
    /// None, if the store failed.
    pub(crate) answer: Option<&'a Answer>,
}

impl Checks {
    /// A request that has waited has its answer.
    pub(crate) fn waited(&self, waited: &FinishedWait<'_>) {
        let took = self.time.millis() - waited.sent;
        // The last attempt may begin when the timeout ends, and be two operations.
        let most = waited.timeout + 2 * (self.deadline + TIMER_RESOLUTION_MS) + waited.paused;
        let problem = if took > most {
            Some("liveness: a wait after its timeout")
        } else {
            waited.answer.and_then(|answer| self.check_waited(waited, took, answer))
        };
        if let Some(problem) = problem {
            self.violation(format_args!(
                "{problem}: process {}, key {}: {waited:?} took {took} ms",
                waited.process,
                waited.key.escape_ascii()
            ));
        }
    }

    fn check_waited(
        &self,
        waited: &FinishedWait<'_>,
        took: u64,
        answer: &Answer,
    ) -> Option<&'static str> {
        let elapsed = Duration::from_millis(took);
        if answer.allowed() {
            let is_early = !waited.is_hold && elapsed + CLOCK_ERROR < answer.delay();
            return is_early.then_some("waiting: a request passes before its delay is over");
        }
        let is_certain = matches!(answer.source, Source::Store | Source::Cache);
        let Some(Retry::After(after)) = answer.retry() else { return None };
        // It is denied until it would depart in time.
        if !is_certain || waited.departs || waited.paused > 0 {
            return None;
        }
        if !self.is_calm_since(waited.process, waited.key, waited.sent) {
            return None;
        }
        // A denial that is recorded may begin a window, and let the request pass earlier.
        let is_recorded = |policy: &PreparedPolicy| policy.policy().records_denials();
        let state = self.state.lock();
        let key = state.keys.get(waited.key);
        if !waited.is_hold && key.is_some_and(|it| it.policies.iter().any(is_recorded)) {
            return None;
        }
        drop(state);
        let left = Duration::from_millis(waited.timeout).saturating_sub(elapsed);
        let gives_up = if waited.is_hold {
            // Another client may settle at any time.
            left > Duration::from_millis(1)
        } else {
            after + CLOCK_ERROR + Duration::from_millis(self.deadline) < left
        };
        gives_up.then_some("waiting: a request is denied that had time to wait")
    }

    /// Whether nothing has gone wrong with a key since then, as far as a process can see, and its clock was not set.
    pub(crate) fn is_calm_since(&self, process: usize, key: &[u8], millis: u64) -> bool {
        let state = self.state.lock();
        let is_before = |at: Option<u64>| at.is_none_or(|at| at < millis);
        let is_calm =
            |key: &CheckedKey| is_before(key.stepped_at.last().copied()) && is_before(key.lost_at);
        state.disturbed_until < millis
            && state.keys.get(key).is_none_or(is_calm)
            && !state.is_connecting(process, millis)
    }

    /// Whether the server has lost writes of the key since then.
    pub(crate) fn has_lost(&self, key: &[u8], millis: u64) -> bool {
        let state = self.state.lock();
        let lost_at = state.keys.get(key).and_then(|key| key.lost_at);
        lost_at.is_some_and(|at| at >= millis)
    }

    /// Whether the clock of the key was set since then.
    pub(crate) fn has_stepped(&self, key: &[u8], millis: u64) -> bool {
        let state = self.state.lock();
        let stepped_at = state.keys.get(key).and_then(|key| key.stepped_at.last().copied());
        stepped_at.is_some_and(|at| at >= millis)
    }

    /// How often a client has reset the key.
    pub(crate) fn resets(&self, key: &[u8]) -> u64 {
        self.state.lock().keys.get(key).map_or(0, |key| key.resets)
    }

    /// A client got a permit of this hold.
    pub(crate) fn got_permit(&self, id: &[u8]) {
        self.state.lock().permits.insert(id.to_vec());
    }

    /// Whether a client ever had a permit of this hold.
    pub(crate) fn has_permit(&self, id: &[u8]) -> bool {
        self.state.lock().permits.contains(id)
    }

    /// The number of an item that is added to a shaper of the key.
    pub(crate) fn pushed(&self, key: &[u8]) -> u64 {
        let state = &mut *self.state.lock();
        let Some(key) = state.keys.get_mut(key) else { return 0 };
        key.items += 1;
        key.items
    }

    /// A shaper releases an item.
    pub(crate) fn released(&self, key: &[u8], millis: u64) {
        let state = &mut *self.state.lock();
        if let Some(key) = state.keys.get_mut(key) {
            key.released.admit(millis, Timestamp::EPOCH + Duration::from_millis(millis), 1);
        }
    }

    /// Shapers release at most the rate, and one item of each process that has a time already. Each time that the
    /// server lost writes or its clock was set, those items do not count any more, and one item is released at once.
    pub(crate) fn check_released(&self) {
        let state = &mut *self.state.lock();
        let excess = state.keys.iter().find_map(|(name, key)| {
            let limit = key.policies.first()?.policy().as_gcra()?;
            // An item of each process has a time, and is released at it, whatever the key has become since then.
            let given = (self.processes + state.replaced.len()) as u64;
            // The first item, and one for the resolution of timers.
            let bound = 2 + given + key.breaks() * (given + 1);
            let excess = key.released.excess(limit, Fraction::ONE);
            (excess > bound).then(|| {
                format!(
                    "safety: shapers of {} under {limit} release {excess} items beyond the rate, at most {bound}",
                    name.escape_ascii()
                )
            })
        });
        if let Some(text) = excess {
            state.violate(self.time.millis(), format_args!("{text}"));
        }
    }
}
