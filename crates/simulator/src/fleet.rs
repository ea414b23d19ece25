//! Processes that lease from one store ([`Lease`]), in virtual time: what they let pass, and how often they ask.

use std::{collections::VecDeque, time::Duration};

use ahash::RandomState;
use hashbrown::HashMap;
use sluicegate_core::{
    Chunk, Decision, Entry, Forgets, Lease, LeaseStep, LeaseTerms, Limit, MIN_LEASED_WINDOW,
    Operation, Outcome, Policy, PreparedPolicy, Retry, StoreError, Timestamp, apply, as_micros,
    lease_window_end,
};

use crate::{
    error::{Fault, TraceError},
    event::Event,
    kind::Kind,
    run::Policies,
};

/// Fewest keys at which a search for recovered ones is worth its time.
const MIN_SWEEP: usize = 16_384;
/// Maximum number of processes: each has a lease of each key.
pub const MAX_PROCESSES: usize = 1024;

/// Processes that lease units of every key from one store. Each event goes to one of them by chance, as a load balancer
/// distributes requests. No command takes time.
///
/// Takes that a lease can decide are decided by it; all other operations, and policies that cannot be leased, ask the store.
/// A process repeats a denial, as its denial cache does, until the denied request could pass.
#[derive(Debug)]
pub struct Fleet {
    policies: Policies,
    keys: HashMap<Vec<u8>, FleetKey, RandomState>,
    /// The number of keys at which recovered ones are swept.
    sweep_at: usize,
    processes: usize,
    units: u32,
    lifetime: Duration,
    /// The last policy and its terms; `None` if it cannot be leased.
    last: Option<(Policy, Option<LeaseTerms>)>,
    events: u64,
    totals: FleetTotals,
}

/// Totals of a [`Fleet`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetTotals {
    /// Operations that were decided.
    pub decided: u64,
    /// Commands to the store.
    pub asked: u64,
    /// The most units by which any key has exceeded what a limit of its policy lets pass, in any interval.
    pub excess: u64,
    /// The least upper bound on that which is known: by the lifetime of leases, and by what all processes can hold.
    pub bound: u64,
}

/// The state of a key.
#[derive(Debug, Default)]
struct FleetKey {
    /// In the store.
    stored: Option<Entry>,
    /// The units that passed, charged when they did.
    passed: Option<Entry>,
    /// The same for each limit of the policy, if that is a log, which forgets units beyond its limit.
    logs: Vec<PassedLog>,
    /// The processes that have used it.
    processes: Vec<FleetProcess>,
}

/// The units that passed in the last period of a log.
#[derive(Debug, Default)]
struct PassedLog {
    /// When they passed, in microseconds, and how many.
    events: VecDeque<(u64, u32)>,
    sum: u64,
}

/// What a process knows of a key.
#[derive(Debug)]
struct FleetProcess {
    /// Its number.
    number: usize,
    policy: Policy,
    lease: Option<Lease>,
    /// The cost of a request that the store has denied, the decision, and when.
    denied: Option<(u32, Decision, Timestamp)>,
}

impl Fleet {
    /// `processes` with leases of up to `units` units for `lifetime`, and `default` in force for every event that names no policy.
    ///
    /// # Errors
    /// [`StoreError::Settings`] if there are no processes or more than 1024, or `default` cannot be leased.
    pub fn new(
        default: Option<Policy>,
        processes: usize,
        units: u32,
        lifetime: Duration,
    ) -> Result<Self, StoreError> {
        if !(1..=MAX_PROCESSES).contains(&processes) {
            return Err(StoreError::Settings(format!(
                "invalid number of processes `{processes}`: expected 1 to {MAX_PROCESSES}"
            )));
        }
        if let Some(policy) = &default {
            PreparedPolicy::new(policy).lease(units)?;
        }
        Ok(Self {
            policies: Policies::new(default),
            keys: HashMap::default(),
            sweep_at: MIN_SWEEP,
            processes,
            units,
            lifetime,
            last: None,
            events: 0,
            totals: FleetTotals::default(),
        })
    }

    /// From the next event on, `policy` is active for every event that names none.
    pub fn change(&mut self, policy: Policy) {
        self.policies.change(policy);
    }

    /// The number of processes.
    #[must_use]
    pub const fn processes(&self) -> usize {
        self.processes
    }

    /// The most units of a lease.
    #[must_use]
    pub const fn units(&self) -> u32 {
        self.units
    }

    /// The totals so far.
    #[must_use]
    pub const fn totals(&self) -> FleetTotals {
        self.totals
    }

    /// Decides `event`.
    ///
    /// # Errors
    /// As [`Simulation::decide`](crate::Simulation::decide).
    pub fn decide(&mut self, event: &Event<'_>) -> Result<Decision, TraceError> {
        let policy = self.policies.find(event.policy).map_err(|fault| fault.at(event.line))?;
        let policy = policy.clone();
        let terms = self.terms(&policy);
        self.events += 1;
        let chosen = mix(self.events) % self.processes as u64;
        if self.keys.len() >= self.sweep_at {
            self.sweep(event.time);
        }
        let key = self.keys.entry_ref(event.key).or_default();
        let call = Call { policy: &policy, terms, lifetime: self.lifetime };
        let number = usize::try_from(chosen).unwrap_or_default();
        let decided = key.decide(event, number, call, &mut self.totals);
        decided.map_err(|fault| fault.at(event.line))
    }

    /// The terms of leases under a policy, if it can have one.
    fn terms(&mut self, policy: &Policy) -> Option<LeaseTerms> {
        if let Some((last, terms)) = &self.last
            && last.ptr_eq(policy)
        {
            return *terms;
        }
        let can_be_leased = self.units > 1 && PreparedPolicy::new(policy).lease(self.units).is_ok();
        let terms = LeaseTerms::new(policy, self.units);
        let is_long = terms.window().is_none_or(|it| it >= MIN_LEASED_WINDOW);
        let terms = (can_be_leased && is_long).then_some(terms);
        if terms.is_some() {
            let all = (self.processes as u64).saturating_mul(self.units.into());
            let bounds = policy.limits().iter().map(|it| extra(it, self.lifetime).min(all));
            self.totals.bound = self.totals.bound.max(bounds.max().unwrap_or(0));
        }
        self.last = Some((policy.clone(), terms));
        terms
    }

    /// Drops the keys that have recovered and of which no lease is left.
    #[cold]
    fn sweep(&mut self, now: Timestamp) {
        self.keys.retain(|_, key| key.is_in_use(now));
        self.sweep_at = MIN_SWEEP.max(2 * self.keys.len());
    }
}

/// Units by which an interval that is longer by `lifetime` may let more pass under a limit.
fn extra(limit: &Limit, lifetime: Duration) -> u64 {
    let (units, period) = limit.rate();
    let (units, period) = (u128::from(units), u128::from(as_micros(period).max(1)));
    let lifetime = u128::from(as_micros(lifetime));
    let extra = match limit.forgets() {
        Forgets::AtRate => (units * lifetime).div_ceil(period),
        Forgets::InSteps | Forgets::AfterPeriod => units * lifetime.div_ceil(period),
        Forgets::ByWindow | Forgets::WhenSettled => 0,
    };
    u64::try_from(extra).unwrap_or(u64::MAX)
}

/// One of equally many numbers for each count (the last step of SplitMix64).
const fn mix(count: u64) -> u64 {
    let count = count.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let count = (count ^ (count >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let count = (count ^ (count >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    count ^ (count >> 31)
}

/// The policy of an event.
#[derive(Clone, Copy)]
struct Call<'a> {
    policy: &'a Policy,
    /// If it can be leased.
    terms: Option<LeaseTerms>,
    lifetime: Duration,
}

impl FleetKey {
    fn is_in_use(&self, now: Timestamp) -> bool {
        let is_used =
            |it: &Option<Entry>| it.as_ref().is_some_and(|it| !it.lifetime(now).is_zero());
        let is_leased = |it: &FleetProcess| it.lease.as_ref().is_some_and(|it| !it.is_over(now));
        is_used(&self.stored) || is_used(&self.passed) || self.processes.iter().any(is_leased)
    }

    fn decide(
        &mut self,
        event: &Event<'_>,
        number: usize,
        call: Call<'_>,
        totals: &mut FleetTotals,
    ) -> Result<Decision, Fault> {
        let (now, operation) = (event.time, event.operation(call.policy));
        totals.decided += 1;
        self.return_expired(now, totals)?;
        let place = self.process(number, call);
        if let (Operation::Take(cost), Some(terms)) = (operation, call.terms)
            && (1..=terms.units()).contains(&cost)
        {
            let decision = self.take(event, (place, cost), (call, terms), totals)?;
            if decision.allowed() {
                self.count(now, cost, call.policy, totals)?;
            }
            return Ok(decision);
        }
        let process = &mut self.processes[place];
        if let Operation::Refund(units) = operation
            && let Some(lease) = &mut process.lease
        {
            lease.refunded(units);
        }
        if let (Operation::Reset, Some(lease)) = (operation, &mut process.lease) {
            let _ = lease.reset();
        }
        if !matches!(operation, Operation::Peek(_)) {
            process.denied = None;
        }
        totals.asked += 1;
        let decision = event.apply(call.policy, &mut self.stored)?;
        match operation {
            Operation::Take(cost) if decision.allowed() => {
                self.count(now, cost, call.policy, totals)?;
            }
            Operation::Take(_) | Operation::Peek(_) => {}
            // Both states see it.
            _ => drop(event.apply(call.policy, &mut self.passed)?),
        }
        Ok(decision)
    }

    /// Units of leases that have expired go back. A process returns them within a quarter of the lifetime; here they come back
    /// before the next event, because no event uses them earlier.
    fn return_expired(&mut self, now: Timestamp, totals: &mut FleetTotals) -> Result<(), Fault> {
        for process in &mut self.processes {
            let Some(lease) = process.lease.as_mut().filter(|it| it.is_over(now)) else { continue };
            if let Some(unspent) = lease.end() {
                let owed = unspent.owed(now, Duration::ZERO);
                give_back(&mut self.stored, &process.policy, owed, now, totals)?;
            }
        }
        Ok(())
    }

    /// The place of a process, which uses the policy of a call from now on.
    fn process(&mut self, number: usize, call: Call<'_>) -> usize {
        let found = self.processes.iter().position(|it| it.number == number);
        found.unwrap_or_else(|| {
            let policy = call.policy.clone();
            self.processes.push(FleetProcess { number, policy, lease: None, denied: None });
            self.processes.len() - 1
        })
    }

    /// Takes units from a lease, or takes the next chunk from the store.
    fn take(
        &mut self,
        event: &Event<'_>,
        (place, cost): (usize, u32),
        (Call { policy, lifetime, .. }, terms): (Call<'_>, LeaseTerms),
        totals: &mut FleetTotals,
    ) -> Result<Decision, Fault> {
        let (now, process) = (event.time, &mut self.processes[place]);
        if process.policy != *policy {
            let unspent = process.lease.as_mut().and_then(|it| it.change(terms));
            let old = std::mem::replace(&mut process.policy, policy.clone());
            process.denied = None;
            if let Some(unspent) = unspent {
                let owed = unspent.owed(now, Duration::ZERO);
                give_back(&mut self.stored, &old, owed, now, totals)?;
            }
        }
        if let Some(decision) = process.repeated(cost, now) {
            return Ok(decision);
        }
        let lease = process.lease.get_or_insert_with(|| Lease::new(terms));
        let (mut units, token) = match lease.take(cost, now, &mut None) {
            LeaseStep::Taken(decision) => return Ok(decision),
            LeaseStep::Refill(units, token) => (units, token),
        };
        let mut ask = |units| {
            totals.asked += 1;
            let taken = apply(policy, &mut self.stored, now, Operation::Take(units));
            taken.map_err(|error| Fault::Unsupported { kind: event.kind, error })
        };
        let mut decision = ask(units)?;
        if !decision.allowed() {
            lease.denied();
            if units > cost {
                // Less units may be allowed.
                units = cost;
                decision = ask(units)?;
            }
        }
        if !decision.allowed() {
            process.denied = Some((cost, decision, now));
            return Ok(decision);
        }
        process.denied = None;
        let window_end = match &self.stored {
            Some(entry) if terms.window().is_some() && units > cost => {
                // It is read from the entry.
                totals.asked += 1;
                lease_window_end(entry, policy, now, [now; 3]).unwrap_or(terms.unknown_end())
            }
            _ => terms.unknown_end(),
        };
        let chunk = Chunk { units, cost, decision, window_end };
        let _ = lease.granted(chunk, token, now, lifetime);
        Ok(decision)
    }

    /// Counts units that pass, and by how much more than the policy has passed now.
    fn count(
        &mut self,
        now: Timestamp,
        units: u32,
        policy: &Policy,
        totals: &mut FleetTotals,
    ) -> Result<(), Fault> {
        if self.passed.as_ref().is_none_or(|it| it.policy() != policy) {
            self.logs.clear();
        }
        self.logs.resize_with(policy.limits().len(), PassedLog::default);
        for (log, limit) in self.logs.iter_mut().zip(policy.limits()) {
            if limit.keeps_log() {
                let passed = log.add(now.as_micros(), units, as_micros(limit.rate().1));
                let excess = passed.saturating_sub(limit.capacity().into());
                totals.excess = totals.excess.max(excess);
            }
        }
        let charged = apply(policy, &mut self.passed, now, Operation::Charge(units));
        let _ = charged.map_err(|error| Fault::Unsupported { kind: Kind::Charge, error })?;
        let usage = self.passed.iter().flat_map(|it| it.usage(now));
        let excess = usage.map(|(limit, usage)| usage.used.saturating_sub(limit.capacity().into()));
        totals.excess = totals.excess.max(excess.max().unwrap_or(0));
        Ok(())
    }
}

impl PassedLog {
    /// Adds units that pass now. Returns how many have passed within a period.
    fn add(&mut self, now: u64, units: u32, period: u64) -> u64 {
        while let Some((_, old)) =
            self.events.pop_front_if(|(at, _)| now.saturating_sub(*at) >= period)
        {
            self.sum -= u64::from(old);
        }
        self.events.push_back((now, units));
        self.sum += u64::from(units);
        self.sum
    }
}

impl FleetProcess {
    /// The denial that it repeats for a request of this cost, if there is one.
    fn repeated(&self, cost: u32, now: Timestamp) -> Option<Decision> {
        let (denied, decision, at) = self.denied.as_ref()?;
        let elapsed = now.since(*at);
        let retry = match decision.retry()? {
            Retry::After(wait) if *denied <= cost && elapsed < wait => Retry::After(wait - elapsed),
            Retry::Never if *denied == cost => Retry::Never,
            _ => return None,
        };
        let reset_after = decision.reset_after.saturating_sub(elapsed);
        Some(Decision { outcome: Outcome::Deny { retry }, reset_after, ..*decision })
    }
}

/// Refunds unspent units to the store.
fn give_back(
    stored: &mut Option<Entry>,
    policy: &Policy,
    units: u32,
    now: Timestamp,
    totals: &mut FleetTotals,
) -> Result<(), Fault> {
    if units > 0 {
        totals.asked += 1;
        let refunded = apply(policy, stored, now, Operation::Refund(units));
        let _ = refunded.map_err(|error| Fault::Unsupported { kind: Kind::Refund, error })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
