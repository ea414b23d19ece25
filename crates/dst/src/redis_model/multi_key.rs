//! The script for several keys: all or nothing.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use sluicegate_core::{
    Decision, EntryTake, HoldOperation, MultiKeyDecision, MultiKeyOperation, Operation, Policy,
    Timestamp, apply_multi_key,
};
use tokio::time::Instant;

use super::{
    calendars,
    script::{Policies, ScriptCall, ScriptOperation, number},
    server::{RedisModel, StoredValue},
};
use crate::oracle::{decide, decide_denied};

/// Arguments before those of the keys, and of each key.
const HEAD: usize = 4;
const OF_KEY: usize = 3;

/// A call of the script.
#[derive(Debug)]
pub(crate) struct MultiKeyCall<'a> {
    pub(crate) operation: MultiKeyOperation<'a>,
    pub(crate) takes: Vec<ReceivedTake<'a>>,
    calendars: &'a [u8],
}

/// What is asked of one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedTake<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) policy: &'a Policy,
    pub(crate) cost: u32,
}

/// What the script replies.
pub(super) enum MultiKeyReply {
    Decisions(Vec<Decision>),
    /// Nothing was applied: these calendars are to be given.
    Calendars(Timestamp, Vec<Vec<u8>>),
}

impl Policies {
    /// The call that keys and arguments stand for.
    pub(super) fn multi_key_call<'a>(
        &'a self,
        keys: &[&'a [u8]],
        arguments: &[&'a [u8]],
    ) -> Result<MultiKeyCall<'a>> {
        let (head, rest) = arguments.split_at_checked(HEAD).context("too few arguments")?;
        ensure!(rest.len() == keys.len() * OF_KEY, "as many arguments as keys");
        ensure!(head[2].is_empty(), "a process sets the time of a decision");
        let mut takes = Vec::new();
        let mut ttl = None;
        for (&key, of_key) in keys.iter().zip(rest.chunks(OF_KEY)) {
            let cost = u32::try_from(number(of_key[0])?)?;
            takes.push(ReceivedTake { key, policy: self.find(of_key[1])?, cost });
            ttl = Some(Duration::from_micros(number(of_key[2])?));
        }
        let operation = match head[0] {
            b"take" => MultiKeyOperation::Take,
            b"peek" => MultiKeyOperation::Peek,
            word => {
                ensure!(word == b"hold", "no operation on several keys: {}", word.escape_ascii());
                MultiKeyOperation::Hold { id: head[3], ttl }
            }
        };
        Ok(MultiKeyCall { operation, takes, calendars: head[1] })
    }
}

impl MultiKeyCall<'_> {
    /// The operation on one of the keys.
    pub(crate) fn on(&self, cost: u32) -> ScriptOperation<'_> {
        match self.operation {
            MultiKeyOperation::Take => ScriptOperation::OnKey(Operation::Take(cost)),
            MultiKeyOperation::Peek => ScriptOperation::OnKey(Operation::Peek(cost)),
            MultiKeyOperation::Hold { id, ttl } => {
                ScriptOperation::OnHold(HoldOperation::Hold { id, cost, ttl })
            }
        }
    }
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
            self.compare_with_oracle(
                call,
                *take,
                value,
                (decision, decided.decision.allowed()),
                now,
            );
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
            }
            state.put(at, take.key, value, is_written.then_some(before));
        }
        drop(state);
        self.checks.applied_together(process, call, &decided, now);
        let MultiKeyDecision { each, .. } = decided;
        Ok(MultiKeyReply::Decisions(each))
    }

    /// Records a violation if the oracle decides otherwise on one of the keys.
    fn compare_with_oracle(
        &self,
        call: &MultiKeyCall<'_>,
        ReceivedTake { key, policy, cost }: ReceivedTake<'_>,
        value: &mut StoredValue,
        (decision, is_allowed): (&Decision, bool),
        now: Timestamp,
    ) {
        let of_key = ScriptCall { policy, operation: call.on(cost) };
        let by_oracle = if is_allowed {
            decide(&mut value.shadow, of_key, now)
        } else {
            decide_denied(&mut value.shadow, of_key, now)
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
