//! The table with all that is around it, its clock, and what is checked after each decision.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use sluicegate_conformance::{Invocation, OracleSubject, Subject as _, compare};
use sluicegate_core::{
    Decision, GcraName, KeyedOperation, Operation, Outcome, PreparedPolicy,
    Request as StoreRequest, Retry, Timestamp,
};
use sluicegate_memory::{MemoryStore, WhenFull};
use sluicegate_server::simulation::{StateFile, read_state_file};

use super::{
    disk::{Off, STATE_FILE, SimulatedDisk},
    plan::{Action, Table, plan},
    states::{Flood, KeyStates, Presence, TAKE, distinguish},
};
use crate::{
    event_log::{EventLog, Output, RunOutcome},
    oracle::{decide_denied, on_key},
    plan::{self, Plan, PolicyPlan, Request, Step},
    random::Random,
    time::{VirtualTime, start_of_clock},
};

impl plan::World for Table {
    type Action = Action;
    const NAME: &str = "table";

    fn generate(seed: u64, random: &Random) -> Plan<Self> {
        plan(seed, random)
    }

    fn run(plan: &Plan<Self>, output: Output) -> Result<RunOutcome> {
        run(plan, output)
    }
}

/// `retry_after` of a denial because the table is full.
const FULL_RETRY: Duration = Duration::from_secs(1);

/// A request is refused once the bound is reached. The one before may have exceeded it by the growth of the entries of a
/// segment, in bytes.
const ONE_SEGMENT: usize = 64 << 10;

/// A key, its policies and what it may hold.
struct Key {
    name: Vec<u8>,
    policies: Vec<PreparedPolicy>,
    used: usize,
    states: KeyStates,
}

/// Everything in a run.
struct TableWorld<'a> {
    plan: &'a Plan<Table>,
    /// The next step.
    next: usize,
    random: Random,
    log: EventLog,
    /// What the clock shows at the start, in microseconds.
    start: u64,
    /// Milliseconds since then, and readings of the clock in the last one.
    millis: u64,
    readings: u64,
    /// The clock of the host, and by how much it will differ when the process starts again, in microseconds.
    offset: i64,
    step: i64,
    /// The last reading.
    latest: Timestamp,
    table: Table,
    store: Arc<MemoryStore>,
    disk: SimulatedDisk,
    /// The state file, while the process runs.
    file: Option<StateFile>,
    /// The numbers of the files that were damaged: a power failure can bring one back.
    damaged: BTreeSet<usize>,
    /// The bound of the table that was saved.
    saved_max_bytes: usize,
    /// Whether the clock was set back since then: states that begin later than now take more memory.
    is_set_back: bool,
    is_saving: bool,
    keys: Vec<Key>,
    floods: Vec<Flood>,
    /// Keys with a policy each, of this start of the process.
    own: BTreeMap<usize, OracleSubject>,
    starts: u64,
    violation: Option<String>,
}

impl<'a> TableWorld<'a> {
    fn new(plan: &'a Plan<Table>, output: Output) -> Result<Self> {
        let (random, table) = (Random::new(plan.seed, "table"), plan.world);
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
            log: EventLog::new(&VirtualTime::start(), output),
            start: start_of_clock(&Random::new(plan.seed, "clock")),
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
            own: BTreeMap::new(),
            starts: 0,
            violation: None,
        })
    }

    /// The clock of the host. It never goes back while a process runs.
    fn now(&mut self) -> Timestamp {
        self.readings += 1;
        let part = (self.readings * 7).min(999);
        let micros = self.start + self.millis * 1000 + part;
        let now = Timestamp::saturating_from_micros(micros.saturating_add_signed(self.offset));
        self.latest = self.latest.max(now);
        self.latest
    }

    fn note(&self, event: std::fmt::Arguments<'_>) {
        self.log.add_at(self.millis, event);
    }

    fn violate(&mut self, what: std::fmt::Arguments<'_>) {
        let millis = self.millis;
        self.violation.get_or_insert_with(|| format!("after {millis} ms: {what}"));
    }

    /// Checks a decision that was made because the table is full.
    fn check_full(
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
    fn when_full(
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

    fn table_full(&self) -> u64 {
        self.store.usage().table_full
    }

    fn check_bounds(&mut self) {
        let usage = self.store.usage();
        if usage.bytes > usage.max_bytes + ONE_SEGMENT {
            let (bytes, max) = (usage.bytes, usage.max_bytes);
            self.violate(format_args!("bounds: the table takes {bytes} bytes of {max}"));
        }
    }
}

/// A table without keys, and with a hash of its own.
fn empty(random: &Random, table: Table) -> MemoryStore {
    let keys = std::array::from_fn(|_| random.next());
    MemoryStore::with_hash_keys(keys, table.max_bytes, table.when_full)
}

// The steps of a run: requests, snapshots and restarts.

/// Runs a plan of a table.
pub(super) fn run(plan: &Plan<Table>, output: Output) -> Result<RunOutcome> {
    let mut world = TableWorld::new(plan, output)?;
    while world.next < plan.steps.len() && world.violation.is_none() {
        world.take_step()?;
        // The states of a key double with each batch that finds the table full.
        if world.keys.iter().any(|key| key.states.are_too_many()) {
            world.note(format_args!("ends: a key may have too many states"));
            break;
        }
    }
    world.finish();
    Ok(RunOutcome::new(&world.log, world.millis, world.violation))
}

impl TableWorld<'_> {
    fn take_step(&mut self) -> Result<()> {
        let plan = self.plan;
        let step = &plan.steps[self.next];
        self.next += 1;
        if step.at != self.millis {
            (self.millis, self.readings) = (step.at, 0);
        }
        if !matches!(step.action, Action::Request(_)) {
            self.note(format_args!("step: {step}"));
        }
        self.act(step)
    }

    fn act(&mut self, step: &Step<Action>) -> Result<()> {
        match &step.action {
            Action::Request(requests) => self.request(requests),
            Action::UsePolicy { key, policy } => self.keys[*key].used = *policy,
            Action::Flood { key, count } => self.flood(*key, *count),
            Action::Revisit { flood, first, count } => self.revisit(*flood, *first, *count),
            Action::OwnPolicies { first, count } => self.own_policies(*first, *count)?,
            Action::Holds { first, count } => self.holds(*first, *count)?,
            Action::RemoveLock => self.disk.remove_lock(),
            Action::StepClock { millis } => self.step += millis * 1000,
            Action::Save { steps } => self.save(*steps)?,
            Action::FillDisk { kib } => self.disk.fill(kib << 10),
            Action::FailDisk { after } => self.disk.fail_in(*after),
            Action::FailPower { after: 0 } => self.restart(0, End::Power)?,
            Action::FailPower { after } => self.disk.fail_power_in(*after),
            Action::Crash { kib } => self.restart(*kib, End::Process)?,
            Action::Stop { kib } => {
                self.save(0)?;
                self.restart(*kib, End::Process)?;
            }
            Action::Damage { cut } => self.restart(0, End::Damage(*cut))?,
        }
        Ok(())
    }

    /// Looks at every key once more.
    fn finish(&mut self) {
        for index in 0..self.keys.len() {
            self.request_one(index, Request::Peek(1));
        }
    }
}

// The state file of a table: while a snapshot is written, other things happen.

/// Damage to the file as the process ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Nothing.
    Process,
    /// The power fails as well, so that what was not synced is lost in part.
    Power,
    /// It is cut by this number of bytes, or one of its bits changes if that is 0.
    Damage(usize),
}

impl TableWorld<'_> {
    /// Writes a snapshot, and takes the next `steps` while it does.
    fn save(&mut self, steps: usize) -> Result<()> {
        let Some(mut file) = self.file.take() else { return Ok(()) };
        let (now, store) = (self.now(), Arc::clone(&self.store));
        self.is_saving = true;
        self.keys.iter_mut().for_each(|key| key.states.begin_save());
        self.floods.iter_mut().for_each(Flood::begin_save);
        let before = self.disk.number(Path::new(STATE_FILE));
        let every = 1 + self.random.below(1 << self.random.below(12));
        let mut left = steps;
        let saved = file.replace(|out| {
            let next = || self.step_while_saving(&mut left);
            store.save(InterleavedWriter { out, next: Some(next), every, writes: 0 }, now)
        });
        self.file = Some(file);
        self.is_saving = false;
        let is_replaced = self.disk.number(Path::new(STATE_FILE)) != before;
        self.note(format_args!("saved: {saved:?}; {:?}", store.usage()));
        match saved {
            Ok(_) => {
                (self.saved_max_bytes, self.is_set_back) = (self.table.max_bytes, false);
                self.keys.iter_mut().for_each(|key| key.states.end_save());
                self.floods.iter_mut().for_each(Flood::end_save);
            }
            Err(_) if is_replaced => {
                self.saved_max_bytes = self.saved_max_bytes.max(self.table.max_bytes);
                self.keys.iter_mut().for_each(|key| key.states.may_end_save());
                self.floods.iter_mut().for_each(Flood::may_end_save);
            }
            Err(_) => {}
        }
        match self.disk.off() {
            None => self.check_names("after a snapshot"),
            // The next step starts it again.
            Some(Off::Process) => {}
            Some(Off::Power) => self.restart(0, End::Power)?,
        }
        Ok(())
    }

    /// Takes the next of `left` steps, unless it ends the process, which ends the snapshot. Whether another may follow.
    fn step_while_saving(&mut self, left: &mut usize) -> io::Result<bool> {
        if *left == 0 {
            return Ok(false);
        }
        *left -= 1;
        let next = self.plan.steps.get(self.next);
        match next.map(|step| &step.action) {
            Some(Action::Crash { .. } | Action::FailPower { .. } | Action::Damage { .. }) => {
                self.disk.turn_off(Off::Process);
                Err(io::Error::other("the process ends"))
            }
            // One snapshot at a time.
            None | Some(Action::Save { .. } | Action::Stop { .. }) => Ok(false),
            Some(_) => self.take_step().map(|()| true).map_err(io::Error::other),
        }
    }

    /// The process ends, and starts again from its file. The bound of its table is then `kib` KiB; 0: as before.
    fn restart(&mut self, kib: usize, end: End) -> Result<()> {
        if self.step < 0 {
            self.is_set_back = true;
            for key in &mut self.keys {
                let policies: Vec<_> = key.policies.iter().map(|it| it.policy()).collect();
                key.states.forget_recovered(&policies, self.latest);
            }
            self.floods.iter_mut().for_each(|flood| flood.forget_recovered(self.latest));
        }
        self.offset += std::mem::take(&mut self.step);
        self.latest = Timestamp::EPOCH;
        if kib > 0 {
            self.table.max_bytes = kib << 10;
        }
        let now = self.now();
        self.disk.turn_off(if end == End::Power { Off::Power } else { Off::Process });
        self.file = None;
        self.disk.start_process();
        if let End::Damage(cut) = end {
            self.damage(cut);
        }
        self.file = Some(self.disk.open_state_file()?);
        let found = self.disk.number(Path::new(STATE_FILE));
        let is_damaged = found.is_some_and(|it| self.damaged.contains(&it));
        let read = |world: &Self| {
            let Table { max_bytes, when_full } = world.table;
            read_state_file(&world.disk, Path::new(STATE_FILE), now, max_bytes, when_full)
        };
        let mut loaded = read(self);
        if let Err(error) = &loaded
            && error.kind() == io::ErrorKind::InvalidInput
        {
            let needed = needed_bytes(&error.to_string()).context("an error without the bytes")?;
            // A clock that was set back needs more than the keys did.
            if self.table.max_bytes >= self.saved_max_bytes && !self.is_set_back {
                self.violate(format_args!("exactness: the file does not fit into as much memory"));
            }
            // The operator raises the bound to what the error says.
            self.table.max_bytes = needed;
            loaded = read(self);
        }
        let loaded = loaded.context("cannot read the state file")?;
        if loaded.is_some() && is_damaged {
            self.violate(format_args!("exactness: a damaged file was read"));
        }
        if loaded.is_none() && found.is_some() && !is_damaged {
            self.violate(format_args!("exactness: a whole file was not read"));
        }
        self.check_names("after a start");
        self.store = Arc::new(loaded.unwrap_or_else(|| empty(&self.random, self.table)));
        self.own.clear();
        self.starts += 1;

        let usage = self.store.usage();
        self.note(format_args!("started with {usage:?}"));
        for (key, plan) in self.keys.iter_mut().zip(&self.plan.keys) {
            // Policies belong to the store that used them first.
            key.policies = plan.0.iter().map(PolicyPlan::prepare).collect::<Result<_>>()?;
            key.states.restart(is_damaged);
        }
        self.floods.iter_mut().for_each(|flood| flood.restart(is_damaged));
        self.check_bounds();
        Ok(())
    }

    /// Damages the file, if there is one.
    fn damage(&mut self, cut: usize) {
        self.damaged.extend(self.disk.number(Path::new(STATE_FILE)));
        self.disk.damage(Path::new(STATE_FILE), |bytes| match cut {
            1.. => bytes.truncate(bytes.len().saturating_sub(cut)),
            0 => {
                let index = self.random.index(bytes.len());
                bytes[index] ^= 1 << self.random.below(8);
            }
        });
    }

    /// No snapshot is left that is incomplete.
    fn check_names(&mut self, when: &str) {
        if let Some(name) = self.disk.leftover() {
            self.violate(format_args!("bounds: {} is left {when}", name.display()));
        }
    }
}

/// Writes to `out`; at every `every`th write, something else happens before it, for as long as `next` returns true.
struct InterleavedWriter<W, F> {
    out: W,
    next: Option<F>,
    every: u64,
    writes: u64,
}

impl<W: Write, F: FnMut() -> io::Result<bool>> Write for InterleavedWriter<W, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writes += 1;
        if self.writes.is_multiple_of(self.every)
            && let Some(next) = &mut self.next
            && !next()?
        {
            self.next = None;
        }
        self.out.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

// Requests: on one key, on several at once, and on floods of them.

impl TableWorld<'_> {
    fn request(&mut self, requests: &[(usize, Request)]) {
        let takes: Option<Vec<(usize, u32)>> = requests
            .iter()
            .map(|&(key, it)| if let Request::Take(cost) = it { Some((key, cost)) } else { None })
            .collect();
        match takes {
            Some(takes) if takes.len() > 1 => self.take_all(&takes),
            _ => requests.iter().for_each(|&(key, it)| self.request_one(key, it)),
        }
    }

    fn request_one(&mut self, index: usize, request: Request) {
        let (now, store, before) = (self.now(), Arc::clone(&self.store), self.table_full());
        if request == Request::Reset && now.as_micros().is_multiple_of(2) {
            self.check_reset(index, now);
        }
        let key = &self.keys[index];
        let policy = key.policies[key.used].clone();
        let id = request.hold_id();
        let operation = request.operation(&id);
        let numbered = store.numbered(&policy, now);
        let decision = store
            .apply_numbered(&key.name, &numbered, now, operation)
            .map_err(|error| error.to_string());
        let integers = decision.as_ref().map(Decision::to_integers);
        self.note(format_args!("{request} of key{index} at {now}: {integers:?}"));
        let invocation = on_key(policy.policy(), operation, now);
        if self.table_full() > before {
            self.check_full(index, invocation, &decision);
        } else if let Err(expected) =
            self.keys[index].states.observe(invocation, &decision, self.is_saving)
        {
            self.violate(format_args!(
                "exactness: key{index}: {request} under {} at {now}: {decision:?}, but the oracle decides {expected:?}",
                policy.policy()
            ));
        }
        self.check_bounds();
    }

    /// A reset under no policy, which says whether there was state.
    fn check_reset(&mut self, index: usize, now: Timestamp) {
        let key = &self.keys[index];
        let had_state = self.store.reset(&key.name, now);
        let policies: Vec<_> = key.policies.iter().map(PreparedPolicy::policy).collect();
        if !key.states.may_have_state(&policies, now).contains(&had_state) {
            self.violate(format_args!(
                "exactness: key{index}: a reset at {now} says {had_state} of its state"
            ));
        }
    }

    /// A take on several keys, all or nothing.
    fn take_all(&mut self, takes: &[(usize, u32)]) {
        let (now, before) = (self.now(), self.table_full());
        let policies: Vec<_> = takes
            .iter()
            .map(|&(key, _)| self.keys[key].policies[self.keys[key].used].clone())
            .collect();
        let keyed: Vec<_> = takes
            .iter()
            .zip(&policies)
            .map(|(&(key, cost), policy)| KeyedOperation {
                key: &self.keys[key].name,
                policy,
                operation: Operation::Take(cost),
            })
            .collect();
        let request = StoreRequest::all(&keyed).map_err(Into::into);
        let taken = request.and_then(|request| self.store.apply_all(request, now));
        self.note(format_args!("take {takes:?} at {now}: {taken:?}"));
        let is_full = self.table_full() > before;
        let Ok(taken) = taken else { return };
        // A key that occurs twice counts once, the first time.
        let mut seen = BTreeSet::new();
        let first = takes.iter().zip(&policies).filter(|((key, _), _)| seen.insert(*key));
        for (turn, (&(index, cost), policy)) in first.enumerate() {
            let take = on_key(policy.policy(), Operation::Take(cost), now);
            let (mut possible, mut expected) = (Vec::new(), None);
            for state in std::mem::take(&mut self.keys[index].states.now) {
                let mut after = state.clone();
                let decision = if taken.allowed() {
                    after.apply(take)
                } else {
                    decide_denied(&mut after, take)
                };
                // Without space for all keys, each may have been counted or not.
                if is_full {
                    let mut taken = state.clone();
                    let _ = taken.apply(take);
                    possible.extend([state, after, taken]);
                } else if decision.as_ref() == Ok(&taken.each()[turn]) {
                    possible.push(after);
                } else {
                    expected = Some(decision);
                }
            }
            if possible.is_empty() {
                self.violate(format_args!(
                    "exactness: key{index} under {} in {takes:?} at {now}: {:?}, but the oracle decides {expected:?}",
                    policy.policy(), taken.each()[turn]
                ));
            }
            distinguish(&mut possible);
            let states = &mut self.keys[index].states;
            for state in possible {
                states.add(state, self.is_saving);
            }
        }
        self.check_bounds();
    }

    /// Takes from new keys.
    fn flood(&mut self, key: usize, count: usize) {
        let (now, store) = (self.now(), Arc::clone(&self.store));
        let policy = self.keys[key].policies[0].clone();
        let take = on_key(policy.policy(), TAKE, now);
        let mut taken = OracleSubject::default();
        let expected = taken.apply(take);
        let when_full = self.when_full(OracleSubject::default(), take);
        let numbered = store.numbered(&policy, now);
        let number = self.floods.len();
        let mut stored = Vec::with_capacity(count);
        for index in 0..count {
            let (before, name) = (store.usage().table_full, name(number, index));
            let decision = store.apply_numbered(name.as_bytes(), &numbered, now, TAKE);
            let decision = decision.map_err(|error| error.to_string());
            let is_full = store.usage().table_full > before;
            stored.push(!is_full && decision.as_ref().is_ok_and(Decision::allowed));
            let right = match (is_full, &decision, &when_full) {
                (false, decision, _) => *decision == expected,
                (true, decision, expected) => decision == expected,
            };
            if !right {
                self.violate(format_args!(
                    "exactness: {name} under {} at {now}: {decision:?}, not {expected:?} (full: {is_full})",
                    policy.policy()
                ));
                return;
            }
        }
        let kept = stored.iter().filter(|&&stored| stored).count();
        self.note(format_args!("{kept} of {count} keys had space at {now}"));
        self.check_bounds();
        // The running snapshot may have any of them, and the last one none.
        self.floods.push(Flood {
            policy: policy.policy().clone().into(),
            taken,
            stored,
            now: Presence::Present,
            saving: if self.is_saving { Presence::Maybe } else { Presence::Absent },
            saved: Presence::Absent,
            visited: BTreeMap::new(),
        });
    }

    /// Holds a unit of each key, and settles it at once.
    fn holds(&mut self, first: usize, count: usize) -> Result<()> {
        let store = Arc::clone(&self.store);
        let policy: PreparedPolicy = "concurrency:1/1h".parse()?;
        for index in first..first + count {
            let (now, name) = (self.now(), format!("held{index}"));
            let numbered = store.numbered(&policy, now);
            let mut state = OracleSubject::default();
            let hold = Operation::Hold { id: b"hold", cost: 1, ttl: None };
            for operation in [hold, Operation::Settle { id: b"hold", used: None }] {
                let before = store.usage().table_full;
                let decision = store.apply_numbered(name.as_bytes(), &numbered, now, operation);
                let decision = decision.map_err(|error| error.to_string());
                if store.usage().table_full > before {
                    break;
                }
                let expected = state.apply(on_key(policy.policy(), operation, now));
                if decision != expected {
                    self.violate(format_args!(
                        "exactness: {operation:?} of {name} at {now}: {decision:?}, not {expected:?}"
                    ));
                }
            }
        }
        self.note(format_args!("held units of {count} keys"));
        self.check_bounds();
        Ok(())
    }

    /// Takes from keys that have a policy each.
    fn own_policies(&mut self, first: usize, count: usize) -> Result<()> {
        let store = Arc::clone(&self.store);
        for index in first..first + count {
            let (now, before) = (self.now(), self.table_full());
            let name = format!("own{}-{index}", self.starts);
            // Most recover soon, so that their numbers are free while the keys of others still have theirs.
            let (units, unit) = if index % 8 == 0 { (1, "h") } else { (1 + index % 50, "ms") };
            let policy = format!("gcra:{units}/{}{unit}", 10 + index / 8);
            let policy: PreparedPolicy = policy.parse()?;
            let numbered = store.numbered(&policy, now);
            let decision = store.apply_numbered(name.as_bytes(), &numbered, now, TAKE);
            let decision = decision.map_err(|error| error.to_string());
            let state = self.own.entry(index).or_default();
            let mut after = state.clone();
            let expected = after.apply(on_key(policy.policy(), TAKE, now));
            if self.store.usage().table_full > before {
                // It has no place, and therefore no state.
                *state = OracleSubject::default();
            } else if expected == decision {
                *state = after;
            } else {
                self.violate(format_args!(
                    "exactness: {name} under {} at {now}: {decision:?}, not {expected:?}",
                    policy.policy()
                ));
                break;
            }
        }
        self.note(format_args!("took under {count} policies"));
        self.check_bounds();
        Ok(())
    }

    /// Takes from keys of a flood again.
    fn revisit(&mut self, number: usize, first: usize, count: usize) {
        let Some(flood) = self.floods.get(number) else { return };
        let (policy, length) = (flood.policy.clone(), flood.stored.len());
        let store = Arc::clone(&self.store);
        for index in first..(first + count).min(length) {
            let (now, before) = (self.now(), self.table_full());
            let name = name(number, index);
            let take = on_key(policy.policy(), TAKE, now);
            let numbered = store.prepare(policy.policy(), now);
            let decision = store.apply_numbered(name.as_bytes(), &numbered, now, TAKE);
            let decision = decision.map_err(|error| error.to_string());
            let is_full = self.table_full() > before;
            let is_saving = self.is_saving;
            let states = self.floods[number].visit(index);
            if is_full {
                let denies = self.table.when_full == WhenFull::Deny;
                let is_right = states.may_have_recovered(policy.policy(), now)
                    || policy.policy().as_gcra().is_none();
                if denies && decision.as_ref().is_ok_and(Decision::allowed) || !is_right {
                    self.violate(format_args!(
                        "exactness: {name}, which found the table full: {decision:?}"
                    ));
                }
            } else if let Err(expected) = states.observe(take, &decision, is_saving) {
                self.violate(format_args!(
                    "exactness: {name} again under {} at {now}: {decision:?}, but the oracle decides {expected:?}",
                    policy.policy()
                ));
            }
        }
        self.note(format_args!("visited flood {number} again"));
    }
}

/// The bytes that the error about a state file says it needs: `expected at least 11mb`.
fn needed_bytes(error: &str) -> Option<usize> {
    let (_, text) = error.split_once("expected at least ")?;
    let (mebibytes, _) = text.split_once("mb")?;
    Some(mebibytes.parse::<usize>().ok()? << 20)
}

fn name(flood: usize, index: usize) -> String {
    format!("flood{flood}-{index}")
}
