//! Events, decided in virtual time.

use std::hint::black_box;

use ahash::RandomState;
use hashbrown::{HashMap, HashTable};
use sluicegate_core::{Decision, Entry, Gcra, Policy, Timestamp};
use smallvec::SmallVec;

use crate::{
    batch::{self, Batch},
    error::{Fault, TraceError},
    event::Event,
    kind::Kind,
};

/// Fewest keys at which a search for recovered ones is worth its time: this many take up 4 MB.
const MIN_SWEEP: usize = 65_536;
/// Maximum number of policies of a trace that are kept parsed.
const MAX_POLICIES: usize = 1024;

/// A store in virtual time: its clock is the time of each event.
///
/// Memory follows the keys that are in use: keys that have recovered are dropped whenever they may be half of all.
#[derive(Debug)]
pub struct Simulation {
    policies: Policies,
    keys: HashTable<Slot>,
    hasher: RandomState,
    /// The number of keys at which recovered ones are swept.
    sweep_at: usize,
}

/// A key, with its bytes inline if they are few.
type Key = SmallVec<[u8; 24]>;

const _: () = assert!(size_of::<Slot>() == 64);

/// A key with its state: one line of a cache, so that a key of usual length costs one miss.
#[derive(Debug)]
#[repr(align(64))]
struct Slot {
    key: Key,
    state: StoredState,
}

/// The state of a key.
#[derive(Debug)]
enum StoredState {
    /// Under a policy of one limit of the gcra family: its TAT, in ticks, high half first. Most
    /// traces have no other, and nothing to allocate then.
    Tat { policy: Policy, tat: [u64; 2] },
    /// Under any other, or with open holds. There always is one; it is decided on where it lies.
    Entry(Box<Option<Entry>>),
}

impl Simulation {
    /// With `default` in force for every event that names no policy.
    #[must_use]
    pub fn new(default: Option<Policy>) -> Self {
        Self {
            policies: Policies::new(default),
            keys: HashTable::new(),
            hasher: RandomState::new(),
            sweep_at: MIN_SWEEP,
        }
    }

    /// Decides the events of `batch` one after the other, and hands each to `each`.
    ///
    /// # Errors
    /// As for [`decide`](Self::decide), and the first that `each` returns.
    pub fn decide_batch<E: From<TraceError>>(
        &mut self,
        batch: Batch<'_>,
        mut each: impl FnMut(&Event<'_>, &Decision) -> Result<(), E>,
    ) -> Result<(), E> {
        for batch in batch.pieces() {
            // The state of a key is seldom in a fast cache. A first pass over all keys lets the processor load many
            // at a time, because no access depends on another.
            let mut hashes = [0; batch::MAX_EVENTS];
            for (key, hash) in batch.keys().zip(&mut hashes) {
                *hash = self.hasher.hash_one(key);
                black_box(self.keys.find(*hash, |slot| slot.key.len() == key.len()).is_some());
            }
            for (event, hash) in batch.events().zip(hashes) {
                let decision = self.decide_hashed(&event, hash)?;
                each(&event, &decision)?;
            }
        }
        Ok(())
    }

    /// From the next event on, `policy` is active for every event that names none. Usage carries over.
    pub fn change(&mut self, policy: Policy) {
        self.policies.change(policy);
    }

    /// Decides `event`. The decision on a `reset` shows the key after it.
    ///
    /// # Errors
    /// [`TraceError`] for an invalid policy, if no policy is named and there is no default, and for an operation that
    /// is invalid or that the policy does not support. The key is then untouched.
    pub fn decide(&mut self, event: &Event<'_>) -> Result<Decision, TraceError> {
        self.decide_hashed(event, self.hasher.hash_one(event.key))
    }

    fn decide_hashed(&mut self, event: &Event<'_>, hash: u64) -> Result<Decision, TraceError> {
        let found = self.policies.find(event.policy);
        let policy = found.map_err(|fault| fault.at(event.line))?;
        match self.keys.find_entry(hash, |slot| slot.key.as_slice() == event.key) {
            Ok(mut found) => {
                let state = &mut found.get_mut().state;
                if let StoredState::Tat { policy: kept, tat } = state
                    && event.kind == Kind::Take
                    && let Some(cost) = event.cost
                    && kept.ptr_eq(policy)
                    && let Some(gcra) = policy.as_gcra()
                    && let now = ticks(gcra, event.time)
                    && let Ok(debt) = u64::try_from(join(*tat).saturating_sub(now))
                    && let Some(take) = gcra.try_take(debt, cost)
                {
                    *tat = split(now + u128::from(take.after));
                    return Ok(gcra.decision(&take));
                }
                if let StoredState::Entry(entry) = state
                    && policy.as_gcra().is_none()
                {
                    let decision = event.apply(policy, entry);
                    if entry.is_none() {
                        drop(found.remove());
                    }
                    return decision.map_err(|fault| fault.at(event.line));
                }
                let mut entry = state.take(event.time);
                let decision = event.apply(policy, &mut entry);
                match entry {
                    Some(entry) => *state = StoredState::of(entry, event.time),
                    None => drop(found.remove()),
                }
                decision.map_err(|fault| fault.at(event.line))
            }
            Err(_) => {
                let first = first(policy, event);
                let (state, decision) = first.map_err(|fault| fault.at(event.line))?;
                if let Some(state) = state {
                    let key = Key::from_slice(event.key);
                    self.insert(hash, Slot { key, state }, event.time);
                }
                Ok(decision)
            }
        }
    }

    /// The policy in force for an event that names `text`.
    ///
    /// # Errors
    /// [`Fault`] as for [`decide`](Self::decide).
    pub fn policy(&mut self, text: &[u8]) -> Result<&Policy, Fault> {
        self.policies.find(text)
    }

    /// The number of keys with state.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    fn insert(&mut self, hash: u64, slot: Slot, now: Timestamp) {
        if self.keys.len() >= self.sweep_at {
            self.sweep(now);
        }
        self.keys.insert_unique(hash, slot, |slot| self.hasher.hash_one(slot.key.as_slice()));
    }

    /// Drops the keys that have recovered. The next time is when as many keys have been added as are left now, so
    /// that each added key costs two checks.
    #[cold]
    fn sweep(&mut self, now: Timestamp) {
        self.keys.retain(|slot| slot.state.is_in_use(now));
        self.sweep_at = MIN_SWEEP.max(2 * self.keys.len());
        let hasher = &self.hasher;
        self.keys.shrink_to(self.sweep_at, |slot| hasher.hash_one(slot.key.as_slice()));
    }
}

impl StoredState {
    fn of(entry: Entry, now: Timestamp) -> Self {
        match (entry.policy().as_gcra(), entry.debt(now)) {
            (Some(gcra), Some(debt)) => {
                let tat = split(ticks(gcra, now) + debt);
                Self::Tat { policy: entry.policy().clone(), tat }
            }
            _ => Self::Entry(Box::new(Some(entry))),
        }
    }

    /// The same as the core keeps it, taken out.
    fn take(&mut self, now: Timestamp) -> Option<Entry> {
        match self {
            Self::Tat { policy, tat } => {
                let debt = policy.as_gcra().map_or(0, |gcra| owed(gcra, *tat, now));
                Entry::with_debt(policy, now, debt)
            }
            Self::Entry(entry) => entry.take(),
        }
    }

    /// Whether it has not recovered yet.
    fn is_in_use(&self, now: Timestamp) -> bool {
        match self {
            Self::Tat { policy, tat } => {
                policy.as_gcra().is_some_and(|gcra| owed(gcra, *tat, now) > 0)
            }
            Self::Entry(entry) => {
                (**entry).as_ref().is_some_and(|entry| !entry.lifetime(now).is_zero())
            }
        }
    }
}

/// `now` in ticks of the limit.
fn ticks(gcra: &Gcra, now: Timestamp) -> u128 {
    u128::from(now.as_micros()) * u128::from(gcra.scale())
}

/// Ticks by which the TAT lies in the future.
fn owed(gcra: &Gcra, tat: [u64; 2], now: Timestamp) -> u128 {
    join(tat).saturating_sub(ticks(gcra, now))
}

fn join([high, low]: [u64; 2]) -> u128 {
    u128::from(high) << 64 | u128::from(low)
}

fn split(ticks: u128) -> [u64; 2] {
    [ticks >> 64, ticks & u128::from(u64::MAX)]
        .map(|half| u64::try_from(half).expect("half of the bits"))
}

/// Decides on an unused key.
fn first(policy: &Policy, event: &Event<'_>) -> Result<(Option<StoredState>, Decision), Fault> {
    if event.kind == Kind::Take
        && let Some(cost) = event.cost
        && let Some(gcra) = policy.as_gcra()
        && let Some(take) = gcra.try_take(0, cost)
    {
        let tat = split(ticks(gcra, event.time) + u128::from(take.after));
        let state = (take.after > 0).then(|| StoredState::Tat { policy: policy.clone(), tat });
        return Ok((state, gcra.decision(&take)));
    }
    let mut entry = None;
    let decision = event.apply(policy, &mut entry)?;
    Ok((entry.map(|entry| StoredState::of(entry, event.time)), decision))
}

/// The policies of a trace, each parsed once.
#[derive(Debug)]
pub(crate) struct Policies {
    default: Option<Policy>,
    /// The one named last, which is often the next one too.
    last: Option<(Box<[u8]>, Policy)>,
    seen: HashMap<Box<[u8]>, Policy, RandomState>,
}

impl Policies {
    pub(crate) fn new(default: Option<Policy>) -> Self {
        Self { default, last: None, seen: HashMap::default() }
    }

    /// Another policy is in force for events that name none.
    pub(crate) fn change(&mut self, policy: Policy) {
        self.default = Some(policy);
    }

    /// The policy in force for an event that names `text`.
    pub(crate) fn find(&mut self, text: &[u8]) -> Result<&Policy, Fault> {
        if text.is_empty() {
            return self.default.as_ref().ok_or(Fault::NoPolicy);
        }
        if self.last.as_ref().is_none_or(|(last, _)| **last != *text) {
            let policy = self.look_up(text)?;
            self.last = Some((text.into(), policy));
        }
        self.last.as_ref().map(|(_, policy)| policy).ok_or(Fault::NoPolicy)
    }

    fn look_up(&mut self, text: &[u8]) -> Result<Policy, Fault> {
        if let Some(policy) = self.seen.get(text) {
            return Ok(policy.clone());
        }
        let policy: Policy = String::from_utf8_lossy(text)
            .parse()
            .map_err(|error| Fault::Policy { text: text.into(), error })?;
        if self.seen.len() == MAX_POLICIES {
            self.seen.clear();
        }
        self.seen.insert(text.into(), policy.clone());
        Ok(policy)
    }
}

#[cfg(test)]
mod tests;
