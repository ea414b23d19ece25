//! The data about a key during a run, and its bounds.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use sluicegate_conformance::{OracleSubject, Subject as _};
use sluicegate_core::{
    Decision, Forgets, Gcra, GcraName, OnError, Operation, Policy, PreparedPolicy, Retry, Share,
    Timestamp, as_micros,
};
use sluicegate_redis::Options;

use crate::{meter::Meter, oracle::on_key};

/// The longest time that a message travels without a fault, by a clock that is 200 parts per million too fast.
const TRAVEL: Duration = Duration::from_micros(1_001);
/// Upper bound on the states that a key may have in a fallback.
const MAX_STATES: usize = 64;

#[derive(Debug)]
pub(super) struct CheckedKey {
    /// All policies that it is used with.
    pub(super) policies: Vec<PreparedPolicy>,
    /// The policy of the last decision.
    pub(super) last_policy: Option<Policy>,
    /// Decisions of the server that no answer has shown yet.
    pub(super) applications: Vec<Application>,
    /// Those that answers on several keys seem to have, each of which the fallback may have decided in the same way: they may
    /// belong to another request.
    pub(super) uncertain: Vec<Application>,
    /// Denials of the server, which processes may repeat.
    pub(super) denials: Vec<KnownDenial>,
    pub(super) denials_to_prune: usize,
    /// The last event after which a cached denial may be out of date.
    pub(super) loosened: u64,
    /// The states of the key in the fallbacks of processes.
    pub(super) fallbacks: BTreeMap<u64, FallbackStates>,
    /// Takes, charges and refunds of a number of units that clients have requested from each process, less those that the server applied.
    pub(super) requested: BTreeMap<(usize, Kind), u64>,
    /// The units of leases, of each process by its number.
    pub(super) leases: BTreeMap<u64, LeasedUnits>,
    /// When the server last lost writes of this key.
    pub(super) lost_at: Option<u64>,
    /// Until when the key may be denied because its clock was set back, in milliseconds.
    pub(super) held_until: u64,
    /// When its clock was set.
    pub(super) stepped_at: Vec<u64>,
    /// Until when its slot moves, in milliseconds.
    pub(super) migrating_until: u64,
    /// Units that may be admitted beyond the rate from a time on, and why: the server lost writes, or a client reset the
    /// key or gave units back.
    allowances: Vec<(u64, u64, Allowance)>,
    pub(super) resets: u64,
    /// Units that the store and leases admitted, by the server's clock.
    pub(super) admitted: Meter,
    /// Items that shapers got, and those that they released, by virtual time.
    pub(super) items: u64,
    pub(super) released: Meter,
    /// Units that each process admitted itself, by its clock.
    pub(super) local: BTreeMap<u64, Meter>,
}

/// The units that a process has taken from a leased key, used for requests, and returned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeasedUnits {
    pub(super) taken: u64,
    pub(super) used: u64,
    pub(super) returned: u64,
    /// When the debt after its last take has drained, by the clock of the process.
    pub(super) owed_until: Timestamp,
    /// When the window of its last take ends, by the clock of the server.
    pub(super) window_end: Timestamp,
}

/// A denial of a take by the server, which the process may repeat.
#[derive(Clone, Debug)]
pub(super) struct KnownDenial {
    /// The number of the process.
    pub(super) number: u64,
    pub(super) policy: Policy,
    pub(super) cost: u32,
    pub(super) decision: Decision,
    /// The event of the decision, and the one from which on the process does not repeat it.
    pub(super) event: u64,
    pub(super) dropped: u64,
    /// Whether the process is known to have got it.
    pub(super) is_answered: bool,
    /// In milliseconds.
    pub(super) at: u64,
    /// The time by the clock of the server, and the last reading of the clock of the process before it, and the first after it.
    pub(super) time: Timestamp,
    pub(super) sent: Timestamp,
    pub(super) since: Timestamp,
}

/// A denial that a process repeats.
#[derive(Clone, Copy, Debug)]
pub(super) struct RepeatedDenial<'a> {
    pub(super) number: u64,
    pub(super) policy: &'a Policy,
    pub(super) cost: u32,
    pub(super) decision: &'a Decision,
    /// The last event before the request, and the earliest and latest reading of the clock of the process that it can have used.
    pub(super) event: u64,
    pub(super) readings: (Timestamp, Timestamp),
    /// The virtual time in milliseconds, the clock of the server, and whether the oracle denies the request.
    pub(super) now: u64,
    pub(super) server_time: Timestamp,
    pub(super) by_oracle: bool,
}

impl KnownDenial {
    /// The wait until the request passes, and for how long the denial holds: a request may begin a window earlier, and it still
    /// lasts a period.
    fn spans(&self) -> (Option<Duration>, Option<Duration>) {
        let limit = self.policy.limits().get(self.decision.binding);
        let period = limit.filter(|it| it.begins_with_use()).map(|it| it.rate().1);
        match self.decision.retry() {
            Some(Retry::After(wait)) => (Some(wait), Some(period.map_or(wait, |it| it.min(wait)))),
            _ => (None, None),
        }
    }

    /// Whether a process may repeat it like this, for at most `max_age`.
    fn is(&self, it: &RepeatedDenial<'_>, max_age: Duration) -> bool {
        let ((begin, end), (wait, holds)) = (it.readings, self.spans());
        let is_within =
            |left: Duration, span: Duration| left <= span && self.since + span <= end + left;
        let retry = match (it.decision.retry(), wait) {
            (Some(Retry::After(left)), Some(wait)) => is_within(left, wait),
            (Some(Retry::Never), None) => true,
            _ => false,
        };
        (self.number, &self.policy, self.cost) == (it.number, it.policy, it.cost)
            // Many answers under several policies may arrive together. Which of their denials the process has forgotten is
            // open, as long as the denial still holds.
            && (it.event < self.dropped || it.by_oracle)
            && begin < self.sent + holds.map_or(max_age, |it| it.min(max_age))
            && retry
            && is_within(it.decision.reset_after, self.decision.reset_after)
            && (it.decision.limit, it.decision.binding, it.decision.remaining)
                == (self.decision.limit, self.decision.binding, 0)
    }
}

/// The states that a key may have in the fallback of a process, and the replies of the server that may have been reported to it
/// since its last decision.
#[derive(Clone, Debug)]
pub(super) struct FallbackStates {
    states: Vec<OracleSubject>,
    /// When the process got them by its clock.
    replies: Vec<(Timestamp, Decision)>,
    /// Whether the states are known.
    pub(super) are_known: bool,
    /// Operations that are decided with others, and have no answer yet: when they are decided is open.
    open: usize,
}

impl Default for FallbackStates {
    fn default() -> Self {
        let (states, replies) = (vec![OracleSubject::default()], Vec::new());
        Self { states, replies, are_known: true, open: 0 }
    }
}

impl FallbackStates {
    pub(super) fn replied(&mut self, now: Timestamp, decision: Decision) {
        self.replies.push((now, decision));
    }

    /// An operation was sent that is decided with others.
    pub(super) fn requested_with_others(&mut self) {
        self.open += 1;
        self.are_known = false;
    }

    /// It was answered.
    pub(super) fn answered_with_others(&mut self) {
        self.open -= 1;
    }

    /// The key is reset by an operation that was sent then. Replies since then may have been reported after it.
    pub(super) fn reset(&mut self, sent: Timestamp) {
        let mut replies = mem::take(&mut self.replies);
        replies.retain(|(at, _)| *at >= sent);
        *self = Self { replies, are_known: self.open == 0, open: self.open, ..Self::default() };
    }

    /// The decision of the oracle in one of the states, if the fallback cannot have decided like this.
    pub(super) fn decided(
        &mut self,
        (policy, is_only): (&Policy, bool),
        share: Share,
        operation: Operation<'_>,
        now: Timestamp,
        decision: &Decision,
    ) -> Option<Result<Decision, String>> {
        let local = policy.share(share);
        let mut replies = mem::take(&mut self.replies);
        replies.retain(|(at, it)| *at + it.reset_after > now);
        let is_simple = is_only && policy.limits().len() == 1 && !policy.counts_holds();
        if !replies.is_empty() && !is_simple || self.states.len() > MAX_STATES {
            self.are_known = false;
        }
        if !self.are_known {
            return None;
        }
        let reported = replies.iter().map(|(at, it)| share.used(drained(policy, now, *at, it)));
        let reported: BTreeSet<_> = reported.chain([0]).collect();
        let (mut possible, mut expected) = (Vec::new(), None);
        for (state, units) in
            self.states.iter().flat_map(|it| reported.iter().map(move |n| (it, n)))
        {
            let mut state = state.clone();
            let peek = state.apply(on_key(&local, Operation::Peek(0), now));
            let capacity = local.limits()[0].capacity();
            let used = peek.map_or(0, |it| it.limit.saturating_sub(it.remaining));
            let more = (*units).min(capacity).saturating_sub(used);
            if more > 0 {
                let _ = state.apply(on_key(&local, Operation::Charge(more), now));
            }
            let by_oracle = state.apply(on_key(&local, operation, now));
            if by_oracle.as_ref() == Ok(decision) {
                possible.push(state);
            } else {
                expected = Some(by_oracle);
            }
        }
        self.states = possible;
        expected.filter(|_| self.states.is_empty())
    }
}

/// The units in use of a reply, less those that have drained since.
fn drained(policy: &Policy, now: Timestamp, at: Timestamp, reply: &Decision) -> u32 {
    let used = reply.limit.saturating_sub(reply.remaining);
    let (elapsed, reset) = (now.since(at).as_micros(), reply.reset_after.as_micros());
    if !policy.can_reserve() || reset == 0 {
        return used;
    }
    let left = (u128::from(used) * reset.saturating_sub(elapsed)).div_ceil(reset);
    u32::try_from(left).unwrap_or(u32::MAX)
}

/// Why more may be admitted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Allowance {
    Loss,
    Reset,
    Refund(u32),
}

/// A decision of the server.
#[derive(Clone, Debug)]
pub(super) struct Application {
    pub(super) process: usize,
    pub(super) at: u64,
    pub(super) time: Timestamp,
    pub(super) kind: Kind,
    pub(super) decision: Decision,
}

/// Keys, each with the units that a request takes.
pub(super) type KeysWithCosts = Vec<(Vec<u8>, u32)>;

/// A decision of the server on several keys.
#[derive(Clone, Debug)]
pub(super) struct AppliedMultiKey {
    pub(super) process: usize,
    pub(super) at: u64,
    pub(super) time: Timestamp,
    pub(super) keys: KeysWithCosts,
    pub(super) each: Vec<Decision>,
}

/// The part of an operation that must equal that of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Take(u32),
    Other(&'static str, u32),
}

impl Kind {
    pub(crate) fn of(operation: Operation<'_>) -> Self {
        match operation {
            Operation::Take(cost) => Self::Take(cost),
            Operation::Peek(cost) => Self::Other("peek", cost),
            Operation::Charge(cost) => Self::Other("charge", cost),
            Operation::Refund(cost) => Self::Other("refund", cost),
            Operation::Reserve { cost, .. } => Self::Other("reserve", cost),
            Operation::Reset => Self::Other("reset", 0),
            Operation::Hold { cost, .. } => Self::Other("hold", cost),
            Operation::Settle { used, .. } => Self::Other("settle", used.unwrap_or(u32::MAX)),
            Operation::Renew { .. } => Self::Other("renew", 0),
        }
    }

    /// Whether an operation is never sent again, because it is not known whether it was applied.
    pub(super) fn is_applied_once(self) -> bool {
        matches!(self, Self::Take(1..) | Self::Other("charge" | "refund", 1..))
    }
}

impl CheckedKey {
    pub(super) fn new(policies: Vec<PreparedPolicy>) -> Self {
        Self {
            policies,
            last_policy: None,
            applications: Vec::new(),
            uncertain: Vec::new(),
            denials: Vec::new(),
            denials_to_prune: 64,
            loosened: 0,
            fallbacks: BTreeMap::new(),
            requested: BTreeMap::new(),
            leases: BTreeMap::new(),
            lost_at: None,
            held_until: 0,
            stepped_at: Vec::new(),
            migrating_until: 0,
            allowances: Vec::new(),
            resets: 0,
            admitted: Meter::default(),
            items: 0,
            released: Meter::default(),
            local: BTreeMap::new(),
        }
    }

    /// The server decides under a policy.
    pub(super) fn uses(&mut self, policy: &Policy, event: u64) {
        // A denial under one policy may be out of date when the key has been used with another one.
        if self.last_policy.as_ref().is_some_and(|last| last != policy) {
            self.loosened = event;
        }
        self.last_policy = Some(policy.clone());
    }

    /// The process with this number does not repeat denials from before `until`, except, if `kept` is given, those under that policy
    /// and those that it got later, which may be newer than the answer.
    pub(super) fn drop_denials(
        &mut self,
        number: u64,
        (event, until): (u64, u64),
        kept: Option<&Policy>,
    ) {
        for it in self.denials.iter_mut().filter(|it| it.number == number) {
            let may_stay = kept.is_some_and(|kept| *kept == it.policy || !it.is_answered);
            if !may_stay && it.event < until {
                it.dropped = it.dropped.min(event);
            }
        }
    }

    /// The error in a denial that a process repeats, if there is one.
    pub(super) fn check_repeated(
        &self,
        repeated: &RepeatedDenial<'_>,
        max_age: Duration,
    ) -> Option<&'static str> {
        if repeated.policy.records_denials() {
            return Some("exactness: the cache denies what the server should record");
        }
        let mut known = self.denials.iter().filter(|it| it.is(repeated, max_age)).peekable();
        if known.peek().is_none() {
            return Some("exactness: the cache repeats no denial of the server");
        }
        let mut may_deny = |it: &KnownDenial| {
            let has_ended = it.spans().1.is_some_and(|span| repeated.server_time >= it.time + span);
            // A period or more after a time that is stored, a denial takes that time as now, and does not store it: on the way
            // back, the request may pass earlier.
            let is_held = repeated.now <= self.held_until;
            repeated.by_oracle || has_ended || is_held || self.loosened > it.event
        };
        (!known.any(&mut may_deny)).then_some("exactness: the cache denies what the oracle allows")
    }

    /// The greatest lease.
    pub(super) fn lease(&self) -> u64 {
        self.policies.iter().map(|it| it.settings().lease.into()).max().unwrap_or_default()
    }

    pub(super) fn is_leased(&self) -> bool {
        self.lease() > 1
    }

    /// The error in the units of a process after `count` has changed them, if there is one.
    pub(super) fn count_leased(
        &mut self,
        number: u64,
        count: impl FnOnce(&mut LeasedUnits),
    ) -> Option<&'static str> {
        // Requests that wait under another policy may return what they have taken.
        if self.policies.iter().any(|it| it.settings().lease < 2) {
            return None;
        }
        let units = self.leases.entry(number).or_default();
        count(units);
        (units.used + units.returned > units.taken)
            .then_some("exactness: a process uses and returns more units than it has taken")
    }

    /// Whether a process returns more units than it still owes, when the earliest reading of its clock is `now`. It has
    /// computed them for the end of the deadline of the command, which has then travelled for up to `TRAVEL`.
    pub(super) fn returns_drained(&self, number: u64, units: u32, now: Timestamp) -> bool {
        let leased = self.leases.get(&number).filter(|_| self.is_leased());
        leased.zip(self.limit()).is_some_and(|(leased, limit)| {
            let left = (leased.owed_until + TRAVEL).since(now).as_micros();
            let owed = left * u128::from(limit.limit()) / limit.period().as_micros().max(1);
            u128::from(units) > owed
        })
    }

    /// Whether a process uses a unit of one window in the next.
    pub(super) fn outlives_window(&self, number: u64, now: Timestamp) -> bool {
        let [policy] = &self.policies[..] else { return false };
        let is_window =
            matches!(policy.policy().limits(), [limit] if limit.forgets() == Forgets::ByWindow);
        let leased = self.leases.get(&number).filter(|_| is_window && self.stepped_at.is_empty());
        leased.is_some_and(|it| now >= it.window_end)
    }

    /// The clock by which it is decided was set, or stands still until then.
    pub(super) fn stepped(&mut self, at: u64) {
        let last = self.stepped_at.last().copied().unwrap_or_default();
        self.stepped_at.push(at.max(last));
    }

    /// The limit, if bounds are known for it.
    pub(super) fn limit(&self) -> Option<&Gcra> {
        let [policy] = &self.policies[..] else { return None };
        let limit = policy.policy().as_gcra()?;
        (!limit.borrow() && limit.name() != GcraName::LeakyQueue).then_some(limit)
    }

    /// More may be admitted from now on.
    pub(super) fn allow(&mut self, at: u64, allowance: Allowance) {
        let units = match allowance {
            Allowance::Loss | Allowance::Reset => self.limit().map_or(0, |it| it.burst().into()),
            Allowance::Refund(units) => units.into(),
        };
        self.allowances.push((at, units, allowance));
    }

    /// How often the server lost writes of the key, or its clock was set.
    pub(super) fn breaks(&self) -> u64 {
        let losses = self.allowances.iter().filter(|it| matches!(it.2, Allowance::Loss));
        let times: BTreeSet<_> = losses.map(|it| it.0).chain(self.stepped_at.clone()).collect();
        times.len() as u64
    }

    /// Units that it may admit beyond its rate: from the first moment, and from each allowance on.
    fn bounds(&self, limit: &Gcra, processes: u64) -> Vec<(u64, u64)> {
        let (burst, lease) = (u64::from(limit.burst()), self.lease());
        // No process gets more than a burst at once, and none asks before it has spent what it has.
        let leases = if lease > 1 { processes * lease.min(burst) } else { 0 };
        let mut bound = burst + leases;
        let mut bounds = vec![(0, bound)];
        for &(at, units, _) in &self.allowances {
            bound += units;
            bounds.push((at, bound));
        }
        bounds
    }

    /// How far the store and leases have exceeded their bound.
    pub(super) fn excess(&self, processes: u64) -> Option<String> {
        let Some(limit) = self.limit() else { return self.leased_excess() };
        let bounds = self.bounds(limit, processes);
        let bound_at = |at| bounds.iter().rfind(|it| it.0 <= at).map_or(0, |it| it.1);
        let mut excesses = self.admitted.excesses(limit, (1, 1));
        let (at, excess) = excesses.find(|&(at, excess)| excess > bound_at(at))?;
        Some(format!(
            "admits {excess} units beyond its rate until {at} ms, of {} in all; at most {}: burst {}, leases of {}, {:?}",
            self.admitted.units(),
            bound_at(at),
            limit.burst(),
            self.lease(),
            self.allowances
        ))
    }

    /// How far leases under a policy of any kind have exceeded theirs: what is spent in an interval was taken at most the
    /// lifetime of a lease before. Not where the server lost writes, its clock was set, or clients gave units back.
    fn leased_excess(&self) -> Option<String> {
        let [policy] = &self.policies[..] else { return None };
        if !self.is_leased() || !self.allowances.is_empty() || !self.stepped_at.is_empty() {
            return None;
        }
        let lifetime = as_micros(Options::default().lease_lifetime);
        policy.policy().limits().iter().find_map(|limit| {
            // Two clocks run up to 200 parts per million faster than virtual time, of which the milliseconds are known.
            let most =
                |millis| limit.max_admitted((lifetime + (millis + 1) * 1000) * 10_004 / 10_000);
            let (millis, units) = self.admitted.overfull(most)?;
            Some(format!("admits {units} units within {millis} ms under {limit} with leases"))
        })
    }

    /// How far a process has exceeded the bound of its own decisions.
    pub(super) fn local_excess(&self, meter: &Meter) -> Option<String> {
        let (limit, OnError::Local(share)) =
            (self.limit()?, self.policies.first()?.settings().on_error)
        else {
            return None;
        };
        let text = share.to_string();
        let (part, whole) = text.split_once('/')?;
        let share: (u32, u32) = (part.parse().ok()?, whole.parse().ok()?);
        let burst = u64::from(limit.burst()) * u64::from(share.0);
        let bound = burst.div_ceil(share.1.into()).max(1)
            + self.resets * u64::from(limit.burst())
            + meter.unknown_units(limit, share);
        let excess = meter.excess(limit, share);
        (excess > bound).then(|| format!("admits {excess} units beyond its share, at most {bound}"))
    }
}
