//! Operations on keys: decided by the core, stored in place, replicated by their effect.
//!
//! Writes are minimal: a peek writes nothing, and a denial only if the core records it (`count=all`, or another
//! policy than before), or if the key has lost its expiry.

use sluicegate_commands::CommandError;
use sluicegate_core::{
    Decision, Entry, EntryTake, HoldOperation, MultiKeyDecision, MultiKeyOperation, Operation,
    Policy, StateError, Timestamp, apply, apply_hold, apply_multi_key, as_micros,
};

use crate::{
    context::{Context, Name},
    key::Key,
    log,
    policy_cache::{CachedPolicy, FastPath},
    redis_cell,
    time::Moment,
};

/// Decides `operation` on the key `name`.
#[inline]
pub(crate) fn decide(
    context: Context<'_>,
    name: Name<'_>,
    cached: &CachedPolicy,
    operation: Operation,
    moment: Moment,
) -> Result<Decision, CommandError> {
    if let Operation::Peek(_) = operation {
        let key = Key::to_read(context, name);
        let mut entry = load(&key, &cached.policy, moment.now)?.entry;
        return Ok(apply(&cached.policy, &mut entry, moment.now, operation)?);
    }
    let key = &mut Key::to_write(context, name);
    if let Operation::Take(cost) = operation {
        let decision = match &cached.fast_path {
            Some(FastPath::Gcra(gcra)) => gcra.take(key, moment, cost)?,
            Some(FastPath::Log(log)) => log.take(key, moment, cost)?,
            None => None,
        };
        if let Some(decision) = decision {
            return Ok(decision);
        }
    }
    change(key, &cached.policy, operation, moment)
}

/// Reads the state, lets the core decide, and stores the state.
fn change(
    key: &mut Key<'_>,
    policy: &Policy,
    operation: Operation,
    moment: Moment,
) -> Result<Decision, CommandError> {
    let mut loaded = load(key, policy, moment.now)?;
    let stores_denials = loaded.stores_denials(policy, moment.now);
    let decision = apply(policy, &mut loaded.entry, moment.now, operation)?;
    let writes = match operation {
        Operation::Take(0)
        | Operation::Charge(0)
        | Operation::Refund(0)
        | Operation::Reserve { cost: 0, .. }
        | Operation::Peek(_) => false,
        Operation::Take(_) | Operation::Reserve { .. } => decision.allowed() || stores_denials,
        Operation::Charge(_) | Operation::Refund(_) | Operation::Reset => true,
    };
    store(key, loaded, writes, moment);
    Ok(decision)
}

/// Applies an operation to a hold.
pub(crate) fn decide_hold(
    context: Context<'_>,
    name: Name<'_>,
    policy: &Policy,
    operation: HoldOperation<'_>,
    moment: Moment,
) -> Result<Decision, CommandError> {
    let key = &mut Key::to_write(context, name);
    let mut loaded = load(key, policy, moment.now)?;
    let stores_denials = loaded.stores_denials(policy, moment.now);
    let open = loaded.entry.as_ref();
    let is_open = open.is_some_and(|entry| entry.has_open_hold(operation.id(), moment.now));
    let decision = apply_hold(policy, &mut loaded.entry, moment.now, operation)?;
    let writes = match operation {
        HoldOperation::Hold { cost, .. } => {
            cost > 0 && !is_open && (decision.allowed() || stores_denials)
        }
        HoldOperation::Settle { .. } | HoldOperation::Renew { .. } => is_open,
    };
    store(key, loaded, writes, moment);
    Ok(decision)
}

/// Takes from several keys, from all of them or from none, or holds.
pub(crate) fn take_all(
    context: Context<'_>,
    takes: &[(Name<'_>, &Policy, u32)],
    operation: MultiKeyOperation<'_>,
    moment: Moment,
) -> Result<MultiKeyDecision, CommandError> {
    let mut keys: Vec<Key<'_>> = Vec::with_capacity(takes.len());
    let mut loaded = Vec::with_capacity(takes.len());
    // If a key is given twice, only the first take counts.
    let is_first = |&(index, &(name, ..)): &(usize, &(Name<'_>, &Policy, u32))| {
        takes[..index].iter().all(|(other, ..)| other.bytes() != name.bytes())
    };
    let takes: Vec<_> = takes.iter().enumerate().filter(is_first).map(|(_, take)| take).collect();
    for &&(name, policy, _) in &takes {
        let key = Key::to_write(context, name);
        let state = load(&key, policy, moment.now)?;
        let stores_denials = state.stores_denials(policy, moment.now);
        keys.push(key);
        loaded.push((state, stores_denials));
    }
    let is_open = |state: &Loaded| match operation {
        MultiKeyOperation::Hold { id, .. } => {
            state.entry.as_ref().is_some_and(|entry| entry.has_open_hold(id, moment.now))
        }
        MultiKeyOperation::Take | MultiKeyOperation::Peek => false,
    };
    let is_open: Vec<_> = loaded.iter().map(|(state, _)| is_open(state)).collect();
    let parts = takes.iter().zip(&mut loaded);
    let mut parts: Vec<_> = parts
        .map(|(&&(_, policy, cost), (state, _))| EntryTake {
            policy,
            entry: &mut state.entry,
            cost,
        })
        .collect();
    let taken = apply_multi_key(operation, &mut parts, moment.now)?;
    let allowed = taken.decision.allowed();
    for (index, (key, (state, stores_denials))) in keys.iter_mut().zip(loaded).enumerate() {
        let asks = takes[index].2 > 0 && !is_open[index];
        store(key, state, asks && (allowed || stores_denials), moment);
    }
    Ok(taken)
}

/// Stores the loaded state of a key, if the operation `writes`.
fn store(
    key: &mut Key<'_>,
    Loaded { entry, exists, is_foreign }: Loaded,
    writes: bool,
    moment: Moment,
) {
    let life = entry.as_ref().map_or(0, |entry| as_micros(entry.lifetime(moment.now)));
    match entry {
        // At a time of a test, the key is kept: the next command may set an earlier time.
        Some(entry) if (life > 0 || moment.is_test()) && (writes || is_foreign) => {
            key.store(&entry.encode(), moment.end_after(life));
        }
        None | Some(_) if exists && writes => key.delete(),
        None | Some(_) if exists => key.repair_ttl(moment.end_after(life)),
        None | Some(_) => {}
    }
}

/// Resets the key, and returns whether it had state.
pub(crate) fn reset(
    context: Context<'_>,
    name: Name<'_>,
    now: Timestamp,
) -> Result<bool, CommandError> {
    let mut key = Key::to_write(context, name);
    let bytes = key.bytes()?;
    let used = match bytes.map(|bytes| (bytes, Entry::decode(&log::settled(bytes)))) {
        None => None,
        Some((_, Ok(entry))) => Some(!entry.lifetime(now).is_zero()),
        Some((bytes, Err(error @ StateError::Foreign))) if redis_cell::tat(bytes).is_none() => {
            return Err(CommandError::state(name.bytes(), error));
        }
        // A state that cannot be decoded counts as one.
        Some((_, Err(_))) => Some(true),
    };
    let Some(used) = used else { return Ok(false) };
    key.delete();
    Ok(used)
}

/// The state of the key.
pub(crate) fn stored(context: Context<'_>, name: Name<'_>) -> Result<Option<Entry>, CommandError> {
    let key = Key::to_read(context, name);
    let Some(bytes) = key.bytes()? else { return Ok(None) };
    if redis_cell::tat(bytes).is_some() {
        return Err(CommandError::redis_cell(name.bytes()));
    }
    decode(&key, bytes).map(Some)
}

/// Whether a hold of that id is open.
pub(crate) fn has_open_hold(
    context: Context<'_>,
    name: Name<'_>,
    policy: &Policy,
    id: &[u8],
    now: Timestamp,
) -> Result<bool, CommandError> {
    let entry = load(&Key::to_read(context, name), policy, now)?.entry;
    Ok(entry.is_some_and(|entry| entry.has_open_hold(id, now)))
}

/// The entry of a key, for a projection of the wait queue; `None` if it has more than `most` bytes.
pub(crate) fn entry(
    context: Context<'_>,
    name: Name<'_>,
    policy: &Policy,
    now: Timestamp,
    most: usize,
) -> Result<Option<Option<Entry>>, CommandError> {
    let key = Key::to_read(context, name);
    // An event takes several times as many bytes in memory as in the key.
    if key.bytes()?.is_some_and(|bytes| bytes.len() > most / 4) {
        return Ok(None);
    }
    Ok(Some(load(&key, policy, now)?.entry))
}

struct Loaded {
    entry: Option<Entry>,
    exists: bool,
    /// Whether the state is one of redis-cell.
    is_foreign: bool,
}

impl Loaded {
    /// Whether a denied request changes the stored state.
    fn stores_denials(&self, policy: &Policy, now: Timestamp) -> bool {
        let changes =
            |entry: &Entry| !entry.policy().decides_like(policy) || entry.has_expired_holds(now);
        self.entry.as_ref().is_some_and(changes) || policy.records_denials()
    }
}

fn load(key: &Key<'_>, policy: &Policy, now: Timestamp) -> Result<Loaded, CommandError> {
    let Some(bytes) = key.bytes()? else {
        return Ok(Loaded { entry: None, exists: false, is_foreign: false });
    };
    if let Some(tat) = redis_cell::tat(bytes) {
        let entry = redis_cell::entry(tat, key.name().bytes(), policy, now)?;
        return Ok(Loaded { entry, exists: true, is_foreign: true });
    }
    let entry = Some(decode(key, bytes)?);
    Ok(Loaded { entry, exists: true, is_foreign: false })
}

/// Decodes the entry of `key` from `bytes`.
fn decode(key: &Key<'_>, bytes: &[u8]) -> Result<Entry, CommandError> {
    Entry::decode(&log::settled(bytes))
        .map_err(|error| CommandError::state(key.name().bytes(), error))
}
