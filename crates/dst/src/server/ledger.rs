//! The commands sent to the server, its replies, and the decisions of the oracle on them.

use std::{collections::VecDeque, fmt, sync::Arc, time::Duration};

use sluicegate_conformance::{Invocation, OracleSubject, Subject as _};
use sluicegate_core::{
    Answer, Decision, Limit, Operation, Outcome, PreparedPolicy, Retry, Source, Timestamp,
};
use sluicegate_resp::decode;

use super::{
    clock::{now, read_in_turn},
    command::{Command, Observer, Reply, of_value},
    plan::Bounds,
};
use crate::{
    event_log::EventLog,
    network::StreamEnd,
    oracle::{decide_denied, on_key},
    plan::Request,
};

/// The reply to a connection for which there is no memory.
const NO_MEMORY: &str = "ERR max buffer memory reached";
/// The reply to a connection that sends too much behind a command that waits.
const TOO_LONG: &str = "ERR Protocol error: more than 262144 bytes behind a command that waits";
/// Bytes behind a command that waits which need no memory of all clients, and those from which on there is no space for
/// what is read next.
const READ_AHEAD: usize = 1024;
const MAX_READ_AHEAD: usize = (256 - 16) << 10;
/// Bytes of a buffer that clients of a simulation never fill.
const UNLIMITED_BUFFER: usize = 1 << 20;
/// A turn reads fewer bytes: it ends after 16 KiB, and reads as many at a time.
const MAX_TURN: usize = 32 << 10;

/// A key, as the oracle knows it.
#[derive(Clone, Debug)]
pub(super) struct Key {
    /// The policy in force.
    pub(super) policy: PreparedPolicy,
    pub(super) state: OracleSubject,
    /// The request that could pass, and since when it could, in milliseconds.
    pub(super) ready: Option<(u64, u64)>,
}

/// A command that was sent and is not answered.
#[derive(Debug)]
pub(super) struct PendingCommand {
    pub(super) command: Command,
    /// Bytes of the connection up to its end.
    end: usize,
    pub(super) waiting: Option<WaitState>,
}

/// A request that waits.
#[derive(Clone, Debug)]
pub(super) struct WaitState {
    /// Its place among all.
    pub(super) arrival: u64,
    pub(super) deadline: Timestamp,
    /// That of its first key when it arrived: it keeps it when rules are reloaded.
    pub(super) policy: PreparedPolicy,
    /// Since when all keys of a request for several allow it, in milliseconds.
    pub(super) could_pass_since: Option<u64>,
    /// Since when it waits for a hold that is open already, in milliseconds.
    pub(super) repeats_since: Option<u64>,
    /// The decision with which it has reserved its departure, under a policy with a `leaky-queue`.
    pub(super) reserved: Option<Decision>,
    /// When it began to wait.
    pub(super) began: Timestamp,
}

impl WaitState {
    /// When the request departs, if it has reserved that, and when at the latest: its timer may be set for a millisecond more,
    /// and the clock may run fast in the meantime.
    fn departure(&self) -> Option<[Timestamp; 2]> {
        let delay = self.reserved.filter(Decision::allowed)?.delay();
        let departs = self.began + delay;
        Some([departs, departs + delay * DRIFT / 1_000_000 + Duration::from_millis(TOLERANCE)])
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) sent: VecDeque<PendingCommand>,
    /// Bytes: sent by the client, read by the server, offered by it, accepted by the network, received by the client.
    bytes_sent: usize,
    read: usize,
    offered: usize,
    accepted: usize,
    received: usize,
    /// The read offset after which the server may drop commands behind a waiting one.
    pub(super) kept: Option<usize>,
    /// The bytes of an incomplete reply that the server has offered.
    undecoded: Vec<u8>,
    /// When the server last read bytes or answered a command that had waited, by its clock.
    active_at: Timestamp,
    /// Whether the server drops what it reads.
    is_closing: bool,
    /// Whether the server has closed it.
    pub(super) has_ended: bool,
    /// Whether the client does not read any more.
    is_left: bool,
    /// The end of what the client sends, and since when it has arrived, in milliseconds.
    pub(super) end: StreamEnd,
    pub(super) gone_since: Option<u64>,
}

/// All data about a run.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) keys: Vec<Key>,
    pub(super) connections: Vec<Connection>,
    pub(super) log: Arc<EventLog>,
    /// Requests that have begun to wait.
    pub(super) arrivals: u64,
    pub(super) bounds: Bounds,
    /// After how much time the server closes clients that are idle, if it does.
    pub(super) idle_timeout: Option<Duration>,
    /// Whether the server stops: requests that wait are then denied.
    pub(super) is_stopping: bool,
    pub(super) millis: fn() -> u64,
    pub(super) violation: Option<String>,
}

impl Ledger {
    pub(super) fn violate(&mut self, what: fmt::Arguments<'_>) {
        let millis = (self.millis)();
        self.violation.get_or_insert_with(|| format!("after {millis} ms: {what}"));
    }

    /// A new connection. Returns its number.
    pub(super) fn open(&mut self, end: StreamEnd) -> usize {
        self.connections.push(Connection {
            sent: VecDeque::new(),
            bytes_sent: 0,
            read: 0,
            offered: 0,
            accepted: 0,
            kept: None,
            received: 0,
            undecoded: Vec::new(),
            active_at: now(),
            is_closing: false,
            has_ended: false,
            is_left: false,
            end,
            gone_since: None,
        });
        self.connections.len() - 1
    }

    /// The client sends a command; `bytes` is its length.
    pub(super) fn send(&mut self, number: usize, command: Command, bytes: usize) {
        self.log.add(format_args!("connection {number}: {command:?}"));
        let connection = &mut self.connections[number];
        connection.bytes_sent += bytes;
        let end = connection.bytes_sent;
        connection.sent.push_back(PendingCommand { command, end, waiting: None });
    }

    /// The client has received bytes.
    pub(super) fn received(&mut self, number: usize, bytes: usize) {
        self.connections[number].received += bytes;
    }

    /// The client has left, or lost, the connection.
    pub(super) fn left(&mut self, number: usize) {
        self.connections[number].is_left = true;
    }

    /// A command that may wait does so once it was read and all replies before it are written.
    fn begin_to_wait(&mut self, number: usize) {
        let connection = &mut self.connections[number];
        let is_written = connection.accepted == connection.offered;
        let read = connection.kept.unwrap_or(connection.read);
        if let Some(PendingCommand { command, end, waiting }) = connection.sent.front_mut()
            && !command.timeout().is_zero()
            && is_written
            && !connection.is_closing
            && read >= *end
            && waiting.is_none()
        {
            self.arrivals += 1;
            self.log.add(format_args!("connection {number} waits"));
            *waiting = Some(WaitState {
                arrival: self.arrivals,
                deadline: now() + command.timeout(),
                policy: self.keys[command.first_key()].policy.clone(),
                could_pass_since: None,
                repeats_since: None,
                reserved: None,
                began: now(),
            });
            self.note_repeated(number);
            self.reserve(number);
        }
    }

    fn replied(&mut self, number: usize, reply: &Reply) {
        let now = now();
        self.log.add(format_args!("connection {number} gets {reply:?} at {now}"));
        let connection = &mut self.connections[number];
        let read = connection.read;
        if matches!(reply, Reply::Error(text) if text == NO_MEMORY || text == TOO_LONG) {
            return self.rejected(number);
        }
        let Some(sent) = connection.sent.pop_front() else {
            return self
                .violate(format_args!("protocol: connection {number}: {reply:?} to nothing"));
        };
        if read < sent.end {
            return self
                .violate(format_args!("protocol: {reply:?} to a command that was not read"));
        }
        if sent.waiting.is_some() {
            // It was not idle while it waited.
            connection.active_at = now;
            connection.kept = connection.kept.filter(|kept| *kept != read);
        }
        self.check_reply(&sent, reply, now);
    }

    /// The server has no memory for what it would keep of the connection, or may keep no more behind a command that waits. If
    /// it has read a command, it has not run it.
    fn rejected(&mut self, number: usize) {
        if self.bounds.bytes >= UNLIMITED_BUFFER && self.connections[number].kept.is_none() {
            self.violate(format_args!("bounds: connection {number} is rejected"));
        }
        self.cancel(number);
        let connection = &mut self.connections[number];
        let read = connection.read;
        connection.sent.pop_front_if(|sent| sent.end <= read);
    }

    /// Checks what the server counts: clients, requests that wait, and bytes that it buffers.
    pub(super) fn check_bounds(&mut self, [clients, waiting, buffered]: [usize; 3]) {
        let open = self.connections.iter().filter(|it| !it.has_ended).count();
        let Bounds { clients: max, bytes } = self.bounds;
        if clients.max(open) > max || waiting > clients || buffered > bytes {
            self.violate(format_args!(
                "bounds: {clients} clients ({open} are open) of {max}, {waiting} wait, {buffered} bytes of {bytes}"
            ));
        }
    }

    fn check_reply(&mut self, sent: &PendingCommand, reply: &Reply, now: Timestamp) {
        match &sent.command {
            Command::One { key, request } => self.check_one(*key, *request, reply, now),
            Command::All { requests, .. } => self.check_all(requests, sent, reply, now),
            Command::Wait { key, request, .. } => {
                self.check_waited(sent, (*key, *request), reply, now);
            }
            Command::Invalid | Command::Unfinished(_) if reply.is_error() => {}
            Command::Invalid | Command::Unfinished(_) => {
                self.violate(format_args!("protocol: {reply:?} to {:?}", sent.command));
            }
        }
    }

    /// The policy under which a request on a key is decided.
    fn policy_of(&self, key: usize, sent: &PendingCommand) -> PreparedPolicy {
        let of_key = || self.keys[key].policy.clone();
        sent.waiting.as_ref().map_or_else(of_key, |it| it.policy.clone())
    }

    fn check_one(&mut self, key: usize, request: Request, reply: &Reply, now: Timestamp) {
        let id = request.hold_id();
        let Key { policy, state, .. } = &mut self.keys[key];
        let expected = state.apply(on_key(policy.policy(), request.operation(&id), now));
        let is_right = match request {
            Request::Reset => *reply == Reply::Reset,
            _ => reply.agrees(&expected),
        };
        if !is_right {
            self.violate(format_args!(
                "exactness: {request} of key{key} at {now}: {reply:?}, but the oracle decides {:?}",
                expected.map(|it| it.to_integers())
            ));
        }
    }

    /// Whether every command is answered, of clients that read.
    pub(super) fn is_idle(&self) -> bool {
        let is_idle = |it: &Connection| it.is_left || it.has_ended || it.sent.is_empty();
        self.connections.iter().all(is_idle)
    }

    /// Checks that every client that reads has received what was offered to it.
    pub(super) fn check_received(&mut self) {
        // One for which there is no memory may end, and one that is idle.
        let may_end = self.bounds.bytes < UNLIMITED_BUFFER || self.idle_timeout.is_some();
        let lacks = |it: &Connection| {
            let is_over = it.is_left || it.has_ended && (may_end || it.kept.is_some());
            !is_over && (it.has_ended || !it.sent.is_empty() || it.received != it.offered)
        };
        if let Some(number) = self.connections.iter().position(lacks) {
            let connection = format!("{:?}", self.connections[number]);
            self.violate(format_args!("liveness: connection {number} lacks replies: {connection}"));
        }
    }
}

impl Observer for Ledger {
    fn read(&mut self, number: usize, bytes: usize) {
        let connection = &mut self.connections[number];
        connection.read += bytes;
        if bytes > 0 {
            connection.active_at = now();
        }
        // Commands behind one that waits are kept and do not run. Commands after a rejection are dropped.
        let runs = connection.sent.front().is_none_or(|it| it.waiting.is_none())
            && !self.is_stopping
            && self.bounds.bytes >= UNLIMITED_BUFFER;
        let turn = if runs { read_in_turn(bytes) } else { 0 };
        let most = if self.bounds.bytes < UNLIMITED_BUFFER { READ_AHEAD } else { MAX_READ_AHEAD };
        if connection.kept.is_none()
            && let Some(PendingCommand { end, waiting: Some(_), .. }) = connection.sent.front()
            && connection.read >= end + most
        {
            connection.kept = Some(connection.read);
        }
        self.begin_to_wait(number);
        if turn >= MAX_TURN {
            self.violate(format_args!(
                "bounds: connection {number} reads {turn} bytes in one turn, before others have theirs"
            ));
        }
    }

    fn offered(&mut self, number: usize, bytes: &[u8]) {
        let connection = &mut self.connections[number];
        let known = connection.offered - connection.accepted;
        let new = bytes.get(known..).unwrap_or_default();
        connection.offered += new.len();
        connection.undecoded.extend_from_slice(new);
        loop {
            let connection = &mut self.connections[number];
            match decode(&connection.undecoded) {
                Ok(Some((value, length))) => {
                    connection.undecoded.drain(..length);
                    self.replied(number, &of_value(&value));
                }
                Ok(None) => return,
                Err(error) => {
                    return self.violate(format_args!("protocol: connection {number}: {error}"));
                }
            }
        }
    }

    fn accepted(&mut self, number: usize, bytes: usize) {
        self.connections[number].accepted += bytes;
        self.begin_to_wait(number);
    }

    fn closes(&mut self, number: usize) {
        self.cancel(number);
        let connection = &mut self.connections[number];
        connection.is_closing = true;
        let idle = now().since(connection.active_at);
        let is_due = self.idle_timeout.is_none_or(|it| idle >= it);
        // All of its commands are answered, and it has not begun another one.
        let is_well = connection.sent.is_empty()
            && !connection.is_left
            && connection.gone_since.is_none()
            && !self.is_stopping
            && self.bounds.bytes >= UNLIMITED_BUFFER;
        if is_well && !is_due {
            self.violate(format_args!(
                "liveness: connection {number} is closed after {idle:?} without a command"
            ));
        }
    }

    fn ended(&mut self, number: usize) {
        self.cancel(number);
        self.connections[number].has_ended = true;
        self.log.add(format_args!("connection {number} ends"));
    }
}

// Checks of decisions on several keys, and of requests that wait for these.

/// Keys, each with its request.
type Requests<'a> = &'a [(usize, Request)];
/// A key, its state after a decision, and the decision.
type KeyDecision = (usize, OracleSubject, Result<Decision, String>);
/// A decision of the oracle.
type Decide = fn(&mut OracleSubject, Invocation<'_>) -> Result<Decision, String>;

impl Ledger {
    /// The decision of the oracle on each of the keys.
    fn decide_all(&self, requests: Requests<'_>, now: Timestamp) -> Vec<KeyDecision> {
        let mut decided = Vec::new();
        for decides in [OracleSubject::apply as Decide, decide_denied] {
            decided.clear();
            for &(key, request) in requests {
                let Key { policy, state, .. } = &self.keys[key];
                let (mut state, id) = (state.clone(), request.hold_id());
                let invocation = on_key(policy.policy(), request.operation(&id), now);
                let decision = decides(&mut state, invocation);
                decided.push((key, state, decision));
            }
            if all_allow(&decided) {
                break;
            }
        }
        decided
    }

    fn check_all(
        &mut self,
        requests: Requests<'_>,
        sent: &PendingCommand,
        reply: &Reply,
        now: Timestamp,
    ) {
        let decided = self.decide_all(requests, now);
        let decisions: Result<Vec<_>, _> = decided.iter().map(|it| it.2.clone()).collect();
        let expected = decisions.ok().and_then(|each| Answer::of_all(each, Source::Store));
        let is_right = match (reply, &expected) {
            (Reply::MultiKey { decision, key, each }, Some(expected)) => {
                *decision == expected.to_integers()
                    && i64::try_from(expected.key) == Ok(*key)
                    && each.iter().copied().eq(expected.each().iter().map(Decision::to_integers))
            }
            (Reply::Error(_), None) => return,
            _ => false,
        };
        if !is_right {
            return self.violate(format_args!(
                "exactness: {requests:?} at {now}: {reply:?}, but the oracle decides {expected:?}"
            ));
        }
        let may_pass = expected
            .is_some_and(|it| matches!(it.outcome, Outcome::Deny { retry: Retry::After(_) }));
        let waits_until = sent.waiting.as_ref().map(|it| it.deadline);
        let deadline = waits_until.unwrap_or(now + sent.command.timeout());
        if may_pass && !self.is_stopping && now + Duration::from_millis(TOLERANCE) < deadline {
            self.violate(format_args!(
                "waiting: {:?} is denied at {now}, before {deadline}",
                sent.command
            ));
        }
        for (key, state, _) in decided {
            self.keys[key].state = state;
        }
    }

    /// Requests for several keys that wait, with their connections.
    fn multi_key_waiters(&self) -> impl Iterator<Item = (usize, Requests<'_>, &WaitState)> {
        let open = self.connections.iter().enumerate().filter(|it| !it.1.has_ended);
        open.filter_map(|(number, connection)| match connection.sent.front()? {
            PendingCommand { command: Command::All { requests, .. }, waiting, .. } => {
                Some((number, &**requests, waiting.as_ref()?))
            }
            PendingCommand { .. } => None,
        })
    }

    /// Whether a request waits for this key and others. It may be ahead of any that waits for this key alone.
    fn waits_for_several(&self, key: usize) -> bool {
        self.multi_key_waiters().any(|it| it.1.iter().any(|one| one.0 == key))
    }

    /// Checks that no request for several keys waits longer than it wanted to, nor when it is the only one that waits for
    /// any of them and passes.
    fn check_multi_key_waiters(&mut self, now: Timestamp, millis: u64) {
        let mut problem = None;
        let mut could_pass = Vec::new();
        for (number, requests, waiting) in self.multi_key_waiters() {
            if now.since(waiting.deadline) > Duration::from_millis(TOLERANCE) {
                problem.get_or_insert(format!("{requests:?}, {waiting:?} still waits at {now}"));
            }
            let is_other = |other: usize, others: Requests<'_>| {
                other != number && others.iter().any(|it| requests.iter().any(|one| one.0 == it.0))
            };
            let is_alone = !self.multi_key_waiters().any(|it| is_other(it.0, it.1))
                && requests.iter().all(|it| self.waiters(it.0).next().is_none());
            let since = (is_alone && all_allow(&self.decide_all(requests, now)))
                .then(|| waiting.could_pass_since.unwrap_or(millis));
            if since.is_some_and(|since| millis - since > TOLERANCE) {
                problem.get_or_insert(format!("{requests:?}, {waiting:?} could pass and waits"));
            }
            could_pass.push((number, since));
        }
        for (number, since) in could_pass {
            let front = self.connections[number].sent.front_mut();
            if let Some(waiting) = front.and_then(|it| it.waiting.as_mut()) {
                waiting.could_pass_since = since;
            }
        }
        if let Some(problem) = problem {
            self.violate(format_args!("waiting: {problem}"));
        }
    }
}

fn all_allow(decided: &[KeyDecision]) -> bool {
    decided.iter().all(|it| it.2.as_ref().is_ok_and(Decision::allowed))
}

// Checks of requests that wait: the order in which they pass, and the times.

/// Timers are due at whole milliseconds.
const TOLERANCE: u64 = 1;
/// Milliseconds for which a client that has sent too much while it waits is not read from.
const MAX_STALL: u64 = 2000;
/// The shortest time to live of a hold.
const MIN_TTL: Duration = Duration::from_millis(1);

/// Whether requests under a policy are assigned a departure, for which they wait.
fn departs(policy: &PreparedPolicy) -> bool {
    policy.policy().can_reserve() && policy.policy().limits().iter().any(Limit::is_queue)
}

/// Parts per million that the clock of a server is fast or slow, at most.
const DRIFT: u32 = 200;

/// The key of a request that waits, and the request.
type Wanted = (usize, Request);

impl Ledger {
    /// Whether a request passed that may have waited, after its answer was checked.
    pub(super) fn check_waited(
        &mut self,
        sent: &PendingCommand,
        (key, request): Wanted,
        reply: &Reply,
        now: Timestamp,
    ) {
        if departs(&self.keys[key].policy) {
            return self.check_departure(sent, (key, request), reply, now);
        }
        let id = request.hold_id();
        let policy = self.policy_of(key, sent);
        let mut after = self.keys[key].state.clone();
        let expected = after.apply(on_key(policy.policy(), request.operation(&id), now));
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

    /// A request that begins to wait reserves its departure, if its policy has a `leaky-queue`.
    fn reserve(&mut self, number: usize) {
        let sent = self.connections[number].sent.front_mut();
        let Some(PendingCommand {
            command: Command::Wait { key, request, timeout },
            waiting: Some(waiting),
            ..
        }) = sent
        else {
            return;
        };
        let key = &mut self.keys[*key];
        if !departs(&key.policy) {
            return;
        }
        let max_wait = Duration::from_millis(*timeout);
        let reserve = Operation::Reserve { cost: request.cost(), max_wait };
        let decision = key.state.apply(on_key(key.policy.policy(), reserve, waiting.began));
        waiting.reserved = decision.ok();
    }

    /// A request that waits is given up: its departure is given back.
    fn cancel(&mut self, number: usize) {
        let Some(sent) = self.connections[number].sent.front_mut() else { return };
        let (key, cost) = match sent.command {
            Command::Wait { key, request, .. } => (key, request.cost()),
            _ => return,
        };
        let waiting = sent.waiting.as_mut();
        if waiting.is_some_and(|it| it.departure().is_some() && it.reserved.take().is_some()) {
            self.refund(key, cost);
        }
    }

    fn refund(&mut self, key: usize, cost: u32) {
        let Key { policy, state, .. } = &mut self.keys[key];
        let refunded = state.apply(on_key(policy.policy(), Operation::Refund(cost), now()));
        if let Err(error) = refunded {
            self.violate(format_args!("waiting: the oracle refunds nothing: {error}"));
        }
    }

    /// Whether a request passed at its departure. The reply is about the key then.
    fn check_departure(
        &mut self,
        sent: &PendingCommand,
        (key, request): Wanted,
        reply: &Reply,
        now: Timestamp,
    ) {
        let reserved = sent.waiting.as_ref().and_then(|it| it.reserved);
        let departure = sent.waiting.as_ref().and_then(WaitState::departure);
        let Key { policy, state, .. } = &mut self.keys[key];
        let expected = match (reserved, departure) {
            (Some(decision), None) => Ok(decision),
            (Some(decision), Some(_)) if decision.delay().is_zero() => Ok(decision),
            (Some(_), Some([first, last])) if reply.is_allowed() => {
                if now < first || last < now {
                    return self.violate(format_args!(
                        "waiting: {:?} departs at {now} in place of {first}",
                        sent.command
                    ));
                }
                state.apply(on_key(policy.policy(), Operation::Peek(0), now))
            }
            (Some(_), Some(_)) if self.is_stopping => {
                return self.refund(key, request.cost());
            }
            (Some(decision), Some(_)) => Ok(decision),
            (None, _) => Err("it has reserved nothing".to_owned()),
        };
        if !reply.agrees(&expected) {
            self.violate(format_args!(
                "exactness: {:?} at {now}: {reply:?}, but the oracle decides {:?}",
                sent.command,
                expected.map(|it| it.to_integers())
            ));
        }
    }

    /// Checks that no request waits after its departure.
    fn check_departures(&mut self, key: usize, now: Timestamp) {
        let is_late = |it: &WaitState| it.departure().is_some_and(|[_, last]| last < now);
        let late = self.waiters(key).find(|it| is_late(it.0)).map(|it| format!("{it:?}"));
        if let Some(late) = late {
            self.violate(format_args!("waiting: {late} waits at {now}, after its departure"));
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
    fn note_repeated(&mut self, number: usize) {
        let sent = self.connections[number].sent.front();
        let Some(PendingCommand { command: Command::Wait { key, request, .. }, waiting, .. }) =
            sent
        else {
            return;
        };
        let repeats =
            waiting.as_ref().is_some_and(|it| self.is_open(&it.policy, (*key, *request), now()));
        let since = repeats.then(|| (self.millis)());
        let sent = self.connections[number].sent.front_mut();
        if let Some(waiting) = sent.and_then(|it| it.waiting.as_mut()) {
            waiting.repeats_since = since;
        }
    }

    /// The requests that wait for a key, and what they want.
    fn waiters(&self, key: usize) -> impl Iterator<Item = (&WaitState, Wanted)> {
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
            // Bytes before the end may be left unread for a while.
            let is_read = connection.end.has_arrived();
            let has_left = is_read || is_waiting && connection.end.is_due();
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
        let (now, millis) = (now(), (self.millis)());
        self.check_vanished(millis);
        self.check_multi_key_waiters(now, millis);
        for key in 0..self.keys.len() {
            let late = self
                .waiters(key)
                .find(|it| now.since(it.0.deadline) > Duration::from_millis(TOLERANCE));
            if let Some(late) = late.map(|it| format!("{it:?}")) {
                self.violate(format_args!("waiting: {late} still waits at {now}"));
            }
            if departs(&self.keys[key].policy) {
                self.check_departures(key, now);
                continue;
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
