//! Several processes that lease from one store, against the law of leases: what is spent in an interval was taken at most the
//! lifetime of a lease before, and no unit of one fixed window is spent in the next.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sluicegate_core::{
    Decision, Entry, Forgets, Operation, PreparedPolicy, apply, as_micros, lease_window_end,
};

use super::*;

const LIFETIME: Duration = Duration::from_millis(100);
/// Maximum time until a command arrives at the store, and until its reply arrives.
const LATE: Duration = Duration::from_millis(5);
const PROCESSES: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    /// Microseconds pass.
    Pass(u64),
    /// A request of one process, whose command arrives after some microseconds, and its reply after others.
    Take { process: usize, cost: u32, travel: [u64; 2] },
    /// The leases of a process that have expired are returned.
    Expire { process: usize, travel: u64 },
    /// A client without leases takes units.
    Other(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let travel = || 0..=5_000_u64;
    let step = prop_oneof![
        3 => (0..30_000_u64).prop_map(Step::Pass),
        9 => (0..PROCESSES, 1..=9_u32, [travel(), travel()])
            .prop_map(|(process, cost, travel)| Step::Take { process, cost, travel }),
        1 => (0..PROCESSES, travel()).prop_map(|(process, travel)| Step::Expire { process, travel }),
        1 => (1..=60_u32).prop_map(Step::Other),
    ];
    prop::collection::vec(step, 1..300)
}

fn policies() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "gcra:1000/1s:burst=200",
        "gcra:1000/1s:burst=200,token-bucket:4000/1s:burst=100",
        "token-bucket:30/50ms:refill=interval:burst=90",
        "fixed-window:200/300ms",
        "fixed-window:90/100ms:align=clock",
        "fixed-window:500/1s,fixed-window:100/200ms:align=clock",
        "sliding-log:100/150ms",
        "sliding-log:100/40ms",
        "sliding-counter:200/250ms",
        "sliding-log:300/500ms,gcra:900/1s:burst=150,fixed-window:120/200ms",
    ])
}

struct World {
    now: Timestamp,
    policy: PlannedPolicy,
    stored: Option<Entry>,
    processes: Vec<Leases>,
    /// When units were spent, and how many in which windows: the place of the limit, and the end.
    spent: Vec<(Timestamp, u32)>,
    windows: BTreeMap<(usize, u64), u64>,
    /// Refunds, when they arrive.
    returns: Vec<(Timestamp, u32)>,
    returned: u64,
}

impl World {
    fn new(policy: &str) -> Self {
        let policy: PreparedPolicy = policy.parse().unwrap();
        Self {
            now: Timestamp::EPOCH + Duration::from_hours(1),
            policy: PlannedPolicy::new(&policy.lease(50).unwrap()),
            stored: None,
            processes: (0..PROCESSES)
                .map(|_| Leases::new(1, LIFETIME, RandomState::new()))
                .collect(),
            spent: Vec::new(),
            windows: BTreeMap::new(),
            returns: Vec::new(),
            returned: 0,
        }
    }

    fn pass(&mut self, micros: u64) {
        let then = self.now + Duration::from_micros(micros);
        self.returns.sort_unstable();
        while self.returns.first().is_some_and(|(at, _)| *at <= then) {
            let (at, units) = self.returns.remove(0);
            let _ = self.apply(Operation::Refund(units), at);
            self.returned += u64::from(units);
        }
        self.now = then;
    }

    fn apply(&mut self, operation: Operation<'static>, at: Timestamp) -> Decision {
        apply(&self.policy.policy, &mut self.stored, at, operation).unwrap()
    }

    fn give_back(&mut self, unspent: Option<UnspentLease>, travel: u64) {
        let owed = unspent.map_or(0, |it| it.unspent.owed(self.now, LATE));
        if owed > 0 {
            self.returns.push((self.now + Duration::from_micros(travel), owed));
        }
    }

    /// Spends units, which count in the windows now open.
    fn spend(&mut self, units: u32) {
        let micros = self.now.as_micros();
        let entry = self.stored.as_ref().unwrap();
        let usage: Vec<_> = entry.usage(self.now).collect();
        for (place, &(limit, usage)) in usage.iter().enumerate() {
            if limit.forgets() != Forgets::ByWindow {
                continue;
            }
            // When that window ends.
            let end = micros + as_micros(usage.reset_after);
            assert!(end > micros, "no window of {limit} is open");
            *self.windows.entry((place, end)).or_default() += u64::from(units);
        }
        self.spent.push((self.now, units));
    }

    /// As `take_leased` does, but only one request is made at a time.
    fn take(&mut self, process: usize, cost: u32, [there, back]: [u64; 2]) {
        let mut expired = None;
        let sent = self.now;
        let outcome = self.processes[process].take(b"k", &self.policy, cost, sent, &mut expired);
        self.give_back(expired, there);
        let (chunk, token) = match outcome {
            LeaseOutcome::Taken(_) => return self.spend(cost),
            LeaseOutcome::Refill(_, chunk, token) => (chunk, token),
            LeaseOutcome::Full => panic!("one key is too many"),
        };
        self.pass(there);
        let mut units = chunk;
        let mut decision = self.apply(Operation::Take(chunk), self.now);
        if !decision.allowed() && chunk > cost {
            self.processes[process].denied(b"k");
            units = cost;
            decision = self.apply(Operation::Take(cost), self.now);
        }
        if !decision.allowed() {
            return;
        }
        // The request is decided by the store, when its command arrives.
        self.spend(cost);
        self.pass(back);
        let mut window_end = self.policy.terms.unknown_end();
        if units > cost && self.policy.terms.window().is_some() {
            let asked = self.now;
            self.pass(there);
            let (entry, by_store) = (self.stored.clone(), self.now);
            self.pass(back);
            let times = [sent, asked, self.now];
            let end = entry
                .and_then(|entry| lease_window_end(&entry, &self.policy.policy, by_store, times));
            window_end = end.unwrap_or(window_end);
        }
        let granted = Chunk { units, cost, decision, window_end };
        let _ = self.processes[process].granted(b"k", &self.policy, granted, (token, self.now));
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Pass(micros) => self.pass(micros),
            Step::Take { process, cost, travel } => self.take(process, cost, travel),
            Step::Expire { process, travel } => {
                for unspent in self.processes[process].expired(Some(self.now)) {
                    self.give_back(Some(unspent), travel);
                }
            }
            Step::Other(cost) => {
                if self.apply(Operation::Take(cost), self.now).allowed() {
                    self.spend(cost);
                }
            }
        }
    }

    /// The law: what is spent from one time to another was taken in that interval and the lifetime before it.
    fn check(&self) {
        let lifetime = as_micros(LIFETIME);
        for (index, &(from, _)) in self.spent.iter().enumerate() {
            let mut sum = 0;
            for &(to, units) in &self.spent[index..] {
                sum += u128::from(units);
                let micros = as_micros(to.since(from)) + 1 + lifetime;
                for limit in self.policy.policy.limits() {
                    let most = limit.max_admitted(micros);
                    assert!(sum <= most, "{sum} of {most} units under {limit} in {micros} us");
                }
            }
        }
        for (&(place, end), &units) in &self.windows {
            let limit = &self.policy.policy.limits()[place];
            assert!(units <= limit.rate().0.into(), "{units} units under {limit} to {end}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn spent_units_were_taken_at_most_a_lifetime_before(policy in policies(), steps in steps()) {
        let mut world = World::new(policy);
        steps.iter().for_each(|step| world.step(step));
        world.check();
    }
}
