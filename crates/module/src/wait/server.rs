//! The part of the server that waiting needs: blocked clients, timers, and events of keys.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr::{null_mut, without_provenance_mut},
    sync::atomic::{AtomicBool, Ordering},
};

use sluicegate_core::Decision;

use crate::{
    api::{self, BlockedClient, Ctx, Event, Text, api},
    context::{Context, Name},
    edge,
};

/// The reply to a waiting client: a decision or an error.
type WaitReply = Result<Decision, String>;

/// What the server calls back about.
pub(super) trait Callbacks {
    /// The client of a waiter has disconnected.
    fn disconnected(context: Context<'_>, client: Client);
    /// The timer of the waiter `id` is due.
    fn timer_due(context: Context<'_>, id: u64);
    /// [`timer_due`](Self::timer_due) has panicked.
    fn timer_failed(context: Context<'_>, id: u64);
    /// A client has changed a key.
    fn key_changed(context: Context<'_>, name: Name<'_>);
    /// Any key may have changed.
    fn all_changed(context: Context<'_>);
}

/// A blocked client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client(*mut BlockedClient);

// SAFETY: it is an address, which is only passed back to the server, in calls of the server.
unsafe impl Send for Client {}

impl Client {
    pub(super) fn answer(self, answer: WaitReply) {
        let data = Box::into_raw(Box::new(answer));
        // SAFETY: the client is blocked, and is unblocked once; `free` takes the box back.
        unsafe { (api().unblock_client)(self.0, data.cast()) };
    }
}

/// Blocks the client that called.
pub(super) fn block<C: Callbacks>(context: Context<'_>) -> Client {
    // SAFETY: the context is that of a command. The server has no timeout, and therefore calls
    // no function for it.
    unsafe {
        let client = (api().block_client)(context.raw(), Some(reply), None, Some(free), 0);
        (api().on_disconnect)(client, disconnected::<C>);
        Client(client)
    }
}

/// A timer that wakes the waiter `id`.
pub(super) fn timer<C: Callbacks>(context: Context<'_>, millis: u64, id: u64) -> u64 {
    let data = without_provenance_mut::<c_void>(usize::try_from(id).unwrap_or(0));
    context.timer(i64::try_from(millis).unwrap_or(i64::MAX), timed::<C>, data)
}

/// Subscribes to changes of keys, when the first client waits.
pub(super) fn subscribe<C: Callbacks>(context: Context<'_>) {
    static SUBSCRIBED: AtomicBool = AtomicBool::new(false);
    if !SUBSCRIBED.swap(true, Ordering::Relaxed) {
        context.subscribe_keys(api::NOTIFY_CHANGES, key_changed::<C>);
        context.subscribe(Event::FLUSHED, flushed::<C>);
        context.subscribe(Event::SWAPPED, flushed::<C>);
    }
}

/// Sends the reply to a client that is unblocked.
unsafe extern "C" fn reply(ctx: *mut Ctx, _: *mut *mut Text, _: c_int) -> c_int {
    // SAFETY: the server passed it for this call.
    let context = unsafe { Context::new(ctx) };
    let words = edge::guard("reply", edge::PANICKED, || {
        // SAFETY: the data of this client is what `Client::answer` gave, or nothing.
        let data = unsafe { (api().private_data)(ctx).cast::<WaitReply>().as_ref() };
        match data {
            Some(Ok(decision)) => {
                context.reply_integers(&decision.to_integers());
                ""
            }
            Some(Err(words)) => words,
            None => edge::PANICKED,
        }
    });
    if !words.is_empty() {
        context.reply_error(words);
    }
    api::OK
}

unsafe extern "C" fn free(_: *mut Ctx, data: *mut c_void) {
    if !data.is_null() {
        // SAFETY: it is the box of `Client::answer`, which comes back once.
        drop(unsafe { Box::from_raw(data.cast::<WaitReply>()) });
    }
}

unsafe extern "C" fn disconnected<C: Callbacks>(ctx: *mut Ctx, client: *mut BlockedClient) {
    edge::guard("disconnect", (), || {
        // SAFETY: the server passed it for this call.
        C::disconnected(unsafe { Context::new(ctx) }, Client(client));
    });
    // SAFETY: a client that has disconnected must be unblocked too.
    unsafe { (api().unblock_client)(client, null_mut()) };
}

unsafe extern "C" fn timed<C: Callbacks>(ctx: *mut Ctx, data: *mut c_void) {
    // SAFETY: the server passed it for this call.
    let context = unsafe { Context::new(ctx) };
    let id = data.addr() as u64;
    let done = edge::guard("timer", false, || {
        C::timer_due(context, id);
        true
    });
    if !done {
        edge::guard("timer failed", (), || C::timer_failed(context, id));
    }
}

unsafe extern "C" fn key_changed<C: Callbacks>(
    ctx: *mut Ctx,
    _: c_int,
    _: *const c_char,
    name: *mut Text,
) -> c_int {
    edge::guard("key", (), || {
        // SAFETY: the server passed both for this call.
        unsafe { C::key_changed(Context::new(ctx), Name::new(name)) };
    });
    api::OK
}

unsafe extern "C" fn flushed<C: Callbacks>(ctx: *mut Ctx, _: Event, _: u64, _: *mut c_void) {
    edge::guard("event", (), || {
        // SAFETY: the server passed it for this call.
        C::all_changed(unsafe { Context::new(ctx) });
    });
}
