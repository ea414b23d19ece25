//! The script for several keys: all or nothing.

use std::sync::Arc;

use sluicegate_core::{Decision, EntryTake, MultiKeyDecision, Timestamp, apply_multi_key};
use tokio::time::Instant;

use super::{
    calendars,
    multi_key_call::{MultiKeyCall, ReceivedTake},
    script::ScriptCall,
    server::{RedisModel, StoredValue},
};
use crate::oracle::{decide, decide_denied};

/// The reply of the script.
pub(super) enum MultiKeyReply {
    Decisions(Vec<Decision>),
    /// Nothing was applied: these calendars are to be given.
    Calendars(Timestamp, Vec<Vec<u8>>),
}

impl RedisModel {
    /// Runs the script for several keys.
    pub(super) fn decide_all(
        &self,
        process: usize,
        call: &MultiKeyCall<'_>,
    ) -> Result<MultiKeyReply, String> {
        let mut state = self.state.lock();
        let now = self.clock.now();
        let before: Vec<_> =
            call.takes.iter().map(|take| state.values.get(take.key).cloned()).collect();
        let mut values: Vec<_> =
            before.iter().map(|it| it.clone().unwrap_or_default().live(now)).collect();
        let names: Vec<_> = call.takes.iter().zip(&values).flat_map(of_calendars).collect();
        if !names.iter().all(|name| calendars::is_given(name, call.calendars)) {
            return Ok(MultiKeyReply::Calendars(now, names));
        }
        let old: Vec<_> = values.iter().map(|it| it.entry.clone()).collect();
        let mut parts: Vec<_> = call
            .takes
            .iter()
            .zip(&mut values)
            .map(|(&ReceivedTake { policy, cost, .. }, value)| EntryTake {
                policy,
                entry: &mut value.entry,
                cost,
            })
            .collect();
        let decided = apply_multi_key(call.operation, &mut parts, now);
        let decided = decided.map_err(|error| error.to_string())?;
        let is_written: Vec<_> =
            values.iter().zip(&old).map(|(value, old)| value.entry != *old).collect();
        if is_written.contains(&true)
            && let Some(refusal) = state.refusal()
        {
            return Err(refusal.text().to_owned());
        }
        for ((take, value), decision) in call.takes.iter().zip(&mut values).zip(&decided.each) {
            self.compare_with_oracle(call, *take, value, decision, decided.decision.allowed(), now);
        }
        self.log.add(format_args!(
            "server: {:?} on {:?} by process {process} at {now}: {:?}",
            call.operation,
            call.takes.iter().map(|it| it.key.escape_ascii().to_string()).collect::<Vec<_>>(),
            decided.decision.to_integers()
        ));
        let at = Instant::now();
        for (((take, mut value), before), is_written) in
            call.takes.iter().zip(values).zip(before).zip(is_written)
        {
            if is_written && let Some(entry) = &value.entry {
                value.expires = (now + entry.lifetime(now)).as_micros().div_ceil(1000);
                value.has_moved = false;
            }
            state.put(at, take.key, value, is_written.then_some(before));
        }
        drop(state);
        self.checks.applied_multi_key(process, call, &decided, now);
        let MultiKeyDecision { each, .. } = decided;
        Ok(MultiKeyReply::Decisions(each))
    }

    /// Records a violation if the oracle decides otherwise on one of the keys.
    fn compare_with_oracle(
        &self,
        call: &MultiKeyCall<'_>,
        ReceivedTake { key, policy, cost }: ReceivedTake<'_>,
        value: &mut StoredValue,
        decision: &Decision,
        is_allowed: bool,
        now: Timestamp,
    ) {
        let of_key = ScriptCall { policy, operation: call.on(cost) };
        let by_oracle = if is_allowed {
            decide(Arc::make_mut(&mut value.shadow), of_key, now)
        } else {
            decide_denied(Arc::make_mut(&mut value.shadow), of_key, now)
        };
        if by_oracle.as_ref() != Ok(decision) {
            self.checks.violation(format_args!(
                "exactness: key {} of {call:?} at {now}: {decision:?}, but the oracle decides {by_oracle:?}",
                key.escape_ascii()
            ));
        }
        if value.entry.is_none() {
            value.shadow = Default::default();
        }
    }
}

/// The calendars that a key needs.
fn of_calendars((take, value): (&ReceivedTake<'_>, &StoredValue)) -> Vec<Vec<u8>> {
    let stored = value.entry.iter().flat_map(|entry| calendars::names(entry.policy()));
    calendars::names(take.policy).into_iter().chain(stored).collect()
}
