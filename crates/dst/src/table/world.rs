//! The table with all that is around it, its clock, and what is checked after each decision.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use sluicegate_conformance::{Invocation, OracleSubject, Subject as _, compare};
use sluicegate_core::{Decision, GcraName, Operation, Outcome, PreparedPolicy, Retry, Timestamp};
use sluicegate_memory::{MemoryStore, WhenFull};
use sluicegate_server::simulation::StateFile;

use super::{disk::SimulatedDisk, flood::Flood, states::KeyStates};
use crate::{
    event_log::{EventLog, Output},
    plan::{Plan, PolicyPlan, TablePlan},
    random::Random,
    time::{START, VirtualTime},
};

/// `retry_after` of a denial because the table is full.
const FULL_RETRY: Duration = Duration::from_secs(1);

/// A request is refused once the bound is reached. The one before may have exceeded it by the growth of the entries of a
/// segment, in bytes.
const ONE_SEGMENT: usize = 64 << 10;

/// A key, its policies and what it may hold.
pub(super) struct Key {
    pub(super) name: Vec<u8>,
    pub(super) policies: Vec<PreparedPolicy>,
    pub(super) used: usize,
    pub(super) states: KeyStates,
}

/// Everything in a run.
pub(super) struct TableWorld<'a> {
    pub(super) plan: &'a Plan,
    /// The next step.
    pub(super) next: usize,
    pub(super) random: Random,
    pub(super) log: EventLog,
    /// Milliseconds since the start, and readings of the clock in the last one.
    pub(super) millis: u64,
    pub(super) readings: u64,
    /// The clock of the host, and by how much it will differ when the process starts again, in microseconds.
    pub(super) offset: i64,
    pub(super) step: i64,
    /// The last reading.
    pub(super) latest: Timestamp,
    pub(super) table: TablePlan,
    pub(super) store: Arc<MemoryStore>,
    pub(super) disk: SimulatedDisk,
    /// The state file, while the process runs.
    pub(super) file: Option<StateFile>,
    /// The numbers of the files that were damaged: a power failure can bring one back.
    pub(super) damaged: BTreeSet<usize>,
    /// The bound of the table that was saved.
    pub(super) saved_max_bytes: usize,
    /// Whether the clock was set back since then: states that begin later than now take more memory.
    pub(super) is_set_back: bool,
    pub(super) is_saving: bool,
    pub(super) keys: Vec<Key>,
    pub(super) floods: Vec<Flood>,
    pub(super) violation: Option<String>,
}

impl<'a> TableWorld<'a> {
    pub(super) fn new(plan: &'a Plan, table: TablePlan, output: Output) -> Result<Self> {
        let random = Random::new(plan.seed, "table");
        let mut keys = Vec::new();
        for (index, key) in plan.keys.iter().enumerate() {
            ensure!(key.0.iter().all(|it| it.lease == 0), "a table has no leases");
            let policies = key.0.iter().map(PolicyPlan::prepare).collect::<Result<_>>()?;
            let name = format!("key{index}").into_bytes();
            keys.push(Key { name, policies, used: 0, states: KeyStates::default() });
        }
        let store = Arc::new(empty(&random, table));
        let disk = SimulatedDisk::new(Random::new(plan.seed, "disk"));
        Ok(Self {
            plan,
            next: 0,
            random,
            log: EventLog::new(VirtualTime::start(), output),
            millis: 0,
            readings: 0,
            offset: 0,
            step: 0,
            latest: Timestamp::EPOCH,
            table,
            store,
            file: Some(disk.open_state_file()?),
            damaged: BTreeSet::new(),
            disk,
            saved_max_bytes: 0,
            is_set_back: false,
            is_saving: false,
            keys,
            floods: Vec::new(),
            violation: None,
        })
    }

    /// The clock of the host. It never goes back while a process runs.
    pub(super) fn now(&mut self) -> Timestamp {
        self.readings += 1;
        let part = (self.readings * 7).min(999);
        let micros = START + self.millis * 1000 + part;
        let now = Timestamp::saturating_from_micros(micros.saturating_add_signed(self.offset));
        self.latest = self.latest.max(now);
        self.latest
    }

    pub(super) fn note(&self, event: std::fmt::Arguments<'_>) {
        self.log.add_at(self.millis, event);
    }

    pub(super) fn violate(&mut self, what: std::fmt::Arguments<'_>) {
        let millis = self.millis;
        self.violation.get_or_insert_with(|| format!("after {millis} ms: {what}"));
    }

    /// Checks a decision that was made because the table is full.
    pub(super) fn check_full(
        &mut self,
        index: usize,
        invocation: Invocation<'_>,
        decision: &Result<Decision, String>,
    ) {
        let Invocation { policy, operation, now, .. } = invocation;
        let states = self.keys[index].states.now.iter().cloned();
        let expected: Vec<_> = states.map(|state| self.when_full(state, invocation)).collect();
        if !expected.iter().any(|expected| compare(expected, decision).is_ok()) {
            self.violate(format_args!(
                "exactness: the full table decides {decision:?} on key{index}, not {expected:?}"
            ));
        }
        let key = &self.keys[index];
        // A key with state is decided as usual, except if its state would grow.
        let is_simple = key.policies.len() == 1
            && policy.as_gcra().is_some_and(|it| !it.borrow() && it.name() != GcraName::LeakyQueue)
            && matches!(operation, Operation::Take(_));
        if is_simple && !key.states.may_have_recovered(policy, now) {
            self.violate(format_args!(
                "exactness: key{index}, which has state, is refused a place"
            ));
        }
    }

    /// The decision on a key in this state whose change has no space.
    pub(super) fn when_full(
        &self,
        mut state: OracleSubject,
        invocation: Invocation<'_>,
    ) -> Result<Decision, String> {
        let mut decision = state.apply(invocation)?;
        let has_happened = matches!(
            invocation.operation,
            Operation::Charge(_) | Operation::Refund(_) | Operation::Reset
        );
        if self.table.when_full == WhenFull::Deny && !has_happened && decision.allowed() {
            decision.outcome = Outcome::Deny { retry: Retry::After(FULL_RETRY) };
            decision.remaining = 0;
        }
        Ok(decision)
    }

    pub(super) fn table_full(&self) -> u64 {
        self.store.usage().table_full
    }

    pub(super) fn check_bounds(&mut self) {
        let usage = self.store.usage();
        if usage.bytes > usage.max_bytes + ONE_SEGMENT {
            let (bytes, max) = (usage.bytes, usage.max_bytes);
            self.violate(format_args!("bounds: the table takes {bytes} bytes of {max}"));
        }
    }
}

/// A table without keys, and with a hash of its own.
pub(super) fn empty(random: &Random, table: TablePlan) -> MemoryStore {
    let keys = std::array::from_fn(|_| random.next());
    MemoryStore::with_hash_keys(keys, table.max_bytes, table.when_full)
}
