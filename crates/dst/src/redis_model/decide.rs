//! Scripts that decide, and the decisions of the oracle, which must be the same.

use std::{mem, sync::Arc};

use sluicegate_conformance::{Answer, Invocation, OracleSubject, Subject as _, compare};
use sluicegate_core::{Decision, EntryOperation, Operation, Timestamp, apply, apply_all};
use tokio::time::Instant;

use super::{
    calendars,
    script::{ReceivedCall, ScriptReply},
    server::{RedisModel, Refusal, StoredValue},
};
use crate::{event_log::Shown, oracle::decide_denied};

impl RedisModel {
    /// Runs a script that decides on one key, or on several, all or none.
    pub(super) fn decide(
        &self,
        process: usize,
        call: &ReceivedCall<'_>,
    ) -> Result<ScriptReply, String> {
        let mut state = self.state.lock();
        let now = call.at.unwrap_or_else(|| self.clock.now());
        let invocations = call.invocations(now);
        let before: Vec<_> =
            invocations.iter().map(|it| state.values.get(it.key).cloned()).collect();
        let values = invocations.iter().zip(&before);
        let mut values: Vec<_> =
            values.map(|(it, value)| self.live(*it, value.clone().unwrap_or_default())).collect();
        if let Some(missing) = missing_calendars(&invocations, &values, call.calendars) {
            return Ok(ScriptReply::Calendars(now, missing));
        }
        let old: Vec<_> = values.iter().map(|it| it.entry.clone()).collect();
        let decided = decide_by_core(&invocations, &mut values, now);
        let is_single = invocations.len() == 1;
        if !is_single && let Err(error) = decided {
            return Err(error);
        }
        let is_written: Vec<_> = invocations
            .iter()
            .zip(values.iter().zip(&old))
            .map(|(it, (value, old))| {
                // A script writes what is left after a refund, even if it is the same.
                let refunds = matches!(it.operation, Operation::Refund(1..));
                value.entry != *old || refunds && old.is_some()
            })
            .collect();
        let written = || values.iter().zip(&is_written).filter(|it| *it.1);
        // A key can be deleted without memory.
        let is_refused = |it: &Refusal| {
            *it == Refusal::ReadOnly || written().any(|(value, _)| value.entry.is_some())
        };
        if written().next().is_some()
            && let Some(refusal) = state.refusal().filter(is_refused)
        {
            return Err(refusal.text().to_owned());
        }
        let is_denied =
            !is_single && decided.as_ref().is_ok_and(|each| !each.iter().all(Decision::allowed));
        for (at, (it, value)) in invocations.iter().zip(&mut values).enumerate() {
            let shadow = Arc::make_mut(&mut value.shadow);
            let by_oracle = if is_denied { decide_denied(shadow, *it) } else { shadow.apply(*it) };
            let decision = decided.as_ref().map(|each| each[at]).map_err(Clone::clone);
            self.compare(*it, &decision, &by_oracle);
            if value.entry.is_none() {
                value.shadow = Arc::default();
            }
        }
        let decisions = decided?;
        self.log.add(format_args!(
            "server: {} by process {process} at {now}: {:?}",
            Shown(invocations.iter().map(|it| (it.key, it.operation))),
            decisions.iter().map(Decision::to_integers).collect::<Vec<_>>()
        ));
        let debt = call.debt(old[0].as_ref(), now);
        let at = Instant::now();
        for (((it, mut value), before), is_written) in
            invocations.iter().zip(values).zip(before).zip(is_written)
        {
            if is_written && let Some(entry) = &value.entry {
                let ends = (now + entry.lifetime(now)).as_micros().div_ceil(1000);
                // Keys of tests live for an hour at least, whatever the time.
                value.expires = if call.at.is_some() { u64::MAX } else { ends };
                value.has_moved = false;
            }
            state.put(at, it.key, value, is_written.then_some(before));
        }
        drop(state);
        self.checks.applied(process, &invocations, &decisions);
        Ok(debt.map_or(ScriptReply::Decisions(decisions), ScriptReply::Debt))
    }

    /// The value without an entry that has ended.
    fn live(&self, it: Invocation<'_>, mut value: StoredValue) -> StoredValue {
        if value.is_over(it.now) {
            value.entry = None;
            // A key that has moved ends when it would have by the clock of the other server.
            if mem::take(&mut value.has_moved) {
                value.shadow = Arc::default();
                self.checks.ended_early(it.key);
            }
            // The oracle decides alike with the state and without it; if the clock is set back, only without it.
            let kept = Arc::make_mut(&mut mem::take(&mut value.shadow)).apply(it);
            self.compare(it, &OracleSubject::default().apply(it), &kept);
        }
        value
    }

    /// Records a violation if the oracle decides otherwise.
    fn compare(&self, it: Invocation<'_>, decided: &Answer, by_oracle: &Answer) {
        if let Err(difference) = compare(by_oracle, decided) {
            self.checks.violation(format_args!(
                "exactness: {} under {} at {}: {decided:?}, but by the oracle {difference}",
                Shown([(it.key, it.operation)].into_iter()),
                it.policy,
                it.now
            ));
        }
    }
}

/// The decision on each key, which changes its entry; or the error of the reply.
fn decide_by_core(
    invocations: &[Invocation<'_>],
    values: &mut [StoredValue],
    now: Timestamp,
) -> Result<Vec<Decision>, String> {
    let decided = match (invocations, &mut *values) {
        ([it], [value]) => {
            apply(it.policy, &mut value.entry, now, it.operation).map(|decision| vec![decision])
        }
        _ => {
            let parts = invocations.iter().zip(values).map(|(it, value)| EntryOperation {
                policy: it.policy,
                entry: &mut value.entry,
                operation: it.operation,
            });
            apply_all(&mut parts.collect::<Vec<_>>(), now).map(|answer| answer.each().to_vec())
        }
    };
    decided.map_err(|error| error.to_string())
}

/// The calendars that the script asks for, unless all are given: those of the policies, and of those under which the keys
/// were written. (A real one asks only for those that it needs.)
fn missing_calendars(
    invocations: &[Invocation<'_>],
    values: &[StoredValue],
    given: &[u8],
) -> Option<Vec<Vec<u8>>> {
    let stored = values.iter().filter_map(|it| Some(it.entry.as_ref()?.policy()));
    let policies = invocations.iter().map(|it| it.policy).chain(stored);
    let names: Vec<_> = policies.flat_map(calendars::names).collect();
    (!names.iter().all(|name| calendars::is_given(name, given))).then_some(names)
}
