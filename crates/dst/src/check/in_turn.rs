//! Checks of decisions on keys of several slots, which are taken one after the other.

use std::time::Duration;

use sluicegate_core::{Answer, Decision, KeyedOperation, OnError, Outcome, Source};

use super::{
    checks::CheckState,
    key_state::{KeysWithCosts, Kind},
    one_key::AnsweredMultiKey,
};

impl CheckState {
    /// A process may take the units of each key, and return them.
    pub(super) fn requested_in_turn(&mut self, process: usize, takes: &KeysWithCosts) {
        for (key, cost) in takes {
            if let Some(key) = self.keys.get_mut(key) {
                for kind in [Kind::Take(*cost), Kind::Other("refund", *cost)] {
                    *key.requested.entry((process, kind)).or_default() += 1;
                }
            }
        }
    }

    /// The error in an answer, if there is one. The decision on each key must be one that a server gave to the process, or a fallback.
    pub(super) fn check_in_turn(
        &mut self,
        now: u64,
        answered: &AnsweredMultiKey<'_>,
        answer: &Answer,
        deadline: u64,
    ) -> Option<&'static str> {
        *self.answers.entry((answered.number, answer.source.as_str())).or_default() += 1;
        if answer.source == Source::Cache {
            return self.check_cached_in_turn(now, answered, answer);
        }
        let is_calm = self.is_calm_multi_key(now, answered, deadline);
        let (is_take, allowed) = (answered.is_take(), answer.allowed());
        // The key that denies, if one does. Those before it have been returned, and those after it were not taken.
        let denies = answer.each().iter().position(|it| !it.allowed()).filter(|_| is_take);
        for (index, (it, decision)) in answered.operations.iter().zip(answer.each()).enumerate() {
            let &KeyedOperation { key, policy, operation } = it;
            let cost = operation.cost();
            // A take that is recorded when it is denied is not returned, and is made where another key denies.
            let is_recorded = policy.policy().records_denials();
            let kind = match denies {
                Some(_) if is_recorded => Kind::Take(cost),
                Some(denies) if index < denies => Kind::Other("refund", cost),
                Some(denies) if index > denies => Kind::Other("peek", cost),
                _ if is_take => Kind::Take(cost),
                _ => Kind::Other("peek", cost),
            };
            let Some(key) = self.keys.get_mut(key) else { continue };
            let found = key.applications.iter().position(|it| {
                it.process == answered.process
                    && it.at >= answered.sent
                    && it.kind == kind
                    && is_same(&it.decision, decision, denies.is_some())
            });
            let mut unused = |kind| {
                if let Some(requested) = key.requested.get_mut(&(answered.process, kind)) {
                    *requested = requested.saturating_sub(1);
                }
            };
            if is_take && kind != Kind::Other("refund", cost) {
                unused(Kind::Other("refund", cost));
            }
            if is_take && kind == Kind::Other("peek", cost) {
                unused(Kind::Take(cost));
            }
            match found {
                // The fallback may have decided alike, and another request may have this decision of the server.
                Some(_) if answer.source == Source::Fallback => {}
                Some(index) => {
                    let application = key.applications.remove(index);
                    // The source is that of the binding key. The fallback may have decided alike on this one.
                    if !is_calm {
                        key.uncertain.push(application.clone());
                    }
                    if is_take && allowed {
                        key.admitted.admit(application.at, application.time, cost.into());
                    }
                }
                None if is_calm => return Some("exactness: no server gave such an answer in turn"),
                None => {
                    if let (OnError::Local(_), true) =
                        (policy.settings().on_error, is_take && allowed)
                    {
                        let meter = key.local.entry(answered.number).or_default();
                        meter.admit_since(answered.sent, now, answered.local_time, cost.into());
                    }
                }
            }
        }
        None
    }

    fn check_cached_in_turn(
        &mut self,
        now: u64,
        answered: &AnsweredMultiKey<'_>,
        answer: &Answer,
    ) -> Option<&'static str> {
        let is_take = answered.is_take();
        // Nothing was sent.
        for it in answered.operations.iter().filter(|_| is_take) {
            let (Some(key), cost) = (self.keys.get_mut(it.key), it.operation.cost()) else {
                continue;
            };
            for kind in [Kind::Take(cost), Kind::Other("refund", cost)] {
                if let Some(requested) = key.requested.get_mut(&(answered.process, kind)) {
                    *requested = requested.saturating_sub(1);
                }
            }
        }
        self.check_cached(now, answered, answer)
    }
}

/// Whether an answer has this decision, which has no delay if another key denies.
fn is_same(applied: &Decision, answered: &Decision, is_denied: bool) -> bool {
    let mut applied = *applied;
    if let (true, Outcome::Allow { delay }) = (is_denied, &mut applied.outcome) {
        *delay = Duration::ZERO;
    }
    applied == *answered
}
