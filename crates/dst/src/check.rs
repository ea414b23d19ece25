//! What must hold, checked while a run is under way and at its end.
//!
//! - **Exactness**: an answer of the store is one that the server gave to this operation, and the server's equals that of
//!   the oracle. A denial from the cache is one that the oracle gives as well, unless units were given back since.
//! - **Safety**: what is admitted in any interval is at most what the policy admits, plus the allowances for leases and
//!   for the writes that the server lost.
//! - **Liveness**: every operation is answered by its deadline. Without a fault no answer is a fallback, and a while after
//!   the last fault none is.
//! - **Honesty**: counters add up.

use std::{collections::BTreeMap, fmt, time::Duration};

use parking_lot::Mutex;
use sluicegate_core::{
    Answer, Counters, Decision, Gcra, GcraName, OnError, Operation, Outcome, Policy,
    PreparedPolicy, Retry, Source, StoreError, Timestamp,
};

use crate::{
    meter::Meter,
    redis_model::{ScriptCall, ScriptOperation},
    time::VirtualTime,
};

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
    /// Until when answers may be fallbacks, in milliseconds.
    disturbed_until: u64,
    /// Until when keys may be denied because the server's clock was set back, in milliseconds.
    held_until: u64,
    /// Answers of each process, by source.
    answers: BTreeMap<(u64, &'static str), u64>,
}

#[derive(Debug)]
struct KeyState {
    /// All policies that it is used with.
    policies: Vec<PreparedPolicy>,
    /// The policy of the last decision.
    last_policy: Option<Policy>,
    /// What the server decided and no answer has shown yet.
    applications: Vec<Application>,
    /// Until when a denial that each process has cached may be out of date, in milliseconds.
    loose_until: Vec<u64>,
    /// How much oftener each process was asked to take, charge or refund so many units than the server did so.
    asked: BTreeMap<(usize, Kind), u64>,
    /// Times that the server lost writes of this key, and when it last did.
    losses: u64,
    lost_at: Option<u64>,
    /// Units that clients gave back; resets.
    refunded: u64,
    resets: u64,
    /// What the store and leases admitted, by the server's clock.
    admitted: Meter,
    /// What each process admitted itself, by its clock.
    local: BTreeMap<u64, Meter>,
}

/// A decision of the server.
#[derive(Clone, Debug)]
struct Application {
    process: usize,
    at: u64,
    time: Timestamp,
    kind: Kind,
    decision: Decision,
}

/// What an operation must have in common with its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Take(u32),
    Other(&'static str, u32),
}

impl Kind {
    pub(crate) fn of(operation: ScriptOperation<'_>) -> Self {
        use sluicegate_core::HoldOperation as Hold;
        match operation {
            ScriptOperation::OnKey(operation) => match operation {
                Operation::Take(cost) => Self::Take(cost),
                Operation::Peek(cost) => Self::Other("peek", cost),
                Operation::Charge(cost) => Self::Other("charge", cost),
                Operation::Refund(cost) => Self::Other("refund", cost),
                Operation::Reserve { cost, .. } => Self::Other("reserve", cost),
                Operation::Reset => Self::Other("reset", 0),
            },
            ScriptOperation::OnHold(operation) => match operation {
                Hold::Hold { cost, .. } => Self::Other("hold", cost),
                Hold::Settle { used, .. } => Self::Other("settle", used.unwrap_or(u32::MAX)),
                Hold::Renew { .. } => Self::Other("renew", 0),
            },
        }
    }
}

impl Kind {
    /// Whether an operation is never sent again, because it is not known whether it was applied.
    fn is_applied_once(self) -> bool {
        matches!(self, Self::Take(1..) | Self::Other("charge" | "refund", 1..))
    }
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
        let state = Mutex::new(CheckState { keys, ..CheckState::default() });
        Self { time, processes, denial_cache, deadline, state }
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

    /// When everything works again, in milliseconds.
    pub(crate) fn recovered_at(&self) -> u64 {
        self.state.lock().disturbed_until
    }

    /// The server's clock was set.
    pub(crate) fn clock_stepped(&self, from: Timestamp, to: Timestamp) {
        let now = self.time.millis();
        let mut state = self.state.lock();
        let back = u64::try_from(from.since(to).as_millis()).unwrap_or(u64::MAX);
        state.held_until = state.held_until.max(now + back);
        for key in state.keys.values_mut() {
            key.loosen(None, now, self.denial_cache, self.deadline);
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
        if let Some(key) = self.state.lock().keys.get_mut(key) {
            key.losses += u64::from(key.lost_at != Some(now));
            key.lost_at = Some(now);
            key.loosen(None, now, self.denial_cache, self.deadline);
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
        let mut state = self.state.lock();
        let Some(key) = state.keys.get_mut(key) else { return };
        let kind = Kind::of(call.operation);
        if let Kind::Other("refund" | "reset" | "settle" | "renew", _) = kind {
            key.loosen(Some(process), at, self.denial_cache, self.deadline);
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
        // A denial under one policy may be out of date when the key has been used with another one.
        if key.last_policy.as_ref().is_some_and(|last| last != call.policy) {
            key.loosen(None, at, self.denial_cache, self.deadline);
        }
        key.last_policy = Some(call.policy.clone());
        match kind {
            Kind::Other("refund", cost) if !key.is_leased() => key.refunded += u64::from(cost),
            Kind::Other("reset", _) => key.resets += 1,
            _ => {}
        }
        let oldest = at.saturating_sub(10_000);
        key.applications.retain(|it| it.at >= oldest);
        key.applications.push(Application { process, at, time, kind, decision });
    }

    /// A client asks a process for an operation.
    pub(crate) fn asked(&self, process: usize, key: &[u8], kind: Kind) {
        if let Some(key) = self.state.lock().keys.get_mut(key)
            && kind.is_applied_once()
        {
            *key.asked.entry((process, kind)).or_default() += 1;
        }
    }

    /// A client got an answer.
    pub(crate) fn answered(&self, answered: &Answered<'_>) {
        let now = self.time.millis();
        let mut state = self.state.lock();
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
                    Some("an error in place of the fallback")
                } else if now > state.disturbed_until {
                    Some("an error without a fault")
                } else {
                    None
                }
            }
            Err(_) => Some("an error of another kind"),
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

impl KeyState {
    fn new(policies: Vec<PreparedPolicy>, processes: usize) -> Self {
        Self {
            policies,
            last_policy: None,
            applications: Vec::new(),
            loose_until: vec![0; processes],
            asked: BTreeMap::new(),
            losses: 0,
            lost_at: None,
            refunded: 0,
            resets: 0,
            admitted: Meter::default(),
            local: BTreeMap::new(),
        }
    }

    /// Denials may be out of date that processes have cached, except those of the process that has changed the key.
    fn loosen(&mut self, by: Option<usize>, now: u64, denial_cache: u64, deadline: u64) {
        for (process, until) in self.loose_until.iter_mut().enumerate() {
            let span = if by == Some(process) { deadline } else { denial_cache + deadline };
            *until = (*until).max(now + span);
        }
    }

    /// The greatest lease.
    fn lease(&self) -> u64 {
        self.policies.iter().map(|it| it.settings().lease.into()).max().unwrap_or_default()
    }

    fn is_leased(&self) -> bool {
        self.lease() > 1
    }

    /// The limit, if bounds are known for it.
    fn limit(&self) -> Option<&Gcra> {
        let [policy] = &self.policies[..] else { return None };
        let limit = policy.policy().as_gcra()?;
        (!limit.borrow() && limit.name() != GcraName::LeakyQueue).then_some(limit)
    }

    /// How far the store and leases have exceeded their bound.
    fn excess(&self, processes: u64) -> Option<String> {
        let limit = self.limit()?;
        let (burst, lease) = (u64::from(limit.burst()), self.lease());
        let leases = if lease > 1 { processes * lease } else { 0 };
        let bound = burst * (1 + self.losses + self.resets) + leases + self.refunded;
        let excess = self.admitted.excess(limit, (1, 1));
        (excess > bound).then(|| {
            format!(
                "admits {excess} units beyond its rate, of {} in all; at most {bound}: burst {burst}, {} losses, {} \
                 resets, {leases} leased, {} refunded",
                self.admitted.units(),
                self.losses,
                self.resets,
                self.refunded
            )
        })
    }

    /// How far a process has exceeded the bound of its own decisions.
    fn local_excess(&self, meter: &Meter) -> Option<String> {
        let (limit, OnError::Local(share)) =
            (self.limit()?, self.policies.first()?.settings().on_error)
        else {
            return None;
        };
        let text = share.to_string();
        let (part, whole) = text.split_once('/')?;
        let share: (u32, u32) = (part.parse().ok()?, whole.parse().ok()?);
        let burst = u64::from(limit.burst()) * u64::from(share.0);
        let bound = burst.div_ceil(share.1.into()).max(1) + self.resets * u64::from(limit.burst());
        let excess = meter.excess(limit, share);
        (excess > bound).then(|| format!("admits {excess} units beyond its share, at most {bound}"))
    }
}
