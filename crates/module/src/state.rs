//! Operations on keys: decided by the core, stored in place, replicated by their effect.
//!
//! Writes are minimal: a peek writes nothing, and a denial only if the core records it (`count=all`, or another
//! policy than before), or if the key has lost its expiry.

use sluicegate_commands::CommandError;
use sluicegate_core::{
    Answer, Decision, Entry, EntryOperation, Operation, Policy, StateError, Timestamp, apply,
    apply_all, as_micros,
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
    let is_open = loaded.has_open_hold(operation, moment.now);
    let decision = apply(policy, &mut loaded.entry, moment.now, operation)?;
    let writes = match operation {
        _ if operation.only_reads() => false,
        Operation::Take(_) | Operation::Reserve { .. } => decision.allowed() || stores_denials,
        Operation::Hold { .. } => !is_open && (decision.allowed() || stores_denials),
        Operation::Settle { .. } | Operation::Renew { .. } => is_open,
        Operation::Charge(_) | Operation::Refund(_) | Operation::Reset | Operation::Peek(_) => true,
    };
    store(key, loaded, writes, moment);
    Ok(decision)
}

/// An operation on one of several keys.
#[derive(Clone, Copy)]
pub(crate) struct NamedOperation<'a> {
    pub(crate) name: Name<'a>,
    pub(crate) policy: &'a Policy,
    pub(crate) operation: Operation<'a>,
}

/// Takes from several keys, from all of them or from none, holds, or peeks.
pub(crate) fn decide_all(
    context: Context<'_>,
    operations: &[NamedOperation<'_>],
    moment: Moment,
) -> Result<Answer, CommandError> {
    let mut keys: Vec<Key<'_>> = Vec::with_capacity(operations.len());
    let mut loaded = Vec::with_capacity(operations.len());
    // If a key is given twice, only the first operation counts.
    let is_first = |&(index, it): &(usize, &NamedOperation<'_>)| {
        operations[..index].iter().all(|other| other.name.bytes() != it.name.bytes())
    };
    let firsts = operations.iter().enumerate().filter(is_first);
    let operations: Vec<_> = firsts.map(|(_, it)| it).collect();
    for &&NamedOperation { name, policy, operation } in &operations {
        let key = Key::to_write(context, name);
        let state = load(&key, policy, moment.now)?;
        let stores_denials = state.stores_denials(policy, moment.now);
        let is_open = state.has_open_hold(operation, moment.now);
        keys.push(key);
        loaded.push((state, stores_denials, is_open));
    }
    let parts = operations.iter().zip(&mut loaded);
    let mut parts: Vec<_> = parts
        .map(|(&&NamedOperation { policy, operation, .. }, (state, ..))| EntryOperation {
            policy,
            entry: &mut state.entry,
            operation,
        })
        .collect();
    let answer = apply_all(&mut parts, moment.now)?;
    let decided = keys.iter_mut().zip(loaded).zip(operations);
    for ((key, (state, stores_denials, is_open)), it) in decided {
        let writes = !it.operation.only_reads() && !is_open;
        store(key, state, writes && (answer.allowed() || stores_denials), moment);
    }
    Ok(answer)
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
    /// Whether the hold of `operation` is open.
    fn has_open_hold(&self, operation: Operation, now: Timestamp) -> bool {
        let open = self.entry.as_ref().zip(operation.id());
        open.is_some_and(|(entry, id)| entry.has_open_hold(id, now))
    }

    /// Whether a denied request changes the stored state.
    fn stores_denials(&self, policy: &Policy, now: Timestamp) -> bool {
        let changes = |entry: &Entry| entry.changes_policy(policy) || entry.has_expired_holds(now);
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
