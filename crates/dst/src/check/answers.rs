//! Checks of operations on one key.

use std::{mem, sync::Arc, time::Duration};

use sluicegate_conformance::{Invocation, OracleSubject, Subject as _};
use sluicegate_core::{
    Answer, Decision, KeyedOperation, OnError, Operation, Outcome, PreparedPolicy, Source,
    StoreError, Timestamp,
};

use super::{
    checks::{CheckState, Checks, RECOVERY},
    key_state::{
        Allowance, Application, AppliedMultiKey, CheckedKey, KeysWithCosts, Kind, KnownDenial,
        RepeatedDenial,
    },
};
use crate::{oracle::on_key, time::HostClock};

/// For how many milliseconds denials are kept beyond the time that they are cached: longer than a process is paused.
const KEPT: u64 = 5_000;

/// Milliseconds within which a probe closes a breaker whose node has replied again: one is sent every 100, and has a
/// deadline of 15.
const PROBED: u64 = 115;

/// An operation with its answer.
#[derive(Debug)]
pub(crate) struct AnsweredOperation<'a> {
    pub(crate) process: usize,
    /// The number of the process among all that were started.
    pub(crate) number: u64,
    pub(crate) key: &'a [u8],
    /// The node that decided on the key when the request was sent, and when it was answered.
    pub(crate) nodes: [usize; 2],
    pub(crate) policy: &'a PreparedPolicy,
    pub(crate) kind: Kind,
    pub(crate) operation: Operation<'a>,
    /// When it was sent, in milliseconds, and the event of that.
    pub(crate) sent: u64,
    pub(crate) event: u64,
    /// Whether it was sent alone: then the fallback has used the last reading of the clock.
    pub(crate) is_alone: bool,
    /// For how long its process was paused since then.
    pub(crate) paused: u64,
    pub(crate) result: &'a Result<Answer, StoreError>,
    /// The earliest and the latest reading of the clock of the process since it was sent.
    pub(crate) readings: (Timestamp, Timestamp),
    /// The clock of the server when it was sent, and when it was answered.
    pub(crate) server_times: [Timestamp; 2],
    /// The answers of the oracle to a peek in place of the take: when it was sent, and when a cached denial came back.
    pub(crate) by_oracle: [Option<Decision>; 2],
}

impl Checks {
    /// The server decided on one key, or on several together.
    pub(crate) fn applied(
        &self,
        process: (usize, u64),
        invocations: &[Invocation<'_>],
        decisions: &[Decision],
    ) {
        match (invocations, decisions) {
            (&[invocation], &[decision]) => self.applied_on_key(process, invocation, decision),
            _ => self.applied_multi_key(process, invocations, decisions),
        }
    }

    /// The server decided on one key.
    fn applied_on_key(
        &self,
        (process, number): (usize, u64),
        invocation: Invocation<'_>,
        decision: Decision,
    ) {
        let Invocation { key: key_name, policy, now: time, operation } = invocation;
        let at = self.time.millis();
        let state = &mut *self.state.lock();
        let event = state.event();
        let clock = state.clocks.get(&number).map(|it| (it.latest(), it.next()));
        let Some(key) = state.keys.get_mut(key_name) else { return };
        let kind = Kind::of(operation);
        if let Kind::Other("refund" | "reset" | "settle" | "renew", _) = kind {
            key.loosened = event;
        }
        if let Operation::Settle { id, used } = operation
            && state.permits.get(id).is_some_and(|it| *it != used)
        {
            let what = format_args!(
                "holds: the permit {} is settled with {used:?} units",
                id.escape_ascii()
            );
            return state.violate(at, what);
        }
        key.may_repeat((number, clock), &invocation, decision, event, (at, self.denial_cache));
        if kind.is_applied_once() && !key.is_leased() {
            let requested = key.requested.entry((process, kind)).or_default();
            match requested.checked_sub(1) {
                Some(left) => *requested = left,
                None => {
                    let what =
                        format_args!("exactness: {kind:?} of process {process} is applied twice");
                    return state.violate(at, what);
                }
            }
        }
        key.uses(policy, event);
        let key_is_leased = key.is_leased();
        // Others than leases return what a request has taken in vain, which may have drained.
        let requested = key.requested.get_mut(&(process, kind)).filter(|it| **it > 0);
        let is_of_request =
            key_is_leased && requested.is_some_and(|it| mem::replace(it, *it - 1) > 0);
        let drained = match kind {
            Kind::Other("refund", returned) if at > state.disturbed_until && !is_of_request => {
                clock.is_some_and(|(_, next)| key.returns_drained(number, returned, next))
            }
            _ => false,
        };
        let problem = key.count_leased(number, |units| match kind {
            Kind::Take(took) if decision.allowed() => {
                units.taken += u64::from(took);
                // A reset by another process does not reach it.
                units.window_end = time + decision.reset_after;
                let owed_until = clock.map(|(sent, _)| sent + decision.reset_after);
                units.owed_until = units.owed_until.max(owed_until.unwrap_or_default());
            }
            Kind::Other("reserve", took) if decision.allowed() => units.taken += u64::from(took),
            // The request was dropped after it had used them.
            Kind::Other("refund", returned) if is_of_request => {
                units.used = units.used.saturating_sub(returned.into());
            }
            Kind::Other("refund", returned) => units.returned += u64::from(returned),
            _ => {}
        });
        let is_too_large = |took| {
            key.is_leased()
                && u64::from(took) > key.lease()
                && !key.requested.contains_key(&(process, Kind::Take(took)))
        };
        let problem = match kind {
            Kind::Take(took) if is_too_large(took) => Some("exactness: a lease is too large"),
            _ if drained => Some("safety: a lease returns units that have drained"),
            _ => problem,
        };
        match kind {
            Kind::Other("refund", cost) if !key_is_leased || is_of_request => {
                key.allow(at, Allowance::Refund(cost));
            }
            Kind::Other("reset", _) => {
                key.resets += 1;
                key.allow(at, Allowance::Reset);
            }
            _ => {}
        }
        let oldest = at.saturating_sub(10_000);
        key.applications.retain(|it| it.at >= oldest);
        key.uncertain.retain(|it| it.at >= oldest);
        key.applications.push(Application { process, at, time, kind, decision });
        if let Some(problem) = problem {
            let name = key_name.escape_ascii();
            state.violate(at, format_args!("{problem}: {kind:?} of {name} by process {process}"));
        }
    }

    /// A client sends an operation to the process with this number, alone or with others. Returns the event.
    pub(crate) fn requested(
        &self,
        (process, number): (usize, u64),
        key: &[u8],
        kind: Kind,
        is_alone: bool,
    ) -> u64 {
        let state = &mut *self.state.lock();
        let event = state.event();
        if let Some(key) = state.keys.get_mut(key) {
            if kind.is_applied_once() {
                *key.requested.entry((process, kind)).or_default() += 1;
            }
            if !is_alone {
                key.fallbacks.entry(number).or_default().requested_with_others();
            }
        }
        event
    }

    /// A process starts.
    pub(crate) fn starts(&self, process: usize, number: u64, clock: &Arc<HostClock>) {
        let state = &mut *self.state.lock();
        state.clocks.insert(number, Arc::clone(clock));
        state.numbers[process] = number;
    }

    /// A client got an answer.
    pub(crate) fn answered(&self, answered: &AnsweredOperation<'_>) {
        let now = self.time.millis();
        let mut state = self.state.lock();
        let took = now - answered.sent;
        let most = self.deadline + answered.paused;
        if took > most {
            state.violate(now, format_args!("liveness: {answered:?} took {took} ms, not {most}"));
        }
        match answered.result.as_ref().map(|answer| answer.source) {
            Err(_) | Ok(Source::Fallback) => state.notice(now, answered.process, answered.nodes[1]),
            Ok(Source::Store) => state.reached(answered),
            _ => {}
        }
        let event = state.event();
        if let Some(key) = state.keys.get_mut(answered.key) {
            key.answered(answered, event);
        }
        let problem = match answered.result {
            Ok(answer) => {
                *state.answers.entry((answered.number, answer.source.as_str())).or_default() += 1;
                state.check_answer(now, answered, answer, (self.deadline, self.denial_cache))
            }
            Err(StoreError::Timeout(_) | StoreError::Unavailable(_)) => {
                let fails = || answered.policy.settings().on_error == OnError::Fail;
                let has_fallback = match answered.kind {
                    Kind::Take(_) | Kind::Other("peek" | "reserve" | "hold", _) => !fails(),
                    Kind::Other(..) => false,
                };
                if has_fallback {
                    Some("exactness: an error in place of the fallback")
                } else if state.is_calm_for(now, answered, self.deadline) {
                    Some("liveness: an error without a fault")
                } else {
                    None
                }
            }
            Err(_) => Some("exactness: an error of another kind"),
        };
        if let Some(problem) = problem {
            state.violate(now, format_args!("{problem}: {answered:?}"));
        }
    }
}

impl CheckedKey {
    /// The process may repeat a denial. `clock` is the last reading of its clock, and the earliest next one.
    fn may_repeat(
        &mut self,
        (number, clock): (u64, Option<(Timestamp, Timestamp)>),
        it: &Invocation<'_>,
        decision: Decision,
        event: u64,
        (at, max_age): (u64, u64),
    ) {
        let (Some((sent, since)), Operation::Take(cost), false) =
            (clock, it.operation, decision.allowed())
        else {
            return;
        };
        if self.denials.len() >= self.denials_to_prune {
            self.denials.retain(|it| at <= it.at + max_age + KEPT);
            self.denials_to_prune = 2 * self.denials.len() + 64;
        }
        self.denials.push(KnownDenial {
            number,
            policy: it.policy.clone(),
            cost,
            decision,
            event,
            dropped: u64::MAX,
            is_answered: false,
            at,
            time: it.now,
            sent,
            since,
        });
    }

    /// The process drops denials, and may report the reply to its fallback.
    fn answered(&mut self, answered: &AnsweredOperation<'_>, event: u64) {
        let (number, is_store) = (answered.number, |it: &Answer| it.source == Source::Store);
        let reply = answered.result.as_ref().ok().filter(|it| is_store(it));
        // The operations of one call may be decided one after the other, and are answered together.
        let until = if answered.is_alone { event } else { answered.event };
        if let Kind::Other("refund" | "reset" | "hold" | "settle" | "renew", _) = answered.kind {
            self.drop_denials(number, (event, until), None);
        } else if let (Kind::Take(_), Some(_)) = (answered.kind, reply) {
            self.drop_denials(number, (event, until), Some(answered.policy.policy()));
        }
        let policy = answered.policy.policy();
        for it in &mut self.denials {
            it.is_answered |= it.number == number
                && it.policy == *policy
                && reply.is_some_and(|reply| reply.decision == it.decision);
        }
        let states = self.fallbacks.entry(number).or_default();
        if !answered.is_alone {
            states.answered_with_others();
        }
        let Some(reply) = reply else { return };
        if answered.kind == Kind::Other("reset", 0) {
            // Under any policy.
            states.reset(answered.readings.0);
        } else if let OnError::Local(_) = answered.policy.settings().on_error {
            states.replied(answered.readings.1, reply.decision);
        }
    }

    /// A process did not send an operation after all.
    fn not_sent(&mut self, process: usize, kind: Kind) {
        if let Some(requested) = self.requested.get_mut(&(process, kind)) {
            *requested = requested.saturating_sub(1);
        }
    }
}

impl CheckState {
    /// Whether a process sets up a connection, or has since then.
    pub(super) fn is_connecting(&self, process: usize, since: u64) -> bool {
        self.connecting_until[process].max(self.breaking_until[process]) >= since.max(1)
    }

    /// A process got an answer of a node, and has a connection to it.
    fn reached(&mut self, answered: &AnsweredOperation<'_>) {
        let (process, [node, same]) = (answered.process, answered.nodes);
        let is_after = |lost_at: &u64| answered.sent > *lost_at;
        // Another process of the same index may have lost its own.
        if node == same
            && !self.replaced.contains(&process)
            && self.unnoticed.get(&(process, node)).is_some_and(is_after)
        {
            self.unnoticed.remove(&(process, node));
        }
    }

    /// A process got no answer of a node. If its connection was lost, it makes another one now.
    pub(super) fn notice(&mut self, now: u64, process: usize, node: usize) {
        // No longer than that, however many requests fail until then.
        if self.connecting_until[process] > 0 {
            self.breaking_until[process] = self.connecting_until[process] + PROBED;
        }
        if self.unnoticed.remove(&(process, node)).is_some() {
            let until = &mut self.connecting_until[process];
            *until = (*until).max(now + RECOVERY);
        }
    }

    /// Whether an answer now, to a request sent then, must be one of the store.
    pub(super) fn is_calm_at(&self, now: u64, process: usize, sent: u64) -> bool {
        now > self.disturbed_until && !self.is_connecting(process, sent)
    }

    /// The same for a request. While the slot of its key moves, requests that lease, or share a call with others, wait for each
    /// other's redirections, for which there may be too little time; so they do for each other's replies on a new connection.
    fn is_calm_for(&self, now: u64, answered: &AnsweredOperation<'_>, deadline: u64) -> bool {
        let asks_once = answered.is_alone && answered.policy.settings().lease <= 1;
        let has_time = asks_once || now < answered.sent + deadline;
        self.is_calm_at(now, answered.process, answered.sent)
            && (has_time
                || !self.is_moving([answered.key], answered.sent)
                    && self.opening_until[answered.process] < answered.sent)
    }

    /// The error in an answer, if there is one.
    fn check_answer(
        &mut self,
        now: u64,
        answered: &AnsweredOperation<'_>,
        answer: &Answer,
        (deadline, max_age): (u64, u64),
    ) -> Option<&'static str> {
        let is_calm = self.is_calm_for(now, answered, deadline);
        let max_age = Duration::from_millis(max_age);
        let key = self.keys.get_mut(answered.key)?;
        let settings = answered.policy.settings();
        if let (Source::Store | Source::Lease, Kind::Take(cost), true) =
            (answer.source, answered.kind, answer.allowed())
            && let Some(problem) =
                key.count_leased(answered.number, |units| units.used += u64::from(cost))
        {
            return Some(problem);
        }
        match (answer.source, answered.kind) {
            (Source::Store, kind) => {
                let find_in = |applications: &[Application],
                               is_same: &dyn Fn(Kind, Kind) -> bool| {
                    applications.iter().position(|it| {
                        is_same(it.kind, kind)
                            && it.process == answered.process
                            && it.at >= answered.sent
                            && it.decision == answer.decision
                    })
                };
                // A lease takes more at once, unless that is denied.
                let more = |applied, requested| matches!((applied, requested), (Kind::Take(took), Kind::Take(cost)) if took > cost && took <= settings.lease);
                let equal = |applied, requested| applied == requested;
                let found = find_in(&key.applications, &equal)
                    .or_else(|| find_in(&key.applications, &more).filter(|_| answer.allowed()));
                let Some(index) = found else {
                    // It counts as admitted already.
                    let Some(index) = find_in(&key.uncertain, &equal) else {
                        return Some("exactness: the server gave no such answer");
                    };
                    key.uncertain.remove(index);
                    return None;
                };
                let application = key.applications.remove(index);
                if let Kind::Take(cost) = kind
                    && answer.allowed()
                {
                    key.admitted.admit(application.at, application.time, cost.into());
                }
            }
            (Source::Cache, Kind::Take(cost)) => {
                if answer.allowed() {
                    return Some("exactness: the cache allows");
                }
                // Nothing was sent.
                key.not_sent(answered.process, answered.kind);
                return key.check_repeated(
                    &RepeatedDenial {
                        number: answered.number,
                        policy: answered.policy.policy(),
                        cost,
                        decision: &answer.decision,
                        event: answered.event,
                        readings: answered.readings,
                        now,
                        server_time: answered.server_times[1],
                        by_oracle: answered.by_oracle.iter().flatten().any(|it| !it.allowed()),
                    },
                    max_age,
                );
            }
            // A lease may decide before other requests of the same call are answered.
            (Source::Lease, Kind::Take(_))
                if key.outlives_window(
                    answered.number,
                    answered.server_times[usize::from(answered.is_alone)],
                ) =>
            {
                return Some("safety: a unit of one window is used in the next");
            }
            (Source::Lease, Kind::Take(cost)) if settings.lease > 1 && answer.allowed() => {
                key.admitted.admit(now, answered.server_times[1], cost.into());
            }
            (Source::Fallback, kind) => {
                if is_calm {
                    return Some("liveness: a fallback without a fault");
                }
                let expected = match settings.on_error {
                    OnError::Deny => Some(false),
                    OnError::Allow => Some(true),
                    OnError::Local(_) => None,
                    _ => return Some("exactness: no fallback is set"),
                };
                if expected.is_some_and(|expected| expected != answer.allowed()) {
                    return Some("exactness: a fallback that is not set");
                }
                if let OnError::Local(share) = settings.on_error {
                    let policy = (answered.policy.policy(), key.policies.len() == 1);
                    let states = key.fallbacks.entry(answered.number).or_default();
                    states.are_known &=
                        answered.is_alone && !matches!(kind, Kind::Other("hold", _));
                    let (operation, now) = (answered.operation, answered.readings.1);
                    let problem = states.decided(policy, share, operation, now, &answer.decision);
                    if problem.is_some() {
                        return Some("exactness: the fallback decides otherwise than the oracle");
                    }
                }
                if let (Kind::Take(cost), OnError::Local(_), true) =
                    (kind, settings.on_error, answer.allowed())
                {
                    let meter = key.local.entry(answered.number).or_default();
                    meter.admit(now, answered.readings.1, cost.into());
                }
            }
            _ => return Some("exactness: an answer of an impossible source"),
        }
        None
    }
}

// Checks of decisions on several keys.

/// A request on several keys with its answer.
#[derive(Debug)]
pub(crate) struct AnsweredMultiKey<'a> {
    pub(crate) process: usize,
    pub(crate) number: u64,
    pub(crate) operations: &'a [KeyedOperation<'a>],
    /// The answer of the oracle to a peek at each key, if the answer is from the cache, and the clock of its server.
    pub(crate) by_oracle: Vec<Option<Decision>>,
    pub(crate) server_times: Vec<Timestamp>,
    /// Whether the keys are in several slots, so that they are taken one after the other.
    pub(crate) in_turn: bool,
    /// The nodes that decide on the keys.
    pub(crate) nodes: Vec<usize>,
    pub(crate) sent: u64,
    pub(crate) event: u64,
    pub(crate) paused: u64,
    pub(crate) result: &'a Result<Answer, StoreError>,
    pub(crate) readings: (Timestamp, Timestamp),
}

impl AnsweredMultiKey<'_> {
    /// Whether units were to be taken.
    pub(super) fn is_take(&self) -> bool {
        self.operations.iter().all(|it| matches!(it.operation, Operation::Take(_)))
    }
}

impl Checks {
    /// The server decided on several keys.
    pub(super) fn applied_multi_key(
        &self,
        (process, number): (usize, u64),
        invocations: &[Invocation<'_>],
        decisions: &[Decision],
    ) {
        let at = self.time.millis();
        let state = &mut *self.state.lock();
        let event = state.event();
        let clock = state.clocks.get(&number).map(|it| (it.latest(), it.next()));
        for (it, decision) in invocations.iter().zip(decisions) {
            if let Some(key) = state.keys.get_mut(it.key) {
                key.uses(it.policy, event);
                key.may_repeat((number, clock), it, *decision, event, (at, self.denial_cache));
            }
        }
        let keys: Vec<_> =
            invocations.iter().map(|it| (it.key.to_vec(), it.operation.cost())).collect();
        let Some(&Invocation { now: time, operation, .. }) = invocations.first() else { return };
        if let Operation::Take(_) = operation {
            let requested = state.requested_multi_key.entry((process, keys.clone())).or_default();
            match requested.checked_sub(1) {
                Some(left) => *requested = left,
                None => {
                    let what = format_args!(
                        "exactness: {invocations:?} of process {process} are applied twice"
                    );
                    return state.violate(at, what);
                }
            }
        }
        let oldest = at.saturating_sub(10_000);
        state.multi_key.retain(|it| it.at >= oldest);
        let each = decisions.to_vec();
        state.multi_key.push(AppliedMultiKey { process, at, time, keys, each });
    }

    /// A client sends a process a request for several keys. Returns the event.
    pub(crate) fn requested_multi_key(
        &self,
        (process, number): (usize, u64),
        operations: &[KeyedOperation<'_>],
        in_turn: bool,
    ) -> u64 {
        let state = &mut *self.state.lock();
        let event = state.event();
        for it in operations {
            if let Some(key) = state.keys.get_mut(it.key) {
                key.fallbacks.entry(number).or_default().requested_with_others();
            }
        }
        if !matches!(operations, [KeyedOperation { operation: Operation::Take(_), .. }, ..]) {
            return event;
        }
        let takes: KeysWithCosts =
            operations.iter().map(|it| (it.key.to_vec(), it.operation.cost())).collect();
        if in_turn {
            state.requested_in_turn(process, &takes);
        } else {
            *state.requested_multi_key.entry((process, takes)).or_default() += 1;
        }
        event
    }

    /// A client got an answer about several keys.
    pub(crate) fn answered_multi_key(&self, answered: &AnsweredMultiKey<'_>) {
        let now = self.time.millis();
        self.state.lock().noticed_multi_key(now, answered);
        let took = now - answered.sent;
        // Refunds after a denial have a deadline of their own.
        let deadlines = if answered.in_turn { 2 } else { 1 };
        let most = deadlines * self.deadline + answered.paused;
        let problem = match answered.result {
            _ if took > most => Some("liveness: an answer after the deadline"),
            Ok(answer) if answered.in_turn => self.state.lock().check_in_turn(
                now,
                answered,
                answer,
                (self.deadline, self.denial_cache),
            ),
            Ok(answer) => self.check_multi_key(now, answered, answer),
            Err(StoreError::Timeout(_) | StoreError::Unavailable(_)) => {
                let mut policies = answered.operations.iter().map(|it| it.policy);
                let fails = policies.any(|it| it.settings().on_error == OnError::Fail);
                if !fails {
                    Some("exactness: an error in place of the fallback")
                } else if self.state.lock().is_calm_multi_key(now, answered, self.deadline) {
                    Some("liveness: an error without a fault")
                } else {
                    None
                }
            }
            Err(_) => Some("exactness: an error of another kind"),
        };
        if let Some(problem) = problem {
            self.violation(format_args!("{problem}: {answered:?}"));
        }
    }

    fn check_multi_key(
        &self,
        now: u64,
        answered: &AnsweredMultiKey<'_>,
        answer: &Answer,
    ) -> Option<&'static str> {
        let state = &mut *self.state.lock();
        *state.answers.entry((answered.number, answer.source.as_str())).or_default() += 1;
        let (is_take, allowed) = (answered.is_take(), answer.allowed());
        match answer.source {
            Source::Store => {
                let is_same = |((key, cost), it): (&(Vec<u8>, u32), &KeyedOperation<'_>)| {
                    key == it.key && *cost == it.operation.cost()
                };
                let found = state.multi_key.iter().position(|it| {
                    it.process == answered.process
                        && it.at >= answered.sent
                        && it.each == answer.each()
                        && it.keys.len() == answered.operations.len()
                        && it.keys.iter().zip(answered.operations).all(is_same)
                });
                let Some(index) = found else {
                    return Some("exactness: the server gave no such answer");
                };
                let applied = state.multi_key.remove(index);
                if is_take && allowed {
                    for (key, cost) in &applied.keys {
                        if let Some(key) = state.keys.get_mut(key) {
                            key.admitted.admit(applied.at, applied.time, (*cost).into());
                        }
                    }
                }
            }
            Source::Cache => {
                // Nothing was sent.
                let takes = answered.operations.iter();
                let takes = takes.map(|it| (it.key.to_vec(), it.operation.cost())).collect();
                if let Some(requested) =
                    state.requested_multi_key.get_mut(&(answered.process, takes))
                {
                    *requested = requested.saturating_sub(1);
                }
                return state.check_cached(now, answered, answer, self.denial_cache);
            }
            Source::Fallback => {
                if state.is_calm_multi_key(now, answered, self.deadline) {
                    return Some("liveness: a fallback without a fault");
                }
                for &KeyedOperation { key, policy, operation } in answered.operations {
                    if let (OnError::Local(_), true, Some(key)) =
                        (policy.settings().on_error, is_take && allowed, state.keys.get_mut(key))
                    {
                        let meter = key.local.entry(answered.number).or_default();
                        meter.admit(now, answered.readings.1, operation.cost().into());
                    }
                }
            }
            _ => return Some("exactness: an answer of an impossible source"),
        }
        None
    }
}

impl CheckState {
    /// A client got an answer about several keys, perhaps because nodes did not answer.
    fn noticed_multi_key(&mut self, now: u64, answered: &AnsweredMultiKey<'_>) {
        for it in answered.operations {
            if let Some(key) = self.keys.get_mut(it.key) {
                key.fallbacks.entry(answered.number).or_default().answered_with_others();
            }
        }
        if answered.result.as_ref().map_or(true, |answer| answer.source == Source::Fallback) {
            answered.nodes.iter().for_each(|node| self.notice(now, answered.process, *node));
        }
    }

    /// The error in an answer from the cache, if there is one: a denial of one key or more, while the others count as unused.
    pub(super) fn check_cached(
        &self,
        now: u64,
        answered: &AnsweredMultiKey<'_>,
        answer: &Answer,
        max_age: u64,
    ) -> Option<&'static str> {
        if answer.allowed() {
            return Some("exactness: the cache allows");
        }
        let of_keys = answered.operations.iter().zip(answer.each()).enumerate();
        let mut problems = of_keys.map(|(index, (it, decision))| {
            let (policy, cost) = (it.policy.policy(), it.operation.cost());
            if policy.records_denials() {
                return Some("exactness: the cache denies what the server should record");
            }
            if decision.allowed() {
                let mut unused = OracleSubject::default();
                let peek = on_key(policy, Operation::Peek(0), answered.readings.0);
                let is_unused = unused.apply(peek).as_ref() == Ok(decision);
                return (!is_unused).then_some("exactness: the cache knows no other key");
            }
            let repeated = RepeatedDenial {
                number: answered.number,
                policy,
                cost,
                decision,
                event: answered.event,
                readings: answered.readings,
                now,
                server_time: answered.server_times[index],
                by_oracle: answered.by_oracle[index].is_some_and(|it| !it.allowed()),
            };
            self.keys.get(it.key)?.check_repeated(&repeated, Duration::from_millis(max_age))
        });
        problems.find_map(|it| it)
    }

    /// Whether an answer now must be one of the store. Keys whose slot moves have none if they are at two nodes. In several
    /// slots, they may need more redirections than there is time for.
    pub(super) fn is_calm_multi_key(
        &self,
        now: u64,
        answered: &AnsweredMultiKey<'_>,
        deadline: u64,
    ) -> bool {
        let has_time = answered.in_turn && now < answered.sent + deadline;
        let keys = answered.operations.iter().map(|it| it.key);
        self.is_calm_at(now, answered.process, answered.sent)
            && (has_time || !self.is_moving(keys, answered.sent))
    }

    /// Whether the slot of a key has moved since a request was sent.
    fn is_moving<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>, sent: u64) -> bool {
        let until = |key| self.keys.get(key).map_or(0, |it| it.migrating_until);
        keys.into_iter().any(|key| until(key) >= sent.max(1))
    }
}

// Checks of decisions on keys of several slots, which are taken one after the other.

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
        (deadline, max_age): (u64, u64),
    ) -> Option<&'static str> {
        *self.answers.entry((answered.number, answer.source.as_str())).or_default() += 1;
        if answer.source == Source::Cache {
            return self.check_cached_in_turn(now, answered, answer, max_age);
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
            let mut unused = |kind| key.not_sent(answered.process, kind);
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
                        meter.admit_since(answered.sent, now, answered.readings.1, cost.into());
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
        max_age: u64,
    ) -> Option<&'static str> {
        let is_take = answered.is_take();
        // Nothing was sent.
        for it in answered.operations.iter().filter(|_| is_take) {
            let (Some(key), cost) = (self.keys.get_mut(it.key), it.operation.cost()) else {
                continue;
            };
            for kind in [Kind::Take(cost), Kind::Other("refund", cost)] {
                key.not_sent(answered.process, kind);
            }
        }
        self.check_cached(now, answered, answer, max_age)
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
