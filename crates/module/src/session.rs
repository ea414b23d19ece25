//! The end of clients with holds that end with their connection (`SG.HOLD ... SESSION`): holds that are open when the client
//! disconnects are settled with 0.
//!
//! The event of a disconnect may come within the command of another client: a timer, due immediately, settles.

use std::{
    collections::VecDeque,
    ffi::c_void,
    ptr::null_mut,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use sluicegate_core::{HoldName, HoldOperation, Timestamp};

use crate::{
    api::{self, Ctx, Event},
    context::{Context, Name},
    edge,
    policy_cache::CachedPolicy,
    session_holds, state,
    time::Moment,
    wait,
};

/// The time after which holds are settled that end while the server must not write.
const PAUSE_MILLIS: i64 = 50;
/// Settles of one timer.
const SETTLES: usize = 64;

/// Holds of clients that have disconnected, with the number of the client.
static ENDED: Mutex<VecDeque<(u64, Arc<HoldName>)>> = Mutex::new(VecDeque::new());
static IS_SUBSCRIBED: AtomicBool = AtomicBool::new(false);

/// Runs `body` on the holds of clients that have disconnected. It must not call the server, because the server may call
/// back.
fn ended<T>(body: impl FnOnce(&mut VecDeque<(u64, Arc<HoldName>)>) -> T) -> T {
    body(&mut ENDED.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Forgets all holds, which then expire.
pub(crate) fn clear() {
    session_holds::clear();
    ended(|ended| *ended = VecDeque::new());
    IS_SUBSCRIBED.store(false, Ordering::Relaxed);
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
    if context.flags() & api::FLAG_LUA != 0 {
        return Err(
            "ERR option SESSION is unavailable in a script: a script has no connection".into()
        );
    }
    if !IS_SUBSCRIBED.swap(true, Ordering::Relaxed) {
        context.subscribe(Event::CLIENT_CHANGED, client_changed);
    }
    session_holds::add(context, name, id, cached, expires)
}

/// A client has connected or disconnected.
unsafe extern "C" fn client_changed(ctx: *mut Ctx, _: Event, what: u64, data: *mut c_void) {
    edge::guard("client", (), || {
        // SAFETY: the data of this event is the information on the client, which is valid for this call.
        let client = unsafe { data.cast::<api::ClientInfo>().as_ref() };
        let Some(client) = client.filter(|_| what == api::CLIENT_DISCONNECTED) else { return };
        let names = session_holds::end(client.id);
        if names.is_empty() {
            return;
        }
        let was_idle = ended(|ended| {
            let was_idle = ended.is_empty();
            ended.extend(names.into_iter().map(|name| (client.id, name)));
            was_idle
        });
        if was_idle {
            // SAFETY: the server passed the context for this call.
            unsafe { Context::new(ctx) }.timer(0, settle_ended, null_mut::<c_void>());
        }
    });
}

/// Settles the holds of clients that have disconnected. A hold that cannot be settled expires.
unsafe extern "C" fn settle_ended(ctx: *mut Ctx, _: *mut c_void) {
    edge::guard("session", (), || {
        // SAFETY: the server passed the context for this call.
        let context = unsafe { Context::new(ctx) };
        if context.is_paused() {
            context.timer(PAUSE_MILLIS, settle_ended, null_mut::<c_void>());
            return;
        }
        for _ in 0..SETTLES {
            let Some((client, hold)) = ended(VecDeque::pop_front) else { return };
            let Some(cached) = session_holds::take(client, &hold, context.now()) else { continue };
            context.select(hold.database);
            let name = context.name(&hold.key);
            let name = name.as_name();
            // A replica must not write, nor a node that does not serve the key any longer.
            if context.flags() & api::FLAG_MASTER != 0 && context.serves(name) {
                let settle = HoldOperation::Settle { id: &hold.id, used: Some(0) };
                let moment = Moment::new(context.now(), None);
                let _ = state::decide_hold(context, name, &cached.policy, settle, moment);
                wait::changed(context, name);
            }
        }
        if ended(|ended| !ended.is_empty()) {
            context.timer(1, settle_ended, null_mut::<c_void>());
        }
    });
}
