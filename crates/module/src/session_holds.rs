//! The holds of all clients that end with their connection (`SG.HOLD ... SESSION`).

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use sluicegate_core::{HoldName, HoldOperation, Policy, SessionHolds, Timestamp};

use crate::{
    context::{Context, Name},
    policy_cache::CachedPolicy,
};

static HOLDS: Mutex<Option<SessionHolds<Arc<CachedPolicy>>>> = Mutex::new(None);
/// Whether there are any, to check without a lock.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Runs `body` on the holds. It must not call the server, because the server may call back.
fn holds<T>(body: impl FnOnce(&mut SessionHolds<Arc<CachedPolicy>>) -> T) -> T {
    let mut holds = HOLDS.lock().unwrap_or_else(PoisonError::into_inner);
    let holds = holds.get_or_insert_default();
    let result = body(holds);
    IS_USED.store(!holds.is_empty(), Ordering::Relaxed);
    result
}

fn hold_name(context: Context<'_>, name: Name<'_>, id: &[u8]) -> HoldName {
    HoldName { database: context.database(), key: name.bytes().into(), id: id.into() }
}

/// Forgets all holds, which then expire.
pub(crate) fn clear() {
    holds(|holds| *holds = SessionHolds::default());
}

/// Adds a hold of the client that called, which is about to be opened until `expires`, or waits. Returns whether it is new,
/// or the error reply.
pub(crate) fn add(
    context: Context<'_>,
    name: Name<'_>,
    id: &[u8],
    cached: &Arc<CachedPolicy>,
    expires: Option<Timestamp>,
) -> Result<bool, String> {
    let (client, name) = (context.client_id(), hold_name(context, name, id));
    let (cached, times) = (Arc::clone(cached), (context.now(), expires));
    holds(|holds| holds.add(client, name, cached, times)).map_err(|error| format!("ERR {error}"))
}

/// The hold was not opened for this client.
pub(crate) fn denied(context: Context<'_>, client: u64, name: Name<'_>, id: &[u8]) {
    let name = hold_name(context, name, id);
    holds(|holds| holds.denied(client, &name));
}

/// An operation of any client was applied to a hold.
pub(crate) fn applied(
    context: Context<'_>,
    name: Name<'_>,
    policy: &Policy,
    operation: HoldOperation<'_>,
    (is_allowed, now): (bool, Timestamp),
) {
    if !IS_USED.load(Ordering::Relaxed) {
        return;
    }
    let name = hold_name(context, name, operation.id());
    let ttl = policy.check_hold(&operation).unwrap_or_default();
    holds(|holds| holds.applied(&name, operation, is_allowed, (now, ttl)));
}

/// The key was reset: none of its holds is open any longer.
pub(crate) fn reset(context: Context<'_>, name: Name<'_>) {
    if IS_USED.load(Ordering::Relaxed) {
        let database = context.database();
        holds(|holds| holds.reset(database, name.bytes()));
    }
}

/// The names of the holds of a client that has disconnected.
pub(crate) fn end(client: u64) -> Vec<Arc<HoldName>> {
    holds(|holds| holds.end(client))
}

/// The policy of a hold that is to be settled because this client has disconnected; see [`SessionHolds::take`].
pub(crate) fn take(client: u64, name: &HoldName, now: Timestamp) -> Option<Arc<CachedPolicy>> {
    holds(|holds| holds.take(client, name, now))
}
