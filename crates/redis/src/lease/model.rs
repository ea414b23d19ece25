//! Leases against a model: the state that the key would have if no unspent unit had been taken.
//!
//! Requests use the oldest units first. A refund returns no drained unit if the debt after it is at least that of the model.

use proptest::prelude::*;
use sluicegate_core::{Decision, Entry, Operation, PreparedPolicy, apply};

use super::*;

const LIFETIME: Duration = Duration::from_millis(60);
/// Maximum time until a refund of unspent units arrives.
const LATE: Duration = Duration::from_millis(5);

#[derive(Clone, Debug)]
enum Step {
    /// Microseconds pass.
    Pass(u64),
    /// A request to the lease.
    Take(u32),
    /// The refill in flight is applied by the store, or granted.
    Refill,
    /// Another client takes units.
    Other(u32),
    Expire,
    /// The application begins to refund units, or to reset the key.
    Remove(Operation<'static>),
    /// That operation is applied by the store, or ends.
    Removal,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..40_000_u64).prop_map(Step::Pass),
        4 => (1..=30_u32).prop_map(Step::Take),
        6 => Just(Step::Refill),
        2 => (1..=300_u32).prop_map(Step::Other),
        1 => Just(Step::Expire),
        1 => (1..=60_u32).prop_map(|units| Step::Remove(Operation::Refund(units))),
        1 => Just(Step::Remove(Operation::Reset)),
        3 => Just(Step::Removal),
    ];
    prop::collection::vec(step, 1..200)
}

fn policies() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "gcra:1000/1s:burst=400",
        "leaky-bucket:2000/1s:capacity=300,gcra:200/1s:burst=400",
    ])
}

/// A change of the state in the store.
#[derive(Debug)]
enum Change {
    Chunk { used: u32, unspent: u32 },
    Other(Operation<'static>),
}

#[derive(Debug)]
struct Refill {
    chunk: u32,
    cost: u32,
    token: RefillToken,
    clears: u32,
    /// The index of the change, and the decision.
    applied: Option<(usize, Decision)>,
    _lock: Arc<tokio::sync::Mutex<()>>,
}

/// A refund or reset by the application, in flight.
#[derive(Clone, Copy, Debug)]
struct Removal {
    operation: Operation<'static>,
    begun: Timestamp,
    is_applied: bool,
}

struct World {
    now: Timestamp,
    leases: Leases,
    policy: PlannedPolicy,
    stored: Option<Entry>,
    changes: Vec<(Timestamp, Change)>,
    refill: Option<Refill>,
    removal: Option<Removal>,
    /// Refunds of unspent units, with the times at which they arrive.
    returns: Vec<(Timestamp, u32)>,
    /// Number of times that the lease was cleared.
    clears: u32,
    returned: u32,
}

impl World {
    fn new(policy: &str) -> Self {
        let policy: PreparedPolicy = policy.parse().unwrap();
        Self {
            now: Timestamp::EPOCH + Duration::from_hours(1),
            leases: Leases::new(1, LIFETIME, RandomState::new()),
            policy: PlannedPolicy::new(&policy.lease(100).unwrap()),
            stored: None,
            changes: Vec::new(),
            refill: None,
            removal: None,
            returns: Vec::new(),
            clears: 0,
            returned: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Pass(micros) => {
                let then = self.now + Duration::from_micros(micros);
                // An operation takes less time than a lease lasts.
                if self.removal.is_some_and(|it| then >= it.begun + LIFETIME) {
                    return;
                }
                self.receive_returns(then);
                self.now = then;
            }
            Step::Take(cost) => self.take(cost),
            Step::Refill => self.step_refill(),
            Step::Other(cost) => {
                let _ = self.apply(Operation::Take(cost));
            }
            Step::Expire => {
                self.leases.expired(Some(self.now)).iter().for_each(|it| self.give_back(it));
            }
            Step::Remove(operation) if self.removal.is_none() => {
                self.receive_returns(self.now + LATE);
                self.forget(operation);
                self.removal = Some(Removal { operation, begun: self.now, is_applied: false });
            }
            Step::Remove(_) => {}
            Step::Removal => match self.removal.take() {
                Some(removal) if !removal.is_applied => {
                    let _ = self.apply(removal.operation);
                    self.removal = Some(Removal { is_applied: true, ..removal });
                }
                Some(removal) => self.forget(removal.operation),
                None => {}
            },
        }
        assert_eq!(self.pool().map(|unspent| *unspent).sum::<u32>(), self.left());
    }

    fn take(&mut self, cost: u32) {
        let mut expired = None;
        let outcome = self.leases.take(b"k", &self.policy, cost, self.now, &mut expired);
        expired.iter().for_each(|it| self.give_back(it));
        match outcome {
            LeaseOutcome::Taken(_) => self.hand_out(cost),
            LeaseOutcome::Refill(lock, chunk, token) if self.refill.is_none() => {
                let clears = self.clears;
                let refill = Refill { chunk, cost, token, clears, applied: None, _lock: lock };
                self.refill = Some(refill);
            }
            // Another request has the lock.
            LeaseOutcome::Refill(..) => {}
            LeaseOutcome::Full => panic!("one key is too many"),
        }
    }

    /// As `take_leased` does.
    fn step_refill(&mut self) {
        let Some(refill) = self.refill.take() else { return };
        let Refill { chunk, cost, token, clears, applied, .. } = refill;
        let Some((index, decision)) = applied else {
            let (decision, index) = self.apply(Operation::Take(chunk));
            if decision.allowed() {
                self.refill = Some(Refill { applied: Some((index, decision)), ..refill });
            } else if chunk > cost {
                self.leases.denied(b"k");
                self.refill = Some(Refill { chunk: cost, ..refill });
            }
            return;
        };
        let granted = Chunk { units: chunk, cost, decision, window_end: Timestamp::MAX };
        let lost = self.leases.granted(b"k", &self.policy, granted, (token, self.now));
        if clears != self.clears {
            assert_eq!(lost, chunk - cost);
            self.changes[index].1 = Change::Chunk { used: cost, unspent: 0 };
            return;
        }
        if lost > 0 {
            self.forfeit();
        }
        self.changes[index].1 = Change::Chunk { used: 0, unspent: chunk };
        self.hand_out(cost);
    }

    /// Applies an operation in the store, and returns the index of the change.
    fn apply(&mut self, operation: Operation<'static>) -> (Decision, usize) {
        let decision = apply(&self.policy.policy, &mut self.stored, self.now, operation).unwrap();
        if decision.allowed() {
            self.changes.push((self.now, Change::Other(operation)));
        }
        (decision, self.changes.len().saturating_sub(1))
    }

    /// As a store does, before and after an operation.
    fn forget(&mut self, operation: Operation) {
        if let Operation::Refund(units) = operation {
            return self.leases.refunded(b"k", units);
        }
        self.clears += 1;
        let left = self.leases.forget(b"k");
        assert_eq!(left, self.forfeit());
    }

    fn give_back(&mut self, unspent: &UnspentLease) {
        assert_eq!(unspent.unspent.units, self.forfeit());
        let owed = unspent.unspent.owed(self.now, LATE);
        let after = Duration::from_micros(u64::from(owed) * 97 % 5_001);
        self.returns.push((self.now + after, owed));
    }

    /// Applies the refunds of unspent units that arrive by `until`.
    fn receive_returns(&mut self, until: Timestamp) {
        self.returns.sort_unstable();
        while self.returns.first().is_some_and(|(at, _)| *at <= until) {
            let (at, units) = self.returns.remove(0);
            let refund = Operation::Refund(units);
            let _ = apply(&self.policy.policy, &mut self.stored, at, refund).unwrap();
            self.returned += units;
            let (debts, model) = (self.debts(&self.stored, at), self.debts(&self.model(), at));
            let is_owed = debts.iter().zip(&model).all(|(debt, model)| debt >= model);
            assert!(is_owed, "{debts:?} of {model:?}, after {units} units");
        }
    }

    /// Of each limit, the time until nothing is in use.
    fn debts(&self, entry: &Option<Entry>, now: Timestamp) -> Vec<Duration> {
        let unused = Entry::unused(&self.policy.policy);
        let entry = entry.as_ref().unwrap_or(&unused);
        entry.usage(now).map(|(_, usage)| usage.reset_after).collect()
    }

    /// The state without unspent units.
    fn model(&self) -> Option<Entry> {
        let mut entry = None;
        for (at, change) in &self.changes {
            let operation = match *change {
                Change::Chunk { used, .. } => Operation::Charge(used),
                Change::Other(operation) => operation,
            };
            let _ = apply(&self.policy.policy, &mut entry, *at, operation).unwrap();
        }
        entry
    }

    /// The unspent units of each chunk, oldest first.
    fn pool(&mut self) -> impl Iterator<Item = &mut u32> {
        self.changes.iter_mut().filter_map(|(_, change)| match change {
            Change::Chunk { unspent, .. } => Some(unspent),
            Change::Other(_) => None,
        })
    }

    fn forfeit(&mut self) -> u32 {
        self.pool().map(std::mem::take).sum()
    }

    fn hand_out(&mut self, cost: u32) {
        let mut rest = cost;
        for (_, change) in &mut self.changes {
            if let Change::Chunk { used, unspent } = change {
                let units = rest.min(*unspent);
                (*used, *unspent, rest) = (*used + units, *unspent - units, rest - units);
            }
        }
        assert_eq!(rest, 0, "units that were not taken are used");
    }

    fn left(&self) -> u32 {
        self.leases.shard(b"k").lock().get(&b"k"[..]).map_or(0, |it| it.lease.left())
    }
}

proptest! {
    #[test]
    fn refund_of_unspent_units_returns_no_drained_unit(policy in policies(), steps in steps()) {
        let mut world = World::new(policy);
        steps.iter().for_each(|step| world.step(step));
    }
}
