//! The server: its values, what scripts do to them, and what goes wrong.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_conformance::OracleSubject;
use sluicegate_core::{Decision, Entry, Operation, Timestamp};
use tokio::time::Instant;

use super::{
    calendars,
    script::{Policies, ReceivedCall, ScriptCall, ScriptOperation, ScriptReply},
};
use crate::{
    check::Checks,
    event_log::EventLog,
    oracle::{agree, decide},
    time::HostClock,
};

/// For how long the server can lose its last writes.
const MAX_LOST: Duration = Duration::from_secs(2);

/// Whose texts a server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Brand {
    Redis,
    Valkey,
}

/// A server.
#[derive(Debug)]
pub(crate) struct RedisModel {
    pub(super) brand: Brand,
    pub(crate) clock: HostClock,
    pub(super) policies: Policies,
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
    /// Does not run before these times, does not exist, accepts no writes, or has no memory.
    pub(super) paused_until: Instant,
    down_until: Instant,
    read_only_until: Instant,
    full_until: Instant,
}

/// What a key holds, and since when it is void.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredValue {
    pub(super) entry: Option<Entry>,
    /// When the server deletes the entry, in milliseconds.
    pub(super) expires: u64,
    pub(super) shadow: OracleSubject,
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
        policies: Policies,
        log: Arc<EventLog>,
        checks: Arc<Checks>,
    ) -> Arc<Self> {
        let now = Instant::now();
        let state = ServerState {
            values: BTreeMap::new(),
            scripts: BTreeSet::new(),
            changes: VecDeque::new(),
            start: 0,
            paused_until: now,
            down_until: now,
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
        state.down_until = Instant::now() + span;
        state.scripts.clear();
        drop(state);
        self.lose(lost);
    }

    /// A replica takes over, which has the same address and the scripts, but not the writes of the last `lost`.
    pub(crate) fn fail_over(&self, lost: Duration) {
        self.state.lock().start += 1;
        self.lose(lost);
    }

    fn lose(&self, lost: Duration) {
        let mut state = self.state.lock();
        let since = Instant::now().checked_sub(lost);
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
        let now = self.clock.now().as_micros() / 1000;
        for value in self.state.lock().values.values_mut() {
            if value.entry.is_none() || now >= value.expires {
                *value = StoredValue::default();
            }
        }
        self.clock.step(millis);
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

    /// Runs a script that decides.
    pub(super) fn decide(
        &self,
        process: usize,
        key: &[u8],
        received: ReceivedCall<'_>,
    ) -> Result<ScriptReply, String> {
        let call = received.call;
        let mut state = self.state.lock();
        let now = received.at.unwrap_or_else(|| self.clock.now());
        let before = state.values.get(key).cloned();
        let mut value = before.clone().unwrap_or_default();
        if value.entry.is_some() && now.as_micros() / 1000 >= value.expires {
            value.entry = None;
            // The oracle decides alike with the state and without it; if the clock is set back, only without it.
            let kept = decide(&mut mem::take(&mut value.shadow), call, now);
            let fresh = decide(&mut OracleSubject::default(), call, now);
            self.compare(key, call, now, (&fresh, &kept));
        }
        let old = value.entry.clone();
        if let Some(missing) = missing_calendars(old.as_ref(), received) {
            return Ok(ScriptReply::Calendars(now, missing));
        }
        let debt = received.debt(old.as_ref(), now);
        let decided = call.apply(&mut value.entry, now);
        // A script writes what is left after a refund, even if it is the same.
        let refunds = matches!(call.operation, ScriptOperation::OnKey(Operation::Refund(1..)));
        let is_write = value.entry != old || refunds && old.is_some();
        // A key can be deleted without memory.
        let is_refused = |it: &Refusal| value.entry.is_some() || *it == Refusal::ReadOnly;
        if is_write && let Some(refusal) = state.refusal().filter(is_refused) {
            return Err(refusal.text().to_owned());
        }
        let by_oracle = decide(&mut value.shadow, call, now);
        self.compare(key, call, now, (&decided, &by_oracle));
        if value.entry.is_none() {
            value.shadow = OracleSubject::default();
        }
        let decision = decided?;
        self.log.add(format_args!(
            "server: {:?} on {} by process {process} at {now}: {:?}",
            call.operation,
            key.escape_ascii(),
            decision.to_integers()
        ));
        if is_write && let Some(entry) = &value.entry {
            let ends = (now + entry.lifetime(now)).as_micros().div_ceil(1000);
            // Keys of tests live for an hour at least, whatever the time.
            value.expires = if received.at.is_some() { u64::MAX } else { ends };
        }
        state.put(Instant::now(), key, value, is_write.then_some(before));
        drop(state);
        self.checks.applied(process, key, call, decision, now);
        Ok(debt.map_or(ScriptReply::Decision(decision), ScriptReply::Debt))
    }

    /// Records a violation if the oracle decides otherwise.
    fn compare(
        &self,
        key: &[u8],
        call: ScriptCall<'_>,
        now: Timestamp,
        (decided, by_oracle): (&Result<Decision, String>, &Result<Decision, String>),
    ) {
        if !agree(decided, by_oracle) {
            self.checks.violation(format_args!(
                "exactness: key {}: {:?} under {} at {now}: {decided:?}, but the oracle decides {by_oracle:?}",
                key.escape_ascii(),
                call.operation,
                call.policy
            ));
        }
    }

    /// The oracle's decision now. Nothing changes.
    /// The ids of the open holds of a key.
    pub(crate) fn open_holds(&self, key: &[u8]) -> Vec<Vec<u8>> {
        let (state, now) = (self.state.lock(), self.clock.now());
        let entry = state.values.get(key).and_then(|value| value.entry.as_ref());
        entry.map(|it| it.holds(now).map(|hold| hold.id.to_vec()).collect()).unwrap_or_default()
    }

    pub(crate) fn peek(&self, key: &[u8], call: ScriptCall<'_>) -> Result<Decision, String> {
        let state = self.state.lock();
        let mut shadow = state.values.get(key).cloned().unwrap_or_default().shadow;
        decide(&mut shadow, call, self.clock.now())
    }
}

impl StoredValue {
    /// What is left at `now`.
    pub(super) fn live(self, now: Timestamp) -> Self {
        let is_over = self.entry.is_some() && now.as_micros() / 1000 >= self.expires;
        if is_over { Self::default() } else { self }
    }
}

impl ServerState {
    /// Stores a value. If it is a change, `before` is what it takes the place of.
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

/// The calendars that the script asks for: those of the policy, and of that under which the key was written. (A real one
/// asks only if it needs them.)
fn missing_calendars(entry: Option<&Entry>, received: ReceivedCall<'_>) -> Option<Vec<Vec<u8>>> {
    let policy = received.call.policy;
    let stored = entry.map(Entry::policy).filter(|stored| *stored != policy)?;
    let names = [calendars::names(policy), calendars::names(stored)].concat();
    let is_given = |name: &Vec<u8>| calendars::is_given(name, received.calendars);
    (!names.iter().all(is_given)).then_some(names)
}
