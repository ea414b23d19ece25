//! Checks of requests that wait: the order in which they pass, and the times.

use std::time::Duration;

use sluicegate_conformance::Subject as _;
use sluicegate_core::{Decision, Operation, Outcome, PreparedPolicy, Retry, Timestamp};
use sluicegate_server::simulation::SimulatedProtocol;

use super::{
    clock,
    command::Command,
    ledger::{Ledger, PendingCommand, WaitState},
    received::Received,
};
use crate::{oracle::on_key, plan::Request};

/// Timers are due at whole milliseconds, and clocks run too fast or too slow.
pub(super) const TOLERANCE: u64 = 5;
/// Milliseconds for which a client that has sent too much while it waits is not read from.
const MAX_STALL: u64 = 2000;
/// The shortest time to live of a hold.
const MIN_TTL: Duration = Duration::from_millis(1);

/// The key of a request that waits, and the request.
type Wanted = (usize, Request);

impl Ledger {
    /// Whether a request passed that may have waited, after its answer was checked.
    pub(super) fn check_waited(
        &mut self,
        sent: &PendingCommand,
        (key, request): Wanted,
        received: &Received,
        now: Timestamp,
    ) {
        let id = request.hold_id();
        let policy = self.policy_of(key, sent);
        let mut after = self.keys[key].state.clone();
        let expected = after.apply(on_key(policy.policy(), request.operation(&id), now));
        let reply = &received.reply;
        let is_allowed = reply.is_allowed();
        // One that is answered at once came after all that wait.
        let ahead = self.ahead(key, sent.waiting.as_ref().map_or(u64::MAX, |it| it.arrival));
        let passes = expected.as_ref().is_ok_and(|it| it.allowed());
        let is_open = self.is_open(&policy, (key, request), now);
        let may_be_behind = ahead.is_some() || self.waits_for_several(key);
        if !is_allowed && passes && !reply.is_error() {
            // It is denied out of turn, and nothing changes.
            if !may_be_behind && !self.is_stopping {
                self.violate(format_args!(
                    "waiting: {:?} is denied at {now}, but it passes: {expected:?}",
                    sent.command
                ));
            }
            return;
        }
        if !reply.agrees(&expected) {
            self.violate(format_args!(
                "exactness: {:?} at {now}: {reply:?}, but the oracle decides {:?}",
                sent.command,
                expected.map(|it| it.to_integers())
            ));
            return;
        }
        self.check_head(received, key, expected.as_ref().ok(), false);
        // A denial that is recorded may begin a window, and let the request pass earlier.
        let peek = on_key(policy.policy(), Operation::Peek(request.cost()), now);
        let before = self.keys[key].state.clone().apply(peek);
        if !is_allowed
            && let Ok(Decision { outcome: Outcome::Deny { retry: Retry::After(wait) }, .. }) =
                &before
            && !may_be_behind
            && !self.is_stopping
        {
            let waits_until = sent.waiting.as_ref().map(|it| it.deadline);
            let deadline = waits_until.unwrap_or(now + sent.command.timeout());
            if now + *wait + Duration::from_millis(TOLERANCE) < deadline {
                self.violate(format_args!(
                    "waiting: {:?} is denied at {now}, but it passes {wait:?} later, before {deadline}",
                    sent.command
                ));
            }
        }
        self.keys[key].state = after;
        // Of requests that a server has read but not begun when it stops, none waits.
        if let Some(ahead) = ahead
            && is_allowed
            && !is_open
            && !self.is_stopping
        {
            self.violate(format_args!(
                "waiting: {:?} passes at {now} before {ahead}, which came first",
                sent.command
            ));
        }
    }

    /// Whether another request has opened the hold that this one waits for. Its next attempt is then allowed, out of turn.
    fn is_open(&self, policy: &PreparedPolicy, (key, request): Wanted, now: Timestamp) -> bool {
        let id = request.hold_id();
        let renew = Operation::Renew { id: &id, ttl: Some(MIN_TTL) };
        let mut state = self.keys[key].state.clone();
        request.is_on_hold()
            && state.apply(on_key(policy.policy(), renew, now)).is_ok_and(|it| it.allowed())
    }

    /// Notes whether a request that begins to wait asks for a hold that is open already.
    pub(super) fn note_repeated(&mut self, number: usize) {
        let sent = self.connections[number].sent.front();
        let Some(PendingCommand { command: Command::Wait { key, request, .. }, waiting, .. }) =
            sent
        else {
            return;
        };
        let repeats = waiting
            .as_ref()
            .is_some_and(|it| self.is_open(&it.policy, (*key, *request), clock::now()));
        let since = repeats.then(|| (self.millis)());
        let sent = self.connections[number].sent.front_mut();
        if let Some(waiting) = sent.and_then(|it| it.waiting.as_mut()) {
            waiting.repeats_since = since;
        }
    }

    /// The requests that wait for a key, and what they want.
    pub(super) fn waiters(&self, key: usize) -> impl Iterator<Item = (&WaitState, Wanted)> {
        let open = self.connections.iter().filter(|it| !it.has_ended);
        open.filter_map(move |connection| match connection.sent.front()? {
            PendingCommand { command: Command::Wait { key: at, request, .. }, waiting, .. }
                if *at == key =>
            {
                waiting.as_ref().map(|waiting| (waiting, (key, *request)))
            }
            _ => None,
        })
    }

    /// A request that came before this one and still waits.
    fn ahead(&self, key: usize, arrival: u64) -> Option<String> {
        let ahead = self.waiters(key).find(|it| it.0.arrival < arrival);
        ahead.map(|it| format!("{it:?}"))
    }

    /// Checks that no request waits for a client that has left, as far as the server can know.
    fn check_vanished(&mut self, millis: u64) {
        let mut waits = None;
        for (number, connection) in self.connections.iter_mut().enumerate() {
            let is_waiting = connection.sent.front().is_some_and(|it| it.waiting.is_some());
            let is_resp = connection.protocol == SimulatedProtocol::Resp;
            // Bytes before the end may be left unread for a while.
            let is_read = connection.end.has_arrived();
            let has_left = is_read || is_waiting && is_resp && connection.end.is_due();
            if connection.has_ended || !has_left {
                continue;
            }
            let since = *connection.gone_since.get_or_insert(millis);
            let stall = if connection.kept.is_some() || !is_read { MAX_STALL } else { 0 };
            if is_waiting && millis - since > TOLERANCE + stall {
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
        self.check_multi_key_waiters(now, millis);
        for key in 0..self.keys.len() {
            let late = self
                .waiters(key)
                .find(|it| now.since(it.0.deadline) > Duration::from_millis(TOLERANCE));
            if let Some(late) = late.map(|it| format!("{it:?}")) {
                self.violate(format_args!("waiting: {late} still waits at {now}"));
            }
            let is_late = |since| millis - since > TOLERANCE;
            let repeated = self.waiters(key).find(|it| it.0.repeats_since.is_some_and(is_late));
            if let Some(repeated) = repeated.map(|it| format!("{it:?}")) {
                self.violate(format_args!("waiting: {repeated} waits for a hold that is open"));
            }
            let ready =
                self.waiters(key).min_by_key(|it| it.0.arrival).filter(|(waiting, wanted)| {
                    if self.waits_for_several(key) {
                        return false;
                    }
                    let (policy, id) = (&waiting.policy, wanted.1.hold_id());
                    let attempt = on_key(policy.policy(), wanted.1.operation(&id), now);
                    let decision = self.keys[key].state.clone().apply(attempt);
                    decision.is_ok_and(|it| it.allowed()) && !self.is_open(policy, *wanted, now)
                });
            let before = self.keys[key].ready;
            let ready = ready.map(|(waiting, wanted)| (waiting.arrival, wanted));
            self.keys[key].ready = ready.map(|(arrival, _)| match before {
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
