//! The state of the checks of a run, and its changes by faults.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use parking_lot::Mutex;
use sluicegate_core::{Answer, Counters, PreparedPolicy, Retry, Source, Timestamp};

use super::key_state::{Allowance, AppliedMultiKey, CheckedKey, KeysWithCosts};
use crate::time::{HostClock, VirtualTime};

/// The time after a fault within which everything works again, in milliseconds (`docs/testing.md`): a second until an idle
/// process sends a probe, 250 between two attempts to connect, a quarter of it more by chance, 100 between two probes, and
/// the deadlines and set-ups of these.
pub(crate) const RECOVERY: u64 = 1_500;

/// The checks of a run.
#[derive(Debug)]
pub(crate) struct Checks {
    pub(super) time: VirtualTime,
    pub(super) processes: usize,
    /// How long a denial is cached, and the deadline of an operation, in milliseconds.
    pub(super) denial_cache: u64,
    pub(super) deadline: u64,
    pub(super) state: Mutex<CheckState>,
}

#[derive(Debug, Default)]
pub(super) struct CheckState {
    pub(super) violation: Option<String>,
    pub(super) keys: BTreeMap<Vec<u8>, CheckedKey>,
    /// The number of each process among all that were started, and the clocks of all by number.
    pub(super) numbers: Vec<u64>,
    pub(super) clocks: BTreeMap<u64, Arc<HostClock>>,
    /// Events so far: requests, decisions and changes by faults.
    events: u64,
    /// Processes that have been replaced by others, but still run: their indexes.
    pub(super) replaced: Vec<usize>,
    /// Until when each process does not run, in milliseconds.
    pub(super) paused_until: Vec<u64>,
    /// Until when answers may be fallbacks, in milliseconds.
    pub(super) disturbed_until: u64,
    /// Until when each process sets up a connection, in milliseconds.
    pub(super) connecting_until: Vec<u64>,
    /// Until when it opens a connection to a server outside of a cluster.
    pub(super) opening_until: Vec<u64>,
    /// Until when its breaker may be open, because many requests waited for the connection.
    pub(super) breaking_until: Vec<u64>,
    /// When the connections of a process to a node were lost, unless it has noticed that since. It does so at its next request.
    pub(super) unnoticed: BTreeMap<(usize, usize), u64>,
    /// Holds of which clients of the library have had permits, with the units that settle them.
    pub(super) permits: BTreeMap<Vec<u8>, Option<u32>>,
    /// Decisions of the server on several keys that no answer has shown yet; and the number of takes of these keys that each
    /// process was sent and the server has not decided on.
    pub(super) multi_key: Vec<AppliedMultiKey>,
    pub(super) requested_multi_key: BTreeMap<(usize, KeysWithCosts), u64>,
    /// Answers of each process, by source.
    pub(super) answers: BTreeMap<(u64, &'static str), u64>,
}

impl Checks {
    pub(crate) fn new(
        time: &VirtualTime,
        processes: usize,
        denial_cache: u64,
        deadline: u64,
        keys: impl Iterator<Item = (Vec<u8>, Vec<PreparedPolicy>)>,
    ) -> Self {
        let keys = keys.map(|(key, policies)| (key, CheckedKey::new(policies))).collect();
        let (numbers, paused_until) = (vec![0; processes], vec![0; processes]);
        let connecting_until = vec![0; processes];
        let state = CheckState {
            keys,
            numbers,
            paused_until,
            connecting_until,
            opening_until: vec![0; processes],
            breaking_until: vec![0; processes],
            ..CheckState::default()
        };
        let state = Mutex::new(state);
        Self { time: time.clone(), processes, denial_cache, deadline, state }
    }

    /// Records a violation, unless there is one already.
    pub(crate) fn violation(&self, what: fmt::Arguments<'_>) {
        self.state.lock().violate(self.time.millis(), what);
    }

    /// The first violation, if any.
    pub(crate) fn take_violation(&self) -> Option<String> {
        self.state.lock().violation.clone()
    }

    /// A fault that lasts for `span` milliseconds.
    pub(crate) fn disturbed(&self, span: u64) {
        let mut state = self.state.lock();
        state.disturbed_until = state.disturbed_until.max(self.time.millis() + span + RECOVERY);
    }

    /// A process does not run for `span` milliseconds.
    pub(crate) fn paused(&self, process: usize, span: u64) {
        let now = self.time.millis();
        let until = &mut self.state.lock().paused_until[process];
        *until = (*until).max(now + span);
    }

    /// Another process takes the place of one that still runs.
    pub(crate) fn replaced(&self, process: usize) {
        self.state.lock().replaced.push(process);
    }

    /// When everything works again, in milliseconds.
    pub(crate) fn recovered_at(&self) -> u64 {
        self.state.lock().disturbed_until
    }

    /// The clock by which a key is decided was set, or is that of another server now.
    pub(crate) fn clock_stepped(&self, key: &[u8], from: Timestamp, to: Timestamp) {
        let now = self.time.millis();
        let state = &mut *self.state.lock();
        let event = state.event();
        let Some(key) = state.keys.get_mut(key) else { return };
        let back = u64::try_from(from.since(to).as_millis()).unwrap_or(u64::MAX);
        key.held_until = key.held_until.max(now) + back;
        key.stepped(now);
        key.loosened = event;
        key.admitted.step(now, from, to);
    }

    /// A key ended before its state did. Denials that are cached may come from that state.
    pub(crate) fn ended_early(&self, key: &[u8]) {
        let state = &mut *self.state.lock();
        let event = state.event();
        if let Some(key) = state.keys.get_mut(key) {
            key.loosened = event;
        }
    }

    /// The clock by which a key is decided stands still for a while.
    pub(crate) fn clock_stops(&self, key: &[u8], millis: u64) {
        let now = self.time.millis();
        let state = &mut *self.state.lock();
        let Some(key) = state.keys.get_mut(key) else { return };
        key.held_until = key.held_until.max(now) + millis;
        key.stepped(now + millis);
    }

    /// Whether a key may be denied longer than denials say, because its clock was set back, or stood still.
    pub(crate) fn is_held(&self, key: &[u8]) -> bool {
        let state = self.state.lock();
        state.keys.get(key).is_some_and(|key| self.time.millis() <= key.held_until)
    }

    /// Until when a key may be denied because its clock was set back, in milliseconds.
    pub(crate) fn held_until(&self) -> u64 {
        let state = self.state.lock();
        state.keys.values().map(|key| key.held_until).max().unwrap_or_default()
    }

    /// A process sets up a connection to a server or a node of a cluster until then. Requests that wait for it may miss their deadlines
    /// without a fault: each connection takes three round trips of up to two milliseconds.
    pub(crate) fn connects(&self, process: usize, until: u64, is_of_cluster: bool) {
        let state = &mut *self.state.lock();
        let until_by_process = match is_of_cluster {
            true => &mut state.connecting_until[process],
            false => &mut state.opening_until[process],
        };
        *until_by_process = (*until_by_process).max(until);
    }

    /// The connections of a process to a node are lost, and it has no notice of that.
    pub(crate) fn connections_lost(&self, process: usize, node: usize) {
        self.state.lock().unnoticed.insert((process, node), self.time.millis());
    }

    /// Whether a process sets up a connection, or has since then.
    pub(crate) fn is_connecting(&self, process: usize, since: u64) -> bool {
        self.state.lock().is_connecting(process, since)
    }

    /// The slot of a key begins to move, or has moved: in between, operations on several keys may have no answer.
    pub(crate) fn migrates(&self, key: &[u8], begins: bool) {
        if let Some(key) = self.state.lock().keys.get_mut(key) {
            key.migrating_until = if begins { u64::MAX } else { self.time.millis() };
        }
    }

    /// The server lost a write of this key.
    pub(crate) fn lost(&self, key: &[u8]) {
        let now = self.time.millis();
        let state = &mut *self.state.lock();
        let event = state.event();
        if let Some(key) = state.keys.get_mut(key) {
            if key.lost_at.replace(now) != Some(now) {
                key.allow(now, Allowance::Loss);
            }
            key.loosened = event;
        }
    }

    /// A process ends: its counters must be those of its answers.
    pub(crate) fn ended(&self, process: u64, counters: &Counters) {
        let now = self.time.millis();
        let mut state = self.state.lock();
        let fallback = counters.fallback_deny + counters.fallback_allow + counters.fallback_local;
        for (word, counted) in
            [("cache", counters.cache), ("lease", counters.lease), ("fallback", fallback)]
        {
            let answers = state.answers.remove(&(process, word)).unwrap_or_default();
            // An answer may be on its way to a client that has ended.
            if counted < answers {
                let what = format_args!("honesty: {answers} answers of {word}, {counted} counted");
                state.violate(now, what);
            }
        }
        for key in state.keys.values_mut() {
            if let Some(meter) = key.local.remove(&process) {
                let excess = key.local_excess(&meter);
                if let Some(excess) = excess {
                    let text = format!("safety: process {process} alone {excess}");
                    state.violate(now, format_args!("{text}"));
                    break;
                }
            }
        }
    }

    /// The run ends: the admitted units must be within their bounds.
    pub(crate) fn finish(&self) {
        let now = self.time.millis();
        let mut state = self.state.lock();
        let excess = state.keys.iter().find_map(|(name, key)| {
            let text = key.excess(self.processes as u64)?;
            Some(format!("safety: key {} under {:?} {text}", name.escape_ascii(), key.policies))
        });
        if let Some(text) = excess {
            state.violate(now, format_args!("{text}"));
        }
    }
}

impl CheckState {
    /// The number of the next event.
    pub(super) fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    pub(super) fn violate(&mut self, now: u64, what: fmt::Arguments<'_>) {
        self.violation.get_or_insert_with(|| format!("after {now} ms: {what}"));
    }
}

// Checks of the features that the library adds to its store: waits, permits and shapers.

/// A request that has waited.
#[derive(Debug)]
pub(crate) struct FinishedWait<'a> {
    pub(crate) process: usize,
    pub(crate) key: &'a [u8],
    /// In milliseconds: how long it might wait, when it was sent, and for how long its process was paused since then.
    pub(crate) timeout: u64,
    pub(crate) sent: u64,
    pub(crate) paused: u64,
    /// Whether it waited for a hold, and whether it has a time of departure.
    pub(crate) is_hold: bool,
    pub(crate) departs: bool,
    /// None, if the store failed.
    pub(crate) answer: Option<&'a Answer>,
}

impl Checks {
    /// A request that has waited has its answer.
    pub(crate) fn waited(&self, waited: &FinishedWait<'_>) {
        let took = self.time.millis() - waited.sent;
        // The last attempt may begin when the timeout ends, and be two operations.
        let most = waited.timeout + 2 * self.deadline + waited.paused;
        let problem = if took > most {
            Some("liveness: a wait after its timeout")
        } else {
            waited.answer.and_then(|answer| self.check_waited(waited, took, answer))
        };
        if let Some(problem) = problem {
            self.violation(format_args!(
                "{problem}: process {}, key {}: {waited:?} took {took} ms",
                waited.process,
                waited.key.escape_ascii()
            ));
        }
    }

    fn check_waited(
        &self,
        waited: &FinishedWait<'_>,
        took: u64,
        answer: &Answer,
    ) -> Option<&'static str> {
        let elapsed = Duration::from_millis(took);
        if answer.allowed() {
            let is_early = !waited.is_hold && elapsed < answer.delay();
            return is_early.then_some("waiting: a request passes before its delay is over");
        }
        let is_certain = matches!(answer.source, Source::Store | Source::Cache);
        let Some(Retry::After(after)) = answer.retry() else { return None };
        // It is denied until it would depart in time.
        if !is_certain || waited.departs || waited.paused > 0 {
            return None;
        }
        if !self.is_calm_since(waited.process, waited.key, waited.sent) {
            return None;
        }
        // A denial that is recorded may begin a window, and let the request pass earlier.
        let is_recorded = |policy: &PreparedPolicy| policy.policy().records_denials();
        let state = self.state.lock();
        let key = state.keys.get(waited.key);
        if !waited.is_hold && key.is_some_and(|it| it.policies.iter().any(is_recorded)) {
            return None;
        }
        drop(state);
        let left = Duration::from_millis(waited.timeout).saturating_sub(elapsed);
        let gives_up = if waited.is_hold {
            // Another client may settle at any time.
            !left.is_zero()
        } else {
            after < left
        };
        gives_up.then_some("waiting: a request is denied that had time to wait")
    }

    /// Whether nothing has gone wrong with a key since then, as far as a process can see, and its clock was not set.
    pub(crate) fn is_calm_since(&self, process: usize, key: &[u8], millis: u64) -> bool {
        let state = self.state.lock();
        let is_before = |at: Option<u64>| at.is_none_or(|at| at < millis);
        let is_calm =
            |key: &CheckedKey| is_before(key.stepped_at.last().copied()) && is_before(key.lost_at);
        state.disturbed_until < millis
            && state.keys.get(key).is_none_or(is_calm)
            && !state.is_connecting(process, millis)
    }

    /// Whether the server has lost writes of the key since then.
    pub(crate) fn has_lost(&self, key: &[u8], millis: u64) -> bool {
        let state = self.state.lock();
        let lost_at = state.keys.get(key).and_then(|key| key.lost_at);
        lost_at.is_some_and(|at| at >= millis)
    }

    /// Whether the clock of the key was set since then.
    pub(crate) fn has_stepped(&self, key: &[u8], millis: u64) -> bool {
        let state = self.state.lock();
        let stepped_at = state.keys.get(key).and_then(|key| key.stepped_at.last().copied());
        stepped_at.is_some_and(|at| at >= millis)
    }

    /// How often a client has reset the key.
    pub(crate) fn resets(&self, key: &[u8]) -> u64 {
        self.state.lock().keys.get(key).map_or(0, |key| key.resets)
    }

    /// A client got a permit of this hold, which it settles with `used` units, or with as many as are held.
    pub(crate) fn got_permit(&self, id: &[u8], used: Option<u32>) {
        self.state.lock().permits.insert(id.to_vec(), used);
    }

    /// Whether a client ever had a permit of this hold.
    pub(crate) fn has_permit(&self, id: &[u8]) -> bool {
        self.state.lock().permits.contains_key(id)
    }

    /// The number of an item that is added to a shaper of the key.
    pub(crate) fn pushed(&self, key: &[u8]) -> u64 {
        let state = &mut *self.state.lock();
        let Some(key) = state.keys.get_mut(key) else { return 0 };
        key.items += 1;
        key.items
    }

    /// A shaper releases an item.
    pub(crate) fn released(&self, key: &[u8], millis: u64) {
        let state = &mut *self.state.lock();
        if let Some(key) = state.keys.get_mut(key) {
            key.released.admit(millis, Timestamp::EPOCH + Duration::from_millis(millis), 1);
        }
    }

    /// Shapers release at most the rate, and one item of each process that has a time already. Each time that the
    /// server lost writes or its clock was set, those items do not count any more, and one item is released at once.
    pub(crate) fn check_released(&self) {
        let state = &mut *self.state.lock();
        let excess = state.keys.iter().find_map(|(name, key)| {
            let limit = key.policies.first()?.policy().as_gcra()?;
            // An item of each process has a time, and is released at it, whatever the key has become since then.
            let given = (self.processes + state.replaced.len()) as u64;
            // The first item comes at once.
            let bound = 1 + given + key.breaks() * (given + 1);
            let excess = key.released.excess(limit, (1, 1));
            (excess > bound).then(|| {
                format!(
                    "safety: shapers of {} under {limit} release {excess} items beyond the rate, at most {bound}",
                    name.escape_ascii()
                )
            })
        });
        if let Some(text) = excess {
            state.violate(self.time.millis(), format_args!("{text}"));
        }
    }
}
