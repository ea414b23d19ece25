//! Where waiting meets the server: clients that are blocked, timers, and what changes keys.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr::{null_mut, without_provenance_mut},
    sync::atomic::{AtomicBool, Ordering},
};

use sluicegate_core::Decision;

use super::{all_changed, changed, due, failed, gone};
use crate::{
    api::{self, BlockedClient, Ctx, Event, Text, api},
    context::{Context, Name},
    edge,
};

type Answer = Result<Decision, String>;

/// A client that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client(*mut BlockedClient);

// SAFETY: it is an address, which is only given back to the server, by whoever the server calls.
unsafe impl Send for Client {}

impl Client {
    pub(super) fn answer(self, answer: Answer) {
        let data = Box::into_raw(Box::new(answer));
        // SAFETY: the client is blocked, and is unblocked once; `free` takes the box back.
        unsafe { (api().unblock_client)(self.0, data.cast()) };
    }
}

/// Blocks the client that called.
pub(super) fn block(context: Context<'_>) -> Client {
    // SAFETY: the context is that of a command. Without a time-out of the server there is none to
    // call back about.
    unsafe {
        let client = (api().block_client)(context.raw(), Some(reply), None, Some(free), 0);
        (api().on_disconnect)(client, disconnected);
        Client(client)
    }
}

/// A timer that wakes the waiter `id`.
pub(super) fn timer(context: Context<'_>, millis: u64, id: u64) -> u64 {
    let data = without_provenance_mut::<c_void>(usize::try_from(id).unwrap_or(0));
    context.timer(i64::try_from(millis).unwrap_or(i64::MAX), timed, data)
}

/// Lets the server tell what others do to keys, from the first waiter on.
pub(super) fn listen(context: Context<'_>) {
    static LISTENS: AtomicBool = AtomicBool::new(false);
    if !LISTENS.swap(true, Ordering::Relaxed) {
        context.subscribe_keys(api::NOTIFY_CHANGES, key_changed);
        context.subscribe(Event::FLUSHED, flushed);
        context.subscribe(Event::SWAPPED, flushed);
    }
}

/// The answer to a client whose time has come.
unsafe extern "C" fn reply(ctx: *mut Ctx, _: *mut *mut Text, _: c_int) -> c_int {
    // SAFETY: the server passed it for this call.
    let context = unsafe { Context::new(ctx) };
    let words = edge::guard("reply", edge::PANICKED, || {
        // SAFETY: the data of this client is what `Client::answer` gave, or nothing.
        let data = unsafe { (api().private_data)(ctx).cast::<Answer>().as_ref() };
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
        drop(unsafe { Box::from_raw(data.cast::<Answer>()) });
    }
}

unsafe extern "C" fn disconnected(ctx: *mut Ctx, client: *mut BlockedClient) {
    edge::guard("disconnect", (), || {
        // SAFETY: the server passed it for this call.
        gone(unsafe { Context::new(ctx) }, Client(client));
    });
    // SAFETY: a client that has gone is to be unblocked all the same.
    unsafe { (api().unblock_client)(client, null_mut()) };
}

unsafe extern "C" fn timed(ctx: *mut Ctx, data: *mut c_void) {
    // SAFETY: the server passed it for this call.
    let context = unsafe { Context::new(ctx) };
    let id = data.addr() as u64;
    let done = edge::guard("timer", false, || {
        due(context, id);
        true
    });
    if !done {
        edge::guard("timer failed", (), || failed(context, id));
    }
}

unsafe extern "C" fn key_changed(
    ctx: *mut Ctx,
    _: c_int,
    _: *const c_char,
    name: *mut Text,
) -> c_int {
    edge::guard("key", (), || {
        // SAFETY: the server passed both for this call.
        unsafe { changed(Context::new(ctx), Name::new(name)) };
    });
    api::OK
}

unsafe extern "C" fn flushed(ctx: *mut Ctx, _: Event, _: u64, _: *mut c_void) {
    edge::guard("event", (), || {
        // SAFETY: the server passed it for this call.
        all_changed(unsafe { Context::new(ctx) });
    });
}
