//! The data about a key during a run, and its bounds.

use std::collections::{BTreeMap, BTreeSet};

use sluicegate_core::{
    Decision, Gcra, GcraName, OnError, Operation, Policy, PreparedPolicy, Timestamp,
};

use crate::meter::Meter;

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
    /// Until when a denial that each process has cached may be out of date, in milliseconds; the last one is that of all
    /// processes that have been replaced by others, but still run.
    pub(super) loose_until: Vec<u64>,
    /// Requests of each process that have no answer yet.
    pub(super) open: Vec<(usize, Kind)>,
    /// Takes, charges and refunds of a number of units that clients have requested from each process, less those that the server applied.
    pub(super) requested: BTreeMap<(usize, Kind), u64>,
    /// The units of leases, of each process.
    pub(super) leases: BTreeMap<usize, LeasedUnits>,
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
    /// When the debt after its last take has drained, and when it took, in milliseconds.
    pub(super) owed_until: Option<(Timestamp, u64)>,
}

impl LeasedUnits {
    /// The units that the process still owes at `time`, which is `at` milliseconds after the start. None: that is not known,
    /// because the clock was set. Units that were taken before that drain by the clock of the process, and may come back after
    /// a later take.
    fn owed(&self, limit: &Gcra, (at, time): (u64, Timestamp), stepped_at: &[u64]) -> Option<u64> {
        let (until, taken_at) = self.owed_until?;
        let (period, rate) = (limit.period().as_micros().max(1), u128::from(limit.limit()));
        let drain = u128::from(limit.burst()) * period / (rate * 1000).max(1);
        let drain = u64::try_from(drain).unwrap_or(u64::MAX);
        let is_unknown = |step: &u64| *step >= taken_at || at <= step.saturating_add(drain);
        if stepped_at.last().is_some_and(is_unknown) {
            return None;
        }
        u64::try_from(until.since(time).as_micros() * rate / period).ok()
    }
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
    pub(super) fn new(policies: Vec<PreparedPolicy>, processes: usize) -> Self {
        Self {
            policies,
            last_policy: None,
            applications: Vec::new(),
            uncertain: Vec::new(),
            loose_until: vec![0; processes + 1],
            open: Vec::new(),
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
    pub(super) fn uses(
        &mut self,
        policy: &Policy,
        at: u64,
        caching: (u64, u64),
        paused_until: &[u64],
    ) {
        // A denial under one policy may be out of date when the key has been used with another one.
        if self.last_policy.as_ref().is_some_and(|last| last != policy) {
            self.loosen(None, at, caching, paused_until);
        }
        self.last_policy = Some(policy.clone());
    }

    /// Denials may be out of date that processes have cached, except those of the process that has changed the key.
    pub(super) fn loosen(
        &mut self,
        by: Option<usize>,
        now: u64,
        (denial_cache, deadline): (u64, u64),
        paused_until: &[u64],
    ) {
        let last_pause = paused_until.iter().max();
        let paused_until = paused_until.iter().chain(last_pause);
        let processes = self.loose_until.iter_mut().zip(paused_until).enumerate();
        for (process, (until, &paused_until)) in processes {
            let cached = if by == Some(process) { 0 } else { denial_cache };
            // A reply may be on its way to a process that does not run.
            *until = (*until).max(now.max(paused_until) + deadline + cached);
        }
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
        process: usize,
        count: impl FnOnce(&mut LeasedUnits),
    ) -> Option<&'static str> {
        // Requests that wait under another policy may return what they have taken.
        if self.policies.iter().any(|it| it.settings().lease < 2) {
            return None;
        }
        let units = self.leases.entry(process).or_default();
        count(units);
        (units.used + units.returned > units.taken)
            .then_some("exactness: a process uses and returns more units than it has taken")
    }

    /// Whether a process returns more units than it still owes, and one for the difference of clocks.
    pub(super) fn returns_drained(
        &self,
        process: usize,
        units: u32,
        now: (u64, Timestamp),
    ) -> bool {
        let leased = self.leases.get(&process).filter(|_| self.is_leased());
        let owed = leased.zip(self.limit());
        let owed = owed.and_then(|(leased, limit)| leased.owed(limit, now, &self.stepped_at));
        owed.is_some_and(|owed| u64::from(units) > owed + 1)
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
        let limit = self.limit()?;
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
