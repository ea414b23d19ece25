//! What must hold, checked while a run is under way and at its end.
//!
//! - **Exactness**: an answer of the store is one that the server gave to this operation, and the server's equals that of
//!   the oracle. A denial from the cache is one that the oracle gives as well, unless units were given back since.
//! - **Safety**: what is admitted in any interval is at most what the policy admits, plus the allowances for leases and
//!   for the writes that the server lost.
//! - **Liveness**: every operation is answered by its deadline. Without a fault no answer is a fallback, and a while after
//!   the last fault none is.
//! - **Honesty**: counters add up.

mod key_state;
mod multi_key;

use std::{collections::BTreeMap, fmt, time::Duration};

use parking_lot::Mutex;
use sluicegate_core::{
    Answer, Counters, Decision, OnError, Outcome, PreparedPolicy, Retry, Source, StoreError,
    Timestamp,
};

pub(crate) use self::key_state::Kind;
pub(crate) use self::multi_key::AnsweredTogether;
use self::{
    key_state::{Allowance, Application, KeyState},
    multi_key::AppliedTogether,
};
use crate::{recording::AdmittedByKey, redis_model::ScriptCall, time::VirtualTime};

/// The time after a fault within which everything works again, in milliseconds (`docs/testing.md`).
pub(crate) const RECOVERY: u64 = 2_500;
/// How much later than its deadline an operation may be answered, in milliseconds: the resolution of timers.
const TICKS: u64 = 2;
/// How much readings of clocks may differ over the time of a cached denial: 0.7 ms each, and 0.4 ms of drift.
const CLOCK_ERROR: Duration = Duration::from_millis(3);

/// The checks of a run.
#[derive(Debug)]
pub(crate) struct Checks {
    time: VirtualTime,
    processes: usize,
    /// How long a denial is cached, and the deadline of an operation, in milliseconds.
    denial_cache: u64,
    deadline: u64,
    state: Mutex<CheckState>,
}

#[derive(Debug, Default)]
struct CheckState {
    violation: Option<String>,
    keys: BTreeMap<Vec<u8>, KeyState>,
    /// Until when each process does not run, in milliseconds.
    paused_until: Vec<u64>,
    /// Until when answers may be fallbacks, in milliseconds.
    disturbed_until: u64,
    /// Until when keys may be denied because the server's clock was set back, in milliseconds.
    held_until: u64,
    /// What the server decided on several keys and no answer has shown yet; and how much oftener each process was asked for
    /// a take on these keys than the server decided on one.
    together: Vec<AppliedTogether>,
    asked_together: BTreeMap<(usize, Vec<(Vec<u8>, u32)>), u64>,
    /// Answers of each process, by source.
    answers: BTreeMap<(u64, &'static str), u64>,
}

/// An operation with its answer.
#[derive(Debug)]
pub(crate) struct Answered<'a> {
    pub(crate) process: usize,
    /// The number of the process among all that were started.
    pub(crate) number: u64,
    pub(crate) key: &'a [u8],
    pub(crate) policy: &'a PreparedPolicy,
    pub(crate) kind: Kind,
    /// When it was sent, in milliseconds.
    pub(crate) sent: u64,
    /// For how long its process did not run meanwhile.
    pub(crate) paused: u64,
    pub(crate) result: &'a Result<Answer, StoreError>,
    /// The clock of the process, and that of the server.
    pub(crate) local_time: Timestamp,
    pub(crate) server_time: Timestamp,
    /// What the oracle answers to a peek at the same cost, for a cached denial.
    pub(crate) by_oracle: Option<Decision>,
}

impl Checks {
    pub(crate) fn new(
        time: VirtualTime,
        processes: usize,
        denial_cache: u64,
        deadline: u64,
        keys: impl Iterator<Item = (Vec<u8>, Vec<PreparedPolicy>)>,
    ) -> Self {
        let keys = keys.map(|(key, policies)| (key, KeyState::new(policies, processes))).collect();
        let paused_until = vec![0; processes];
        let state = Mutex::new(CheckState { keys, paused_until, ..CheckState::default() });
        Self { time, processes, denial_cache, deadline, state }
    }

    /// How long a denial is cached, and for how long a reply may be under way.
    const fn caching(&self) -> (u64, u64) {
        (self.denial_cache, self.deadline)
    }

    /// Records that something does not hold. The first one counts.
    pub(crate) fn violation(&self, what: fmt::Arguments<'_>) {
        self.state.lock().violate(self.time.millis(), what);
    }

    /// What does not hold.
    pub(crate) fn take_violation(&self) -> Option<String> {
        self.state.lock().violation.clone()
    }

    /// A fault that lasts for so many milliseconds.
    pub(crate) fn disturbed(&self, span: u64) {
        let mut state = self.state.lock();
        state.disturbed_until = state.disturbed_until.max(self.time.millis() + span + RECOVERY);
    }

    /// A process does not run for so many milliseconds.
    pub(crate) fn paused(&self, process: usize, span: u64) {
        let now = self.time.millis();
        let state = &mut *self.state.lock();
        let until = &mut state.paused_until[process];
        *until = (*until).max(now + span);
        for key in state.keys.values_mut() {
            let loose_until = &mut key.loose_until[process];
            if *loose_until >= now {
                *loose_until += span;
            }
        }
    }

    /// When everything works again, in milliseconds.
    pub(crate) fn recovered_at(&self) -> u64 {
        self.state.lock().disturbed_until
    }

    /// The server's clock was set.
    pub(crate) fn clock_stepped(&self, from: Timestamp, to: Timestamp) {
        let now = self.time.millis();
        let state = &mut *self.state.lock();
        let back = u64::try_from(from.since(to).as_millis()).unwrap_or(u64::MAX);
        state.held_until = state.held_until.max(now + back);
        for key in state.keys.values_mut() {
            key.loosen(None, now, self.caching(), &state.paused_until);
            key.admitted.step(now, from, to);
        }
    }

    /// Whether keys may be denied longer than denials say, because the server's clock was set back.
    pub(crate) fn is_held(&self) -> bool {
        self.time.millis() <= self.state.lock().held_until
    }

    /// The server lost a write of this key.
    pub(crate) fn lost(&self, key: &[u8]) {
        let now = self.time.millis();
        let state = &mut *self.state.lock();
        if let Some(key) = state.keys.get_mut(key) {
            if key.lost_at.replace(now) != Some(now) {
                key.allow(now, Allowance::Loss);
            }
            key.loosen(None, now, self.caching(), &state.paused_until);
        }
    }

    /// The server decided.
    pub(crate) fn applied(
        &self,
        process: usize,
        key: &[u8],
        call: ScriptCall<'_>,
        decision: Decision,
        time: Timestamp,
    ) {
        let at = self.time.millis();
        let state = &mut *self.state.lock();
        let Some(key) = state.keys.get_mut(key) else { return };
        let kind = Kind::of(call.operation);
        if let Kind::Other("refund" | "reset" | "settle" | "renew", _) = kind {
            // A command whose request was given up long ago arrives as late as one of another process.
            let by = key.open.contains(&(process, kind)).then_some(process);
            key.loosen(by, at, self.caching(), &state.paused_until);
        }
        if kind.is_applied_once() && !key.is_leased() {
            let asked = key.asked.entry((process, kind)).or_default();
            match asked.checked_sub(1) {
                Some(left) => *asked = left,
                None => {
                    let what =
                        format_args!("exactness: {kind:?} of process {process} is applied twice");
                    return state.violate(at, what);
                }
            }
        }
        key.uses(call.policy, at, self.caching(), &state.paused_until);
        match kind {
            Kind::Other("refund", cost) if !key.is_leased() => {
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
        key.applications.push(Application { process, at, time, kind, decision });
    }

    /// A client asks a process for an operation.
    pub(crate) fn asked(&self, process: usize, key: &[u8], kind: Kind) {
        if let Some(key) = self.state.lock().keys.get_mut(key) {
            key.open.push((process, kind));
            if kind.is_applied_once() {
                *key.asked.entry((process, kind)).or_default() += 1;
            }
        }
    }

    /// A process ends, with the requests that it has not answered.
    pub(crate) fn restarts(&self, process: usize) {
        for key in self.state.lock().keys.values_mut() {
            key.open.retain(|it| it.0 != process);
        }
    }

    /// A client got an answer.
    pub(crate) fn answered(&self, answered: &Answered<'_>) {
        let now = self.time.millis();
        let mut state = self.state.lock();
        if let Some(key) = state.keys.get_mut(answered.key) {
            let asked = (answered.process, answered.kind);
            if let Some(index) = key.open.iter().position(|it| *it == asked) {
                key.open.swap_remove(index);
            }
        }
        let took = now - answered.sent;
        let most = self.deadline + TICKS + answered.paused;
        if took > most {
            state.violate(now, format_args!("liveness: {answered:?} took {took} ms, not {most}"));
        }
        let problem = match answered.result {
            Ok(answer) => {
                *state.answers.entry((answered.number, answer.source.word())).or_default() += 1;
                state.check_answer(now, answered, answer)
            }
            Err(StoreError::Timeout(_) | StoreError::Unavailable(_)) => {
                let fails = || answered.policy.settings().on_error == OnError::Fail;
                let has_fallback = match answered.kind {
                    Kind::Take(_) | Kind::Other("peek" | "reserve" | "hold", _) => !fails(),
                    Kind::Other(..) => false,
                };
                if has_fallback {
                    Some("exactness: an error in place of the fallback")
                } else if now > state.disturbed_until {
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

    /// What each key admitted whose bound is known.
    pub(crate) fn admitted(&self) -> Vec<AdmittedByKey> {
        let state = self.state.lock();
        let keys = state.keys.iter().filter(|(_, key)| key.admitted.units() > 0);
        keys.filter_map(|(name, key)| key.recorded(name, self.processes as u64)).collect()
    }

    /// The run ends: what was admitted must be within its bounds.
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
    fn violate(&mut self, now: u64, what: fmt::Arguments<'_>) {
        self.violation.get_or_insert_with(|| format!("after {now} ms: {what}"));
    }

    /// What is wrong with an answer.
    fn check_answer(
        &mut self,
        now: u64,
        answered: &Answered<'_>,
        answer: &Answer,
    ) -> Option<&'static str> {
        let key = self.keys.get_mut(answered.key)?;
        let settings = answered.policy.settings();
        match (answer.source, answered.kind) {
            (Source::Store, kind) => {
                let Some(index) = key.applications.iter().position(|it| {
                    let is_same = match (it.kind, kind) {
                        // A lease takes more at once.
                        (Kind::Take(took), Kind::Take(cost)) if settings.lease > 1 => took >= cost,
                        (applied, asked) => applied == asked,
                    };
                    is_same
                        && it.process == answered.process
                        && it.at >= answered.sent
                        && it.decision == answer.decision
                }) else {
                    return Some("exactness: the server gave no such answer");
                };
                let application = key.applications.remove(index);
                if let Kind::Take(cost) = kind
                    && answer.allowed()
                {
                    key.admitted.admit(application.at, application.time, cost.into());
                }
            }
            (Source::Cache, Kind::Take(_)) => {
                if answer.allowed() {
                    return Some("exactness: the cache allows");
                }
                // It may have waited for others of its batch.
                let waited = Duration::from_millis(now - answered.sent);
                let is_denied = answered.by_oracle.is_some_and(|it| !it.allowed());
                let ends = matches!(answer.outcome,
                    Outcome::Deny { retry: Retry::After(after) } if after <= CLOCK_ERROR + waited);
                if !is_denied && !ends && now > key.loose_until[answered.process] {
                    return Some("exactness: the cache denies what the oracle allows");
                }
            }
            (Source::Lease, Kind::Take(cost)) if settings.lease > 1 && answer.allowed() => {
                key.admitted.admit(now, answered.server_time, cost.into());
            }
            (Source::Fallback, kind) => {
                if now > self.disturbed_until {
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
                if let (Kind::Take(cost), OnError::Local(_), true) =
                    (kind, settings.on_error, answer.allowed())
                {
                    let meter = key.local.entry(answered.number).or_default();
                    meter.admit(now, answered.local_time, cost.into());
                }
            }
            _ => return Some("exactness: an answer of an impossible source"),
        }
        None
    }
}
