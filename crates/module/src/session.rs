//! Holds that end with the connection of their client (`SG.HOLD ... SESSION`): holds that are open when the client
//! disconnects are settled with 0.
//!
//! The event of a disconnect may come within the command of another client: a timer, due immediately, settles.

use std::{
    collections::{HashMap, VecDeque},
    ffi::c_void,
    ptr::null_mut,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use sluicegate_core::{HoldOperation, Timestamp};

use crate::{
    api::{self, Ctx, Event},
    context::{Context, Name},
    edge,
    policy_cache::CachedPolicy,
    state,
    time::Moment,
    wait,
};

/// The most holds of one client.
const MAX_HOLDS: usize = 1024;
/// Settles of one timer.
const SETTLES: usize = 64;

/// A hold of a client.
#[derive(Debug)]
struct SessionHold {
    database: i32,
    key: Box<[u8]>,
    id: Box<[u8]>,
    cached: Arc<CachedPolicy>,
    expires: Timestamp,
}

#[derive(Debug, Default)]
struct Sessions {
    /// By the number of the client.
    open: HashMap<u64, Vec<SessionHold>>,
    /// Of clients that have disconnected.
    ended: VecDeque<SessionHold>,
}

static SESSIONS: Mutex<Option<Sessions>> = Mutex::new(None);
/// Whether any were opened, to check without a lock that there are none.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Runs `body` on the sessions. It must not call the server, because the server may call back.
fn sessions<T>(body: impl FnOnce(&mut Sessions) -> T) -> T {
    let mut sessions = SESSIONS.lock().unwrap_or_else(PoisonError::into_inner);
    body(sessions.get_or_insert_default())
}

/// Forgets all holds, which then expire.
pub(crate) fn clear() {
    sessions(|sessions| *sessions = Sessions::default());
    IS_USED.store(false, Ordering::Relaxed);
}

impl SessionHold {
    fn is(&self, database: i32, key: &[u8], id: &[u8]) -> bool {
        self.database == database && *self.key == *key && *self.id == *id
    }
}

/// Adds a hold of the client that called, which is about to be opened until `expires`. Returns whether it is new, or the
/// error reply.
pub(crate) fn add(
    context: Context<'_>,
    name: Name<'_>,
    id: &[u8],
    cached: &Arc<CachedPolicy>,
    expires: Timestamp,
) -> Result<bool, String> {
    if context.flags() & api::FLAG_LUA != 0 {
        return Err(
            "ERR option SESSION is unavailable in a script: a script has no connection".into()
        );
    }
    if !IS_USED.swap(true, Ordering::Relaxed) {
        context.subscribe(Event::CLIENT_CHANGED, client_changed);
    }
    let (client, database, now) = (context.client_id(), context.database(), context.now());
    let hold = SessionHold {
        database,
        key: name.bytes().into(),
        id: id.into(),
        cached: Arc::clone(cached),
        expires,
    };
    sessions(|sessions| {
        let holds = sessions.open.entry(client).or_default();
        if holds.iter().any(|it| it.is(database, &hold.key, id)) {
            return Ok(false);
        }
        if holds.len() >= MAX_HOLDS {
            holds.retain(|hold| hold.expires > now);
        }
        if holds.len() >= MAX_HOLDS {
            return Err(format!(
                "ERR too many holds of this connection: expected at most {MAX_HOLDS} with SESSION"
            ));
        }
        holds.push(hold);
        Ok(true)
    })
}

/// A hold of the client that called is not open any longer.
pub(crate) fn remove(context: Context<'_>, name: Name<'_>, id: &[u8]) {
    change(context, name, id, None);
}

/// A hold of the client that called is open until `expires`.
pub(crate) fn renew(context: Context<'_>, name: Name<'_>, id: &[u8], expires: Timestamp) {
    change(context, name, id, Some(expires));
}

fn change(context: Context<'_>, name: Name<'_>, id: &[u8], expires: Option<Timestamp>) {
    if !IS_USED.load(Ordering::Relaxed) {
        return;
    }
    let (client, database) = (context.client_id(), context.database());
    sessions(|sessions| {
        let Some(holds) = sessions.open.get_mut(&client) else { return };
        let Some(at) = holds.iter().position(|it| it.is(database, name.bytes(), id)) else {
            return;
        };
        match expires {
            Some(expires) => holds[at].expires = expires,
            None => {
                holds.swap_remove(at);
            }
        }
        if holds.is_empty() {
            sessions.open.remove(&client);
        }
    });
}

/// A client has connected or disconnected.
unsafe extern "C" fn client_changed(ctx: *mut Ctx, _: Event, what: u64, data: *mut c_void) {
    edge::guard("client", (), || {
        // SAFETY: the data of this event is the information on the client, which is valid for this call.
        let client = unsafe { data.cast::<api::ClientInfo>().as_ref() };
        let Some(client) = client.filter(|_| what == api::CLIENT_DISCONNECTED) else { return };
        let was_idle = sessions(|sessions| {
            let holds = sessions.open.remove(&client.id)?;
            let was_idle = sessions.ended.is_empty();
            sessions.ended.extend(holds);
            Some(was_idle)
        });
        if was_idle == Some(true) {
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
        for _ in 0..SETTLES {
            let Some(hold) = sessions(|sessions| sessions.ended.pop_front()) else { return };
            let SessionHold { database, key, id, cached, .. } = hold;
            context.select(database);
            let name = context.name(&key);
            let name = name.as_name();
            // A replica must not write, nor a node that does not serve the key any longer.
            if context.flags() & api::FLAG_MASTER != 0 && context.serves(name) {
                let settle = HoldOperation::Settle { id: &id, used: Some(0) };
                let moment = Moment::new(context.now(), None);
                let _ = state::decide_hold(context, name, &cached.policy, settle, moment);
                wait::changed(context, name);
            }
        }
        if sessions(|sessions| !sessions.ended.is_empty()) {
            context.timer(1, settle_ended, null_mut::<c_void>());
        }
    });
}
