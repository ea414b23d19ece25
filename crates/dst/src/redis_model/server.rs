//! The server: its values, what scripts do to them, and what goes wrong.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_conformance::{Answer, Invocation, OracleSubject, Subject as _, compare};
use sluicegate_core::{
    Decision, Entry, EntryOperation, Operation, Policy, Timestamp, apply, apply_all,
};
use tokio::time::Instant;

use super::script::{Policies, ReceivedCall, ScriptReply, calendar_names, is_given};
use crate::{
    check::Checks,
    event_log::{EventLog, Shown},
    oracle::decide_denied,
    time::HostClock,
};

/// For how long the server can lose its last writes.
const MAX_LOST: Duration = Duration::from_secs(2);

/// The product whose error texts the server uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brand {
    Redis,
    Valkey,
}

impl Brand {
    /// The error while a script runs for too long.
    pub(super) const fn busy(self) -> &'static str {
        match self {
            Self::Redis => {
                "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
            }
            Self::Valkey => {
                "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE."
            }
        }
    }
}

/// A server.
#[derive(Debug)]
pub(crate) struct RedisModel {
    pub(super) brand: Brand,
    pub(crate) clock: HostClock,
    pub(super) policies: Arc<Policies>,
    pub(super) log: Arc<EventLog>,
    pub(super) checks: Arc<Checks>,
    pub(super) state: Mutex<ServerState>,
}

#[derive(Debug)]
pub(super) struct ServerState {
    pub(super) values: BTreeMap<Vec<u8>, StoredValue>,
    pub(super) scripts: BTreeSet<String>,
    /// The last changes, to be undone if they are lost.
    changes: VecDeque<Change>,
    /// Counts starts. Connections of an earlier one are dead.
    pub(super) start: u64,
    /// Connections so far.
    pub(super) sessions: u64,
    /// Does not run before these times, does not exist, accepts no writes, or has no memory.
    paused_until: Instant,
    down_until: Instant,
    down_since: Instant,
    /// A script that is to run for long, or does.
    slow: Option<SlowScript>,
    read_only_until: Instant,
    full_until: Instant,
}

/// The value of a key, and the time from which it is void.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredValue {
    pub(super) entry: Option<Entry>,
    /// When the server deletes the entry, in milliseconds.
    pub(super) expires: u64,
    /// The state of the key by the oracle, shared with the copies of earlier values.
    pub(super) shadow: Arc<OracleSubject>,
    /// Whether another server set the end.
    pub(super) has_moved: bool,
}

/// The state of a key at one time, by the oracle.
#[derive(Clone, Debug)]
pub(crate) struct KeyMoment {
    shadow: Arc<OracleSubject>,
    now: Timestamp,
}

#[derive(Debug)]
struct Change {
    at: Instant,
    key: Vec<u8>,
    before: Option<StoredValue>,
}

/// Why a command was not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    ReadOnly,
    OutOfMemory,
}

impl RedisModel {
    pub(crate) fn new(
        brand: Brand,
        clock: HostClock,
        policies: Arc<Policies>,
        log: Arc<EventLog>,
        checks: Arc<Checks>,
    ) -> Arc<Self> {
        let now = Instant::now();
        let state = ServerState {
            values: BTreeMap::new(),
            scripts: BTreeSet::new(),
            changes: VecDeque::new(),
            start: 0,
            sessions: 0,
            paused_until: now,
            down_until: now,
            down_since: now,
            slow: None,
            read_only_until: now,
            full_until: now,
        };
        Arc::new(Self { brand, clock, policies, log, checks, state: Mutex::new(state) })
    }

    /// Whether connections are accepted.
    pub(crate) fn is_up(&self) -> bool {
        Instant::now() >= self.state.lock().down_until
    }

    pub(crate) fn pause(&self, span: Duration) {
        let mut state = self.state.lock();
        state.paused_until = state.paused_until.max(Instant::now() + span);
    }

    /// Ends, and starts again after `span` without the writes of the last `lost`.
    pub(crate) fn restart(&self, span: Duration, lost: Duration) {
        let mut state = self.state.lock();
        state.start += 1;
        if Instant::now() >= state.down_until {
            state.down_since = Instant::now();
        }
        state.down_until = state.down_until.max(Instant::now() + span);
        state.scripts.clear();
        state.slow = None;
        drop(state);
        self.lose(Instant::now().checked_sub(lost));
    }

    /// A replica takes over, which has the same address and the scripts, but not the writes of the last `lost`.
    pub(crate) fn fail_over(&self, lost: Duration) {
        self.state.lock().start += 1;
        self.lose(Instant::now().checked_sub(lost));
    }

    /// Loses the writes since then.
    fn lose(&self, since: Option<Instant>) {
        let mut state = self.state.lock();
        while let Some(change) = state.changes.pop_back() {
            if since.is_some_and(|since| change.at < since) {
                state.changes.push_back(change);
                break;
            }
            self.checks.lost(&change.key);
            match change.before {
                Some(before) => state.values.insert(change.key, before),
                None => state.values.remove(&change.key),
            };
        }
    }

    /// Sets the clock. Keys that had expired by then stay deleted.
    pub(crate) fn step_clock(&self, millis: i64) {
        self.delete_expired();
        self.clock.step(millis);
    }

    fn delete_expired(&self) {
        let now = self.clock.now().as_micros() / 1000;
        for value in self.state.lock().values.values_mut() {
            if value.entry.is_none() || now >= value.expires {
                *value = StoredValue::default();
            }
        }
    }

    /// A replica gets all values, but not the writes since then, and becomes the primary. Keys that had expired stay deleted.
    pub(super) fn hand_over(&self, replica: &Self, since: Option<Instant>) {
        self.lose(since);
        self.delete_expired();
        let mut state = self.state.lock();
        let (values, changes) = (mem::take(&mut state.values), mem::take(&mut state.changes));
        drop(state);
        let mut state = replica.state.lock();
        (state.values, state.changes) = (values, changes);
    }

    /// Moves a key to another server, if there is one, as `MIGRATE` does: its time to live is kept, not its end.
    pub(super) fn move_key(&self, target: &Self, key: &[u8]) -> bool {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.changes.retain(|change| change.key != key);
        let Some(mut value) = state.values.remove(key).map(|it| it.live(now)) else { return false };
        drop(state);
        if value.entry.is_none() {
            return false;
        }
        let left = value.expires - now.as_micros() / 1000;
        value.expires = target.clock.now().as_micros() / 1000 + left;
        value.has_moved = true;
        target.state.lock().put(Instant::now(), key, value, Some(None));
        true
    }

    /// Whether there is a value that has not expired.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        let now = self.clock.now().as_micros() / 1000;
        let state = self.state.lock();
        state.values.get(key).is_some_and(|it| it.entry.is_some() && now < it.expires)
    }

    /// For how long it has not existed.
    pub(super) fn down_for(&self) -> Duration {
        let (state, now) = (self.state.lock(), Instant::now());
        if now < state.down_until { now - state.down_since } else { Duration::ZERO }
    }

    /// Whether it exists, and runs.
    pub(super) fn runs(&self) -> bool {
        let (state, now) = (self.state.lock(), Instant::now());
        now >= state.down_until && now >= state.paused_until
    }

    /// The next script within a second runs for `span`. After `limit`, if it is not zero, the server is busy.
    pub(crate) fn slow_script(&self, span: Duration, limit: Duration) {
        self.state.lock().slow = Some(SlowScript::new(span, limit));
    }

    /// A script runs in a session.
    pub(super) fn begin_script(&self, session: u64) {
        let slow = self.state.lock().slow.as_mut().and_then(|it| it.begin(session));
        if let Some(span) = slow {
            self.log.add(format_args!("server: a script takes {span:?}"));
            self.checks.disturbed(u64::try_from(span.as_millis()).unwrap_or_default());
        }
    }

    /// Until when a session waits, because the server is paused or runs a script: before its next command, or (`replies`)
    /// before its replies.
    pub(super) fn waits_until(&self, session: u64, replies: bool) -> Instant {
        let state = self.state.lock();
        let by_script = state.slow.as_ref().and_then(|it| it.waits_until(session, replies));
        by_script.map_or(state.paused_until, |until| until.max(state.paused_until))
    }

    /// Whether commands are refused because a script has been running for too long.
    pub(super) fn is_busy(&self) -> bool {
        self.state.lock().slow.as_ref().is_some_and(SlowScript::is_busy)
    }

    pub(crate) fn flush_scripts(&self) {
        self.state.lock().scripts.clear();
    }

    pub(crate) fn refuse_writes(&self, span: Duration) {
        self.state.lock().read_only_until = Instant::now() + span;
    }

    pub(crate) fn exhaust_memory(&self, span: Duration) {
        self.state.lock().full_until = Instant::now() + span;
    }

    /// The bytes of a key.
    pub(super) fn value(&self, key: &[u8]) -> Option<Vec<u8>> {
        let (state, now) = (self.state.lock(), self.clock.now());
        let value = state.values.get(key).filter(|it| !it.is_over(now))?;
        value.entry.as_ref().map(Entry::encode)
    }

    /// The ids of the open holds of a key.
    pub(crate) fn open_holds(&self, key: &[u8]) -> Vec<Vec<u8>> {
        let (state, now) = (self.state.lock(), self.clock.now());
        let entry = state.values.get(key).and_then(|value| value.entry.as_ref());
        entry.map(|it| it.holds(now).map(|hold| hold.id.to_vec()).collect()).unwrap_or_default()
    }

    /// The state of a key now, as the oracle knows it.
    pub(crate) fn moment(&self, key: &[u8]) -> KeyMoment {
        let (state, now) = (self.state.lock(), self.clock.now());
        // A key that has moved ends by the clock of another server, and cached denials do not know that.
        let value = state.values.get(key).filter(|it| it.has_moved || !it.is_over(now));
        KeyMoment { shadow: value.map(|it| Arc::clone(&it.shadow)).unwrap_or_default(), now }
    }
}

impl StoredValue {
    /// The value at `now`: the default if it has expired.
    fn live(self, now: Timestamp) -> Self {
        if self.is_over(now) { Self::default() } else { self }
    }

    /// Whether its entry has ended.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        self.entry.is_some() && now.as_micros() / 1000 >= self.expires
    }
}

impl KeyMoment {
    /// The decision of the oracle on the key at that moment. Nothing changes.
    pub(crate) fn decide(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation<'_>,
    ) -> Result<Decision, String> {
        let invocation = Invocation { key, policy, now: self.now, operation };
        OracleSubject::clone(&self.shadow).apply(invocation)
    }

    /// The same state at another time.
    pub(crate) fn at(self, now: Timestamp) -> Self {
        Self { now, ..self }
    }

    /// Whether no operation has changed the key from one moment to the other.
    pub(crate) fn is_of_state(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shadow, &other.shadow)
    }
}

impl ServerState {
    /// Stores a value. If it is a change, `before` is the value that it replaces.
    pub(super) fn put(
        &mut self,
        at: Instant,
        key: &[u8],
        value: StoredValue,
        before: Option<Option<StoredValue>>,
    ) {
        while self.changes.front().is_some_and(|change| at - change.at > MAX_LOST) {
            self.changes.pop_front();
        }
        self.values.insert(key.to_vec(), value);
        if let Some(before) = before {
            self.changes.push_back(Change { at, key: key.to_vec(), before });
        }
    }

    /// Why a write is refused now.
    pub(super) fn refusal(&self) -> Option<Refusal> {
        let now = Instant::now();
        if now < self.read_only_until {
            Some(Refusal::ReadOnly)
        } else if now < self.full_until {
            Some(Refusal::OutOfMemory)
        } else {
            None
        }
    }
}

impl Refusal {
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::ReadOnly => "READONLY You can't write against a read only replica.",
            Self::OutOfMemory => "OOM command not allowed when used memory > 'maxmemory'.",
        }
    }
}

// Scripts that decide, and the decisions of the oracle, which must be the same.

impl RedisModel {
    /// Runs a script that decides on one key, or on several, all or none.
    pub(super) fn decide(
        &self,
        process: (usize, u64),
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
            "server: {} by process {} at {now}: {:?}",
            Shown(invocations.iter().map(|it| (it.key, it.operation))),
            process.0,
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
    let names: Vec<_> = policies.flat_map(calendar_names).collect();
    (!names.iter().all(|name| is_given(name, given))).then_some(names)
}

// Scripts that run for long: all commands behind them wait, or get the reply that the server is busy.

/// For how long a slow script waits to be called, in milliseconds.
pub(crate) const ARMED: u64 = 1000;

/// A script that runs for long.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlowScript {
    /// The next script that begins before this time is it.
    armed_until: Instant,
    span: Duration,
    /// The time after which others get the reply that the server is busy, if there is one.
    limit: Option<Duration>,
    /// When it began, and in which session.
    running: Option<(Instant, u64)>,
}

impl SlowScript {
    /// The next script within a second runs for `span`. After `limit`, if it is not zero, others get the reply that the server is
    /// busy.
    pub(super) fn new(span: Duration, limit: Duration) -> Self {
        let limit = (!limit.is_zero()).then_some(limit);
        Self {
            armed_until: Instant::now() + Duration::from_millis(ARMED),
            span,
            limit,
            running: None,
        }
    }

    /// A script runs in a session. Returns for how long, if it is the slow one.
    pub(super) fn begin(&mut self, session: u64) -> Option<Duration> {
        let now = Instant::now();
        let is_it = self.running.is_none() && now < self.armed_until;
        is_it.then(|| {
            self.running = Some((now, session));
            self.span
        })
    }

    /// Until when a session waits: before its next command, or (`replies`) before its replies.
    pub(super) fn waits_until(&self, session: u64, replies: bool) -> Option<Instant> {
        let (begin, by) = self.running?;
        let end = begin + self.span;
        match self.limit {
            _ if by == session => Some(end),
            _ if replies => None,
            Some(limit) => Some(end.min(begin + limit)),
            None => Some(end),
        }
    }

    /// Whether commands are refused because the script has been running for too long.
    pub(super) fn is_busy(&self) -> bool {
        let now = Instant::now();
        self.running
            .zip(self.limit)
            .is_some_and(|((begin, _), limit)| begin + limit <= now && now < begin + self.span)
    }
}
