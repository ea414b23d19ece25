//! Timers of waiting clients: causes of wake-ups.
//!
//! A waiting client is only served in a timer of its own: a wake-up is a timer that is due immediately. Therefore
//! nothing is decided within the command of another client.

use std::{
    ffi::{c_char, c_int, c_void},
    ptr::without_provenance_mut,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use sluicegate_core::{
    Operation, Policy,
    wait::{Left, Ticket},
};

use super::{
    client::{Client, WaitReply},
    queues::{QueueKey, WaitingClient, queues, tickets, waiting},
};
use crate::{
    api::{self, BlockedClient, Ctx, Text},
    context::{Context, Name},
    edge,
};

/// Maximum length of one timer in milliseconds; a longer wait takes several.
const MAX_SLEEP_MILLIS: i64 = 3_600_000;

/// An operation was applied to `name`: requests that wait for it may now pass.
#[inline]
pub(crate) fn applied(
    context: Context<'_>,
    name: Name<'_>,
    policy: &Policy,
    operation: Operation,
    is_allowed: bool,
) {
    if waiting() > 0 {
        let key = QueueKey { database: context.database(), name: name.bytes().into() };
        wake(context, queues(|queues| queues.applied(&key, policy, operation, is_allowed)));
    }
}

/// The usage of `name` may be lower than before: its head is decided again.
pub(crate) fn changed(context: Context<'_>, name: Name<'_>) {
    if waiting() > 0 {
        let key = QueueKey { database: context.database(), name: name.bytes().into() };
        wake(context, queues(|queues| queues.changed(&key)));
    }
}

/// Subscribes to changes of keys, when the first client waits.
fn subscribe(context: Context<'_>) {
    static SUBSCRIBED: AtomicBool = AtomicBool::new(false);
    if !SUBSCRIBED.swap(true, Ordering::Relaxed) {
        context.subscribe_keys(api::NOTIFY_CHANGES, key_changed);
        context.subscribe(api::Event::FLUSHED, all_changed);
        context.subscribe(api::Event::SWAPPED, all_changed);
    }
}

/// A client has disconnected: its timer, due immediately, removes it.
unsafe extern "C" fn disconnected(ctx: *mut Ctx, client: *mut BlockedClient) {
    let client = Client::of(client);
    edge::guard("disconnect", (), || {
        let ticket = tickets(|tickets| tickets.remove(&client));
        if let Some(ticket) = ticket {
            queues(|queues| queues.data(ticket).map(|it| it.client = None));
        }
        // SAFETY: the server passed the context for this call.
        wake(unsafe { Context::new(ctx) }, ticket);
    });
    client.release();
}

/// A client has changed a key.
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

/// Any key may have changed.
unsafe extern "C" fn all_changed(ctx: *mut Ctx, _: api::Event, _: u64, _: *mut c_void) {
    edge::guard("event", (), || {
        for head in queues(|queues| queues.all_changed()) {
            // SAFETY: the server passed the context for this call.
            wake(unsafe { Context::new(ctx) }, Some(head));
        }
    });
}

/// A request that is being decided. Dropping it leaves the queue; a client that is blocked gets an error.
pub(super) struct TicketGuard<'a> {
    pub(super) context: Context<'a>,
    pub(super) ticket: Ticket,
}

impl TicketGuard<'_> {
    /// Blocks the client that called: it waits from now on.
    pub(super) fn block(self) {
        let client = Client::block(self.context, disconnected);
        queues(|queues| queues.data(self.ticket).map(|it| it.client = Some(client)));
        tickets(|tickets| tickets.insert(client, self.ticket));
        subscribe(self.context);
        std::mem::forget(self);
    }
}

impl Drop for TicketGuard<'_> {
    fn drop(&mut self) {
        answer(self.context, self.ticket, Err(edge::PANICKED.to_owned()));
    }
}

/// Removes a request and replies to its client.
pub(super) fn answer(context: Context<'_>, ticket: Ticket, answer: Result<WaitReply, String>) {
    if let Some(client) =
        remove(context, ticket).and_then(|left| left.data).and_then(|it| it.client)
    {
        client.answer(answer);
    }
}

/// Removes a request, and wakes the next one.
pub(super) fn remove(context: Context<'_>, ticket: Ticket) -> Option<Left<WaitingClient>> {
    let left = queues(|queues| queues.remove_ticket(ticket))?;
    if let Some(WaitingClient { client, timer, .. }) = &left.data {
        if let Some(client) = client {
            tickets(|tickets| tickets.remove(client));
        }
        if let Some(timer) = *timer {
            context.stop_timer(timer);
        }
    }
    left.wake.iter().for_each(|next| wake(context, Some(*next)));
    Some(left)
}

pub(super) fn wake(context: Context<'_>, ticket: Option<Ticket>) {
    if let Some(ticket) = ticket {
        arm(context, ticket, Duration::ZERO);
    }
}

/// Sets the timer of a request, and stops any other.
pub(super) fn arm(context: Context<'_>, ticket: Ticket, wait: Duration) {
    let millis = wait.as_micros().div_ceil(1000);
    let millis = i64::try_from(millis).map_or(MAX_SLEEP_MILLIS, |it| it.min(MAX_SLEEP_MILLIS));
    let data = without_provenance_mut::<c_void>(usize::try_from(ticket.0).unwrap_or(0));
    let Some(due) = queues(|queues| queues.data(ticket).map(|it| it.due)) else { return };
    let timer = context.timer(millis, due, data);
    let old = queues(|queues| queues.data(ticket).and_then(|it| it.timer.replace(timer)));
    if let Some(old) = old {
        context.stop_timer(old);
    }
}
