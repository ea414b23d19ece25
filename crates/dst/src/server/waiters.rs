//! Checks of requests that wait: who passes, in which order, and when.

use sluicegate_core::{HoldOperation, Timestamp};

use super::{
    clock,
    command::{Command, hold_id, waiting_operation},
    ledger::{Key, Ledger, Sent},
    reply::Received,
};
use crate::{
    oracle::decide,
    plan::WaitingHold,
    redis_model::{ScriptCall, ScriptOperation},
};

/// Timers are due at whole milliseconds, and clocks run too fast or too slow.
const TOLERANCE: u64 = 5;

/// The key, the cost and the hold of a request that waits.
type Wanted = (usize, u32, Option<WaitingHold>);

impl Ledger {
    /// Whether a request passed that may have waited, after its answer was checked.
    pub(super) fn check_waited(
        &mut self,
        sent: &Sent,
        (key, cost, hold): Wanted,
        received: &Received,
        now: Timestamp,
    ) -> bool {
        let id = hold.map(|it| hold_id(it.id)).unwrap_or_default();
        let Key { policy, state, .. } = &self.keys[key];
        let mut after = state.clone();
        let operation = waiting_operation(cost, hold, &id);
        let expected = decide(&mut after, ScriptCall { policy: policy.policy(), operation }, now);
        let reply = &received.reply;
        let is_allowed = reply.is_allowed();
        // One that is answered at once came after all that wait.
        let ahead = self.ahead(key, sent.waiting.map_or(u64::MAX, |it| it.0));
        let passes = expected.as_ref().is_ok_and(|it| it.allowed());
        if !is_allowed && passes && !reply.is_error() {
            // It is denied out of turn, and nothing changes.
            if ahead.is_none() && !self.is_stopping {
                self.violate(format_args!(
                    "waiting: {:?} is denied at {now}, but it passes: {expected:?}",
                    sent.command
                ));
            }
            return false;
        }
        if !reply.agrees(&expected) {
            self.violate(format_args!(
                "exactness: {:?} at {now}: {reply:?}, but the oracle decides {:?}",
                sent.command,
                expected.map(|it| it.to_integers())
            ));
            return false;
        }
        self.check_head(received, expected.as_ref().ok(), false);
        self.keys[key].state = after;
        if let Some(ahead) = ahead
            && is_allowed
        {
            self.violate(format_args!(
                "waiting: {:?} passes at {now} before {ahead}, which came first",
                sent.command
            ));
        }
        is_allowed
    }

    /// The requests that wait for a key: their arrivals, deadlines and costs.
    fn waiters(&self, key: usize) -> impl Iterator<Item = (u64, Timestamp, Wanted)> {
        let open = self.connections.iter().filter(|it| !it.has_ended);
        open.filter_map(move |connection| match connection.sent.front()? {
            &Sent { command: Command::Wait { key: at, cost, hold, .. }, waiting, .. }
                if at == key =>
            {
                waiting.map(|(arrival, deadline)| (arrival, deadline, (key, cost, hold)))
            }
            _ => None,
        })
    }

    /// A request that came before this one and still waits.
    fn ahead(&self, key: usize, arrival: u64) -> Option<String> {
        let ahead = self.waiters(key).find(|it| it.0 < arrival);
        ahead.map(|it| format!("{it:?}"))
    }

    /// Checks that no request waits for a client that has left, as far as the server can know.
    fn check_vanished(&mut self, millis: u64) {
        let mut waits = None;
        for (number, connection) in self.connections.iter_mut().enumerate() {
            let has_left = connection.end.has_arrived();
            if connection.has_ended || !has_left {
                continue;
            }
            let since = *connection.gone_since.get_or_insert(millis);
            let is_waiting = connection.sent.front().is_some_and(|it| it.waiting.is_some());
            if is_waiting && millis - since > TOLERANCE {
                waits = Some(number);
            }
        }
        if let Some(number) = waits {
            self.violate(format_args!(
                "waiting: connection {number} still waits, and its client has left"
            ));
        }
    }

    /// Checks that the first request of each key passes when it can, and none waits longer than it wanted to.
    pub(super) fn check_waiters(&mut self) {
        let (now, millis) = (clock::now(), (self.millis)());
        self.check_vanished(millis);
        for key in 0..self.keys.len() {
            let late = self
                .waiters(key)
                .find(|it| now.since(it.1) > std::time::Duration::from_millis(TOLERANCE));
            if let Some(late) = late {
                self.violate(format_args!("waiting: {late:?} still waits at {now}"));
            }
            let ready = self.waiters(key).min_by_key(|it| it.0).filter(|(_, _, wanted)| {
                let (_, cost, hold) = *wanted;
                let id = hold.map(|it| hold_id(it.id)).unwrap_or_default();
                let Key { policy, state, .. } = &self.keys[key];
                let operation = waiting_operation(cost, hold, &id);
                let passes = |operation| {
                    let call = ScriptCall { policy: policy.policy(), operation };
                    decide(&mut state.clone(), call, now).is_ok_and(|it| it.allowed())
                };
                // One whose hold another request has opened learns it at its next attempt.
                let renew = HoldOperation::Renew { id: &id, ttl: None };
                let is_open = hold.is_some() && passes(ScriptOperation::OnHold(renew));
                passes(operation) && !is_open
            });
            let before = self.keys[key].ready;
            self.keys[key].ready = ready.map(|(arrival, ..)| match before {
                Some((same, since)) if same == arrival => (arrival, since),
                _ => (arrival, millis),
            });
            if let Some((_, since)) = self.keys[key].ready
                && millis - since > TOLERANCE
            {
                self.violate(format_args!("waiting: {ready:?} of key{key} could pass and waits"));
            }
        }
    }
}
