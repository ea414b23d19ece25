//! Whether replication has consumers: an append-only file, a replica, or the backlog of one.
//!
//! Without consumers, the server still builds the command to replicate, looks it up, and discards it: a quarter
//! of the time of a decision. Then a command only reports a change, which save points count
//! (`docs/adr/0022-replication-consumers.md`).
//!
//! Every new consumer causes an event of the server: a new replica gets what a child of the server writes, and
//! what was replicated since that child started; so does a new append-only file; a replica that resumes needs a
//! backlog, which only exists on a server that had a replica or was one. On each of these events, the module
//! checks for consumers.

use std::ffi::c_void;

use crate::{
    api::{self, Ctx, Event},
    context::{Context, set_no_consumers},
    edge,
};

/// Subscribes to all events that may add a consumer. Assumes a consumer until the first cron tick.
pub(crate) fn subscribe_events(context: Context<'_>) {
    set_no_consumers(false);
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
    let none = edge::guard("replication", false, || {
        // SAFETY: the server passed it for this call.
        let context = unsafe { Context::new(ctx) };
        let flags = context.flags();
        // A cluster migrates slots in ways that the module cannot observe.
        let is_alone =
            flags & api::FLAG_MASTER != 0 && flags & (api::FLAG_AOF | api::FLAG_CLUSTER) == 0;
        is_alone
            && context.info_numbers(c"replication", [c"connected_slaves", c"repl_backlog_active"])
                == Some([0, 0])
    });
    set_no_consumers(none);
}
