//! Whether anybody hears what is replicated: an append-only file, a replica, or the backlog of one.
//!
//! Where nobody does, the server makes the command that would be replicated, looks it up, and throws
//! it away: a quarter of a whole decision. So then it is only told that something has changed, which
//! its save points count (`docs/adr/0022-audience.md`).
//!
//! Nobody begins to hear without telling: a replica that is new is sent what a child of the server
//! writes, and what was replicated since that child was born; an append-only file begins in the same
//! way; a replica that goes on where it was needs a backlog, which only a server has that had a replica,
//! or was one. Each of these is an event of the server, and at each the server is asked.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{
    api::{self, Ctx, Event},
    context::Context,
    edge,
};

/// Set while nobody hears what is replicated.
static NOBODY: AtomicBool = AtomicBool::new(false);

/// Whether nobody hears what is replicated.
#[inline]
pub(crate) fn is_nobody() -> bool {
    NOBODY.load(Ordering::Relaxed)
}

/// Asks for being told of all that may let somebody hear. Until the first time that the server looks after
/// itself, somebody may.
pub(crate) fn begin(context: Context<'_>) {
    NOBODY.store(false, Ordering::Relaxed);
    for event in [
        Event::ROLE_CHANGED,
        Event::REPLICA_CHANGED,
        Event::CRON,
        Event::CHILD,
        Event::CONFIG_CHANGED,
    ] {
        context.subscribe(event, changed);
    }
}

unsafe extern "C" fn changed(ctx: *mut Ctx, _: Event, _: u64, _: *mut c_void) {
    let nobody = edge::guard("audience", false, || {
        // SAFETY: the server passed it for this call.
        let context = unsafe { Context::new(ctx) };
        let flags = context.flags();
        // What a Cluster hands over with a slot is hard to tell from outside.
        let alone =
            flags & api::FLAG_MASTER != 0 && flags & (api::FLAG_AOF | api::FLAG_CLUSTER) == 0;
        alone
            && context.told(c"replication", [c"connected_slaves", c"repl_backlog_active"])
                == Some([0, 0])
    });
    NOBODY.store(nobody, Ordering::Relaxed);
}
